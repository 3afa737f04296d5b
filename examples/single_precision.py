"""Conjugate gradients for many right-hand sides, with the products in TF32, in float32, and by jaxmd.matmul_f32.

    python examples/single_precision.py                                 kriging: covariances of points in a square
    python examples/single_precision.py --matrix A.mtx --rhs 64         your own symmetric positive definite matrix

Every iteration multiplies A by one column for each right-hand side. TF32, what GPUs take for float32 products unless
told otherwise, keeps 11 bits of the entries: the iteration still converges, by its own account, to a wrong answer.
With "f16x3" and "tf32x3", which use the same tensor cores, the answer is that of float32. Without a GPU, TF32 is a
float32 product of rounded operands, and matmul_f32 runs on the processor.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxmd
from _support import matrix_files
from _support.progress import step, table

Product = Callable[[jax.Array, jax.Array], jax.Array]


def main() -> int:
    arguments = parse(sys.argv[1:])
    jax.config.update("jax_enable_x64", True)  # for reading files and judging answers; the products are float32
    try:
        exact = read(arguments.matrix) if arguments.matrix else covariance(arguments.points)
    except (ValueError, OSError) as error:
        print(f"single_precision: {error}", file=sys.stderr)
        return 2
    n, count = len(exact), arguments.rhs or min(len(exact), 64 if jax.default_backend() == "cpu" else 1024)
    truth = np.random.default_rng(1).standard_normal((n, count))
    b = exact @ truth
    print(f"{n} unknowns, {count} right-hand sides, on {jax.devices()[0].device_kind}")
    rows = []
    for name, product in products().items():
        with step(name):
            x, iterations, claimed = solve(product, exact.astype(np.float32), b.astype(np.float32))
        residual = np.linalg.norm(b - exact @ x) / np.linalg.norm(b)
        error = np.linalg.norm(x - truth) / np.linalg.norm(truth)
        seconds = timed(product, exact.astype(np.float32), x)
        cells = [f"{claimed:.1e}", f"{residual:.1e}", f"{error:.1e}", str(iterations), f"{1e3 * seconds:.3g}"]
        rows.append([name, *cells])
    table(["product", "residual claimed", "residual", "error", "iterations", "ms a product"], rows)
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matrix", metavar="FILE", help="symmetric positive definite: .csv, .npz, .npy or .mtx")
    parser.add_argument("--rhs", type=int, default=0, help="number of right-hand sides (default 64, on a GPU 1024)")
    default = 600 if jax.default_backend() == "cpu" else 4096
    parser.add_argument("--points", type=int, default=default, help="size of the covariance matrix")
    parsed = parser.parse_args(arguments)
    if parsed.rhs < 0 or parsed.points < 1:
        parser.error(f"--rhs {parsed.rhs} and --points {parsed.points} came; at least 1 was wanted")
    return parsed


def read(path: str) -> np.ndarray:
    matrix = np.asarray(matrix_files.read(path, 1).limbs[0])
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.array_equal(matrix, matrix.T):
        raise ValueError(f"{path} has shape {matrix.shape}; a symmetric matrix was wanted.")
    return matrix


def covariance(count: int) -> np.ndarray:
    """Covariances exp(-d^2 / 2 l^2) of values at random points of a square, l a tenth of a side, plus noise of 3e-3."""
    points = np.random.default_rng(0).uniform(size=(count, 2))
    squares = (points**2).sum(1)
    distance = np.maximum(squares[:, None] + squares - 2 * points @ points.T, 0)
    a = np.exp(-50 * distance) + 3e-3 * np.eye(count)
    return ((a + a.T) / 2).astype(np.float32).astype(np.float64)


def products() -> dict[str, Product]:
    def tf32(x: jax.Array, y: jax.Array) -> jax.Array:
        if jax.default_backend() == "gpu":
            preset = lax.DotAlgorithmPreset.TF32_TF32_F32
            return lax.dot_general(x, y, (((1,), (0,)), ((), ())), precision=preset)
        x, y = lax.reduce_precision(x, 8, 10), lax.reduce_precision(y, 8, 10)
        return jnp.matmul(x, y, precision=lax.Precision.HIGHEST)

    ours = {engine: lambda x, y, e=engine: jaxmd.matmul_f32(x, y, engine=e) for engine in ("f32", "f16x3", "tf32x3")}
    return {"TF32": tf32, "float32": ours["f32"], "f16x3": ours["f16x3"], "tf32x3": ours["tf32x3"]}


def solve(product: Product, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, int, float]:
    """Conjugate gradients with a Jacobi preconditioner, a system a column: solution, iterations, residual claimed."""

    @jax.jit
    def run(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        inverse = (1 / jnp.diagonal(a))[:, None]
        norm = jnp.linalg.norm(b)

        def go_on(state: tuple[jax.Array, ...]) -> jax.Array:
            return (jnp.linalg.norm(state[1]) > 1e-7 * norm) & (state[4] < 4000)

        def iterate(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            x, r, p, rz, count = state
            q = product(a, p)
            alpha = rz / jnp.maximum((p * q).sum(0), jnp.finfo(jnp.float32).tiny)
            x, r = x + alpha * p, r - alpha * q
            after = (r * inverse * r).sum(0)
            p = inverse * r + after / jnp.maximum(rz, jnp.finfo(jnp.float32).tiny) * p
            return x, r, p, after, count + 1

        start = (jnp.zeros_like(b), b, inverse * b, (b * inverse * b).sum(0), jnp.int32(0))
        x, r, _, _, count = lax.while_loop(go_on, iterate, start)
        return x, count, jnp.linalg.norm(r) / norm

    x, count, claimed = run(jnp.asarray(a), jnp.asarray(b))
    return np.asarray(x), int(count), float(claimed)


def timed(product: Product, a: np.ndarray, b: np.ndarray) -> float:
    program = jax.jit(product)
    x, y = jnp.asarray(a), jnp.asarray(b)
    jax.block_until_ready(program(x, y))
    start = time.perf_counter()
    jax.block_until_ready([program(x, y) for _ in range(10)])
    return (time.perf_counter() - start) / 10


if __name__ == "__main__":
    sys.exit(main())
