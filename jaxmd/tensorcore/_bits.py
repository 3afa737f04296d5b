"""Number formats as bit patterns: what a sign, an exponent and a significand mean to a tensor core.

    f16, e5m2 …   s eeeee mmmmmmmmmm      value = (-1)^s m 2^(e - mantissa bits), m an integer
                                          E > 0: m = 2^(mantissa bits) + fraction, e = E - bias
                                          E = 0: m = fraction, e = 1 - bias, not normalised
    tf32          s eeeeeeee mmmmmmmmmm xxxxxxxxxxxxx   a float32 register whose 13 low bits are ignored

Arrays of bits are unsigned integers as wide as the format is stored: uint8, uint16, uint32, uint64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes:
        width: bits that it is stored in.
        exponent_bits, mantissa_bits: of a floating-point format; 0 and the bits of the magnitude for integers.
        specials: "ieee" (Inf and NaN), "nan" (all ones is NaN, no Inf), "none".
        unused: low bits of the register that are ignored.
        signed: False for u8 only.
        dtype: the array type of its values, None where JAX has none.
    """

    name: str
    width: int
    exponent_bits: int
    mantissa_bits: int
    specials: str = "ieee"
    unused: int = 0
    signed: bool = True
    dtype: Any = None

    @property
    def is_integer(self) -> bool:
        return self.exponent_bits == 0

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def min_exponent(self) -> int:
        """Of normal numbers, and of the subnormal ones too."""
        return 1 - self.bias

    @property
    def max_exponent(self) -> int:
        """Of the largest power of two."""
        top = (1 << self.exponent_bits) - 1
        return top - self.bias - (1 if self.specials == "ieee" else 0)

    @property
    def max_value(self) -> Fraction:
        """The largest finite value."""
        if self.is_integer:
            return Fraction((1 << self.mantissa_bits) - 1)
        digits = (2 << self.mantissa_bits) - (2 if self.specials == "nan" else 1)
        return Fraction(digits) * _power(self.max_exponent - self.mantissa_bits)

    @property
    def infinity(self) -> int:
        """The bits of +Inf."""
        return ((1 << self.exponent_bits) - 1) << (self.mantissa_bits + self.unused)

    @property
    def nan(self) -> int:
        """The NaN that tensor cores make: every bit but the sign's; of float64 the sign and the quiet bit."""
        return 0xFFF8 << 48 if self.width == 64 else (1 << (self.width - 1)) - 1

    @property
    def word(self) -> Any:
        """The array type of its bits."""
        return _WORDS[self.width]

    def __repr__(self) -> str:
        return self.name


_WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}

FORMATS: Mapping[str, Format] = {
    f.name: f
    for f in [
        Format("f16", 16, 5, 10, dtype=np.float16),
        Format("bf16", 16, 8, 7, dtype=ml_dtypes.bfloat16),
        Format("tf32", 32, 8, 10, unused=13, dtype=np.float32),
        Format("e4m3", 8, 4, 3, specials="nan", dtype=ml_dtypes.float8_e4m3fn),
        Format("e5m2", 8, 5, 2, dtype=ml_dtypes.float8_e5m2),
        Format("e3m2", 8, 3, 2, specials="none"),  # the six- and four-bit formats lie in the low bits of a byte
        Format("e2m3", 8, 2, 3, specials="none"),
        Format("e2m1", 8, 2, 1, specials="none"),
        Format("f32", 32, 8, 23, dtype=np.float32),
        Format("f64", 64, 11, 52, dtype=np.float64),
        Format("s8", 8, 0, 7, specials="none", dtype=np.int8),
        Format("u8", 8, 0, 8, specials="none", signed=False, dtype=np.uint8),
        Format("s32", 32, 0, 31, specials="none", dtype=np.int32),
    ]
}


def format_of(name: str | Format, who: str) -> Format:
    if isinstance(name, Format):
        return name
    if not isinstance(name, str) or name not in FORMATS:
        raise ValueError(f"{who}: format {name!r} came; wanted one of {', '.join(FORMATS)}.")
    return FORMATS[name]


# --- arrays ----------------------------------------------------------------------------------------------------------


def to_bits(x: Any, format: str | Format) -> Any:
    """The bit patterns of an array of values.

    Args:
        x: array [...] of the format's own type (`jnp.float16`, `ml_dtypes.float8_e4m3fn`, …; float32 for "tf32"), from
            NumPy or JAX.
        format: "f16", "bf16", "tf32", "e4m3", "e5m2", "f32", "f64", "s8", "u8" or "s32".

    Returns: unsigned integers [...] as wide as the format; of NumPy for NumPy, of JAX for JAX.

    Raises: TypeError for any other type: converting rounds, and that is the caller's to choose (`x.astype`).
    """
    who = "jaxmd.tensorcore.to_bits"
    f = format_of(format, who)
    if f.dtype is None or not hasattr(x, "dtype") or x.dtype != f.dtype:
        wanted = "no array type holds it" if f.dtype is None else f"wanted an array of {np.dtype(f.dtype).name}"
        raise TypeError(f"{who}: {getattr(x, 'dtype', type(x).__name__)} came for format {f}; {wanted}.")
    return lax.bitcast_convert_type(x, f.word) if isinstance(x, jax.Array) else np.asarray(x).view(f.word)


def from_bits(bits: Any, format: str | Format) -> Any:
    """The values of an array of bit patterns: the inverse of `to_bits`.

    Args:
        bits: unsigned integers [...] as wide as the format, from NumPy or JAX.
        format: as for `to_bits`.

    Returns: array [...] of the format's own type.
    """
    who = "jaxmd.tensorcore.from_bits"
    f = format_of(format, who)
    if f.dtype is None or not hasattr(bits, "dtype") or bits.dtype != f.word:
        wanted = "no array type holds it" if f.dtype is None else f"wanted bits of type {np.dtype(f.word).name}"
        raise TypeError(f"{who}: {getattr(bits, 'dtype', type(bits).__name__)} came for format {f}; {wanted}.")
    return lax.bitcast_convert_type(bits, f.dtype) if isinstance(bits, jax.Array) else np.asarray(bits).view(f.dtype)


def require_x64(f: Format, who: str) -> None:
    if f.width == 64 and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise TypeError(
            f'{who}: {f} needs uint64 but jax_enable_x64 is off; call jax.config.update("jax_enable_x64", True) first.'
        )


def as_array(x: Any, who: str, name: str) -> jax.Array:
    """x as JAX takes it, or an error that says what came."""
    try:
        return jnp.asarray(x)
    except (TypeError, ValueError):
        kind = f"an array of {x.dtype}" if isinstance(x, np.ndarray) else type(x).__name__
        raise TypeError(f"{who}: {name} is {kind}; an array of bits was wanted (see `to_bits`).") from None


def words(x: Any, f: Format, who: str, name: str) -> jax.Array:
    """Bits as the model takes them: uint32, or uint64 for f64."""
    require_x64(f, who)
    x = as_array(x, who, name)
    if x.dtype not in (f.word, np.dtype(f.word.__name__[1:])):
        raise TypeError(
            f"{who}: {name} has type {x.dtype}; wanted bits of {f}, {np.dtype(f.word).name} (see `to_bits`)."
        )
    return lax.bitcast_convert_type(x, f.word).astype(np.uint64 if f.width == 64 else np.uint32)


class Decoded(NamedTuple):
    """Numbers in parts, all of one shape: value (-1)^negative · magnitude · 2^(exponent - mantissa bits).

    magnitude is 0 for Inf and NaN; exponent is that of the format's subnormal numbers for zeros.
    """

    negative: jax.Array
    magnitude: jax.Array
    exponent: jax.Array
    infinite: jax.Array
    nan: jax.Array

    def map(self, function: Any) -> Decoded:
        return Decoded(*(function(x) for x in self))


def decode(x: jax.Array, f: Format) -> Decoded:
    """Words of a floating-point format in parts."""
    total = 1 + f.exponent_bits + f.mantissa_bits
    x = x >> f.unused
    fraction = x & ((1 << f.mantissa_bits) - 1)
    field = (x >> f.mantissa_bits) & ((1 << f.exponent_bits) - 1)
    top = field == (1 << f.exponent_bits) - 1
    nowhere = jnp.zeros(x.shape, bool)
    infinite = top & (fraction == 0) if f.specials == "ieee" else nowhere
    nan = {
        "ieee": top & (fraction != 0),
        "nan": top & (fraction == (1 << f.mantissa_bits) - 1),
        "none": nowhere,
    }[f.specials]
    implicit = jnp.where(field == 0, 0, 1 << f.mantissa_bits).astype(x.dtype)
    return Decoded(
        negative=(x >> (total - 1)) & 1 != 0,
        magnitude=jnp.where(infinite | nan, 0, fraction | implicit).astype(x.dtype),
        exponent=jnp.where(field == 0, 1, field).astype(np.int32) - f.bias,
        infinite=infinite,
        nan=nan,
    )


# --- single numbers, exactly -----------------------------------------------------------------------------------------


def _power(e: int) -> Fraction:
    return Fraction(1 << e) if e >= 0 else Fraction(1, 1 << -e)


def value_of(bits: int, format: str | Format) -> Fraction | float:
    """The exact value of one bit pattern: a Fraction, or float inf, -inf, nan. Both zeros are Fraction(0)."""
    who = "jaxmd.tensorcore.value_of"
    f = format_of(format, who)
    if isinstance(bits, bool) or not hasattr(bits, "__index__") or np.ndim(bits):
        raise TypeError(f"{who}: bits is {type(bits).__name__}; one integer was wanted.")
    bits = int(bits)
    if not 0 <= bits < 1 << f.width:
        raise ValueError(f"{who}: bits is {bits}; {f} has {f.width} bits, 0 to {(1 << f.width) - 1}.")
    if f.is_integer:
        return Fraction(bits - (1 << f.width) if f.signed and bits >> (f.width - 1) else bits)
    x = bits >> f.unused
    fraction, field = x & ((1 << f.mantissa_bits) - 1), x >> f.mantissa_bits & ((1 << f.exponent_bits) - 1)
    sign = -1 if x >> (f.exponent_bits + f.mantissa_bits) & 1 else 1
    if field == (1 << f.exponent_bits) - 1:
        if f.specials == "ieee":
            return math.nan if fraction else sign * math.inf
        if f.specials == "nan" and fraction == (1 << f.mantissa_bits) - 1:
            return math.nan
    magnitude = fraction | (1 << f.mantissa_bits if field else 0)
    return sign * magnitude * _power(max(field, 1) - f.bias - f.mantissa_bits)


def bits_of(value: int | float | Fraction, format: str | Format) -> int:
    """The bit pattern of one value that the format holds exactly.

    Raises: ValueError where it does not hold the value: nothing is rounded here.
    """
    who = "jaxmd.tensorcore.bits_of"
    f = format_of(format, who)
    if isinstance(value, float) and not math.isfinite(value):
        if f.is_integer or f.specials == "none" or (math.isinf(value) and f.specials == "nan"):
            raise ValueError(f"{who}: {value} came; {f} has no such value.")
        sign = 1 << (f.exponent_bits + f.mantissa_bits + f.unused) if value < 0 else 0
        return sign | (f.infinity if math.isinf(value) else f.nan)
    try:
        exact = Fraction("" if isinstance(value, str) else value)
    except (TypeError, ValueError):
        raise TypeError(f"{who}: value is {type(value).__name__}; an int, a float or a Fraction was wanted.") from None
    if f.is_integer:
        low = -(1 << f.mantissa_bits) if f.signed else 0
        if exact.denominator != 1 or not low <= exact < 1 << f.mantissa_bits:
            raise ValueError(f"{who}: {value} came; {f} does not hold it.")
        return int(exact) & ((1 << f.width) - 1)
    negative = math.copysign(1.0, value) < 0 if isinstance(value, float) else exact < 0
    size = abs(exact)
    e = max(floor_log2(size), f.min_exponent) if size else f.min_exponent
    magnitude = size * _power(f.mantissa_bits - e)
    if magnitude.denominator != 1 or size > f.max_value:
        raise ValueError(f"{who}: {value} came; {f} does not hold it.")
    field = (e - f.min_exponent << f.mantissa_bits) + int(magnitude)
    return (field | int(negative) << (f.exponent_bits + f.mantissa_bits)) << f.unused


def floor_log2(x: Fraction) -> int:
    """The e with 2^e <= x < 2^(e+1), of x > 0."""
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if x >= _power(e) else e - 1
