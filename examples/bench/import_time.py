"""What `import jaxmd` adds to `import jax`: the median over fresh processes, as one JSON line."""

import json
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


def measure(repetitions: int = 7) -> list[float]:
    """Seconds that `import jaxmd` takes after `import jax`, once for each of `repetitions` fresh processes."""
    run = [sys.executable, "-c", PROBE]
    return [float(subprocess.run(run, check=True, capture_output=True, text=True).stdout) for _ in range(repetitions)]


if __name__ == "__main__":
    seconds = measure()
    line = {"operation": "import jaxmd after import jax", "processes": len(seconds)}
    line |= {"median_ms": round(1e3 * statistics.median(seconds), 2), "max_ms": round(1e3 * max(seconds), 2)}
    print(json.dumps(line))
