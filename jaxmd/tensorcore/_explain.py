"""One output of an instruction, step by step, in exact numbers: the products, what is cut, the sum, the rounding.

Beside it stand the exact value and what a chain of fused multiply-adds would give. The steps are those of
`_fused.fused_step`, written again with fractions and no word of limited length; each is checked against the other.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ._bits import FORMATS, Format, bits_of, floor_log2, value_of
from ._explain_text import text
from ._fma import PRECEDENCE, QUIET
from ._specs import ROUNDINGS, Rounding, Spec, check_spec

Number = Fraction | float  # a float is inf, -inf or nan


@dataclass(frozen=True)
class Term:
    """One product, or c: its value, its exponent, and what is left of it after the cut."""

    name: str
    a: Number
    b: Number
    value: Number
    exponent: int | None  # None for Inf and NaN
    kept: Number

    @property
    def cut(self) -> Fraction:
        """What falls off: value - kept."""
        finite = isinstance(self.value, Fraction) and isinstance(self.kept, Fraction)
        return Fraction(self.value) - Fraction(self.kept) if finite else Fraction(0)


@dataclass(frozen=True)
class Step:
    """One fused step: its terms (c is the last), the largest exponent, the exact sum of what was kept, the result."""

    terms: tuple[Term, ...]
    e_max: int | None
    last_place: int | None  # terms are multiples of 2^last_place
    total: Number
    bits: int
    result: Number


@dataclass(frozen=True)
class Explanation:
    """What `explain` found; `str()` is the text, `picture(path)` draws it.

    Attributes:
        steps: every fused step (or multiply-add) of the instruction in the order it runs.
        bits, result: what the hardware returns.
        exact: c + Σ a_l b_l without any rounding (nan or inf where IEEE 754 has it).
        fma_chain: the sum by fused multiply-adds in the output's format, k ascending, rounded to nearest.
    """

    spec: Spec
    steps: tuple[Step, ...]
    bits: int
    result: Number
    exact: Number
    fma_chain: Number

    def __str__(self) -> str:
        return text(self)

    def picture(self, path: Any = None) -> Any:
        """Draws every term's bits on one axis of powers of two, what is cut in another colour.

        Args:
            path: where to write the picture (PNG, SVG, PDF by its ending); None writes nothing.

        Returns: the matplotlib figure.

        Raises: ImportError where matplotlib is missing (`pip install "jaxmd[plot]"`).
        """
        from ._explain_picture import draw

        return draw(self, path)


def explain(a: Any, b: Any, c: Any, spec: Spec) -> Explanation:
    """Walks through one output d = c + Σ_l a_l b_l of an instruction.

    Args:
        a, b: up to `spec.k` numbers each (the others are zeros): Python numbers or Fractions that the formats hold
            exactly, or NumPy or JAX arrays of bits (unsigned integers; s8 and u8 too are numbers if not an array).
        c: one number, or one NumPy or JAX scalar of bits.

    Returns: an `Explanation`; print it, or call its `picture`.

    Raises: ValueError for numbers that the formats do not hold, and for too many.
    """
    who = "jaxmd.tensorcore.explain"
    check_spec(who, spec)
    x, y = _row(a, spec.a, who, "a"), _row(b, spec.b, who, "b")
    z = _row(c if hasattr(c, "dtype") else [c], spec.c, who, "c")
    if len(x) != len(y) or len(x) > spec.k or len(z) != 1:
        raise ValueError(
            f"{who}: {len(x)} and {len(y)} factors and {len(z)} addends came; wanted equal numbers up to {spec.k}, and "
            "one addend."
        )
    x, y = (row + [0] * (spec.k - len(row)) for row in (x, y))
    named = spec
    if spec.widened:
        half = FORMATS["f16"]
        x, y = ([bits_of(value_of(v, f), half) for v in row] for row, f in ((x, spec.a), (y, spec.b)))
        spec = dataclasses.replace(spec, a=half, b=half)
    steps, bits = [], 0 if spec.c_last else z[0]
    for indices in spec.order:
        if spec.operation == "fused":
            step = _fused(x, y, bits, indices, spec)
        elif spec.operation == "fma":
            step = _multiply_add(x, y, bits, indices[0], spec)
        else:
            step = _integers(x, y, bits, spec)
        steps.append(step)
        bits = step.bits
    if spec.c_last:
        steps.append(_last(bits, z[0], spec))
        bits = steps[-1].bits
    values = [(value_of(p, spec.a), value_of(q, spec.b)) for p, q in zip(x, y, strict=True)]
    start = value_of(z[0], spec.c)
    exact = _sum([_product(p, q) for p, q in values] + [start])
    chain = start
    r = ROUNDINGS.get({"f16": "RNE-FP16", "f64": "RNE-FP64"}.get(spec.d.name, "RNE-FP32"))
    for p, q in values:
        total = _sum([chain, _product(p, q)])
        chain = value_of(_rounded(total, r), r.format) if r is not None and spec.operation != "integer" else total
    return Explanation(named, tuple(steps), bits, value_of(bits, spec.d), exact, chain)


def _row(x: Any, f: Format, who: str, name: str) -> list[int]:
    if hasattr(x, "dtype") and np.issubdtype(x.dtype, np.unsignedinteger):
        return [int(v) for v in np.asarray(x).ravel()]
    if hasattr(x, "dtype") and f.dtype is not None and x.dtype == f.dtype:
        return [int(v) for v in np.asarray(x).ravel().view(f.word)]
    if isinstance(x, str) or not hasattr(x, "__iter__"):
        raise TypeError(f"{who}: {name} is {type(x).__name__}; numbers or an array of bits were wanted.")
    row = [v.item() if isinstance(v, np.generic) or getattr(v, "shape", None) == () else v for v in x]
    for v in row:
        if not isinstance(v, int | float | Fraction):
            raise TypeError(f"{who}: {name} holds a {type(v).__name__}; numbers or an array of bits were wanted.")
    return [bits_of(v, f) for v in row]


def _product(p: Number, q: Number) -> Number:
    if isinstance(p, Fraction) and isinstance(q, Fraction):
        return p * q
    if p == 0 or q == 0 or p != p or q != q:
        return math.nan
    return math.inf if (p > 0) == (q > 0) else -math.inf


def _sum(terms: Sequence[Number]) -> Number:
    specials = [t for t in terms if not isinstance(t, Fraction)]
    if not specials:
        return sum((t for t in terms if isinstance(t, Fraction)), Fraction(0))
    return specials[0] if all(t == specials[0] for t in specials) else math.nan


def _exponent(bits: int, f: Format) -> int:
    """The exponent that a format gives a finite number; that of subnormal numbers where they are."""
    field = bits >> (f.unused + f.mantissa_bits) & ((1 << f.exponent_bits) - 1)
    return max(field, 1) - f.bias


def _two(e: int) -> Fraction:
    return Fraction(2) ** e


def _cut(value: Fraction, last_place: int) -> Fraction:
    """value toward zero to a multiple of 2^last_place."""
    return math.trunc(value / _two(last_place)) * _two(last_place)


def _fused(x: list[int], y: list[int], c: int, indices: tuple[int, ...], spec: Spec) -> Step:
    assert spec.fraction_bits is not None and spec.zero_exponent is not None
    terms = []
    for l in indices:
        p, q = value_of(x[l], spec.a), value_of(y[l], spec.b)
        terms.append((f"a{l}·b{l}", p, q, _product(p, q), _exponent(x[l], spec.a) + _exponent(y[l], spec.b)))
    start = value_of(c, spec.c)
    terms.append(("c", start, Fraction(1), start, _exponent(c, spec.c)))
    values = [t[3] for t in terms]
    if not all(isinstance(v, Fraction) for v in values):
        plain = tuple(Term(*t[:4], None, t[3]) for t in terms)
        total = _sum(values)
        bits = _rounded(total, ROUNDINGS[spec.rounding])
        return Step(plain, None, None, total, bits, value_of(bits, spec.d))
    exponents = [e if v != 0 else spec.zero_exponent for *_, v, e in terms]
    e_max = max(exponents)
    last_place = e_max - spec.fraction_bits
    done = tuple(Term(*t[:4], e, _cut(Fraction(t[3]), last_place)) for t, e in zip(terms, exponents, strict=True))
    total = _sum([t.kept for t in done])
    bits = _rounded(total, ROUNDINGS[spec.rounding])
    return Step(done, e_max, last_place, total, bits, value_of(bits, spec.d))


def _multiply_add(x: list[int], y: list[int], c: int, l: int, spec: Spec) -> Step:
    p, q, start = value_of(x[l], spec.a), value_of(y[l], spec.b), value_of(c, spec.c)
    product = _product(p, q)
    terms = (Term(f"a{l}·b{l}", p, q, product, None, product), Term("c", start, Fraction(1), start, None, start))
    total = _sum([product, start])
    sign = 1 << 63
    negative_zero = total == 0 and product == 0 and start == 0 and (x[l] ^ y[l]) & sign and c & sign
    bits = sign if negative_zero else _rounded(total, ROUNDINGS[spec.rounding], product == 0 and start == 0)
    nans = [(x[l], y[l], c)[i] for i in PRECEDENCE if (p, q, start)[i] != (p, q, start)[i]]
    bits = nans[0] | QUIET if nans else bits
    return Step(terms, None, None, total, bits, value_of(bits, spec.d))


def _integers(x: list[int], y: list[int], c: int, spec: Spec) -> Step:
    terms = []
    for l in range(spec.k):
        p, q = value_of(x[l], spec.a), value_of(y[l], spec.b)
        terms.append(Term(f"a{l}·b{l}", p, q, p * q, None, p * q))
    start = value_of(c, spec.c)
    terms.append(Term("c", start, Fraction(1), start, None, start))
    total = _sum([t.value for t in terms])
    final = int(total)
    if spec.rounding == "clamp":
        final = min(max(final, -(2**31)), 2**31 - 1)
    bits = final % 2**32
    return Step(tuple(terms), None, None, total, bits, value_of(bits, spec.d))


def _last(d: int, c: int, spec: Spec) -> Step:
    """c added to the products' sum, to nearest, outside the unit."""
    p, q = value_of(d, spec.d), value_of(c, spec.c)
    total = _sum([p, q])
    r = ROUNDINGS["RNE-FP16" if spec.d.name == "f16" else "RNE-FP32"]
    both_negative_zero = p == 0 and q == 0 and d >> (spec.d.width - 1) and c >> (spec.c.width - 1)
    bits = 1 << (spec.d.width - 1) if both_negative_zero else _rounded(total, r, signed_zero=True)
    terms = (Term("products", p, Fraction(1), p, None, p), Term("c", q, Fraction(1), q, None, q))
    return Step(terms, None, None, total, bits, value_of(bits, spec.d))


def _rounded(value: Number, r: Rounding, signed_zero: bool = False) -> int:
    """Bits of one value by `r`; a fused step's zero has no sign, an addition's only where it underflows."""
    f = r.format
    sign = 1 << (f.width - 1)
    if not isinstance(value, Fraction):
        return f.nan if value != value else f.infinity | (sign if value < 0 else 0)
    if value == 0:
        return 0
    size = abs(value)
    place = max(floor_log2(size), f.min_exponent) - r.fraction_bits
    count = size / _two(place)
    kept = round(count) if r.nearest else math.floor(count)  # Python's round is to nearest even
    result = kept * _two(place)
    negative = sign if value < 0 else 0
    if result >= _two(f.max_exponent + 1):
        return f.infinity | negative
    if result == 0:
        return negative if r.name == "RNE-FP64" else 0
    return bits_of(result, f) | negative
