"""residue_encode, residue_decode and residue_product, called through the FFI.

Both must equal `_residues.encode` and `_residues.decode` bit for bit, and Python integers: X mod p for the integer X of
every entry, and C' 2^(row + column - 2w) for residues made of integers C'.
"""

import functools
import random
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import inputs
import jax
import numpy as np
import oracles
import pytest
from handler_calls import PLATFORMS, assert_same_output_on_every_isa, call

from jaxmd import _residue_steps, _residues

LIMBS = [1, 2, 3, 4, 8, 16]


def plan_for(limbs, k=130):
    return _residues.plan(max(k, 1), 53 * limbs + 4)


# residue_encode


def encode(platform, plan, x, exponent, shift, side):
    """Residues of x [.., r, k], handed over as the side wants it."""
    tables = _residues.encoding(plan)
    kp = -(-shift.shape[-1] // 16) * 16
    out = [((plan.channels, *exponent.shape, kp), np.int8)]
    x = [np.swapaxes(limb, -1, -2) for limb in x] if side else x
    tables = (tables.weights, np.array(plan.moduli, np.int32))
    attrs = {"bits": plan.bits, "pairs": len(plan.pairs), "side": side}
    return call(platform, "jaxmd_residue_encode", out, *x, exponent, shift, *tables, **attrs)[0]


def grid(rng, x, spread):
    """Exponents of rows and shifts of inner indices with |x_il| < 2^(exponent_i + shift_l)."""
    lead = np.where(np.isfinite(x[0]), np.abs(x[0]), 0.0)
    own = np.where(lead > 0, np.frexp(lead)[1], -1200)
    shape = (*x[0].shape[:-2], x[0].shape[-1])
    shift = rng.integers(-spread, spread + 1, shape).astype(np.int32)
    exponent = np.max(own - shift[..., None, :], axis=-1, initial=-1300).astype(np.int32)
    return np.where(exponent < -1250, 0, exponent).astype(np.int32), shift


def integers(x, scale, bits):
    """X: every limb rounded to the grid by itself, ties away from zero; inf and nan count as 0."""
    out = np.zeros(x[0].shape, object)
    for index in np.ndindex(out.shape):
        for limb in x:
            value = float(limb[index])
            if np.isfinite(value) and scale[index] < 2000:
                steps = Fraction(abs(value)) * Fraction(2) ** (bits - int(scale[index]))
                out[index] += (1 if value > 0 else -1) * int(steps + Fraction(1, 2))
    return out


PIECE = 1024


@functools.cache
def reference_encode(plan):
    return jax.jit(lambda x, scale: _residues.encode(x, scale, plan))


def definition_encode(plan, x, scale):
    """`_residues.encode` in pieces of one shape, which compiles once."""
    size = scale.size
    padded = -(-size // PIECE) * PIECE
    flat = [np.pad(np.ravel(v), (0, padded - size)) for v in (*x, scale)]
    pieces = [[v[i : i + PIECE] for v in flat] for i in range(0, padded, PIECE)]
    out = [np.asarray(reference_encode(plan)(tuple(p[:-1]), p[-1])) for p in pieces]
    return np.concatenate(out, axis=1)[:, :size].reshape(-1, *scale.shape)


def check_encode(platform, plan, x, exponent, shift, label, oracle=True):
    scale = exponent[..., :, None] + shift[..., None, :]
    k = shift.shape[-1]
    expected = definition_encode(plan, x, scale)
    if oracle:
        value = integers(x, scale, plan.bits)
        ones = len(plan.small)
        for i, p in enumerate(plan.small):
            np.testing.assert_array_equal(expected[i], ((value + p // 2) % p - p // 2).astype(np.int64), err_msg=label)
        for j, (p, t) in enumerate(plan.pairs):
            a, b, both = (c.astype(np.int64) for c in expected[ones + 3 * j : ones + 3 * j + 3])
            np.testing.assert_array_equal((a + t * b) % p, (value % p).astype(np.int64), err_msg=label)
            np.testing.assert_array_equal(a + b, both, err_msg=label)
    for side in (0, 1):
        got = encode(platform, plan, x, exponent, shift, side)
        np.testing.assert_array_equal(got[..., :k], expected, err_msg=f"{label}, side {side}")
        np.testing.assert_array_equal(got[..., k:], 0, err_msg=f"{label}, padding, side {side}")


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("limbs", LIMBS)
def test_encode_of_every_kind_of_operand(platform, limbs):
    generators = {**inputs.NORMALIZED, **inputs.EXTREME}
    for i, (kind, generator) in enumerate(generators.items()):
        rng = inputs.generator("encode", kind, limbs)
        shape = [(5, 15), (3, 16), (9, 17), (70, 1), (2, 3, 3, 7)][i % 5]
        x = generator(rng, shape, limbs)
        x = oracles.from_fractions(oracles.fractions(x), limbs)
        exponent, shift = grid(rng, x, [0, 3, 60][i % 3])
        check_encode(platform, plan_for(limbs), x, exponent, shift, f"{kind}, {limbs} limbs, {shape}")


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("limbs", [1, 2, 4])
@pytest.mark.parametrize("shape", [(1, 1), (9, 130), (9, 128), (3, 2100), (19, 300), (2, 2, 33, 40), (1000, 3)])
def test_encode_of_every_shape(platform, limbs, shape):
    rng = inputs.generator("shapes", limbs, shape)
    x = inputs.spread(rng, shape, limbs)
    for spread in (0, 5):
        label = f"{limbs} limbs, {shape}, shifts to {spread}"
        check_encode(platform, plan_for(limbs), x, *grid(rng, x, spread), label, oracle=False)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_encode_of_nothing(platform):
    plan = plan_for(2)
    for shape in [(0, 5), (3, 0), (0, 0), (0, 2, 3), (2, 0, 3)]:
        x = (np.ones(shape), np.zeros(shape))
        for side in (0, 1):
            exponent = np.ones(shape[:-1], np.int32)
            got = encode(platform, plan, x, exponent, np.zeros((*shape[:-2], shape[-1]), np.int32), side)
            assert got.size == 0


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("limbs", [1, 2, 4])
def test_encode_rounds_ties_away_from_zero(platform, limbs):
    plan = plan_for(limbs)
    unit = Fraction(1, 2**plan.bits)
    rng = inputs.generator("ties", limbs)
    steps = [Fraction(1, 2), Fraction(3, 2), Fraction(1, 4), Fraction(1, 2) - Fraction(1, 2**50)]
    steps += [Fraction(int(n)) + Fraction(1, 2) for n in rng.integers(0, 2**50, 40)]
    steps += [2**14 + Fraction(1, 2), Fraction(1, 2) + Fraction(1, 2**53), Fraction(1, 2**40), Fraction(1, 2**200)]
    lead = [Fraction(0), Fraction(1, 2), Fraction(2**30 - 1, 2**30)] if limbs > 1 else [Fraction(0)]
    values = [[sign * (a + b * s * unit) for s in steps] for sign in (1, -1) for a in lead for b in (1, -1)]
    x = oracles.from_fractions(values, limbs)
    zeros = np.zeros(len(values), np.int32), np.zeros(len(steps), np.int32)
    check_encode(platform, plan, x, *zeros, "ties")
    largest = (np.array([[1 - 2.0**-53, -1 + 2.0**-53, 0.5]]), *(np.zeros((1, 3)) for _ in range(limbs - 1)))
    check_encode(platform, plan, largest, np.zeros(1, np.int32), np.zeros(3, np.int32), "largest")


@pytest.mark.parametrize("platform", PLATFORMS)
def test_encode_of_special_values_and_far_grids(platform):
    plan = plan_for(2)
    lead = np.array([[np.inf, -np.inf, np.nan, -0.0, 1.0, 0.75], [5e-324, -5e-324, 0.0, 1e-310, 2e-308, 0.0]])
    x = (lead, np.where(lead == 0.75, 2.0**-60, 0.0))
    exponent, shift = np.array([1, -1020], np.int32), np.zeros(6, np.int32)
    check_encode(platform, plan, x, exponent, shift, "special")
    for far in (5000, 10**9):  # below the grid
        check_encode(platform, plan, x, np.full(2, far, np.int32), shift, "far")
    x = (np.array([[2.0**1023, -(2.0**-1074)]]), np.array([[2.0**960, 0.0]]))
    shift = np.array([2047, -50], np.int32)
    check_encode(platform, plan, x, np.array([-1023], np.int32), shift, "huge and tiny")


@pytest.mark.parametrize("platform", PLATFORMS)
def test_encode_with_the_most_bits_there_are(platform):
    plan = _residues.plan(1, _residues.max_bits(1))
    rng = inputs.generator("most bits")
    x = oracles.from_fractions([[Fraction(int(rng.integers(-(2**60), 2**60)), 2**61) ** 17 for _ in range(40)]], 16)
    check_encode(platform, plan, x, *grid(rng, x, 3), "most bits")


@pytest.mark.parametrize("platform", PLATFORMS)
def test_encode_of_every_residue_of_every_two_digit_modulus(platform):
    plan = _residues.plan(4096, _residues.max_bits(4096))
    value = np.arange(max(plan.moduli))
    zero = np.zeros(1, np.int32), np.zeros(value.size, np.int32)
    got = encode(platform, plan, (np.ldexp(value, -plan.bits)[None],), *zero, 0)[:, 0, : value.size].astype(np.int64)
    ones = len(plan.small)
    assert len(plan.pairs) > 100
    for j, (p, t) in enumerate(plan.pairs):
        a, b, both = got[ones + 3 * j : ones + 3 * j + 3]
        np.testing.assert_array_equal((a + t * b - value) % p, 0, err_msg=f"p = {p}")
        np.testing.assert_array_equal(129 * (a + 128) + 256 * b, 129 * (value + 128) % p, err_msg=f"p = {p}")
        np.testing.assert_array_equal(both, a + b, err_msg=f"p = {p}")


def test_encode_does_not_crash_where_its_promise_is_broken():
    plan = plan_for(2)
    x = (np.array([[1e300, 1.0, -1e308, np.nan]]), np.ones((1, 4)))
    for e in (-(2**31), -5000, -10, 2**31 - 1):
        assert encode("cpu", plan, x, np.array([e], np.int32), np.array([-(2**31), -1, 0, 2**31 - 1], np.int32), 0).size


# residue_decode


def decode(platform, plan, residues, row, column, limbs):
    out = [((*row.shape, column.shape[-1]), np.float64)] * limbs
    tables, attrs = _residue_steps.decode_operands(plan, "cuda" if platform == "gpu" else platform)
    return call(platform, "jaxmd_residue_decode", out, residues, row, column, *tables, **attrs)


def centred(value, p):
    return (value + p // 2) % p - p // 2


def residues_of(plan, value):
    """int8 [R, ...] of an array of integers: their residues, and those of 1/t of them in balanced bytes."""
    rows = [centred(value, p) for p in plan.small]
    for p, t in plan.pairs:
        r = centred(value * pow(t, -1, p), p)
        rows += [centred(r, 256), (r - centred(r, 256)) // 256]
    return np.array(rows).reshape(plan.residue_bytes, *value.shape).astype(np.int8)


def products(rng, plan, shape):
    """Integers within plan.k 2^2w, of all sizes, extremes and zeros among them."""
    draw = random.Random(int(rng.integers(2**32)))
    most, out = plan.k * 4**plan.bits, np.empty(shape, object)
    for index in np.ndindex(shape):
        size = min(most, 2 ** draw.randrange(1, 2 * plan.bits + plan.k.bit_length()))
        plain, power = draw.randrange(-size, size + 1), draw.randrange(2 * plan.bits)
        out[index] = draw.choice([plain, plain, plain, 0, most, -most, 2**power, 2**power - 1, 1 - 2**power])
    return out


@functools.cache
def reference_decode(plan, limbs):
    return jax.jit(lambda *args: _residues.decode(*args, plan, limbs))


def exact_values(value, row, column, bits):
    out = np.empty(value.shape, object)
    for i, j in np.ndindex(value.shape):
        out[i, j] = Fraction(int(value[i, j])) * Fraction(2) ** (int(row[i]) + int(column[j]) - 2 * bits)
    return out


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("limbs", LIMBS)
def test_decode_of_integers_of_every_size(platform, limbs):
    plan = plan_for(limbs)
    rng = inputs.generator("decode", limbs)
    value = products(rng, plan, (5, 33))
    residues = residues_of(plan, value)
    row, column = np.array([0, 7, -1050, -600, 990], np.int32), rng.integers(-30, 31, 33).astype(np.int32)
    got = decode(platform, plan, residues, row, column, limbs)
    for limb, expected in zip(got, reference_decode(plan, limbs)(residues, row, column)):
        np.testing.assert_array_equal(limb, np.asarray(expected))
        np.testing.assert_array_equal(np.signbit(limb), np.signbit(expected))
    oracles.assert_normalized(got)
    true = exact_values(value, row, column, plan.bits)
    for limb, expected in zip(got, oracles.from_fractions(true[:2], limbs)):  # rows far from underflow
        np.testing.assert_array_equal(limb[:2], expected)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("limbs", [1, 2, 5])
@pytest.mark.parametrize("shape", [(1, 1), (1, 63), (64, 1), (7, 9), (3, 2, 5, 13), (33, 200), (0, 4), (4, 0)])
def test_decode_of_every_shape(platform, limbs, shape):
    plan = plan_for(limbs, 1)
    rng = inputs.generator("decode shapes", shape, limbs)
    value = rng.integers(-(2**52), 2**52, shape)
    residues = residues_of(plan, value.astype(object))
    row, column = (rng.integers(-9, 10, s).astype(np.int32) for s in (shape[:-1], (*shape[:-2], shape[-1])))
    got = decode(platform, plan, residues, row + plan.bits, column + plan.bits, limbs)
    np.testing.assert_array_equal(got[0], np.ldexp(value, row[..., :, None] + column[..., None, :]))
    for limb in got[1:]:
        np.testing.assert_array_equal(limb, 0.0)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("limbs", [1, 4, 17])
def test_decode_with_the_most_bits_there_are(platform, limbs):
    plan = _residues.plan(4096, _residues.max_bits(4096))
    rng = inputs.generator("decode most bits")
    value = products(rng, plan, (1, 40))
    residues = residues_of(plan, value)
    row, column = np.zeros(1, np.int32), np.zeros(40, np.int32)
    got = decode(platform, plan, residues, row, column, limbs)
    true = exact_values(value, row, column, plan.bits)
    for limb, expected in zip(got, oracles.from_fractions(true, limbs)):
        normal = np.abs(limb) > 1e-290
        np.testing.assert_array_equal(limb[normal], expected[normal])
    for j in range(40):
        error = abs(sum(Fraction(limb[0, j]) for limb in got) - true[0, j])
        assert error <= abs(true[0, j]) * oracles.unit(limbs) + Fraction(1, 2**1075)


# residue_product, from limbs to limbs


def whole_product(plan, a, b, row, column, shifts, limbs):
    out = [((*row.shape, column.shape[-1]), np.float64)] * limbs
    tables, attrs = _residue_steps.decode_operands(plan, "cpu")
    tables = (*_residue_steps.product_operands(plan), *tables)
    return call("cpu", "jaxmd_residue_product", out, row, column, *shifts, *tables, *a, *b, **attrs, lhs_limbs=len(a))


@pytest.mark.parametrize("limbs", [(1, 1, 1), (2, 2, 2), (2, 1, 3), (4, 4, 4), (8, 8, 9)])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 17, 9), (33, 130, 70), (2, 3, 9, 16, 5), (0, 5, 3, 4), (0, 4, 4)])
def test_whole_product_is_exact_before_its_rounding(limbs, shape):
    """Sums of the integers X Y, rounded once; called twice, so that scratch is new once and once it is not."""
    left, right, out = limbs
    *batch, m, k, n = shape
    plan, rng = plan_for(max(left, right), k), inputs.generator("whole", limbs, shape)
    a, b = inputs.spread(rng, (*batch, m, k), left), inputs.spread(rng, (*batch, n, k), right)
    (row, shift), (column, back) = grid(rng, a, 4), grid(rng, b, 4)
    transposed = [np.swapaxes(x, -1, -2) for x in b]
    got = [whole_product(plan, a, transposed, row, column, (shift, back), out) for _ in range(2)]
    x = integers(a, row[..., :, None] + shift[..., None, :], plan.bits)
    y = integers(b, column[..., :, None] + back[..., None, :], plan.bits)
    expected = np.empty((*batch, m, n), object)
    for z in np.ndindex(*batch):
        for i, j in np.ndindex(m, n):
            scale = Fraction(2) ** (int(row[z][i]) + int(column[z][j]) - 2 * plan.bits)
            expected[(*z, i, j)] = sum(int(u) * int(v) for u, v in zip(x[z][i], y[z][j])) * scale
    oracles.assert_bits(got[0], oracles.from_fractions(expected, out))
    oracles.assert_bits(got[1], got[0])


def test_whole_products_at_one_time():
    """Each call has scratch of its own; a large one gives way to several small ones and comes back."""
    plan, rng = plan_for(2, 600), inputs.generator("whole", "threads")
    cases = []
    for size in (20, 600, 90, 300, 600, 150):
        a, b = inputs.full(rng, (size, 600), 2), inputs.full(rng, (600, size), 2)
        row, column = np.full(size, 8, np.int32), np.full(size, 8, np.int32)
        cases.append((plan, a, b, row, column, (np.zeros(600, np.int32),) * 2, 2))
    alone = [whole_product(*case) for case in cases]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda case: whole_product(*case), cases * 4))
    for i, got in enumerate(together):
        oracles.assert_bits(got, alone[i % len(cases)])


def test_whole_product_refuses_what_does_not_fit():
    plan = plan_for(2, 3)
    a, b = (np.ones((4, 3)),) * 2, (np.ones((3, 5)),) * 2
    e, f, zero = np.ones(4, np.int32), np.ones(5, np.int32), np.zeros(3, np.int32)
    for wrong, message in [
        ((plan, a, (np.ones((4, 5)),) * 2, e, f, (zero, zero), 2), "inner dimensions must agree"),
        ((plan, a, b, e, e, (zero, zero), 2), "result has shape"),
        ((plan, a, b, e, f, (zero, f), 2), "the shift of b has shape"),
        ((plan, a[:0], b, e, f, (zero, zero), 2), "0 limbs"),
    ]:
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            whole_product(*wrong)


# instruction sets

DIGEST = """
import hashlib, jax
jax.config.update("jax_enable_x64", True)
import inputs, test_residue_handlers as t
import numpy as np
digest = hashlib.sha256()
for limbs in (1, 2, 4, 8):
    plan = t.plan_for(limbs)
    rng = inputs.generator("isa", limbs)
    x = inputs.spread(rng, (9, 150), limbs)
    for side in (0, 1):
        digest.update(t.encode("cpu", plan, x, *t.grid(rng, x, 5), side).tobytes())
    residues = t.residues_of(plan, t.products(rng, plan, (5, 33)))
    for c in t.decode("cpu", plan, residues, np.arange(5, dtype=np.int32), np.zeros(33, np.int32), limbs):
        digest.update(c.tobytes())
print(digest.hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits():
    assert_same_output_on_every_isa(DIGEST)
