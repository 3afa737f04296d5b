"""Accuracy of float32 products against the length of the sum: the protocol of Ootomo and Yokota.

    python examples/bench/single_accuracy.py [--quick] [--limit SECONDS] [--out FILE]

Relative residual |C - AB| / |AB| (Frobenius) of 48 x k times k x 48 for their types of entries: uniform, and random
signs and significands with exponents uniform in a range; below k = 1024, where few terms decide, the mean of DRAWS. The
reference is the float64 product, whose terms are exact.
Without a GPU, "f16x3" and "tf32x3" are emulated bit for bit, plain TF32 is a float32 product of rounded operands, and
XLA's other algorithms are left out; the chain of float32 multiply-adds, k ascending, is what CUDA cores compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax import lax

import harness
import single
from jaxmd import _single

TYPES = ("uniform(-1, 1)", "uniform(0, 1)", "exp(-15, 14)", "exp(-35, -15)", "exp(-100, -35)")
LENGTHS = (16, 64, 256, 1024, 4096, 16384, 65536)
PRESETS = ("BF16_BF16_F32_X9", "TF32_TF32_F32_X3", "TF32_TF32_F32")
ROWS, DRAWS = 48, 8


def main() -> None:
    arguments = harness.arguments(__doc__)
    report = harness.Report(arguments)
    for k in LENGTHS[:4] if arguments.quick else LENGTHS:
        programs = dict(engines())
        for kind in TYPES:
            if not report.time_left():
                return
            rng = np.random.default_rng([TYPES.index(kind), k])
            draws = DRAWS if k < 1024 else 1
            sets = [(entries(kind, (ROWS, k), rng), entries(kind, (k, ROWS), rng)) for _ in range(draws)]
            for engine, program in programs.items():
                error = sum(residual(program(a, b), a, b) for a, b in sets) / draws
                report.line("single_accuracy", engine=engine, method=kind, shape=[ROWS, ROWS, k], error=error)


def residual(c: Any, a: np.ndarray, b: np.ndarray) -> float:
    exact = a.astype(np.float64) @ b.astype(np.float64)
    return float(np.linalg.norm(np.asarray(c, np.float64) - exact) / np.linalg.norm(exact))


def engines() -> Iterator[tuple[str, Callable[[Any, Any], Any]]]:
    yield "float32 multiply-adds", chain
    for engine in ("f16x3", "tf32x3", "int8"):
        emulate = not harness.on_gpu() and engine != "int8"
        yield engine, jax.jit(lambda x, y, e=engine, m=emulate: _single.product(x, y, e, emulate=m))
    if harness.on_gpu():
        for name in ("HIGHEST", *PRESETS):
            preset = lax.Precision.HIGHEST if name == "HIGHEST" else getattr(lax.DotAlgorithmPreset, name)
            yield f"XLA {name}", jax.jit(single.xla(preset))
    else:
        rounded = lambda x: lax.reduce_precision(x, 8, 10)
        yield "TF32", jax.jit(lambda x, y: single.xla(lax.Precision.HIGHEST)(rounded(x), rounded(y)))


def entries(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    name, low, high = kind.replace("(", " ").replace(",", "").replace(")", "").split()
    if name == "uniform":
        return rng.uniform(float(low), float(high), shape).astype(np.float32)
    significand, sign = 1 + rng.random(shape), np.where(rng.random(shape) < 0.5, -1.0, 1.0)
    return (sign * significand * 2.0 ** rng.integers(int(low), int(high) + 1, shape)).astype(np.float32)


def chain(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """c = fma(a_l, b_l, c), rounded to float32: the product is exact in float64."""
    c = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for l in range(a.shape[1]):
        c = (a[:, l : l + 1].astype(np.float64) * b[l].astype(np.float64) + c).astype(np.float32)
    return c


if __name__ == "__main__":
    main()
