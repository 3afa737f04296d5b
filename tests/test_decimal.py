"""Exact limbs ↔ text and numbers, judged by rational arithmetic and by the definition of round-to-nearest."""

import decimal
import math
import sys
import time
from fractions import Fraction

import flint
import inputs
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxmd._decimal import limbs_to_text, number_to_limbs, text_to_limbs
from jaxmd._rational import dyadic_to_limbs, limbs_to_fraction, ratio_to_limbs

MAX = sys.float_info.max
TOP = Fraction(2) ** 1024 - Fraction(2) ** 970  # from here on round-to-nearest gives inf
COUNTS = (1, 2, 3, 4, 8, 16)


def is_even(x: float) -> bool:
    return int(abs(x) / math.ulp(x)) % 2 == 0


def assert_canonical(value: Fraction, limbs: tuple[float, ...]) -> None:
    """Each limb is the double nearest to what the limbs before it leave, by comparison with both its neighbours."""
    if abs(value) >= TOP:
        assert limbs == (math.inf if value > 0 else -math.inf,) + (0.0,) * (len(limbs) - 1)
        return
    rest = value
    for i, x in enumerate(limbs):
        error = abs(rest - Fraction(x))
        for y in (math.nextafter(x, math.inf), math.nextafter(x, -math.inf)):
            if math.isinf(y):
                continue
            other = abs(rest - Fraction(y))
            assert error <= other, (i, x.hex(), y.hex(), rest)
            assert error < other or is_even(x), (i, x.hex(), y.hex(), rest)
        assert x != 0 or i == 0 or math.copysign(1, x) == 1
        rest -= Fraction(x)


def bits(limbs: tuple[float, ...]) -> list[str]:
    return [x.hex() for x in limbs]


doubles = st.floats(allow_nan=False, allow_infinity=False)
counts = st.sampled_from(COUNTS)


@st.composite
def values(draw: st.DrawFn) -> Fraction:
    """Rationals at corners: sums of doubles with gaps, halfway cases, decimals, powers of two, the range ends."""
    kind = draw(st.sampled_from(["sum", "ratio", "decimal", "halfway", "edge"]))
    if kind == "sum":
        return sum((Fraction(x) for x in draw(st.lists(doubles, min_size=1, max_size=5))), Fraction(0))
    if kind == "ratio":
        big = st.integers(-(10**60), 10**60)
        return Fraction(draw(big), draw(st.integers(1, 10**60))) * Fraction(2) ** draw(st.integers(-900, 900))
    if kind == "decimal":
        return Fraction(draw(st.integers(-(10**40), 10**40))) * Fraction(10) ** draw(st.integers(-350, 300))
    if kind == "halfway":
        x = draw(doubles)
        tiny = draw(st.sampled_from([0, 1, -1])) * Fraction(2) ** -draw(st.integers(1000, 1200))
        return Fraction(x) + Fraction(math.ulp(x)) / 2 + tiny
    power = Fraction(2) ** draw(st.integers(-1080, 1024))
    return draw(st.sampled_from([1, -1])) * (
        power + draw(st.integers(-2, 2)) * power / 2 ** draw(st.integers(50, 1100))
    )


@given(values(), counts)
def test_ratio_rounds_canonically(value, count):
    assert_canonical(value, ratio_to_limbs(value.numerator, value.denominator, count))


@given(st.integers(-(2**200), 2**200), st.integers(-1300, 1100), counts)
def test_dyadic_rounds_canonically(num, exponent, count):
    limbs = dyadic_to_limbs(num, exponent, count)
    value = num * Fraction(2) ** exponent
    assert_canonical(value, limbs)
    assert len(limbs) == count


@given(st.decimals(allow_nan=False, allow_infinity=False, places=None), counts)
def test_decimal_text_is_exact(number, count):
    value = Fraction(number) if abs(number.adjusted()) < 5000 else None
    limbs = text_to_limbs(str(number), count)
    if value is not None:
        assert_canonical(value, limbs)
    assert bits(limbs) == bits(number_to_limbs(number, count))
    assert math.copysign(1, limbs[0]) == (-1 if number.is_signed() else 1)


@given(doubles)
def test_hexadecimal_text(x):
    assert bits(text_to_limbs(x.hex(), 2)) == bits((x, 0.0))


@given(st.integers(), st.integers(1), counts)
def test_fraction_text(num, den, count):
    assert bits(text_to_limbs(f"{num}/{den}", count)) == bits(number_to_limbs(Fraction(num, den), count))


def digits_of(text: str) -> int:
    return len(text.lstrip("-").partition("e")[0].replace(".", "").strip("0")) or 1


def decimal_exponent(value: Fraction) -> int:
    """floor(log10 value), exactly."""
    exponent = len(str(value.numerator)) - len(str(value.denominator)) - 1
    return exponent + (value >= Fraction(10) ** (exponent + 1))


def assert_shortest(limbs: tuple[float, ...]) -> None:
    """The text reads back; none with one digit less does; of those as long it is the nearest that does."""
    text = limbs_to_text(limbs)
    assert bits(text_to_limbs(text, len(limbs))) == bits(limbs)
    value = limbs_to_fraction(limbs)
    for fewer in range(min(2, digits_of(text))) if value else ():
        unit = Fraction(10) ** (decimal_exponent(abs(value)) + 1 - digits_of(text) + fewer)
        for near in (value // unit * unit, -(-value // unit) * unit):
            if bits(text_to_limbs(str(near), len(limbs))) == bits(limbs):
                assert fewer == 0, (text, near)
                assert abs(Fraction(text) - value) <= abs(near - value)


@given(values(), counts)
def test_shortest_text_reads_back_and_none_is_shorter(value, count):
    limbs = ratio_to_limbs(value.numerator, value.denominator, count)
    if math.isfinite(limbs[0]) and abs(kept := limbs_to_fraction(limbs)) < TOP:
        assert limbs_to_fraction(text_to_limbs(limbs_to_text(limbs), count)) == kept
        if kept:  # a tie can have other limbs than the value that was rounded to it
            limbs = ratio_to_limbs(kept.numerator, kept.denominator, count)
        assert_shortest(limbs)


def test_a_rounded_value_can_be_a_tie():
    limbs = ratio_to_limbs(*(1 + Fraction(1, 2**53) + Fraction(1, 2**900)).as_integer_ratio(), 2)
    assert limbs == (1 + 2.0**-52, -(2.0**-53))
    assert text_to_limbs(limbs_to_text(limbs), 2) == (1.0, 2.0**-53)


@given(doubles)
def test_one_limb_prints_like_float(x):
    text = limbs_to_text((x,))
    assert float(text).hex() == x.hex()
    assert digits_of(text) == digits_of(repr(x))


@given(st.lists(doubles, min_size=1, max_size=5))
def test_unnormalised_limbs_print_their_sum(limbs):
    value = sum(map(Fraction, limbs))
    if value:
        assert limbs_to_fraction(limbs) == value
        canonical = ratio_to_limbs(value.numerator, value.denominator, len(limbs))
        assert abs(value) >= TOP or limbs_to_fraction(canonical) == value  # as many limbs always suffice
        assert bits(text_to_limbs(limbs_to_text(limbs), len(limbs))) == bits(canonical)


@given(values(), st.integers(1, 80))
def test_digits_are_correctly_rounded(value, digits):
    limbs = ratio_to_limbs(value.numerator, value.denominator, 4)
    exact = limbs_to_fraction(limbs) if math.isfinite(limbs[0]) else Fraction(0)
    if not exact:
        return
    text = limbs_to_text(limbs, digits)
    with decimal.localcontext(prec=digits, rounding=decimal.ROUND_HALF_EVEN, Emin=-2000, Emax=2000):
        expected = decimal.Decimal(exact.numerator) / decimal.Decimal(exact.denominator)
    assert Fraction(text) == Fraction(expected)
    assert len(text.lstrip("-").partition("e")[0].replace(".", "").lstrip("0")) == digits


def test_the_ends_of_the_range():
    tiny, half = 5e-324, Fraction(1, 2**1075)  # RN(half) is 0, a tie
    for value, expected in [
        (half, 0.0),
        (half * Fraction(10**30 + 1, 10**30), tiny),
        (3 * half, 2 * tiny),
        (TOP, math.inf),
        (TOP * Fraction(10**400 - 1, 10**400), MAX),
    ]:
        with decimal.localcontext(prec=2000):
            text = str(decimal.Decimal(value.numerator) / decimal.Decimal(value.denominator))
        assert Fraction(text) == value
        for sign in (1, -1):
            for limbs in (
                text_to_limbs("-" * (sign < 0) + text, 1),
                number_to_limbs(sign * value, 1),
            ):
                assert bits(limbs) == bits((sign * expected,)), (value, sign)
    assert text_to_limbs("2.4703282292062328e-324", 1) == (tiny,)
    assert text_to_limbs("2.4703282292062327e-324", 1) == (0.0,)
    assert text_to_limbs("1.7976931348623158e308", 1) == (MAX,)
    assert text_to_limbs("1.7976931348623159e308", 1) == (math.inf,)
    assert dyadic_to_limbs(3, -1076, 1) == text_to_limbs("0x3p-1076", 1) == (tiny,)
    assert dyadic_to_limbs(1, -1075, 1) == text_to_limbs("0x1p-1075", 1) == (0.0,)
    assert dyadic_to_limbs(2**54 - 1, 970, 1) == (math.inf,)
    assert dyadic_to_limbs(2**55 - 3, 969, 1) == (MAX,)


def test_special_values():
    assert limbs_to_text((math.inf, 0.0)) == "inf"
    assert limbs_to_text((-math.inf, 1.0)) == "-inf"
    assert limbs_to_text((math.inf, -math.inf)) == "nan"
    assert limbs_to_text((math.nan, 0.0)) == "nan"
    assert limbs_to_text((-0.0, 0.0)) == "-0.0"
    assert limbs_to_text((0.0, 0.0)) == "0.0"
    assert limbs_to_text((1.0, -1.0)) == "0.0"
    assert limbs_to_text((1.0, -1.0, 2.0**-200))[:6] == "6.2230"
    assert limbs_to_text((MAX, MAX)) == "inf"
    assert limbs_to_text((0.0, 0.0), 4) == "0.000"
    for text, value in [("inf", math.inf), ("-Infinity", -math.inf), ("+INF", math.inf)]:
        assert text_to_limbs(text, 3) == (value, 0.0, 0.0)
    for text in ("nan", "-NaN", " nan\n"):
        assert math.isnan(text_to_limbs(text, 2)[0]) and text_to_limbs(text, 2)[1] == 0
    for text in ("-0", "-0.0e7", "-0/3", "-0x0p1", "-1e-400", "-0x1p-2000"):
        assert bits(text_to_limbs(text, 2)) == bits((-0.0, 0.0)), text


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("  ", 2),
        ("abc", 0),
        ("1.2.3", 3),
        ("1__0", 1),
        ("1_", 1),
        ("1e", 2),
        ("1e+", 3),
        ("1e5x", 3),
        ("1/0", 2),
        ("1/", 2),
        ("/3", 0),
        ("1.5/3", 3),
        (".", 1),
        ("-.e5", 2),
        ("in", 2),
        ("info", 3),
        ("na n", 2),
        ("0x", 2),
        ("0xg", 2),
        ("0x1.8p", 6),
        ("1 2", 2),
        ("--1", 1),
        ("+", 1),
        ("1,5", 1),
        ("١", 0),
        ("9" * 80 + "x", 80),
    ],
)
def test_malformed_text_names_the_position(text, position):
    with pytest.raises(ValueError, match=f"at position {position}\\b") as caught:
        text_to_limbs(text, 2)
    assert len(str(caught.value)) < 200


def test_huge_exponents_and_long_texts_do_not_hang():
    start = time.monotonic()
    for text, leading in [
        ("1e400000000", math.inf),
        ("-1e99999999999999999999999999", -math.inf),
        ("1e-99999999999", 0.0),
        ("1e" + "9" * 10000, math.inf),
        ("1e-" + "9" * 10000, 0.0),
        ("0e400000000", 0.0),
        ("0x1p99999999999", math.inf),
        ("0x1p-99999999999", 0.0),
        ("0." + "0" * 100000 + "1e100001", 1.0),
        ("1" + "0" * 100000 + "e-100000", 1.0),
    ]:
        assert text_to_limbs(text, 2) == (leading, 0.0), text[:30]
    assert number_to_limbs(decimal.Decimal("1e400000000"), 2) == (math.inf, 0.0)
    assert number_to_limbs(mpmath.mpf(2) ** (10**12), 2) == (math.inf, 0.0)
    assert number_to_limbs(mpmath.mpf(2) ** -(10**12), 2) == (0.0, 0.0)
    assert number_to_limbs(flint.arb(2) ** (10**12), 2) == (math.inf, 0.0)
    assert number_to_limbs(10**5000, 2) == (math.inf, 0.0)
    long = "1." + "3" * 20000  # beyond the digits that int() takes
    assert_canonical(Fraction(4, 3) - Fraction(1, 3) / 10**20000, text_to_limbs(long, 4))
    assert len(limbs_to_text((0.1,), 10000)) == 10002
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("count", COUNTS)
def test_every_kind_of_number(count):
    third = bits(ratio_to_limbs(1, 3, count))
    assert bits(number_to_limbs(Fraction(1, 3), count)) == third
    assert bits(number_to_limbs(flint.fmpq(1, 3), count)) == third
    assert bits(number_to_limbs(b"1/3", count)) == third
    tenth = bits(ratio_to_limbs(1, 10, count))
    assert bits(number_to_limbs(decimal.Decimal("0.1"), count)) == tenth
    assert bits(number_to_limbs(0.1, count)) == bits((0.1,) + (0.0,) * (count - 1))
    big = 10**30 + 1
    for x in (big, flint.fmpz(big), mpmath.mpf(big, prec=200), flint.arb(big), flint.arf(big)):
        assert bits(number_to_limbs(x, count)) == bits(ratio_to_limbs(big, 1, count)), type(x)
    assert number_to_limbs(True, count) == number_to_limbs(np.bool_(True), count) == ratio_to_limbs(1, 1, count)
    assert number_to_limbs(np.uint64(2**64 - 1), count) == ratio_to_limbs(2**64 - 1, 1, count)
    for x in (
        np.float16(0.1),
        np.float32(0.1),
        np.longdouble("0.1"),
        np.longdouble("-0.1") * np.longdouble(2.0**-1000),
    ):
        assert_canonical(Fraction(*map(int, x.as_integer_ratio())), number_to_limbs(x, count))
    assert bits(number_to_limbs(np.longdouble("-0"), count)) == bits((-0.0,) + (0.0,) * (count - 1))
    with mpmath.workprec(2000):
        pi = mpmath.mpf(mpmath.pi)
    assert bits(number_to_limbs(mpmath.pi, count)) == bits(number_to_limbs(pi, count))
    for x in (mpmath.inf, flint.arb("inf"), np.longdouble("inf"), decimal.Decimal("Infinity")):
        assert number_to_limbs(x, count)[0] == math.inf
    for x in (mpmath.nan, flint.arb("nan"), np.longdouble("nan"), decimal.Decimal("nan"), decimal.Decimal("sNaN")):
        assert math.isnan(number_to_limbs(x, count)[0])


@pytest.mark.parametrize("x", [1j, np.complex128(1), mpmath.mpc(1, 2), flint.acb(1), None, object()])
def test_other_things_raise(x):
    with pytest.raises(TypeError):
        number_to_limbs(x, 2)


def test_case_a07_big_integers():
    data = inputs.case("A07")
    for text, hexes in zip(data["inputs"]["n"], data["expected"]["limbs2"], strict=True):
        expected = bits(tuple(map(float.fromhex, hexes)))
        assert bits(number_to_limbs(int(text), 2)) == bits(text_to_limbs(text, 2)) == expected
        assert limbs_to_fraction(number_to_limbs(int(text), 2)) == int(text)


def test_case_a09_long_decimals():
    data = inputs.case("A09")
    for text, hexes in zip(data["inputs"]["s"], data["expected"]["limbs4"], strict=True):
        assert bits(text_to_limbs(text, 4)) == bits(tuple(map(float.fromhex, hexes)))


@pytest.mark.parametrize("count", [2, 4, 8])
def test_case_a13_hundred_digits(count):
    data = inputs.case("A13")
    expected = bits(tuple(map(float.fromhex, data["expected"][f"limbs{count}"])))
    assert bits(text_to_limbs(data["inputs"]["s"], count)) == expected


def test_case_a12_printing():
    data = inputs.case("A12")
    exact = Fraction(int(data["inputs"]["a"]), int(data["inputs"]["b"])) ** 8
    limbs = number_to_limbs(exact, 2)
    digits = data["expected"]["dd_min_correct_digits"]
    with decimal.localcontext(prec=digits):
        expected = decimal.Decimal(exact.numerator) / decimal.Decimal(exact.denominator)
    assert decimal.Decimal(limbs_to_text(limbs, digits)) == expected
    assert limbs_to_text(limbs, 17) == data["expected"]["value"]
    assert abs(Fraction(limbs_to_text(limbs)) - exact) <= exact / 2**106
