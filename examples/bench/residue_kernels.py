"""The residue kernels alone: encode of either side, product with every tile, decode; time, rate, exactness.

    python examples/bench/residue_kernels.py [--quick] [--out lines.jsonl] [--limit seconds]

Calls the compiled handlers of the default backend directly, whatever the primitives lower to, several calls on
different operands in one program. `tops` counts 2 m n k of every int8 channel and `share` is of 1979 TOPS;
`bytes_per_second` counts what must be read and written once, and `share` there is of 4.8 TB/s. `wrong` is the number of
residues, or of limbs, that differ from integers of Python on a sample: it must be 0. A tile's name is empty where the
shape chose it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import harness
import product
from jaxmd import _ffi, _magnitudes, _residue_steps, _residues, _slices

SIZES = (1024, 2048, 4096, 8192)
LIMBS = (2, 4, 8, 16)
TILES = ("wgmma 256x256", "wgmma 128x256", "wgmma 128x128", "wgmma 64x128", "wgmma 64x64", "mma 128x128", "mma 64x64")
INT8_PEAK, MEMORY_PEAK = 1979e12, 4.8e12  # of an H200
MEMORY_LIMIT = 60e9  # bytes of operands and results


def main() -> None:
    arguments = harness.arguments(__doc__)
    report = harness.Report(arguments)
    platform = "gpu" if harness.on_gpu() else "cpu"
    table = _ffi.register().get("CUDA" if platform == "gpu" else "cpu", ())
    missing = {f"jaxmd_residue_{step}" for step in ("encode", "matmul", "decode")} - set(table)
    if missing:
        report.line("skipped", engine="int8", reason=f"no handlers {sorted(missing)} on {platform}")
        return
    sizes = (256,) if platform == "cpu" else SIZES[:1] if arguments.quick else SIZES
    for limbs in LIMBS[:2] if arguments.quick else LIMBS:
        for n in sizes:
            plan, _ = _magnitudes.base(n, limbs)
            if plan.channels * n * n * 5 > MEMORY_LIMIT or not report.time_left():
                report.line("skipped", engine="int8", limbs=limbs, shape=[n, n, n])
                continue
            case(report, plan, limbs, n, TILES if platform == "gpu" else ())
    if platform == "gpu" and report.time_left():
        batch_case(report, _magnitudes.base(128, 2)[0], 1024 if not arguments.quick else 64, 128)


def case(report: harness.Report, plan: _residues.Plan, limbs: int, n: int, tiles: tuple[str, ...]) -> None:
    """All three kernels on n × n operands of `limbs` limbs."""
    count = max(1, min(4, 4096 // n))  # different operands in one program
    pairs = [tuple(x.limbs for x in product.operands(n, limbs, seed)) for seed in range(count)]
    row = [jax.jit(lambda x: _slices.shared_exponent(_slices.exponents(x), -1))(a) for a, _ in pairs]
    column = [jax.jit(lambda x: _slices.shared_exponent(_slices.exponents(x), -2))(b) for _, b in pairs]
    common: dict[str, Any] = {"engine": "int8", "limbs": limbs, "shape": [n, n, n], "channels": plan.channels}
    shift, moved = jnp.zeros(n, jnp.int32), (8 * limbs + plan.channels) * n * n
    encoded = []
    for side, name, exponents in ((0, "left", row), (1, "right", column)):
        handler = functools.partial(encode, plan=plan, side=side)
        operands = [(pair[side], e, shift) for pair, e in zip(pairs, exponents, strict=True)]
        _, timing = harness.measure(handler, operands, 0.5)
        encoded.append([jax.jit(handler)(*x) for x in operands])
        wrong = wrong_residues(encoded[-1][0], operands[0], plan, side)
        rate = moved / timing.seconds
        report.line(f"kernel_encode_{name}", timing, **bandwidth(rate), wrong=wrong, **common)

    products = list(zip(*encoded, strict=True))
    for tile in ("", *tiles):
        if not report.time_left():
            return
        product_line(report, plan, products, tile, common)

    multiplied = [jax.jit(functools.partial(multiply, plan=plan))(*x) for x in products]
    operands = [(c, e, f) for c, e, f in zip(multiplied, row, column, strict=True)]
    c, timing = harness.measure(functools.partial(decode, plan=plan, limbs=limbs), operands, 0.5)
    rate = (plan.residue_bytes + 8 * limbs) * n * n / timing.seconds
    wrong = wrong_limbs(c, operands[0], plan)
    report.line("kernel_decode", timing, **bandwidth(rate), wrong=wrong, **common)


def batch_case(report: harness.Report, plan: _residues.Plan, batch: int, n: int) -> None:
    """The product of a batch of small matrices."""
    keys = jax.random.split(jax.random.key(3), 2)
    shape = (plan.channels, batch, n, n)
    a, b = (jax.random.randint(key, shape, -90, 90, jnp.int32).astype(jnp.int8) for key in keys)
    common: dict[str, Any] = {"engine": "int8", "limbs": 2, "batch": batch, "shape": [n, n, n]}
    for tile in ("", *TILES):
        product_line(report, plan, [(a, b)], tile, common | {"channels": plan.channels})


def product_line(report: harness.Report, plan: _residues.Plan, operands: list[Any], tile: str, common: Any) -> None:
    os.environ.pop("JAXMD_RESIDUE_TILE", None)
    if tile:
        os.environ["JAXMD_RESIDUE_TILE"] = tile
    residues, timing = harness.measure(functools.partial(multiply, plan=plan), operands, 0.5)
    os.environ.pop("JAXMD_RESIDUE_TILE", None)
    a, b = operands[0]
    rate = 2 * a[..., 0].size * b.shape[-2] * a.shape[-1] / timing.seconds
    wrong = wrong_products(a, b, residues, plan)
    share = rate / INT8_PEAK
    report.line("kernel_matmul", timing, method=tile, tops=rate / 1e12, share=share, wrong=wrong, **common)


def bandwidth(rate: float) -> dict[str, float]:
    return {"bytes_per_second": rate, "share": rate / MEMORY_PEAK}


# The handlers, as the primitives call them.


def encode(limbs: tuple[jax.Array, ...], exponent: jax.Array, shift: jax.Array, plan: Any, side: int) -> jax.Array:
    return _residue_steps._encode_handler(*limbs, exponent, shift, plan=plan, side=side)[0]


def multiply(a: jax.Array, b: jax.Array, plan: Any) -> jax.Array:
    return _residue_steps._product_handler(a, b, plan=plan)[0]


def decode(*args: jax.Array, plan: Any, limbs: int) -> tuple[jax.Array, ...]:
    platform = "cuda" if harness.on_gpu() else "cpu"  # their tables differ
    return tuple(_residue_steps._decode_handler(*args, plan=plan, limbs=limbs, platform=platform))


# Exactness on samples, in Python's integers.


def centred(x: Any, p: int) -> Any:
    return (x + p // 2) % p - p // 2


def sample(n: int, count: int) -> list[int]:
    return sorted({0, n - 1, *np.random.default_rng(n).integers(0, n, count).tolist()})


def wrong_residues(got: jax.Array, operands: Any, plan: _residues.Plan, side: int) -> int:
    limbs, exponent, _ = operands
    n, wrong, ones = got.shape[-1], 0, len(plan.small)
    picks = sample(limbs[0].shape[0], 6)
    block = np.asarray(got[:, jnp.array(picks)][..., jnp.array(picks)], np.int64)
    assert n >= limbs[0].shape[1 - side]
    entries = [np.asarray(x if side == 0 else x.T)[np.ix_(picks, picks)] for x in limbs]
    scales = np.asarray(exponent)[picks]
    for i, j in np.ndindex(len(picks), len(picks)):
        total = 0
        for limb in entries:
            value = Fraction(float(limb[i, j])) * Fraction(2) ** (plan.bits - int(scales[i]))
            total += (1 if value > 0 else -1) * int(abs(value) + Fraction(1, 2))
        wrong += sum(centred(total, p) != block[c, i, j] for c, p in enumerate(plan.small))
        for c, (p, t) in enumerate(plan.pairs):
            a, b, both = (int(v) for v in block[ones + 3 * c : ones + 3 * c + 3, i, j])
            wrong += (a + t * b - total) % p != 0 or both != a + b
    return int(wrong)


def wrong_products(a: jax.Array, b: jax.Array, residues: jax.Array, plan: _residues.Plan) -> int:
    """Of all moduli, in a few rows and columns of one matrix; integers below 2^53 in float64."""
    if a.ndim > 3:
        a, b, residues = (x[:, -1] for x in (a, b, residues))
    rows, columns = jnp.array(sample(a.shape[1], 6)), jnp.array(sample(b.shape[1], 250))
    x, y = np.asarray(a[:, rows], np.float64), np.asarray(b[:, columns], np.float64)
    got, sums = np.asarray(residues[:, rows][..., columns], np.int64), (x @ y.swapaxes(1, 2)).astype(np.int64)
    ones = len(plan.small)
    wrong = sum(int((centred(sums[i], p) != got[i]).sum()) for i, p in enumerate(plan.small))
    for j, ((p, _), (f, g)) in enumerate(zip(plan.pairs, plan.carries.tolist(), strict=True)):
        s, t, u = (centred(z, p) for z in sums[ones + 3 * j : ones + 3 * j + 3])
        low, high = got[ones + 2 * j : ones + 2 * j + 2]
        wrong += int((low + 256 * high != centred(u + g * centred(t + f * s, p), p)).sum())
    return wrong


def wrong_limbs(c: tuple[jax.Array, ...], operands: Any, plan: _residues.Plan) -> int:
    """Limbs that differ from the canonical rounding of what the decoding's tables say, on a few entries."""
    tables = _residues.decoding(plan)
    residues, row, column = operands
    places = [tables.beta * j for j in range(len(tables.product))]
    whole: Callable[[np.ndarray], int] = lambda column: sum(int(v) << s for v, s in zip(column, places, strict=True))
    units = [whole(tables.slices[:, i]) for i in range(len(plan.moduli))]
    modulus = whole(tables.product)
    picks, wrong, ones = sample(residues.shape[-1], 5), 0, len(plan.small)
    block = lambda x: np.asarray(x[..., jnp.array(picks), :][..., jnp.array(picks)])
    digits, limbs = block(residues), [block(x) for x in c]
    e, f = np.asarray(row)[picks], np.asarray(column)[picks]
    for i, j in np.ndindex(len(picks), len(picks)):
        one, low, high = (digits[s, i, j].tolist() for s in np.s_[:ones, ones::2, ones + 1 :: 2])
        values = [*one, *(x + 256 * y for x, y in zip(low, high, strict=True))]
        total = sum(r * m for r, m in zip(values, units, strict=True))
        total -= round(Fraction(total, modulus)) * modulus
        rest = Fraction(total) * Fraction(2) ** (int(e[i]) + int(f[j]) - 2 * plan.bits)
        for limb in limbs:
            wrong += float(rest) != float(limb[i, j])
            rest -= Fraction(float(rest))
    return int(wrong)


if __name__ == "__main__":
    main()
