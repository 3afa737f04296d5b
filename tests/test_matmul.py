"""The product against exact integers: contract, hostile operands, transforms, levels, engines.

Bounds are those of `jaxmd.matmul`: error at most 1 in units of k·u^L·|A||B| + u^L·|C| (`oracles.product_error`).
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import inputs
import oracles
from jaxmd import _matmul
from jaxmd._matmul import matmul_limbs

ENGINES = ["fp64", "direct"]
LIMBS = [1, 2, 3, 4, 8, 16]


@functools.partial(jax.jit, static_argnames=("limbs", "engine", "accuracy"))
def product(a, b, addend=None, *, limbs, engine="auto", accuracy="componentwise"):
    return matmul_limbs(a, b, limbs=limbs, engine=engine, accuracy=accuracy, addend=addend)


def error(a, b, *, limbs, engine, **params):
    c = product(a, b, limbs=limbs, engine=engine, **params)
    oracles.assert_normalized(c)
    return oracles.product_error(c, a, b, limbs)


def scaled(x, exponents, axis):
    """x times powers of two along an axis, exactly (in two factors)."""
    shape = [1] * x[0].ndim
    shape[axis] = -1
    e = np.asarray(exponents).reshape(shape)
    return tuple(np.ldexp(np.ldexp(limb, e // 2), e - e // 2) for limb in x)


# --- contract --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limbs", LIMBS)
@pytest.mark.parametrize("kind", inputs.KINDS)
def test_contract(kind, limbs, engine):
    rng = inputs.generator("contract", kind, limbs)
    a, b = (inputs.KINDS[kind](rng, shape, limbs) for shape in ((5, 33), (33, 6)))
    assert error(a, b, limbs=limbs, engine=engine) <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limbs", range(1, 17))
def test_every_limb_count(limbs, engine):
    rng = inputs.generator("limbs", limbs)
    a, b = inputs.full(rng, (3, 17), limbs), inputs.full(rng, (17, 2), limbs)
    assert error(a, b, limbs=limbs, engine=engine) <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limbs", [1, 2, 4, 8])
@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0, 2.0, 4.0, 12.0])
def test_exponent_spread(spread, limbs, engine):
    rng = inputs.generator("spread", spread, limbs)
    a, b = (inputs.full(rng, shape, limbs, spread) for shape in ((40, 64), (64, 40)))
    assert error(a, b, limbs=limbs, engine=engine) <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("limbs", "reach"), [(1, 400), (2, 400), (3, 400), (4, 400), (8, 300), (16, 100)])
def test_rank_one_scalings(limbs, reach, engine):
    rng = inputs.generator("scaling", limbs)
    a, b = inputs.full(rng, (12, 9), limbs), inputs.full(rng, (9, 11), limbs)
    r, s, t = (rng.integers(-reach, reach + 1, n) // (1 if n == 9 else 2) for n in (12, 9, 11))
    assert error(scaled(a, r, 0), scaled(b, t, 1), limbs=limbs, engine=engine) <= 1
    assert error(scaled(scaled(a, r, 0), s, 1), b, limbs=limbs, engine=engine) <= 1
    assert error(scaled(a, s, 1), scaled(b, -s, 0), limbs=limbs, engine=engine) <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limbs", [1, 2, 4, 8])
def test_rows_from_1e150_to_1e_minus_150(limbs, engine):
    rng = inputs.generator("decades", limbs)
    a, b = inputs.full(rng, (4, 6), limbs), inputs.full(rng, (6, 5), limbs)
    a = scaled(a, [498, -498, 0, 66, -66, -498], 1)
    b = tuple(np.where(np.arange(6)[:, None] == 0, 0.0, limb) for limb in b)  # the huge column meets zeros
    assert error(a, b, limbs=limbs, engine=engine) <= 1
    identity = (np.eye(6), *(np.zeros((6, 6)) for _ in range(limbs - 1)))
    assert error(a, identity, limbs=limbs, engine=engine) <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limbs", [1, 2, 4])
def test_forty_decades_in_a_row(limbs, engine):
    rng = inputs.generator("forty", limbs)
    a, b = inputs.full(rng, (50, 60), limbs), inputs.full(rng, (60, 50), limbs)
    a = tuple(x * y for x, y in zip(a, [np.exp2(rng.integers(-66, 67, (50, 60)).astype(float))] * limbs))
    b = tuple(x * y for x, y in zip(b, [np.exp2(rng.integers(-66, 67, (60, 50)).astype(float))] * limbs))
    assert error(a, b, limbs=limbs, engine=engine) <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limbs", [2, 4])
def test_identity_and_triangular_factors(limbs, engine):
    rng = inputs.generator("triangular", limbs)
    a = inputs.full(rng, (48, 48), limbs)
    identity = (np.eye(48), *(np.zeros((48, 48)) for _ in range(limbs - 1)))
    lower, upper = tuple(map(np.tril, a)), tuple(map(np.triu, a))
    oracles.assert_bits(product(a, identity, limbs=limbs, engine=engine), a)
    for x, y in ((lower, upper), (upper, upper), (lower, lower)):
        assert error(x, y, limbs=limbs, engine=engine) <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("k", [1, 2, 3, 34, 35, 36, 255, 256, 257, 5000])
@pytest.mark.parametrize("limbs", [1, 2, 3, 4])
def test_every_length_of_sum(limbs, k, engine):
    rng = inputs.generator("length", limbs, k)
    for make in (inputs.full, inputs.alternating):
        a, b = make(rng, (2, k), limbs), make(rng, (k, 3), limbs)
        assert error(a, b, limbs=limbs, engine=engine) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limbs", [1, 2, 4])
@pytest.mark.parametrize("k", [2**17 - 1, 2**17, 2**17 + 1, 300000])
def test_sums_longer_than_2_to_17(k, limbs, engine):
    rng = inputs.generator("long", limbs, k)
    a, b = inputs.full(rng, (1, k), limbs), inputs.alternating(rng, (k, 2), limbs)
    assert error(a, b, limbs=limbs, engine=engine) <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (1, 7, 1), (31, 33, 65), (64, 64, 64), (65, 63, 32), (1, 100, 3)])
def test_shapes(m, k, n, engine):
    rng = inputs.generator("shape", m, k, n)
    a, b = inputs.full(rng, (m, k), 2), inputs.full(rng, (k, n), 2)
    assert error(a, b, limbs=2, engine=engine) <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("shapes", [((3, 0), (0, 4)), ((0, 5), (5, 2)), ((2, 5), (5, 0)), ((0, 0), (0, 0))])
def test_empty_operands(shapes, engine):
    a, b = ((np.ones(s), np.zeros(s)) for s in shapes)
    c = product(a, b, limbs=2, engine=engine)
    wanted = np.zeros((shapes[0][0], shapes[1][1]))
    oracles.assert_bits(c, (wanted, wanted))
    stacked = product(tuple(x[None, None] for x in a), b, limbs=2, engine=engine)
    assert stacked[0].shape == (1, 1, *wanted.shape)


@pytest.mark.parametrize("engine", ENGINES)
def test_limb_counts_may_differ(engine):
    rng = inputs.generator("mixed")
    a, b = inputs.full(rng, (4, 9), 1), inputs.full(rng, (9, 5), 4)
    assert error(a, b, limbs=4, engine=engine) <= 1
    assert error(a, b, limbs=2, engine=engine) <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limbs", [1, 2, 4, 16])
def test_addend(limbs, engine):
    rng = inputs.generator("addend", limbs)
    a, b = inputs.full(rng, (6, 20), limbs), inputs.full(rng, (20, 5), limbs)
    for d in (inputs.full(rng, (6, 5), limbs), tuple(-x for x in product(a, b, limbs=limbs))):  # the second cancels
        c = product(a, b, d, limbs=limbs, engine=engine)
        assert oracles.product_error(c, a, b, limbs, addend=d) <= 1
    one = tuple(x[:, :1] for x in a), tuple(x[:1] for x in b)
    c = product(*one, d, limbs=limbs, engine=engine)
    assert oracles.product_error(c, *one, limbs, addend=d) <= 1
    nothing = tuple(x[:, :0] for x in a), tuple(x[:0] for x in b)
    assert oracles.product_error(product(*nothing, d, limbs=limbs, engine=engine), *nothing, limbs, addend=d) <= 1


# --- special values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("accuracy", ["componentwise", "normwise"])
def test_inf_and_nan_touch_only_their_entries(engine, accuracy):
    if (engine, accuracy) == ("direct", "normwise"):
        pytest.skip("direct has no normwise accuracy; test_refusals sees it refused")
    rng = inputs.generator("nonfinite")
    a, b = inputs.full(rng, (6, 8), 2), inputs.full(rng, (8, 7), 2)
    a[0][1, 3], a[0][2, 0], a[0][4, 5] = np.inf, np.nan, -np.inf
    a[1][1, 3] = a[1][2, 0] = a[1][4, 5] = 0.0
    b[0][3, 2] = b[1][3, 2] = 0.0  # inf · 0
    b[0][5, 6], b[1][5, 6] = np.inf, 0.0
    c = product(a, b, limbs=2, engine=engine, accuracy=accuracy)
    with np.errstate(invalid="ignore"):
        ieee = sum(np.multiply.outer(a[0][:, l], b[0][l]) for l in range(8))
    touched = ~np.isfinite(ieee)
    assert touched[1].all() and touched[:, 6].all() and np.isnan(ieee[1, 2]) and not touched[0, :6].any()
    assert np.array_equal(np.asarray(c[0])[touched], ieee[touched], equal_nan=True)
    assert (np.asarray(c[1])[touched] == 0).all()
    keep_a = tuple(x[[0, 3, 5]] for x in a)
    keep_b = tuple(x[:, :6] for x in b)
    assert oracles.product_error(tuple(x[np.ix_([0, 3, 5], range(6))] for x in map(np.asarray, c)), keep_a, keep_b, 2) <= 1


@pytest.mark.parametrize("engine", ENGINES)
def test_overflow_is_infinite_and_an_intermediate_one_is_not(engine):
    a = (np.array([[1e300, 1e300], [1e300, -1e300]]), np.zeros((2, 2)))
    b = (np.array([[1e300, 1.0], [1e300, 1.0]]), np.zeros((2, 2)))
    c = product(a, b, limbs=2, engine=engine)
    assert np.asarray(c[0]).tolist() == [[np.inf, 2e300], [0.0, 0.0]]
    assert (np.asarray(c[1])[0, 0], np.asarray(c[1])[1, 0]) == (0.0, 0.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_subnormal_operands_survive(engine):
    a = (np.array([[5e-324, 2.0**-1030]]), np.zeros((1, 2)))
    b = (np.array([[2.0**1000], [-(2.0**1000)]]), np.zeros((2, 1)))
    c = product(a, b, limbs=2, engine=engine)
    assert oracles.fractions(c) == oracles.product_fractions(a, b)


@pytest.mark.parametrize("engine", ENGINES)
def test_zero_rows_give_zeros(engine):
    a = (np.array([[0.0, -0.0], [1.0, 2.0]]), np.zeros((2, 2)))
    b = (np.array([[0.0, 3.0], [-0.0, 4.0]]), np.zeros((2, 2)))
    oracles.assert_bits(product(a, b, limbs=2, engine=engine), (np.array([[0.0, 0], [0, 11]]), np.zeros((2, 2))))


# --- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("shapes", [((3, 4, 5), (5, 2)), ((4, 5), (3, 5, 2)), ((2, 1, 4, 5), (3, 5, 2)), ((3, 4, 5), (3, 5, 2))])
def test_batch_ranks_broadcast(shapes, engine):
    rng = inputs.generator("broadcast", shapes)
    a, b = (inputs.full(rng, shape, 2) for shape in shapes)
    c = product(a, b, limbs=2, engine=engine)
    batch = np.broadcast_shapes(shapes[0][:-2], shapes[1][:-2])
    assert c[0].shape == (*batch, 4, 2)
    for index in np.ndindex(batch):
        pick = lambda x: tuple(np.broadcast_to(v, (*batch, *v.shape[-2:]))[index] for v in x)
        assert oracles.product_error(tuple(np.asarray(x)[index] for x in c), pick(a), pick(b), 2) <= 1


@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (1, 2), (-1, 0)])
def test_vmap_over_any_axis(in_axes):
    rng = inputs.generator("vmap", in_axes)
    a, b = inputs.full(rng, (4, 5), 2), inputs.full(rng, (5, 2), 2)
    stacks = []
    for x, axis in zip((a, b), in_axes):
        stacks.append(x if axis is None else tuple(np.stack([v, 2 * v, -v], axis) for v in x))
    mapped = jax.vmap(functools.partial(product, limbs=2, engine="fp64"), in_axes)(*stacks)
    for i in range(3):
        x, y = (s if axis is None else tuple(np.take(v, i, axis) for v in s) for s, axis in zip(stacks, in_axes))
        assert oracles.product_error(tuple(v[i] for v in mapped), x, y, 2) <= 1


def test_nested_vmap_with_one_batched_limb():
    """Only the low limb of B carries the axis: JAX may batch limbs apart."""
    rng = inputs.generator("nested")
    a, b = inputs.full(rng, (4, 5), 2), inputs.full(rng, (5, 2), 2)
    lows = np.stack([b[1], -b[1], 0 * b[1]])
    f = lambda high, low: product(a, (high, low), limbs=2)
    c = jax.vmap(jax.vmap(f, (None, 0)), (None, 0))(b[0], np.stack([lows, lows]))
    for i, low in enumerate(lows):
        assert oracles.product_error(tuple(x[1, i] for x in c), a, (b[0], low), 2) <= 1


def test_normwise_bits_do_not_depend_on_batch_or_neighbours():
    rng = inputs.generator("normwise")
    a, b = inputs.full(rng, (3, 20, 30), 2, 2.0), inputs.full(rng, (3, 30, 20), 2, 2.0)
    run = functools.partial(product, limbs=2, accuracy="normwise")
    whole = run(a, b)
    for i in range(3):
        part = run(tuple(x[i, 3:9] for x in a), tuple(x[i, :, 5:6] for x in b))
        oracles.assert_bits(part, tuple(np.asarray(x)[i, 3:9, 5:6] for x in whole))
        pick = lambda x: tuple(np.asarray(v)[i] for v in x)
        assert oracles.product_error(pick(whole), pick(a), pick(b), 2, normwise=True) <= 1


def test_same_bits_every_time_and_under_scan():
    rng = inputs.generator("again")
    a, b = inputs.full(rng, (4, 33, 40), 3), inputs.full(rng, (40, 35), 3)
    f = functools.partial(product, limbs=3, engine="direct")
    _, scanned = jax.lax.scan(lambda carry, x: (carry, f(x, b)), 0, a)
    for i in range(4):
        alone = f(tuple(x[i] for x in a), b)
        oracles.assert_bits(tuple(x[i] for x in scanned), alone)
        oracles.assert_bits(f(tuple(x[i] for x in a), b), alone)


# --- levels ----------------------------------------------------------------------------------------------------------


def dots(text: str) -> int:
    return len(re.findall(r"= f64\[[^\n]* dot\(", text))


@pytest.mark.parametrize("mapped", [False, True])
def test_the_level_is_a_branch_and_never_a_select(mapped):
    """One conditional holds every product: orders of one level are all that runs, under vmap too."""
    limbs, k = 2, 40
    f = functools.partial(matmul_limbs, limbs=limbs, engine="fp64")
    lead = (3,) if mapped else ()
    shapes = [jax.ShapeDtypeStruct((*lead, *s), jnp.float64) for s in ((40, k), (k, 40))]
    jitted = jax.jit(jax.vmap(f) if mapped else f)
    text = jitted.lower((shapes[0],) * limbs, (shapes[1],) * limbs).compile().as_text()
    computations = re.split(r"\n(?=%|ENTRY)", text)
    branches = re.search(r"conditional\([^\n]*branch_computations=\{([^}]*)\}", text)
    assert branches, "the levels are not branches of one conditional"
    names = [name.strip().lstrip("%") for name in branches[1].split(",")]
    counts = [_matmul.plan(limbs, k, guard).count for guard in _matmul.GUARD_LEVELS]
    assert len(names) == len(set(counts))
    entry = next(c for c in computations if c.startswith("ENTRY"))
    assert dots(entry) == 0, "a product runs outside the chosen level"


def test_levels_rise_with_the_spread():
    """ESC of the data decides: ordinary data stay at the base level, wide data leave it, both inside the contract."""
    rng = inputs.generator("levels")
    plans = [_matmul.plan(2, 64, guard) for guard in _matmul.GUARD_LEVELS]
    found = []
    for spread in (0.0, 4.0, 12.0):
        a, b = inputs.full(rng, (64, 64), 2, spread), inputs.full(rng, (64, 64), 2, spread)
        exponents = [np.frexp(x[0])[1].astype(int) for x in (a, b)]
        span = (exponents[0][:, :, None] + exponents[1][None]).max(axis=1)
        needed = exponents[0].max(1)[:, None] + exponents[1].max(0)[None] - span
        found.append(int(_matmul._level(jnp.asarray(needed, jnp.int32), plans)))
    assert found[0] == 0 and found == sorted(found) and found[-1] == 2


def test_plan_obligations():
    """Digits sum exactly, and the guard is what the slices leave: checked in integers for every L and many k."""
    for limbs in range(1, 17):
        for k in (1, 2, 3, 17, 64, 1000, 4096, 2**17, 2**20 + 1):
            for guard in (0, *_matmul.GUARD_LEVELS):
                p = _matmul.plan(limbs, k, guard)
                assert p.guard >= guard
                assert k * p.count * 4 ** (p.width - 1) <= 2**53
                # (count + 3) 2^(guard + 2 - width count) <= 2^(-53 limbs)
                assert (p.count + 3) * 2 ** (p.guard + 2 + 53 * limbs) <= 2 ** (p.width * p.count)
    assert [_matmul.plan(limbs, 4096, 4).count for limbs in (2, 4, 8, 16)] == [6, 12, 23, 48]  # design: 21, 78, 276, 1176


# --- derivatives -----------------------------------------------------------------------------------------------------


def test_jvp_and_vjp_keep_all_digits():
    rng = inputs.generator("derivatives")
    limbs = 3
    a, da = (inputs.full(rng, (4, 6), limbs) for _ in range(2))
    b, db = (inputs.full(rng, (6, 5), limbs) for _ in range(2))
    ct, d, dd = (inputs.full(rng, (4, 5), limbs) for _ in range(3))
    f = lambda x, y, z: product(x, y, z, limbs=limbs)
    _, tangent = jax.jvp(f, (a, b, d), (da, db, dd))
    stacked = lambda x, y: tuple(np.concatenate([p, q], axis=1) for p, q in zip(x, y))
    left = stacked(da, a)  # dA B + A dB = [dA A] [B; dB]
    right = tuple(np.concatenate([p, q]) for p, q in zip(b, db))
    assert oracles.product_error(tangent, left, right, limbs, addend=dd) <= 1
    _, pullback = jax.vjp(f, a, b, d)
    ga, gb, gd = pullback(tuple(map(jnp.asarray, ct)))
    swap = lambda x: tuple(v.T for v in x)
    assert oracles.product_error(ga, ct, swap(b), limbs) <= 1
    assert oracles.product_error(gb, swap(a), ct, limbs) <= 1
    oracles.assert_bits(gd, ct)


def test_second_derivative_and_grad_of_a_batch():
    rng = inputs.generator("second")
    a, b = inputs.full(rng, (2, 3, 3), 2), inputs.full(rng, (3, 3), 2)
    f = lambda y: product(a, y, limbs=2)
    g = lambda y: jax.vjp(f, y)[1](f(y))[0]  # A^T A y, differentiated once more
    _, tangent = jax.jvp(g, (b,), (b,))
    a0, a1 = (tuple(v[i] for v in a) for i in range(2))
    gram = oracles.product_fractions(tuple(v.T for v in a0), a0) + oracles.product_fractions(tuple(v.T for v in a1), a1)
    exact = gram @ oracles.fractions(b)
    scale = np.abs(exact) + 9
    oracles.assert_within(tangent, exact, 2, 24, scale)


# --- engines, errors, export, sharding -------------------------------------------------------------------------------


def test_auto_is_a_pure_function_of_the_shapes():
    choose = _matmul.choose_engine
    assert choose((500, 500), (500, 500), 2, platform="cpu") == "fp64"
    assert choose((500,), (500, 500), 2, platform="cpu") == "direct"
    assert choose((4, 4), (4, 4), 4, platform="cuda") == "direct"
    assert choose((4, 4), (4, 4), 4, accuracy="normwise", platform="cuda") == "fp64"
    assert choose((500, 500), (500, 500), 2) in ENGINES
    rng = inputs.generator("auto")
    for shape in ((70, 70, 70), (3, 5, 2)):
        a, b = inputs.full(rng, shape[:2], 2), inputs.full(rng, shape[1:], 2)
        picked = choose(shape[:2], shape[1:], 2)
        oracles.assert_bits(product(a, b, limbs=2), product(a, b, limbs=2, engine=picked))


def test_refusals():
    x = (jnp.ones((3, 4)), jnp.zeros((3, 4)))
    with pytest.raises(ValueError, match=r"a has shape \(3, 4\) and b has shape \(3, 4\); the inner dimensions must"):
        matmul_limbs(x, x, limbs=2)
    y = tuple(v.T for v in x)
    with pytest.raises(ValueError, match="engine is 'int9'"):
        matmul_limbs(x, y, limbs=2, engine="int9")
    with pytest.raises(ValueError, match="accuracy is 'perfect'"):
        matmul_limbs(x, y, limbs=2, accuracy="perfect")
    with pytest.raises(ValueError, match="'direct' rounds as it sums"):
        matmul_limbs(x, y, limbs=2, engine="direct", accuracy="normwise")
    with pytest.raises(ValueError, match="limbs is 17"):
        matmul_limbs(x, y, limbs=17)
    with pytest.raises(TypeError, match="float32"):
        matmul_limbs(tuple(v.astype(jnp.float32) for v in x), y, limbs=2)
    with jax.enable_x64(False), pytest.raises(TypeError, match="jax_enable_x64 is off"):
        product(x, y, limbs=2)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_export_with_symbolic_shapes(platform):
    import jaxmd._ffi as ffi

    b, m, n = jax.export.symbolic_shape("b, m, n")
    shapes = [jax.ShapeDtypeStruct(s, jnp.float64) for s in ((b, m, 40), (b, 40, n))]
    f = jax.jit(functools.partial(matmul_limbs, limbs=2))
    exported = jax.export.export(f, platforms=[platform], disabled_checks=ffi.export_checks())(
        (shapes[0],) * 2, (shapes[1],) * 2
    )
    again = jax.export.deserialize(exported.serialize())
    assert again.platforms == (platform,)
    if platform == "cpu":
        rng = inputs.generator("export")
        x, y = inputs.full(rng, (2, 5, 40), 2), inputs.full(rng, (2, 40, 3), 2)
        assert oracles.product_error(again.call(x, y), x, y, 2) <= 1
    (k,) = jax.export.symbolic_shape("k")
    bad = [jax.ShapeDtypeStruct(s, jnp.float64) for s in ((4, k), (k, 4))]
    with pytest.raises(ValueError, match="contracted dimension k is symbolic"):
        jax.export.export(f, disabled_checks=ffi.export_checks())((bad[0],) * 2, (bad[1],) * 2)


def test_shard_map_unchanged():
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((4,), ("x",))
    rng = inputs.generator("shard")
    a, b = inputs.full(rng, (8, 40), 2), inputs.full(rng, (40, 36), 2)
    ct = inputs.full(rng, (8, 36), 2)
    f = functools.partial(product, limbs=2, engine="fp64")
    sharded = jax.shard_map(f, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
    assert oracles.product_error(jax.jit(sharded)(a, b), a, b, 2) <= 1

    def gradient(x, y, z):
        return jax.vjp(f, x, y)[1](z)[0]

    g = jax.shard_map(gradient, mesh=mesh, in_specs=(P("x"), P(), P("x")), out_specs=P("x"))(a, b, ct)
    assert oracles.product_error(g, ct, tuple(v.T for v in b), 2) <= 1
