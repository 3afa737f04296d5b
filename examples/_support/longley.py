"""The Longley regression data as exact rationals, and its polynomial expansions.

longley.csv (16 years × 7 series)  →  X: a column of ones and the six regressors, Fractions
expansion(X, d): every monomial of degree ≤ d in the six regressors, 7, 28, 84 columns for d = 1, 2, 3
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "data" / "longley.csv"
Matrix = list[list[Fraction]]


def read(path: Path = FILE) -> tuple[list[Fraction], Matrix]:
    """Response y (TOTEMP) and the six regressors, one row a year."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    rows = [[Fraction(token) for token in line.split(",")] for line in lines[1:]]
    return [row[0] for row in rows], [row[1:] for row in rows]


def expansion(regressors: Matrix, degree: int) -> Matrix:
    """All monomials of total degree at most `degree`, the constant first, exactly."""
    columns = range(len(regressors[0]))
    choices = [c for d in range(degree + 1) for c in itertools.combinations_with_replacement(columns, d)]
    result = []
    for row in regressors:
        monomials = []
        for choice in choices:
            value = Fraction(1)
            for column in choice:
                value *= row[column]
            monomials.append(value)
        result.append(monomials)
    return result


def gram(x: Matrix) -> Matrix:
    """XᵀX in rational arithmetic."""
    columns = list(zip(*x, strict=True))
    return [
        [sum((p * q for p, q in zip(left, right, strict=True)), Fraction(0)) for right in columns] for left in columns
    ]


def solve(matrix: Matrix, right: list[Fraction]) -> list[Fraction]:
    """Solution of a square system by Gauss elimination in rational arithmetic: any pivot ≠ 0 will do."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for step in range(size):
        pivot = next(i for i in range(step, size) if rows[i][step])
        rows[step], rows[pivot] = rows[pivot], rows[step]
        head = rows[step]
        for i in range(size):
            if i != step and rows[i][step]:
                factor = rows[i][step] / head[step]
                rows[i] = [p - factor * q for p, q in zip(rows[i], head, strict=True)]
    return [row[size] / row[i] for i, row in enumerate(rows)]
