"""The kernels of `jaxmd.matmul_f32` on a GPU: with every tile the bits of their emulation, which the CPU's tests hold
to a model in integers; and what the public function makes of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import single_oracles as oracle
from handler_calls import call

import jaxmd as md
from jaxmd import _single

pytestmark = pytest.mark.gpu

LONG = {
    "f16x3": [
        "f16 256x192",
        "f16 128x96",
        "f16 mma 128x128",
        "f16 mma 64x64",
    ],
    "tf32x3": [
        "tf32 256x160",
        "tf32 256x128",
        "tf32 128x64",
        "tf32 mma 128x128",
        "tf32 mma 64x64",
    ],
}
SHORT = {
    "f16x3": ["f16 128x96 short", "f16 mma 64x64 short"],
    "tf32x3": ["tf32 128x96 short", "tf32 mma 64x64 short"],
}
FORMATS = {"f16x3": 0, "tf32x3": 1}


def handler(platform, a, b, engine):
    row, column = (np.abs(x).view(np.int32).max(axis) for x, axis in ((a, -1), (b, -2)))
    out = [((*a.shape[:-1], b.shape[-1]), np.float32)]
    return call(platform, "jaxmd_single_matmul", out, a, b, row, column, format=FORMATS[engine])[0]


def assert_same_bits(got, wanted, note):
    differ = np.argwhere(got.view(np.int32) != wanted.view(np.int32))
    if len(differ):
        at = tuple(differ[0])
        raise AssertionError(
            f"{note}: {len(differ)} of {got.size} differ; {at}: {float(got[at]).hex()}, {float(wanted[at]).hex()}"
        )


def operands(kind, batch, m, k, n):
    rng = np.random.default_rng([m, k, n])
    return oracle.entries(kind, (*batch, m, k), rng), oracle.entries(kind, (*batch, k, n), rng)


@pytest.mark.parametrize("batch, m, k, n", [((), 1, 4, 4), ((2, 3), 9, 260, 132), ((), 300, 9000, 500)])
def test_largest_magnitudes(batch, m, k, n):
    a, b = operands("exp(-100, -35)", batch, m, k, n)
    a[..., 0, 1], b[..., 2, 3] = np.nan, -np.inf
    out = [((*batch, m), np.int32), ((*batch, n), np.int32)]
    row, column = call("gpu", "jaxmd_single_largest", out, a, b)
    np.testing.assert_array_equal(row, np.abs(a).view(np.int32).max(-1))
    np.testing.assert_array_equal(column, np.abs(b).view(np.int32).max(-2))


@pytest.mark.parametrize("engine, tile", [(e, t) for e, tiles in LONG.items() for t in tiles])
@pytest.mark.parametrize(
    "batch, m, k, n",
    [
        ((), 1, 1024, 4),
        ((), 127, 1028, 36),
        ((), 257, 1060, 196),
        ((), 130, 1800, 324),
        ((3,), 70, 1096, 100),
        ((2, 2), 129, 1056, 64),
    ],
)
def test_bits_of_the_emulation_with_every_tile(monkeypatch, engine, tile, batch, m, k, n):
    monkeypatch.setenv("JAXMD_SINGLE_TILE", tile)
    kind = oracle.KINDS[(m + n) % len(oracle.KINDS)]
    a, b = operands(kind, batch, m, k, n)
    assert_same_bits(handler("gpu", a, b, engine), handler("cpu", a, b, engine), f"{tile}, {kind}")


@pytest.mark.parametrize("engine, tile", [(e, t) for e, tiles in SHORT.items() for t in tiles])
@pytest.mark.parametrize(
    "batch, m, k, n", [((), 200, 4, 100), ((), 5, 60, 8), ((), 129, 1020, 200), ((3,), 33, 128, 96)]
)
def test_bits_of_short_sums(monkeypatch, engine, tile, batch, m, k, n):
    monkeypatch.setenv("JAXMD_SINGLE_TILE", tile)
    for kind in oracle.KINDS:
        a, b = operands(kind, batch, m, k, n)
        assert_same_bits(handler("gpu", a, b, engine), handler("cpu", a, b, engine), f"{tile}, {kind}")


@pytest.mark.parametrize("engine, tile", [(e, t) for e, tiles in LONG.items() for t in tiles])
def test_many_tiles_and_the_same_bits_every_time(monkeypatch, engine, tile):
    """More tiles than the GPU holds at once; some rows of the result against the emulation."""
    monkeypatch.setenv("JAXMD_SINGLE_TILE", tile)
    m, k, n = 3001, 1024, 2500
    a, b = operands("uniform(-1, 1)", (), m, k, n)
    first = handler("gpu", a, b, engine)
    rows = np.array([0, 63, 64, 127, 128, 255, 256, 1000, 2047, 2048, 2815, 2816, 3000])
    assert_same_bits(first[rows], handler("cpu", a[rows], b, engine), tile)
    for _ in range(3):
        assert_same_bits(handler("gpu", a, b, engine), first, f"{tile}, again")


@pytest.mark.parametrize("k", [320, 1100])
@pytest.mark.parametrize("engine", ["f16x3", "tf32x3"])
def test_subnormals_and_the_whole_range(engine, k):
    a, b = operands("uniform(-1, 1)", (), 40, k, 32)
    for p, q in [(-149, 0), (-140, 3), (-126, 126), (127, -120), (-60, -75), (127, -20), (-149, 127)]:
        x, y = np.ldexp(a, p).astype(np.float32), np.ldexp(b, q).astype(np.float32)
        c = np.asarray(md.matmul_f32(jnp.asarray(x), jnp.asarray(y), engine=engine))
        assert_same_bits(c, handler("cpu", x, y, engine), f"2^{p}, 2^{q}")


@pytest.mark.parametrize("engine", ["f16x3", "tf32x3", "int8"])
def test_inf_and_nan_touch_only_their_entries(engine):
    a, b = operands("uniform(-1, 1)", (), 300, 1070, 260)
    clean = np.asarray(md.matmul_f32(jnp.asarray(a), jnp.asarray(b), engine=engine))
    a[0, 3], a[150, 5], a[200, 4], a[200, 9], b[7, 1], b[8, 201] = np.inf, np.nan, np.inf, -np.inf, -np.inf, np.nan
    b[3, 3], a[3, 7] = 0, 1e-30
    got = np.asarray(md.matmul_f32(jnp.asarray(a), jnp.asarray(b), engine=engine))
    touched = np.zeros(got.shape, bool)
    touched[[0, 150, 200]] = True
    touched[:, [1, 201]] = True
    np.testing.assert_array_equal(got[touched], oracle.special(a, b)[touched])
    untouched = ~touched
    untouched[3], untouched[:, 3] = False, False
    np.testing.assert_array_equal(got[untouched], clean[untouched])


@pytest.mark.parametrize("engine", ["auto", "f16x3", "tf32x3", "int8", "f32"])
def test_public_function_with_odd_sizes_batches_and_derivatives(engine):
    rng = np.random.default_rng(2)
    a, b = (jnp.asarray(rng.integers(-9, 10, s), jnp.float32) for s in ((2, 101, 515), (515, 67)))
    f = lambda x, y: md.matmul_f32(x, y, engine=engine)
    np.testing.assert_array_equal(f(a, b), np.matmul(a, b))
    np.testing.assert_array_equal(jax.jit(jax.vmap(f, (0, None)))(a, b), np.matmul(a, b))
    ct = jnp.asarray(rng.integers(-9, 10, (101, 67)), jnp.float32)
    back = jax.vjp(f, a[0], b)[1](ct)
    np.testing.assert_array_equal(back[0], np.asarray(ct) @ np.asarray(b).T)
    np.testing.assert_array_equal(back[1], np.asarray(a[0]).T @ np.asarray(ct))


@pytest.mark.parametrize("engine", ["f16x3", "tf32x3", "int8"])
def test_documented_bound(engine):
    for kind in oracle.KINDS:
        for k in (700, 1100):
            a, b = operands(kind, (), 6, k, 9)
            c = np.asarray(_single.product(jnp.asarray(a), jnp.asarray(b), engine, emulate=False))
            assert oracle.error_in_bounds(c, a, b, engine) <= 1, kind
