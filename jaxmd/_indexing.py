"""`x.at[index]`: new values with some entries changed, as on JAX arrays.

Adding where an index may repeat works on tuples of limbs:

    x [n]    target [r], positions in 0 … n − 1 (n: dropped)    value [r]    →    x with value[i] added at target[i]

Sorting brings equal positions together, a segmented scan of our addition sums each run, and the last entry of every run
writes x[position] + total, so that no two limbs of different sums ever meet in a scatter.
"""

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from . import _arith, _ffi
from ._operands import Limbs, broadcast_as, is_operand, operand_limbs, result_limbs
from ._prefix import running_sums

if TYPE_CHECKING:
    from ._array import MultiDouble


@functools.partial(jax.jit, static_argnames="limbs")
def scatter_add(x: Limbs, target: jax.Array, value: Limbs, limbs: int) -> Limbs:
    """x[target] += value for one-dimensional x, all values of a repeated position added.

    Accuracy: (1 + ceil(log2 r)) times the bound of `_arith.add`, times the sum of |value| and |x|, r the repeats.
    """
    size = x[0].size
    if size == 0 or target.size == 0:
        return x
    order = jnp.argsort(target, stable=True)
    target = target[order]
    start = jnp.append(True, target[1:] != target[:-1])
    total = running_sums(tuple(limb[order] for limb in value), start)
    changed = _arith.add(tuple(limb.at[target].get(mode="clip") for limb in x), total, limbs)
    last = jnp.append(target[1:] != target[:-1], True)
    slot = jnp.where(last, target, size)
    return tuple(
        limb.at[slot].set(new, mode="drop", unique_indices=False) for limb, new in zip(x, changed, strict=True)
    )


class At:
    """What `x.at` returns: it only waits for an index."""

    __slots__ = ("_value",)

    def __init__(self, value: "MultiDouble") -> None:
        self._value = value

    def __getitem__(self, index: Any) -> "Indexed":
        return Indexed(self._value, index)


class Indexed:
    """The entries `x.at[index]` of a value, to be read or replaced in a new value."""

    __slots__ = ("_index", "_value")

    def __init__(self, value: "MultiDouble", index: Any) -> None:
        self._value, self._index = value, index

    def get(self, **options: Any) -> "MultiDouble":
        """The entries, as `x[index]`, with the options of JAX's `.at[].get`."""
        return self._value._each(lambda limb: limb.at[self._index].get(**options))

    def set(self, value: Any) -> "MultiDouble":
        """A new value in which the entries are `value`, exactly, in the larger limb count.

        Where an index repeats, one of its values stays. Entries out of bounds are dropped.
        """
        limbs, old, new = self._operands("jaxmd.MultiDouble.at.set", value)
        return self._replaced(old, _arith.resize(new, limbs))

    def add(self, value: Any) -> "MultiDouble":
        """A new value in which `value` is added to the entries, in multiple doubles and in the larger limb count.

        Where an index repeats, all its values are added. Entries out of bounds are dropped.

        **Accuracy**: (1 + ceil(log2 r)) times the bound of `+`, relative to the sum of absolute values of the r terms.
        """
        limbs, old, new = self._operands("jaxmd.MultiDouble.at.add", value)
        if not _may_repeat(self._index):
            entries = tuple(limb[self._index] for limb in old)
            return self._replaced(old, _arith.add(entries, new, limbs))
        size = self._value.size
        places = jnp.arange(size).reshape(self._value.shape).at[self._index].get(mode="fill", fill_value=size)
        flat, added = (tuple(limb.ravel() for limb in x) for x in (old, _arith.resize(new, limbs)))
        total = scatter_add(flat, places.ravel(), added, limbs)
        return type(self._value)(limb.reshape(self._value.shape) for limb in total)

    def _operands(self, who: str, value: Any) -> tuple[int, Limbs, Limbs]:
        """(result count, old limbs in it, limbs of `value` in the shape of the entries)."""
        _ffi.require_x64(who)
        if not is_operand(value):
            raise TypeError(f"{who}: value is {type(value).__name__}; a MultiDouble, a number or an array was wanted.")
        limbs = result_limbs(self._value, value)
        old = self._value.with_limbs(limbs).limbs
        entries = jax.eval_shape(lambda: old[0][self._index])
        return limbs, old, broadcast_as(who, "value", operand_limbs(value, limbs), entries.shape)

    def _replaced(self, old: Limbs, new: Limbs) -> "MultiDouble":
        return type(self._value)(limb.at[self._index].set(entry) for limb, entry in zip(old, new, strict=True))


def _may_repeat(index: Any) -> bool:
    """Whether an index may name an entry twice: where it holds an array of positions."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(jnp.ndim(part) > 0 and jnp.result_type(part) != jnp.bool_ for part in parts if hasattr(part, "__len__"))
