"""Certificates of engine "int8": products of magnitudes that show how many bits a product needs, without its exponents.

7 bits (`magnitudes`, `least`): with M = sum over l of floor(2^7 |a_il| / 2^e_i) floor(2^7 |b_lj| / 2^f_j), one int8
product, |A||B| >= 2^(e_i + f_j - 14) M, and the first few l already show that ordinary matrices need no more than the
base level (`base`).

bfloat16 (`uncertified`), whose exponents reach far: tells the entries of a matrix with structure (unit, triangular,
block diagonal) that are small or vanish from those that lose bits.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from . import _residues, _slices

Limbs = tuple[jax.Array, ...]

MAGNITUDE_BITS = 7
TERMS, MOST_TERMS = 256, 512
"""Terms of a sum that its magnitude is taken of, and of a long sum."""


def base(k: int, limbs: int) -> tuple[_residues.Plan, int]:
    """The base level: a plan with few bits beyond 53 limbs, and of how many terms magnitudes are taken to certify it.

    The more terms, the fewer bits suffice. 2^-14 M of square matrices of normal numbers, the least of all entries over
    all scales (grids are powers of two, here up to 12 deviations), and what is needed, 1.51 2^-bits:

        k                128     256     1024    4096    8192    16384
        least M / 2^14   1.2     2.0     1.4     1.2     2.2     2.2        256 terms, from 8192 on 512
        needed           0.38    0.76    0.76    0.76    1.51    1.51

    Uniform numbers have ten times as much. From 4096 on 512 terms are taken where they save a channel.
    """
    if k < TERMS:
        return _residues.plan(k, 53 * limbs + 2), TERMS
    plan, fewer = (_residues.plan(k, 53 * limbs + bits) for bits in (1, 0))
    long = k >= 8192 or (k >= 4096 and fewer.channels < plan.channels)
    return (fewer, MOST_TERMS) if long else (plan, TERMS)


def magnitudes(x: Limbs, exponent: jax.Array, side: int, terms: int = TERMS) -> jax.Array:
    """int8 floor(2^7 |x| / 2^exponent), at most 127, [..., m, k'] or [..., k', n], of the first k' <= terms terms.

    Args:
        x: limbs whose leading ones count; |x| < 2^exponent makes 127 a lower bound where that limb is 2^exponent.
        exponent: `shared_exponent` of `settled_exponents`. Rows (columns, side 1) that are not settled get 0, and so
            do those next to the end of the range: less is then certified.
    """
    leading = x[0][..., :terms] if side == 0 else x[0][..., :terms, :]
    factor = _slices.power_of_two(jnp.clip(MAGNITUDE_BITS - exponent, -1022, 1023))
    inside = (exponent > MAGNITUDE_BITS - 1022) & (exponent < _slices.UNSETTLED)
    scaled = jnp.floor(jnp.abs(leading) * jnp.expand_dims(factor, -1 - side))
    return jnp.where(jnp.expand_dims(inside, -1 - side), jnp.minimum(scaled, 127.0), 0.0).astype(jnp.int8)


def least(a: jax.Array, b: jax.Array) -> jax.Array:
    """The least entry of the int8 product of magnitudes, int32."""
    batch = tuple(range(a.ndim - 2))
    dims = (((a.ndim - 1,), (a.ndim - 2,)), (batch, batch))
    return jnp.min(lax.dot_general(a, b, dims, preferred_element_type=jnp.int32), initial=2**31 - 1)


def certificate(plan: _residues.Plan, limbs: int) -> int:
    """The least M that proves the contract: 2^-w (3/2 k + 9/16 2^-w k) <= k 2^(-53 limbs - 14) M."""
    spare = plan.bits - 53 * limbs
    return -(-151 * 2 ** (2 * MAGNITUDE_BITS) // (100 * 2**spare))


UNSURE = 2**40
"""A count of flags from which on they prove nothing."""


def fewest_bits(k: int) -> int:
    """Bits beyond 53 limbs at which `uncertified` flags few entries of a matrix with structure.

    Worst are entries of one term: |a_il| >= 1/2 on its grid, b_lj normal, on a grid that ends at 8 deviations or less.
    They are flagged where |b_lj| < 2 least_size = 3.1 2^-bits / k of the grid, which 20 2^-bits / k of all b_lj are. As
    2^bits >= 2^19 / k, this is one entry in 26000; the exact sums take one in 4096.
    """
    return max(2, 20 - k.bit_length())


def least_size(k: int, plan: _residues.Plan, limbs: int) -> float:
    """With t terms that do not vanish, S >= t least_size proves the contract for words of plan.bits.

    S is |A||B| on the grid from factors in bfloat16, summed in float32: S <= 1.02 (1 + 2^-22 k) |A||B|. Words of w bits
    err by 1.51 t 2^-w, which the contract allows where k |A||B| >= 1.51 t 2^(53 limbs - w).
    """
    return 1.51 * 1.02 * (1 + k / 2**22) * 2.0 ** (53 * limbs - plan.bits) / k


def uncertified(
    a: Limbs, b: Limbs, row: jax.Array, column: jax.Array, plan: _residues.Plan, limbs: int, most: int
) -> tuple[jax.Array, jax.Array]:
    """(int8 [..., m, n], int64): entries for which words of plan.bits may be too short, and how many.

    The count is UNSURE or more where a grid is not settled or a magnitude is below 2^-60: above, S = 0 only where no
    term is left, and the product there is 0. The flags need not be right where it exceeds `most`.
    """
    x, y = _in_bfloat16(a, row, 0), _in_bfloat16(b, column, 1)
    batch = tuple(range(x.ndim - 2))
    dims = (((x.ndim - 1,), (x.ndim - 2,)), (batch, batch))
    size = lax.dot_general(x, y, dims, preferred_element_type=jnp.float32)
    count = lambda x, axis: jnp.sum(x > 0, axis=axis, keepdims=True, dtype=jnp.int32).astype(jnp.float32)
    terms = jnp.minimum(count(x, -1), count(y, -2))
    flags = (size > 0) & (size < jnp.float32(least_size(x.shape[-1], plan, limbs)) * terms)
    smallest = lambda x: jnp.min(jnp.where(x > 0, x, 1), initial=1)
    settled = jnp.maximum(jnp.max(row, initial=0), jnp.max(column, initial=0)) < _slices.UNSETTLED
    sure = settled & (jnp.minimum(smallest(x), smallest(y)) >= 2.0**-60)
    return flags.astype(jnp.int8), jnp.sum(flags, dtype=jnp.int64) + jnp.where(sure, 0, UNSURE)


def _in_bfloat16(x: Limbs, exponent: jax.Array, side: int) -> jax.Array:
    """|x| / 2^exponent of the leading limbs, at least 2^-61 where that is not zero."""
    leading, half = jnp.abs(x[0]), lax.div(-exponent, jnp.int32(2))
    first, second = (_slices.power_of_two(jnp.clip(e, -1022, 1023)) for e in (half, -exponent - half))
    scaled = leading * jnp.expand_dims(first, -1 - side) * jnp.expand_dims(second, -1 - side)
    return jnp.where(leading > 0, jnp.maximum(scaled, 2.0**-61), 0.0).astype(jnp.bfloat16)
