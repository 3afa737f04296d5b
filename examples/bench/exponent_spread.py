"""Error against the spread of exponents: the paper's quartering, entry by entry, beside ours and float64.

    python examples/bench/exponent_spread.py [--quick] [--out lines.jsonl]

Entries are (rand − 0.5)·exp(φ·randn) with all limbs populated (dd, n × n, n = 64), φ = 0 to 4. Compared with exact
integers:

  paper, section 2:     each double cut into four 13-bit quarters by its own exponent, Ā·B̄ of equation (4) in float64,
                        its eight parts added exactly (so nothing but quartering and product is charged);
  paper, sign groups:   the same with A = A₊ + A₋, B = B₊ + B₋ and the four products of equation (6), after the borrow
                        of equation (7) that gives both limbs the entry's sign;
  ours:                 jaxmd.matmul, engines "fp64" (componentwise and normwise) and "direct";
  float64:              jnp.matmul of the leading limbs.

The paper's remaining step, a group for every exponent of the leading quarter, makes one product for each pair of
groups; the lines say how many products that would be (`paper_groups`), and it is not run.
"""

from __future__ import annotations

import functools
import itertools
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import harness
import jaxmd
from _support import exact

PHI = (0.0, 0.5, 1.0, 2.0, 4.0)
BITS = 13  # of a quarter
OURS = {
    "fp64, componentwise": jax.jit(functools.partial(jaxmd.matmul, engine="fp64")),
    "fp64, normwise": jax.jit(functools.partial(jaxmd.matmul, engine="fp64", accuracy="normwise")),
    "direct": jax.jit(functools.partial(jaxmd.matmul, engine="direct")),
}
Array = np.ndarray[Any, np.dtype[np.float64]]


def main() -> None:
    arguments = harness.arguments(__doc__)
    report = harness.Report(arguments)
    n = 32 if arguments.quick else 64
    for phi in PHI:
        a, b = spread(n, phi, 1), spread(n, phi, 2)
        groups = sign_groups(a), sign_groups(b)
        results: dict[str, Any] = {
            "paper, section 2": exact_sum(quartered_product(a, b)),
            "paper, sign groups": exact_sum(
                [p for x, y in itertools.product(*groups) for p in quartered_product(x, y)]
            ),
            "float64": (np.asarray(jnp.matmul(a[0], b[0])),),
        }
        left, right = jaxmd.from_limbs(*a), jaxmd.from_limbs(*b)
        results |= {name: function(left, right).limbs for name, function in OURS.items()}
        needed = [len({e for g in group for e in leading_exponents(g)}) for group in groups]
        for name, c in results.items():
            error = exact.measure(a, b, c, 106)
            report.line(
                "exponent_spread",
                method=name,
                phi=phi,
                limbs=2,
                shape=[n, n, n],
                error_relative=error.relative,
                error_units=error.units,
                paper_groups=4 * needed[0] * needed[1],
            )


def spread(n: int, phi: float, seed: int) -> tuple[Array, Array]:
    """dd entries (rand − 0.5)·exp(φ·randn): the leading limb drawn so, the second uniform within half its ulp."""
    random = np.random.default_rng(seed)
    high = (random.random((n, n)) - 0.5) * np.exp(phi * random.standard_normal((n, n)))
    low = np.spacing(np.abs(high)) * (random.random((n, n)) - 0.5)
    return high, low


def quarters(x: Array) -> list[Array]:
    """The paper's section 2: four pieces of 13 bits of each double, the leading one first, cut by its own exponent.

    The fraction has 53 bits with the leading one: the last piece takes what remains, 14 bits.
    """
    pieces = []
    exponent = np.frexp(x)[1]
    for piece in range(1, 4):
        grid = np.ldexp(1.0, exponent - BITS * piece)
        head = np.trunc(x / grid) * grid
        pieces.append(head)
        x = x - head
    return [*pieces, x]


def quartered_product(a: tuple[Array, ...], b: tuple[Array, ...]) -> list[Array]:
    """Equation (4): Ā = [A_0 … A_7], B̄ block upper triangular Toeplitz, Ā·B̄ in float64; its parts C_1 … C_8."""
    left = [piece for limb in a for piece in quarters(limb)]
    right = [piece for limb in b for piece in quarters(limb)]
    count, n = len(left), a[0].shape[0]
    row = np.concatenate(left, axis=1)
    toeplitz = np.block(
        [[right[j - i] if j >= i else np.zeros_like(right[0]) for j in range(count)] for i in range(count)]
    )
    product = np.asarray(jnp.matmul(jnp.asarray(row), jnp.asarray(toeplitz)))
    return [product[:, g * n : (g + 1) * n] for g in range(count)]


def sign_groups(x: tuple[Array, Array]) -> list[tuple[Array, Array]]:
    """Positive and negative entries; equation (7) borrows one ulp so that both limbs have the entry's sign."""
    high, low = x
    borrow = np.where(np.sign(high) * low < 0, np.copysign(np.spacing(np.abs(high)), high), 0.0)
    high, low = high - borrow, low + borrow
    return [(np.where(sign * high > 0, high, 0.0), np.where(sign * high > 0, low, 0.0)) for sign in (1, -1)]


def leading_exponents(x: tuple[Array, Array]) -> set[int]:
    """Exponents of the leading quarters: the paper makes a matrix of each."""
    return set(np.frexp(x[0][x[0] != 0])[1].tolist())


def exact_sum(parts: list[Array]) -> tuple[Array, Array]:
    """Sum of the parts rounded to two limbs, in exact integers."""
    high = _rounded(*exact.integers(parts))
    return high, _rounded(*exact.integers([*parts, -high]))


def _rounded(values: exact.Integers, exponent: int) -> Array:
    unit = Fraction(2) ** exponent
    return np.array([[float(value * unit) for value in row] for row in values])


if __name__ == "__main__":
    main()
