"""Explanations as text: a table for each step, and the result beside the exact value and the chain of multiply-adds."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from ._bits import floor_log2

if TYPE_CHECKING:
    from ._explain import Explanation, Step, Term

_LONGEST = 18  # characters of a number in decimal


def number(x: Fraction | float) -> str:
    """An exact number: decimal where that is short, else a significand and a power of two."""
    if not isinstance(x, Fraction):
        return str(x)
    if x.denominator & (x.denominator - 1) == 0 and (digits := x.denominator.bit_length() - 1) < _LONGEST:
        whole, rest = divmod(abs(x), 1)
        text = ("-" if x < 0 else "") + str(whole)
        if rest:
            text += "." + str(rest.numerator * 10**digits // rest.denominator).zfill(digits)
        if len(text) <= _LONGEST:
            return text
    e = floor_log2(abs(x))
    significand = float(x / Fraction(2) ** e)
    about = "" if Fraction(significand) == x / Fraction(2) ** e else "≈ "
    return f"{about}{significand.hex().partition('p')[0] if significand not in (1, -1) else int(significand)}·2^{e}"


def text(x: Explanation) -> str:
    lines = [str(x.spec), "d = c + Σ a_l b_l", ""]
    for i, step in enumerate(x.steps):
        lines += [f"Step {i + 1} of {len(x.steps)}", *_step(x, step), ""]
    lines += [
        f"result      {number(x.result)}   (bits 0x{x.bits:0{x.spec.d.width // 4}x})",
        f"exact       {number(x.exact)}{_difference(x.result, x.exact)}",
        f"FMA chain   {number(x.fma_chain)}{_difference(x.result, x.fma_chain)}",
    ]
    return "\n".join(lines)


def _difference(result: Fraction | float, other: Fraction | float) -> str:
    if not isinstance(result, Fraction) or not isinstance(other, Fraction) or result == other:
        return ""
    return f"   (the result differs by {number(result - other)})"


def _step(x: Explanation, step: Step) -> list[str]:
    shown = [t for t in step.terms if t.value != 0 or t.name == "c"]
    rows = [("term", "a", "b", "a·b", "exponent", "kept", "cut"), *(_row(t) for t in shown)]
    if step.e_max is None:
        rows = [(*row[:4], *row[7:]) for row in rows]
    lines = _columns(rows)
    zeros = len(step.terms) - len(shown)
    if zeros:
        lines.append(f"  and {zeros} product{'s' if zeros > 1 else ''} that are zero")
    if step.e_max is not None and step.last_place is not None:
        place = number(Fraction(2) ** step.last_place)
        lines.append(
            f"  e_max = {step.e_max}: terms are cut to multiples of 2^({step.e_max} - {x.spec.fraction_bits}) = {place}"
        )
    lines.append(f"  sum of what is kept: {number(step.total)}")
    lines.append(f"  rounded: {number(step.result)}   (bits 0x{step.bits:0{x.spec.d.width // 4}x})")
    return lines


def _row(t: Term) -> tuple[str, ...]:
    a, b = ("", "") if t.name == "c" else (number(t.a), number(t.b))
    exponent = "" if t.exponent is None else str(t.exponent)
    return (t.name, a, b, number(t.value), exponent, number(t.kept), number(t.cut) if t.cut else "")


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
