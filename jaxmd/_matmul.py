"""The product primitive: limbs of A, B (and an addend) in, limbs of A B (+ addend) out.

    a   L_a arrays [..., m, k]      b   L_b arrays [..., k, n]      addend, c   arrays [..., m, n]

`_engines.py` says what is computed; this file gives JAX the rules of it: shapes, batching, derivatives, lowering.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import batching, mlir

from . import _arith, _engines
from ._choice import ACCURACIES, ENGINES, Accuracy, Engine, choose
from ._primitive import Number, Numbers, batch_size, bind, check_limbs, define, is_linear, to_front

Limbs = tuple[jax.Array, ...]


def choose_engine(
    a_shape: Sequence[int],
    b_shape: Sequence[int],
    limbs: int = 2,
    *,
    accuracy: Accuracy = "componentwise",
    platform: str | None = None,
) -> Engine:
    """Name of the engine that `matmul(..., engine="auto")` runs for these shapes.

    A pure function of shapes, limbs, accuracy, platform and CPU instructions (`JAXMD_CPU_ISA`), never of a timing.

    Args:
        a_shape, b_shape: shapes of the operands, (..., m, k) and (..., k, n); 1-D as in `matmul`.
        limbs: limb count of the result.
        accuracy: as in `matmul`; "normwise" always takes an engine with exact sums.
        platform: "cpu" or "cuda"; None means JAX's default backend.

    Returns: "int8", "fp64", "direct" or "float64".
    Raises: ValueError for shapes that do not multiply, and for other limbs, accuracies and platforms than these;
        TypeError for what is no shape and no integer.
    """
    who = "jaxmd.choose_engine"
    if platform is None:
        platform = "cpu" if jax.default_backend() == "cpu" else "cuda"
    if platform not in ("cpu", "cuda"):
        raise ValueError(f"{who}: platform is {platform!r}; wanted 'cpu', 'cuda' or None.")
    if accuracy not in ACCURACIES:
        raise ValueError(f"{who}: accuracy is {accuracy!r}; wanted one of {', '.join(ACCURACIES)}.")
    check_limbs(who, limbs)
    for name, shape in (("a_shape", a_shape), ("b_shape", b_shape)):
        integers = isinstance(shape, tuple | list) and all(hasattr(size, "__index__") for size in shape)
        if not integers:
            raise TypeError(f"{who}: {name} is {shape!r}; a shape, a tuple of integers, was wanted.")
        if not shape or min(shape) < 0:
            raise ValueError(f"{who}: {name} is {tuple(shape)}; at least one axis, and no negative size, was wanted.")
    if a_shape[-1] != b_shape[-2 if len(b_shape) > 1 else -1]:
        raise ValueError(f"{who}: shapes are {tuple(a_shape)} and {tuple(b_shape)}; the inner dimensions must agree.")
    m = a_shape[-2] if len(a_shape) > 1 else 1
    n = b_shape[-1] if len(b_shape) > 1 else 1
    try:
        batch = math.prod(jnp.broadcast_shapes(tuple(a_shape[:-2]), tuple(b_shape[:-2])))
    except ValueError:
        raise ValueError(
            f"{who}: shapes are {tuple(a_shape)} and {tuple(b_shape)}; the leading axes must broadcast."
        ) from None
    return choose(m, n, a_shape[-1], limbs, accuracy, platform, batch)


# --- the primitive ---------------------------------------------------------------------------------------------------


_REFUSED = {
    ("direct", "normwise"): (
        "rounds as it sums, so it cannot give the reproducible bits of 'normwise'; take 'int8', 'fp64' or 'auto'"
    ),
    ("float64", "normwise"): "rounds as it sums; take 'int8', 'fp64' or 'auto'",
    ("float64", "exact"): "rounds as it sums; take 'int8', 'direct' or 'auto'",
    ("fp64", "exact"): "leaves out the low orders, so it cannot give accuracy 'exact'; take 'int8', 'direct' or 'auto'",
}


def matmul_limbs(
    a: Sequence[jax.Array],
    b: Sequence[jax.Array],
    *,
    limbs: int,
    engine: str = "auto",
    accuracy: str = "componentwise",
    addend: Sequence[jax.Array] | None = None,
) -> Limbs:
    """A B (+ addend) on limbs: ranks >= 2, batch axes that broadcast; `jaxmd.matmul` documents the rest."""
    if engine not in ENGINES:
        raise ValueError(f"jaxmd.matmul: engine is {engine!r}; must be one of {', '.join(map(repr, ENGINES))}.")
    if accuracy not in ACCURACIES:
        raise ValueError(f"jaxmd.matmul: accuracy is {accuracy!r}; must be one of {', '.join(map(repr, ACCURACIES))}.")
    if engine == "float64" and max(limbs, len(a), len(b)) > 1:
        raise ValueError(
            f"jaxmd.matmul: engine 'float64' multiplies single limbs; a has {len(a)}, b has {len(b)} (64-bit integers "
            f"take 2) and the result {limbs}."
        )
    if (engine, accuracy) in _REFUSED:
        raise ValueError(f"jaxmd.matmul: engine {engine!r} {_REFUSED[engine, accuracy]}.")
    _check_shapes(a[0].shape, b[0].shape)
    extra = tuple(addend) if addend is not None else ()
    batch_a, batch_b = a[0].shape[:-2], b[0].shape[:-2]
    (m, k), n = a[0].shape[-2:], b[0].shape[-1]
    batch = jnp.broadcast_shapes(batch_a, batch_b)
    if extra:
        batch = jnp.broadcast_shapes(batch, extra[0].shape[:-2])
        extra = tuple(jnp.broadcast_to(x, (*batch, m, n)) for x in extra)
    params: dict[str, Any] = {"limbs": limbs, "engine": engine, "accuracy": accuracy}
    if not batch_b and batch_a == batch and batch:  # one B for the whole batch: rows of all members together
        total = math.prod(batch) * m
        rows = [x.reshape(total, k) for x in a]
        c = _bind([tuple(rows), tuple(b), tuple(x.reshape(total, n) for x in extra)], **params)
        return tuple(x.reshape(*batch, m, n) for x in c)
    a = tuple(jnp.broadcast_to(x, (*batch, m, k)) for x in a)
    b = tuple(jnp.broadcast_to(x, (*batch, k, n)) for x in b)
    return _bind([a, b, extra], **params)


def _check_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        raise ValueError(f"jaxmd.matmul: a has shape {a} and b has shape {b}; the inner dimensions must agree.")


def _bind(numbers: Numbers, limbs: int, **params: Any) -> Number:
    """One call of the primitive on the numbers A, B and, if wanted, the addend."""
    return bind(matmul_p, [number for number in numbers if number], limbs, **params)[0]


def _matmul_shape_rule(*avals: Any, counts: tuple[int, ...], limbs: int, **params: Any) -> list[Any]:
    for aval in avals:
        if aval.dtype != jnp.float64:
            raise TypeError(f"jaxmd.matmul: a limb has dtype {aval.dtype}; limbs must be float64.")
    if limbs > 16:
        raise ValueError(f"jaxmd.matmul: limbs is {limbs}; must be 1 to 16.")
    a, b = avals[0], avals[counts[0]]
    _check_shapes(a.shape, b.shape)
    if a.shape[:-2] != b.shape[:-2]:
        raise ValueError(f"jaxmd.matmul: a has shape {a.shape} and b has shape {b.shape}; batch axes must agree.")
    shape = (*a.shape[:-1], b.shape[-1])
    if len(counts) > 2 and avals[-1].shape != shape:
        raise ValueError(f"jaxmd.matmul: addend has shape {avals[-1].shape}; must have the product's, {shape}.")
    if not isinstance(a.shape[-1], int):
        raise ValueError(
            f"jaxmd.matmul: the contracted dimension {a.shape[-1]} is symbolic; it must be a constant, because "
            "the width of the slices depends on it."
        )
    return [a.update(shape=shape, weak_type=False)] * limbs


def _matmul_jvp(numbers: Numbers, tangents: Numbers, **params: Any) -> tuple[Numbers, Numbers]:
    """d(A B + D) = dA B + (A dB + dD)."""
    (a, b, *_), (da, db, *dd) = numbers, tangents
    total = dd[0] if dd else ()
    if db:
        total = _bind([a, db, total], **params)
    if da:
        total = _bind([da, b, total], **params)
    return [_bind(numbers, **params)], [total]


def _matmul_transpose(cotangents: Numbers, numbers: Numbers, **params: Any) -> list[Number | None]:
    (ct,), (a, b, *addend) = cotangents, numbers
    rows = _bind([ct, transposed(b)], **params) if is_linear(a) else None
    columns = _bind([transposed(a), ct], **params) if is_linear(b) else None
    return [rows, columns, *[ct if is_linear(x) else None for x in addend]]


def transposed(x: Number) -> Number:
    return tuple(jnp.swapaxes(limb, -1, -2) for limb in x)


def _matmul_batch(
    args: Sequence[Any], dims: Sequence[int | None], *, counts: tuple[int, ...], limbs: int, **params: Any
) -> tuple[Number, list[int]]:
    """A batch of one operand alone folds into its rows (A) or columns (B); otherwise it becomes a leading axis."""
    size = batch_size(args, dims)
    ends = list(itertools.accumulate(counts, initial=0))
    groups = [(args[i:j], dims[i:j]) for i, j in itertools.pairwise(ends)]
    batched = [any(d is not None for d in ds) for _, ds in groups]
    numbers = [to_front(*group, size) for group in groups]  # [size, ...], repeated where there was no batch
    if batched[0] == batched[1]:
        out = _bind(numbers, limbs, **params)
        return out, [0] * len(out)
    fold = -3 if batched[0] else -2  # the batch axis goes before m of A, or before n of B
    shared = 1 if batched[0] else 0
    folded = [_fold(number, fold) for number in numbers]
    folded[shared] = tuple(groups[shared][0])
    out = _bind(folded, limbs, **params)
    at, own = out[0].ndim + fold + 1, numbers[1 - shared][0].shape[fold + 1]  # own: m or n of one of the batch
    out = tuple(x.reshape(*x.shape[:at], size, own, *x.shape[at + 1 :]) for x in out)
    return out, [at] * len(out)


def _fold(number: Number, axis: int) -> Number:
    """[size, ..., m, n] with the leading axis moved to `axis` (from the end) and merged with the one after it."""
    moved = [jnp.moveaxis(x, 0, axis) for x in number]
    at = moved[0].ndim + axis
    return tuple(x.reshape(*x.shape[:at], x.shape[at] * x.shape[at + 1], *x.shape[at + 2 :]) for x in moved)


matmul_p = define(
    "matmul",
    shape_rule=_matmul_shape_rule,
    lowering={
        platform: mlir.lower_fun(functools.partial(_engines.evaluate, platform=platform), multiple_results=True)
        for platform in ("cpu", "cuda")
    },
    jvp=_matmul_jvp,
    transpose=_matmul_transpose,
    resize=_arith.resize,
)
batching.primitive_batchers[matmul_p] = _matmul_batch
