"""One product in residues at one word length, in pieces where its residues would not fit beside the operands.

    G channels of an m x k and a k x n operand take G (m + n) k bytes, the residues of the result about G m n more.

The scratch stays below `budget` bytes: the batch is cut first, then rows (or columns, whichever are more), whose pieces
are encoded one after another while the residues of the other operand stay; then the other operand; and last k, in
blocks whose residues are added mod p.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from . import _ffi, _residue_steps
from ._panels import MOST_SCRATCH, SCRATCH, cut, each, operand_bytes, result, start, updated
from ._residues import Plan

Limbs = tuple[jax.Array, ...]


@dataclasses.dataclass(frozen=True)
class Tile:
    """Piece sizes along batch, m, n and k."""

    batch: int
    m: int
    n: int
    k: int

    def scratch(self, plan: Plan) -> int:
        """Bytes of the residues of one piece."""
        return self.batch * (plan.channels * (self.m + self.n) * self.k + plan.residue_bytes * self.m * self.n)


def budget(batch: int, m: int, n: int, k: int, limbs: int) -> int:
    """Bytes of scratch allowed: 8/7 of those of operands and result, but at least SCRATCH and at most MOST_SCRATCH.

    A seventh more than they take: with less, hd at n = 2048 cuts both operands and takes 1.3 times as long.
    """
    return min(MOST_SCRATCH, max(SCRATCH, operand_bytes(batch, m, n, k, limbs) * 8 // 7))


def tile(batch: int, m: int, n: int, k: int, plan: Plan, limbs: int) -> Tile:
    """The largest pieces, halved in the order of this file's header, whose scratch stays in the budget."""
    allowed = budget(batch, m, n, k, limbs)
    piece = Tile(max(batch, 1), m, n, k)

    def halve(name: str, least: int, when: Callable[[Tile], bool] = lambda piece: True) -> None:
        nonlocal piece
        while piece.scratch(plan) > allowed and getattr(piece, name) > least and when(piece):
            size = -(-getattr(piece, name) // 2)
            piece = dataclasses.replace(piece, **{name: max(least, -(-size // least) * least)})

    long, short = ("m", "n") if m >= n else ("n", "m")
    halve("batch", 1)
    halve(long, 256)
    halve(short, 512)
    halve("k", 4096)
    return piece


def matmul(
    a: Limbs,
    b: Limbs,
    shifts: tuple[jax.Array, jax.Array],
    row: jax.Array,
    column: jax.Array,
    *,
    plan: Plan,
    limbs: int,
) -> Limbs:
    """A B within the bound of `_residues.Plan.guard`; rounded once where words of w bits hold A and B exactly.

    Args:
        a, b: float64 [..., m, k] and [..., k, n], normalized.
        shifts, row, column: int32 (s and t, [..., k]), [..., m], [..., n] with |a_il| < 2^(row_i + s_l) and
            |b_lj| < 2^(column_j + t_l), s + t = 0.
    """
    *batch, m, k = a[0].shape
    n = b[0].shape[-1]
    sizes = (*batch, m, n)
    if all(isinstance(size, int) for size in sizes):
        count = math.prod(batch)
        piece = tile(count, m, n, k, plan, max(len(a), len(b), limbs))
        if piece != Tile(max(count, 1), m, n, k):

            def flat(x: jax.Array) -> jax.Array:
                return x.reshape(count, *x.shape[len(batch) :])

            x, y = tuple(map(flat, a)), tuple(map(flat, b))
            grid = (flat(shifts[0]), flat(shifts[1])), flat(row), flat(column)
            out = _by_pieces(x, y, *grid, piece=piece, plan=plan, limbs=limbs)
            return tuple(x.reshape(*batch, m, n) for x in out)
    return _residue_steps.multiply(a, b, shifts, row, column, plan=plan, limbs=limbs)


def _by_pieces(
    a: Limbs,
    b: Limbs,
    shifts: tuple[jax.Array, jax.Array],
    row: jax.Array,
    column: jax.Array,
    *,
    piece: Tile,
    plan: Plan,
    limbs: int,
) -> Limbs:
    """`matmul` for one batch axis. Loops over batch, the shorter of m and n, the longer, and k, from the outside in."""
    count, m, k = a[0].shape
    n = b[0].shape[-1]
    rows_inside = m >= n
    blocked = piece.k < k

    def left(z: Any, i: Any, l: Any = 0) -> jax.Array:
        limbs_a = tuple(cut(x, (z, i, l), (piece.batch, piece.m, piece.k)) for x in a)
        exponent = cut(row, (z, i), (piece.batch, piece.m))
        return _residue_steps.encode(limbs_a, exponent, cut(shifts[0], (z, l), (piece.batch, piece.k)), plan, 0)

    def right(z: Any, j: Any, l: Any = 0) -> jax.Array:
        limbs_b = tuple(cut(x, (z, l, j), (piece.batch, piece.k, piece.n)) for x in b)
        exponent = cut(column, (z, j), (piece.batch, piece.n))
        return _residue_steps.encode(limbs_b, exponent, cut(shifts[1], (z, l), (piece.batch, piece.k)), plan, 1)

    def residues(z: Any, i: Any, j: Any, kept: jax.Array | None) -> jax.Array:
        if kept is not None:
            return _residue_steps.product(
                left(z, i) if rows_inside else kept, kept if rows_inside else right(z, j), plan
            )

        def add_block(start: Any, total: jax.Array, first: Any = 0) -> jax.Array:
            # the last block starts where the one before ended, so its overlap is cleared: zeros add nothing
            x, y = left(z, i, start), right(z, j, start)
            x = jnp.where(jnp.arange(x.shape[-1], dtype=jnp.int32) >= first - start, x, jnp.int8(0))
            return _residue_steps.add(total, _residue_steps.product(x, y, plan), plan)

        zero = jnp.zeros((plan.residue_bytes, piece.batch, piece.m, piece.n), jnp.int8)
        step = lambda t, total: add_block(start(t, piece.k, k), total, t * piece.k)
        return lax.fori_loop(jnp.int32(0), jnp.int32(-(-k // piece.k)), step, _ffi.unify((zero, a[0], b[0]))[0])

    def one(z: Any, i: Any, j: Any, kept: jax.Array | None, c: Limbs) -> Limbs:
        e, f = cut(row, (z, i), (piece.batch, piece.m)), cut(column, (z, j), (piece.batch, piece.n))
        part = _residue_steps.decode(residues(z, i, j, kept), e, f, plan, limbs)
        return updated(c, part, (z, i, j))

    def outer(z: Any, c: Limbs) -> Limbs:
        def middle(j: Any, c: Limbs) -> Limbs:
            kept = None if blocked else right(z, j) if rows_inside else left(z, j)
            if rows_inside:
                return each(m, piece.m, lambda i, c: one(z, i, j, kept, c), c)
            return each(n, piece.n, lambda i, c: one(z, j, i, kept, c), c)

        return each(n, piece.n, middle, c) if rows_inside else each(m, piece.m, middle, c)

    return each(count, piece.batch, outer, result(a, b, limbs))
