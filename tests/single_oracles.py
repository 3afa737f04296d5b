"""Exact values, bounds and comparisons for `jaxmd.matmul_f32`, in Python integers."""

import math
from fractions import Fraction

import numpy as np

KINDS = ["uniform(-1, 1)", "uniform(0, 1)", "exp(-15, 14)", "exp(-35, -15)", "exp(-100, -35)"]
_UNIT = 149  # every finite float32 is an integer times 2^-149


def entries(kind, shape, rng):
    """The input types of Ootomo and Yokota: uniform, and random exponents with random significands and signs."""
    name, low, high = kind.replace("(", " ").replace(",", "").replace(")", "").split()
    if name == "uniform":
        return rng.uniform(float(low), float(high), shape).astype(np.float32)
    significand = 1 + rng.random(shape)
    sign = np.where(rng.random(shape) < 0.5, -1.0, 1.0)
    return (sign * significand * 2.0 ** rng.integers(int(low), int(high) + 1, shape)).astype(np.float32)


def operands(kind, m, k, n):
    rng = np.random.default_rng([KINDS.index(kind), m, k, n])
    return entries(kind, (m, k), rng), entries(kind, (k, n), rng)


def integers(x):
    """x 2^149 as Python integers."""
    m, e = np.frexp(x.astype(np.float64))
    significand, shift = (m * 2.0**24).astype(np.int64), e - 24 + _UNIT
    out = [int(s) << int(t) if t >= 0 else int(s) >> -int(t) for s, t in zip(significand.flat, shift.flat, strict=True)]
    return np.array(out, dtype=object).reshape(x.shape)


def exact(a, b):
    """A B and |A||B|, times 2^298, as Python integers."""
    x, y = integers(a), integers(b)
    return x @ y, np.abs(x) @ np.abs(y)


def error_in_bounds(c, a, b, engine, only=None):
    """The largest error of an entry in units of the bound that the docstring gives."""
    k = a.shape[1]
    wanted, magnitude = exact(a, b)
    got = integers(c) * 2**_UNIT
    rows, columns = np.abs(integers(a)).max(1, initial=0), np.abs(integers(b)).max(0, initial=0)
    worst = 0.0
    for i, j in np.ndindex(c.shape):
        if only is not None and not only[i, j]:
            continue
        scale = rows[i] * columns[j]
        size, total = abs(got[i, j]), magnitude[i, j]
        bound = {  # times 2^140, as integers
            "f16x3": (11 * 64 if k < 1024 else 50 * 64 + k) * total * 2**110 + size * 2**116 + k * scale * 2**103,
            "tf32x3": (7 * 32 if k < 1024 else 35 * 32 + k) * total * 2**111 + size * 2**116 + k * scale * 2**2,
            "int8": 101 * size * 2**116 // 100 + k * scale * 2**109,
            "f32": k * total * 2**116,
            "auto": k * total * 2**116,
        }[engine]
        bound += 2 ** (140 + _UNIT - 1)  # half of the least subnormal
        worst = max(worst, abs(got[i, j] - wanted[i, j]) * 2**140 / bound)
    return worst


def residual(c, a, b):
    """||C - AB|| / ||AB||, Frobenius: products of float32 are exact in float64, and fsum rounds their sum once."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    wanted = np.array([[math.fsum(row * column) for column in y.T] for row in x])
    return float(np.linalg.norm(c - wanted) / np.linalg.norm(wanted))


def chain(a, b):
    """A chain of float32 multiply-adds, k ascending (products of float32 are exact in float64)."""
    c = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for l in range(a.shape[1]):
        c = (a[:, l : l + 1].astype(np.float64) * b[l].astype(np.float64) + c).astype(np.float32)
    return c


def special(a, b):
    """What the terms with Inf or NaN give; 0 where there is none."""
    c = np.zeros((a.shape[0], b.shape[1]), np.float32)
    with np.errstate(invalid="ignore"):
        for i, j in np.ndindex(c.shape):
            use = ~(np.isfinite(a[i]) & np.isfinite(b[:, j]))
            for x, y in zip(a[i][use], b[:, j][use], strict=True):
                c[i, j] += x * y
    return c


# --- the arithmetic of the kernels (ffi/single_matmul.h), entry by entry, in integers times powers of two -------------


def model(a, b, engine):
    depth = 16 if engine == "f16x3" else 8
    k = -(-a.shape[1] // 4) * 4
    short = k < 1024
    chunk = 64 if engine == "f16x3" and not short else 32
    k = -(-k // chunk) * chunk
    order = np.array(
        [16 * (p // 16) + [0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15][p % 16] for p in range(k)]
    )
    if engine == "f16x3":
        order = np.arange(k)
    c = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for i, j in np.ndindex(c.shape):
        row, column = (np.concatenate([x, np.zeros(k - len(x), np.float32)]) for x in (a[i], b[:, j]))
        s, t = _shift(a[i]), _shift(b[:, j])
        left, right = ([_split(v, shift, engine) for v in x[order]] for x, shift in ((row, s), (column, t)))
        total = rest = np.float32(0)
        for first in range(0, k, chunk):
            terms = [slice(l, l + depth) for l in range(first, first + chunk, depth)]
            x = 0.0
            for at in terms:
                for p, q in [(2, 0), (0, 2), (1, 1)] * short + [(1, 0), (0, 1)]:
                    x = _step(x, [y[p] for y in left[at]], [y[q] for y in right[at]])
            if short:
                rest, x = np.float32(rest + np.float32(x)), 0.0
            for at in terms:
                x = _step(x, [y[0] for y in left[at]], [y[0] for y in right[at]])
                if short:  # what the sum of two float32 leaves is a float32
                    before, total = total, np.float32(total + np.float32(x))
                    left_over = Fraction(float(before)) + Fraction(x) - Fraction(float(total))
                    rest, x = np.float32(rest + np.float32(float(left_over))), 0.0
            total = np.float32(total + np.float32(x))
        c[i, j] = math.ldexp(float(np.float32(total + rest)), -(s + t))
    return c


def _shift(x):
    top = max(abs(float(v)) for v in x)
    return min(14 - (math.frexp(top)[1] - 1), 126) if top > 0 else 126


def _split(x, shift, engine):
    """hi, lo and rest as pairs (significand, exponent): significand 2^(exponent - 10)."""
    rest, pieces = float(np.float32(math.ldexp(float(x), shift))), []
    for _ in range(3):
        pieces.append(_nearest(rest, engine))
        rest -= math.ldexp(pieces[-1][0], pieces[-1][1] - 10)
    return pieces


def _nearest(x, engine):
    if x == 0:
        return 0, 0
    e = max(math.frexp(x)[1] - 1, -14 if engine == "f16x3" else -126)
    m = math.ldexp(abs(x), 10 - e)
    m = round(m) if engine == "f16x3" else math.floor(m + 0.5)  # round() is to even
    return (m if x > 0 else -m), e  # m may be 2^11: then the exponent is one more


def _step(c, a, b):
    """c + a b: terms cut 25 bits below the largest exponent, then 24 bits are kept; towards zero, both."""
    terms = []
    for (x, e), (y, f) in zip(a, b, strict=True):
        x, e = (x // 2, e + 1) if abs(x) == 2048 else (x, e)
        y, f = (y // 2, f + 1) if abs(y) == 2048 else (y, f)
        if x * y != 0:
            terms.append((x * y, e + f - 20, e + f))
    if c != 0:
        e = max(math.frexp(c)[1] - 1, -126)
        terms.append((int(math.ldexp(c, 23 - e)), e - 23, e))
    top = max([-133, *(t[2] for t in terms)])
    total = 0
    for value, unit, _ in terms:
        up = unit - (top - 25)
        size = abs(value) << up if up >= 0 else abs(value) >> -up
        total += size if value > 0 else -size
    if total == 0:
        return 0.0
    quantum = max(top - 25 + abs(total).bit_length() - 24, -149)
    down = quantum - (top - 25)
    kept = abs(total) >> down if down >= 0 else abs(total) << -down
    return math.copysign(math.ldexp(kept, quantum), total)
