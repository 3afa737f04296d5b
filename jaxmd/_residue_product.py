"""One product in residues at one word length, in pieces where its residues would not fit beside the operands.

    G channels of an m x k and a k x n operand take G (m + n) k bytes, the residues of the result about G m n more.

The scratch stays below what is allowed: the batch is cut first, then rows (or columns, whichever are more), whose
pieces are encoded one after another while the residues of the other operand stay; then both; and last k, in blocks
whose residues are added mod p.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from . import _ffi, _residue_steps
from ._panels import allowed, cut, each, result, start, updated
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

    def encoding(self, plan: Plan, whole: Tile, limbs: tuple[int, int]) -> int:
        """Bytes of residues and of limbs while an operand is encoded beside the other's residues.

        XLA copies limbs where those of a piece do not lie together, and may do that early.
        """
        blocked, batched = self.k < whole.k, self.batch > 1
        copied_a = blocked or (batched and self.m < whole.m)
        copied_b = self.n < whole.n or (batched and blocked)
        a = (8 * limbs[0] * copied_a + plan.channels) * self.m
        b = (8 * limbs[1] * copied_b + plan.channels) * self.n
        return self.batch * self.k * (a + b)


def tile(batch: int, m: int, n: int, k: int, plan: Plan, limbs: tuple[int, int], scratch: int) -> Tile:
    """The fewest pieces, in the order of this file's header, that take at most `scratch` bytes.

    limbs: of A and B.
    """
    whole = Tile(max(batch, 1), m, n, k)
    fits = lambda piece: max(piece.scratch(plan), piece.encoding(plan, whole, limbs)) <= scratch
    piece = whole
    for size in _even_sizes(piece.batch, 1):
        piece = Tile(size, m, n, k)
        if fits(piece):
            return piece
    rows_inside = m >= n
    long, short = (m, n) if rows_inside else (n, m)
    for outer in _even_sizes(short, 512):
        for inner in _even_sizes(long, 256):
            rows, columns = (inner, outer) if rows_inside else (outer, inner)
            piece = Tile(piece.batch, rows, columns, k)
            if fits(piece):
                return piece
    for size in _even_sizes(k, 4096):
        piece = dataclasses.replace(piece, k=size)
        if fits(piece):
            break
    return piece


def _even_sizes(total: int, least: int) -> Iterator[int]:
    """Sizes of 1, 2, 3, ... about equal pieces, from the second on multiples of `least`, down to it."""
    yield total
    size = total
    while size > least:
        count = -(-total // size) + 1
        size = max(1, min((size - 1) // least, -(-total // (count * least)))) * least
        yield size


def _each(total: int, size: int, body: Callable[[Any, int, Limbs], Limbs], c: Limbs) -> Limbs:
    """body(start, size, c) for pieces that cover [0, total): the first of them shorter, or two that overlap.

    XLA encodes what stands outside a loop as early as it can, and holds those residues beside others. A piece before
    the loop is done when the loop begins; one after it, or two without a loop, would not be.
    """
    count, rest = divmod(total, size)
    if rest == 0 or count == 1:
        return each(total, size, lambda i, c: body(i, size, c), c)
    c = body(jnp.int32(0), rest, c)
    return lax.fori_loop(jnp.int32(0), jnp.int32(count), lambda t, c: body(rest + jnp.int32(size) * t, size, c), c)


def matmul(
    a: Limbs,
    b: Limbs,
    shifts: tuple[jax.Array, jax.Array],
    row: jax.Array,
    column: jax.Array,
    *,
    plan: Plan,
    limbs: int,
    scratch: int | None = None,
) -> Limbs:
    """A B within the bound of `_residues.Plan.guard`; rounded once where words of w bits hold A and B exactly.

    Args:
        a, b: float64 [..., m, k] and [..., k, n], normalized.
        shifts, row, column: int32 (s and t, [..., k]), [..., m], [..., n] with |a_il| < 2^(row_i + s_l) and
            |b_lj| < 2^(column_j + t_l), s + t = 0.
        scratch: bytes that residues may take; None: all that is allowed.
    """
    scratch = allowed(a, b, limbs) if scratch is None else scratch
    *batch, m, k = a[0].shape
    n = b[0].shape[-1]
    if scratch is not None:
        count = math.prod(batch)
        piece = tile(count, m, n, k, plan, (len(a), len(b)), scratch)
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

    def left(z: Any, i: Any, size: Tile, l: Any = 0) -> jax.Array:
        limbs_a = tuple(cut(x, (z, i, l), (size.batch, size.m, size.k)) for x in a)
        exponent = cut(row, (z, i), (size.batch, size.m))
        return _residue_steps.encode(limbs_a, exponent, cut(shifts[0], (z, l), (size.batch, size.k)), plan, 0)

    def right(z: Any, j: Any, size: Tile, l: Any = 0) -> jax.Array:
        limbs_b = tuple(cut(x, (z, l, j), (size.batch, size.k, size.n)) for x in b)
        exponent = cut(column, (z, j), (size.batch, size.n))
        return _residue_steps.encode(limbs_b, exponent, cut(shifts[1], (z, l), (size.batch, size.k)), plan, 1)

    def residues(z: Any, i: Any, j: Any, size: Tile, kept: jax.Array | None) -> jax.Array:
        if kept is not None:
            x, y = (left(z, i, size), kept) if rows_inside else (kept, right(z, j, size))
            return _residue_steps.product(x, y, plan)

        def add_block(t: Any, total: jax.Array) -> jax.Array:
            # the last block starts where the one before ended, so its overlap is cleared: zeros add nothing
            first = start(t, size.k, k)
            x, y = left(z, i, size, first), right(z, j, size, first)
            x = jnp.where(jnp.arange(x.shape[-1], dtype=jnp.int32) >= t * size.k - first, x, jnp.int8(0))
            return _residue_steps.add(total, _residue_steps.product(x, y, plan), plan)

        zero = jnp.zeros((plan.residue_bytes, size.batch, size.m, size.n), jnp.int8)
        return lax.fori_loop(jnp.int32(0), jnp.int32(-(-k // size.k)), add_block, _ffi.unify((zero, a[0], b[0]))[0])

    def one(z: Any, i: Any, j: Any, size: Tile, kept: jax.Array | None, c: Limbs) -> Limbs:
        e, f = cut(row, (z, i), (size.batch, size.m)), cut(column, (z, j), (size.batch, size.n))
        part = _residue_steps.decode(residues(z, i, j, size, kept), e, f, plan, limbs)
        return updated(c, part, (z, i, j))

    def of_columns(z: Any, j: Any, size: Tile, c: Limbs) -> Limbs:
        kept = None if blocked else right(z, j, size)
        return _each(m, piece.m, lambda i, rows, c: one(z, i, j, dataclasses.replace(size, m=rows), kept, c), c)

    def of_rows(z: Any, i: Any, size: Tile, c: Limbs) -> Limbs:
        kept = None if blocked else left(z, i, size)
        return _each(n, piece.n, lambda j, columns, c: one(z, i, j, dataclasses.replace(size, n=columns), kept, c), c)

    def of_batch(z: Any, batch: int, c: Limbs) -> Limbs:
        size = dataclasses.replace(piece, batch=batch)
        if rows_inside:
            return _each(n, piece.n, lambda j, x, c: of_columns(z, j, dataclasses.replace(size, n=x), c), c)
        return _each(m, piece.m, lambda i, x, c: of_rows(z, i, dataclasses.replace(size, m=x), c), c)

    return _each(count, piece.batch, of_batch, result(a, b, limbs))
