"""Batches of small products, dd: 4096 of 16 × 16 and 256 of 64 × 64, with the share of time outside the product kernel.

    python examples/bench/small_batches.py [--quick] [--out lines.jsonl]

For engine "fp64" the kernel is the sliced product primitive, timed alone on slices made beforehand; what remains
(exponents, cutting, guard, collecting, renormalising) is the share outside. Several batches run inside one jit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import harness
import jaxmd
from _support import exact
from jaxmd import _product

LIMBS = 2
BATCHES = ((4096, 16), (256, 64))


def main() -> None:
    arguments = harness.arguments(__doc__)
    report = harness.Report(arguments)
    copies = 8 if harness.on_gpu() else 2
    for batch, n in BATCHES:
        batch = batch // 16 if arguments.quick else batch
        sets = harness.copies(lambda seed, batch=batch, n=n: operands(batch, n, seed), copies)
        slices = harness.slice_count(LIMBS, n)
        stacks = harness.copies(lambda seed, batch=batch, n=n, slices=slices: stack(slices, batch, n, seed), copies)
        _, kernel = harness.measure(_product.sliced_matmul, stacks)
        for engine in ("fp64", "direct", "auto"):
            c, timing = harness.measure(product(engine), sets)
            a, b = sets[0]
            picks = [0, batch // 2, batch - 1]
            units = max(
                exact.measure(*([limb[i] for limb in x.limbs] for x in (a, b, c)), 53 * LIMBS).units for i in picks
            )
            report.line(
                "batched_matmul",
                timing,
                engine=engine,
                limbs=LIMBS,
                batch=batch,
                shape=[n, n, n],
                T=2 * batch * n**3 / timing.seconds / 1e12,
                kernel_seconds=kernel.seconds if engine == "fp64" else None,
                share_outside_kernel=1 - kernel.seconds / timing.seconds if engine == "fp64" else None,
                error_units=units,
                in_one_program=copies,
            )
        doubles = [tuple(x.limbs[0] for x in pair) for pair in sets]
        c, timing = harness.measure(jnp.matmul, doubles)
        a, b = doubles[0]
        units = exact.measure((a[0],), (b[0],), (c[0],), 53).units
        report.line(
            "batched_matmul",
            timing,
            engine="jnp.matmul float64",
            limbs=1,
            batch=batch,
            shape=[n, n, n],
            T=2 * batch * n**3 / timing.seconds / 1e12,
            error_units=units,
            in_one_program=copies,
        )


def product(engine: str) -> Callable[[jaxmd.MultiDouble, jaxmd.MultiDouble], jaxmd.MultiDouble]:
    return lambda a, b: jaxmd.matmul(a, b, engine=engine)


def operands(batch: int, n: int, seed: int) -> tuple[jaxmd.MultiDouble, jaxmd.MultiDouble]:
    left, right = jax.random.split(jax.random.key(seed))
    return jaxmd.random.normal(left, (batch, n, n), LIMBS), jaxmd.random.normal(right, (batch, n, n), LIMBS)


def stack(slices: int, batch: int, n: int, seed: int) -> tuple[Any, Any]:
    keys = jax.random.split(jax.random.key(seed))
    shape = (slices, batch, n, n)
    left, right = (jax.random.randint(key, shape, -(2**18), 2**18 + 1).astype(jnp.float64) for key in keys)
    return left, right


if __name__ == "__main__":
    main()
