"""The linear structure of multiple doubles: padding, sums, copies and broadcasting, each the transpose of another.

    pad         n limbs → L ≥ n limbs           ⟷   add_many     the correctly rounded sum of numbers
    copies      x → (x, x, ...)                 ⟷   add_many
    broadcast   repeat along axes               ⟷   reduce_sum   sum along axes
    neg         its own

A number is a tuple of limbs, float64 arrays of one shape (see `_arith.py`, from where these functions are taken).
u = 2^-53, and L is the limb count of the result.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from jaxmd import _ffi
from jaxmd._primitive import MAX_LIMBS, Number, Numbers, bind, define, in_jax, like_operands, same_shape, shape_of

_MAX_TERMS = 128  # doubles that one call of the renormalize handler takes
_GROUP = _MAX_TERMS // MAX_LIMBS  # numbers that a sum adds at once; larger groups are no faster and compile for longer


def resize(x: Number, limbs: int) -> Number:
    """The same value in `limbs` limbs: zeros appended, or correctly rounded; as it is when the count is right."""
    if len(x) < limbs:
        return pad(x, limbs)
    return x if len(x) == limbs else renormalize(x, limbs)


# pad: zeros appended; exact.


def _pad_impl(*x: Any, counts: tuple[int, ...], limbs: int) -> list[Any]:
    return [*x, *(jnp.zeros_like(x[0]) for _ in range(limbs - len(x)))]


def _pad_jvp(numbers: Numbers, tangents: Numbers, *, limbs: int) -> tuple[Numbers, Numbers]:
    return [pad(numbers[0], limbs)], tangents


def _pad_transpose(cotangents: Numbers, numbers: Numbers, *, limbs: int) -> Numbers:
    return cotangents


pad_p = define(
    "pad",
    shape_rule=like_operands("pad"),
    lowering=in_jax(_pad_impl),
    jvp=_pad_jvp,
    transpose=_pad_transpose,
    resize=resize,
)


def pad(x: Number, limbs: int) -> Number:
    """`x` with zeros appended up to `limbs` limbs. Exact; its transpose rounds to the limbs of `x`."""
    if len(x) > limbs:
        raise ValueError(f"jaxmd.pad: x has {len(x)} limbs; limbs={limbs} must not be fewer.")
    return bind(pad_p, [x], limbs)[0]


def from_float64(x: Any, limbs: int) -> Number:
    """The double `x` as a multiple double, exactly. Its transpose is `to_float64`."""
    return pad((x,), limbs)


# add_many: the correctly rounded sum of several numbers; renormalize and to_float64 are its cases.


def _add_many_jvp(numbers: Numbers, tangents: Numbers, *, limbs: int) -> tuple[Numbers, Numbers]:
    return [add_many(numbers, limbs)], [sum_terms(tangents, limbs)]


def _add_many_transpose(cotangents: Numbers, numbers: Numbers, *, limbs: int) -> Numbers:
    return copies(resize(cotangents[0], limbs), len(numbers))


add_many_p = define(
    "add_many",
    shape_rule=like_operands("add_many", max_limbs=_MAX_TERMS),
    lowering=_ffi.lowering("jaxmd_renormalize", elementwise=True),
    jvp=_add_many_jvp,
    transpose=_add_many_transpose,
    resize=resize,
)


def add_many(numbers: Numbers, limbs: int) -> Number:
    """The sum of several multiple doubles of one shape, rounded once.

    Args:
        numbers: tuples of limbs, all of shape [...], of any limb counts, normalized or not.
        limbs: limb count of the result.
    Returns:
        A tuple of `limbs` arrays [...].
    Accuracy:
        Up to 128 limbs in all: correctly rounded, r1 = RN(sum), r2 = RN(sum − r1), ..., so |error| ≤ u^L·|sum|.
        Beyond, partial sums are kept in K = min(L + 1, 16) limbs: |error| ≤ u^L·|sum| + log2(n)·u^K·Σ|x_i| for n
        numbers.
    Raises:
        ValueError: limbs of different shapes. TypeError: a limb that is not float64, or x64 is off.
    """
    numbers = list(numbers)
    if max(map(len, numbers)) > _MAX_TERMS:
        raise ValueError(
            f"jaxmd.add_many: a number has {max(map(len, numbers))} limbs; at most {_MAX_TERMS} are taken."
        )
    while sum(map(len, numbers)) > _MAX_TERMS:
        numbers = [bind(add_many_p, chunk, limbs + 1)[0] for chunk in _chunks(numbers)]
    return bind(add_many_p, numbers, limbs)[0]


def _chunks(numbers: Numbers) -> list[list[Number]]:
    """Consecutive numbers, as many together as one call takes."""
    chunks: list[list[Number]] = [[]]
    for number in numbers:
        if chunks[-1] and sum(map(len, chunks[-1])) + len(number) > _MAX_TERMS:
            chunks.append([])
        chunks[-1].append(number)
    return chunks


def renormalize(terms: Number, limbs: int) -> Number:
    """One number given by any doubles whose sum it is, in canonical limbs.

    `terms` are the limbs of *one* number: the cotangent of the result is the cotangent of that number, in its limb
    slots. For the sum of separate numbers, each of which gets the whole cotangent, use `add_many`.

    Accuracy:
        Correctly rounded: r1 = RN(sum), r2 = RN(sum − r1), ..., ties to even; |error| ≤ u^L·|sum|, at most 128 terms.
    """
    return add_many([terms], limbs)


def to_float64(x: Number) -> Any:
    """The value rounded to double, ties to even. Its transpose puts the cotangent in the leading limb of `x`."""
    return renormalize(x, 1)[0]


def sum_terms(terms: Numbers, limbs: int) -> Number:
    """The sum of the tangents or cotangents of a rule, of which `()` stands for zero."""
    terms = [term for term in terms if term]
    if len(terms) > 1:
        return add_many(terms, limbs)
    return resize(terms[0], limbs) if terms else ()


# neg


def _neg_impl(*x: Any, counts: tuple[int, ...], limbs: int) -> list[Any]:
    # On bits: the low limbs keep +0 for zero, and XLA on CPUs takes subnormals for zeros in floating point. The test
    # for zero is a range of integers: LLVM makes `(b << 1) == 0` a float comparison again where it stands by another.
    sign, top = jnp.uint64(1 << 63), jnp.uint64((1 << 63) - 2)
    bits = [lax.bitcast_convert_type(limb, jnp.uint64) for limb in x]
    low = [jnp.where((b & ~sign) - jnp.uint64(1) < top, b ^ sign, jnp.uint64(0)) for b in bits[1:]]
    return [lax.bitcast_convert_type(b, jnp.float64) for b in [bits[0] ^ sign, *low]]


def _neg_jvp(numbers: Numbers, tangents: Numbers, *, limbs: int) -> tuple[Numbers, Numbers]:
    return [neg(numbers[0])], [neg(tangents[0])]


def _neg_transpose(cotangents: Numbers, numbers: Numbers, *, limbs: int) -> Numbers:
    return [neg(cotangents[0])]


neg_p = define(
    "neg",
    shape_rule=like_operands("neg"),
    lowering=in_jax(_neg_impl),
    jvp=_neg_jvp,
    transpose=_neg_transpose,
    resize=resize,
)


def neg(x: Number) -> Number:
    """−x, limb by limb; exact, the low limbs of zero stay +0."""
    return bind(neg_p, [x], len(x))[0]


# copies


def _copies_shape_rule(*avals: Any, counts: tuple[int, ...], limbs: int, n: int) -> list[Any]:
    return [same_shape("copies", avals, counts)] * (limbs * n)


def _copies_impl(*x: Any, counts: tuple[int, ...], limbs: int, n: int) -> list[Any]:
    return list(x) * n


def _copies_jvp(numbers: Numbers, tangents: Numbers, *, limbs: int, n: int) -> tuple[Numbers, Numbers]:
    return copies(numbers[0], n), copies(resize(tangents[0], limbs), n)


def _copies_transpose(cotangents: Numbers, numbers: Numbers, *, limbs: int, n: int) -> Numbers:
    return [sum_terms(cotangents, limbs)]


copies_p = define(
    "copies",
    shape_rule=_copies_shape_rule,
    lowering=in_jax(_copies_impl),
    jvp=_copies_jvp,
    transpose=_copies_transpose,
    resize=resize,
)


def copies(x: Number, n: int) -> Numbers:
    """`n` copies of x whose cotangents are added in multiple double arithmetic.

    Where one value is used n times, JAX adds the n cotangents of each limb in float64: the sum of the limbs is then
    right to 2^-53 only. Used once each, n copies leave that sum to us, and the gradient keeps all its digits:

        f(x) = g(x) + h(x)       →       x1, x2 = copies(x, 2);  f = g(x1) + h(x2)

    Accuracy:
        Copies are exact; the cotangent of x is the sum of theirs, correctly rounded. Free at run time.
    """
    if n < 1:
        raise ValueError(f"jaxmd.copies: n is {n}; at least 1 is needed.")
    return bind(copies_p, [x], len(x), n=n)


# broadcast: axes of length 1 are repeated. reduce_sum: its transpose.


def _broadcast_shape_rule(*avals: Any, counts: tuple[int, ...], limbs: int, shape: tuple[int, ...]) -> list[Any]:
    return [same_shape("broadcast_to", avals, counts).update(shape=shape)] * limbs


def _broadcast_impl(*x: Any, counts: tuple[int, ...], limbs: int, shape: tuple[int, ...]) -> list[Any]:
    return [jnp.broadcast_to(limb, shape) for limb in x]


def _broadcast_jvp(
    numbers: Numbers, tangents: Numbers, *, limbs: int, shape: tuple[int, ...]
) -> tuple[Numbers, Numbers]:
    return [broadcast_to(numbers[0], shape)], [broadcast_to(tangents[0], shape)]


def _broadcast_transpose(cotangents: Numbers, numbers: Numbers, *, limbs: int, shape: tuple[int, ...]) -> Numbers:
    axes = tuple(axis for axis, (old, new) in enumerate(zip(shape_of(numbers[0]), shape, strict=True)) if old != new)
    return [reduce_sum(cotangents[0], axes, limbs, keepdims=True)]


def _broadcast_batch_params(size: int, *, shape: tuple[int, ...], **params: Any) -> dict[str, Any]:
    return {"shape": (size, *shape), **params}


broadcast_p = define(
    "broadcast_to",
    shape_rule=_broadcast_shape_rule,
    lowering=in_jax(_broadcast_impl),
    jvp=_broadcast_jvp,
    transpose=_broadcast_transpose,
    resize=resize,
    batch_params=_broadcast_batch_params,
)


def broadcast_to(x: Number, shape: tuple[int, ...]) -> Number:
    """`x` repeated to `shape`, by numpy's rules. Exact; its transpose is `reduce_sum`."""
    old = shape_of(x)
    if tuple(old) == tuple(shape):
        return x
    aligned = old[::-1], tuple(shape)[::-1]
    if len(old) > len(shape) or any(was not in (1, new) for was, new in zip(*aligned, strict=False)):
        raise ValueError(f"jaxmd.broadcast_to: x has shape {old}; it does not broadcast to {tuple(shape)}.")
    x = tuple(jnp.expand_dims(limb, tuple(range(len(shape) - len(old)))) for limb in x)
    return x if shape_of(x) == tuple(shape) else bind(broadcast_p, [x], len(x), shape=tuple(shape))[0]


def _reduce_sum_shape_rule(*avals: Any, counts: tuple[int, ...], limbs: int, axes: tuple[int, ...]) -> list[Any]:
    aval = same_shape("reduce_sum", avals, counts)
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(aval.shape))
    return [aval.update(shape=shape)] * limbs


def _reduce_sum_impl(*x: Any, counts: tuple[int, ...], limbs: int, axes: tuple[int, ...]) -> list[Any]:
    shape = shape_of(x)
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    length = math.prod(shape[axis] for axis in axes)
    # The reduced axes become one, in front: x[length, ...].
    terms = tuple(jnp.transpose(limb, (*axes, *kept)).reshape(length, *(shape[axis] for axis in kept)) for limb in x)
    if length == 0:
        total = tuple(jnp.zeros(terms[0].shape[1:]) for _ in range(limbs))
    else:
        while length > _GROUP:
            length = -(-length // _GROUP)
            terms = _sum_leading(terms, length, min(limbs + 1, MAX_LIMBS))
        numbers = [tuple(limb[i] for limb in terms) for i in range(length)]
        total = add_many(numbers, limbs)
    out = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return [limb.reshape(out) for limb in total]


def _sum_leading(terms: Number, length: int, limbs: int) -> Number:
    """Partial sums of terms[≤ 8·length, ...] (zeros appended), eight at a time; result [length, ...]."""
    missing = _GROUP * length - terms[0].shape[0]
    padded = [jnp.pad(limb, [(0, missing)] + [(0, 0)] * (limb.ndim - 1)) for limb in terms]
    grouped = [limb.reshape(_GROUP, length, *limb.shape[1:]) for limb in padded]
    return add_many([tuple(limb[i] for limb in grouped) for i in range(_GROUP)], limbs)


def _reduce_sum_jvp(
    numbers: Numbers, tangents: Numbers, *, limbs: int, axes: tuple[int, ...]
) -> tuple[Numbers, Numbers]:
    return [reduce_sum(numbers[0], axes, limbs, keepdims=True)], [reduce_sum(tangents[0], axes, limbs, keepdims=True)]


def _reduce_sum_transpose(cotangents: Numbers, numbers: Numbers, *, limbs: int, axes: tuple[int, ...]) -> Numbers:
    return [broadcast_to(cotangents[0], shape_of(numbers[0]))]


def _reduce_sum_batch_params(size: int, *, axes: tuple[int, ...], **params: Any) -> dict[str, Any]:
    return {"axes": tuple(axis + 1 for axis in axes), **params}


reduce_sum_p = define(
    "reduce_sum",
    shape_rule=_reduce_sum_shape_rule,
    lowering=in_jax(_reduce_sum_impl),
    jvp=_reduce_sum_jvp,
    transpose=_reduce_sum_transpose,
    resize=resize,
    batch_params=_reduce_sum_batch_params,
)


def reduce_sum(x: Number, axes: tuple[int, ...], limbs: int, *, keepdims: bool = False) -> Number:
    """The sum along `axes` (non-negative, distinct), in `limbs` limbs; its transpose is `broadcast_to`.

    A tree: eight numbers are added and rounded at once; partial sums carry one limb more than the result (16 at most).
    The order depends on the length alone: the same input gives the same bits on every device.
    An empty sum is +0.

    Args:
        x: tuple of arrays.
        keepdims: keep the summed axes with length 1.
    Accuracy:
        |error| ≤ u^L·|sum| + log2(n)·u^K·Σ|x_i| for n terms, K = min(L + 1, 16); up to eight terms u^L·|sum|.
    Limits:
        A partial sum beyond the range makes the sum inf. Under `jax.export` the summed axes cannot be symbolic.
    """
    if not axes:
        return resize(x, limbs)
    shape = shape_of(x)
    if not all(isinstance(shape[axis], int) for axis in axes):
        raise ValueError(f"jaxmd.reduce_sum: x has shape {shape}; the length of a summed axis must be a constant.")
    total = bind(reduce_sum_p, [_gathered(x, axes)], limbs, axes=tuple(sorted(axes)))[0]
    return total if keepdims else tuple(jnp.squeeze(limb, tuple(axes)) for limb in total)


def _gathered(x: Number, axes: tuple[int, ...]) -> Number:
    """`x` with whole axes where its type says that they are sharded (explicit sharding)."""
    spec = jax.typeof(x[0]).sharding.spec
    if all(spec[axis] is None for axis in axes):
        return x
    kept = PartitionSpec(*(None if axis in axes else name for axis, name in enumerate(spec)))
    return tuple(jax.reshard(limb, kept) for limb in x)
