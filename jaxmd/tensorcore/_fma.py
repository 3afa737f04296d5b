"""RN(a b + c) of float64 in 64-bit integer arithmetic: what one step of a double-precision tensor core computes.

    product   106 bits in a pair of words (high, low)
    align     product and c each with its top bit at bit 125; the smaller one moves right, a sticky bit keeps what falls
    round     once, to nearest even, to 53 bits or to a multiple of 2^-1074

Where more than one bit cancels the exponents differ by at most one, and nothing fell off: the result is exact before
its rounding. Signs of zeros are IEEE 754's. A NaN among the operands comes out quiet, its sign and payload kept; of
several it is b's, else c's, else a's, whether they signal or not. Inf·0, unless c is NaN, and Inf - Inf make a NaN of
the format's own.

Source: the order and that NaN are an H200's, whose outputs no other order explains (tests/test_tensorcore.py).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._bits import FORMATS, decode

_F64 = FORMATS["f64"]
_NOWHERE = -16384
_TOP = 125
PRECEDENCE = (1, 2, 0)  # of a, b and c: whose NaN is the result
QUIET = 1 << 51

Pair = tuple[jax.Array, jax.Array]  # high and low uint64


def fma_step(*words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """uint64 [...] bits of RN(a b + c), and whether no rounding took place; words of a, b and c broadcast to c's."""
    a, b, c = (decode(x, _F64) for x in words)
    product, p_exponent = _normalize(_multiply(a.magnitude, b.magnitude), a.exponent + b.exponent - 2 * 52)
    addend, c_exponent = _normalize((jnp.zeros_like(c.magnitude), c.magnitude), c.exponent - 52)
    bottom = jnp.maximum(p_exponent, c_exponent)
    product, addend = _jam(product, bottom - p_exponent), _jam(addend, bottom - c_exponent)
    p_negative = a.negative ^ b.negative
    same = p_negative == c.negative
    larger = _less(addend, product) | _equal(addend, product)
    difference = _select(larger, _subtract(product, addend), _subtract(addend, product))
    size = _select(same, _add(product, addend), difference)
    negative = jnp.where(larger, p_negative, c.negative)
    zero = (size[0] | size[1]) == 0
    negative = jnp.where(zero, p_negative & c.negative, negative)
    bits, exact = _round(size, bottom)
    sign = jnp.uint64(1 << 63)
    bits = jnp.where(negative, bits | sign, bits)

    infinite = a.infinite | b.infinite
    zero_a, zero_b = (~x.infinite & ~x.nan & (x.magnitude == 0) for x in (a, b))
    nan = a.nan | b.nan | c.nan | (a.infinite & zero_b) | (zero_a & b.infinite) | (infinite & c.infinite & ~same)
    signed = jnp.where(jnp.where(infinite, p_negative, c.negative), sign, jnp.uint64(0))
    bits = jnp.where(infinite | c.infinite, jnp.uint64(_F64.infinity) | signed, bits)
    bits = jnp.where(nan, jnp.uint64(_F64.nan), bits)
    for i in reversed(PRECEDENCE):
        bits = jnp.where((a, b, c)[i].nan, words[i] | jnp.uint64(QUIET), bits)
    return bits, exact & ~nan & ~infinite & ~c.infinite


def _multiply(x: jax.Array, y: jax.Array) -> Pair:
    low32 = jnp.uint64(0xFFFFFFFF)
    x1, x0, y1, y0 = x >> 32, x & low32, y >> 32, y & low32
    middle = x1 * y0 + (x0 * y0 >> 32)  # < 2^64: factors of 53 bits
    middle, carry = (middle & low32) + x0 * y1, middle >> 32
    return x1 * y1 + carry + (middle >> 32), x * y


def _add(x: Pair, y: Pair) -> Pair:
    low = x[1] + y[1]
    return x[0] + y[0] + (low < x[1]).astype(np.uint64), low


def _subtract(x: Pair, y: Pair) -> Pair:
    return x[0] - y[0] - (x[1] < y[1]).astype(np.uint64), x[1] - y[1]


def _less(x: Pair, y: Pair) -> jax.Array:
    return (x[0] < y[0]) | ((x[0] == y[0]) & (x[1] < y[1]))


def _equal(x: Pair, y: Pair) -> jax.Array:
    return (x[0] == y[0]) & (x[1] == y[1])


def _select(where: jax.Array, x: Pair, y: Pair) -> Pair:
    return jnp.where(where, x[0], y[0]), jnp.where(where, x[1], y[1])


def _left(x: Pair, n: jax.Array) -> Pair:
    """x << n for 0 <= n < 128."""
    near = jnp.minimum(n, 63).astype(np.uint64)
    across = jnp.where(n == 0, jnp.uint64(0), x[1] >> (jnp.uint64(64) - jnp.maximum(near, 1)))
    far = x[1] << jnp.clip(n - 64, 0, 63).astype(np.uint64)
    wide = n >= 64
    return jnp.where(wide, far, (x[0] << near) | across), jnp.where(wide, jnp.uint64(0), x[1] << near)


def _right(x: Pair, n: jax.Array) -> Pair:
    """x >> n for 0 <= n < 128."""
    near = jnp.minimum(n, 63).astype(np.uint64)
    across = jnp.where(n == 0, jnp.uint64(0), x[0] << (jnp.uint64(64) - jnp.maximum(near, 1)))
    far = x[0] >> jnp.clip(n - 64, 0, 63).astype(np.uint64)
    wide = n >= 64
    return jnp.where(wide, jnp.uint64(0), x[0] >> near), jnp.where(wide, far, (x[1] >> near) | across)


def _leading_zeros(x: Pair) -> jax.Array:
    high, low = (lax.clz(v).astype(np.int32) for v in x)
    return jnp.where(x[0] == 0, 64 + low, high)


def _normalize(x: Pair, unit: jax.Array) -> tuple[Pair, jax.Array]:
    """The top bit moved to bit 125, and the exponent of the unit then; that of zero is below every other."""
    left = _leading_zeros(x) - (127 - _TOP)
    zero = (x[0] | x[1]) == 0
    return _left(x, jnp.clip(left, 0, 127)), jnp.where(zero, _NOWHERE, unit - left)


def _jam(x: Pair, right: jax.Array) -> Pair:
    """x >> right, its last bit set where a bit fell off."""
    right = jnp.minimum(right, 127)
    kept = _right(x, right)
    lost = ~_equal(_left(kept, right), x)
    return kept[0], kept[1] | lost.astype(np.uint64)


def _round(size: Pair, bottom: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Bits of size·2^bottom to nearest even, and whether that was exact."""
    top = 127 - _leading_zeros(size)
    exponent = jnp.clip(bottom + top, _F64.min_exponent, _F64.max_exponent + 1)
    right = jnp.clip(exponent - 52 - bottom, -127, 127)
    kept = _select(right >= 0, _right(size, jnp.maximum(right, 0)), _left(size, jnp.maximum(-right, 0)))[1]
    rest = _subtract(size, _left(_right(size, jnp.maximum(right, 0)), jnp.maximum(right, 0)))
    none = jnp.zeros_like(size[0])
    half = _select(right > 0, _left((none, none + 1), jnp.maximum(right - 1, 0)), (none, none))
    tie = _equal(rest, half) & (right > 0)
    kept = kept + (_less(half, rest) | (tie & (kept & 1 != 0))).astype(np.uint64)
    bits = ((exponent - _F64.min_exponent).astype(np.uint64) << 52) + kept
    infinity = jnp.uint64(_F64.infinity)
    overflow = (bits >= infinity) | (bottom + top > _F64.max_exponent)
    zero = (size[0] | size[1]) == 0
    bits = jnp.where(zero, none, jnp.where(overflow, infinity, bits))
    return bits, ((rest[0] | rest[1]) == 0) & (~overflow | zero)
