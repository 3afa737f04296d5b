"""The sliced product's CUDA kernels against integer products: equal bit for bit, for any shape and transform."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmd._product import sliced_matmul

pytestmark = pytest.mark.gpu

# Digits are integers up to 2^BITS in size. Sums of k S products stay below 2^53: float64 holds every partial sum.
BITS = 18


def _digits(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-(2**BITS), 2**BITS + 1, shape, dtype=np.int64)


def _operands(slices: int, batch: Sequence[int], m: int, k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    assert 2 * BITS + np.log2(max(1, slices * k)) < 53
    rng = np.random.default_rng([slices, *batch, m, k, n])
    return _digits(rng, slices, *batch, m, k), _digits(rng, slices, *batch, k, n)


def _orders(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The exact orders, in int64."""
    out = np.zeros((*a.shape[:-1], b.shape[-1]), np.int64)
    for i in range(len(a)):
        for j in range(len(a) - i):
            out[i + j] += np.matmul(a[i], b[j])
    return out


def _f64(*arrays: np.ndarray) -> list[jax.Array]:
    return [jnp.asarray(x.astype(np.float64)) for x in arrays]


def _assert_same_bits(got: jax.Array, want: np.ndarray) -> None:
    """want: int64. Zeros must be +0, which integers are."""
    bits, expected = np.asarray(got).view(np.int64), want.astype(np.float64).view(np.int64)
    assert bits.shape == expected.shape
    wrong = np.argwhere(bits != expected)
    assert not len(wrong), (
        f"{len(wrong)} of {bits.size} entries differ, the first at {tuple(wrong[0])}: "
        f"{np.asarray(got)[tuple(wrong[0])]} instead of {want[tuple(wrong[0])]}"
    )


def _check(slices: int, batch: Sequence[int], m: int, k: int, n: int) -> None:
    a, b = _operands(slices, batch, m, k, n)
    _assert_same_bits(sliced_matmul(*_f64(a, b)), _orders(a, b))


def test_lowers_to_the_kernel() -> None:
    a = jax.ShapeDtypeStruct((3, 8, 8), jnp.float64)
    assert "jaxmd_sliced_matmul" in jax.jit(sliced_matmul).lower(a, a).as_text()


@pytest.mark.parametrize(
    "m, k, n",
    [(1, 1, 1), (1, 7, 1), (2, 1, 2), (1, 64, 300), (16, 33, 500), (16, 18, 30002), (15, 17, 30001), (17, 20, 9000)],
)
def test_thin(m: int, k: int, n: int) -> None:
    _check(4, (), m, k, n)
    _check(4, (), n, k, m)


@pytest.mark.parametrize("tile", [16, 32, 64])
@pytest.mark.parametrize("rows", [-1, 0, 1])
@pytest.mark.parametrize("columns", [-1, 0, 1])
def test_tile_edges(tile: int, rows: int, columns: int) -> None:
    _check(2, (), tile + rows, 34, tile + columns)
    _check(2, (150,), tile + rows, 17, tile + columns)
    _check(2, (150,), tile + rows, 18, tile + columns)


# Large enough for the 128 x 128 tiles, which the tensor copy engine fills for even k and n, and every thread otherwise.
@pytest.mark.parametrize("m, n", [(127, 126), (128, 128), (127, 127)])
@pytest.mark.parametrize("k", [15, 16, 17, 18])
def test_large_tiles_in_a_batch(m: int, n: int, k: int) -> None:
    _check(2, (150,), m, k, n)


@pytest.mark.parametrize("k", [130, 131])
def test_large_tiles_in_depth(k: int) -> None:
    _check(2, (150,), 128, k, 128)


@pytest.mark.parametrize("m, n", [(1921, 1922), (1920, 1920), (1919, 1918), (1921, 1921), (2047, 1793)])
def test_large_tiles_in_a_matrix(m: int, n: int) -> None:
    _check(2, (), m, 18, n)


@pytest.mark.parametrize("k", [1, 2, 3, 15, 16, 17, 31, 32, 33, 64, 111, 112, 113, 127, 1000])
def test_depth(k: int) -> None:
    """Shorter and longer than the stages in flight."""
    _check(3, (), 40, k, 40)
    _check(3, (), 40, k, 41)


@pytest.mark.parametrize("slices", range(1, 13))
def test_slices(slices: int) -> None:
    _check(slices, (3,), 33, 20, 34)
    _check(slices, (), 130, 96, 70)


@pytest.mark.parametrize("batch", [(1,), (7,), (2, 3), (2, 1, 3), (4099,)])
def test_batch(batch: Sequence[int]) -> None:
    _check(3, batch, 9, 6, 10)


@pytest.mark.parametrize(
    "batch, m, k, n",
    [((), 0, 3, 4), ((), 3, 0, 4), ((), 3, 4, 0), ((0,), 3, 4, 5), ((2,), 130, 0, 129), ((2, 0), 0, 0, 0)],
)
def test_empty(batch: Sequence[int], m: int, k: int, n: int) -> None:
    """k = 0 gives zeros, also where the result's memory held something else."""
    dirty = [jnp.full((4 << 20,), jnp.nan) for _ in range(4)]
    jax.block_until_ready(dirty)
    del dirty
    _check(3, batch, m, k, n)


def test_random_shapes() -> None:
    rng = np.random.default_rng(20)
    for _ in range(25):
        slices, *batch = (int(x) for x in rng.integers(1, 6, size=rng.integers(1, 4)))
        m, k, n = (int(x) for x in 2 ** (rng.random(3) * 8))
        _check(slices, batch, m, k, n)


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0), (1, 2), (3, 0), (None, 3), (2, None)])
def test_vmap(axes: tuple[int | None, int | None]) -> None:
    a, b = _operands(3, (5,), 9, 10, 12)
    a, b = np.moveaxis(a, 1, 0), np.moveaxis(b, 1, 0)
    per_example = [(a[i if axes[0] is not None else 0], b[i if axes[1] is not None else 0]) for i in range(5)]
    want = np.stack([_orders(x, y) for x, y in per_example])
    args = [x[0] if axis is None else np.moveaxis(x, 0, axis) for x, axis in zip((a, b), axes)]
    _assert_same_bits(jax.vmap(sliced_matmul, axes)(*_f64(*args)), want)


def test_transpose() -> None:
    a, b = _operands(4, (2,), 17, 18, 19)
    ct = np.random.default_rng(5).integers(-9, 10, (4, 2, 17, 19))
    _, vjp = jax.vjp(sliced_matmul, *_f64(a, b))
    got_a, got_b = vjp(*_f64(ct))
    want_a, want_b = np.zeros_like(a), np.zeros_like(b)
    for i in range(4):
        for j in range(4 - i):
            want_a[i] += ct[i + j] @ b[j].swapaxes(-1, -2)
            want_b[j] += a[i].swapaxes(-1, -2) @ ct[i + j]
    _assert_same_bits(got_a, want_a)
    _assert_same_bits(got_b, want_b)


def _repeat(
    f: Callable[..., Any], make: Callable[[int], list[np.ndarray]], want: Callable[..., Sequence[np.ndarray]]
) -> None:
    """Runs one compiled program on ever new buffers: what XLA captures in a CUDA graph is replayed and updated."""
    compiled = jax.jit(f)
    kept = []
    for seed in range(5):
        args = make(seed)
        got = compiled(*_f64(*args))
        for g, w in zip(got, want(*args), strict=True):
            _assert_same_bits(g, w)
        kept.append(got)  # so that the next buffers lie elsewhere


def test_chain_in_one_program() -> None:
    """Six kernels and the elementwise work between them; small digits, taken anew from each product."""

    def digits(xp: Any, orders: Any) -> Any:
        return orders - xp.floor(orders / 64) * 64 - 32  # exact

    def chain(a: jax.Array, b: jax.Array) -> list[jax.Array]:
        outs = []
        for _ in range(6):
            outs.append(sliced_matmul(a, b))
            a = digits(jnp, outs[-1])
        return outs

    def want(a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
        outs = []
        for _ in range(6):
            outs.append(_orders(a, b))
            a = (outs[-1] % 64) - 32
        return outs

    _repeat(chain, lambda seed: list(_digits(np.random.default_rng(seed), 2, 3, 50, 50)), want)


def test_independent_calls_in_one_program() -> None:
    """XLA may run them on streams of their own."""
    shapes = [((3, 2, 40, 17), (3, 2, 17, 33)), ((2, 150, 128, 16), (2, 150, 16, 128)), ((5, 1, 20), (5, 20, 90))]

    def calls(*args: jax.Array) -> list[jax.Array]:
        return [sliced_matmul(args[i], args[i + 1]) for i in range(0, len(args), 2)]

    def make(seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        return [_digits(rng, *shape) for pair in shapes for shape in pair]

    _repeat(calls, make, lambda *args: [_orders(args[i], args[i + 1]) for i in range(0, len(args), 2)])


def test_parts_of_a_buffer() -> None:
    """Operands that start in the middle of an allocation, at 8 but not at 16 bytes."""

    def parts(a: jax.Array, b: jax.Array) -> list[jax.Array]:
        return [sliced_matmul(a[i], b[i]) for i in range(3)]

    def make(seed: int) -> list[np.ndarray]:
        return [
            _digits(np.random.default_rng([seed, 0]), 3, 3, 5, 7),
            _digits(np.random.default_rng([seed, 1]), 3, 3, 7, 3),
        ]

    _repeat(parts, make, lambda a, b: [_orders(a[i], b[i]) for i in range(3)])


def test_scan() -> None:
    def step(carry: jax.Array, ab: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        orders = sliced_matmul(*ab)
        return carry + orders, orders

    def scan(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.lax.scan(step, jnp.zeros((3, 33, 36)), (a, b))

    def make(seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        return [_digits(rng, 8, 3, 33, 34), _digits(rng, 8, 3, 34, 36)]

    def want(a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
        orders = np.stack([_orders(x, y) for x, y in zip(a, b)])
        return [orders.sum(0), orders]

    _repeat(scan, make, want)


@pytest.mark.parametrize("m, k, n", [(33, 20, 34), (33, 21, 35), (1922, 18, 1922)])
def test_nonfinite_stays_in_its_row_and_column(m: int, k: int, n: int) -> None:
    a, b = _operands(2, (), m, k, n)
    want = _orders(a, b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    x[0, m - 1, k - 1], y[1, k - 1, n - 2] = np.inf, np.nan
    got = np.asarray(sliced_matmul(jnp.asarray(x), jnp.asarray(y)))
    touched = np.zeros((2, m, n), bool)
    touched[:, m - 1], touched[1, :, n - 2] = True, True
    assert np.array_equal(~np.isfinite(got), touched)
    assert np.array_equal(got[~touched], want[~touched].astype(np.float64))


def test_same_bits_on_every_run() -> None:
    """Also where the sums round."""
    rng = np.random.default_rng(8)
    a, b = jnp.asarray(rng.standard_normal((4, 200, 300))), jnp.asarray(rng.standard_normal((4, 300, 100)))
    first = np.asarray(sliced_matmul(a, b))
    for _ in range(5):
        assert np.array_equal(np.asarray(sliced_matmul(a, b)), first)
