"""Random multiple doubles with every limb populated, from JAX's keys.

uniform: 53·L random bits, x = Σ cᵢ·2^(−53 i)             normal: z + w·ulp(z),  z from jax.random.normal
         cᵢ in [0, 2^53), i = 1 … L                               w uniform in [−1/2, 1/2), 53·(L − 1) bits
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from . import _arith, _ffi
from ._array import MultiDouble
from ._operands import check_limbs, naming


def uniform(key: Any, shape: int | Sequence[int] = (), limbs: int = 2) -> MultiDouble:
    """Uniform random numbers in [0, 1), multiples of 2^(−53·limbs), each with the same probability.

    Args:
      key: a key of `jax.random`.
      shape: the shape of the result.
      limbs: 1 to 16.

    Returns: MultiDouble [*shape], normalized. Same key, shape and count: same bits on every platform.
    Accuracy: the distribution is exact: 53·limbs independent random bits an entry.
    Raises: ValueError for limbs outside 1 to 16; TypeError where jax_enable_x64 is off.
    """
    who = "jaxmd.random.uniform"
    _ffi.require_x64(who)
    check_limbs(who, limbs)
    with naming(who):
        return MultiDouble(_arith.renormalize(_digits(key, _shape(shape), limbs), limbs))


def normal(key: Any, shape: int | Sequence[int] = (), limbs: int = 2) -> MultiDouble:
    """Random numbers that follow the standard normal distribution as closely as float64 does, all limbs random.

    The number z that `jax.random.normal` gives in float64 gets a uniform random tail of 53·(limbs − 1) bits, between
    −1/2 and 1/2 unit in the last place of z.

    Args:
      key: a key of `jax.random`.
      shape: the shape of the result.
      limbs: 1 to 16.

    Returns: MultiDouble [*shape], normalized; its first limb is z, save that a tail of about half a unit may round to
      the neighbour.
    Accuracy: the distribution is that of `jax.random.normal` in float64, smoothed within one unit in the last place; it
      follows the normal distribution to no more digits than that. z takes about 2^52 different values, up to about
      8.2 in size, and near zero they are about 2^-52 apart: entries are never much smaller than that.
    Raises: ValueError for limbs outside 1 to 16; TypeError where jax_enable_x64 is off.
    """
    who = "jaxmd.random.normal"
    _ffi.require_x64(who)
    check_limbs(who, limbs)
    with naming(who):
        leading, tail = jax.random.split(key)
        z = jax.random.normal(leading, _shape(shape), jnp.float64)
    bits = jax.lax.bitcast_convert_type(z, jnp.int64) & (0x7FF << 52)
    # A power of two, at least 2^-60, which matters for the z that is 0.
    power = jax.lax.bitcast_convert_type(jnp.maximum(bits, (1023 - 60) << 52), jnp.float64)
    unit = power * 2.0**-52
    terms = [digit * unit for digit in _digits(tail, _shape(shape), limbs - 1)]
    middle = [unit * -0.5] if limbs > 1 else []
    return MultiDouble(_arith.renormalize((z, *middle, *terms), limbs))


def _shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(isinstance(n, int) and n < 0 for n in lengths):
        raise ValueError(f"shape is {shape}; lengths of at least 0 were wanted.")
    return lengths


@partial(jax.jit, static_argnums=(1, 2))
def _digits(key: Any, shape: tuple[int, ...], count: int) -> tuple[jax.Array, ...]:
    """cᵢ·2^(−53 i) for i = 1 … count, cᵢ uniform among the integers of 53 bits; exact, since c and the product are."""
    bits = jax.random.bits(key, (count, math.prod(shape)), jnp.uint64) >> 11  # more axes would compile for seconds
    return tuple((bits[i].astype(jnp.float64) * 2.0 ** (-53 * (i + 1))).reshape(shape) for i in range(count))
