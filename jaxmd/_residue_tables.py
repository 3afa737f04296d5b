"""Tables of the CUDA residue decoder (ffi/residue_decode.cuh), made once a plan from Python integers.

    C' = sum_i r_i M_i - q P        M_i and P raised by whole bytes to the end of 4 * words words of 32 bits

They are int32, in the order that a block of the kernel copies to shared memory:

    fragments  the balanced bytes of M_i as fragments of int8 products, [steps of 32 rows][words][32 lanes][16 bytes]
    product    P, 4 words of 0, -P, and 1 / P in units of the last word but one, a float64

Row by row they meet the bytes of an entry's residues: a one-digit modulus has one row, M_i, a two-digit one has two,
M_i and 256 M_i mod P. In a step of 16 rows lane t takes rows 4 t ... 4 t + 3; which bytes those are says `_dealt`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from ._residues import Plan, _centred, plan_units

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
    ones, count = len(plan.small), plan.residue_bytes
    assert count >= 4
    halves = -(-count // 16)
    steps = (halves + 1) // 2
    words = next(w for w in _WORDS if 16 * w >= size and steps <= _most_steps(w))
    steps = max(steps, _most_steps(words) - 1)
    raised = 16 * words - size

    units = plan_units(plan)
    numbers = [*units[:ones], *(x for unit in units[ones:] for x in (unit, _centred(256 * unit, product)))]
    rows = np.zeros((32 * steps, 16 * words), np.int8)
    for (step, t, i), index in _dealt(count, halves).items():
        rows[16 * step + 4 * t + i, raised:] = _balanced_bytes(numbers[index], size)

    # Rows: step, half of it, lane t, byte of its register. Columns: part of the integer, word, half of it, byte.
    fragments = rows.reshape(steps, 2, 4, 4, 4, words, 2, 2).transpose(0, 5, 4, 7, 2, 6, 1, 3)
    raised_product, modulus = product << 8 * raised, 1 << 128 * words
    gap = b"".join(x.to_bytes(16 * words, "little") + bytes(16) for x in (raised_product, modulus - raised_product))
    inverse = np.float64(2 ** (128 * words - 64) / raised_product).tobytes()
    data = fragments.tobytes() + gap[: 32 * words + 16] + inverse
    data += bytes(-len(data) % 16)
    return Tables(words, raised, np.frombuffer(data, np.int32))


def _most_steps(words: int) -> int:
    return (words + 1) // 2 if words <= 3 else (words + 3) // 2


def _dealt(count: int, steps: int) -> dict[tuple[int, int, int], int]:
    """(step, t, i) -> byte of the residues, for 4 lanes t with 4 bytes a step.

    A lane's bytes follow one another. Where they would go beyond the last, they start earlier: the kernel loads some
    bytes twice rather than to ask whether they exist, and the first lane counts.
    """
    run, dealt = 4 * steps, {}
    for t in range(4):
        start = max(0, min(t * run, count - run))
        for place in range(run):
            if t * run <= start + place < count:
                dealt[place // 4, t, place % 4] = start + place
    return dealt


def _balanced_bytes(x: int, size: int) -> np.ndarray:
    """int8 [size], the least significant byte first."""
    half = int.from_bytes(b"\x80" * size, "little")
    return (np.frombuffer((x + half).to_bytes(size, "little"), np.uint8) ^ 0x80).view(np.int8)
