"""One fused step d = ρ(c + Σ_l a_l b_l), in 32-bit integer arithmetic.

    products  m_l = m_a m_b with exponent e_l = e_a + e_b, exact and not normalised: m_l 2^-f_l lies in [0, 4)
    e_max     the largest of e_l and e_c, at least the zero exponent
    terms     m_l moved to F fraction bits below e_max; the bits that fall off are cut, toward zero
    sum       exact: magnitudes of one sign stay below 4 (L + 1/2) 2^F, and below 2^32 for every spec in the table
    ρ         one rounding to the output's format; a zero is +0; too large is Inf even where ρ rounds toward zero

Inf times zero, Inf minus Inf and any NaN give the NaN of all ones; subnormal numbers come and go like any other.

Source: the "T-FDPA" of MMA-Sim (arXiv:2511.10909). Ours never widens: magnitudes by sign instead of a signed sum.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._bits import Decoded, Format
from ._specs import Rounding

_NOWHERE = -4096  # the exponent of a zero: below every sum of two exponents


def lower_zeros(x: Decoded) -> Decoded:
    """Gives zeros (Inf and NaN among them) an exponent that never is the largest."""
    return x._replace(exponent=jnp.where(x.magnitude == 0, _NOWHERE, x.exponent))


def fused_step(
    a: Decoded,
    b: Decoded,
    c: Decoded,
    formats: tuple[Format, Format, Format],
    fraction_bits: int,
    zero_exponent: int,
    rounding: Rounding,
) -> tuple[jax.Array, jax.Array]:
    """One step.

    Args:
        a, b: the factors [L, ...], after `lower_zeros`; all axes but the first broadcast to c's.
        c: the accumulator [...], after `lower_zeros`.
        formats: of a, b and c.
        fraction_bits, zero_exponent: F and what e_max is at least.

    Returns: (uint32 [...] bits, bool [...] whether nothing was cut or rounded off).
    """
    fa, fb, fc = formats
    exponent = a.exponent + b.exponent
    e_max = jnp.maximum(jnp.max(exponent, axis=0), jnp.maximum(c.exponent, zero_exponent))
    bottom = e_max - fraction_bits  # of a unit of the sum
    shift = exponent - (fa.mantissa_bits + fb.mantissa_bits) - bottom[None]
    terms, kept = _align(a.magnitude * b.magnitude, shift)
    first, first_kept = _align(c.magnitude, c.exponent - fc.mantissa_bits - bottom)
    total = jnp.sum(terms, axis=0, dtype=np.uint32) + first  # of magnitudes
    minus = jnp.sum(jnp.where(a.negative ^ b.negative, terms, jnp.uint32(0)), axis=0, dtype=np.uint32)
    minus = minus + jnp.where(c.negative, first, jnp.uint32(0))
    plus = total - minus  # modulo 2^32, as total was
    negative = minus > plus
    size = jnp.where(negative, minus - plus, plus - minus)
    bits, fits = _round(size, negative, bottom, rounding)
    nan, infinity = lax.cond(_any_special(a, b, c), _specials, _no_specials, a, b, c)
    sign = jnp.uint32(1 << (rounding.format.width - 1))
    bits = jnp.where(infinity > 0, jnp.uint32(rounding.format.infinity), bits)
    bits = jnp.where(infinity < 0, jnp.uint32(rounding.format.infinity) | sign, bits)
    bits = jnp.where(nan, jnp.uint32(rounding.format.nan), bits)
    return bits, jnp.all(kept, axis=0) & first_kept & fits & ~nan & (infinity == 0)


def _align(magnitude: jax.Array, shift: jax.Array) -> tuple[jax.Array, jax.Array]:
    """magnitude·2^shift cut to an integer, and whether no bit was lost."""
    right, left = jnp.clip(-shift, 0, 31).astype(np.uint32), jnp.clip(shift, 0, 31).astype(np.uint32)
    moved = magnitude << left
    term = moved >> right
    return term, (term << right) == moved


def _round(size: jax.Array, negative: jax.Array, bottom: jax.Array, r: Rounding) -> tuple[jax.Array, jax.Array]:
    """Bits of ±size·2^bottom rounded by `r`, and whether that was exact."""
    f, p = r.format, r.fraction_bits
    top = 31 - lax.clz(size).astype(np.int32)
    exponent = jnp.maximum(bottom + top, f.min_exponent)
    shift = exponent - p - bottom
    right, left = jnp.clip(shift, 0, 31).astype(np.uint32), jnp.clip(-shift, 0, 31).astype(np.uint32)
    kept = (size >> right) << left
    rest = size - ((size >> right) << right)
    if r.nearest:
        half = (jnp.uint32(1) << right) >> 1
        kept = kept + ((rest > half) | ((rest == half) & (kept & 1 != 0) & (half != 0))).astype(np.uint32)
    # kept has the implicit bit unless subnormal; a carry into the next exponent comes out right by itself.
    field = jnp.clip(exponent - f.min_exponent, 0, 1 << f.exponent_bits).astype(np.uint32)
    bits = ((field << p) + kept) << (f.mantissa_bits - p)
    overflow = (size != 0) & ((bits >= f.infinity) | (exponent > f.max_exponent))
    bits = jnp.where(overflow, jnp.uint32(f.infinity), jnp.where(size == 0, jnp.uint32(0), bits))
    bits = jnp.where(negative & (bits != 0), bits | jnp.uint32(1 << (f.width - 1)), bits)
    return bits, (rest == 0) & ~overflow


# --- Inf and NaN -----------------------------------------------------------------------------------------------------


def _any_special(*operands: Decoded) -> jax.Array:
    found = jnp.bool_(False)
    for x in operands:
        found = found | jnp.any(x.infinite | x.nan)
    return found


def _no_specials(a: Decoded, b: Decoded, c: Decoded) -> tuple[jax.Array, jax.Array]:
    return jnp.zeros(c.nan.shape, bool), jnp.zeros(c.nan.shape, np.int32)


def _specials(a: Decoded, b: Decoded, c: Decoded) -> tuple[jax.Array, jax.Array]:
    """Whether the sum is NaN, and the sign of the Inf it is otherwise (0: it is finite)."""
    zero_a, zero_b = (~x.infinite & ~x.nan & (x.magnitude == 0) for x in (a, b))
    infinite, negative = a.infinite | b.infinite, a.negative ^ b.negative
    bad = a.nan | b.nan | (a.infinite & zero_b) | (zero_a & b.infinite)
    plus = jnp.any(infinite & ~negative, axis=0) | (c.infinite & ~c.negative)
    minus = jnp.any(infinite & negative, axis=0) | (c.infinite & c.negative)
    nan = jnp.any(bad, axis=0) | c.nan | (plus & minus)
    return nan, plus.astype(np.int32) - minus.astype(np.int32)


# --- c + d, rounded to nearest ---------------------------------------------------------------------------------------


def add_nearest(x: Decoded, y: Decoded, r: Rounding) -> jax.Array:
    """Bits of RN(x + y) in a format of at most 24 significant bits, as IEEE 754 has it; NaNs are the one of all ones.

    Both magnitudes move to 29 bits; that of the smaller exponent then moves right with a sticky bit. Where more than
    one bit cancels the exponents differ by at most one, and nothing was lost.
    """
    f = r.format
    parts = []
    for v in (x, y):
        lead = jnp.minimum(lax.clz(v.magnitude).astype(np.int32) - 3, 28)
        unit = jnp.where(v.magnitude == 0, _NOWHERE, v.exponent - f.mantissa_bits - lead)
        parts.append((v.magnitude << jnp.maximum(lead, 0).astype(np.uint32), unit))
    (mx, ex), (my, ey) = parts
    bottom = jnp.maximum(jnp.maximum(ex, ey), f.min_exponent - f.mantissa_bits - 29)
    mx, my = _jam(mx, bottom - ex), _jam(my, bottom - ey)
    same = x.negative == y.negative
    negative = jnp.where(mx >= my, x.negative, y.negative)
    size = jnp.where(same, mx + my, jnp.where(mx >= my, mx - my, my - mx))
    bits, _ = _round(size, negative, bottom, r)
    sign = jnp.uint32(1 << (f.width - 1))
    bits = jnp.where((size == 0) & x.negative & y.negative, sign, bits)
    bits = jnp.where((size != 0) & negative, bits | sign, bits)
    for v in (x, y):
        infinity = jnp.where(v.negative, jnp.uint32(f.infinity) | sign, jnp.uint32(f.infinity))
        bits = jnp.where(v.infinite, infinity, bits)
    nan = x.nan | y.nan | (x.infinite & y.infinite & ~same)
    return jnp.where(nan, jnp.uint32(f.nan), bits)


def _jam(magnitude: jax.Array, right: jax.Array) -> jax.Array:
    """magnitude >> right, its last bit set where a bit fell off."""
    right = jnp.minimum(right, 31).astype(np.uint32)
    kept = magnitude >> right
    return kept | ((kept << right) != magnitude).astype(np.uint32)
