"""Derivatives of functions of multiple doubles: grad, value_and_grad, vjp, jacfwd, jacrev, hessian.

The derivative rules are those of the primitives, and `jax.vjp`, `jax.jvp`, `jax.linearize` work on MultiDoubles as they
are. What is added here: seeds and results that are MultiDoubles (`jax.grad` refuses a function whose value is one), and
results with normalized limbs.

Accuracy of all of these. Forward mode (`jacfwd`, `jax.jvp`) works in the limb count of the values throughout. In
reverse mode JAX adds the cotangents of a value that is used several times limb by limb in float64, which leaves about
2^-53 of the larger one as error. Arithmetic of this package makes no such joins, `x * x` included, but your code may:

    def f(x):                                def f(x):
        return x * (x + 1)     rather              a, b = jaxmd.copies(x, 2)
                                                   return a * (b + 1)

`copies` gives each use a value of its own, and adds their cotangents as multiple doubles. A value that the body of a
`lax.scan` closes over is used once an iteration: carry it along, and copy it in the body.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxmd import _arith, _ffi
from jaxmd._array import MultiDouble


def grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The gradient of a scalar function, by reverse mode.

    Args:
        f: a function whose value is a scalar MultiDouble (or a scalar float64 array), or with `has_aux` a pair of it
            and anything else.
        argnums: the argument or arguments to differentiate by: pytrees of MultiDoubles and float64 arrays.
    Returns:
        A function of the arguments of f: its gradient, of the structure of the argument (a tuple for several), or with
        `has_aux` a pair of it and the rest.
    Accuracy:
        That of the operations in f, with the exception named in the module's text: see `jaxmd.copies`.
    Raises:
        TypeError: an argument to differentiate by, or the value, is neither MultiDouble nor float64, or not a scalar.
    """
    both = value_and_grad(f, argnums, has_aux)

    @functools.wraps(f)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, result = both(*args, **kwargs)
        return (result, value[1]) if has_aux else result

    return gradient


def value_and_grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """Value and gradient of a scalar function in one evaluation; arguments and accuracy as in `grad`.

    Returns:
        A function of the arguments of f: the pair (value, gradient), or with `has_aux` ((value, rest), gradient).
    """

    @functools.wraps(f)
    def both(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        _ffi.require_x64("jaxmd.grad")
        selected, call = _select("jaxmd.grad", f, argnums, args, kwargs)
        value, pullback, *aux = _vjp(call, *selected, has_aux=has_aux)
        if not isinstance(value, MultiDouble | jax.Array) or value.shape != () or _dtype(value) != jnp.float64:
            raise TypeError(
                f"jaxmd.grad: the function returned {_describe(value)}; a scalar MultiDouble was wanted "
                "(use jaxmd.jacfwd or jaxmd.jacrev for arrays)."
            )
        (seed,) = _basis([value])
        result = _normalized(pullback(_each(lambda limb: limb[0], seed)))
        return (value, *aux) if has_aux else value, _one_or_all(argnums, result)

    return both


def vjp(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """The value of f and the function that pulls cotangents back, `jax.vjp` with normalized results.

    Args:
        f: a function of pytrees of MultiDoubles and float64 arrays.
        primals: where; one for each argument of f.
    Returns:
        (value, pullback), or with `has_aux` (value, pullback, rest). `pullback(cotangent)` takes the structure of the
        value (MultiDoubles of any limb count) and returns a tuple, one cotangent for each primal.
    Accuracy:
        As in `grad`.
    """
    _ffi.require_x64("jaxmd.vjp")
    _check("jaxmd.vjp", f)
    value, pull, *aux = _vjp(f, *primals, has_aux=has_aux)

    def pullback(cotangent: Any) -> Any:
        fitted = jax.tree.map(_fit, value, cotangent, is_leaf=_is_value)
        return _normalized(pull(fitted))

    return (value, pullback, *aux)


def jacfwd(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """The Jacobian of f, by forward mode: one evaluation of f, vectorized over all entries of the arguments.

    Args:
        f: a function whose value is a pytree of MultiDoubles and float64 arrays.
        argnums: the argument or arguments to differentiate by: pytrees of MultiDoubles and float64 arrays.
    Returns:
        A function of the arguments of f: for every array of shape [v] in the value, and of shape [x] in the argument,
        the derivative of shape [v, x], nested as in `jax.jacfwd`: structure of the value, of that of the argument.
    Accuracy:
        That of the operations in f.
    """

    _check("jaxmd.jacfwd", f)

    @functools.wraps(f)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        _ffi.require_x64("jaxmd.jacfwd")
        selected, call = _select("jaxmd.jacfwd", f, argnums, args, kwargs)
        leaves, structure = jax.tree.flatten(selected, is_leaf=_is_value)

        def push(directions: Any) -> Any:
            return jax.jvp(call, tuple(selected), tuple(jax.tree.unflatten(structure, directions)))[1]

        columns = jax.vmap(push)(_basis(leaves))

        def blocks(column: Any) -> Any:
            parts = []
            for part, leaf in zip(_split(column, leaves), leaves, strict=True):
                shape = part.shape[1:] + leaf.shape
                parts.append(_each(functools.partial(_entries_last, shape=shape), part))
            return _one_or_all(argnums, jax.tree.unflatten(structure, parts))

        return jax.tree.map(blocks, _normalized(columns), is_leaf=_is_value)

    return jacobian


def jacrev(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """The Jacobian of f, by reverse mode: one pull-back, vectorized over all entries of the value.

    Arguments and result as in `jacfwd`; accuracy as in `grad`. The cheaper one where the value has fewer entries than
    the argument.
    """

    _check("jaxmd.jacrev", f)

    @functools.wraps(f)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        _ffi.require_x64("jaxmd.jacrev")
        selected, call = _select("jaxmd.jacrev", f, argnums, args, kwargs)
        value, pullback = jax.vjp(call, *selected)
        leaves, structure = jax.tree.flatten(value, is_leaf=_is_value)
        rows = jax.vmap(lambda seeds: pullback(jax.tree.unflatten(structure, seeds)))(_basis(leaves))
        rows = _normalized(rows)
        parts: list[Any] = []
        start = 0
        for leaf in leaves:
            rows_of = functools.partial(_rows, start=start, leaf=leaf)
            parts.append(_one_or_all(argnums, jax.tree.map(rows_of, rows, is_leaf=_is_value)))
            start += math.prod(leaf.shape)
        return jax.tree.unflatten(structure, parts)

    return jacobian


def hessian(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """The matrix of second derivatives of f, forward over reverse.

    Arguments as in `jacfwd`; for a scalar f of an array [x] the result has shape [x, x].

    Accuracy:
        As in `grad`: a join in the gradient is a join here.
    """
    return jacfwd(jacrev(f, argnums), argnums)


_vjp: Callable[..., Any] = jax.vjp  # its overloads do not know a has_aux that is a variable


def _check(who: str, f: Any) -> None:
    if not callable(f):
        raise TypeError(f"{who}: f is {type(f).__name__}; a function was wanted.")


def _is_value(x: Any) -> bool:
    return isinstance(x, MultiDouble)


def _each(f: Callable[[Any], Any], x: Any) -> Any:
    """f of every limb, or of the array itself."""
    return MultiDouble(tuple(f(limb) for limb in x.limbs)) if _is_value(x) else f(x)


def _dtype(x: Any) -> Any:
    return jnp.float64 if _is_value(x) else x.dtype


def _describe(x: Any) -> str:
    if _is_value(x):
        return f"a MultiDouble of shape {x.shape}"
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return f"an array of dtype {x.dtype} and shape {tuple(x.shape)}"
    return f"a {type(x).__name__}"


def _select(
    who: str, f: Callable[..., Any], argnums: int | Sequence[int], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], Callable[..., Any]]:
    """The arguments to differentiate by, and f as a function of these alone."""
    numbers = [argnums] if isinstance(argnums, int) else list(argnums)
    if any(not -len(args) <= number < len(args) for number in numbers):
        raise ValueError(f"{who}: argnums is {argnums} and {len(args)} positional arguments came.")
    numbers = [number % len(args) for number in numbers]
    selected = [args[number] for number in numbers]
    for number, argument in zip(numbers, selected, strict=True):
        for leaf in jax.tree.leaves(argument, is_leaf=_is_value):
            if not _is_value(leaf) and getattr(leaf, "dtype", None) != jnp.float64:
                raise TypeError(
                    f"{who}: argument {number} holds {_describe(leaf)}; MultiDoubles or float64 arrays were wanted."
                )

    def call(*values: Any) -> Any:
        every = list(args)
        for number, argument in zip(numbers, values, strict=True):
            every[number] = argument
        return f(*every, **kwargs)

    return selected, call


def _basis(leaves: Sequence[Any]) -> list[Any]:
    """All unit vectors of the space of these arrays: for each array, [total number of entries, *its shape]."""
    sizes = [math.prod(leaf.shape) for leaf in leaves]
    total, start, out = sum(sizes), 0, []
    for leaf, size in zip(leaves, sizes, strict=True):
        units = jnp.eye(total, size, -start, dtype=jnp.float64).reshape(total, *leaf.shape)
        start += size
        first = leaf.limbs[0] if _is_value(leaf) else leaf
        zeros = jnp.zeros_like(units)
        parts = [units, *[zeros] * (leaf.num_limbs - 1)] if _is_value(leaf) else [units]
        # A seed varies over the same manual mesh axes as its value.
        parts = _ffi.unify([*parts, first])[:-1]
        out.append(MultiDouble(tuple(parts)) if _is_value(leaf) else parts[0])
    return out


def _split(column: Any, leaves: Sequence[Any]) -> list[Any]:
    """The rows of `column` that belong to each leaf."""
    out, start = [], 0
    for leaf in leaves:
        stop = start + math.prod(leaf.shape)
        out.append(_each(operator.itemgetter(slice(start, stop)), column))
        start = stop
    return out


def _entries_last(limb: Any, shape: tuple[int, ...]) -> Any:
    """From [entries of the argument, value] to the derivative [value, argument]."""
    return jnp.moveaxis(limb, 0, -1).reshape(shape)


def _rows(column: Any, *, start: int, leaf: Any) -> Any:
    """Rows [start, start + size) of a cotangent, as the derivative [value, argument]."""
    stop = start + math.prod(leaf.shape)
    return _each(lambda limb: limb[start:stop].reshape(*leaf.shape, *limb.shape[1:]), column)


def _fit(value: Any, cotangent: Any) -> Any:
    """A cotangent with as many limbs as the value."""
    if _is_value(value) and _is_value(cotangent):
        return MultiDouble(_arith.resize(cotangent.limbs, value.num_limbs))
    return cotangent


def _normalized(tree: Any) -> Any:
    """All MultiDoubles in a tree with canonical limbs."""

    def normalize(x: Any) -> Any:
        return MultiDouble(_arith.renormalize(x.limbs, x.num_limbs)) if _is_value(x) else x

    return jax.tree.map(normalize, tree, is_leaf=_is_value)


def _one_or_all(argnums: int | Sequence[int], results: Sequence[Any]) -> Any:
    return results[0] if isinstance(argnums, int) else tuple(results)
