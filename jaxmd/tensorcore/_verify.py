"""The model against the GPU at hand, on random bits: how many outputs differ, and the first of them.

bits      every bit at random: mostly NaN and Inf in narrow formats, wildly different sizes in wide ones
near      exponents within three of the bias: sums that need every rule of the cut and of the rounding
bottom    exponents among the four lowest, subnormal numbers included
cancel    as near, but the second half of the products nearly takes back the first
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._bits import Format
from ._chain import mma
from ._issue import COLUMNS, issue, rows
from ._specs import Spec

KINDS = ("bits", "near", "bottom", "cancel")
_LISTED = 3


@dataclass(frozen=True)
class Difference:
    """One output that the model does not predict, as bits."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    c: int
    hardware: int
    model: int


@dataclass(frozen=True)
class Verdict:
    """What `verify` counted: outputs compared, those that differ, NaNs that differ in payload only; the first few."""

    outputs: int
    mismatches: int
    payloads: int
    first: tuple[Difference, ...]
    nans: tuple[Difference, ...]


def verify(spec: Spec, kind: str = "bits", *, outputs: int = 1_000_000, seed: int = 0, **options: Any) -> Verdict:
    """Issues the instruction on random bits and compares every output with the model's.

    Args:
        spec: the instruction; integers know the kind "bits" only.
        kind: "bits", "near", "bottom" or "cancel" (see the module's text).
        outputs: at least so many are compared.
        options: of `issue`: a_from, accumulate, negate_a.

    Returns: a `Verdict`. For float64 two NaNs are equal, and `payloads` counts those that differ in their bits.

    Raises: as `issue`.
    """
    if kind not in KINDS or (spec.operation == "integer" and kind != "bits"):
        raise ValueError(f"jaxmd.tensorcore.verify: kind {kind!r} came for {spec.instruction}; see its documentation.")
    m = rows(spec)
    cases = -(-outputs // (m * COLUMNS))
    a, b, c = random_operands(spec, kind, (cases, m, COLUMNS), seed)
    got = issue(a, b, c, spec, **options)
    start = c if options.get("accumulate", True) else jnp.zeros_like(c)
    factor = _negated(a, spec.a) if options.get("negate_a", False) else a
    wanted = _model(factor, b, start, spec)
    differs, payload = _compare(got, wanted, spec)

    def listed(mask: jax.Array) -> tuple[Difference, ...]:
        where = np.argwhere(np.asarray(mask))[:_LISTED].tolist()
        return tuple(
            Difference(
                tuple(int(x) for x in np.asarray(a[t, i])),
                tuple(int(x) for x in np.asarray(b[t, :, j])),
                *(int(x[t, i, j]) for x in (c, got, wanted)),
            )
            for t, i, j in where
        )

    return Verdict(got.size, int(differs.sum()), int(payload.sum()), listed(differs), listed(payload))


_model = jax.jit(mma, static_argnums=3)


@functools.partial(jax.jit, static_argnums=2)
def _compare(got: jax.Array, wanted: jax.Array, spec: Spec) -> tuple[jax.Array, jax.Array]:
    differs = got != wanted
    if spec.d.width != 64:
        return differs, jnp.zeros_like(differs)
    nan = lambda x: (x & spec.d.nan) > spec.d.infinity
    payload = differs & nan(got) & nan(wanted)
    return differs & ~payload, payload


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def random_operands(spec: Spec, kind: str, shape: tuple[int, int, int], seed: int) -> tuple[jax.Array, ...]:
    """Bits a [cases, m, k], b [cases, k, n] and c [cases, m, n] of one kind, from shape (cases, m, n)."""
    cases, m, n = shape
    keys = jax.random.split(jax.random.key(seed), 4)
    a = _random(keys[0], (cases, m, spec.k), spec.a, kind)
    b = _random(keys[1], (cases, spec.k, n), spec.b, kind)
    c = _random(keys[2], (cases, m, n), spec.c, kind)
    if kind == "cancel":
        half = spec.k // 2
        flips = jax.random.bits(keys[3], (cases, m, half), spec.a.word) & jax.random.bits(keys[0], (), spec.a.word)
        noise = flips & spec.a.word(1 << spec.a.unused)  # now and then the last bit
        a = a.at[..., half : 2 * half].set(_negated(a[..., :half], spec.a) ^ noise)
        b = b.at[:, half : 2 * half].set(b[:, :half])
    return a, b, c


def _random(key: jax.Array, shape: tuple[int, ...], f: Format, kind: str) -> jax.Array:
    x = jax.random.bits(key, shape, f.word)
    if kind == "bits" or f.is_integer:
        return x
    low, high = (0, 4) if kind == "bottom" else (max(f.bias - 3, 0), f.bias + 4)
    field = jax.random.randint(jax.random.fold_in(key, 1), shape, low, high).astype(f.word)
    place = f.mantissa_bits + f.unused
    return (x & f.word(~(((1 << f.exponent_bits) - 1) << place) % (1 << f.width))) | (field << f.word(place))


def _negated(x: jax.Array, f: Format) -> jax.Array:
    return x ^ f.word(1 << (f.exponent_bits + f.mantissa_bits + f.unused))
