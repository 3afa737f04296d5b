"""Slices against exact rationals: digits, exponents, the seed's quarters, and the layout of equation (4)."""

import itertools
import random
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmd import _slices
from jaxmd._product import sliced_matmul

EXPONENT_RANGES = [(-2, 2), (-40, 40), (-400, 400), (-1070, -900), (900, 1023)]


def expand(value: Fraction, limbs: int) -> list[float]:
    """Canonical limbs of a rational: int / int divides correctly rounded in Python."""
    out = []
    for _ in range(limbs):
        x = value.numerator / value.denominator
        out.append(x)
        value -= Fraction(x)
    return out


def random_number(rng: random.Random, limbs: int) -> Fraction:
    lo, hi = rng.choice(EXPONENT_RANGES)
    kind = rng.random()
    if kind < 0.1:
        return Fraction(0)
    scale = Fraction(2) ** rng.randint(lo, hi) * rng.choice([1, -1])
    if kind < 0.2:  # just below a power of two: the limbs have opposite signs
        return scale * (1 - Fraction(1, 2 ** rng.randint(1, 50 * limbs)))
    if kind < 0.3:
        return scale
    return scale * Fraction(rng.getrandbits(53 * limbs) | 1 << (53 * limbs - 1), 1 << (53 * limbs))


def random_limbs(seed: int, limbs: int, shape: tuple[int, ...]) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """(limb arrays, object array of the rationals they stand for)."""
    rng = random.Random(seed)
    size = int(np.prod(shape))
    rows = [expand(random_number(rng, limbs), limbs) for _ in range(size)]
    arrays = tuple(np.array([r[i] for r in rows]).reshape(shape) for i in range(limbs))
    values = np.array([sum(map(Fraction, r)) for r in rows], object).reshape(shape)
    return arrays, values


def fractions(x: np.ndarray) -> np.ndarray:
    return np.vectorize(Fraction, otypes=[object])(np.asarray(x))


slices = jax.jit(_slices.slices, static_argnums=(1, 2, 3))
quarter = jax.jit(_slices.quarter, static_argnums=1)


def same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    return np.array_equal(np.asarray(x).view(np.int64), np.asarray(y).view(np.int64))


@pytest.mark.parametrize("limbs", [1, 2, 3, 5])
def test_exponents_are_the_least(limbs):
    arrays, values = random_limbs(limbs, limbs, (300,))
    found = np.asarray(jax.jit(_slices.exponents)(arrays))
    for e, value in zip(found.tolist(), values, strict=True):
        if value == 0:
            assert e == _slices.ZERO_EXPONENT
        else:
            assert Fraction(2) ** (e - 1) <= abs(value) < Fraction(2) ** e


def test_exponents_of_nonfinite_are_those_of_zero():
    x = (jnp.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 5e-324, -(2.0**-1030)]),)
    zero = _slices.ZERO_EXPONENT
    assert _slices.exponents(x).tolist() == [zero] * 5 + [-1073, -1029]


@pytest.mark.parametrize(("width", "count"), [(20, 6), (13, 8), (21, 3), (52, 1), (2, 9)])
@pytest.mark.parametrize("limbs", [1, 2, 3, 5])
def test_balanced_digits_are_within_three_quarters_of_a_unit(limbs, width, count):
    arrays, values = random_limbs(100 * limbs + width, limbs, (12, 10))
    s = slices(arrays, width, count, -1)
    digits = fractions(s.digits)
    assert np.abs(np.asarray(s.digits)).max() <= 2 ** (width - 1)
    assert all(d.denominator == 1 for d in digits.ravel())
    assert s.exponent.shape == (12,)
    for i, e in enumerate(np.asarray(s.exponent).tolist()):
        for j in range(10):
            value = sum(digits[g, i, j] * Fraction(2) ** (e - width * (g + 1)) for g in range(count))
            assert abs(value - values[i, j]) <= Fraction(3, 4) * Fraction(2) ** (e - width * count)
            assert abs(values[i, j]) < Fraction(2) ** (e - 1)


def test_slices_take_unnormalized_limbs():
    tiny = 2.0**-200
    x = (jnp.array([[0.0, 1.0, tiny]]), jnp.array([[3.0, -1.0, 1.0]]), jnp.array([[0.0, tiny, 0.0]]))
    s = slices(x, 21, 11, -1)
    exact = [Fraction(3), Fraction(tiny), Fraction(1) + Fraction(tiny)]
    e = int(s.exponent[0])
    for j, want in enumerate(exact):
        value = sum(Fraction(float(s.digits[g, 0, j])) * Fraction(2) ** (e - 21 * (g + 1)) for g in range(11))
        assert value == want


@pytest.mark.parametrize("limbs", [1, 2, 4])
def test_quarters_truncate_toward_zero_and_keep_the_sign(limbs):
    arrays, values = random_limbs(7 + limbs, limbs, (15, 8))
    s = quarter(arrays, -1)
    digits = fractions(s.digits)
    unit = 2 ** (52 * limbs + 1)
    for i, e in enumerate(np.asarray(s.exponent).tolist()):
        for j in range(8):
            value = sum(digits[g, i, j] * Fraction(2) ** (-13 * (g + 1)) for g in range(4 * limbs))
            exact = values[i, j] / Fraction(2) ** e
            assert value == Fraction(int(exact * unit), unit)  # int() truncates toward zero
            assert all(abs(d) < 2**13 and d * exact >= 0 for d in digits[:, i, j])


def test_quarters_of_the_seed():
    """Section 2 of the seed prints this 52-bit fraction and its four quarters."""
    f = 0b1001000110100_1100110010011_1011010010001_1010011001100
    s = quarter((jnp.array([[float(f)]]),), -1)
    assert s.digits.ravel().tolist() == [4660, 6547, 5777, 5324]
    assert (s.exponent.tolist(), s.width) == ([52], 13)
    s = quarter((jnp.array([[-float(2 * f + 1)]]),), -1)  # 53 bits: the last piece carries the 53rd
    assert s.digits.ravel().tolist() == [-4660, -6547, -5777, -5324.5]


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 1, 1), (2, 7, 3)])
def test_toeplitz_product_and_primitive_give_the_same_bits(shape):
    m, k, n = shape
    (a, _), (b, _) = random_limbs(1, 2, (m, k)), random_limbs(2, 2, (k, n))

    @jax.jit
    def run(a, b):
        s, t = _slices.slices(a, 20, 6, -1), _slices.slices(b, 20, 6, -2)
        dense = _slices.split_orders(jnp.matmul(_slices.block_row(s), _slices.block_toeplitz(t)), 6)
        return s, t, dense, sliced_matmul(s.digits, t.digits)

    s, t, dense, orders = run(a, b)
    assert same_bits(dense, orders)
    left, right = fractions(s.digits), fractions(t.digits)
    exact = [sum(left[i] @ right[g - i] for i in range(g + 1)) for g in range(6)]
    assert (fractions(orders) == np.array(exact)).all()


def test_block_matrices_are_equation_4():
    s = _slices.Slices(jnp.arange(1.0, 4.0).reshape(3, 1, 1), jnp.zeros(1, jnp.int32), 13)
    assert _slices.block_row(s).tolist() == [[1, 2, 3]]
    assert _slices.block_toeplitz(s).tolist() == [[1, 2, 3], [0, 1, 2], [0, 0, 1]]


def test_composition_equals_the_loop_under_jit_of_vmap():
    (a, _), (b, _) = random_limbs(5, 3, (4, 3, 6)), random_limbs(6, 3, (4, 6, 2))

    def product(x, y):
        s, t = _slices.slices(x, 19, 9, -1), _slices.slices(y, 19, 9, -2)
        return _slices.collect(sliced_matmul(s.digits, t.digits), s.exponent, t.exponent, 19, 3)

    mapped, one = jax.jit(jax.vmap(product))(a, b), jax.jit(product)
    for i in range(4):
        alone = one(tuple(x[i] for x in a), tuple(x[i] for x in b))
        assert all(same_bits(got[i], want) for got, want in zip(mapped, alone, strict=True))


@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (2, 1), (0, 0)])
def test_sliced_matmul_batches_any_axis(in_axes):
    rng = np.random.default_rng(3)
    a, b = rng.integers(-9, 9, (3, 4, 5)).astype(float), rng.integers(-9, 9, (3, 5, 2)).astype(float)
    stack_a = a if in_axes[0] is None else np.stack([a, 2 * a, -a], in_axes[0])
    stack_b = b if in_axes[1] is None else np.stack([b, 3 * b, b + 1], in_axes[1])
    got = jax.vmap(sliced_matmul, in_axes)(stack_a, stack_b)
    for i in range(3):
        x = a if in_axes[0] is None else np.take(stack_a, i, in_axes[0])
        y = b if in_axes[1] is None else np.take(stack_b, i, in_axes[1])
        exact = [sum(x[p].astype(int) @ y[g - p].astype(int) for p in range(g + 1)) for g in range(3)]
        assert (np.asarray(got[i]) == np.array(exact)).all()


def test_sliced_matmul_derivatives_are_its_own_products():
    rng = np.random.default_rng(4)
    a, da = (rng.integers(-9, 9, (3, 2, 4)) for _ in range(2))
    b, db = (rng.integers(-9, 9, (3, 4, 5)) for _ in range(2))
    ct = rng.integers(-9, 9, (3, 2, 5))
    fa, fda, fb, fdb, fct = (jnp.asarray(x, jnp.float64) for x in (a, da, b, db, ct))
    _, tangent = jax.jvp(sliced_matmul, (fa, fb), (fda, fdb))
    ga, gb = jax.vjp(sliced_matmul, fa, fb)[1](fct)
    for g in range(3):
        assert (np.asarray(tangent[g]) == sum(da[i] @ b[g - i] + a[i] @ db[g - i] for i in range(g + 1))).all()
        assert (np.asarray(ga[g]) == sum(ct[h] @ b[h - g].T for h in range(g, 3))).all()
        assert (np.asarray(gb[g]) == sum(a[h - g].T @ ct[h] for h in range(g, 3))).all()


def test_sliced_matmul_refuses_what_does_not_fit():
    x = jnp.zeros((2, 3, 4))
    with pytest.raises(ValueError, match="inner dimensions must agree"):
        sliced_matmul(x, jnp.zeros((2, 3, 4)))
    with pytest.raises(ValueError, match="slice count"):
        sliced_matmul(x, jnp.zeros((3, 4, 4)))
    with pytest.raises(TypeError, match="float64"):
        sliced_matmul(x, jnp.zeros((2, 4, 4), jnp.float32))
    with pytest.raises(TypeError, match="rank"):
        sliced_matmul(x[0], x[0])


@pytest.mark.parametrize("limbs", [1, 2, 3, 5])
def test_settled_exponents_are_those_of_canonical_limbs(limbs):
    """Never sure of limbs that renormalization changes; sure of all canonical ones but near ties and subnormals."""
    rng = random.Random(limbs)
    rows = [expand(random_number(rng, limbs), limbs) for _ in range(200)]
    sure = len(rows)
    for row in rows[:sure]:
        odd = list(row)
        kind, i = rng.randrange(6), rng.randrange(1, limbs) if limbs > 1 else 0
        if kind == 0:
            odd[i] = rng.choice([0.5, -0.5, 0.499, -0.26, 1.0, 2.0]) * np.spacing(odd[i - 1])
        elif kind == 1:
            odd[i - 1] = rng.choice([1.0, 2.0**-1022, 2.0**-1074, 3 * 2.0**-1074])
            odd[i] = rng.choice([1, -1]) * odd[i - 1] * 2.0 ** -rng.randint(50, 60)
        elif kind == 2:
            odd[i - 1], odd[i] = odd[i], odd[i - 1]
        elif kind == 3:
            odd[0] = 0.0
        elif kind == 4:
            odd[rng.randrange(limbs)] = rng.choice([np.inf, -np.inf, np.nan])
        else:
            odd[i] = rng.choice([2.0**-1074, -(2.0**-1074), -0.0])
        rows.append(odd)
    x = tuple(jnp.array([row[i] for row in rows]) for i in range(limbs))
    for compiled in (False, True):
        got = (jax.jit(_slices.settled_exponents) if compiled else _slices.settled_exponents)(x).tolist()
        for e, row in zip(got, rows, strict=True):
            if e == _slices.UNSETTLED:
                continue
            value = sum(map(Fraction, row))
            assert [abs(v) for v in expand(value, limbs)] == [abs(v) for v in row]
            if value == 0:
                assert e == _slices.ZERO_EXPONENT
            else:
                assert Fraction(2) ** (e - 1) <= abs(value) < Fraction(2) ** e
        for e, row in zip(got[:sure], rows, strict=False):
            close = [2 * abs(y) >= np.spacing(abs(x)) * (1 - 2.0**-50) / 2 for x, y in itertools.pairwise(row)]
            tiny = any(0 < abs(x) < 2.0**-960 for x in row[:-1])
            assert e != _slices.UNSETTLED or any(close) or tiny
