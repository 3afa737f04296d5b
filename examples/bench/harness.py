"""Timing, peaks and JSON lines for every benchmark here.

    seconds of one call = (time of a jitted program that makes `copies` calls on different operands) / copies

Short programs are started several times before the host waits, so that the time of a start does not count.

Each case is one JSON line: operation, engine, limbs, shape, device, commit, date, seconds (median), spread,
repetitions, T (10^12 multiple-double flops a second, 2mnk/time), share of the measured peak, error in units of the
bound.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxmd import _engines, _ffi, _slices

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # _support

NAMES = {1: "d", 2: "dd", 3: "td", 4: "qd", 8: "od", 16: "hd"}


@dataclass(frozen=True)
class Time:
    """Seconds of one call: median, and the spread (third less first quartile) of the repetitions."""

    seconds: float
    spread: float
    repetitions: int


QUEUE_SECONDS = 0.01  # of work that is started before the host waits
QUEUE = 8  # programs at most


def measure(
    function: Callable[..., Any], operands: Sequence[tuple[Any, ...]], budget: float = 2.0, *, queue: int = QUEUE
) -> tuple[Any, Time]:
    """The result on the first of `operands`, and the time of one call; all calls are inside one jitted program.

    The tuples must be different arrays, or XLA would make one call of them. Two warm-up runs (the first compiles), then
    at least ten repetitions, more while `budget` seconds last (at most fifty). A repetition starts programs of together
    QUEUE_SECONDS, at most `queue`, before it waits; with queue = 1 the time of a start from Python counts.
    """
    program = jax.jit(lambda sets: [function(*operand) for operand in sets])
    jax.block_until_ready(program(list(operands)))
    start = time.perf_counter()
    jax.block_until_ready(program(list(operands)))
    starts = max(1, min(queue, int(QUEUE_SECONDS / (time.perf_counter() - start))))
    seconds: list[float] = []
    while len(seconds) < 10 or (len(seconds) < 50 and sum(seconds) < budget):
        results = None  # frees the one before: the largest products leave no room for two
        start = time.perf_counter()
        for _ in range(starts):
            results = program(list(operands))
        jax.block_until_ready(results)
        seconds.append((time.perf_counter() - start) / (starts * len(operands)))
    quartiles = statistics.quantiles(seconds, n=4)
    assert results is not None
    return results[0], Time(statistics.median(seconds), quartiles[2] - quartiles[0], len(seconds))


class Report:
    """Writes JSON lines to standard output and, with --out, to a file."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.file = Path(arguments.out) if arguments.out else None
        device = jax.devices()[0]
        self.common = {
            "device": cpu_name() if device.platform == "cpu" else device.device_kind,
            "platform": device.platform,
            "jax": jax.__version__,
            "commit": commit(),
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        }
        self.deadline = time.monotonic() + arguments.limit if arguments.limit else float("inf")

    def time_left(self) -> bool:
        """False once the script's time limit is spent: the caller then skips what remains."""
        return time.monotonic() < self.deadline

    def line(self, operation: str, timing: Time | None = None, **fields: Any) -> None:
        record: dict[str, Any] = {"operation": operation, **fields}
        if timing is not None:
            record |= {"seconds": timing.seconds, "spread": timing.spread, "repetitions": timing.repetitions}
        record |= self.common
        text = json.dumps({key: rounded(value) for key, value in record.items()})
        print(text, flush=True)
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as stream:
                stream.write(text + "\n")


def rounded(value: Any) -> Any:
    """Floats with five significant digits (no measurement here has more)."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def arguments(description: str | None, **switches: str) -> argparse.Namespace:
    """The options every benchmark has, and a script's own switches with their help; also turns x64 on."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="FILE", help="append the JSON lines to this file")
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    parser.add_argument("--limit", type=float, default=0, help="seconds after which no further case is started")
    for name, text in switches.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    parsed = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    return parsed


def on_gpu() -> bool:
    return jax.default_backend() == "gpu"


def double_peak(n: int, budget: float = 2.0) -> float:
    """Measured float64 flops a second of jnp.matmul at n × n: the peak that shares are of."""
    keys = jax.random.split(jax.random.key(7), 2)
    a, b = (jax.random.normal(key, (n, n)) for key in keys)
    return 2 * n**3 / measure(jnp.matmul, [(a, b)], budget)[1].seconds


def copies(pair: Callable[[int], tuple[Any, ...]], count: int) -> list[tuple[Any, ...]]:
    """`count` different operand tuples from seeds 0, 1, …"""
    return [pair(seed) for seed in range(count)]


def commit() -> str:
    """BENCH_COMMIT, or the checkout's commit, or 'unknown'."""
    if os.environ.get("BENCH_COMMIT"):
        return os.environ["BENCH_COMMIT"]
    try:
        done = subprocess.run(
            ["git", "-C", str(HERE), "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True
        )
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's name, what multiplies int8 on it, and the number of cores."""
    features = _ffi.cpu_features()
    units = ", AMX" if features.get("amx_int8") else ", VNNI" if features.get("avx512_vnni") else ""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = "CPU"
    return f"{name}{units}, {cores()} cores"


def slice_products(limbs: int, k: int) -> int:
    """Float64 products that engine "fp64" makes at its base level: S(S+1)/2 slice pairs."""
    slices = slice_count(limbs, k)
    return slices * (slices + 1) // 2


def slice_count(limbs: int, k: int) -> int:
    """Slices S of engine "fp64" at its base level for a contraction of length k."""
    return _slices.plan(limbs, k, _engines.GUARD_LEVELS[0]).count
