"""Products of float32 matrices: every engine of jaxmd.matmul_f32 beside XLA's, in one run, error beside speed.

    python examples/bench/single.py [--tiles] [--quick] [--limit SECONDS] [--out FILE]

n x n matrices, entries uniform in (-1, 1). TFLOPS is 2 n^3 / time / 10^12, for every engine. The error is the relative
residual |C - AB| / |AB| (Frobenius) of 64 rows, against the float64 product, whose terms are exact. "f32" is XLA's
product at Precision.HIGHEST. With --tiles, on a GPU, the handler alone is measured instead, without the search for the
largest entries: each tile of its kernels (engine "f16 256x192" and so on).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import harness
import jaxmd
from jaxmd import _ffi, _single_steps

Product = Callable[[jax.Array, jax.Array], jax.Array]
TILES = {
    "f16x3": [
        "f16 256x192",
        "f16 128x96",
        "f16 mma 128x128",
        "f16 mma 64x64",
    ],
    "tf32x3": [
        "tf32 256x160",
        "tf32 256x128",
        "tf32 128x64",
        "tf32 mma 128x128",
        "tf32 mma 64x64",
    ],
}
PRESETS = ["BF16_BF16_F32_X9", "BF16_BF16_F32_X6", "TF32_TF32_F32_X3", "TF32_TF32_F32"]


def main() -> None:
    arguments = harness.arguments(__doc__, tiles="measure the tiles of the kernels, alone")
    report = harness.Report(arguments)
    gpu = harness.on_gpu()
    ours = {engine: ours_by(engine) for engine in ("f16x3", "tf32x3", "f32", "int8")}
    theirs = {f"XLA {name}": xla(getattr(lax.DotAlgorithmPreset, name)) for name in PRESETS if gpu}
    products = {name: product for name, product in [*ours.items(), *theirs.items()] if not arguments.tiles}
    for n in (8192, 4096, 2048, 1024) if gpu and not arguments.quick else (1024, 512):
        sets = [operands(n, seed) for seed in range(min(8, max(2, 8192 // n)))]
        exact = np.asarray(sets[0][0], np.float64)[sample(n)] @ np.asarray(sets[0][1], np.float64)
        for name, product in products.items():
            if not report.time_left():
                return
            case(report, name, product, n, sets, exact)
        for engine, tile in ((engine, tile) for engine, tiles in TILES.items() for tile in tiles if arguments.tiles):
            if not report.time_left():
                return
            tile_case(report, engine, tile, n, sets, exact)


def operands(n: int, seed: int) -> tuple[jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(seed), 2)
    a, b = (jax.random.uniform(key, (n, n), jnp.float32, -1, 1) for key in keys)
    return a, b


def ours_by(engine: Any) -> Product:
    return lambda x, y: jaxmd.matmul_f32(x, y, engine=engine)


def xla(preset: Any) -> Product:
    return lambda x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ())), precision=preset)


def case(report: harness.Report, name: str, product: Product, n: int, sets: list[Any], exact: Any, **more: Any) -> None:
    try:
        result, timing = harness.measure(product, sets, 0.3)
    except Exception as error:
        report.line("skipped", engine=name, shape=[n, n, n], reason=str(error)[:200])
        return
    flops = 2 * n**3 / timing.seconds / 1e12
    error = float(np.linalg.norm(np.asarray(result[sample(n)]) - exact) / np.linalg.norm(exact))
    report.line("matmul_f32", timing, engine=name, shape=[n, n, n], TFLOPS=flops, error=error, **more)


def tile_case(report: harness.Report, engine: str, tile: str, n: int, sets: list[Any], exact: Any) -> None:
    """The handler alone, with one tile."""
    rows = [(x, y, _single_steps.largest(x, -1), _single_steps.largest(y, -2)) for x, y in sets]

    def kernel(x: jax.Array, y: jax.Array, row: jax.Array, column: jax.Array) -> jax.Array:
        out = jax.ShapeDtypeStruct((n, n), jnp.float32)
        format = {"f16x3": 0, "tf32x3": 1}[engine]
        return _ffi.call("jaxmd_single_matmul", [out], x, y, row, column, format=format)[0]

    with environment("JAXMD_SINGLE_TILE", tile), fresh_programs():
        case(report, tile, kernel, n, rows, exact, kernel_only=True)


@contextlib.contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name) if before is None else os.environ.update({name: before})


@contextlib.contextmanager
def fresh_programs() -> Iterator[None]:
    """Programs are compiled anew: a recorded one keeps the tile that it was recorded with."""
    jax.clear_caches()
    yield
    jax.clear_caches()


def sample(n: int) -> np.ndarray:
    """The rows whose error is measured."""
    return np.linspace(0, n - 1, 64).astype(int)


if __name__ == "__main__":
    main()
