"""The compiled steps of a product: the triangular sliced product (a primitive), and seven plain handler calls.

    sliced_matmul   [S, ..., m, k] x [S, ..., k, n] -> [S, ..., m, n]    orders g = sum_{i+j=g} A_i B_j, g < S
    exponent_span   [..., m, k] + [..., k, n] -> [..., m, n]             max over l of E_il + F_lj
    direct_matmul   limbs x limbs -> limbs                               cascaded sums, no slices
    exact_entries   limbs x limbs, flags, c -> c                         flagged entries summed exactly (Kulisch)
    exact_special   doubles x doubles, grids, c -> c                        rows and columns with Inf or NaN, on CUDA
    certificate     limbs x limbs -> grids, certified                       what `_magnitudes.py` decides by
    uncertified     limbs, grids -> flags, count                            entries that words may not serve, on CUDA
    float64_repair  doubles x doubles, c -> c                               entries that a float64 product lost, on CUDA

The last seven appear only inside the lowering of `matmul_p` (`_matmul.py`), which owns batching and differentiation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad, batching, mlir

from . import _ffi
from ._primitive import Primitive, naming

# --- sliced_matmul ---------------------------------------------------------------------------------------------------


def sliced_matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    """Orders of the product of two stacks of slices: out[g] = sum over i + j = g of a[i] @ b[j].

    The triangle of the seed's equation (4) without its zeros and copies: S(S+1)/2 matrix products, on FP64 tensor cores
    (mma.m16n8k8 on sm_90, m8n8k4 on sm_80) where a CUDA device runs it, else `lax.dot_general`.

    Args:
        a: float64 [S, ..., m, k].
        b: float64 [S, ..., k, n], the same S and batch axes.

    Returns:
        float64 [S, ..., m, n].

    Accuracy: exact when the slices are integers with (S) k max|a| max|b| <= 2^53, whatever the order of summation.
    Raises: TypeError for a dtype other than float64 or too small a rank; ValueError for shapes that do not fit.
    Source: the seed, equations (3) and (4).
    """
    with naming("jaxmd.sliced_matmul"):
        a, b = jnp.asarray(a), jnp.asarray(b)
    return sliced_matmul_p.bind(*_ffi.unify((a, b)))


def _sliced_matmul_shape_rule(a: Any, b: Any) -> Any:
    _ffi.require_x64("jaxmd.sliced_matmul")
    if a.dtype != jnp.float64 or b.dtype != jnp.float64:
        raise TypeError(f"jaxmd.sliced_matmul: slices have dtypes {a.dtype} and {b.dtype}; both must be float64.")
    if a.ndim < 3 or b.ndim != a.ndim:
        raise TypeError(
            f"jaxmd.sliced_matmul: slices have shapes {a.shape} and {b.shape}; "
            "wanted [S, ..., m, k] and [S, ..., k, n] of one rank."
        )
    if a.shape[:-2] != b.shape[:-2]:
        raise ValueError(
            f"jaxmd.sliced_matmul: slices have shapes {a.shape} and {b.shape}; "
            "the slice count and batch axes must be equal."
        )
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"jaxmd.sliced_matmul: slices have shapes {a.shape} and {b.shape}; the inner dimensions must agree."
        )
    return a.update(shape=(*a.shape[:-1], b.shape[-1]))


def _sliced_matmul_dots(a: jax.Array, b: jax.Array) -> jax.Array:
    """In XLA's own products: one dot per order, or one per pair of slices where compiling them would cost more."""
    count, m, k, n = a.shape[0], a.shape[-2], a.shape[-1], b.shape[-1]
    large = not all(isinstance(d, int) for d in (m, n)) or m * n * k > 2**22
    orders = _order_by_order(a, b) if count <= 8 or large else _pair_by_pair(a, b)
    return jnp.where(orders == 0, 0.0, orders)  # a sum of 0 · negative is −0 in a dot, +0 in the kernel


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """[..., m, k] x [..., k, n], float64 on every backend."""
    batch = tuple(range(a.ndim - 2))
    contract = ((a.ndim - 1,), (a.ndim - 2,))
    return lax.dot_general(a, b, (contract, (batch, batch)), precision=lax.Precision.HIGHEST)


def _order_by_order(a: jax.Array, b: jax.Array) -> jax.Array:
    """Order g is [A_0 ... A_g] [B_g; ...; B_0], slices side by side along k."""
    count, *batch, m, k = a.shape
    row = jnp.moveaxis(a, 0, -2).reshape(*batch, m, count * k)
    column = jnp.moveaxis(b[::-1], 0, -3).reshape(*batch, count * k, b.shape[-1])
    return jnp.stack([dot(row[..., : (g + 1) * k], column[..., (count - 1 - g) * k :, :]) for g in range(count)])


def _pair_by_pair(a: jax.Array, b: jax.Array) -> jax.Array:
    """A loop over the pairs i + j = g: compiled once, however many slices there are."""
    pairs = [(i, g - i) for g in range(a.shape[0]) for i in range(g + 1)]
    left, right = (jnp.asarray(index, jnp.int32) for index in zip(*pairs, strict=True))
    zero = jnp.stack([dot(a[0], b[0]) * 0.0] * a.shape[0])

    def add_pair(orders: jax.Array, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        i, j = pair
        return orders.at[i + j].add(dot(a[i], b[j])), None

    return lax.scan(add_pair, zero, (left, right))[0]


def _sliced_matmul_batch(args: Sequence[jax.Array], dims: Sequence[int | None]) -> tuple[jax.Array, int]:
    """An unbatched operand is shared: the batch axis of the other folds into its m or n."""
    (a, b), (da, db) = args, dims
    if db is None:
        assert da is not None
        a = jnp.moveaxis(a, da, -3)
        *lead, size, m, k = a.shape
        out = sliced_matmul(a.reshape(*lead, size * m, k), b)
        return out.reshape(*lead, size, m, b.shape[-1]), len(lead)
    if da is None:
        b = jnp.moveaxis(b, db, -2)
        *lead, k, size, n = b.shape
        out = sliced_matmul(a, b.reshape(*lead, k, size * n))
        return out.reshape(*out.shape[:-1], size, n), out.ndim - 1
    return sliced_matmul(jnp.moveaxis(a, da, 1), jnp.moveaxis(b, db, 1)), 1


def _sliced_matmul_transpose_a(ct: jax.Array, a: Any, b: jax.Array) -> jax.Array:
    """ct_A_i = sum_j ct_{i+j} B_j^T: the same triangle with the orders reversed."""
    return sliced_matmul(ct[::-1], jnp.swapaxes(b, -1, -2))[::-1]


def _sliced_matmul_transpose_b(ct: jax.Array, a: jax.Array, b: Any) -> jax.Array:
    return sliced_matmul(jnp.swapaxes(a, -1, -2), ct[::-1])[::-1]


sliced_matmul_p = Primitive("jaxmd_sliced_matmul")
sliced_matmul_p.def_impl(jax.jit(lambda a, b: sliced_matmul_p.bind(a, b)))
sliced_matmul_p.def_abstract_eval(_sliced_matmul_shape_rule)
mlir.register_lowering(sliced_matmul_p, mlir.lower_fun(_sliced_matmul_dots, multiple_results=False))
mlir.register_lowering(sliced_matmul_p, _ffi.lowering("jaxmd_sliced_matmul")["cuda"], platform="cuda")
batching.primitive_batchers[sliced_matmul_p] = _sliced_matmul_batch
ad.defbilinear(sliced_matmul_p, _sliced_matmul_transpose_a, _sliced_matmul_transpose_b)

# --- handler calls ---------------------------------------------------------------------------------------------------


def exponent_span(e: jax.Array, f: jax.Array) -> jax.Array:
    """int16 [..., m, k], [..., k, n] -> int16 [..., m, n]: max over l of e_il + f_lj; -32000 where k = 0."""
    shape = (*e.shape[:-1], f.shape[-1])
    return _ffi.call("jaxmd_exponent_span", [jax.ShapeDtypeStruct(shape, jnp.int16)], e, f)[0]


def certificate(
    a: Sequence[jax.Array], b: Sequence[jax.Array], terms: int, bound: int, platform: str
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """(row, column, certified, shift): grids of settled limbs, whether magnitudes reach bound, zeros [..., k].

    `shared_exponent` of `settled_exponents` in rows of a and columns of b (`_slices`), and `least` of `magnitudes`
    (`_magnitudes`) of the first `terms` terms >= bound; with no terms, whether all limbs are settled.
    """
    *batch, m, k = a[0].shape
    n = b[0].shape[-1]
    out = [jax.ShapeDtypeStruct((*batch, size), jnp.int32) for size in (m, n, k)]
    out.insert(2, jax.ShapeDtypeStruct((), jnp.bool_))
    attributes: dict[str, Any] = {"lhs_limbs": len(a), "bound": bound}
    if platform == "cuda":  # memory for the exponents of slabs and for magnitudes
        kept = -(-min(k, terms) // 32) * 32
        # slabs of a long k, where there are fewer rows, or columns by eight, than occupy a GPU
        static = all(isinstance(size, int) for size in (*batch, m, n))
        few = lambda size, step: max(1, min(128 // max(1, math.prod(batch) * size), k // step)) if static else 1
        slabs = (m, few(m, 8192)), (few(-(-n // 8), 4096), n)
        out += [jax.ShapeDtypeStruct((*batch, *size), jnp.int32) for size in slabs]
        out += [jax.ShapeDtypeStruct((*batch, size, kept), jnp.int8) for size in (m, n)]
    else:
        attributes["terms"] = terms
    row, column, certified, shift, *_ = _ffi.call("jaxmd_certificate", out, *a, *b, **attributes)
    return row, column, certified, shift


def direct_matmul(
    a: Sequence[jax.Array], b: Sequence[jax.Array], row: jax.Array, column: jax.Array, limbs: int
) -> tuple[jax.Array, ...]:
    """Multiple-double multiply-adds; a and b normalized, |a_il| < 2^row_i, |b_lj| < 2^column_j (int32)."""
    shape = (*a[0].shape[:-1], b[0].shape[-1])
    out = [jax.ShapeDtypeStruct(shape, jnp.float64)] * limbs
    return tuple(_ffi.call("jaxmd_direct_matmul", out, *a, *b, row, column, lhs_limbs=len(a)))


def exact_entries(
    a: Sequence[jax.Array], b: Sequence[jax.Array], flags: jax.Array, c: Sequence[jax.Array]
) -> tuple[jax.Array, ...]:
    """c with every entry whose int8 flag is set replaced by the exact dot product, rounded canonically."""
    out = [jax.ShapeDtypeStruct(x.shape, jnp.float64) for x in c]
    first = len(a) + len(b) + 1
    alias = {first + i: i for i in range(len(c))}
    return tuple(
        _ffi.call("jaxmd_exact_matmul", out, *a, *b, flags, *c, alias=alias, lhs_limbs=len(a), rhs_limbs=len(b))
    )


def exact_special(
    a: jax.Array, b: jax.Array, row: jax.Array, column: jax.Array, settled: jax.Array, c: Sequence[jax.Array]
) -> tuple[jax.Array, ...]:
    """c with exact sums where a row of a or a column of b holds Inf or NaN: its grid is UNSETTLED; CUDA only.

    settled: whether none does; then nothing is looked at.
    """
    out = [jax.ShapeDtypeStruct(x.shape, jnp.float64) for x in c]
    alias = {5 + i: i for i in range(len(c))}
    return tuple(_ffi.call("jaxmd_exact_special", out, a, b, row, column, settled, *c, alias=alias))


def float64_repair(a: jax.Array, b: jax.Array, c: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """c = fl(a b), float64, with exact sums where it overflowed or terms got lost, and +0 for -0; CUDA only.

    Terms that get lost make an entry wrong by less than k 2^-1074, which counts below 2^-900 only: such entries, if
    numbers are so small that it may have happened, and inf and nan. Limbs of c beyond the first are zeros.
    """
    out = [jax.ShapeDtypeStruct(x.shape, jnp.float64) for x in c]
    alias = {2 + i: i for i in range(len(c))}
    return tuple(_ffi.call("jaxmd_float64_repair", out, a, b, *c, alias=alias, limbs=len(c)))


def uncertified(
    a: jax.Array, b: jax.Array, row: jax.Array, column: jax.Array, least: float, most: int
) -> tuple[jax.Array, jax.Array]:
    """`uncertified` of `_magnitudes` for leading limbs and its least_size, without writing the product; CUDA only."""
    *batch, m, k = a.shape
    n = b.shape[-1]
    deep, wide = -(-k // 64) * 64, -(-n // 8) * 8
    shapes = [((*batch, m, n), jnp.int8), ((), jnp.int64), ((*batch, m, deep), jnp.uint16)]
    shapes += [((*batch, deep, wide), jnp.uint16), ((*batch, m), jnp.int32), ((*batch, n), jnp.int32)]
    out = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
    flags, count, *_ = _ffi.call("jaxmd_uncertified", out, a, b, row, column, factor=np.float64(least), most=most)
    return flags, count
