"""The product primitive: limbs of A, B (and an addend) in, limbs of A B (+ addend) out.

    a   L_a arrays [..., m, k]      b   L_b arrays [..., k, n]      addend, c   arrays [..., m, n]

Contract (componentwise):  |C - A B| <= k u^L |A||B| + u^L |C|,  u = 2^-53, entry by entry.  Every engine computes most
entries fast, knows for which ones its own bound does not reach that, and has exactly those summed in fixed point:

    ESC_ij = e_i + f_j - max_l (exp a_il + exp b_lj)      exponents lost to the shared grid; one (max, +) product

An entry is flagged when ESC exceeds the engine's guard bits, or when Inf or NaN touches it.  Engine "fp64" has three
guard levels; the level is one scalar for the whole call, chosen on the device inside this primitive, so that vmap
never turns it into a select over levels.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import batching, mlir

from . import _arith, _product, _slices
from ._primitive import Number, Numbers, bind, define, is_linear

Engine = Literal["auto", "fp64", "direct"]
Accuracy = Literal["componentwise", "normwise"]
ENGINES = ("auto", "fp64", "direct")
ACCURACIES = ("componentwise", "normwise")
Limbs = tuple[jax.Array, ...]

# --- plans (Python integers only) ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Plan:
    """Slices of one product: width bits each, count of them, and the guard bits that the contract leaves."""

    width: int
    count: int
    guard: int


GUARD_LEVELS = (4, 28, 60)
"""Guard bits asked of the levels. Benign data need 2 to 3; each further slice costs count more products."""


def slice_width(k: int, count: int) -> int:
    """Largest width with k count 2^(2 (width - 1)) <= 2^53: every order is then one exact sum of float64."""
    return ((2**53 // max(1, k * count)).bit_length() - 1) // 2 + 1


@functools.cache
def plan(limbs: int, k: int, guard: int) -> Plan:
    """The fewest slices whose error is inside the contract for entries with ESC <= guard.

    Rounding to the grid costs 3 k 2^(-width count), the orders g >= count that the triangle drops
    (count - 1) k 2^(-width count) (1 + 2^-width ...), both times 2^(e_i + f_j) <= 2^(ESC + 2) (|A||B|)_ij.  So
    (count + 3) 2^(ESC + 2 - width count) <= 2^(-53 limbs) is enough; the final rounding pays for u^L |C|.
    """
    count = 1
    while True:
        width = slice_width(k, count)
        if width < 2:
            raise ValueError(f"jaxmd.matmul: k = {k} is too long for exact sums of {limbs}-limb slices in float64.")
        spare = width * count - 53 * limbs - 2 - (count + 2).bit_length()
        if spare >= guard:
            return Plan(width, count, spare)
        count += 1


def direct_guard(limbs: int) -> int:
    """ESC up to which the engine "direct" keeps its bound (ffi/direct.h); above four limbs any ESC (ffi/window.h)."""
    return 1530 - 53 * limbs if limbs <= 4 else _NONFINITE16


_SLICES_PAY = {"cpu": {1: 24, 2: 30, 3: 27, 4: 23, 5: 18}, "cuda": {1: 27, 2: 28, 3: 24, 4: 24, 5: 24}}
"""log2(m k n) from which engine "fp64" is the faster one, by limbs (5: five and more); `examples/bench/engines.py`."""


def _choose(m: Any, n: Any, k: int, limbs: int, platform: str) -> Engine:
    """Rule of engine "auto": slices pay where both result dimensions feed a matrix unit and the product is large."""
    if not all(isinstance(size, int) for size in (m, n)):
        return "fp64"  # symbolic dimensions are exported for the large case
    large = m * n * k >= 2 ** _SLICES_PAY[platform][min(limbs, 5)]
    return "fp64" if large and min(m, n, k) >= 32 else "direct"


def choose_engine(
    a_shape: Sequence[int],
    b_shape: Sequence[int],
    limbs: int = 2,
    *,
    accuracy: Accuracy = "componentwise",
    platform: str | None = None,
) -> Engine:
    """Name of the engine that `matmul(..., engine="auto")` runs for these shapes.

    A pure function of shapes, limbs, accuracy and platform, never of a timing.

    Args:
        a_shape, b_shape: shapes of the operands, (..., m, k) and (..., k, n); 1-D as in `matmul`.
        limbs: limb count of the result.
        accuracy: as in `matmul`; "normwise" always takes an engine with exact sums.
        platform: "cpu" or "cuda"; None means JAX's default backend.

    Returns: "fp64" or "direct".
    """
    if platform is None:
        platform = "cpu" if jax.default_backend() == "cpu" else "cuda"
    if accuracy == "normwise":
        return "fp64"
    m = a_shape[-2] if len(a_shape) > 1 else 1
    n = b_shape[-1] if len(b_shape) > 1 else 1
    return _choose(m, n, a_shape[-1], limbs, platform)


# --- evaluation ------------------------------------------------------------------------------------------------------

_ZERO16, _NONFINITE16 = -8192, 16000
"""int16 stand-ins: with any exponent in [-1074, 1024] a zero stays below -4000 and a nonfinite above 4000."""


def _entry_exponents(x: Limbs) -> tuple[jax.Array, jax.Array]:
    """(int32 exponents, int16 for the span product) of normalized limbs."""
    e = _slices.exponents(x)
    finite = jnp.isfinite(x[0])
    e16 = jnp.where(e == _slices.ZERO_EXPONENT, jnp.where(finite, _ZERO16, _NONFINITE16), e)
    return e, e16.astype(jnp.int16)


def _balance(ea: jax.Array, eb: jax.Array) -> jax.Array:
    """Exponents d_l, int32 [..., k]: columns of A times 2^d_l and rows of B times 2^-d_l have equal maxima."""
    column = jnp.max(ea, axis=-2, initial=2 * _slices.ZERO_EXPONENT)
    row = jnp.max(eb, axis=-1, initial=2 * _slices.ZERO_EXPONENT)
    present = jnp.minimum(column, row) > _slices.ZERO_EXPONENT
    return jnp.where(present, lax.div(row - column, jnp.int32(2)), jnp.int32(0))


def _sliced(
    a: Limbs, b: Limbs, shift: jax.Array, row: jax.Array, column: jax.Array, *, plan: Plan, limbs: int
) -> Limbs:
    """One level of engine "fp64": slice, multiply the triangle, collect."""
    scale_a = row[..., :, None] - shift[..., None, :]
    scale_b = column[..., None, :] + shift[..., :, None]
    digits_a = _slices.balanced_digits(a, scale_a, plan.width, plan.count)
    digits_b = _slices.balanced_digits(b, scale_b, plan.width, plan.count)
    orders = _product.sliced_matmul(digits_a, digits_b)
    return _slices.collect(orders, row + 1, column + 1, plan.width, limbs)


def _level(needed: jax.Array, plans: Sequence[Plan]) -> jax.Array:
    """Lowest level that leaves at most 1 entry in 256 (or 16 in all) to the exact sum; else the highest."""
    total = jnp.sum(jnp.ones_like(needed), dtype=jnp.int64)
    few = [_few(jnp.sum(needed > p.guard, dtype=jnp.int64), total) for p in plans[:-1]]
    level = jnp.int32(len(plans) - 1)
    for i, ok in reversed(list(enumerate(few))):
        level = jnp.where(ok, jnp.int32(i), level)
    return level


def _few(flagged: jax.Array, total: jax.Array) -> jax.Array:
    return flagged <= jnp.maximum(jnp.int64(16), total // 256)


def _evaluate(
    *args: jax.Array, counts: tuple[int, ...], limbs: int, engine: Engine, accuracy: Accuracy, platform: str
) -> list[jax.Array]:
    split = counts[0] + counts[1]
    a = _arith.renormalize(args[: counts[0]], counts[0])
    b = _arith.renormalize(args[counts[0] : split], counts[1])
    addend = args[split:]
    k = a[0].shape[-1]
    inner = limbs + 1 if addend else limbs  # one limb more, so that the addend's sum is the only rounding
    if engine == "auto":
        m, n = a[0].shape[-2], b[0].shape[-1]
        engine = "fp64" if accuracy == "normwise" else _choose(m, n, k, limbs, platform)
    if k == 0:
        shape = (*a[0].shape[:-1], b[0].shape[-1])
        c: Limbs = (jnp.zeros(shape, jnp.float64),) * inner
    else:
        c = _product_limbs(a, b, limbs, inner, engine, accuracy)
    return list(_arith.renormalize((*c, *addend), limbs) if addend else c)


def _product_limbs(a: Limbs, b: Limbs, limbs: int, inner: int, engine: Engine, accuracy: Accuracy) -> Limbs:
    k = a[0].shape[-1]
    (ea, ea16), (eb, eb16) = _entry_exponents(a), _entry_exponents(b)
    if accuracy == "normwise":
        needed = jnp.where(_touched(a, b), jnp.int32(2 * _NONFINITE16), jnp.int32(0))
    else:
        span = _product.exponent_span(ea16, eb16).astype(jnp.int32)
    balanced = engine == "fp64" and accuracy == "componentwise"
    shift = _balance(ea, eb) if balanced else jnp.zeros((*ea.shape[:-2], k), jnp.int32)
    row = _slices.shared_exponent(ea + shift[..., None, :], -1)
    column = _slices.shared_exponent(eb - shift[..., :, None], -2)
    if accuracy == "componentwise":
        lost = row[..., :, None] + column[..., None, :] - span
        needed = jnp.where(span < -4000, 0, jnp.where(span > 4000, 2 * _NONFINITE16, lost))
    if engine == "direct":
        guard: Any = -1 if inner > 4 and _is_small(needed.shape) else direct_guard(inner)
        c = _product.direct_matmul(a, b, row, column, inner)
    else:
        guards = (0,) if accuracy == "normwise" else GUARD_LEVELS
        plans = [plan(limbs, k, g) for g in guards]
        plans = sorted(set(plans), key=lambda p: p.count)
        branches = [functools.partial(_sliced, plan=p, limbs=inner) for p in plans]
        level = _level(needed, plans)
        c = lax.switch(level, branches, a, b, shift, row, column)
        guard = jnp.asarray([p.guard for p in plans], jnp.int32)[level]
    flags = (needed > guard).astype(jnp.int8)
    return _product.exact_entries(a, b, flags, c)


def _is_small(shape: tuple[Any, ...]) -> bool:
    """Sixteen results or fewer: in more than four limbs the exact sum costs no more than a rounded one."""
    return all(isinstance(size, int) for size in shape) and math.prod(shape) <= 16


def _touched(a: Limbs, b: Limbs) -> jax.Array:
    """bool [..., m, n]: entries whose row of A or column of B holds Inf or NaN."""
    rows = ~jnp.all(jnp.isfinite(a[0]), axis=-1)
    columns = ~jnp.all(jnp.isfinite(b[0]), axis=-2)
    return rows[..., :, None] | columns[..., None, :]


# --- the primitive ---------------------------------------------------------------------------------------------------


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
    if engine == "direct" and accuracy == "normwise":
        raise ValueError(
            "jaxmd.matmul: engine 'direct' rounds as it sums, so it cannot give the reproducible bits of "
            "accuracy 'normwise'; take engine 'fp64' or 'auto'."
        )
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
    rows = _bind([ct, _transposed(b)], **params) if is_linear(a) else None
    columns = _bind([_transposed(a), ct], **params) if is_linear(b) else None
    return [rows, columns, *[ct if is_linear(x) else None for x in addend]]


def _transposed(x: Number) -> Number:
    return tuple(jnp.swapaxes(limb, -1, -2) for limb in x)


def _matmul_batch(
    args: Sequence[Any], dims: Sequence[int | None], *, counts: tuple[int, ...], limbs: int, **params: Any
) -> tuple[Number, list[int]]:
    """A batch of one operand alone folds into its rows (A) or columns (B); otherwise it becomes a leading axis."""
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    ends = list(itertools.accumulate(counts, initial=0))
    groups = [(args[i:j], dims[i:j]) for i, j in itertools.pairwise(ends)]
    batched = [any(d is not None for d in ds) for _, ds in groups]
    numbers = [_to_front(*group, size) for group in groups]  # [size, ...], repeated where there was no batch
    if batched[0] == batched[1]:
        out = _bind(numbers, limbs, **params)
        return out, [0] * len(out)
    fold = -3 if batched[0] else -2  # the batch axis goes before m of A, or before n of B
    shared = 1 if batched[0] else 0
    folded = [_fold(number, fold) for number in numbers]
    folded[shared] = tuple(groups[shared][0])
    out = _bind(folded, limbs, **params)
    at = out[0].ndim + fold + 1
    out = tuple(x.reshape(*x.shape[:at], size, x.shape[at] // size if size else 0, *x.shape[at + 1 :]) for x in out)
    return out, [at] * len(out)


def _to_front(limbs: Sequence[Any], dims: Sequence[int | None], size: int) -> Number:
    return tuple(
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(limbs, dims, strict=True)
    )


def _fold(number: Number, axis: int) -> Number:
    """[size, ..., m, n] with the leading axis moved to `axis` (from the end) and merged with the one after it."""
    moved = [jnp.moveaxis(x, 0, axis) for x in number]
    at = moved[0].ndim + axis
    return tuple(x.reshape(*x.shape[:at], x.shape[at] * x.shape[at + 1], *x.shape[at + 2 :]) for x in moved)


matmul_p = define(
    "matmul",
    shape_rule=_matmul_shape_rule,
    lowering={
        platform: mlir.lower_fun(functools.partial(_evaluate, platform=platform), multiple_results=True)
        for platform in ("cpu", "cuda")
    },
    jvp=_matmul_jvp,
    transpose=_matmul_transpose,
    resize=_arith.resize,
)
batching.primitive_batchers[matmul_p] = _matmul_batch
