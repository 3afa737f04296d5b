"""dot, outer, trace and einsum: products of arrays of any rank, by way of the matrix product.

An einsum of two operands is one matrix product once its labels are sorted into four kinds:

    a [batch, left, inner]    b [batch, inner, right]    →    c [batch, left, right]

batch: in both operands and in the result; inner: in both, summed; left, right: in one operand and in the result. A
label that is in one operand only and not in the result is summed first; twice in one operand, it takes a diagonal.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from . import _arith
from ._array import MultiDouble, matmul
from ._choice import Accuracy, Engine
from ._functions import transpose, value
from ._operands import naming, result_limbs
from ._reductions import sum as total

Labels = tuple[Any, ...]


def dot(a: Any, b: Any, *, engine: Engine = "auto", accuracy: Accuracy = "componentwise") -> MultiDouble:
    """The dot product as numpy has it: the last axis of a against the last but one of b (the only one of a vector).

    A scalar multiplies; vectors give their inner product. See `jaxmd.matmul` for the accuracy, which is the same.
    """
    a, b = value("jaxmd.dot", a), value("jaxmd.dot", b)
    if not a.shape or not b.shape:
        return a * b
    if a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        raise ValueError(
            f"jaxmd.dot: a has shape {a.shape} and b has shape {b.shape}; the inner dimensions must agree."
        )
    if b.ndim <= 2:
        rows = a.reshape((math.prod(a.shape[:-1]), a.shape[-1]))
        product = matmul(rows, b, engine=engine, accuracy=accuracy)
        return product.reshape((*a.shape[:-1], *b.shape[1:]))
    left = tuple(("a", i) for i in range(a.ndim - 1))
    right = tuple(("b", i) for i in range(b.ndim - 1))
    labels_b = (*right[:-1], "inner", right[-1])
    return _contract(a, (*left, "inner"), b, labels_b, (*left, *right), engine, accuracy)


def outer(a: Any, b: Any) -> MultiDouble:
    """All products of an entry of a and an entry of b, both flattened: [a.size, b.size].

    **Accuracy**: 2·2^-53L of each product.
    """
    a, b = value("jaxmd.outer", a).ravel(), value("jaxmd.outer", b).ravel()
    return a.reshape((-1, 1)) * b.reshape((1, -1))


def trace(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> MultiDouble:
    """The sum of a diagonal; see `jaxmd.sum` for the accuracy."""
    who = "jaxmd.trace"
    with naming(who):
        diagonal = value(who, x)._each(lambda limb: jnp.diagonal(limb, offset, axis1, axis2))
    return total(diagonal, axis=-1)


def einsum(
    subscripts: str, *operands: Any, engine: Engine = "auto", accuracy: Accuracy = "componentwise"
) -> MultiDouble:
    """Einstein summation over one or two operands, with numpy's subscripts ("ij,jk->ik", "...ij,j", "ii").

    Args:
        subscripts: one letter an axis; `...` stands for axes that broadcast; without `->` the result has the letters
            that occur once, in alphabetical order, after the `...`.
        operands: one or two values.
        engine, accuracy: as in `jaxmd.matmul`, used where two operands share a summed label.

    **Accuracy**: that of `jaxmd.matmul` for shared labels, of `jaxmd.sum` for labels of one operand, and of `*` where
    no shared label is summed.
    **Raises**: ValueError for subscripts that do not fit, naming them; NotImplementedError for three operands or more.
    """
    who = "jaxmd.einsum"
    if not isinstance(subscripts, str):
        raise TypeError(f"{who}: subscripts is {type(subscripts).__name__}; text like 'ij,jk->ik' was wanted.")
    if not 1 <= len(operands) <= 2:
        raise NotImplementedError(f"{who}: {len(operands)} operands came; one or two were wanted, contract pairwise.")
    values = [value(who, x) for x in operands]
    labels, result = _parse(subscripts, values)
    sizes: dict[Any, int] = {}
    for names, x in zip(labels, values, strict=True):
        for name, size in zip(names, x.shape, strict=True):
            if sizes.setdefault(name, size) != size:
                if not isinstance(name, int) or 1 not in (size, sizes[name]):
                    lengths = f"{sizes[name]} and {size}"
                    raise ValueError(f"{who}: {name!r} of {subscripts!r} has lengths {lengths}; one length was wanted.")
                sizes[name] = size if sizes[name] == 1 else sizes[name]
    simple = [_simplify(x, names, sizes) for x, names in zip(values, labels, strict=True)]
    if len(simple) == 1:
        x, names = simple[0]
        x, names = _sum_out(x, names, set(result), x.num_limbs)
        x, names = _grown(x, names, result, sizes)
        return transpose(x, tuple(names.index(name) for name in result))
    (a, labels_a), (b, labels_b) = simple
    limbs = result_limbs(a, b)
    a, labels_a = _sum_out(a, labels_a, {*labels_b, *result}, limbs)
    b, labels_b = _sum_out(b, labels_b, {*labels_a, *result}, limbs)
    a, labels_a = _grown(a, labels_a, tuple(n for n in result if n not in labels_b), sizes)
    return _contract(a, labels_a, b, labels_b, result, engine, accuracy)


def _parse(subscripts: str, values: Sequence[MultiDouble]) -> tuple[list[Labels], Labels]:
    """Labels of operands and result: letters, and for the axes of `...` negative integers, counted from the right."""
    who = "jaxmd.einsum"
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(values):
        raise ValueError(f"{who}: {len(values)} operands came; {subscripts!r} wants {len(terms)}.")
    labels: list[Labels] = []
    dots = 0
    for term, x in zip(terms, values, strict=True):
        letters = term.replace("...", "", 1)
        hidden = x.ndim - len(letters)
        if (letters and not letters.isalpha()) or hidden < 0 or (hidden and letters == term):
            raise ValueError(f"{who}: {term!r} of {subscripts!r} for shape {x.shape}; one letter an axis was wanted.")
        head = term.index("...") if letters != term else len(term)
        labels.append((*letters[:head], *range(-hidden, 0), *letters[head:]))
        dots = hidden if hidden > dots else dots
    if not arrow:
        once = sorted(name for name in set(left) - set(".,") if left.count(name) == 1)
        return labels, (*range(-dots, 0), *once)
    letters = right.replace("...", "", 1)
    known = {name for names in labels for name in names}
    if (letters and not letters.isalpha()) or not set(letters) <= known or len(set(letters)) < len(letters):
        raise ValueError(f"{who}: result {right!r} of {subscripts!r}; letters of the operands, each once, were wanted.")
    head = right.index("...") if letters != right else len(right)
    hidden_labels = tuple(range(-dots, 0)) if letters != right else ()
    return labels, (*letters[:head], *hidden_labels, *letters[head:])


def _simplify(x: MultiDouble, names: Labels, sizes: dict[Any, int]) -> tuple[MultiDouble, Labels]:
    """Repeated labels reduced to their diagonal, and axes of `...` that only broadcast removed."""
    listed = list(names)
    for name in dict.fromkeys(names):
        while listed.count(name) > 1:
            first = listed.index(name)
            second = listed.index(name, first + 1)
            x = x._each(lambda limb, i=first, j=second: jnp.diagonal(limb, 0, i, j))  # type: ignore[misc]
            listed = [n for i, n in enumerate(listed) if i not in (first, second)] + [name]
    for name in [n for n in listed if isinstance(n, int) and sizes[n] != 1]:
        at = listed.index(name)
        if x.shape[at] == 1:
            x = x.squeeze(at)
            del listed[at]
    return x, tuple(listed)


def _sum_out(x: MultiDouble, names: Labels, wanted: set[Any], limbs: int) -> tuple[MultiDouble, Labels]:
    """Labels that nobody else wants are summed, in the limb count of the result."""
    axes = tuple(i for i, name in enumerate(names) if name not in wanted)
    return (total(x.with_limbs(limbs), axes), tuple(n for n in names if n in wanted)) if axes else (x, names)


def _grown(x: MultiDouble, names: Labels, wanted: Labels, sizes: dict[Any, int]) -> tuple[MultiDouble, Labels]:
    """Wanted labels that were removed because they only broadcast are put in front, repeated."""
    missing = tuple(name for name in wanted if name not in names)
    if not missing:
        return x, names
    return MultiDouble(_arith.broadcast_to(x.limbs, (*(sizes[n] for n in missing), *x.shape))), (*missing, *names)


def _contract(
    a: MultiDouble,
    labels_a: Labels,
    b: MultiDouble,
    labels_b: Labels,
    result: Labels,
    engine: Engine,
    accuracy: Accuracy,
) -> MultiDouble:
    """The product of two operands whose labels are each in the other or in the result, none of them twice."""
    batch = tuple(n for n in labels_a if n in labels_b and n in result)
    inner = tuple(n for n in labels_a if n in labels_b and n not in result)
    left = tuple(n for n in labels_a if n not in labels_b)
    right = tuple(n for n in labels_b if n not in labels_a)
    size = {**dict(zip(labels_a, a.shape, strict=True)), **dict(zip(labels_b, b.shape, strict=True))}

    def group(x: MultiDouble, labels: Labels, *kinds: Labels) -> MultiDouble:
        order = tuple(labels.index(n) for n in (*batch, *(n for kind in kinds for n in kind)))
        shape = (*(size[n] for n in batch), *(math.prod(size[n] for n in kind) for kind in kinds))
        return x.transpose(order).reshape(shape)

    if inner:
        product = matmul(
            group(a, labels_a, left, inner), group(b, labels_b, inner, right), engine=engine, accuracy=accuracy
        )
    else:
        product = group(a, labels_a, left, ()) * group(b, labels_b, (), right)
    product = product.reshape(tuple(size[n] for n in (*batch, *left, *right)))
    names = (*batch, *left, *right)
    return product.transpose(tuple(names.index(n) for n in result))
