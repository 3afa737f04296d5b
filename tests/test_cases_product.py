"""Problems of real users with exact answers (tests/cases/*.json name their sources): the matrix product."""

from fractions import Fraction

import inputs
import jax
import numpy as np
import oracles
import pytest

import jaxmd as md

ENGINES = ["int8", "fp64", "direct"]


def matrix(entry, limbs):
    """A case's decimal array as a MultiDouble."""
    return md.asarray(np.array(entry["data"]).reshape(entry["shape"]), limbs)


def rationals(entry):
    return np.array([Fraction(text) for text in entry["data"]], dtype=object).reshape(entry["shape"])


def assert_contract(c, a, b, limbs):
    assert oracles.product_error(c, a, b, limbs) <= 1


@pytest.mark.parametrize("engine", ENGINES)
def test_b01_sum_of_powers_of_two(engine):
    data = inputs.case("B01")
    kinds = {"dd": 2, "qd (200<=212)": 4, "octo (400<=424)": 8, "hexa (800<=848)": 16}
    rows = zip(data["inputs"]["n"], data["expected"]["C"], data["expected"]["smallest_kind_that_is_exact"], strict=True)
    for n, expected, kind in rows:
        limbs = kinds[kind]
        powers = md.asarray([[2**i] for i in range(n)], limbs)
        c = md.matmul(md.ones((1, n), limbs=limbs), powers, engine=engine)
        assert oracles.fractions(c).item() == int(expected)


def splitmix64(seed):
    mask = (1 << 64) - 1
    while True:
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        yield z ^ (z >> 31)


def test_b03_random_quad_doubles():
    data = inputs.case("B03")
    n, limbs = data["inputs"]["n"], data["inputs"]["limbs"]
    draws = splitmix64(20244)

    def entry():
        value = 0
        for _ in range(4):
            value = value << 53 | next(draws) >> 11
        return Fraction(value, 1 << 212)

    a, b = (np.array([entry() for _ in range(n * n)], dtype=object).reshape(n, n) for _ in range(2))
    assert abs(a[0, 0] - Fraction(data["inputs"]["A00"])) < Fraction(1, 10**79)
    c = md.matmul(md.asarray(a, limbs), md.asarray(b, limbs))
    wanted = Fraction(data["expected"]["max_relative_error_wanted"])
    for place, text in data["expected"]["C"].items():
        i, j = map(int, place.split(","))
        exact = a[i] @ b[:, j]
        assert abs(exact / Fraction(text) - 1) < Fraction(1, 10**140)
        assert abs(oracles.fractions(c[i, j]).item() / exact - 1) <= wanted
    total = oracles.fractions(md.sum(c)).item()
    assert abs(total / Fraction(data["expected"]["sum_of_all_entries"]) - 1) <= wanted


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limbs", [2, 4, 8])
def test_b05_rows_spanning_forty_decades(limbs, engine):
    data = inputs.case("B05")
    a, b = matrix(data["inputs"]["A"], limbs), matrix(data["inputs"]["B"], limbs)
    c = md.matmul(a, b, engine=engine)
    assert_contract(c, a, b, limbs)
    exact = rationals(data["inputs"]["A"]) @ rationals(data["inputs"]["B"])  # no entry is negative: |A||B| too
    assert (np.abs(rationals(data["expected"]["C"]) - exact) <= exact / 10**79).all()
    error = np.abs(oracles.fractions(c) - exact)
    assert (error <= 3 * 2 * oracles.unit(limbs) * exact).all()  # operands rounded, then n·eps·|A||B|


@pytest.mark.parametrize("engine", ENGINES)
def test_b06_zero_rows_and_columns(engine):
    data = inputs.case("B06")
    a, b = matrix(data["inputs"]["A"], 2), matrix(data["inputs"]["B"], 2)
    c = md.matmul(a, b, engine=engine)
    assert (oracles.fractions(c) == rationals(data["expected"]["C"])).all()
    zero = md.zeros((3, 3))
    assert (oracles.fractions(md.matmul(zero, zero, engine=engine)) == 0).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_b08_empty_contraction_and_results(engine):
    for m, k, n in inputs.case("B08")["inputs"]["shapes"]:
        c = md.matmul(md.ones((m, k), limbs=4), md.ones((k, n), limbs=4), engine=engine)
        assert c.shape == (m, n) and c.num_limbs == 4
        assert (oracles.fractions(c) == k).all()


@pytest.mark.parametrize("name", ["B14", "B15"])
def test_b14_b15_ill_conditioned_dot_products(name):
    data = inputs.case(name)
    x, y = (np.array([float.fromhex(t) for t in data["inputs"][v]["data"]]) for v in "xy")
    exact = Fraction(data["expected"]["dot"])
    size = sum(abs(Fraction(p) * Fraction(q)) for p, q in zip(x, y, strict=True))
    for limbs, kind in ((2, "dd"), (4, "qd"), (8, "octo"), (16, "hexa")):
        a, b = md.asarray(x, limbs), md.asarray(y, limbs)
        for c in (md.dot(a, b), a @ b, *([md.matmul(a[None], b[:, None], engine="fp64")[0, 0]] if limbs == 4 else [])):
            error = abs(oracles.fractions(c).item() - exact)
            assert error <= oracles.unit(limbs) * (len(x) * size + abs(exact)) + abs(exact) / 10**60
            digits = data["expected"]["digits_due"][kind]
            if 0 < digits < 60:  # none are due where the condition beats the precision; the answer has 60 to 80
                assert error <= abs(exact) / 10**digits


def test_j02_vmap_with_operands_that_do_not_all_carry_the_axis():
    data = inputs.case("J02")
    a = matrix(data["inputs"]["A"], 2)
    stack = md.asarray(np.array(data["inputs"]["B"]), 2)
    wanted = np.array(data["expected"]["C"])
    for engine in ENGINES:
        product = jax.jit(lambda x, y, engine=engine: md.matmul(x, y, engine=engine))
        mapped = jax.vmap(product, (None, 0))(a, stack)
        exact = np.vectorize(Fraction, otypes=[object])(wanted)
        error = np.abs(oracles.fractions(mapped) - exact)
        assert (error <= 4 * oracles.unit(2) * np.abs(exact)).all()
        for i in range(3):
            oracles.assert_bits(mapped[i], product(a, stack[i]))
        flipped = jax.vmap(product, (None, 1), 1)(a, md.asarray(np.array(data["inputs"]["B"]).swapaxes(0, 1), 2))
        nested = jax.vmap(jax.vmap(product, (None, 0)), (None, 0))(a, md.stack([stack, stack]))
        for i in range(3):
            oracles.assert_bits(flipped[:, i], mapped[i])
            oracles.assert_bits(nested[1, i], mapped[i])


@pytest.mark.parametrize("engine", ENGINES)
def test_j06_eager_jit_and_scan_agree_bit_for_bit(engine):
    data = inputs.case("B05")
    a, b = matrix(data["inputs"]["A"], 4), matrix(data["inputs"]["B"], 4)
    eager = md.matmul(a, b, engine=engine)
    jitted = jax.jit(lambda x, y: md.matmul(x, y, engine=engine))(a, b)
    _, scanned = jax.lax.scan(lambda c, x: (c, md.matmul(x, b, engine=engine)), None, a[None])
    oracles.assert_bits(jitted, eager)
    oracles.assert_bits(scanned[0], eager)
    assert_contract(eager, a, b, 4)
