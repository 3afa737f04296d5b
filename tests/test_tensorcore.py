"""The model of tensor-core arithmetic: recorded hashes, probes with known answers, hardware outputs, and an evaluation
of every spec in fractions."""

import dataclasses
import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
from tensorcore_cases import ROWS, SHARED, e, matches, pairs, random_bits, run, run_pairs

from jaxmd import tensorcore
from jaxmd.tensorcore import bits_of, explain, spec, value_of

V, A, ADA, H, K = "volta", "ampere", "ada", "hopper", "blackwell"

# sha256 of the outputs of two other implementations on random bits and on exponents near the bias
HASHES = [
    (H, "mma.m16n8k16.f32.f16.f16.f32", "10a66203d25c", "3b03a9a2fd82"),
    (H, "mma.m16n8k16.f16.f16.f16.f16", "5fc6caf415b2", "675897e754bc"),
    (H, "mma.m16n8k16.f32.bf16.bf16.f32", "a589d4bb087c", "22b605e399a0"),
    (H, "mma.m16n8k8.f32.tf32.tf32.f32", "113ee90f9966", "a3f47dfa9218"),
    (H, "wgmma.k32.f32.e4m3.e4m3", "62e8de62707c", "fd1b7189d3e4"),
    (H, "wgmma.k32.f32.e5m2.e5m2", "26ff63f98ec9", "421b9d3f2f85"),
    (H, "wgmma.k32.f16.e4m3.e5m2", "d080dc2516e0", "c29bd608767b"),
    (A, "mma.m16n8k16.f32.f16.f16.f32", "6310b6bf640e", "0051455fe6e3"),
    (A, "mma.m16n8k16.f16.f16.f16.f16", "6506a7433bcd", "534c94d3c15e"),
    (A, "mma.m16n8k8.f32.tf32.tf32.f32", "e96f942d236a", "747902facc0b"),
    (A, "mma.m16n8k16.f32.bf16.bf16.f32", "e12aba655205", "587de16a9da7"),
    (V, "mma.m8n8k4.f32.f16.f16.f32", "d1737d9c4245", "c11fe9642e3b"),
    (ADA, "mma.m16n8k32.f32.e4m3.e4m3.f32", "6919004ffdcd", "e13d357de1e1"),
    (K, "tcgen05.k32.f32.e4m3.e4m3", "cfeecff2143f", "000359cf38cd"),
]


@pytest.mark.parametrize("arch, instruction, bits, narrow", HASHES)
def test_recorded_hashes(arch, instruction, bits, narrow):
    s = spec(arch, instruction)
    for near, wanted in ((False, bits), (True, narrow)):
        a, b = (random_bits(f, (ROWS, s.k), seed, near) for f, seed in ((s.a, 1), (s.b, 2)))
        c = random_bits(s.c, (ROWS, 1), 3, near)[:, 0]
        d = run(s, a, b, c)
        assert hashlib.sha256(d.astype("<u4").tobytes()).hexdigest()[:12] == wanted
        rows = [0, 1, 2, 5, 13, 89]
        assert [explain(a[i], b[i], c[i], s).bits for i in rows] == d[rows].tolist()


BLOG = pairs((-e(13), e(10)), (48, 48), (0.375, 1), (0.125, 1))
F16, BF16, TF32, E4M3, E5M2, F16F16 = "f16", "bf16", "tf32", "e4m3", "e5m2", "f16->f16"
NAN32, NAN16 = 0x7FFFFFFF, 0x7FFF
nan, inf = math.nan, math.inf
up = 1 + e(-23)

# number, formats, pairs, c, {architecture: result}; A stands for Turing too, ADA for its FP8 unit
PROBES = [
    (1, [F16, BF16, TF32], BLOG, e(23), {V: 2304, A: 2304, H: 2304.25, K: 2304.25}),
    (2, [E5M2], BLOG, e(23), {ADA: 2048, H: 2048, K: 2304.25}),
    (
        3,
        [F16, TF32],
        pairs((-e(13), e(10)), (-0.5, 1), (-0.25, 1), (-0.125, 1)),
        e(23),
        {V: 0, A: -0.5, H: -0.75, K: -0.75},
    ),
    (4, [E5M2], pairs((-e(13), e(10)), (-0.5, 1), (-0.25, 1), (-0.125, 1)), e(23), {ADA: 0, H: 0, K: -0.75}),
    (5, [F16], pairs((4, (0.5, e(-24)))), 1, {V: 1, A: 1, H: up, K: up}),
    (6, [F16], pairs((16, (0.5, e(-24)))), 1, {A: 1, H: 1 + e(-21), K: 1 + e(-21)}),
    (7, [F16], pairs((1, 1), (3, (0.5, e(-24)))), e(-24), {V: 1, A: 1, H: up, K: up}),
    (8, [F16], pairs((1, 1)), -(1 - e(-24)), {V: e(-23), A: e(-24), H: e(-24), K: e(-24)}),
    (9, [F16], pairs((1, 1), (1, -e(-24))), -1 + e(-24), {V: e(-23), A: 0, H: 0, K: 0}),
    (9, [BF16], pairs((1, 1), (1, -e(-24))), -1 + e(-24), {A: 0, H: 0, K: 0}),
    (10, [F16], pairs((4, (1, e(-24)))), 1 - e(-24), {V: up, A: up, H: up, K: up}),
    (11, [F16], pairs((3, (1, 1)), (1, e(-23))), 1 + e(-22) + e(-23), dict.fromkeys((V, A, H, K), 4 + e(-21))),
    (12, [F16], pairs((4, (1, 1))), 1 + e(-22) + e(-23), dict.fromkeys((V, A, H, K), 5)),
    (13, [F16], pairs((1, 2), (1, e(-23) + e(-24))), 0, dict.fromkeys((V, A, H, K), 2)),
    (13, [F16], pairs((-1, 2), (-1, e(-23) + e(-24))), 0, dict.fromkeys((V, A, H, K), -2)),
    (14, [F16F16], pairs((e(-24), 0.5), (e(-24), 0.25)), 0, dict.fromkeys((V, A, H, K), e(-24))),
    (15, [F16F16], pairs((3, (1, 1))), 1 + e(-10) + e(-9), dict.fromkeys((V, A, H, K), 4 + e(-8))),
    (16, [F16], pairs((2, (e(-24), 1))), 1, {V: 1, A: up, H: up, K: up}),
    (17, [F16], pairs((e(-24), 1), (2, (e(-24), 0.5))), 1, {V: 1, A: 1, H: up, K: up}),
    (18, [F16], pairs((e(-24), 1), (e(-24), 0.5), (2, (e(-24), 0.25))), 1, dict.fromkeys((V, A, H, K), 1)),
    (19, [F16], pairs((1, 1), (-1, 1)), e(-24), {V: 0, A: e(-24), H: e(-24), K: e(-24)}),
    (19, [F16], pairs((1, 1), (-1, 1)), e(-25), {V: 0, A: 0, H: e(-25), K: e(-25)}),
    (19, [F16], pairs((1, 1), (-1, 1)), e(-26), dict.fromkeys((V, A, H, K), 0)),
    (20, [E4M3], pairs((1, 1), (-1, 1)), e(-13), dict.fromkeys((ADA, H, K), e(-13))),
    (20, [E4M3], pairs((1, 1), (-1, 1)), e(-14), {ADA: 0, H: 0, K: e(-14)}),
    (20, [E4M3], pairs((1, 1), (-1, 1)), e(-25), {ADA: 0, H: 0, K: e(-25)}),
    (21, [F16], pairs((1.5, 1.5), (-1.5, 1.5), (e(-12), e(-13))), 0, {V: 0, A: 0, H: e(-25), K: e(-25)}),
    (25, [E4M3], [], 1 + e(-13), dict.fromkeys((ADA, H, K), 1 + e(-13))),
    (25, [E4M3], [], 1 + e(-14), {ADA: 1, H: 1, K: 1 + e(-14)}),
    (26, [E4M3], pairs((448, 1), (e(-5), 1)), 0, dict.fromkeys((ADA, H, K), 448 + e(-5))),
    (26, [E4M3], pairs((448, 1), (e(-6), 1)), 0, {ADA: 448, H: 448, K: 448 + e(-6)}),
    (27, [E4M3], pairs((448, 448), (16, 1)), 0, dict.fromkeys((ADA, H, K), 200720)),
    (27, [E4M3], pairs((448, 448), (8, 1)), 0, {ADA: 200704, H: 200704, K: 200712}),
    (28, [F16], pairs((e(12), e(12)), (-e(12), e(12)), (14, (1, 0.25))), 0, {A: 2, H: 0, K: 0}),
    (29, [BF16], pairs((e(-133), e(7))), 0, dict.fromkeys((A, H, K), e(-126))),
    (29, [BF16], pairs((e(-126), 0.5)), 0, dict.fromkeys((A, H, K), e(-127))),
    (29, [TF32], pairs((e(-136), e(10))), 0, dict.fromkeys((A, H, K), e(-126))),
    (30, [BF16], pairs((e(-23), e(-126)), (-e(-32), e(-126))), 0, {A: e(-149), H: 0, K: 0}),
    (31, [BF16], pairs((e(-23), e(-126)), (-e(-33), e(-126))), 0, dict.fromkeys((A, H, K), e(-149))),
    (32, [F16F16], pairs((e(-11), e(-14)), (e(-22), e(-24))), 0, {V: 0, A: 0, H: e(-24), K: e(-24)}),
    (32, [F16F16], pairs((e(-11), e(-14)), (e(-23), e(-24))), 0, dict.fromkeys((V, A, H, K), 0)),
    (33, [F16F16], pairs((e(-11), e(-14)), (e(-20), e(-24))), 0, {V: 0, A: e(-24), H: e(-24), K: e(-24)}),
    (34, [BF16], pairs((e(127), e(127)), (-e(127), e(127))), 0, dict.fromkeys((A, H, K), 0)),
    (34, [BF16], pairs((2, (e(127), 1))), 0, dict.fromkeys((A, H, K), inf)),
    (35, [F16F16], pairs((65504, 1), (16, 1)), 0, dict.fromkeys((V, A, H, K), inf)),
    (35, [F16F16], pairs((65504, 1), (15, 1)), 0, dict.fromkeys((V, A, H, K), 65504)),
    (36, [F16, BF16, TF32, E4M3, E5M2], pairs((-0.0, 1)), -0.0, dict.fromkeys((V, A, ADA, H, K), 0)),
    (37, [F16, BF16, TF32, E4M3, E5M2], pairs((nan, 0)), 0, dict.fromkeys((V, A, ADA, H, K), nan)),
    (37, [F16, BF16, TF32, E5M2], pairs((inf, 0)), 0, dict.fromkeys((V, A, ADA, H, K), nan)),
    (37, [F16, BF16, TF32, E5M2], pairs((inf, 1)), -inf, dict.fromkeys((V, A, ADA, H, K), nan)),
    (37, [F16F16], pairs((nan, 0)), 0, dict.fromkeys((V, A, H, K), nan)),
    (39, [F16], pairs((4, (1 - e(-11), 1 - e(-11)))), 0, dict.fromkeys((V, A, H, K), 4 - e(-8) + e(-20))),
]


WIDEST = {  # the instructions that a probe runs on; A stands for Turing and Ampere
    V: {F16: ["volta mma.m8n8k4.f32.f16.f16.f32"], F16F16: ["volta mma.m8n8k4.f16.f16.f16.f16"]},
    A: {
        F16: ["turing mma.m16n8k8.f32.f16.f16.f32", "ampere mma.m16n8k16.f32.f16.f16.f32"],
        BF16: ["ampere mma.m16n8k16.f32.bf16.bf16.f32"],
        TF32: ["ampere mma.m16n8k8.f32.tf32.tf32.f32"],
        F16F16: ["turing mma.m16n8k8.f16.f16.f16.f16", "ampere mma.m16n8k16.f16.f16.f16.f16"],
    },
    ADA: {E4M3: ["ada mma.m16n8k32.f32.e4m3.e4m3.f32"], E5M2: ["ada mma.m16n8k32.f32.e5m2.e5m2.f32"]},
    H: {
        F16: ["hopper mma.m16n8k16.f32.f16.f16.f32"],
        BF16: ["hopper mma.m16n8k16.f32.bf16.bf16.f32"],
        TF32: ["hopper mma.m16n8k8.f32.tf32.tf32.f32"],
        F16F16: ["hopper mma.m16n8k16.f16.f16.f16.f16"],
        E4M3: ["hopper wgmma.k32.f32.e4m3.e4m3"],
        E5M2: ["hopper wgmma.k32.f32.e5m2.e5m2"],
    },
    K: {
        F16: ["blackwell tcgen05.k16.f32.f16.f16"],
        BF16: ["blackwell tcgen05.k16.f32.bf16.bf16"],
        TF32: ["blackwell tcgen05.k8.f32.tf32.tf32"],
        F16F16: ["blackwell tcgen05.k16.f16.f16.f16"],
        E4M3: ["blackwell tcgen05.k32.f32.e4m3.e4m3"],
        E5M2: ["blackwell tcgen05.k32.f32.e5m2.e5m2"],
    },
}


def instructions(arch, formats):
    return [spec(*name.split()) for name in WIDEST[arch].get(formats, [])]


def all_probes():
    table = {}
    for number, formats, items, c, results in PROBES:
        for name in formats:
            for arch, wanted in results.items():
                for s in instructions(arch, name):
                    if len(items) <= s.k:
                        table.setdefault(s, []).append((number, items, c, wanted))
    return table


@pytest.mark.parametrize(
    "s, probes", all_probes().items(), ids=lambda x: f"{x.arch}-{x.instruction}" if hasattr(x, "arch") else ""
)
def test_probes(s, probes):
    d = run_pairs(s, [(items, c) for _, items, c, _ in probes])
    for (number, items, c, wanted), bits in zip(probes, d.tolist()):
        assert matches(bits, wanted, s.d), f"probe {number} on {s}: {value_of(bits, s.d)}, not {wanted}"
        walked = explain([p[0] for p in items], [p[1] for p in items], c, s)
        assert walked.bits == bits, f"probe {number} on {s}"


def test_every_probe_runs_somewhere():
    run_on = {(number, s.arch) for s, probes in all_probes().items() for number, *_ in probes}
    assert {number for number, _ in run_on} == {p[0] for p in PROBES}
    assert {arch for _, arch in run_on} == {V, "turing", A, ADA, H, K}


# where a product stands among the k: probes 22 to 24, chains over several instructions
PLACES = [
    (V, "mma.m8n8k4.f32.f16.f16.f32", e(-23), {4: 2, 8: 2, 16: 2}),
    ("turing", "mma.m16n8k8.f32.f16.f16.f32", e(-23), {4: 2 + e(-22), 8: 2, 16: 2}),
    (A, "mma.m16n8k16.f32.f16.f16.f32", e(-23), {4: 2 + e(-22), 8: 2, 16: 2}),
    (H, "mma.m16n8k16.f32.f16.f16.f32", e(-23), {4: 2 + e(-22), 8: 2 + e(-22), 16: 2}),
    (K, "tcgen05.k16.f32.f16.f16", e(-23), {4: 2 + e(-22), 8: 2 + e(-22), 16: 2}),
    (A, "mma.m16n8k8.f32.tf32.tf32.f32", e(-23), {4: 2, 8: 2}),
    (H, "wgmma.k8.f32.tf32.tf32", e(-23), {4: 2 + e(-22), 8: 2}),
    (ADA, "mma.m16n8k32.f32.e4m3.e4m3.f32", e(-13), {16: 2, 31: 2}),
    (H, "wgmma.k32.f32.e4m3.e4m3", e(-13), {16: 2 + e(-12), 31: 2 + e(-12)}),
]


@pytest.mark.parametrize("arch, instruction, tiny, results", PLACES)
def test_where_a_product_stands(arch, instruction, tiny, results):
    s = spec(arch, instruction)
    for place, wanted in results.items():
        x, y = [Fraction(1)] + [Fraction(0)] * 31, [Fraction(1)] + [Fraction(0)] * 31
        x[place], y[place] = (e(-6), tiny * e(6)) if s.a.width == 8 else (tiny, Fraction(1))
        c = bits_of(1 + tiny, s.c)
        for l in range(0, 32, s.k):
            c = explain(x[l : l + s.k], y[l : l + s.k], np.array(c, s.c.word), s).bits
        assert value_of(c, s.d) == wanted
        if s.a.width != 8:  # the same through a product of matrices that starts from zero: c is one more product
            values = [np.array([[bits_of(v, s.a) for v in row]], s.a.word) for row in (x, y)]
            d = tensorcore.matmul(values[0], values[1].T, s)
            assert value_of(np.asarray(d).item(), s.d) in (1, 1 + tiny)


def test_zero_exponent_of_one_hardware_output():
    """A dot product that an H100 was seen to give; any other zero exponent gives 0xA."""
    a = "9b94 19f3 9a2e 1a67 9a25 9b4e 9b29 9a33 99e0 1a14 9914 99d1 9ae9 1b1a 9a9c 1b3a"
    b = "9aaf 99f3 9acc 1b7c 19ed 1b25 9a1b 9a20 9af7 9a48 1ae1 1b32 1b12 1b0e 9a68 1735"
    a, b = (np.array([[int(t, 16) for t in x.split()]], np.uint16) for x in (a, b))
    for name in ("mma.m16n8k16.f32.bf16.bf16.f32", "wgmma.k16.f32.bf16.bf16"):
        assert run(spec(H, name), a, b, np.zeros(1, np.uint32)).tolist() == [0xB]


WIDENED = [  # a, b, (c, d) of mma.m16n8k32.f32.e4m3.e5m2.f32 on an H200
    (
        "7dd5168f62a635de11d78315dc7ea66d3e600f902b9584951fd6a0ed033aae87",
        "8f0e07e6bb89d8b9c8457453a99e17b2092328e88ee3040d0fca5f8c21a3081e",
        (0x932772E3, 0xC23171AF),
    ),
    (
        "b1459220473d9d2a5221c4505488d6e0842bd4502442ec3423a8e02a607b2cfa",
        "01c5e1852cdd6bd6481f2e1032559d287a38ccbabd5101cb9b981ae72a3a0d1b",
        (0x2975F0A0, 0xC499AF34),
    ),
    (
        "218c2105cb5b2c9da4561694a7af50ac82a3b56abc037c01aae187afd8dadf10",
        "a2a05a9e36841452349ea3d13ca1843198be833a8822b370b89e788311cbbcbb",
        (0x02C57D7F, 0xC2F7CA6B),
    ),
]


def test_fp8_factors_are_widened():
    """Sums whose largest product has a subnormal e4m3 factor, which as f16 is normal: other bits are cut."""
    a, b = (np.array([list(bytes.fromhex(row[i])) for row in WIDENED], np.uint8) for i in (0, 1))
    c, d = (np.array([row[2][i] for row in WIDENED], np.uint32) for i in (0, 1))
    s = spec(H, "mma.m16n8k32.f32.e4m3.e5m2.f32")
    assert run(s, a, b, c).tolist() == d.tolist()
    assert [explain(a[i], b[i], c[i], s).bits for i in range(len(c))] == d.tolist()
    assert (run(dataclasses.replace(s, widened=False), a, b, c) != d).all()


def test_tf32_ignores_thirteen_bits():
    s = spec(H, "mma.m16n8k8.f32.tf32.tf32.f32")
    a = np.zeros((2, 8), np.uint32)
    a[:, 0] = 0x3F801FFF, 0x7F800001  # probe 38; a NaN whose payload is cut off is Inf
    b = np.zeros((2, 8), np.uint32)
    b[:, 0] = 0x3F800000
    assert run(s, a, b, np.zeros(2, np.uint32)).tolist() == [0x3F800000, 0x7F800000]


@pytest.mark.parametrize("name", ["s8.s8", "u8.u8.satfinite", "u8.s8.satfinite"])
def test_bytes(name):
    s = spec(H, f"wgmma.k32.s32.{name}")
    g = np.random.Generator(np.random.PCG64(6))
    a, b = (g.integers(0, 256, (60, 32)).astype(np.uint8) for _ in range(2))
    c = g.integers(0, 2**32, 60, dtype=np.uint64).astype(np.uint32)
    c[:50] = np.where(np.arange(50) % 2, 0x7FFFFFF0, 0x80000010)
    d = run(s, a, b, c)
    assert [explain(a[i], b[i], c[i], s).bits for i in range(60)] == d.tolist()


def test_table():
    for s in tensorcore.specs():
        assert spec(s.arch, s.instruction) is s
        assert sorted(l for step in s.order for l in step) == list(range(s.k)), s
        assert {len(step) for step in s.order} == {s.length}, s
        assert s.instruction in str(s)
        if s.operation == "fused":  # sums of magnitudes fit 32 bits
            digits = [10 if s.widened else f.mantissa_bits for f in (s.a, s.b)]
            largest = (2 - e(-digits[0])) * (2 - e(-digits[1]))
            assert s.length * largest * e(s.fraction_bits) + 2 * e(s.fraction_bits) < 2**32, s


VECTORS = {  # name of the set and of its outputs -> instruction, and whether c took part
    ("fp16", "d_fp32"): ("mma.m16n8k16.f32.f16.f16.f32", True),
    ("fp16", "d_fp16"): ("mma.m16n8k16.f16.f16.f16.f16", True),
    ("bf16", "d_fp32"): ("mma.m16n8k16.f32.bf16.bf16.f32", True),
    ("tf32", "d_fp32"): ("mma.m16n8k8.f32.tf32.tf32.f32", True),
    ("E4M3", "d_fp32"): ("wgmma.k32.f32.e4m3.e4m3", False),
    ("E5M2", "d_fp32"): ("wgmma.k32.f32.e5m2.e5m2", False),
    ("E4M3", "d_fp16"): ("mma.m16n8k32.f16.e4m3.e4m3.f16", True),
    ("E5M2", "d_fp16"): ("mma.m16n8k32.f16.e5m2.e5m2.f16", True),
}


@pytest.mark.parametrize("kind, output", VECTORS)
def test_hardware_outputs(kind, output):
    """5000 dot products that an H200 computed, for each format."""
    path = SHARED / "data" / "h200_vectors.npz"
    if not path.exists():
        pytest.skip("the hardware outputs are not on this machine")
    instruction, with_c = VECTORS[kind, output]
    s = spec(H, instruction)

    def bits(name, f):
        values = np.load(path)[f"H200_{kind}_{name}"].view(np.float32)
        return tensorcore.to_bits(values.astype(f.dtype), f)

    a, b, c, d = bits("a", s.a), bits("b", s.b), bits("c", s.c), bits(output, s.d)
    a, b = (np.pad(x, [(0, 0), (0, s.k - x.shape[1])]) for x in (a, b))
    got = run(s, a, b, c if with_c else np.zeros_like(c))
    wrong = np.flatnonzero(got != d)
    assert not len(wrong), f"{len(wrong)} of {len(d)} differ, first {wrong[:5]}"
