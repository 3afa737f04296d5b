"""exponent_span and direct_matmul, called through the FFI.

`exponent_span` is compared with integers, `direct_matmul` with the bound of its kernel header,
|C − AB| ≤ k·2^-53L·|A||B|/2 + 2^-53L·|C|/2, half a unit of `oracles.product_error`.
"""

import inputs
import numpy as np
import oracles
import pytest
from handler_calls import PLATFORMS, assert_same_output_on_every_isa, call, product_axes

# exponent_span


def exponent_span(platform, e, f):
    shape = (*e.shape[:-1], f.shape[-1])
    return call(platform, "jaxmd_exponent_span", [(shape, np.int16)], e, f)[0]


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(
    "m, k, n",
    [(1, 1, 1), (4, 7, 32), (5, 3, 33), (127, 9, 129), (128, 31, 128), (129, 33, 127), (3, 600, 260), (130, 257, 5)],
)
def test_exponent_span_is_the_max_plus_product(platform, m, k, n):
    rng = inputs.generator("span", m, k, n)
    e, f = (rng.integers(-16000, 16001, shape).astype(np.int16) for shape in [(m, k), (k, n)])
    e[rng.random(e.shape) < 0.3] = -16000
    exact = np.max(e.astype(np.int64)[:, :, None] + f.astype(np.int64)[None], axis=1)
    np.testing.assert_array_equal(exponent_span(platform, e, f), exact)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_exponent_span_keeps_the_least_sum_and_takes_batches(platform):
    low = np.full((2, 3, 5), -16384, np.int16)
    got = exponent_span(platform, low, np.swapaxes(low, 1, 2))
    np.testing.assert_array_equal(got, np.full((2, 3, 3), -32768))
    rng = inputs.generator("span batch")
    e, f = rng.integers(-99, 99, (2, 3, 6, 4)).astype(np.int16), rng.integers(-99, 99, (2, 3, 4, 9)).astype(np.int16)
    np.testing.assert_array_equal(exponent_span(platform, e, f), np.max(e[..., None] + f[..., None, :, :], axis=-2))
    for shape_e, shape_f in [((2, 3, 0), (2, 0, 4)), ((0, 3), (3, 4)), ((0, 2, 3), (0, 3, 4)), ((4, 3), (3, 0))]:
        got = exponent_span(platform, np.zeros(shape_e, np.int16), np.zeros(shape_f, np.int16))
        np.testing.assert_array_equal(got, np.full((*shape_e[:-1], shape_f[-1]), -32000))


# direct_matmul


def exponents(x, axis):
    """The least e with |x| < 2^e over the contracted axis, from leading limbs that carry the value; 0 for zeros."""
    lead = np.abs(x[0]).max(axis=axis, initial=0.0)
    return np.where(lead > 0, np.frexp(lead)[1], 0).astype(np.int32)


def direct_matmul(platform, a, b, limbs):
    out = [(product_axes(a, b), np.float64)] * limbs
    return call(platform, "jaxmd_direct_matmul", out, *a, *b, exponents(a, -1), exponents(b, -2), lhs_limbs=len(a))


def normalized(x):
    return oracles.from_fractions(oracles.fractions(x), len(x))


def check_direct(platform, a, b, limbs, label):
    c = direct_matmul(platform, a, b, limbs)
    oracles.assert_normalized(c, label)
    error = oracles.product_error(c, a, b, limbs)
    assert error <= 0.5, f"{label}: {error} of the bound"


FEW = [(1, 1, 1), (3, 2, 1), (2, 2, 2), (1, 4, 2), (3, 3, 3), (4, 4, 4), (2, 5, 4)]
LIMBS = [*FEW, (5, 5, 5), (8, 8, 8), (16, 16, 16), (3, 17, 17)]  # of a, of b, of the result


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("kind", [*inputs.NORMALIZED, "cancelling"])
def test_direct_matmul_is_within_half_the_bound(platform, kind):
    for i, (na, nb, limbs) in enumerate(LIMBS):
        rng = inputs.generator("direct", kind, i)
        m, k, n = [(3, 1, 5), (5, 2, 3), (2, 40, 18), (3, 400, 2), (1, 1500, 1)][(i + len(kind)) % 5]
        a, b = (normalized(inputs.KINDS[kind](rng, shape, count)) for shape, count in [((m, k), na), ((k, n), nb)])
        a = tuple(limb * 2.0**150 for limb in a)  # 17 limbs of the result stay normal
        check_direct(platform, a, b, limbs, f"{kind} {na} {nb} {limbs} {m}x{k}x{n}")


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("limbs", [1, 2, 3, 4, 5, 8])
def test_direct_matmul_at_every_step_of_its_plan(platform, limbs):
    steps = {1: [1, 2, 3, 33], 2: [1, 2, 35, 36, 49, 83, 176, 177, 470, 1483], 3: [1, 77, 78], 4: [1, 7, 346, 347]}
    for k in [*steps.get(limbs, []), 127, 128, 129, 300]:
        rng = inputs.generator("steps", limbs, k)
        check_direct(platform, inputs.full(rng, (5, k), limbs), inputs.full(rng, (k, 6), limbs), limbs, f"k = {k}")
        # one large term first, which every later error is measured against, and terms that cancel it
        a = inputs.spread(rng, (5, k), limbs)
        b = inputs.spread(rng, (k, 6), limbs)
        if k > 2:
            for limb in a:
                limb[:, -1] = -limb[:, 0]
            for limb in b:
                limb[-1] = limb[0]
        check_direct(platform, a, b, limbs, f"cancelling, k = {k}")


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("limbs", [1, 2, 4, 7])
def test_direct_matmul_over_a_long_inner_axis(platform, limbs):
    k = 2**17 + 5
    rng = inputs.generator("long direct", limbs)
    check_direct(platform, inputs.full(rng, (1, k), limbs), inputs.full(rng, (k, 1), limbs), limbs, "long")


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(
    "m, k, n", [(1, 5, 1), (15, 9, 17), (64, 3, 16), (65, 4, 33), (33, 17, 64), (70, 2, 130), (130, 3, 66)]
)
def test_direct_matmul_of_integers_at_tile_edges(platform, m, k, n):
    for limbs in (1, 2, 3, 4, 8):
        rng = inputs.generator("edges", m, k, n)
        a, b = inputs.integers(rng, (m, k), limbs), inputs.integers(rng, (k, n), limbs)
        c = direct_matmul(platform, a, b, limbs)
        np.testing.assert_array_equal(c[0], a[0].astype(np.int64) @ b[0].astype(np.int64))
        for limb in c[1:]:
            np.testing.assert_array_equal(limb, 0.0)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("limbs", [1, 2, 4])
def test_direct_matmul_of_many_tiles_and_a_long_inner_axis(platform, limbs):
    rng = inputs.generator("tiles", limbs)
    check_direct(platform, inputs.full(rng, (65, 1500), limbs), inputs.full(rng, (1500, 129), limbs), limbs, "tiles")


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("limbs", [1, 2, 3, 4, 5])
def test_direct_matmul_of_few_rows_or_columns(platform, limbs):
    sizes = [(40, 33, 1), (1, 70, 40), (37, 300, 3), (3, 300, 37), (4, 9, 4), (70, 5, 1), (6, 530, 7), (1, 7, 8200)]
    for m, k, n in sizes:
        rng = inputs.generator("skinny", m, k, n)
        a, b = inputs.spread(rng, (m, k), limbs), inputs.spread(rng, (k, n), limbs)
        check_direct(platform, a, b, limbs, f"{m}x{k}x{n}")
    rng = inputs.generator("skinny batch")
    a, b = inputs.full(rng, (3, 5, 8), limbs), inputs.full(rng, (3, 8, 2), limbs)
    assert oracles.product_error(direct_matmul(platform, a, b, limbs), a, b, limbs) <= 0.5


@pytest.mark.parametrize("platform", PLATFORMS)
def test_direct_matmul_with_batch_axes_and_empty_axes(platform):
    for limbs in (2, 5):
        rng = inputs.generator("direct batch", limbs)
        a, b = inputs.full(rng, (3, 2, 4, 6), limbs), inputs.full(rng, (3, 2, 6, 5), limbs)
        c = direct_matmul(platform, a, b, limbs)
        for i in np.ndindex(3, 2):
            assert oracles.product_error(*([limb[i] for limb in x] for x in (c, a, b)), limbs) <= 0.5
        for shape_a, shape_b in [((0, 5), (5, 3)), ((2, 0), (0, 3)), ((2, 5), (5, 0)), ((0, 2, 5), (0, 5, 3))]:
            a, b = (tuple(np.ones(shape) for _ in range(limbs)) for shape in (shape_a, shape_b))
            for limb in direct_matmul(platform, a, b, limbs):
                np.testing.assert_array_equal(limb, np.zeros(product_axes(a, b)))
                assert not np.signbit(limb).any()


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("limbs", [1, 2, 4, 6])
def test_direct_matmul_of_rows_and_columns_of_any_scale(platform, limbs):
    rng = inputs.generator("scales", limbs)
    a, b = inputs.full(rng, (6, 7), limbs), inputs.full(rng, (7, 5), limbs)
    r, s = np.array([-300, 400, 0, 550, -200, 10]), np.array([400, -400, 13, 70, -350])
    a, b = (tuple(np.ldexp(limb, r[:, None]) for limb in a), tuple(np.ldexp(limb, s[None]) for limb in b))
    check_direct(platform, a, b, limbs, "rank-one scalings")
    # far below the largest entry of its row and column, within the header's range
    wide = np.where(rng.random((6, 7)) < 0.5, 2.0**-600, 2.0**60)
    a = tuple(limb * wide for limb in inputs.full(rng, (6, 7), limbs))
    b = tuple(limb / wide[:5].T for limb in inputs.full(rng, (7, 5), limbs))
    check_direct(platform, a, b, limbs, "wide")


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("limbs", [1, 2, 3, 4, 5])
def test_direct_matmul_at_the_ends_of_the_range(platform, limbs):
    zeros = tuple(np.zeros((4, 2)) for _ in range(limbs - 1))
    a = (np.array([[2.0**1023, 2.0**1023], [2.0**1000, 1.0], [-(2.0**1023), 0.0], [5e-324, 0.0]]), *zeros)
    b = (np.array([[2.0, 2.0**-1074, 0.5], [2.0, 2.0**-1074, 0.5]]), *(np.zeros((2, 3)) for _ in zeros))
    c = direct_matmul(platform, a, b, limbs)
    inf = np.inf
    rows = [[inf, 2.0**-50, 2.0**1023], [2.0**1001, 2.0**-74, 2.0**999], [-inf, -(2.0**-51), -(2.0**1022)]]
    np.testing.assert_array_equal(c[0], [*rows, [1e-323, 0, 0]])
    if 1 < limbs <= 4:  # beyond, what is 2^-53L below the largest term may be dropped
        np.testing.assert_array_equal(c[1], [[0, 0, 0], [2.0, 2.0**-1074, 0.5], [0, 0, 0], [0, 0, 0]])
    for limb in c[2:]:
        np.testing.assert_array_equal(limb, 0.0)
    # subnormal entries keep all their bits
    rng = inputs.generator("tiny")
    tiny = inputs.subnormal(rng, (3, 3), limbs)
    big = tuple(limb * 2.0**1000 for limb in inputs.full(rng, (3, 2), limbs))
    check_direct(platform, tiny, big, limbs, "subnormal entries")


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("limbs", [1, 2, 4, 5])
def test_direct_matmul_survives_nonfinite_entries(platform, limbs):
    a = (np.array([[1.0, np.inf], [np.nan, 2.0], [3.0, 4.0]]), *(np.zeros((3, 2)) for _ in range(limbs - 1)))
    b = (np.eye(2), *(np.zeros((2, 2)) for _ in range(limbs - 1)))
    exponent = np.array([2000, -2000, 3], np.int32)  # whatever a scan makes of them
    out = [((3, 2), np.float64)] * limbs
    c = call(platform, "jaxmd_direct_matmul", out, *a, *b, exponent, np.ones(2, np.int32), lhs_limbs=limbs)
    np.testing.assert_array_equal(c[0][2], [3.0, 4.0])


# instruction sets

DIGEST = """
import hashlib, jax
jax.config.update("jax_enable_x64", True)
import inputs, test_product_handlers as t
digest = hashlib.sha256()
for limbs, (m, k, n) in [(1, (5, 40, 19)), (2, (70, 500, 33)), (2, (3, 9, 5)), (3, (4, 90, 17)), (4, (9, 360, 8))]:
    rng = inputs.generator("isa", limbs)
    a, b = inputs.spread(rng, (m, k), limbs), inputs.spread(rng, (k, n), limbs)
    for c in t.direct_matmul("cpu", a, b, limbs):
        digest.update(c.tobytes())
e = rng.integers(-9999, 9999, (70, 300)).astype("int16")
digest.update(t.exponent_span("cpu", e, e.T.copy()).tobytes())
print(digest.hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits():
    assert_same_output_on_every_isa(DIGEST)
