"""Operators and comparisons of MultiDoubles, compared with rationals and with numpy's rules for shapes."""

import decimal
from fractions import Fraction

import inputs
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from multiple_doubles import assert_same_values, exact, value

import jaxmd

# Operators

OPERATORS = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": lambda x, y: x / y,
}


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("kind", ["full", "limbwise_sums"])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 4), (4, 3), (16, 2)])
def test_operators_broadcast_and_keep_the_larger_count(op, kind, m, n):
    x, y = value(kind, m, (3, 1, 2), 1), value("alternating" if op == "/" else kind, n, (4, 1), 2)
    f = OPERATORS[op]
    wanted = f(exact(x), exact(y))
    result = jax.jit(f)(x, y)
    oracles.assert_within(result, wanted, max(m, n), 2, label=op)
    oracles.assert_normalized(result)


OTHERS = {
    "int": 3,
    "big int": 2**200 + 1,
    "negative int": -(2**53) - 1,
    "bool": True,
    "float": 0.1,
    "subnormal": 5e-324,
    "fraction": Fraction(1, 3),
    "decimal": decimal.Decimal("0.1"),
    "numpy float64": np.float64(0.7),
    "numpy float32": np.float32(0.7),
    "numpy int64": np.int64(2**62 + 1),
    "numpy array": np.array([[0.1], [3.0], [-2.0]]),
    "numpy float16 array": np.array([0.1, 6e-8, 2, 3], np.float16),
    "numpy int64 array": np.array([2**63 - 1, -(2**63), 2**53 + 1, -1]),
    "numpy uint64 array": np.array([2**64 - 1, 2**63, 0, 1], np.uint64),
    "numpy int32 array": np.array([2**31 - 1, -(2**31), 0, 1], np.int32),
    "numpy objects": np.array([Fraction(1, 3), 2**70 + 1, 0.5, 7], object),
    "jax array": jnp.array([1.5, 2.5, -1.0, 0.1], jnp.float64),
    "jax float32": jnp.array([1.1, 1e-44, -1e-40, 3e38], jnp.float32),
    "jax bfloat16": jnp.array([1.1, 1e-39, 2, 3], jnp.bfloat16),
    "jax int64": jnp.array([2**63 - 1, -(2**63), 2**53 + 1, 0]),
    "jax uint8": jnp.array([0, 255, 1, 2], jnp.uint8),
    "jax bool": jnp.array([True, False, True, True]),
}


def other_fractions(other):
    if isinstance(other, np.ndarray | jax.Array):
        array = np.asarray(other)
        if array.dtype == jnp.bfloat16:
            array = array.astype(np.float64)
        out = np.empty(array.shape, object)
        for index in np.ndindex(array.shape):
            entry = array[index]
            out[index] = Fraction(entry.item() if isinstance(entry, np.generic) else entry)
        return out
    return Fraction(other.item() if isinstance(other, np.generic) else other)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("limbs", [3])
def test_numbers_and_arrays_from_either_side(name, op, limbs):
    """The other operand is taken as it is (Fractions are rounded to the value's limbs), and the limb count stays."""
    x, other, f = value("full", limbs, (3, 4)), OTHERS[name], OPERATORS[op]
    theirs = other_fractions(other)
    slack = 4 if name in ("fraction", "decimal", "numpy objects") else 2
    scale = {"+": lambda a, b: abs(a) + abs(b), "-": lambda a, b: abs(a) + abs(b)}.get(op) if slack > 2 else None
    floor = Fraction(2) ** -1074  # products with subnormals
    for g, swap in ((lambda a: f(a, other), False), (lambda a: f(other, a), True)):
        pair = (theirs, exact(x)) if swap else (exact(x), theirs)
        if op == "/" and np.any(np.asarray(pair[1]) == 0):
            continue
        if op == "/" and name in ("subnormal",):
            assert isinstance(g(x), jaxmd.MultiDouble)
            continue
        wanted = np.asarray(f(*(np.asarray(v, object) for v in pair)), object)
        bound = None if scale is None else np.asarray(scale(*(np.asarray(v, object) for v in pair)), object)
        tiny = floor if name in ("jax float32", "jax bfloat16", "subnormal") else Fraction(0)
        result = g(x) if op == "+" else jax.jit(g)(x)
        assert result.num_limbs == limbs
        oracles.assert_within(result, wanted, limbs, slack, scale=bound, floor=tiny, label=name)


def test_a_big_int_is_not_rounded_before_the_operation():
    for limbs in (1, 2):
        n = 3**200  # 317 bits
        x = jaxmd.asarray(n, limbs)
        rest = x - n  # the exact error of the rounding, not zero
        assert_same_values(rest, oracles.from_fractions(np.array(oracles.fractions(x)[()] - n, object), limbs))
        assert oracles.fractions(rest)[()] != 0
        assert not bool(x == n) and bool(x != n)


def test_strings_and_lists_are_no_operands():
    x = jaxmd.ones(2)
    for other in ("0.1", [1, 2], None, 1j, np.array([1j, 0])):
        with pytest.raises(TypeError):
            x + other
        with pytest.raises(TypeError):
            other * x
    assert (x == "0.1") is False and (x != None) is True  # noqa: E711
    with pytest.raises(TypeError):
        sorted([x, "0.1"])


def test_shapes_that_do_not_broadcast():
    with pytest.raises(ValueError, match=r"jaxmd\.add: operands have shapes \(2,\) and \(3,\)"):
        jaxmd.ones(2) + jaxmd.ones(3)
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\)"):
        jaxmd.MultiDouble.__eq__(jaxmd.ones(2), jaxmd.ones(3))


def test_numpy_and_jax_functions_do_not_take_it():
    x = jaxmd.ones(3)
    for f in (np.sin, jnp.sin, lambda v: np.add(v, 1), lambda v: jnp.add(v, 1), lambda v: jnp.stack([v, v])):
        with pytest.raises(TypeError):
            f(x)
    assert not hasattr(x, "__jax_array__")


def test_signs():
    x = jaxmd.asarray(["-0", "0", "-2.5", "inf", "-inf", "nan"], 3)
    limbs = [np.asarray(v) for v in (-x).limbs]
    assert np.array_equal(np.signbit(limbs[0])[:5], [False, True, False, True, False])
    assert all(not np.signbit(limb).any() for limb in limbs[1:])
    limbs = [np.asarray(v) for v in abs(x).limbs]
    assert not np.signbit(limbs[0][:5]).any() and limbs[0][2] == 2.5 and np.isnan(limbs[0][5])
    assert +x is x
    tiny = jaxmd.from_limbs([-5e-324, 1.0], [-5e-324, 5e-324], normalize=False)
    chosen = jax.jit(lambda v: [jnp.where(abs(a) < 0.5, b, 7) for a, b in zip(v.limbs, (-v).limbs, strict=True)])(tiny)
    assert np.array_equal(np.asarray(chosen), [[5e-324, 7], [5e-324, -5e-324]])  # LLVM may not make them zero
    for kind in inputs.KINDS:
        y = value(kind, 4)
        assert np.array_equal(exact(abs(y)), abs(exact(y))) and np.array_equal(exact(-y), -exact(y))


@pytest.mark.parametrize("limbs", [1, 2, 16])
@pytest.mark.parametrize("exponent", [0, 1, 2, 7, 8, -1, -5])
def test_powers(limbs, exponent):
    x = value("full", limbs, (5,)) * 3
    wanted = np.array([v**exponent for v in exact(x)], object)
    oracles.assert_within(jax.jit(lambda v: v**exponent)(x), wanted, limbs, max(4 * abs(exponent), 0.5))


def test_powers_of_special_values():
    x = jaxmd.asarray(["inf", "-inf", "0", "-0", "nan"], 2)
    assert np.array_equal(np.asarray(x**0), np.ones(5))
    assert np.array_equal(np.asarray(x**3), [np.inf, -np.inf, 0, 0, np.nan], equal_nan=True)
    assert np.array_equal(np.asarray(x**-1), [0, 0, np.inf, -np.inf, np.nan], equal_nan=True)
    for bad in (0.5, 2.0, True, "2", jaxmd.ones(())):
        with pytest.raises(TypeError, match="integer"):
            x**bad


@pytest.mark.parametrize("exponent", [3, -2, 6])
def test_derivative_of_a_power_keeps_all_digits(exponent):
    x = value("full", 4, (4,)) + 1
    wanted = np.array([exponent * v ** (exponent - 1) for v in exact(x)], object)
    ones = jaxmd.ones((4,), 4)
    _, forward = jax.jvp(lambda v: v**exponent, (x,), (ones,))
    _, pull = jax.vjp(lambda v: v**exponent, x)
    for derivative in (forward, pull(ones)[0]):
        oracles.assert_within(derivative, wanted, 4, 8 * abs(exponent))


# Comparison

RELATIONS = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


@pytest.mark.parametrize("limbs", [1, 3])
def test_special_values_compare_as_doubles(limbs):
    x, y = inputs.special_pairs(limbs)
    left, right = (jaxmd.from_limbs(*limb_arrays, normalize=False) for limb_arrays in (x, y))
    for name, f in RELATIONS.items():
        result = jax.jit(f)(left, right)
        assert result.dtype == bool and np.array_equal(np.asarray(result), f(x[0], y[0])), name


@pytest.mark.parametrize("kind", sorted(inputs.KINDS))
def test_comparison_is_by_value(kind):
    x = value(kind, 3, (6,))
    nudge = jaxmd.asarray([Fraction(0), Fraction(1, 2**900), -Fraction(1, 2**900)] * 2, 8)
    y = jaxmd.from_limbs(*x.limbs, *nudge.limbs, normalize=False)  # x, or x changed by 2^-900, in eleven limbs
    for name, f in RELATIONS.items():
        assert np.array_equal(np.asarray(jax.jit(f)(y, x)), f(exact(y), exact(x))), name


def test_other_representations_of_one_value_are_equal():
    x = jaxmd.from_limbs(*[np.array([v]) for v in (1.0, -1.0, 2.0**-200)], normalize=False)
    assert bool(x == 2.0**-200) and not bool(x != 2.0**-200) and bool(x > 0)
    assert bool(jaxmd.dd("0.1") != 0.1) and bool(jaxmd.dd(0.1) == 0.1)
    assert bool(jaxmd.asarray(5e-324) > 0) and not bool(jaxmd.asarray(5e-324) == 0)
    assert bool(jaxmd.asarray(2**70 + 1) > 2**70) and bool(jaxmd.asarray(2**70 + 1) == 2**70 + 1)
    assert bool(jaxmd.asarray("1e308") * 10 == np.inf)
    assert bool(np.float64(2.0) == jaxmd.asarray(2))
    assert np.array_equal(np.array([1.0, 3.0]) < jaxmd.asarray([2, 2]), [True, False])
