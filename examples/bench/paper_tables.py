"""The paper's Table 1 and Table 2: its sizes, its figures, our times and errors, in all four precisions.

    python examples/bench/paper_tables.py [--quick] [--out lines.jsonl] [--limit seconds]

Table 1 (paper: one A100): random n × n products; t_TC with tensor cores, layout and collection included; t_CUDA with
CUDA cores; largest |C_TC − C_CUDA|. Ours: engine "fp64" (all included) and "direct"; largest |C − AB| of a sample
against exact integers, entries uniform in [0, 1) with all limbs random.
Table 2: A of 8192/q × 4096/q (q = 8, 16, 32, 64 quarters for dd, qd, od, hd) times B of 4096/q × 8192: in the paper
each is one inflated double product 8192 × 4096 × 8192, at 13.75 double-TFLOPS whatever the precision.
"""

from __future__ import annotations

from typing import Any

import jax

import harness
import jaxmd
from _support import exact

# limbs, n: (t_TC, t_CUDA, largest difference), seconds on an A100, from the paper's Table 1
TABLE_1: dict[tuple[int, int], tuple[float, float, float]] = {
    (2, 1024): (0.379792, 0.096794, 3.5e-28),
    (2, 2048): (1.19952, 0.450174, 8.7e-28),
    (2, 3072): (3.16265, 1.19599, 1.6e-27),
    (2, 4096): (7.93621, 2.33072, 2.4e-27),
    (4, 1024): (0.752966, 0.285909, 2.0e-59),
    (4, 2048): (4.23463, 1.57585, 4.1e-59),
}
TABLE_1_MORE = ((8, 512), (16, 256))  # the paper has no figures for these precisions
TABLE_2 = {2: (1024, 512, 8192), 4: (512, 256, 8192), 8: (256, 128, 8192), 16: (128, 64, 8192)}  # limbs: m, k, n
PAPER_TF = 13.75


def main() -> None:
    arguments = harness.arguments(__doc__)
    report = harness.Report(arguments)
    shrink = 1 if harness.on_gpu() and not arguments.quick else (8 if harness.on_gpu() else 16)
    cases: list[tuple[int, int]] = [*TABLE_1, *TABLE_1_MORE]
    for limbs, n in cases:
        size = n // shrink
        paper = TABLE_1.get((limbs, n)) if shrink == 1 else None
        for engine in ("fp64", "direct"):
            if report.time_left():
                case(report, "table_1", engine, limbs, (size, size, size), paper)
    for limbs, (m, k, n) in TABLE_2.items():
        for engine in ("fp64", "direct"):
            if report.time_left():
                case(report, "table_2", engine, limbs, (m // shrink, k // shrink, n // shrink), None)


def case(
    report: harness.Report,
    table: str,
    engine: str,
    limbs: int,
    shape: tuple[int, int, int],
    paper: tuple[float, float, float] | None,
) -> None:
    m, k, n = shape
    a, b = operands(limbs, shape)

    def function(x: jaxmd.MultiDouble, y: jaxmd.MultiDouble) -> jaxmd.MultiDouble:
        return jaxmd.matmul(x, y, engine=engine)

    c, timing = harness.measure(function, [(a, b)], budget=1.5)
    error = exact.product_error(a.limbs, b.limbs, c.limbs, 53 * limbs)
    extra: dict[str, Any] = {}
    if table == "table_2":
        extra = {
            "paper_double_TF": PAPER_TF,
            "inflated_double_TF": 2 * m * n * k * (4 * limbs) ** 2 / timing.seconds / 1e12,
        }
    elif paper:
        extra = {"paper_t_TC": paper[0], "paper_t_CUDA": paper[1], "paper_error": paper[2]}
    report.line(
        table,
        timing,
        engine=engine,
        limbs=limbs,
        shape=[m, n, k],
        T=2 * m * n * k / timing.seconds / 1e12,
        error_maximum=error.maximum,
        error_units=error.units,
        **extra,
    )


def operands(limbs: int, shape: tuple[int, int, int]) -> tuple[jaxmd.MultiDouble, jaxmd.MultiDouble]:
    m, k, n = shape
    left, right = jax.random.split(jax.random.key(limbs))
    return jaxmd.random.uniform(left, (m, k), limbs), jaxmd.random.uniform(right, (k, n), limbs)


if __name__ == "__main__":
    main()
