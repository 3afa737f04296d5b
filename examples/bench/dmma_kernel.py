"""The sliced product kernel alone on the seed's inflated product: one slice, 8192 × 4096 times 4096 × 8192.

    python examples/bench/dmma_kernel.py [--quick] [--out lines.jsonl] [--limit seconds]

With one slice the primitive is an ordinary float64 product, so jnp.matmul (cuBLAS) on the same operands is the fair
neighbour. The operands are integers of at most 2^18, as slices are: every sum is exact, and the error must be 0.
The triangles of dd and qd (six and twelve slices) follow at a size where the slices fit the cache badly.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import harness
from _support import exact
from jaxmd import _product


def main() -> None:
    arguments = harness.arguments(__doc__)
    report = harness.Report(arguments)
    small = arguments.quick or not harness.on_gpu()
    m, k, n = (512, 256, 512) if small else (8192, 4096, 8192)
    peak = harness.double_peak(1024 if small else 8192)
    slice_case(report, 1, (m, k, n), peak)
    for slices in (6, 12):
        size = 256 if small else 4096
        if report.time_left():
            slice_case(report, slices, (size, size, size), peak)


def digits(key: Any, shape: tuple[int, ...]) -> jax.Array:
    """Random integers of at most 2^18 as float64: sums of 12 · 4096 products stay below 2^53."""
    return jax.random.randint(key, shape, -(2**18), 2**18 + 1).astype(jnp.float64)


def slice_case(report: harness.Report, slices: int, shape: tuple[int, int, int], peak: float) -> None:
    m, k, n = shape
    left, right = jax.random.split(jax.random.key(slices))
    a, b = digits(left, (slices, m, k)), digits(right, (slices, k, n))
    products = slices * (slices + 1) // 2
    orders, timing = harness.measure(_product.sliced_matmul, [(a, b)])
    wrong = max(order_error(a, b, orders, g) for g in {0, slices - 1})
    rate = 2 * m * n * k * products / timing.seconds
    report.line(
        "sliced_matmul",
        timing,
        engine="fp64 kernel",
        slices=slices,
        shape=[m, n, k],
        double_TF=rate / 1e12,
        share_of_peak=rate / peak,
        error=wrong,
    )
    c, timing = harness.measure(jnp.matmul, [(a[0], b[0])])
    rate = 2 * m * n * k / timing.seconds
    report.line(
        "sliced_matmul",
        timing,
        engine="jnp.matmul float64",
        slices=1,
        shape=[m, n, k],
        double_TF=rate / 1e12,
        share_of_peak=rate / peak,
        error=exact.product_error((a[0],), (b[0],), (c,), 53).maximum,
    )


def order_error(a: jax.Array, b: jax.Array, orders: jax.Array, g: int) -> float:
    """Largest |order g − Σ_{i+j=g} A_i B_j| on a sample, exactly: the A_i side by side times the B_j stacked."""
    row = jnp.concatenate([a[i] for i in range(g + 1)], axis=1)
    column = jnp.concatenate([b[g - i] for i in range(g + 1)], axis=0)
    return exact.product_error((row,), (column,), (orders[g],), 53).maximum


if __name__ == "__main__":
    main()
