"""Chains of steps on words: one primitive for fused steps, compiled on the CPU and in JAX elsewhere, and its kin.

    run            a [..., m, K], b [..., K, n], c [..., m, n] -> d [..., m, n], K a multiple of the instruction's k
    run_exactly    the same with bool [..., m, n], whether every step was exact; in JAX everywhere

Both give the same bits on every backend.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from .. import _ffi
from .._primitive import batch_size, to_front
from ._bits import FORMATS, Decoded, Format, decode
from ._fma import fma_step
from ._fused import add_nearest, fused_step, lower_zeros
from ._specs import ROUNDINGS, Spec


def run(a: jax.Array, b: jax.Array, c: jax.Array, spec: Spec) -> jax.Array:
    """The chain of instructions, c first."""
    if spec.operation != "fused":
        return run_exactly(a, b, c, spec)[0]
    a, b, spec = _as_the_unit_gets_them(a, b, spec)
    if not spec.c_last:
        return fused_chain_p.bind(*_ffi.unify((a, b, c)), spec=spec)
    x, y = _instructions(a, b, spec)
    zero = jnp.zeros((x.shape[0], *c.shape), c.dtype)
    places = np.array([l for step in spec.order for l in step])
    products = fused_chain_p.bind(*_ffi.unify((x[..., places], y[..., places, :], zero)), spec=spec)
    return lax.scan(lambda total, d: (add(d, total, spec), None), c, products)[0]


def run_exactly(a: jax.Array, b: jax.Array, c: jax.Array, spec: Spec) -> tuple[jax.Array, jax.Array]:
    """The chain, and whether nothing was cut or rounded off on the way."""
    a, b, spec = _as_the_unit_gets_them(a, b, spec)

    def instruction(carry: tuple[jax.Array, jax.Array], factors: Any) -> tuple[tuple[jax.Array, jax.Array], None]:
        x, y = factors
        d, here = _instruction(x, y, carry[0], spec)
        return (d, carry[1] & here), None

    return lax.scan(instruction, (c, jnp.ones_like(c, bool)), _instructions(a, b, spec))[0]


def add(x: jax.Array, y: jax.Array, spec: Spec) -> jax.Array:
    """x + y outside the tensor core, in the output's format, to nearest; of two NaNs of float64 y's (a guess)."""
    if spec.operation == "integer":
        return x + y
    if spec.operation == "fma":
        return fma_step(x, jnp.full_like(y, 1023 << 52), y)[0]
    r = ROUNDINGS["RNE-FP16" if spec.d.name == "f16" else "RNE-FP32"]
    return add_nearest(decode(x, spec.d), decode(y, spec.d), r)


def _as_the_unit_gets_them(a: jax.Array, b: jax.Array, spec: Spec) -> tuple[jax.Array, jax.Array, Spec]:
    """Words of a and b, widened to f16 where the instruction does so, and the spec of those."""
    if not spec.widened:
        return a, b, spec
    a, b = (
        jnp.asarray(_halves(f)).at[x].get(mode="promise_in_bounds") for x, f in ((a, spec.a), (b, spec.b))
    )  # 8-bit words
    return a, b, dataclasses.replace(spec, a=FORMATS["f16"], b=FORMATS["f16"], widened=False)


@functools.cache
def _halves(f: Format) -> np.ndarray:
    """uint32 [256], the f16 word of every word of an eight-bit format: all its values are f16's."""
    return np.arange(256, dtype=np.uint8).view(f.dtype).astype(np.float16).view(np.uint16).astype(np.uint32)


def _instructions(a: jax.Array, b: jax.Array, spec: Spec) -> tuple[jax.Array, jax.Array]:
    """a [instruction, ..., m, k] and b [instruction, ..., k, n] from [..., m, K] and [..., K, n]."""
    count = a.shape[-1] // spec.k
    a = jnp.moveaxis(a.reshape(*a.shape[:-1], count, spec.k), -2, 0)
    return a, jnp.moveaxis(b.reshape(*b.shape[:-2], count, spec.k, b.shape[-1]), -3, 0)


# --- one instruction in JAX ------------------------------------------------------------------------------------------


def _instruction(a: jax.Array, b: jax.Array, c: jax.Array, spec: Spec) -> tuple[jax.Array, jax.Array]:
    a = jnp.moveaxis(a, -1, 0)[..., :, None]  # [k, ..., m, 1]
    b = jnp.moveaxis(b, -2, 0)[..., None, :]  # [k, ..., 1, n]
    if spec.operation == "integer":
        return _integers(a, b, c, spec)
    exact = jnp.ones_like(c, bool)
    if spec.operation == "fma":
        return lax.scan(lambda carry, factors: (_multiply_add(*carry, *factors), None), (c, exact), (a, b))[0]
    if not spec.c_last:
        return _fused_steps(a, b, c, spec)
    places = np.array([l for step in spec.order for l in step])
    d, exact = _fused_steps(a[places], b[places], jnp.zeros_like(c), spec)
    total = add(d, c, spec)
    # RN(d + c) is exact where taking away either leaves the other: taking away the larger is exact.
    sign = jnp.uint32(1 << (spec.d.width - 1))
    return total, exact & (add(total, c ^ sign, spec) == d) & (add(total, d ^ sign, spec) == c)


def _fused_steps(a: jax.Array, b: jax.Array, c: jax.Array, spec: Spec) -> tuple[jax.Array, jax.Array]:
    """Steps of L products on words [k, ..., m, 1] and [k, ..., 1, n]."""
    assert spec.fraction_bits is not None and spec.zero_exponent is not None
    formats, r, f, zero = (spec.a, spec.b, spec.c), ROUNDINGS[spec.rounding], spec.fraction_bits, spec.zero_exponent
    steps = a.shape[0] // spec.length
    x, y = (
        v.map(lambda p: p.reshape(steps, spec.length, *p.shape[1:])) for v in (_decoded(a, spec.a), _decoded(b, spec.b))
    )

    def step(carry: tuple[jax.Array, jax.Array], factors: Any) -> tuple[tuple[jax.Array, jax.Array], None]:
        left, right = factors
        d, here = fused_step(left, right, lower_zeros(decode(carry[0], spec.c)), formats, f, zero, r)
        return (d, carry[1] & here), None

    return lax.scan(step, (c, jnp.ones_like(c, bool)), (x, y))[0]


def _multiply_add(c: jax.Array, exact: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    c, here = fma_step(x, y, c)
    return c, exact & here


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


# --- the primitive: fused steps over all of k, L neighbours a step ---------------------------------------------------


def _fused_chain_shape_rule(a: Any, b: Any, c: Any, *, spec: Spec) -> Any:
    assert a.shape[:-1] == c.shape[:-1] and b.shape[-1] == c.shape[-1] and a.shape[-1] == b.shape[-2]
    assert a.shape[-1] % spec.length == 0
    return c


def _fused_chain_in_jax(a: jax.Array, b: jax.Array, c: jax.Array, *, spec: Spec) -> jax.Array:
    a = jnp.moveaxis(a, -1, 0)[..., :, None]
    b = jnp.moveaxis(b, -2, 0)[..., None, :]
    return _fused_steps(a, b, c, spec)[0]


def _fused_chain_handler(a: jax.Array, b: jax.Array, c: jax.Array, *, spec: Spec) -> jax.Array:
    assert spec.fraction_bits is not None and spec.zero_exponent is not None
    return _ffi.call(
        "jaxmd_tensorcore_steps",
        [jax.ShapeDtypeStruct(c.shape, np.uint32)],
        a,
        b,
        c,
        format_a=_packed(spec.a),
        format_b=_packed(spec.b),
        length=spec.length,
        fraction_bits=spec.fraction_bits,
        zero_exponent=spec.zero_exponent,
        output_bits=ROUNDINGS[spec.rounding].fraction_bits,
        half=int(spec.d.name == "f16"),
    )[0]


def _packed(f: Format) -> int:
    """A format in one attribute: exponent bits, mantissa bits, specials, unused bits, eight bits each."""
    specials = ("none", "nan", "ieee").index(f.specials)
    return f.exponent_bits | f.mantissa_bits << 8 | specials << 16 | f.unused << 24


def _fused_chain_batch(args: Sequence[Any], dims: Sequence[int | None], *, spec: Spec) -> tuple[jax.Array, int]:
    return fused_chain_p.bind(*to_front(args, dims, batch_size(args, dims)), spec=spec), 0


fused_chain_p = Primitive("jaxmd_tensorcore_steps")
fused_chain_p.def_abstract_eval(_fused_chain_shape_rule)
fused_chain_p.def_impl(lambda *args, spec: jax.jit(lambda *x: fused_chain_p.bind(*x, spec=spec))(*args))
mlir.register_lowering(fused_chain_p, mlir.lower_fun(_fused_chain_in_jax, multiple_results=False))
mlir.register_lowering(fused_chain_p, mlir.lower_fun(_fused_chain_handler, multiple_results=False), platform="cpu")
batching.primitive_batchers[fused_chain_p] = _fused_chain_batch
