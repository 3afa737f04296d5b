"""Exact values and error bounds: every test compares with rationals or integers, never with floating point.

A multiple double is a tuple of limbs (numpy or JAX arrays of one shape) or anything with an attribute `limbs`.
"""

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

try:
    from flint import fmpz_mat
except ImportError:  # a GPU machine may have pytest, numpy and mpmath only
    from integer_matrix import IntegerMatrix as fmpz_mat

Limbs = Sequence[Any]


def arrays(x: Any) -> tuple[np.ndarray, ...]:
    """The limbs as float64 numpy arrays."""
    return tuple(np.asarray(limb, dtype=np.float64) for limb in getattr(x, "limbs", x))


def unit(limbs: int) -> Fraction:
    """u^L, the unit roundoff of `limbs` limbs."""
    return Fraction(1, 2 ** (53 * limbs))


# Elementwise


def fractions(x: Any) -> np.ndarray:
    """The exact value of every entry: an object array of Fractions, of the shape of x. Limbs must be finite."""
    limbs = arrays(x)
    out = np.empty(limbs[0].shape, dtype=object)
    for index in np.ndindex(out.shape):
        out[index] = sum((Fraction(float(limb[index])) for limb in limbs), Fraction(0))
    return out


def nearest(value: Fraction) -> float:
    """RN(value): the nearest double, ties to even, ±inf beyond the range."""
    try:
        return value.numerator / value.denominator  # CPython divides integers with correct rounding
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def canonical(value: Fraction, limbs: int) -> tuple[float, ...]:
    """The canonical limbs of a rational: x1 = RN(value), x2 = RN(value − x1), ..."""
    out = []
    for _ in range(limbs):
        limb = nearest(value)
        out.append(limb + 0.0)
        if np.isinf(limb):
            return (limb, *(0.0 for _ in range(limbs - 1)))
        value -= Fraction(limb)
    return tuple(out)


def from_fractions(values: Any, limbs: int) -> tuple[np.ndarray, ...]:
    """Canonical limbs of an array (or nested list) of rationals."""
    values = np.asarray(values, dtype=object)
    out = [np.empty(values.shape) for _ in range(limbs)]
    for index in np.ndindex(values.shape):
        for limb, entry in zip(out, canonical(Fraction(values[index]), limbs)):
            limb[index] = entry
    return tuple(out)


def errors_in_units(
    result: Any, exact: Any, limbs: int, scale: Any = None, floor: Fraction = Fraction(0)
) -> np.ndarray:
    """|result − exact| / (u^limbs · |scale| + floor) entry by entry, as floats; 0/0 counts as 0.

    Args:
        exact: array of Fractions.
        scale: array of Fractions that errors are relative to; `exact` itself when None.
        floor: an absolute error that is always allowed, such as half the smallest subnormal.
    """
    values, exact = fractions(result), np.asarray(exact, dtype=object)
    scale = exact if scale is None else np.asarray(scale, dtype=object)
    out = np.empty(values.shape)
    for index in np.ndindex(values.shape):
        error = abs(values[index] - exact[index])
        allowed = abs(scale[index]) * unit(limbs) + floor
        out[index] = nearest(error / allowed) if allowed else (np.inf if error else 0.0)
    return out


def error_in_units(result: Any, exact: Any, limbs: int, scale: Any = None, floor: Fraction = Fraction(0)) -> float:
    """The largest of `errors_in_units`, 0 for an empty array."""
    return float(np.max(errors_in_units(result, exact, limbs, scale, floor), initial=0.0))


def assert_within(
    result: Any,
    exact: Any,
    limbs: int,
    units: float,
    scale: Any = None,
    floor: Fraction = Fraction(0),
    label: str = "",
) -> None:
    """|result − exact| ≤ units · u^limbs · |scale| + floor everywhere; a failure shows the worst entry in hex."""
    assert len(arrays(result)) == limbs, f"{label}: {len(arrays(result))} limbs came; {limbs} were wanted"
    assert arrays(result)[0].shape == np.shape(exact), f"{label}: {arrays(result)[0].shape} != {np.shape(exact)}"
    errors = errors_in_units(result, exact, limbs, scale, floor / Fraction(units) if units else floor)
    if errors.size and not errors.max() <= units:
        worst = np.unravel_index(int(np.argmax(errors)), errors.shape)
        came = [float(limb[worst]).hex() for limb in arrays(result)]
        wanted = [limb.hex() for limb in canonical(np.asarray(exact, dtype=object)[worst], limbs)]
        raise AssertionError(
            f"{label}: error {errors[worst]:.4g} units at {tuple(map(int, worst))} of shape {errors.shape}, "
            f"{units:g} allowed\n  came   {came}\n  wanted {wanted}"
        )


def assert_bits(result: Any, expected: Any, label: str = "") -> None:
    """The same limbs, bit for bit, the sign of zero included; all nans count as one."""
    came, wanted = arrays(result), arrays(expected)
    assert len(came) == len(wanted), f"{label}: {len(came)} limbs came; {len(wanted)} were wanted"
    for i, (x, y) in enumerate(zip(came, wanted)):
        assert x.shape == y.shape, f"{label}: limb {i} has shape {x.shape}; {y.shape} was wanted"
        same = (x.view(np.int64) == y.view(np.int64)) if x.ndim else (x.tobytes() == y.tobytes())
        bad = np.argwhere(~np.atleast_1d(same | (np.isnan(x) & np.isnan(y))))
        if bad.size:
            at = tuple(map(int, bad[0]))
            hexes = [[float(np.atleast_1d(limb)[at]).hex() for limb in limbs] for limbs in (came, wanted)]
            raise AssertionError(f"{label}: limb {i} differs at {at}\n  came   {hexes[0]}\n  wanted {hexes[1]}")


def assert_normalized(x: Any, label: str = "") -> None:
    """Each limb is at most half a unit in the last place of the one before; inf, nan and zero are followed by +0.

    (Not RN(x1 + x2) = x1: a value just under a tie has x2 rounded up to the tie, and x1 may be odd.)
    """
    limbs = arrays(x)
    for i, (high, low) in enumerate(itertools.pairwise(limbs)):
        alone = ~np.isfinite(limbs[0]) | (high == 0)
        with np.errstate(invalid="ignore", over="ignore"):
            good = np.where(alone, (low == 0) & ~np.signbit(low), np.abs(low) <= np.spacing(np.abs(high)) / 2)
        assert np.all(good), f"{label}: limbs {i} and {i + 1} overlap at {np.argwhere(~np.atleast_1d(good))[0]}"


# Matrix products


class Scaled(NamedTuple):
    """The matrix integers · 2^exponent."""

    integers: fmpz_mat
    exponent: int


def scaled(x: Any) -> Scaled:
    """A matrix of finite limbs [m, n], exactly, as integers over one power of two."""
    limbs = arrays(x)
    m, n = limbs[0].shape
    parts = [_significands(limb) for limb in limbs]
    exponent = min((int(e[s != 0].min()) for s, e in parts if np.any(s)), default=0)
    total = np.zeros((m, n), dtype=object)
    for significand, e in parts:
        shift = np.where(significand != 0, e - exponent, 0)
        total = total + (significand.astype(object) << shift.astype(object))
    return Scaled(fmpz_mat(m, n, [int(entry) for entry in total.ravel()]), exponent)


def _significands(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integers s and exponents e with x = s · 2^e."""
    fraction, exponent = np.frexp(x)
    return np.ldexp(fraction, 53).astype(np.int64), exponent.astype(np.int64) - 53


def absolute(matrix: Scaled) -> Scaled:
    """Entry by entry."""
    m, n = matrix.integers.nrows(), matrix.integers.ncols()
    return Scaled(fmpz_mat(m, n, [abs(entry) for entry in matrix.integers.entries()]), matrix.exponent)


def exact_product(a: Any, b: Any) -> tuple[Scaled, Scaled]:
    """A·B and |A|·|B|, exactly, for limbs [m, k] and [k, n]."""
    a, b = scaled(a), scaled(b)
    product = Scaled(a.integers * b.integers, a.exponent + b.exponent)
    bound = Scaled(absolute(a).integers * absolute(b).integers, a.exponent + b.exponent)
    return product, bound


def product_error(c: Any, a: Any, b: Any, limbs: int, addend: Any = None, normwise: bool = False) -> float:
    """The largest error of c = a·b (+ addend) in units of the contract's bound, over all entries.

    The bound is k·u^L·(|A||B|) + u^L·|C|, with |A||B| + |addend| for a product with addend, and with
    (largest entry of the row of A) · (largest entry of the column of B) for |A||B| when `normwise`.
    Leading axes are batch axes.
    """
    a, b, c = arrays(a), arrays(b), arrays(c)
    extra = None if addend is None else arrays(addend)
    if c[0].ndim > 2:
        entries = range(c[0].shape[0])
        pick = lambda x, i: None if x is None else tuple(limb[i] for limb in x)
        return max(
            (product_error(pick(c, i), pick(a, i), pick(b, i), limbs, pick(extra, i), normwise) for i in entries),
            default=0.0,
        )
    k = a[0].shape[1]
    product, bound = exact_product(a, b)
    if normwise:
        rows, columns = absolute(scaled(a)), absolute(scaled(b)).integers.transpose()
        heights = [max(row, default=0) for row in rows.integers.tolist()]
        widths = [max(column, default=0) for column in columns.tolist()]
        entries = [height * width for height in heights for width in widths]
        bound = Scaled(fmpz_mat(len(heights), len(widths), entries), bound.exponent)
    result = scaled(c)
    plus = None if extra is None else scaled(extra)
    exponents = [result.exponent, product.exponent] + ([plus.exponent] if plus else [])
    grid = min(exponents)
    came, exact, allowed = (_entries(x, grid) for x in (result, product, bound))
    if plus:
        added = _entries(plus, grid)
        exact = [x + y for x, y in zip(exact, added)]
        allowed = [x + abs(y) for x, y in zip(allowed, added)]
    worst = 0.0
    for x, y, size in zip(came, exact, allowed):
        error, limit = abs(x - y) << (53 * limbs), k * size + abs(y) + (size if plus else 0)
        if error:
            worst = max(worst, nearest(Fraction(error, limit)) if limit else float("inf"))
    return worst


def _entries(matrix: Scaled, grid: int) -> list[int]:
    shift = matrix.exponent - grid
    return [int(entry) << shift for entry in matrix.integers.entries()]


def product_fractions(a: Any, b: Any) -> np.ndarray:
    """The exact product of limbs [m, k] and [k, n] as an object array of Fractions."""
    product, _ = exact_product(a, b)
    m, n = product.integers.nrows(), product.integers.ncols()
    factor = Fraction(2) ** product.exponent
    entries = [int(entry) * factor for entry in product.integers.entries()]
    out = np.empty(m * n, dtype=object)
    out[:] = entries
    return out.reshape(m, n)
