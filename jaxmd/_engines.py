"""What a product computes: engines and guard levels.

Contract (componentwise):  |C - A B| <= k u^L |A||B| + u^L |C|,  u = 2^-53, entry by entry.  Every engine computes most
entries fast, knows for which ones its own bound does not reach that, and has exactly those summed in fixed point:

    ESC_ij = e_i + f_j - max_l (exp a_il + exp b_lj)      exponents lost to the shared grid; one (max, +) product

An entry is flagged when ESC exceeds the engine's guard bits, or when Inf or NaN touches it.  Engines "fp64" (slices)
and "int8" (residues) have three guard levels; the level is one scalar for the whole call (or for a panel of it, where
copies of all would be large: `_panels.py`), chosen on the device inside the product's primitive, so that vmap never
turns it into a select over levels.

"int8" asks cheaper questions first (`_magnitudes.py`), which ordinary matrices answer: then nothing else is done, not
even renormalization.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from . import _arith, _ffi, _magnitudes, _panels, _product, _residue_product, _residues, _slices
from ._choice import Accuracy, Engine, choose

Limbs = tuple[jax.Array, ...]
Shifts = tuple[jax.Array, jax.Array]  # of the terms: exponents added to those of A's rows and of B's columns
Level = tuple[int, Callable[..., Limbs]]  # its guard bits (or word length), and the product at that level

GUARD_LEVELS = (4, 28, 60)
"""Guard bits asked of the levels. Benign data need 2 to 3; each further slice costs count more products."""

_EXACT_BITS = (8, 24, 40, 64)
"""Bits beyond 53 L of the words of accuracy "exact"; random normal limbs need 15 to 30."""


def direct_guard(limbs: int) -> int:
    """ESC up to which the engine "direct" keeps its bound (ffi/direct.h); above four limbs any ESC (ffi/window.h)."""
    return 1530 - 53 * limbs if limbs <= 4 else _NONFINITE16


# --- evaluation ------------------------------------------------------------------------------------------------------


def evaluate(
    *args: jax.Array, counts: tuple[int, ...], limbs: int, engine: Engine, accuracy: Accuracy, platform: str
) -> list[jax.Array]:
    """Limbs of A B (+ addend) from the flat limbs of A, B and, if there are three counts, the addend."""
    split = counts[0] + counts[1]
    a, b = args[: counts[0]], args[counts[0] : split]
    addend = args[split:]
    shape = (*a[0].shape[:-1], b[0].shape[-1])
    if any(isinstance(size, int) and size == 0 for size in shape):
        return [jnp.zeros(shape, jnp.float64)] * limbs
    if addend and accuracy == "exact":
        a, b = _bordered(a, b, addend)
        addend = ()
    (m, k), n = a[0].shape[-2:], b[0].shape[-1]
    inner = limbs + 1 if addend else limbs  # one limb more, so that the addend's sum is the only rounding
    if engine == "auto":
        engine = choose(m, n, k, limbs, accuracy, platform, math.prod(a[0].shape[:-2]))
        if engine == "float64" and len(a) + len(b) > 2:  # operands of more limbs than the result
            engine = "direct"
    if k == 0:
        c: Limbs = (jnp.zeros((*a[0].shape[:-1], n), jnp.float64),) * inner
    elif accuracy == "exact":
        c = _panels.by_panels(functools.partial(_exact, limbs=limbs, engine=engine), a, b, limbs)
    elif accuracy == "normwise":
        c = _normwise(a, b, limbs, inner, engine, platform)
    elif engine == "int8":
        c = _certified(a, b, limbs, inner, platform)
    elif engine == "float64":
        c = (_in_float64_on_gpu if platform == "cuda" else _in_float64)(a, b, limbs, inner)
    else:
        c = guarded(_renormalized(a), _renormalized(b), limbs, inner, engine)
    return list(_arith.renormalize((*c, *addend), limbs) if addend else c)


def _renormalized(x: Limbs) -> Limbs:
    return _arith.renormalize(x, len(x)) if len(x) > 1 else x


def _certified(a: Limbs, b: Limbs, limbs: int, inner: int, platform: str) -> Limbs:
    """Engine "int8" at its base level where magnitudes of settled limbs prove that enough, else by the levels."""
    plan, terms = _magnitudes.base(a[0].shape[-1], limbs)
    row, column, certified, shift = _certificate(a, b, terms, _magnitudes.certificate(plan, limbs), platform)
    static = all(isinstance(size, int) for size in (*a[0].shape, *b[0].shape))
    uncertified = nearly_certified if static and platform == "cuda" and _ffi.calls_cuda() else by_levels
    return lax.cond(
        certified,
        functools.partial(_residue_product.matmul, plan=plan, limbs=inner),
        functools.partial(uncertified, limbs=limbs, inner=inner),
        *(a, b, (shift, shift), row, column),
    )


def _certificate(
    a: Limbs, b: Limbs, terms: int, bound: int, platform: str
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Shared exponents of settled limbs, whether products of magnitudes reach the bound, and shifts by nothing."""
    if _has_certificate(a, b, platform):
        return _product.certificate(a, b, terms, bound, platform)
    row = _slices.shared_exponent(_slices.settled_exponents(a), -1)
    column = _slices.shared_exponent(_slices.settled_exponents(b), -2)
    x, y = _magnitudes.magnitudes(a, row, 0, terms), _magnitudes.magnitudes(b, column, 1, terms)
    return row, column, _magnitudes.least(x, y) >= bound, _no_shift(a)


def _has_certificate(a: Limbs, b: Limbs, platform: str) -> bool:
    """Whether a handler serves: on the CPU with sizes that are known."""
    if platform == "cuda":
        return _ffi.calls_cuda()
    return all(isinstance(size, int) for size in (*a[0].shape, *b[0].shape))


def by_levels(
    a: Limbs, b: Limbs, shifts: Shifts, row: jax.Array, column: jax.Array, *, limbs: int, inner: int, held: int = 0
) -> Limbs:
    def multiply(a: Limbs, b: Limbs, scratch: int | None) -> Limbs:
        return guarded(_renormalized(a), _renormalized(b), limbs, inner, "int8", scratch)

    return _panels.by_panels(multiply, a, b, inner, held)


def nearly_certified(
    a: Limbs, b: Limbs, shifts: Shifts, row: jax.Array, column: jax.Array, *, limbs: int, inner: int
) -> Limbs:
    """A few bits more than the base level, and exact sums of the few entries that bfloat16 does not certify."""
    k, sizes = a[0].shape[-1], (*a[0].shape[:-1], b[0].shape[-1])
    plan, most = _residues.plan(k, 53 * limbs + _magnitudes.fewest_bits(k)), max(16, math.prod(sizes) // 4096)
    by_handler = functools.partial(_product.uncertified, least=_magnitudes.least_size(k, plan, limbs), most=most)
    flags, count = lax.platform_dependent(
        *(a, b, row, column),
        cuda=lambda a, b, row, column: by_handler(a[0], b[0], row, column),
        default=functools.partial(_magnitudes.uncertified, plan=plan, limbs=limbs, most=most),
    )

    allowed, held = _panels.allowed(a, b, inner), math.prod(sizes)  # by the flags
    assert allowed is not None  # sizes are known here

    def with_exact_entries(a: Limbs, b: Limbs, shifts: Shifts, row: jax.Array, column: jax.Array) -> Limbs:
        c = _residue_product.matmul(a, b, shifts, row, column, plan=plan, limbs=inner, scratch=allowed - held)
        return _product.exact_entries(a, b, flags, c)

    levels = functools.partial(by_levels, limbs=limbs, inner=inner, held=held)
    return lax.cond(count <= most, with_exact_entries, levels, a, b, shifts, row, column)


def _in_float64(a: Limbs, b: Limbs, limbs: int, inner: int) -> Limbs:
    """The float64 product of XLA for single limbs whose products neither overflow nor get lost, else "direct".

    A term is rounded at most k times, by u each: |error| <= k u |A||B| to first order, in any order of the sum.
    """
    ea, eb = _slices.exponents(a), _slices.exponents(b)
    highest, lowest = jnp.int32(0), jnp.int32(0)
    for x, e in ((a, ea), (b, eb)):
        present = e > _slices.ZERO_EXPONENT
        highest += jnp.max(jnp.where(present, e, 0), initial=0)
        lowest += jnp.min(jnp.where(present, e, 0), initial=0)
        highest += jnp.where(jnp.all(jnp.isfinite(x[0])), 0, 4096)
    fine = (highest + a[0].shape[-1].bit_length() <= 1023) & (lowest >= -900)

    def multiply(a: Limbs, b: Limbs) -> Limbs:
        c = _product.dot(a[0], b[0])
        return (jnp.where(c == 0, 0.0, c), *(jnp.zeros_like(c),) * (inner - 1))  # a sum of -0 is -0 in a dot

    return lax.cond(fine, multiply, lambda a, b: guarded(a, b, limbs, inner, "direct"), a, b)


def _in_float64_on_gpu(a: Limbs, b: Limbs, limbs: int, inner: int) -> Limbs:
    """`_in_float64` without a branch, which a GPU waits for: what overflowed or lost a term is summed again."""
    c = _product.dot(a[0], b[0])
    return _product.float64_repair(a[0], b[0], (c, *(jnp.zeros_like(c),) * (inner - 1)))


def guarded(a: Limbs, b: Limbs, limbs: int, inner: int, engine: Engine, scratch: int | None = None) -> Limbs:
    """The componentwise contract for any finite operands: a level that serves most entries, exact sums for the rest.

    scratch: bytes for residues of engine "int8".
    """
    (ea, ea16), (eb, eb16) = _entry_exponents(a), _entry_exponents(b)
    span = _product.exponent_span(ea16, eb16).astype(jnp.int32)
    shift = _no_shift(a) if engine == "direct" else _balance(ea, eb)
    shifts = -shift, shift
    row = _slices.shared_exponent(ea + shift[..., None, :], -1)
    column = _slices.shared_exponent(eb - shift[..., :, None], -2)
    lost = row[..., :, None] + column[..., None, :] - span
    needed = jnp.where(span < -4000, 0, jnp.where(span > 4000, 2 * _NONFINITE16, lost))
    if engine == "direct":
        guard: Any = -1 if inner > 4 and _is_small(needed.shape) else direct_guard(inner)
        c = _product.direct_matmul(a, b, row, column, inner)
    else:
        levels = _levels(engine, a[0].shape[-1], limbs, inner, scratch)
        level = lowest_level([needed > g for g, _ in levels])
        c = lax.switch(level, [f for _, f in levels], a, b, shifts, row, column)
        guard = jnp.asarray([g for g, _ in levels], jnp.int32)[level]
    return _product.exact_entries(a, b, (needed > guard).astype(jnp.int8), c)


def _levels(engine: Engine, k: int, limbs: int, inner: int, scratch: int | None) -> list[Level]:
    """(guard bits, product) of each level, the lowest first."""
    if engine == "fp64":
        slices = sorted({_slices.plan(limbs, k, guard) for guard in GUARD_LEVELS}, key=lambda p: p.count)
        return [(p.guard, functools.partial(_sliced, plan=p, limbs=inner)) for p in slices]
    words = (53 * limbs + 2, *(53 * limbs + 3 + guard for guard in GUARD_LEVELS[1:]))
    plans = [_residues.plan(k, bits) for bits in words]
    multiply = functools.partial(_residue_product.matmul, limbs=inner, scratch=scratch)
    return [(p.guard(limbs), functools.partial(multiply, plan=p)) for p in plans]


def _normwise(a: Limbs, b: Limbs, limbs: int, inner: int, engine: Engine, platform: str) -> Limbs:
    """One level, whatever the data; Inf and NaN by the exact sum, which knows their rules.

    One pass gives the grids of limbs that are settled. Others, which few products have, are renormalized, and a
    single limb, which is not settled where it is Inf or NaN, needs no branch for that.
    """
    k = a[0].shape[-1]
    plan = _residues.plan(k, 53 * limbs + 2)
    in_residues = functools.partial(_residue_product.matmul, plan=plan, limbs=inner)

    def renormalized(a: Limbs, b: Limbs, scratch: int | None = None) -> Limbs:
        a, b = _renormalized(a), _renormalized(b)
        row = _slices.shared_exponent(_slices.exponents(a), -1)
        column = _slices.shared_exponent(_slices.exponents(b), -2)
        shifts = (_no_shift(a),) * 2
        if engine == "fp64":
            c = _sliced(a, b, shifts, row, column, plan=_slices.plan(limbs, k, 0), limbs=inner)
        else:
            c = in_residues(a, b, shifts, row, column, scratch=scratch)
        return _product.exact_entries(a, b, touched(a, b).astype(jnp.int8), c)

    if engine == "fp64":
        return renormalized(a, b)
    if not _has_certificate(a, b, platform):
        return _panels.by_panels(renormalized, a, b, inner)
    row, column, settled, shift = _product.certificate(a, b, 0, 0, platform)
    if len(a) + len(b) == 2:
        c = in_residues(a, b, (shift, shift), *(jnp.where(e == _slices.UNSETTLED, 0, e) for e in (row, column)))
        if platform == "cuda":
            return _product.exact_special(a[0], b[0], row, column, settled, c)
        special = (row == _slices.UNSETTLED)[..., :, None] | (column == _slices.UNSETTLED)[..., None, :]
        return _product.exact_entries(a, b, special.astype(jnp.int8), c)
    return lax.cond(
        settled,
        in_residues,
        lambda a, b, *_: _panels.by_panels(renormalized, a, b, inner),
        *(a, b, (shift, shift), row, column),
    )


def _sliced(
    a: Limbs, b: Limbs, shifts: Shifts, row: jax.Array, column: jax.Array, *, plan: _slices.SlicePlan, limbs: int
) -> Limbs:
    """One level of engine "fp64": slice, multiply the triangle, collect."""
    scale_a = row[..., :, None] + shifts[0][..., None, :]
    scale_b = column[..., None, :] + shifts[1][..., :, None]
    digits_a = _slices.balanced_digits(a, scale_a, plan.width, plan.count)
    digits_b = _slices.balanced_digits(b, scale_b, plan.width, plan.count)
    orders = _product.sliced_matmul(digits_a, digits_b)
    return _slices.collect(orders, row + 1, column + 1, plan.width, limbs)


# --- accuracy "exact" ------------------------------------------------------------------------------------------------


def _exact(a: Limbs, b: Limbs, scratch: int | None, limbs: int, engine: Engine) -> Limbs:
    """Every entry rounded once. Residues hold a row or column whose bits fit a word; the rest is summed one by one."""
    a, b = _renormalized(a), _renormalized(b)
    shape = (*a[0].shape[:-1], b[0].shape[-1])
    if engine != "int8":
        zeros = (jnp.zeros(shape, jnp.float64),) * limbs
        return _product.exact_entries(a, b, jnp.ones(shape, jnp.int8), zeros)
    (row, low_row), (column, low_column) = _extent(a, -1), _extent(b, -2)
    plans = [_residues.plan(a[0].shape[-1], 53 * limbs + extra) for extra in _EXACT_BITS]
    rows, columns = row - low_row, column - low_column  # bits that a word must have
    wide = [(rows > p.bits)[..., :, None] | (columns > p.bits)[..., None, :] for p in plans]
    level = lowest_level(wide)
    branches = [functools.partial(_residue_product.matmul, plan=p, limbs=limbs, scratch=scratch) for p in plans]
    c = lax.switch(level, branches, a, b, (_no_shift(a),) * 2, row, column)
    # sums below the last bit of a subnormal number, unless even the last limb is a normal number
    tiny = (low_row[..., :, None] + low_column[..., None, :] < -1074) & ~(jnp.abs(c[-1]) >= 2.0**-1022)
    flags = lax.select_n(level, *wide) | tiny | touched(a, b)
    return _product.exact_entries(a, b, flags.astype(jnp.int8), c)


def _extent(x: Limbs, axis: int) -> tuple[jax.Array, jax.Array]:
    """int32 (e, q) along an axis: every |x| < 2^e, and every x is a multiple of 2^q; (0, 0) where all are zero."""
    e = _slices.shared_exponent(_slices.exponents(x), axis)
    q = jnp.min(_slices.lowest_bit(x), axis=axis, initial=-_slices.ZERO_EXPONENT)
    return e, jnp.where(q == -_slices.ZERO_EXPONENT, 0, q)


def _bordered(a: Limbs, b: Limbs, addend: Limbs) -> tuple[Limbs, Limbs]:
    """[A D] and [B; I]: a sum to be rounded once is one longer product."""
    count = max(len(a), len(addend))
    zero, n = jnp.zeros_like(addend[0]), b[0].shape[-1]
    a = (*a, *(jnp.zeros_like(a[0]),) * (count - len(a)))
    addend = (*_arith.renormalize(addend, len(addend)), *(zero,) * (count - len(addend)))
    left = tuple(jnp.concatenate(pair, axis=-1) for pair in zip(a, addend, strict=True))
    unit = jnp.broadcast_to(jnp.eye(n, dtype=jnp.float64), (*b[0].shape[:-2], n, n))
    right = tuple(jnp.concatenate([x, unit if i == 0 else 0 * unit], axis=-2) for i, x in enumerate(b))
    return left, right


# --- grids, levels -------------------------------------------------------------------------------------

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


def _no_shift(a: Limbs) -> jax.Array:
    return jnp.zeros((*a[0].shape[:-2], a[0].shape[-1]), jnp.int32)


def lowest_level(flagged: Sequence[jax.Array]) -> jax.Array:
    """Lowest level that leaves at most 1 entry in 256 (or 16 in all) to the exact sum; else the highest."""
    level = jnp.int32(len(flagged) - 1)
    for i, flags in reversed(list(enumerate(flagged[:-1]))):
        level = jnp.where(_few(flags, 256), jnp.int32(i), level)
    return level


def _few(flags: jax.Array, one_in: int) -> jax.Array:
    """Whether at most one flag in so many is set, or 16 in all."""
    total = jnp.sum(jnp.ones_like(flags), dtype=jnp.int64)
    return jnp.sum(flags, dtype=jnp.int64) <= jnp.maximum(jnp.int64(16), total // one_in)


def _is_small(shape: tuple[Any, ...]) -> bool:
    """Sixteen results or fewer: in more than four limbs the exact sum costs no more than a rounded one."""
    return all(isinstance(size, int) for size in shape) and math.prod(shape) <= 16


def touched(a: Limbs, b: Limbs) -> jax.Array:
    """bool [..., m, n]: entries whose row of A or column of B holds Inf or NaN."""
    rows = ~jnp.all(jnp.isfinite(a[0]), axis=-1)
    columns = ~jnp.all(jnp.isfinite(b[0]), axis=-2)
    return rows[..., :, None] | columns[..., None, :]
