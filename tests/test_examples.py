"""The examples: exact oracle, matrix files and their errors, Longley's data, the demonstration, the README's tables."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
sys.path[:0] = [str(EXAMPLES), str(EXAMPLES / "bench")]

import jaxmd  # noqa: E402
import lines  # noqa: E402
import tables  # noqa: E402
from _support import exact, longley, matrix_files  # noqa: E402


def run(*command: str, timeout: float = 1500) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(jaxmd.__file__).resolve().parent.parent), "MPLBACKEND": "Agg"}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=timeout, env=environment)


# the oracle


def test_integers_and_products_agree_with_fractions() -> None:
    random = np.random.default_rng(5)
    a = [random.standard_normal((3, 7)) * 2.0 ** random.integers(-300, 300, (3, 7)) for _ in range(3)]
    b = [random.standard_normal((7, 2)) for _ in range(2)]
    a[1][0] = 0.0
    (x, s), (y, t) = exact.integers(a), exact.integers(b)
    for i in range(3):
        for l in range(7):
            assert x[i][l] * Fraction(2) ** s == sum(Fraction(limb[i, l]) for limb in a)
    c = exact.product(x, y)
    for i in range(3):
        for j in range(2):
            true = sum(sum(Fraction(p[i, l]) for p in a) * sum(Fraction(q[l, j]) for q in b) for l in range(7))
            assert c[i][j] * Fraction(2) ** (s + t) == true


def test_measure_sees_a_planted_error_in_units_of_the_bound() -> None:
    a, b = np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]])
    assert exact.measure((a,), (b,), (np.array([[11.0]]),), 53).units == 0
    got = exact.measure((a,), (b,), (np.array([[11.0]]), np.array([[33.0 * 2.0**-53]])), 53)
    assert got.units == 1.0  # the bound is (k |A||B| + |C|) 2^-53 = 33 · 2^-53
    assert got.relative == 3 * 2.0**-53
    assert got.maximum == 33 * 2.0**-53


def test_measure_calls_an_error_beside_a_zero_bound_infinite() -> None:
    zero = np.zeros((1, 1))
    assert exact.measure((zero,), (zero,), (np.array([[5e-324]]),), 53).units == float("inf")


def test_integers_refuse_inf() -> None:
    with pytest.raises(ValueError, match="finite limbs"):
        exact.integers([np.array([[np.inf]])])


# matrix files


@pytest.mark.parametrize("limbs", [1, 2, 4])
def test_written_matrix_reads_back_with_the_same_limbs(limbs: int, tmp_path: Path) -> None:
    random = np.random.default_rng(limbs)
    matrix = jaxmd.from_limbs(*(random.standard_normal((3, 4)) * 2.0 ** (-53 * i) for i in range(limbs)))
    matrix_files.write(tmp_path / "m.csv", matrix)
    again = matrix_files.read(tmp_path / "m.csv", limbs)
    for old, new in zip(matrix.limbs, again.limbs, strict=True):
        np.testing.assert_array_equal(np.asarray(old), np.asarray(new))


def values(matrix: jaxmd.MultiDouble) -> list[list[Fraction]]:
    x, exponent = exact.integers(matrix.limbs)
    return [[entry * Fraction(2) ** exponent for entry in row] for row in x]


MARKET = "%%MatrixMarket matrix "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MARKET + "coordinate real general\n% c\n2 3 2\n1 1 0.5\n2 3 -4\n", [["1/2", 0, 0], [0, 0, -4]]),
        (MARKET + "coordinate pattern symmetric\n2 2 2\n1 1\n2 1\n", [[1, 1], [1, 0]]),
        (MARKET + "coordinate integer skew-symmetric\n2 2 1\n2 1 7\n", [[0, -7], [7, 0]]),
        (MARKET + "array real general\n2 2\n1\n2\n3\n4\n", [[1, 3], [2, 4]]),
        (MARKET + "array real symmetric\n2 2\n1\n2\n3\n", [[1, 2], [2, 3]]),
        (MARKET + "array real skew-symmetric\n2 2\n5\n", [[0, -5], [5, 0]]),
    ],
)
def test_matrix_market(text: str, expected: list[list[int | str]], tmp_path: Path) -> None:
    file = tmp_path / "m.mtx"
    file.write_text(text)
    assert values(matrix_files.read(file, 2)) == [[Fraction(entry) for entry in row] for row in expected]


def test_text_is_not_rounded_to_float64(tmp_path: Path) -> None:
    file = tmp_path / "m.csv"
    file.write_text("# mixed separators\n0.1, 1/3\n1e-5\t2\n")
    got = values(matrix_files.read(file, 4))
    for row, true in zip(got, [["0.1", "1/3"], ["1e-5", "2"]], strict=True):
        for entry, text in zip(row, true, strict=True):
            assert abs(entry - Fraction(text)) <= Fraction(text) / 2**211


def test_archives(tmp_path: Path) -> None:
    array = np.array([[0.5, 2.0], [3.0, 4.0]])
    np.savez(tmp_path / "one.npz", array)
    np.save(tmp_path / "one.npy", array)
    matrix = jaxmd.asarray([["0.1", "2"], ["3", "1/3"]], 4)
    jaxmd.save(tmp_path / "md.npz", matrix)
    for name in ("one.npz", "one.npy"):
        assert values(matrix_files.read(tmp_path / name, 2)) == [[Fraction(x) for x in row] for row in array.tolist()]
    assert values(matrix_files.read(tmp_path / "md.npz", 4)) == values(matrix)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "1,2\n3,x4\n", r"a\.csv, line 2, token 2: 'x4' came"),
        ("a.csv", "# c\n1,2\n3\n", r"a\.csv, line 3: 1 entries came; 2 were wanted"),
        ("a.csv", "1,,2\n", r"a\.csv, line 1, token 2: nothing came"),
        ("a.csv", "# nothing\n", r"a\.csv: the file has no entries"),
        ("a.mtx", "1 2\n", r"a\.mtx, line 1: not a Matrix Market header"),
        ("a.mtx", MARKET + "coordinate complex general\n", r"a\.mtx, line 1, token 4: 'complex' came"),
        ("a.mtx", MARKET + "coordinate real general\n2 2 1\n3 1 5\n", r"a\.mtx, line 3, token 1: index 3 came; 1 to 2"),
        ("a.mtx", MARKET + "coordinate real general\n2 2 1\n1 1 five\n", r"a\.mtx, line 3, token 3: 'five' came"),
        ("a.mtx", MARKET + "coordinate real general\n2 2 3\n1 1 5\n", r"ends with 1 entries; 3 were wanted"),
        ("a.mtx", MARKET + "coordinate real general\n2 2 2\n1 1 5\n1 1 6\n", r"entry \(1, 1\) came twice"),
        ("a.mtx", MARKET + "coordinate real general\n2 two 2\n", r"line 2, token 2: 'two' came; a whole number"),
        ("a.mtx", MARKET + "array real symmetric\n2 3\n", r"line 2: a symmetric matrix of 2 × 3"),
    ],
)
def test_unreadable_files_say_where(name: str, text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(matrix_files.MatrixFileError, match=message):
        matrix_files.read(file, 2)


def test_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(matrix_files.MatrixFileError, match="no such file"):
        matrix_files.read(tmp_path / "none.csv", 2)


# Longley's data


def test_longley_regression_gives_the_certified_coefficients() -> None:
    """NIST certifies 15 digits of the intercept and of the coefficient of the GNP deflator."""
    response, regressors = longley.read()
    x = longley.expansion(regressors, 1)
    assert (len(x), len(x[0])) == (16, 7)
    right = [sum(row[i] * y for row, y in zip(x, response, strict=True)) for i in range(7)]
    beta = longley.solve(longley.gram(x), right)
    assert abs(beta[0] - Fraction("-3482258.63459582")) < Fraction("1e-8")
    assert abs(beta[1] - Fraction("15.0618722713733")) < Fraction("1e-13")
    assert [len(longley.expansion(regressors, degree)[0]) for degree in (2, 3)] == [28, 84]


# the demonstration


def test_own_matrices_are_multiplied_with_all_digits(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("0.1,1/3\n")
    (tmp_path / "b.csv").write_text("3\n0.7\n")
    done = run(
        str(EXAMPLES / "quickstart.py"),
        *("--a", str(tmp_path / "a.csv"), "--b", str(tmp_path / "b.csv"), "--out", str(tmp_path / "c.csv")),
    )
    assert done.returncode == 0, done.stderr
    true = Fraction("0.1") * 3 + Fraction(1, 3) * Fraction("0.7")
    assert abs(Fraction((tmp_path / "c.csv").read_text().strip()) - true) <= 4 * true / 2**212


def test_shapes_that_do_not_fit_are_an_error_not_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2\n")
    done = run(str(EXAMPLES / "quickstart.py"), "--a", str(tmp_path / "a.csv"), "--b", str(tmp_path / "a.csv"))
    assert done.returncode == 2
    assert "inner dimensions must agree" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_demonstration_runs(tmp_path: Path) -> None:
    done = run(str(EXAMPLES / "quickstart.py"), "--figure", str(tmp_path / "figure.png"))
    assert done.returncode == 0, done.stderr
    powers = [line for line in done.stdout.splitlines() if line.strip().startswith("n = ")][:5]
    assert len(powers) == 5
    for line in powers:
        _, double, *ours = line.split()[2:]
        assert double == "+1" and ours == ["exact"] * 5, line
    assert (tmp_path / "figure.png").is_file() or "matplotlib is not installed" in done.stdout


# the benchmarks


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    ["product", "arithmetic", "paper_tables", "exponent_spread", "small_batches", "dmma_kernel", "import_time"],
)
def test_benchmarks_write_lines(script: str, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    done = run(str(EXAMPLES / "bench" / f"{script}.py"), "--quick", "--out", str(file))
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert records
    for record in records:
        assert {"operation", "device", "commit", "date"} <= record.keys()
        ours = record.get("engine") in ("int8", "fp64", "direct", "auto")
        assert not ours or record.get("error_units", 0) <= 1, record


@pytest.mark.parametrize("machine", ["h200", "cpu"])
def test_committed_lines_keep_the_contract(machine: str) -> None:
    for record in lines.read(machine):
        if record.get("engine") in ("int8", "fp64", "direct", "auto") and "error_units" in record:
            assert record["error_units"] <= 1, record


def test_readme_tables_are_those_of_the_committed_lines() -> None:
    assert tables.main(["--check"]) == 0, "run python examples/bench/tables.py"
    text = "".join(page.read_text(encoding="utf-8") for page in tables.PAGES)
    assert set(re.findall(r"<!-- table (\S+) -->", text)) == set(tables.TABLES)


def test_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    example = text.split("```python\n", 1)[1].split("```", 1)[0]
    assert len(example.strip().splitlines()) <= 10
    exec(example, {})
    assert "limbs" in capsys.readouterr().out


def test_map_of_the_tree_covers_every_file() -> None:
    """By its name, or by a family such as direct*."""
    tree = (ROOT / "README.md").read_text(encoding="utf-8").split("## Map of the tree", 1)[1]
    patterns = set(re.findall(r"[\w*]+\.\w+|\w+\*", tree))
    files = [*(ROOT / "jaxmd").glob("*.py"), *(ROOT / "ffi").iterdir(), *(EXAMPLES / "bench").glob("*.*")]
    names = sorted(file.name for file in files if file.is_file())
    missing = [name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    assert not missing, "give each a line in README.md, Map of the tree"
