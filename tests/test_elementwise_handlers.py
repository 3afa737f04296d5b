"""The compiled elementwise handlers, called directly, against exact rationals: bounds, normal form, specials, bits.

The bounds are those of `ffi/arithmetic.h`: add, renormalize, scale and two_sum are rounded canonically; mul is within
(1 + 2^-27)·2^-53L, div and sqrt within (1 + 2^-10)·2^-53L of the exact value, plus half the smallest subnormal.
"""

import hashlib
import itertools
import os
import subprocess
import sys
from fractions import Fraction
from typing import Any

import inputs
import jax
import numpy as np
import oracles
import pytest

from jaxmd import _ffi

LIMBS = (1, 2, 3, 4, 5, 8, 16)
UNITS = {"mul": 1 + 2.0**-27, "div": 1 + 2.0**-10, "sqrt": 1 + 2.0**-10}
FLOOR = Fraction(1, 2**1075)
Limbs = tuple[np.ndarray, ...]


def call(name: str, limbs: int, *operands: np.ndarray, device: Any = None, **attrs: int) -> Limbs:
    """One call of a handler, eagerly."""
    _ffi.register()
    operands = tuple(jax.device_put(x, device) for x in operands)
    out = [jax.ShapeDtypeStruct(operands[0].shape, np.float64)] * limbs
    call = jax.ffi.ffi_call(f"jaxmd_{name}", out)
    return tuple(np.asarray(r) for r in call(*operands, **{k: np.int64(v) for k, v in attrs.items()}))


def binary(name: str, x: Limbs, y: Limbs, limbs: int, device: Any = None) -> Limbs:
    return call(name, limbs, *x, *y, device=device, lhs_limbs=len(x))


def exact_binary(name: str, x: Limbs, y: Limbs) -> np.ndarray:
    a, b = oracles.fractions(x), oracles.fractions(y)
    return a + b if name == "add" else a * b if name == "mul" else a / b


def without_zeros(y: Limbs) -> Limbs:
    """y with 3 where its value is 0, to divide by."""
    zero = oracles.fractions(y) == 0
    return (np.where(zero, 3.0, y[0]), *(np.where(zero, 0.0, limb) for limb in y[1:]))


def positive(x: Limbs) -> Limbs:
    """|x|."""
    sign = np.where(oracles.fractions(x) < 0, -1.0, 1.0)
    return tuple(limb * sign for limb in x)


def check_binary(name: str, x: Limbs, y: Limbs, limbs: int, label: str) -> None:
    """Bound, normal form, and for finite results within the range the canonical form of what came."""
    r = binary(name, x, y, limbs)
    exact = exact_binary(name, x, y)
    over = np.array([np.isinf(oracles.nearest(value)) for value in exact.ravel()]).reshape(exact.shape)
    sign = np.array([1.0 if value > 0 else -1.0 for value in exact.ravel()]).reshape(exact.shape)
    assert np.all(np.where(over, r[0] == sign * np.inf, np.isfinite(r[0]))), label
    oracles.assert_normalized(r, label)
    r = tuple(np.where(over, 0.0, limb) for limb in r)
    exact = np.where(over, Fraction(0), exact)
    if name == "add":
        oracles.assert_bits(tuple(limb + 0.0 for limb in r), oracles.from_fractions(exact, limbs), label)
    else:
        oracles.assert_within(r, exact, limbs, UNITS[name], floor=FLOOR, label=label)
        oracles.assert_bits(tuple(limb + 0.0 for limb in r), oracles.from_fractions(oracles.fractions(r), limbs), label)


@pytest.mark.parametrize("limbs", LIMBS)
@pytest.mark.parametrize("name", ["add", "mul", "div"])
def test_binary_is_within_its_bound(name: str, limbs: int) -> None:
    for kind, make in (inputs.KINDS | inputs.EXTREME).items():
        rng = inputs.generator(name, limbs, kind)
        x, y = make(rng, (23,), limbs), make(rng, (23,), limbs)
        check_binary(name, x, without_zeros(y) if name == "div" else y, limbs, f"{name} {limbs} {kind}")


@pytest.mark.parametrize("name", ["add", "mul", "div"])
@pytest.mark.parametrize(
    "counts", [(1, 3, 2), (3, 1, 2), (4, 2, 3), (2, 5, 1), (6, 6, 2), (1, 1, 4), (9, 12, 7), (16, 2, 16)]
)
def test_any_operand_counts(name: str, counts: tuple[int, int, int]) -> None:
    nx, ny, limbs = counts
    for kind, make in inputs.KINDS.items():
        rng = inputs.generator(name, counts, kind)
        x, y = make(rng, (9,), nx), make(rng, (9,), ny)
        check_binary(name, x, without_zeros(y) if name == "div" else y, limbs, f"{name} {counts} {kind}")


def check_sqrt(x: Limbs, limbs: int, label: str) -> None:
    r = call("sqrt", limbs, *x)
    oracles.assert_normalized(r, label)
    bound = Fraction(UNITS["sqrt"]) * oracles.unit(limbs)
    for value, root in zip(oracles.fractions(x), oracles.fractions(r)):
        low, high = (root - FLOOR) / (1 + bound), (root + FLOOR) / (1 - bound)
        assert max(low, 0) ** 2 <= value <= high**2, f"{label}: √{float(value)!r} came as {float(root)!r}"


@pytest.mark.parametrize("limbs", LIMBS)
def test_sqrt_is_within_its_bound(limbs: int) -> None:
    for kind, make in (inputs.KINDS | inputs.EXTREME).items():
        x = positive(make(inputs.generator("sqrt", limbs, kind), (23,), limbs))
        check_sqrt(x, limbs, f"sqrt {limbs} {kind}")
        check_sqrt(x, max(limbs - 1, 1), f"sqrt {limbs} to {limbs - 1} {kind}")


def test_sqrt_of_squares_is_exact() -> None:
    roots = np.arange(1.0, 400.0) * 2.0**70
    for limbs in (1, 2, 4, 8):
        r = call("sqrt", limbs, roots**2, *(np.zeros_like(roots) for _ in range(limbs - 1)))
        oracles.assert_bits(r, (roots, *(np.zeros_like(roots) for _ in range(limbs - 1))))


@pytest.mark.parametrize("name", ["add", "mul"])
def test_commutes_bit_for_bit(name: str) -> None:
    for limbs, (kind, make) in itertools.product((1, 2, 3, 4, 6, 16), (inputs.KINDS | inputs.EXTREME).items()):
        rng = inputs.generator("commutes", name, limbs, kind)
        x, y = make(rng, (50,), limbs), inputs.full(rng, (50,), max(limbs - 1, 1))
        z = inputs.full(rng, (50,), limbs)
        for a, b in ((x, y), (x, z)):
            oracles.assert_bits(binary(name, a, b, limbs), binary(name, b, a, limbs), f"{name} {limbs} {kind}")


@pytest.mark.parametrize("limbs", [1, 2, 4, 7])
@pytest.mark.parametrize("name", ["add", "mul", "div"])
def test_special_values_are_ieee(name: str, limbs: int) -> None:
    x, y = inputs.special_pairs(limbs)
    r = binary(name, x, y, limbs)
    with np.errstate(all="ignore"):
        ieee = {"add": np.add, "mul": np.multiply, "div": np.divide}[name](x[0], y[0])
    oracles.assert_bits(r[:1], (ieee,), name)
    alone = ~np.isfinite(ieee) | (ieee == 0)
    for limb in r[1:]:
        assert np.all(np.where(alone, (limb == 0) & ~np.signbit(limb), np.isfinite(limb)))


def test_special_values_in_unnormalized_operands() -> None:
    inf, nan = np.inf, np.nan
    big = 1.7976931348623157e308
    cases = [
        # x, y, add, mul, div
        ((0.0, inf), (1.0, 1.0), inf, inf, inf),
        ((inf, -inf), (1.0, 0.0), nan, nan, nan),
        ((big, inf), (-inf, 0.0), nan, -inf, nan),
        ((big, big), (-inf, 0.0), -inf, -inf, -0.0),
        ((big, big), (-big, -big), 0.0, -inf, -1.0),
        ((1.0, -1.0), (inf, 0.0), inf, nan, 0.0),
        ((1.0, -1.0), (-0.0, 0.0), 0.0, -0.0, nan),
        ((-0.0, 0.0), (-0.0, -0.0), -0.0, 0.0, nan),
        ((0.0, 1.0), (0.0, -1.0), 0.0, -1.0, -1.0),
        ((-0.0, 5e-324), (1.0, -1.0), 5e-324, 0.0, inf),
    ]
    x = tuple(np.array([case[0][i] for case in cases]) for i in range(2))
    y = tuple(np.array([case[1][i] for case in cases]) for i in range(2))
    for position, name in enumerate(("add", "mul", "div")):
        r = binary(name, x, y, 2)
        oracles.assert_bits(r[:1], (np.array([case[2 + position] for case in cases]),), name)


def test_sqrt_of_special_values() -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, -5e-324, 4.0])
    for limbs in (1, 2, 5):
        r = call("sqrt", limbs, x, *(np.zeros_like(x) for _ in range(limbs - 1)))
        with np.errstate(invalid="ignore"):
            oracles.assert_bits(r, (np.sqrt(x), *(np.zeros_like(x) for _ in range(limbs - 1))), f"{limbs}")


def power_sums(rng: np.random.Generator, terms: int, count: int) -> Limbs:
    """Sums of few powers of two whose exponents differ by about a significand: ties at every limb."""
    steps = rng.choice([0, 1, 52, 53, 54, 106, 160], size=(terms, count))
    exponents = -np.cumsum(steps, axis=0) * (rng.random(count) < 0.7)
    signs = rng.choice([1.0, -1.0, 1.0, -1.0, 0.0], size=(terms, count))
    x = signs * np.exp2(np.maximum(exponents, -1000).astype(np.float64))
    return tuple(rng.permuted(x, axis=0))


@pytest.mark.parametrize("name", ["add", "mul", "div"])
def test_binary_on_sums_of_powers(name: str) -> None:
    """Operands that overlap, cancel, tie and leave gaps, in no order; the last rounding may itself end in a tie."""
    for nx, ny, limbs in ((1, 2, 1), (2, 2, 2), (3, 3, 2), (3, 3, 3), (5, 2, 4), (8, 8, 8)):
        rng = inputs.generator("powers", name, nx, ny, limbs)
        x, y = power_sums(rng, nx, 80), without_zeros(power_sums(rng, ny, 80))
        r, exact = binary(name, x, y, limbs), exact_binary(name, x, y)
        oracles.assert_within(r, exact, limbs, UNITS.get(name, 1.0), label=f"{name} {nx} {ny} {limbs}")
        for high, low in itertools.pairwise(r):
            assert np.all((np.abs(low) <= np.spacing(np.abs(high)) / 2) & ((high != 0) | (low == 0)))
        if name == "add":
            oracles.assert_bits(tuple(limb + 0.0 for limb in r), oracles.from_fractions(exact, limbs), f"{limbs}")


@pytest.mark.parametrize(
    "n, limbs", [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2), (6, 2), (7, 4), (12, 4), (20, 5), (40, 16), (128, 3)]
)
def test_renormalize_is_canonical(n: int, limbs: int) -> None:
    rng = inputs.generator("renormalize", n, limbs)
    count = 60
    cases = {
        f"spread {s}": tuple(np.ldexp(rng.random((n, count)) - 0.5, rng.integers(-s, s, (n, count))))
        for s in (1, 30, 300, 900)
    }
    cases["powers"] = power_sums(rng, n, count)
    cases["integers"] = tuple(rng.integers(-(2**53), 2**53, (n, count)).astype(np.float64))
    cases["subnormal"] = tuple(rng.integers(-(2**54), 2**54, (n, count)) * 5e-324)
    cases["cancelling"] = tuple(rng.permuted(np.concatenate([t := rng.random((n, count)), -t])[:n], axis=0))
    cases["overflow"] = tuple(np.ldexp(rng.random((n, count)) - 0.5, 1024))
    cases["orders"] = tuple(np.rint((rng.random(count) - 0.5) * 2.0**51) * 2.0 ** (-20 * g) for g in range(n))
    for kind, terms in cases.items():
        expected = oracles.from_fractions(oracles.fractions(terms), limbs)
        r = call("renormalize", limbs, *terms)
        oracles.assert_bits(tuple(limb + 0.0 for limb in r), expected, f"{n} to {limbs} {kind}")


def test_renormalize_resolves_ties() -> None:
    for limbs in (1, 2, 3, 4, 8):
        x = inputs.ties(limbs)
        tiny = np.full_like(x[0], 2.0**-1000)
        for tail in (tiny, -tiny, 0 * tiny):
            terms = (*x, tail)
            expected = oracles.from_fractions(oracles.fractions(terms), limbs)
            oracles.assert_bits(call("renormalize", limbs, *terms), expected, f"{limbs}")
            oracles.assert_bits(call("renormalize", limbs, *terms[::-1]), expected, f"{limbs} reversed")


def test_renormalize_of_special_values() -> None:
    inf, nan = np.inf, np.nan
    largest = 1.7976931348623157e308
    rows = np.array([
        [inf, 1.0, 2.0], [1.0, -inf, -1e308], [inf, -inf, 1.0], [nan, inf, 1.0],
        [1e308, 1e308, 1e308], [1e308, 1e308, -1e308],
        [0.0, 0.0, 0.0], [-0.0, -0.0, -0.0], [-0.0, 0.0, 0.0], [1.0, -1.0, -0.0],
        [largest, 9.9e291, 0.0], [largest, 2.0**970, -5e-324], [-largest, -(2.0**970), 0.0],
    ])  # fmt: skip
    lead = np.array(
        [inf, -inf, nan, nan, inf, 1e308, 0.0, -0.0, -0.0, 0.0, 1.7976931348623157e308, 1.7976931348623157e308, -inf]
    )
    r = call("renormalize", 2, *np.ascontiguousarray(rows.T))
    oracles.assert_bits(r[:1], (lead,))
    low = np.zeros_like(lead)
    low[10], low[11] = 9.9e291, 2.0**970
    oracles.assert_bits(r[1:], (low,))


def test_scale_is_exact_up_to_the_last_rounding() -> None:
    for limbs, (kind, make) in itertools.product((1, 2, 4, 9), (inputs.KINDS | inputs.EXTREME).items()):
        rng = inputs.generator("scale", limbs, kind)
        x = make(rng, (60,), limbs)
        exponent = rng.integers(-30, 31, 60) * rng.choice([1, 1, 10, 37, 70], 60)
        exact = oracles.fractions(x) * np.array([Fraction(2) ** int(e) for e in exponent], dtype=object)
        r = call("scale", limbs, *x, exponent.astype(np.int32))
        rounded = oracles.from_fractions(
            exact, limbs
        )  # to whole units of 2^-1074, which may leave a tie above the last limb
        finite = np.isfinite(rounded[0])
        again = oracles.from_fractions(oracles.fractions(tuple(np.where(finite, limb, 0.0) for limb in rounded)), limbs)
        expected = tuple(np.where(finite, new, old) for new, old in zip(again, rounded))
        oracles.assert_bits(tuple(limb + 0.0 for limb in r), expected, f"{limbs} {kind}")


def test_scale_of_special_values_and_exponents() -> None:
    x = np.array([np.inf, -np.inf, np.nan, -0.0, 1.0, -1.0, 1.0, -1.0, 5e-324, 1.7976931348623157e308])
    e = np.array([-5000, 5, 1, 9, 2**31 - 1, 2**31 - 1, -(2**31), -(2**31), 2097, -2098], np.int32)
    lead = np.array([np.inf, -np.inf, np.nan, -0.0, np.inf, -np.inf, 0.0, -0.0, 2.0**1023, 5e-324])
    oracles.assert_bits(call("scale", 2, x, np.zeros_like(x), e), (lead, np.zeros_like(lead)))


@pytest.mark.parametrize("name", ["two_sum", "two_prod"])
def test_error_free_transformations(name: str) -> None:
    rng = inputs.generator(name)
    a = np.ldexp(rng.random(300) - 0.5, rng.integers(-400, 400, 300))
    b = np.ldexp(rng.random(300) - 0.5, rng.integers(-400, 400, 300))
    exact = (
        oracles.fractions((a,)) + oracles.fractions((b,))
        if name == "two_sum"
        else oracles.fractions((a,)) * oracles.fractions((b,))
    )
    oracles.assert_bits(call(name, 2, a, b), oracles.from_fractions(exact, 2))
    big = 1.7976931348623157e308
    a = np.array([big, big, big, -big, np.inf, np.inf, np.nan, -0.0, 5e-324, 1e308])
    b = np.array([big, -big, 2.0**970, 1e300, 1.0, -np.inf, 1.0, -0.0, 5e-324, -1.5e308])
    with np.errstate(all="ignore"):
        lead = a + b if name == "two_sum" else a * b
    s, e = call(name, 2, a, b)
    oracles.assert_bits((s,), (lead,))
    assert np.all(np.isfinite(e)) and np.all(e[~np.isfinite(s)] == 0)
    if name == "two_sum":
        for i in np.flatnonzero(np.isfinite(s)):
            assert Fraction(a[i]) + Fraction(b[i]) == Fraction(s[i]) + Fraction(e[i])


def test_large_arrays_equal_their_pieces() -> None:
    """Chunks of the thread pool and the lanes left over at their ends change nothing."""
    rng = inputs.generator("threads")
    x, y = inputs.spread(rng, (200_003,), 2), inputs.leading_zero(rng, (200_003,), 2)
    whole = binary("mul", x, y, 2)
    for begin, end in ((0, 5), (99_990, 100_013), (200_000, 200_003)):
        piece = binary("mul", tuple(v[begin:end] for v in x), tuple(v[begin:end] for v in y), 2)
        oracles.assert_bits(piece, tuple(v[begin:end] for v in whole))


@pytest.mark.parametrize("shape", [(0,), (), (2, 0, 3), (2, 3)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    ones = np.ones(shape)
    oracles.assert_bits(binary("add", (ones, 0 * ones), (ones, 0 * ones), 2), (2 * ones, 0 * ones))
    oracles.assert_bits(call("renormalize", 2, ones, ones), (2 * ones, 0 * ones))
    oracles.assert_bits(call("sqrt", 1, ones), (ones,))
    oracles.assert_bits(call("scale", 1, ones, np.ones(shape, np.int32)), (2 * ones,))


@pytest.mark.parametrize(
    "name, limbs, operands, attrs",
    [
        ("add", 2, [np.ones(3)] * 3, {"lhs_limbs": 3}),
        ("mul", 2, [np.ones(3)] * 3, {"lhs_limbs": 0}),
        ("add", 2, [np.ones(3), np.ones(4)], {"lhs_limbs": 1}),
        ("add", 2, [np.ones(3, np.float32), np.ones(3, np.float32)], {"lhs_limbs": 1}),
        ("add", 17, [np.ones(3)] * 4, {"lhs_limbs": 2}),
        ("sqrt", 2, [np.ones(3)] * 17, {}),
        ("renormalize", 2, [np.ones(3)] * 129, {}),
        ("scale", 2, [np.ones(3)] * 3, {}),
        ("two_sum", 2, [np.ones(3)] * 1, {}),
    ],
)
def test_what_would_corrupt_memory_is_refused(
    name: str, limbs: int, operands: list[np.ndarray], attrs: dict[str, int]
) -> None:
    with pytest.raises(Exception, match=f"jaxmd.{name}: .*wanted"):
        call(name, limbs, *operands, **attrs)


def everything(device: Any = None) -> dict[str, str]:
    """A digest of the results of every handler on inputs of every kind; nans are canonical, so bytes compare."""
    digests = {}
    for limbs, (kind, make) in itertools.product((1, 2, 3, 4, 5, 16), (inputs.KINDS | inputs.EXTREME).items()):
        rng = inputs.generator("everything", limbs, kind)
        x, y = make(rng, (61,), limbs), make(rng, (61,), limbs)
        exponent = rng.integers(-1200, 1200, 61).astype(np.int32)
        results = {name: binary(name, x, y, limbs, device) for name in ("add", "mul", "div")}
        results["mixed"] = binary("mul", x, y[:1], max(limbs - 1, 1), device)
        results["sqrt"] = call("sqrt", limbs, *x, device=device)
        results["renormalize"] = call("renormalize", limbs, *x, *y, device=device)
        results["scale"] = call("scale", limbs, *x, exponent, device=device)
        results["two_sum"] = call("two_sum", 2, x[0], y[-1], device=device)
        results["two_prod"] = call("two_prod", 2, x[0], y[-1], device=device)
        for name, r in results.items():
            digests[f"{name} {limbs} {kind}"] = hashlib.sha256(b"".join(limb.tobytes() for limb in r)).hexdigest()
    x, y = inputs.special_pairs(3)
    for name in ("add", "mul", "div"):
        r = binary(name, x, y, 3, device)
        digests[f"{name} special"] = hashlib.sha256(b"".join(limb.tobytes() for limb in r)).hexdigest()
    return digests


def lower_isas() -> list[str]:
    features = _ffi.cpu_features()
    return ["portable", *(["avx2"] if features.get("avx512") and features.get("avx2") else [])]


def test_every_instruction_set_gives_the_same_bits() -> None:
    mine = everything()
    for isa in lower_isas():
        run = subprocess.run(
            [sys.executable, __file__],
            env=os.environ | {"JAXMD_CPU_ISA": isa, "PYTHONPATH": os.pathsep.join(["tests", *sys.path])},
            capture_output=True,
            text=True,
            check=True,
        )
        lines = run.stdout.splitlines()
        assert lines[0] == f"isa {isa}"
        theirs = dict(line.rsplit("\t", 1) for line in lines[1:])
        assert [key for key in mine if mine[key] != theirs[key]] == []


@pytest.mark.gpu
def test_gpu_gives_the_bits_of_the_cpu() -> None:
    cpu, gpu = everything(jax.devices("cpu")[0]), everything(jax.devices("gpu")[0])
    assert [key for key in cpu if cpu[key] != gpu[key]] == []


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    print("isa", _ffi.cpu_features()["isa"])
    for key, digest in everything().items():
        print(key, digest, sep="\t")
