"""Elementwise functions composed of primitives, on tuples of limbs of one shape; `_functions.py` names them.

A function that uses one value in several places declares its derivative here, because cotangents that meet again would
be added limb by limb, in float64 (see `_arith`).
"""

import functools
import operator

import jax
import jax.numpy as jnp
from jax import lax

from . import _arith, _decimal
from ._order import Limbs, all_finite, compare, float64_sum, sign_from_bits, signbit, within


@jax.jit
def select(condition: jax.Array, x: Limbs, y: Limbs) -> Limbs:
    """x where the condition holds, else y; all of one shape and count."""
    return tuple(jnp.where(condition, a, b) for a, b in zip(x, y, strict=True))


@jax.jit
def absolute(x: Limbs) -> Limbs:
    """|x|, exact; the derivative is the sign, 1 at +0 and −1 at −0."""
    return select(signbit(x), _arith.neg(x), x)


@jax.jit
def sign(x: Limbs) -> Limbs:
    """−1, −0, 0, 1 or nan."""
    leading = lax.stop_gradient(_arith.to_float64(x))
    plain = jnp.where(sign_from_bits(leading) == 0, leading, sign_from_bits(leading).astype(jnp.float64))
    return _arith.from_float64(jnp.where(jnp.isnan(leading), leading, plain), len(x))


@jax.jit
def maximum(x: Limbs, y: Limbs) -> Limbs:
    """The larger value; nan where either is nan."""
    take = compare(x, y, operator.ge) | jnp.isnan(float64_sum(lax.stop_gradient(x)))
    return select(take, x, y)


@jax.jit
def minimum(x: Limbs, y: Limbs) -> Limbs:
    """The smaller value; nan where either is nan."""
    take = compare(x, y, operator.le) | jnp.isnan(float64_sum(lax.stop_gradient(x)))
    return select(take, x, y)


def _floor_double(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(floor(x), whether x is an integer), also for subnormals, which XLA on the CPU takes for zeros."""
    tiny = within(x, 0.5)
    below = jnp.where(tiny, jnp.where(lax.bitcast_convert_type(x, jnp.int64) < 0, -1.0, 0.0), jnp.floor(x))
    return below, ~tiny & (below == x)


@jax.jit
def floor(x: Limbs) -> Limbs:
    """The largest integer that is not larger: exact; ±inf, nan and −0 stay; no derivative.

    On canonical limbs: the first limb that is no integer decides, because what follows is under half its last place.
    """
    count = len(x)
    canonical = _arith.renormalize(lax.stop_gradient(tuple(x)), count)
    pieces, whole = [], jnp.ones(canonical[0].shape, bool)
    for limb in canonical:
        below, integer = _floor_double(limb)
        pieces.append(jnp.where(whole, below, 0.0))
        whole = whole & integer
    result = _arith.renormalize(tuple(pieces), count)
    kept = ~all_finite(canonical) | (sign_from_bits(canonical[0]) == 0)
    return select(kept, canonical, result)


@jax.jit
def nearest(x: Limbs) -> Limbs:
    """The nearest integer, halves to the even one: exact; ±inf, nan and −0 stay; no derivative."""
    x = lax.stop_gradient(tuple(x))
    below = floor(x)
    half = jnp.full(x[0].shape, -0.5)
    side = sign_from_bits(_arith.renormalize((*x, *_arith.neg(below), half), 1)[0])  # of x − floor(x) − 1/2, exact
    odd = jnp.zeros(x[0].shape, bool)
    for limb in below:
        odd = odd ^ (limb - 2.0 * jnp.floor(0.5 * limb) == 1.0)
    up = (side > 0) | ((side == 0) & odd)
    result = _arith.add(below, (jnp.where(up, 1.0, 0.0),), len(x))
    zero = sign_from_bits(result[0]) == 0
    negative_zero = (jnp.where(zero, -0.0, result[0]), *result[1:])
    result = select(zero & signbit(x), negative_zero, result)
    return select(all_finite(x), result, below)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def power(x: Limbs, exponent: int) -> Limbs:
    """x**exponent by repeated squaring, of 1/x for a negative exponent; x**0 is 1 for every x."""
    count = len(x)
    if exponent == 0:
        return _arith.from_float64(jnp.ones(x[0].shape, jnp.float64), count)
    if exponent < 0:
        x, exponent = _arith.div((jnp.ones(x[0].shape, jnp.float64),), x, count), -exponent
    result: Limbs | None = None
    while True:
        if exponent & 1:
            result = x if result is None else _arith.mul(result, x, count)
        exponent >>= 1
        if not exponent:
            assert result is not None
            return tuple(result)
        x = _arith.mul(x, x, count)


@power.defjvp
def _power_jvp(exponent: int, primals: tuple[Limbs], tangents: tuple[Limbs]) -> tuple[Limbs, Limbs]:
    (x,), (dx,) = primals, tangents
    count = len(x)
    x, again = _arith.copies(x, 2)
    factor = tuple(jnp.full(x[0].shape, value) for value in _decimal.number_to_limbs(exponent, count))
    slope = _arith.mul(factor, power(again, exponent - 1), count) if exponent else _zeros(x)
    return power(x, exponent), _arith.mul(slope, dx, count)


def _zeros(x: Limbs) -> Limbs:
    return tuple(jnp.zeros_like(limb) for limb in x)
