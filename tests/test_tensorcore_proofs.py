"""What the model proves: exact sums, those of the product engines among them; and what a probe finds out by itself."""

import itertools
from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tensorcore_cases import e, program, random_bits

from jaxmd import _residue_steps, _residues, _slices, tensorcore
from jaxmd.tensorcore import _steps, bits_of, explain, is_exact, max_exact_k, spec, value_of, was_exact

INT8 = spec("hopper", "mma.m16n8k32.s32.s8.s8.s32")
DOUBLE = spec("hopper", "mma.m16n8k8.f64.f64.f64.f64")
LENGTHS = [1, 2, 64, 1000, 4096, 65536, 2**17, 2**20]


# --- the certificate a priori ----------------------------------------------------------------------------------------

BOUNDS = [  # spec, bits of a and b, the largest k
    ("hopper", "wgmma.k16.f32.f16.f16", 8, 8, 2**8),
    ("hopper", "wgmma.k16.f32.f16.f16", 11, 11, 4),
    ("ampere", "mma.m16n8k16.f32.bf16.bf16.f32", 8, 8, 2**8),
    ("volta", "mma.m8n8k4.f32.f16.f16.f32", 9, 9, 2**6),
    ("hopper", "wgmma.k32.f32.e4m3.e4m3", 4, 4, 2**6),
    ("ada", "mma.m16n8k32.f32.e5m2.e5m2.f32", 3, 3, 2**8),
    ("hopper", "mma.m16n8k32.f32.e4m3.e4m3.f32", 4, 4, 2**16),
    ("blackwell", "tcgen05.k32.f32.e4m3.e4m3", 4, 4, 2**16),
    ("hopper", "wgmma.k16.f16.f16.f16", 4, 4, 2**3),
    ("hopper", "mma.m16n8k8.f64.f64.f64.f64", 20, 20, 2**13),
    ("hopper", "mma.m16n8k32.s32.s8.s8.s32", 7, 7, 2**17 - 1),
]


@pytest.mark.parametrize("arch, name, bits_a, bits_b, wanted", BOUNDS)
def test_bound_and_that_it_is_attained(arch, name, bits_a, bits_b, wanted):
    s = spec(arch, name)
    assert max_exact_k(bits_a, bits_b, s) == wanted
    assert is_exact(bits_a, bits_b, wanted, s) and not is_exact(bits_a, bits_b, wanted + 1, s)
    if s.operation != "fused" or wanted * s.k > 2**20:
        return
    # the largest sum that the bound allows is right; one product of 1 more is lost
    k = -(-(wanted + 1) // s.k) * s.k
    a, b = np.zeros((1, k), s.a.word), np.zeros((k, 1), s.b.word)
    a[0, :wanted], b[:wanted, 0] = bits_of(2**bits_a, s.a), bits_of(2**bits_b, s.b)
    total = wanted * 2 ** (bits_a + bits_b)
    zero = np.zeros((1, 1), s.c.word)
    assert value_of(np.asarray(tensorcore.matmul(a, b, s)).item(), s.d) == total
    judged = (bits_a, s.a.name) == (8, "f16")  # the others differ in numbers only
    assert not judged or np.asarray(was_exact(a, b, zero, s)).item()
    a[0, wanted], b[wanted, 0] = bits_of(1, s.a), bits_of(1, s.b)
    assert value_of(np.asarray(tensorcore.matmul(a, b, s)).item(), s.d) != total + 1
    assert not judged or not np.asarray(was_exact(a, b, zero, s)).item()


@pytest.mark.parametrize("arch, name", [BOUNDS[i][:2] for i in (0, 3, 4, 6, 8)])
def test_random_integers_within_the_bound_are_exact(arch, name):
    s = spec(arch, name)
    g = np.random.Generator(np.random.PCG64(3))
    bits = 2 if s.a.name == "e5m2" else 3
    k = min(-(-max_exact_k(bits, bits, s) // s.k) * s.k, 8 * s.k)
    assert is_exact(bits, bits, k, s) or k == s.k
    k_used = min(k, max_exact_k(bits, bits, s))
    x, y = (g.integers(-(2**bits), 2**bits + 1, shape) for shape in ((4, k), (k, 4)))
    x[:, k_used:] = 0
    a, b = (np.vectorize(lambda v, f=f: bits_of(int(v), f))(m).astype(f.word) for m, f in ((x, s.a), (y, s.b)))
    d = np.asarray(tensorcore.matmul(a, b, s))
    assert np.vectorize(lambda v: int(value_of(v, s.d)))(d).tolist() == (x @ y).tolist()


def test_formats_that_do_not_hold_all_integers():
    assert max_exact_k(9, 8, spec("hopper", "wgmma.k16.f32.bf16.bf16")) == 0
    assert max_exact_k(5, 4, spec("hopper", "wgmma.k32.f32.e4m3.e4m3")) == 0
    with pytest.raises(ValueError, match="bits_a = -1"):
        max_exact_k(-1, 0, INT8)


def test_volta_loses_what_it_carries():
    """F = 23: a carried 2^24 drops the last bit of what follows; the bound ends just before."""
    s = spec("volta", "mma.m8n8k4.f32.f16.f16.f32")
    assert explain([-3], [1], 2**24, s).result == 2**24 - 2
    assert explain([-3], [1], 2**24, spec("ampere", "mma.m16n8k8.f32.f16.f16.f32")).result == 2**24 - 3


# --- the product engines ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limbs", range(1, 17))
def test_sums_of_slices_do_not_round(limbs):
    """Engine "fp64": order g sums k (g + 1) products of digits of beta - 1 bits; beta is within what doubles hold."""
    for k, guard in itertools.product(LENGTHS, (0, 24, 56)):
        plan = _slices.plan(limbs, k, guard)
        bits = plan.width - 1
        assert is_exact(bits, bits, k * plan.count, DOUBLE), (limbs, k, plan)


@pytest.mark.slow
def test_sums_of_given_slices_do_not_round():
    """The same a posteriori: every fused multiply-add of every order, on digits of random and of extreme entries."""
    g = np.random.Generator(np.random.PCG64(4))
    k, plan = 64, _slices.plan(2, 64, 0)
    top = 1 << (plan.width - 1)
    digits = [g.integers(-top, top + 1, (plan.count, *shape)) for shape in ((2, k), (k, 2))]
    digits[0][:, 0], digits[1][:, :, 0] = top, top
    a, b = (tensorcore.to_bits(x.astype(np.float64), "f64") for x in digits)
    c = np.zeros((2, 2), np.uint64)
    order = plan.count - 1
    left = np.concatenate([a[i] for i in range(order + 1)], axis=1)
    right = np.concatenate([b[order - i] for i in range(order + 1)], axis=0)
    assert np.asarray(was_exact(left, right, c, DOUBLE)).all()
    d = tensorcore.from_bits(np.asarray(tensorcore.matmul(left, right, DOUBLE)), "f64")
    exact = sum(digits[0][i].astype(object) @ digits[1][order - i].astype(object) for i in range(order + 1))
    assert d.astype(object).tolist() == exact.tolist()


def test_sums_of_residues_do_not_overflow():
    """Engine "int8": residues are signed bytes, and blocks of k end before int32 does."""
    assert is_exact(7, 7, _residues.MAX_K, INT8)
    block = _residues.MAX_K // _residue_steps.K_MULTIPLE * _residue_steps.K_MULTIPLE
    assert is_exact(7, 7, block, INT8)
    k = 32 * 8
    extreme = np.full((1, k), 0x80, np.uint8), np.full((k, 1), 0x80, np.uint8)
    start = np.array([[2**31 - 1 - k * 2**14]], np.uint32)  # what a longer sum would have come to
    assert np.asarray(was_exact(*extreme, start, INT8)).item()
    assert not np.asarray(was_exact(*extreme, start + np.uint32(1), INT8)).item()


def test_the_product_engines_int8_dot_is_the_model():
    g = np.random.Generator(np.random.PCG64(5))
    a, b = (g.integers(-128, 128, (4, 96)).astype(np.int8) for _ in range(2))
    ours = np.asarray(_residue_steps.dot(jnp.asarray(a), jnp.asarray(b)))
    model = tensorcore.matmul(tensorcore.to_bits(a, "s8"), tensorcore.to_bits(b.T, "s8"), INT8)
    assert (np.asarray(tensorcore.from_bits(model, "s32")) == ours).all()


# --- the certificate a posteriori, against fractions -----------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "wgmma.k16.f32.f16.f16",
        "mma.m16n8k32.f16.e4m3.e5m2.f16",
        pytest.param("wgmma.k32.f32.e4m3.e5m2", marks=pytest.mark.slow),
    ],
)
def test_exact_means_exact(name):
    s = spec("hopper", name)
    g = np.random.Generator(np.random.PCG64(6))
    a, b = (random_bits(f, (40, s.k), seed, True) for f, seed in ((s.a, 1), (s.b, 2)))
    a[:, 4:], c = 0, random_bits(s.c, (40, 1, 1), 3, True)
    a[:, 1:] *= g.integers(0, 2, (40, s.k - 1)).astype(s.a.word)
    c[::2] = 0
    x, y, z = (v.astype(np.uint32) for v in (a[:, None], b[:, :, None], c))
    d, exact = (np.asarray(v)[:, 0, 0] for v in jax.jit(_steps.run_exactly, static_argnums=3)(x, y, z, s))
    walked = [explain(a[i], b[i], c[i, 0, 0], s) for i in range(40)]
    assert d.tolist() == [w.bits for w in walked]
    for found, w in zip(exact, walked):
        assert not found or w.result == w.exact
        assert found == all(t.cut == 0 for st in w.steps for t in st.terms) & all(
            isinstance(st.result, Fraction) and st.result == st.total for st in w.steps
        )
    assert 0 < exact.sum() < 40


# --- probe -----------------------------------------------------------------------------------------------------------

PROBED = [
    ("volta", "mma.m8n8k4.f32.f16.f16.f32"),
    ("ampere", "mma.m16n8k8.f32.tf32.tf32.f32"),
    ("hopper", "wgmma.k16.f16.f16.f16"),
    ("hopper", "mma.m16n8k32.f32.e4m3.e4m3.f32"),
    ("hopper", "mma.m8n8k4.f64.f64.f64.f64"),
]
ALL = [(s.arch, s.instruction) for s in tensorcore.specs() if s.operation != "integer" and s.a.name != "e2m1"]


def probed(s):
    def dot(a, b, c):
        pad = lambda x: np.concatenate([x, np.zeros((4096 - len(x), *x.shape[1:]), x.dtype)])
        return np.asarray(program(s)(pad(a), pad(b), pad(c)))[: len(c)]

    return tensorcore.probe(dot, s.a, s.b, s.d, k=s.k)


@pytest.mark.parametrize("arch, name", PROBED)
def test_a_probe_of_the_model_finds_the_table(arch, name):
    s = spec(arch, name)
    record = probed(s)
    assert record.differences(s) == []
    assert record.length == s.length and record.order == s.order
    if s.a.name in ("bf16", "tf32") or (s.d.name == "f16" and s.a.name == "f16"):
        assert record.zero_exponent == s.zero_exponent
    assert f"L = {s.length}" in str(record)


@pytest.mark.slow
@pytest.mark.parametrize("arch, name", sorted({*ALL} - {*PROBED}))
def test_a_probe_of_every_model(arch, name):
    s = spec(arch, name)
    try:
        record = probed(s)
    except ValueError as error:
        assert "too few powers of two" in str(error) and {s.a.name, s.b.name} & {"e3m2", "e2m3", "e2m1"}
        return
    assert record.differences(s) == []


def test_a_probe_sees_other_units():
    """A sum in float32, one after the other, and one without an addend."""
    s = spec("hopper", "wgmma.k16.f32.f16.f16")

    def chain(a, b, c):
        x, y = (tensorcore.from_bits(v, "f16").astype(np.float64) for v in (a, b))
        total = tensorcore.from_bits(c, "f32").copy()
        for l in range(x.shape[1]):
            with np.errstate(invalid="ignore"):
                total = (total + x[:, l] * y[:, l]).astype(
                    np.float32
                )  # products of f16 are exact, the sum in float64 is
        return tensorcore.to_bits(total, "f32")

    record = tensorcore.probe(chain, "f16", d="f32", k=4)
    assert record.length == 1 and record.order == ((0,), (1,), (2,), (3,))
    assert record.fraction_bits is None and record.rounding == "to nearest even" and record.output_bits == 23
    assert record.differences(s)

    blind = tensorcore.probe(lambda a, b, c: probe_rows(s, a, b, c), "f16", d="f32", k=16, takes_c=False)
    assert blind.fraction_bits == 25 and blind.length == 16 and blind.fraction_bits_c is None
    with pytest.raises(ValueError, match="too few powers of two"):
        tensorcore.probe(chain, "e2m1", d="f32", k=4)


def probe_rows(s, a, b, c):
    assert not c.any()
    pad = lambda x: np.concatenate([x, np.zeros((4096 - len(x), *x.shape[1:]), x.dtype)])
    return np.asarray(program(s)(pad(a), pad(b), pad(c)))[: len(c)]


# --- explain ---------------------------------------------------------------------------------------------------------


def test_the_worked_example():
    x = explain([-(2**13), 48, 0.375, 0.125], [2**10, 48, 1, 1], 2**23, spec("blackwell", "tcgen05.k16.f32.f16.f16"))
    (step,) = x.steps
    assert x.exact == Fraction("2304.5") and x.result == Fraction("2304.25") and x.fma_chain == Fraction("2304.5")
    assert [t.exponent for t in step.terms[:4]] == [23, 10, -2, -3] and step.e_max == 23 and step.last_place == -2
    assert [t.cut for t in step.terms[:4]] == [0, 0, Fraction(1, 8), Fraction(1, 8)]
    assert step.total == Fraction("2304.25")
    shown = str(x)
    for part in ("2304.25", "2304.5", "e_max = 23", "0.125", "0.375", "FMA chain", "12 products that are zero"):
        assert part in shown
    # the chain the other way round, c first: rounding gives 2304
    back = explain([0.125, 0.375, 48, -(2**13)], [1, 1, 48, 2**10], 2**23, spec("blackwell", "tcgen05.k16.f32.f16.f16"))
    assert back.fma_chain == 2304 and back.result == Fraction("2304.25")


def test_explanations_of_other_kinds():
    double = explain([e(53), 1, -e(53), 1], [1, 1, 1, 1], 0, spec("hopper", "mma.m8n8k4.f64.f64.f64.f64"))
    assert double.result == 1 and double.exact == 2 and len(double.steps) == 4
    late = explain([1.0], [1.0], e(-30), spec("hopper", "mma.m16n8k32.f32.e4m3.e4m3.f32"))
    assert len(late.steps) == 3 and late.result == 1 and "products" in str(late)
    whole = explain([100] * 32, [100] * 32, 2**31 - 1, spec("hopper", "wgmma.k32.s32.s8.s8.satfinite"))
    assert whole.result == 2**31 - 1 and whole.exact == 2**31 - 1 + 320000
    special = explain([float("inf"), 1], [1, 1], 0, spec("hopper", "wgmma.k16.f32.bf16.bf16"))
    assert special.result == float("inf") and "inf" in str(special)
    with pytest.raises(ValueError, match="up to 16"):
        explain([1] * 17, [1] * 17, 0, spec("hopper", "wgmma.k16.f32.bf16.bf16"))


@pytest.mark.slow
def test_the_tour(tmp_path, capsys, monkeypatch):
    """examples/tensorcore_arithmetic.py: its figures for the worked example, and a user's numbers."""
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "examples"))
    import tensorcore_arithmetic

    tensorcore_arithmetic.main(["--rows", "1", "--picture", str(tmp_path / "x.png")])
    shown = capsys.readouterr().out
    results = ["2304", "2304", "2304.25", "2304.25", "2048", "2304.25"]
    assert [line.split()[-1] for line in shown.splitlines()[2:8]] == results
    assert (tmp_path / "x.png").stat().st_size > 5000 and "every 64" in shown
    tensorcore_arithmetic.main(
        ["--a", "1", "0.1", "--b", "3", "1", "--c", "7", "--instruction", "wgmma.k32.f32.e4m3.e4m3"]
    )
    assert "FMA chain" in capsys.readouterr().out
