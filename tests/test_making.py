"""Functions that make MultiDoubles, join them and change their layout, compared with rationals."""

from fractions import Fraction

import jax
import numpy as np
import oracles
import pytest
from multiple_doubles import exact, objects, same, value

import jaxmd

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


@pytest.mark.parametrize("join", [jaxmd.concatenate, jaxmd.stack])
def test_joining_nothing_is_refused(join):
    with pytest.raises(ValueError, match=r"no values came; at least one was wanted"):
        join([])
