"""Exact limbs ↔ ratios of integers: pure Python on integers of any size, no floating-point arithmetic.

    num/den ──→ limbs (x₁, …, x_L)     x₁ = RN(x), xᵢ₊₁ = RN(x − x₁ − … − xᵢ)
    limbs   ──→ n/2^q, Fraction

RN is round-to-nearest, ties to even, in double, subnormals and overflow included. These are the canonical limbs of x.
"""

import math
import struct
from collections.abc import Sequence
from fractions import Fraction

INFINITY = math.inf


# Into limbs.


def significand(x: float) -> tuple[int, int]:
    """(s, e) with x = s·2^e and 2^e the unit in the last place of x, which is finite.

    From the bits: the threads in which XLA calls Python back take subnormals for zero in float operations.
    """
    bits = int.from_bytes(struct.pack(">d", x), "big")
    biased = bits >> 52 & 0x7FF
    figures = bits & (1 << 52) - 1 | (1 << 52 if biased else 0)
    return -figures if bits >> 63 else figures, max(biased, 1) - 1075


def _dyadic(x: float) -> tuple[int, int]:
    """(n, q) with x = n/2^q in lowest terms, q ≥ 0."""
    figures, exponent = significand(x)
    zeros = (figures & -figures).bit_length() - 1 if figures else -exponent
    figures, exponent = figures >> zeros, exponent + zeros
    return (figures << exponent, 0) if exponent > 0 else (figures, -exponent)


def _quotient(num: int, den: int) -> float:
    """num/den rounded once, ties to even, den > 0; OverflowError beyond the range."""
    if num.bit_length() - den.bit_length() > -1021:
        return num / den  # CPython divides integers with one correct rounding
    units = nearest(abs(num) << 1074, den)  # of 2^-1074; below 2^-1021 they are the bits of the double
    return struct.unpack(">d", (units | (1 << 63 if num < 0 else 0)).to_bytes(8, "big"))[0]


def nearest(top: int, bottom: int) -> int:
    whole, rest = divmod(top, bottom)
    return whole + (2 * rest > bottom or (2 * rest == bottom and whole & 1))


def special(leading: float, count: int) -> tuple[float, ...]:
    return (leading,) + (0.0,) * (count - 1)


def ratio_to_limbs(num: int, den: int, count: int) -> tuple[float, ...]:
    """Canonical limbs of num/den, den > 0; beyond the range ±inf, or zero with the sign of num.

    Accuracy: |num/den − Σ limbs| ≤ 2^-53·count |num/den|, or 2^-1075 where the last limb is subnormal.
    """
    limbs: list[float] = []
    shift = 0  # what is left of the value is num / (den·2^shift)
    while num and len(limbs) < count:
        try:
            limb = _quotient(num, den << shift)
        except OverflowError:
            return special(-INFINITY if num < 0 else INFINITY, count)
        top, own = _dyadic(limb)
        if not top:
            limbs.append(0.0 if limbs else limb)
            break
        limbs.append(limb)
        if own > shift:
            num <<= own - shift
            shift = own
        num -= (top * den) << (shift - own)
    return tuple(limbs) + (0.0,) * (count - len(limbs))


def dyadic_to_limbs(num: int, exponent: int, count: int) -> tuple[float, ...]:
    """Canonical limbs of num·2^exponent for exponents of any size."""
    top = num.bit_length() + exponent  # 2^(top−1) ≤ |value| < 2^top
    if num and top > 1024:
        return special(-INFINITY if num < 0 else INFINITY, count)
    if num == 0 or top <= -1075:
        return special(-0.0 if num < 0 else 0.0, count)
    if exponent >= 0:
        return ratio_to_limbs(num << exponent, 1, count)
    return ratio_to_limbs(num, 1 << -exponent, count)


# Out of limbs. Limbs may overlap or cancel: their value is their sum.


def collapse(limbs: Sequence[float]) -> float | None:
    """The IEEE sum where a limb is inf or nan, ±0.0 where all are zeros, None for limbs of an ordinary number."""
    if not all(map(math.isfinite, limbs)):
        return math.nan if INFINITY in limbs and -INFINITY in limbs else math.fsum(x for x in limbs if x - x != 0)
    if not any(significand(limb)[0] for limb in limbs):
        return -0.0 if math.copysign(1.0, limbs[0]) < 0 else 0.0
    return None


def limbs_to_dyadic(limbs: Sequence[float]) -> tuple[int, int]:
    """(n, q) with Σ limbs = n/2^q exactly, q ≥ 0; the limbs are finite."""
    num = shift = 0
    for limb in limbs:
        figures, own = _dyadic(limb)
        if own > shift:
            num <<= own - shift
            shift = own
        num += figures << (shift - own)
    return num, shift


def limbs_to_fraction(limbs: Sequence[float]) -> Fraction:
    """The exact sum of finite limbs."""
    num, shift = limbs_to_dyadic(limbs)
    return Fraction(num, 1 << shift)
