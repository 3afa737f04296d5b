"""Problems of real users with exact answers (tests/cases/*.json name their sources): arithmetic and two_sum."""

import math
from fractions import Fraction

import inputs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import assert_bits, assert_normalized, assert_within, canonical, fractions, from_fractions, unit

import jaxmd._arith as arith

LIMBS = [2, 4, 8, 16]


def number(texts, limbs):
    """Decimal texts as limbs, each correctly rounded; inf, nan and −0 too."""
    values = [
        canonical(Fraction(t), limbs) if special(t) is None else (special(t), *[0.0] * (limbs - 1)) for t in texts
    ]
    return tuple(jnp.array([value[i] for value in values]) for i in range(limbs))


def special(text):
    value = float(text)
    return value if not math.isfinite(value) or value == 0 else None


@pytest.mark.parametrize("limbs", LIMBS)
def test_a01_division_by_signed_zero(limbs):
    data = inputs.case("A01")
    x, y = (number(data["inputs"][name]["data"], limbs) for name in "xy")
    expected = number(data["expected"]["z"]["data"], limbs)
    assert_bits(arith.div(x, y, limbs), expected)
    assert_bits(jax.jit(lambda x, y: arith.div(x, y, limbs))(x, y), expected)


@pytest.mark.parametrize("limbs", LIMBS)
@pytest.mark.parametrize("name", ["A02", "A04"])
def test_a02_a04_infinity_and_overflow(name, limbs):
    data = inputs.case(name)
    for (op, x, y), z in zip(data["inputs"]["rows"], data["expected"]["z"], strict=True):
        x, y = number([x], limbs), number([y], limbs)
        result = getattr(arith, op)(x, y, limbs)
        assert_normalized(result)
        if special(z.split()[0]) is None:
            # Representable, while its low limbs are not: what is lost is below the smallest double.
            exact = fractions(x) / fractions(y)
            assert_within(result, exact, limbs, 1.01, floor=Fraction(1, 2**1074))
        else:
            assert_bits(result, number([z], limbs), f"{op} {limbs}")
        if op in ("add", "mul"):
            assert_bits(getattr(arith, op)(y, x, limbs), result)


@pytest.mark.parametrize("limbs", LIMBS)
def test_a12_eighth_power(limbs):
    data = inputs.case("A12")
    a, b = (number([data["inputs"][name]], limbs) for name in "ab")
    power = arith.div(a, b, limbs)
    for _ in range(3):
        power = arith.mul(power, power, limbs)
    exact = Fraction(int(data["inputs"]["a"]), int(data["inputs"]["b"])) ** 8
    # Eight times the error of the quotient, and that of the squarings on the way: 8 + 4 + 2 + 1.
    assert_within(power, np.array([exact], dtype=object), limbs, 1.01 * 15)
    assert exact == Fraction(data["expected"]["value"])
    if limbs == 2:
        digits = data["expected"]["dd_min_correct_digits"]
        assert abs(fractions(power)[0] - exact) <= exact / 10**digits


def test_a15_givens_rotation():
    data = inputs.case("A15")
    limbs = 4
    a, b = (tuple(np.array([float.fromhex(h)]) for h in data["inputs"][f"{name}_limbs_hex"]) for name in "ab")
    square = lambda x: arith.mul(x, x, limbs)
    radius = arith.sqrt(arith.add(square(a), square(b), limbs), limbs)
    c, s = arith.div(a, radius, limbs), arith.div(b, radius, limbs)
    for came, name in ((c, "c"), (s, "s")):
        exact = Fraction(data["expected"][name])
        given = abs(exact) / 10 ** (len(data["expected"][name].split("e")[0]) - 3)  # digits of the case's answer
        assert_within(came, np.array([exact], dtype=object), limbs, 4, floor=given)
    defect = arith.sub(arith.add(square(c), square(s), limbs), number(["1"], limbs), limbs)
    assert abs(fractions(defect)[0]) <= min(Fraction(data["expected"]["c2_plus_s2_minus_1_abs_max"]), 8 * unit(limbs))


def test_a18_two_sum_and_two_prod_survive_compilation():
    rows = inputs.case("A18")["inputs"]["rows"]
    column = lambda key: jnp.array([float.fromhex(row[key]) for row in rows])
    a, b = column("a"), column("b")
    for pair, name in ((arith.two_sum, "sum"), (arith.two_prod, "prod")):
        expected = [column(f"{name}_hi"), column(f"{name}_lo")]
        op = (lambda x, y: x + y) if name == "sum" else (lambda x, y: x * y)
        assert_bits(expected, from_fractions(op(fractions([a]), fractions([b])), 2), "the case itself")

        def filled(i, out, pair=pair):
            return tuple(column.at[i].set(value) for column, value in zip(out, pair(a[i], b[i])))

        zeros = (jnp.zeros(len(rows)), jnp.zeros(len(rows)))
        assert_bits(pair(a, b), expected, "eager")
        assert_bits(jax.jit(pair)(a, b), expected, "jit")
        assert_bits(jax.vmap(jax.jit(pair))(a, b), expected, "vmap(jit)")
        assert_bits(jax.lax.scan(lambda c, ab: (c, pair(*ab)), 0, (a, b))[1], expected, "scan")  # noqa: B023
        assert_bits(jax.lax.fori_loop(0, len(rows), filled, zeros), expected, "fori_loop")
