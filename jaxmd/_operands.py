"""Numbers and ordinary arrays as limbs: what arithmetic accepts beside a multiple double, always exactly.

float64 [...]           → (x,)            float32, bfloat16, … and integers up to 32 bits the same, widened exactly
int64, uint64 [...]     → (x_1, x_2)      the upper and the lower 32 bits, renormalized
int, Fraction, object   → (x_1, …, x_n)   canonical limbs by `_decimal`, no trailing zero limbs
"""

import numbers
from decimal import Decimal
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import _arith, _decimal
from ._primitive import MAX_LIMBS as MAX_LIMBS
from ._primitive import check_limbs as check_limbs
from ._primitive import naming as naming

Limbs = tuple[jax.Array, ...]
TYPES = (numbers.Real, Decimal, np.ndarray, np.generic, jax.Array)


class Value:
    """What has limbs of its own: the base of MultiDouble, known down here so that operands can be told apart."""

    __slots__ = ("__weakref__", "limbs")

    limbs: Limbs


def to_limbs(x: Any, limbs: int) -> Limbs:
    """The limbs of a number or an array without limbs of its own.

    Exact, except for numbers that need more than `limbs` limbs: those are rounded to them. Integers take as many limbs
    as they need, up to 16, because the operation, not the conversion, is where rounding belongs.
    """
    if isinstance(x, jax.Array):
        return _array_limbs(x)
    if isinstance(x, np.ndarray | np.generic) and x.dtype != object and x.dtype != np.longdouble:
        return _numpy_limbs(np.asarray(x))
    if isinstance(x, np.ndarray):
        rows = (
            [_number_limbs(entry, limbs) for entry in x.ravel().tolist()]
            if x.dtype == object
            else [_number_limbs(entry, limbs) for entry in x.ravel()]
        )
        table = np.array(rows, np.float64).reshape(x.size, -1)
        return tuple(jnp.asarray(column.reshape(x.shape)) for column in table.T) or (jnp.zeros(x.shape, jnp.float64),)
    values = _number_limbs(x, limbs)
    count = max((i for i, value in enumerate(values) if value != 0), default=0) + 1
    return tuple(jnp.asarray(np.float64(value)) for value in values[:count])


def _number_limbs(x: Any, limbs: int) -> tuple[float, ...]:
    if isinstance(x, int):
        limbs = min(MAX_LIMBS, max(limbs, -(-x.bit_length() // 53)))
    return _decimal.number_to_limbs(x, limbs)


def _refuse(dtype: Any) -> TypeError:
    return TypeError(f"jaxmd: dtype {dtype} came; real numbers were wanted.")


def _numpy_limbs(x: np.ndarray) -> Limbs:
    """As `_array_limbs`, before anything passes through a device (XLA on the CPU would flush subnormals)."""
    if x.dtype.kind in "cmMSU":
        raise _refuse(x.dtype)
    if x.dtype == np.float64 or x.dtype.kind not in "biuf" or (x.dtype.kind in "iu" and x.dtype.itemsize == 8):
        return _array_limbs(jnp.asarray(x))
    return (jnp.asarray(x.astype(np.float64)),)


def _array_limbs(x: jax.Array) -> Limbs:
    if x.dtype == jnp.float64:
        return (x,)
    if jnp.issubdtype(x.dtype, jnp.floating):
        return (_widen(x.astype(jnp.float32)),)
    if x.dtype == jnp.int64 or x.dtype == jnp.uint64:
        upper = (x >> 32).astype(jnp.float64) * 2.0**32
        lower = (x & 0xFFFFFFFF).astype(jnp.float64)
        return tuple(_arith.renormalize((upper, lower), 2))
    if x.dtype == jnp.bool_ or jnp.issubdtype(x.dtype, jnp.integer):
        return (x.astype(jnp.float64),)
    raise _refuse(x.dtype)


def _widen(x: jax.Array) -> jax.Array:
    """float32 to float64, exact for subnormals too, which XLA on the CPU would flush."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    fraction = (bits & 0x7FFFFF).astype(jnp.float64) * 2.0**-149
    subnormal = ((bits & 0x7F800000) == 0) & ((bits & 0x7FFFFF) != 0)
    return jnp.where(subnormal, jnp.where(bits < 0, -fraction, fraction), x.astype(jnp.float64))


def is_operand(x: Any) -> bool:
    """Whether arithmetic accepts x beside a MultiDouble."""
    return isinstance(x, (Value, *TYPES))


def operand_limbs(x: Any, limbs: int) -> Limbs:
    """The limbs of an operand: those of a MultiDouble, else as `to_limbs` gives them."""
    return x.limbs if isinstance(x, Value) else to_limbs(x, limbs)


def result_limbs(*operands: Any) -> int:
    """The largest limb count among the MultiDoubles; 2 where there is none."""
    return max((len(x.limbs) for x in operands if isinstance(x, Value)), default=2)


def broadcast_shapes(who: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape under numpy's broadcasting, or an error that names every shape."""
    try:
        return jnp.broadcast_shapes(*shapes)
    except ValueError:
        listed = " and ".join(map(str, shapes))
        raise ValueError(f"{who}: operands have shapes {listed}; shapes that broadcast together were wanted.") from None


def broadcast_as(who: str, name: str, x: Limbs, shape: tuple[int, ...]) -> Limbs:
    """The limbs of the argument `name` repeated to a given shape, or an error that names both."""
    own = tuple(x[0].shape)
    try:
        fits = jnp.broadcast_shapes(own, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{who}: {name} has shape {own}; one that broadcasts to {shape} was wanted.")
    return tuple(_arith.broadcast_to(x, shape))


def broadcast(who: str, *operands: Limbs) -> list[Limbs]:
    """Limbs of one common shape; the transpose of this step is a sum in multiple doubles."""
    shape = broadcast_shapes(who, *(tuple(x[0].shape) for x in operands))
    return [x if tuple(x[0].shape) == shape else tuple(_arith.broadcast_to(x, shape)) for x in operands]
