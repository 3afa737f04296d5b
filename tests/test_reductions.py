"""Sums, products, extremes and sorting of MultiDoubles along axes, compared with rationals."""

import math

import jax
import numpy as np
import oracles
import pytest
from multiple_doubles import exact, objects, same, value

import jaxmd

AXES = [None, 0, 1, -1, (0, 2), (1, 0), (), (0, 1, 2)]


def reduced(f, e, axis, keepdims):
    """f over a list of Fractions, applied along axes of an object array."""
    axes = (
        tuple(range(e.ndim))
        if axis is None
        else tuple(a % e.ndim for a in (axis if axis != () else ()) or ())
        if (isinstance(axis, tuple))
        else (axis % e.ndim,)
    )
    kept = [a for a in range(e.ndim) if a not in axes]
    order = e.transpose([*kept, *sorted(axes)]).reshape(*(e.shape[a] for a in kept), -1)
    out = np.empty(order.shape[:-1], object)
    for index in np.ndindex(out.shape):
        out[index] = f(list(order[index]))
    return out.reshape([1 if a in axes else n for a, n in enumerate(e.shape)]) if keepdims else out


@pytest.mark.parametrize(("kind", "axis"), [("cancelling", 0), *(("spread", axis) for axis in AXES)])
def test_sum(kind, axis):
    x = value(kind, 3, (2, 5, 3))
    for keepdims in (False, True) if axis == 1 else (False,):
        wanted = reduced(sum, exact(x), axis, keepdims)
        scale = reduced(sum, abs(exact(x)), axis, keepdims)
        n = max(2, exact(x).size // max(wanted.size, 1))
        result = jaxmd.sum(x, axis, keepdims)
        oracles.assert_within(result, objects(wanted), 3, 1 + math.ceil(math.log2(n)), scale=objects(scale))


@pytest.mark.parametrize("limbs", [1, 2, 16])
@pytest.mark.parametrize("n", [1, 7, 129, 1000])
def test_long_sums(limbs, n):
    x = value("spread", limbs, (n,))
    wanted, scale = sum(exact(x)), sum(abs(exact(x)))
    result = jaxmd.sum(x)
    oracles.assert_within(result, objects(wanted), limbs, 1, scale=objects(abs(wanted) + scale * oracles.unit(1)))
    oracles.assert_within(result, objects(wanted), limbs, 1 + math.ceil(math.log2(max(n, 2))), scale=objects(scale))
    oracles.assert_normalized(result)


def test_a_sum_that_cancels():
    x = jaxmd.dd(["1e30", "1", "1e-10", "-1e30"])
    assert exact(jaxmd.sum(x))[()] == sum(exact(x)) or abs(exact(jaxmd.sum(x))[()] - sum(exact(x))) <= oracles.unit(
        2
    ) * abs(sum(exact(x)))


@pytest.mark.parametrize("axis", AXES)
def test_prod_and_mean(axis):
    x = value("full", 3, (2, 5, 3)) + 1
    e = exact(x)
    for keepdims in (False, True) if axis == 1 else (False,):
        wanted = reduced(math.prod, e, axis, keepdims)
        n = max(1, e.size // wanted.size)
        oracles.assert_within(jaxmd.prod(x, axis, keepdims), objects(wanted), 3, max(2 * (n - 1) + 0.01, 0.5))
        wanted = reduced(lambda v: sum(v) / len(v), e, axis, keepdims)
        scale = reduced(lambda v: sum(map(abs, v)) / len(v), e, axis, keepdims)
        oracles.assert_within(jaxmd.mean(x, axis, keepdims), objects(wanted), 3, 8, scale=objects(scale))


@pytest.mark.parametrize("n", [0, 1, 3, 21])
def test_cumsum(n):
    x = value("spread", 4, (2, n))
    e = exact(x)
    for axis in (0, -1, None) if n < 4 else (1,):
        wanted = np.cumsum(e, axis) if e.size else e.reshape(-1) if axis is None else e
        scale = np.cumsum(abs(e), axis) if e.size else wanted
        units = 2 * max(1, math.ceil(math.log2(max(2, n * (2 if axis is None else 1)))))
        result = jax.jit(lambda v, a=axis: jaxmd.cumsum(v, a))(x)
        oracles.assert_within(result, objects(wanted), 4, units, scale=objects(scale))


def test_derivatives_of_reductions_keep_all_digits():
    x, w = value("full", 4, (6,)) + 1, value("spread", 4, (6,), 1)
    e, f = exact(x), exact(w)
    ones = jaxmd.ones((), 4)
    _, pull = jax.vjp(lambda v: jaxmd.sum(jaxmd.cumsum(v) * w), x)
    wanted = np.cumsum(f[::-1])[::-1]
    oracles.assert_within(pull(ones)[0], wanted, 4, 16, scale=objects([sum(abs(f))] * 6))
    _, pull = jax.vjp(jaxmd.prod, x)
    wanted = objects([math.prod(e) / v for v in e])
    oracles.assert_within(pull(ones)[0], wanted, 4, 32)
    _, tangent = jax.jvp(jaxmd.cumsum, (x,), (w,))
    oracles.assert_within(tangent, np.cumsum(f), 4, 16, scale=np.cumsum(abs(f)))
    _, pull = jax.vjp(lambda v: jaxmd.max(v * v), x)
    largest = np.argmax(abs(e))
    oracles.assert_within(pull(ones)[0], objects([2 * v * (i == largest) for i, v in enumerate(e)]), 4, 8)


def test_empty_reductions():
    x = jaxmd.zeros((0, 3), 4)
    same(jaxmd.sum(x, 0), [0, 0, 0])
    same(jaxmd.prod(x, 0), [1, 1, 1])
    assert jaxmd.sum(x, 1).shape == (0,) and jaxmd.prod(x, 1).shape == (0,)
    same(jaxmd.sum(x), 0)
    assert bool(jaxmd.isnan(jaxmd.mean(x)))
    for f in (jaxmd.max, jaxmd.min, jaxmd.argmax, jaxmd.argmin):
        with pytest.raises(ValueError, match=r"x has shape \(0, 3\)"):
            f(x, 0)
        assert f(x, 1).shape == (0,)


@pytest.mark.parametrize("f", [jaxmd.sum, jaxmd.prod, jaxmd.mean, jaxmd.max, jaxmd.argmin])
def test_axes_are_checked(f):
    with pytest.raises(ValueError, match=rf"jaxmd\.{f.__name__}: axis is 2 and x has 2 axes"):
        f(jaxmd.ones((2, 2)), 2)
    if f is not jaxmd.argmin:
        with pytest.raises(ValueError, match=r"axis is \(0, -2\); each axis once"):
            f(jaxmd.ones((2, 2)), (0, -2))


@pytest.mark.parametrize(
    ("kind", "axis"),
    [
        *[("full", axis) for axis in (None, 0, -1, (0, 2))],
        *[(kind, 1) for kind in ("alternating", "integers", "limbwise_sums", "cancelling", "zero_rows")],
    ],
)
def test_extremes(kind, axis):
    x = value(kind, 3, (2, 5, 3))
    e = exact(x)
    for f, g in [(jaxmd.max, max), (jaxmd.min, min)]:
        both = jax.jit(lambda v, f=f: [f(v, axis, keepdims) for keepdims in (False, True)])(x)
        for keepdims in (False, True):
            same(both[keepdims], reduced(g, e, axis, keepdims))
    if not isinstance(axis, tuple):
        for f, g in [(jaxmd.argmax, max), (jaxmd.argmin, min)]:
            wanted = reduced(lambda v, g=g: v.index(g(v)), e, axis, False)
            assert np.array_equal(np.asarray(f(x, axis)), wanted.astype(int))
            assert f(x, axis, keepdims=True).ndim == 3


def test_extremes_of_special_values():
    x = jaxmd.asarray(["-inf", "0", "-0", "5e-324", "inf", "1"], 2)
    assert float(jaxmd.max(x)) == np.inf and float(jaxmd.min(x)) == -np.inf
    assert int(jaxmd.argmax(x)) == 4 and int(jaxmd.argmax(x[:4])) == 3 and int(jaxmd.argmin(x[1:4])) == 0
    y = jaxmd.asarray(["1", "nan", "inf", "nan"], 2)
    assert np.isnan(float(jaxmd.max(y))) and np.isnan(float(jaxmd.min(y)))
    assert int(jaxmd.argmax(y)) == 1 and int(jaxmd.argmin(y)) == 1
    assert np.asarray(jaxmd.argsort(jaxmd.asarray(["nan", "1", "-0", "0", "-inf"]))).tolist() == [4, 2, 3, 1, 0]


@pytest.mark.parametrize("kind", ["full", "alternating", "integers", "cancelling"])
def test_sort(kind):
    x = value(kind, 3, (3, 9))
    for axis in (0, 1):
        order = np.argsort(exact(x), axis, kind="stable")
        assert np.array_equal(np.asarray(jaxmd.argsort(x, axis)), order)
        same(jax.jit(lambda v, a=axis: jaxmd.sort(v, a))(x), np.take_along_axis(exact(x), order, axis))
