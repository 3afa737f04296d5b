"""What `import jaxmd` adds to `import jax`: the median over seven fresh processes, as one JSON line.

    python examples/bench/import_time.py [--out lines.jsonl]

The target is 50 ms on a machine that does nothing else.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

PROBE = """
import time
import jax
start = time.perf_counter()
import jaxmd
print(time.perf_counter() - start)
"""
TARGET = 0.050


def measure(repetitions: int = 7) -> list[float]:
    """Seconds that `import jaxmd` takes after `import jax`, once for each of `repetitions` fresh processes.

    One more process runs before, so that the bytecode of an installation in place has been written.
    """
    run = [sys.executable, "-P", "-c", PROBE]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    seconds = [
        float(subprocess.run(run, check=True, capture_output=True, text=True, env=env).stdout)
        for _ in range(repetitions + 1)
    ]
    return seconds[1:]


def main() -> None:
    import harness

    report = harness.Report(harness.arguments(__doc__))
    seconds = measure()
    quartiles = statistics.quantiles(seconds, n=4)
    timing = harness.Time(statistics.median(seconds), quartiles[2] - quartiles[0], len(seconds))
    report.line("import", timing, engine="import jaxmd after import jax", target=TARGET)


if __name__ == "__main__":
    main()
