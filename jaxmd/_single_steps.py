"""The steps of a float32 product outside its kernels: magnitudes, XLA's products, residues, the handler's call.

XLA on the CPU flushes subnormals, so magnitudes are read from the bits, and float32 becomes float64 and back by bits
where it is subnormal. What computes in float64 is traced and lowered with x64 on (`_single.py` sees to it).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import _ffi, _residue_product, _residues

_FORMATS = {"f16x3": 0, "tf32x3": 1}  # ffi/single_matmul.h

WORD = 32
"""Bits of the integers of engine "int8": at least eight more than float32 has."""


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """[..., m, k] x [..., k, n] in float32 on every backend."""
    batch = tuple(range(a.ndim - 2))
    contract = ((a.ndim - 1,), (a.ndim - 2,))
    return lax.dot_general(a, b, (contract, (batch, batch)), precision=lax.Precision.HIGHEST)


def _bits(x: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(x, jnp.int32)


def largest(x: jax.Array, axis: int) -> jax.Array:
    """Bits of the largest magnitude along an axis, int32; from 255 << 23 on where Inf or NaN is among them."""
    return jnp.max(_bits(x) & 0x7FFFFFFF, axis=axis, initial=0)


def exponent(magnitude: jax.Array) -> jax.Array:
    """floor(log2 x) from the bits of x > 0, int32, subnormals included; 0 for 0, Inf and NaN."""
    biased = magnitude >> 23
    e = jnp.where(biased == 0, -118 - lax.clz(magnitude), biased - 127)  # 2^-149 has 31 leading zeros
    return jnp.where((magnitude == 0) | (biased == 255), 0, e)


def handler(a: jax.Array, b: jax.Array, engine: str, platform: str) -> jax.Array:
    """The compiled handlers: CUDA's kernels, whose copy engine wants rows of whole 16 bytes, or their emulation."""
    n = b.shape[-1]
    a, b = _padded(a, -1), _padded(_padded(b, -1), -2)
    if platform == "cuda":
        found = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in (a.shape[:-1], (*b.shape[:-2], b.shape[-1]))]
        row, column = _ffi.call("jaxmd_single_largest", found, a, b)
    else:
        row, column = largest(a, -1), largest(b, -2)
    out = jax.ShapeDtypeStruct((*a.shape[:-1], b.shape[-1]), jnp.float32)
    c = _ffi.call("jaxmd_single_matmul", [out], a, b, row, column, format=_FORMATS[engine])[0]
    return c[..., :n]


def _padded(x: jax.Array, axis: int) -> jax.Array:
    extra = -x.shape[axis] % 4
    if isinstance(extra, int) and extra == 0:
        return x
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, extra)
    return jnp.pad(x, widths)


# --- by way of float64 -----------------------------------------------------------------------------------------------


def in_double(a: jax.Array, b: jax.Array) -> jax.Array:
    """The float64 product, rounded: terms are exact, and no sum of them leaves the range of float64."""
    return _to_single(dot(_to_double(a), _to_double(b)))


def in_residues(a: jax.Array, b: jax.Array) -> jax.Array:
    """The product of integers of at least WORD bits on grids of rows and columns, by residues, rounded."""
    row, column = largest(a, -1), largest(b, -2)
    k = a.shape[-1]
    plan = _residues.plan(k, WORD)
    zero = jnp.zeros((*a.shape[:-2], k), jnp.int32)
    e, f = exponent(row) + 1, exponent(column) + 1
    x, y = (_to_double(a),), (_to_double(b),)
    c = _to_single(_residue_product.matmul(x, y, (zero, zero), e, f, plan=plan, limbs=1)[0])
    special = (row >= 255 << 23)[..., :, None] | (column >= 255 << 23)[..., None, :]
    return lax.cond(jnp.any(special), lambda: jnp.where(special, in_double(a, b), c), lambda: c)


def _to_double(x: jax.Array) -> jax.Array:
    """float32 as float64, subnormals included."""
    bits = _bits(x)
    subnormal = (bits & 0x7FFFFF).astype(jnp.float64) * np.float64(2.0**-149)
    subnormal = jnp.where(bits < 0, -subnormal, subnormal)
    return jnp.where(bits >> 23 & 255 == 0, subnormal, x.astype(jnp.float64))


def _to_single(x: jax.Array) -> jax.Array:
    """float64 to the nearest float32, subnormals included."""
    magnitude = jnp.abs(x)
    units = jnp.round(jnp.minimum(magnitude, 2.0**-126) * np.float64(2.0**149)).astype(jnp.int32)
    sign = jnp.where(x < 0, jnp.int32(-(2**31)), 0)
    small = lax.bitcast_convert_type(units | sign, jnp.float32)
    return jnp.where(magnitude < 2.0**-126, small, x.astype(jnp.float32))
