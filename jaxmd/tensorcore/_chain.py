"""Instructions and matrix products: fused steps, one after the other, each rounded and fed to the next as c.

    fused_dot_add   one step                     a, b [..., L], c [...]
    mma             one instruction              a [..., m, k], b [..., k, n], c [..., m, n]
    matmul          a chain of instructions      a [..., m, K], b [..., K, n]; promoted and split as kernels do

All of it is integer arithmetic on bit patterns, so every backend gives the same bits; only float64 needs x64.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._bits import Decoded, Format, decode, words
from ._fma import fma_step
from ._fused import add_nearest, fused_step, lower_zeros
from ._specs import ROUNDINGS, Spec

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
    a, b, c = words(a, spec.a, who, "a"), words(b, spec.b, who, "b"), words(c, spec.c, who, "c")
    if a.ndim == 0 or a.shape != b.shape or a.shape[:-1] != c.shape or a.shape[-1] > spec.length:
        raise ValueError(
            f"{who}: a, b and c have shapes {a.shape}, {b.shape} and {c.shape}; wanted [..., L], [..., L] and [...] "
            f"with L <= {spec.length}."
        )
    return _narrow(_step(a, b, c, spec)[0], spec)


@functools.partial(jax.jit, static_argnums=3)
def _step(a: jax.Array, b: jax.Array, c: jax.Array, spec: Spec) -> tuple[jax.Array, jax.Array]:
    return _chain(jnp.moveaxis(a, -1, 0), jnp.moveaxis(b, -1, 0), c, spec, [tuple(range(a.shape[-1]))])


def mma(a: Any, b: Any, c: Any, spec: Spec) -> jax.Array:
    """One instruction, d = a b + c, bit for bit as the hardware computes it.

    Args:
        a, b: bits [..., m, k] and [..., k, n] of `spec.a` and `spec.b`, k = `spec.k`; any m and n.
        c: bits [..., m, n] of `spec.c`.

    Returns: bits [..., m, n] of `spec.d`.

    Accuracy: the bits of the hardware, NaNs included (for float64 their payload is not documented).

    Raises: TypeError for other types (float64 with x64 off among them), ValueError for other shapes.
    """
    a, b, c = _operands("jaxmd.tensorcore.mma", a, b, c, spec)
    return _narrow(_mma(a, b, c, spec)[0], spec)


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
    return _exact_chain(a, b, c, spec)


@functools.partial(jax.jit, static_argnums=3)
def _exact_chain(a: jax.Array, b: jax.Array, c: jax.Array, spec: Spec) -> jax.Array:
    def instruction(carry: tuple[jax.Array, jax.Array], operands: Any) -> tuple[tuple[jax.Array, jax.Array], None]:
        d, here = _mma(*operands, carry[0], spec)
        return (d, carry[1] & here), None

    return lax.scan(instruction, (c, jnp.ones(c.shape, bool)), _instructions(a, b, spec))[0][1]


def _instructions(a: jax.Array, b: jax.Array, spec: Spec) -> tuple[jax.Array, jax.Array]:
    """a [instruction, ..., m, k] and b [instruction, ..., k, n] from [..., m, K] and [..., K, n]."""
    a = jnp.moveaxis(a.reshape(*a.shape[:-1], -1, spec.k), -2, 0)
    return a, jnp.moveaxis(b.reshape(*b.shape[:-2], -1, spec.k, b.shape[-1]), -3, 0)


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

    Raises: TypeError for other types, ValueError for other shapes, parts or intervals.
    """
    who = "jaxmd.tensorcore.matmul"
    a, b = words(a, spec.a, who, "a"), words(b, spec.b, who, "b")
    if a.ndim < 2 or b.ndim < 2 or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"{who}: a has shape {a.shape} and b has shape {b.shape}; leading and inner dimensions must agree."
        )
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
    return _narrow(total, spec)


def _parts(who: str, k: int, split_k: int | Sequence[int], spec: Spec) -> list[tuple[int, int]]:
    """The ends of each part."""
    if isinstance(split_k, int):
        if split_k < 1:
            raise ValueError(f"{who}: split_k = {split_k} came; wanted at least 1.")
        grain = SPLIT_BYTES * 8 // spec.a.width
        length = max(1, math.ceil(k / grain / split_k)) * grain
        return [(l, min(l + length, k)) for l in range(0, max(k, 1), length)]
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
    a, b = _instructions(a, b, spec)
    steps = interval // spec.k

    def instruction(carry: tuple[jax.Array, jax.Array], operands: Any) -> tuple[tuple[jax.Array, jax.Array], None]:
        total, chunk = carry
        x, y, number = operands
        chunk = _mma(x, y, chunk, spec)[0]
        if promote_every is None:
            return (total, chunk), None
        done = number % steps == steps - 1
        return lax.cond(done, lambda: (_add(total, chunk, spec), zero), lambda: (total, chunk)), None

    numbers = jnp.arange(a.shape[0], dtype=np.int32)
    (total, chunk), _ = lax.scan(instruction, (zero, zero), (a, b, numbers))
    return chunk if promote_every is None else total


@functools.partial(jax.jit, static_argnums=2)
def _add(x: jax.Array, y: jax.Array, spec: Spec) -> jax.Array:
    """x + y outside the tensor core, in the output's format."""
    if spec.operation == "integer":
        return x + y
    if spec.operation == "fma":
        f = spec.d
        one = decode(jnp.full(y.shape, 1023 << 52, y.dtype), f)
        return fma_step(decode(x, f), one, decode(y, f))[0]
    r = ROUNDINGS["RNE-FP16" if spec.d.name == "f16" else "RNE-FP32"]
    return add_nearest(decode(x, spec.d), decode(y, spec.d), r)


def _operands(who: str, a: Any, b: Any, c: Any, spec: Spec, chain: bool = False) -> tuple[jax.Array, ...]:
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


def _narrow(x: jax.Array, spec: Spec) -> jax.Array:
    return x.astype(spec.d.word)


@functools.partial(jax.jit, static_argnums=3)
def _mma(a: jax.Array, b: jax.Array, c: jax.Array, spec: Spec) -> tuple[jax.Array, jax.Array]:
    """Words of one instruction, and whether every step was exact."""
    a = jnp.moveaxis(a, -1, 0)[..., :, None]  # [k, ..., m, 1]
    b = jnp.moveaxis(b, -2, 0)[..., None, :]  # [k, ..., 1, n]
    if not spec.c_last:
        return _chain(a, b, c, spec, spec.order)
    d, exact = _chain(a, b, jnp.zeros_like(c), spec, spec.order)
    total = _add(d, c, spec)
    # RN(d + c) is exact where taking either back leaves the other; that one direction errs is enough to say no
    back = _add(total, c ^ jnp.uint32(1 << (spec.c.width - 1)), spec) == d
    forth = _add(total, d ^ jnp.uint32(1 << (spec.d.width - 1)), spec) == c
    return total, exact & back & forth


def _chain(
    a: jax.Array, b: jax.Array, c: jax.Array, spec: Spec, order: Sequence[tuple[int, ...]]
) -> tuple[jax.Array, jax.Array]:
    """Steps on words a and b [k, ...] that broadcast to c's shape."""
    if spec.operation == "integer":
        return _integers(a, b, c, spec)
    x, y = _decoded(a, spec.a), _decoded(b, spec.b)
    exact = jnp.ones(c.shape, bool)
    if spec.operation == "fma":
        return lax.scan(lambda carry, factors: (_multiply_add(*carry, *factors, spec), None), (c, exact), (x, y))[0]
    assert spec.fraction_bits is not None and spec.zero_exponent is not None
    formats, r = (spec.a, spec.b, spec.c), ROUNDINGS[spec.rounding]
    for step in order:
        z = lower_zeros(decode(c, spec.c))
        c, here = fused_step(_take(x, step), _take(y, step), z, formats, spec.fraction_bits, spec.zero_exponent, r)
        exact = exact & here
    return c, exact


def _multiply_add(c: jax.Array, exact: jax.Array, x: Decoded, y: Decoded, spec: Spec) -> tuple[jax.Array, jax.Array]:
    c, here = fma_step(x, y, decode(c, spec.c))
    return c, exact & here


def _take(x: Decoded, step: tuple[int, ...]) -> Decoded:
    """The factors of one step."""
    if step == tuple(range(step[0], step[0] + len(step))):
        return x.map(lambda v: v[step[0] : step[0] + len(step)])
    return x.map(lambda v: v[np.array(step)])


def _decoded(x: jax.Array, f: Format) -> Decoded:
    """Decoded once for all outputs, not again in each."""
    return Decoded(*lax.optimization_barrier(tuple(lower_zeros(decode(x, f)))))


def _integers(a: jax.Array, b: jax.Array, c: jax.Array, spec: Spec) -> tuple[jax.Array, jax.Array]:
    """Exact sums of products of bytes, modulo 2^32 or clamped."""
    a, b = (_signed(x, f) for x, f in ((a, spec.a), (b, spec.b)))
    products = jnp.sum(a * b, axis=0, dtype=np.int32)
    start = lax.bitcast_convert_type(c, np.int32)
    total = start + products
    over = (start ^ total) & (products ^ total) < 0  # both terms of the sign that the sum has not
    exact = ~over
    if spec.rounding == "clamp":
        total = jnp.where(over, jnp.where(start < 0, jnp.int32(-(2**31)), jnp.int32(2**31 - 1)), total)
    return lax.bitcast_convert_type(total, np.uint32), exact


def _signed(x: jax.Array, f: Format) -> jax.Array:
    y = x.astype(np.int32)
    return jnp.where(y >= 128, y - 256, y) if f.signed else y
