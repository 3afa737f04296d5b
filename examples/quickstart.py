"""Multiple-double matrix products on this machine, each compared with exact arithmetic.

    python examples/quickstart.py                                      the demonstration: (a) to (c) and a picture
    python examples/quickstart.py --a A.csv --b B.csv --limbs 4 --out C.csv     your own product, all digits as text

(a) ones times powers of two; (b) Gram matrices of Longley's regression data; (c) Table 1 of the paper this project
starts from, at sizes a laptop can do. Runs on the GPU where JAX has one, otherwise on the CPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxmd
from _support import exact, longley, matrix_files
from _support.progress import step, table

NAMES = {1: "float64", 2: "dd", 3: "td", 4: "qd", 8: "od", 16: "hd"}
TABLE_1 = {2: (256, 512, 1024), 4: (128, 256, 512)}
CURVE = {1: (16, 64, 256, 1024), 2: (16, 64, 256, 1024), 4: (16, 64, 256, 512), 8: (16, 64, 256)}  # limbs: n

Limbs = tuple[Any, ...]
PRODUCT = jax.jit(lambda x, y: x @ y)  # compiled once for each shape and limb count


def main() -> int:
    arguments = parse(sys.argv[1:])
    jax.config.update("jax_enable_x64", True)
    if arguments.a or arguments.b:
        return multiply_files(arguments)
    device = jax.devices()[0]
    print(f"jaxmd on {device.device_kind} ({jax.default_backend()}), jax {jax.__version__}")
    powers_of_two()
    gram_matrices()
    paper_table()
    error_curve(Path(arguments.figure))
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--a", metavar="FILE", help="left matrix: decimal text (.csv), .npz, .npy or Matrix Market (.mtx)"
    )
    parser.add_argument("--b", metavar="FILE", help="right matrix")
    parser.add_argument(
        "--limbs", type=int, default=4, help="limbs of both matrices and of the product, 1 to 16 (default 4)"
    )
    parser.add_argument("--out", metavar="FILE", help="where to write the product as decimal text (default: print it)")
    parser.add_argument("--figure", metavar="PNG", default="out/error_versus_n.png", help="where the picture goes")
    parsed = parser.parse_args(arguments)
    if (parsed.a is None) != (parsed.b is None):
        parser.error("one of --a and --b came; both were wanted")
    if not 1 <= parsed.limbs <= 16:
        parser.error(f"--limbs {parsed.limbs} came; 1 to 16 was wanted")
    return parsed


# ---------------------------------------------------------------- (a) ones times powers of two


def powers_of_two() -> None:
    """A row of ones times the column 2^0 … 2^(n-1) is 2^n − 1: one bit more than a double can hold from n = 54 on."""
    print("\n(a) a row of ones times powers of two: 2^n − 1, what comes out minus what is true")
    kinds = (1, 2, 3, 4, 8, 16)
    rows = []
    for n in (60, 100, 200, 400, 800):
        with step(f"n = {n}"):
            column = [[1 << i] for i in range(n)]
            cells = []
            for limbs in kinds:
                if limbs == 1:
                    doubles = jnp.asarray(np.ldexp(1.0, np.arange(n))[:, None])
                    product: Limbs = (jnp.matmul(jnp.ones((1, n)), doubles),)
                else:
                    product = (jaxmd.ones((1, n), limbs) @ jaxmd.asarray(column, limbs)).limbs
                values, exponent = exact.integers(product)
                difference = values[0][0] * Fraction(2) ** exponent - ((1 << n) - 1)
                cells.append("exact" if difference == 0 else f"{float(difference):+.0g}")
            rows.append([f"n = {n}", *cells])
    table(["", *(NAMES[limbs] for limbs in kinds)], rows)


# ---------------------------------------------------------------- (b) Longley's data


def gram_matrices() -> None:
    """XᵀX of the collinear Longley data and of its polynomial expansions, against rational arithmetic."""
    print("\n(b) Gram matrix XᵀX of Longley's data (16 years, six regressors), against exact rational arithmetic")
    response, regressors = longley.read()
    rows = []
    for degree in (1, 2, 3):
        x = longley.expansion(regressors, degree)
        with step(f"degree {degree}, exact"):
            true = longley.gram(x)
        cells = []
        for limbs in (1, 2, 4):
            with step(f"degree {degree}, {NAMES[limbs]}"):
                computed = gram_of(x, limbs)
            error = max(
                abs(c - t) / abs(t) for cs, ts in zip(computed, true, strict=True) for c, t in zip(cs, ts, strict=True)
            )
            cells.append(scientific(error))
        rows.append([f"degree {degree}: {len(true)} × {len(true)}", *cells])
    table(["largest relative error of an entry", "float64", "dd", "qd"], rows)

    x = longley.expansion(regressors, 1)
    true = longley.gram(x)
    right = [sum((row[i] * y for row, y in zip(x, response, strict=True)), Fraction(0)) for i in range(len(true))]
    coefficients = longley.solve(true, right)
    cells = []
    for limbs in (1, 2, 4):
        found = longley.solve(gram_of(x, limbs), right)
        cells.append(scientific(max(abs(f - c) / abs(c) for f, c in zip(found, coefficients, strict=True))))
    print("  Regression coefficients that solve XᵀX β = Xᵀy exactly for each of these Gram matrices of degree 1:")
    table(["largest relative error of a coefficient", "float64", "dd", "qd"], [["degree 1", *cells]])


def gram_of(x: longley.Matrix, limbs: int) -> longley.Matrix:
    """XᵀX computed with `limbs` limbs (1: float64 and jnp.matmul), as Fractions."""
    if limbs == 1:
        data = jnp.asarray([[float(entry) for entry in row] for row in x])
        product: Limbs = (data.T @ data,)
    else:
        matrix = jaxmd.asarray(x, limbs)
        product = (matrix.T @ matrix).limbs
    values, exponent = exact.integers(product)
    return [[value * Fraction(2) ** exponent for value in row] for row in values]


# ---------------------------------------------------------------- (c) the paper's Table 1 on this machine


def paper_table() -> None:
    """Random matrices in [0, 1): time, T = 2n³/time, and the error of a sample of entries against exact integers."""
    print(
        "\n(c) the paper's Table 1 on this machine: random n × n, T = 10^12 multiple-double flops a second (2n³/time)"
    )
    rows = []
    for limbs, sizes in TABLE_1.items():
        for n in sizes:
            with step(f"{NAMES[limbs]}, n = {n}"):
                a, b = random_pair(n, limbs)
                c, seconds = timed(PRODUCT, a, b)
                error = exact.product_error(a.limbs, b.limbs, c.limbs, 53 * limbs, count=8)
                double, double_seconds = timed(jax.jit(jnp.matmul), a.limbs[0], b.limbs[0])
                double_error = exact.product_error(a.limbs, b.limbs, (double,), 53 * limbs, count=8)
            rows.append(
                [
                    f"{NAMES[limbs]} n = {n}",
                    f"{seconds:.4f}",
                    f"{2 * n**3 / seconds / 1e12:.5f}",
                    f"{error.maximum:.1e}",
                    f"{error.units:.3f}",
                    f"{double_seconds:.4f}",
                    f"{double_error.maximum:.1e}",
                ]
            )
    table(["", "seconds", "T", "max error", "in units of the bound", "float64 seconds", "float64 max error"], rows)


def random_pair(n: int, limbs: int) -> tuple[jaxmd.MultiDouble, jaxmd.MultiDouble]:
    left, right = jax.random.split(jax.random.key(n + limbs))
    return jaxmd.random.uniform(left, (n, n), limbs), jaxmd.random.uniform(right, (n, n), limbs)


def timed(function: Callable[..., Any], *operands: Any) -> tuple[Any, float]:
    """Result and median seconds of at least three runs after one to warm up."""
    result = jax.block_until_ready(function(*operands))
    seconds: list[float] = []
    while len(seconds) < 3 or (sum(seconds) < 0.3 and len(seconds) < 20):
        start = time.perf_counter()
        jax.block_until_ready(function(*operands))
        seconds.append(time.perf_counter() - start)
    return result, statistics.median(seconds)


# ---------------------------------------------------------------- the picture


def error_curve(path: Path) -> None:
    """Largest |C − AB| / (|A||B|) of a sample of entries against n: jnp.matmul, and jaxmd with 1, 2, 4 and 8 limbs."""
    print("\nlargest error of an entry, |C − AB| / (|A||B|), against n")
    curves: dict[str, dict[int, float]] = {"jnp.matmul": {}}
    for limbs, sizes in CURVE.items():
        errors = curves[f"L = {limbs}"] = {}
        for n in sizes:
            with step(f"L = {limbs}, n = {n}"):
                a, b = random_pair(n, limbs)
                errors[n] = relative_error(a, b, PRODUCT(a, b).limbs)
                if limbs == 1:
                    curves["jnp.matmul"][n] = relative_error(a, b, (jnp.matmul(a.limbs[0], b.limbs[0]),))
    columns = sorted({n for sizes in CURVE.values() for n in sizes})
    rows = [[name, *(f"{errors[n]:.1e}" if n in errors else "" for n in columns)] for name, errors in curves.items()]
    table(["n", *map(str, columns)], rows)
    try:
        import matplotlib
    except ImportError:
        print("no picture: matplotlib is not installed (pip install 'jaxmd[plot]')")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.2))
    for name, errors in curves.items():
        drawn = [max(error, 1e-140) for error in errors.values()]
        axes.loglog(list(errors), drawn, "x--" if name == "jnp.matmul" else "o-", label=name)
    axes.set_xlabel("n")
    axes.set_ylabel("largest |C − AB| / (|A||B|)")
    axes.set_title("Error of a random n × n product against exact arithmetic")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    print(f"picture: {path}")


def relative_error(a: jaxmd.MultiDouble, b: jaxmd.MultiDouble, product: Limbs) -> float:
    return exact.product_error(a.limbs, b.limbs, product, 53 * a.num_limbs, count=6).relative


# ---------------------------------------------------------------- (d) your own matrices


def multiply_files(arguments: argparse.Namespace) -> int:
    """Read two matrices, multiply, write the product as decimal text with all its digits."""
    try:
        with step(f"reading {arguments.a}"):
            a = matrix_files.read(arguments.a, arguments.limbs)
        with step(f"reading {arguments.b}"):
            b = matrix_files.read(arguments.b, arguments.limbs)
        with step(f"multiplying {a.shape} by {b.shape}"):
            c = jax.block_until_ready(PRODUCT(a, b))
        if arguments.out:
            with step(f"writing {arguments.out}"):
                matrix_files.write(arguments.out, c)
            print(f"{arguments.out}: {c.shape[0]} × {c.shape[1]}, {arguments.limbs} limbs")
        else:
            for row in matrix_files.texts(c):
                print(",".join(row))
    except (ValueError, OSError) as error:
        print(f"quickstart: {error}", file=sys.stderr)
        return 2
    return 0


def scientific(value: Fraction) -> str:
    """A Fraction of any size as d.de±dd."""
    return "0" if value == 0 else f"{float(value):.1e}"


if __name__ == "__main__":
    sys.exit(main())
