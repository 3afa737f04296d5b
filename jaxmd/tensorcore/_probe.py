"""What an unknown unit computes, found by asking it: a device is a function from rows of bits to bits.

    steps       a huge product and its negative cancel, and swallow every unit product added no later than they:
                the units that survive say how many come in later steps
    F           1 - 1 + 2^-j, all in one step: the last j that is not cut;  with 2^-j as c, too
    cut         1 - 1 + 1.5·2^-F of either sign: toward zero, to nearest, up or down
    output      2.25 + 2^-j: the last j that survives, and what becomes of 6.75 + fractions of its last place
    zero        a result near the smallest number, and a product so far below that only a clamp of the exponent cuts it
    specials    the bits of NaN, subnormal numbers in and out, the sign of zero

Source: the questions are those of M. Fasi et al., Numerical behavior of NVIDIA tensor cores (PeerJ CS 7:e330, 2021),
and of MMA-Sim (arXiv:2511.10909); the summation masks are MMA-Sim's. Ours are asked in any format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ._bits import Format, bits_of, format_of, value_of
from ._specs import ROUNDINGS, Spec

_CASES = 128  # rows of every call, so that a compiled function is compiled once

Dot = Callable[[Any, Any, Any], Any]
Row = tuple[dict[int, tuple[Fraction, Fraction]], Fraction]  # place -> (a, b), and c


@dataclass(frozen=True)
class Record:
    """What `probe` found. None: not to be seen with these formats.

    Attributes:
        order: the steps, each the indices of the products that are added at once; length is the longest.
        fraction_bits, fraction_bits_c: F for products and for c; None where nothing is cut.
        cut: what happens to bits below: "toward zero", "to nearest", "down", "up", "away".
        normalized: whether products in [2, 4) count as one exponent higher.
        output_bits: fraction bits of the output.
        rounding: of the output, "toward zero", "to nearest even", "to nearest away", "down", "up".
        c_last: c is added after the products.
        zero_exponent: what the largest exponent is at least.
        subnormal_inputs, subnormal_c, subnormal_outputs: whether they count (False: taken for zeros).
        nan: the bits that a NaN operand gives;  zero: those of (-0)·1 + (-0).
    """

    order: tuple[tuple[int, ...], ...]
    fraction_bits: int | None
    fraction_bits_c: int | None
    cut: str | None
    normalized: bool | None
    output_bits: int
    rounding: str
    c_last: bool
    zero_exponent: int | None
    subnormal_inputs: bool
    subnormal_c: bool | None
    subnormal_outputs: bool | None
    nan: int | None
    zero: int

    @property
    def length(self) -> int:
        return max(len(step) for step in self.order)

    def differences(self, spec: Spec) -> list[str]:
        """Where the record contradicts a spec: one line each; empty where they agree."""
        r = ROUNDINGS[spec.rounding]
        wanted = {
            "order": spec.order,
            "fraction_bits": spec.fraction_bits,
            "output_bits": r.fraction_bits,
            "rounding": "to nearest even" if r.nearest else "toward zero",
            "c_last": spec.c_last,
            "nan": r.format.nan,
            "subnormal_inputs": True,
            "subnormal_c": True,
            "subnormal_outputs": True,
            "fraction_bits_c": None if spec.c_last else spec.fraction_bits or r.fraction_bits,
            "zero_exponent": spec.zero_exponent,
            "cut": None if spec.fraction_bits is None else "toward zero",
            "normalized": None if spec.fraction_bits is None else False,
        }
        unseen = {"zero_exponent", "nan", "subnormal_c", "subnormal_outputs", "fraction_bits_c", "cut", "normalized"}
        lines = []
        for name, value in wanted.items():
            found = getattr(self, name)
            if found != value and not (found is None and name in unseen):
                lines.append(f"{name}: {found} found, {value} in the table")
        return lines

    def __str__(self) -> str:
        lines = [f"steps               {len(self.order)} of L = {self.length}"]
        if self.order != tuple(tuple(range(step[0], step[0] + len(step))) for step in self.order):
            lines.append("order of k          " + " | ".join(",".join(map(str, step)) for step in self.order))
        for name, value in (
            ("fraction bits F", self.fraction_bits),
            ("of c", self.fraction_bits_c),
            ("cut", self.cut),
            ("output bits", self.output_bits),
            ("rounding", self.rounding),
            ("c", "after the products" if self.c_last else "with the first step"),
            ("zero exponent", self.zero_exponent),
            ("subnormal inputs", self.subnormal_inputs),
            ("subnormal outputs", self.subnormal_outputs),
            ("NaN", None if self.nan is None else hex(self.nan)),
        ):
            lines.append(f"{name:<19} {'not seen' if value is None else value}")
        return "\n".join(lines)


def probe(
    dot: Dot, a: str | Format, b: str | Format | None = None, d: str | Format = "f32", *, k: int, takes_c: bool = True
) -> Record:
    """Finds the arithmetic of a function that computes dot products.

    Args:
        dot: called as dot(a, b, c) with NumPy bits [128, k], [128, k] and [128]; returns bits [128], those of
            c + Σ a_l b_l. It may be the model, a kernel, or a library product on any device.
        a, b: formats of the factors, floating-point; b is a's if None.
        d: format of c and the result.
        k: products of one call; the steps of one instruction are found if k is that instruction's.
        takes_c: False for products without an addend: c is then always zero, and what needs it stays None.

    Returns: a `Record`; print it, or ask for its `differences` from a spec.

    A library's matrix product computes 128 rows at once on the diagonal:

        def dot(a, b, c):
            x, y = (jnp.asarray(from_bits(v, "bf16")) for v in (a, b))
            return to_bits(jnp.diagonal(jnp.matmul(x, y.T, preferred_element_type=jnp.float32)), "f32")

        probe(dot, "bf16", k=32, takes_c=False)

    Limits: the formats need a range of about 2^34 between products, or the steps cannot be told apart (not
    those of e2m1, e2m3 and e3m2, with each other or with e4m3).
    """
    who = "jaxmd.tensorcore.probe"
    if not callable(dot):
        raise TypeError(f"{who}: dot is {type(dot).__name__}; a function of a, b and c was wanted.")
    fa, fb, fd = (format_of(f, who) for f in (a, a if b is None else b, d))
    for f in (fa, fb, fd):
        if f.is_integer:
            raise ValueError(f"{who}: format {f} came; a floating-point format was wanted.")
    if isinstance(k, bool) or not hasattr(k, "__index__"):
        raise TypeError(f"{who}: k is {k!r}; a positive integer was wanted.")
    if k < 2:
        raise ValueError(f"{who}: k is {k}; at least 2 products were wanted.")
    questions = _Questions(dot, fa, fb, fd, int(k), takes_c)
    try:
        return questions.record()
    except (ArithmeticError, LookupError, ValueError) as error:
        raise ValueError(f"{who}: what dot returned are no sums of its products ({error}).") from error


class _Questions:
    """The device, and powers of two that its formats hold."""

    def __init__(self, dot: Dot, a: Format, b: Format, d: Format, k: int, takes_c: bool) -> None:
        self.dot, self.a, self.b, self.d, self.k, self.takes_c = dot, a, b, d, k, takes_c
        self.low = (a.min_exponent - a.mantissa_bits) + (b.min_exponent - b.mantissa_bits)  # of all products
        self.top = min(a.max_exponent + b.max_exponent, d.max_exponent - 1)
        bottom = max(self.low, d.min_exponent - d.mantissa_bits)
        self.unit = max(bottom, self.top - (80 if d.name == "f64" else 40))
        if self.top - self.unit < 30:
            raise ValueError(f"jaxmd.tensorcore.probe: products of {a} and {b} span too few powers of two.")

    def ask(self, rows: Sequence[Row]) -> list[int]:
        """The bits that the device returns for each row."""
        out: list[int] = []
        for i in range(0, len(rows), _CASES):
            part = rows[i : i + _CASES]
            a, b = (np.zeros((_CASES, self.k), f.word) for f in (self.a, self.b))
            c = np.zeros(_CASES, self.d.word)
            for r, (products, addend) in enumerate(part):
                for place, (x, y) in products.items():
                    a[r, place], b[r, place] = bits_of(x, self.a), bits_of(y, self.b)
                c[r] = bits_of(addend, self.d)
            answer = np.asarray(self.dot(a, b, c))
            if answer.shape != (_CASES,) or answer.dtype.kind not in "ui":
                raise TypeError(
                    f"jaxmd.tensorcore.probe: dot returned {answer.dtype} of shape {answer.shape}; "
                    f"bits, {self.d.word} of shape ({_CASES},), were wanted."
                )
            out += [int(v) for v in answer[: len(part)]]
        return out

    def values(self, rows: Sequence[Row]) -> list[Fraction | float]:
        return [value_of(bits, self.d) for bits in self.ask(rows)]

    def power(self, e: int, factor: Fraction = Fraction(1), sign: int = 1) -> tuple[Fraction, Fraction]:
        """Factors of sign·factor·2^e, the first with the larger exponent that its format likes."""
        middle = e // 2
        x = min(max(middle, self.a.min_exponent), self.a.max_exponent)
        y = e - x
        if not self.b.min_exponent <= y <= self.b.max_exponent:
            y = min(max(y, self.b.min_exponent - self.b.mantissa_bits), self.b.max_exponent)
            x = e - y
        return sign * factor * Fraction(2) ** x, Fraction(2) ** y

    # --- the questions ---

    def record(self) -> Record:
        order, c_last = self.steps()
        places = [l for step in order for l in step]
        bottom = self.d.min_exponent - self.d.mantissa_bits
        limit = self.top - max(self.low, bottom)
        fraction_bits = self.last(lambda j: self.cancelled(places, {2: self.power(self.top - j)}), limit)
        of_c = None
        if self.takes_c and not c_last:
            of_c = self.last(lambda j: self.cancelled(places, {}, Fraction(2) ** (self.top - j)), self.top - bottom)
        cut, normalized = self.cutting(places, fraction_bits)
        output_bits = self.output(places)
        subnormals = self.subnormals()
        return Record(
            order=order,
            fraction_bits=fraction_bits,
            fraction_bits_c=of_c,
            cut=cut,
            normalized=normalized,
            output_bits=output_bits,
            rounding=self.rounding(places, output_bits),
            c_last=c_last,
            zero_exponent=self.zero_exponent(places, fraction_bits),
            subnormal_inputs=subnormals[0],
            subnormal_c=subnormals[1],
            subnormal_outputs=subnormals[2],
            nan=self.nan(),
            zero=self.ask([({0: (-Fraction(0), Fraction(1))}, Fraction(0))])[0],
        )

    def steps(self) -> tuple[tuple[tuple[int, ...], ...], bool]:
        """The steps in their order, and whether c comes after them."""
        huge, unit = self.power(self.top), self.power(self.unit)
        minus = (-huge[0], huge[1])
        pairs = [(i, j) for i in range(self.k) for j in range(i)]
        rows: list[Row] = [({**dict.fromkeys(range(self.k), unit), i: huge, j: minus}, Fraction(0)) for i, j in pairs]
        later = [0] * self.k  # units in later steps than each place
        for (i, j), value in zip(pairs, self.values(rows), strict=True):
            count = int(Fraction(value) / Fraction(2) ** self.unit)
            later[i], later[j] = max(later[i], count), max(later[j], count)
        c_last = False
        if self.takes_c and self.k > 1:
            tiny = Fraction(2) ** self.unit
            groups = sorted(set(later))
            last = [l for l in range(self.k) if later[l] == groups[0]]
            # c as small as a unit: lost if it is there when the huge products cancel
            last = last if len(last) > 1 else sorted(range(self.k), key=lambda l: later[l])[:2]
            c_last = self.values([({last[0]: huge, last[1]: minus}, tiny)])[0] == tiny
        steps = [tuple(l for l in range(self.k) if later[l] == count) for count in sorted(set(later), reverse=True)]
        if len(steps) > 1 and len(steps[0]) == 2 and all(len(s) == 1 for s in steps[1:]):
            steps = [(steps[0][0],), (steps[0][1],), *steps[1:]]  # one at a time: the first has no partner before it
        return tuple(steps), c_last

    def cancelled(
        self, places: list[int], more: dict[int, tuple[Fraction, Fraction]], c: Fraction = Fraction(0)
    ) -> Row:
        """2^top - 2^top + more + c, all in the first step."""
        huge = self.power(self.top)
        products = {places[0]: huge, places[1]: (-huge[0], huge[1])}
        return {**products, **{places[i]: pair for i, pair in more.items()}}, c

    def last(self, row: Callable[[int], Row], limit: int) -> int | None:
        """The last j up to which the row's result is 2^(top - j); None if that is all."""
        found = self.values([row(j) for j in range(limit + 1)])
        alive = [value == Fraction(2) ** (self.top - j) for j, value in enumerate(found)]
        return None if all(alive) else alive.index(False) - 1

    def cutting(self, places: list[int], fraction_bits: int | None) -> tuple[str | None, bool | None]:
        if fraction_bits is None or self.top - fraction_bits - 2 < self.low:
            return None, None
        e = self.top - fraction_bits
        rows = [self.cancelled(places, {2: self.power(e, Fraction(3, 2), sign)}) for sign in (1, -1)] + [
            self.cancelled(places, {2: self.power(e - 1, Fraction(1), sign)}) for sign in (1, -1)
        ]
        three, minus_three, half, minus_half = (Fraction(v) / Fraction(2) ** e for v in self.values(rows))
        names = {(1, -1): "toward zero", (1, -2): "down", (2, -1): "up"}
        nearest = "to nearest" if half == 0 and minus_half == 0 else "away"
        cut = names.get((int(three), int(minus_three)), nearest)
        x = self.power(self.top - 2, Fraction(3, 2))
        wide = (x[0], x[1] * Fraction(3, 2))
        products = {places[0]: wide, places[1]: (-wide[0], wide[1]), places[2]: self.power(e - 2)}
        return cut, self.values([(products, Fraction(0))])[0] == 0

    def wide(self) -> tuple[int, tuple[Fraction, Fraction]]:
        """An exponent e and factors of 2.25·2^e; three of them make 6.75, of which every output holds the bits."""
        e = min(self.top - 3, max(0, self.unit + 34) if self.top > 3 else self.top - 3)
        x, y = self.power(e)
        return e, (x * Fraction(3, 2), y * Fraction(3, 2))

    def output(self, places: list[int]) -> int:
        """Fraction bits of the result: 2.25·2^e + 2^(e - j) has j + 1 of them."""
        e, wide = self.wide()
        limit = min(e - self.low, self.d.mantissa_bits + 2)
        rows: list[Row] = [({places[0]: wide, places[1]: self.power(e - j)}, Fraction(0)) for j in range(2, limit + 1)]
        alive = [
            v == Fraction(2) ** e * (Fraction(9, 4) + Fraction(1, 2**j)) for j, v in enumerate(self.values(rows), 2)
        ]
        return min((alive.index(False) + 1 if False in alive else limit) + 1, self.d.mantissa_bits)

    def rounding(self, places: list[int], output_bits: int) -> str:
        e, wide = self.wide()
        place = e + 2 - output_bits
        fractions = [Fraction(3, 4), Fraction(1, 2), Fraction(3, 2)]
        rows: list[Row] = []
        for sign in (1, -1):
            for x in fractions:
                small = self.power(place - 1, 2 * x if x == Fraction(3, 4) else Fraction(1), sign)
                if x > 1:
                    small = self.power(place, x, sign)
                base = (sign * wide[0], wide[1])
                rows.append(({**dict.fromkeys(places[:3], base), places[3]: small}, Fraction(0)))
        whole = Fraction(27, 4) * Fraction(2) ** e
        steps = []
        for sign, value in zip([1] * 3 + [-1] * 3, self.values(rows), strict=True):
            steps.append(int((sign * Fraction(value) - whole) / Fraction(2) ** place))
        names: dict[tuple[int, ...], str] = {
            (0, 0, 1, 0, 0, 1): "toward zero",
            (1, 0, 2, 1, 0, 2): "to nearest even",
            (1, 1, 2, 1, 1, 2): "to nearest away",
            (0, 0, 1, 1, 1, 2): "down",
            (1, 1, 2, 0, 0, 1): "up",
        }
        return names.get(tuple(steps), f"unknown {steps}")

    def zero_exponent(self, places: list[int], fraction_bits: int | None) -> int | None:
        """The exponent below which e_max does not go, from the last product that still tips a smallest result."""
        smallest = self.d.min_exponent - self.d.mantissa_bits
        if fraction_bits is None or smallest - 2 < self.low:
            return None
        up = self.values([({places[0]: self.power(smallest - 1, Fraction(3, 2))}, Fraction(0))])[0] != 0
        base, sign = (self.power(smallest - 1), 1) if up else (self.power(smallest), -1)  # a tie, or just enough
        first = smallest - 2
        rows: list[Row] = [
            ({places[0]: base, places[1]: self.power(e, sign=sign)}, Fraction(0))
            for e in range(first, self.low - 1, -1)
        ]
        plain = self.values([({places[0]: base}, Fraction(0))])[0]
        tips = [v != plain for v in self.values(rows)]
        if all(tips) or not tips[0]:
            return None
        last = first - (tips.index(False) - 1)
        found = last + fraction_bits
        exponents = max(self.exponent(*base), self.exponent(*self.power(last)))
        return found if found > exponents else None

    def exponent(self, x: Fraction, y: Fraction) -> int:
        """Of a product of two powers of two, as the formats give it."""
        e = 0
        for value, f in ((x, self.a), (y, self.b)):
            size = abs(value)
            e += max(size.numerator.bit_length() - size.denominator.bit_length(), f.min_exponent)
        return e

    def subnormals(self) -> tuple[bool, bool | None, bool | None]:
        """Of a factor, of c, of the result."""
        least = Fraction(2) ** (self.a.min_exponent - self.a.mantissa_bits)
        other = Fraction(2) ** min(self.b.max_exponent, -(self.a.min_exponent - self.a.mantissa_bits))
        inputs = self.values([({0: (least, other)}, Fraction(0))])[0] == least * other
        e = self.d.min_exponent - 1
        of_c = self.values([({}, Fraction(2) ** e)])[0] == Fraction(2) ** e if self.takes_c else None
        outputs = self.values([({0: self.power(e)}, Fraction(0))])[0] == Fraction(2) ** e if self.low <= e else None
        return inputs, of_c, outputs

    def nan(self) -> int | None:
        if self.a.specials == "none":
            return None
        a, b = np.zeros((_CASES, self.k), self.a.word), np.zeros((_CASES, self.k), self.b.word)
        a[0, 0] = self.a.nan
        return int(np.asarray(self.dot(a, b, np.zeros(_CASES, self.d.word))).ravel()[0])
