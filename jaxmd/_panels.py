"""Loops over pieces of a product's batch, rows and columns, so that what is copied or encoded beside them stays small.

All pieces but the last have one size and the last overlaps the one before, so that nothing is padded; what is computed
twice is computed alike, or, where a guard level is chosen for each panel, within one bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from . import _ffi, _residue_steps

Limbs = tuple[jax.Array, ...]

SCRATCH = 2**30
"""Bytes of scratch that a product may take even if operands and result are smaller; else as much as they take."""
MOST_SCRATCH = 2**35
"""Bytes beyond which more scratch saves no time: what is encoded twice then is little beside the products."""


def allowed(a: Limbs, b: Limbs, limbs: int) -> int | None:
    """Bytes of scratch that a product of `limbs` limbs may take beside exponents of its rows, columns and terms.

    None where sizes are not known.
    """
    *batch, m, k = a[0].shape
    n = b[0].shape[-1]
    if not all(isinstance(size, int) for size in (*batch, m, n, k)):
        return None
    count = math.prod(batch)
    given = 8 * max(len(a), len(b), limbs) * count * (m * k + k * n + m * n)
    most = min(MOST_SCRATCH, max(SCRATCH, given))
    return most - min(most // 2, 16 * count * (m + n + k))


def by_panels(
    multiply: Callable[[Limbs, Limbs, int | None], Limbs], a: Limbs, b: Limbs, limbs: int, held: int = 0
) -> Limbs:
    """multiply(a, b, scratch) for panels of A and B, as large as copies of both and a few arrays of exponents allow.

    Args:
        multiply: its scratch is what it may take beside those copies, in bytes.
        a, b: float64 [..., m, k] and [..., k, n].
        limbs: of the result.
        held: bytes of what is allowed that something else takes meanwhile.
    """
    most = allowed(a, b, limbs)
    if most is None:
        return multiply(a, b, None)
    most -= held
    *batch, m, k = a[0].shape
    n, count = b[0].shape[-1], math.prod(batch)
    panel, taken = _panel(count, m, n, k, (len(a), len(b), limbs), most)
    scratch = max(most - taken, most // 4)  # a quarter: of a k so long that the least panel takes more
    if panel == (count, m, n):
        return multiply(a, b, scratch)
    x, y = (tuple(z.reshape(count, *z.shape[len(batch) :]) for z in operand) for operand in (a, b))

    def one(z: Any, i: Any, j: Any, c: Limbs) -> Limbs:
        left = tuple(cut(limb, (z, i, 0), (panel[0], panel[1], k)) for limb in x)
        right = tuple(cut(limb, (z, 0, j), (panel[0], k, panel[2])) for limb in y)
        return updated(c, multiply(left, right, scratch), (z, i, j))

    def rows(z: Any, i: Any, c: Limbs) -> Limbs:
        return each(n, panel[2], lambda j, c: one(z, i, j, c), c)

    c = each(count, panel[0], lambda z, c: each(m, panel[1], lambda i, c: rows(z, i, c), c), result(x, y, limbs))
    return tuple(limb.reshape(*batch, m, n) for limb in c)


def _panel(
    count: int, m: int, n: int, k: int, limbs: tuple[int, int, int], most: int, least: int = 64
) -> tuple[tuple[int, int, int], int]:
    """(batch, m, n) of panels that take half of what is allowed, and the bytes that they take.

    That is their limbs, cut out or renormalized, and 16 bytes an entry of the result for flags and exponents of sums:
    the other copy, and exponents of operands, are gone before there are residues.
    """
    sizes = [max(count, 1), m, n]

    def taken() -> int:
        z, rows, columns = sizes
        return 8 * z * ((limbs[0] * rows + limbs[1] * columns) * k + (limbs[2] + 2) * rows * columns)

    while 2 * taken() > most:
        axis = 0 if sizes[0] > 1 else 1 if sizes[1] >= sizes[2] else 2
        if axis > 0 and sizes[axis] <= least:
            break
        sizes[axis] = -(-sizes[axis] // 2)
    return (sizes[0], sizes[1], sizes[2]), taken()


# --- pieces ----------------------------------------------------------------------------------------------------------


def start(index: Any, size: int, total: int) -> Any:
    first = jnp.int32(size) * index
    return first if total % size == 0 else jnp.minimum(first, jnp.int32(total - size))


def each(total: int, size: int, body: Callable[[Any, Limbs], Limbs], c: Limbs) -> Limbs:
    """body(start, c) for pieces that cover [0, total)."""
    if size >= total:
        return body(jnp.int32(0), c)
    return lax.fori_loop(jnp.int32(0), jnp.int32(-(-total // size)), lambda t, c: body(start(t, size, total), c), c)


def cut(x: jax.Array, starts: tuple[Any, ...], sizes: tuple[int, ...]) -> jax.Array:
    return lax.dynamic_slice(x, [jnp.int32(s) for s in starts], sizes)


def updated(c: Limbs, part: Limbs, starts: tuple[Any, ...]) -> Limbs:
    return tuple(lax.dynamic_update_slice(x, y, starts) for x, y in zip(c, part, strict=True))


def result(a: Limbs, b: Limbs, limbs: int) -> Limbs:
    """Limbs [count, m, n] for a loop to fill, which vary as the operands [count, m, k] and [count, k, n] do."""
    shape = (*a[0].shape[:-1], b[0].shape[-1])
    return tuple(_ffi.unify((*_residue_steps.unwritten(shape, limbs), a[0], b[0]))[:limbs])
