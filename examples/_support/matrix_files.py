"""Matrices from and to files: decimal text (.csv, .txt), NumPy archives (.npz, .npy), Matrix Market (.mtx).

Every number stays text until `jaxmd.asarray` rounds it once to the wanted limbs; nothing passes through float64.
Anything unreadable raises MatrixFileError naming the file, the line and the token.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

import jaxmd

Texts = list[list[str]]


class MatrixFileError(ValueError):
    """A matrix file that cannot be read: which file, which line, which token."""


def read(path: str | Path, limbs: int) -> jaxmd.MultiDouble:
    """The matrix in `path`, each entry rounded once to `limbs` limbs; the format is the file's ending.

    .csv and other text: one row a line, entries split by commas, semicolons or blanks, `#` starts a comment; an entry
    is what `jaxmd.asarray` reads ("0.1", "1/3", "-1.5e-300", "0x1.8p3", "inf"). .mtx: Matrix Market, coordinate or
    array, real, integer or pattern, general, symmetric or skew-symmetric. .npz: from `jaxmd.save`, or one array.
    .npy: one array.
    """
    path = Path(path)
    if not path.is_file():
        raise MatrixFileError(f"{path}: no such file; a matrix file (.csv, .npz, .npy, .mtx) was wanted.")
    if path.suffix in (".npz", ".npy"):
        return _read_numpy(path, limbs)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise MatrixFileError(
            f"{path}: byte {error.start} is not text; decimal text, .npz or .mtx was wanted."
        ) from None
    places, texts = _market(path, lines) if path.suffix == ".mtx" else _plain(path, lines)
    return _convert(path, texts, places, limbs)


def write(path: str | Path, matrix: jaxmd.MultiDouble) -> None:
    """Write `matrix` (m × n) as comma-separated decimal text with all digits: read back, it has the same limbs."""
    lines = [",".join(row) for row in texts(matrix)]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def texts(matrix: jaxmd.MultiDouble) -> Texts:
    """Entries of an m × n matrix as the shortest decimal text that reads back identically."""
    strings = np.asarray(jaxmd.to_strings(matrix), dtype=object)
    return [[str(entry) for entry in row] for row in strings]


Places = dict[tuple[int, int], tuple[int, int]]  # (row, column) of the matrix -> (line, token) of the file, from 1


def _plain(path: Path, lines: list[str]) -> tuple[Places, Texts]:
    places: Places = {}
    rows: Texts = []
    for number, line in enumerate(lines, 1):
        content = line.split("#", 1)[0].strip()
        if not content:
            continue
        tokens = re.split(r"\s*[,;]\s*|\s+", content)
        if rows and len(tokens) != len(rows[0]):
            raise MatrixFileError(
                f"{path}, line {number}: {len(tokens)} entries came; {len(rows[0])} were wanted, as in the rows above."
            )
        for column, token in enumerate(tokens):
            places[len(rows), column] = (number, column + 1)
            if not token:
                raise MatrixFileError(f"{path}, line {number}, token {column + 1}: nothing came; a number was wanted.")
        rows.append(tokens)
    if not rows:
        raise MatrixFileError(f"{path}: the file has no entries; a matrix, one row a line, was wanted.")
    return places, rows


def _market(path: Path, lines: list[str]) -> tuple[Places, Texts]:
    head = lines[0].lower().split() if lines else []
    if len(head) != 5 or head[:2] != ["%%matrixmarket", "matrix"]:
        raise MatrixFileError(f"{path}, line 1: not a Matrix Market header; '%%MatrixMarket matrix …' was wanted.")
    layout, field, symmetry = head[2:]
    for token, value, known in (
        (3, layout, ("coordinate", "array")),
        (4, field, ("real", "double", "integer", "pattern")),
        (5, symmetry, ("general", "symmetric", "skew-symmetric")),
    ):
        if value not in known or (layout == "array" and value == "pattern"):
            raise MatrixFileError(
                f"{path}, line 1, token {token}: '{value}' came; one of {', '.join(known)} was wanted."
            )
    body = [(n, line.split()) for n, line in enumerate(lines, 1) if line.strip() and not line.startswith("%")]
    if not body:
        raise MatrixFileError(f"{path}: the size line is missing.")
    number, size = body[0]
    wanted = 3 if layout == "coordinate" else 2
    if len(size) != wanted:
        raise MatrixFileError(f"{path}, line {number}: {len(size)} sizes came; {wanted} were wanted.")
    rows, columns, *stored = [_natural(path, number, i, token) for i, token in enumerate(size, 1)]
    if symmetry != "general" and rows != columns:
        raise MatrixFileError(
            f"{path}, line {number}: a {symmetry} matrix of {rows} × {columns}; a square one was wanted."
        )
    positions = _stored_positions(rows, columns, symmetry) if layout == "array" else None
    count = len(positions) if positions is not None else stored[0]
    entries = body[1:]
    if len(entries) != count:
        last = entries[-1][0] if entries else number
        raise MatrixFileError(f"{path}, line {last}: the file ends with {len(entries)} entries; {count} were wanted.")
    matrix = [["0"] * columns for _ in range(rows)]
    places: Places = {}
    for index, (number, tokens) in enumerate(entries):
        wanted = 1 if positions is not None else (2 if field == "pattern" else 3)
        if len(tokens) != wanted:
            raise MatrixFileError(f"{path}, line {number}: {len(tokens)} tokens came; {wanted} were wanted.")
        if positions is not None:
            i, j = positions[index]
        else:
            i, j = (_natural(path, number, t, tokens[t - 1]) - 1 for t in (1, 2))
            for token, value, limit in ((1, i, rows), (2, j, columns)):
                if not 0 <= value < limit:
                    raise MatrixFileError(
                        f"{path}, line {number}, token {token}: index {value + 1} came; 1 to {limit} was wanted."
                    )
        if (i, j) in places:
            raise MatrixFileError(f"{path}, line {number}: entry ({i + 1}, {j + 1}) came twice; it was wanted once.")
        value = "1" if field == "pattern" else tokens[-1]
        places[i, j] = (number, len(tokens))
        matrix[i][j] = value
        if symmetry != "general" and i != j:
            places[j, i] = (number, len(tokens))
            matrix[j][i] = value if symmetry == "symmetric" else _negated(value)
    return places, matrix


def _stored_positions(rows: int, columns: int, symmetry: str) -> list[tuple[int, int]]:
    """Order of the entries of an array file: by columns; of a symmetric one only the lower triangle is stored."""
    first = {"general": 0, "symmetric": 0, "skew-symmetric": 1}[symmetry]
    return [(i, j) for j in range(columns) for i in range(0 if symmetry == "general" else j + first, rows)]


def _negated(text: str) -> str:
    return text[1:] if text.startswith("-") else "-" + text.removeprefix("+")


def _natural(path: Path, line: int, token: int, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise MatrixFileError(f"{path}, line {line}, token {token}: '{text}' came; a whole number was wanted.")
    return value


def _read_numpy(path: Path, limbs: int) -> jaxmd.MultiDouble:
    try:
        stored: Any = np.load(path)
    except (ValueError, OSError, EOFError) as error:
        raise MatrixFileError(f"{path}: NumPy cannot read it ({error}).") from None
    if path.suffix == ".npz":
        names = list(stored.files)
        if len(names) == 1:
            array = stored[names[0]]
        else:
            try:
                loaded = jaxmd.load(path)
                (matrix,) = loaded.values() if isinstance(loaded, dict) else (loaded,)
                return _two_axes(path, jaxmd.asarray(matrix, limbs))
            except Exception as error:
                raise MatrixFileError(
                    f"{path}: arrays {', '.join(names)} came; jaxmd.save's, or one array, were wanted ({error})"
                ) from None
    else:
        array = stored
    try:
        return _two_axes(path, jaxmd.asarray(array, limbs))
    except (TypeError, ValueError) as error:
        raise MatrixFileError(f"{path}: {error}") from None


def _two_axes(path: Path, matrix: jaxmd.MultiDouble) -> jaxmd.MultiDouble:
    if matrix.ndim != 2:
        raise MatrixFileError(f"{path}: an array of shape {matrix.shape} came; a matrix was wanted.")
    return matrix


def _convert(path: Path, rows: Texts, places: Places, limbs: int) -> jaxmd.MultiDouble:
    if not rows or not rows[0]:
        return jaxmd.zeros((len(rows), 0), limbs)
    try:
        return jaxmd.asarray(rows, limbs)
    except ValueError:
        for (row, column), (line, token) in places.items():
            try:
                jaxmd.asarray(rows[row][column], limbs)
            except ValueError as error:
                raise MatrixFileError(
                    f"{path}, line {line}, token {token}: '{rows[row][column]}' came; a number was wanted ({error})"
                ) from None
        raise
