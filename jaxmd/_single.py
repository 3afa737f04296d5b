"""Products of float32 matrices on half-precision tensor cores: the primitive behind `jaxmd.matmul_f32`.

    a [..., m, k], b [..., k, n] float32  ->  c [..., m, n] float32

This file gives JAX its rules: shapes, batching, derivatives, and the lowering of each engine by platform.
`_single_steps.py` holds the arithmetic outside the kernels, ffi/single_matmul.h that inside.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from . import _ffi, _single_steps
from ._primitive import Primitive

SingleEngine = Literal["auto", "f16x3", "tf32x3", "int8", "f32"]
_NAME = "jaxmd.matmul_f32"

LEAST = 128
"""Terms from which "auto" takes tensor cores: below, a chain of float32 multiply-adds is as accurate and as fast."""


def matmul_f32(a: Any, b: Any, *, engine: SingleEngine = "auto") -> jax.Array:
    """Product of float32 matrices with the accuracy of single precision, from tensor cores of half precision.

    Rows of a and columns of b are scaled by powers of two, exactly, so that the largest entry is near 2^14; every entry
    is split into two pieces of 11 bits, hi + lo; and hi hi + hi lo + lo hi are summed in chunks of 64 (f16) or 32
    (tf32) terms inside the tensor core and outside in float32. Sums of fewer than 1024 terms take a third piece, which
    makes the split exact, six products, and a compensated sum outside. Works with x64 off and on; differentiable (the
    derivatives are products by the same engine) and batched.

    Args:
        a: float32 [..., m, k], or [k].
        b: float32 [..., k, n], or [k]; leading axes broadcast, as in `jnp.matmul`.
        engine: how the product is computed:

            - "f16x3": three products of float16 pieces.
            - "tf32x3": three products of TensorFloat-32 pieces; half as fast, for rows that span many binades.
            - "int8": integers on a grid of each row and column, by residues (the engine of `jaxmd.matmul`); the same
              bits on every device.
            - "f32": `jnp.matmul` at `Precision.HIGHEST`.
            - "auto": on CUDA "f16x3" where k >= 128, m and n >= 64 and m n k >= 2^26, else "f32"; on other platforms
              "f32". A fixed rule of shapes and platform, never of a timing.

            Off CUDA "f16x3" and "tf32x3" run one float64 product, rounded once, which is well inside their bounds.

    Returns: float32 [..., m, n].

    Accuracy: with u = 2^-24, R_i = max_l |a_il| and S_j = max_l |b_lj|, entry by entry, to first order in u,

        |c - ab| <= (50 + k/64) u (|a||b|) + u |c| + k 2^-37 R_i S_j      "f16x3", with 11 u (|a||b|) for k < 1024
        |c - ab| <= (35 + k/32) u (|a||b|) + u |c| + k 2^-138 R_i S_j     "tf32x3", with 7 u (|a||b|) for k < 1024
        |c - ab| <= 1.01 u |c| + k 2^-31 R_i S_j                          "int8"
        |c - ab| <= k u (|a||b|)                                          "f32"

        8 u are for two pieces (2 u for each operand's, 4 u for lo lo, which is left out), the other constants for the
        truncation inside a chunk (16 or 8 terms of a short sum), then one rounding a chunk; where the result is
        subnormal, half of 2^-149 more. On random data "f16x3" and "tf32x3" are at least as accurate as a chain of
        float32 multiply-adds from k = 64 on, whatever the spread of the exponents, by a factor that grows with k.

    Limits: all of float32's range, subnormal entries and results included. With "f16x3" entries of a row below 2^-15
    of its largest lose relative accuracy, as the last term of the bound says; "tf32x3" keeps it. Inf and NaN give Inf
    and NaN where IEEE arithmetic does, and only there; a result beyond float32's range is Inf, with no overflow on the
    way. "f32" is XLA's product: it may overflow on the way, and flushes subnormals on the CPU.

    Raises:
        TypeError: an operand that is not float32, or has no axes.
        ValueError: shapes that do not fit, or an unknown engine.
        NotImplementedError: "f16x3" or "tf32x3" on a GPU without jaxmd's CUDA module.

    Source: H. Ootomo and R. Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32
    theoretical peak performance" (2022). Ours differs by the scaling of rows and columns, which gives float16 the whole
    range of float32 and spares the residual a scale of its own (theirs is 2^11), so that all three products share one
    accumulator; and by chunks of 64 or 32 terms instead of 8 between additions outside the tensor core.
    """
    return product(a, b, engine, emulate=False)


def product(a: Any, b: Any, engine: str, *, emulate: bool) -> jax.Array:
    """`matmul_f32`; with `emulate`, "f16x3" and "tf32x3" give the bits of the CUDA kernels on the CPU too, slowly."""
    if engine not in get_args(SingleEngine):
        names = ", ".join(map(repr, get_args(SingleEngine)))
        raise ValueError(f"{_NAME}: engine is {engine!r}; must be one of {names}.")
    for name, x in (("a", a), ("b", b)):
        if getattr(x, "dtype", None) != jnp.float32 or jnp.ndim(x) == 0:
            kind = f"{x.dtype} of shape {x.shape}" if hasattr(x, "dtype") else type(x).__name__
            raise TypeError(f"{_NAME}: {name} is {kind}; float32 with an axis is wanted.")
    x, y = jnp.asarray(a), jnp.asarray(b)
    x = x[None] if a.ndim == 1 else x
    y = y[:, None] if b.ndim == 1 else y
    if x.shape[-1] != y.shape[-2]:
        raise ValueError(f"{_NAME}: a has shape {a.shape} and b has shape {b.shape}; the inner dimensions must agree.")
    c = _with_batch(x, y, engine, emulate)
    c = c[..., 0] if b.ndim == 1 else c
    return c if a.ndim > 1 else c[..., 0] if b.ndim == 1 else c[..., 0, :]


def _with_batch(a: jax.Array, b: jax.Array, engine: str, emulate: bool) -> jax.Array:
    batch_a, batch_b = a.shape[:-2], b.shape[:-2]
    if not batch_b and batch_a:  # one b for the whole batch: rows of all members together
        c = bind(a.reshape(math.prod(batch_a) * a.shape[-2], a.shape[-1]), b, engine, emulate)
        return c.reshape(*batch_a, a.shape[-2], b.shape[-1])
    try:
        batch = jnp.broadcast_shapes(batch_a, batch_b)
    except ValueError:
        shapes = f"a has shape {a.shape} and b has shape {b.shape}"
        raise ValueError(f"{_NAME}: {shapes}; leading axes that broadcast together are wanted.") from None
    a = jnp.broadcast_to(a, (*batch, *a.shape[-2:]))
    return bind(a, jnp.broadcast_to(b, (*batch, *b.shape[-2:])), engine, emulate)


def bind(a: jax.Array, b: jax.Array, engine: str, emulate: bool) -> jax.Array:
    """One call of the primitive; equal batch axes."""
    return matmul_f32_p.bind(*_ffi.unify((a, b)), engine=engine, emulate=emulate)


# --- the primitive ---------------------------------------------------------------------------------------------------


def _shape_rule(a: Any, b: Any, **params: Any) -> Any:
    for name, x in (("a", a), ("b", b)):
        if x.dtype != jnp.float32:
            raise TypeError(f"{_NAME}: {name} is {x.dtype}; float32 is wanted.")
    if a.ndim < 2 or a.ndim != b.ndim or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"{_NAME}: a has shape {a.shape} and b has shape {b.shape}; wanted [..., m, k] and [..., k, n]."
        )
    return a.update(shape=(*a.shape[:-1], b.shape[-1]), weak_type=False)


def choose(m: Any, n: Any, k: Any, platform: str) -> str:
    """Rule of engine "auto". Symbolic dimensions are exported for the large case."""
    if platform != "cuda" or not (_ffi.has_cuda() or jax.default_backend() != "gpu"):
        return "f32"
    sizes = (m, n, k)
    large = not all(isinstance(size, int) for size in sizes) or (k >= LEAST and min(m, n) >= 64 and m * n * k >= 2**26)
    return "f16x3" if large else "f32"


def _evaluate(a: jax.Array, b: jax.Array, *, engine: str, emulate: bool, platform: str) -> jax.Array:
    m, k, n = *a.shape[-2:], b.shape[-1]
    if engine == "auto":
        engine = choose(m, n, k, platform)
    if engine == "f32":
        return _single_steps.dot(a, b)
    if isinstance(k, int) and k == 0:
        return jnp.zeros((*a.shape[:-1], n), jnp.float32)
    if engine == "int8":
        return _single_steps.in_residues(a, b)
    if platform == "cuda" and not _ffi.has_cuda() and jax.default_backend() == "gpu":
        raise NotImplementedError(
            f"{_NAME}: the CUDA module of jaxmd is not built, so engine {engine!r} has no kernel; reinstall with "
            'JAXMD_CUDA=on, or take "int8" or "f32".'
        )
    if platform == "cuda" or emulate:
        return _single_steps.handler(a, b, engine, platform)
    return _single_steps.in_double(a, b)


def _batch(args: Sequence[jax.Array], dims: Sequence[int | None], **params: Any) -> tuple[jax.Array, int]:
    """An unbatched operand is shared: the batch axis of the other folds into its rows or columns."""
    (a, b), (da, db) = args, dims
    if db is None:
        assert da is not None
        a = jnp.moveaxis(a, da, -3)
        *lead, size, m, k = a.shape
        out = bind(a.reshape(*lead, size * m, k), b, **params)
        return out.reshape(*lead, size, m, b.shape[-1]), len(lead)
    if da is None:
        b = jnp.moveaxis(b, db, -2)
        *lead, k, size, n = b.shape
        out = bind(a, b.reshape(*lead, k, size * n), **params)
        return out.reshape(*out.shape[:-1], size, n), out.ndim - 1
    return bind(jnp.moveaxis(a, da, 0), jnp.moveaxis(b, db, 0), **params), 0


def _transpose_a(ct: jax.Array, a: Any, b: jax.Array, **params: Any) -> jax.Array:
    return bind(ct, jnp.swapaxes(b, -1, -2), **params)


def _transpose_b(ct: jax.Array, a: jax.Array, b: Any, **params: Any) -> jax.Array:
    return bind(jnp.swapaxes(a, -1, -2), ct, **params)


def _lowering(platform: str) -> Callable[..., Any]:
    rule = mlir.lower_fun(functools.partial(_evaluate, platform=platform), multiple_results=False)

    def lower(ctx: Any, *operands: Any, engine: str, emulate: bool) -> Any:
        if engine in ("auto", "f32"):
            return rule(ctx, *operands, engine=engine, emulate=emulate)
        with jax.enable_x64(True):  # inside, the other engines may pass through float64
            return rule(ctx, *operands, engine=engine, emulate=emulate)

    return lower


matmul_f32_p = Primitive("jaxmd_matmul_f32")
matmul_f32_p.def_impl(
    jax.jit(lambda a, b, **params: matmul_f32_p.bind(a, b, **params), static_argnames=("engine", "emulate"))
)
matmul_f32_p.def_abstract_eval(_shape_rule)
for _platform in ("cpu", "cuda"):
    mlir.register_lowering(matmul_f32_p, _lowering(_platform), platform=_platform)
mlir.register_lowering(matmul_f32_p, _lowering("cpu"))
batching.primitive_batchers[matmul_f32_p] = _batch
ad.defbilinear(matmul_f32_p, _transpose_a, _transpose_b)
