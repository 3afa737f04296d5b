"""Instructions and products as programs: batches, transformations, settings, both lowerings, errors; against fractions,
one output at a time."""

import dataclasses
import functools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from handler_calls import assert_same_output_on_every_isa
from tensorcore_cases import random_bits

from jaxmd import tensorcore
from jaxmd.tensorcore import _bits, _fused, _specs, _steps, _verify, bits_of, explain, spec, value_of

V, A, H = "volta", "ampere", "hopper"


def operands(s, m, n, k, seed=1):
    a, b = random_bits(s.a, (m, k), seed, True), random_bits(s.b, (k, n), seed + 1, True)
    return a, b, random_bits(s.c, (m, n), seed + 2, True)


def outputs(s, a, b, c):
    """By `explain`, one output at a time, along a chain of instructions."""
    d = np.array(c)
    for i, j in np.ndindex(*d.shape):
        for l in range(0, a.shape[1], s.k):
            d[i, j] = explain(a[i, l : l + s.k], b[l : l + s.k, j], d[i, j], s).bits
    return d


CHAINED = [
    (H, "wgmma.k16.f32.f16.f16"),
    (A, "mma.m16n8k8.f32.tf32.tf32.f32"),
    (H, "mma.m16n8k32.f32.e4m3.e4m3.f32"),
    (H, "mma.m16n8k32.f16.e5m2.e4m3.f16"),
    (H, "mma.m8n8k4.f64.f64.f64.f64"),
]


@pytest.mark.parametrize("arch, instruction", [CHAINED[0], *CHAINED[3:]])
def test_matrices_batches_and_transformations(arch, instruction):
    s = spec(arch, instruction)
    a, b, c = operands(s, 3, 2, s.k)
    wanted = outputs(s, a, b, c)
    call = lambda x, y, z: tensorcore.mma(x, y, z, s)
    stack = [np.stack([x, np.roll(x, 1, 0)]) for x in (a, b, c)]
    mapped = np.asarray(jax.jit(jax.vmap(call))(*stack))
    assert (mapped[0] == wanted).all() and (mapped[1] == outputs(s, *(x[1] for x in stack))).all()
    if s.operation == "fused" and not s.c_last:  # the others are these programs and plain JAX
        assert (np.asarray(jax.jit(call)(a, b, c)) == wanted).all()
        assert (np.asarray(jax.jit(call)(*stack)) == mapped).all()


@pytest.mark.parametrize(
    "arch, instruction", [pytest.param(*CHAINED[0], marks=pytest.mark.slow), CHAINED[2], (H, "wgmma.k32.s32.s8.s8")]
)
def test_matmul(arch, instruction):
    s = spec(arch, instruction)
    k = 5 * s.k - 3
    a, b, _ = (np.asarray(x) for x in operands(s, 2, 2, k)) if s.operation != "integer" else bytes_of(2, 2, k)
    zero = np.zeros((2, 2), s.d.word)
    padded = np.pad(a, [(0, 0), (0, 3)]), np.pad(b, [(0, 3), (0, 0)])
    assert (np.asarray(tensorcore.matmul(a, b, s)) == outputs(s, *padded, zero)).all()
    parts = [outputs(s, *pad(a[:, i:j], b[i:j], s.k), zero) for i, j in ((0, s.k), (s.k, k))]
    got = np.asarray(tensorcore.matmul(a, b, s, split_k=[s.k, k - s.k]))
    assert (got == added(parts, s)).all()
    if s.operation == "fused":
        chunks = [outputs(s, *pad(a[:, i : i + 2 * s.k], b[i : i + 2 * s.k], s.k), zero) for i in range(0, k, 2 * s.k)]
        got = np.asarray(tensorcore.matmul(a, b, s, promote_every=2 * s.k))
        assert (got == added([zero, *chunks], s)).all()


def test_promoted_and_split_under_vmap():
    s = spec(H, "wgmma.k8.f32.tf32.tf32")
    a, b = random_bits(s.a, (3, 2, 100), 1, True), random_bits(s.b, (3, 100, 2), 2, True)
    call = lambda x, y: tensorcore.matmul(x, y, s, promote_every=16, split_k=2)
    shared = np.asarray(jax.jit(jax.vmap(call, (0, None)))(a, b[1]))
    one = jax.jit(call)
    for i in range(3):
        assert (shared[i] == np.asarray(one(a[i], b[1]))).all()


def bytes_of(m, n, k):
    g = np.random.Generator(np.random.PCG64(8))
    return g.integers(0, 256, (m, k)).astype(np.uint8), g.integers(0, 256, (k, n)).astype(np.uint8), None


def pad(a, b, k):
    missing = -a.shape[1] % k
    return np.pad(a, [(0, 0), (0, missing)]), np.pad(b, [(0, missing), (0, 0)])


def added(parts, s):
    """Parts added in order in the output's format, each sum rounded to nearest, by Fractions."""
    total = parts[0]
    for part in parts[1:]:
        if s.operation == "integer":
            total = total + part
            continue
        exact = [value_of(p, s.d) + value_of(q, s.d) for p, q in zip(total.ravel(), part.ravel())]
        total = np.array([nearest(x, s.d) for x in exact], s.d.word).reshape(part.shape)
    return total


def nearest(x, f):
    """The bits of a finite sum in f16 or f32: NumPy rounds a Python float once, and these sums fit one exactly."""
    assert Fraction(float(x)) == x
    return np.array(float(x)).astype(f.dtype).view(f.word)


def test_split_into_equal_parts():
    s = spec(H, "wgmma.k16.f32.f16.f16")
    a, b, _ = operands(s, 2, 2, 200)
    got = tensorcore.matmul(a, b, s, split_k=2)  # parts are multiples of 128 bytes: 128 and 72
    assert (np.asarray(got) == np.asarray(tensorcore.matmul(a, b, s, split_k=[128, 72]))).all()
    assert np.asarray(tensorcore.matmul(a[:, :0], b[:0], s)).tolist() == [[0, 0], [0, 0]]


def test_addition_to_nearest():
    """What adds promoted and split sums: float32 on random bits, near and far, against Fractions."""
    g = np.random.Generator(np.random.PCG64(9))
    f = tensorcore.FORMATS["f32"]
    x, y = (g.integers(0, 2**32, 900, dtype=np.uint64).astype(np.uint32) for _ in range(2))
    y[300:] = (y[300:] & 0x807FFFFF) | ((x[300:] >> 23 & 0xFF) ^ g.integers(0, 8, 600).astype(np.uint32)) << 23
    x[600:] &= 0x80FFFFFF
    y[600:] &= 0x80FFFFFF
    decoded = [_bits.decode(jnp.asarray(v), f) for v in (x, y)]
    got = np.asarray(jax.jit(_fused.add_nearest, static_argnums=2)(*decoded, _specs.ROUNDINGS["RNE-FP32"]))
    for p, q, bits in zip(x.tolist(), y.tolist(), got.tolist()):
        u, v = value_of(p, f), value_of(q, f)
        if isinstance(u, Fraction) and isinstance(v, Fraction) and u + v != 0:
            with np.errstate(over="ignore"):
                assert bits == int(np.float32(np.longdouble(0) + float_sum(u, v)).view(np.uint32)), (hex(p), hex(q))
        elif isinstance(u, Fraction) and isinstance(v, Fraction):
            assert bits == (0x80000000 if p == q == 0x80000000 else 0), (hex(p), hex(q))
        else:
            total = float(u) + float(v)
            assert bits == (f.nan if total != total else bits_of(total, f)), (hex(p), hex(q))


def float_sum(u, v):
    """RN of a sum of two float32 to float32, by way of one exact rounding of a Fraction."""
    from oracles import nearest as nearest_double

    exact = u + v
    once = nearest_double(exact)  # round to odd would be needed only where this is inexact
    if Fraction(once) == exact:
        return once
    down = math.nextafter(once, 0) if abs(Fraction(once)) > abs(exact) else once
    odd = down if np.float64(down).view(np.uint64) & 1 else math.nextafter(down, math.inf if exact > 0 else -math.inf)
    return odd


def test_without_x64():
    with jax.enable_x64(False):
        for instruction in ("mma.m16n8k16.f32.f16.f16.f32", "wgmma.k32.s32.s8.s8", "wgmma.k32.f32.e4m3.e5m2"):
            s = spec(H, instruction)
            a, b, c = (
                operands(s, 2, 2, s.k)
                if s.operation == "fused"
                else (*bytes_of(2, 2, s.k)[:2], np.ones((2, 2), np.uint32))
            )
            assert (np.asarray(jax.jit(lambda *x, s=s: tensorcore.mma(*x, s))(a, b, c)) == outputs(s, a, b, c)).all()
        s = spec(H, "mma.m8n8k4.f64.f64.f64.f64")
        one = np.full((4, 4), 0x3FF0000000000000, np.uint64)
        with pytest.raises(TypeError, match="jax_enable_x64"):
            tensorcore.mma(one, one, one, s)


def test_one_step():
    s = spec(A, "mma.m16n8k16.f32.f16.f16.f32")
    a, b = random_bits(s.a, (5, 8), 1, True), random_bits(s.b, (5, 8), 2, True)
    c = random_bits(s.c, (5,), 3, True)
    got = np.asarray(tensorcore.fused_dot_add(a, b, c, s))
    assert got.dtype == np.uint32
    assert got.tolist() == [explain(a[i], b[i], c[i], spec(A, "mma.m16n8k8.f32.f16.f16.f32")).bits for i in range(5)]


def test_bits_and_values():
    for f in tensorcore.FORMATS.values():
        size = min(f.width, 16)
        for bits in range(0, 1 << size, 37 if size == 16 else 1):
            x = value_of(bits, f)
            if x == x and not f.unused and bits < 1 << (1 + f.exponent_bits + f.mantissa_bits) and f.exponent_bits:
                again = bits_of(x, f)
                assert again == bits or (x == 0 and again == 0)
            if f.dtype is not None and f.width <= 16:
                with np.errstate(invalid="ignore"):
                    number = float(np.array(bits, f.word).view(f.dtype).astype(np.float64))
                assert number == x or (number != number and x != x)
    half = jnp.asarray([1.0, -0.5], jnp.float16)
    assert np.asarray(tensorcore.from_bits(tensorcore.to_bits(half, "f16"), "f16")).tolist() == [1.0, -0.5]
    with pytest.raises(ValueError, match=r"0\.1 came; f16"):
        bits_of(0.1, "f16")
    with pytest.raises(TypeError, match="float16"):
        tensorcore.to_bits(np.ones(2), "f16")


def test_errors():
    s = spec(H, "wgmma.k16.f32.f16.f16")
    a, b, c = operands(s, 2, 2, 16)
    with pytest.raises(ValueError, match="architecture 'kepler'"):
        spec("kepler", "mma")
    with pytest.raises(ValueError, match="volta has no"):
        spec(V, "mma.m16n8k16.f32.f16.f16.f32")
    with pytest.raises(TypeError, match="a has type float16"):
        tensorcore.mma(a.view(np.float16), b, c, s)
    with pytest.raises(ValueError, match="k = 16"):
        tensorcore.mma(a[:, :8], b[:8], c, s)
    with pytest.raises(ValueError, match="inner dimensions"):
        tensorcore.matmul(a, b[:8], s)
    with pytest.raises(ValueError, match="multiple of k = 16"):
        tensorcore.matmul(a, b, s, promote_every=24)
    with pytest.raises(ValueError, match="add up to 16"):
        tensorcore.matmul(a, b, s, split_k=[8, 4])
    with pytest.raises(ValueError, match="L <= 16"):
        tensorcore.fused_dot_add(np.zeros((2, 32), np.uint16), np.zeros((2, 32), np.uint16), np.zeros(2, np.uint32), s)


# --- the compiled chain and the one in JAX ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arch, instruction",
    [pytest.param(A, "mma.m16n8k8.f32.tf32.tf32.f32", marks=pytest.mark.slow), (H, "wgmma.k32.f16.e4m3.e5m2")],
)
def test_compiled_and_in_jax(arch, instruction):
    """The handler's bits are those of plain JAX, which every other backend runs: narrow and wide, special and not."""
    s = spec(arch, instruction)
    k = 2 * s.k
    for near, n in ((False, 21), (True, 21)):
        a, b = random_bits(s.a, (5, k), 4, near), random_bits(s.b, (k, n), 5, near)
        a, b, c = (_bits.words(x, f, "", "") for x, f in ((a, s.a), (b, s.b), (random_bits(s.c, (5, n), 6, near), s.c)))
        compiled = jax.jit(_steps.run, static_argnums=3)(a, b, c, s)
        plain, _ = jax.jit(_steps.run_exactly, static_argnums=3)(a, b, c, s)
        assert (np.asarray(compiled) == np.asarray(plain)).all()


@pytest.mark.slow
def test_every_instruction_set_gives_the_same_bits():
    script = """
import hashlib, jax, numpy as np
from jaxmd import tensorcore
from tensorcore_cases import random_bits
h = hashlib.sha256()
for name in ("wgmma.k16.f32.bf16.bf16", "wgmma.k16.f16.f16.f16", "wgmma.k32.f32.e4m3.e5m2"):
    s = tensorcore.spec("hopper", name)
    for near in (False, True):
        a, b, c = (random_bits(f, x, 1, near) for f, x in ((s.a, (9, s.k)), (s.b, (s.k, 37)), (s.c, (9, 37))))
        h.update(np.asarray(tensorcore.mma(a, b, c, s)).tobytes())
print(h.hexdigest())
"""
    assert_same_output_on_every_isa(script)


# --- against the hardware, as far as this goes without it ------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wgmma.k16.f32.f16.f16", "wgmma.k32.s32.s8.s8"])
def test_verification_counts_what_differs(monkeypatch, name):
    """With the model in the place of the hardware nothing differs; with a wrong one the rows are listed."""
    s = spec(H, name)
    wrong = {"fused": {"fraction_bits": 24}, "integer": {"a": tensorcore.FORMATS["u8"]}}

    def hardware(unit):
        def issued(a, b, c, _, accumulate=True, negate_a=False):
            a = _verify._negated(a, s.a) if negate_a else a
            return tensorcore.mma(a, b, c if accumulate else jnp.zeros_like(c), unit)

        return issued

    kinds = ("bits",) if s.operation == "integer" else ("near", "cancel")
    monkeypatch.setattr(_verify, "issue", hardware(s))
    for kind in kinds:
        options = {"accumulate": kind != "near", "negate_a": kind == "cancel" and s.operation == "fused"}
        verdict = tensorcore.verify(s, kind, outputs=3000, **options)
        assert verdict.outputs >= 3000 and verdict.mismatches == 0 and verdict.first == ()
    monkeypatch.setattr(_verify, "issue", hardware(dataclasses.replace(s, **wrong[s.operation])))
    verdict = tensorcore.verify(s, kinds[-1], outputs=3000)
    assert 0 < verdict.mismatches < verdict.outputs
    for d in verdict.first:
        assert explain(np.array(d.a, s.a.word), np.array(d.b, s.b.word), np.array(d.c, s.c.word), s).bits == d.model
        assert d.model != d.hardware
    with pytest.raises(ValueError, match="kind 'other'"):
        tensorcore.verify(s, "other")


DRAWN = ["m16n8k16.f32.f16.f16.f32", "m16n8k8.f32.bf16.bf16.f32", "m16n8k8.f32.tf32.tf32.f32"]
DRAWN += ["m16n8k32.f32.e4m3.e5m2.f32", "m16n8k4.f64.f64.f64.f64", "m16n8k32.s32.s8.u8.s32"]


@pytest.mark.parametrize("x64", [True, False])
def test_operands_are_drawn_without_promotion(x64):
    """Every kind of bits, with no type but those asked for."""
    for s in (spec(H, f"mma.{name}") for name in DRAWN):
        if s.a.width == 64 and not x64:
            continue
        for kind in ("bits",) if s.operation == "integer" else tensorcore.KINDS:
            with jax.enable_x64(x64):
                drawn = jax.eval_shape(functools.partial(_verify.random_operands, s, kind, (3, 16, 8)), 0)
            assert [x.dtype for x in drawn] == [s.a.word, s.b.word, s.c.word]
            assert [x.shape for x in drawn] == [(3, 16, s.k), (3, s.k, 8), (3, 16, 8)]


@pytest.mark.slow
def test_one_factor_is_subnormal():
    s = spec(H, "mma.m16n8k32.f32.e4m3.e5m2.f32")
    with jax.default_prng_impl("unsafe_rbg"):  # which compiles fast
        a, b, _ = (np.asarray(x) for x in _verify.random_operands(s, "sub", (4, 16, 8), 0))
    assert not (a[::2] & 0x78).any() and not (b[1::2] & 0x7C).any()
    assert (a[1::2] & 0x78).any(axis=(1, 2)).all() and (b[::2] & 0x7C).any(axis=(1, 2)).all()


def test_verifying_doubles_needs_x64():
    with jax.enable_x64(False), pytest.raises(TypeError, match="verify: f64 needs uint64"):
        tensorcore.verify(spec(H, "mma.m8n8k4.f64.f64.f64.f64"))


def test_issuing_needs_a_gpu():
    if jax.default_backend() == "gpu":
        pytest.skip("there is one")
    s = spec(H, "wgmma.k16.f32.f16.f16")
    a, b, c = operands(s, 64, 8, 16)
    with pytest.raises(NotImplementedError, match="needs an NVIDIA GPU"):
        tensorcore.issue(a, b, c, s)
    with pytest.raises(ValueError, match=r"wanted \[..., 64, 16\]"):
        tensorcore.issue(a[:16], b, c, s)
    with pytest.raises(ValueError, match="a_from = 'global'"):
        tensorcore.issue(a, b, c, s, a_from="global")
    with pytest.raises(TypeError, match="b has type uint32"):
        tensorcore.issue(a, b.astype(np.uint32), c, s)
