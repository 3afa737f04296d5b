"""Exact products of multiple-double matrices in Python integers: the truth every printed error is measured against.

    limbs (L arrays, rows × k)  --integers-->  Python integers X and one exponent s, value = X·2^s exactly
    C* = A·B on a sample of rows × columns,  error in units of the bound  k·2^-53L·(|A||B|) + 2^-53L·|C*|

A double is an integer times a power of two, so a whole matrix of limb sums becomes integers after one shared shift;
the products are then integer products. python-flint's fmpz_mat does them when it is installed, plain Python otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

Integers = list[list[int]]


def integers(limbs: Sequence[Any]) -> tuple[Integers, int]:
    """The matrix Σ limbs as exact integers on one grid.

    Args:
      limbs: arrays of one shape (rows, columns), float64 and finite; any order, any overlap.

    Returns:
      X, s: nested list of int and an exponent, with Σ limbs = X·2^s entry by entry.
    """
    arrays = [np.asarray(limb, dtype=np.float64) for limb in limbs]
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("exact.integers: an entry is inf or nan; finite limbs were wanted.")
    parts = []
    for array in arrays:
        mantissa, exponent = np.frexp(array)
        parts.append(((mantissa * 2.0**53).astype(np.int64), exponent.astype(np.int64) - 53))
    lowest = [int(exponent[mantissa != 0].min()) for mantissa, exponent in parts if mantissa.any()]
    grid = min(lowest, default=0)
    rows, columns = arrays[0].shape
    total = [[0] * columns for _ in range(rows)]
    for mantissa, exponent in parts:
        shift = np.where(mantissa != 0, exponent - grid, 0)
        for row, m, s in zip(total, mantissa.tolist(), shift.tolist(), strict=True):
            for column in range(columns):
                row[column] += m[column] << s[column]
    return total, grid


def product(x: Integers, y: Integers) -> Integers:
    """Integer matrix product x (rows × k) · y (k × columns), exactly."""
    if not x or not y or not y[0]:
        return [[0] * (len(y[0]) if y else 0) for _ in x]
    try:
        from flint import fmpz_mat  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        columns = list(zip(*y, strict=True))
        return [[sum(map(int.__mul__, row, column)) for column in columns] for row in x]
    return [[int(entry) for entry in row] for row in (fmpz_mat(x) * fmpz_mat(y)).tolist()]


def absolute(x: Integers) -> Integers:
    """|x| entry by entry."""
    return [[abs(entry) for entry in row] for row in x]


@dataclass(frozen=True)
class Error:
    """Largest error over a sample of entries.

    units: in units of the bound k·2^-53L·(|A||B|) + 2^-53L·|C|; relative: over (|A||B|); maximum: |C − C*| itself.
    """

    units: float
    relative: float
    maximum: float
    entries: int


def measure(a: Sequence[Any], b: Sequence[Any], c: Sequence[Any], bits: int) -> Error:
    """Error of c as the product a·b, all as limb arrays (rows × k, k × columns, rows × columns).

    Args:
      a, b, c: sequences of limb arrays; the limb counts may differ (c may be one float64 array).
      bits: 53·L, the precision whose bound is the unit.
    """
    x, x_exponent = integers(a)
    y, y_exponent = integers(b)
    z, z_exponent = integers(c)
    k = len(y)
    exact = product(x, y)
    magnitude = product(absolute(x), absolute(y))
    grid = x_exponent + y_exponent
    low = min(grid, z_exponent)
    units = relative = maximum = Fraction(0)
    entries = 0
    for exact_row, size_row, row in zip(exact, magnitude, z, strict=True):
        for true, size, got in zip(exact_row, size_row, row, strict=True):
            entries += 1
            error = abs((true << (grid - low)) - (got << (z_exponent - low)))
            if not error:
                continue
            maximum = max(maximum, Fraction(error))
            bound = (k * size + abs(true)) << (grid - low)
            if not bound:
                return Error(float("inf"), float("inf"), float("inf"), entries)
            units = max(units, Fraction(error << bits, bound))
            relative = max(relative, Fraction(error, size << (grid - low)))
    return Error(_float(units), _float(relative), _float(maximum * Fraction(2) ** low), entries)


def _float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def sample(count: int, length: int, seed: int = 0) -> np.ndarray:
    """Sorted indices of at most `count` of `length` rows: the first, the last and random ones between."""
    if length <= count:
        return np.arange(length)
    inner = np.random.default_rng(seed).choice(np.arange(1, length - 1), size=count - 2, replace=False)
    return np.sort(np.concatenate([[0], inner, [length - 1]]))


def product_error(a: Sequence[Any], b: Sequence[Any], c: Sequence[Any], bits: int, count: int = 12) -> Error:
    """`measure` on `count` rows × `count` columns of a large product; only those rows and columns leave the device."""
    rows = sample(count, a[0].shape[0], seed=1)
    columns = sample(count, b[0].shape[1], seed=2)
    return measure(
        [np.asarray(limb[rows]) for limb in a],
        [np.asarray(limb[:, columns]) for limb in b],
        [np.asarray(limb[rows][:, columns]) for limb in c],
        bits,
    )
