"""Running sums of multiple doubles along the last axis, on tuples of limbs.

    after step k   y_i = x_i + x_(i−1) + … + x_(i−2^(k+1)+1)      y_i ← y_i + y_(i−2^k),  k = 0, 1, … , ceil(log2 n) − 1

One addition of whole arrays a step, in a loop, so that the program stays short whatever n is (`lax.associative_scan`
does fewer additions and takes many times as long to compile).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import _arith
from ._operands import Limbs


def running_sums(x: Limbs, start: jax.Array | None = None) -> Limbs:
    """Inclusive running sums of x [..., n]; with `start` (bool [n]) they begin anew where it holds.

    Accuracy: ceil(log2 r) times the bound of `_arith.add`, times the sum of |x| over the r terms.
    Source: Hillis and Steele, "Data parallel algorithms", Comm. ACM 29 (1986).
    """
    n = x[0].shape[-1]
    zero = (-0.0, *(0.0,) * (len(x) - 1))  # −0 + x is x, −0 too

    def earlier(y: jax.Array, fill: float | bool, distance: jax.Array) -> jax.Array:
        padded = jnp.concatenate([jnp.full_like(y, fill), y], axis=-1)
        return lax.dynamic_slice_in_dim(padded, n - distance, n, axis=-1)

    def step(state: tuple[Limbs, jax.Array | None], distance: jax.Array) -> tuple[Any, None]:
        y, closed = state
        before = tuple(earlier(limb, fill, distance) for limb, fill in zip(y, zero, strict=True))
        sums = tuple(_arith.add(before, y, len(x)))
        if closed is None:
            return (sums, None), None
        y = tuple(jnp.where(closed, limb, total) for limb, total in zip(y, sums, strict=True))
        return (y, closed | earlier(closed, True, distance)), None

    distances = 2 ** np.arange(max(n - 1, 0).bit_length())
    return lax.scan(step, (tuple(x), start), jnp.asarray(distances))[0][0] if n > 1 else tuple(x)
