"""residue_matmul, called through the FFI, against integers of Python: every entry of every channel, bit for bit."""

import inputs
import numpy as np
import pytest
from handler_calls import PLATFORMS, assert_same_output_on_every_isa, call

SMALL = [256, 253, 3, 127, 254, 29]
WIDE = [48259, 45979, 65535, 257, 48260]


def residue_matmul(platform, a, b, moduli, small):
    shape = (*a.shape[1:-1], b.shape[-2])
    out = [((small, *shape), np.int8), ((len(moduli) - small, *shape), np.int16)]
    return call(platform, "jaxmd_residue_matmul", out, a, b, np.array(moduli, np.int32), small=small)


def centred(x, p):
    """The representatives in [-p/2, p/2) of Python integers."""
    return (x + p // 2) % p - p // 2


def check(platform, a, b, moduli, small):
    narrow, wide = residue_matmul(platform, a, b, moduli, small)
    for i, p in enumerate(moduli):
        exact = a[i].astype(np.int64) @ np.swapaxes(b[i].astype(np.int64), -1, -2)
        expected = centred(exact.astype(object), p).astype(np.int64)
        got = narrow[i] if i < small else wide[i - small]
        np.testing.assert_array_equal(got, expected, err_msg=f"channel {i}, modulus {p}, {a.shape} by {b.shape}")


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
    moduli = [*SMALL[:2], *WIDE[:2]]
    check(platform, random(rng, (4, m, k)), random(rng, (4, n, k)), moduli, 2)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("small, wide", [(6, 5), (6, 0), (0, 5), (1, 0), (0, 1)])
def test_batches_and_channels_of_either_width(platform, small, wide):
    rng = inputs.generator("residue batches", small, wide)
    moduli = [*SMALL[:small], *WIDE[:wide]]
    a, b = random(rng, (small + wide, 2, 3, 9, 32)), random(rng, (small + wide, 2, 3, 18, 32))
    check(platform, a, b, moduli, small)
    check(platform, a[:, 0], b[:, 1], moduli, small)
    check(platform, a[:, :0], b[:, :0], moduli, small)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_empty_axes(platform):
    for m, n, k in [(0, 3, 16), (3, 0, 16), (3, 5, 0), (0, 0, 0)]:
        a, b = np.ones((3, 2, m, k), np.int8), np.ones((3, 2, n, k), np.int8)
        for got in residue_matmul(platform, a, b, [256, 251, 47881], 2):
            np.testing.assert_array_equal(got, np.zeros((len(got), 2, m, n)))
    none = np.ones((0, 4, 16), np.int8)
    assert [got.shape for got in residue_matmul(platform, none, none, [], 0)] == [(0, 4, 4)] * 2


@pytest.mark.parametrize("platform", PLATFORMS)
def test_largest_and_least_values(platform):
    moduli = [*SMALL, *WIDE]
    values = np.array([-128, -127, -1, 0, 1, 127], np.int8)
    for k in (16, 272, 1024):
        constant = np.broadcast_to(values[:, None], (len(values), k))
        signs = np.where(np.arange(k) % 2 == 0, 127, -128).astype(np.int8)
        rows = np.broadcast_to(np.concatenate([constant, [signs, signs[::-1]]]), (len(moduli), 8, k))
        check(platform, rows, rows, moduli, len(SMALL))


@pytest.mark.parametrize("platform", PLATFORMS)
def test_both_ends_of_the_residues(platform):
    """Sums at and beside multiples of p/2, where the centred residue changes sign; p = 256 wraps to −128."""
    for p in [*SMALL, *WIDE, 4, 16, 255, 511, 512, 32769, 40000]:
        last = 470000 // p
        turns = {t for middle in (-last, 0, last) for t in range(middle - 9, middle + 10) if abs(t) <= last}
        sums = [t * p // 2 + d for t in sorted(turns) for d in (-1, 0, 1)]
        a = np.zeros((1, len(sums), 16), np.int8)
        for row, total in zip(a[0], sums):
            rest, row[15] = divmod(total, 127)  # b is 127, …, 127, 1
            row[:15] = [rest // 15 + (i < rest % 15) for i in range(15)]
        b = np.full((1, 1, 16), 127, np.int8)
        b[..., 15] = 1
        np.testing.assert_array_equal(a[0].astype(np.int64) @ b[0, 0].astype(np.int64), sums)
        check(platform, a, b, [p], int(p <= 256))


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("k", [65536 + 16, 131056, 131072, 131088, 300000])
def test_sums_longer_than_int32(platform, k):
    rng = inputs.generator("long residues", k)
    moduli = [256, 251, 3, 48259]
    check(platform, random(rng, (4, 2, k)), random(rng, (4, 3, k)), moduli, 3)
    least = np.full((4, 1, k), -128, np.int8)
    check(platform, least, least, moduli, 3)
    check(platform, least, np.full_like(least, 127), moduli, 3)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_one_sum_longer_than_many_tasks(platform):
    """Threads have nothing else to do, and the one entry cannot be cut."""
    a = np.full((1, 1, 1 << 25), 127, np.int8)
    check(platform, a, -a, [251], 1)


def test_what_does_not_fit_is_named():
    a, b = np.zeros((2, 3, 16), np.int8), np.zeros((2, 5, 16), np.int8)
    for args, message in [
        ((a, b[:1], [256, 253], 1), r"a has shape \(2, 3, 16\) and b has shape \(1, 5, 16\)"),
        ((a, b[..., :8], [256, 253], 1), "wanted"),
        ((a[..., :8], b[..., :8], [256, 253], 1), "k is 8; wanted a multiple of 16"),
        ((a, b, [256], 1), r"the moduli have shape \(1,\); wanted \(2,\)"),
    ]:
        with pytest.raises(Exception, match=message):
            residue_matmul("cpu", *args)
    with pytest.raises(Exception, match="the one-byte result has shape"):
        out = [((1, 3, 5), np.int8), ((1, 3, 5), np.int16)]
        call("cpu", "jaxmd_residue_matmul", out, a, b, np.array([256, 253], np.int32), small=2)
    with pytest.raises(Exception, match="3 one-byte channels of 2"):
        out = [((1, 3, 5), np.int8), ((1, 3, 5), np.int16)]
        call("cpu", "jaxmd_residue_matmul", out, a, b, np.array([256, 253], np.int32), small=3)


DIGEST = """
import hashlib
import inputs, test_residue_matmul as t
digest = hashlib.sha256()
for m, n, k in [(1, 1, 16), (13, 35, 528), (70, 90, 1040), (2, 3, 140000), (270, 40, 64)]:
    rng = inputs.generator("residue isa", k)
    moduli = [*t.SMALL, *t.WIDE]
    a, b = t.random(rng, (11, 2, m, k)), t.random(rng, (11, 2, n, k))
    for c in t.residue_matmul("cpu", a, b, moduli, len(t.SMALL)):
        digest.update(c.tobytes())
print(digest.hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits():
    assert_same_output_on_every_isa(DIGEST)
