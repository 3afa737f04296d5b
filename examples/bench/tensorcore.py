"""The model of tensor-core arithmetic against the card, and what it predicts of jnp.matmul.

probe      what the card computes, found by `jaxmd.tensorcore.probe`, beside the table
issue      every instruction on random bits: outputs that differ from the model's (error: their number)
predict    jnp.matmul in float16, bfloat16 and TF32: the share of outputs whose bits the model gives, with the split
           of k that the compiled program names, or the best of a few

python examples/bench/tensorcore.py [--only probe,issue,predict] [--quick] [--limit SECONDS] [--out FILE]
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import re
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import harness
from jaxmd import tensorcore
from jaxmd.tensorcore import Spec

PARTS = ("probe", "issue", "predict")
SHAPES = [
    (256, 256, 256),
    (512, 1024, 512),
    (1024, 4096, 1024),
    (2048, 2048, 2048),
    (128, 8192, 128),
    (4096, 4096, 4096),
]
SAMPLE = 48  # rows and columns of a product that the model computes
SPLITS = (2, 3, 4, 5, 6, 8, 16)


MAIN = (
    *("mma.m16n8k16.f32.f16.f16.f32", "mma.m16n8k16.f16.f16.f16.f16", "mma.m16n8k16.f32.bf16.bf16.f32"),
    *("mma.m16n8k8.f32.tf32.tf32.f32", "mma.m16n8k8.f64.f64.f64.f64", "mma.m16n8k32.f32.e4m3.e4m3.f32"),
    *("wgmma.k16.f32.f16.f16", "wgmma.k16.f32.bf16.bf16", "wgmma.k8.f32.tf32.tf32", "wgmma.k32.f32.e4m3.e4m3"),
    *("wgmma.k32.f32.e5m2.e5m2", "wgmma.k32.f16.e4m3.e5m2", "mma.m16n8k32.s32.s8.s8.s32", "wgmma.k32.s32.s8.s8"),
)


def specs(quick: bool) -> list[Spec]:
    """The instructions of this card that kernels issue."""
    arch = "hopper" if jax.devices()[0].compute_capability == "9.0" else "ampere"
    if quick:
        return [s for s in tensorcore.specs(arch) if s.instruction in MAIN]
    found = [s for s in tensorcore.specs(arch) if not s.instruction.endswith("satfinite")]
    clamped = [s for s in tensorcore.specs(arch) if s.instruction.endswith("satfinite")]
    return [s for s in found if s.operation != "integer"] + [s for s in found if s.operation == "integer"] + clamped


def options(s: Spec) -> list[dict[str, Any]]:
    if not s.instruction.startswith("wgmma"):
        return [{}]
    signed = [{"negate_a": True}] if s.operation == "fused" else []
    return [{"a_from": "shared"}, {"a_from": "registers"}, {"accumulate": False}, *signed]


def probe(report: harness.Report, quick: bool) -> None:
    for s in specs(quick):
        if s.operation == "integer" or not report.time_left():
            continue

        def dot(a: Any, b: Any, c: Any, s: Spec = s) -> np.ndarray:
            m, n = tensorcore.rows(s), 8
            x, y, z = (
                np.zeros((len(c), m, s.k), a.dtype),
                np.zeros((len(c), s.k, n), b.dtype),
                np.zeros((len(c), m, n), c.dtype),
            )
            x[:, 0], y[:, :, 0], z[:, 0, 0] = a, b, c
            return np.asarray(tensorcore.issue(x, y, z, s))[:, 0, 0]

        found = tensorcore.probe(dot, s.a, s.b, s.d, k=s.k)
        record = {key: value for key, value in dataclasses.asdict(found).items() if key != "order"}
        differences = found.differences(s)
        report.line(
            "tensorcore-probe",
            instruction=s.instruction,
            error=len(differences),
            differences=differences,
            length=found.length,
            steps=len(found.order),
            **record,
        )


def issue(report: harness.Report, outputs: int, quick: bool) -> None:
    """One line an instruction; programs of several compile at once."""
    total = wrong = 0

    def work(s: Spec) -> list[tuple[dict[str, Any], str, tensorcore.Verdict]]:
        kinds = ("bits",) if s.operation == "integer" else ("bits", "near", "bottom", "cancel")
        cases = [(chosen, kind) for chosen in options(s) for kind in kinds]
        return [
            (chosen, kind, tensorcore.verify(s, kind, outputs=outputs, seed=number, **chosen))
            for number, (chosen, kind) in enumerate(cases)
            if report.time_left()
        ]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for s, found in zip(specs(quick), pool.map(work, specs(quick)), strict=True):
            count, errors = (sum(getattr(v, name) for *_, v in found) for name in ("outputs", "mismatches"))
            total, wrong = total + count, wrong + errors
            report.line(
                "tensorcore-issue",
                instruction=s.instruction,
                outputs=count,
                error=errors,
                payloads=sum(v.payloads for *_, v in found),
                streams=len(found),
                wrong=[
                    {"options": chosen, "kind": kind, "mismatches": v.mismatches, "first": [shown(d) for d in v.first]}
                    for chosen, kind, v in found
                    if v.mismatches
                ],
            )
    report.line("tensorcore-issue-total", outputs=total, error=wrong)


def shown(d: Any) -> dict[str, Any]:
    """A difference in hexadecimal."""
    fields = dataclasses.asdict(d).items()
    return {key: [hex(x) for x in value] if isinstance(value, tuple) else hex(value) for key, value in fields}


def products(shape: tuple[int, int, int], seed: int) -> Iterator[tuple[str, str, Any, Any, Any, Any]]:
    """(name, instruction, a, b as the model takes them, the compiled program, its operands)."""
    m, k, n = shape
    keys = jax.random.split(jax.random.key(seed), 2)
    a, b = jax.random.normal(keys[0], (m, k), jnp.float32), jax.random.normal(keys[1], (k, n), jnp.float32)
    for name, dtype, instruction in (
        ("f16", jnp.float16, "wgmma.k16.f32.f16.f16"),
        ("bf16", jnp.bfloat16, "wgmma.k16.f32.bf16.bf16"),
    ):
        x, y = a.astype(dtype), b.astype(dtype)
        program = jax.jit(lambda u, v: jnp.matmul(u, v, preferred_element_type=jnp.float32))
        yield name, instruction, x, y, program.lower(x, y).compile(), (x, y)
    program = jax.jit(lambda u, v: jnp.matmul(u, v, precision=jax.lax.DotAlgorithmPreset.TF32_TF32_F32))
    compiled = program.lower(a, b).compile()
    yield "tf32, operands cut", "wgmma.k8.f32.tf32.tf32", a, b, compiled, (a, b)
    yield "tf32, operands rounded", "wgmma.k8.f32.tf32.tf32", rounded(a), rounded(b), compiled, (a, b)


def rounded(x: jax.Array) -> jax.Array:
    """To TF32, ties away from zero, as cvt.rna does."""
    return jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(x, jnp.uint32) + jnp.uint32(0x1000), jnp.float32)


def library(compiled: Any) -> tuple[str, int | None]:
    """What the compiled program calls, and the split of k that it names."""
    text = compiled.as_text()
    split = re.search(r'"split_k":"?(\d+)', text)
    name = "triton" if "__triton" in text else "cublas" if "cublas" in text else "other"
    return name, int(split[1]) if split else None


def predict(report: harness.Report, shapes: list[tuple[int, int, int]]) -> None:
    model = jax.jit(tensorcore.matmul, static_argnums=2, static_argnames=("promote_every", "split_k"))
    for shape in shapes:
        m, k, n = shape
        i, j = (np.linspace(0, size - 1, SAMPLE).astype(int) for size in (m, n))
        for name, instruction, a, b, compiled, operands in products(shape, 11):
            if not report.time_left():
                return
            s = tensorcore.spec("hopper", instruction)
            got = tensorcore.to_bits(compiled(*operands), "f32")[i][:, j]
            x, y = tensorcore.to_bits(a[i], s.a), tensorcore.to_bits(b[:, j], s.b)
            called, given = library(compiled)

            def share(split: int, x: Any = x, y: Any = y, s: Spec = s, got: Any = got) -> float:
                return float(jnp.mean(model(x, y, s, split_k=split) == got))

            shares = {split: share(split) for split in {1, given or 1}}
            if max(shares.values()) < 0.999 and "cut" not in name:
                shares |= {split: share(split) for split in SPLITS if split * 64 <= k and report.time_left()}
            best = max(shares, key=lambda split: shares[split])
            report.line(
                "tensorcore-predict",
                kind=name,
                shape=list(shape),
                library=called,
                split_named=given,
                split=best,
                outputs=SAMPLE * SAMPLE,
                share=shares[best],
                error=1 - shares[best],
                shares={str(split): value for split, value in shares.items()},
            )


def main() -> None:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--only", default=",".join(PARTS))
    chosen, sys.argv[1:] = own.parse_known_args()
    parts = chosen.only.split(",")
    arguments = harness.arguments(__doc__)
    if set(parts) - set(PARTS):
        raise SystemExit(f"tensorcore.py: --only {chosen.only} came; wanted some of {', '.join(PARTS)}.")
    if not harness.on_gpu():
        raise SystemExit("tensorcore.py: needs an NVIDIA GPU; the tests hold the model against recorded outputs.")
    report = harness.Report(arguments)
    if "probe" in parts:
        probe(report, arguments.quick)
    if "issue" in parts:
        issue(report, 1_000_000, arguments.quick)
    if "predict" in parts:
        predict(report, SHAPES[:3] if arguments.quick else SHAPES)


if __name__ == "__main__":
    main()
