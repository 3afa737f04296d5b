"""A small pass through every compiled CUDA handler, for compute-sanitizer: odd shapes, batches, a guarded product.

    compute-sanitizer --tool memcheck python examples/bench/sanitizer_case.py

Every product's error is printed in units of the bound; exit status 1 where one exceeds 1.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp

import harness
import jaxmd
from _support import exact

CASES = (  # limbs; m, k, n
    (1, (33, 17, 65)),
    (2, (1, 1, 1)),
    (2, (130, 70, 9)),
    (4, (33, 17, 65)),
    (8, (9, 17, 33)),
    (16, (9, 17, 33)),
)


def main() -> int:
    jax.config.update("jax_enable_x64", True)
    engines = ("fp64", "direct", "int8")
    worst = max(product(limbs, shape, engine) for limbs, shape in CASES for engine in engines)
    worst = max(worst, *(wide(engine) for engine in engines), *structured())
    batch = jaxmd.random.normal(jax.random.key(3), (5, 19, 21), 2)
    jax.block_until_ready(jax.vmap(lambda x: x @ x.T)(batch))
    jax.block_until_ready(jaxmd.matmul(batch, batch[0].T, engine="fp64"))
    jax.block_until_ready(jaxmd.matmul(batch, batch[0].T, engine="int8", accuracy="exact"))
    x, y = (jax.random.uniform(jax.random.key(seed), (130, 130), jnp.float32, -1, 1) for seed in (7, 8))
    long = jax.random.uniform(jax.random.key(9), (1100, 70), jnp.float32, -1, 1)
    for factors in ((x, y[:, :70]), (long.T, long)):
        jax.block_until_ready([jaxmd.matmul_f32(*factors, engine=engine) for engine in ("f16x3", "tf32x3", "int8")])
    for limbs in (1, 2, 3, 4, 16):
        x, y = (jaxmd.random.normal(jax.random.key(seed), (257,), limbs) for seed in (1, 2))
        jax.block_until_ready((x + y, x * y, x / y, jaxmd.sqrt(abs(x)), jaxmd.sum(x), x.to_float64()))
    jax.block_until_ready(
        (jaxmd.two_sum(jnp.arange(9.0), 0.1 * jnp.ones(9)), jaxmd.two_prod(jnp.arange(9.0), 0.1 * jnp.ones(9)))
    )
    print(f"largest error of a product: {worst:.3g} of the bound")
    return int(worst > 1)


def product(limbs: int, shape: tuple[int, int, int], engine: str) -> float:
    m, k, n = shape
    left, right = jax.random.split(jax.random.key(limbs))
    a, b = jaxmd.random.normal(left, (m, k), limbs), jaxmd.random.normal(right, (k, n), limbs)
    return checked(a, b, engine)


def wide(engine: str) -> float:
    """Rows that span the range, so that the guard and the exact kernel run."""
    a = jaxmd.random.normal(jax.random.key(5), (17, 40), 2) * jaxmd.asarray([10.0 ** (-7 * i) for i in range(40)], 2)
    b = jaxmd.random.normal(jax.random.key(6), (40, 18), 2) * jaxmd.asarray([[10.0 ** (6 * i)] for i in range(40)], 2)
    return checked(a, b, engine)


def structured() -> list[float]:
    """Identity and triangular factors, which need other certificates; single limbs by XLA's product, repaired."""
    a = jaxmd.random.normal(jax.random.key(9), (70, 70), 2)
    lower = jaxmd.MultiDouble(tuple(jnp.tril(limb) for limb in a.limbs))
    single = jaxmd.asarray(a.limbs[0], 1)
    small = jaxmd.asarray(a.limbs[0] * 2.0**-560, 1)
    pairs = [(jaxmd.asarray(jnp.eye(70), 2), a, "int8"), (lower, a, "int8")]
    return [checked(*case) for case in (*pairs, (single, single, "auto"), (small, single, "auto"))]


def checked(a: jaxmd.MultiDouble, b: jaxmd.MultiDouble, engine: str) -> float:
    c = jax.block_until_ready(jaxmd.matmul(a, b, engine=engine))
    error = exact.product_error(a.limbs, b.limbs, c.limbs, 53 * a.num_limbs, count=8).units
    print(f"{engine} limbs {a.num_limbs} {a.shape} × {b.shape}: {error:.3g} of the bound", flush=True)
    return error


if __name__ == "__main__":
    assert harness  # puts _support on the path
    sys.exit(main())
