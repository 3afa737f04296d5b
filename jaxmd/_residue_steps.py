"""The three steps of a product in residues, each a primitive, and `multiply`, all of them:

    encode    limbs [..., r, k] or [..., k, r], grid -> int8 [G, ..., r, k']        residues mod every modulus
    product   int8 [G, ..., m, k'], int8 [G, ..., n, k'] -> int8 [R, ..., m, n]     sum_l a_il b_jl mod every modulus
    decode    residues, grid -> limbs [..., m, n]                                   Chinese remainders, one rounding

G channels, R bytes of residues (`_residues`); k' is k rounded up to a multiple of 16 with zeros, and both operands hold
it last, as tensor cores want them. Every step is exact or canonically rounded, so all lowerings give the same bits. The
default lowerings are plain JAX; compiled handlers replace them where they win.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad, batching, mlir

from . import _ffi, _residue_tables, _residues
from ._primitive import Primitive, batch_size, to_front
from ._residues import Plan

K_MULTIPLE = 16  # of the padded length k': a row of int8 then starts on 16 bytes

Limbs = tuple[jax.Array, ...]
Shifts = tuple[jax.Array, jax.Array]


def _primitive(
    name: str,
    shape_rule: Callable[..., list[Any]],
    function: Callable[..., Sequence[jax.Array]],
    handler: Callable[..., Sequence[jax.Array]],
    batch: Callable[..., Any],
    cuda: Callable[..., Sequence[jax.Array]] | None = None,
) -> Primitive:
    """A primitive of many results: `function` lowers it everywhere, but `handler` where one is compiled and wins.

    cuda: the handler there, where its operands are others.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_abstract_eval(shape_rule)
    primitive.def_impl(lambda *args, **params: jax.jit(lambda *x: primitive.bind(*x, **params))(*args))
    everywhere = mlir.lower_fun(function, multiple_results=True)

    def on(platform: str) -> Callable[..., Any]:
        compiled = mlir.lower_fun(cuda if cuda and platform == "cuda" else handler, multiple_results=True)

        def lower(ctx: Any, *args: Any, **params: Any) -> Any:
            return (compiled if _takes_handler(platform) else everywhere)(ctx, *args, **params)

        return lower

    mlir.register_lowering(primitive, everywhere)
    for platform in ("cpu", "cuda"):
        mlir.register_lowering(primitive, on(platform), platform=platform)
    batching.primitive_batchers[primitive] = batch
    return primitive


def _takes_handler(platform: str) -> bool:
    return platform == "cpu" or _ffi.calls_cuda()


SMALL = 2**24
"""Bytes of results for which writing zeros first costs nothing."""


def unwritten(shape: Sequence[int], count: int) -> Limbs:
    """float64 arrays for a loop that writes every entry before one is read: on CUDA, if large, whatever is there.

    XLA may copy them before they are full; small ones are zeros, so that checkers of memory find nothing.
    """
    zeros = lambda: (jnp.zeros(shape, jnp.float64),) * count
    if not _ffi.calls_cuda() or 8 * count * math.prod(shape) <= SMALL:
        return zeros()
    out = [jax.ShapeDtypeStruct(tuple(shape), jnp.float64)] * count
    return lax.platform_dependent(cuda=lambda: tuple(_ffi.call("jaxmd_uninitialized", out)), default=zeros)


def _shapes(shape: Sequence[Any], *types: Any) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct((int(count), *shape), dtype) for count, dtype in types]


# --- encode ----------------------------------------------------------------------------------------------------------


def encode(limbs: Limbs, exponent: jax.Array, shift: jax.Array, plan: Plan, side: int) -> jax.Array:
    """Residues of round(x 2^(w - exponent - shift)) for normalized x.

    Args:
        limbs: float64 [..., r, k] for side 0 (the left operand), [..., k, r] for side 1.
        exponent, shift: int32 [..., r] and [..., k] with |x| < 2^(exponent + shift).

    Returns: int8 [G, ..., r, k'].
    """
    return encode_p.bind(*_ffi.unify((*limbs, exponent, shift)), plan=plan, side=side)[0]


def _encode_shape_rule(*avals: Any, plan: Plan, side: int) -> list[Any]:
    *batch, r, k = avals[0].shape if side == 0 else _swapped(avals[0].shape)
    return [avals[0].update(shape=(plan.channels, *batch, r, _padded(k)), dtype=jnp.int8, weak_type=False)]


def _swapped(shape: Sequence[Any]) -> tuple[Any, ...]:
    return (*shape[:-2], shape[-1], shape[-2])


def _padded(k: int) -> int:
    return -(-k // K_MULTIPLE) * K_MULTIPLE


def _encode_in_jax(*args: jax.Array, plan: Plan, side: int) -> list[jax.Array]:
    *limbs, exponent, shift = args
    if side == 1:
        limbs = [jnp.swapaxes(x, -1, -2) for x in limbs]
    residues = _residues.encode(limbs, exponent[..., :, None] + shift[..., None, :], plan)
    k = limbs[0].shape[-1]
    return [jnp.pad(residues, [(0, 0)] * (residues.ndim - 1) + [(0, _padded(k) - k)])]


def _encode_handler(*args: jax.Array, plan: Plan, side: int) -> list[jax.Array]:
    tables = _residues.encoding(plan)
    *batch, r, k = args[0].shape if side == 0 else _swapped(args[0].shape)
    out = _shapes((*batch, r, _padded(k)), (plan.channels, jnp.int8))
    constants = map(jnp.asarray, (tables.weights, np.array(plan.moduli, np.int32)))
    return _ffi.call("jaxmd_residue_encode", out, *args, *constants, bits=plan.bits, side=side, pairs=len(plan.pairs))


def _encode_batch(args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[list[jax.Array], list[int]]:
    return encode_p.bind(*to_front(args, dims, batch_size(args, dims)), **params), [1]


def _encode_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[list[Any], list[Any]]:
    """Integers do not vary."""
    out = encode_p.bind(*primals, **params)
    return out, [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in out]


encode_p = _primitive(
    "jaxmd_residue_encode",
    _encode_shape_rule,
    _encode_in_jax,
    _encode_handler,
    _encode_batch,
)
ad.primitive_jvps[encode_p] = _encode_jvp

# --- product ---------------------------------------------------------------------------------------------------------


def product(a: jax.Array, b: jax.Array, plan: Plan) -> jax.Array:
    """Residues of sums over l of X_il Y_lj, or of 1/t of them, centred, from residues of X and Y.

    Args: int8 [G, ..., m, k'] and [G, ..., n, k'].

    Returns: int8 [R, ..., m, n], of the one-digit moduli, then low and high byte of the two-digit ones.
    """
    return product_p.bind(*_ffi.unify((a, b)), plan=plan)[0]


def _product_shape_rule(a: Any, b: Any, *, plan: Plan) -> list[Any]:
    assert a.shape[0] == b.shape[0] == plan.channels and a.shape[1:-2] == b.shape[1:-2] and a.shape[-1] == b.shape[-1]
    return [a.update(shape=(plan.residue_bytes, *a.shape[1:-1], b.shape[-2]), dtype=jnp.int8, weak_type=False)]


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """int8 [..., m, k], [..., n, k] -> int32 [..., m, n]: XLA's product of operands that hold k last; k <= MAX_K."""
    batch = tuple(range(a.ndim - 2))
    contract = ((a.ndim - 1,), (a.ndim - 1,))
    return lax.dot_general(a, b, (contract, (batch, batch)), preferred_element_type=jnp.int32)


def _product_in_jax(a: jax.Array, b: jax.Array, *, plan: Plan) -> list[jax.Array]:
    k, step = a.shape[-1], _residues.MAX_K // K_MULTIPLE * K_MULTIPLE

    def channel(operands: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        x, y, p = operands
        blocks = [_centred(dot(x[..., l : l + step], y[..., l : l + step]), p) for l in range(0, max(k, 1), step)]
        return blocks[0] if len(blocks) == 1 else _centred(sum(blocks[1:], blocks[0]), p)

    def pair(operands: tuple[jax.Array, jax.Array, jax.Array, jax.Array]) -> jax.Array:
        x, y, p, carry = operands
        total = channel((x[0], y[0], p))
        for i in (1, 2):
            total = _centred(channel((x[i], y[i], p)) + _centred(total * carry[i - 1], p), p)
        return total

    ones, shape = len(plan.small), (*a.shape[1:-1], b.shape[-2])
    moduli = jnp.asarray(plan.moduli, jnp.int32)
    small, wide = jnp.zeros((0, *shape), jnp.int32), jnp.zeros((0, *shape), jnp.int32)
    if plan.small:
        small = lax.map(channel, (a[:ones], b[:ones], moduli[:ones]))
    if plan.pairs:
        x, y = (z[ones:].reshape(len(plan.pairs), 3, *z.shape[1:]) for z in (a, b))
        wide = lax.map(pair, (x, y, moduli[ones:], jnp.asarray(plan.carries)))
    return [_in_bytes(small, wide)]


def _centred(x: jax.Array, p: jax.Array) -> jax.Array:
    """int32 x mod p in [-p/2, p/2)."""
    r = lax.rem(x, jnp.broadcast_to(p, x.shape))
    r = jnp.where(2 * r >= p, r - p, r)
    return jnp.where(2 * r < -p, r + p, r)


def _in_bytes(small: jax.Array, wide: jax.Array) -> jax.Array:
    """int8 [R, ...] from int32 residues [n_1, ...] and [n_2, ...]."""
    high = lax.shift_right_arithmetic(wide + 128, jnp.int32(8))
    pairs = jnp.stack([wide - 256 * high, high], axis=1).reshape(-1, *wide.shape[1:])
    return jnp.concatenate([small, pairs]).astype(jnp.int8)


def add(x: jax.Array, y: jax.Array, plan: Plan) -> jax.Array:
    """Residues of the sum of two products, in the form of `product`."""
    ones = len(plan.small)
    moduli = jnp.asarray(plan.moduli, jnp.int32).reshape(-1, *(1,) * (x.ndim - 1))
    total = x.astype(jnp.int32) + y.astype(jnp.int32)
    wide = total[ones::2] + 256 * total[ones + 1 :: 2]
    return _in_bytes(_centred(total[:ones], moduli[:ones]), _centred(wide, moduli[ones:]))


def _product_handler(a: jax.Array, b: jax.Array, *, plan: Plan) -> list[jax.Array]:
    out = _shapes((*a.shape[1:-1], b.shape[-2]), (plan.residue_bytes, jnp.int8))
    return _ffi.call("jaxmd_residue_matmul", out, a, b, *map(jnp.asarray, product_operands(plan)))


def product_operands(plan: Plan) -> list[np.ndarray]:
    """What the handler takes after the factors."""
    return [np.array(plan.moduli, np.int32), plan.carries]


def _product_batch(args: Sequence[Any], dims: Sequence[int | None], *, plan: Plan) -> tuple[list[jax.Array], list[int]]:
    """An unbatched operand is shared: the batch axis of the other folds into its rows."""
    (a, b), (da, db) = args, dims
    if da is not None and db is not None:
        return product_p.bind(jnp.moveaxis(a, da, 1), jnp.moveaxis(b, db, 1), plan=plan), [1]
    shared, folded, dim = (b, a, da) if db is None else (a, b, db)
    assert dim is not None
    folded = jnp.moveaxis(folded, dim, -3)
    *lead, size, rows, k = folded.shape
    folded = folded.reshape(*lead, size * rows, k)
    if db is None:
        out = product_p.bind(folded, shared, plan=plan)
        return [x.reshape(*x.shape[:-2], size, rows, x.shape[-1]) for x in out], [len(lead)]
    out = product_p.bind(shared, folded, plan=plan)
    return [x.reshape(*x.shape[:-1], size, rows) for x in out], [len(lead) + 1]


product_p = _primitive(
    "jaxmd_residue_matmul",
    _product_shape_rule,
    _product_in_jax,
    _product_handler,
    _product_batch,
)

# --- decode ----------------------------------------------------------------------------------------------------------


def decode(residues: jax.Array, row: jax.Array, column: jax.Array, plan: Plan, limbs: int) -> Limbs:
    """The integers behind the residues times 2^(row_i + column_j - 2w), rounded; see `_residues.decode`."""
    return tuple(decode_p.bind(*_ffi.unify((residues, row, column)), plan=plan, limbs=limbs))


def _decode_shape_rule(residues: Any, row: Any, column: Any, *, plan: Plan, limbs: int) -> Any:
    assert residues.shape[0] == plan.residue_bytes
    return [residues.update(shape=residues.shape[1:], dtype=jnp.float64, weak_type=False)] * limbs


def _decode_in_jax(residues: jax.Array, row: jax.Array, column: jax.Array, *, plan: Plan, limbs: int) -> Limbs:
    return _residues.decode(residues, row, column, plan, limbs)


def decode_operands(plan: Plan, platform: str) -> tuple[list[np.ndarray], dict[str, Any]]:
    """What the handler takes after residues, row and column, and its attributes; platform: cpu or cuda."""
    if platform == "cuda":
        tables = _residue_tables.decode_tables(plan)
        return [tables.data], {"bits": plan.bits, "words": tables.words, "raised": tables.raised}
    slices = _residues.decoding(plan)
    return [slices.quotients, slices.slices, slices.product], {"bits": plan.bits, "beta": slices.beta}


def _decode_handler(*args: jax.Array, plan: Plan, limbs: int, platform: str = "cpu") -> Sequence[jax.Array]:
    constants, attributes = decode_operands(plan, platform)
    out = [jax.ShapeDtypeStruct(args[0].shape[1:], jnp.float64)] * limbs
    return _ffi.call("jaxmd_residue_decode", out, *args, *map(jnp.asarray, constants), **attributes)


def _decode_batch(args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> tuple[list[jax.Array], list[int]]:
    residues, row, column = to_front(args, dims, batch_size(args, dims))
    out = decode_p.bind(jnp.moveaxis(residues, 0, 1), row, column, **params)
    return out, [0] * len(out)


decode_p = _primitive(
    "jaxmd_residue_decode",
    _decode_shape_rule,
    _decode_in_jax,
    _decode_handler,
    _decode_batch,
    cuda=functools.partial(_decode_handler, platform="cuda"),
)

# --- all three -------------------------------------------------------------------------------------------------------


def multiply(
    a: Limbs,
    b: Limbs,
    shifts: Shifts,
    row: jax.Array,
    column: jax.Array,
    *,
    plan: Plan,
    limbs: int,
) -> Limbs:
    """decode(product(encode(a), encode(b))). The CPU does it in one call, whose scratch is kept for the next.

    For lowerings: the call has no batching rule.

    Args:
        a, b: float64 [..., m, k] and [..., k, n], normalized.
        shifts, row, column: as `encode` takes them, int32 ([..., k], [..., k]), [..., m], [..., n].
    """
    steps = functools.partial(_multiply_by_steps, plan=plan, limbs=limbs)
    by_handler = functools.partial(_multiply_handler, plan=plan, limbs=limbs)
    return lax.platform_dependent(a, b, shifts, row, column, cpu=by_handler, default=steps)


def _multiply_by_steps(
    a: Limbs, b: Limbs, shifts: Shifts, row: jax.Array, column: jax.Array, *, plan: Plan, limbs: int
) -> Limbs:
    left, right = encode(a, row, shifts[0], plan, 0), encode(b, column, shifts[1], plan, 1)
    return decode(product(left, right, plan), row, column, plan, limbs)


def _multiply_handler(
    a: Limbs, b: Limbs, shifts: Shifts, row: jax.Array, column: jax.Array, *, plan: Plan, limbs: int
) -> Limbs:
    constants, attributes = decode_operands(plan, "cpu")
    out = [jax.ShapeDtypeStruct((*a[0].shape[:-1], b[0].shape[-1]), jnp.float64)] * limbs
    tables = map(jnp.asarray, (*product_operands(plan), *constants))
    return tuple(
        _ffi.call("jaxmd_residue_product", out, row, column, *shifts, *tables, *a, *b, **attributes, lhs_limbs=len(a))
    )
