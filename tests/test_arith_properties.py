"""Arithmetic on whatever hypothesis finds: any finite doubles as limbs, in any order and overlap."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import assert_bits, assert_normalized, assert_within, fractions, from_fractions, unit

import jaxmd._arith as arith

SIZE = 4  # entries of one example
LIMBS = [2, 5]
TINY = Fraction(1, 2**1074)

anything = st.floats(allow_nan=False, allow_infinity=False, width=64)
simple = st.sampled_from(
    [0.0, -0.0, 1.0, -1.0, 1.5, 2.0**-53, 1 + 2.0**-52, -(2.0**-106), 2.0**53, 5e-324, -(2.0**-1022)]
)
ordinary = st.builds(
    lambda x, sign, e: sign * x * 2.0**e, st.floats(0.5, 2), st.sampled_from([1.0, -1.0]), st.integers(-200, 200)
)
examples = settings(max_examples=30, deadline=None, derandomize=True)
every_limb_count = pytest.mark.parametrize("limbs", LIMBS)


def numbers(limbs, entry):
    """`limbs` arrays of SIZE doubles, unrelated to one another."""
    return st.lists(entry, min_size=SIZE * limbs, max_size=SIZE * limbs).map(
        lambda entries: tuple(np.array(entries).reshape(limbs, SIZE))
    )


def unsigned(x):
    """Zeros without their sign."""
    return [np.asarray(limb) + 0.0 for limb in x]


@every_limb_count
def test_add(limbs):
    @examples
    @given(numbers(limbs, anything | simple), numbers(limbs, anything | simple))
    def check(x, y):
        total = arith.add(x, y, limbs)
        assert_bits(unsigned(total), from_fractions(fractions(x) + fractions(y), limbs))
        assert_bits(arith.add(y, x, limbs), total)
        nothing = arith.sub(x, x, limbs)
        assert_bits(nothing, [np.zeros(SIZE)] * limbs)

    check()


@every_limb_count
def test_renormalize(limbs):
    """Correctly rounded, and the second time without a change of value (limbs may: the value may now be a tie)."""

    @examples
    @given(numbers(limbs + 1, anything | simple))
    def check(x):
        once = arith.renormalize(x, limbs)
        assert_bits(unsigned(once), from_fractions(fractions(x), limbs))
        assert np.array_equal(fractions(arith.renormalize(once, limbs)), fractions(once))

    check()


@every_limb_count
def test_mul_and_div(limbs):
    @examples
    @given(numbers(limbs, ordinary | simple), numbers(limbs, ordinary | simple))
    def check(x, y):
        zero = fractions(y) == 0
        y = (np.where(zero, 1.0, y[0]), *(np.where(zero, 0.0, limb) for limb in y[1:]))
        product, quotient = arith.mul(x, y, limbs), arith.div(x, y, limbs)
        exact = np.array([a / b for a, b in zip(fractions(x), fractions(y))], dtype=object)
        # Operands near the end of the range may take the result beyond it: tested elsewhere.
        kept = np.array([abs(q) < 2**1000 for q in exact])
        assert_within(product, fractions(x) * fractions(y), limbs, 1.01, floor=TINY)
        assert_within([np.asarray(limb)[kept] for limb in quotient], exact[kept], limbs, 1.01, floor=TINY)
        assert_normalized(product)
        assert_normalized(quotient)
        assert_bits(arith.mul(y, x, limbs), product)

    check()


@every_limb_count
def test_sqrt_of_square(limbs):
    @examples
    @given(numbers(limbs, ordinary))
    def check(x):
        root = arith.sqrt(arith.mul(x, x, limbs), limbs)
        assert_within(root, abs(fractions(x)), limbs, 2, floor=TINY if limbs > 3 else Fraction(0))

    check()


@every_limb_count
def test_scale_there_and_back(limbs):
    @examples
    @given(numbers(limbs, ordinary), st.lists(st.integers(-600, 600), min_size=SIZE, max_size=SIZE))
    def check(x, exponent):
        e = np.array(exponent, dtype=np.int32)
        scaled = arith.scale(x, e)
        assert_bits(unsigned(scaled), from_fractions(fractions(x) * [Fraction(2) ** n for n in exponent], limbs))
        assert np.array_equal(
            fractions(arith.scale(scaled, -e)), fractions(scaled) * [Fraction(2) ** -n for n in exponent]
        )

    check()


def test_two_sum_and_two_prod():
    @examples
    @given(numbers(2, ordinary | simple))
    def check(x):
        a, b = x
        assert_bits(unsigned(arith.two_sum(a, b)), from_fractions(fractions([a]) + fractions([b]), 2))
        product = fractions([a]) * fractions([b])
        first, second = map(np.asarray, arith.two_prod(a, b))
        error = fractions([first]) + fractions([second]) - product
        assert all(e == 0 or (abs(p) < Fraction(2) ** -968 and abs(e) <= TINY / 2) for e, p in zip(error, product))
        assert np.all(abs(fractions([second])) <= abs(product) * unit(1) + TINY / 2)

    check()
