"""Certificates of engine "int8": products of magnitudes that show how many bits a product needs, without its exponents.

7 bits (`magnitudes`, `least`): with M = sum over l of floor(2^7 |a_il| / 2^e_i) floor(2^7 |b_lj| / 2^f_j), one int8
product, |A||B| >= 2^(e_i + f_j - 14) M, and the first few l already show that ordinary matrices need no more than the
base level.

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
CERTIFYING = 256
"""Terms of a sum that its magnitude is taken of. Normal data need 30 to be certified in 64 rows, 100 in 16384."""


def magnitudes(x: Limbs, exponent: jax.Array, side: int) -> jax.Array:
    """int8 floor(2^7 |x| / 2^exponent), at most 127, [..., m, k'] or [..., k', n], of the first k' <= CERTIFYING terms.

    Args:
        x: limbs whose leading ones count; |x| < 2^exponent makes 127 a lower bound where that limb is 2^exponent.
        exponent: `shared_exponent` of `settled_exponents`. Rows (columns, side 1) that are not settled get 0, and so
            do those next to the end of the range: less is then certified.
    """
    leading = x[0][..., :CERTIFYING] if side == 0 else x[0][..., :CERTIFYING, :]
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


def uncertified(
    a: Limbs, b: Limbs, row: jax.Array, column: jax.Array, plan: _residues.Plan, limbs: int
) -> tuple[jax.Array, jax.Array]:
    """bool [..., m, n], the entries for which words of plan.bits may be too short; and whether that is sure.

    With S the product of magnitudes on the grid and t the most terms that do not vanish, |A||B| >= S / 2 (the roundings
    of bfloat16 and of its sums), and words of w bits err by 1.51 t 2^-w, which the contract allows where
    k S >= 3.02 t 2^(53 limbs - w). S = 0 where no term is left, because no magnitude is below 2^-60.
    """
    x, y = _in_bfloat16(a, row, 0), _in_bfloat16(b, column, 1)
    batch = tuple(range(x.ndim - 2))
    dims = (((x.ndim - 1,), (x.ndim - 2,)), (batch, batch))
    size = lax.dot_general(x, y, dims, preferred_element_type=jnp.float32)
    count = lambda x, axis: jnp.sum(x > 0, axis=axis, keepdims=True, dtype=jnp.int32).astype(jnp.float32)
    terms = jnp.minimum(count(x, -1), count(y, -2))
    flags = (size > 0) & (size * x.shape[-1] < 3.1 * 2.0 ** (53 * limbs - plan.bits) * terms)
    smallest = lambda x: jnp.min(jnp.where(x > 0, x, 1), initial=1)
    settled = jnp.maximum(jnp.max(row, initial=0), jnp.max(column, initial=0)) < _slices.UNSETTLED
    return flags, settled & (jnp.minimum(smallest(x), smallest(y)) >= 2.0**-60)


def _in_bfloat16(x: Limbs, exponent: jax.Array, side: int) -> jax.Array:
    """|x| / 2^exponent of the leading limbs, at least 2^-61 where that is not zero."""
    leading = jnp.abs(x[0])
    scaled = leading * jnp.expand_dims(_slices.power_of_two(jnp.clip(-exponent, -1022, 1023)), -1 - side)
    return jnp.where(leading > 0, jnp.maximum(scaled, 2.0**-61), 0.0).astype(jnp.bfloat16)
