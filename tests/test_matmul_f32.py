"""`jaxmd.matmul_f32` on the CPU: the documented bounds against integers, the kernels' emulation against a model of its
own, the paper's protocol against a chain of float32 multiply-adds, special values, and the transformations."""

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import inputs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import single_oracles as oracle
from handler_calls import assert_same_output_on_every_isa, call

import jaxmd as md
from jaxmd import _single

ENGINES = ["f16x3", "tf32x3", "int8", "f32"]  # and "auto", here the last
KERNELS = ["f16x3", "tf32x3"]


def product(a, b, engine, emulate=False):
    return np.asarray(_single.product(a, b, engine, emulate=emulate))


# accuracy

CASES = [(e, False) for e in ENGINES] + [(e, True) for e in KERNELS]


@pytest.mark.parametrize("kind", oracle.KINDS)
@pytest.mark.parametrize("engine, emulate", CASES)
def test_documented_bound(engine, emulate, kind):
    for m, k, n in [(3, 15, 5), (5, 255, 19), (4, 1100, 3)]:
        a, b = oracle.operands(kind, m, k, n)
        c = product(a, b, engine, emulate)
        assert c.dtype == np.float32 and c.shape == (m, n)
        assert oracle.error_in_bounds(c, a, b, engine) <= 1, (m, k, n)


@pytest.mark.parametrize("kind", oracle.KINDS)
@pytest.mark.parametrize("engine", KERNELS)
def test_no_worse_than_a_chain_of_multiply_adds(engine, kind):
    """The paper's protocol: relative residual against k."""
    for m, k, n in [(72, 64, 64), (32, 128, 32), (16, 512, 16), (16, 1024, 16)]:
        a, b = oracle.operands(kind, m, k, n)
        ours = oracle.residual(product(a, b, engine, True), a, b)
        assert ours <= 1.05 * oracle.residual(oracle.chain(a, b), a, b), k


@pytest.mark.slow
@pytest.mark.parametrize("kind", oracle.KINDS)
@pytest.mark.parametrize("engine", KERNELS)
def test_no_worse_than_a_chain_at_large_k(engine, kind):
    a, b = oracle.operands(kind, 16, 2**16, 16)
    ours = oracle.residual(product(a, b, engine, True), a, b)
    assert ours <= 0.85 * oracle.residual(oracle.chain(a, b), a, b)


@pytest.mark.parametrize("engine", KERNELS)
@pytest.mark.parametrize("k", [1, 16, 40, 130, 333, 1030])
def test_emulation_is_the_model_bit_for_bit(engine, k):
    for kind in oracle.KINDS:
        a, b = oracle.operands(kind, *((3, k, 2) if k < 1024 else (1, k, 1)))
        np.testing.assert_array_equal(product(a, b, engine, True), oracle.model(a, b, engine))


@pytest.mark.parametrize("engine, emulate", CASES)
def test_integers_are_exact(engine, emulate):
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-60, 61, shape).astype(np.float32) for shape in ((20, 300), (300, 24)))
    np.testing.assert_array_equal(product(a, b, engine, emulate), (a.astype(np.int64) @ b.astype(np.int64)))
    x = oracle.operands("uniform(-1, 1)", 30, 30, 1)[0]
    if engine in ("int8", "f32"):
        np.testing.assert_array_equal(product(np.eye(30, dtype=np.float32), x, engine, emulate), x)


@pytest.mark.slow
def test_emulation_on_every_instruction_set():
    assert_same_output_on_every_isa("""
import hashlib, jax
import single_oracles as oracle
from jaxmd import _single
jax.config.update("jax_enable_x64", True)
for kind in oracle.KINDS:
    for engine in ("f16x3", "tf32x3"):
        a, b = oracle.operands(kind, 7, 530, 33)
        print(hashlib.sha256(_single.product(a, b, engine, emulate=True).tobytes()).hexdigest())
""")


def test_handler_refuses_what_does_not_fit():
    out = [((2, 4), np.float32)]
    a, b, row, column = (
        np.ones((2, 8), np.float32),
        np.ones((8, 4), np.float32),
        np.ones(2, np.int32),
        np.ones(4, np.int32),
    )
    call("cpu", "jaxmd_single_matmul", out, a, b, row, column, format=0)
    for wrong, match in [
        ((a, b[:4], row, column), "leading and inner dimensions must agree"),
        ((a, b, row[:1], column), r"the array of row maxima has shape \(1,\); wanted \(2"),
        ((a, b, row, row), r"the array of column maxima has shape \(2,\); wanted \(4"),
    ]:
        with pytest.raises(Exception, match=match):
            call("cpu", "jaxmd_single_matmul", out, *wrong, format=0)
    with pytest.raises(Exception, match="format is 2; wanted 0"):
        call("cpu", "jaxmd_single_matmul", out, a, b, row, column, format=2)


# special values


@pytest.mark.parametrize("engine, emulate", CASES)
def test_inf_and_nan_touch_only_their_entries(engine, emulate):
    a, b = oracle.operands("uniform(-1, 1)", 6, 70, 8)
    a[0, 3], a[1, 5], a[2, 4], a[2, 9], b[7, 1] = np.inf, np.nan, np.inf, -np.inf, -np.inf
    b[4, 2], b[3, 3], a[3, 7] = 0, 0, 1e-30
    c = product(a, b, engine, emulate)
    wanted = oracle.special(a, b)
    finite = np.isfinite(wanted)
    assert finite.sum() == 3 * 7
    np.testing.assert_array_equal(c[~finite], wanted[~finite])
    clean = np.where(np.isfinite(a), a, np.float32(0)), np.where(np.isfinite(b), b, np.float32(0))
    assert oracle.error_in_bounds(np.where(finite, c, 0), *clean, engine, only=finite) <= 1


@pytest.mark.parametrize("engine, emulate", [(e, m) for e, m in CASES if e != "f32"])
def test_whole_range(engine, emulate):
    a, b = oracle.operands("uniform(-1, 1)", 5, 90, 6)
    for p, q in [(-149, 0), (-140, 3), (-126, 126), (127, -120), (-60, -75), (-70, -79), (127, -20), (-149, 127)]:
        x, y = np.ldexp(a, p).astype(np.float32), np.ldexp(b, q).astype(np.float32)
        c = product(x, y, engine, emulate)
        assert np.isfinite(c).all()
        assert oracle.error_in_bounds(c, x, y, engine) <= 1, (p, q)
    big = np.full((2, 8), 2.0**127, np.float32)
    assert np.isposinf(product(big, big.T.copy(), engine, emulate)).all()
    signs = np.ones((8, 2), np.float32)
    signs[::2] = -1
    np.testing.assert_array_equal(product(big, signs, engine, emulate), np.zeros((2, 2), np.float32))


@pytest.mark.parametrize("engine, emulate", CASES)
def test_zero_rows_and_empty_shapes(engine, emulate):
    a = np.zeros((3, 20), np.float32)
    a[1] = 1
    b = -np.ones((20, 4), np.float32)
    np.testing.assert_array_equal(product(a, b, engine, emulate), np.array([[0], [-20], [0]]) * np.ones((1, 4)))
    for m, k, n in [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)]:
        c = product(np.ones((m, k), np.float32), np.ones((k, n), np.float32), engine, emulate)
        np.testing.assert_array_equal(c, np.zeros((m, n), np.float32))
    batch = product(np.ones((0, 2, 3), np.float32), np.ones((0, 3, 2), np.float32), engine, emulate)
    assert batch.shape == (0, 2, 2)


# shapes and transformations


@pytest.mark.parametrize("engine", ["f16x3", "int8"])
def test_shapes_as_in_matmul(engine):
    rng = np.random.default_rng(1)
    shapes = [((5,), (5,)), ((5,), (5, 2)), ((3, 5), (5,)), ((2, 3, 5), (5, 4)), ((2, 1, 3, 5), (4, 5, 2))]
    for left, right in shapes:
        a, b = (rng.integers(-9, 10, s).astype(np.float32) for s in (left, right))
        got = md.matmul_f32(a, b, engine=engine)
        np.testing.assert_array_equal(got, np.matmul(a, b))


@pytest.mark.parametrize("engine", ["f16x3", pytest.param("int8", marks=pytest.mark.slow)])
def test_transformations(engine):
    rng = np.random.default_rng(2)
    a, b, da, db = (jnp.asarray(rng.integers(-5, 6, s), jnp.float32) for s in ((4, 6), (6, 3), (4, 6), (6, 3)))
    f = lambda x, y: md.matmul_f32(x, y, engine=engine)
    exact = lambda x, y: np.asarray(x) @ np.asarray(y)
    np.testing.assert_array_equal(jax.jit(f)(a, b), exact(a, b))
    _, tangent = jax.jvp(f, (a, b), (da, db))
    np.testing.assert_array_equal(tangent, exact(da, b) + exact(a, db))
    ct = jnp.asarray(rng.integers(-5, 6, (4, 3)), jnp.float32)
    back = jax.vjp(f, a, b)[1](ct)
    np.testing.assert_array_equal(back[0], exact(ct, b.T))
    np.testing.assert_array_equal(back[1], exact(a.T, ct))
    stack, other = (jnp.asarray(rng.integers(-5, 6, s), jnp.float32) for s in ((3, 4, 6), (6, 3, 5)))
    np.testing.assert_array_equal(jax.vmap(f, (0, None))(stack, b), np.matmul(stack, b))
    np.testing.assert_array_equal(jax.vmap(f, (None, 2))(a, other), np.matmul(a, np.moveaxis(other, 2, 0)))
    if engine == "int8":  # the rest is the same code, compiled anew for long
        return
    both = jnp.asarray(rng.integers(-5, 6, (3, 6, 2)), jnp.float32)
    np.testing.assert_array_equal(jax.vmap(f)(stack, both), np.matmul(stack, both))
    grad = jax.vmap(jax.grad(lambda x, y: f(x, y).sum(), 1), (0, 0))(stack, both)
    np.testing.assert_array_equal(grad, np.broadcast_to(np.asarray(stack).sum(1)[:, :, None], (3, 6, 2)))
    _, scanned = jax.lax.scan(lambda c, x: (c, f(x, b)), None, stack)
    np.testing.assert_array_equal(scanned, np.matmul(stack, b))
    assert jax.hessian(lambda x: f(x, x.T).sum())(a).shape == (4, 6, 4, 6)


def test_errors_name_who_came_and_what_was_wanted():
    x = jnp.ones((2, 3), jnp.float32)
    with pytest.raises(ValueError, match=r"jaxmd.matmul_f32: engine is 'f64'"):
        md.matmul_f32(x, x.T, engine="f64")
    with pytest.raises(ValueError, match=r"a has shape \(2, 3\) and b has shape \(2, 3\)"):
        md.matmul_f32(x, x)
    with pytest.raises(TypeError, match=r"b is float64"):
        md.matmul_f32(x, np.ones((3, 2)))
    with pytest.raises(TypeError, match=r"a is float"):
        md.matmul_f32(1.0, x)
    with pytest.raises(ValueError, match="broadcast"):
        md.matmul_f32(jnp.ones((2, 2, 3), jnp.float32), jnp.ones((3, 3, 2), jnp.float32))


def test_choice_of_auto():
    assert _single.choose(4096, 4096, 4096, "cpu") == "f32"
    assert _single.choose(4096, 4096, 4096, "cuda") == "f16x3"
    assert _single.choose(4096, 4096, 64, "cuda") == "f32"
    assert _single.choose(32, 4096, 4096, "cuda") == "f32"


def test_programs_for_cuda_call_the_kernel():
    struct = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    for engine, wanted in [("auto", True), ("f16x3", True), ("f32", False), ("int8", False)]:
        function = jax.jit(lambda x, y, engine=engine: md.matmul_f32(x, y, engine=engine))
        export = jax.export.export(function, platforms=["cuda"], disabled_checks=md.export_checks())
        assert ("jaxmd_single_matmul" in export(struct, struct).mlir_module()) == wanted


def test_x64_off():
    script = """
import numpy as np, jax, jaxmd
from jaxmd import _single
rng = np.random.default_rng(0)
a, b = rng.integers(-9, 10, (20, 600)).astype(np.float32), rng.integers(-9, 10, (600, 30)).astype(np.float32)
assert not jax.config.jax_enable_x64
for engine, emulate in [("auto", False), ("f16x3", False), ("f16x3", True), ("tf32x3", True), ("int8", False)]:
    f = lambda x, y: _single.product(x, y, engine, emulate=emulate)
    c, gradient = jax.jit(jax.value_and_grad(lambda x: f(x, b).sum()))(a)
    assert gradient.dtype == np.float32
    c = jax.vmap(f, (0, None))(a[None], b)[0]
    assert c.dtype == np.float32 and (np.asarray(c) == a @ b).all(), engine
print("done")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("JAX_ENABLE_X64", None)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == "done\n", done.stderr


# users' problems


@pytest.mark.slow
def test_example_is_right_where_tf32_is_wrong(tmp_path):
    root = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": str(Path(md.__file__).resolve().parent.parent), "JAX_PLATFORMS": "cpu"}

    def run(*more):
        command = [sys.executable, str(root / "examples" / "single_precision.py"), *more]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    done = run("--points", "600", "--rhs", "8")
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[1:]}
    assert not float(rows["TF32"][2]) < 0.1 and float(rows["f16x3"][2]) < 1e-3, done.stderr
    matrix = tmp_path / "a.csv"
    matrix.write_text("2,1\n1,3\n")
    assert "tf32x3" in run("--matrix", str(matrix)).stdout
    matrix.write_text("2,1\n0,3\n")
    refused = run("--matrix", str(matrix))
    assert refused.returncode == 2 and "a symmetric matrix was wanted" in refused.stderr


def rationals(entry):
    return np.array([Fraction(text) for text in entry["data"]], dtype=object).reshape(entry["shape"])


@pytest.mark.parametrize("engine, emulate", CASES)
def test_b11_products_to_check_by_hand(engine, emulate):
    data = inputs.case("B11")
    matrix = lambda name: np.array(data["inputs"][name]["data"], np.float32).reshape(data["inputs"][name]["shape"])
    pairs = [(matrix("A"), matrix("A").T.copy(), "C"), (matrix("A2"), matrix("B2"), "C2")]
    for a, b, name in pairs:
        c = product(a, b, engine, emulate)
        for got, wanted in zip(c.ravel(), rationals(data["expected"][name]).ravel(), strict=True):
            assert abs(Fraction(float(got)) - wanted) <= Fraction(1, 2**23) * abs(wanted)
