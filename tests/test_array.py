"""MultiDouble: what an array must do, compared with rationals and with numpy's own rules for shapes and indices."""

import copy
import os
import pickle
import subprocess
import sys
from fractions import Fraction

import inputs
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from multiple_doubles import assert_same_values, exact, value

import jaxmd

# The pytree


def test_flattening_keeps_anything():
    x = jaxmd.ones((2, 3), limbs=4)
    leaves, tree = jax.tree.flatten(x)
    assert len(leaves) == 4 and all(leaf.shape == (2, 3) for leaf in leaves)
    sentinel = [object(), None, "text", jax.ShapeDtypeStruct((7,), jnp.float32)]
    back = jax.tree.unflatten(tree, sentinel)
    assert isinstance(back, jaxmd.MultiDouble) and list(back.limbs) == sentinel
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(x)]
    assert paths == ["[0]", "[1]", "[2]", "[3]"]
    assert jax.eval_shape(lambda a: a + 1, x).shape == (2, 3)
    assert "MultiDouble" in repr(jax.tree.unflatten(tree, [None] * 4))


def test_frozen():
    x = jaxmd.ones(2)
    with pytest.raises(AttributeError, match=r"jaxmd\.MultiDouble: cannot set 'limbs'"):
        x.limbs = ()
    with pytest.raises(AttributeError):
        x.colour = 1
    with pytest.raises(AttributeError):
        del x.limbs
    with pytest.raises(TypeError):
        hash(x)


@pytest.mark.parametrize("limbs", [2, 16])
def test_copies_and_pickles_keep_bits(limbs):
    x = value("full", limbs)
    for y in (pickle.loads(pickle.dumps(x)), copy.copy(x), copy.deepcopy(x)):
        assert isinstance(y, jaxmd.MultiDouble)
        oracles.assert_bits(y, x)


def test_attributes():
    x = jaxmd.zeros((2, 3, 4), limbs=3)
    assert (x.num_limbs, x.shape, x.ndim, x.size, len(x)) == (3, (2, 3, 4), 3, 24, 2)
    assert x.T.shape == (4, 3, 2) and x.mT.shape == (2, 4, 3)
    assert [row.shape for row in x] == [(3, 4), (3, 4)]
    with pytest.raises(TypeError, match="len"):
        len(jaxmd.zeros(()))
    with pytest.raises(TypeError):
        iter(jaxmd.zeros(()))


# Layout, against numpy on the exact values


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.reshape(6, 4),
        lambda x: x.reshape((4, -1)),
        lambda x: x.reshape(-1),
        lambda x: x.ravel(),
        lambda x: x.flatten(),
        lambda x: x.transpose(),
        lambda x: x.transpose(2, 0, 1),
        lambda x: x.transpose((1, 0, 2)),
        lambda x: x.swapaxes(0, 2),
        lambda x: x.T,
        lambda x: x[1],
        lambda x: x[-1, ..., 0],
        lambda x: x[:, ::-2],
        lambda x: x[None, :, 1:, None],
        lambda x: x[np.array([0, 1, 0])],
        lambda x: x[:, np.array([[0, 2], [1, 1]]), 3],
        lambda x: x[np.array([True, False])],
    ],
)
def test_layout(change):
    x = value("full", 3, (2, 3, 4))
    assert np.array_equal(exact(change(x)), change(exact(x)))
    assert np.array_equal(exact(jax.jit(change)(x)), change(exact(x)))


def test_squeeze():
    x = jaxmd.ones((1, 3, 1))
    assert x.squeeze().shape == (3,) and x.squeeze(0).shape == (3, 1)


def test_traced_index():
    x = value("full", 2, (5, 2))
    assert np.array_equal(exact(jax.jit(lambda v, i: v[i])(x, 3)), exact(x)[3])


# with_limbs


@pytest.mark.parametrize("kind", ["full", "zero_rows", "cancelling", "limbwise_sums"])
@pytest.mark.parametrize(("old", "new"), [(2, 4), (4, 2), (1, 16), (16, 1), (3, 3)])
def test_with_limbs(kind, old, new):
    x = value(kind, old)
    y = x.with_limbs(new)
    assert y.num_limbs == new
    if new >= old:
        assert np.array_equal(exact(y), exact(x))
    else:
        assert_same_values(y, oracles.from_fractions(exact(x), new))


# Indexed updates


@pytest.mark.parametrize("limbs", [3])
@pytest.mark.parametrize("index", [0, -1, (1, 2), slice(None, None, 2), (Ellipsis, 1), (slice(1), None)])
def test_set_and_add(limbs, index):
    x, v = value("full", limbs, (3, 4)), value("full", limbs, (), 5)
    wanted = exact(x).copy()
    wanted[index] = exact(v)[()]
    assert np.array_equal(exact(jax.jit(lambda a: a.at[index].set(v))(x)), wanted)
    wanted = exact(x).copy()
    wanted[index] = wanted[index] + exact(v)[()]
    oracles.assert_within(jax.jit(lambda a: a.at[index].add(v))(x), wanted, limbs, 2)
    assert np.array_equal(exact(x.at[index].get()), exact(x)[index])


def test_add_where_indices_repeat():
    x = value("full", 3, (5,))
    v = value("spread", 4, (7,), 3)
    index = np.array([4, 0, 4, -1, 2, 4, 0])
    wanted, scale = exact(x).copy(), abs(exact(x))
    for i, entry in zip(index, exact(v), strict=True):
        wanted[i] += entry
        scale[i] += abs(entry)
    for add in (lambda a, b: a.at[index].add(b), jax.jit(lambda a, b: a.at[index].add(b))):
        result = add(x, v)
        assert result.num_limbs == 4
        oracles.assert_within(result, wanted, 4, 2 * (1 + 2), scale=scale)
    assert np.array_equal(exact(x)[[1, 3]], exact(result)[[1, 3]])


def test_gradients_of_updates_keep_all_digits():
    x, v, w = value("full", 4, (3,)), value("full", 4, (5,), 1), value("spread", 4, (3,), 2)
    index = np.array([2, 0, 2, 2, 0])
    _, pull = jax.vjp(lambda a, b: a.at[index].add(b) * w, x, v)
    for gradient, wanted in zip(pull(jaxmd.ones(3, 4)), (exact(w), exact(w)[index]), strict=True):
        oracles.assert_within(gradient, wanted, 4, 2)


def test_updates_out_of_bounds_are_dropped():
    x = value("full", 2, (3,))
    assert np.array_equal(exact(x.at[jnp.array([0, 7])].set(1)), [Fraction(1), *exact(x)[1:]])
    assert np.array_equal(exact(x.at[jnp.array([9, 7])].add(1)), exact(x))
    assert np.array_equal(exact(x.at[0:0].add(1)), exact(x))
    with pytest.raises(ValueError, match=r"jaxmd\.MultiDouble\.at\.set: value has shape \(4,\)"):
        x.at[:].set(jaxmd.ones(4))
    with pytest.raises(TypeError, match="str"):
        x.at[0].set("0.1")


def test_updates_raise_the_limb_count():
    x = jaxmd.dd([1, 2]).at[0].set(jaxmd.qd("0.1"))
    assert x.num_limbs == 4 and exact(x)[0] == exact(jaxmd.qd("0.1"))[()]


# Out


@pytest.mark.parametrize("kind", sorted(inputs.KINDS))
@pytest.mark.parametrize("limbs", [3])
def test_float64_is_rounded_once(kind, limbs):
    x = value(kind, limbs)
    wanted = np.vectorize(oracles.nearest, otypes=[float])(exact(x))
    assert np.array_equal(np.asarray(x), wanted) and np.array_equal(np.asarray(x.to_float64()), wanted)
    assert float(x[1, 2]) == wanted[1, 2]
    assert np.asarray(x, np.float32).dtype == np.float32


def test_scalars():
    assert float(jaxmd.dd("0.1")) == 0.1 and float(jaxmd.dd([["2"]])) == 2.0
    assert int(jaxmd.qd(2**200 + 1)) == 2**200 + 1 and int(jaxmd.dd("-2.5")) == -2
    assert bool(jaxmd.dd(5e-324)) and not bool(jaxmd.dd("-0")) and bool(jaxmd.dd("nan"))
    assert bool(jaxmd.from_limbs(np.float64(0), np.float64(1e-30), normalize=False))
    for f in (float, int, bool):
        with pytest.raises(TypeError, match=r"shape \(2,\); a single entry was wanted"):
            f(jaxmd.ones(2))
    with pytest.raises(ValueError, match="copy=False"):
        np.asarray(jaxmd.ones(2), copy=False)
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.jit(lambda v: 1 if v else 0)(jaxmd.ones(()))
    assert round(jaxmd.dd("2.5")) == 2
    with pytest.raises(TypeError, match="digits"):
        round(jaxmd.dd("2.5"), 1)


# The product's Python side: shapes (its values are tested in test_matmul.py)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((2, 3), (5, 3, 4)),
        ((6, 1, 2, 3), (5, 3, 4)),
        ((3,), (5, 3, 4)),
        ((5, 2, 3), (3,)),
        ((2, 0), (0, 4)),
        ((0, 3), (3, 2)),
        ((0, 2, 3), (3, 2)),
    ],
)
def test_product_shapes_follow_numpy(a, b):
    """Small integers: bit equality with numpy on integers."""
    rng = inputs.generator(a, b)
    x, y = rng.integers(-9, 10, a), rng.integers(-9, 10, b)
    wanted = np.matmul(x, y)
    addend = rng.integers(-9, 10, wanted.shape)
    for left, right in ((jaxmd.asarray(x, 3), jaxmd.asarray(y)), (jaxmd.asarray(x, 3), y), (x, jaxmd.asarray(y, 3))):
        result = left @ right
        assert result.num_limbs == 3 and result.shape == wanted.shape
        assert np.array_equal(np.asarray(result), wanted)
        result = jaxmd.matmul(left, right, addend=addend)
        assert np.array_equal(np.asarray(result), wanted + addend)
    result = jaxmd.matmul(jaxmd.asarray(x), y, addend=jaxmd.qd(1))
    assert result.num_limbs == 4 and np.array_equal(np.asarray(result), wanted + 1)


def test_product_errors():
    with pytest.raises(
        ValueError, match=r"jaxmd\.matmul: a has shape \(3, 4\) and b has shape \(5, 6\); the inner dim"
    ):
        jaxmd.ones((3, 4)) @ jaxmd.ones((5, 6))
    with pytest.raises(ValueError, match=r"a has shape \(3, 4\) and b has shape \(3,\)"):
        jaxmd.ones((3, 4)) @ jaxmd.ones((3,))
    with pytest.raises(TypeError, match=r"jaxmd\.matmul: a has shape \(\)"):
        jaxmd.ones(()) @ jaxmd.ones((3,))
    with pytest.raises(ValueError, match=r"jaxmd\.matmul: operands have shapes \(2,\) and \(3,\)"):
        jaxmd.ones((2, 1, 1)) @ jaxmd.ones((3, 1, 1))
    with pytest.raises(ValueError, match=r"jaxmd\.matmul: addend has shape \(3, 2\)"):
        jaxmd.matmul(jaxmd.ones((2, 2)), jaxmd.ones((2, 2)), addend=jaxmd.ones((3, 2)))
    with pytest.raises(TypeError, match=r"jaxmd\.matmul: b is str"):
        jaxmd.matmul(jaxmd.ones((2, 2)), "a")
    with pytest.raises(ValueError, match="engine"):
        jaxmd.matmul(jaxmd.ones((2, 2)), jaxmd.ones((2, 2)), engine="fast")


# Under transformations


def test_values_pass_through_control_flow():
    x = value("full", 3, (4,))
    total, partial = jax.lax.scan(lambda carry, row: (carry + row, carry * row), jaxmd.zeros((), 3), x)
    oracles.assert_within(total, np.array(sum(exact(x)), object), 3, 8, scale=np.array(sum(abs(exact(x))), object))
    assert partial.shape == (4,)
    picked = jax.lax.cond(True, lambda v: v + v, lambda v: v, x)
    assert np.array_equal(exact(picked), 2 * exact(x))
    out = jax.lax.fori_loop(0, 3, lambda i, v: v * 2, x)
    assert np.array_equal(exact(out), 8 * exact(x))
    assert np.array_equal(exact(jax.vmap(lambda v: v + 0)(x)), exact(x))


def test_gradients_of_broadcasting_keep_all_digits():
    """x meets many entries: the cotangents are added in multiple doubles, not limb by limb."""
    x, y = value("full", 4, (1, 3)), value("full", 4, (50, 3), 2)
    _, pull = jax.vjp(lambda v: v * y, x)
    (gradient,) = pull(jaxmd.ones((50, 3), 4))
    wanted = exact(y).sum(axis=0, keepdims=True)
    oracles.assert_within(gradient, wanted, 4, 4, scale=abs(exact(y)).sum(axis=0, keepdims=True))


def test_mixed_limb_counts_under_vjp():
    x, y = value("full", 2, (3,)), value("full", 4, (3,), 1)
    _, pull = jax.vjp(lambda a, b: a * b, x, y)
    dx, dy = pull(jaxmd.ones((3,), 4))
    assert (dx.num_limbs, dy.num_limbs) == (2, 4)
    oracles.assert_within(dx, exact(y), 2, 2)
    oracles.assert_within(dy, exact(x), 4, 2)


# Cases of users


def test_vmap_with_operands_that_do_not_all_carry_the_batch_axis():
    data = inputs.case("J02")
    a = jaxmd.asarray(data["inputs"]["A"]["data"], 4).reshape(2, 2)
    b, wanted = jaxmd.asarray(data["inputs"]["B"], 4), data["expected"]["C"]
    exact_c = np.vectorize(Fraction, otypes=[object])(np.array(wanted, object))
    exact_b = exact(jaxmd.asarray(data["inputs"]["B"], 4))
    loop = [a @ b[i] for i in range(3)]
    oracles.assert_within(jaxmd.stack(loop), exact_c, 4, 8, scale=abs(exact(a)) @ abs(exact_b))
    mapped = jax.vmap(jaxmd.matmul, (None, 0))(a, b)
    for i in range(3):
        oracles.assert_bits(mapped[i], loop[i])
    moved = jax.vmap(jaxmd.matmul, (None, 1))(a, b.swapaxes(0, 1))
    oracles.assert_bits(moved, mapped)
    nested = jax.vmap(jax.vmap(jaxmd.matmul, (None, 0)), (0, None))(jaxmd.stack([a, a]), b)
    oracles.assert_bits(nested[1], mapped)


def test_eighth_power():
    data = inputs.case("A12")
    x = jaxmd.dd(data["inputs"]["a"]) / int(data["inputs"]["b"])
    wanted = Fraction(111, 100000) ** 8
    error = abs(exact(x**8)[()] - wanted) / wanted
    assert error < Fraction(1, 10 ** data["expected"]["dd_min_correct_digits"])
    assert jaxmd.to_strings(x**8, 17) == data["expected"]["value"]


@pytest.mark.parametrize(
    "code",
    [
        'jaxmd.asarray("0.1")',
        "jaxmd.dd([[1, 2], [3, 4]]) @ jaxmd.dd([[1, 2], [3, 4]])",
        "jaxmd.ones((2, 2))",
        "jaxmd.matmul(np.ones((2, 2)), np.ones((2, 2)))",
        "jax.jit(lambda: jaxmd.eye(2))()",
    ],
)
def test_x64_off_is_a_clear_error(code):
    """J01, in this process: the switch is judged where the call is traced."""
    names = {"jaxmd": jaxmd, "jax": jax, "np": np}
    with jax.enable_x64(False), pytest.raises(TypeError, match=r"limbs are float64 but jax_enable_x64 is off; call"):
        eval(code, names)
    eval(code, names)


def test_values_made_with_x64_are_refused_without():
    x = jaxmd.ones((2, 2))
    with jax.enable_x64(False):
        for f in (lambda: x + x, lambda: x @ x, lambda: x[0], lambda: x.T, lambda: -x, lambda: x == x, lambda: abs(x)):
            with pytest.raises(TypeError, match="jax_enable_x64 is off"):
                f()


@pytest.mark.slow
def test_import_without_x64():
    """J01, in a process of its own: import works, the first use says what to do, a context is enough."""
    assert inputs.case("J01")["expected"]["wanted"].startswith("a clear error")
    code = (
        "import jax, jaxmd\n"
        "try: jaxmd.asarray('0.1')\n"
        "except TypeError as error: print(error)\n"
        "with jax.enable_x64(True): print(float(jaxmd.dd('0.5')))\n"
    )
    env = {**os.environ, "JAX_ENABLE_X64": "0"}
    out = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, env=env)
    out = out.stdout.splitlines()
    assert out[0].startswith("jaxmd.asarray: limbs are float64 but jax_enable_x64 is off") and out[1] == "0.5"
