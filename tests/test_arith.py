"""Elementwise arithmetic against exact rationals: every limb count, operands that hurt, special values, errors."""

import operator
from fractions import Fraction
from math import isqrt

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inputs import EXTREME, KINDS, SPECIAL, generator, special_pairs, ties
from oracles import (
    assert_bits,
    assert_normalized,
    assert_within,
    canonical,
    fractions,
    from_fractions,
    nearest,
    unit,
)

import jaxmd._arith as arith
from jaxmd import _ffi, _primitive

LIMBS = [1, 2, 3, 4, 5, 8, 16]
SHAPE = (6, 5)
EXACT = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}
IEEE = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
UNITS = {"add": 1, "sub": 1, "mul": 1.01, "div": 1.01}  # the docstrings' bounds
SMALLEST = Fraction(1, 2**1074)

every_limb_count = pytest.mark.parametrize("limbs", LIMBS)
every_operation = pytest.mark.parametrize("name", EXACT)


def apply(name, x, y, limbs):
    return getattr(arith, name)(x, y, limbs)


def exactly(name, x, y):
    out = np.empty(x[0].shape, dtype=object)
    for index, (a, b) in enumerate(zip(fractions(x).ravel(), fractions(y).ravel())):
        out.ravel()[index] = EXACT[name](a, b) if b or name != "div" else Fraction(0)
    return out


def nonzero(x):
    """The number with 1 in place of zeros, to divide by."""
    zero = fractions(x) == 0
    return tuple(np.where(zero, float(i == 0), limb) for i, limb in enumerate(x))


def operand_pairs(limbs, *, divisor=False):
    """All kinds joined into one number on each side, each kind of x with each of y."""
    names = [(p, q) for p in KINDS for q in KINDS]
    xs = [KINDS[p](generator(p, q, limbs, "x"), SHAPE, limbs) for p, q in names]
    ys = [KINDS[q](generator(p, q, limbs, "y"), SHAPE, limbs) for p, q in names]
    x = tuple(np.stack([number[i] for number in xs]) for i in range(limbs))
    y = tuple(np.stack([number[i] for number in ys]) for i in range(limbs))
    return x, nonzero(y) if divisor else y


@every_operation
@every_limb_count
def test_accuracy(name, limbs):
    x, y = operand_pairs(limbs, divisor=name == "div")
    result = apply(name, x, y, limbs)
    assert_within(result, exactly(name, x, y), limbs, UNITS[name], label=f"{name} {limbs}")
    assert_normalized(result, f"{name} {limbs}")
    assert_bits(jax.jit(lambda x, y: apply(name, x, y, limbs))(x, y), result)


@every_limb_count
def test_sums_are_canonical(limbs):
    """The sum is rounded correctly, bit by bit, also where everything but the last limbs cancels."""
    x, y = operand_pairs(limbs)
    near = (*(-limb for limb in x[:-1]), x[-1] * 0.75)
    for other in (y, near):
        exact = exactly("add", x, other)
        expected = from_fractions(exact, limbs)
        # Sums that vanish take their sign from the operands: compared in the test of special values.
        plus = tuple(np.where(exact == 0, 0.0, limb) for limb in map(np.asarray, arith.add(x, other, limbs)))
        assert_bits(plus, expected, f"add {limbs}")


@pytest.mark.parametrize("name", ["add", "mul"])
@every_limb_count
def test_commutes(name, limbs):
    x, y = operand_pairs(limbs)
    assert_bits(apply(name, x, y, limbs), apply(name, y, x, limbs), f"{name} {limbs}")


@every_operation
@pytest.mark.parametrize("counts", [(1, 2, 2), (3, 1, 2), (2, 4, 3), (1, 1, 4), (8, 2, 4), (16, 3, 1), (2, 16, 16)])
def test_mixed_limb_counts(name, counts):
    lhs, rhs, limbs = counts
    x = KINDS["limbwise_sums"](generator(counts), (200,), lhs)
    y = nonzero(KINDS["gaps"](generator(counts), (200,), rhs))
    result = apply(name, x, y, limbs)
    assert_within(result, exactly(name, x, y), limbs, UNITS[name], label=f"{name} {counts}")
    assert_normalized(result)


def root(q, limbs):
    """√q to 53·limbs + 80 bits."""
    bits = 53 * limbs + 80 + max(0, q.denominator.bit_length() - q.numerator.bit_length())
    return Fraction(isqrt((q.numerator << 2 * bits) // q.denominator), 1 << bits)


@every_limb_count
def test_sqrt(limbs):
    kinds = [KINDS[name](generator(name, limbs), SHAPE, limbs) for name in KINDS]
    kinds += [EXTREME["near_overflow"](generator(limbs), SHAPE, limbs)]
    x = tuple(np.stack([number[i] for number in kinds]) for i in range(limbs))
    x = tuple(np.where(fractions(x) < 0, -limb, limb) for limb in x)
    exact = np.array([root(q, limbs) for q in fractions(x).ravel()], dtype=object).reshape(x[0].shape)
    result = arith.sqrt(x, limbs)
    assert_within(result, exact, limbs, 1.01, label=f"sqrt {limbs}")
    assert_normalized(result)
    squares = from_fractions(np.array([Fraction(n * n) for n in range(50)], dtype=object), limbs)
    assert_bits(arith.sqrt(squares, limbs), from_fractions(np.arange(50).astype(object), limbs))


@every_limb_count
def test_sqrt_of_special_values(limbs):
    x = (np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 5e-324]), *[np.zeros(7)] * (limbs - 1))
    expected = np.array([0.0, -0.0, np.inf, np.nan, np.nan, np.nan, 0.0])
    result = [np.asarray(limb) for limb in arith.sqrt(x, limbs)]
    assert_bits([limb[:6] for limb in result], [expected[:6], *[np.zeros(6)] * (limbs - 1)])
    assert_within([limb[6:] for limb in result], np.array([root(SMALLEST, limbs)]), limbs, 1.01)


@every_operation
@every_limb_count
def test_special_values(name, limbs):
    """IEEE results for every pair: zeros of both signs, inf, nan, and the ends of the range."""
    x, y = special_pairs(limbs)
    with np.errstate(all="ignore"):
        lead = IEEE[name](x[0], y[0])
    expected = [lead.copy()] + [np.zeros_like(lead) for _ in range(limbs - 1)]
    for i in np.flatnonzero(np.isfinite(lead) & (lead != 0)):
        exact = EXACT[name](Fraction(float(x[0][i])), Fraction(float(y[0][i])))
        for limb, entry in zip(expected, canonical(exact, limbs)):
            limb[i] = entry
    assert_bits(apply(name, x, y, limbs), expected, f"{name} {limbs}")


@every_operation
@pytest.mark.parametrize("limbs", [2, 4, 16])
@pytest.mark.parametrize("kind", EXTREME)
def test_ends_of_the_range(name, limbs, kind):
    """Overflow gives inf exactly where the rounded value does; underflow costs at most 2^-1074."""
    kinds = [EXTREME[kind], EXTREME["near_overflow"], EXTREME["near_underflow"], KINDS["full"]]
    x = tuple(np.stack([EXTREME[kind](generator(kind, j), SHAPE, limbs)[i] for j in range(4)]) for i in range(limbs))
    ys = [nonzero(make(generator(kind, "y"), SHAPE, limbs)) for make in kinds]
    y = tuple(np.stack([number[i] for number in ys]) for i in range(limbs))
    result = [np.asarray(limb) for limb in apply(name, x, y, limbs)]
    exact = exactly(name, x, y)
    leads = np.array([nearest(q) for q in exact.ravel()]).reshape(exact.shape)
    infinite = np.isinf(leads)
    assert_bits([limb[infinite] for limb in result], [leads[infinite]] + [np.zeros(infinite.sum())] * (limbs - 1))
    finite = [limb[~infinite] for limb in result]
    assert_within(finite, exact[~infinite], limbs, UNITS[name], floor=0 if name in ("add", "sub") else SMALLEST)
    assert_normalized(result)


@every_limb_count
def test_renormalize(limbs):
    """Correct rounding of up to 128 doubles in any order, ties to even."""
    rng = generator("renormalize", limbs)
    for terms in (1, 2, 3, 7, 40, 128):
        x = rng.standard_normal((terms, 60)) * np.exp2(rng.integers(-300, 300, (terms, 60)).astype(float))
        x[terms // 2 :] = -x[: terms - terms // 2] * np.where(rng.random((terms - terms // 2, 60)) < 0.9, 1, 0.5)
        expected = from_fractions(fractions(tuple(x)), limbs)
        assert_bits(arith.renormalize(tuple(x), limbs), expected, f"{terms} terms to {limbs} limbs")
    halfway = ties(limbs) if limbs < 16 else tuple(np.zeros(1) for _ in range(17))
    assert_bits(arith.renormalize(halfway, limbs), from_fractions(fractions(halfway), limbs), "ties")
    huge = (np.array([1e308, -1e308]), np.array([1e308, 1e308]), np.array([-1e308, 3.0]))
    assert_bits(arith.renormalize(huge, limbs), from_fractions(fractions(huge), limbs), "partial sums beyond the range")


def test_add_many():
    """More limbs than one call takes, in the docstring's bound."""
    numbers = [KINDS["spread"](generator("add_many", i), (30,), 3) for i in range(300)]
    size, total = sum(abs(fractions(x)) for x in numbers), sum(fractions(x) for x in numbers)
    assert_within(arith.add_many(numbers, 3), total, 3, 1, scale=abs(total) + 9 * size * unit(1))


@every_limb_count
def test_neg_and_conversions(limbs):
    x = KINDS["zero_limbs"](generator(limbs), (50,), limbs)
    expected = [-x[0], *(np.where(limb == 0, 0.0, -limb) for limb in x[1:])]
    assert_bits(arith.neg(x), expected)
    tiny = (np.full(3, -0.0), *[np.full(3, 5e-324)] * (limbs - 1))
    assert_bits(arith.neg(tiny), (np.zeros(3), *[np.full(3, -5e-324)] * (limbs - 1)))
    assert_bits([arith.to_float64(x)], from_fractions(fractions(x), 1))
    assert_bits(arith.from_float64(x[0], limbs), [x[0], *[np.zeros(50)] * (limbs - 1)])
    halfway = (np.array([1.0, 1.0, 1.0]), np.array([2.0**-53] * 3), np.array([0.0, 2.0**-200, -(2.0**-200)]))
    assert_bits([arith.to_float64(halfway)], [np.array([1.0, 1.0 + 2.0**-52, 1.0])])


@every_limb_count
def test_scale(limbs):
    x = KINDS["full"](generator(limbs), (100,), limbs)
    exponent = generator("exponents").integers(-100, 200, 100).astype(np.int32)
    powers = np.array([Fraction(2) ** int(e) for e in exponent], dtype=object)
    result = arith.scale(x, exponent)
    assert all(np.array_equal(fractions([r]), fractions([limb]) * powers) for r, limb in zip(result, x))
    # Far beyond the range, and from one end of it to the other.
    lead = np.array([1.5, -1.5, 1.5, 5e-324, 1.7e308, -0.0, np.inf, np.nan, 0.0])
    exponent = np.int32([2**31 - 1, 1024, -(2**31), 2000, -2098, 2**31 - 1, -(2**31), 5, 5])
    expected = np.array([np.inf, -np.inf, 0.0, 2.0**926, 5e-324 * 0, -0.0, np.inf, np.nan, 0.0])
    expected[4] = nearest(Fraction(1.7e308) * Fraction(2) ** -2098)
    number = (lead, *[np.zeros(9)] * (limbs - 1))
    assert_bits(arith.scale(number, exponent), [expected, *[np.zeros(9)] * (limbs - 1)])


PAIRS = {"two_sum": operator.add, "two_prod": operator.mul}


def pair_operands(name):
    rng = generator(name)
    a = rng.standard_normal(1000) * np.exp2(rng.integers(-200, 200, 1000).astype(float))
    b = rng.standard_normal(1000) * np.exp2(rng.integers(-200, 200, 1000).astype(float))
    b[:300] = -a[:300] * (1 + np.exp2(-rng.integers(1, 53, 300).astype(float)))
    return a, b


@pytest.mark.parametrize("name", PAIRS)
def test_error_free_transformations(name):
    """Exact as written, compiled, mapped, in loops, and next to operations a compiler would fuse with."""
    a, b = pair_operands(name)
    pair = getattr(arith, name)
    exact = PAIRS[name](fractions([a]), fractions([b]))
    expected = from_fractions(exact, 2)
    scanned = jax.lax.scan(lambda c, ab: (c, pair(*ab)), 0.0, (a, b))[1]

    def step(i, out):
        s, e = pair(jnp.asarray(a)[i], jnp.asarray(b)[i])
        return out[0].at[i].set(s), out[1].at[i].set(e)

    looped = jax.lax.fori_loop(0, 1000, step, (jnp.zeros(1000), jnp.zeros(1000)))
    for result in (
        pair(a, b),
        jax.jit(pair)(a, b),
        jax.vmap(pair)(a, b),
        jax.jit(jax.vmap(pair))(a, b),
        scanned,
        looped,
    ):
        assert_bits(result, expected, name)
    only_error = jax.jit(lambda a, b: pair(a, b)[1])(a, b)
    assert_bits([only_error], expected[1:], name)
    fused = jax.jit(lambda a, b, c, d: jnp.stack(pair(a * b, c * d)))(a, b, b, a[::-1].copy())
    with np.errstate(all="ignore"):
        assert_bits(fused, from_fractions(PAIRS[name](fractions([a * b]), fractions([b * a[::-1]])), 2), name)


@pytest.mark.parametrize("name", PAIRS)
def test_error_free_transformations_of_special_values(name):
    (a,), (b,) = special_pairs(1)
    with np.errstate(all="ignore"):
        lead = PAIRS[name](a, b)
    first, second = map(np.asarray, getattr(arith, name)(a, b))
    assert_bits([first], [lead])
    assert np.all(second[~np.isfinite(lead)] == 0)
    if name == "two_sum":
        finite = np.isfinite(lead)
        exact = fractions([a[finite]]) + fractions([b[finite]])
        assert np.array_equal(fractions([first[finite]]) + fractions([second[finite]]), exact)


@pytest.mark.parametrize("name", PAIRS)
def test_error_free_transformations_differentiate_as_float64(name):
    a, b = np.float64(3.0), np.float64(0.1)
    partials = {"two_sum": (1.0, 1.0), "two_prod": (b, a)}[name]
    pair = getattr(arith, name)
    assert jax.grad(lambda a, b: pair(a, b)[0], (0, 1))(a, b) == partials
    assert jax.grad(lambda a, b: pair(a, b)[1], (0, 1))(a, b) == (0.0, 0.0)
    assert jax.grad(lambda a, b: sum(pair(a, b)), (0, 1))(a, b) == partials
    assert jax.jvp(pair, (a, b), (1.0, 0.0))[1] == (partials[0], 0.0)
    with pytest.raises(TypeError, match=rf"jaxmd.{name}: limb 0 of operand 1 has dtype float32; limbs are float64"):
        pair(a, np.float32(1))


@every_operation
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (7, 9)])
def test_shapes(name, shape):
    x, y = (nonzero(KINDS["full"](generator(shape, i), shape, 2)) for i in range(2))
    result = apply(name, x, y, 2)
    assert all(limb.shape == shape and limb.dtype == jnp.float64 for limb in result)
    assert_within(result, exactly(name, x, y).reshape(shape), 2, UNITS[name])


@every_operation
def test_many_elements(name):
    """More elements than one thread takes: the same bits as in small pieces, also where lanes need the slow path."""
    x, y = operand_pairs(2, divisor=True)
    x, y = (tuple(np.tile(limb.ravel(), 20) for limb in number) for number in (x, y))
    piece = x[0].size // 20
    first = apply(name, *(tuple(limb[:piece] for limb in number) for number in (x, y)), 2)
    assert_bits(apply(name, x, y, 2), [np.tile(np.asarray(limb), 20) for limb in first], name)
    # One element at an odd place, so that it meets other neighbours in its pack.
    lone = apply(name, *(tuple(limb[5:6] for limb in number) for number in (x, y)), 2)
    assert_bits(lone, [np.asarray(limb)[5:6] for limb in first], name)


@every_operation
def test_strided_operands(name):
    x, y = (nonzero(KINDS["full"](generator(name, i), (6, 8), 3)) for i in range(2))
    views = [tuple(np.asfortranarray(limb)[::2, ::-1] for limb in number) for number in (x, y)]
    dense = [tuple(np.ascontiguousarray(limb) for limb in number) for number in views]
    assert_bits(apply(name, *views, 3), apply(name, *dense, 3), name)
    turned = jax.jit(lambda x, y: apply(name, [a.T for a in x], [b.T for b in y], 3))(x, y)
    assert_bits([limb.T for limb in turned], apply(name, x, y, 3), name)


def test_errors():
    one, two = (np.ones(3),), (np.ones(2),)
    with pytest.raises(
        ValueError, match=r"jaxmd.add: limb 0 of operand 0 has shape \(3,\) and limb 0 of operand 1 has"
    ):
        arith.add(one, two, 2)
    with pytest.raises(TypeError, match=r"jaxmd.mul: limb 1 of operand 0 has dtype float32; limbs are float64"):
        arith.mul((np.ones(3), np.ones(3, np.float32)), one, 2)
    with pytest.raises(TypeError, match=r"jaxmd.scale: limb 0 of operand 1 has dtype int64; int32 is needed"):
        arith.scale(one, np.ones(3, np.int64))
    with pytest.raises(ValueError, match=r"jaxmd.div: limbs is 0; 1 to 16 were wanted"):
        arith.div(one, one, 0)
    with pytest.raises(ValueError, match=r"jaxmd.sqrt: an operand has 17 limbs; 1 to 16 were wanted"):
        arith.sqrt(one * 17, 2)
    with pytest.raises(ValueError, match=r"jaxmd.pad: x has 3 limbs; limbs=2 must not be fewer"):
        arith.pad(one * 3, 2)
    with pytest.raises(ValueError, match=r"jaxmd.broadcast_to: x has shape \(3,\); it does not broadcast to \(2,\)"):
        arith.broadcast_to(one, (2,))
    with pytest.raises(ValueError, match=r"jaxmd.copies: n is 0"):
        arith.copies(one, 0)


def test_x64_is_judged_where_it_is_used():
    one = (np.ones(3), np.zeros(3))
    with jax.enable_x64(False):
        with pytest.raises(TypeError, match=r"jaxmd.add: limbs are float64 but jax_enable_x64 is off; call jax.config"):
            arith.add(one, one, 2)
        with pytest.raises(TypeError, match=r"jaxmd.two_sum: limbs are float64"):
            jax.jit(arith.two_sum)(1.0, 2.0)
        with jax.enable_x64(True):
            assert_bits(arith.add(one, one, 2), (np.full(3, 2.0), np.zeros(3)))


def test_other_platforms_are_refused():
    one = (jnp.ones(3), jnp.zeros(3))
    with pytest.raises(NotImplementedError, match="jaxmd_add: no kernel for platform tpu; jaxmd runs on cpu and cuda"):
        jax.jit(lambda x: arith.add(x, x, 2)).trace(one).lower(lowering_platforms=("tpu",))


def test_primitives_are_of_the_public_class():
    from jax.extend.core import Primitive

    assert isinstance(arith.add_p, Primitive) and _primitive.Primitive is Primitive


def test_handlers_are_registered():
    names = {"add", "mul", "div", "sqrt", "renormalize", "scale", "two_sum", "two_prod"}
    assert {f"jaxmd_{name}" for name in names} <= _ffi.register()["cpu"]
    assert _ffi.cpu_features()["isa"] in ("avx512", "avx2", "portable")


def test_special_values_of_unnormalized_operands():
    """An inf or nan in any limb is the value's; zero is the sum of all limbs."""
    x = (np.array([0.0, 1.0, 1.0, np.inf, 1.0]), np.array([np.inf, np.nan, -1.0, -np.inf, -np.inf]))
    y = (np.ones(5), np.zeros(5))
    assert_bits(arith.add(x, y, 2), (np.array([np.inf, np.nan, 1.0, np.nan, -np.inf]), np.zeros(5)))
    assert_bits(arith.mul(x, y, 2), (np.array([np.inf, np.nan, 0.0, np.nan, -np.inf]), np.zeros(5)))
    assert len(SPECIAL) == 12
