"""Engine "int8": whole products, their three steps, compile time, and exact integer products of FLINT for comparison.

    python examples/bench/residues.py [--quick] [--out lines.jsonl] [--limit seconds]

`ratio` is the time of the product over that of jnp.matmul of float64 at the same size in the same run. `tops` counts
2 m n k of every int8 channel. FLINT (fmpz_mat, as many threads as cores; only on the CPU, where python-flint is
installed) multiplies integers of 53 L bits, which is what the exact product of L-limb matrices takes at least.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import harness
import jaxmd
import product
from _support import exact
from jaxmd import _magnitudes, _residue_steps, _residues, _slices

SIZES = {
    ("gpu", False): {
        2: (1024, 2048, 4096, 8192, 16384),
        4: (1024, 2048, 4096, 8192),
        1: (1024, 2048, 4096, 8192, 16384),
        8: (1024, 2048, 4096, 8192),
        16: (1024, 2048, 4096, 8192),
    },
    ("gpu", True): {1: (1024,), 2: (1024, 2048), 4: (1024,)},
    ("cpu", False): {1: (1024,), 2: (512, 1024, 2048), 4: (512, 1024, 2048), 8: (512,), 16: (256,)},
    ("cpu", True): {2: (128,), 4: (64,)},
}
FLINT = {2: 1024, 4: 1024}
LARGEST = 32768  # dd: operands and result take 48 GiB


def main() -> None:
    arguments = harness.arguments(__doc__)
    report = harness.Report(arguments)
    platform = "gpu" if harness.on_gpu() else "cpu"
    baselines: dict[int, float] = {}
    for limbs, sizes in SIZES[platform, arguments.quick].items():
        for n in sizes:
            if not report.time_left():
                report.line("skipped", engine="int8", limbs=limbs, shape=[n, n, n])
                continue
            if n not in baselines:
                baselines[n] = float64_case(report, n)
            product_case(report, limbs, n, baselines[n])
            if platform == "cpu" or n == 4096:  # on a GPU, residue_kernels.py has the others
                steps_case(report, limbs, n)
            if platform == "cpu" and FLINT.get(limbs) == n:
                flint_case(report, limbs, n)
    if platform == "gpu" and not arguments.quick and report.time_left():
        product_case(report, 2, LARGEST, None)
    for limbs in (2, 4):
        if report.time_left():
            batch_case(report, limbs, *((1024, 128) if platform == "gpu" and not arguments.quick else (8, 32)))
    for n in ((4096, 2048, 1024) if platform == "gpu" else (512,)) if not arguments.quick else (64,):
        if report.time_left():
            guarantee_case(report, n)


def copies(n: int) -> int:
    """Different operands in one program: on a GPU the start of a program counts where products are short."""
    return max(1, min(8, 8192 // n)) if harness.on_gpu() else 1


def float64_case(report: harness.Report, n: int) -> float:
    """Seconds of jnp.matmul of float64, as many in one program as of ours."""
    sets = [tuple(x.limbs[0] for x in product.operands(n, 1, 7 + seed)) for seed in range(copies(n))]
    c, timing = harness.measure(jnp.matmul, sets, 1.0)
    _, single = harness.measure(jnp.matmul, sets[:1], 0.2, queue=1)
    error = exact.product_error(sets[0][:1], sets[0][1:], (c,), 53)
    report.line(
        "residue_product",
        timing,
        engine="jnp.matmul float64",
        limbs=1,
        shape=[n, n, n],
        T=2 * n**3 / timing.seconds / 1e12,
        in_one_program=len(sets),
        single_seconds=single.seconds,
        error_units=error.units,
        error_relative=error.relative,
    )
    return timing.seconds


def product_case(report: harness.Report, limbs: int, n: int, baseline: float | None) -> None:
    sets = harness.copies(lambda seed: product.operands(n, limbs, seed), copies(n))
    a, b = sets[0]
    cases = [("int8", "componentwise")]
    if limbs == 1:
        cases += [("auto", "componentwise")]
    if limbs == 1 or not harness.on_gpu():
        cases += [("int8", "normwise")]
    if (n <= 1024 and limbs <= 4) or not harness.on_gpu():
        cases += [("int8", "exact")]
    for engine, accuracy in cases:
        function = functools.partial(jaxmd.matmul, engine=engine, accuracy=accuracy)
        start = time.perf_counter()
        jax.jit(function).lower(a, b).compile()
        compile_seconds = time.perf_counter() - start
        c, timing = harness.measure(function, sets, 0.6)
        _, single = harness.measure(function, sets[:1], 0.2, queue=1) if len(sets) > 1 else (c, timing)
        error = exact.product_error(a.limbs, b.limbs, c.limbs, 53 * limbs)
        report.line(
            "residue_product",
            timing,
            engine=engine,
            accuracy=accuracy,
            limbs=limbs,
            shape=[n, n, n],
            T=2 * n**3 / timing.seconds / 1e12,
            float64_seconds=baseline,
            ratio=timing.seconds / baseline if baseline else None,
            compile_seconds=compile_seconds,
            in_one_program=len(sets),
            single_seconds=single.seconds,
            error_units=error.units,
            error_relative=error.relative,
        )


def batch_case(report: harness.Report, limbs: int, batch: int, n: int) -> None:
    """A batch of n × n products, and what the engines that need no residues take for it."""
    keys = jax.random.split(jax.random.key(1), 2)
    a, b = (jaxmd.random.normal(key, (batch, n, n), limbs) for key in keys)
    for engine in ("int8", "fp64", "direct"):
        c, timing = harness.measure(functools.partial(jaxmd.matmul, engine=engine), [(a, b)], 0.5)
        last = [tuple(x[-1] for x in y.limbs) for y in (a, b, c)]
        report.line(
            "residue_batch",
            timing,
            engine=engine,
            limbs=limbs,
            batch=batch,
            shape=[n, n, n],
            T=2 * batch * n**3 / timing.seconds / 1e12,
            error_units=exact.product_error(*last, 53 * limbs).units,
        )


def guarantee_case(report: harness.Report, n: int) -> None:
    """What the guarantee costs: time of the default accuracy over that of one fixed level, for kinds of dd matrices.

    A row of the last kind spans 2^-500 to 2^500.
    """
    a, b = product.operands(n, 2)
    uniform = [jaxmd.asarray(jax.random.uniform(jax.random.key(i), (n, n), minval=-1.0), 2) for i in (5, 6)]
    lower = jaxmd.MultiDouble(tuple(jnp.tril(x) for x in a.limbs))
    scale = 2.0 ** jnp.round(jnp.linspace(-500, 500, n))
    wide = jaxmd.MultiDouble(tuple(x * scale for x in a.limbs))
    kinds = {
        "normal": (a, b),
        "uniform": (uniform[0], uniform[1]),
        "identity": (jaxmd.asarray(jnp.eye(n), 2), b),
        "triangular": (lower, b),
        "wide": (wide, b),
    }
    _, fixed = harness.measure(functools.partial(jaxmd.matmul, engine="int8", accuracy="normwise"), [(a, b)], 0.5)
    for kind, (x, y) in kinds.items():
        c, timing = harness.measure(functools.partial(jaxmd.matmul, engine="int8"), [(x, y)], 0.5)
        error = exact.product_error(x.limbs, y.limbs, c.limbs, 106)
        report.line(
            "residue_guarantee",
            timing,
            engine="int8",
            method=kind,
            limbs=2,
            shape=[n, n, n],
            normwise_seconds=fixed.seconds,
            over_normwise=timing.seconds / fixed.seconds,
            error_units=error.units,
        )


def steps_case(report: harness.Report, limbs: int, n: int) -> None:
    """Encode (one operand), product and decode at the base level, and XLA's int8 product: each a program of its own."""
    plan, _ = _magnitudes.base(n, limbs)
    a, b = (x.limbs for x in product.operands(n, limbs))
    shift = jnp.zeros(n, jnp.int32)
    row = jax.jit(lambda x: _slices.shared_exponent(_slices.exponents(x), -1))(a)
    column = jax.jit(lambda x: _slices.shared_exponent(_slices.exponents(x), -2))(b)
    encode = lambda side: lambda x, e: _residue_steps.encode(x, e, shift, plan, side)
    left, first = harness.measure(encode(0), [(a, row)], 0.5)
    right, second = harness.measure(encode(1), [(b, column)], 0.5)
    multiply = functools.partial(_residue_steps.product, plan=plan)
    residues, timing = harness.measure(multiply, [(left, right)], 0.5)
    decode = functools.partial(_residue_steps.decode, plan=plan, limbs=limbs)
    c, third = harness.measure(decode, [(residues, row, column)], 0.5)
    common: dict[str, Any] = {"engine": "int8", "limbs": limbs, "shape": [n, n, n], "channels": plan.channels}
    error = exact.product_error(a, b, c, 53 * limbs).units
    operand, entries = 8 * limbs * n * n, n * n
    for name, step, moved in (("encode_left", first, operand), ("encode_right", second, operand)):
        moved += plan.channels * entries
        report.line(f"residue_{name}", step, bytes_per_second=moved / step.seconds, error_units=error, **common)
    tops = 2 * n**3 * plan.channels / timing.seconds / 1e12
    report.line("residue_matmul", timing, tops=tops, wrong_residues=wrong(left, right, residues, plan), **common)
    few = slice(0, min(8, plan.channels))
    _, plain = harness.measure(_residue_steps.dot, [(left[few], right[few])], 0.3)
    tops = 2 * n**3 * len(left[few]) / plain.seconds / 1e12
    report.line("residue_dot", plain, tops=tops, **common)
    moved = (plan.residue_bytes + 8 * limbs) * entries
    report.line("residue_decode", third, bytes_per_second=moved / third.seconds, error_units=error, **common)


def wrong(left: jax.Array, right: jax.Array, residues: jax.Array, plan: _residues.Plan) -> int:
    """Residues that differ from integers of 64 bits, in the first row of the result."""
    a, b, got = (np.asarray(x, np.int64) for x in (left[:, 0], right, residues[:, 0]))
    sums, ones = np.einsum("gk,gnk->gn", a, b), len(plan.small)
    centred = lambda x, p: (x + p // 2) % p - p // 2
    p, q = np.array(plan.small)[:, None], np.array([p for p, _ in plan.pairs], np.int64)[:, None]
    count = (centred(sums[:ones], p) != got[:ones]).sum()
    first, second, third = (centred(sums[ones + i :: 3], q) for i in range(3))
    f, g = (x[:, None] for x in plan.carries.T.astype(np.int64))
    expected = centred(third + g * centred(second + f * first, q), q)
    return int(count + (expected != got[ones::2] + 256 * got[ones + 1 :: 2]).sum())


def flint_case(report: harness.Report, limbs: int, n: int) -> None:
    """FLINT's product of two n × n matrices of random 53 L-bit integers; exact, so without an error."""
    try:
        import flint
    except ImportError:
        report.line("skipped", engine="flint", limbs=limbs, shape=[n, n, n])
        return
    flint.ctx.threads = harness.cores()
    size = -(-53 * limbs // 8)
    text = np.random.default_rng(1).bytes(2 * n * n * size)
    words = [int.from_bytes(text[i : i + size], "little") >> (8 * size - 53 * limbs) for i in range(0, len(text), size)]
    a, b = flint.fmpz_mat(n, n, words[: n * n]), flint.fmpz_mat(n, n, words[n * n :])
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        a * b
        seconds.append(time.perf_counter() - start)
    timing = harness.Time(min(seconds), max(seconds) - min(seconds), len(seconds))
    report.line(
        "residue_product",
        timing,
        engine="flint",
        limbs=limbs,
        shape=[n, n, n],
        T=2 * n**3 / timing.seconds / 1e12,
        error_units=0,
    )


if __name__ == "__main__":
    main()
