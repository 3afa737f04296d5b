"""The two CPU targets: the dd product against 21 float64 products, and dd multiplication against a copy.

    python examples/bench/cpu.py [--quick] [--out lines.jsonl]

Target 1: engine "fp64", dd, n = 1024 within 1.5 × the time of 21 jnp.matmul of that size (21 slice pairs, one program).
Target 2: multiplication of 10^6 dd elements within 3 × a jnp program that reads four such arrays and writes two.
Exit status 1 if a target is missed.
"""

from __future__ import annotations

import sys

import jax.numpy as jnp

import arithmetic
import harness
import jaxmd
import product
from _support import exact

PAIRS = 21
PRODUCT_TARGET, MULTIPLY_TARGET = 1.5, 3.0


def main() -> int:
    arguments = harness.arguments(__doc__)
    report = harness.Report(arguments)
    ratios = (product_ratio(report, 256 if arguments.quick else 1024), multiply_ratio(report))
    return int(ratios[0] > PRODUCT_TARGET or ratios[1] > MULTIPLY_TARGET)


def product_ratio(report: harness.Report, n: int) -> float:
    a, b = product.operands(n, 2)
    doubles = [product.operands(n, 1, seed) for seed in range(PAIRS)]
    _, baseline = harness.measure(jnp.matmul, [(x.limbs[0], y.limbs[0]) for x, y in doubles])

    def function(x: jaxmd.MultiDouble, y: jaxmd.MultiDouble) -> jaxmd.MultiDouble:
        return jaxmd.matmul(x, y, engine="fp64")

    c, timing = harness.measure(function, [(a, b)])
    ratio = timing.seconds / (PAIRS * baseline.seconds)
    report.line(
        "cpu_target_product",
        timing,
        engine="fp64",
        limbs=2,
        shape=[n, n, n],
        T=2 * n**3 / timing.seconds / 1e12,
        float64_products=PAIRS,
        float64_seconds=baseline.seconds,
        ratio=ratio,
        target=PRODUCT_TARGET,
        error_units=exact.product_error(a.limbs, b.limbs, c.limbs, 106).units,
    )
    return ratio


def multiply_ratio(report: harness.Report) -> float:
    size = 10**6
    values = [arithmetic.positive(seed, size, 2) for seed in range(2)]
    copy = arithmetic.copy_time(4, 2, size)
    result, timing = harness.measure(lambda x, y: x * y, [tuple(values)])
    ratio = timing.seconds / copy.seconds
    report.line(
        "cpu_target_multiply",
        timing,
        engine="elementwise",
        limbs=2,
        shape=[size],
        copy_seconds=copy.seconds,
        ratio=ratio,
        target=MULTIPLY_TARGET,
        error_units=arithmetic.error_units("mul", values, result, 2),
    )
    return ratio


if __name__ == "__main__":
    sys.exit(main())
