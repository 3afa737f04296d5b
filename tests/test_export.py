"""Out of MultiDouble: text that reads back, exact values, repr, and files bit for bit."""

import io
import math
from fractions import Fraction

import inputs
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from oracles import assert_bits, fractions, from_fractions

from jaxmd._array import MultiDouble
from jaxmd._convert import asarray, from_limbs, load, qd, save, to_fractions, to_mpmath, to_strings

COUNTS = (1, 2, 3, 4, 8, 16)
doubles = st.floats(allow_nan=False, allow_infinity=False)


# Out


@pytest.mark.parametrize("limbs", COUNTS)
@pytest.mark.parametrize("kind", [*inputs.KINDS, *inputs.EXTREME])
def test_out_is_exact_and_text_reads_back(kind, limbs):
    limbwise = (inputs.KINDS | inputs.EXTREME)[kind](inputs.generator("out", kind, limbs), (4, 3), limbs)
    exact = fractions(limbwise)
    if np.any(np.abs(exact) >= 2**1024 - 2**970):
        pytest.skip("beyond the largest double")
    x = MultiDouble(map(jnp.asarray, limbwise))
    assert np.array_equal(to_fractions(x), exact)
    for value, number in zip(exact.ravel(), to_mpmath(x).ravel(), strict=True):
        assert Fraction(*map(int, mpmath.libmp.to_rational(number._mpf_))) == value
    read = asarray(to_strings(x), limbs)
    assert np.array_equal(to_fractions(read), fractions(from_fractions(exact, limbs)))


@given(hnp.arrays(np.float64, (3, 4), elements=doubles))
def test_text_round_trip_of_any_doubles(table):
    x = from_limbs(*(table / 8))
    assert np.array_equal(to_fractions(asarray(to_strings(x), 3)), to_fractions(x))


def test_a_scalar_comes_out_as_a_scalar():
    x = asarray("0.1", 4)
    assert to_fractions(x) == fractions(x).item() and isinstance(to_fractions(x), Fraction)
    assert to_strings(x) == "0.1" and to_strings(x, 3) == "0.100"
    assert isinstance(to_mpmath(x), mpmath.mpf)
    assert to_fractions(asarray(["0.5"]))[0] == Fraction(1, 2)


def test_case_a12_three_squarings_print_right():
    data = inputs.case("A12")
    x = asarray(int(data["inputs"]["a"])) / int(data["inputs"]["b"])
    for _ in range(3):
        x = x * x
    digits = data["expected"]["dd_min_correct_digits"]
    exact = Fraction(int(data["inputs"]["a"]), int(data["inputs"]["b"])) ** 8
    assert to_strings(x, 17) == data["expected"]["value"]
    assert abs(Fraction(to_strings(x, digits)) / exact - 1) < Fraction(1, 10**digits)
    assert abs(Fraction(to_strings(x)) / exact - 1) < Fraction(1, 10**digits)


def test_out_of_specials():
    x = asarray([math.inf, -math.inf, math.nan, -0.0])
    assert list(to_strings(x)) == ["inf", "-inf", "nan", "-0.0"]
    assert [str(float(v)) for v in to_mpmath(x)] == ["inf", "-inf", "nan", "0.0"]
    with pytest.raises(ValueError, match=r"entry \(0,\) is inf"):
        to_fractions(x)
    with pytest.raises(ValueError, match="digits is 0"):
        to_strings(x, 0)


# repr


def test_repr_shows_every_digit():
    assert repr(asarray("1/3")) == "MultiDouble(0.333333333333333333333333333333332, limbs=2)"
    assert repr(asarray([1, "-0.5", "nan"])) == "MultiDouble([ 1.0, -0.5,  nan], limbs=2)"
    assert repr(asarray([["0.1", "1/3"], ["2", "-1e-300"]])) == (
        "MultiDouble([[ 0.1,  0.333333333333333333333333333333332],\n             [ 2.0, -1e-300]], limbs=2)"
    )
    assert repr(asarray([["0.1", "0.25"], ["2", "-1"]])) == (
        "MultiDouble([[ 0.1 ,  0.25],\n"  # columns where two entries fit a line
        "             [ 2.0 , -1.0 ]], limbs=2)"
    )
    assert repr(asarray(np.zeros((0, 3)))) == "MultiDouble([], shape=(0, 3), limbs=2)"
    assert repr(MultiDouble((jnp.array([1.0]), jnp.array([-1.0]), jnp.array([0.5])))) == "MultiDouble([0.5], limbs=3)"


def test_repr_of_a_large_array_shows_its_edges():
    text = repr(asarray(np.arange(10000.0).reshape(100, 100)))
    assert "..." in text and "9999.0" in text and "5050.0" not in text
    assert len(text) < 2000
    with np.printoptions(threshold=5, edgeitems=1):
        assert repr(asarray(np.arange(9.0))) == "MultiDouble([0.0, ..., 8.0], limbs=2)"


def test_repr_under_a_trace():
    seen = []
    jax.jit(lambda x: seen.append(repr(x)))(asarray(np.zeros((2, 3)), 4))
    jax.vmap(lambda x: seen.append(repr(x)))(asarray(np.zeros((2, 3)), 4))
    assert seen == [f"MultiDouble(shape={shape}, limbs=4, traced)" for shape in ("(2, 3)", "(3,)")]
    assert repr(jax.tree.map(lambda _: object, asarray(1.0))).startswith("MultiDouble((")


# Files


@pytest.mark.parametrize("limbs", [1, 2, 16])
def test_files_keep_every_bit(tmp_path, limbs):
    x = MultiDouble(map(jnp.asarray, inputs.near_underflow(inputs.generator("save", limbs), (3, 5), limbs)))
    special = asarray([math.inf, math.nan, -0.0, 5e-324], limbs)
    save(tmp_path / "one.npz", x)
    assert_bits(load(tmp_path / "one.npz"), x)
    save(tmp_path / "two.npz", {"x": x}, special=special, path=asarray(2.0), file=asarray([], 3))
    both = load(tmp_path / "two.npz")
    assert list(both) == ["x", "special", "path", "file"]
    assert_bits(both["x"], x)
    assert_bits(both["special"], special)
    assert both["file"].shape == (0,) and both["file"].num_limbs == 3 and both["path"].shape == ()
    assert np.load(tmp_path / "two.npz")["x"].shape == (limbs, 3, 5)
    buffer = io.BytesIO()
    save(buffer, x)
    assert_bits(load(buffer), x)


def test_files_that_are_not_ours(tmp_path):
    x = asarray([1, 2])
    np.savez(tmp_path / "plain.npz", x=np.ones(3))
    with pytest.raises(ValueError, match="no entry 'jaxmd_format'"):
        load(tmp_path / "plain.npz")
    (tmp_path / "text.npz").write_text("0.1, 0.2")
    with pytest.raises(ValueError, match="no npz file"):
        load(tmp_path / "text.npz")
    np.savez(tmp_path / "new.npz", jaxmd_format=np.array([2, 0]), x=np.ones((2, 3)))
    with pytest.raises(ValueError, match="format 2"):
        load(tmp_path / "new.npz")
    np.savez(tmp_path / "bad.npz", jaxmd_format=np.array([1, 0]), x=np.ones((2, 3), np.float32))
    with pytest.raises(ValueError, match="x is float32 of shape"):
        load(tmp_path / "bad.npz")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.npz")
    with pytest.raises(TypeError, match="a is ndarray; a MultiDouble was wanted"):
        save(tmp_path / "x.npz", a=np.ones(3))
    for arguments, named in [((), {}), ((x,), {"x": x}), (({"a": x},), {"a": x}), (({"jaxmd_format": x},), {})]:
        with pytest.raises(ValueError, match=r"jaxmd\.save"):
            save(tmp_path / "x.npz", *arguments, **named)
    assert not (tmp_path / "x.npz").exists()


def test_out_as_methods():
    x = qd(["1/3", "-0.1"])
    assert (x.to_fractions() == to_fractions(x)).all()
    assert x.to_strings().tolist() == to_strings(x).tolist()
    assert x.to_strings(5).tolist() == ["0.33333", "-0.10000"]
    assert (x.to_mpmath() == to_mpmath(x)).all()
    assert x[0].to_fractions() == to_fractions(x[0])


def test_exact_in_the_threads_of_callbacks():
    """XLA calls Python back in threads that flush subnormals: text and Fractions are made from bits all the same."""
    texts = ["0.5", "2.0", "1e-320", "1e-310", "3e-300", "0.1"]
    x = qd(texts)
    seen = {}

    def callback(value):
        seen.update(text=to_strings(value).tolist(), exact=to_fractions(value).tolist(), repr=repr(value))
        seen["bits"] = int(np.asarray(asarray("1e-310", 4).limbs[0]).view(np.int64))
        return np.float64(0)

    jax.jit(lambda v: jax.pure_callback(callback, jax.ShapeDtypeStruct((), jnp.float64), v))(x).block_until_ready()
    assert seen["text"] == texts
    assert seen["exact"] == to_fractions(x).tolist()
    assert seen["repr"] == repr(x)
    assert seen["bits"] == int(np.float64(1e-310).view(np.int64))
