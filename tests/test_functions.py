"""Functions on MultiDoubles: making, joining, elementwise, reductions and contractions, compared with rationals."""

import math
from fractions import Fraction

import inputs
import jax
import numpy as np
import oracles
import pytest

import jaxmd


def value(kind, limbs, shape=(3, 4), seed=0):
    """A MultiDouble of one of the hostile kinds, as it is."""
    limb_arrays = inputs.KINDS[kind](inputs.generator(kind, limbs, shape, seed), shape, limbs)
    return jaxmd.from_limbs(*limb_arrays, normalize=False)


def exact(x):
    return oracles.fractions(x)


def objects(x):
    return np.asarray(x, dtype=object)


def same(x, wanted):
    assert x.shape == np.shape(wanted)
    assert np.array_equal(exact(x), objects(wanted))


# Making


@pytest.mark.parametrize("limbs", [1, 2, 7, 16])
def test_constants(limbs):
    for x, wanted in [
        (jaxmd.zeros((2, 3), limbs), np.zeros((2, 3))),
        (jaxmd.zeros(3, limbs=limbs), np.zeros(3)),
        (jaxmd.ones((), limbs), np.ones(())),
        (jaxmd.eye(3, limbs=limbs), np.eye(3)),
        (jaxmd.eye(2, 4, 1, limbs), np.eye(2, 4, 1)),
        (jaxmd.full((2, 2), 7, limbs), np.full((2, 2), 7.0)),
        (jaxmd.full(2, [1, 2], limbs), np.array([1.0, 2.0])),
        (jaxmd.ones_like(jaxmd.zeros((2, 1), limbs)), np.ones((2, 1))),
        (jaxmd.zeros_like(jaxmd.ones((2, 1), limbs)), np.zeros((2, 1))),
    ]:
        oracles.assert_bits(x, (wanted, *(np.zeros_like(wanted) for _ in range(limbs - 1))))
    assert jaxmd.full((), "0.1", limbs).num_limbs == limbs
    same(jaxmd.full((2,), Fraction(1, 3), limbs), [oracles.fractions(jaxmd.asarray("1/3", limbs))[()]] * 2)


@pytest.mark.parametrize("make", [jaxmd.zeros, jaxmd.ones, jaxmd.eye])
def test_limb_counts_are_checked(make):
    for limbs in (0, 17, -1):
        with pytest.raises(ValueError, match=rf"limbs is {limbs}; 1 to 16 was wanted"):
            make(2, limbs=limbs)
    with pytest.raises(TypeError, match=r"limbs is 2\.0; an integer"):
        make(2, limbs=2.0)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ((5,), range(5)),
        ((2, 7), range(2, 7)),
        ((7, 2, -2), [7, 5, 3]),
        ((0, 1, "0.1"), [Fraction(i, 10) for i in range(10)]),
        ((0, 1, 0.1), [i * Fraction(0.1) for i in range(10)]),
        (("1/3", 2, "1/3"), [Fraction(i, 3) for i in range(1, 6)]),
        ((1, 1), []),
        ((3, 1), []),
        ((2**80, 2**80 + 3), [2**80, 2**80 + 1, 2**80 + 2]),
        ((-1, "1e-30", Fraction(1, 2)), [-1, Fraction(-1, 2), 0]),
    ],
)
@pytest.mark.parametrize("limbs", [3])
def test_arange(arguments, wanted, limbs):
    x = jaxmd.arange(*arguments, limbs=limbs)
    exact_values = objects([Fraction(w) for w in wanted])
    assert x.shape == exact_values.shape
    start, step = (Fraction(0), Fraction(1)) if len(arguments) == 1 else (Fraction(arguments[0]), Fraction(1))
    step = Fraction(arguments[2]) if len(arguments) == 3 else step
    scale = objects([abs(start) + i * abs(step) for i in range(len(exact_values))])
    oracles.assert_within(x, exact_values, limbs, 4, scale=scale)


def test_arange_errors():
    with pytest.raises(ValueError, match=r"jaxmd\.arange: step is 0"):
        jaxmd.arange(0, 1, 0)
    with pytest.raises(ValueError, match="stop is MultiDouble"):
        jaxmd.arange(0, "inf")
    with pytest.raises(ValueError, match="start is MultiDouble"):
        jaxmd.arange([0, 1], 2)
    assert jaxmd.arange(jaxmd.qd(1), 3).num_limbs == 4 and jaxmd.arange(3).num_limbs == 2


@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize("num", [0, 1, 2, 3, 10, 49])
def test_linspace(num, endpoint):
    x = jaxmd.linspace("0.1", "-2/3", num, endpoint, limbs=4)
    start, stop = exact(jaxmd.qd("0.1"))[()], exact(jaxmd.qd("-2/3"))[()]
    parts = max(num - 1 if endpoint else num, 1)
    wanted = objects([start + (stop - start) * Fraction(i, parts) for i in range(num)])
    assert x.shape == (num,)
    oracles.assert_within(x, wanted, 4, 8, scale=objects([max(abs(start), abs(stop))] * num))
    if num:
        assert exact(x)[0] == start
    if num > 1 and endpoint:
        assert exact(x)[-1] == stop


def test_linspace_of_arrays():
    a, b = value("full", 3, (2, 1)), value("full", 2, (3,), 1)
    x = jaxmd.linspace(a, b, 5)
    assert x.shape == (5, 2, 3) and x.num_limbs == 3
    wanted = objects([exact(a) + (exact(b) - exact(a)) * Fraction(i, 4) for i in range(5)])
    largest = np.maximum(abs(exact(a)), abs(exact(b)))
    oracles.assert_within(x, wanted, 3, 8, scale=objects([largest] * 5))
    ends = exact(jax.jit(lambda u, v: jaxmd.linspace(u, v, 5))(a, b))[[0, -1]]
    assert np.array_equal(ends, wanted[[0, -1]])
    with pytest.raises(ValueError, match="num is -1"):
        jaxmd.linspace(0, 1, -1)


def test_finfo():
    for limbs, digits, tiny in [(2, 31, -969), (3, 47, -916), (4, 63, -863), (8, 127, -651), (16, 255, -227)]:
        info = jaxmd.finfo(limbs)
        assert (info.limbs, info.bits, info.digits, info.tiny) == (limbs, 53 * limbs, digits, 2.0**tiny)
        assert Fraction(info.unit) == oracles.unit(limbs) and Fraction(info.eps) == 2 * oracles.unit(limbs)
        largest = info.max
        oracles.assert_bits(largest, oracles.from_fractions(exact(largest), limbs))
        oracles.assert_normalized(largest)
        assert bool(largest < np.inf) and bool(-largest == info.min)
        last = exact(largest)[()] + Fraction(2) ** (1023 - 54 * (limbs - 1) - 52)
        assert oracles.canonical(last, limbs) != tuple(float(v) for v in largest.limbs)
    with pytest.raises(ValueError, match=r"jaxmd\.finfo: limbs is 0"):
        jaxmd.finfo(0)


# Joining and layout


def test_joining_takes_the_largest_count():
    x, y = value("full", 2, (2, 3)), value("cancelling", 5, (1, 3), 1)
    z = jaxmd.concatenate([x, y, np.ones((1, 3))])
    assert z.num_limbs == 5
    same(z, np.concatenate([exact(x), exact(y), np.ones((1, 3), int)]))
    same(jaxmd.concatenate([x, x], axis=-1), np.concatenate([exact(x)] * 2, axis=-1))
    rows = jaxmd.stack([x[0], y[0], x[1]], axis=1)
    same(rows, np.stack([exact(x)[0], exact(y)[0], exact(x)[1]], axis=1))
    scalars = jaxmd.stack([jaxmd.qd("0.1"), 2, 0.5, "0.25"])
    same(scalars, [exact(jaxmd.qd("0.1"))[()], 2, Fraction(1, 2), Fraction(1, 4)])


def test_where():
    x, y = value("full", 2, (3, 4)), value("full", 4, (4,), 1)
    mask = np.arange(12).reshape(3, 4) % 3 == 0
    for f in (jaxmd.where, jax.jit(jaxmd.where)):
        z = f(mask, x, y)
        assert z.num_limbs == 4
        same(z, np.where(mask, exact(x), exact(y)[None]))
    same(jaxmd.where(mask[:1], x, 0), np.where(mask[:1], exact(x), 0))
    same(jaxmd.where(True, "0.1", x), np.full((3, 4), exact(jaxmd.dd("0.1"))[()]))
    assert bool(jaxmd.isnan(jaxmd.where(False, 1, "nan")))
    with pytest.raises(ValueError, match=r"jaxmd\.where: operands have shapes"):
        jaxmd.where(mask, jaxmd.ones(3), 0)


def test_layout_functions():
    x = value("full", 3, (1, 3, 4))
    e = exact(x)
    same(jaxmd.broadcast_to(x, (2, 3, 4)), np.broadcast_to(e, (2, 3, 4)))
    same(jaxmd.reshape(x, (4, -1)), e.reshape(4, -1))
    same(jaxmd.transpose(x), e.T)
    same(jaxmd.transpose(x, (1, 0, 2)), e.transpose(1, 0, 2))
    same(jaxmd.squeeze(x), e.squeeze())
    same(jaxmd.expand_dims(x, (0, 2)), np.expand_dims(e, (0, 2)))
    with pytest.raises(
        ValueError, match=r"jaxmd\.broadcast_to: x has shape \(1, 3, 4\); one that broadcasts to \(3,\)"
    ):
        jaxmd.broadcast_to(x, (3,))
    assert jaxmd.broadcast_to(1, 3).shape == (3,)


@pytest.mark.parametrize("k", [-2, -1, 0, 1, 3])
def test_diagonals_and_triangles(k):
    x = value("full", 3, (3, 4))
    e = exact(x)
    same(jaxmd.diag(x, k), np.diag(e, k))
    same(jaxmd.tril(x, k), np.tril(e, k))
    same(jaxmd.triu(x, k), np.triu(e, k))
    matrix = np.zeros((3 + abs(k), 3 + abs(k)), object)
    for i in range(3):
        matrix[i - min(k, 0), i + max(k, 0)] = e[i, 0]
    same(jaxmd.diag(x[:, 0], k), matrix)


def test_copies():
    x = value("full", 4, (3,))
    weights = [value("spread", 4, (3,), i) for i in range(5)]

    def f(v):
        return [c * w for c, w in zip(jaxmd.copies(v, 5), weights, strict=True)]

    _, pull = jax.vjp(f, x)
    (gradient,) = pull([jaxmd.ones(3, 4)] * 5)
    wanted = sum(exact(w) for w in weights)
    oracles.assert_within(gradient, wanted, 4, 4, scale=sum(abs(exact(w)) for w in weights))
    for c in jaxmd.copies(x, 2):
        oracles.assert_bits(c, x)
    with pytest.raises(ValueError, match=r"jaxmd\.copies: n is 0"):
        jaxmd.copies(x, 0)


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


# Reductions

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


# Contractions


def test_trace():
    x = value("full", 3, (4, 5, 2))
    e, size = exact(x), abs(exact(x))
    oracles.assert_within(jaxmd.trace(x), objects(np.trace(e)), 3, 4, scale=objects(np.trace(size)))
    wanted, scale = np.trace(e, 1, 2, 1), np.trace(size, 1, 2, 1)
    oracles.assert_within(jaxmd.trace(x, 1, 2, 1), objects(wanted), 3, 4, scale=objects(scale))


def test_outer():
    x, y = value("full", 3, (4,)), value("spread", 2, (2, 3), 1)
    oracles.assert_within(jaxmd.outer(x, y), np.multiply.outer(exact(x), exact(y).ravel()), 3, 2)


@pytest.mark.parametrize(
    ("a", "b"), [((), ()), ((3,), ()), ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)),
                 ((5, 2, 3), (3,)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((6, 2, 3), (5, 3, 4)), ((2, 0), (0, 3))]
)  # fmt: skip
def test_dot(a, b):
    x, y = value("full", 3, a), value("full", 2, b, 1)
    wanted, scale = (objects(np.dot(u, v)) for u, v in ((exact(x), exact(y)), (abs(exact(x)), abs(exact(y)))))
    if wanted.size and 0 in a:
        wanted = scale = np.zeros(wanted.shape, int).astype(object)
    oracles.assert_within(jaxmd.dot(x, y), wanted, 3, 2 + 3, scale=scale)
    with pytest.raises(ValueError, match=r"jaxmd\.dot: a has shape \(2,\) and b has shape \(3,\)"):
        jaxmd.dot(jaxmd.ones(2), jaxmd.ones(3))


SUBSCRIPTS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("ij,kj->ki", (2, 3), (4, 3)),
    ("i,i", (3,), (3,)),
    ("i,i->i", (3,), (3,)),
    ("i,j->ji", (3,), (2,)),
    ("ij,ij->", (2, 3), (2, 3)),
    ("ij,ji->", (2, 3), (3, 2)),
    ("bij,bjk->bik", (2, 2, 3), (2, 3, 2)),
    ("bij,bjk->kbi", (2, 2, 3), (2, 3, 2)),
    ("ijk,jl->ilk", (2, 3, 2), (3, 4)),
    ("ijkl,jlm->ikm", (2, 3, 2, 2), (3, 2, 2)),
    ("ii,ij->j", (3, 3), (3, 2)),
    ("ij,k->k", (2, 3), (4,)),
    ("ij,jk->i", (2, 3), (3, 4)),
    ("...ij,...jk->...ik", (5, 2, 3), (3, 4)),
    ("...ij,...jk->...ik", (5, 1, 2, 3), (4, 3, 2)),
    ("...ij,j", (2, 2, 3), (3,)),
    ("i...,i...->...", (3, 2), (3, 2)),
    ("i...,...j->j...i", (3, 2), (2, 4)),
    ("...i,...i->...", (1, 3), (4, 3)),
    (" i j , j -> i ", (2, 3), (3,)),
    ("ij,jk->ik", (2, 0), (0, 4)),
    (",i->i", (), (3,)),
    ("ii", (3, 3), None),
    ("ii->i", (3, 3), None),
    ("ij->ji", (2, 3), None),
    ("ij->", (2, 3), None),
    ("...i->...", (2, 2, 3), None),
    ("iij->ji", (2, 2, 3), None),
    ("ba", (2, 3), None),
]


@pytest.mark.parametrize(("subscripts", "a", "b"), SUBSCRIPTS)
def test_einsum(subscripts, a, b):
    shapes = [a] if b is None else [a, b]
    values = [value("full", 3 - i, shape, i) for i, shape in enumerate(shapes)]
    wanted = einsum_of_integers(subscripts, *(exact(v) for v in values))
    scale = einsum_of_integers(subscripts, *(abs(exact(v)) for v in values))
    f = lambda *v: jaxmd.einsum(subscripts, *v)
    oracles.assert_within(jax.jit(f)(*values), wanted, 3, 64, scale=scale, label=subscripts)


def einsum_of_integers(subscripts, *operands):
    """numpy's einsum on exact integers: Fractions over one power of two for each operand."""
    integers, exponent = [], 0
    for x in operands:
        x = objects(x)
        shift = max((v.denominator.bit_length() - 1 for v in x.ravel()), default=0)
        integers.append(np.vectorize(lambda v, s=shift: int(v * 2**s), otypes=[object])(x) if x.size else x)
        exponent += shift
    result = objects(np.einsum(subscripts, *integers))
    return objects(np.vectorize(lambda v: Fraction(int(v), 2**exponent), otypes=[object])(result))


def test_einsum_errors():
    x = jaxmd.ones((2, 3))
    for subscripts, operands, match in [
        ("ij,jk", (x,), "1 operands came; 'ij,jk' wants 2"),
        ("ij,jk", (x, x), "'j' of 'ij,jk' has lengths 3 and 2"),
        ("i,j", (x, x), r"'i' of 'i,j' for shape \(2, 3\)"),
        ("ij->ik", (x,), "result 'ik' of 'ij->ik'"),
        ("ij->ii", (x,), "result 'ii'"),
        ("i1,jk", (x, x), "one letter an axis"),
        ("ii->i", (x,), "'i' of 'ii->i' has lengths 2 and 3"),
    ]:
        with pytest.raises(ValueError, match=match):
            jaxmd.einsum(subscripts, *operands)
    with pytest.raises(NotImplementedError, match="3 operands came; one or two"):
        jaxmd.einsum("ij,jk,kl", x, x, x)


def test_einsum_and_its_derivative_keep_all_digits():
    x, y = value("full", 4, (2, 3)), value("full", 4, (3, 2), 1)
    _, pull = jax.vjp(lambda a, b: jaxmd.einsum("ij,jk->ki", a, b), x, y)
    dx, dy = pull(jaxmd.ones((2, 2), 4))
    sums = exact(y).sum(axis=1)
    oracles.assert_within(dx, objects([sums, sums]), 4, 8, scale=objects([abs(exact(y)).sum(axis=1)] * 2))
    sums = exact(x).sum(axis=0)
    oracles.assert_within(dy, objects([sums, sums]).T, 4, 8, scale=objects([abs(exact(x)).sum(axis=0)] * 2).T)


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


@pytest.mark.parametrize("join", [jaxmd.concatenate, jaxmd.stack])
def test_joining_nothing_is_refused(join):
    with pytest.raises(ValueError, match=r"no values came; at least one was wanted"):
        join([])
