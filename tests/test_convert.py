"""Into MultiDouble: every kind of input against exact rationals."""

import decimal
import math
from fractions import Fraction

import flint
import inputs
import jax
import jax.numpy as jnp
import ml_dtypes
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import assert_bits, canonical, fractions, from_fractions

from jaxmd._array import MultiDouble
from jaxmd._convert import asarray, dd, from_limbs, hd, od, qd, td, to_fractions, to_strings

COUNTS = (1, 2, 3, 4, 8, 16)


def padded(leading, limbs):
    """The limbs of float64 values taken as they are."""
    leading = np.asarray(leading, np.float64)
    return (leading, *(np.zeros(leading.shape) for _ in range(limbs - 1)))


def rounded(limbwise, limbs):
    """The canonical limbs of the sums; −0 stays −0."""
    expected = from_fractions(fractions(limbwise), limbs)
    expected[0][np.signbit(limbwise[0]) & (expected[0] == 0)] = -0.0
    return expected


# asarray


@pytest.mark.parametrize("limbs", COUNTS)
def test_nested_lists_of_every_kind(limbs):
    third = Fraction(1, 3)
    entries = [
        ["1/3", third, flint.fmpq(1, 3)],
        [2**200 + 1, flint.fmpz(2) ** 200 + 1, "0x1p200"],
        [decimal.Decimal("0.1"), "0.1", "1e-1"],
        [0.1, np.float32(0.1), np.longdouble("0.1")],
        [True, mpmath.mpf("0.1", prec=300), flint.arb("0.25")],
    ]
    exact = [
        [third, third, third],
        [Fraction(2**200 + 1), Fraction(2**200 + 1), Fraction(2**200)],
        [Fraction(1, 10)] * 3,
        [Fraction(0.1), Fraction(float(np.float32(0.1))), Fraction(*map(int, np.longdouble("0.1").as_integer_ratio()))],
        [Fraction(1), Fraction(*mpmath.libmp.to_rational(mpmath.mpf("0.1", prec=300)._mpf_)), Fraction(1, 4)],
    ]
    x = asarray(entries, limbs)
    assert isinstance(x, MultiDouble) and x.shape == (5, 3) and x.num_limbs == limbs
    assert_bits(x, from_fractions(exact, limbs))


@pytest.mark.parametrize("limbs", [1, 2, 4])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", ">f8", "int8", "uint16", "int32", "uint32", "bool"])
def test_numpy_arrays_up_to_53_bits_are_taken_as_they_are(dtype, limbs):
    x = (np.arange(-6, 6).reshape(3, 4) / (4 if "f" in dtype else 1)).astype(dtype).T[::-1]
    assert_bits(asarray(x, limbs), padded(x.astype(np.float64), limbs))
    assert_bits(asarray(np.asfortranarray(x), limbs), padded(x.astype(np.float64), limbs))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("where", ["numpy", "jax", "jit"])
def test_floats_with_subnormals_zeros_and_specials(dtype, where):
    info = ml_dtypes.finfo(dtype)
    tiny = float(info.smallest_subnormal)
    values = [0.0, -0.0, tiny, -tiny, 3 * tiny, float(info.smallest_normal), 1.0, -1.5, float(info.max), math.nan]
    if dtype is not ml_dtypes.float8_e4m3fn:
        values += [math.inf, -math.inf]
    x = np.array(values, dtype)
    convert = {"numpy": asarray, "jax": lambda x: asarray(jnp.asarray(x)), "jit": jax.jit(asarray)}[where]
    assert_bits(convert(x), padded(values, 2))


INTEGERS = [0, 1, -1, 2**53 + 1, -(2**53) - 1, 2**62 + 1, 2**63 - 1, -(2**63), -(2**63) + 1, 2**54 - 1, 123456789]


@pytest.mark.parametrize("limbs", [1, 2, 3])
@pytest.mark.parametrize("where", ["numpy", "jax", "jit"])
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_integers_of_64_bits_keep_every_bit(dtype, where, limbs):
    values = [n % 2**64 if dtype == "uint64" else n for n in INTEGERS]
    x = np.array(values, dtype)
    f = {
        "numpy": lambda x: asarray(x.astype(x.dtype.newbyteorder()), limbs),
        "jax": lambda x: asarray(jnp.asarray(x), limbs),
        "jit": jax.jit(lambda x: asarray(x, limbs)),
    }[where]
    assert_bits(f(x), from_fractions([Fraction(n) for n in values], limbs))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8))
def test_any_int64(values):
    assert_bits(asarray(np.array(values, np.int64)), from_fractions([Fraction(n) for n in values], 2))


@pytest.mark.parametrize("limbs", COUNTS)
def test_longdouble_arrays(limbs):
    rng = inputs.generator("longdouble")
    x = rng.standard_normal(50).astype(np.longdouble) / 3 * np.longdouble(2) ** rng.integers(-1060, 1000, 50)
    x[:4] = [np.longdouble("-0.0"), np.longdouble(2) ** -1075, np.longdouble(1) + np.longdouble(2) ** -60, -x[7]]
    x[4] = -(np.longdouble(2) ** -1074) * (1 + np.longdouble(2) ** -10)  # the rest rounds to +0, not to −0
    exact = [Fraction(*map(int, v.as_integer_ratio())) for v in x]
    expected = from_fractions(exact, limbs)
    expected[0][0] = -0.0
    assert_bits(asarray(x, limbs), expected)
    with np.errstate(over="ignore"):
        special = np.array([np.inf, -np.inf, np.nan, np.longdouble(2) ** 2000, -(np.longdouble(2) ** 2000)])
    assert_bits(asarray(special, limbs), padded([math.inf, -math.inf, math.nan, math.inf, -math.inf], limbs))


def test_text_arrays():
    expected = from_fractions([Fraction(1, 10), Fraction(1, 3)], 3)
    for x in (
        np.array(["0.1", "1/3"]),
        np.array([b"0.1", b"1/3"]),
        np.array(["0.1", "1/3"], np.dtypes.StringDType()),
        np.array(["0.1", Fraction(1, 3)], object),
        ("0.1", b" 1/3 "),
    ):
        assert_bits(asarray(x, 3), expected)


def test_matrices_and_sequences_of_other_libraries():
    with mpmath.workprec(400):
        x = mpmath.matrix([[1, 2], [3, 4]]) / 3
        exact = [[Fraction(*mpmath.libmp.to_rational(x[i, j]._mpf_)) for j in range(2)] for i in range(2)]
    assert_bits(asarray(x, 4), from_fractions(exact, 4))
    assert_bits(
        asarray(flint.fmpq_mat([[flint.fmpq(1, 3), flint.fmpq(2)]]), 4), from_fractions([[Fraction(1, 3), 2]], 4)
    )
    assert_bits(asarray(range(3)), padded([0, 1, 2], 2))
    assert_bits(asarray(memoryview(np.array([0.5, 1.5]))), padded([0.5, 1.5], 2))


def test_multidoubles_keep_their_count():
    x = asarray("1/3", 4)
    assert asarray(x) is x and asarray(x, 4) is x
    assert asarray("1/3").num_limbs == 2
    assert_bits(asarray(x, 6), (*x.limbs, 0.0, 0.0))
    assert_bits(asarray(x, 2), canonical(fractions(x).item(), 2))
    both = asarray([x, asarray("0.1", 3)])
    assert both.num_limbs == 4 and to_fractions(both[0]) == fractions(x).item()
    objects = np.empty(2, object)
    objects[:] = [x, "0.1"]
    assert_bits(asarray(objects), (asarray(["0.1", "0.1"], 4).at[0].set(x)))


@pytest.mark.parametrize("limbs", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", [*inputs.KINDS, *inputs.EXTREME])
def test_fewer_limbs_are_rounded_canonically(kind, limbs):
    wide = (inputs.KINDS | inputs.EXTREME)[kind](inputs.generator("fewer", kind), (40,), 6)
    assert_bits(jax.jit(lambda x: asarray(x, limbs))(MultiDouble(wide)), rounded(wide, limbs))


@pytest.mark.parametrize("limbs", [1, 2, 3, 4])
def test_ties_go_to_even(limbs):
    wide = inputs.ties(limbs)
    assert_bits(asarray(MultiDouble(wide), limbs), from_fractions(fractions(wide), limbs))
    texts = to_strings(MultiDouble(wide))
    assert_bits(asarray(texts, limbs), from_fractions(fractions(wide), limbs))


def test_arrays_in_lists():
    rows = [np.array([1.0, 2.0]), jnp.array([3.0, 4.0]), asarray(["0.1", "1/3"], 3)]
    x = asarray(rows)
    assert x.shape == (3, 2) and x.num_limbs == 3
    assert_bits(x[2], asarray(["0.1", "1/3"], 3))
    assert_bits(x[:2], padded([[1, 2], [3, 4]], 3))
    assert_bits(
        asarray([np.array([2**60 + 1]), np.array([5])]), from_fractions([[Fraction(2**60 + 1)], [Fraction(5)]], 2)
    )
    mixed = jax.jit(lambda x: asarray([[x, "0.1"], [2, asarray("1/3")]]))(jnp.float64(1.5))
    assert_bits(mixed, from_fractions([[Fraction(3, 2), Fraction(1, 10)], [Fraction(2), Fraction(1, 3)]], 2))


def test_empty_shapes():
    for x, shape in [([], (0,)), ([[], []], (2, 0)), (np.empty((0, 3)), (0, 3)), (np.empty((0, 3), object), (0, 3))]:
        assert asarray(x).shape == shape
        assert to_fractions(asarray(x)).shape == shape
        assert to_strings(asarray(x)).shape == shape


def test_constructors():
    for f, limbs in [(dd, 2), (td, 3), (qd, 4), (od, 8), (hd, 16)]:
        assert_bits(f([["0.1"]]), from_fractions([[Fraction(1, 10)]], limbs))
        assert f.__name__ in "dd td qd od hd" and f.__doc__


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        ("1.2.3", ValueError, "jaxmd.asarray: '1.2.3' is not a number: '.' at position 3"),
        ([["1", "2"], ["3", "4y"]], ValueError, r"entry \(1, 1\): '4y' .* position 1"),
        (np.array(["1", "x"]), ValueError, r"entry \(1,\): 'x' .* position 0"),
        (["1/0"], ValueError, "denominator 0"),
        ([[1, 2], [3]], ValueError, r"ragged: entry 0 has shape \(2,\) and entry 1 has shape \(1,\)"),
        ([1, [2]], ValueError, "ragged"),
        ([[1], 2], ValueError, "ragged"),
        ([np.zeros(2), np.zeros(3)], ValueError, "ragged"),
        (1j, TypeError, "complex"),
        ([1.0, 1j], TypeError, r"entry \(1,\): .*complex"),
        (np.array([1j]), TypeError, "complex"),
        (jnp.array([1j]), TypeError, "complex"),
        (None, TypeError, "NoneType"),
        ({"a": 1}, TypeError, "dict"),
        (np.array(["2020-01-01"], "M8[D]"), TypeError, "datetime64"),
        (jax.random.key(0), TypeError, "real numbers"),
    ],
)
def test_errors_say_who_what_and_where(x, error, words):
    with pytest.raises(error, match=f"^jaxmd.asarray: .*{words.removeprefix('jaxmd.asarray: ')}"):
        asarray(x)


@pytest.mark.parametrize(("limbs", "error"), [(0, ValueError), (17, ValueError), (2.0, TypeError), (True, TypeError)])
def test_limb_counts_are_checked(limbs, error):
    with pytest.raises(error, match=r"jaxmd\.asarray: limbs"):
        asarray(1.0, limbs)


def test_x64_off_raises_when_traced():
    with jax.enable_x64(False):
        for f in (asarray, dd, lambda x: from_limbs(x)):
            with pytest.raises(TypeError, match="jax_enable_x64 is off"):
                f(1.0)


def test_gradient_of_a_conversion_is_the_leading_limb():
    _, pull = jax.vjp(lambda x: asarray(x, 3), jnp.array([1.0, 2.0]))
    (cotangent,) = pull(MultiDouble((jnp.array([1.0, 5.0]), jnp.array([0.0, 2.0**-60]), jnp.zeros(2))))
    np.testing.assert_array_equal(cotangent, [1.0, 5.0])


# from_limbs


@pytest.mark.parametrize("kind", inputs.KINDS)
def test_from_limbs_normalizes_canonically(kind):
    limbs = inputs.KINDS[kind](inputs.generator("from_limbs", kind), (30,), 4)
    assert_bits(from_limbs(*limbs), rounded(limbs, 4))
    assert_bits(from_limbs(*limbs, normalize=False), limbs)


def test_limbs_are_never_weakly_typed():
    seen = []
    jax.jit(lambda x: seen.extend(asarray(x).limbs))(1.0)
    for x in (asarray(1.5), asarray(jnp.asarray(2)), from_limbs(1.0, 0.0), from_limbs(1.0, 0.0, normalize=False)):
        seen.extend(x.limbs)
    assert not any(limb.weak_type for limb in seen)


def test_from_limbs_refuses_other_limbs():
    with pytest.raises(TypeError, match="limb 1 has dtype float32; float64 was wanted"):
        from_limbs(1.0, jnp.float32(0))
    with pytest.raises(ValueError, match=r"limb 0 has shape \(\) and limb 1 has shape \(2,\)"):
        from_limbs(1.0, [1.0, 2.0])
    with pytest.raises(ValueError, match="limbs is 0"):
        from_limbs()
    with pytest.raises(ValueError, match="limbs is 17"):
        from_limbs(*[1.0] * 17)
