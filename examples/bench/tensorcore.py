"""The model of tensor-core arithmetic against the card, and what it predicts of jnp.matmul.

probe      what the card computes, found by `jaxmd.tensorcore.probe`, beside the table
issue      every instruction on random bits: outputs that differ from the model's (error: their number); of float64
           which operand's NaN comes out
predict    jnp.matmul in float16, bfloat16 and TF32: the share of outputs whose bits the model gives, with the split
           of k that the compiled program names, or the best of a few

python examples/bench/tensorcore.py [--only probe,issue,predict] [--match TEXT,TEXT] [--quick] [--limit SECONDS]
    [--out FILE]

--match restricts probe and issue to instructions whose names contain one of the texts, as in --match f64,e4m3.e5m2.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import harness
from jaxmd import tensorcore
from jaxmd.tensorcore import Spec

PARTS = ("probe", "issue", "predict")
REST, SPEED = "rest", "speed"
OUTPUTS = 1_000_000  # of each instruction, kind of bits and way to issue it
SHAPES = [
    (256, 256, 256),
    (512, 1024, 512),
    (1024, 4096, 1024),
    (2048, 2048, 2048),
    (128, 8192, 128),
    (4096, 4096, 4096),
]
SAMPLE = 64  # rows and columns of a product that the model computes
SPLITS = (1, 2, 4, 8, 16, 32, 3, 5, 6, 7)
KINDS: dict[str, tuple[Any, str]] = {
    "f16": (jnp.float16, "wgmma.k16.f32.f16.f16"),
    "bf16": (jnp.bfloat16, "wgmma.k16.f32.bf16.bf16"),
    "tf32": (jnp.float32, "wgmma.k8.f32.tf32.tf32"),
}


MAIN = (
    *("mma.m16n8k16.f32.f16.f16.f32", "mma.m16n8k16.f16.f16.f16.f16", "mma.m16n8k16.f32.bf16.bf16.f32"),
    *("mma.m16n8k8.f32.tf32.tf32.f32", "mma.m16n8k8.f64.f64.f64.f64", "mma.m16n8k32.f32.e4m3.e4m3.f32"),
    *("wgmma.k16.f32.f16.f16", "wgmma.k16.f32.bf16.bf16", "wgmma.k8.f32.tf32.tf32", "wgmma.k32.f32.e4m3.e4m3"),
    *("wgmma.k32.f32.e5m2.e5m2", "wgmma.k32.f16.e4m3.e5m2", "mma.m16n8k32.s32.s8.s8.s32", "wgmma.k32.s32.s8.s8"),
)


def specs(which: str, texts: Sequence[str]) -> list[Spec]:
    """The instructions of this card that kernels issue: "main", the "rest", or "all"; those that contain a text."""
    arch = "hopper" if jax.devices()[0].compute_capability == "9.0" else "ampere"
    known = [s for s in tensorcore.specs(arch) if any(text in s.instruction for text in texts)]
    return [s for s in known if which == "all" or (s.instruction in MAIN) == (which == "main")]


def options(s: Spec) -> list[dict[str, Any]]:
    if not s.instruction.startswith("wgmma"):
        return [{}]
    signed = [{"negate_a": True}] if s.operation == "fused" else []
    return [{"a_from": "shared"}, {"a_from": "registers"}, {"accumulate": False}, *signed]


def probe(report: harness.Report, chosen: Sequence[Spec]) -> None:
    for s in chosen:
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
            engine=s.instruction,
            error=len(differences),
            differences=differences,
            length=found.length,
            steps=len(found.order),
            **record,
        )


def issue(report: harness.Report, instructions: Sequence[Spec]) -> None:
    """One line an instruction; programs of several compile at once."""
    total = wrong = 0

    def work(s: Spec) -> list[tuple[dict[str, Any], str, tensorcore.Verdict]]:
        kinds = ("bits",) if s.operation == "integer" else tensorcore.KINDS
        cases = [(chosen, kind) for chosen in options(s) for kind in kinds]
        return [
            (chosen, kind, tensorcore.verify(s, kind, outputs=OUTPUTS, seed=number, **chosen))
            for number, (chosen, kind) in enumerate(cases)
            if report.time_left()
        ]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for s, found in zip(instructions, pool.map(work, instructions), strict=True):
            count, errors = (sum(getattr(v, name) for *_, v in found) for name in ("outputs", "mismatches"))
            total, wrong = total + count, wrong + errors
            report.line(
                "tensorcore-issue",
                engine=s.instruction,
                outputs=count,
                error=errors,
                streams=len(found),
                wrong=[
                    {"options": chosen, "kind": kind, "mismatches": v.mismatches, "first": [shown(d) for d in v.first]}
                    for chosen, kind, v in found
                    if v.mismatches
                ],
            )
            if s.operation == "fma" and report.time_left():
                nans(report, s)
    report.line("tensorcore-issue-total", outputs=total, error=wrong)


def nans(report: harness.Report, s: Spec) -> None:
    """Whose NaN a b + c returns: every mix of numbers, zeros, Infs and NaNs, quiet and not, in one product and c."""
    words = {"1": 0x3FF << 52, "0": 0, "Inf": 0x7FF << 52, "-Inf": 0xFFF << 52, "q": 0x7FF8 << 48, "s": 0xFFF << 52}
    cases = list(itertools.product(words, repeat=3))
    operands = np.array(
        [[words[w] | (0xA0 + i if w in "qs" else 0) for i, w in enumerate(case)] for case in cases], np.uint64
    )
    m = tensorcore.rows(s)
    a, b, c = (np.zeros((len(cases), *shape), np.uint64) for shape in ((m, s.k), (s.k, 8), (m, 8)))
    a[:, 0, 0], b[:, 0, 0], c[:, 0, 0] = operands.T
    got = np.asarray(tensorcore.issue(a, b, c, s))[:, 0, 0]
    wanted = np.asarray(tensorcore.mma(a, b, c, s))[:, 0, 0]
    found: dict[str, set[str]] = {}
    for case, row, d in zip(cases, operands.tolist(), got.tolist(), strict=True):
        if d & ~(1 << 63) <= words["Inf"]:
            continue
        names = {row[i] | 1 << 51: "abc"[i] for i in range(3) if case[i] in "qs"}
        invalid = {"0", "Inf"} == {w.strip("-") for w in case[:2]}
        key = (", ".join(sorted(names.values())) or "no") + " NaN" + " and Inf·0" * invalid
        found.setdefault(key, set()).add(names.get(d, hex(d)))
    wrong = [
        {"case": "·".join(case), "hardware": hex(d), "model": hex(e)}
        for case, d, e in zip(cases, got.tolist(), wanted.tolist(), strict=True)
        if d != e
    ]
    returned = {key: sorted(values) for key, values in found.items()}
    report.line(
        "tensorcore-nan", engine=s.instruction, outputs=len(cases), error=len(wrong), returned=returned, wrong=wrong[:5]
    )


def shown(d: Any) -> dict[str, Any]:
    """A difference in hexadecimal."""
    fields = dataclasses.asdict(d).items()
    return {key: [hex(x) for x in value] if isinstance(value, tuple) else hex(value) for key, value in fields}


@dataclass(frozen=True)
class Product:
    """One library product: the model's name for it, its operands, and the compiled program."""

    kind: str
    spec: Spec
    shape: tuple[int, int, int]
    a: jax.Array
    b: jax.Array
    library: str
    compiled: Any


def products(triton: Sequence[tuple[int, int, int]], plain: Sequence[tuple[int, int, int]]) -> Iterator[Product]:
    """f16, bf16 and TF32 products: of XLA's own choice (Triton kernels), and with cuBLAS alone. All compile at once."""

    def make(job: tuple[str, tuple[int, int, int], bool]) -> Product:
        kind, (m, k, n), own = job
        keys = jax.random.split(jax.random.key(11), 2)
        a, b = jax.random.normal(keys[0], (m, k), jnp.float32), jax.random.normal(keys[1], (k, n), jnp.float32)
        dtype, instruction = KINDS[kind]
        a, b = a.astype(dtype), b.astype(dtype)
        precision = jax.lax.DotAlgorithmPreset.TF32_TF32_F32 if kind == "tf32" else None
        program = jax.jit(lambda u, v: jnp.matmul(u, v, precision=precision, preferred_element_type=jnp.float32))
        options = None if own else {"xla_gpu_enable_triton_gemm": False}
        compiled = program.lower(a, b).compile(compiler_options=options)
        text = compiled.as_text()
        library = "triton" if "__triton" in text else "cublas" if "cublas" in text else "other"
        return Product(kind, tensorcore.spec("hopper", instruction), (m, k, n), a, b, library, compiled)

    jobs = [(kind, shape, False) for shape in plain for kind in KINDS]
    jobs += [(kind, shape, True) for shape in triton for kind in KINDS]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        yield from pool.map(make, jobs)


def sums(parts: list[np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """float32 sums of the parts in the orders that a reduction may take: one after the other, neighbours first, halves
    first, backwards; every order there is for three or four parts."""
    yield "forward", functools.reduce(np.add, parts)
    if len(parts) > 2:
        yield "neighbours", tree(parts, lambda x: [x[i : i + 2] for i in range(0, len(x), 2)])
        yield "halves", tree(parts, lambda x: [x[i :: (len(x) + 1) // 2] for i in range((len(x) + 1) // 2)])
        yield "backward", functools.reduce(np.add, parts[::-1])
    if len(parts) in (3, 4):
        for order in itertools.permutations(range(len(parts))):
            yield "+".join(map(str, order)), functools.reduce(np.add, [parts[i] for i in order])


def tree(parts: list[np.ndarray], pair: Callable[[list[np.ndarray]], list[list[np.ndarray]]]) -> np.ndarray:
    while len(parts) > 1:
        parts = [functools.reduce(np.add, group) for group in pair(parts)]
    return parts[0]


def predict(report: harness.Report, found: Iterable[Product]) -> None:
    """The model runs on the CPU, on a sample of rows and columns."""
    cpu = jax.devices("cpu")[0]
    model = jax.jit(tensorcore.matmul, static_argnums=2)
    for p in found:
        m, k, n = p.shape
        i, j = (np.linspace(0, size - 1, min(SAMPLE, size)).astype(int) for size in (m, n))
        got = np.asarray(p.compiled(p.a, p.b))[i][:, j]
        rows, columns = np.asarray(p.a)[i], np.asarray(p.b)[:, j]
        operands = {"as they are": (rows, columns)}
        if p.kind == "tf32":
            ties = {"ties to even": True, "ties away": False}
            operands = {name: (rounded(rows, even), rounded(columns, even)) for name, even in ties.items()}
            operands["cut"] = rows, columns
        best: dict[str, Any] = {"share": -1.0}
        for (name, (x, y)), split in itertools.product(operands.items(), SPLITS):
            length = -(-k // split)
            if best["share"] == 1 or (split > 1 and length < p.spec.k) or not report.time_left():
                continue
            u, v = (jax.device_put(tensorcore.to_bits(w, p.spec.a), cpu) for w in (x, y))
            ends = [(l, min(l + length, k)) for l in range(0, k, length)]
            parts = [np.asarray(model(u[:, f:t], v[f:t], p.spec)).view(np.float32) for f, t in ends]
            for order, total in sums(parts):
                share = float(np.mean(total.view(np.uint32) == got.view(np.uint32)))
                if share > best["share"]:
                    best = {"share": share, "split": len(parts), "order": order, "operands": name}
        if best["share"] < 0:
            return
        report.line(
            "tensorcore-predict",
            method=p.kind,
            engine=p.library,
            shape=list(p.shape),
            outputs=got.size,
            **best,
            error=1 - best["share"],
        )


def rounded(x: np.ndarray, even: bool) -> np.ndarray:
    """To nearest in TF32; ties to even, or away from zero as cvt.rna has them."""
    bits = x.view(np.uint32)
    half = np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1)) if even else np.uint32(0x1000)
    return ((bits + half) & np.uint32(0xFFFFE000)).view(np.float32)


def speed(report: harness.Report) -> None:
    """The model itself: tiles of m16n8k16, normal numbers, checked against `explain` in a few entries."""
    s, tiles = tensorcore.spec("hopper", "mma.m16n8k16.f32.f16.f16.f32"), 100_000
    keys = jax.random.split(jax.random.key(3), 3)
    a, b, c = (
        tensorcore.to_bits(jax.random.normal(key, shape, jnp.float32).astype(f.dtype), f)
        for key, shape, f in zip(keys, ((tiles, 16, 16), (tiles, 16, 8), (tiles, 16, 8)), (s.a, s.b, s.c), strict=True)
    )
    d, timing = harness.measure(lambda *x: tensorcore.mma(*x, s), [(a, b, c)])
    wrong = sum(
        tensorcore.explain(a[t, 3], b[t, :, 5], c[t, 3, 5], s).bits != int(d[t, 3, 5]) for t in range(0, tiles, 5000)
    )
    report.line("tensorcore-speed", timing, engine=s.instruction, tiles=tiles, error=wrong)


def main() -> None:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--only", default=",".join(PARTS))
    own.add_argument("--match", default="")
    chosen, sys.argv[1:] = own.parse_known_args()
    parts = chosen.only.split(",")
    arguments = harness.arguments(__doc__)
    if set(parts) - {*PARTS, REST, SPEED}:
        raise SystemExit(
            f"tensorcore.py: --only {chosen.only} came; wanted some of {', '.join(PARTS)}, {REST}, {SPEED}."
        )
    if parts == [SPEED]:
        speed(harness.Report(arguments))
        return
    if not harness.on_gpu():
        raise SystemExit("tensorcore.py: needs an NVIDIA GPU; the tests hold the model against recorded outputs.")
    report = harness.Report(arguments)
    texts = chosen.match.split(",")
    instructions = specs("main" if arguments.quick else "all", texts)
    if "probe" in parts:
        probe(report, instructions)
    if "issue" in parts:
        issue(report, instructions)
    if REST in parts:
        issue(report, specs(REST, texts))
    if "predict" in parts:
        own, plain = (SHAPES[:2], SHAPES[:4]) if arguments.quick else (SHAPES[:4], SHAPES)
        predict(report, products(own, plain))


if __name__ == "__main__":
    main()
