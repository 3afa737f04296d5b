"""Matrix products end to end: engine × limbs × n, beside float64 jnp.matmul of the same run.

    python examples/bench/product.py [--quick] [--out lines.jsonl] [--limit seconds]

Share of peak: double flops of the engine's slice products over time, against the measured jnp.matmul rate ("fp64");
for "direct" there is none. Errors are of a sample of entries against exact integers.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

import harness
import jaxmd
from _support import exact

# (engine, limbs) -> n; the sizes of the table, largest that fits a minute last
GPU = {
    ("fp64", 2): (1024, 2048, 4096, 8192),
    ("fp64", 4): (1024, 2048, 4096, 8192),
    ("fp64", 1): (4096,),
    ("fp64", 8): (1024, 2048),
    ("fp64", 16): (512,),
    ("direct", 2): (1024, 2048, 4096),
    ("direct", 4): (1024, 2048),
    ("direct", 8): (512,),
    ("direct", 16): (256,),
}
GPU_QUICK = {("fp64", 2): (1024, 4096), ("fp64", 4): (1024,), ("direct", 2): (1024,), ("direct", 4): (512,)}
CPU = {
    ("fp64", 2): (256, 512, 1024),
    ("fp64", 4): (256, 512),
    ("fp64", 8): (256,),
    ("direct", 2): (256, 512),
    ("direct", 4): (128, 256),
}
CPU_QUICK = {("fp64", 2): (128,), ("fp64", 4): (64,), ("direct", 2): (64,), ("direct", 4): (64,)}


def main() -> None:
    arguments = harness.arguments(__doc__)
    report = harness.Report(arguments)
    gpu = harness.on_gpu()
    cases = (GPU_QUICK if arguments.quick else GPU) if gpu else (CPU_QUICK if arguments.quick else CPU)
    peak = harness.double_peak(8192 if gpu else 1024)
    report.line("double_peak", flops=peak)
    baselines: set[int] = set()
    for (engine, limbs), sizes in cases.items():
        for n in sizes:
            if not report.time_left():
                report.line("skipped", engine=engine, limbs=limbs, shape=[n, n, n])
                continue
            product_case(report, engine, limbs, n, peak)
            if n not in baselines:
                baselines.add(n)
                float64_case(report, n, peak)


def operands(n: int, limbs: int, seed: int = 0) -> tuple[jaxmd.MultiDouble, jaxmd.MultiDouble]:
    left, right = jax.random.split(jax.random.key(seed))
    return jaxmd.random.normal(left, (n, n), limbs), jaxmd.random.normal(right, (n, n), limbs)


def product_case(report: harness.Report, engine: str, limbs: int, n: int, peak: float) -> None:
    count = 4 if n <= 1024 else 1
    sets = harness.copies(lambda seed: operands(n, limbs, seed), count)

    def function(a: jaxmd.MultiDouble, b: jaxmd.MultiDouble) -> jaxmd.MultiDouble:
        return jaxmd.matmul(a, b, engine=engine)

    c, timing = harness.measure(function, sets)
    a, b = sets[0]
    error = exact.product_error(a.limbs, b.limbs, c.limbs, 53 * limbs)
    products = harness.slice_products(limbs, n) if engine == "fp64" else None
    rate = 2 * n**3 / timing.seconds
    report.line(
        "matmul",
        timing,
        engine=engine,
        limbs=limbs,
        shape=[n, n, n],
        T=rate / 1e12,
        share_of_peak=rate * products / peak if products else None,
        slice_products=products,
        error_units=error.units,
        error_relative=error.relative,
        in_one_program=count,
    )


def float64_case(report: harness.Report, n: int, peak: float) -> None:
    """jnp.matmul of float64 operands; its error is in units of the L = 1 bound."""
    sets = harness.copies(lambda seed: tuple(m.limbs[0] for m in operands(n, 1, seed)), 4 if n <= 1024 else 1)
    c, timing = harness.measure(jnp.matmul, sets)
    a, b = sets[0]
    error = exact.product_error((a,), (b,), (c,), 53)
    rate = 2 * n**3 / timing.seconds
    report.line(
        "matmul",
        timing,
        engine="jnp.matmul float64",
        limbs=1,
        shape=[n, n, n],
        T=rate / 1e12,
        share_of_peak=rate / peak,
        error_units=error.units,
        error_relative=error.relative,
        in_one_program=len(sets),
    )


if __name__ == "__main__":
    main()
