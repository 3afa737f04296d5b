"""Engine "int8" on a GPU as programs use it: the bits of the CPU, transformations, threads, wide data."""

import functools
from concurrent.futures import ThreadPoolExecutor

import inputs
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax.sharding import AxisType, PartitionSpec

import jaxmd
from jaxmd import _magnitudes, _product, _residue_product, _residues, _slices
from jaxmd._matmul import matmul_limbs

pytestmark = pytest.mark.gpu


def operands(limbs, m, k, n, batch=(), spread=0.0):
    rng = inputs.generator("int8 on gpu", limbs, m, k, n, spread)
    return tuple(inputs.full(rng, (*batch, *shape), limbs, spread) for shape in ((m, k), (k, n)))


def on(platform, x):
    return jax.device_put(x, jax.devices(platform)[0])


def assert_same(x, y):
    for got, wanted in zip(x, y, strict=True):
        np.testing.assert_array_equal(np.asarray(got).view(np.int64), np.asarray(wanted).view(np.int64))


@pytest.mark.parametrize("accuracy", ["normwise", "exact"])
@pytest.mark.parametrize(
    "limbs, m, k, n", [(1, 300, 200, 260), (2, 130, 257, 129), (3, 40, 70, 33), (4, 65, 300, 64), (8, 40, 50, 30)]
)
def test_bits_of_the_cpu(accuracy, limbs, m, k, n):
    a, b = operands(limbs, m, k, n, spread=20.0 if accuracy == "exact" else 2.0)
    run = jax.jit(functools.partial(matmul_limbs, limbs=limbs, engine="int8", accuracy=accuracy))
    assert_same(run(on("gpu", a), on("gpu", b)), run(on("cpu", a), on("cpu", b)))


@pytest.mark.parametrize("limbs", [1, 2, 4, 16])
@pytest.mark.parametrize("spread", [0.0, 30.0, 100.0])
def test_default_accuracy_at_every_level(limbs, spread):
    a, b = operands(limbs, 40, 60, 50, spread=spread / limbs if limbs > 4 else spread)
    c = jax.jit(functools.partial(matmul_limbs, limbs=limbs, engine="int8"))(a, b)
    assert oracles.product_error(c, a, b, limbs) <= 1


@pytest.mark.parametrize("limbs", [1, 2])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_nonfinite_entries_stay_where_they_are(limbs, batch):
    a, b = operands(limbs, 50, 40, 45, batch)
    a[0][..., 3, 4], a[0][..., 7, 1], b[0][..., 2, 5], b[0][..., 9, 11] = np.nan, np.inf, -np.inf, np.nan
    for accuracy in ("componentwise", "normwise", "exact"):
        run = jax.jit(functools.partial(matmul_limbs, limbs=limbs, engine="int8", accuracy=accuracy))
        c = run(on("gpu", a), on("gpu", b))
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(np.isfinite(c[0]), np.isfinite(a[0] @ b[0]))
        if accuracy != "componentwise":
            for x, y in zip(c, run(on("cpu", a), on("cpu", b)), strict=True):
                np.testing.assert_array_equal(x, y)


def test_vmap_scan_and_shard_map_give_the_same_bits():
    a, b = (jaxmd.from_limbs(*map(jnp.asarray, y)) for y in operands(2, 70, 64, 66, batch=(4,)))
    multiply = functools.partial(jaxmd.matmul, engine="int8", accuracy="normwise")
    each = [multiply(a[i], b[i]).limbs for i in range(4)]
    wanted = [np.stack([np.asarray(x[l]) for x in each]) for l in range(2)]
    assert_same(jax.jit(jax.vmap(multiply))(a, b).limbs, wanted)
    assert_same(jax.jit(multiply)(a, b).limbs, wanted)
    scanned = jax.jit(lambda a, b: jax.lax.scan(lambda s, x: (s, multiply(*x)), 0, (a, b))[1])
    assert_same(scanned(a, b).limbs, wanted)
    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,), devices=jax.devices("gpu")[:1])
    spec = PartitionSpec("i")
    sharded = jax.jit(jax.shard_map(multiply, mesh=mesh, in_specs=spec, out_specs=spec))
    assert_same(sharded(a, b).limbs, wanted)


def test_many_threads_at_once():
    sets = [operands(limbs, 200 + i, 150, 90) for i, limbs in enumerate((1, 2, 4) * 4)]
    runs = [functools.partial(matmul_limbs, limbs=len(a), engine="int8", accuracy="normwise") for a, _ in sets]
    programs = [jax.jit(run) for run in runs]
    wanted = [jax.device_get(program(*ab)) for program, ab in zip(programs, sets, strict=True)]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(3):
            results = pool.map(lambda i: jax.device_get(programs[i](*sets[i])), range(len(sets)))
            for got, expected in zip(results, wanted, strict=True):
                assert_same(got, expected)


def test_pieces_give_the_same_bits(monkeypatch):
    a, b = operands(3, 900, 700, 1100)
    run = functools.partial(matmul_limbs, limbs=3, engine="int8", accuracy="normwise")
    whole = jax.jit(lambda a, b: run(a, b))(a, b)
    monkeypatch.setattr(_residue_product, "allowed", lambda *args: 2**24)
    assert_same(jax.jit(lambda a, b: run(a, b))(a, b), whole)


def test_gradient_and_prepared_factor():
    a, b = (jaxmd.from_limbs(*map(jnp.asarray, y)) for y in operands(2, 60, 64, 68))
    prepared = jaxmd.prepare(b, "right")
    multiply = jax.jit(functools.partial(jaxmd.matmul, engine="int8", accuracy="normwise"))
    assert_same(multiply(a, prepared).limbs, multiply(a, b).limbs)
    grad = jax.jit(jaxmd.grad(lambda x: jaxmd.sum(jaxmd.matmul(x, b, engine="int8"))))(a)
    ones = jaxmd.asarray(jnp.ones((60, 68)), 2)
    want = jaxmd.matmul(ones, jaxmd.from_limbs(*(x.T for x in b.limbs)), engine="direct")
    error = np.abs(np.asarray((grad - want).to_float64()))
    assert error.max() <= 2**-96


@pytest.mark.parametrize("kind", ["plain", "huge", "tiny", "zeros", "nan", "small in a corner"])
@pytest.mark.parametrize("batch, m, k, n", [((), 130, 70, 90), ((3,), 5, 7, 9), ((), 1, 300, 1), ((), 401, 9, 203)])
def test_float64_products_are_repaired(kind, batch, m, k, n):
    """Engine "auto" for single limbs: exact sums where XLA's product overflowed or lost terms; signs of zeros."""
    rng = inputs.generator("float64", kind, m)
    a, b = rng.standard_normal((*batch, m, k)), rng.standard_normal((*batch, k, n))
    if kind == "huge":
        a, b[..., ::3] = a * 2.0**600, b[..., ::3] * 2.0**420
    if kind == "tiny":
        a, b[..., ::3] = a * 2.0**-600, b[..., ::3] * 2.0**-470
    if kind in ("zeros", "small in a corner"):
        a[..., : m // 2 + 1, :] = -0.0
    if kind == "small in a corner":
        b[..., 0, 0] = 2.0**-1000
    if kind == "nan":
        a[..., 0, 0], b[..., -1, -1] = np.nan, np.inf
    run = jax.jit(functools.partial(matmul_limbs, limbs=1), static_argnames=("engine", "accuracy"))
    c = np.asarray(run((on("gpu", a),), (on("gpu", b),))[0])
    exact = np.asarray(run((on("cpu", a),), (on("cpu", b),), engine="direct", accuracy="exact")[0])
    same = (c == exact) | (np.isnan(c) & np.isnan(exact))
    with np.errstate(all="ignore"):
        close = np.abs(c - exact) <= k * 2.0**-52 * (np.abs(a) @ np.abs(b))
    assert np.all(same | close)
    assert np.array_equal(np.signbit(c)[c == 0], np.signbit(exact)[c == 0])  # a sum of zeros is +0
    assert np.all(same[np.abs(c) < 2.0**-950])


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("at", [0, -1, None])
@pytest.mark.parametrize("m, k, n", [(601, 2000, 501), (1024, 1024, 1024), (7, 300_000, 5)])
def test_lost_terms_of_large_products(zeros, at, m, k, n):
    """Three terms that are lost each alone, in the first entry or the last, among few small entries or many."""
    rng = inputs.generator("lost", m)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    if zeros:
        a[: m // 2, k // 2 :] = a[m // 2 :, : k // 2] = b[: k // 2, n // 2 :] = b[k // 2 :, : n // 2] = -0.0
    if at is not None:
        terms = slice(3) if at == 0 else slice(k - 3, k)
        a[at], a[at, terms], b[terms, at] = 0.0, 2.0**-600, 0.4 * 2.0**-474
    run = jax.jit(functools.partial(matmul_limbs, limbs=1, engine="float64"))
    c, size = np.array(run((on("gpu", a),), (on("gpu", b),))[0]), np.abs(a) @ np.abs(b)
    if at is not None:
        assert c[at, at] == 2.0**-1074
        c[at, at] = 0.0
    assert np.all(np.abs(c - a @ b) <= k * 2.0**-52 * size + 2.0**-1073)
    assert np.all(c[size == 0] == 0) and not np.any(np.signbit(c[size == 0]))


@pytest.mark.parametrize("kind", ["normal", "identity", "triangular", "huge", "deep", "nan"])
@pytest.mark.parametrize("batch, m, k, n", [((), 300, 200, 140), ((3,), 33, 64, 7), ((), 1, 1, 1), ((), 129, 257, 128)])
def test_uncertified_entries(kind, batch, m, k, n):
    """Flagged is every entry below the least size, none well above it; not sure where magnitudes are too far apart."""
    rng = inputs.generator("uncertified", kind, m)
    a, b = rng.standard_normal((*batch, m, k)), rng.standard_normal((*batch, k, n))
    if kind == "identity":
        a = np.broadcast_to(np.eye(m, k), a.shape).copy()
    if kind == "triangular":
        a, b = np.tril(a), np.triu(b)
    if kind == "huge":
        a, b = a * 2.0**1020, b * 2.0**-1040
    if kind == "deep":
        a[..., 0, 0] = a[..., 0, -1] * 2.0**-70
    if kind == "nan":
        b[..., 0, 0] = np.nan
    row = np.asarray(_slices.shared_exponent(_slices.settled_exponents((jnp.asarray(a),)), -1))
    column = np.asarray(_slices.shared_exponent(_slices.settled_exponents((jnp.asarray(b),)), -2))
    least = 40 * _magnitudes.least_size(k, _residues.plan(k, 53 + _magnitudes.fewest_bits(k)), 1)
    run = jax.jit(_product.uncertified, static_argnums=(4, 5))
    flags, count = map(np.asarray, run(a, b, row, column, least, 2**50))
    unsure = kind == "nan" or (kind == "deep" and k > 1)
    assert (count >= _magnitudes.UNSURE) == unsure
    if unsure:
        return
    x = np.ldexp(np.abs(a), -row[..., :, None]).astype(np.longdouble)
    y = np.ldexp(np.abs(b), -column[..., None, :]).astype(np.longdouble)
    terms = np.minimum(np.sum(a != 0, axis=-1)[..., :, None], np.sum(b != 0, axis=-2)[..., None, :])
    size = np.sum(x[..., :, :, None] * y[..., None, :, :], axis=-2)
    assert count == np.sum(flags)
    assert np.all(flags[(size > 0) & (size < 0.99 * least * terms)] == 1)
    assert np.all(flags[(size == 0) | (size > 1.02 * least * terms)] == 0)
