"""Elementwise arithmetic of multiple doubles: primitives on tuples of limbs, one compiled call an operation.

    x = (x0, x1, ..., x[L-1])    float64 arrays of one shape, leading limb first; the value is their sum

Operands may have different numbers of limbs, 1 to 16 each, and need not be normalized; results are canonical: each
limb is the rest rounded to double, ties to even. Below, u = 2^-53 and L = `limbs`, the limb count of the result. Inf
and nan sit in the leading limb with +0 in the others, −0 is (−0, +0, ...), and results follow IEEE 754 in every
combination; a result too large for a double is inf. `add` and `mul` commute bit for bit; CPU and GPU give the same
bits.

Tangents and cotangents are multiple doubles too, so derivatives are as accurate as values, with one exception: where a
value is used twice, JAX adds the two cotangents limb by limb, which is accurate to a double only. `copies` is the
remedy. Calls with the same operand twice, `mul(x, x)`, apply it by themselves, and so do the rules here.

Accuracy bounds hold while all limbs of operands and result are normal numbers (|value| above about 2^(53 L − 1022));
below, the low limbs lose their bits under 2^-1074.

The linear structure, sums, copies and broadcasting, is in `_linear.py`; its functions are taken from here.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxmd import _ffi
from jaxmd._linear import (
    add_many,
    broadcast_to,
    copies,
    from_float64,
    neg,
    pad,
    reduce_sum,
    renormalize,
    resize,
    sum_terms,
    to_float64,
)
from jaxmd._primitive import (
    Number,
    Numbers,
    Primitive,
    bind,
    define,
    is_linear,
    like_operands,
    naming,
    same_shape,
)

__all__ = [
    "add",
    "add_many",
    "broadcast_to",
    "copies",
    "div",
    "from_float64",
    "mul",
    "neg",
    "pad",
    "reduce_sum",
    "renormalize",
    "resize",
    "scale",
    "sqrt",
    "sub",
    "to_float64",
    "two_prod",
    "two_sum",
]

# add, mul, div: one handler each, two numbers of any limb counts.


def _binary_attrs(*, counts: tuple[int, ...], limbs: int) -> dict[str, int]:
    return {"lhs_limbs": counts[0]}


def _add_jvp(numbers: Numbers, tangents: Numbers, *, limbs: int) -> tuple[Numbers, Numbers]:
    x, y = numbers
    return [add(x, y, limbs)], [sum_terms(tangents, limbs)]


def _add_transpose(cotangents: Numbers, numbers: Numbers, *, limbs: int) -> Numbers:
    return copies(resize(cotangents[0], limbs), 2)


add_p = define(
    "add",
    shape_rule=like_operands("add"),
    lowering=_ffi.lowering("jaxmd_add", attrs=_binary_attrs, elementwise=True),
    jvp=_add_jvp,
    transpose=_add_transpose,
    resize=resize,
)


def add(x: Number, y: Number, limbs: int) -> Number:
    """x + y in `limbs` limbs; x + y and y + x agree bit for bit.

    Args:
        x, y: tuples of arrays [...], of any limb counts.
    Accuracy:
        Correctly rounded, whatever cancels: x1 = RN(x + y), x2 = RN(x + y − x1), ...; |error| ≤ u^L·|x + y|. No loss
        to underflow.
    Raises:
        ValueError: shapes differ (use `broadcast_to` first). TypeError: a limb is not float64, or x64 is off.
    """
    return bind(add_p, _distinct(x, y), limbs)[0]


def sub(x: Number, y: Number, limbs: int) -> Number:
    """x − y; accuracy and limits of `add`."""
    return add(x, neg(y), limbs)


def _mul_jvp(numbers: Numbers, tangents: Numbers, *, limbs: int) -> tuple[Numbers, Numbers]:
    (x, x_again), (y, y_again) = copies(numbers[0], 2), copies(numbers[1], 2)
    dx, dy = tangents
    terms = [mul(dx, y_again, limbs) if dx else (), mul(x_again, dy, limbs) if dy else ()]
    return [mul(x, y, limbs)], [sum_terms(terms, limbs)]


def _mul_transpose(cotangents: Numbers, numbers: Numbers, *, limbs: int) -> list[Number | None]:
    x, y = numbers
    if is_linear(x):
        return [mul(cotangents[0], y, limbs), None]
    return [None, mul(x, cotangents[0], limbs)]


mul_p = define(
    "mul",
    shape_rule=like_operands("mul"),
    lowering=_ffi.lowering("jaxmd_mul", attrs=_binary_attrs, elementwise=True),
    jvp=_mul_jvp,
    transpose=_mul_transpose,
    resize=resize,
)


def mul(x: Number, y: Number, limbs: int) -> Number:
    """x·y in `limbs` limbs; x·y and y·x agree bit for bit.

    Args:
        x, y: tuples of arrays [...], of any limb counts.
    Accuracy:
        |error| ≤ 1.01 u^L·|x·y|.
    Raises:
        ValueError: shapes differ (use `broadcast_to` first). TypeError: a limb is not float64, or x64 is off.
    """
    return bind(mul_p, _distinct(x, y), limbs)[0]


def _div_jvp(numbers: Numbers, tangents: Numbers, *, limbs: int) -> tuple[Numbers, Numbers]:
    x, (y, y_again) = numbers[0], copies(numbers[1], 2)
    dx, dy = tangents
    quotient, quotient_again = copies(div(x, y, limbs), 2)
    terms = [dx, neg(mul(quotient_again, dy, limbs)) if dy else ()]
    return [quotient], [div(sum_terms(terms, limbs), y_again, limbs)]


def _div_transpose(cotangents: Numbers, numbers: Numbers, *, limbs: int) -> list[Number | None]:
    return [div(cotangents[0], numbers[1], limbs), None]


div_p = define(
    "div",
    shape_rule=like_operands("div"),
    lowering=_ffi.lowering("jaxmd_div", attrs=_binary_attrs, elementwise=True),
    jvp=_div_jvp,
    transpose=_div_transpose,
    resize=resize,
)


def div(x: Number, y: Number, limbs: int) -> Number:
    """x / y in `limbs` limbs.

    Args:
        x, y: tuples of arrays [...], of any limb counts.
    Accuracy:
        |error| ≤ 1.01 u^L·|x / y|.
    Raises:
        ValueError: shapes differ (use `broadcast_to` first). TypeError: a limb is not float64, or x64 is off.
    """
    return bind(div_p, _distinct(x, y), limbs)[0]


def _distinct(x: Number, y: Number) -> Numbers:
    """x and y, as two copies where they are one traced number, so that its cotangents meet in a sum of ours."""
    if len(x) == len(y) and all(a is b and isinstance(a, jax.core.Tracer) for a, b in zip(x, y, strict=True)):
        return copies(x, 2)
    return [x, y]


# sqrt


def _sqrt_jvp(numbers: Numbers, tangents: Numbers, *, limbs: int) -> tuple[Numbers, Numbers]:
    root, *twice = copies(sqrt(numbers[0], limbs), 3)
    return [root], [div(tangents[0], add_many(twice, limbs), limbs)]


sqrt_p = define(
    "sqrt",
    shape_rule=like_operands("sqrt"),
    lowering=_ffi.lowering("jaxmd_sqrt", elementwise=True),
    jvp=_sqrt_jvp,
    resize=resize,
)


def sqrt(x: Number, limbs: int) -> Number:
    """√x in `limbs` limbs; nan for x < 0, −0 for −0.

    Accuracy:
        |error| ≤ 1.01 u^L·√x.
    """
    return bind(sqrt_p, [x], limbs)[0]


# scale


def _scale_jvp(numbers: Numbers, tangents: Numbers, *, limbs: int) -> tuple[Numbers, Numbers]:
    (x, (exponent,)), (dx, _) = numbers, tangents
    return [scale(x, exponent)], [scale(dx, exponent)]


def _scale_transpose(cotangents: Numbers, numbers: Numbers, *, limbs: int) -> list[Number | None]:
    return [scale(cotangents[0], numbers[1][0]), None]


scale_p = define(
    "scale",
    shape_rule=like_operands("scale", (jnp.float64, jnp.int32)),
    lowering=_ffi.lowering("jaxmd_scale", elementwise=True),
    jvp=_scale_jvp,
    transpose=_scale_transpose,
    resize=resize,
)


def scale(x: Number, exponent: Any) -> Number:
    """x·2^exponent, in canonical limbs, as many as x has.

    Args:
        x: tuple of arrays [...].
        exponent: int32 array [...] of any values.
    Accuracy:
        Exact, except that what falls below 2^-1074 is rounded off, and that overflow gives ±inf, +0, ....
    """
    return bind(scale_p, [x, (exponent,)], len(x))[0]


# two_sum, two_prod: error-free transformations of float64 arrays.


def _pair_shape_rule(name: str) -> Any:
    def rule(*avals: Any, counts: tuple[int, ...], limbs: int) -> list[Any]:
        return [same_shape(name, avals, counts)] * 2

    return rule


def _two_sum_jvp(numbers: Numbers, tangents: Numbers, *, limbs: int) -> tuple[Numbers, Numbers]:
    (a,), (b,) = numbers
    tangent = [t for (t,) in filter(None, tangents)]
    return [(r,) for r in two_sum(a, b)], [(sum(tangent[1:], tangent[0]),), ()]


two_sum_p = define(
    "two_sum",
    shape_rule=_pair_shape_rule("two_sum"),
    lowering=_ffi.lowering("jaxmd_two_sum", elementwise=True),
    jvp=_two_sum_jvp,
    resize=resize,
)


def two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """The float64 sum and its rounding error: s = RN(a + b), s + e = a + b exactly.

    Unlike the same formulas written in jax.numpy, it is exact under jit, vmap and scan on every backend: no compiler
    sees the additions.

    Args:
        a, b: float64 arrays that broadcast.
    Returns:
        (s, e), float64 arrays of the common shape.
    Accuracy:
        Exact, subnormals included, unless s overflows; then e is 0.
    Limits:
        Derivatives are those of float64 functions: s has the derivative of a + b, and e, a rounding error, has zero.
        To differentiate to more digits make numbers first: `add` of `from_float64(a)` and `from_float64(b)`.
    Source:
        D. E. Knuth, The Art of Computer Programming 2, 4.2.2, Theorem B.
    """
    return _pair(two_sum_p, a, b)


def _two_prod_jvp(numbers: Numbers, tangents: Numbers, *, limbs: int) -> tuple[Numbers, Numbers]:
    (a,), (b,) = numbers
    da, db = tangents
    terms = ([da[0] * b] if da else []) + ([a * db[0]] if db else [])
    return [(r,) for r in two_prod(a, b)], [(sum(terms[1:], terms[0]),), ()]


two_prod_p = define(
    "two_prod",
    shape_rule=_pair_shape_rule("two_prod"),
    lowering=_ffi.lowering("jaxmd_two_prod", elementwise=True),
    jvp=_two_prod_jvp,
    resize=resize,
)


def two_prod(a: Any, b: Any) -> tuple[Any, Any]:
    """The float64 product and its rounding error: p = RN(a·b), p + e = a·b exactly.

    Args, Returns, and derivatives as in `two_sum` (p has the derivative of a·b, e has zero).

    Accuracy:
        Exact unless p overflows (then e is 0) or the error falls below 2^-1074 (|a·b| below about 2^-968).
    Source:
        T. J. Dekker, A floating-point technique for extending the available precision, 1971; here by one fma.
    """
    return _pair(two_prod_p, a, b)


def _pair(primitive: Primitive, a: Any, b: Any) -> tuple[Any, Any]:
    _ffi.require_x64(f"jaxmd.{primitive.name}")
    with naming(f"jaxmd.{primitive.name}"):
        a, b = jnp.asarray(a), jnp.asarray(b)
        shape = jnp.broadcast_shapes(a.shape, b.shape)
        a, b = jnp.broadcast_to(a, shape), jnp.broadcast_to(b, shape)
    (first,), (second,) = bind(primitive, [(a,), (b,)], 1)
    return first, second
