"""Tables of the CUDA residue decoder (ffi/residue_decode.cuh), made once a plan from Python integers.

    C' = sum_i r_i M_i - q P        M_i and P raised by whole bytes to the end of 4 * words words of 32 bits

They are int32, in the order that a block of the kernel copies to shared memory:

    fragments  the balanced bytes of M_i as fragments of int8 products, [steps of 32 rows][words][32 lanes][16 bytes]
    product    P, 4 words of 0, -P, and 1 / P in units of the last word but one, a float64
    combine    (c_0, c_1, c_2, -p, round(2^32 / p), h, b, 0) of two-digit moduli, [steps of 8][lanes t][2], with
               h = floor(p/2) and b = 0x80808080 - h - 2^16 h' of a lane's first modulus, h' being the second's

A two-digit modulus has two rows of bytes, of M_i and of 256 M_i mod P, a one-digit one has one; the former come first,
in steps of 8. In a step of 16 rows lane t takes rows 4 t ... 4 t + 3; which moduli those are says `_dealt`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from ._residues import DIGITS, Plan, _centred

_WORDS = (1, 2, 3, 4, 5, 7, 10, 14, 18)  # of a quarter of an integer: those that kernels are compiled for


@dataclasses.dataclass(frozen=True)
class Tables:
    """Attributes: words, raised: bytes by which M_i and P are raised; data: int32 [...]."""

    words: int
    raised: int
    data: np.ndarray


@functools.cache
def decode_tables(plan: Plan) -> Tables:
    product = math.prod(plan.moduli)
    size = (product.bit_length() + 8) // 8  # bytes, of which M_i and C' leave two bits free, and P one
    ones, pairs = len(plan.small), len(plan.pairs)
    assert ones == 0 or ones >= 4
    narrow, wide = -(-ones // 16), -(-pairs // 8)  # steps of 16 rows
    steps = (narrow + wide + 1) // 2
    words = next(w for w in _WORDS if 16 * w >= size and steps <= _most_steps(w) and (pairs == 0 or w > 3))
    steps = max(steps, _most_steps(words) - 1)
    raised = 16 * words - size

    rows = np.zeros((32 * steps, 16 * words), np.int8)
    combine = np.zeros((wide, 4, 2, 8), np.int64)
    for (step, t, i), index in _dealt(pairs, 2, wide).items():
        p, _ = plan.pairs[index]
        scale, weights = _small_weights(p)
        unit, row = _unit(product, p, pow(scale, -1, p)), 16 * step + 4 * t + 2 * i
        rows[row, raised:] = _balanced_bytes(unit, size)
        rows[row + 1, raised:] = _balanced_bytes(_centred(256 * unit, product), size)
        combine[step, t, i, :6] = (*weights, -p, (2**32 + p // 2) // p, p // 2)
    halves = combine[:, :, :, 5]
    combine[:, :, 0, 6] = (0x80808080 - halves[:, :, 0] - (halves[:, :, 1] << 16) + 2**31) % 2**32 - 2**31
    for (step, t, i), index in _dealt(ones, 4, narrow).items():
        p = plan.small[index]
        rows[16 * (wide + step) + 4 * t + i, raised:] = _balanced_bytes(_unit(product, p, 1), size)

    # Rows: step, half of it, lane t, byte of its register. Columns: part of the integer, word, half of it, byte.
    fragments = rows.reshape(steps, 2, 4, 4, 4, words, 2, 2).transpose(0, 5, 4, 7, 2, 6, 1, 3)
    raised_product, modulus = product << 8 * raised, 1 << 128 * words
    gap = b"".join(x.to_bytes(16 * words, "little") + bytes(16) for x in (raised_product, modulus - raised_product))
    inverse = np.float64(2 ** (128 * words - 64) / raised_product).tobytes()
    data = fragments.tobytes() + gap[: 32 * words + 16] + inverse
    data += bytes(-len(data) % 16) + combine.astype(np.int32).tobytes()
    return Tables(words, raised, np.frombuffer(data, np.int32))


def _most_steps(words: int) -> int:
    return (words + 1) // 2 if words <= 3 else (words + 3) // 2


def _dealt(count: int, each: int, steps: int) -> dict[tuple[int, int, int], int]:
    """(step, t, i) -> modulus, for 4 lanes t with `each` moduli a step.

    A lane's moduli follow one another. Where they would go beyond the last, they start earlier: the kernel loads some
    moduli twice rather than to ask whether they exist, and the first lane counts.
    """
    run, dealt = each * steps, {}
    for t in range(4):
        start = max(0, min(t * run, count - run))
        for place in range(run):
            if t * run <= start + place < count:
                dealt[place // each, t, place % each] = start + place
    return dealt


def _unit(product: int, p: int, scale: int) -> int:
    """P/p times its inverse mod p, times `scale` mod p, centred mod P."""
    cofactor = product // p
    return _centred(cofactor * (pow(cofactor, -1, p) * scale % p), product)


def _balanced_bytes(x: int, size: int) -> np.ndarray:
    """int8 [size], the least significant byte first."""
    half = int.from_bytes(b"\x80" * size, "little")
    return (np.frombuffer((x + half).to_bytes(size, "little"), np.uint8) ^ 0x80).view(np.int8)


def _small_weights(p: int) -> tuple[int, tuple[int, int, int]]:
    """A unit u mod p and the weights u (1 - t), u (t^2 - t), u t of a two-digit modulus's channels: small ones."""
    low, high = DIGITS
    weights = p - 2 * low * (high - low), 2 * high * (high - low) - 2 * p, 2 * low * high - 2 * p
    assert sum(map(abs, weights)) * (p // 2 + 1) < 2**27, "one multiplication must give the quotient to 2^-6"
    return 2 * low**2, weights
