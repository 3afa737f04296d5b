"""Derivatives of functions of MultiDoubles against exact rationals, and what joins and `copies` do to their digits."""

from fractions import Fraction
from math import isqrt

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inputs import full, generator
from jax.sharding import AxisType, PartitionSpec
from oracles import assert_bits, assert_normalized, assert_within, error_in_units, fractions

import jaxmd._arith as arith
from jaxmd._array import MultiDouble
from jaxmd._autodiff import grad, hessian, jacfwd, jacrev, value_and_grad, vjp

L = 4


def number(*name, shape=(), limbs=L):
    return MultiDouble(tuple(map(jnp.asarray, full(generator(*name), shape, limbs))))


def copies(x, n):
    return [MultiDouble(limbs) for limbs in arith.copies(x.limbs, n)]


def total(x):
    return MultiDouble(arith.reduce_sum(x.limbs, tuple(range(x.ndim)), x.num_limbs))


def cubic(x):
    """Σ x³, each use of x a copy."""
    a, b, c = copies(x, 3)
    return total(a * b * c)


def test_gradient():
    x = number("x", shape=(5,))
    value, gradient = value_and_grad(cubic)(x)
    assert isinstance(gradient, MultiDouble)
    assert_within(value, sum(fractions(x) ** 3), L, 8, scale=sum(abs(fractions(x)) ** 3))
    assert_within(gradient, 3 * fractions(x) ** 2, L, 8)
    assert_normalized(gradient)
    assert_bits(grad(cubic)(x), gradient)
    assert_bits(jax.jit(grad(cubic))(x), gradient)


@pytest.mark.parametrize(
    "f, slope",
    [(lambda x: x * x, lambda x: 2 * x), (lambda x: x + x, lambda x: 0 * x + 2), (lambda x: x - x, lambda x: 0 * x)],
)
def test_the_same_operand_twice(f, slope):
    """x * x keeps all digits by itself, though x is used twice."""
    x = number("twice")
    assert_within(grad(f)(x), slope(fractions(x)), L, 4)


def test_joins_lose_digits_and_copies_keep_them():
    """The cotangents x + 1 and x of the two uses of x: added limb by limb they are right to a double only."""
    one = MultiDouble((jnp.float64(1), *[jnp.float64(0)] * (L - 1)))

    def joined(x):
        return x * (x + one)

    def copied(x):
        a, b = copies(x, 2)
        return a * (b + one)

    worst = {"joined": 0.0, "copied": 0.0}
    for i in range(20):
        x = number("join", i)
        exact = 2 * fractions(x) + 1
        for name, f in (("joined", joined), ("copied", copied)):
            worst[name] = max(worst[name], error_in_units(grad(f)(x), exact, L))
        assert_within(jacfwd(joined)(x), exact, L, 4)  # forward mode has no joins
    assert worst["copied"] <= 4
    assert worst["joined"] > 2.0 ** (53 * (L - 1) - 12), "JAX's own sum became exact: say so in _autodiff.py"


def test_argnums_pytrees_and_aux():
    x, y, w = number("a", shape=(3,)), number("b", shape=(3,)), jnp.array([1.0, -2.0, 0.5])

    def f(tree, y, power, *, sign):
        x, w = tree
        weight = MultiDouble(arith.from_float64(w, L))
        value = total(x * y * weight) * sign
        return value, power

    (value, aux), gradients = value_and_grad(f, argnums=(0, -2), has_aux=True)((x, w), y, 3, sign=-1)
    assert aux == 3 and isinstance(value, MultiDouble)
    (gx, gw), gy = gradients
    weights = fractions([w])
    assert_within(gx, -fractions(y) * weights, L, 8)
    assert_within(gy, -fractions(x) * weights, L, 8)
    assert gw.dtype == jnp.float64 and gw.shape == (3,)
    assert_within([gw], -fractions(x) * fractions(y), 1, 2)
    only, aux = grad(f, has_aux=True)((x, w), y, 3, sign=-1)
    assert_bits(only[0], gx)
    assert aux == 3


def test_vjp():
    x, y = number("x", shape=(2, 3)), number("y", shape=(2, 3))
    value, pull = vjp(lambda x, y: {"product": x * y}, x, y)
    for limbs in (1, L, L + 2):
        ct = number("ct", shape=(2, 3), limbs=limbs)
        cx, cy = pull({"product": ct})
        assert cx.num_limbs == L
        assert_within(cx, fractions(ct) * fractions(y), L, 4)
        assert_within(cy, fractions(ct) * fractions(x), L, 4)
    assert_bits(value["product"], x * y)
    out, _, aux = vjp(lambda x: (x * x, "kept"), x, has_aux=True)
    assert aux == "kept" and out.shape == (2, 3)


@pytest.mark.parametrize("jacobian", [jacfwd, jacrev])
def test_jacobians(jacobian):
    """Of [x_i · x_j] in x, of a pair of arguments, and of a tree of values."""
    x, y = number("x", shape=(3,)), number("y", shape=(2,))

    def outer(x, y):
        rows = MultiDouble(arith.broadcast_to(x.reshape(3, 1).limbs, (3, 2)))
        columns = MultiDouble(arith.broadcast_to(y.limbs, (3, 2)))
        return {"outer": rows * columns, "square": x * x}

    result = jacobian(outer, argnums=(0, 1))(x, y)
    dx, dy = result["outer"]
    exact = np.full((3, 2, 3), Fraction(0), dtype=object)
    for i in range(3):
        exact[i, :, i] = fractions(y)
    assert_within(dx, exact, L, 4)
    assert dy.shape == (3, 2, 2)
    assert_within(dy[:, 1, 1], fractions(x), L, 4)
    assert_within(result["square"][0], np.diag(2 * fractions(x)) + Fraction(0), L, 4)
    assert not np.any(fractions(result["square"][1]))
    single = jax.jit(jacobian(lambda x: x * x))(x)
    assert_bits(single, result["square"][0])


def test_hessian():
    x = number("x", shape=(3,))

    def f(x):
        a, b = copies(x, 2)
        return cubic(a) + cubic(b[::-1] * b)

    exact = np.full((3, 3), Fraction(0), dtype=object)
    v = fractions(x)
    for i in range(3):
        j = 2 - i
        # Σ x_i³ + Σ (x_i x_j)³, j the mirror image of i; each pair i ≠ j occurs twice, the middle alone as x⁶.
        if i == j:
            exact[i, i] = 6 * v[i] + 30 * v[i] ** 4
        else:
            exact[i, i] = 6 * v[i] + 12 * v[i] * v[j] ** 3
            exact[i, j] = 18 * v[i] ** 2 * v[j] ** 2
    result = hessian(f)(x)
    assert result.shape == (3, 3)
    # b and its mirror image are a join: right to a double here, see the next test for all digits.
    assert_within(MultiDouble(result.limbs[:1]), exact, 1, 2.0**6, scale=np.abs(exact) + 1)
    assert_bits(jax.jit(hessian(f))(x), result)


def test_hessian_keeps_all_digits_with_copies():
    x = number("x", shape=(4,))
    exact = np.full((4, 4), Fraction(0), dtype=object)
    np.fill_diagonal(exact, 6 * fractions(x))
    assert_within(hessian(cubic)(x), exact, L, 16)


def test_scan_and_vmap():
    """Newton's iteration for √a, differentiated through the loop; batched."""
    a = MultiDouble((jnp.array([2.0, 3.0, 5.0]), *[jnp.zeros(3)] * (L - 1)))
    half = MultiDouble((jnp.float64(0.5), *[jnp.float64(0)] * (L - 1)))

    def newton(a):
        def step(carry, _):
            x, a = carry
            x1, x2 = copies(x, 2)
            now, later = copies(a, 2)
            return ((x1 + now / x2) * half, later), None

        (x, _), _ = jax.lax.scan(step, (half + half, a), None, length=10)
        return x

    derivative = jax.vmap(grad(newton))(a)
    bits = 53 * L + 80
    exact = [Fraction(1 << bits, 2 * isqrt(n << 2 * bits)) for n in (2, 3, 5)]  # 1/(2√n)
    assert_within(derivative, np.array(exact, dtype=object), L, 64)


def test_gradient_under_shard_map():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:4])
    x = number("x", shape=(4,))
    local = jax.shard_map(grad(cubic), mesh=mesh, in_specs=PartitionSpec("x"), out_specs=PartitionSpec("x"))
    assert_bits(jax.jit(local)(x), grad(cubic)(x))


def test_errors():
    x = number("x", shape=(3,))
    with pytest.raises(TypeError, match=r"jaxmd.grad: the function returned a MultiDouble of shape \(3,\); a scalar"):
        grad(lambda x: x)(x)
    with pytest.raises(TypeError, match=r"jaxmd.grad: the function returned a float; a scalar MultiDouble was wanted"):
        grad(lambda x: 1.0)(x)
    with pytest.raises(TypeError, match=r"jaxmd.jacfwd: argument 0 holds an array of dtype int64 and shape \(2,\)"):
        jacfwd(lambda n: n)(jnp.arange(2))
    with pytest.raises(ValueError, match=r"jaxmd.grad: argnums is 1 and 1 positional arguments came"):
        grad(total, argnums=1)(x)
    with jax.enable_x64(False), pytest.raises(TypeError, match=r"jaxmd.grad: limbs are float64 but jax_enable_x64"):
        grad(total)(x)
