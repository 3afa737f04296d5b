"""Sums, products, running sums and extremes along axes."""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from . import _arith, _order
from ._array import MultiDouble
from ._functions import value
from ._operands import Limbs
from ._prefix import running_sums
from ._primitive import Numbers, define, in_jax, like_operands
from ._primitive import bind as bind_primitive

Axes = int | Sequence[int] | None


def canonical_axis(who: str, axis: int, ndim: int) -> int:
    """An axis as 0 … ndim − 1, or an error that names both."""
    index = operator.index(axis)
    if not -ndim <= index < ndim:
        raise ValueError(f"{who}: axis is {axis} and x has {ndim} axes; an axis of x was wanted.")
    return index % ndim


def _axes(who: str, axis: Axes, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    listed = [axis] if not isinstance(axis, Sequence) else axis
    axes = tuple(canonical_axis(who, a, ndim) for a in listed)
    if len(set(axes)) < len(axes):
        raise ValueError(f"{who}: axis is {axis}; each axis once was wanted.")
    return axes


def _one_axis(x: MultiDouble, axes: tuple[int, ...]) -> Limbs:
    """The reduced axes made one, in front: [n, …]."""
    kept = [a for a in range(x.ndim) if a not in axes]
    shape = (math.prod(x.shape[a] for a in axes), *(x.shape[a] for a in kept))
    return x.transpose((*axes, *kept)).reshape(shape).limbs


def _restore(limbs: Limbs, x: MultiDouble, axes: tuple[int, ...], keepdims: bool) -> MultiDouble:
    result = MultiDouble(limbs)
    return result.reshape(tuple(1 if a in axes else n for a, n in enumerate(x.shape))) if keepdims else result


def sum(x: Any, axis: Axes = None, keepdims: bool = False) -> MultiDouble:
    """The sum along axes, all of them where axis is None; 0 of nothing. The grouping depends on shapes only.

    **Accuracy**: |error| ≤ 2^-53L·|sum| + ceil(log2 n)·2^-53L·Σ|x| for n terms (in truth groups of up to 128 limbs are
    added without a rounding, so much less). The transpose is a broadcast, exact.
    **Limits**: partial sums beyond the largest double give inf or nan.
    """
    who = "jaxmd.sum"
    x = value(who, x)
    axes = _axes(who, axis, x.ndim)
    return MultiDouble(_arith.reduce_sum(x.limbs, axes, x.num_limbs, keepdims=keepdims)) if axes else x


def mean(x: Any, axis: Axes = None, keepdims: bool = False) -> MultiDouble:
    """The sum along axes divided by the number of terms; nan of nothing.

    **Accuracy**: that of `sum`, divided by n, and 2·2^-53L of the result for the division.
    """
    x = value("jaxmd.mean", x)
    axes = _axes("jaxmd.mean", axis, x.ndim)
    return sum(x, axes, keepdims) / math.prod(x.shape[a] for a in axes)


def prod(x: Any, axis: Axes = None, keepdims: bool = False) -> MultiDouble:
    """The product along axes, all of them where axis is None; 1 of nothing. Pairwise: the grouping depends on n only.

    **Accuracy**: relative error ≤ 2·(n − 1)·2^-53L, to first order.
    **Limits**: partial products leave the range as the product of any consecutive pairs may.
    """
    who = "jaxmd.prod"
    x = value(who, x)
    axes = _axes(who, axis, x.ndim)
    if not axes:
        return x
    return _restore(_pairwise_product(_one_axis(x, axes)), x, axes, keepdims)


@jax.jit
def _pairwise_product(limbs: Limbs) -> Limbs:
    """The product along the first axis."""
    n, count = limbs[0].shape[0], len(limbs)
    if n == 0:
        return _arith.from_float64(jnp.ones(limbs[0].shape[1:], jnp.float64), count)
    while n > 1:
        half = n // 2
        left, right = (tuple(limb[i * half : (i + 1) * half] for limb in limbs) for i in (0, 1))
        paired = _arith.mul(left, right, count)
        rest = tuple(limb[2 * half :] for limb in limbs)
        limbs = tuple(jnp.concatenate(pair) for pair in zip(paired, rest, strict=True)) if n % 2 else paired
        n = limbs[0].shape[0]
    return tuple(limb[0] for limb in limbs)


# cumsum: a primitive, because its transpose, a running sum from the other end, must be one in multiple doubles.


def _cumsum_impl(*x: Any, counts: tuple[int, ...], limbs: int) -> list[Any]:
    return list(running_sums(tuple(x)))


def _cumsum_jvp(numbers: Numbers, tangents: Numbers, *, limbs: int) -> tuple[Numbers, Numbers]:
    return [_cumsum(numbers[0])], [_cumsum(tuple(_arith.resize(tangents[0], limbs)))]


def _cumsum_transpose(cotangents: Numbers, numbers: Numbers, *, limbs: int) -> Numbers:
    backward = tuple(jnp.flip(limb, -1) for limb in _arith.resize(cotangents[0], limbs))
    return [tuple(jnp.flip(limb, -1) for limb in _cumsum(backward))]


cumsum_p = define(
    "cumsum",
    shape_rule=like_operands("cumsum"),
    lowering=in_jax(_cumsum_impl),
    jvp=_cumsum_jvp,
    transpose=_cumsum_transpose,
    resize=_arith.resize,
)


def _cumsum(x: Limbs) -> Limbs:
    """Running sums along the last axis."""
    return tuple(bind_primitive(cumsum_p, [x], len(x))[0])


def cumsum(x: Any, axis: int | None = None) -> MultiDouble:
    """Running sums along an axis, or of all entries in row-major order where axis is None.

    **Accuracy**: |error| ≤ 2·ceil(log2 n)·2^-53L·Σ|x| over the n terms so far.
    """
    x = value("jaxmd.cumsum", x)
    if axis is None:
        x, axis = x.ravel(), 0
    axis = canonical_axis("jaxmd.cumsum", axis, x.ndim)
    return MultiDouble(_cumsum(x.swapaxes(axis, -1).limbs)).swapaxes(axis, -1)


# Extremes


def _position(who: str, x: MultiDouble, axis: Axes, keys: Callable[[Limbs], Limbs]) -> tuple[Limbs, jax.Array]:
    """(limbs [n, …] with the reduced axes in front, position [1, …] of the first extreme)."""
    axes = _axes(who, axis, x.ndim)
    limbs = _one_axis(x, axes)
    if limbs[0].shape[0] == 0:
        raise ValueError(f"{who}: x has shape {x.shape}, nothing along axis {axis}; at least one entry was wanted.")
    return limbs, _order.argmax(keys(limbs), 0)


def _smallest_first(limbs: Limbs) -> Limbs:
    return _order.reversed_keys(_order.keys(limbs))


def _extreme(who: str, x: Any, axis: Axes, keepdims: bool, keys: Callable[[Limbs], Limbs]) -> MultiDouble:
    x = value(who, x)
    limbs, place = _position(who, x, axis, keys)
    taken = tuple(jnp.take_along_axis(limb, place, 0)[0] for limb in limbs)
    return _restore(taken, x, _axes(who, axis, x.ndim), keepdims)


def _argextreme(who: str, x: Any, axis: int | None, keepdims: bool, keys: Callable[[Limbs], Limbs]) -> jax.Array:
    x = value(who, x)
    place = _position(who, x, axis, keys)[1][0]
    axes = _axes(who, axis, x.ndim)
    return place.reshape(tuple(1 if a in axes else n for a, n in enumerate(x.shape))) if keepdims else place


def max(x: Any, axis: Axes = None, keepdims: bool = False) -> MultiDouble:
    """The largest value along axes, exact; nan where one is nan. Of equal values the first takes the derivative.

    **Raises**: ValueError where there is no entry.
    """
    return _extreme("jaxmd.max", x, axis, keepdims, _order.keys)


def min(x: Any, axis: Axes = None, keepdims: bool = False) -> MultiDouble:
    """The smallest value along axes, exact; nan where one is nan. Of equal values the first takes the derivative.

    **Raises**: ValueError where there is no entry.
    """
    return _extreme("jaxmd.min", x, axis, keepdims, _smallest_first)


def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> jax.Array:
    """The position (int64) of the first largest value, or the first nan; in row-major order where axis is None."""
    return _argextreme("jaxmd.argmax", x, axis, keepdims, _order.keys)


def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> jax.Array:
    """The position (int64) of the first smallest value, or the first nan; in row-major order where axis is None."""
    return _argextreme("jaxmd.argmin", x, axis, keepdims, _smallest_first)


def argsort(x: Any, axis: int = -1) -> jax.Array:
    """The permutation (int64) that sorts along an axis, ascending and stable, nan last."""
    x = value("jaxmd.argsort", x)
    return _order.argsort(_order.keys(x.limbs), canonical_axis("jaxmd.argsort", axis, x.ndim))


def sort(x: Any, axis: int = -1) -> MultiDouble:
    """The values along an axis in ascending order, exact and stable, nan last."""
    x = value("jaxmd.sort", x)
    order = argsort(x, axis)
    return x._each(lambda limb: jnp.take_along_axis(limb, order, axis))
