"""Residue plans, and the three steps of a product in residues, against Python integers."""

import functools
import itertools
import math
import random
from fractions import Fraction

import inputs
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jaxmd import _magnitudes, _residue_steps, _residue_tables, _residues, _slices

LIMBS = (1, 2, 3, 4, 8, 16)
LENGTHS = [1, 2, 3, 15, 16, 17, 127, 128, 129, 1023, 1024, 1025, 4096, 65535, 131071, 131072, 300000]


def centred(r, p):
    return (r + p // 2) % p - p // 2


def round_half_away(x):
    """A Fraction to the nearest integer."""
    return (1 if x >= 0 else -1) * ((2 * abs(x) + 1) // 2)


# --- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limbs", "k"),
    [(limbs, k) for limbs, k in zip(itertools.cycle(LIMBS), LENGTHS)]
    + [pytest.param(limbs, k, marks=pytest.mark.slow) for limbs in range(1, 17) for k in LENGTHS],
)
def test_plan_obligations(limbs, k):
    """In integers: the moduli hold every sum with its sign, int32 holds every block, float64 every sum of slices."""
    for guard in (-1, 28, 60):
        plan = _residues.plan(k, 53 * limbs + 3 + guard)
        moduli = plan.moduli
        product = math.prod(moduli)
        assert plan.bits >= 53 * limbs + 3 + guard and plan.guard(limbs) >= guard
        assert product > 2 * k * 4**plan.bits
        assert all(math.gcd(p, q) == 1 for p, q in itertools.combinations(moduli, 2))
        assert max(plan.small) <= 256 and _residues.MAX_K * 128 * 128 < 2**31
        assert plan.channels == len(plan.small) + 3 * len(plan.pairs)
        if guard < 0:
            decoding_obligations(plan)


def decoding_obligations(plan):
    tables = _residues.decoding(plan)
    product = math.prod(plan.moduli)
    weights = [2 ** (tables.beta * j) for j in range(len(tables.product))]
    rebuilt = [sum(int(d) * weight for d, weight in zip(column, weights)) for column in tables.slices.T]
    units = [centred(product // p * pow(product // p, -1, p), product) for p in plan.small]
    units += [centred(product // p * (pow(product // p, -1, p) * t % p), product) for p, t in plan.pairs]
    assert rebuilt == units
    assert sum(int(d) * weight for d, weight in zip(tables.product, weights)) == product
    largest = np.array([p // 2 for p in plan.moduli])
    quotient = sum(int(r) * abs(x) for r, x in zip(largest, rebuilt)) // product + 2
    sums = np.abs(tables.slices) @ largest + quotient * np.abs(tables.product)
    assert sums.max() <= 2**53


@pytest.mark.parametrize("limbs", LIMBS)
def test_tables_of_the_cuda_decoder(limbs):
    """Bytes of residues times rows of the tables are C' mod P, with residues as the kernel finds and splits them."""
    plan = _residues.plan(4096, 53 * limbs + 2)
    tables = _residue_tables.decode_tables(plan)
    product, bytes_ = math.prod(plan.moduli), plan.residue_bytes
    halves, size = -(-bytes_ // 16), 16 * tables.words  # steps of 16 rows; bytes of an integer
    count, raised = size // 4, product << 8 * tables.raised
    fragments, numbers = np.split(tables.data, [tables.data.size - -(-(2 * count + 6) // 4) * 4])
    fragments = fragments.view(np.int8).reshape(-1, tables.words, 32, 16)
    whole = lambda x: sum(int(v) << 32 * i for i, v in enumerate(x.view(np.uint32)))
    assert whole(numbers[:count]) == raised and whole(numbers[count + 4 : 2 * count + 4]) == (1 << 8 * size) - raised
    inverse = float(numbers[2 * count + 4 : 2 * count + 6].view(np.float64)[0])
    assert abs(Fraction(inverse) * Fraction(raised, 1 << 32 * (count - 2)) - 1) < Fraction(1, 2**52)

    def row(step, place):
        """The number in row `place` of a step of 16: columns are bytes 4 word + 2 half + byte of one of four parts."""
        place_in_word = itertools.product(range(4), range(tables.words), range(2), range(2))
        return sum(
            int(fragments[step // 2, word, 4 * (2 * part + byte) + place // 4, 8 * half + 4 * (step % 2) + place % 4])
            << 8 * (4 * (tables.words * part + word) + 2 * half + byte)
            for part, word, half, byte in place_in_word
        )

    value = random.Random(limbs).randrange(-(product // 2), product // 2)
    digits = [centred(value, p) for p in plan.small]
    for p, t in plan.pairs:
        residue = centred(value * pow(t, -1, p), p)
        digits += [centred(residue, 256), (residue - centred(residue, 256)) // 256]
    total = 0
    for step, lane, i in itertools.product(range(halves), range(4), range(4)):
        start = max(0, min(lane * 4 * halves, bytes_ - 4 * halves))
        total += digits[start + 4 * step + i] * row(step, 4 * lane + i)
    assert len(digits) == bytes_ and total % raised == (value << 8 * tables.raised) % raised


def test_number_of_products():
    """int8 products at k = 4096; the slices of engine "fp64" take 21, 45, 78, 276, 1176 float64 products from L = 2.

    First for accuracy "normwise", then at the base level of "componentwise"."""
    assert [_residues.plan(4096, 53 * limbs + 2).channels for limbs in LIMBS] == [16, 31, 48, 69, 154, 324]
    assert [_magnitudes.base(4096, limbs)[0].channels for limbs in LIMBS] == [16, 30, 47, 68, 153, 323]


def test_every_residue_of_every_two_digit_modulus():
    p, t = np.array(_residues.TWO_DIGIT).T[:, :, None]
    x = np.arange(p.max())[None] - p // 2
    split = jax.jit(_residues._two_digits)
    a, b, both = (np.asarray(c).astype(int) for c in split(jnp.asarray(129.0 * x), jnp.asarray(p, float)))
    assert ((a + t * b - x) % p == 0).all() and (both == a + b).all()
    assert all(c.min() == -128 and c.max() <= 127 for c in (a, b, both))


def test_two_digit_moduli():
    """Primes whose centred residues w have int8 bytes of 2 w, as ffi/residue_encode_tables.cuh wants them."""
    moduli = [p for p, _ in _residues.TWO_DIGIT]
    assert all(p % q for p in moduli for q in range(2, math.isqrt(p) + 1)) and len(set(moduli)) == len(moduli) == 114
    assert max(moduli) - 1 + 128 < 2**15


def test_sums_of_two_digit_weights():
    """ffi/residue_encode_pairs.cuh: 0 <= 2 y < 2^32 for the longest words, whose quotient by p then is exact."""
    words, most = 33, _residues.LARGEST // 2
    spread = 255 * 4 * words * 2 * most
    for p, _ in _residues.TWO_DIGIT:
        start = 2 * (2**15 * p + 128 * 129)
        least, largest = start - 2 * most - spread, start + 2 * most + spread
        assert start + 2 * most + 255 * 4 * words * 128 < 2**31 and least >= 0 and largest * 2**15 // p < 2**32
        factor = -(-(2**47) // p)
        for y in (0, p - 1, largest // 2 // p * p, largest // 2 // p * p - 1, largest // 2):
            assert y * factor >> 47 == y // p
            assert (2 * y * (factor - 2**32) >> 32) + 2 * y >> 16 == y // p


def test_quotients_in_one_instruction():
    """ffi/residue_encode_tables.cuh, Reduction::kDirect: the float32 nearest to 1/p leaves f / p within 1 / (2 p)."""
    for p in {p for count in range(51) for p in _residues._one_digit(count)}:
        spread = sum(255 * abs(centred(pow(256, s, p), p)) for s in range(4 * 28))  # of sums, for 28 words
        inverse, largest = Fraction(float(np.float32(1) / np.float32(p))), 2**23 + 257 * p + spread
        assert largest < 2**24 and abs(inverse * p - 1) * largest < Fraction(1, 2)


def test_word_too_long():
    assert _residues.max_bits(4096) >= 1020
    with pytest.raises(ValueError, match="no residues for 1100 bits and k = 4096"):
        _residues.plan(4096, 1100)


# --- encoding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("limbs", [1, 2, 5])
def test_encoding(limbs, side):
    """The residues are those of the integer next to x 2^(w - scale), entry by entry."""
    rng = inputs.generator("encode", limbs)
    k, plan = 17, _residues.plan(17, 53 * limbs + 2)
    x = inputs.spread(rng, (3, k), limbs) if limbs > 1 else inputs.full(rng, (3, k), limbs, 30.0)
    x[0][0, 0], x[0][1, 1] = 0.0, np.inf
    for limb in x[1:]:
        limb[0, 0] = limb[1, 1] = 0.0
    shift = rng.integers(-5, 6, k).astype(np.int32)
    parts = [[[Fraction(float(v)) if np.isfinite(v) else Fraction(0) for v in row] for row in limb] for limb in x]
    values = [[sum(limb[i][j] for limb in parts) for j in range(k)] for i in range(3)]
    exponent = np.array(
        [max(math.frexp(float(abs(v)))[1] + 1 - int(s) for v, s in zip(row, shift)) for row in values], np.int32
    )
    operand = tuple(l.T for l in x) if side else tuple(x)
    encode = jax.jit(functools.partial(_residue_steps.encode, plan=plan, side=side))
    channels = np.asarray(encode(tuple(map(jnp.asarray, operand)), exponent, shift)).astype(object)
    assert channels.shape == (plan.channels, 3, 32) and not channels[:, :, k:].any()
    for i in range(3):
        for j in range(k):
            scale = Fraction(2) ** (plan.bits - int(exponent[i]) - int(shift[j]))
            integer = sum(round_half_away(limb[i][j] * scale) for limb in parts)
            assert abs(integer - values[i][j] * scale) <= Fraction(3, 4) + Fraction(limbs, 2**50)
            ones = len(plan.small)
            assert [centred(integer, p) for p in plan.small] == list(channels[:ones, i, j])
            for n, (p, t) in enumerate(plan.pairs):
                a, b, both = channels[ones + 3 * n : ones + 3 * n + 3, i, j]
                assert (a + t * b - integer) % p == 0 and both == a + b


# --- the chain -------------------------------------------------------------------------------------------------------


@functools.cache
def digits_of(p, t):
    """Residue -> some (a, b) with a, b, a + b in int8: found by trying all, not the reduction under test."""
    a, b = np.meshgrid(np.arange(-128, 128), np.arange(-128, 128))
    good = (a + b >= -128) & (a + b <= 127)
    table = np.full((p, 2), 128)
    table[(a[good] + t * b[good]) % p] = np.stack([a[good], b[good]], axis=-1)
    assert table.max() <= 127
    return table


def channels_of(integers, plan):
    """int8 [G, ...] from an object array of integers."""
    out = [[centred(x, p) for x in integers.ravel()] for p in plan.small]
    for p, t in plan.pairs:
        a, b = digits_of(p, t)[[int(x % p) for x in integers.ravel()]].T
        out += [a, b, a + b]
    return np.array(out).reshape(plan.channels, *integers.shape).astype(np.int8)


@pytest.mark.parametrize(
    ("limbs", "k"),
    [
        *[(limbs, k) for limbs, k in zip(itertools.cycle([1, 2, 4]), LENGTHS)],
        (8, 17),
        (16, 3),
        *(
            pytest.param(limbs, k, marks=pytest.mark.slow)
            for limbs in range(1, 17)
            for k in LENGTHS
            if limbs <= 4 or k <= 4096
        ),
    ],
)
def test_chain_of_integers(limbs, k):
    """Extreme and random words, and sums at ±k 2^2w, through product and decode: each comes out rounded once."""
    rng = inputs.generator("chain", limbs, k)
    plan = _residues.plan(k, 53 * limbs + 2)
    top = 2**plan.bits
    few = [int.from_bytes(rng.bytes(plan.bits // 8), "little") * (-1) ** i for i in range(5)]
    pool = np.array([top, -top, 0, 1, -1, *few], object)
    picks = [np.zeros((1, k), int), np.ones((1, k), int), rng.integers(0, 10, (1, k))]
    left = np.concatenate(picks)
    right = np.concatenate([np.zeros((1, k), int), rng.integers(0, 10, (1, k))])
    table = channels_of(pool, plan)
    pad = -k % _residue_steps.K_MULTIPLE
    a, b = (np.pad(table[:, x], ((0, 0), (0, 0), (0, pad))) for x in (left, right))
    residues = jax.jit(functools.partial(_residue_steps.product, plan=plan))(a, b)
    integers = [[int(sum(pool[x] * pool[y])) for y in right] for x in left]
    for i, j in np.ndindex(3, 2):
        got = [int(r) for r in residues[:, i, j]]
        ones = len(plan.small)
        assert got[:ones] == [centred(integers[i][j], p) for p in plan.small]
        for (p, t), low, high in zip(plan.pairs, got[ones::2], got[ones + 1 :: 2], strict=True):
            assert low + 256 * high == centred(integers[i][j] * pow(t, -1, p), p)
    row, column = np.array([0, 7, -900], np.int32), np.array([-3, 5], np.int32)
    c = jax.jit(functools.partial(_residue_steps.decode, plan=plan, limbs=limbs))(residues, row, column)
    for i, j in np.ndindex(3, 2):
        value = Fraction(integers[i][j]) * Fraction(2) ** (int(row[i] + column[j]) - 2 * plan.bits)
        got, wanted = [float(limb[i, j]) for limb in c], oracles.canonical(value, limbs)
        if all(abs(x) >= 2.0**-1022 for x in wanted) or value == 0:
            assert got == list(wanted)
        else:  # the last limbs are zero, or among the subnormal numbers
            assert abs(sum(map(Fraction, got)) - value) <= abs(value) * oracles.unit(limbs) + Fraction(1, 2**1074)


# --- certificate -----------------------------------------------------------------------------------------------------


def test_certificate_is_a_lower_bound():
    """M 2^(e + f - 14) <= |A||B| for every entry, and what is certified satisfies the contract's inequality."""
    rng = inputs.generator("certificate")
    a, b = inputs.full(rng, (7, 30), 2, 3.0), inputs.full(rng, (30, 5), 2, 3.0)
    a[0][2, 4], a[1][2, 4] = 8.0, -(2.0**-60)  # a leading limb at the power of two itself
    row = np.asarray(_slices.shared_exponent(_slices.exponents(tuple(map(jnp.asarray, a))), -1))
    column = np.asarray(_slices.shared_exponent(_slices.exponents(tuple(map(jnp.asarray, b))), -2))
    x = np.asarray(_magnitudes.magnitudes(tuple(map(jnp.asarray, a)), row, 0)).astype(int)
    y = np.asarray(_magnitudes.magnitudes(tuple(map(jnp.asarray, b)), column, 1)).astype(int)
    assert x.min() >= 0 and x.max() <= 127 and x.max(axis=1).min() >= 63
    whole = abs(oracles.fractions(a)) @ abs(oracles.fractions(b))
    m = x @ y
    for i, j in np.ndindex(m.shape):
        assert int(m[i, j]) * Fraction(2) ** (int(row[i] + column[j]) - 14) <= whole[i, j]
    assert int(_magnitudes.least(jnp.asarray(x, jnp.int8), jnp.asarray(y, jnp.int8))) == m.min()
    for limbs in LIMBS:
        for k in (1, 17, 256, 4096, 300000):
            plan, _ = _magnitudes.base(k, limbs)
            w, least = Fraction(1, 2**plan.bits), _magnitudes.certificate(plan, limbs)
            error = w * (Fraction(3, 2) * k + Fraction(9, 16) * w * k)
            assert error <= Fraction(k * least, 2 ** (53 * limbs + 14))
