"""Digits of multiple doubles on a shared grid, and the seed's convolution layout.

    value      a      L limbs, each [..., m, k]           (axis k is contracted)
    exponent   e      [..., m]       |a_il| < 2^e for every l, e as small as the digits allow
    digits     X_s    [S, ..., m, k] float64 integers,  a_il = 2^e sum_s X_s 2^(-width (s + 1))  (+ rounding)

One exponent per row of A (column of B) puts all entries of a row on one grid, so signs, gaps and zero limbs disappear
in the integer sum_s X_s 2^(width (S - 1 - s)).  Bits are read from the IEEE words: XLA on the CPU flushes subnormals.

Layout of the product, equation (4) of the seed: block_row(a) = [A_0 A_1 ... A_{S-1}], block_toeplitz(b) is block upper
triangular with B_{j-i} in block (i, j), and their product holds the orders C_g = sum_{i+j=g} A_i B_j side by side.

Source: "Multiple Double Arithmetic on NVIDIA Tensor Cores" (the seed), sections 2 and 3; K. Ozaki, T. Ogita, S. Oishi,
S. M. Rump, "Error-free transformations of matrix multiplication", Numer. Algorithms 59 (2012).  Ours differs by the
shared exponents (the seed quarters each entry by its own) and by balanced digits, which need no grouping by sign.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import _arith
from ._primitive import MAX_LIMBS

Limbs = Sequence[jax.Array]

ZERO_EXPONENT = -16384
UNSETTLED = 16384
"""Stands for the exponent of zero: below every exponent a float64 sum can have, and far from overflow when shifted."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Slices:
    """Digits of a matrix on a grid shared along one axis.

    Attributes:
        digits: float64 integers [S, ...], most significant slice first.
        exponent: int32, the operand's shape without the contracted axis; |x| < 2^exponent (balanced digits need one
            bit for the sign: |x| < 2^(exponent - 1)).
        width: bits per slice; digit s weighs 2^(exponent - width*(s+1)).
    """

    digits: jax.Array
    exponent: jax.Array
    width: int = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True)
class SlicePlan:
    """Slices of one product: width bits each, count of them, and the guard bits that the contract leaves."""

    width: int
    count: int
    guard: int


def slice_width(k: int, count: int) -> int:
    """Largest width with k count 2^(2 (width - 1)) <= 2^53: every order is then one exact sum of float64."""
    return ((2**53 // max(1, k * count)).bit_length() - 1) // 2 + 1


@functools.cache
def plan(limbs: int, k: int, guard: int) -> SlicePlan:
    """The fewest slices whose error is inside the contract for entries with ESC <= guard.

    Rounding to the grid costs 3 k 2^(-width count), the orders g >= count that the triangle drops
    (count - 1) k 2^(-width count) (1 + 2^-width ...), both times 2^(e_i + f_j) <= 2^(ESC + 2) (|A||B|)_ij.  So
    (count + 3) 2^(ESC + 2 - width count) <= 2^(-53 limbs) is enough; the final rounding pays for u^L |C|.
    """
    count = 1
    while True:
        width = slice_width(k, count)
        if width < 2:
            raise ValueError(f"jaxmd.matmul: k = {k} is too long for exact sums of {limbs}-limb slices in float64.")
        spare = width * count - 53 * limbs - 2 - (count + 2).bit_length()
        if spare >= guard:
            return SlicePlan(width, count, spare)
        count += 1


def power_of_two(exponent: jax.Array) -> jax.Array:
    """2^exponent for -1022 <= exponent <= 1023, from bits: exp2 and ldexp are not exact under XLA."""
    return lax.bitcast_convert_type((exponent.astype(jnp.int64) + 1023) << 52, jnp.float64)


def exponents(limbs: Limbs) -> jax.Array:
    """Least e with |x| < 2^e for normalized x, int32, entry by entry; ZERO_EXPONENT where x is 0, inf or nan."""
    bits = lax.bitcast_convert_type(limbs[0], jnp.int64)
    biased = (bits >> 52) & 0x7FF
    fraction = bits & ((1 << 52) - 1)
    subnormal = 64 - lax.clz(fraction) - 1074
    e = jnp.where(biased == 0, subnormal, biased - 1022)
    if len(limbs) > 1:  # 2^p minus something is below 2^p
        below = (fraction == 0) & _opposite(limbs[0], limbs[1])
        e = jnp.where(below & (biased > 0), e - 1, e)
    # 1 <= magnitude < that of inf, as a range: LLVM makes a test for 0 a float comparison, which flushes subnormals
    magnitude = lax.bitcast_convert_type(bits & ((1 << 63) - 1), jnp.uint64)
    present = magnitude - 1 < np.uint64((0x7FF << 52) - 1)
    return jnp.where(present, e, ZERO_EXPONENT).astype(jnp.int32)


def _opposite(x: jax.Array, y: jax.Array) -> jax.Array:
    """Whether y is nonzero with the sign bit unlike x's."""
    bx, by = (lax.bitcast_convert_type(v, jnp.int64) for v in (x, y))
    return ((bx ^ by) < 0) & _nonzero(by)


def _nonzero(bits: jax.Array) -> jax.Array:
    """Of a float64's bits; a comparison with 0 would flush a subnormal number."""
    return lax.bitcast_convert_type(bits << 1, jnp.uint64) - 1 < np.uint64(2**64 - 1)


def settled_exponents(limbs: Limbs) -> jax.Array:
    """`exponents` where it is sure that renormalization would change nothing, else UNSETTLED, as for inf and nan.

    Sure where every limb is zero or less than half the distance from the limb before it to the next number; the last,
    which ends where the bits of random numbers do, may also be just half of it.
    """
    bits = [lax.bitcast_convert_type(x, jnp.int64) for x in limbs]
    biased = [(b >> 52) & 0x7FF for b in bits]
    power = [(b & ((1 << 52) - 1)) == 0 for b in bits]
    settled = biased[0] < 0x7FF
    for i in range(1, len(limbs)):
        gap = jnp.where(power[i - 1] & _opposite(limbs[i - 1], limbs[i]), 55, 54)
        if i == len(limbs) - 1:
            gap = jnp.where(power[i] & ((bits[i - 1] & 1) == 0), gap - 1, gap)
        settled &= (biased[i] + gap <= biased[i - 1]) | ~_nonzero(bits[i])
    return jnp.where(settled, exponents(limbs), jnp.int32(UNSETTLED))


def shared_exponent(entry_exponents: jax.Array, axis: int) -> jax.Array:
    """Largest exponent along axis, 0 where every entry is zero."""
    e = jnp.max(entry_exponents, axis=axis, initial=jnp.int32(2 * ZERO_EXPONENT))
    return jnp.where(e < ZERO_EXPONENT // 2, jnp.int32(0), e)


def _integer(limb: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(magnitude M, exponent q, negative) with |limb| = M 2^q, M < 2^53; M = 0 for inf and nan."""
    bits = lax.bitcast_convert_type(limb, jnp.int64)
    biased = (bits >> 52) & 0x7FF
    fraction = bits & ((1 << 52) - 1)
    magnitude = jnp.where(biased == 0, fraction, fraction | (1 << 52))
    magnitude = jnp.where(biased == 0x7FF, 0, magnitude)
    return magnitude, jnp.maximum(biased, 1) - 1075, bits < 0


def lowest_bit(limbs: Limbs) -> jax.Array:
    """Largest q with every limb a multiple of 2^q, int32, entry by entry; -ZERO_EXPONENT where x is 0, inf or nan."""
    least: jax.Array | None = None
    for limb in limbs:
        magnitude, q, _ = _integer(limb)
        trailing = 63 - lax.clz(magnitude & -magnitude)
        q = jnp.where(magnitude == 0, -ZERO_EXPONENT, q + trailing)
        least = q if least is None else jnp.minimum(least, q)
    assert least is not None
    return least.astype(jnp.int32)


def _window(magnitude: jax.Array, start: jax.Array, width: int) -> jax.Array:
    """Bits start ... start + width - 1 of magnitude; bits outside the word are 0."""
    right = lax.shift_right_logical(magnitude, jnp.clip(start, 0, 63))
    left = magnitude << jnp.clip(-start, 0, 63)
    return jnp.where(start >= 0, right, left) & ((1 << width) - 1)


def balanced_digits(limbs: Limbs, scale: jax.Array, width: int, count: int) -> jax.Array:
    """Balanced digits [count, ...] of round(x 2^(w - scale)), w = width*count - 1, for |x| < 2^scale.

    x normalized, scale int32 of x's shape (or broadcasting to it).  |digit| <= 2^(width-1), and the integer is within
    3/4 of x 2^(w - scale): one limb straddles the units place (1/2), the next is at most half an ulp of it (1/4).
    """
    top = width * (count - 1)
    lows = jnp.arange(top, -1, -width, dtype=jnp.int64).reshape((count,) + (1,) * limbs[0].ndim)
    units = (width * count - 1) - scale.astype(jnp.int64)

    def add_limb(total: jax.Array, limb: jax.Array) -> jax.Array:
        magnitude, q, negative = _integer(limb)
        position = q + units  # of M's lowest bit
        digit = _window(magnitude[None], lows - position[None], width)
        round_up = _window(magnitude, -position - 1, 1)  # the bit below the units place
        digit = digit + jnp.where(lows == 0, round_up[None], 0)
        return total + jnp.where(negative[None], -digit, digit)

    total = add_limb(jnp.zeros((count, *limbs[0].shape), jnp.int64), limbs[0])
    if len(limbs) <= 4:  # one fused pass; beyond, a loop, which compiles in constant time
        total = functools.reduce(add_limb, limbs[1:], total)
    else:
        total = lax.scan(lambda t, limb: (add_limb(t, limb), None), total, jnp.stack(limbs[1:]))[0]
    half, mask = 1 << (width - 1), (1 << width) - 1

    def carry_step(carry: jax.Array, digit: jax.Array) -> tuple[jax.Array, jax.Array]:
        value = digit + carry
        balanced = ((value + half) & mask) - half
        return (value - balanced) >> width, balanced

    carry = total[0] - total[0]
    if count > 1:
        carry, tail = lax.scan(carry_step, carry, total[1:], reverse=True)
        return jnp.concatenate([(total[:1] + carry[None]), tail]).astype(jnp.float64)
    return total.astype(jnp.float64)


def slices(limbs: Limbs, width: int, count: int, axis: int) -> Slices:
    """Balanced digits on a grid shared along axis (the contracted one); see `jaxmd.slices`."""
    limbs = _arith.renormalize(tuple(limbs), len(limbs))
    axis = axis % limbs[0].ndim
    e = shared_exponent(exponents(limbs), axis)
    scale = jnp.broadcast_to(jnp.expand_dims(e, axis), limbs[0].shape)
    return Slices(balanced_digits(limbs, scale, width, count), e + 1, width)


QUARTER_BITS = 13


def quarter(limbs: Limbs, axis: int) -> Slices:
    """The seed's cut: four 13-bit pieces a limb, truncated toward zero, with the entry's sign; see `jaxmd.quarter`."""
    limbs = _arith.renormalize(tuple(limbs), len(limbs))
    axis = axis % limbs[0].ndim
    e = shared_exponent(exponents(limbs), axis)
    scale = jnp.expand_dims(e, axis).astype(jnp.int64)
    count, guard = 4 * len(limbs), 6  # six guard digits hold every bit of a limb that straddles the last digit
    width, rows = QUARTER_BITS, count + guard
    lows = jnp.arange(width * (rows - 1), -1, -width, dtype=jnp.int64).reshape((rows,) + (1,) * limbs[0].ndim)
    total = jnp.zeros((rows, *limbs[0].shape), jnp.int64)
    negative_entry = lax.bitcast_convert_type(limbs[0], jnp.int64) < 0
    settled = jnp.zeros(limbs[0].shape, bool)  # a limb with bits below the grid has decided the floor
    for limb in limbs:
        magnitude, q, negative = _integer(limb)
        start = lows - (q + width * rows - scale)[None]
        opposite = negative ^ negative_entry
        digit = _window(magnitude[None], start, width)
        total = total + jnp.where(opposite[None], -digit, digit)
        last = jnp.clip(start[-1], 0, 63)
        dropped = (magnitude & ((jnp.int64(1) << last) - 1)) != 0
        total = total.at[-1].add(jnp.where(dropped & opposite & ~settled, -1, 0))
        settled = settled | dropped

    def carry_step(carry: jax.Array, digit: jax.Array) -> tuple[jax.Array, jax.Array]:
        value = digit + carry
        return value >> width, value & ((1 << width) - 1)

    _, digits = lax.scan(carry_step, total[0] - total[0], total, reverse=True)
    pieces = digits[:count].astype(jnp.float64)
    half_bit = (digits[count] >> (width - 1)).astype(jnp.float64) * 0.5  # the 53rd bit of the last limb
    pieces = pieces.at[-1].add(half_bit)
    return Slices(jnp.where(negative_entry[None], -pieces, pieces), e, width)


def block_row(s: Slices) -> jax.Array:
    """[S, ..., m, k] -> [..., m, S k], the matrix A-bar = [A_0 A_1 ... A_{S-1}] of the seed's equation (4)."""
    count, *batch, m, k = s.digits.shape
    return jnp.moveaxis(s.digits, 0, -2).reshape(*batch, m, count * k)


def block_toeplitz(s: Slices) -> jax.Array:
    """[S, ..., k, n] -> [..., S k, S n], the matrix B-bar of equation (4): B_{j-i} in block (i, j), 0 below."""
    count, *batch, k, n = s.digits.shape
    zero = jnp.zeros_like(s.digits[0])
    rows = [jnp.concatenate([zero] * i + [s.digits[j] for j in range(count - i)], axis=-1) for i in range(count)]
    return jnp.concatenate(rows, axis=-2).reshape(*batch, count * k, count * n)


def split_orders(product: jax.Array, count: int) -> jax.Array:
    """[..., m, S n] -> [S, ..., m, n]: the orders that block_row(a) @ block_toeplitz(b) holds side by side."""
    *batch, m, columns = product.shape
    return jnp.moveaxis(product.reshape(*batch, m, count, columns // count), -2, 0)


def collect(
    orders: jax.Array,
    row_exponent: jax.Array,
    column_exponent: jax.Array,
    width: int,
    limbs: int,
) -> tuple[jax.Array, ...]:
    """Sum over g of orders[g] 2^(row + column - width (g + 2)), rounded to `limbs` limbs; see `jaxmd.collect`."""
    terms = tuple(orders[g] * 2.0 ** (-width * (g + 2)) for g in range(orders.shape[0]))
    return sum_terms(terms, row_exponent[..., :, None] + column_exponent[..., None, :], limbs)


def sum_terms(terms: Limbs, exponent: jax.Array, limbs: int) -> tuple[jax.Array, ...]:
    """2^exponent times the sum of terms [...], any number of them, rounded canonically; up to 2 MAX_LIMBS limbs."""
    head = min(limbs, MAX_LIMBS)
    c = _arith.renormalize(tuple(terms), head)
    exponent = jnp.broadcast_to(exponent, c[0].shape).astype(jnp.int32)
    if limbs == head:
        return _scaled(c, exponent)
    rest = _arith.renormalize((*terms, *_arith.neg(c)), limbs - head)  # the guard limb of a product with an addend
    return (*_scaled(c, exponent), *_scaled(rest, exponent))


def _scaled(c: tuple[jax.Array, ...], exponent: jax.Array) -> tuple[jax.Array, ...]:
    """2^exponent c, limb by limb where that is exact: limbs rounded one by one may end in half an ulp, and stay."""
    half = lax.div(exponent, jnp.int32(2))
    factors = [power_of_two(jnp.clip(e, -1022, 1023)) for e in (half, exponent - half)]
    products = [limb * factors[0] * factors[1] for limb in c]
    normal = [(jnp.abs(y) >= 2.0**-1022) & jnp.isfinite(y) | (x == 0) for x, y in zip(c, products, strict=True)]
    exact = functools.reduce(jnp.logical_and, normal) & (jnp.abs(exponent) <= 2000)
    rounded = _arith.scale(c, exponent)
    return tuple(jnp.where(exact & (x != 0), y, z) for x, y, z in zip(c, products, rounded, strict=True))
