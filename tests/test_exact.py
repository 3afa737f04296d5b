"""accuracy="exact": the exact product rounded once, bit for bit, judged by rational arithmetic."""

import functools

import inputs
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jaxmd._matmul import matmul_limbs

ENGINES = ["int8", "direct"]


@functools.partial(jax.jit, static_argnames=("limbs", "engine"))
def product(a, b, addend=None, *, limbs, engine="auto"):
    return matmul_limbs(a, b, limbs=limbs, engine=engine, accuracy="exact", addend=addend)


def rounded(a, b, limbs, addend=None):
    exact = oracles.product_fractions(a, b)
    return oracles.from_fractions(exact if addend is None else exact + oracles.fractions(addend), limbs)


def column(*values):
    """One column of a number whose lower limbs are zero."""
    return np.array(values)[:, None], np.zeros((len(values), 1))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limbs", [1, 2, 4, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", inputs.KINDS)
def test_rounded_once(kind, limbs, engine):
    rng = inputs.generator("exact", kind, limbs)
    a, b = (inputs.KINDS[kind](rng, shape, limbs) for shape in ((4, 21), (21, 5)))
    oracles.assert_bits(product(a, b, limbs=limbs, engine=engine), rounded(a, b, limbs))


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_that_no_word_holds(engine):
    """1e300 and 1e-300 in one row, entries that cancel, results among and below the subnormal numbers."""
    rng = inputs.generator("no word")
    a, b = inputs.full(rng, (6, 8), 2), inputs.full(rng, (8, 3), 2)
    a[0][0, :2], a[0][1, 3], a[0][2, :2] = (1e300, 1e-300), 2.0**-1070, (1e300, -1e300)
    a[1][0, :2] = a[1][1, 3] = a[1][2, :2] = 0.0
    a = tuple(np.ldexp(x, np.array([0, 0, 0, -1000, -1030, -1074])[:, None]) for x in a)
    oracles.assert_bits(product(a, b, limbs=2, engine=engine), rounded(a, b, 2))


@pytest.mark.parametrize("engine", ENGINES)
def test_ties_and_the_ends_of_the_range(engine):
    half = 2.0**-53
    a = tuple(x.T for x in column(1.0, half, half * 2.0**-900))
    for b in (column(1.0, 1.0, 0.0), column(1.0, 1.0, 1.0), column(1.0, -1.0, -1.0), column(3.0, 1.0, 0.0)):
        for limbs in (1, 2):
            oracles.assert_bits(product(a, b, limbs=limbs, engine=engine), rounded(a, b, limbs))
    top = np.finfo(float).max
    for b in (column(top, top / 2, 0.0), column(top, -top, 0.0), column(top, top, top)):
        a = tuple(x.T for x in column(1.0, half, half))
        with np.errstate(over="ignore"):
            oracles.assert_bits(product(a, b, limbs=2, engine=engine), rounded(a, b, 2))


@pytest.mark.parametrize("engine", ENGINES)
def test_addend_takes_part_in_the_one_rounding(engine):
    rng = inputs.generator("exact addend")
    a, b = inputs.full(rng, (5, 9), 2), inputs.full(rng, (9, 4), 2)
    for d in (inputs.full(rng, (5, 4), 2), inputs.full(rng, (5, 4), 4), tuple(-x for x in rounded(a, b, 2))):
        oracles.assert_bits(product(a, b, d, limbs=2, engine=engine), rounded(a, b, 2, d))
    nothing = tuple(x[:, :0] for x in a), tuple(x[:0] for x in b)
    oracles.assert_bits(product(*nothing, d, limbs=2, engine=engine), d)


def test_same_bits_for_every_batch_order_and_engine():
    rng = inputs.generator("exact batch")
    a, b = inputs.full(rng, (3, 5, 40), 2, 8.0), inputs.full(rng, (40, 4), 2, 8.0)
    a[0][1, 2, 3], a[1][1, 2, 3] = 1e200, 0.0  # one member needs the exact sum
    whole = product(a, b, limbs=2, engine="int8")
    order = rng.permutation(40)
    mapped = jax.vmap(lambda x: product(x, b, limbs=2, engine="int8"))(a)
    shuffled = product(tuple(x[..., order] for x in a), tuple(x[order] for x in b), limbs=2, engine="int8")
    for other in (mapped, shuffled, product(a, b, limbs=2, engine="direct"), product(a, b, limbs=2)):
        oracles.assert_bits(other, whole)
    for i in range(3):
        oracles.assert_bits(tuple(x[i] for x in whole), rounded(tuple(x[i] for x in a), b, 2))


@pytest.mark.parametrize("engine", ENGINES)
def test_inf_nan_zero_and_empty(engine):
    a = (np.array([[1.0, np.inf], [0.0, -0.0], [np.nan, 1.0]]), np.zeros((3, 2)))
    b = (np.array([[0.0, 2.0], [1.0, 0.0]]), np.zeros((2, 2)))
    c = product(a, b, limbs=2, engine=engine)
    oracles.assert_bits(c, (np.array([[np.inf, np.nan], [0.0, 0.0], [np.nan, np.nan]]), np.zeros((3, 2))))
    empty = product(tuple(x[:, :0] for x in a), tuple(x[:0] for x in b), limbs=2, engine=engine)
    oracles.assert_bits(empty, (np.zeros((3, 2)), np.zeros((3, 2))))


def test_refused_where_orders_are_left_out():
    x = (np.ones((2, 2)), np.zeros((2, 2)))
    with pytest.raises(ValueError, match="engine 'fp64' leaves out the low orders"):
        product(x, x, limbs=2, engine="fp64")


@pytest.mark.parametrize("engine", ["int8", "direct"])
def test_limbs_that_end_in_half_an_ulp(engine):
    """2^15 + 2^-38 + 2^-100 in two limbs: the first is rounded up, and the second takes that back with half an ulp."""
    a = (jnp.ones((20, 40)), jnp.zeros((20, 40)))
    powers = jnp.zeros(40).at[:3].set([2.0**15, 2.0**-38, 2.0**-100])
    for scale in (1.0, 2.0**600, 2.0**-700):
        b = (jnp.broadcast_to(scale * powers[:, None], (40, 20)), jnp.zeros((40, 20)))
        c = jax.jit(functools.partial(matmul_limbs, limbs=2, engine=engine, accuracy="exact"))(a, b)
        assert (c[0] == scale * (2.0**15 + 2.0**-37)).all() and (c[1] == -scale * 2.0**-38).all()
