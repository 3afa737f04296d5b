"""Where engine "auto" should change from "direct" to "fp64": both on square products, by limbs.

    python examples/bench/engines.py [--quick] [--out lines.jsonl] [--limit seconds]

The thresholds of `jaxmd._matmul` are read off these lines.
"""

from __future__ import annotations

import functools

import harness
import jaxmd
from product import operands

SIZES = {"gpu": {1: (256, 512, 1024), 2: (512, 768, 1024), 4: (128, 256, 512)}}
SIZES["cpu"] = {1: (128, 256, 512), 2: (128, 256, 512), 4: (64, 128, 256), 8: (64, 128)}


def main() -> None:
    arguments = harness.arguments(__doc__)
    report = harness.Report(arguments)
    for limbs, sizes in SIZES["gpu" if harness.on_gpu() else "cpu"].items():
        for n in sizes[:1] if arguments.quick else sizes:
            if not report.time_left():
                return
            sets = [operands(n, limbs, seed) for seed in range(2)]
            seconds = {}
            for engine in ("fp64", "direct"):
                _, timing = harness.measure(functools.partial(jaxmd.matmul, engine=engine), sets, 0.5)
                seconds[engine] = timing.seconds
            chosen = jaxmd.choose_engine((n, n), (n, n), limbs)
            report.line(
                "engines",
                limbs=limbs,
                shape=[n, n, n],
                seconds_fp64=seconds["fp64"],
                seconds_direct=seconds["direct"],
                chosen=chosen,
                lost=seconds[chosen] / min(seconds.values()) - 1,
            )


if __name__ == "__main__":
    main()
