"""The product under transforms: batches, derivatives, levels under vmap, export, shard_map; truth is exact integers."""

import functools

import inputs
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

import jaxmd
from jaxmd import _engines, _ffi, _matmul, _product, _slices
from jaxmd._matmul import matmul_limbs

ENGINES = ["int8", "fp64", "direct"]


@functools.partial(jax.jit, static_argnames=("limbs", "engine", "accuracy"))
def product(a, b, addend=None, *, limbs, engine="auto", accuracy="componentwise"):
    return matmul_limbs(a, b, limbs=limbs, engine=engine, accuracy=accuracy, addend=addend)


def at(x, index):
    """The entry (or slice) `index` of every limb."""
    return tuple(np.asarray(limb)[index] for limb in x)


# --- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "shapes", [((3, 4, 5), (5, 2)), ((4, 5), (3, 5, 2)), ((2, 1, 4, 5), (3, 5, 2)), ((3, 4, 5), (3, 5, 2))]
)
def test_batch_ranks_broadcast(shapes, engine):
    rng = inputs.generator("broadcast", shapes)
    a, b = (inputs.full(rng, shape, 2) for shape in shapes)
    c = product(a, b, limbs=2, engine=engine)
    batch = np.broadcast_shapes(shapes[0][:-2], shapes[1][:-2])
    assert c[0].shape == (*batch, 4, 2)
    for index in np.ndindex(batch):
        x, y = (at([np.broadcast_to(v, (*batch, *v.shape[-2:])) for v in z], index) for z in (a, b))
        assert oracles.product_error(at(c, index), x, y, 2) <= 1


@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (1, 2), (-1, 0)])
def test_vmap_over_any_axis(in_axes):
    rng = inputs.generator("vmap", in_axes)
    a, b = inputs.full(rng, (4, 5), 2), inputs.full(rng, (5, 2), 2)
    stacks = []
    for x, axis in zip((a, b), in_axes):
        stacks.append(x if axis is None else tuple(np.stack([v, 2 * v, -v], axis) for v in x))
    mapped = jax.vmap(functools.partial(product, limbs=2, engine="fp64"), in_axes)(*stacks)
    for i in range(3):
        x, y = (s if axis is None else tuple(np.take(v, i, axis) for v in s) for s, axis in zip(stacks, in_axes))
        assert oracles.product_error(at(mapped, i), x, y, 2) <= 1


@pytest.mark.parametrize("sizes", [(0, 4, 7, 5), (3, 0, 7, 5), (3, 4, 0, 5), (3, 4, 7, 0), (0, 0, 0, 0)])
def test_vmap_over_one_factor_with_an_axis_of_length_zero(sizes):
    size, m, k, n = sizes
    a, b, one, two = (jaxmd.ones(shape) for shape in ((size, m, k), (k, n), (m, k), (size, k, n)))
    for engine in ("int8", "fp64", "direct", "auto"):
        f = functools.partial(jaxmd.matmul, engine=engine)
        for c in (jax.vmap(f, (0, None))(a, b), jax.vmap(f, (None, 0))(one, two), f(a, b), f(one, two)):
            np.testing.assert_array_equal(c.limbs, np.zeros((2, size, m, n)))


def test_nested_vmap_with_one_batched_limb():
    """Only the low limb of B carries the axis: JAX may batch limbs apart."""
    rng = inputs.generator("nested")
    a, b = inputs.full(rng, (4, 5), 2), inputs.full(rng, (5, 2), 2)
    lows = np.stack([b[1], -b[1], 0 * b[1]])
    inner = jax.vmap(lambda high, low: product(a, (high, low), limbs=2), (None, 0))
    c = jax.vmap(inner, (None, 0))(b[0], np.stack([lows, lows]))
    for i, low in enumerate(lows):
        assert oracles.product_error(at(c, np.s_[1, i]), a, (b[0], low), 2) <= 1


def test_normwise_bits_do_not_depend_on_batch_or_neighbours():
    rng = inputs.generator("normwise")
    a, b = inputs.full(rng, (3, 20, 30), 2, 2.0), inputs.full(rng, (3, 30, 20), 2, 2.0)
    run = functools.partial(product, limbs=2, accuracy="normwise")
    whole = run(a, b)
    for i in range(3):
        part = run(at(a, np.s_[i, 3:9]), at(b, np.s_[i, :, 5:6]))
        oracles.assert_bits(part, at(whole, np.s_[i, 3:9, 5:6]))
        assert oracles.product_error(at(whole, i), at(a, i), at(b, i), 2, normwise=True) <= 1


def test_same_bits_every_time_and_under_scan():
    rng = inputs.generator("again")
    a, b = inputs.full(rng, (4, 33, 40), 3), inputs.full(rng, (40, 35), 3)
    f = functools.partial(product, limbs=3, engine="direct")
    _, scanned = jax.lax.scan(lambda carry, x: (carry, f(x, b)), 0, a)
    for i in range(4):
        alone = f(at(a, i), b)
        oracles.assert_bits(at(scanned, i), alone)
        oracles.assert_bits(f(at(a, i), b), alone)


# --- levels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize(("spread", "level"), [(0.0, 0), (20.0, 2)])
def test_products_run_are_those_of_one_level(monkeypatch, spread, level, batch):
    """Counted as they run: under vmap too, the level is one branch taken and never a select over all levels."""
    k, ran = 41 + level, []
    dot = _product.dot

    def counted(a, b):
        pairs = np.int64(a.shape[-1] // k)
        once = jax.pure_callback(lambda n: ran.append(int(n)) or np.float64(0), jax.ShapeDtypeStruct((), "f8"), pairs)
        return dot(a, b) + jnp.broadcast_to(once, (*a.shape[:-1], b.shape[-1]))

    monkeypatch.setattr(_product, "dot", counted)
    rng = inputs.generator("count", spread, batch)
    a, b = (inputs.full(rng, (*batch, *s), 2, spread) for s in ((40, k), (k, 40)))
    f = functools.partial(matmul_limbs, limbs=2, engine="fp64")
    jax.block_until_ready(jax.jit(jax.vmap(f) if batch else f)(a, b))
    count = _slices.plan(2, k, _engines.GUARD_LEVELS[level]).count
    assert sum(ran) == count * (count + 1) // 2


def test_levels_rise_with_the_spread():
    """ESC of the data decides: ordinary data stay at the base level, wide data leave it, both inside the contract."""
    rng = inputs.generator("levels")
    plans = [_slices.plan(2, 64, guard) for guard in _engines.GUARD_LEVELS]
    found = []
    for spread in (0.0, 4.0, 12.0):
        a, b = inputs.full(rng, (64, 64), 2, spread), inputs.full(rng, (64, 64), 2, spread)
        exponents = [np.frexp(x[0])[1].astype(int) for x in (a, b)]
        span = (exponents[0][:, :, None] + exponents[1][None]).max(axis=1)
        needed = exponents[0].max(1)[:, None] + exponents[1].max(0)[None] - span
        found.append(int(_engines.lowest_level([jnp.asarray(needed > p.guard) for p in plans])))
    assert found[0] == 0 and found == sorted(found) and found[-1] == 2


def test_plan_obligations():
    """Digits sum exactly, and the guard is what the slices leave: checked in integers for every L and many k."""
    for limbs in range(1, 17):
        for k in (1, 2, 3, 17, 64, 1000, 4096, 2**17, 2**20 + 1):
            for guard in (0, *_engines.GUARD_LEVELS):
                p = _slices.plan(limbs, k, guard)
                assert p.guard >= guard
                assert k * p.count * 4 ** (p.width - 1) <= 2**53
                # (count + 3) 2^(guard + 2 - width count) <= 2^(-53 limbs)
                assert (p.count + 3) * 2 ** (p.guard + 2 + 53 * limbs) <= 2 ** (p.width * p.count)
    # 21, 78, 276, 1176 products at k = 4096
    assert [_slices.plan(limbs, 4096, 4).count for limbs in (2, 4, 8, 16)] == [6, 12, 23, 48]


# --- derivatives -----------------------------------------------------------------------------------------------------


def test_jvp_and_vjp_keep_all_digits():
    rng = inputs.generator("derivatives")
    limbs = 3
    a, da = (inputs.full(rng, (4, 6), limbs) for _ in range(2))
    b, db = (inputs.full(rng, (6, 5), limbs) for _ in range(2))
    ct, d, dd = (inputs.full(rng, (4, 5), limbs) for _ in range(3))
    f = functools.partial(product, limbs=limbs)
    _, tangent = jax.jvp(f, (a, b, d), (da, db, dd))
    left = tuple(np.concatenate(pair, axis=1) for pair in zip(da, a))  # dA B + A dB = [dA A] [B; dB]
    right = tuple(np.concatenate(pair) for pair in zip(b, db))
    assert oracles.product_error(tangent, left, right, limbs, addend=dd) <= 1
    _, pullback = jax.vjp(f, a, b, d)
    ga, gb, gd = pullback(tuple(map(jnp.asarray, ct)))
    assert oracles.product_error(ga, ct, tuple(v.T for v in b), limbs) <= 1
    assert oracles.product_error(gb, tuple(v.T for v in a), ct, limbs) <= 1
    oracles.assert_bits(gd, ct)


def test_second_derivative_and_grad_of_a_batch():
    rng = inputs.generator("second")
    a, b = inputs.full(rng, (2, 3, 3), 2), inputs.full(rng, (3, 3), 2)

    def f(y):
        return product(a, y, limbs=2)

    def g(y):
        return jax.vjp(f, y)[1](f(y))[0]  # A^T A y

    _, tangent = jax.jvp(g, (b,), (b,))
    a0, a1 = at(a, 0), at(a, 1)
    gram = oracles.product_fractions(tuple(v.T for v in a0), a0) + oracles.product_fractions(tuple(v.T for v in a1), a1)
    exact = gram @ oracles.fractions(b)
    scale = np.abs(exact) + 9
    oracles.assert_within(tangent, exact, 2, 24, scale)


# --- engines, errors, export, sharding -------------------------------------------------------------------------------


def test_auto_is_a_pure_function_of_the_shapes(monkeypatch):
    choose = _matmul.choose_engine
    for isa, fast in (("avx2", "int8"), ("portable", "fp64")):
        monkeypatch.setattr(_ffi, "cpu_features", lambda isa=isa: {"isa": isa})
        assert choose((999, 999), (999, 999), 4, platform="cpu") == fast
    both = {"amx_int8": True, "avx512_vnni": True}
    for instructions, least in ((both, 128), ({"avx512_vnni": True}, 204), ({}, 646)):
        features = {"isa": "avx512", "avx512_vnni": False, "amx_int8": False} | instructions
        monkeypatch.setattr(_ffi, "cpu_features", lambda features=features: features)
        for n, engine in ((least, "int8"), (least - 1, "direct")):
            assert choose((n, n), (n, n), 2, platform="cpu") == engine
            assert choose((n, n), (n, n), 4, platform="cpu") == "int8"
    monkeypatch.undo()
    assert choose((999, 999), (999, 999), 4, platform="cuda") == "int8"
    assert choose((500,), (500, 500), 4, platform="cpu") == "direct"
    assert choose((4, 4), (4, 4), 4, platform="cuda") == "direct"
    assert choose((4, 4), (4, 4), 4, accuracy="normwise", platform="cuda") == "int8"
    assert choose((4, 4), (4, 4), 1, platform="cuda") == "float64"
    assert choose((128, 128), (128, 128), 2, platform="cuda") == "direct"
    assert choose((1024, 128, 128), (1024, 128, 128), 2, platform="cuda") == "int8"
    assert choose((1024, 16, 16), (1024, 16, 16), 2, platform="cuda") == "direct"
    assert choose((4, 4), (4, 4), 2, accuracy="exact", platform="cpu") == "direct"
    assert choose((64, 64), (64, 64), 1, accuracy="exact", platform="cpu") == "int8"
    assert choose((500, 500), (500, 500), 2) in ENGINES
    rng = inputs.generator("auto")
    for shape, limbs in (((256, 300, 500), 1), ((3, 5, 2), 2), ((70, 40, 60), 3)):
        a, b = inputs.full(rng, shape[:2], limbs), inputs.full(rng, shape[1:], limbs)
        picked = choose(shape[:2], shape[1:], limbs)
        oracles.assert_bits(product(a, b, limbs=limbs), product(a, b, limbs=limbs, engine=picked))


def test_refusals():
    x = (jnp.ones((3, 4)), jnp.zeros((3, 4)))
    with pytest.raises(ValueError, match=r"a has shape \(3, 4\) and b has shape \(3, 4\); the inner dimensions must"):
        matmul_limbs(x, x, limbs=2)
    y = tuple(v.T for v in x)
    with pytest.raises(ValueError, match="engine is 'int9'"):
        matmul_limbs(x, y, limbs=2, engine="int9")
    with pytest.raises(ValueError, match="accuracy is 'perfect'"):
        matmul_limbs(x, y, limbs=2, accuracy="perfect")
    with pytest.raises(ValueError, match="'direct' rounds as it sums"):
        matmul_limbs(x, y, limbs=2, engine="direct", accuracy="normwise")
    with pytest.raises(ValueError, match="engine 'float64' multiplies single limbs; a has 2, b has 2"):
        matmul_limbs(x, y, limbs=2, engine="float64")
    with pytest.raises(ValueError, match="engine 'float64' rounds as it sums"):
        matmul_limbs(x[:1], y[:1], limbs=1, engine="float64", accuracy="exact")
    with pytest.raises(ValueError, match="limbs is 17"):
        matmul_limbs(x, y, limbs=17)
    with pytest.raises(TypeError, match="float32"):
        matmul_limbs(tuple(v.astype(jnp.float32) for v in x), y, limbs=2)
    with jax.enable_x64(False), pytest.raises(TypeError, match="jax_enable_x64 is off"):
        product(x, y, limbs=2)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_export_with_symbolic_shapes(platform):
    b, m, n = jax.export.symbolic_shape("b, m, n")
    shapes = [jax.ShapeDtypeStruct(s, jnp.float64) for s in ((b, m, 40), (b, 40, n))]
    f = jax.jit(functools.partial(matmul_limbs, limbs=2))
    exported = jax.export.export(f, platforms=[platform], disabled_checks=_ffi.export_checks())(
        (shapes[0],) * 2, (shapes[1],) * 2
    )
    again = jax.export.deserialize(exported.serialize())
    assert again.platforms == (platform,)
    if platform == "cpu":
        rng = inputs.generator("export")
        x, y = inputs.full(rng, (2, 5, 40), 2), inputs.full(rng, (2, 40, 3), 2)
        assert oracles.product_error(again.call(x, y), x, y, 2) <= 1
    (k,) = jax.export.symbolic_shape("k")
    bad = [jax.ShapeDtypeStruct(s, jnp.float64) for s in ((4, k), (k, 4))]
    with pytest.raises(ValueError, match="contracted dimension k is symbolic"):
        jax.export.export(f, disabled_checks=_ffi.export_checks())((bad[0],) * 2, (bad[1],) * 2)


def test_shard_map_unchanged():
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices("cpu")[:4])
    rng = inputs.generator("shard")
    a, b = inputs.full(rng, (8, 40), 2), inputs.full(rng, (40, 36), 2)
    ct = inputs.full(rng, (8, 36), 2)
    f = functools.partial(product, limbs=2, engine="fp64")
    sharded = jax.shard_map(f, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
    assert oracles.product_error(jax.jit(sharded)(a, b), a, b, 2) <= 1

    def gradient(x, y, z):
        return jax.vjp(f, x, y)[1](z)[0]

    g = jax.shard_map(gradient, mesh=mesh, in_specs=(P("x"), P(), P("x")), out_specs=P("x"))(a, b, ct)
    assert oracles.product_error(g, ct, tuple(v.T for v in b), 2) <= 1
