"""exact_matmul, called through the FFI: bit for bit the canonical rounding of products of integers."""

import inputs
import numpy as np
import oracles
import pytest
from handler_calls import PLATFORMS, call, product_axes


def exact_matmul(platform, a, b, flag, c):
    operands = (*a, *b, flag, *c)
    first = len(a) + len(b) + 1
    return call(
        platform,
        "jaxmd_exact_matmul",
        [(limb.shape, np.float64) for limb in c],
        *operands,
        aliases={first + i: i for i in range(len(c))},
        lhs_limbs=len(a),
        rhs_limbs=len(b),
    )


def expected_exact(a, b, limbs):
    """Canonical limbs of the exact product of finite limbs [m, k] and [k, n]."""
    return oracles.from_fractions(oracles.product_fractions(a, b), limbs)


def check_exact(platform, a, b, limbs, label):
    shape = product_axes(a, b)
    c = tuple(np.full(shape, np.nan) for _ in range(limbs))
    got = exact_matmul(platform, a, b, np.ones(shape, np.int8), c)
    for came, wanted in zip(got, expected_exact(a, b, limbs)):
        np.testing.assert_array_equal(came, wanted, err_msg=label)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("kind", [*inputs.KINDS, *inputs.EXTREME])
def test_exact_matmul_is_the_canonical_rounding(platform, kind):
    make = inputs.KINDS.get(kind) or inputs.EXTREME[kind]
    for (na, nb, limbs), (m, k, n) in zip(
        [(1, 1, 1), (2, 2, 2), (4, 3, 5), (8, 8, 16)], [(3, 5, 4), (5, 1, 2), (2, 40, 3)] * 2
    ):
        rng = inputs.generator("exact", kind, na)
        check_exact(platform, make(rng, (m, k), na), make(rng, (k, n), nb), limbs, f"{kind} {na} {nb} {limbs}")


@pytest.mark.parametrize("platform", PLATFORMS)
def test_exact_matmul_over_the_whole_range(platform):
    rng = inputs.generator("range")
    exponents = rng.integers(-1020, 1024, (6, 7))
    a = tuple(np.ldexp(rng.random((6, 7)) - 0.5, exponents - 60 * i) for i in range(3))
    b = tuple(np.ldexp(rng.random((7, 5)) - 0.5, -exponents.T[:, :5] - 60 * i) for i in range(3))
    check_exact(platform, a, b, 4, "range")


@pytest.mark.parametrize("platform", PLATFORMS)
def test_exact_matmul_keeps_every_bit_of_a_cancellation(platform):
    # 2^1023·2^1023 − the same + 2^-1074·2^-1 ... and the largest products with either sign
    top, low = 2.0**1023, 2.0**-1074
    a = (np.array([[top, top, low, 0.75], [top, 1.0, low, -low]]),)
    b = (np.array([[top, top], [-top, 1.0], [2.0**1000, -(2.0**1000)], [low, 2.0**1000]]),)
    check_exact(platform, a, b, 3, "cancellation")


@pytest.mark.parametrize("platform", PLATFORMS)
def test_exact_matmul_rounds_ties_to_even_and_underflows_once(platform):
    limbs = 2
    x = inputs.ties(limbs)
    ones = (np.ones((1, 1)),)
    check_exact(platform, tuple(limb[:, None] for limb in x), ones, limbs, "ties")
    # multiples of 2^-1076, so that halves and quarters of the least double decide
    quarters = (np.arange(-9.0, 10.0)[:, None] * 2.0**-538,)
    check_exact(platform, quarters, (np.full((1, 1), 2.0**-538),), limbs, "subnormal ties")
    # around the overflow threshold 2^1024 − 2^970
    largest = np.finfo(np.float64).max
    pieces = (np.full((3, 1), largest), np.array([[2.0**969], [2.0**970], [2.0**970]]), np.array([[0], [-1.0], [0]]))
    for sign in (1.0, -1.0):
        check_exact(platform, pieces, (np.full((1, 1), sign),), 3, "overflow")


@pytest.mark.parametrize("platform", PLATFORMS)
def test_exact_matmul_leaves_unflagged_entries(platform):
    rng = inputs.generator("flags")
    for m, n, share in [(70, 130, 0.02), (70, 130, 0.5), (9, 33, 0.3), (1, 1, 0.0), (200, 333, 0.001)]:
        a, b = inputs.full(rng, (m, 3), 2), inputs.full(rng, (3, n), 2)
        flag = (rng.random((m, n)) < share).astype(np.int8) * rng.choice(np.array([1, -1, 64], np.int8), (m, n))
        c = tuple(rng.random((m, n)) for _ in range(2))
        got = exact_matmul(platform, a, b, flag, c)
        for came, old, new in zip(got, c, expected_exact(a, b, 2)):
            np.testing.assert_array_equal(came, np.where(flag != 0, new, old), err_msg=f"{m}x{n} {share}")


@pytest.mark.parametrize("platform", PLATFORMS)
def test_exact_matmul_with_batch_axes_and_empty_axes(platform):
    rng = inputs.generator("batch")
    a, b = inputs.full(rng, (2, 3, 4, 5), 2), inputs.full(rng, (2, 3, 5, 6), 3)
    c = tuple(np.zeros((2, 3, 4, 6)) for _ in range(2))
    got = exact_matmul(platform, a, b, np.ones((2, 3, 4, 6), np.int8), c)
    for i in np.ndindex(2, 3):
        wanted = expected_exact(tuple(x[i] for x in a), tuple(x[i] for x in b), 2)
        for came, limb in zip(got, wanted):
            np.testing.assert_array_equal(came[i], limb)
    for shape_a, shape_b in [((0, 5), (5, 3)), ((2, 0), (0, 3)), ((2, 5), (5, 0)), ((0, 2, 5), (0, 5, 3))]:
        a, b = (np.ones(shape_a),), (np.ones(shape_b),)
        shape = product_axes(a, b)
        (got,) = exact_matmul(platform, a, b, np.ones(shape, np.int8), (np.full(shape, 7.0),))
        np.testing.assert_array_equal(got, np.zeros(shape))
        assert not np.signbit(got).any()  # a sum of no terms, like every zero sum, is +0


@pytest.mark.parametrize("platform", PLATFORMS)
def test_exact_matmul_follows_ieee_rules(platform):
    inf, nan = np.inf, np.nan
    # entries of two limbs; a finite entry that is zero as a sum, and entries whose limbs disagree
    entries = [
        (inf, 0.0),
        (-inf, 1.0),
        (nan, 0.0),
        (inf, -inf),
        (1.0, inf),
        (0.0, -0.0),
        (1.0, -1.0),
        (2.0, 0.5),
        (-3.0, 1.0),
        (1e308, 1e308),
    ]
    x = np.array(entries)
    m = len(entries)
    one = tuple(np.stack([x[:, i], np.zeros(m)], axis=1) for i in range(2))  # a_i·b_j + 0·0
    b = tuple(limb.T.copy() for limb in one)
    got = exact_matmul(platform, one, b, np.ones((m, m), np.int8), tuple(np.zeros((m, m)) for _ in range(2)))
    with np.errstate(all="ignore"):
        value = x[:, 0] / 4 + x[:, 1] / 4  # IEEE value up to a factor that keeps the last entry finite
        wanted = np.multiply.outer(value, value)
    special = ~np.isfinite(value)[:, None] | ~np.isfinite(value)[None, :]
    np.testing.assert_array_equal(got[0][special], wanted[special])
    np.testing.assert_array_equal(got[1][special], 0.0)
    assert np.isfinite(got[0][~special & (np.abs(wanted) < 1e300)]).all()
    # sums of infinities, and an inf that meets only finite terms
    a = (np.array([[inf, 1.0, -inf], [inf, 2.0, inf], [1.0, -inf, 1.0], [1.0, 2.0, 3.0]]),)
    b = (np.array([[1.0, -1.0], [1.0, 1.0], [1.0, -2.0]]),)
    (got,) = exact_matmul(platform, a, b, np.ones((4, 2), np.int8), (np.zeros((4, 2)),))
    np.testing.assert_array_equal(got, [[nan, nan], [inf, -inf], [-inf, -inf], [6.0, -5.0]])


@pytest.mark.parametrize("platform", PLATFORMS)
def test_exact_matmul_of_a_long_inner_axis(platform):
    rng = inputs.generator("long")
    a, b = inputs.spread(rng, (2, 3000), 2), inputs.spread(rng, (3000, 3), 2)
    check_exact(platform, a, b, 3, "long")


def test_exact_matmul_names_what_does_not_fit():
    flag, c = np.ones((2, 3), np.int8), (np.zeros((2, 3)),)
    with pytest.raises(Exception, match=r"jaxmd_exact_matmul: a has shape \(2, 4\) and b has shape \(5, 3\)"):
        exact_matmul("cpu", (np.ones((2, 4)),), (np.ones((5, 3)),), flag, c)
    with pytest.raises(Exception, match="flag has shape"):
        exact_matmul("cpu", (np.ones((2, 4)),), (np.ones((4, 3)),), np.ones((3, 2), np.int8), c)
