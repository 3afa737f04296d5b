"""The matrix product of what users pass: MultiDoubles, arrays, numbers, prepared factors; shapes as numpy has them."""

from __future__ import annotations

from typing import Any

from . import _ffi, _prepared
from ._choice import Accuracy, Engine
from ._matmul import matmul_limbs
from ._operands import (
    Limbs,
    Value,
    broadcast_as,
    broadcast_shapes,
    check_limbs,
    is_operand,
    naming,
    operand_limbs,
    result_limbs,
)
from ._prepared import Prepared as Prepared


def matmul(a: Any, b: Any, engine: Engine, accuracy: Accuracy, addend: Any) -> Limbs:
    """The limbs of `jaxmd.matmul`."""
    who = "jaxmd.matmul"
    _ffi.require_x64(who)
    factors = (("a", a), ("b", b))
    for name, x in (*factors, *([] if addend is None else [("addend", addend)])):
        if not is_operand(x) and (name == "addend" or not isinstance(x, Prepared)):
            raise TypeError(f"{who}: {name} is {type(x).__name__}; a MultiDouble or an array was wanted.")
    prepared = [x for x in (a, b) if isinstance(x, Prepared)]
    operands = [x for x in (a, b, addend) if x is not None and not isinstance(x, Prepared)]
    limbs = _check_prepared(a, b, operands, engine, accuracy) if prepared else result_limbs(*operands)
    left, right = (x.limbs if isinstance(x, Prepared) else _limbs(f"{who}: {n}", x, limbs) for n, x in factors)
    plus = None if addend is None else _limbs(f"{who}: addend", addend, limbs)
    shape_a, shape_b = left[0].shape, right[0].shape
    if not shape_a or not shape_b:
        raise TypeError(f"{who}: a has shape {shape_a} and b has shape {shape_b}; at least one axis each was wanted.")
    if shape_a[-1] != shape_b[-2 if len(shape_b) > 1 else 0]:
        raise ValueError(f"{who}: a has shape {shape_a} and b has shape {shape_b}; the inner dimensions must agree.")
    if len(shape_a) == 1:
        left = tuple(x[None, :] for x in left)
    if len(shape_b) == 1:
        right = tuple(x[:, None] for x in right)
    batch = broadcast_shapes(who, left[0].shape[:-2], right[0].shape[:-2])
    rows = () if len(shape_a) == 1 else (shape_a[-2],)
    columns = () if len(shape_b) == 1 else (shape_b[-1],)
    shape = (*batch, *rows, *columns)
    full = (*batch, left[0].shape[-2], right[0].shape[-1])
    added = None
    if plus is not None:
        added = tuple(x.reshape(full) for x in broadcast_as(who, "addend", plus, shape))
    if prepared:
        both = (x if isinstance(x, Prepared) else y for x, y in ((a, left), (b, right)))
        product = _prepared.matmul_prepared(*both, limbs=limbs, accuracy=accuracy, addend=added)
    else:
        product = matmul_limbs(left, right, limbs=limbs, engine=engine, accuracy=accuracy, addend=added)
    return tuple(x.reshape(shape) for x in product)


def _limbs(who: str, x: Any, limbs: int) -> Limbs:
    with naming(who):
        return operand_limbs(x, limbs)


def _check_prepared(a: Any, b: Any, others: list[Any], engine: str, accuracy: str) -> int:
    """The limb count of a product with prepared factors, or an error that says what does not fit."""
    who = "jaxmd.matmul"
    for name, x, side in (("a", a, "left"), ("b", b, "right")):
        if isinstance(x, Prepared) and x.side != side:
            raise ValueError(f"{who}: {name} was prepared as the {x.side} factor; prepare it with side={side!r}.")
    if engine not in ("auto", "int8") or accuracy not in ("componentwise", "normwise"):
        raise ValueError(
            f"{who}: engine is {engine!r} and accuracy is {accuracy!r}; prepared factors multiply with engine 'int8', "
            "accuracy 'componentwise' or 'normwise'."
        )
    prepared = [x for x in (a, b) if isinstance(x, Prepared)]
    limbs = prepared[0].num_limbs
    if prepared[-1].num_limbs != limbs:
        raise ValueError(
            f"{who}: a was prepared for {limbs} limbs and b for {prepared[-1].num_limbs}; one count was wanted."
        )
    most = max((len(x.limbs) for x in others if isinstance(x, Value)), default=0)
    if most > limbs:
        raise ValueError(
            f"{who}: an operand has {most} limbs and the prepared factor is for products of {limbs}; "
            f"prepare it with limbs={most}."
        )
    return limbs


def prepare(x: Any, side: str, *, limbs: int | None = None) -> Prepared:
    """A factor encoded in residues once, for many products: `matmul(prepare(a, "left"), b)`.

    The result is a pytree with the batch axes first in every leaf: it passes through jit, vmap and scan whole, mapped
    over its batch or made inside. `matmul` (and `@`) takes it in place of the factor, for engine
    "int8". Accuracy "normwise" gives the bits of the unprepared product; "componentwise" is within the same bound, not
    always the same bits. Its arrays belong together: make another one instead of changing them.

    Args:
        x: the factor, [.., m, k] or [.., k, n]; a MultiDouble or numbers taken as they are.
        side: "left" for the first factor of `matmul`, "right" for the second.
        limbs: limb count of the products; that of x when None. An operand with more limbs is refused by `matmul`.

    Memory: about 16 bytes an entry for each limb, beside the operand itself.
    Derivatives: with respect to the other factor, and to x where `prepare` is part of the function. (With respect to
    the result itself `jax.vjp` works, `jax.grad` wants allow_int=True, and the limbs hold the derivative.) They are
    computed by engine "auto" where the factor is not used as it was prepared.
    **Raises**: TypeError for fewer than two axes or x64 off; ValueError for another side or limb count.
    """
    who = "jaxmd.prepare"
    _ffi.require_x64(who)
    if not isinstance(side, str) or side not in _prepared.SIDES:
        raise ValueError(f"{who}: side is {side!r}; 'left' or 'right' was wanted.")
    if not is_operand(x):
        raise TypeError(f"{who}: x is {type(x).__name__}; a MultiDouble or an array was wanted.")
    if limbs is not None:
        check_limbs(who, limbs)
    count = result_limbs(x) if limbs is None else limbs
    operand = _limbs(f"{who}: x", x, count)
    if operand[0].ndim < 2:
        raise TypeError(f"{who}: x has shape {operand[0].shape}; at least two axes were wanted.")
    return _prepared.prepare(operand, side, count)
