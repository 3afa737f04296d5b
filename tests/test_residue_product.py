"""Products in residues by pieces, and the one level that runs."""

import functools

import inputs
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jaxmd import _engines, _magnitudes, _panels, _residue_product, _residue_steps, _residues, _slices
from jaxmd._matmul import matmul_limbs
from jaxmd._residue_product import Tile


def normwise():
    return jax.jit(functools.partial(matmul_limbs, limbs=3, engine="int8", accuracy="normwise"))


@functools.cache
def in_one_piece(shape):
    batch, m, n = shape
    rng = inputs.generator("pieces", shape)
    a, b = inputs.full(rng, (batch, m, 40), 3), inputs.full(rng, (batch, 40, n), 3)
    c = normwise()(a, b)
    assert oracles.product_error(c, a, b, 3, normwise=True) <= 1
    return a, b, c


@pytest.mark.parametrize(
    "piece",
    [
        Tile(1, 5, 7, 40),
        Tile(2, 5, 7, 40),
        Tile(3, 2, 7, 40),
        Tile(3, 5, 3, 40),
        Tile(3, 5, 7, 16),
        Tile(1, 2, 3, 32),
    ],
)
@pytest.mark.parametrize("shape", [(3, 5, 7), (3, 7, 5)])
def test_pieces_give_the_same_bits(monkeypatch, shape, piece):
    (a, b, whole), (_, m, n) = in_one_piece(shape), shape
    piece = Tile(piece.batch, min(piece.m, m), min(piece.n, n), piece.k)
    monkeypatch.setattr(_residue_product, "tile", lambda *sizes: piece)
    oracles.assert_bits(normwise()(a, b), whole)


@pytest.mark.parametrize("panel", [(3, 2, 3), pytest.param((1, 5, 7), marks=pytest.mark.slow)])
def test_panels(monkeypatch, panel):
    """The same bits where rounding is fixed, and the bound where a panel has a level of its own."""
    rng = inputs.generator("panels")
    a, b = inputs.full(rng, (3, 5, 20), 2, 12.0), inputs.full(rng, (3, 20, 7), 2, 12.0)
    b[0][1, 2, 3] = np.inf
    multiply = lambda accuracy: jax.jit(functools.partial(matmul_limbs, limbs=2, engine="int8", accuracy=accuracy))(
        a, b
    )
    whole = multiply("normwise"), multiply("exact")
    monkeypatch.setattr(_panels, "_panel", lambda *sizes: (panel, 0))
    oracles.assert_bits(multiply("normwise"), whole[0])
    oracles.assert_bits(multiply("exact"), whole[1])
    b[0][1, 2, 3] = 0.0
    assert oracles.product_error(multiply("componentwise"), a, b, 2) <= 1


def test_pieces_under_shard_map(monkeypatch):
    from jax.sharding import PartitionSpec as P

    rng = inputs.generator("pieces", "shards")
    a, b = inputs.full(rng, (8, 20), 2), inputs.full(rng, (20, 6), 2)
    monkeypatch.setattr(_residue_product, "tile", lambda *sizes: Tile(1, 1, 4, 16))
    f = functools.partial(matmul_limbs, limbs=2, engine="int8")
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices("cpu")[:4])
    c = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x")))(a, b)
    assert oracles.product_error(c, a, b, 2) <= 1


@pytest.mark.parametrize("limbs", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1024, 1024, 1024),
        (1, 32768, 32768, 32768),
        (1, 8192, 8192, 8192),
        (1024, 128, 128, 128),
        (1, 1, 100000, 4096),
        (1, 100000, 3, 4096),
        (1, 64, 64, 10**7),
        (1, 10**6, 10**6, 1),
        (0, 5, 5, 5),
        (1, 0, 5, 5),
    ],
)
def test_scratch_stays_in_the_budget(sizes, limbs):
    """Never more than operands and result take, or 1 GiB; pieces of a useful size."""
    batch, m, n, k = sizes
    plan = _residues.plan(k, 53 * limbs + 2)
    a, b = (jax.ShapeDtypeStruct((batch, *shape), np.float64) for shape in ((m, k), (k, n)))
    allowed = _panels.allowed((a,) * limbs, (b,) * limbs, limbs)
    exponents = 8 * batch * (m + n + k)
    assert allowed + exponents <= max(2**30, 8 * limbs * batch * (m * k + k * n + m * n))
    piece = _residue_product.tile(batch, m, n, k, plan, (limbs, limbs), allowed)
    assert piece.scratch(plan) <= allowed
    assert piece.batch >= 1 and piece.m >= min(m, 256) and piece.n >= min(n, 256) and piece.k >= min(k, 4096)
    assert piece.k == k or piece.k % _residue_steps.K_MULTIPLE == 0
    if limbs <= 2 and 1 < batch * m < 2000:
        assert piece.m == m and piece.n == n


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize(
    ("limbs", "k", "spread", "level"), [(2, 50, 0.0, 0), (1, 300, 0.0, 0), (2, 51, 6.0, 1), (2, 52, 40.0, 2)]
)
def test_one_level_runs(monkeypatch, limbs, k, spread, level, batch):
    """Counted as they run, under vmap too: what the magnitudes certify pays for one product, at the base level."""
    ran = []
    multiply = _residue_steps.multiply

    def counted(*args, plan, limbs):
        first, *rest = multiply(*args, plan=plan, limbs=limbs)
        note = lambda x: ran.append(plan.bits) or np.float64(0)
        return first + jax.pure_callback(note, jax.ShapeDtypeStruct((), np.float64), first.ravel()[0]), *rest

    monkeypatch.setattr(_residue_steps, "multiply", counted)
    rng = inputs.generator("one level", spread, batch)
    a, b = (inputs.full(rng, (*batch, *s), limbs, spread) for s in ((30, k), (k, 30)))
    f = functools.partial(matmul_limbs, limbs=limbs, engine="int8")
    c = jax.block_until_ready(jax.jit(jax.vmap(f) if batch else f)(a, b))
    assert oracles.product_error(c, a, b, limbs) <= 1
    words = (109 + guard for guard in _engines.GUARD_LEVELS[1:])
    assert ran == [(_magnitudes.base(k, limbs)[0].bits, *(_residues.plan(k, w).bits for w in words))[level]]


@functools.partial(jax.jit, static_argnums=2)
def least_magnitude(a, b, terms):
    row = _slices.shared_exponent(_slices.exponents(a), -1)
    column = _slices.shared_exponent(_slices.exponents(b), -2)
    return _magnitudes.least(_magnitudes.magnitudes(a, row, 0, terms), _magnitudes.magnitudes(b, column, 1, terms))


@pytest.mark.parametrize("kind", ["normal", "uniform", "positive", pytest.param("symmetric", marks=pytest.mark.slow)])
@pytest.mark.parametrize("n, k", [(64, 64), (512, 512), (100, 4096), (100, 8192)])
def test_benign_data_are_certified(kind, n, k):
    """Ordinary matrices stay at the base level: nothing but one int8 product is paid for the guarantee."""
    rng = np.random.default_rng(5)
    make = {
        "normal": rng.standard_normal,
        "uniform": lambda shape: rng.uniform(-1, 1, shape),
        "positive": lambda shape: rng.uniform(0, 1, shape),
        "symmetric": lambda shape: (lambda x: x + x.T)(rng.standard_normal((max(shape),) * 2))[: shape[0], : shape[1]],
    }[kind]
    a, b = (jnp.asarray(make((n, k))),), (jnp.asarray(make((k, n))),)
    for limbs in (1, 2, 4):
        plan, terms = _magnitudes.base(k, limbs)
        assert int(least_magnitude(a, b, terms)) >= _magnitudes.certificate(plan, limbs)


def structured(kind, k):
    rng = inputs.generator("structured", kind)
    a, b = (inputs.full(rng, (k, k), 2, 0.0) for _ in range(2))
    block = np.kron(np.eye(4), np.ones((k // 4, k // 4)))
    mask = {"identity": np.eye(k), "triangular": np.tri(k), "blocks": block, "zero": np.zeros((k, k)), "full": 1}[kind]
    a = [x * mask for x in a]
    if kind == "identity":
        a = [np.eye(k), np.zeros((k, k))]
    if kind in ("triangular", "blocks"):
        b = [x * mask for x in b]
    return tuple(map(jnp.asarray, a)), tuple(map(jnp.asarray, b))


SLOW_KINDS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("blocks", "zero", "full", "unsettled")]


@pytest.mark.parametrize("kind", ["identity", "triangular", "deep", "nan", *SLOW_KINDS])
def test_structure_is_certified_by_bfloat16(monkeypatch, kind):
    """As on a GPU: matrices with structure run at one level, exact sums for a few entries; others ask the levels."""
    odd, ran, k = kind in ("deep", "unsettled", "nan"), [], 96
    a, b = structured("full" if odd else kind, k)
    if kind == "deep":
        a = tuple(x.at[3, :-1].multiply(2.0**-70) for x in a)
    if kind == "unsettled":
        a = (a[0].at[2].add(a[1][2]), a[1].at[2].set(2 * a[0][2]))
    if kind == "nan":
        a = (a[0].at[5, 6].set(np.nan), a[1])
    levels = _engines.by_levels

    def counted(*args, **kwargs):
        jax.debug.callback(lambda: ran.append(1))
        return levels(*args, **kwargs)

    monkeypatch.setattr(_engines, "by_levels", counted)

    @jax.jit
    def run(a, b, shift):
        row = _slices.shared_exponent(_slices.settled_exponents(a), -1)
        column = _slices.shared_exponent(_slices.settled_exponents(b), -2)
        return _engines.nearly_certified(a, b, (shift, shift), row, column, limbs=2, inner=2)

    c = jax.block_until_ready(run(a, b, jnp.zeros(k, jnp.int32)))
    jax.effects_barrier()
    assert bool(ran) == odd
    if kind == "nan":
        assert np.array_equal(np.isnan(c[0]), np.arange(k)[:, None] == np.full((1, k), 5))
        a, c = ([x.at[5].set(0.0) for x in y] for y in (a, c))
    assert oracles.product_error(c, a, b, 2) <= 1
