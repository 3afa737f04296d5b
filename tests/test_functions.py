"""Elementwise functions of MultiDoubles, compared with rationals, and every function under transformations."""

import math
from fractions import Fraction

import inputs
import jax
import numpy as np
import oracles
import pytest
from multiple_doubles import exact, objects, same, value

import jaxmd

# Elementwise


def half_integers(limbs):
    """Integers, halves and their closest neighbours, small and as large as the limbs allow, of both signs."""
    top = 2 ** (53 * limbs - 2)
    bases = [0, 1, 2, 3, 5, 2**52, 2**53 + 1, top - 1, top]
    nudges = [Fraction(0), Fraction(1, 2), Fraction(1, 2) - Fraction(1, 2**60), Fraction(1, 2) + Fraction(1, 2**60)]
    nudges += [Fraction(1, 2**1074), -Fraction(1, 2**1074)]
    values = [sign * (base + nudge) for sign in (1, -1) for base in bases for nudge in nudges]
    return jaxmd.from_limbs(*oracles.from_fractions(values, limbs), normalize=False)


@pytest.mark.parametrize("limbs", [1, 2, 8])
@pytest.mark.parametrize("kind", ["full", "spread", "cancelling", "half_integers"])
def test_integer_parts(limbs, kind):
    x = half_integers(limbs) if kind == "half_integers" else value(kind, limbs) * 16
    e = exact(x)
    for f, g in [(jaxmd.floor, math.floor), (jaxmd.ceil, math.ceil), (jaxmd.round, round)]:
        wanted = np.vectorize(lambda v, g=g: Fraction(g(v)), otypes=[object])(e)
        result = jax.jit(f)(x)
        oracles.assert_normalized(result)
        same(result, wanted)


def test_integer_parts_of_special_values():
    x = jaxmd.asarray(["inf", "-inf", "nan", "-0", "0", "-0.3", "-0.5"], 3)
    for f, wanted in [
        (jaxmd.floor, [np.inf, -np.inf, np.nan, -0.0, 0.0, -1.0, -1.0]),
        (jaxmd.ceil, [np.inf, -np.inf, np.nan, -0.0, 0.0, -0.0, -0.0]),
        (jaxmd.round, [np.inf, -np.inf, np.nan, -0.0, 0.0, -0.0, -0.0]),
    ]:
        oracles.assert_bits(f(x), (np.array(wanted), np.zeros(7), np.zeros(7)), label=f.__name__)
    _, tangent = jax.jvp(jaxmd.floor, (jaxmd.dd("2.5"),), (jaxmd.dd(1),))
    assert float(tangent) == 0


@pytest.mark.parametrize("kind", sorted(inputs.KINDS))
def test_sign_and_abs(kind):
    x = value(kind, 4)
    same(jaxmd.sign(x), np.vectorize(lambda v: (v > 0) - (v < 0), otypes=[object])(exact(x)))
    same(jaxmd.abs(x), abs(exact(x)))


def test_special_values():
    x = jaxmd.asarray(["inf", "-inf", "nan", "-0", "0", "1", "-5e-324"], 3)
    zeros = np.zeros(7)
    oracles.assert_bits(jaxmd.sign(x), (np.array([1, -1, np.nan, -0.0, 0, 1, -1]), zeros, zeros))
    assert np.asarray(jaxmd.isnan(x)).tolist() == [False, False, True, False, False, False, False]
    assert np.asarray(jaxmd.isinf(x)).tolist() == [True, True, False, False, False, False, False]
    assert np.asarray(jaxmd.isfinite(x)).tolist() == [False, False, False, True, True, True, True]
    big = jaxmd.finfo(3).max
    assert bool(jaxmd.isfinite(big)) and not bool(jaxmd.isinf(big)) and bool(jaxmd.isinf(big * 2))


@pytest.mark.parametrize("limbs", [1, 2, 4, 9])
def test_sqrt(limbs):
    x = jaxmd.abs(value("spread", limbs, (9,)))
    root, e = exact(jaxmd.sqrt(x)), exact(x)
    for r, v in zip(root, e, strict=True):  # |r − √v| ≤ 2u √v  ⟸  (r / (1 ± 2u))² straddles v
        u = 2 * oracles.unit(limbs)
        assert (r / (1 + u)) ** 2 <= v <= (r / (1 - u)) ** 2
    special = jaxmd.sqrt(jaxmd.asarray(["4", "-0", "inf"], limbs))
    oracles.assert_bits((special.to_float64(),), (np.array([2.0, -0.0, np.inf]),))
    assert bool(jaxmd.isnan(jaxmd.sqrt(-1)))


@pytest.mark.parametrize("kind", ["full", "cancelling", "limbwise_sums", "integers"])
def test_maximum_minimum_clip(kind):
    x, y = value(kind, 3, (3, 4)), value(kind, 4, (4,), 2)
    for f, g in [(jaxmd.maximum, np.maximum), (jaxmd.minimum, np.minimum)]:
        result = jax.jit(f)(x, y)
        assert result.num_limbs == 4
        same(result, g(exact(x), exact(y)))
    low, high = Fraction(-1, 8), Fraction(1, 16)
    same(jaxmd.clip(x, low, high), np.minimum(np.maximum(exact(x), low), high))
    same(jaxmd.clip(x, upper=high), np.minimum(exact(x), high))


def test_nan_passes_through_maximum():
    x, y = inputs.special_pairs(2)
    for f, g in [(jaxmd.maximum, np.maximum), (jaxmd.minimum, np.minimum)]:
        result = f(jaxmd.from_limbs(*x, normalize=False), jaxmd.from_limbs(*y, normalize=False))
        assert np.array_equal(np.asarray(result), g(x[0], y[0]), equal_nan=True)


# Every function under transformations

FUNCTIONS = {
    "sqrt": lambda x: jaxmd.sqrt(jaxmd.abs(x)),
    "abs": jaxmd.abs,
    "sign": jaxmd.sign,
    "floor": jaxmd.floor,
    "round": jaxmd.round,
    "power": lambda x: x**3,
    "where": lambda x: jaxmd.where(x > 0, x, "0.1"),
    "maximum": lambda x: jaxmd.maximum(x, "0.1"),
    "concatenate": lambda x: jaxmd.concatenate([x, x * 2]),
    "stack": lambda x: jaxmd.stack([x, x]),
    "sum": lambda x: jaxmd.sum(x, 0),
    "prod": lambda x: jaxmd.prod(x, 0),
    "mean": lambda x: jaxmd.mean(x, 0),
    "cumsum": lambda x: jaxmd.cumsum(x, 0),
    "max": lambda x: jaxmd.max(x, 0),
    "min": jaxmd.min,
    "sort": lambda x: jaxmd.sort(x, 0),
    "diag": jaxmd.diag,
    "tril": jaxmd.tril,
    "trace": jaxmd.trace,
    "einsum": lambda x: jaxmd.einsum("ij,kj->ik", x, x + 1),
    "outer": lambda x: jaxmd.outer(x, x[0]),
    "set": lambda x: x.at[0].set(x[1]),
    "add": lambda x: x.at[0].add(x[1]),
    "add repeatedly": lambda x: x[:, 0].at[np.array([0, 0, 1])].add(jaxmd.concatenate([x[1], x[0, :1]])),
    "index": lambda x: x[1],
    "reshape": lambda x: x.reshape(-1),
    "with_limbs": lambda x: x.with_limbs(3).with_limbs(2),
    "linspace": lambda x: jaxmd.linspace(x[0], x[1], 3),
    "clip": lambda x: jaxmd.clip(x, "-0.1", "0.2"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_transformations(name):
    f = FUNCTIONS[name]
    x = value("full", 2, (3, 2, 2))
    rows = [f(x[i]) for i in range(3)]
    mapped = jax.jit(jax.vmap(f))(x)
    for i, row in enumerate(rows):
        oracles.assert_bits(mapped[i], row, label=name)
    _, scanned = jax.lax.scan(lambda carry, v: (carry, f(v)), 0, x)
    oracles.assert_bits(scanned, mapped, label=name)
    # Forward and reverse mode agree: <w, J t> = <J^T w, t>, each side a sum of float64-accurate products at least.
    row, t = x[0], value("full", 2, (2, 2), 5)
    out, tangent = jax.jvp(f, (row,), (t,))
    w = value("full", 2, out.shape, 6)
    _, pull = jax.vjp(f, row)
    (gradient,) = pull(w)
    left, right = (objects(exact(u) * exact(v)).ravel() for u, v in ((w, tangent), (gradient, t)))
    size = sum(abs(left)) + sum(abs(right))
    assert abs(sum(left) - sum(right)) <= 64 * oracles.unit(1) * size
