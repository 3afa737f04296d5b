"""A short test of arithmetic and products on one device, judged by exact rational arithmetic.

    device  →  (name, limbs, largest error in units of the documented bound), one line an operation

Every operation runs compiled on the device, as users run it; `fractions.Fraction` says what the answer is. `python -m
jaxmd` prints the lines.
"""

import dataclasses
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import jax
import numpy as np

from jaxmd._arith import add, div, mul, sqrt, two_prod, two_sum
from jaxmd._array import MultiDouble, matmul
from jaxmd._choice import Accuracy, Engine

LIMBS = (2, 4)
ENGINES: tuple[Engine, ...] = ("int8", "fp64", "direct")
_COUNT = 48  # numbers an operation
_M, _K, _N = 3, 24, 4  # shape of the product


@dataclasses.dataclass(frozen=True)
class Line:
    """What one operation did: the largest error in units of its bound (0 where exactness is promised and kept)."""

    name: str
    limbs: int
    error: float

    @property
    def passed(self) -> bool:
        return self.error <= 1  # false for nan


def run(device: jax.Device) -> Iterator[Line]:
    """Tests one device. To be called where x64 is on, for example inside `with jax.enable_x64(True):`."""
    with jax.default_device(device):
        yield from _error_free()
        yield Line("subnormal numbers", 2, _subnormal())
        for limbs in LIMBS:
            yield from _elementwise(limbs)
        yield from _products(LIMBS[0])


def _numbers(seed: int, shape: tuple[int, ...], limbs: int, spread: int) -> tuple[np.ndarray, ...]:
    """Normalized numbers with every limb populated, of both signs, over 2^±spread."""
    rng = np.random.default_rng(seed)
    leading = rng.uniform(0.5, 1, shape) * rng.choice([-1.0, 1.0], shape)
    result = [np.ldexp(leading, rng.integers(-spread, spread + 1, shape))]
    for _ in range(1, limbs):
        result.append(result[-1] * 2.0**-53 * rng.uniform(-0.5, 0.5, shape))
    return tuple(result)


def _exact(limbs: tuple[Any, ...]) -> Any:
    """The values of a number's entries as Fractions; a nan or inf among the limbs raises."""
    arrays = [np.asarray(limb) for limb in limbs]
    flat = [sum(map(Fraction, map(float, entry))) for entry in zip(*(a.ravel() for a in arrays), strict=True)]
    return np.array([*flat, None], dtype=object)[:-1].reshape(arrays[0].shape)


def _worst(errors: Any, bounds: Any) -> float:
    ratios = (e / b if b else math.inf * bool(e) for e, b in zip(np.ravel(errors), np.ravel(bounds), strict=True))
    return max((float(r) for r in ratios), default=0.0)


def _error_free() -> Iterator[Line]:
    """s + e must be a + b or a·b exactly, with operands that cancel among them."""
    (a,), (b,) = _numbers(1, (_COUNT,), 1, 40), _numbers(2, (_COUNT,), 1, 40)
    b[::4] = -a[::4] * (1 + 2.0**-50)
    for operation, want in ((two_sum, _exact((a,)) + _exact((b,))), (two_prod, _exact((a,)) * _exact((b,)))):
        got = _exact(jax.jit(operation)(a, b))
        yield Line(operation.__name__, 1, 0.0 if (got == want).all() else math.inf)


def _subnormal() -> float:
    """2^-1074 must survive an addition: kernels may not run with flush-to-zero."""
    tiny = np.full(4, 2.0**-1074)
    x = (np.full(4, 2.0**-1022), tiny)
    got = _exact(jax.jit(lambda x: add(x, (tiny, 0 * tiny), 2))(x))
    return 0.0 if all(value == Fraction(2) ** -1022 + Fraction(2) ** -1073 for value in got) else math.inf


def _elementwise(limbs: int) -> Iterator[Line]:
    """add, mul, div, sqrt: |error| ≤ 2·2^-53L·|result|, as their docstrings promise. One program computes the four."""
    unit = 2 * Fraction(1, 2 ** (53 * limbs))
    x, y = _numbers(3, (_COUNT,), limbs, 60), _numbers(4, (_COUNT,), limbs, 60)
    positive = tuple(limb * np.sign(x[0]) for limb in x)

    def program(x: Any, y: Any, positive: Any) -> Any:
        return add(x, y, limbs), mul(x, y, limbs), div(x, y, limbs), sqrt(positive, limbs)

    *results, root = map(_exact, jax.jit(program)(x, y, positive))
    exact_x, exact_y = _exact(x), _exact(y)
    wanted = exact_x + exact_y, exact_x * exact_y, exact_x / exact_y
    for name, got, want in zip(("add", "mul", "div"), results, wanted, strict=True):
        yield Line(name, limbs, _worst(abs(got - want), unit * abs(want)))
    want = abs(exact_x)
    yield Line("sqrt", limbs, _worst(abs(root * root - want), 2 * unit * want))  # (r² − x) / 2x is the error of r


def _products(limbs: int) -> Iterator[Line]:
    """|C − AB| ≤ k·2^-53L·|A||B| + 2^-53L·|C|, with rows whose entries spread over many binades.

    Engines with guard levels run at one of them, accuracy "normwise", because compiling each level takes a second:
    row maximum times column maximum then stands for |A||B|.
    """
    a, b = _numbers(5, (_M, _K), limbs, 30), _numbers(6, (_K, _N), limbs, 30)
    exact_a, exact_b = _exact(a), _exact(b)
    want = exact_a @ exact_b
    largest = np.multiply.outer(abs(exact_a).max(axis=1), abs(exact_b).max(axis=0))
    for engine in ENGINES:
        accuracy: Accuracy = "componentwise" if engine == "direct" else "normwise"
        sizes = abs(exact_a) @ abs(exact_b) if engine == "direct" else largest
        bound = Fraction(1, 2 ** (53 * limbs)) * (_K * sizes + abs(want))

        def program(a: Any, b: Any, engine: Engine = engine, accuracy: Accuracy = accuracy) -> Any:
            return matmul(MultiDouble(a), MultiDouble(b), engine=engine, accuracy=accuracy).limbs

        name = f'matmul, engine "{engine}"'
        yield Line(name, limbs, _worst(abs(_exact(jax.jit(program)(a, b)) - want), bound))
