"""The numbers of a precision: what `numpy.finfo` is for a float type."""

import math
import sys
from dataclasses import dataclass

from ._array import MultiDouble
from ._functions import full
from ._operands import check_limbs


@dataclass(frozen=True)
class finfo:
    """Limits of multiple doubles of a limb count L.

    Attributes:
        limbs: L.
        bits: 53·L, the bits of a significand without gaps; a value may hold more, where its limbs leave gaps.
        digits: decimal digits that every value holds, floor(bits·log10 2): 31, 47, 63, 127, 255 for L = 2, 3, 4, 8, 16.
        unit: 2^-53L, the unit of every error bound.
        eps: 2^(1 − 53L), the spacing at 1 of numbers of `bits` bits.
        tiny: 2^(53(L − 1) − 1022), from where on all limbs of a value are normal numbers; below, low limbs lose bits.
        max: the largest value each of whose limbs is below half a unit of the one before, next to 2^1024 − 2^970, from
            where on a value rounds to inf. min: −max.

    **Raises**: TypeError or ValueError for a limb count that is no integer from 1 to 16; TypeError with x64 off where
    `max` or `min` is asked for.
    """

    limbs: int

    def __post_init__(self) -> None:
        check_limbs("jaxmd.finfo", self.limbs)

    @property
    def bits(self) -> int:
        return 53 * self.limbs

    @property
    def digits(self) -> int:
        return math.floor(self.bits * math.log10(2))

    @property
    def unit(self) -> float:
        return 2.0**-self.bits

    @property
    def eps(self) -> float:
        return 2.0 ** (1 - self.bits)

    @property
    def tiny(self) -> float:
        return 2.0 ** (53 * (self.limbs - 1) - 1022)

    @property
    def max(self) -> MultiDouble:
        # Each limb is the largest double below half the last place of the one before: rounding stays below a tie.
        limbs = [sys.float_info.max * 2.0 ** (-54 * i) for i in range(self.limbs)]
        return MultiDouble(full((), limb, 1).limbs[0] for limb in limbs)

    @property
    def min(self) -> MultiDouble:
        return -self.max
