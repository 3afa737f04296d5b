"""The product against exact integers: contract, hostile operands, shapes, addend, special values.

Bounds are those of `jaxmd.matmul`: error at most 1 in units of k·u^L·|A||B| + u^L·|C| (`oracles.product_error`).
"""

import functools

import inputs
import jax
import numpy as np
import oracles
import pytest

import jaxmd
from jaxmd._matmul import matmul_limbs

ENGINES = ["int8", "fp64", "direct"]


def some(fast, *rest):
    """Parameters of which the rest are slow: every limb count, length and shape compiles a program of its own."""
    groups = [value if isinstance(value, tuple) else (value,) for value in rest]
    return [*fast, *(pytest.param(*group, marks=pytest.mark.slow) for group in groups)]


@functools.partial(jax.jit, static_argnames=("limbs", "engine", "accuracy"))
def product(a, b, addend=None, *, limbs, engine="auto", accuracy="componentwise"):
    return matmul_limbs(a, b, limbs=limbs, engine=engine, accuracy=accuracy, addend=addend)


def error(a, b, *, limbs, engine, **params):
    c = product(a, b, limbs=limbs, engine=engine, **params)
    oracles.assert_normalized(c)
    return oracles.product_error(c, a, b, limbs)


def scaled(x, exponents, axis):
    """x times powers of two along an axis, exactly (in two factors)."""
    shape = [1] * x[0].ndim
    shape[axis] = -1
    e = np.asarray(exponents).reshape(shape)
    return tuple(np.ldexp(np.ldexp(limb, e // 2), e - e // 2) for limb in x)


# --- contract --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limbs", some([1, 2, 4, 8], 3, 16))
@pytest.mark.parametrize("kind", inputs.KINDS)
def test_contract(kind, limbs, engine):
    rng = inputs.generator("contract", kind, limbs)
    a, b = (inputs.KINDS[kind](rng, shape, limbs) for shape in ((5, 33), (33, 6)))
    assert error(a, b, limbs=limbs, engine=engine) <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limbs", some([5], *(set(range(1, 17)) - {5})))
def test_every_limb_count(limbs, engine):
    rng = inputs.generator("limbs", limbs)
    a, b = inputs.full(rng, (3, 17), limbs), inputs.full(rng, (17, 2), limbs)
    assert error(a, b, limbs=limbs, engine=engine) <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limbs", some([2, 4], 1, 8))
@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0, 2.0, 4.0, 12.0])
def test_exponent_spread(spread, limbs, engine):
    rng = inputs.generator("spread", spread, limbs)
    a, b = (inputs.full(rng, shape, limbs, spread) for shape in ((40, 64), (64, 40)))
    assert error(a, b, limbs=limbs, engine=engine) <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limbs", some([2, 8], 1, 3, 4, 16))
def test_rank_one_scalings(limbs, engine):
    reach = {8: 300, 16: 100}.get(limbs, 400)
    rng = inputs.generator("scaling", limbs)
    a, b = inputs.full(rng, (12, 9), limbs), inputs.full(rng, (9, 11), limbs)
    r, s, t = (rng.integers(-reach, reach + 1, n) // (1 if n == 9 else 2) for n in (12, 9, 11))
    assert error(scaled(a, r, 0), scaled(b, t, 1), limbs=limbs, engine=engine) <= 1
    assert error(scaled(scaled(a, r, 0), s, 1), b, limbs=limbs, engine=engine) <= 1
    assert error(scaled(a, s, 1), scaled(b, -s, 0), limbs=limbs, engine=engine) <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limbs", some([2], 1, 4, 8))
def test_rows_from_1e150_to_1e_minus_150(limbs, engine):
    rng = inputs.generator("decades", limbs)
    a, b = inputs.full(rng, (4, 6), limbs), inputs.full(rng, (6, 5), limbs)
    a = scaled(a, [498, -498, 0, 66, -66, -498], 1)
    b = tuple(np.where(np.arange(6)[:, None] == 0, 0.0, limb) for limb in b)  # the huge column meets zeros
    assert error(a, b, limbs=limbs, engine=engine) <= 1
    identity = (np.eye(6), *(np.zeros((6, 6)) for _ in range(limbs - 1)))
    assert error(a, identity, limbs=limbs, engine=engine) <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limbs", some([2], 1, 4))
def test_forty_decades_in_a_row(limbs, engine):
    rng = inputs.generator("forty", limbs)
    a, b = inputs.full(rng, (50, 60), limbs), inputs.full(rng, (60, 50), limbs)
    a = tuple(x * y for x, y in zip(a, [np.exp2(rng.integers(-66, 67, (50, 60)).astype(float))] * limbs))
    b = tuple(x * y for x, y in zip(b, [np.exp2(rng.integers(-66, 67, (60, 50)).astype(float))] * limbs))
    assert error(a, b, limbs=limbs, engine=engine) <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limbs", some([2], 4))
def test_identity_and_triangular_factors(limbs, engine):
    rng = inputs.generator("triangular", limbs)
    a = inputs.full(rng, (48, 48), limbs)
    identity = (np.eye(48), *(np.zeros((48, 48)) for _ in range(limbs - 1)))
    lower, upper = tuple(map(np.tril, a)), tuple(map(np.triu, a))
    for x, y in ((a, identity), (identity, a), (lower, upper), (upper, upper), (lower, lower)):
        assert error(x, y, limbs=limbs, engine=engine) <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("k", some([1, 2, 36], 3, 34, 35, 255, 256, 257, 5000))
@pytest.mark.parametrize("limbs", some([2, 4], 1, 3))
def test_every_length_of_sum(limbs, k, engine):
    rng = inputs.generator("length", limbs, k)
    for make in (inputs.full, inputs.alternating):
        a, b = make(rng, (2, k), limbs), make(rng, (k, 3), limbs)
        assert error(a, b, limbs=limbs, engine=engine) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limbs", [1, 2, 4])
@pytest.mark.parametrize("k", [2**17 - 1, 2**17, 2**17 + 1, 300000])
def test_sums_longer_than_2_to_17(k, limbs, engine):
    rng = inputs.generator("long", limbs, k)
    a, b = inputs.full(rng, (1, k), limbs), inputs.alternating(rng, (k, 2), limbs)
    assert error(a, b, limbs=limbs, engine=engine) <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("m", "k", "n"), some([(1, 1, 1), (65, 63, 32)], (1, 7, 1), (31, 33, 65), (64, 64, 64), (1, 100, 3))
)
def test_shapes(m, k, n, engine):
    rng = inputs.generator("shape", m, k, n)
    a, b = inputs.full(rng, (m, k), 2), inputs.full(rng, (k, n), 2)
    assert error(a, b, limbs=2, engine=engine) <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("shapes", [((3, 0), (0, 4)), ((0, 5), (5, 2)), ((2, 5), (5, 0)), ((0, 0), (0, 0))])
def test_empty_operands(shapes, engine):
    a, b = ((np.ones(s), np.zeros(s)) for s in shapes)
    c = product(a, b, limbs=2, engine=engine)
    wanted = np.zeros((shapes[0][0], shapes[1][1]))
    oracles.assert_bits(c, (wanted, wanted))
    stacked = product(tuple(x[None, None] for x in a), b, limbs=2, engine=engine)
    assert stacked[0].shape == (1, 1, *wanted.shape)


@pytest.mark.parametrize("engine", ENGINES)
def test_limb_counts_may_differ(engine):
    rng = inputs.generator("mixed")
    a, b = inputs.full(rng, (4, 9), 1), inputs.full(rng, (9, 5), 4)
    assert error(a, b, limbs=4, engine=engine) <= 1
    assert error(a, b, limbs=2, engine=engine) <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limbs", some([2], 1, 4, 16))
def test_addend(limbs, engine):
    rng = inputs.generator("addend", limbs)
    a, b = inputs.full(rng, (6, 20), limbs), inputs.full(rng, (20, 5), limbs)
    for d in (inputs.full(rng, (6, 5), limbs), tuple(-x for x in product(a, b, limbs=limbs))):  # the second cancels
        c = product(a, b, d, limbs=limbs, engine=engine)
        assert oracles.product_error(c, a, b, limbs, addend=d) <= 1
    one = tuple(x[:, :1] for x in a), tuple(x[:1] for x in b)
    c = product(*one, d, limbs=limbs, engine=engine)
    assert oracles.product_error(c, *one, limbs, addend=d) <= 1
    nothing = tuple(x[:, :0] for x in a), tuple(x[:0] for x in b)
    assert oracles.product_error(product(*nothing, d, limbs=limbs, engine=engine), *nothing, limbs, addend=d) <= 1


@pytest.mark.parametrize("engine", ["float64", "auto"])
def test_single_limbs_in_float64(engine):
    """Ordinary data, then data that a float64 product gets wrong: overflow, loss below the range, inf and nan."""
    rng = inputs.generator("float64")
    for spread in (0.0, 30.0, 100.0):
        for m, k, n in ((5, 33, 6), (2, 1, 3)):
            a, b = inputs.full(rng, (m, k), 1, spread), inputs.full(rng, (k, n), 1, spread)
            d = inputs.full(rng, (m, n), 1, spread)
            assert error(a, b, limbs=1, engine=engine) <= 1
            assert oracles.product_error(product(a, b, d, limbs=1, engine=engine), a, b, 1, addend=d) <= 1
    big = (np.array([[1e300, 1e300]]),), (np.array([[1e300], [-1e300]]),)
    oracles.assert_bits(product(*big, limbs=1, engine=engine), (np.zeros((1, 1)),))
    tiny = (np.array([[5e-324, 2.0**-1030]]),), (np.array([[2.0**1000], [-(2.0**1000)]]),)
    assert error(*tiny, limbs=1, engine=engine) <= 1
    hole = (np.array([[np.inf, 1.0], [2.0, 3.0], [-0.0, 0.0]]),), (np.array([[0.0], [1.0]]),)
    oracles.assert_bits(product(*hole, limbs=1, engine=engine), (np.array([[np.nan], [3.0], [0.0]]),))
    stacked = np.stack([big[0][0], tiny[0][0]]), np.stack([big[1][0], tiny[1][0]])
    c = jax.vmap(lambda x, y: product((x,), (y,), limbs=1, engine=engine)[0])(*stacked)
    assert oracles.product_error((c,), stacked[:1], stacked[1:], 1) <= 1


# --- special values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("accuracy", ["componentwise", "normwise"])
def test_inf_and_nan_touch_only_their_entries(engine, accuracy):
    if (engine, accuracy) == ("direct", "normwise"):
        pytest.skip("direct has no normwise accuracy; test_refusals sees it refused")
    rng = inputs.generator("nonfinite")
    a, b = inputs.full(rng, (6, 8), 2), inputs.full(rng, (8, 7), 2)
    a[0][1, 3], a[0][2, 0], a[0][4, 5] = np.inf, np.nan, -np.inf
    a[1][1, 3] = a[1][2, 0] = a[1][4, 5] = 0.0
    b[0][3, 2] = b[1][3, 2] = 0.0  # inf · 0
    b[0][5, 6], b[1][5, 6] = np.inf, 0.0
    c = product(a, b, limbs=2, engine=engine, accuracy=accuracy)
    with np.errstate(invalid="ignore"):
        ieee = sum(np.multiply.outer(a[0][:, i], b[0][i]) for i in range(8))
    touched = ~np.isfinite(ieee)
    assert touched[1].all() and touched[:, 6].all() and np.isnan(ieee[1, 2]) and not touched[0, :6].any()
    assert np.array_equal(np.asarray(c[0])[touched], ieee[touched], equal_nan=True)
    assert (np.asarray(c[1])[touched] == 0).all()
    rows, columns = [0, 3, 5], range(6)
    untouched = tuple(np.asarray(x)[np.ix_(rows, columns)] for x in c)
    assert oracles.product_error(untouched, tuple(x[rows] for x in a), tuple(x[:, :6] for x in b), 2) <= 1


@pytest.mark.parametrize("engine", ENGINES)
def test_overflow_is_infinite_and_an_intermediate_one_is_not(engine):
    a = (np.array([[1e300, 1e300], [1e300, -1e300]]), np.zeros((2, 2)))
    b = (np.array([[1e300, 1.0], [1e300, 1.0]]), np.zeros((2, 2)))
    c = product(a, b, limbs=2, engine=engine)
    assert np.asarray(c[0]).tolist() == [[np.inf, 2e300], [0.0, 0.0]]
    assert (np.asarray(c[1])[0, 0], np.asarray(c[1])[1, 0]) == (0.0, 0.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_subnormal_operands_survive(engine):
    a = (np.array([[5e-324, 2.0**-1030]]), np.zeros((1, 2)))
    b = (np.array([[2.0**1000], [-(2.0**1000)]]), np.zeros((2, 1)))
    c = product(a, b, limbs=2, engine=engine)
    assert oracles.fractions(c) == oracles.product_fractions(a, b)


@pytest.mark.parametrize("engine", ENGINES)
def test_zero_rows_give_zeros(engine):
    a = (np.array([[0.0, -0.0], [1.0, 2.0]]), np.zeros((2, 2)))
    b = (np.array([[0.0, 3.0], [-0.0, 4.0]]), np.zeros((2, 2)))
    oracles.assert_bits(product(a, b, limbs=2, engine=engine), (np.array([[0.0, 0], [0, 11]]), np.zeros((2, 2))))


@pytest.mark.parametrize("accuracy", ["componentwise", "normwise", "exact"])
@pytest.mark.parametrize(
    "a, b", [((0, 2, 3), (0, 3, 2)), ((2, 3), (0, 3, 2)), ((1, 40, 40), (0, 40, 40)), ((0, 4), (4, 2))]
)
def test_empty_batches_and_sides(a, b, accuracy):
    c = jaxmd.matmul(jaxmd.zeros(a, 2), jaxmd.zeros(b, 2), engine="int8", accuracy=accuracy)
    assert c.shape == np.matmul(np.zeros(a), np.zeros(b)).shape
    mapped = jax.vmap(lambda x, y: jaxmd.matmul(x, y, accuracy=accuracy))
    assert mapped(jaxmd.zeros((0, 3, 4), 2), jaxmd.zeros((0, 4, 2), 2)).shape == (0, 3, 2)


@pytest.mark.parametrize(
    "arguments, options, said",
    [
        (((3, 4), (5, 2)), {}, "inner dimensions"),
        (((3, 4), (4, 2), 0), {}, "limbs is 0"),
        (((3, 4), (4, 2)), {"platform": "gpu"}, "platform is 'gpu'"),
        (((3, 4), (4, 2)), {"accuracy": "x"}, "accuracy is 'x'"),
    ],
)
def test_choose_engine_says_what_is_wrong(arguments, options, said):
    with pytest.raises(ValueError, match=said):
        jaxmd.choose_engine(*arguments, **options)
