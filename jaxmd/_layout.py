"""Public face of the convolution layout: the seed's equation (4) on MultiDoubles, in jnp.

s, t = slices(a, width, count, axis=-1), slices(b, width, count, axis=-2)
orders = split_orders(block_row(s) @ block_toeplitz(t), count)      # or sliced_matmul(s.digits, t.digits)
c = collect(orders, s.exponent, t.exponent, width, limbs)           # c = a @ b
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _ffi, _slices
from ._array import MultiDouble
from ._operands import check_limbs, naming
from ._product import sliced_matmul
from ._slices import Slices

__all__ = ["Slices", "block_row", "block_toeplitz", "collect", "quarter", "sliced_matmul", "slices", "split_orders"]


def slices(a: MultiDouble, width: int, count: int, axis: int) -> Slices:
    """Cut every entry into `count` balanced digits of `width` bits on a grid shared along `axis`.

    Entry x with the shared exponent e (|x| < 2^(e-1) for all entries along the axis) becomes the integers X_s with
    x = 2^e (X_0 2^-width + X_1 2^(-2 width) + ...), |X_s| <= 2^(width-1).  Signs, gaps between limbs, zero limbs and
    unnormalized limbs disappear in the integer, so no grouping by sign or exponent is needed.

    Args:
        a: MultiDouble [...].
        width: bits per digit, 2 to 52.
        count: digits per entry, at least 1.
        axis: the axis that the product contracts: -1 for a left operand, -2 for a right one.

    Returns: Slices with digits [count, ...], exponent of a's shape without `axis`, width.

    Accuracy: the digits stand for x rounded to a multiple of 2^(e - width*count), within 3/4 of that unit.
    Limits: Inf and NaN are cut as zeros; `matmul` treats those entries apart.
    Raises: ValueError for a width or count out of range.
    Source: Ozaki, Ogita, Oishi, Rump, Numer. Algorithms 59 (2012); balanced digits in place of their rounded parts.
    """
    who = "jaxmd.slices"
    _ffi.require_x64(who)
    _check(who, a, width=width, count=count, axis=axis)
    if not 2 <= width <= 52:
        raise ValueError(f"jaxmd.slices: width is {width}; must be 2 to 52 bits.")
    if count < 1:
        raise ValueError(f"jaxmd.slices: count is {count}; must be at least 1.")
    _check_axis(who, a.ndim, axis)
    return _slices.slices(a.limbs, width, count, axis)


def quarter(a: MultiDouble, axis: int) -> Slices:
    """Cut every limb into the seed's four 13-bit pieces, truncated toward zero, all with the entry's sign.

    Entry x with the shared exponent e (|x| < 2^e) becomes 4 L digits with x ~ 2^e (X_0 2^-13 + X_1 2^-26 + ...),
    |X_s| < 2^13; the last digit also carries the 53rd bit of the last limb, as a half.

    Args:
        a: MultiDouble [...] with L limbs.
        axis: the axis that the product contracts.

    Returns: Slices with digits [4 L, ...], exponent of a's shape without `axis`, width 13.

    Accuracy: truncation, below 2^(e - 52 L - 1); for one limb with |x| >= 2^(e-1) the digits are exact.
        Orders of a product are exact while 2^26 k (g + 1) <= 2^53 (2^28 for the last order).
    Limits: 52 L + 1 bits a number cannot meet the contract of `matmul`, which uses `slices`; for comparison only.
    Source: the seed, section 2, with one exponent per row or column in place of one per entry.
    """
    who = "jaxmd.quarter"
    _ffi.require_x64(who)
    _check(who, a, axis=axis)
    _check_axis(who, a.ndim, axis)
    return _slices.quarter(a.limbs, axis)


def block_row(s: Slices) -> jax.Array:
    """Slices of a left operand side by side: the matrix A-bar = [A_0 A_1 ... A_{S-1}] of the seed's equation (4).

    Args: s: Slices with digits [S, ..., m, k].
    Returns: float64 [..., m, S k].
    """
    return _slices.block_row(_digits("jaxmd.block_row", s))


def block_toeplitz(s: Slices) -> jax.Array:
    """Slices of a right operand convolved: the block upper triangular Toeplitz matrix B-bar of equation (4).

    Args: s: Slices with digits [S, ..., k, n].
    Returns: float64 [..., S k, S n], with B_{j-i} in block (i, j) and 0 below the diagonal.
    Limits: S times the memory of the slices; `sliced_matmul` gives the same orders without building it.
    """
    return _slices.block_toeplitz(_digits("jaxmd.block_toeplitz", s))


def split_orders(product: jax.Array, count: int) -> jax.Array:
    """The orders in block_row(a) @ block_toeplitz(b): [..., m, S n] -> [S, ..., m, n], S = count."""
    who = "jaxmd.split_orders"
    _check(who, count=count)
    with naming(who):
        product = jnp.asarray(product)
    if product.ndim < 2 or count < 1 or product.shape[-1] % count:
        raise ValueError(f"{who}: product has shape {product.shape}; [..., m, S n] with S = {count} was wanted.")
    return _slices.split_orders(product, count)


def collect(
    orders: jax.Array, row_exponent: jax.Array, column_exponent: jax.Array, width: int, limbs: int
) -> MultiDouble:
    """Add the orders of a sliced product into multiple doubles.

    c_ij = 2^(row_i + column_j) sum_g orders[g]_ij 2^(-width (g + 2)).

    Args:
        orders: float64 [S, ..., m, n], as from `sliced_matmul` or `split_orders`.
        row_exponent: int32 [..., m], `Slices.exponent` of the left operand.
        column_exponent: int32 [..., n], that of the right one.
        width: bits per digit, the same for both operands.
        limbs: limb count of the result.

    Returns: MultiDouble [..., m, n].

    Accuracy: one canonical rounding, u^limbs |c|; results below the range of all-normal limbs lose low bits.
    """
    who = "jaxmd.collect"
    _ffi.require_x64(who)
    _check(who, width=width)
    check_limbs(who, limbs)
    with naming(who):
        orders, row, column = map(jnp.asarray, (orders, row_exponent, column_exponent))
    if orders.ndim < 3 or row.shape != orders.shape[1:-1] or column.shape != (*orders.shape[1:-2], orders.shape[-1]):
        raise ValueError(
            f"{who}: orders, row_exponent and column_exponent have shapes {orders.shape}, {row.shape} and "
            f"{column.shape}; [S, ..., m, n], [..., m] and [..., n] were wanted."
        )
    return MultiDouble(_slices.collect(orders, row, column, width, limbs))


def _check(who: str, *values: Any, **integers: Any) -> None:
    for a in values:
        if not isinstance(a, MultiDouble):
            raise TypeError(f"{who}: a is {type(a).__name__}; a MultiDouble was wanted (jaxmd.asarray makes one).")
    for name, x in integers.items():
        if isinstance(x, bool) or not isinstance(x, int | np.integer):
            raise TypeError(f"{who}: {name} is {type(x).__name__}; an integer was wanted.")


def _digits(who: str, s: Any) -> Slices:
    if not isinstance(s, Slices):
        raise TypeError(f"{who}: s is {type(s).__name__}; what jaxmd.slices returns was wanted.")
    return s


def _check_axis(who: str, ndim: int, axis: int) -> None:
    if not -ndim <= axis < ndim:
        raise ValueError(f"{who}: axis is {axis}; must lie in [{-ndim}, {ndim}) for an operand of rank {ndim}.")
