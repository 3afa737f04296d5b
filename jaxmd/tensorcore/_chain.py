"""Instructions and matrix products: fused steps, one after the other, each rounded and fed to the next as c.

    fused_dot_add   one step                     a, b [..., L], c [...]
    mma             one instruction              a [..., m, k], b [..., k, n], c [..., m, n]
    matmul          a chain of instructions      a [..., m, K], b [..., K, n]; promoted and split as kernels do

All of it is integer arithmetic on bit patterns, so every backend gives the same bits; only float64 needs x64.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._bits import words
from ._specs import Spec, check_spec
from ._steps import add, run, run_exactly

SPLIT_BYTES = 128  # of k: parts of a split product are multiples of so many


def fused_dot_add(a: Any, b: Any, c: Any, spec: Spec) -> jax.Array:
    """One step of an instruction: d = ρ(c + Σ_l a_l b_l), bit for bit.

    Args:
        a, b: bits [..., L] of `spec.a` and `spec.b`; L is `spec.length`, or less (as if padded with zeros).
        c: bits [...] of `spec.c`.

    Returns: bits [...] of `spec.d`. A spec with `c_last` gets the step only, without its addition of c at the end.

    Raises: TypeError for other types (float64 with x64 off among them), ValueError for other shapes.
    """
    who = "jaxmd.tensorcore.fused_dot_add"
    check_spec(who, spec)
    a, b, c = words(a, spec.a, who, "a"), words(b, spec.b, who, "b"), words(c, spec.c, who, "c")
    if a.ndim == 0 or a.shape != b.shape or a.shape[:-1] != c.shape or a.shape[-1] > spec.length:
        raise ValueError(
            f"{who}: a, b and c have shapes {a.shape}, {b.shape} and {c.shape}; wanted [..., L], [..., L] and [...] "
            f"with L <= {spec.length}."
        )
    return _step(a, b, c, spec)


@functools.partial(jax.jit, static_argnums=3)
def _step(a: jax.Array, b: jax.Array, c: jax.Array, spec: Spec) -> jax.Array:
    missing = [(0, 0)] * (a.ndim - 1) + [(0, spec.length - a.shape[-1])]
    a, b = (jnp.pad(x, missing) for x in (a, b))
    one = dataclasses.replace(spec, k=spec.length, order=(tuple(range(spec.length)),), c_last=False)
    return run(a[..., None, :], b[..., :, None], c[..., None, None], one)[..., 0, 0].astype(spec.d.word)


def mma(a: Any, b: Any, c: Any, spec: Spec) -> jax.Array:
    """One instruction, d = a b + c, bit for bit as the hardware computes it.

    Args:
        a, b: bits [..., m, k] and [..., k, n] of `spec.a` and `spec.b`, k = `spec.k`; any m and n.
        c: bits [..., m, n] of `spec.c`.

    Returns: bits [..., m, n] of `spec.d`.

    Accuracy: the bits of the hardware, NaNs and their payload included.

    Raises: TypeError for other types (float64 with x64 off among them), ValueError for other shapes.
    """
    a, b, c = _operands("jaxmd.tensorcore.mma", a, b, c, spec)
    return _run(a, b, c, spec).astype(spec.d.word)


_run = jax.jit(run, static_argnums=3)
_run_exactly = jax.jit(run_exactly, static_argnums=3)


def was_exact(a: Any, b: Any, c: Any, spec: Spec) -> jax.Array:
    """Whether the chain of instructions that multiplies these very operands cuts and rounds nothing off.

    The certificate a posteriori: `is_exact` promises it for every operand of so many bits.

    Args:
        a, b: bits [..., m, K] and [..., K, n], K a multiple of `spec.k`.
        c: bits [..., m, n] that the chain starts from.

    Returns: bool [..., m, n]; True only if every step was exact: no bit of a term below its sum's last, no rounding, no
        overflow, no Inf or NaN. (Losses that happen to cancel count as losses.)
    """
    who = "jaxmd.tensorcore.was_exact"
    a, b, c = _operands(who, a, b, c, spec, chain=True)
    return _run_exactly(a, b, c, spec)[1]


def matmul(
    a: Any, b: Any, spec: Spec, *, promote_every: int | None = None, split_k: int | Sequence[int] = 1
) -> jax.Array:
    """A matrix product as a kernel makes it of one instruction, bit for bit.

    Args:
        a, b: bits [..., m, K] and [..., K, n] of `spec.a` and `spec.b`; K is padded with zeros to whole instructions.
        promote_every: after so many k the accumulator is added to a float32 sum, to nearest, and starts again from zero
            (a multiple of `spec.k`; "two-level accumulation"). None: the chain runs through.
        split_k: in how many parts K is cut, each a chain of its own from zero; the parts are then added in order, to
            nearest. Parts are equal multiples of 128 bytes of k, the last one what remains; or their lengths.

    Returns: bits [..., m, n] of `spec.d`.

    Limits: meant for samples of a large product, a few rows by a few columns. The CPU takes 10^8 to 10^9 products a
        second; elsewhere a step holds arrays of L m n words.

    Raises: TypeError for other types, ValueError for other shapes, parts or intervals.
    """
    who = "jaxmd.tensorcore.matmul"
    check_spec(who, spec)
    a, b = words(a, spec.a, who, "a"), words(b, spec.b, who, "b")
    if a.ndim < 2 or b.ndim < 2 or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"{who}: a has shape {a.shape} and b has shape {b.shape}; leading and inner dimensions must agree."
        )
    if not isinstance(promote_every, int | None):
        raise TypeError(f"{who}: promote_every is {type(promote_every).__name__}; an integer or None was wanted.")
    if promote_every is not None and (promote_every < 1 or promote_every % spec.k):
        raise ValueError(f"{who}: promote_every = {promote_every} came; wanted a multiple of k = {spec.k}.")
    if promote_every is not None and spec.operation != "fused":
        raise ValueError(f"{who}: promote_every came for {spec.instruction}, which no kernel promotes.")
    parts = _parts(who, a.shape[-1], split_k, spec)
    total = None
    for first, last in parts:
        part = _part(a[..., first:last], b[..., first:last, :], spec, promote_every)
        total = part if total is None else _add(total, part, spec)
    assert total is not None
    return total.astype(spec.d.word)


def _parts(who: str, k: int, split_k: int | Sequence[int], spec: Spec) -> list[tuple[int, int]]:
    """The ends of each part."""
    if isinstance(split_k, int):
        if split_k < 1:
            raise ValueError(f"{who}: split_k = {split_k} came; wanted at least 1.")
        grain = SPLIT_BYTES * 8 // spec.a.width
        length = max(1, math.ceil(k / grain / split_k)) * grain
        return [(l, min(l + length, k)) for l in range(0, max(k, 1), length)]
    if not isinstance(split_k, Sequence) or not all(isinstance(x, int) for x in split_k):
        raise TypeError(f"{who}: split_k = {split_k!r} came; wanted an integer or lengths of parts.")
    ends = np.cumsum([0, *split_k]).tolist()
    if ends[-1] != k or min(split_k) < 1:
        raise ValueError(f"{who}: split_k = {tuple(split_k)} came; wanted positive lengths that add up to {k}.")
    return list(itertools.pairwise(ends))


@functools.partial(jax.jit, static_argnums=(2, 3))
def _part(a: jax.Array, b: jax.Array, spec: Spec, promote_every: int | None) -> jax.Array:
    """One chain from zero, words [..., m, n]."""
    interval = a.shape[-1] if promote_every is None else promote_every
    interval = max(-(-interval // spec.k) * spec.k, spec.k)
    blocks = max(-(-a.shape[-1] // interval), 1)
    missing = blocks * interval - a.shape[-1]
    lead = [(0, 0)] * (a.ndim - 2)
    a = jnp.pad(a, [*lead, (0, 0), (0, missing)])
    b = jnp.pad(b, [*lead, (0, missing), (0, 0)])
    zero = jnp.zeros((*a.shape[:-1], b.shape[-1]), a.dtype)
    if promote_every is None:
        return run(a, b, zero, spec)
    # [block, ..., m, interval] and [block, ..., interval, n]: every block is a chain of its own
    a = jnp.moveaxis(a.reshape(*a.shape[:-1], blocks, interval), -2, 0)
    b = jnp.moveaxis(b.reshape(*b.shape[:-2], blocks, interval, b.shape[-1]), -3, 0)
    chunks = run(a, b, jnp.zeros((blocks, *zero.shape), zero.dtype), spec)
    return lax.scan(lambda total, chunk: (add(total, chunk, spec), None), zero, chunks)[0]


_add = jax.jit(add, static_argnums=2)


def _operands(who: str, a: Any, b: Any, c: Any, spec: Spec, chain: bool = False) -> tuple[jax.Array, ...]:
    check_spec(who, spec)
    a, b, c = words(a, spec.a, who, "a"), words(b, spec.b, who, "b"), words(c, spec.c, who, "c")
    fits = a.ndim >= 2 and b.ndim >= 2 and a.shape[:-2] == b.shape[:-2] == c.shape[:-2]
    fits = fits and a.shape[-1] == b.shape[-2] and c.shape[-2:] == (a.shape[-2], b.shape[-1])
    fits = fits and (a.shape[-1] % spec.k == 0 if chain else a.shape[-1] == spec.k)
    if not fits:
        k = f"k {'a multiple of' if chain else '='} {spec.k}"
        raise ValueError(
            f"{who}: a, b and c have shapes {a.shape}, {b.shape} and {c.shape}; wanted [..., m, k], [..., k, n] and "
            f"[..., m, n] with {k}."
        )
    return a, b, c
