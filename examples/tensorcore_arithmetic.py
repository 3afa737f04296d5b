"""What a tensor core computes, on the worked example, on your own numbers, and over long sums.

    python examples/tensorcore_arithmetic.py                      the worked example on six units, a picture, a table
    python examples/tensorcore_arithmetic.py --a 1 2 0.5 --b 3 4 0x1p-20 --c 1e3 --arch hopper \
        --instruction wgmma.k16.f32.bf16.bf16 --picture mine.png  your own: each product, what is cut, the rounding

Needs no GPU: the model gives the hardware's bits. Numbers are rounded to the instruction's formats first.
"""

from __future__ import annotations

import argparse
import math
from fractions import Fraction
from pathlib import Path

import jax
import numpy as np

from jaxmd import tensorcore
from jaxmd.tensorcore import Spec, explain, spec

A, B, C = (-(2.0**13), 48, 0.375, 0.125), (2.0**10, 48, 1, 1), 2.0**23  # exactly 2304.5
UNITS = [
    ("volta", "mma.m8n8k4.f32.f16.f16.f32"),
    ("ampere", "mma.m16n8k16.f32.f16.f16.f32"),
    ("hopper", "wgmma.k16.f32.f16.f16"),
    ("blackwell", "tcgen05.k16.f32.f16.f16"),
    ("hopper", "wgmma.k32.f32.e5m2.e5m2"),
    ("blackwell", "tcgen05.k32.f32.e5m2.e5m2"),
]
PICTURE = Path(__file__).resolve().parent / "bench" / "figures" / "tensorcore.png"
LONG = 8192
PROMOTED = [("no promotion", None), ("every 512", 512), ("every 128", 128), ("every 64", 64), ("every 16", 16)]


def number(text: str) -> float:
    return float.fromhex(text) if "0x" in text.lower() else float(text)


def rounded(values: list[float], name: str) -> list[Fraction | float]:
    """To the nearest value of a format."""
    f = tensorcore.FORMATS[name]
    if name == "tf32":  # to nearest, ties away from zero, by way of float32's bits
        bits = (np.array(values, np.float32).view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
        return [tensorcore.value_of(x, f) for x in bits]
    numbers = np.array(values)
    if np.issubdtype(f.dtype, np.integer):
        numbers = np.rint(numbers)
        info = np.iinfo(f.dtype)
        if not np.all((info.min <= numbers) & (numbers <= info.max)):
            raise ValueError(f"{name} holds integers from {info.min} to {info.max}; {values} came.")
    return [tensorcore.value_of(x, f) for x in numbers.astype(f.dtype).view(f.word)]


def worked_example(picture: Path) -> None:
    print(f"c + Σ a b = {C:.0f} + ({A[0]:.0f})·{B[0]:.0f} + 48·48 + 0.375·1 + 0.125·1 = 2304.5, by unit:\n")
    for arch, instruction in UNITS:
        x = explain(A, B, C, spec(arch, instruction))
        print(f"  {arch:<10} {instruction:<30} {float(x.result):g}")
    x = explain(A, B, C, spec("hopper", "wgmma.k16.f32.f16.f16"))
    print(f"\n{x}\n")
    draw(x, picture)


def draw(x: tensorcore.Explanation, picture: Path) -> None:
    try:
        x.picture(picture)
        print(f"drawn to {picture}\n")
    except ImportError as error:
        print(error)


def long_sums(rows: int) -> None:
    """Error of dot products of length 8192 relative to Σ |a b|, by the interval of promotion."""
    names = [
        ("hopper", "wgmma.k16.f32.f16.f16"),
        ("ampere", "mma.m16n8k16.f32.f16.f16.f32"),
        ("hopper", "wgmma.k32.f32.e4m3.e4m3"),
    ]
    print(f"root mean square of the error over Σ |a b|, {rows * rows} sums of {LONG} products, promoted to float32:\n")
    print(f"  {'':<42}" + "".join(f"{text:>14}" for text, _ in PROMOTED))
    generator = np.random.default_rng(1)
    for kind, draw_numbers in (("uniform (0, 1)", generator.random), ("normal", generator.standard_normal)):
        x, y = draw_numbers((rows, LONG)), draw_numbers((LONG, rows))
        for arch, instruction in names:
            s = spec(arch, instruction)
            errors = [
                f"{error(x, y, s, every):14.1e}" if every is None or every % s.k == 0 else f"{'-':>14}"
                for _, every in PROMOTED
            ]
            print(f"  {kind:<15}{arch + ' ' + s.a.name:<27}" + "".join(errors))
    print()


def error(x: np.ndarray, y: np.ndarray, s: Spec, every: int | None) -> float:
    """Against exact integers."""
    a, b = x.astype(s.a.dtype), y.astype(s.b.dtype)
    d = tensorcore.matmul(tensorcore.to_bits(a, s.a), tensorcore.to_bits(b, s.b), s, promote_every=every)
    got = tensorcore.from_bits(np.asarray(d), s.d).astype(np.float64)
    scale = 2.0 ** (s.a.mantissa_bits - s.a.min_exponent)  # every operand is an integer over this
    p, q = (np.vectorize(int, otypes=[object])(v.astype(np.float64) * scale) for v in (a, b))
    exact, size = p @ q, abs(p) @ abs(q)
    one = Fraction(int(scale)) ** 2
    relative = [
        float((Fraction(g) * one - e) / m) for g, e, m in zip(got.ravel().tolist(), exact.ravel(), size.ravel())
    ]
    return math.sqrt(sum(r * r for r in relative) / len(relative))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--a", nargs="+", type=number, help="left factors, decimal or hexadecimal (0x1.8p-3)")
    parser.add_argument("--b", nargs="+", type=number, help="right factors")
    parser.add_argument("--c", type=number, default=0.0, help="the addend")
    parser.add_argument("--arch", default="hopper")
    parser.add_argument("--instruction", default="wgmma.k16.f32.f16.f16")
    parser.add_argument("--picture", type=Path, default=None, help=f"where the picture goes (default {PICTURE.name})")
    parser.add_argument(
        "--rows", type=int, default=8, help="the table's sums are the entries of a product of this size"
    )
    chosen = parser.parse_args(arguments)
    if (chosen.a is None) != (chosen.b is None):
        parser.error("--a and --b belong together")
    if chosen.a is None:
        worked_example(chosen.picture or PICTURE)
        long_sums(chosen.rows)
        return
    try:
        s = spec(chosen.arch, chosen.instruction)
        if s.d.width == 64:
            jax.config.update("jax_enable_x64", True)
        x = explain(rounded(chosen.a, s.a.name), rounded(chosen.b, s.b.name), rounded([chosen.c], s.c.name)[0], s)
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    print(x)
    if chosen.picture:
        draw(x, chosen.picture)


if __name__ == "__main__":
    main()
