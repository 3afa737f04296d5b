"""The model against the GPU at hand, on random bits: how many outputs differ, and the first of them.

bits      every bit at random: mostly NaN and Inf in narrow formats, wildly different sizes in wide ones
near      exponents within three of the bias: sums that need every rule of the cut and of the rounding
bottom    exponents among the four lowest, subnormal numbers included
sub       one factor subnormal, the other of every size: products whose exponent is not that of their first bit
cancel    as near, but the second half of the products nearly takes back the first
specials  as near, but 1 in 4, 16, 64 or 256 entries is a NaN (quiet or not), Inf or zero, of either sign
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._bits import Format, require_x64
from ._chain import mma
from ._issue import COLUMNS, issue, rows
from ._specs import Spec, check_spec

KINDS = ("bits", "near", "bottom", "sub", "cancel", "specials")
_BITS, _, _BOTTOM, _SUB, _CANCEL, _SPECIALS = range(len(KINDS))
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
    """What `verify` counted: outputs compared, those that differ, and the first few of these."""

    outputs: int
    mismatches: int
    first: tuple[Difference, ...]


def verify(spec: Spec, kind: str = "bits", *, outputs: int = 1_000_000, seed: int = 0, **options: Any) -> Verdict:
    """Issues the instruction on random bits and compares every output with the model's.

    Args:
        spec: the instruction; integers know the kind "bits" only.
        kind: "bits", "near", "bottom", "sub", "cancel" or "specials" (see the module's text).
        outputs: at least so many are compared.
        options: of `issue`: a_from, accumulate, negate_a.

    Returns: a `Verdict`; NaNs of other bits differ too.

    Raises: as `issue`.
    """
    check_spec("jaxmd.tensorcore.verify", spec)
    if kind not in KINDS or (spec.operation == "integer" and kind != "bits"):
        raise ValueError(f"jaxmd.tensorcore.verify: kind {kind!r} came for {spec.instruction}; see its documentation.")
    require_x64(spec.d, "jaxmd.tensorcore.verify")
    m = rows(spec)
    cases = -(-outputs // (m * COLUMNS))
    a, b, c = random_operands(spec, kind, (cases, m, COLUMNS), seed)
    got = issue(a, b, c, spec, **options)
    start = c if options.get("accumulate", True) else jnp.zeros_like(c)
    factor = _negated(a, spec.a) if options.get("negate_a", False) else a
    wanted = _model(factor, b, start, spec)
    differs = np.argwhere(np.asarray(got != wanted))
    first = tuple(
        Difference(
            tuple(int(x) for x in np.asarray(a[t, i])),
            tuple(int(x) for x in np.asarray(b[t, :, j])),
            *(int(x[t, i, j]) for x in (c, got, wanted)),
        )
        for t, i, j in differs[:_LISTED].tolist()
    )
    return Verdict(got.size, len(differs), first)


_model = jax.jit(mma, static_argnums=3)


def random_operands(spec: Spec, kind: str, shape: tuple[int, int, int], seed: int) -> tuple[jax.Array, ...]:
    """Bits a [cases, m, k], b [cases, k, n] and c [cases, m, n] of one kind, from shape (cases, m, n)."""
    return _operands(spec, shape, KINDS.index(kind), seed)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _operands(spec: Spec, shape: tuple[int, int, int], kind: jax.Array, seed: jax.Array) -> tuple[jax.Array, ...]:
    """One program for every kind: compiling the generators takes longer than running them."""
    cases, m, n = shape
    keys = jax.random.split(jax.random.key(seed), 4)
    a = _random(keys[0], (cases, m, spec.k), spec.a, kind)
    b = _random(keys[1], (cases, spec.k, n), spec.b, kind, second=True)
    c = _random(keys[2], (cases, m, n), spec.c, jnp.where(kind == _SUB, _BOTTOM, kind))
    if spec.operation == "integer":
        return a, b, c
    half = spec.k // 2
    flips = jax.random.bits(keys[3], (cases, m, half), spec.a.word) & jax.random.bits(keys[0], (), spec.a.word)
    noise = flips & spec.a.word(1 << spec.a.unused)  # now and then the last bit
    back = a.at[..., half : 2 * half].set(_negated(a[..., :half], spec.a) ^ noise)
    again = b.at[:, half : 2 * half].set(b[:, :half])
    cancel = kind == _CANCEL
    return jnp.where(cancel, back, a), jnp.where(cancel, again, b), c


def _random(key: jax.Array, shape: tuple[int, ...], f: Format, kind: jax.Array, second: bool = False) -> jax.Array:
    """Bits of one operand; `second`: the factor that is subnormal where the other is not."""
    x = jax.random.bits(key, shape, f.word)
    if f.is_integer:
        return x
    case = jnp.arange(shape[0])[:, None, None]
    top = (1 << f.exponent_bits) - 1
    low = jnp.where((kind == _BOTTOM) | (kind == _SUB), 0, max(f.bias - 3, 0))
    high = jnp.where(kind == _SUB, jnp.where(case % 2 == int(second), 1, top), f.bias + 4)
    high = jnp.where(kind == _BOTTOM, 4, high)
    field = jax.random.randint(jax.random.fold_in(key, 1), shape, low, high).astype(f.word)
    place = f.mantissa_bits + f.unused
    chosen = (x & f.word(~(top << place) % (1 << f.width))) | (field << f.word(place))
    sign, infinity = chosen & f.word(1 << (f.exponent_bits + place)), f.word(f.infinity)
    which = jax.random.bits(jax.random.fold_in(key, 2), shape, np.uint8) % 4
    special = jnp.where(which < 2, chosen | infinity, jnp.where(which == 2, sign | infinity, sign))
    share = jnp.asarray([1 / 4, 1 / 16, 1 / 64, 1 / 256], np.float32)[case % 4]
    here = jax.random.uniform(jax.random.fold_in(key, 3), shape, np.float32) < share
    chosen = jnp.where(here & (kind == _SPECIALS), special, chosen)
    return jnp.where(kind == _BITS, x, chosen)


def _negated(x: jax.Array, f: Format) -> jax.Array:
    return x ^ f.word(1 << (f.exponent_bits + f.mantissa_bits + f.unused))
