"""MultiDoubles of hostile kinds, and their exact values, for the tests of arrays and functions."""

import inputs
import numpy as np
import oracles

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


def assert_same_values(x, y):
    assert np.array_equal(exact(x), exact(y))
