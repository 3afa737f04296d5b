"""Into and out of multiple doubles, exactly: nothing passes through float64 that is not one already.

    text, int, Fraction, … ──→ `_decimal` ──┐
    numpy array ──→ exact widening ─────────┼──→ limbs [...] × L ──→ MultiDouble ──→ Fractions, text, mpmath, file
    jax array, tracer ──→ `_operands` ──────┘

Rounding, where fewer limbs are asked for than a value has, is canonical: x₁ = RN(x), x₂ = RN(x − x₁), …, ties to even.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zipfile import BadZipFile, ZipFile

import jax
import jax.numpy as jnp
import numpy as np

from . import _arith, _decimal, _export, _ffi, _operands
from ._array import MultiDouble
from ._operands import Value, check_limbs

_DEFAULT = 2
_MARK = "jaxmd_format"  # the entry of a file that says it is ours: [version, whether it holds a single array]
_VERSION = 1
Columns = list[Any]  # limbs, leading first: numpy arrays while everything is on the host, else jax arrays


# Into.


def asarray(x: Any, limbs: int | None = None) -> MultiDouble:
    """A MultiDouble of the exact value of x, rounded correctly where it needs more limbs.

    Args:
      x: a number, text, or an array of them: MultiDouble; text as "0.1", "-1.5e-300", "1/3", "0x1.8p3", "inf", "nan"
        (underscores between digits as in Python); bool; int of any size; Fraction; Decimal; float; mpmath mpf and
        constants; python-flint fmpz, fmpq, arb (its midpoint); numpy scalars and arrays of any real dtype, object and
        text included; jax arrays, traced ones too; matrices of mpmath and flint; nested lists of all these.
      limbs: 1 to 16. None keeps the count of a MultiDouble, takes the largest count of MultiDoubles in a list, and
        means 2 for anything else. Missing limbs are zeros.

    Returns:
      MultiDouble of the shape of x.

    Accuracy:
      Exact where `limbs` limbs hold the value; else canonical rounding, |error| ≤ 2^-53·limbs |x|.

    Limits:
      Beyond the range ±inf or ±0, as `float()`. The sign of −0 is kept. Limbs below 2^-1074 are rounded away.

    Raises:
      ValueError: malformed text (naming it and the position), a denominator 0, a ragged list, limbs outside 1 to 16.
      TypeError: complex numbers and whatever is no real number; jax_enable_x64 is off.
    """
    who = "jaxmd.asarray"
    _ffi.require_x64(who)
    if limbs is not None:
        check_limbs(who, limbs)
    return _asarray(who, x, limbs)


def _asarray(who: str, x: Any, limbs: int | None) -> MultiDouble:
    if isinstance(x, MultiDouble) and limbs in (None, x.num_limbs):
        return x
    shape, leaves = _flatten(who, x)
    if limbs is None:
        limbs = max((len(leaf.limbs) for leaf in leaves if isinstance(leaf, Value)), default=_DEFAULT)
    if not any(map(_is_array, leaves)):
        columns = _table(who, leaves, shape, limbs)
    else:
        columns = _stack(who, [_array_columns(who, leaf, limbs) for leaf in leaves], shape)
    return MultiDouble(jnp.asarray(column, jnp.float64) for column in columns)


def _constructor(name: str, limbs: int, words: str) -> Callable[[Any], MultiDouble]:
    def make(x: Any) -> MultiDouble:
        _ffi.require_x64(f"jaxmd.{name}")
        return _asarray(f"jaxmd.{name}", x, limbs)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"x as {words}, {limbs} limbs: `asarray(x, {limbs})`."
    return make


dd = _constructor("dd", 2, "double doubles")
td = _constructor("td", 3, "triple doubles")
qd = _constructor("qd", 4, "quad doubles")
od = _constructor("od", 8, "octo doubles")
hd = _constructor("hd", 16, "hexa doubles")


def from_limbs(*arrays: Any, normalize: bool = True) -> MultiDouble:
    """The MultiDouble that is the sum of float64 arrays.

    Args:
      arrays: one to 16 float64 arrays (or Python floats, nested lists of them) of one shape, the leading limb first.
      normalize: whether to round the sum canonically to as many limbs. Without it the arrays become the limbs as they
        are; arithmetic takes them in any form, normalized or not.

    Accuracy: exact where the sum has that many canonical limbs, else rounded as in `asarray`.
    Raises: TypeError for another dtype, or jax_enable_x64 off; ValueError for different shapes, or more than 16 arrays.
    """
    who = "jaxmd.from_limbs"
    _ffi.require_x64(who)
    check_limbs(who, len(arrays))
    with _operands.naming(who):
        limbs = [jnp.asarray(x) for x in arrays]
    for i, limb in enumerate(limbs):
        if limb.dtype != jnp.float64:
            raise TypeError(f"{who}: limb {i} has dtype {limb.dtype}; float64 was wanted.")
        if limb.shape != limbs[0].shape:
            shapes = f"limb 0 has shape {limbs[0].shape} and limb {i} has shape {limb.shape}"
            raise ValueError(f"{who}: {shapes}; one shape was wanted.")
    limbs = [jnp.asarray(limb, jnp.float64) for limb in limbs]  # no weak types
    return MultiDouble(_arith.renormalize(tuple(limbs), len(limbs)) if normalize else limbs)


def _is_array(x: Any) -> bool:
    return isinstance(x, (Value, jax.Array, np.ndarray))


def _holds_entries(kind: type) -> bool:
    """Whether objects of a type are arrays, matrices or sequences of numbers."""
    if issubclass(kind, np.generic | str | bytes):
        return False
    return hasattr(kind, "__array__") or hasattr(kind, "tolist") or issubclass(kind, Sequence)


def _flatten(who: str, x: Any) -> tuple[tuple[int, ...], list[Any]]:
    """The shape of nested lists, and their leaves in order: numbers, texts, or arrays with axes of their own."""
    if isinstance(x, np.ndarray) and x.dtype == object:
        return x.shape, list(x.flat)
    if _is_array(x) or not _holds_entries(type(x)):
        return (), [x]
    if hasattr(x, "__array__") and (hasattr(x, "dtype") or not hasattr(x, "tolist")):
        return _flatten(who, np.asarray(x))
    # Matrices of mpmath and flint have tolist; mpmath's __array__ rounds to its working precision.
    entries = x.tolist() if hasattr(x, "tolist") else list(x)
    if not any(map(_holds_entries, set(map(type, entries)))):
        return (len(entries),), entries
    parts = [_flatten(who, entry) for entry in entries]
    for i, (shape, _) in enumerate(parts):
        if shape != parts[0][0]:
            raise ValueError(
                f"{who}: the list is ragged: entry 0 has shape {parts[0][0]} and entry {i} has shape {shape}; "
                "one shape was wanted."
            )
    return (len(entries), *parts[0][0]), [leaf for _, leaves in parts for leaf in leaves]


def _table(who: str, leaves: list[Any], shape: tuple[int, ...], limbs: int) -> Columns:
    """Limbs of a list of scalars, given their shape."""
    if {float, np.float64}.issuperset(map(type, leaves)):
        return _pad([np.array(leaves, np.float64).reshape(shape)], limbs)
    rows: list[tuple[float, ...]] = []
    try:
        rows.extend(_decimal.number_to_limbs(leaf, limbs) for leaf in leaves)
    except (TypeError, ValueError) as error:
        index = np.unravel_index(len(rows), shape)
        where = f" entry {tuple(map(int, index))}:" if shape else ""
        raise type(error)(f"{who}:{where} {error}.") from None
    return list(np.array(rows, np.float64).reshape(*shape, limbs).transpose(-1, *range(len(shape))))


def _stack(who: str, parts: list[Columns], shape: tuple[int, ...]) -> Columns:
    """Limbs of a nested list of arrays: `shape` followed by the shape of the arrays."""
    if not shape:
        return parts[0]
    for i, part in enumerate(parts):
        if part[0].shape != parts[0][0].shape:
            raise ValueError(
                f"{who}: the list is ragged: array 0 has shape {parts[0][0].shape} and array {i} has shape "
                f"{part[0].shape}; one shape was wanted."
            )
    on_host = all(isinstance(column, np.ndarray) for part in parts for column in part)
    stack: Callable[..., Any] = np.stack if on_host else jnp.stack
    return [stack(column).reshape(*shape, *parts[0][0].shape) for column in zip(*parts, strict=True)]


def _array_columns(who: str, x: Any, limbs: int) -> Columns:
    """Limbs of one leaf, a number or an array."""
    if isinstance(x, Value):
        return list(_arith.resize(x.limbs, limbs))
    if isinstance(x, jax.Array):
        if not (jnp.issubdtype(x.dtype, jnp.floating) or jnp.issubdtype(x.dtype, jnp.integer) or x.dtype == jnp.bool_):
            raise _refusal(who, x.dtype)
        return list(_arith.resize(_operands.to_limbs(x, limbs), limbs))
    if isinstance(x, np.ndarray):
        return _numpy_columns(who, x, limbs)
    return _table(who, [x], (), limbs)


def _refusal(who: str, dtype: Any) -> TypeError:
    complex_or_not = " is complex" if jnp.issubdtype(dtype, jnp.complexfloating) else ""
    return TypeError(f"{who}: dtype {dtype}{complex_or_not} came; real numbers were wanted.")


def _numpy_columns(who: str, x: np.ndarray, limbs: int) -> Columns:
    kind = x.dtype.kind
    if kind in "UST":
        return _table(who, x.ravel().tolist(), x.shape, limbs)
    if kind == "f" and x.dtype.itemsize > 8:
        return _pad(_longdouble_columns(x, limbs), limbs)
    if kind in "iu" and x.dtype.itemsize == 8:
        return _pad(_int64_columns(x, limbs), limbs)
    if kind in "fiub" or jnp.issubdtype(x.dtype, jnp.floating) or jnp.issubdtype(x.dtype, jnp.integer):
        return _pad([x.astype(np.float64)], limbs)
    raise _refusal(who, x.dtype)


def _longdouble_columns(x: np.ndarray, limbs: int) -> Columns:
    columns: Columns = []
    with np.errstate(all="ignore"):
        for _ in range(min(limbs, 3)):  # 64 bits on x86, 113 elsewhere; each remainder is exact
            column = x.astype(np.float64)
            x = np.where(np.isfinite(column), x - column, 0)
            columns.append(column + 0.0 if columns else column)  # no −0 below the leading limb
    return columns


def _int64_columns(x: np.ndarray, limbs: int) -> Columns:
    upper = (x >> 32).astype(np.float64) * 2.0**32
    lower = (x & 0xFFFFFFFF).astype(np.float64)
    total = upper + lower
    return [total, lower - (total - upper)][:limbs]  # fast two-sum: |upper| ≥ lower, or upper = 0


def _pad(columns: Columns, limbs: int) -> Columns:
    return columns + [np.zeros(columns[0].shape) for _ in range(limbs - len(columns))]


# Out of.


def to_fractions(x: Any) -> Any:
    """The exact values as `fractions.Fraction`.

    Args: x: MultiDouble [...], or what `asarray` takes.
    Returns: numpy object array [...] of Fractions; the Fraction itself for a value without axes.
    Accuracy: exact, whatever the form of the limbs.
    Raises: ValueError for inf and nan, naming the entry.
    """
    return _export.fractions(asarray(x).limbs)


def to_strings(x: Any, digits: int | None = None) -> Any:
    """The values as decimal text.

    Args:
      x: MultiDouble [...], or what `asarray` takes.
      digits: significant digits, correctly rounded (ties to even) and all shown. None means the fewest that
        `asarray(text, limbs)` reads back as the same value, of those the nearest.

    Returns: numpy object array [...] of str; the str itself for a value without axes.
    Accuracy: None: exact round trip; n: the error is at most half a unit of the n-th digit.
    Limits: limbs that are not normalized and whose sum is beyond the largest double give "inf".
    Raises: ValueError for digits below 1.
    """
    return _export.strings(asarray(x).limbs, digits)


def to_mpmath(x: Any) -> Any:
    """The exact values as `mpmath.mpf`, whatever mpmath's working precision.

    Args: x: MultiDouble [...], or what `asarray` takes.
    Returns: numpy object array [...] of mpf; the mpf itself for a value without axes. mpmath has no −0: it becomes 0.
    Accuracy: exact.
    """
    return _export.mpmath_numbers(asarray(x).limbs)


# Files.


def save(path: Any, arrays: MultiDouble | Mapping[str, MultiDouble] | None = None, /, **named: MultiDouble) -> None:
    """Writes MultiDoubles to an npz file, bit for bit.

    Each becomes one float64 array, its limbs stacked on a leading axis, so that numpy alone can read the file.

    Args:
      path: a file name, used as it is, or a file opened for writing bytes.
      arrays: one MultiDouble, or a mapping from names to MultiDoubles.
      named: MultiDoubles under their names.

    Raises: TypeError for anything but MultiDoubles; ValueError for no array, or a name that is taken or reserved.
    """
    who = "jaxmd.save"
    _check_path(who, path)
    single = isinstance(arrays, MultiDouble)
    if not single and not isinstance(arrays, Mapping | None):
        raise TypeError(f"{who}: arrays is {type(arrays).__name__}; a MultiDouble or a mapping to them was wanted.")
    if single and named:
        raise ValueError(
            f"{who}: an array without a name came with {len(named)} named ones; names for all were wanted."
        )
    members: dict[Any, Any] = {"x": arrays} if single else {**(arrays or {}), **named}  # type: ignore[dict-item]
    if not members:
        raise ValueError(f"{who}: no array came; at least one was wanted.")
    if twice := set(arrays if isinstance(arrays, Mapping) else ()) & set(named):
        raise ValueError(f"{who}: the names {sorted(twice)} came twice; each once was wanted.")
    stacks = {}
    for name, value in members.items():
        if not isinstance(name, str) or not name or name == _MARK:
            raise ValueError(f"{who}: the name {name!r} came; text other than '{_MARK}' was wanted.")
        if not isinstance(value, MultiDouble):
            kind = type(value).__name__
            raise TypeError(f"{who}: {name} is {kind}; a MultiDouble was wanted (jaxmd.asarray makes one).")
        stacks[name] = np.stack([np.asarray(limb) for limb in value.limbs])
    with ZipFile(path, "w") as archive:
        for name, array in {_MARK: np.array([_VERSION, single], np.int64), **stacks}.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _check_path(who: str, path: Any) -> None:
    if not isinstance(path, str | os.PathLike) and not hasattr(path, "seek"):
        raise TypeError(f"{who}: path is {type(path).__name__}; a file name or an open file was wanted.")


def load(path: Any) -> Any:
    """Reads what `save` wrote, bit for bit.

    Args: path: a file name, or a file opened for reading bytes.
    Returns: the MultiDouble, if one was saved without a name; else a dict from names to MultiDoubles.
    Raises: ValueError for a file that `save` did not write; OSError where it cannot be read.
    """
    who = "jaxmd.load"
    _ffi.require_x64(who)
    _check_path(who, path)
    try:
        archive = ZipFile(path)
    except BadZipFile as error:
        raise ValueError(f"{who}: {path} is no npz file ({error}); one from jaxmd.save was wanted.") from None
    with archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        if _MARK not in names:
            raise ValueError(f"{who}: {path} has no entry '{_MARK}'; a file from jaxmd.save was wanted.")
        arrays = {}
        for name in names:
            with archive.open(f"{name}.npy") as member:
                arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
    version, single = arrays.pop(_MARK).tolist()
    if version != _VERSION:
        raise ValueError(f"{who}: {path} has format {version}; format {_VERSION} was wanted (a newer jaxmd?).")
    for name, array in arrays.items():
        if array.dtype != np.float64 or not array.ndim or not 1 <= len(array) <= _operands.MAX_LIMBS:
            kind = f"{array.dtype} of shape {array.shape}"
            raise ValueError(f"{who}: {name} is {kind}; float64 with 1 to 16 limbs first was wanted.")
    loaded = {name: MultiDouble(jnp.asarray(limb) for limb in array) for name, array in arrays.items()}
    return loaded["x"] if single else loaded
