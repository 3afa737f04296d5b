"""The part of `flint.fmpz_mat` that oracles.py uses, on Python integers, for machines without python-flint."""

from collections.abc import Iterable

import numpy as np


class IntegerMatrix:
    """An m×n matrix of integers of any size."""

    def __init__(self, m: int, n: int, entries: Iterable[int]) -> None:
        self._array = np.empty(m * n, dtype=object)
        self._array[:] = list(entries)
        self._array = self._array.reshape(m, n)

    def nrows(self) -> int:
        return self._array.shape[0]

    def ncols(self) -> int:
        return self._array.shape[1]

    def entries(self) -> list[int]:
        return list(self._array.ravel())

    def tolist(self) -> list[list[int]]:
        return self._array.tolist()

    def transpose(self) -> "IntegerMatrix":
        return IntegerMatrix(self.ncols(), self.nrows(), self._array.T.ravel())

    def __mul__(self, other: "IntegerMatrix") -> "IntegerMatrix":
        if self.ncols() == 0:  # numpy's product of objects has no zero to start from
            return IntegerMatrix(self.nrows(), other.ncols(), [0] * (self.nrows() * other.ncols()))
        return IntegerMatrix(self.nrows(), other.ncols(), (self._array @ other._array).ravel())
