"""The entries of a multiple-double array as exact Python numbers and text, on tuples of limbs."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from . import _decimal, _rational

Limbs = Sequence[Any]


def _rows(limbs: Limbs) -> tuple[tuple[int, ...], list[tuple[float, ...]]]:
    arrays = [np.asarray(limb) for limb in limbs]
    return arrays[0].shape, list(zip(*(array.ravel().tolist() for array in arrays), strict=True))


def _objects(shape: tuple[int, ...], entries: list[Any]) -> Any:
    if not shape:
        return entries[0]
    out = np.empty(len(entries), object)
    out[:] = entries
    return out.reshape(shape)


def fractions(limbs: Limbs) -> Any:
    """See `jaxmd.to_fractions`."""
    shape, rows = _rows(limbs)
    entries: list[Fraction] = []
    for row in rows:
        if (special := _rational.collapse(row)) is not None and special != 0:
            index = tuple(map(int, np.unravel_index(len(entries), shape)))
            raise ValueError(f"jaxmd.to_fractions: entry {index} is {special}; finite entries were wanted.")
        entries.append(_rational.limbs_to_fraction(row))
    return _objects(shape, entries)


def strings(limbs: Limbs, digits: int | None) -> Any:
    """See `jaxmd.to_strings`."""
    if digits is not None and digits < 1:
        raise ValueError(f"jaxmd.to_strings: digits is {digits}; at least 1 was wanted.")
    shape, rows = _rows(limbs)
    return _objects(shape, [_decimal.limbs_to_text(row, digits) for row in rows])


def mpmath_numbers(limbs: Limbs) -> Any:
    """See `jaxmd.to_mpmath`."""
    import mpmath

    def convert(row: tuple[float, ...]) -> Any:
        special = _rational.collapse(row)
        if special is not None:
            return mpmath.mpf(special)
        num, shift = _rational.limbs_to_dyadic(row)
        return mpmath.ldexp(mpmath.mpf(num, prec=max(53, num.bit_length())), -shift)

    shape, rows = _rows(limbs)
    return _objects(shape, [convert(row) for row in rows])
