"""The order of multiple doubles by value: signs, comparisons, sorting keys; on tuples of limbs.

Every question is answered from bits, because XLA on the CPU takes subnormals for zeros, and about exact sums, because
limbs need not be normalized. The answers are booleans and integers, so nothing here has a derivative.

    keys    (k_1, …, k_L) int64     canonical limbs as integers whose lexicographic order is the order of the values,
                                    −0 equal to 0, nan above everything
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import _arith

Limbs = tuple[jax.Array, ...]
_MAGNITUDE = 0x7FFFFFFFFFFFFFFF
_INFINITY = 0x7FF << 52
_LOWEST, _HIGHEST = -_MAGNITUDE - 1, _MAGNITUDE


def within(x: jax.Array, largest: float) -> jax.Array:
    """Where 0 < |x| ≤ largest; false for nan.

    One comparison of integers. The plain test of bits for zero, `bits & _MAGNITUDE != 0`, is not enough: beside a float
    comparison of the same x, LLVM merges both into float comparisons, in which a subnormal is zero on the CPU.
    """
    magnitude = lax.bitcast_convert_type(x, jnp.uint64) & jnp.uint64(_MAGNITUDE)
    limit = np.float64(largest).view(np.uint64)
    return magnitude - jnp.uint64(1) < jnp.uint64(limit)


def sign_from_bits(x: jax.Array) -> jax.Array:
    """−1, 0 or 1 as int64; 0 of nan."""
    one = jnp.where(lax.bitcast_convert_type(x, jnp.int64) < 0, jnp.int64(-1), jnp.int64(1))
    return jnp.where(within(x, np.inf), one, jnp.int64(0))


def signbit(x: Limbs) -> jax.Array:
    """Whether the value is negative or −0."""
    leading = lax.stop_gradient(_arith.to_float64(x))
    return lax.bitcast_convert_type(leading, jnp.int64) < 0


def float64_sum(x: Limbs) -> jax.Array:
    """The limbs added in float64: inf or nan where the value is, near the value elsewhere."""
    total = x[0]
    for limb in x[1:]:
        total = total + limb
    return total


def all_finite(x: Limbs) -> jax.Array:
    """Where every limb is finite."""
    finite = jnp.isfinite(x[0])
    for limb in x[1:]:
        finite = finite & jnp.isfinite(limb)
    return finite


@functools.partial(jax.jit, static_argnames="relation")
def compare(x: Limbs, y: Limbs, relation: Callable[[Any, Any], Any]) -> jax.Array:
    """relation(x, y) for one of ==, <, <=, >, >= on values; exact, and as IEEE 754 has it for inf and nan.

    The difference is summed exactly and rounded once, so its sign is right whatever cancels.
    """
    x, y = lax.stop_gradient((tuple(x), tuple(y)))
    difference = _arith.renormalize((*x, *_arith.neg(y)), 1)[0]
    ordinary = relation(sign_from_bits(difference), jnp.int64(0))
    return jnp.where(all_finite(x) & all_finite(y), ordinary, relation(float64_sum(x), float64_sum(y)))


@jax.jit
def keys(x: Limbs) -> Limbs:
    """Integers in the order of the values, leading first; equal exactly where the values are."""
    canonical = _arith.renormalize(lax.stop_gradient(tuple(x)), len(x))
    nan = (lax.bitcast_convert_type(canonical[0], jnp.int64) & _MAGNITUDE) > _INFINITY
    out = []
    for limb in canonical:
        bits = lax.bitcast_convert_type(limb, jnp.int64)
        key = jnp.where(bits < 0, -(bits & _MAGNITUDE), bits)  # −0 becomes 0
        out.append(jnp.where(nan, jnp.int64(_HIGHEST), key))
    return tuple(out)


def reversed_keys(keys: Limbs) -> Limbs:
    """Keys of the opposite order, in which nan stays above everything."""
    nan = keys[0] == _HIGHEST
    return tuple(jnp.where(nan, key, -key) for key in keys)


@functools.partial(jax.jit, static_argnames="axis")
def argmax(keys: Limbs, axis: int) -> jax.Array:
    """Position of the first largest value along an axis that is not empty; int64 with the axis kept, of length 1."""
    largest = jnp.ones(keys[0].shape, bool)
    for key in keys:
        candidates = jnp.where(largest, key, jnp.int64(_LOWEST))
        largest = largest & (key == jnp.max(candidates, axis=axis, keepdims=True))
    return jnp.argmax(largest, axis=axis, keepdims=True)


@functools.partial(jax.jit, static_argnames="axis")
def argsort(keys: Limbs, axis: int) -> jax.Array:
    """The stable permutation that sorts the values along an axis, ascending."""
    place = lax.broadcasted_iota(jnp.int64, keys[0].shape, axis)
    return lax.sort((*keys, place), dimension=axis, is_stable=True, num_keys=len(keys))[-1]
