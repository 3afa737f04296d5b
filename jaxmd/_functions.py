"""Making, joining and mapping values: the functions whose entries do not meet (`_reductions.py` has those that do)."""

import builtins
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _arith, _elementwise, _ffi, _order, _rational
from ._array import MultiDouble
from ._array import power as power
from ._convert import asarray
from ._operands import (
    Limbs,
    broadcast,
    broadcast_as,
    broadcast_shapes,
    check_limbs,
    is_operand,
    naming,
    operand_limbs,
    result_limbs,
)

Shape = int | Sequence[int]


def operands(who: str, *values: Any) -> tuple[int, list[Limbs]]:
    """(result count, limbs of every value resized to it). Beside MultiDoubles, whatever `asarray` takes is taken."""
    _ffi.require_x64(who)
    limbs = result_limbs(*values)
    with naming(who):
        parts = [operand_limbs(x, limbs) if is_operand(x) else asarray(x, limbs).limbs for x in values]
    return limbs, [tuple(_arith.resize(x, limbs)) for x in parts]


def value(who: str, x: Any) -> MultiDouble:
    """x itself, or x as a MultiDouble of two limbs."""
    _ffi.require_x64(who)
    return x if isinstance(x, MultiDouble) else asarray(x)


# Making


def full(shape: Shape, fill_value: Any, limbs: int | None = None) -> MultiDouble:
    """A value of one shape whose entries are all `fill_value`, which is anything that `jaxmd.asarray` takes.

    Args:
        shape: the shape; an integer is one axis.
        fill_value: a scalar, or an array that broadcasts to the shape.
        limbs: the limb count; None keeps that of a MultiDouble and means 2 for anything else.
    """
    who = "jaxmd.full"
    _ffi.require_x64(who)
    return _repeated(who, "fill_value", asarray(fill_value, limbs), shape)


def zeros(shape: Shape, limbs: int = 2) -> MultiDouble:
    """Zeros."""
    check_limbs("jaxmd.zeros", limbs)
    _ffi.require_x64("jaxmd.zeros")
    with naming("jaxmd.zeros"):
        return MultiDouble(jnp.zeros(shape, jnp.float64) for _ in range(limbs))


def ones(shape: Shape, limbs: int = 2) -> MultiDouble:
    """Ones."""
    check_limbs("jaxmd.ones", limbs)
    _ffi.require_x64("jaxmd.ones")
    with naming("jaxmd.ones"):
        return MultiDouble(_arith.from_float64(jnp.ones(shape, jnp.float64), limbs))


def zeros_like(x: Any) -> MultiDouble:
    """Zeros of the shape and limb count of x."""
    x = value("jaxmd.zeros_like", x)
    return zeros(x.shape, x.num_limbs)


def ones_like(x: Any) -> MultiDouble:
    """Ones of the shape and limb count of x."""
    x = value("jaxmd.ones_like", x)
    return ones(x.shape, x.num_limbs)


def eye(n: int, m: int | None = None, k: int = 0, limbs: int = 2) -> MultiDouble:
    """An n × m matrix (n × n where m is None) of zeros with ones on diagonal k."""
    check_limbs("jaxmd.eye", limbs)
    _ffi.require_x64("jaxmd.eye")
    with naming("jaxmd.eye"):
        return MultiDouble(_arith.from_float64(jnp.eye(n, m, k, dtype=jnp.float64), limbs))


def arange(start: Any, stop: Any = None, step: Any = 1, limbs: int | None = None) -> MultiDouble:
    """start, start + step, … up to but without stop; `arange(stop)` starts at 0.

    Args:
        start, stop, step: scalars as `jaxmd.asarray` takes them ("0.1" is a tenth), known at trace time.
        limbs: the limb count; None keeps the largest among MultiDoubles and means 2 where there is none.

    The length is ceil(q), q = (stop − start)/step in exact arithmetic on the converted values; a q that a change of the
    three arguments by 4·2^-53L of their size makes an integer counts as that integer, so that arange(0, 1, "0.1") has
    the ten entries it should.

    **Accuracy**: start + i·step within 4·2^-53L·(|start| + i·|step|); exact where the value and i·step fit L limbs.
    **Raises**: ValueError for step 0 and for an argument that is not a finite scalar.
    """
    who = "jaxmd.arange"
    _ffi.require_x64(who)
    if stop is None:
        start, stop = 0, start
    limbs = result_limbs(start, stop, step) if limbs is None else limbs
    values = [asarray(x, limbs) for x in (start, stop, step)]
    for name, x in zip(("start", "stop", "step"), values, strict=True):
        if x.shape != () or not all(math.isfinite(float(limb)) for limb in x.limbs):
            raise ValueError(f"{who}: {name} is {x!r}; a finite scalar was wanted.")
    first, last, stride = (_rational.limbs_to_fraction([float(limb) for limb in x.limbs]) for x in values)
    if stride == 0:
        raise ValueError(f"{who}: step is 0; a nonzero step was wanted.")
    quotient = (last - first) / stride
    doubt = 4 * Fraction(1, 2 ** (53 * limbs)) * (builtins.abs(first) + 2 * builtins.abs(last)) / builtins.abs(stride)
    near = builtins.round(quotient)
    count = builtins.max(0, near if builtins.abs(quotient - near) <= doubt else math.ceil(quotient))
    index = (jnp.arange(count, dtype=jnp.float64),)
    offset = _arith.mul(index, _arith.broadcast_to(values[2].limbs, (count,)), limbs)
    return MultiDouble(_arith.add(_arith.broadcast_to(values[0].limbs, (count,)), offset, limbs))


def linspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, limbs: int | None = None) -> MultiDouble:
    """`num` evenly spaced values from start to stop, along a new leading axis.

    Args:
        start, stop: scalars or arrays as `jaxmd.asarray` takes them; they broadcast.
        num: how many values.
        endpoint: whether stop is the last of them.
        limbs: the limb count; None keeps the largest among MultiDoubles and means 2 where there is none.

    **Accuracy**: within 8·2^-53L·max(|start|, |stop|); the ends are exactly start and stop.
    """
    who = "jaxmd.linspace"
    _ffi.require_x64(who)
    if num < 0:
        raise ValueError(f"{who}: num is {num}; 0 or more was wanted.")
    limbs = result_limbs(start, stop) if limbs is None else limbs
    first, last = broadcast(who, asarray(start, limbs).limbs, asarray(stop, limbs).limbs)
    shape = (num, *first[0].shape)
    parts = num - 1 if endpoint else num
    index = np.arange(num, dtype=np.float64)

    def along(x: np.ndarray) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(x).reshape(-1, *(1,) * first[0].ndim), shape)

    whole = (along(np.full(num, builtins.max(parts, 1), np.float64)),)
    right = _arith.div((along(index),), whole, limbs)
    left = _arith.div((along(parts - index),), whole, limbs)
    begin, *begins = _arith.copies(_arith.broadcast_to(first, shape), 2)
    end, *ends = _arith.copies(_arith.broadcast_to(last, shape), 2)
    inner = _arith.add(_arith.mul(begin, left, limbs), _arith.mul(end, right, limbs), limbs)
    inner = _elementwise.select(along(index == 0), begins[0], inner)
    if endpoint and num > 1:
        inner = _elementwise.select(along(index == num - 1), ends[0], inner)
    return MultiDouble(inner)


# Layout


def broadcast_to(x: Any, shape: Shape) -> MultiDouble:
    """x repeated to a shape by numpy's rules; exact, and its transpose is a sum in multiple doubles."""
    who = "jaxmd.broadcast_to"
    return _repeated(who, "x", value(who, x), shape)


def _repeated(who: str, name: str, x: MultiDouble, shape: Shape) -> MultiDouble:
    with naming(who):
        shape = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        return MultiDouble(broadcast_as(who, name, x.limbs, shape))


def _layout(who: str, x: Any, f: Callable[[jax.Array], jax.Array]) -> MultiDouble:
    """The limbs of x moved by a function of JAX, whose errors come under the name of ours."""
    with naming(who):
        return value(who, x)._each(f)


def reshape(x: Any, shape: Shape) -> MultiDouble:
    """The entries in row-major order in another shape; one length may be −1."""
    return _layout("jaxmd.reshape", x, lambda limb: limb.reshape(shape))


def transpose(x: Any, axes: Sequence[int] | None = None) -> MultiDouble:
    """Axes permuted; reversed where none are given."""
    return _layout("jaxmd.transpose", x, lambda limb: jnp.transpose(limb, axes))


def squeeze(x: Any, axis: int | tuple[int, ...] | None = None) -> MultiDouble:
    """Axes of length 1 removed."""
    return _layout("jaxmd.squeeze", x, lambda limb: limb.squeeze(axis))


def expand_dims(x: Any, axis: int | tuple[int, ...]) -> MultiDouble:
    """Axes of length 1 inserted."""
    return _layout("jaxmd.expand_dims", x, lambda limb: jnp.expand_dims(limb, axis))


def diag(x: Any, k: int = 0) -> MultiDouble:
    """The diagonal k of a matrix, or the matrix with a vector on its diagonal k and zeros elsewhere."""
    return _layout("jaxmd.diag", x, lambda limb: jnp.diag(limb, k))


def tril(x: Any, k: int = 0) -> MultiDouble:
    """Entries above diagonal k of the last two axes replaced by zeros."""
    return _layout("jaxmd.tril", x, lambda limb: jnp.tril(limb, k))


def triu(x: Any, k: int = 0) -> MultiDouble:
    """Entries below diagonal k of the last two axes replaced by zeros."""
    return _layout("jaxmd.triu", x, lambda limb: jnp.triu(limb, k))


def _joined(who: str, values: Sequence[Any], join: Callable[[Sequence[jax.Array]], jax.Array]) -> MultiDouble:
    with naming(who):
        if len(values) == 0:
            raise ValueError(f"{who}: no values came; at least one was wanted.")
        _, parts = operands(who, *values)
        return MultiDouble(join(limbs) for limbs in zip(*parts, strict=True))


def concatenate(values: Sequence[Any], axis: int = 0) -> MultiDouble:
    """Values joined along an axis that they have, exactly, in the largest limb count among them."""
    return _joined("jaxmd.concatenate", values, lambda limbs: jnp.concatenate(limbs, axis))


def stack(values: Sequence[Any], axis: int = 0) -> MultiDouble:
    """Values joined along a new axis, exactly, in the largest limb count among them. Scalars are accepted."""
    return _joined("jaxmd.stack", values, lambda limbs: jnp.stack(limbs, axis))


def where(condition: Any, x: Any, y: Any) -> MultiDouble:
    """x where the condition holds, else y, in the larger limb count; all three broadcast."""
    who = "jaxmd.where"
    _, parts = operands(who, x, y)
    with naming(who):
        condition = jnp.asarray(condition, bool)
    shape = broadcast_shapes(who, condition.shape, *(x[0].shape for x in parts))
    left, right = (tuple(_arith.broadcast_to(x, shape)) for x in parts)
    return MultiDouble(_elementwise.select(jnp.broadcast_to(condition, shape), left, right))


def copies(x: Any, n: int) -> list[MultiDouble]:
    """n copies of x whose cotangents are added in multiple doubles.

    Where one value is used twice, JAX adds the two cotangents of each limb in float64, so that a gradient is right to
    2^-53 there. Used once each, copies leave the addition to us: `a, b = copies(x, 2); f = g(a) + h(b)`.
    """
    who = "jaxmd.copies"
    if not isinstance(n, int | np.integer):
        raise TypeError(f"{who}: n is {type(n).__name__}; an integer was wanted.")
    return [MultiDouble(limbs) for limbs in _arith.copies(value(who, x).limbs, int(n))]


# Elementwise


def sqrt(x: Any) -> MultiDouble:
    """The square root. nan below zero, −0 of −0.

    **Accuracy**: |error| ≤ 2·2^-53L·√x.
    """
    x = value("jaxmd.sqrt", x)
    return MultiDouble(_arith.sqrt(x.limbs, x.num_limbs))


def abs(x: Any) -> MultiDouble:
    """The absolute value, exact."""
    return builtins.abs(value("jaxmd.abs", x))


def sign(x: Any) -> MultiDouble:
    """−1, 0 or 1; −0 and nan stay."""
    return MultiDouble(_elementwise.sign(value("jaxmd.sign", x).limbs))


def floor(x: Any) -> MultiDouble:
    """The largest integer that is not larger, exact; ±inf, nan and −0 stay. Its derivative is zero."""
    return MultiDouble(_elementwise.floor(value("jaxmd.floor", x).limbs))


def ceil(x: Any) -> MultiDouble:
    """The smallest integer that is not smaller, exact; ±inf, nan and −0 stay. Its derivative is zero."""
    return -floor(-value("jaxmd.ceil", x))


def round(x: Any) -> MultiDouble:
    """The nearest integer, halves to the even one, exact; ±inf, nan and −0 stay. Its derivative is zero."""
    return MultiDouble(_elementwise.nearest(value("jaxmd.round", x).limbs))


def isfinite(x: Any) -> jax.Array:
    """Where x is neither inf nor nan."""
    return _order.all_finite(value("jaxmd.isfinite", x).limbs)


def isnan(x: Any) -> jax.Array:
    """Where x is nan."""
    return jnp.isnan(_order.float64_sum(value("jaxmd.isnan", x).limbs))


def isinf(x: Any) -> jax.Array:
    """Where x is inf or −inf."""
    limbs = value("jaxmd.isinf", x).limbs
    return ~_order.all_finite(limbs) & jnp.isinf(_order.float64_sum(limbs))


def maximum(x: Any, y: Any) -> MultiDouble:
    """The larger of two values, exact; nan where either is nan."""
    who = "jaxmd.maximum"
    return MultiDouble(_elementwise.maximum(*broadcast(who, *operands(who, x, y)[1])))


def minimum(x: Any, y: Any) -> MultiDouble:
    """The smaller of two values, exact; nan where either is nan."""
    who = "jaxmd.minimum"
    return MultiDouble(_elementwise.minimum(*broadcast(who, *operands(who, x, y)[1])))


def clip(x: Any, lower: Any = None, upper: Any = None) -> MultiDouble:
    """x, replaced by a bound where it lies beyond it; None leaves a side open."""
    who = "jaxmd.clip"
    x = value(who, x)
    for bound, choose in ((lower, _elementwise.maximum), (upper, _elementwise.minimum)):
        if bound is not None:
            x = MultiDouble(choose(*broadcast(who, *operands(who, x, bound)[1])))
    return x
