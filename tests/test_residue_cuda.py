"""The residue kernels on CUDA at the sizes and tiles that the tests of the handlers leave out, against integers.

Encoding and decoding must also equal the CPU's handlers bit for bit; the product must be right with every tile that the
GPU runs, not only with the one that its shape chooses.
"""

import random
from fractions import Fraction

import inputs
import jax
import numpy as np
import pytest
from handler_calls import call
from test_residue_handlers import residues_of
from test_residue_matmul import carries_for, channels

from jaxmd import _residue_steps, _residues

pytestmark = pytest.mark.gpu

TILES = ["wgmma 256x256", "wgmma 128x256", "wgmma 128x128", "wgmma 64x128", "wgmma 64x64", "mma 128x128", "mma 64x64"]
SMALL, WIDE = [256, 251, 29], [48259, 45979]  # moduli of one digit and of two


def centred(x, p):
    return (x + p // 2) % p - p // 2


# product


def product(a, b, small, wide):
    out = [((len(small) + 2 * len(wide), *a.shape[1:-1], b.shape[-2]), np.int8)]
    moduli = np.array([*small, *wide], np.int32)
    return call("gpu", "jaxmd_residue_matmul", out, a, b, moduli, carries_for(wide))[0]


def check_product(a, b, small, wide):
    got = product(a, b, small, wide).astype(np.int64)
    sums = np.matmul(a.astype(np.float64), np.swapaxes(b, -1, -2).astype(np.float64)).astype(np.int64)
    for i, p in enumerate(small):
        wrong = np.argwhere(got[i] != centred(sums[i], p))
        assert not len(wrong), f"modulus {p}, {a.shape}, {b.shape}: {len(wrong)} differ, first {wrong[0]}"
    for j, (p, (f, g)) in enumerate(zip(wide, carries_for(wide).tolist(), strict=True)):
        s, t, u = (centred(x, p) for x in sums[len(small) + 3 * j : len(small) + 3 * j + 3])
        low, high = got[len(small) + 2 * j : len(small) + 2 * j + 2]
        wrong = np.argwhere(low + 256 * high != centred(u + g * centred(t + f * s, p), p))
        assert not len(wrong), f"modulus {p}, {a.shape}, {b.shape}: {len(wrong)} differ, first {wrong[0]}"


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(
    "batch, m, n, k",
    [
        ((), 64, 64, 128),
        ((), 1, 1, 16),
        ((), 63, 65, 144),
        ((), 129, 127, 400),
        ((), 257, 255, 1040),
        ((), 300, 530, 272),
        ((), 1000, 1000, 1008),
        ((), 17, 2049, 64),
        ((), 2049, 24, 64),
        ((7,), 100, 36, 112),
        ((3, 5), 130, 258, 48),
        ((40,), 256, 256, 256),  # more tiles than a GPU holds at once
        ((), 1100, 1300, 8208),  # so long that blocks wait for each other
    ],
)
def test_product_with_every_tile(monkeypatch, tile, batch, m, n, k):
    monkeypatch.setenv("JAXMD_RESIDUE_TILE", tile)
    rng = inputs.generator("residues", m, n, k)
    a = rng.integers(-128, 128, (channels(SMALL, WIDE), *batch, m, k)).astype(np.int8)
    b = rng.integers(-128, 128, (channels(SMALL, WIDE), *batch, n, k)).astype(np.int8)
    check_product(a, b, SMALL, WIDE)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("small, wide", [(0, 1), (0, 7), (1, 1), (2, 5), (5, 9), (40, 1), (1, 40), (0, 200)])
@pytest.mark.parametrize("batch, m, n", [((), 700, 500), ((9,), 60, 70)])
def test_product_of_any_numbers_of_moduli(monkeypatch, tile, small, wide, batch, m, n):
    """Turns of moduli of two digits come out even or not, with enough of one digit to fill them or not."""
    monkeypatch.setenv("JAXMD_RESIDUE_TILE", tile)
    rng = inputs.generator("residue turns", small, wide)
    moduli = [2 * i + 3 for i in range(small)], [257 + 211 * i for i in range(wide)]
    a = rng.integers(-128, 128, (channels(*moduli), *batch, m, 160)).astype(np.int8)
    b = rng.integers(-128, 128, (channels(*moduli), *batch, n, 160)).astype(np.int8)
    check_product(a, b, *moduli)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("k", [65408, 65536, 131072, 300000])
def test_product_of_extremes_beyond_int32(monkeypatch, tile, k):
    monkeypatch.setenv("JAXMD_RESIDUE_TILE", tile)
    a = np.full((5, 20, k), -128, np.int8)
    b = np.full((5, 40, k), -128, np.int8)
    b[:, 1] = 127
    check_product(a, b, [256, 253], [65279])


def test_product_repeats_its_bits_on_many_calls():
    rng = inputs.generator("residue repeats")
    a = rng.integers(-128, 128, (31, 700, 1024)).astype(np.int8)
    b = rng.integers(-128, 128, (31, 900, 1024)).astype(np.int8)
    moduli = list(_residues.plan(1024, 109).small)[:31]
    assert len(moduli) >= 30
    a, b = a[: len(moduli)], b[: len(moduli)]
    first = product(a, b, moduli, [])
    for _ in range(5):
        np.testing.assert_array_equal(first, product(a, b, moduli, []))


# encode


def encode(platform, plan, limbs, exponent, shift, side):
    tables = _residues.encoding(plan)
    k = shift.shape[-1]
    out = [((plan.channels, *exponent.shape, -(-k // 16) * 16), np.int8)]
    tables = (tables.weights, np.array(plan.moduli, np.int32))
    attrs = {"bits": plan.bits, "pairs": len(plan.pairs), "side": side}
    return call(platform, "jaxmd_residue_encode", out, *limbs, exponent, shift, *tables, **attrs)[0]


def multiple_doubles(rng, limbs, shape):
    """Normalized, limbs of either sign, entries from 2^-40 to 2^4, some of them 0 and some not finite."""
    x = [rng.standard_normal(shape) * 2.0 ** rng.integers(-40, 2, shape)]
    for _ in range(1, limbs):
        x.append(x[-1] * 2.0**-53 * rng.uniform(-0.5, 0.5, shape))
    for limb in x:
        limb.flat[::97] = 0
    x[0].flat[1::101] = np.inf
    x[0].flat[2::103] = np.nan
    return x


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    "limbs, batch, r, k",
    [
        (1, (), 200, 300),
        (1, (3, 2), 17, 65),
        (2, (), 128, 1024),
        (2, (5,), 33, 47),
        (3, (), 40, 100),
        (4, (), 70, 513),
        (4, (2,), 9, 16),
        (8, (), 65, 130),
        (12, (), 20, 90),
        (16, (), 33, 200),
        (16, (3,), 1, 1),
    ],
)
def test_encode_equals_the_cpu_and_integers(limbs, batch, r, k, side):
    rng = inputs.generator("residue encode", limbs, r, k, side)
    plan = _residues.plan(max(k, 128), 53 * limbs + 4)
    x = multiple_doubles(rng, limbs, (*batch, r, k) if side == 0 else (*batch, k, r))
    exponent = rng.integers(6, 9, (*batch, r)).astype(np.int32)
    shift = rng.integers(0, 4, (*batch, k)).astype(np.int32)
    got = encode("gpu", plan, x, exponent, shift, side)
    np.testing.assert_array_equal(got, encode("cpu", plan, x, exponent, shift, side))
    assert not got[..., k:].any()
    x = [np.swapaxes(limb, -1, -2) for limb in x] if side else x
    picks = random.Random(3)
    for _ in range(50):
        index = tuple(picks.randrange(n) for n in x[0].shape)
        units = plan.bits - int(exponent[index[:-1]]) - int(shift[(*index[:-2], index[-1])])
        total = 0
        for limb in (float(v[index]) for v in x):
            if np.isfinite(limb):
                size = int(abs(Fraction(limb)) * Fraction(2) ** units + Fraction(1, 2))
                total += size if limb > 0 else -size
        residues = [int(v) for v in got[(slice(None), *index)]]
        ones = len(plan.small)
        for i, p in enumerate(plan.small):
            assert residues[i] % p == total % p
        for j, (p, t) in enumerate(plan.pairs):
            a, b, both = residues[ones + 3 * j : ones + 3 * j + 3]
            assert (a + t * b - total) % p == 0 and both == a + b


# decode


def decode(platform, plan, residues, row, column, limbs):
    out = [(residues.shape[1:], np.float64)] * limbs
    tables, attrs = _residue_steps.decode_operands(plan, "cuda" if platform == "gpu" else platform)
    return call(platform, "jaxmd_residue_decode", out, residues, row, column, *tables, **attrs)


def integers_and_residues(rng, plan, count):
    """Integers within the plan's reach, small and large ones, and residues of them."""
    top = plan.k * 4**plan.bits
    c = [rng.choice([rng.randint(-top, top), rng.randint(-top, top) >> rng.randrange(2 * plan.bits), top, -top, 0, 1])
         for _ in range(count)]  # fmt: skip
    return c, residues_of(plan, np.array(c, object))


@pytest.mark.parametrize("limbs", [1, 2, 3, 4, 8, 12, 16])
@pytest.mark.parametrize(
    "batch, m, n, spread",
    [
        ((), 40, 48, 20),
        ((3,), 7, 11, 20),
        ((), 1, 1, 0),
        ((), 9, 200, 560),
        ((2,), 8, 8, 9),
    ],
)
def test_decode_equals_the_cpu_and_integers(limbs, batch, m, n, spread):
    rng = random.Random(limbs * 1000 + n)
    plan = _residues.plan(4096, 53 * limbs + 4)
    count = int(np.prod(batch)) * m * n
    c, residues = integers_and_residues(rng, plan, count)
    row = np.array([rng.randint(-spread, spread) for _ in range(count // n)], np.int32).reshape(*batch, m)
    column = np.array([rng.randint(-spread, spread) for _ in range(count // m)], np.int32).reshape(*batch, n)
    residues = residues.reshape(-1, *batch, m, n)
    got = decode("gpu", plan, residues, row, column, limbs)
    want = decode("cpu", plan, residues, row, column, limbs)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x.view(np.int64), y.view(np.int64))
    if spread > 100:
        return
    exponent = (row[..., :, None] + column[..., None, :]).ravel() - 2 * plan.bits
    for e in range(0, count, max(1, count // 60)):
        value = sum(Fraction(float(x.ravel()[e])) for x in got)
        wanted = c[e] * Fraction(2) ** int(exponent[e])
        underflow = Fraction(1, 2**1074)
        assert abs(value - wanted) <= underflow + abs(wanted) * Fraction(2) ** (-53 * limbs)


@pytest.mark.parametrize("limbs", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("shape", [(700, 600), (3, 401, 333), (9000, 7, 5)])
def test_decode_of_more_entries_than_a_gpu_holds(limbs, shape):
    """Every warp decodes more than once: a few integers, each in many places, on many grids."""
    draw, rng = random.Random(limbs), inputs.generator("decode many", limbs, shape)
    plan = _residues.plan(4096, 53 * limbs + 4)
    _, residues = integers_and_residues(draw, plan, 64)
    middle = np.full(64, 400, np.int32)  # nothing is subnormal
    known = decode("cpu", plan, residues.reshape(-1, 1, 64), middle[:1], middle, limbs)
    place = rng.integers(0, 64, shape)
    row = rng.integers(-30, 30, shape[:-1]).astype(np.int32)
    column = rng.integers(-30, 30, (*shape[:-2], shape[-1])).astype(np.int32)
    got = decode("gpu", plan, residues[:, place], row + 400, column + 400, limbs)
    for limb, x in zip(got, known, strict=True):
        np.testing.assert_array_equal(limb, np.ldexp(x[0][place], row[..., :, None] + column[..., None, :]))


def test_a_program_of_many_products_at_once():
    """Encoding, products and decoding of independent operands in one program: integers, exact."""
    _residue_steps._ffi.register()
    plan = _residues.plan(256, 57)
    rng = inputs.generator("residue chain")
    a = rng.integers(-(2**20), 2**20, (6, 90, 200)).astype(np.float64)
    b = rng.integers(-(2**20), 2**20, (6, 200, 110)).astype(np.float64)
    tables, (decode_tables, decode_attrs) = _residues.encoding(plan), _residue_steps.decode_operands(plan, "cuda")
    decode_attrs = {key: np.int64(value) for key, value in decode_attrs.items()}
    constants = [tables.weights, np.array(plan.moduli, np.int32)]
    attrs = {"bits": np.int64(plan.bits), "pairs": np.int64(len(plan.pairs))}
    struct = jax.ShapeDtypeStruct

    def one(x, y):
        def encoded(v, side, r):
            scales = [np.full(r, 21, np.int32), np.zeros(200, np.int32)]
            target = struct((plan.channels, r, 208), np.int8)
            return jax.ffi.ffi_call("jaxmd_residue_encode", target)(
                v, *scales, *constants, **attrs, side=np.int64(side)
            )

        product_call = jax.ffi.ffi_call("jaxmd_residue_matmul", struct((plan.residue_bytes, 90, 110), np.int8))
        residues = product_call(encoded(x, 0, 90), encoded(y, 1, 110), *_residue_steps.product_operands(plan))
        decode_call = jax.ffi.ffi_call("jaxmd_residue_decode", [struct((90, 110), np.float64)])
        scales = (np.full(90, 21, np.int32), np.full(110, 21, np.int32))
        return decode_call(residues, *scales, *decode_tables, **decode_attrs)[0]

    device = jax.devices("gpu")[0]
    program = jax.jit(lambda x, y: [one(x[i], y[i]) for i in range(6)])
    for _ in range(3):
        for i, c in enumerate(program(jax.device_put(a, device), jax.device_put(b, device))):
            np.testing.assert_array_equal(np.asarray(c), a[i] @ b[i])  # below 2^53: exact
