"""Construction of primitives whose operands and results are multiple doubles.

A *number* is a tuple of limbs, arrays of one shape whose sum is the value. A primitive of ours sees its numbers
flattened into one list of operands; `counts` says how many limbs each has, `limbs` how many each result has:

    add(x, y, limbs=2)   x = (x0, x1), y = (y0, y1, y2)   →   add_p.bind(x0, x1, y0, y1, y2, counts=(2, 3), limbs=2)

`define` takes rules written on numbers and gives JAX the rules on flat operands that it wants. Tangents and cotangents
of a number are numbers in the same limb slots (the value convention), so a rule neither knows nor cares which of their
limbs are symbolic zeros: it gets the others, as a shorter number, and the empty tuple for zero.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from jaxmd import _ffi

if TYPE_CHECKING:
    from jax.extend.core import Primitive
else:
    # The same class without importing jax.extend, which takes several times as long as the rest of this package.
    Primitive = type(jax.lax.neg_p)

MAX_LIMBS = 16  # of a result, and of an operand unless it is only added up

Number = tuple[Any, ...]
Numbers = Sequence[Number]


@contextlib.contextmanager
def naming(who: str) -> Iterator[None]:
    """JAX's errors about a shape, an axis or a type, with the function in front that was called; ours as they are."""
    try:
        yield
    except (TypeError, ValueError, IndexError) as error:
        text = str(error).removeprefix("jaxmd: ")
        if type(error) not in (TypeError, ValueError, IndexError) or text.startswith("jaxmd"):
            raise
        raise type(error)(f"{who}: {text}") from None


def check_limbs(who: str, limbs: Any) -> None:
    """Refuse a limb count that is no integer from 1 to 16."""
    if isinstance(limbs, bool) or not isinstance(limbs, int | np.integer):
        raise TypeError(f"{who}: limbs is {limbs!r}; an integer from 1 to {MAX_LIMBS} was wanted.")
    if not 1 <= limbs <= MAX_LIMBS:
        raise ValueError(f"{who}: limbs is {limbs}; 1 to {MAX_LIMBS} was wanted.")


def define(
    name: str,
    *,
    shape_rule: Callable[..., list[Any]],
    lowering: Mapping[str | None, Callable[..., Any]],
    resize: Callable[[Number, int], Number],
    jvp: Callable[..., tuple[Numbers, Numbers]],
    transpose: Callable[..., Sequence[Number | None]] | None = None,
    batch_params: Callable[..., dict[str, Any]] | None = None,
) -> Primitive:
    """Defines the primitive `name` with all its rules.

    Args:
        shape_rule: `(*avals, counts, limbs, **params)` → avals of all result limbs.
        lowering: platform → rule; the key None is the default (`_ffi.lowering`, or `in_jax`).
        resize: `(number, limbs)` → the same value in that many limbs; fits tangents and cotangents to their slots.
        jvp: `(numbers, tangents, **params)` → result numbers and their tangents; a zero tangent is `()`.
        transpose: `(cotangents, numbers, **params)` → a cotangent, or None, for each operand number.
        batch_params: `(size, **params)` → the parameters for operands with one more leading axis of that size.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(_compiled(primitive))
    primitive.def_abstract_eval(shape_rule)
    for platform, rule in lowering.items():
        mlir.register_lowering(primitive, rule, platform=platform)
    batching.primitive_batchers[primitive] = functools.partial(_batch, primitive, batch_params)
    ad.primitive_jvps[primitive] = functools.partial(_jvp, jvp, resize)
    if transpose is not None:
        ad.primitive_transposes[primitive] = functools.partial(_transpose, transpose, resize)
    return primitive


def in_jax(function: Callable[..., Any]) -> dict[str | None, Callable[..., Any]]:
    """The lowering of a primitive that is a JAX function of its flat operands, on every platform."""
    return {None: mlir.lower_fun(function, multiple_results=True)}


def bind(primitive: Primitive, numbers: Numbers, limbs: int, **params: Any) -> Numbers:
    """Applies a primitive to numbers; returns its result numbers."""
    _ffi.require_x64(f"jaxmd.{primitive.name}")
    if not 1 <= limbs <= MAX_LIMBS:
        raise ValueError(f"jaxmd.{primitive.name}: limbs is {limbs}; 1 to {MAX_LIMBS} were wanted.")
    counts = tuple(len(number) for number in numbers)
    flat = _alike([limb for number in numbers for limb in number])
    return _groups(primitive.bind(*flat, counts=counts, limbs=limbs, **params), limbs)


def same_shape(
    name: str,
    avals: Sequence[Any],
    counts: Sequence[int],
    dtypes: Sequence[Any] | None = None,
    max_limbs: int = MAX_LIMBS,
) -> Any:
    """Checks limb counts, shapes, which must be one, and dtypes (float64 unless told); returns a result limb's aval.

    The result keeps sharding and manual mesh axes of the operands, which `bind` has made alike.
    """
    if max(counts) > max_limbs:
        raise ValueError(f"jaxmd.{name}: an operand has {max(counts)} limbs; 1 to {max_limbs} were wanted.")
    for index, aval in enumerate(avals):
        number, limb = _position(index, counts)
        wanted = jnp.float64 if dtypes is None else dtypes[number]
        if aval.dtype != wanted:
            what = "limbs are float64" if wanted == jnp.float64 else f"{jnp.dtype(wanted).name} is needed"
            raise TypeError(f"jaxmd.{name}: limb {limb} of operand {number} has dtype {aval.dtype.name}; {what}.")
        if aval.shape != avals[0].shape:
            raise ValueError(
                f"jaxmd.{name}: limb 0 of operand 0 has shape {avals[0].shape} and limb {limb} of operand {number} "
                f"has shape {aval.shape}; all limbs of all operands must have one shape."
            )
    return avals[0].update(dtype=jnp.dtype(jnp.float64), weak_type=False)


def like_operands(
    name: str, dtypes: Sequence[Any] | None = None, max_limbs: int = MAX_LIMBS
) -> Callable[..., list[Any]]:
    """The shape rule of an elementwise primitive: one number, of the operands' shape."""

    def rule(*avals: Any, counts: tuple[int, ...], limbs: int) -> list[Any]:
        return [same_shape(name, avals, counts, dtypes, max_limbs)] * limbs

    return rule


def shape_of(number: Number) -> tuple[int, ...]:
    """The shape of a number, also of one that is the unknown of a transposition."""
    limb = number[0]
    return limb.aval.shape if ad.is_undefined_primal(limb) else jnp.shape(limb)


def is_linear(number: Number) -> bool:
    """Whether a transposition is with respect to this operand."""
    return any(ad.is_undefined_primal(limb) for limb in number)


def _alike(limbs: Sequence[Any]) -> list[Any]:
    """Limbs that vary over the same manual mesh axes and, under explicit sharding, are sharded as the first sharded.

    A cotangent has the type of the result; only so is it that of the operand too.
    """
    limbs = _ffi.unify(limbs)
    specs = [jax.typeof(limb).sharding.spec for limb in limbs]
    sharded = next((spec for spec in specs if any(axis is not None for axis in spec)), None)
    if sharded is None:  # the rule, so: no more than a look at every type
        return limbs
    return [limb if spec == sharded else jax.reshard(limb, sharded) for limb, spec in zip(limbs, specs, strict=True)]


def _compiled(primitive: Primitive) -> Callable[..., Any]:
    @functools.partial(jax.jit, static_argnames="params")
    def compiled(*args: Any, params: tuple[tuple[str, Any], ...]) -> Any:
        return primitive.bind(*args, **dict(params))

    def impl(*args: Any, **params: Any) -> Any:
        with jax.disable_jit(False):
            return compiled(*args, params=tuple(params.items()))

    return impl


def batch_size(args: Sequence[Any], dims: Sequence[int | None]) -> int:
    """Length of the axis that vmap maps over."""
    return next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)


def to_front(args: Sequence[Any], dims: Sequence[int | None], size: int) -> Number:
    """Every operand with the batch axis first, repeated where it has none."""
    return tuple(
        jnp.broadcast_to(x, (size, *jnp.shape(x))) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(args, dims, strict=True)
    )


def _batch(
    primitive: Primitive,
    batch_params: Callable[..., dict[str, Any]] | None,
    args: Sequence[Any],
    dims: Sequence[int | None],
    **params: Any,
) -> tuple[Any, list[int]]:
    """The batch axis goes to the front of every operand; operands without one are repeated along it."""
    size = batch_size(args, dims)
    front = to_front(args, dims, size)
    if batch_params is not None:
        params = batch_params(size, **params)
    out = primitive.bind(*_alike(front), **params)
    return out, [0] * len(out)


def _jvp(
    rule: Callable[..., tuple[Numbers, Numbers]],
    resize: Callable[[Number, int], Number],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    counts: tuple[int, ...],
    **params: Any,
) -> tuple[list[Any], list[Any]]:
    known = [_nonzero(tangent) for tangent in _split(tangents, counts)]
    results, derivatives = rule(_split(primals, counts), known, **params)
    out: list[Any] = []
    for result, derivative in zip(results, derivatives, strict=True):
        if derivative:
            out.extend(resize(derivative, len(result)))
        else:
            out.extend(ad.Zero(jax.typeof(limb).to_tangent_aval()) for limb in result)
    return [limb for result in results for limb in result], out


def _transpose(
    rule: Callable[..., Sequence[Number | None]],
    resize: Callable[[Number, int], Number],
    cotangents: Sequence[Any],
    *operands: Any,
    counts: tuple[int, ...],
    limbs: int,
    **params: Any,
) -> list[Any]:
    known = [_nonzero(cotangent) for cotangent in _groups(cotangents, limbs)]
    if not any(known):
        return [None] * len(operands)
    numbers = _split(operands, counts)
    out: list[Any] = []
    for number, cotangent in zip(numbers, rule(known, numbers, limbs=limbs, **params), strict=True):
        # A limb that is known in a linear operand is a zero; the whole cotangent goes to the unknown ones.
        unknown = sum(ad.is_undefined_primal(limb) for limb in number)
        slots = iter(resize(cotangent, unknown) if unknown and cotangent else ())
        out.extend(next(slots, None) if ad.is_undefined_primal(limb) else None for limb in number)
    return out


def _nonzero(tangent: Number) -> Number:
    return tuple(limb for limb in tangent if type(limb) is not ad.Zero)


def _split(flat: Iterable[Any], counts: Sequence[int]) -> list[Number]:
    items = iter(flat)
    return [tuple(next(items) for _ in range(count)) for count in counts]


def _groups(flat: Sequence[Any], limbs: int) -> list[Number]:
    return [tuple(flat[i : i + limbs]) for i in range(0, len(flat), limbs)]


def _position(index: int, counts: Sequence[int]) -> tuple[int, int]:
    for number, count in enumerate(counts):
        if index < count:
            return number, index
        index -= count
    raise AssertionError("more operands than counts")
