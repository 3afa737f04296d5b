"""One table, operation × transformation: jit, vmap, jvp, vjp, scan, cond, shard_map, and export."""

import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from math import isqrt
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inputs import full, generator
from jax.sharding import AxisType, PartitionSpec
from oracles import assert_bits, assert_normalized, assert_within, fractions

import jaxmd._arith as arith
from jaxmd import _ffi

L = 3
SHAPE = (4, 3)


class Operation(NamedTuple):
    """An operation of `operands` numbers, and the same in rationals with its partial derivatives."""

    apply: Callable[..., tuple[Any, ...]]
    operands: int
    exact: Callable[..., Any]
    partials: Callable[..., list[Any]]


def root(x: Any) -> Any:
    """√x to 600 bits, entry by entry."""
    bits = 600
    rooted = [Fraction(isqrt((q.numerator << 2 * bits) // q.denominator), 1 << bits) for q in np.ravel(x)]
    out = np.empty(len(rooted), dtype=object)
    out[:] = rooted
    return out.reshape(np.shape(x))


def ones(*operands: Any) -> list[Any]:
    return [np.full(np.shape(x), Fraction(1), dtype=object) for x in operands]


def scaled(x: Any) -> tuple[Any, ...]:
    # The constant exponent takes the shape of what comes: the whole array, one row, or a shard of it.
    exponent = jnp.where(x[0] < np.inf, jnp.int32(-7), jnp.int32(0))
    return arith.scale(x, exponent)


SEVENTH = Fraction(1, 128)

OPERATIONS = {
    "add": Operation(lambda x, y: arith.add(x, y, L), 2, lambda x, y: x + y, ones),
    "sub": Operation(lambda x, y: arith.sub(x, y, L), 2, lambda x, y: x - y, lambda x, y: [ones(x)[0], -ones(y)[0]]),
    "mul": Operation(lambda x, y: arith.mul(x, y, L), 2, lambda x, y: x * y, lambda x, y: [y, x]),
    "square": Operation(lambda x: arith.mul(x, x, L), 1, lambda x: x * x, lambda x: [2 * x]),
    "div": Operation(lambda x, y: arith.div(x, y, L), 2, lambda x, y: x / y, lambda x, y: [1 / y, -x / (y * y)]),
    "sqrt": Operation(
        lambda x: arith.sqrt(arith.mul(x, x, L + 1), L), 1, lambda x: abs(x), lambda x: [np.sign(x).astype(object)]
    ),
    "neg": Operation(arith.neg, 1, lambda x: -x, lambda x: [-ones(x)[0]]),
    "scale": Operation(scaled, 1, lambda x: x * SEVENTH, lambda x: [ones(x)[0] * SEVENTH]),
    "add_many": Operation(
        lambda x, y, z: arith.add_many([x, y, z], L), 3, lambda x, y, z: x + y + z, lambda *xs: ones(*xs)
    ),
    "renormalize": Operation(lambda x: arith.renormalize(x, L), 1, lambda x: x, ones),
    "copies": Operation(lambda x: arith.mul(*arith.copies(x, 2), L), 1, lambda x: x * x, lambda x: [2 * x]),
    "to_float64": Operation(
        lambda x: arith.from_float64(arith.to_float64(arith.mul(x, x, L)), L), 1, lambda x: x * x, lambda x: [2 * x]
    ),
    "pad": Operation(lambda x: arith.renormalize(arith.pad(x, L + 2), L), 1, lambda x: x, ones),
}
ROUNDS_TO_DOUBLE = {"to_float64"}

table = pytest.mark.parametrize("name", OPERATIONS)


def operands(name: str, *extra: object) -> list[tuple[jax.Array, ...]]:
    rng = generator(name, *extra)
    numbers = [full(rng, SHAPE, L) for _ in range(OPERATIONS[name].operands)]
    return [tuple(map(jnp.asarray, x)) for x in numbers]


@table
def test_value(name):
    op, xs = OPERATIONS[name], operands(name)
    limbs = 1 if name in ROUNDS_TO_DOUBLE else L
    assert_within(op.apply(*xs)[:limbs], op.exact(*map(fractions, xs)), limbs, 2, label=name)
    assert_normalized(op.apply(*xs), name)


@table
def test_jit(name):
    op, xs = OPERATIONS[name], operands(name)
    assert_bits(jax.jit(op.apply)(*xs), op.apply(*xs), name)
    with jax.disable_jit():
        assert_bits(op.apply(*xs), jax.jit(op.apply)(*xs), name)


def rows(op: Operation, xs: list[Any]) -> tuple[np.ndarray, ...]:
    """The operation on one row after another."""
    results = [op.apply(*(tuple(limb[i] for limb in x) for x in xs)) for i in range(SHAPE[0])]
    return tuple(np.stack([np.asarray(r[i]) for r in results]) for i in range(L))


@table
def test_vmap(name):
    op, xs = OPERATIONS[name], operands(name)
    expected = rows(op, xs)
    assert_bits(jax.vmap(op.apply)(*xs), expected, name)
    assert_bits(jax.vmap(jax.vmap(op.apply))(*xs), expected, name)
    # Batch axes in different places, and a result axis elsewhere.
    moved = [tuple(limb.T for limb in xs[0]), *xs[1:]]
    out = jax.vmap(op.apply, in_axes=(1, *[0] * (len(xs) - 1)), out_axes=1)(*moved)
    assert_bits(tuple(limb.T for limb in out), expected, name)


@table
def test_vmap_with_unmapped_operands(name):
    op, xs = OPERATIONS[name], operands(name)
    for unmapped in range(len(xs)):
        if len(xs) == 1:
            continue
        fixed = tuple(limb[1] for limb in xs[unmapped])
        args = [fixed if i == unmapped else x for i, x in enumerate(xs)]
        axes = tuple(None if i == unmapped else 0 for i in range(len(xs)))
        repeated = tuple(jnp.broadcast_to(limb, SHAPE) for limb in fixed)
        same = [repeated if i == unmapped else x for i, x in enumerate(xs)]
        assert_bits(jax.vmap(op.apply, in_axes=axes)(*args), rows(op, same), name)
    # One limb of a number mapped and the others not.
    x = xs[0]
    mixed = jax.vmap(lambda lead, *low: op.apply((lead, *low), *[tuple(limb[0] for limb in y) for y in xs[1:]]))
    low = [jnp.broadcast_to(limb[0], SHAPE) for limb in x[1:]]
    partly = jax.vmap(
        lambda lead: op.apply((lead, *(limb[0] for limb in x[1:])), *[tuple(limb[0] for limb in y) for y in xs[1:]])
    )
    assert_bits(partly(x[0]), mixed(x[0], *low), name)


@table
def test_jvp(name):
    op, xs, dxs = OPERATIONS[name], operands(name), operands(name, "tangents")
    out, tangent = jax.jvp(op.apply, xs, dxs)
    assert_bits(out, op.apply(*xs), name)
    terms = [p * fractions(dx) for p, dx in zip(op.partials(*map(fractions, xs)), dxs)]
    limbs = 1 if name in ROUNDS_TO_DOUBLE else L
    assert_within(tangent[:limbs], sum(terms), limbs, 8, scale=sum(map(abs, terms)), label=name)


@table
def test_jvp_with_zero_tangents(name):
    """Symbolic zeros: of whole operands, and of some limbs of one."""
    op, xs, dxs = OPERATIONS[name], operands(name), operands(name, "tangents")
    partials = op.partials(*map(fractions, xs))
    limbs = 1 if name in ROUNDS_TO_DOUBLE else L
    for i in range(len(xs)):
        only = lambda x, i=i: op.apply(*xs[:i], x, *xs[i + 1 :])
        _, tangent = jax.jvp(only, [xs[i]], [dxs[i]])
        assert_within(tangent[:limbs], partials[i] * fractions(dxs[i]), limbs, 8, label=name)
        _, tangent = jax.jvp(lambda lead, i=i: only((lead, *xs[i][1:])), [xs[i][0]], [dxs[i][0]])  # noqa: B023
        assert_within(tangent[:limbs], partials[i] * fractions(dxs[i][:1]), limbs, 8, label=name)


@table
def test_vjp(name):
    op, xs = OPERATIONS[name], operands(name)
    ct = tuple(map(jnp.asarray, full(generator(name, "cotangent"), SHAPE, L)))
    _, pull = jax.vjp(op.apply, *xs)
    limbs = 1 if name in ROUNDS_TO_DOUBLE else L
    for x, cotangent, partial in zip(xs, pull(ct), op.partials(*map(fractions, xs)), strict=True):
        assert len(cotangent) == len(x)
        assert_within(
            cotangent[:L], partial * fractions(ct), L, 8 if limbs == L else 2.0 ** (53 * (L - 1) + 2), label=name
        )


@table
def test_vjp_of_one_limb(name):
    """A cotangent that reaches only one limb of the result counts as that number."""
    op, xs = OPERATIONS[name], operands(name)
    if name in ROUNDS_TO_DOUBLE:
        pytest.skip("the result has one limb")
    lead = full(generator(name, "cotangent"), SHAPE, 1)[0]
    _, pull = jax.vjp(lambda *numbers: op.apply(*numbers)[0], *xs)
    for cotangent, partial in zip(pull(jnp.asarray(lead)), op.partials(*map(fractions, xs)), strict=True):
        assert_within(cotangent, partial * fractions([lead]), L, 8, label=name)


@table
def test_linearize(name):
    op, xs, dxs = OPERATIONS[name], operands(name), operands(name, "tangents")
    _, tangent = jax.jvp(op.apply, xs, dxs)
    _, push = jax.linearize(op.apply, *xs)
    assert_bits(jax.jit(push)(*dxs), tangent, name)


@table
def test_second_derivatives(name):
    """Forward over reverse runs for every rule, batched and compiled."""
    op, xs = OPERATIONS[name], operands(name)

    def pulled(*numbers):
        value, pull = jax.vjp(op.apply, *numbers)
        return pull(value)

    plain = jax.jvp(pulled, xs, xs)[1]
    batched = jax.jit(jax.vmap(lambda *v: jax.jvp(pulled, v, v)[1]))(*xs)
    for x, y in zip(plain, batched, strict=True):
        assert_bits(x, y, name)


@table
def test_scan(name):
    op, xs = OPERATIONS[name], operands(name)

    def body(carry, _):
        result = op.apply(carry, *xs[1:])
        return result, result

    carry, out = jax.lax.scan(body, xs[0], None, length=3)
    looped = xs[0]
    for i in range(3):
        looped = op.apply(looped, *xs[1:])
        assert_bits([limb[i] for limb in out], looped, name)
    assert_bits(carry, looped, name)
    _, tangent = jax.jvp(lambda x: jax.lax.scan(body, x, None, length=2)[0], [xs[0]], [xs[0]])
    _, expected = jax.jvp(lambda x: op.apply(op.apply(x, *xs[1:]), *xs[1:]), [xs[0]], [xs[0]])
    assert_bits(tangent, expected, name)


@table
def test_cond(name):
    op, xs = OPERATIONS[name], operands(name)
    chosen = jax.jit(lambda p, *v: jax.lax.cond(p, op.apply, lambda *numbers: numbers[0], *v))
    assert_bits(chosen(True, *xs), op.apply(*xs), name)
    assert_bits(chosen(False, *xs), xs[0], name)
    batched = jax.vmap(chosen, in_axes=(0, *[0] * len(xs)))(jnp.arange(SHAPE[0]) % 2 == 0, *xs)
    for i, limb in enumerate(batched):
        assert_bits([limb[::2]], [op.apply(*xs)[i][::2]], name)


def four_devices(kind: AxisType) -> jax.sharding.Mesh:
    return jax.make_mesh((4,), ("x",), axis_types=(kind,), devices=jax.devices("cpu")[:4])


@table
def test_shard_map(name):
    """Four devices; then with one operand the same on all of them, and the derivatives inside."""
    op, xs = OPERATIONS[name], operands(name)
    mesh = four_devices(AxisType.Auto)
    split, whole = PartitionSpec("x"), PartitionSpec()
    shards = lambda f, specs: jax.jit(jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=split))
    assert_bits(shards(op.apply, (split,) * len(xs))(*xs), op.apply(*xs), name)

    def pulled(*numbers):
        value, pull = jax.vjp(op.apply, *numbers)
        return pull(value)

    for x, y in zip(shards(pulled, (split,) * len(xs))(*xs), pulled(*xs), strict=True):
        assert_bits(x, y, name)
    if len(xs) > 1:
        shared = tuple(limb[:1] for limb in xs[-1])
        repeated = tuple(jnp.broadcast_to(limb, SHAPE) for limb in shared)
        out = shards(op.apply, (*[split] * (len(xs) - 1), whole))(*xs[:-1], shared)
        assert_bits(out, op.apply(*xs[:-1], repeated), name)
        first = shards(lambda *v: pulled(*v)[0], (*[split] * (len(xs) - 1), whole))(*xs[:-1], shared)
        assert_bits(first, pulled(*xs[:-1], repeated)[0], name)


@table
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_sharded_operands(name, kind):
    """Sharded arrays under plain jit, forward and backward; a type with explicit sharding keeps it."""
    op, xs = OPERATIONS[name], operands(name)
    expected = op.apply(*xs)

    def pulled(*numbers):
        value, pull = jax.vjp(op.apply, *numbers)
        return pull(value)

    cotangents = pulled(*xs)
    with jax.set_mesh(four_devices(kind)):
        xs = jax.device_put(xs, PartitionSpec("x"))
        out = jax.jit(op.apply)(*xs)
        assert_bits(out, expected, name)
        program = jax.jit(op.apply).lower(*xs).compile().as_text()
        assert "all-gather" not in program and "all-to-all" not in program, name
        assert out[0].sharding.spec[0] == "x"
        for x, y in zip(jax.jit(pulled)(*xs), cotangents, strict=True):
            assert_bits(x, y, name)
        if kind == AxisType.Explicit:
            assert jax.typeof(out[0]).sharding.spec == PartitionSpec("x", None)


@table
def test_export(name):
    """Serialized for both platforms with a symbolic size, and run again."""
    op, xs = OPERATIONS[name], operands(name)
    (n,) = jax.export.symbolic_shape("n")
    types = [tuple(jax.ShapeDtypeStruct((n, SHAPE[1]), jnp.float64) for _ in x) for x in xs]
    exported = jax.export.export(jax.jit(op.apply), platforms=("cpu", "cuda"), disabled_checks=_ffi.export_checks())(
        *types
    )
    again = jax.export.deserialize(exported.serialize())
    assert_bits(again.call(*xs), op.apply(*xs), name)


def test_exported_program_in_another_process(tmp_path):
    """A process that only runs the program needs the handlers, and nothing else of jaxmd."""
    x = tuple(map(jnp.asarray, full(generator("exported"), SHAPE, 2)))
    exported = jax.export.export(
        jax.jit(lambda x: arith.sqrt(arith.mul(x, x, 2), 2)), disabled_checks=_ffi.export_checks()
    )
    (tmp_path / "program").write_bytes(exported(x).serialize())
    np.save(tmp_path / "x.npy", np.stack(x))
    code = (
        "import sys, pathlib, numpy, jax, jaxmd._ffi as ffi\n"
        "jax.config.update('jax_enable_x64', True)\n"
        "ffi.export_checks()\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "program = jax.export.deserialize(bytearray((folder / 'program').read_bytes()))\n"
        "numpy.save(folder / 'y.npy', numpy.stack(program.call(tuple(numpy.load(folder / 'x.npy')))))\n"
    )
    subprocess.run([sys.executable, "-P", "-c", code, str(tmp_path)], check=True, timeout=1500)
    assert_bits(tuple(np.load(tmp_path / "y.npy")), arith.sqrt(arith.mul(x, x, 2), 2))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_sharded_operands_of_sums(kind):
    """Sums along a whole axis and along a sharded one, and their derivatives."""
    x = tuple(map(jnp.asarray, full(generator(kind), (8, 3), L)))

    def both(x):
        results = [arith.reduce_sum(x, (axis,), L) for axis in (0, 1)]
        again = [arith.broadcast_to(results[0], (8, 3)), arith.broadcast_to([r[:, None] for r in results[1]], (8, 3))]
        return results, arith.mul(*map(tuple, again), L)

    def pulled(x):
        value, pull = jax.vjp(both, x)
        return pull(value)[0]

    expected, cotangent = both(x), pulled(x)
    with jax.set_mesh(four_devices(kind)):
        x = jax.device_put(x, PartitionSpec("x"))
        for came, wanted in zip(jax.tree.leaves(jax.jit(both)(x)), jax.tree.leaves(expected), strict=True):
            assert_bits([came], [wanted])
        assert_bits(jax.jit(pulled)(x), cotangent)


# Axes: broadcast_to and reduce_sum


@pytest.mark.parametrize("old, new", [((), (2, 3)), ((3,), (2, 3)), ((2, 1), (2, 3)), ((1, 1), (4, 3)), ((3,), (0, 3))])
def test_broadcast_to(old, new):
    x = tuple(map(jnp.asarray, full(generator(old, new), old, L)))
    out, pull = jax.vjp(lambda x: arith.broadcast_to(x, new), x)
    assert_bits(out, [np.broadcast_to(limb, new) for limb in x])
    ct = tuple(map(jnp.asarray, full(generator(old, new, "ct"), new, L)))
    exact = np.full(old, Fraction(0), dtype=object)
    for index, entry in np.ndenumerate(fractions(ct)):
        # The entry of x that went there: trailing axes, the only one where x has length 1.
        exact[tuple(0 if size == 1 else i for size, i in zip(old, index[len(new) - len(old) :]))] += entry
    assert_within(pull(ct)[0], exact, L, 1)
    if old:
        batched = jax.vmap(lambda v: arith.broadcast_to(v, new), in_axes=1)(tuple(jnp.stack([v, -v], 1) for v in x))
        assert_bits([limb[0] for limb in batched], out)


@pytest.mark.parametrize(
    "shape, axes", [((5,), (0,)), ((3, 200), (1,)), ((70, 2, 3), (0, 2)), ((0, 2), (0,)), ((1000,), (0,))]
)
@pytest.mark.parametrize("limbs", [1, 2, 8])
def test_reduce_sum(shape, axes, limbs):
    x = tuple(map(jnp.asarray, full(generator(shape, limbs), shape, limbs, spread=2.0)))
    sum_ = lambda x: arith.reduce_sum(x, axes, limbs)
    exact = np.vectorize(Fraction, otypes=[object])(np.asarray(fractions(x).sum(axis=axes), dtype=object))
    size = np.asarray(np.abs(fractions(x)).sum(axis=axes), dtype=object)
    out, pull = jax.vjp(sum_, x)
    n = int(np.prod([shape[axis] for axis in axes]))
    allowed = abs(exact) + size * Fraction(max(1, n).bit_length(), 2**53)
    assert_within(out, exact, limbs, 1, scale=allowed)
    assert_bits(jax.jit(sum_)(x), out)
    kept = tuple(s for i, s in enumerate(shape) if i not in axes)
    ct = tuple(map(jnp.asarray, full(generator(shape, "ct"), kept, limbs)))
    expected = [np.broadcast_to(np.expand_dims(limb, axes), shape) for limb in ct]
    assert_bits(pull(ct)[0], expected)
    batched = jax.vmap(sum_, in_axes=-1, out_axes=-1)(tuple(jnp.stack([v, v], -1) for v in x))
    assert_bits([limb[..., 1] for limb in batched], out)
