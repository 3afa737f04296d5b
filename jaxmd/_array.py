"""MultiDouble: an array whose entries are unevaluated sums of L doubles.

    limbs = (x_1, x_2, …, x_L)    each float64 of the value's shape, x_1 the rounded value, x_2 the rounded rest, …

The class is a frozen pytree over that tuple, so that every transformation of JAX sees L ordinary arrays and there
is no limb axis to map, shard or sum by mistake. Arithmetic is one primitive an operation (`_arith`); the limb count is
read from the tuple, never a type. A value that meets a number or a float64 array takes it as it is, without a rounding
of its own; two values of different limb counts give the larger count.
"""

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from . import _arith, _elementwise, _export, _ffi, _format, _indexing, _order, _products, _rational
from ._choice import Accuracy, Engine
from ._operands import (
    Limbs,
    Value,
    broadcast,
    check_limbs,
    is_operand,
    operand_limbs,
    result_limbs,
)
from ._prepared import Prepared


@jax.tree_util.register_pytree_with_keys_class
class MultiDouble(Value):
    """An array of multiple doubles: the value of an entry is the exact sum of its limbs.

    Make one with `jaxmd.asarray`, `jaxmd.dd` … `jaxmd.hd`, `jaxmd.from_limbs` or `jaxmd.zeros`; the constructor takes a
    tuple of limbs as it is, without a check, because transformations put tracers and placeholders there.

    Args:
        limbs: the limbs, leading first, equal-shaped float64 arrays.

    Operators: `+ - * / @`, `**` with an integer, `abs`, comparisons by value (not by representation; inf and nan as
    IEEE 754 orders them), indexing, `.at[...]`. The other operand may be a number (int of any size, float, Fraction,
    Decimal) or an array of numpy or JAX; it never raises the limb count. Shapes broadcast as in numpy.

    **Accuracy**: `+ - * /` have errors of at most 2·2^-53L of the result, whatever cancels; `@` keeps the contract of
    `jaxmd.matmul`. A comparison is exact.
    **Limits**: 1 to 16 limbs; results lose low limbs where these fall below the smallest double (`jaxmd.finfo`).
    **Raises**: TypeError where jax_enable_x64 is off, at the first operation.
    """

    __slots__ = ()
    __array_ufunc__ = None  # numpy hands its operators over to ours instead of rounding to float64
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, limbs: Any) -> None:
        object.__setattr__(self, "limbs", tuple(limbs))

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(
            f"jaxmd.MultiDouble: cannot set {name!r}; values are immutable, use x.at[...] or a new value."
        )

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"jaxmd.MultiDouble: cannot delete {name!r}; values are immutable.")

    def tree_flatten_with_keys(self) -> tuple[tuple[Any, ...], None]:
        return tuple((jax.tree_util.SequenceKey(i), limb) for i, limb in enumerate(self.limbs)), None

    def tree_flatten(self) -> tuple[Limbs, None]:
        return self.limbs, None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> "MultiDouble":
        return cls(children)

    def __reduce__(self) -> tuple[type, tuple[Limbs]]:
        return type(self), (self.limbs,)

    # What it is

    @property
    def num_limbs(self) -> int:
        """The number of limbs."""
        return len(self.limbs)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value, which is that of every limb."""
        return tuple(self.limbs[0].shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("jaxmd.MultiDouble: len() of a value of shape (); at least one axis was wanted.")
        return self.shape[0]

    def __iter__(self) -> Iterator["MultiDouble"]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return _format.describe(self.limbs)

    # Out

    def to_float64(self) -> jax.Array:
        """The value rounded to float64, ties to even."""
        _ffi.require_x64("jaxmd.MultiDouble.to_float64")
        return _arith.to_float64(self.limbs)

    def to_fractions(self) -> Any:
        """The exact values as Fractions; `jaxmd.to_fractions` of this value."""
        return _export.fractions(self.limbs)

    def to_strings(self, digits: int | None = None) -> Any:
        """The values as decimal text, shortest that reads back when digits is None; `jaxmd.to_strings`."""
        return _export.strings(self.limbs, digits)

    def to_mpmath(self) -> Any:
        """The exact values as mpmath numbers; `jaxmd.to_mpmath` of this value."""
        return _export.mpmath_numbers(self.limbs)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(
                "jaxmd.MultiDouble: np.asarray(x, copy=False) asks for a view; rounding to float64 needs a copy."
            )
        array = np.asarray(self.to_float64())
        return array if dtype is None else array.astype(dtype)

    def __float__(self) -> float:
        return float(self._scalar("float()").to_float64())

    def __int__(self) -> int:
        return math.trunc(_rational.limbs_to_fraction([float(limb) for limb in self._scalar("int()").limbs]))

    def __bool__(self) -> bool:
        return bool(self._scalar("bool()") != 0)

    def _scalar(self, who: str) -> "MultiDouble":
        if self.size != 1:
            raise TypeError(f"jaxmd.MultiDouble: {who} of a value of shape {self.shape}; a single entry was wanted.")
        return self.reshape(())

    # Layout: the same on every limb, exact

    def _each(self, f: Callable[[jax.Array], jax.Array]) -> "MultiDouble":
        _ffi.require_x64("jaxmd.MultiDouble")
        return MultiDouble(f(jnp.asarray(limb)) for limb in self.limbs)

    def reshape(self, *shape: Any) -> "MultiDouble":
        """The entries in row-major order in another shape; one length may be −1."""
        wanted = shape[0] if len(shape) == 1 else shape
        return self._each(lambda limb: limb.reshape(wanted))

    def ravel(self) -> "MultiDouble":
        """The entries in row-major order, one axis."""
        return self.reshape(-1)

    flatten = ravel

    def transpose(self, *axes: Any) -> "MultiDouble":
        """Axes permuted; reversed without arguments."""
        return self._each(lambda limb: limb.transpose(*axes))

    def swapaxes(self, axis1: int, axis2: int) -> "MultiDouble":
        """Two axes exchanged."""
        return self._each(lambda limb: limb.swapaxes(axis1, axis2))

    def squeeze(self, axis: int | tuple[int, ...] | None = None) -> "MultiDouble":
        """Axes of length 1 removed."""
        return self._each(lambda limb: limb.squeeze(axis))

    @property
    def T(self) -> "MultiDouble":
        """All axes reversed."""
        return self.transpose()

    @property
    def mT(self) -> "MultiDouble":
        """The last two axes exchanged."""
        return self.swapaxes(-1, -2)

    def __getitem__(self, index: Any) -> "MultiDouble":
        """The entries, by numpy's rules. Where an index repeats, JAX adds cotangents limb by limb (see `copies`)."""
        return self._each(lambda limb: limb[index])

    @property
    def at(self) -> _indexing.At:
        """`x.at[index].set(v)`, `.add(v)`, `.get()`: a new value with some entries changed."""
        return _indexing.At(self)

    def with_limbs(self, limbs: int) -> "MultiDouble":
        """The same value in another limb count: exact where it grows, rounded (ties to even) where it shrinks."""
        check_limbs("jaxmd.MultiDouble.with_limbs", limbs)
        _ffi.require_x64("jaxmd.MultiDouble.with_limbs")
        return MultiDouble(_arith.resize(self.limbs, limbs))

    # Arithmetic

    def __pos__(self) -> "MultiDouble":
        return self

    def __neg__(self) -> "MultiDouble":
        _ffi.require_x64("jaxmd.negative")
        return MultiDouble(_arith.neg(self.limbs))

    def __abs__(self) -> "MultiDouble":
        _ffi.require_x64("jaxmd.abs")
        return MultiDouble(_elementwise.absolute(self.limbs))

    def __add__(self, other: Any) -> "MultiDouble":
        return _binary("jaxmd.add", _arith.add, self, other)

    def __radd__(self, other: Any) -> "MultiDouble":
        return _binary("jaxmd.add", _arith.add, other, self)

    def __sub__(self, other: Any) -> "MultiDouble":
        return _binary("jaxmd.subtract", _arith.sub, self, other)

    def __rsub__(self, other: Any) -> "MultiDouble":
        return _binary("jaxmd.subtract", _arith.sub, other, self)

    def __mul__(self, other: Any) -> "MultiDouble":
        return _binary("jaxmd.multiply", _arith.mul, self, other)

    def __rmul__(self, other: Any) -> "MultiDouble":
        return _binary("jaxmd.multiply", _arith.mul, other, self)

    def __truediv__(self, other: Any) -> "MultiDouble":
        return _binary("jaxmd.divide", _arith.div, self, other)

    def __rtruediv__(self, other: Any) -> "MultiDouble":
        return _binary("jaxmd.divide", _arith.div, other, self)

    def __matmul__(self, other: Any) -> "MultiDouble":
        return _product(self, other)

    def __rmatmul__(self, other: Any) -> "MultiDouble":
        return _product(other, self)

    def __pow__(self, exponent: Any) -> "MultiDouble":
        return power(self, exponent)

    def __round__(self, digits: None = None) -> "MultiDouble":
        if digits is not None:
            raise TypeError(f"jaxmd.MultiDouble: round() to {digits!r} digits; only round(x), to integers, is defined.")
        _ffi.require_x64("jaxmd.round")
        return MultiDouble(_elementwise.nearest(self.limbs))

    # Comparison, by value

    def __eq__(self, other: Any) -> Any:
        return _compare(self, other, operator.eq)

    def __ne__(self, other: Any) -> Any:
        equal = _compare(self, other, operator.eq)
        return equal if equal is NotImplemented else ~equal

    def __lt__(self, other: Any) -> Any:
        return _compare(self, other, operator.lt)

    def __le__(self, other: Any) -> Any:
        return _compare(self, other, operator.le)

    def __gt__(self, other: Any) -> Any:
        return _compare(self, other, operator.gt)

    def __ge__(self, other: Any) -> Any:
        return _compare(self, other, operator.ge)


def _binary(who: str, op: Callable[[Limbs, Limbs, int], Any], x: Any, y: Any) -> MultiDouble:
    if not (is_operand(x) and is_operand(y)):
        return NotImplemented
    _ffi.require_x64(who)
    limbs = result_limbs(x, y)
    left, right = broadcast(who, operand_limbs(x, limbs), operand_limbs(y, limbs))
    return MultiDouble(op(left, right, limbs))


def _compare(x: MultiDouble, other: Any, relation: Callable[[Any, Any], Any]) -> Any:
    if not is_operand(other):
        return NotImplemented
    who = f"jaxmd.MultiDouble.__{relation.__name__}__"
    _ffi.require_x64(who)
    left, right = broadcast(who, x.limbs, operand_limbs(other, x.num_limbs))
    return _order.compare(left, right, relation)


def power(x: MultiDouble, exponent: int) -> MultiDouble:
    """x to an integer power, by repeated squaring; a negative power is the power of 1/x. x**0 is 1, of nan too.

    **Accuracy**: for |exponent| = n the relative error is at most 4 n·2^-53L to first order: twice the bound of `*` for
    n − 1 products, and n times that of `/` where the exponent is negative. Derivatives keep all digits.
    **Limits**: leaves the range where the result does.
    **Raises**: TypeError for an exponent that is no Python integer; use `jaxmd.sqrt` for square roots.
    """
    if isinstance(exponent, bool) or not isinstance(exponent, int | np.integer):
        raise TypeError(f"jaxmd.power: exponent is {exponent!r}; a Python integer was wanted (jaxmd.sqrt for roots).")
    if not isinstance(x, MultiDouble):
        raise TypeError(f"jaxmd.power: x is {type(x).__name__}; a MultiDouble was wanted (jaxmd.asarray makes one).")
    _ffi.require_x64("jaxmd.power")
    return MultiDouble(_elementwise.power(x.limbs, int(exponent)))


def matmul(
    a: Any,
    b: Any,
    *,
    engine: Engine = "auto",
    accuracy: Accuracy = "componentwise",
    addend: Any = None,
) -> MultiDouble:
    """The matrix product a·b, or a·b + addend, in multiple doubles.

    Every entry of a row of `a` is written on one grid of that row, every entry of a column of `b` on one grid of that
    column; the slices of the grid multiply and add without a rounding, and the orders are summed and rounded once.

    Args:
        a: the left factor, [.., m, k] or [k]; a MultiDouble, numbers taken as they are, or what `prepare` returned.
        b: the right factor, [.., k, n] or [k]. Leading axes broadcast; a one-dimensional factor loses its axis.
        engine: "auto" (a function of shapes, limbs, platform and CPU, see `choose_engine`), "int8" (residues, products
            of int8 matrices), "fp64" (slices on FP64 tensor cores, `lax.dot_general` on the CPU), "direct"
            (multiple-double multiply-adds) or "float64" (XLA's product, for single limbs; its bits are not promised).
        accuracy: "componentwise", "normwise" or "exact".
        addend: a value that broadcasts to the product, added before the rounding.

    Returns:
        A MultiDouble [.., m, n] with the largest limb count L among the operands.

    **Accuracy**: with |.| and the product |a||b| taken entry by entry, for finite operands

        componentwise   |c − (ab + addend)| ≤ k·2^-53L·(|a||b|) + 2^-53L·(|c| + |addend|)
        normwise        the same with row maximum of |a| × column maximum of |b| in place of (|a||b|)_ij
        exact           limb 1 is ab + addend rounded to nearest, limb 2 the rest rounded, …; ties to even

    whatever the signs, the exponents and the gaps between limbs. inf and nan follow IEEE 754 and touch only the entries
    they enter. k = 0 gives zeros (or the addend). The same operands give the same bits on every run; "normwise" bits do
    not depend on batch or device, nor do those of "exact", which are the same for every engine and order of the sum;
    "componentwise" bits may depend on the batch. A sum that is exactly zero is +0.
    **Limits**: the range of `jaxmd.finfo`: low limbs of results below `finfo(L).tiny` lose bits; beyond the largest
    double a result is inf, under "normwise" any number where the bound itself lies beyond it. "exact" takes longer
    words the further apart the bits of a row (or column) lie; rows that span more than 53 L + 64 bits are summed entry
    by entry in fixed point, tens of times slower. With an addend it costs a product k + n long.
    **Raises**: TypeError for a factor without axes or with x64 off; ValueError for shapes that do not fit, an unknown
    engine or accuracy, an engine that cannot give the accuracy, or prepared factors that do not fit.
    **Source**: J. Verschelde's products of multiple doubles on tensor cores; ours shares one exponent in a row of a
    and a column of b, where that one has an exponent for every entry.
    """
    return MultiDouble(_products.matmul(a, b, engine, accuracy, addend))


def _product(a: Any, b: Any) -> Any:
    """`a @ b`, or NotImplemented."""
    return matmul(a, b) if all(is_operand(x) or isinstance(x, Prepared) for x in (a, b)) else NotImplemented


Prepared.product = _product
