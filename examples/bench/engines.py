"""Where engine "auto" should change from "direct" to "int8" or "fp64": all on square products, by limbs.

    python examples/bench/engines.py [--quick] [--out lines.jsonl] [--limit seconds]

The thresholds of `jaxmd._engines` are read off these lines.
"""

from __future__ import annotations

import functools

import harness
import jaxmd
from product import operands

SIZES: dict[str, dict[int, tuple[int, ...]]] = {
    "gpu": {
        1: (512, 2048, 4096),
        2: (128, 256, 512, 1024),
        3: (96, 192, 384),
        4: (96, 128, 256, 512),
        8: (48, 96, 192),
        16: (32, 64, 128),
    },
    "cpu": {1: (128, 256, 512), 2: (128, 256, 512), 4: (64, 128, 256), 8: (64, 128)},
}


def main() -> None:
    arguments = harness.arguments(__doc__)
    report = harness.Report(arguments)
    for limbs, sizes in SIZES["gpu" if harness.on_gpu() else "cpu"].items():
        for n in sizes[:1] if arguments.quick else sizes:
            if not report.time_left():
                return
            case(report, limbs, n)


def case(report: harness.Report, limbs: int, n: int) -> None:
    sets = [operands(n, limbs, seed) for seed in range(2)]
    seconds = {}
    for engine in ("int8", "fp64", "direct", *(["float64"] if limbs == 1 else [])):
        _, timing = harness.measure(functools.partial(jaxmd.matmul, engine=engine), sets, 0.3)
        seconds[engine] = timing.seconds
    chosen = jaxmd.choose_engine((n, n), (n, n), limbs)
    report.line(
        "engines",
        limbs=limbs,
        shape=[n, n, n],
        **{f"seconds_{engine}": value for engine, value in seconds.items()},
        chosen=chosen,
        lost=seconds[chosen] / min(seconds.values()) - 1,
    )


if __name__ == "__main__":
    main()
