"""Limbs ↔ decimal text and numbers of every kind, exactly: pure Python on integers of any size (`_rational.py`).

    text, int, Fraction, Decimal, … ──→ num/den ──→ canonical limbs
    limbs ──→ n/2^q ──→ shortest or rounded decimal text

Everything between the ends is an integer ratio, so the only roundings are those of the definition of canonical limbs.

Source: the interval of reals that read back identically is the idea of Steele and White, "How to print
floating-point numbers accurately", PLDI 1990; ours intersects one such interval for each limb.
"""

import decimal
import math
import numbers
import operator
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._rational import (
    INFINITY,
    collapse,
    dyadic_to_limbs,
    limbs_to_dyadic,
    nearest,
    ratio_to_limbs,
    significand,
    special,
)

_LOG10_2 = math.log10(2)
_CHUNK = 600  # digits that int() and str() convert whatever sys.set_int_max_str_digits() says
_EXPONENT_DIGITS = 18  # an exponent with more digits is beyond the range for any text that fits in memory

_RUN = "[0-9](?:_?[0-9])*"
_DECIMAL = re.compile(rf"([+-]?)({_RUN})?(?:\.({_RUN})?)?(?:[eE]([+-]?{_RUN}))?")
_RATIO = re.compile(rf"([+-]?)({_RUN})/({_RUN})")
_HEXADECIMAL = re.compile(rf"([+-]?)0[xX]([0-9a-fA-F]*)(?:\.([0-9a-fA-F]*))?(?:[pP]([+-]?{_RUN}))?")
_WORDS = {"inf": INFINITY, "infinity": INFINITY, "nan": math.nan}


# Into limbs.


def _digits_to_int(digits: str) -> int:
    if len(digits) <= _CHUNK:
        return int(digits)
    low = len(digits) // 2
    return _digits_to_int(digits[:-low]) * 10**low + _digits_to_int(digits[-low:])


def _exponent(text: str | None) -> int:
    if text is None:
        return 0
    digits = text.lstrip("+-").replace("_", "").lstrip("0") or "0"
    size = int(digits) if len(digits) <= _EXPONENT_DIGITS else 10**_EXPONENT_DIGITS
    return -size if text[0] == "-" else size


def _decimal_to_limbs(negative: bool, whole: str, fraction: str, exponent: int, count: int) -> tuple[float, ...]:
    digits = (whole + fraction).lstrip("0")
    sign = -1 if negative else 1
    top = len(digits) + exponent - len(fraction)  # 10^(top−1) ≤ |value| < 10^top
    if not digits or top <= -324:
        return special(sign * 0.0, count)
    if top > 309:
        return special(sign * INFINITY, count)
    significant = digits.rstrip("0")
    power = top - len(significant)
    num = sign * _digits_to_int(significant)
    if power >= 0:
        return ratio_to_limbs(num * 10**power, 1, count)
    return ratio_to_limbs(num, 10**-power, count)


def text_to_limbs(text: str, count: int) -> tuple[float, ...]:
    """Canonical limbs of the number that a text spells.

    Args:
      text: "0.1", "-1.5e-300", "1/3", "0x1.8p3", "inf", "nan", with a sign, spaces around it and single underscores
        between decimal digits as in Python.
      count: the number of limbs.

    Raises:
      ValueError: the text is not a number (the message names the position of the first character that no number has
        there), or a fraction has the denominator 0.
    """
    body = text.strip()
    match = _DECIMAL.fullmatch(body)
    if match and (match[2] or match[3]):
        sign, whole, fraction, power = match.groups()
        whole, fraction = whole or "", fraction or ""
        if "_" in body:
            whole, fraction = whole.replace("_", ""), fraction.replace("_", "")
        return _decimal_to_limbs(sign == "-", whole, fraction, _exponent(power), count)
    if match := _RATIO.fullmatch(body):
        num, den = (_digits_to_int(match[i].replace("_", "")) for i in (2, 3))
        if den == 0:
            at = text.index("/") + 1
            raise ValueError(f"{_excerpt(text, at)} has the denominator 0 at position {at}; a nonzero one was wanted")
        if num == 0:
            return special(-0.0 if match[1] == "-" else 0.0, count)
        return ratio_to_limbs(-num if match[1] == "-" else num, den, count)
    if (match := _HEXADECIMAL.fullmatch(body)) and (match[2] or match[3]):
        sign, whole, fraction, power = match.groups()
        num = int(whole + (fraction or ""), 16)
        if num == 0:
            return special(-0.0 if sign == "-" else 0.0, count)
        return dyadic_to_limbs(-num if sign == "-" else num, _exponent(power) - 4 * len(fraction or ""), count)
    word = _WORDS.get(body.lstrip("+-").lower()) if len(body) - len(body.lstrip("+-")) <= 1 else None
    if word is None:
        raise ValueError(_complaint(text))
    return special(-word if body[0] == "-" else word, count)


def _offence(text: str) -> int:
    """Position of the first character at which the text stops being the beginning of a number."""

    def after(pattern: str, at: int) -> int:
        match = re.compile(pattern).match(text, at)
        return match.end() if match else at

    start = at = after(r"\s*[+-]?", 0)
    word = text[at:].lower()
    if word[:1] in ("i", "n"):
        target = "nan" if word[0] == "n" else "infinity"
        while at - start < len(target) and word[at - start : at - start + 1] == target[at - start]:
            at += 1
        return after(r"\s*", at) if text[start:at].lower() in _WORDS else at
    hexadecimal = after("0[xX]", at) > at
    run = "[0-9a-fA-F]+" if hexadecimal else _RUN
    at = begin = after("0[xX]", at)
    at = after(run, at)
    if text[at : at + 1] == "/" and at > begin and not hexadecimal:
        at, begin = at + 1, at + 1
        at = after(_RUN, at)
    else:
        dot = at
        at = after(run, after(r"\.", at))
        if at == dot + 1 and dot == begin:
            return at  # a lone point: a digit was wanted after it
        mark = at
        if at > begin and (at := after("[pP]" if hexadecimal else "[eE]", at)) > mark:
            at = begin = after("[+-]", at)
            at = after(_RUN, at)
    return after(r"\s*", at) if at > begin else at


def _excerpt(text: str, at: int) -> str:
    start, stop = max(0, at - 30), at + 30
    return f"{'…' if start else ''}{text[start:stop]!r}{'…' if stop < len(text) else ''}"


def _complaint(text: str) -> str:
    at = _offence(text)
    if at < len(text):
        return f"{_excerpt(text, at)} is not a number: {text[at]!r} at position {at} is not part of one"
    return f"{_excerpt(text, at)} is not a number: it ends at position {at}, where more was wanted"


def number_to_limbs(x: Any, count: int) -> tuple[float, ...]:
    """Canonical limbs of one scalar, none of it through float64 unless it is one.

    Args:
      x: text, bytes, bool, int, float, Fraction, Decimal, numpy scalar, mpmath mpf or constant (as many digits as
        the limbs hold), sympy number, python-flint fmpz, fmpq, arf or arb (its midpoint), or anything that has
        `__index__` or `as_integer_ratio`.
      count: the number of limbs.

    Raises:
      TypeError: a complex number, or something that is no number. ValueError: malformed text.
    """
    if isinstance(x, float):  # includes numpy.float64
        return special(float(x), count)
    if isinstance(x, str):
        return text_to_limbs(x, count)
    if isinstance(x, int | np.bool_):
        return ratio_to_limbs(int(x), 1, count)
    if isinstance(x, decimal.Decimal):
        return special(math.nan, count) if x.is_nan() else text_to_limbs(str(x), count)
    if isinstance(x, numbers.Rational):
        return ratio_to_limbs(int(x.numerator), int(x.denominator), count)
    if isinstance(x, bytes):
        return text_to_limbs(x.decode("latin-1"), count)
    if hasattr(x, "_mpf_"):
        sign, man, exponent, _ = (x(prec=53 * count + 200) if callable(x) else x)._mpf_  # mpmath.pi is callable
        if not man and exponent:  # inf or nan
            return special(float(x), count)
        return dyadic_to_limbs(-int(man) if sign else int(man), int(exponent), count)
    if type(x).__module__.partition(".")[0] == "flint":
        return _flint_to_limbs(x, count)
    if hasattr(x, "__index__"):
        return ratio_to_limbs(operator.index(x), 1, count)
    if hasattr(x, "as_integer_ratio"):
        try:
            num, den = x.as_integer_ratio()
        except (OverflowError, ValueError):  # inf, nan
            return special(float(x), count)
        limbs = ratio_to_limbs(int(num), int(den), count)
        return special(float(x), count) if num == 0 else limbs  # float() for the sign of −0
    if isinstance(x, complex) or hasattr(x, "_mpc_") or "complex" in type(x).__name__:
        raise TypeError(f"{x!r} is complex; a real number was wanted")
    raise TypeError(f"{x!r} of type {type(x).__name__} is not a real number")


def _flint_to_limbs(x: Any, count: int) -> tuple[float, ...]:
    kind = type(x).__name__
    if kind == "fmpz":
        return ratio_to_limbs(int(x), 1, count)
    if kind == "fmpq":
        return ratio_to_limbs(int(x.p), int(x.q), count)
    if kind in ("arb", "arf"):
        middle = x.mid() if kind == "arb" else x
        if not middle.is_finite():
            return special(float(middle), count)
        man, exponent = middle.man_exp()
        return dyadic_to_limbs(int(man), int(exponent), count)
    if kind == "acb":
        raise TypeError(f"{x!r} is complex; a real number was wanted")
    raise TypeError(f"{x!r} of type flint.{kind} is not a real number")


# Out of limbs.


def limbs_to_text(limbs: Sequence[float], digits: int | None = None) -> str:
    """Decimal text of Σ limbs.

    Args:
      limbs: doubles in any form, normalized or not.
      digits: None for the shortest text that `text_to_limbs` reads back, with this number of limbs, as the same value
        (of the shortest, the nearest to it); else that many significant digits, correctly rounded, ties to even.
    """
    plain = collapse(limbs)
    if plain is None:
        num, shift = limbs_to_dyadic(limbs)
        plain = 0.0 if num == 0 else None
    if plain is not None:
        if plain == 0 and digits is not None and digits > 1:
            return f"{plain:.{digits - 1}f}"
        return repr(plain)
    sign, num = ("-", -num) if num < 0 else ("", num)
    if digits is not None:
        figures, exponent = _rounded(num, shift, digits)
        return sign + _layout(figures, exponent, digits, "")
    canonical = ratio_to_limbs(num, 1 << shift, len(limbs))  # exact: the sum of L doubles, or an overflow
    if canonical[0] == INFINITY:
        return sign + "inf"
    figures, exponent = _shortest(canonical)
    return sign + _layout(figures, exponent, max(16, math.ceil(53 * len(limbs) * _LOG10_2)), ".0")


def _int_to_digits(n: int) -> str:
    if n.bit_length() < 3 * _CHUNK:
        return str(n)
    low = int(n.bit_length() * _LOG10_2) // 2
    high, rest = divmod(n, 10**low)
    return _int_to_digits(high) + _int_to_digits(rest).zfill(low)


def _scaled(num: int, shift: int, power: int) -> tuple[int, int]:
    """(p, q) with p/q = num / (2^shift · 10^power)."""
    return (num, 10**power << shift) if power >= 0 else (num * 10**-power, 1 << shift)


def _rounded(num: int, shift: int, digits: int) -> tuple[str, int]:
    exponent = math.floor((num.bit_length() - 1 - shift) * _LOG10_2)  # floor(log10 of the value), or one less
    top, bottom = _scaled(num, shift, exponent + 1)
    if top >= bottom:
        exponent += 1
    figures = nearest(*_scaled(num, shift, exponent + 1 - digits))
    if figures == 10**digits:
        figures, exponent = figures // 10, exponent + 1
    return _int_to_digits(figures), exponent


def _interval(limbs: Sequence[float]) -> tuple[int, bool, int, bool, int]:
    """(low, low belongs, high, high belongs, shift): the reals between low/2^shift and high/2^shift have these limbs.

    The map from reals to canonical limbs is monotone, so these reals are the intersection over i of the reals whose
    distance from x₁ + … + xᵢ₋₁ rounds to xᵢ: half a unit in the last place of xᵢ on each side (a quarter toward zero
    where xᵢ is a power of two), the ends included where the last bit of xᵢ is even.
    """
    parts = [significand(limb) for limb in limbs]
    shift = max(0, 2 - min(exponent for _, exponent in parts))  # a quarter of the smallest unit is an integer
    value = 0
    lows, highs = [], []
    for figures, exponent in parts:
        value += figures << (exponent + shift)
        half = 1 << (shift + exponent - 1)
        inward = half >> 1 if abs(figures) == 1 << 52 and exponent > -1074 else half
        below, above = (inward, half) if figures >= 0 else (half, inward)
        even = figures % 2 == 0
        lows.append((value - below, not even))
        highs.append((value + above, even))
    low, high = max(lows), min(highs)  # of equal ends the open one
    return low[0], not low[1], high[0], high[1], shift


def _shortest(limbs: Sequence[float]) -> tuple[str, int]:
    low, low_belongs, high, high_belongs, shift = _interval(limbs)
    power = math.floor(((high - low).bit_length() - 1 - shift) * _LOG10_2) - 1  # ≥ 10 multiples of 10^power inside
    top, bottom = _scaled(low, shift, power)
    first = -(-top // bottom)
    first += not low_belongs and first * bottom == top
    top, bottom = _scaled(high, shift, power)
    last = top // bottom
    last -= not high_belongs and last * bottom == top
    for step in (256, 64, 16, 4, 1):  # the largest power of ten of which a multiple lies in the interval
        while -(-first // 10**step) <= last // 10**step:
            first, last, power = -(-first // 10**step), last // 10**step, power + step
    num, q = limbs_to_dyadic(limbs)
    figures = _int_to_digits(min(max(nearest(*_scaled(num, q, power)), first), last))
    return figures, power + len(figures) - 1


def _layout(figures: str, exponent: int, limit: int, whole_suffix: str) -> str:
    """Positional text for −4 ≤ exponent < limit, else scientific; `whole_suffix` ends positional integers."""
    if -4 <= exponent < 0:
        return "0." + "0" * (-exponent - 1) + figures
    if 0 <= exponent < limit:
        figures = figures.ljust(exponent + 1, "0")
        point = exponent + 1
        return figures[:point] + ("." + figures[point:] if figures[point:] else whole_suffix)
    return figures[0] + ("." + figures[1:] if figures[1:] else "") + f"e{exponent:+03d}"
