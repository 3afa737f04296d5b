"""Operands encoded once for many products, and the primitive that multiplies them.

    prepared   limbs [..., m, k] (or [..., k, n]), their grid, residues int8 [..., G, m, k'], 7-bit magnitudes int8

A prepared operand keeps its limbs: derivatives use them, and so does a product whose magnitudes do not certify the base
level, which then runs as if nothing had been prepared. That level is the one of "normwise", which has more bits than
"componentwise" asks for (`_magnitudes.base`): a factor serves both.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import batching, mlir

from . import _arith, _engines, _magnitudes, _product, _residue_steps, _residues, _slices
from ._matmul import matmul_limbs, transposed
from ._primitive import Number, Numbers, batch_size, bind, define, is_linear, to_front
from ._residues import Plan

Limbs = tuple[jax.Array, ...]
SIDES = ("left", "right")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Prepared:
    """A factor of `jaxmd.matmul` in residues, made by `jaxmd.prepare`; a pytree, batch axes first in every leaf.

    Attributes:
        limbs: the operand itself, normalized, float64 [..., m, k] (side "left") or [..., k, n] ("right").
        exponent: int32 [..., m] or [..., n], the grid of each row or column.
        residues: int8 [..., channels, m or n, k rounded up to 16].
        magnitudes: int8, 7 leading bits on the grid of the first few columns ("left") or rows ("right").
        plan: moduli and word length; they depend on k and on the limbs of the result.
        side: "left" or "right".
        num_limbs: limbs of the products.
    """

    limbs: Limbs
    exponent: jax.Array
    residues: jax.Array
    magnitudes: jax.Array
    plan: Plan = dataclasses.field(metadata={"static": True})
    side: str = dataclasses.field(metadata={"static": True})
    num_limbs: int = dataclasses.field(metadata={"static": True})

    __array_ufunc__ = None  # numpy leaves `@` to us
    product: ClassVar[Callable[[Any, Any], Any]]  # `@` of a layer above, which puts it here

    def __matmul__(self, other: Any) -> Any:
        return Prepared.product(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return Prepared.product(other, self)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.limbs[0].shape

    @property
    def ndim(self) -> int:
        return self.limbs[0].ndim

    def __repr__(self) -> str:
        return (
            f"Prepared(shape={self.shape}, side={self.side!r}, num_limbs={self.num_limbs}, "
            f"channels={self.plan.channels}, bits={self.plan.bits})"
        )


@functools.partial(jax.jit, static_argnums=(1, 2))
def prepare(limbs: Sequence[jax.Array], side: str, num_limbs: int) -> Prepared:
    """`jaxmd.prepare` on limbs of rank >= 2."""
    index = SIDES.index(side)
    x = _arith.renormalize(tuple(limbs), len(limbs))
    k = x[0].shape[-2 if index else -1]
    plan = _residues.plan(k, 53 * num_limbs + 2)
    exponent = _slices.shared_exponent(_slices.exponents(x), -1 - index)
    residues = _residue_steps.encode(x, exponent, jnp.zeros((*x[0].shape[:-2], k), jnp.int32), plan, index)
    residues = jnp.moveaxis(residues, 0, -3)
    settled = _slices.shared_exponent(_slices.settled_exponents(x), -1 - index)
    return Prepared(x, exponent, residues, _magnitudes.magnitudes(x, settled, index), plan, side, num_limbs)


def matmul_prepared(
    a: Prepared | Limbs, b: Prepared | Limbs, *, limbs: int, accuracy: str, addend: Limbs | None = None
) -> Limbs:
    """A B (+ addend) where A, B or both are prepared; batch axes broadcast as in `matmul_limbs`.

    A prepared operand without batch axes stays one: those of the other fold into its rows or columns.
    """
    shape_a, shape_b = (x.shape if isinstance(x, Prepared) else x[0].shape for x in (a, b))
    (m, _), n = shape_a[-2:], shape_b[-1]
    batch = jnp.broadcast_shapes(shape_a[:-2], shape_b[:-2], *([addend[0].shape[:-2]] if addend else []))
    if addend:
        addend = tuple(jnp.broadcast_to(x, (*batch, m, n)) for x in addend)
    total = math.prod(batch)
    if batch and not isinstance(a, Prepared) and not shape_b[:-2]:
        rows = tuple(jnp.broadcast_to(x, (*batch, *x.shape[-2:])).reshape(total * m, x.shape[-1]) for x in a)
        added = tuple(x.reshape(total * m, n) for x in addend) if addend else None
        c = _bind(rows, b, limbs, accuracy, added)
        return tuple(x.reshape(*batch, m, n) for x in c)
    if batch and not isinstance(b, Prepared) and not shape_a[:-2]:
        columns, added = _side_by_side(b, batch), _side_by_side(addend, batch) if addend else None
        c = _bind(a, columns, limbs, accuracy, added)
        return tuple(jnp.moveaxis(x.reshape(m, *batch, n), 0, -2) for x in c)
    return _bind(_broadcast(a, batch), _broadcast(b, batch), limbs, accuracy, addend)


def _side_by_side(x: Limbs, batch: tuple[int, ...]) -> Limbs:
    """[..., k, n] broadcast to the batch -> [k, batch n]."""
    k, n = x[0].shape[-2:]
    full = [jnp.moveaxis(jnp.broadcast_to(limb, (*batch, k, n)), -2, 0) for limb in x]
    return tuple(limb.reshape(k, math.prod(batch) * n) for limb in full)


def _broadcast(x: Prepared | Limbs, batch: tuple[int, ...]) -> Prepared | Limbs:
    if not isinstance(x, Prepared):
        return tuple(jnp.broadcast_to(limb, (*batch, *limb.shape[-2:])) for limb in x)
    return dataclasses.replace(
        x,
        limbs=tuple(jnp.broadcast_to(limb, (*batch, *x.shape[-2:])) for limb in x.limbs),
        exponent=jnp.broadcast_to(x.exponent, (*batch, x.exponent.shape[-1])),
        residues=jnp.broadcast_to(x.residues, (*batch, *x.residues.shape[-3:])),
        magnitudes=jnp.broadcast_to(x.magnitudes, (*batch, *x.magnitudes.shape[-2:])),
    )


# --- the primitive ---------------------------------------------------------------------------------------------------


def _bind(a: Prepared | Limbs, b: Prepared | Limbs, limbs: int, accuracy: str, addend: Limbs | None) -> Limbs:
    """Numbers A, B, then exponent, residues and magnitudes of each prepared one, then the addend."""
    prepared = [x for x in (a, b) if isinstance(x, Prepared)]
    numbers = [x.limbs if isinstance(x, Prepared) else x for x in (a, b)]
    parts = [(part,) for x in prepared for part in (x.exponent, x.residues, x.magnitudes)]
    extra = [addend] if addend else []
    params = {"plan": prepared[0].plan, "sides": tuple(x.side for x in prepared), "accuracy": accuracy}
    return tuple(bind(prepared_matmul_p, [*numbers, *parts, *extra], limbs, **params)[0])


def _operands(numbers: Numbers, limbs: int, plan: Plan, sides: tuple[str, ...]) -> tuple[Any, Any, Limbs | None]:
    """What `_bind` was given, from its numbers."""
    operands: dict[str, Any] = {"left": tuple(numbers[0]), "right": tuple(numbers[1])}
    for i, side in enumerate(sides):
        (exponent,), (residues,), (magnitudes,) = numbers[2 + 3 * i : 5 + 3 * i]
        operands[side] = Prepared(operands[side], exponent, residues, magnitudes, plan, side, limbs)
    addend = numbers[2 + 3 * len(sides) :]
    return operands["left"], operands["right"], tuple(addend[0]) if addend else None


def _evaluate(*args: jax.Array, counts: tuple[int, ...], limbs: int, plan: Plan, sides: Any, accuracy: str) -> Limbs:
    ends = list(itertools.accumulate(counts, initial=0))
    numbers = [args[i:j] for i, j in itertools.pairwise(ends)]
    *operands, addend = _operands(numbers, limbs, plan, sides)
    left, right = (
        x if isinstance(x, Prepared) else prepare(x, side, limbs) for x, side in zip(operands, SIDES, strict=True)
    )
    inner = limbs + 1 if addend else limbs  # one limb more, so that the addend's sum is the only rounding
    a, b = left.limbs, right.limbs

    def multiply(a: Limbs, b: Limbs) -> Limbs:
        left_channels, right_channels = (jnp.moveaxis(x.residues, -3, 0) for x in (left, right))
        residues = _residue_steps.product(left_channels, right_channels, plan)
        return _residue_steps.decode(residues, left.exponent, right.exponent, plan, inner)

    if accuracy == "normwise":
        touched = _engines.touched(a, b).astype(jnp.int8)
        c = _product.exact_entries(a, b, touched, multiply(a, b))
    else:
        least = _magnitudes.least(left.magnitudes, right.magnitudes)
        guarded = functools.partial(_engines.guarded, limbs=limbs, inner=inner, engine="int8")
        c = lax.cond(least >= _magnitudes.certificate(plan, limbs), multiply, guarded, a, b)
    return _arith.renormalize((*c, *addend), limbs) if addend else c


def _shape_rule(*avals: Any, counts: tuple[int, ...], limbs: int, **params: Any) -> list[Any]:
    a, b = avals[0], avals[counts[0]]
    return [a.update(shape=(*a.shape[:-1], b.shape[-1]), weak_type=False)] * limbs


def _jvp(numbers: Numbers, tangents: Numbers, *, limbs: int, **params: Any) -> tuple[Numbers, Numbers]:
    """d(A B + D) = dA B + (A dB + dD); a factor that does not vary is used as prepared."""
    a, b, _ = _operands(numbers, limbs, params["plan"], params["sides"])
    da, db = tangents[:2]
    total: Limbs | None = tuple(tangents[-1]) if len(numbers) > 2 + 3 * len(params["sides"]) else None
    if db:
        total = _once_prepared(a, tuple(db), limbs, params["accuracy"], total)
    if da:
        total = _once_prepared(tuple(da), b, limbs, params["accuracy"], total)
    primal = bind(prepared_matmul_p, numbers, limbs, **params)
    return primal, [total or ()]


def _once_prepared(a: Any, b: Any, limbs: int, accuracy: str, addend: Limbs | None) -> Limbs:
    if isinstance(a, Prepared) or isinstance(b, Prepared):
        return matmul_prepared(a, b, limbs=limbs, accuracy=accuracy, addend=addend or None)
    return matmul_limbs(a, b, limbs=limbs, accuracy=accuracy, addend=addend or None)


def _transpose(cotangents: Numbers, numbers: Numbers, *, limbs: int, sides: Any, **params: Any) -> list[Number | None]:
    """The transposed factor was not prepared: its products run from the limbs."""
    (ct,), (a, b) = cotangents, numbers[:2]
    multiply = functools.partial(matmul_limbs, limbs=limbs, accuracy=params["accuracy"])
    rows = multiply(ct, transposed(b)) if is_linear(a) else None
    columns = multiply(transposed(a), ct) if is_linear(b) else None
    addend = [ct if is_linear(x) else None for x in numbers[2 + 3 * len(sides) :]]
    return [rows, columns, *[None] * (3 * len(sides)), *addend]


def _batch(
    args: Sequence[Any], dims: Sequence[int | None], *, counts: tuple[int, ...], limbs: int, **params: Any
) -> tuple[Limbs, list[int]]:
    """A batched operand gets the axis in front of its batch, with all that belongs to it; others stay as they are."""
    size = batch_size(args, dims)
    ends = list(itertools.accumulate(counts, initial=0))
    owners = [0, 1, *(SIDES.index(side) for side in params["sides"] for _ in range(3)), 2]
    groups = [(args[i:j], dims[i:j], owner) for (i, j), owner in zip(itertools.pairwise(ends), owners, strict=False)]
    batched = {owner for _, where, owner in groups if any(d is not None for d in where)}
    numbers = [to_front(parts, where, size) if owner in batched else tuple(parts) for parts, where, owner in groups]
    a, b, addend = _operands(numbers, limbs, params["plan"], params["sides"])
    out = matmul_prepared(a, b, limbs=limbs, accuracy=params["accuracy"], addend=addend)
    return out, [0] * len(out)


prepared_matmul_p = define(
    "prepared_matmul",
    shape_rule=_shape_rule,
    lowering={None: mlir.lower_fun(_evaluate, multiple_results=True)},
    jvp=_jvp,
    transpose=_transpose,
    resize=_arith.resize,
)
batching.primitive_batchers[prepared_matmul_p] = _batch
