"""Random multiple doubles: which values they take, exactly, and how they are distributed."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import arrays, assert_bits, assert_normalized, canonical, fractions

from jaxmd import random

COUNTS = (1, 2, 3, 4, 8, 16)
DRAWS = {"uniform": random.uniform, "normal": random.normal}


@pytest.mark.parametrize("limbs", COUNTS)
def test_uniform_is_a_multiple_of_its_last_bit(limbs):
    x = random.uniform(jax.random.key(limbs), (200,), limbs)
    assert x.shape == (200,) and x.num_limbs == limbs
    assert_normalized(x)
    numerators = fractions(x) * 2 ** (53 * limbs)
    assert all(n.denominator == 1 and 0 <= n < 2 ** (53 * limbs) for n in numerators)
    # every bit is 1 about half the time: each count is binomial(200, 1/2), so 100 ± 50 is 7 standard deviations
    ones = np.array([[int(n) >> i & 1 for i in range(53 * limbs)] for n in numerators]).sum(axis=0)
    assert ones.min() >= 50 and ones.max() <= 150


@pytest.mark.parametrize("limbs", COUNTS)
def test_uniform_fills_the_interval(limbs):
    x = np.sort(np.asarray(random.uniform(jax.random.key(7), (4000,), limbs)))
    distance = np.max(np.abs(x - (np.arange(4000) + 0.5) / 4000)) + 1 / 8000  # Kolmogorov and Smirnov
    assert distance < 2.0 / math.sqrt(4000)  # exceeded with probability 7e-4


@pytest.mark.parametrize("limbs", COUNTS)
def test_normal_is_a_float64_normal_with_a_random_tail(limbs):
    key = jax.random.key(limbs + 100)
    x = random.normal(key, (200,), limbs)
    assert_normalized(x)
    z = np.asarray(jax.random.normal(jax.random.split(key)[0], (200,), jnp.float64))
    tails = []
    for value, leading in zip(fractions(x), z, strict=True):
        unit = Fraction(2) ** (math.frexp(leading)[1] - 53)
        tail = (value - Fraction(float(leading))) / unit
        assert (tail + Fraction(1, 2)) * 2 ** (53 * (limbs - 1)) % 1 == 0 or limbs == 1
        assert -Fraction(1, 2) <= tail < Fraction(1, 2)
        tails.append(tail + Fraction(1, 2))
    if limbs == 1:
        assert_bits(x, (z,))
        return
    ones = np.array([[int(t * 2 ** (53 * (limbs - 1))) >> i & 1 for i in range(53 * (limbs - 1))] for t in tails])
    assert ones.sum(axis=0).min() >= 50 and ones.sum(axis=0).max() <= 150


def test_normal_has_the_moments_of_the_normal_distribution():
    x = np.asarray(random.normal(jax.random.key(0), (40000,), 4))
    assert abs(x.mean()) < 5 / 200 and abs(x.var() - 1) < 5 * math.sqrt(2) / 200
    assert abs((x**3).mean()) < 5 * math.sqrt(15) / 200 and abs((x**4).mean() - 3) < 5 * math.sqrt(96) / 200


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("limbs", [2, 4, 16])
def test_every_limb_is_populated_and_canonical(name, limbs):
    x = DRAWS[name](jax.random.key(3), (50, 4), limbs)
    assert all(np.all(limb != 0) for limb in arrays(x))
    expected = [canonical(value, limbs) for value in fractions(x).ravel()]
    assert_bits([limb.ravel() for limb in arrays(x)], list(np.array(expected).T))


@pytest.mark.parametrize("name", DRAWS)
def test_same_bits_eager_jitted_and_mapped(name):
    draw = DRAWS[name]
    keys = jax.random.split(jax.random.key(1), 3)
    eager = [draw(key, (4,), 3) for key in keys]
    jitted = jax.jit(lambda key: draw(key, (4,), 3))
    for key, x in zip(keys, eager, strict=True):
        assert_bits(jitted(key), x)
    mapped = jax.vmap(lambda key: draw(key, (4,), 3))(keys)
    assert mapped.shape == (3, 4)
    for i, x in enumerate(eager):
        assert_bits(mapped[i], x)
    assert not np.array_equal(eager[0].limbs[0], eager[1].limbs[0])


@pytest.mark.parametrize("name", DRAWS)
def test_shapes_counts_and_keys(name):
    draw = DRAWS[name]
    assert draw(jax.random.key(0)).shape == () and draw(jax.random.key(0)).num_limbs == 2
    assert draw(jax.random.key(0), 3).shape == (3,) and draw(jax.random.key(0), [2, 0]).shape == (2, 0)
    assert_bits(draw(jax.random.PRNGKey(5), (3,)), draw(jax.random.key(5), (3,)))
    with pytest.raises(ValueError, match=rf"jaxmd\.random\.{name}: limbs is 17"):
        draw(jax.random.key(0), (), 17)
    with jax.enable_x64(False), pytest.raises(TypeError, match=rf"jaxmd\.random\.{name}: .*jax_enable_x64 is off"):
        draw(jax.random.key(0))
