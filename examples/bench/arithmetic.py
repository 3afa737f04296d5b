"""Elementwise arithmetic: +, ×, ÷, √ for L limbs, against a jnp copy that reads and writes the same arrays.

    python examples/bench/arithmetic.py [--quick] [--out lines.jsonl] [--limit seconds]

`over_copy` is the time over that of the copy: a multiplication of L limbs reads 2L arrays and writes L. Errors are of a
sample of 500 elements against exact rationals, in units of 2^-53L of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import isqrt
from typing import Any

import jax
import numpy as np

import harness
import jaxmd
from _support import exact

OPERATIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "add": (lambda x, y: x + y, 2),
    "mul": (lambda x, y: x * y, 2),
    "div": (lambda x, y: x / y, 2),
    "sqrt": (jaxmd.sqrt, 1),
}


def main() -> None:
    arguments = harness.arguments(__doc__)
    report = harness.Report(arguments)
    size = 10**5 if arguments.quick else (10**7 if harness.on_gpu() else 10**6)
    for limbs in (2, 4, 8, 16) if not arguments.quick else (2, 4):
        elements = size if limbs <= 4 else size // 10
        baselines: dict[int, harness.Time] = {}
        for name, (function, operands) in OPERATIONS.items():
            if not report.time_left():
                return
            if operands not in baselines:
                baselines[operands] = copy_time(operands * limbs, limbs, elements)
            case(report, name, function, operands, limbs, elements, baselines[operands])


def case(
    report: harness.Report,
    name: str,
    function: Callable[..., Any],
    operands: int,
    limbs: int,
    size: int,
    copy: harness.Time,
) -> None:
    values = [positive(seed, size, limbs) for seed in range(operands)]
    result, timing = harness.measure(function, [tuple(values)], budget=1.0)
    report.line(
        name,
        timing,
        engine="elementwise",
        limbs=limbs,
        shape=[size],
        elements_per_second=size / timing.seconds,
        bytes_per_second=8 * size * limbs * (operands + 1) / timing.seconds,
        over_copy=timing.seconds / copy.seconds,
        error_units=error_units(name, values, result, limbs),
    )


def positive(seed: int, size: int, limbs: int) -> jaxmd.MultiDouble:
    return jaxmd.random.uniform(jax.random.key(seed), (size,), limbs) + 1


def copy_time(reads: int, writes: int, size: int) -> harness.Time:
    """A jnp program that reads `reads` arrays and writes `writes`: output i is the sum of inputs i, i + writes, …"""
    arrays = [jax.random.uniform(jax.random.key(i), (size,)) for i in range(reads)]

    def copy(*inputs: Any) -> list[Any]:
        return [sum(inputs[i + writes :: writes], inputs[i] + 1.0) for i in range(writes)]

    return harness.measure(copy, [tuple(arrays)], budget=1.0)[1]


def error_units(name: str, values: list[jaxmd.MultiDouble], result: jaxmd.MultiDouble, limbs: int) -> float:
    """Largest error of a sample in units of 2^-53L·|result|, against exact rationals (√: 64 bits beyond)."""
    picks = np.linspace(0, result.shape[0] - 1, 500).astype(int)
    *operands, got = ([to_fractions(x, picks)] for x in (*values, result))
    worst = Fraction(0)
    for index, value in enumerate(got[0]):
        x = operands[0][0][index]
        if name == "sqrt":
            shift = 53 * limbs + 64
            true = Fraction(isqrt(int(x * (1 << 2 * shift))), 1 << shift)
        else:
            y = operands[1][0][index]
            true = {"add": x + y, "mul": x * y, "div": x / y}[name]
        worst = max(worst, abs(value - true) / abs(true))
    return float(worst * (1 << 53 * limbs))


def to_fractions(x: jaxmd.MultiDouble, picks: Any) -> list[Fraction]:
    values, exponent = exact.integers([np.asarray(limb)[picks][None] for limb in x.limbs])
    return [value * Fraction(2) ** exponent for value in values[0]]


if __name__ == "__main__":
    main()
