"""residue_matmul, called through the FFI, against integers of Python: every entry of every modulus, bit for bit."""

import inputs
import numpy as np
import pytest
from handler_calls import PLATFORMS, assert_same_output_on_every_isa, call

SMALL = [256, 253, 3, 127, 254, 29]
WIDE = [48259, 45979, 65279, 257, 48260]


def carries_for(wide):
    """Centred factors, the extreme ones among them."""
    rng = inputs.generator("carries", *wide)
    draw = lambda p: rng.choice([-(p // 2), (p - 1) // 2, int(rng.integers(-(p // 2), (p + 1) // 2)), 1, 0], 2)
    return np.array([draw(p) for p in wide], np.int32).reshape(-1, 2)


def residue_matmul(platform, a, b, moduli, carries):
    out = [((2 * len(carries) + len(moduli) - len(carries), *a.shape[1:-1], b.shape[-2]), np.int8)]
    return call(platform, "jaxmd_residue_matmul", out, a, b, np.array(moduli, np.int32), carries)[0]


def centred(x, p):
    """The representatives in [-p/2, p/2) of Python integers."""
    return (x + p // 2) % p - p // 2


def check(platform, a, b, small, wide):
    """Residues of every modulus: of one sum, or of three, carried from channel to channel."""
    carries = carries_for(wide)
    got = residue_matmul(platform, a, b, [*small, *wide], carries).astype(np.int64)
    sums = (a.astype(np.int64) @ np.swapaxes(b.astype(np.int64), -1, -2)).astype(object)
    for i, p in enumerate(small):
        np.testing.assert_array_equal(got[i], centred(sums[i], p), err_msg=f"modulus {p}, {a.shape} by {b.shape}")
    for j, (p, (f, g)) in enumerate(zip(wide, carries.tolist(), strict=True)):
        s, t, u = sums[len(small) + 3 * j : len(small) + 3 * j + 3]
        low, high = got[len(small) + 2 * j : len(small) + 2 * j + 2]
        expected = centred(u + g * (t + f * s), p)
        np.testing.assert_array_equal(low + 256 * high, expected, err_msg=f"modulus {p}, {a.shape} by {b.shape}")


def channels(small, wide):
    return len(small) + 3 * len(wide)


def random(rng, shape, low=-128):
    return rng.integers(low, 128, shape).astype(np.int8)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(
    "m, n, k",
    [
        (1, 1, 16),
        (5, 15, 32),
        (6, 16, 48),
        (7, 17, 16),
        (13, 33, 528),
        (12, 32, 512),
        (1, 100, 64),
        (100, 1, 64),
        (65, 63, 1040),
        (263, 20, 96),
        (265, 515, 16),
        (129, 257, 144),
    ],
)
def test_every_shape_of_tiles(platform, m, n, k):
    rng = inputs.generator("residues", m, n, k)
    check(platform, random(rng, (8, m, k)), random(rng, (8, n, k)), SMALL[:2], WIDE[:2])


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("small, wide", [(6, 5), (6, 0), (0, 5), (1, 0), (0, 1)])
def test_batches_and_moduli_of_either_width(platform, small, wide):
    rng = inputs.generator("residue batches", small, wide)
    small, wide = SMALL[:small], WIDE[:wide]
    a, b = random(rng, (channels(small, wide), 2, 3, 9, 32)), random(rng, (channels(small, wide), 2, 3, 18, 32))
    check(platform, a, b, small, wide)
    check(platform, a[:, 0], b[:, 1], small, wide)
    check(platform, a[:, :0], b[:, :0], small, wide)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_empty_axes(platform):
    for m, n, k in [(0, 3, 16), (3, 0, 16), (3, 5, 0), (0, 0, 0)]:
        a, b = np.ones((5, 2, m, k), np.int8), np.ones((5, 2, n, k), np.int8)
        got = residue_matmul(platform, a, b, [256, 251, 47881], np.ones((1, 2), np.int32))
        np.testing.assert_array_equal(got, np.zeros((4, 2, m, n)))
    none = np.ones((0, 4, 16), np.int8)
    assert residue_matmul(platform, none, none, [], np.ones((0, 2), np.int32)).shape == (0, 4, 4)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_largest_and_least_values(platform):
    values = np.array([-128, -127, -1, 0, 1, 127], np.int8)
    for k in (16, 272, 1024):
        constant = np.broadcast_to(values[:, None], (len(values), k))
        signs = np.where(np.arange(k) % 2 == 0, 127, -128).astype(np.int8)
        rows = np.broadcast_to(np.concatenate([constant, [signs, signs[::-1]]]), (channels(SMALL, WIDE), 8, k))
        check(platform, rows, rows, SMALL, WIDE)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("channel", [0, 1, 2])
def test_both_ends_of_the_residues(platform, channel):
    """Sums at and beside multiples of p/2, where the centred residue changes sign; p = 256 wraps to −128."""
    for p in [*SMALL, *WIDE, 4, 16, 255, 511, 512, 32769, 40000]:
        last = 470000 // p
        turns = {t for middle in (-last, 0, last) for t in range(middle - 9, middle + 10) if abs(t) <= last}
        sums = [t * p // 2 + d for t in sorted(turns) for d in (-1, 0, 1)]
        rows = np.zeros((len(sums), 16), np.int8)
        for row, total in zip(rows, sums):
            rest, row[15] = divmod(total, 127)  # b is 127, …, 127, 1
            row[:15] = [rest // 15 + (i < rest % 15) for i in range(15)]
        factor = np.full((1, 16), 127, np.int8)
        factor[..., 15] = 1
        np.testing.assert_array_equal(rows.astype(np.int64) @ factor[0].astype(np.int64), sums)
        small, wide = ([p], []) if p <= 256 else ([], [p])
        a, b = (
            np.zeros((channels(small, wide), *rows.shape), np.int8),
            np.zeros((channels(small, wide), 1, 16), np.int8),
        )
        a[channel % len(a)], b[:] = rows, factor
        check(platform, a, b, small, wide)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("k", [65536 + 16, 131056, 131072, 131088, 300000])
def test_sums_longer_than_int32(platform, k):
    rng = inputs.generator("long residues", k)
    small, wide = [256, 251, 3], [48259, 65279]
    check(platform, random(rng, (9, 2, k)), random(rng, (9, 3, k)), small, wide)
    least = np.full((9, 1, k), -128, np.int8)
    check(platform, least, least, small, wide)
    check(platform, least, np.full_like(least, 127), small, wide)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_one_sum_longer_than_many_tasks(platform):
    """Threads have nothing else to do, and the one entry cannot be cut."""
    a = np.full((1, 1, 1 << 25), 127, np.int8)
    check(platform, a, -a, [251], [])


def test_what_does_not_fit_is_named():
    a, b, none = np.zeros((2, 3, 16), np.int8), np.zeros((2, 5, 16), np.int8), np.zeros((0, 2), np.int32)
    for args, message in [
        ((a, b[:1], [256, 253], none), r"a has shape \(2, 3, 16\) and b has shape \(1, 5, 16\)"),
        ((a, b[..., :8], [256, 253], none), "wanted"),
        ((a[..., :8], b[..., :8], [256, 253], none), "k is 8; wanted a multiple of 16"),
        ((a, b, [256], none), "2 channels for 1 moduli of one digit and 0 of two; wanted 1"),
        ((a, b, [256, 257], none[:, :1].repeat(3, 0)), r"carries \(0, 1\); wanted \(N,\) and \(N2, 2\)"),
        ((a, b, [], np.zeros((1, 2), np.int32)), "N2 <= N"),
    ]:
        with pytest.raises(Exception, match=message):
            residue_matmul("cpu", *args)
    with pytest.raises(Exception, match="the result has shape"):
        out = [((3, 3, 5), np.int8)]
        call("cpu", "jaxmd_residue_matmul", out, a, b, np.array([256, 253], np.int32), none)


DIGEST = """
import hashlib
import inputs, test_residue_matmul as t
digest = hashlib.sha256()
for m, n, k in [(1, 1, 16), (13, 35, 528), (70, 90, 1040), (2, 3, 140000), (270, 40, 64)]:
    rng = inputs.generator("residue isa", k)
    a, b = t.random(rng, (21, 2, m, k)), t.random(rng, (21, 2, n, k))
    c = t.residue_matmul("cpu", a, b, [*t.SMALL, *t.WIDE], t.carries_for(t.WIDE))
    digest.update(c.tobytes())
print(digest.hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits():
    assert_same_output_on_every_isa(DIGEST)
