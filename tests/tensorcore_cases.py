"""Inputs and calls for the tests of the tensor-core model: rows of bits, numbers placed in rows, one program a spec."""

import functools
from fractions import Fraction
from pathlib import Path

import jax
import numpy as np

from jaxmd import tensorcore

SHARED = Path(__file__).resolve().parents[2] / "shared"  # hardware outputs, where the machine has them
ROWS = 4096  # of every call, so that each spec is compiled once


@functools.cache
def program(spec):
    """a [ROWS, k], b [ROWS, k], c [ROWS] -> d [ROWS] on bits."""
    return jax.jit(lambda a, b, c: tensorcore.mma(a[:, None, :], b[:, :, None], c[:, None, None], spec)[:, 0, 0])


def run(spec, a, b, c):
    """One output of one instruction for each row of bits."""
    out = []
    for i in range(0, len(c), ROWS):
        part = [x[i : i + ROWS] for x in (a, b, c)]
        count = len(part[0])
        part = [np.concatenate([x, np.zeros((ROWS - count, *x.shape[1:]), x.dtype)]) for x in part]
        out.append(np.asarray(program(spec)(*part))[:count])
    return np.concatenate(out)


def row(values, f, k):
    """Numbers as bits, zeros after them."""
    return np.array([tensorcore.bits_of(v, f) for v in values] + [0] * (k - len(values)), f.word)


def run_pairs(spec, cases):
    """[(pairs, c)] of numbers -> bits, one output each."""
    a, b = (
        np.stack([row([p[i] for p in pairs], f, spec.k) for pairs, _ in cases]) for i, f in ((0, spec.a), (1, spec.b))
    )
    c = np.array([tensorcore.bits_of(c, spec.c) for _, c in cases], spec.c.word)
    return run(spec, a, b, c)


def pairs(*items):
    """(x, y) or (n, (x, y)) for n of them."""
    out = []
    for item in items:
        out += [item[1]] * item[0] if isinstance(item[1], tuple) else [item]
    return out


def matches(bits, wanted, f):
    """Whether bits are those of a number, inf or nan."""
    if wanted != wanted:
        return bits == f.nan
    return bits == tensorcore.bits_of(wanted if isinstance(wanted, float) else Fraction(wanted), f)


def random_bits(f, shape, seed, narrow=False):
    """The generator of the recorded hashes: every bit at random, or exponents within three of the bias."""
    g = np.random.Generator(np.random.PCG64(seed))
    u = g.integers(0, 2**f.width, shape, dtype=np.uint64)
    if narrow:
        e = g.integers(max(f.bias - 3, 0), f.bias + 4, shape, dtype=np.uint64)
        place = f.mantissa_bits + f.unused
        u = (u & ~np.uint64(((1 << f.exponent_bits) - 1) << place)) | (e << np.uint64(place))
    return u.astype(f.word)


def e(n):
    """2^n."""
    return Fraction(2) ** n
