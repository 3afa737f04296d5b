"""Operands that hurt. Every generator takes a numpy Generator (fixed seed), a shape and a limb count; limbs come back.

`KINDS` are finite and well inside the range for L ≤ 8 (smallest |value| about 2^-120); `EXTREME` touch the ends of the
range; `SPECIAL` are the values whose every pair must give the IEEE result.
"""

import json
import zlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from oracles import from_fractions

Limbs = tuple[np.ndarray, ...]
Generator = Callable[[np.random.Generator, tuple[int, ...], int], Limbs]


def case(name: str) -> Any:
    """The problem cases/<name>.json of a real user."""
    return json.loads((Path(__file__).parent / "cases" / f"{name}.json").read_text())


def generator(*name: object) -> np.random.Generator:
    """A numpy Generator whose seed is the name, the same in every process."""
    return np.random.default_rng(zlib.crc32(repr(name).encode()))


def full(rng: np.random.Generator, shape: tuple[int, ...], limbs: int, spread: float = 0.0) -> Limbs:
    """All limbs populated, of either sign, without overlap; leading limb (rand − 0.5)·exp(spread·randn)."""
    out = [(rng.random(shape) - 0.5) * np.exp(spread * rng.standard_normal(shape))]
    for _ in range(limbs - 1):
        out.append(np.spacing(np.abs(out[-1])) * 0.998 * (rng.random(shape) - 0.5))
    return tuple(out)


def integers(rng: np.random.Generator, shape: tuple[int, ...], limbs: int) -> Limbs:
    """Integers from −8 to 8: results are exact, so tests may ask for equal bits."""
    return (rng.integers(-8, 9, shape).astype(np.float64), *(np.zeros(shape) for _ in range(limbs - 1)))


def alternating(rng: np.random.Generator, shape: tuple[int, ...], limbs: int) -> Limbs:
    """Signs of the limbs alternate, and limbs sit at the edge of overlap."""
    out = [rng.random(shape) + 0.5]
    for i in range(limbs - 1):
        out.append(np.where(rng.random(shape) < 0.5, 0.5, 0.4999) * np.spacing(np.abs(out[-1])) * (-1.0) ** (i + 1))
        out[-1] *= 1 - 2.0**-52 * rng.integers(1, 2**20, shape)
    return tuple(out)


def zero_limbs(rng: np.random.Generator, shape: tuple[int, ...], limbs: int) -> Limbs:
    """Some trailing limbs are zero, as after a conversion from fewer limbs."""
    x = full(rng, shape, limbs)
    keep = rng.integers(0, limbs + 1, shape)
    return tuple(np.where(i < keep, limb, 0.0) for i, limb in enumerate(x))


def gaps(rng: np.random.Generator, shape: tuple[int, ...], limbs: int) -> Limbs:
    """Long gaps between limbs: 1 + 2^-100 is a double double."""
    out = [rng.random(shape) - 0.5]
    for _ in range(limbs - 1):
        out.append(out[-1] * (rng.random(shape) - 0.5) * np.exp2(-rng.integers(53, 60, shape)))
    return tuple(out)


def spread(rng: np.random.Generator, shape: tuple[int, ...], limbs: int) -> Limbs:
    """Exponents over many binades: (rand − 0.5)·exp(4·randn)."""
    return full(rng, shape, limbs, 4.0)


def huge_and_tiny(rng: np.random.Generator, shape: tuple[int, ...], limbs: int) -> Limbs:
    """Mostly ordinary, with one entry about 2^60 and one about 2^-60 in every row."""
    x = full(rng, shape, limbs)
    if 0 in shape or not shape:
        return x
    factor = np.ones(shape)
    factor[..., 0] = 2.0**60
    factor[..., -1] = 2.0**-60
    return tuple(limb * factor for limb in x)


def zero_rows(rng: np.random.Generator, shape: tuple[int, ...], limbs: int) -> Limbs:
    """Every second row is zero, of either sign in the leading limb."""
    x = [limb.copy() for limb in full(rng, shape, limbs)]
    if 0 in shape or not shape:
        return tuple(x)
    for i, limb in enumerate(x):
        limb[::2] = 0.0 if i else np.where(rng.random(limb[::2].shape) < 0.5, 0.0, -0.0)
    return tuple(x)


def leading_zero(rng: np.random.Generator, shape: tuple[int, ...], limbs: int) -> Limbs:
    """Not normalized: the leading limb is zero."""
    x = full(rng, shape, limbs)
    return (np.zeros(shape), *x[: limbs - 1]) if limbs > 1 else x


def cancelling(rng: np.random.Generator, shape: tuple[int, ...], limbs: int) -> Limbs:
    """Not normalized: (x, −x, tiny, ...), whose value is in the last limbs."""
    x = rng.random(shape) + 0.5
    if limbs < 3:
        return full(rng, shape, limbs)
    return (x, -x, *(limb * 2.0**-100 for limb in full(rng, shape, limbs - 2)))


def limbwise_sums(rng: np.random.Generator, shape: tuple[int, ...], limbs: int) -> Limbs:
    """Not normalized: limbs of two numbers added one by one, as JAX adds cotangents; half of the leads cancel."""
    x, y = full(rng, shape, limbs), full(rng, shape, limbs)
    sign = np.where(rng.random(shape) < 0.5, 1.0, -1.0)
    leading = np.where(sign < 0, x[0], y[0])
    return (x[0] + sign * leading, *(a + b for a, b in zip(x[1:], y[1:])))


def reversed_limbs(rng: np.random.Generator, shape: tuple[int, ...], limbs: int) -> Limbs:
    """Not normalized: limbs in rising order."""
    return full(rng, shape, limbs)[::-1]


NORMALIZED: dict[str, Generator] = {
    f.__name__: f for f in (integers, full, alternating, zero_limbs, gaps, spread, huge_and_tiny, zero_rows)
}
UNNORMALIZED: dict[str, Generator] = {f.__name__: f for f in (leading_zero, cancelling, limbwise_sums, reversed_limbs)}
KINDS = NORMALIZED | UNNORMALIZED


def near_overflow(rng: np.random.Generator, shape: tuple[int, ...], limbs: int) -> Limbs:
    """Values from 2^1000 to the largest double."""
    factor = np.exp2(rng.integers(1000, 1024, shape).astype(np.float64))
    return tuple(limb * factor for limb in full(rng, shape, limbs))


def near_underflow(rng: np.random.Generator, shape: tuple[int, ...], limbs: int) -> Limbs:
    """Leading limbs from 2^-1074 to 2^-900, low limbs mostly subnormal or zero."""
    factor = np.exp2(rng.integers(-1074, -900, shape).astype(np.float64))
    return tuple(limb * factor for limb in full(rng, shape, limbs))


def subnormal(rng: np.random.Generator, shape: tuple[int, ...], limbs: int) -> Limbs:
    """A few units of the smallest double."""
    x = rng.integers(-9, 10, shape) * 5e-324
    return (x, *(np.zeros(shape) for _ in range(limbs - 1)))


EXTREME: dict[str, Generator] = {f.__name__: f for f in (near_overflow, near_underflow, subnormal)}

SPECIAL = np.array(
    [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1.0,
        -1.0,
        3.0,
        1.7976931348623157e308,
        -1e308,
        2.2250738585072014e-308,
        5e-324,
    ]
)


def special_pairs(limbs: int) -> tuple[Limbs, Limbs]:
    """All pairs of `SPECIAL` values, as two numbers."""
    x, y = (grid.ravel() for grid in np.meshgrid(SPECIAL, SPECIAL, indexing="ij"))
    zeros = tuple(np.zeros_like(x) for _ in range(limbs - 1))
    return (x, *zeros), (y, *zeros)


def ties(limbs: int) -> Limbs:
    """Values halfway between two neighbours of `limbs` limbs, in limbs + 1 limbs, of both parities and signs."""
    steps = [Fraction(1), Fraction(1) + Fraction(1, 2**52), Fraction(3, 2) - Fraction(1, 2**51)]
    halves = [Fraction(1, 2**53) ** i for i in range(1, limbs + 1)]
    values = [s * (lead + sign * half) for s in (1, -1) for lead in steps for half in halves for sign in (1, -1)]
    return from_fractions(values, limbs + 1)
