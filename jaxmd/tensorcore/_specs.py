"""What each tensor-core instruction computes: the parameters of one table, by architecture and instruction.

    fused     d = ρ(c + Σ_l a_l b_l) in steps of L products: exact products and c, each cut to F fraction bits below the
              largest exponent (no less than the zero exponent), summed exactly, rounded once by ρ; steps are chained
    fma       c = RN(a_l b_l + c), k ascending
    integer   exact modulo 2^32, or clamped once an instruction

Instructions are named as in PTX: mma.<shape>.<d>.<a>.<b>.<c>, wgmma.<k>.<d>.<a>.<b> and tcgen05.<k>.<d>.<a>.<b>.

Source: the parameters were found by P. Xie et al., MMA-Sim: Bit-Accurate Reference Model of Tensor Cores and Matrix
Cores (arXiv:2511.10909), and independently by F. A. Khattak and M. Mikaitis, Accurate Models of NVIDIA Tensor Cores
(arXiv:2512.07004). FP8 products under mma.sync on Hopper are the compiler's: each operand widened to FP16, two FP16
instructions, an addition. Their order was read off the hardware outputs that the latter published, the rest is in the
machine code; the rows for Hopper are checked against an H200 by examples/bench/tensorcore.py.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ._bits import FORMATS, Format


@dataclass(frozen=True)
class Rounding:
    """How a sum becomes an output: `fraction_bits` kept, toward zero or to nearest even, stored as `format`."""

    name: str
    format: Format
    fraction_bits: int
    nearest: bool


ROUNDINGS: Mapping[str, Rounding] = {
    r.name: r
    for r in [
        Rounding("RZ-FP32", FORMATS["f32"], 23, False),
        Rounding("RZ-E8M13", FORMATS["f32"], 13, False),  # ten low bits of the float32 are zeros
        Rounding("RNE-FP16", FORMATS["f16"], 10, True),
        Rounding("RNE-FP32", FORMATS["f32"], 23, True),
        Rounding("RNE-FP64", FORMATS["f64"], 52, True),
    ]
}


@dataclass(frozen=True)
class Spec:
    """One instruction.

    Attributes:
        arch, instruction: its name.
        k: products of one output that the instruction adds.
        a, b, c, d: formats of the operands, the accumulator that comes in and the one that goes out.
        operation: "fused", "fma" or "integer" (see the module's text).
        length: L, products added in one step.
        fraction_bits: F, kept of each term below the largest exponent; None where no term is cut.
        zero_exponent: what the largest exponent is at least; None where no term is cut.
        rounding: of each step: "RZ-FP32", "RZ-E8M13", "RNE-FP16", "RNE-FP64"; "wrap" or "clamp" for integers.
        order: the steps, each the indices of its products.
        c_last: c is added after the products, rounded to nearest, where it otherwise joins the first step.
        widened: the unit gets a and b as f16, where the subnormal numbers of e4m3 are normal, of lower exponents.
    """

    arch: str
    instruction: str
    k: int
    a: Format
    b: Format
    c: Format
    d: Format
    operation: str
    length: int
    fraction_bits: int | None
    zero_exponent: int | None
    rounding: str
    order: tuple[tuple[int, ...], ...]
    c_last: bool = False
    widened: bool = False

    def __str__(self) -> str:
        if self.operation == "fma":
            what = "chain of fused multiply-adds, k ascending, RNE-FP64"
        elif self.operation == "integer":
            what = f"exact integers, {'modulo 2^32' if self.rounding == 'wrap' else 'clamped to 32 bits at the end'}"
        else:
            steps = f"{len(self.order)} step{'s' if len(self.order) > 1 else ''} of L = {self.length}"
            what = f"{steps}, F = {self.fraction_bits}, zero exponent {self.zero_exponent}, {self.rounding}"
            if self.widened:
                what += ", factors as f16"
            if self.c_last:
                what += ", products k mod 4 = 0, 1 first, then 2, 3, then c rounded to nearest"
        return f"{self.arch} {self.instruction}: {what}"


def check_spec(who: str, spec: Any) -> None:
    """Refuse what is no record of an instruction."""
    if not isinstance(spec, Spec):
        raise TypeError(f"{who}: spec is {type(spec).__name__}; a Spec was wanted, jaxmd.tensorcore.spec(…) gives it.")


def spec(arch: str, instruction: str) -> Spec:
    """The record of one instruction.

    Args:
        arch: "volta", "turing", "ampere", "ada", "hopper", "blackwell" (B200) or "rtx-blackwell".
        instruction: as in PTX, `"mma.m16n8k16.f32.f16.f16.f32"` (types of d, a, b, c), `"wgmma.k32.f32.e4m3.e5m2"`,
            `"tcgen05.k16.f32.bf16.bf16"` (types of d, a, b; c has d's).

    Raises: ValueError for what `specs()` does not list.
    """
    for name, text in (("arch", arch), ("instruction", instruction)):
        if not isinstance(text, str):
            raise TypeError(f"jaxmd.tensorcore.spec: {name} is {type(text).__name__}; text was wanted.")
    table = _table()
    if (arch, instruction) in table:
        return table[arch, instruction]
    known = [i for a, i in table if a == arch]
    if not known:
        archs = ", ".join(dict.fromkeys(a for a, _ in table))
        raise ValueError(f"jaxmd.tensorcore.spec: architecture {arch!r} came; wanted one of {archs}.")
    raise ValueError(f"jaxmd.tensorcore.spec: {arch} has no {instruction!r}; it has {', '.join(known)}.")


def specs(arch: str | None = None) -> tuple[Spec, ...]:
    """All records, or those of one architecture."""
    if arch is not None and not isinstance(arch, str):
        raise TypeError(f"jaxmd.tensorcore.specs: arch is {type(arch).__name__}; text or None was wanted.")
    found = tuple(s for s in _table().values() if arch in (None, s.arch))
    if not found:
        archs = ", ".join(dict.fromkeys(s.arch for s in _table().values()))
        raise ValueError(f"jaxmd.tensorcore.specs: architecture {arch!r} came; wanted one of {archs}.")
    return found


# F and the zero exponents (float32 and float16 outputs) of each generation; bytes of k in one step.
_GENERATIONS = {
    "volta": (23, -131, -19, 8),
    "turing": (24, -132, -20, 16),
    "ampere": (24, -132, -20, 16),
    "ada": (24, -132, -20, 16),
    "hopper": (25, -133, -21, 32),
    "blackwell": (25, -133, -21, 32),
    "rtx-blackwell": (25, -133, -21, 32),
}
_FP8 = ("e4m3", "e5m2")
_FP864 = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
_HALVES = tuple(tuple(l for l in range(32) if l % 4 // 2 == half) for half in (0, 1))


@functools.cache
def _table() -> dict[tuple[str, str], Spec]:
    return {(s.arch, s.instruction): s for s in _rows()}


def _rows() -> Iterator[Spec]:
    yield _fused("volta", "mma.m8n8k4.f32.f16.f16.f32")
    yield _fused("volta", "mma.m8n8k4.f16.f16.f16.f16")
    for d in ("f32", "f16"):  # Turing runs Volta's instruction as Volta does
        yield replace(_fused("volta", f"mma.m8n8k4.{d}.f16.f16.{d}"), arch="turing")
        yield _fused("turing", f"mma.m16n8k8.{d}.f16.f16.{d}")
    for a, b in (("s8", "s8"), ("u8", "u8"), ("s8", "u8"), ("u8", "s8")):
        yield from _integer("turing", "mma.m8n8k16", a, b)
    for arch in ("ampere", "ada", "hopper", "blackwell", "rtx-blackwell"):
        for k in (8, 16):
            yield _fused(arch, f"mma.m16n8k{k}.f32.f16.f16.f32")
            yield _fused(arch, f"mma.m16n8k{k}.f16.f16.f16.f16")
            yield _fused(arch, f"mma.m16n8k{k}.f32.bf16.bf16.f32")
        for k in (4, 8):
            yield _fused(arch, f"mma.m16n8k{k}.f32.tf32.tf32.f32")
        yield from _fp8_mma(arch)
        for shape in ("m16n8k16", "m16n8k32"):
            for a, b in (("s8", "s8"), ("u8", "u8"), ("s8", "u8"), ("u8", "s8")):
                yield from _integer(arch, f"mma.{shape}", a, b)
        yield _fma(arch, "mma.m8n8k4.f64.f64.f64.f64")
        if arch not in ("ampere", "ada"):
            for k in (4, 8, 16):
                yield _fma(arch, f"mma.m16n8k{k}.f64.f64.f64.f64")
    for arch, family, narrow in (("hopper", "wgmma", _FP8), ("blackwell", "tcgen05", _FP864)):
        yield _fused(arch, f"{family}.k16.f32.f16.f16")
        yield _fused(arch, f"{family}.k16.f16.f16.f16")
        yield _fused(arch, f"{family}.k16.f32.bf16.bf16")
        yield _fused(arch, f"{family}.k8.f32.tf32.tf32")
        for a in narrow:
            for b in narrow:
                for d in ("f32", "f16"):
                    yield _fused(arch, f"{family}.k32.{d}.{a}.{b}", short=arch == "hopper")
        for a, b in (("s8", "s8"), ("u8", "u8"), ("s8", "u8"), ("u8", "s8")):
            yield from _integer(arch, f"{family}.k32", a, b)


def _fp8_mma(arch: str) -> Iterator[Spec]:
    """Eight-bit products of mma.sync: Ada has a unit of 13 bits, Hopper and B200 make them of FP16 products."""
    if arch == "ampere":
        return
    for a in _FP864 if arch == "rtx-blackwell" else _FP8:
        for b in _FP864 if arch == "rtx-blackwell" else _FP8:
            for d in ("f32", "f16"):
                row = _fused(arch, f"mma.m16n8k32.{d}.{a}.{b}.{d}", short=arch == "ada")
                emulated = arch in ("hopper", "blackwell")
                yield replace(row, length=16, order=_HALVES, c_last=True, widened=True) if emulated else row


def _parse(instruction: str) -> tuple[int, list[Format]]:
    """k, and the formats of d, a, b and c."""
    _, shape, *types = instruction.split(".")
    formats = [FORMATS[t] for t in types if t != "satfinite"]
    return int(shape.rpartition("k")[2]), formats if len(formats) == 4 else [*formats, formats[0]]


def _fused(arch: str, instruction: str, short: bool = False) -> Spec:
    """`short`: the unit that keeps 13 fraction bits."""
    k, (d, a, b, c) = _parse(instruction)
    fraction_bits, zero32, zero16, size = _GENERATIONS[arch]
    length = min(k, size * 8 // a.width)
    half = d.name == "f16"
    return Spec(
        arch=arch,
        instruction=instruction,
        k=k,
        a=a,
        b=b,
        c=c,
        d=d,
        operation="fused",
        length=length,
        fraction_bits=13 if short else fraction_bits,
        zero_exponent=zero16 if half else zero32,
        rounding="RNE-FP16" if half else "RZ-E8M13" if short else "RZ-FP32",
        order=tuple(tuple(range(l, l + length)) for l in range(0, k, length)),
    )


def _fma(arch: str, instruction: str) -> Spec:
    k, (d, a, b, c) = _parse(instruction)
    order = tuple((l,) for l in range(k))
    return Spec(arch, instruction, k, a, b, c, d, "fma", 1, None, None, "RNE-FP64", order)


def _integer(arch: str, prefix: str, a: str, b: str) -> Iterator[Spec]:
    ending = ".s32" if prefix.startswith("mma") else ""
    for clamp in (False, True):
        instruction = f"{prefix}.s32.{a}.{b}{ending}" + (".satfinite" if clamp else "")
        k, (fd, fa, fb, fc) = _parse(instruction)
        rounding = "clamp" if clamp else "wrap"
        order = (tuple(range(k)),)
        yield Spec(arch, instruction, k, fa, fb, fc, fd, "integer", k, None, None, rounding, order)
