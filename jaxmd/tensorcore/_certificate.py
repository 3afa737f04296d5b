"""When a sum on tensor cores is exact for every operand of so many bits: the certificate a priori.

Let all products be integers times one unit. Every sum of k of them stays within k 2^(bits_a + bits_b) units. A step
rounds nothing off while its sum has no more than the p + 1 bits that ρ keeps, and cuts nothing off while c stays below
2^(F + 1) units; both hold up to 2^(min(p, F) + 1), as only the last step can reach that very number.
"""

from __future__ import annotations

import numpy as np

from ._bits import Format
from ._specs import ROUNDINGS, Spec, check_spec


def max_exact_k(bits_a: int, bits_b: int, spec: Spec) -> int:
    """The largest k for which a sum of k products is exact whatever the operands are.

    Args:
        bits_a, bits_b: |a| <= 2^bits_a and |b| <= 2^bits_b, both integers times a power of two that is the same for the
            whole row or column.
        spec: the instruction that sums, chained from c = 0 as often as k needs.

    Returns: 2^24 / 2^(bits_a + bits_b) for float32 outputs that keep 24 bits, 2^14 / … for FP8 on Ada and on Hopper's
        wgmma, 2^11 / … for float16, 2^53 / … for float64, (2^31 - 1) / … for int8; 0 where a format does not hold all
        integers of so many bits.

    Limits: the unit of the sum must be at least the output's smallest number (2^-149 for float32).

    Source: F. A. Khattak, M. Mikaitis, Accurate Models of NVIDIA Tensor Cores (arXiv:2512.07004) have the model; the
        bound, attained for every format, is ours.
    """
    return _max_exact_k("jaxmd.tensorcore.max_exact_k", spec, bits_a=bits_a, bits_b=bits_b)


def _max_exact_k(who: str, spec: Spec, *, bits_a: int, bits_b: int, **more: int) -> int:
    check_spec(who, spec)
    for name, bits in {"bits_a": bits_a, "bits_b": bits_b, **more}.items():
        if isinstance(bits, bool) or not isinstance(bits, int | np.integer) or bits < 0:
            raise ValueError(f"{who}: {name} = {bits!r} came; wanted an integer of at least 0.")
    if bits_a > _contiguous(spec.a) or bits_b > _contiguous(spec.b):
        return 0
    if spec.operation == "integer":
        return (2**31 - 1) >> (bits_a + bits_b)
    kept = ROUNDINGS[spec.rounding].fraction_bits
    if spec.fraction_bits is not None:
        kept = min(kept, spec.fraction_bits)
    return (1 << (kept + 1)) >> (bits_a + bits_b)


def is_exact(bits_a: int, bits_b: int, k: int, spec: Spec) -> bool:
    """Whether every sum of k products of integers of so many bits is exact: k <= `max_exact_k(bits_a, bits_b, spec)`.

    `was_exact` answers the same for given operands, where a bound for all of them says too little.
    """
    return k <= _max_exact_k("jaxmd.tensorcore.is_exact", spec, bits_a=bits_a, bits_b=bits_b, k=k)


def _contiguous(f: Format) -> int:
    """The format holds every integer up to 2^this in magnitude (of s8 and u8: every one that they have at all)."""
    return f.mantissa_bits if f.is_integer else f.mantissa_bits + 1
