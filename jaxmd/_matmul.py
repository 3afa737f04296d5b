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
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from . import _arith, _ffi, _product, _slices

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


@functools.lru_cache(maxsize=None)
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
    """ESC up to which no needed bit of a scaled term falls below 2^-1022 in the engine "direct"."""
    return 1000 - 53 * (limbs + 1)


def _choose(m: Any, n: Any, k: int, limbs: int, platform: str) -> Engine:
    """Rule of engine "auto". Slices pay where both result dimensions are long enough to feed a matrix unit."""
    shortest = 32 if platform == "cpu" else 64
    try:
        long = m >= shortest and n >= shortest and k >= shortest
    except Exception as error:  # a symbolic dimension cannot be compared: take the engine for large shapes
        if "InconclusiveDimensionOperation" not in type(error).__name__:
            raise
        long = True
    return "fp64" if long else "direct"


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
    total = jnp.sum(jnp.ones_like(needed))
    few = [_few(jnp.sum((needed > p.guard).astype(jnp.int32)), total) for p in plans[:-1]]
    level = jnp.int32(len(plans) - 1)
    for i, ok in reversed(list(enumerate(few))):
        level = jnp.where(ok, jnp.int32(i), level)
    return level


def _few(flagged: jax.Array, total: jax.Array) -> jax.Array:
    return flagged <= jnp.maximum(jnp.int32(16), total // 256)


def _evaluate(
    *args: jax.Array, lhs_limbs: int, rhs_limbs: int, limbs: int, engine: Engine, accuracy: Accuracy, platform: str
) -> list[jax.Array]:
    a = _arith.renormalize(args[:lhs_limbs], lhs_limbs)
    b = _arith.renormalize(args[lhs_limbs : lhs_limbs + rhs_limbs], rhs_limbs)
    addend = args[lhs_limbs + rhs_limbs :]
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
    shift = _balance(ea, eb) if balanced else jnp.zeros_like(ea[..., 0, :])
    row = _slices.shared_exponent(ea + shift[..., None, :], -1)
    column = _slices.shared_exponent(eb - shift[..., :, None], -2)
    if accuracy == "componentwise":
        lost = row[..., :, None] + column[..., None, :] - span
        needed = jnp.where(span < -4000, 0, jnp.where(span > 4000, 2 * _NONFINITE16, lost))
    if engine == "direct":
        guard: Any = direct_guard(inner)
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
    engine: Engine = "auto",
    accuracy: Accuracy = "componentwise",
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
    params = {"limbs": limbs, "engine": engine, "accuracy": accuracy}
    if not batch_b and batch_a == batch and batch:  # one B for the whole batch: rows of all members together
        rows = [x.reshape(-1, k) for x in a]
        c = _bind(rows, b, tuple(x.reshape(-1, n) for x in extra), **params)
        return tuple(x.reshape(*batch, m, n) for x in c)
    a = [jnp.broadcast_to(x, (*batch, m, k)) for x in a]
    b = [jnp.broadcast_to(x, (*batch, k, n)) for x in b]
    return _bind(a, b, extra, **params)


def _check_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        raise ValueError(f"jaxmd.matmul: a has shape {a} and b has shape {b}; the inner dimensions must agree.")


def _bind(a: Sequence[jax.Array], b: Sequence[jax.Array], addend: Sequence[jax.Array], **params: Any) -> Limbs:
    operands = _arith.unify_manual_axes(*a, *b, *addend)
    return tuple(matmul_p.bind(*operands, lhs_limbs=len(a), rhs_limbs=len(b), **params))


def _matmul_shape_rule(*args: Any, lhs_limbs: int, rhs_limbs: int, limbs: int, **params: Any) -> list[Any]:
    _ffi.require_x64("jaxmd.matmul")
    a, b, addend = args[0], args[lhs_limbs], args[lhs_limbs + rhs_limbs :]
    for x in args:
        if x.dtype != jnp.float64:
            raise TypeError(f"jaxmd.matmul: a limb has dtype {x.dtype}; limbs must be float64.")
    if not 1 <= limbs <= 16:
        raise ValueError(f"jaxmd.matmul: limbs is {limbs}; must be 1 to 16.")
    _check_shapes(a.shape, b.shape)
    if a.shape[:-2] != b.shape[:-2]:
        raise ValueError(f"jaxmd.matmul: a has shape {a.shape} and b has shape {b.shape}; batch axes must agree.")
    shape = (*a.shape[:-1], b.shape[-1])
    if addend and addend[0].shape != shape:
        raise ValueError(f"jaxmd.matmul: addend has shape {addend[0].shape}; must have the product's, {shape}.")
    if not isinstance(a.shape[-1], int):
        raise ValueError(
            f"jaxmd.matmul: the contracted dimension {a.shape[-1]} is symbolic; it must be a constant, because "
            "the width of the slices depends on it."
        )
    return [a.update(shape=shape)] * limbs


def _matmul_batch(
    args: Sequence[jax.Array], dims: Sequence[int | None], *, lhs_limbs: int, rhs_limbs: int, **params: Any
) -> tuple[Limbs, list[int]]:
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    split = lhs_limbs + rhs_limbs
    groups = [(args[:lhs_limbs], dims[:lhs_limbs]), (args[lhs_limbs:split], dims[lhs_limbs:split])]
    a, b = (_to_front(x, d, size) if any(i is not None for i in d) else None for x, d in groups)
    addend = _to_front(args[split:], dims[split:], size)
    if b is None and a is not None:  # fold the batch into the rows of A
        b = list(groups[1][0])
        rows = [_merge(jnp.moveaxis(x, 0, -3), -3) for x in a]
        c = _bind(rows, b, [_merge(jnp.moveaxis(x, 0, -3), -3) for x in addend], **params)
        out = [x.reshape(*x.shape[:-2], size, -1, x.shape[-1]) for x in c]
        return tuple(out), [out[0].ndim - 3] * len(out)
    if a is None and b is not None:  # fold the batch into the columns of B
        a = list(groups[0][0])
        columns = [_merge(jnp.moveaxis(x, 0, -2), -2) for x in b]
        c = _bind(a, columns, [_merge(jnp.moveaxis(x, 0, -2), -2) for x in addend], **params)
        out = [x.reshape(*x.shape[:-1], size, -1) for x in c]
        return tuple(out), [out[0].ndim - 2] * len(out)
    if a is None or b is None:  # only the addend is batched
        a, b = (list(x) if y is None else y for (x, _), y in zip(groups, (a, b), strict=True))
        a, b = ([jnp.broadcast_to(x, (size, *x.shape)) for x in y] for y in (a, b))
    c = _bind(a, b, addend, **params)
    return c, [0] * len(c)


def _to_front(limbs: Sequence[jax.Array], dims: Sequence[int | None], size: int) -> list[jax.Array]:
    return [
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(limbs, dims, strict=True)
    ]


def _merge(x: jax.Array, axis: int) -> jax.Array:
    """Axes axis and axis + 1 (both negative) as one."""
    shape = list(x.shape)
    at = x.ndim + axis
    return x.reshape(*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])


def _matmul_jvp(
    primals: Sequence[jax.Array], tangents: Sequence[Any], *, lhs_limbs: int, rhs_limbs: int, **params: Any
) -> tuple[Limbs, Any]:
    """d(A B + D) = dA B + (A dB + dD), all multiple doubles; a group of tangents is one number."""
    split = lhs_limbs + rhs_limbs
    a, b, addend = primals[:lhs_limbs], primals[lhs_limbs:split], primals[split:]
    da, db, dd = (_tangent(t) for t in (tangents[:lhs_limbs], tangents[lhs_limbs:split], tangents[split:]))
    out = _bind(a, b, addend, **params)
    t: Limbs | None = tuple(dd) if dd is not None else None
    if db is not None:
        t = _bind(a, db, t or (), **params)
    if da is not None:
        t = _bind(da, b, t or (), **params)
    if t is None:
        return out, [ad.Zero.from_primal_value(x) for x in out]
    return out, list(_resize(t, len(out)))


def _tangent(ts: Sequence[Any]) -> list[jax.Array] | None:
    if all(type(t) is ad.Zero for t in ts):
        return None
    return [ad.instantiate_zeros(t) for t in ts]


def _resize(x: Sequence[jax.Array], limbs: int) -> Limbs:
    """x with exactly `limbs` limbs: padded with zeros or rounded."""
    if len(x) < limbs:
        return (*x, *[jnp.zeros_like(x[0])] * (limbs - len(x)))
    return tuple(x) if len(x) == limbs else _arith.renormalize(tuple(x), limbs)


def _matmul_transpose(
    cts: Sequence[Any], *args: Any, lhs_limbs: int, rhs_limbs: int, limbs: int, **params: Any
) -> list[Any]:
    split = lhs_limbs + rhs_limbs
    a, b, addend = args[:lhs_limbs], args[lhs_limbs:split], args[split:]
    ct = _tangent(cts)
    out: list[Any] = [None] * len(args)
    linear_a, linear_b = (any(ad.is_undefined_primal(x) for x in g) for g in (a, b))
    groups = [(0, a, linear_a), (lhs_limbs, b, linear_b), (split, addend, any(map(ad.is_undefined_primal, addend)))]
    for start, group, linear in groups:
        if not linear:
            continue
        if ct is None:
            value: Sequence[Any] = [ad.Zero(x.aval) for x in group]
        elif start == 0:
            value = _bind(ct, _transposed(b), (), limbs=len(group), **params)
        elif start == lhs_limbs:
            value = _bind(_transposed(a), ct, (), limbs=len(group), **params)
        else:
            value = _resize(ct, len(group))
        out[start : start + len(group)] = value
    return out


def _transposed(x: Sequence[jax.Array]) -> list[jax.Array]:
    return [jnp.swapaxes(v, -1, -2) for v in x]


matmul_p = Primitive("jaxmd_matmul")
matmul_p.multiple_results = True
matmul_p.def_impl(
    jax.jit(
        lambda *args, **params: matmul_p.bind(*args, **params),
        static_argnames=("lhs_limbs", "rhs_limbs", "limbs", "engine", "accuracy"),
    )
)
matmul_p.def_abstract_eval(_matmul_shape_rule)
for _platform in ("cpu", "cuda"):
    mlir.register_lowering(
        matmul_p,
        mlir.lower_fun(functools.partial(_evaluate, platform=_platform), multiple_results=True),
        platform=_platform,
    )
batching.primitive_batchers[matmul_p] = _matmul_batch
ad.primitive_jvps[matmul_p] = _matmul_jvp
ad.primitive_transposes[matmul_p] = _matmul_transpose
