"""Prepared factors: bits and bound of the unprepared product, under transformations, and clear errors."""

import inputs
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

import jaxmd
from jaxmd import MultiDouble, _magnitudes


def numbers(seed, shape, limbs=2, spread=0.0):
    return MultiDouble(tuple(map(jnp.asarray, inputs.full(inputs.generator(seed), shape, limbs, spread))))


def bits(x, y):
    oracles.assert_bits(x.limbs, y.limbs)


@pytest.mark.parametrize("spread", [0.0, 25.0])
def test_normwise_gives_the_bits_of_the_unprepared_product(spread):
    a, b = numbers("left", (9, 40), 2, spread), numbers("right", (40, 7), 2, spread)
    whole = jaxmd.matmul(a, b, engine="int8", accuracy="normwise")
    assert oracles.product_error(whole.limbs, a.limbs, b.limbs, 2, normwise=True) <= 1
    left, right = jaxmd.prepare(a, "left"), jaxmd.prepare(b, "right")
    multiply = jax.jit(lambda x, y: jaxmd.matmul(x, y, accuracy="normwise"))
    for x, y in ((left, b), (a, right), (left, right)):
        bits(multiply(x, y), whole)
    assert left.shape == (9, 40) and "side='left'" in repr(left)


@pytest.mark.parametrize("limbs, k, spread", [(2, 40, 0.0), (2, 40, 25.0), (1, 300, 0.0)])
def test_componentwise_is_within_the_bound(limbs, k, spread):
    """Ordinary data; spread data, which the magnitudes do not certify; words longer than the unprepared product's."""
    a, b = numbers("left", (9, k), limbs, spread), numbers("right", (k, 7), limbs, spread)
    left, right = jaxmd.prepare(a, "left"), jaxmd.prepare(b, "right")
    assert (left.plan == _magnitudes.base(k, limbs)[0]) == (k < 256)
    multiply = jax.jit(jaxmd.matmul)
    c = multiply(left, right)
    assert oracles.product_error(c.limbs, a.limbs, b.limbs, limbs) <= 1
    operators = () if k > 40 else (left @ b, a @ right, left @ right)
    for other in (multiply(left, b), multiply(a, right), *operators):
        bits(other, c)


def test_vectors_batches_and_addend():
    a, b, d = numbers("a", (5, 12)), numbers("b", (3, 12, 4)), numbers("d", (3, 5, 4))
    left, right = jaxmd.prepare(a, "left"), jaxmd.prepare(b, "right")
    wanted = jaxmd.matmul(a, b, engine="int8", addend=d)
    assert oracles.product_error(wanted.limbs, [np.stack([x] * 3) for x in a.limbs], b.limbs, 2, addend=d.limbs) <= 1
    for x, y in ((left, b), (a, right), (left, right)):
        c = jaxmd.matmul(x, y, addend=d)
        error = oracles.product_error(c.limbs, [np.stack([x] * 3) for x in a.limbs], b.limbs, 2, addend=d.limbs)
        assert c.shape == (3, 5, 4) and error <= 1
    vector = jaxmd.matmul(left, b[0, :, 0])
    assert vector.shape == (5,)
    assert oracles.product_error([x[:, None] for x in vector.limbs], a.limbs, b[0, :, :1].limbs, 2) <= 1


@pytest.mark.parametrize("sizes", [(0, 4, 7, 5), (3, 0, 7, 5), (3, 4, 0, 5), (3, 4, 7, 0)])
def test_axes_of_length_zero(sizes):
    size, m, k, n = sizes
    left, right = jaxmd.prepare(jaxmd.ones((m, k)), "left"), jaxmd.prepare(jaxmd.ones((k, n)), "right")
    a, b, addend = jaxmd.ones((size, m, k)), jaxmd.ones((size, k, n)), jaxmd.ones((size, m, n))
    for c in (left @ b, a @ right, jax.vmap(lambda x: left @ x)(b), jax.vmap(lambda x: x @ right)(a)):
        np.testing.assert_array_equal(c.limbs, np.zeros((2, size, m, n)))
    for c in (jaxmd.matmul(left, b, addend=addend), jaxmd.matmul(a, right, addend=addend)):
        np.testing.assert_array_equal(c.limbs, addend.limbs)


def test_under_vmap_scan_and_as_an_argument():
    a, b = numbers("a", (5, 12)), numbers("b", (3, 12, 4))
    left = jaxmd.prepare(a, "left")
    wanted = [jaxmd.matmul(a, b[i], engine="int8", accuracy="normwise") for i in range(3)]
    multiply = lambda x, y: jaxmd.matmul(x, y, accuracy="normwise")
    mapped = jax.jit(jax.vmap(multiply, (None, 0)))(left, b)
    both = jax.vmap(lambda x, y: multiply(jaxmd.prepare(x, "left"), y))(jaxmd.stack([a, a, a]), b)
    every = jax.vmap(multiply)(jax.vmap(lambda x: jaxmd.prepare(x, "left"))(jaxmd.stack([a, a, a])), b)
    batched = jaxmd.prepare(jaxmd.stack([a, a, a]), "left")
    whole = jax.vmap(multiply)(batched, b)
    other = jax.vmap(multiply, (0, None))(batched, b[1])
    pair = jax.vmap(multiply)(batched, jaxmd.prepare(b, "right"))
    mapped_first = multiply(jax.vmap(lambda x: jaxmd.prepare(x, "left"))(jaxmd.stack([a, a, a])), b)
    _, over = jax.lax.scan(lambda carry, x: (carry, multiply(x, b[1])), 0, batched)
    for i in range(3):
        for c in (whole, pair, mapped_first):
            bits(c[i], wanted[i])
        for c in (other, over):
            bits(c[i], wanted[1])
    right = jax.vmap(multiply, (0, None))(jaxmd.stack([a, -a]), jaxmd.prepare(b[0], "right"))
    _, scanned = jax.lax.scan(lambda carry, y: (carry, multiply(left, y)), 0, b)
    for i in range(3):
        for c in (mapped, both, every, scanned):
            bits(c[i], wanted[i])
    bits(right[0], wanted[0])
    bits(-right[1], wanted[0])


def test_derivatives():
    a, b = numbers("a", (4, 6), 3), numbers("b", (6, 5), 3)
    da, db, ct = numbers("da", (4, 6), 3), numbers("db", (6, 5), 3), numbers("ct", (4, 5), 3)
    left = jaxmd.prepare(a, "left")
    _, tangent = jax.jvp(lambda y: jaxmd.matmul(left, y), (b,), (db,))
    assert oracles.product_error(tangent.limbs, a.limbs, db.limbs, 3) <= 1
    _, pullback = jax.vjp(lambda y: jaxmd.matmul(left, y), b)
    assert oracles.product_error(pullback(ct)[0].limbs, a.T.limbs, ct.limbs, 3) <= 1
    _, pullback = jax.vjp(lambda p: jaxmd.matmul(p, b), left)
    assert oracles.product_error(pullback(ct)[0].limbs, ct.limbs, b.T.limbs, 3) <= 1
    f = lambda x: jaxmd.matmul(jaxmd.prepare(x, "left"), b)
    _, tangent = jax.jvp(f, (a,), (da,))
    assert oracles.product_error(tangent.limbs, da.limbs, b.limbs, 3) <= 1
    _, pullback = jax.vjp(f, a)
    assert oracles.product_error(pullback(ct)[0].limbs, ct.limbs, b.T.limbs, 3) <= 1


def test_refusals():
    a, b = numbers("a", (4, 6)), numbers("b", (6, 5))
    left, right = jaxmd.prepare(a, "left"), jaxmd.prepare(b, "right")
    with pytest.raises(ValueError, match="b was prepared as the left factor"):
        jaxmd.matmul(a.T @ a, left)
    with pytest.raises(ValueError, match="inner dimensions must agree"):
        jaxmd.matmul(left, numbers("c", (5, 5)))
    with pytest.raises(ValueError, match="an operand has 4 limbs and the prepared factor is for products of 2"):
        jaxmd.matmul(left, numbers("c", (6, 5), 4))
    with pytest.raises(ValueError, match="a was prepared for 3 limbs and b for 2"):
        jaxmd.matmul(jaxmd.prepare(a, "left", limbs=3), right)
    with pytest.raises(ValueError, match="accuracy is 'exact'"):
        jaxmd.matmul(left, right, accuracy="exact")
    with pytest.raises(ValueError, match="engine is 'fp64'"):
        jaxmd.matmul(left, right, engine="fp64")
    with pytest.raises(ValueError, match="a was prepared as the right factor"):
        right @ left
    for wrong in (lambda: left @ "text", lambda: None @ right, lambda: [[1.0] * 6] @ right):
        with pytest.raises(TypeError, match="unsupported operand"):
            wrong()
    with pytest.raises(ValueError, match="side is 'middle'"):
        jaxmd.prepare(a, "middle")
    with pytest.raises(TypeError, match="at least two axes"):
        jaxmd.prepare(a[0], "left")
    with pytest.raises(ValueError, match="limbs is 17"):
        jaxmd.prepare(a, "left", limbs=17)
    assert jaxmd.matmul(left, np.ones((6, 2))).num_limbs == 2
    for product in (lambda: np.ones((4, 6)) @ right, lambda: jnp.ones((4, 6)) @ right, lambda: left @ np.ones((6, 5))):
        assert jax.eval_shape(product).shape == (4, 5)
    assert jaxmd.matmul(jaxmd.prepare(MultiDouble(a.limbs[:1]), "left"), np.ones((6, 2))).num_limbs == 1
