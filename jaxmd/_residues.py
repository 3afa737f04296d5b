"""Residue number systems for exact integer products: plans, and the reference encoding and decoding.

    X = round(a 2^(w - e_i)),  Y = round(b 2^(w - f_j))      integers, |X|, |Y| <= 2^w, one grid per row and column
    C' = X Y,  |C'| <= k 2^2w                                C = 2^(e_i + f_j - 2w) C'

C' is found modulo coprime p_1 ... p_N with p_1 ... p_N = P > 2 k 2^2w, each C' mod p by products of int8 matrices that
int32 holds exactly, and put together by the Chinese remainder theorem,

    C' = sum_i r_i M_i - q P,      M_i = P/p_i ((P/p_i)^-1 mod p_i), centred,      q = round(sum_i r_i M_i / P).

A modulus p <= 256 has residues that fit int8: one product, one *channel*. There are only 363 bits of coprime numbers up
to 256, so *two-digit* moduli follow: primes p < 2^15 with the base t = 256/129 mod p. Every residue is
x = a + t b mod p with a, b and a + b in int8. Then x x' = m0 + t (m2 - m0 - m1) + t^2 m1 mod p with m0 = a a',
m1 = b b' and m2 = (a + b)(a' + b'), three channels for one modulus (Karatsuba). They follow one another, and what is
kept is one residue, x x' / t = m2 + (t - 1) (m1 - m0 / t) mod p, in two balanced bytes. The digits are those of

    f = 129 (x + 128) mod p = 129 (a + 128) + 256 b,      0 <= f < p,      0 <= a + 128 < 256,

where a + 128 = 129 f mod 256, because 129^2 = 1. They are in range: 256 b = f - 129 (a + 128) is above -129 256 and
below 2^15, and 256 (a + b + 128) = f + 127 (a + 128) is at least 0 and below 256^2.

M_i and P are cut into slices of beta bits, M_i = sum_j m_ij 2^(beta j), so that every sum_i r_i m_ij - q P_j is an
exact float64 integer: C' itself comes out, and what is exact on the grids of A and B stays exact.

Everything in a plan is a Python integer. Residues are centred: r in [-p/2, p/2).

Source: K. Ozaki, Y. Uchino, T. Imamura, "Ozaki scheme II: a GEMM-oriented emulation of floating-point matrix
multiplication using an integer modular technique" (2025), for doubles; the two-digit moduli, the reconstruction in
exact slices and the extension to many limbs are this project's.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import _slices

Limbs = Sequence[jax.Array]

# --- moduli ----------------------------------------------------------------------------------------------------------

_PREFIX = """
256 253 251 249 247 241 239 235 233 229 227 223 217 211 199 197 193 191 181 179 173 167 163 157 151 149 139 137 131
127 113 109 107 103 101 97 89"""
_FORTY_EIGHT = """
256 253 251 247 243 241 239 233 229 227 223 217 211 199 197 193 191 185 181 179 173 167 163 157 151 149 139 137 131
127 113 109 107 103 101 97 89 83 79 73 71 67 61 59 53 47 43 41"""
_FIFTY = """
256 253 251 247 243 241 239 233 229 227 223 217 211 199 197 193 191 181 179 173 167 163 157 151 149 139 137 131 127
125 113 109 107 103 101 97 89 83 79 73 71 67 61 59 53 47 43 41 37 29"""


def _one_digit(count: int) -> tuple[int, ...]:
    """The best known pairwise coprime moduli up to 256, `count` of them (0 to 50)."""
    text = _PREFIX if count <= 37 else _FORTY_EIGHT if count <= 48 else _FIFTY
    return tuple(map(int, text.split()[:count]))


DIGITS = (129, 256)
"""f = 129 (a + 128) + 256 b: what the digits of a two-digit modulus weigh."""


def _two_digit(count: int) -> tuple[tuple[int, int], ...]:
    """(p, t) of the largest primes p whose centred residues, doubled, are 256 high + low with high and low in int8."""
    odd = np.arange(3, math.isqrt(LARGEST) + 1, 2)
    primes = (p for p in range(LARGEST, 0, -2) if (p % odd).all())
    return tuple((p, DIGITS[1] * pow(DIGITS[0], -1, p) % p) for p in itertools.islice(primes, count))


LARGEST = 32639
TWO_DIGIT = _two_digit(114)
"""Pairs (p, t), the largest first."""

MAX_K = 2**17 - 1
"""Longest sum of products of residues that int32 holds: k 2^14 < 2^31. Longer ones are summed in blocks."""

# --- plans -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Plan:
    """Moduli for products of k-term sums, and the word length that they carry.

    Attributes:
        bits: w, integers |X| <= 2^w.
        k: the longest sum that fits.
        small: one-digit moduli; channel i belongs to small[i].
        pairs: two-digit moduli (p, t); pair j has the channels len(small) + 3 j + (0, 1, 2), for a, b and a + b.
    """

    bits: int
    k: int
    small: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        moduli = self.moduli
        assert all(math.gcd(p, q) == 1 for i, p in enumerate(moduli) for q in moduli[:i])
        assert all(p <= 256 for p in self.small) and all(2**14 < p <= LARGEST for p, _ in self.pairs)
        assert _capacity(math.prod(moduli), self.k) >= self.bits, "P must exceed twice the largest sum"
        assert min(self.k, MAX_K) * 2**14 < 2**31, "a channel must be an int32 sum"

    @property
    def moduli(self) -> tuple[int, ...]:
        return (*self.small, *(p for p, _ in self.pairs))

    @property
    def channels(self) -> int:
        """Number of int8 products."""
        return len(self.small) + 3 * len(self.pairs)

    @property
    def residue_bytes(self) -> int:
        """Bytes of an entry's residues: one of a one-digit modulus; two of a two-digit one, the lower first."""
        return len(self.small) + 2 * len(self.pairs)

    @property
    def carries(self) -> np.ndarray:
        """int32 [pairs, 2], centred: -1/t, by which the sums of channel a are carried to those of b, and t - 1, on."""
        factors = [[_centred(-pow(t, -1, p), p), _centred(t - 1, p)] for p, t in self.pairs]
        return np.array(factors, np.int32).reshape(-1, 2)

    def guard(self, limbs: int) -> int:
        """ESC (`_matmul`) up to which every entry of the result keeps the contract.

        Rounding to the grid errs by 3/4 a term of either factor and nothing else does:
        |error| 2^-(e_i + f_j) <= k (3/2 2^-w + 9/16 2^-2w) <= k 2^(1-w), which must not exceed
        k 2^(-53 limbs) 2^(-ESC - 2) <= k 2^(-53 limbs) 2^-(e_i + f_j) (|A||B|)_ij.
        """
        return self.bits - 53 * limbs - 3


def _capacity(product: int, k: int) -> int:
    """Largest w with P >= 2 k 2^2w (1 + 2^-16); the margin makes the rounding to q safe in float64. -1: none."""
    quotient = product * 2**16 // (2 * max(k, 1) * (2**16 + 1))
    return (quotient.bit_length() - 1) // 2 if quotient else -1


_SMALL = tuple(_one_digit(count) for count in range(51))
_SMALL_PRODUCTS = tuple(map(math.prod, _SMALL))
_PAIR_PRODUCTS = tuple(itertools.accumulate((p for p, _ in TWO_DIGIT), operator.mul, initial=1))


@functools.cache
def plan(k: int, bits: int) -> Plan:
    """The fewest channels that carry integers of `bits` bits through sums of k products, with all the bits they carry.

    Raises: ValueError where all moduli together carry fewer.
    """
    best: tuple[int, int, int] | None = None  # channels, one-digit moduli, two-digit moduli
    for ones in range(50, -1, -1):  # of equals, the one with the fewest two-digit moduli
        carried = lambda pairs, ones=ones: _capacity(_SMALL_PRODUCTS[ones] * _PAIR_PRODUCTS[pairs], k)
        pairs = bisect.bisect_left(range(len(_PAIR_PRODUCTS)), bits, key=carried)
        if pairs < len(_PAIR_PRODUCTS) and (best is None or ones + 3 * pairs < best[0]):
            best = ones + 3 * pairs, ones, pairs
    if best is None:
        raise ValueError(f"jaxmd.matmul: no residues for {bits} bits and k = {k}; all moduli carry {max_bits(k)}.")
    _, ones, pairs = best
    return Plan(_capacity(_SMALL_PRODUCTS[ones] * _PAIR_PRODUCTS[pairs], k), k, _SMALL[ones], TWO_DIGIT[:pairs])


def max_bits(k: int) -> int:
    """Largest word length that all moduli together carry."""
    return _capacity(_SMALL_PRODUCTS[-1] * _PAIR_PRODUCTS[-1], k)


# --- encoding --------------------------------------------------------------------------------------------------------

DIGIT = 16  # bits of the balanced digits that are reduced mod p one by one


@dataclasses.dataclass(frozen=True)
class Encoding:
    """What the encoding of a plan needs.

    Attributes:
        count: digits of X, DIGIT bits each.
        weights: int32 [N, count], centred residues of 2^(DIGIT s), or of 129 times that for two-digit moduli; most
            significant first.
    """

    count: int
    weights: np.ndarray


@functools.cache
def encoding(plan: Plan) -> Encoding:
    count = -(-(plan.bits + 1) // DIGIT)
    scale = [1] * len(plan.small) + [DIGITS[0]] * len(plan.pairs)
    powers = [2 ** (DIGIT * s) for s in reversed(range(count))]
    rows = [[_centred(power * m, p) for power in powers] for p, m in zip(plan.moduli, scale, strict=True)]
    assert 2 ** (DIGIT - 1) * max(plan.moduli) // 2 * count < 2**51, "a weighted digit sum must be exact in float64"
    return Encoding(count, np.array(rows, np.int32).reshape(-1, count))


def _centred(r: int, p: int) -> int:
    """The representative in [-p/2, p/2)."""
    return (r + p // 2) % p - p // 2


def encode(limbs: Limbs, scale: jax.Array, plan: Plan) -> jax.Array:
    """Residues of round(x 2^(w - scale)), int8 [channels, ...]; x normalized, |x| < 2^scale, inf and nan as 0.

    The integer is the one of `_slices.balanced_digits`. Slow and plain: the definition that the kernels must equal.
    """
    tables = encoding(plan)
    spare = DIGIT * tables.count - 1 - plan.bits  # the top digit has room that a word of w bits does not use
    digits = _slices.balanced_digits(limbs, scale + spare, DIGIT, tables.count)
    residues = _mod(_weighted_sums(tables.weights, digits), _column(plan.moduli, digits.ndim))
    ones = len(plan.small)
    pairs = _two_digits(residues[ones:], _column(plan.moduli[ones:], digits.ndim))
    triples = jnp.stack(pairs, axis=1).reshape(3 * len(plan.pairs), *digits.shape[1:])
    channels = jnp.concatenate([residues[:ones], triples])
    return channels.astype(jnp.int32).astype(jnp.int8)  # by int32: 128 mod 256 is -128


def _column(values: Sequence[int] | np.ndarray, ndim: int) -> jax.Array:
    """float64 [N, 1, 1, ...] of rank ndim."""
    return jnp.asarray(np.asarray(values, np.float64).reshape(-1, *(1,) * (ndim - 1)))


def _weighted_sums(weights: np.ndarray, values: jax.Array) -> jax.Array:
    """float64 weights [i, j] and integers [j, ...] -> [i, ...]; exact, whatever the order of summation."""
    table = jnp.asarray(weights, jnp.float64)
    return jnp.tensordot(table, values.astype(jnp.float64), axes=(1, 0), precision=lax.Precision.HIGHEST)


def _mod(x: jax.Array, p: jax.Array) -> jax.Array:
    """x mod p in [-p/2, p/2) for float64 integers x of less than 51 bits."""
    r = x - p * jnp.round(x / p)  # a tie, where p = 256, may give p/2
    return jnp.where(2 * r >= p, r - p, r)


def _two_digits(x: jax.Array, p: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(a, b, a + b) of the residues of which these are 129 times: x [pairs, ...], p [pairs, 1, ...]."""
    low, high = DIGITS
    f = _mod(x + 128 * low, p)
    f = jnp.where(f < 0, f + p, f)
    u = (low * f) % high
    b = (f - low * u) / high
    return u - 128, b, u - 128 + b


# --- decoding --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Decoding:
    """What the reconstruction of a plan's integers needs; slice j weighs 2^(beta j).

    Attributes:
        beta: bits of a slice.
        quotients: float64 [N], M_i / P.
        slices: float64 [count, N], integers m_ij, the least significant slice first.
        product: float64 [count], the slices P_j.

    M_i of a two-digit modulus is t times what it is else (mod P), because t is left out of its residues.
    """

    beta: int
    quotients: np.ndarray
    slices: np.ndarray
    product: np.ndarray


@functools.cache
def decoding(plan: Plan) -> Decoding:
    """The tables of one plan: the fewest slices whose sums float64 holds."""
    moduli = plan.moduli
    product = math.prod(moduli)
    units = plan_units(plan)
    largest = [p // 2 for p in moduli]  # of |r_i|
    quotient = -(-sum(r * abs(unit) for r, unit in zip(largest, units, strict=True)) // product) + 1  # of |q|
    least = -(-product.bit_length() // (54 - sum(largest).bit_length()))  # digits reach half of 2^beta
    for count in range(least, product.bit_length() + 1):
        beta = -(-(product.bit_length() + 1) // count)
        digits = np.array([_balanced(x, beta, count) for x in (*units, product)], object).T  # [count, N + 1]
        sums = np.abs(digits) @ np.array([*largest, quotient], object)
        if max(sums) < 2**53:
            break
    assert max(sums) < 2**53, "the sums of slices must be exact in float64"
    table = digits.astype(np.float64)
    return Decoding(
        beta,
        np.array([_ratio(unit, product) for unit in units]),
        np.ascontiguousarray(table[:, :-1]),
        np.ascontiguousarray(table[:, -1]),
    )


def plan_units(plan: Plan) -> list[int]:
    """M_i: 1 mod p_i, or t, and 0 mod all others; centred mod P."""
    product = math.prod(plan.moduli)
    scales = [1] * len(plan.small) + [t for _, t in plan.pairs]
    cofactors = [product // p for p in plan.moduli]
    inverses = [pow(x, -1, p) * t % p for x, p, t in zip(cofactors, plan.moduli, scales, strict=True)]
    return [_centred(x * y, product) for x, y in zip(cofactors, inverses, strict=True)]


def _ratio(x: int, y: int) -> float:
    """x / y for integers beyond the range of float64."""
    down = max(y.bit_length() - 1000, 0)
    return (x >> down) / (y >> down)


def _balanced(x: int, beta: int, count: int) -> list[int]:
    """Digits of beta bits, the least significant first, all but the last in [-2^(beta-1), 2^(beta-1))."""
    digits = []
    for _ in range(count - 1):
        digits.append(_centred(x, 2**beta))
        x = (x - digits[-1]) >> beta
    return [*digits, x]


def decode(residues: jax.Array, row: jax.Array, column: jax.Array, plan: Plan, limbs: int) -> tuple[jax.Array, ...]:
    """C = 2^(row_i + column_j - 2w) C' in `limbs` limbs from the residues of C', rounded canonically.

    Args:
        residues: int8 [residue_bytes, ..., m, n], of the one-digit moduli, then low and high of the two-digit ones.
        row, column: int32 [..., m] and [..., n].

    Slow and plain: the definition that the kernels must equal.
    """
    tables = decoding(plan)
    ones = len(plan.small)
    low, high = (residues[ones + i :: 2].astype(jnp.float64) for i in range(2))
    stacked = jnp.concatenate([residues[:ones].astype(jnp.float64), low + 256 * high])
    q = jnp.round(_weighted_sums(tables.quotients[None], stacked)[0])
    orders = _weighted_sums(tables.slices, stacked) - _weighted_sums(tables.product[:, None], q[None])
    # C' 2^-w is in the middle of the range; the slices of a C' near the largest reach some 2^30 times as high
    down = plan.bits + 40
    weights = [2.0 ** (tables.beta * j - down) for j in range(len(tables.product))]
    terms = tuple(orders[j] * weights[j] for j in reversed(range(len(weights))))
    return _slices.sum_terms(terms, row[..., :, None] + column[..., None, :] + (down - 2 * plan.bits), limbs)
