"""float64 in the model of tensor-core arithmetic: probes with known answers, NaNs as an H200 returns them, random bits
against fractions."""

import math

import numpy as np
from tensorcore_cases import e, matches, pairs, run, run_pairs

from jaxmd.tensorcore import explain, spec, value_of

H, NAME = "hopper", "mma.m8n8k4.f64.f64.f64.f64"
inf, nan = math.inf, math.nan

# probes 40 to 43, IEEE signs of zero
DOUBLE = [
    (pairs((e(53), 1), (1, 1), (-e(53), 1), (1, 1)), 0, 1),
    (pairs((1, 2), (1, e(-52) + e(-53))), 0, 2 + e(-51)),
    (pairs((1, 2 + e(-51)), (1, e(-52))), 0, 2 + e(-50)),
    (pairs((1, 1)), -(1 - e(-53)), e(-53)),
    (pairs((e(-1074), e(52))), 0, e(-1022)),
    (pairs((2, (1, e(-53)))), 1, 1),
    (pairs((-0.0, 1)), -0.0, 0),  # the zeros that follow are +0
    (pairs((4, (-0.0, 1.0))), -0.0, -0.0),
    (pairs((e(1023), 2)), 0, inf),
    (pairs((e(1023), 2), (-inf, 1)), 0, nan),
    (pairs((inf, 0)), 0, nan),
    (pairs((e(-600), e(-600))), e(-1074), e(-1074)),
]


RECORDED = [  # a, b, c and d of an H200, a line each
    (
        "m8n8k4",
        "335bda1adef818e 1c7471d9312593ed ac1a0a40b4ac8e91 7ff9b3fa9044c71b",
        "fff6e23f46d90c94 83e2ce01a45a493a e69dca5a232d4429 d1d9cecaa8cb4248",
        "1cc9fff2f8cbe9ac",
        "fffee23f46d90c94",
    ),
    (
        "m8n8k4",
        "7fff95f92faf7b19 8b47ac923f8d8b95 7ca29dff639b6fd6 3efc904700d645db",
        "fffb78728774e2b6 df9dac2ee9ab74c1 d0ede463bdbb0206 bd0811740fdcdff3",
        "1b93a09f3b69d59b",
        "fffb78728774e2b6",
    ),
    (
        "m8n8k4",
        "232d9f32f599a53 ee49419dcf2318be 7ff98e1a4689e1b5 5485c2fa3ff39a78",
        "4a3a7bdd48b820e5 fff57b9f2f6545a4 a16ea2045d1e8755 4d8f7300626d10d5",
        "b3c7b71582a93306",
        "fffd7b9f2f6545a4",
    ),
    (
        "m8n8k4",
        "7ff0000000000000 fff3c02874b18528 fff0000000000000 7fff63052378fc21",
        "401a1f3c4c37a77c 8000000000000000 7ff0000000000000 bfcd7557b7a31401",
        "fff0000000000000",
        "fff8000000000000",
    ),
    (
        "m16n8k4",
        "7ff100f08c0addae f98c6f3cf6aa5335 55089d05094bf53a ffaf49a5f31ad4f9",
        "84504b70db2725f5 e578e8f8bd5a5edd 9de0da1422ed94d4 2d2f5b390fd961c7",
        "7ff6c2234e7deffc",
        "7ffec2234e7deffc",
    ),
    (
        "m16n8k4",
        "d1ca9acdb4b72f0a 2d936e71c8e56bbc 869e5a6a3e41ae61 fff73cde4498b0e5",
        "d9ecaf016d7075e 578ee50a39389fdf 7ff414029978767c fb72da718cae5a8c",
        "f1789cd49057501",
        "7ffc14029978767c",
    ),
    (
        "m16n8k8",
        (
            "337bf0cdffd81594 1248dcb9ef96b55c 42cd0682a82f7dd8 56cc27d639524556 7f7037f50eea1a1b "
            "fff0c8b4793d21e1 7b23294562d49177 e2d216b9694e2fdd"
        ),
        (
            "cf5ad1d2f8525d87 7be684e827504bc8 817bca4ef4638011 d5acd5d6633666f0 e1e8f0b48c2f3a51 "
            "2d5d1420086d4372 c39b54ebd4b07cc2 5ede5da4a967e8fc"
        ),
        "7ff90f25c998c6df",
        "7ff90f25c998c6df",
    ),
    (
        "m16n8k8",
        (
            "3fd7eb16f13e8649 c020c1a52f9040f3 8000000000000000 4002c727b2bc9186 7ff0000000000000 "
            "fff3c02874b18528 fff0000000000000 7fff63052378fc21"
        ),
        (
            "4002aa15741062e2 4011ba771d3c245b bff7ad1477c3a03d bfc4c1bba54b31e3 ffff885e47e53971 "
            "3fdc8aa391e7aabe 4013a3eb023717c5 7ff0000000000000"
        ),
        "7ff0000000000000",
        "ffff885e47e53971",
    ),
    (
        "m16n8k16",
        (
            "3fd7eb16f13e8649 c020c1a52f9040f3 8000000000000000 4002c727b2bc9186 7ff0000000000000 "
            "fff3c02874b18528 fff0000000000000 7fff63052378fc21 c011faec2ffc2bb9 c021fd63a98ee1b2 "
            "c00e1719a0adc3e9 402a9e2b0a48b0cc c0131cd790f0e5a3 0 bfd2d520b05859ad 0"
        ),
        (
            "c01455cd84cacbc5 bfd3dfa44d90f657 40159f1ecf6a3f57 3fd18d48120ee5cc 401aa125cdd357c7 "
            "fff93364ba95cc08 bfd9bf81d8d329bb 7ff8bfc130bfc392 c003fb65d15905f8 3fe3bd7fe2ef6b2d "
            "402b56257543c7ca 8000000000000000 8000000000000000 3ff17c2e4dfb5e67 bfe1580811f0a7cc "
            "3ff2fccbd4cbdfe7"
        ),
        "3fc3a56cf58e91e6",
        "7ff8bfc130bfc392",
    ),
    (
        "m16n8k16",
        (
            "3fd7eb16f13e8649 c020c1a52f9040f3 8000000000000000 4002c727b2bc9186 7ff0000000000000 "
            "fff3c02874b18528 fff0000000000000 7fff63052378fc21 c011faec2ffc2bb9 c021fd63a98ee1b2 "
            "c00e1719a0adc3e9 402a9e2b0a48b0cc c0131cd790f0e5a3 0 bfd2d520b05859ad 0"
        ),
        (
            "bfc837e0a9eafadc bfdf2a6ee7fbbc1e 3fea15a93043078a 8000000000000000 fff0000000000000 "
            "c01a8d4de7c1efdd c02a762d4aaa73cb 7ff7276424ce5c0a 0 c01a6ad8682e0d4c c0176aeabf88ee85 "
            "bff861d6f2344fb3 3fd5e52d9ac59485 c012734330eb1a7f bfc50ea8a7ada66c 8000000000000000"
        ),
        "bff79f843802828e",
        "7fff276424ce5c0a",
    ),
]


def test_double():
    s = spec(H, NAME)
    bits = run_pairs(s, [(items, c) for items, c, _ in DOUBLE])
    for (items, c, wanted), got in zip(DOUBLE, bits.tolist()):
        assert matches(got, wanted, s.d), (items, c, value_of(got, s.d))
        assert explain([p[0] for p in items], [p[1] for p in items], c, s).bits == got


def test_nans_of_doubles():
    """A NaN comes out quiet: b's, else c's, else a's; Inf·0 and Inf - Inf make a negative quiet one."""
    s = spec(H, NAME)
    one, inf, quiet = 0x3FF << 52, 0x7FF << 52, 1 << 51
    nans = [0x7FF << 52 | 0xA1, 0xFFF8 << 48 | 0xB2, 0xFFF << 52 | 0xC3]  # of a, b and c; two signal
    default = 0xFFF8 << 48
    cases = [(inf, 0, one, default), (1 << 63, inf, one, default), (inf, one, 0xFFF << 52, default)]
    cases += [(inf, 0, nans[2], nans[2] | quiet), (0x7FF5765C21DD6CFD, one, one, 0x7FFD765C21DD6CFD)]
    for chosen in range(1, 8):
        words = [nans[i] if chosen >> i & 1 else one for i in range(3)]
        cases.append((*words, next(nans[i] | quiet for i in (1, 2, 0) if chosen >> i & 1)))
    x, y, c, d = np.array(cases, np.uint64).T
    a, b = np.zeros((2, len(d), 4), np.uint64)
    for place in (0, 3):  # first in the chain, and last, after products that are zero
        a[:], b[:] = 0, 0
        a[:, place], b[:, place] = x, y
        assert run(s, a, b, c).tolist() == d.tolist()
        assert [explain(a[i], b[i], c[i], s).bits for i in range(len(d))] == d.tolist()
    a[:, 0], b[:, 0] = one, nans[1]  # the chain's NaN is the addend of what follows: only b's comes before it
    wanted = [q | quiet if math.isnan(value_of(q, s.b)) else nans[1] for q in y.tolist()]
    assert run(s, a, b, c).tolist() == wanted


def test_recorded_nans():
    """Each sum holds several NaNs, or makes one; an instruction of more products is a chain of those of four."""
    s = spec(H, NAME)
    for shape, *operands, wanted in RECORDED:
        a, b, (c,), (d,) = (np.array([int(x, 16) for x in text.split()], np.uint64) for text in (*operands, wanted))
        assert explain(a, b, c, spec(H, NAME.replace("m8n8k4", shape))).bits == d
        for l in range(0, len(a), 4):
            (c,) = run(s, a[None, l : l + 4], b[None, l : l + 4], np.array([c]))
        assert c == d


def test_double_on_random_bits():
    s = spec(H, NAME)
    g = np.random.Generator(np.random.PCG64(5))
    a, b, c = (g.integers(0, 2**64, shape, dtype=np.uint64) for shape in ((600, 4), (600, 4), 600))
    near = (np.uint64(1023) + g.integers(0, 60, (600, 4), dtype=np.uint64)) << np.uint64(52)
    a[100:] = (a[100:] & np.uint64(0x800FFFFFFFFFFFFF)) | near[100:]
    b[100:] = (b[100:] & np.uint64(0x800FFFFFFFFFFFFF)) | near[:500]
    c[100:] = (c[100:] & np.uint64(0x800FFFFFFFFFFFFF)) | near[100:, 0]
    a[400:] &= np.uint64(0x8000000000000FFF)  # subnormal, times large: results near the bottom of the range
    b[400:] = (b[400:] & np.uint64(0x800FFFFFFFFFFFFF)) | np.uint64(980 << 52)
    c[400:] &= np.uint64(0x80000000000000FF)
    d = run(s, a, b, c)
    wanted = [explain(a[i], b[i], c[i], s).bits for i in range(600)]
    wrong = [i for i in range(600) if d[i] != wanted[i]]
    assert not wrong, (len(wrong), wrong[:3])
