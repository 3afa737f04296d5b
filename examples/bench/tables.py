"""Rewrites the tables in README.md and examples/bench/README.md from the committed JSON lines, and nothing else there.

    python examples/bench/tables.py [--check]

A table stands between `<!-- table NAME -->` and `<!-- end NAME -->`. With --check nothing is written, and the exit
status is 1 if a table would change.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from pathlib import Path

import lines
import tensorcore_tables
from lines import Record, select

HERE = Path(__file__).resolve().parent
PAGES = (HERE.parents[1] / "README.md", HERE / "README.md")
NAMES = {1: "d", 2: "dd", 3: "td", 4: "qd", 8: "od", 16: "hd"}
MISSING = "*No lines are committed yet.*"
MACHINES = ("h200", "cpu", "amx")


def main(arguments: list[str]) -> int:
    tables = {name: build() for name, build in TABLES.items()}
    changed = 0
    for page in PAGES:
        old = page.read_text(encoding="utf-8")
        new = old
        for name, table in tables.items():
            new = replaced(new, name, table)
        changed |= new != old
        if "--check" not in arguments:
            page.write_text(new, encoding="utf-8")
    return int(changed) if "--check" in arguments else 0


def replaced(text: str, name: str, table: str) -> str:
    """`text` with the block of `name` holding `table`; text without such a block stays as it is."""
    pattern = re.compile(rf"(<!-- table {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    return pattern.sub(lambda match: match[1] + table + "\n" + match[2], text)


def markdown(header: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return MISSING
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---", *["---:"] * (len(header) - 1)], *rows])


def dimensions(record: Record) -> str:
    """m × k × n of a product, or n³ as n."""
    m, n, k = record["shape"]
    return f"{m}" if m == n == k else f"{m}×{k}×{n}"


def milliseconds(record: Record) -> str:
    return f"{1e3 * record['seconds']:.3g}"


def units(record: Record, field: str = "error_units") -> str:
    value = record.get(field)
    return "–" if value is None else f"{value:.2g}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def source(records: list[Record]) -> str:
    """Under each table: where and when."""
    places = sorted({f"{r['device']}, jax {r['jax']}, {r['date']}, commit {r['commit']}" for r in records})
    return "" if not places else "\n\n" + "; ".join(places)


def kernel() -> str:
    records = select(lines.read("h200"), "sliced_matmul")
    rows = [
        [
            r["engine"],
            str(r["slices"]),
            dimensions(r),
            milliseconds(r),
            f"{r['double_TF']:.1f}",
            percent(r["share_of_peak"]),
            f"{r['error']:.2g}",
        ]
        for r in records
    ]
    return markdown(["", "slices", "m×k×n", "ms", "double-TF", "of peak", "max error"], rows) + source(records)


def product(machine: str) -> Callable[[], str]:
    def build() -> str:
        records = select(lines.read(machine), "matmul")
        records.sort(key=lambda r: (r["engine"].startswith("jnp"), r["engine"], r["limbs"], r["shape"]))
        rows = [
            [
                r["engine"],
                NAMES[r["limbs"]],
                dimensions(r),
                milliseconds(r),
                f"{r['T']:.3g}",
                percent(r["share_of_peak"]),
                units(r),
            ]
            for r in records
        ]
        header = ["engine", "precision", "n", "ms", "T", "of peak", "max error / bound"]
        return markdown(header, rows) + source(records)

    return build


def residues(machine: str) -> Callable[[], str]:
    """Engine "int8" beside jnp.matmul in float64 of the same size and run, and beside exact integer products."""

    def build() -> str:
        records = select(lines.read(machine), "residue_product")
        records.sort(key=lambda r: (r["limbs"], r["shape"], r["engine"] == "flint", r["engine"]))
        rows = [
            [
                residue_label(r),
                NAMES[r["limbs"]],
                dimensions(r),
                milliseconds(r),
                f"{1e3 * r['single_seconds']:.3g}" if "single_seconds" in r else "–",
                f"{r['T']:.3g}",
                f"{r['ratio']:.3g}" if r.get("ratio") else "–",
                f"{r['compile_seconds']:.1f}" if "compile_seconds" in r else "–",
                units(r),
            ]
            for r in records
        ]
        header = ["accuracy", "", "n", "ms", "one call (ms)", "T", "time / float64", "compile (s)", "max error / bound"]
        return markdown(header, rows) + source(records)

    return build


def residue_label(record: Record) -> str:
    if record["engine"] == "flint":
        return f"FLINT, {53 * record['limbs']}-bit integers"
    if record["engine"] == "int8":
        return str(record["accuracy"])
    return f'"auto", {record["accuracy"]}' if record["engine"] == "auto" else str(record["engine"])


def residue_grid() -> str:
    """T of engine "int8" by limbs and n, errors in brackets, beside the double product of the same run."""
    records = select(lines.read("h200"), "residue_product")
    sizes = sorted({r["shape"][0] for r in records})
    rows = []
    for label, wanted in [
        ("double, `jnp.matmul`", {"engine": "jnp.matmul float64"}),
        ('d, "auto"', {"engine": "auto", "limbs": 1}),
        ('d, "int8"', {"engine": "int8", "limbs": 1, "accuracy": "componentwise"}),
        ('d, "int8", normwise', {"engine": "int8", "limbs": 1, "accuracy": "normwise"}),
        *((NAMES[l], {"engine": "int8", "limbs": l, "accuracy": "componentwise"}) for l in (2, 4, 8, 16)),
    ]:
        found = {r["shape"][0]: f"{r['T']:.3g} ({units(r)})" for r in select(records, "residue_product", **wanted)}
        if found:
            rows.append([label, *(found.get(n, "–") for n in sizes)])
    return markdown(["T (max error / bound)", *(f"n = {n}" for n in sizes)], rows) + source(records)


def guarantee() -> str:
    records = select(lines.read("h200"), "residue_guarantee")
    rows = [
        [r["method"], dimensions(r), milliseconds(r), f"{r['over_normwise']:.2f}", units(r)]
        for r in sorted(records, key=lambda r: r["shape"])
    ]
    return markdown(["dd matrices", "n", "ms", "time / normwise", "max error / bound"], rows) + source(records)


def residue_batches() -> str:
    records = select(lines.read("h200"), "residue_batch")
    rows = [
        [f"{r['batch']} × {r['shape'][0]}²", NAMES[r["limbs"]], r["engine"], milliseconds(r), f"{r['T']:.3g}", units(r)]
        for r in records
    ]
    return markdown(["", "", "engine", "ms", "T", "max error / bound"], rows) + source(records)


def residue_tiles() -> str:
    """The product kernel alone: int8 TOPS of each tile, all results checked against integers on a sample."""
    records = select(lines.read("h200"), "kernel_matmul")
    rows = [
        [
            r["method"] or "chosen",
            NAMES[r["limbs"]],
            (f"{r['batch']} × " if "batch" in r else "") + dimensions(r),
            str(r["channels"]),
            milliseconds(r),
            f"{r['tops']:.4g}",
            percent(r["share"]),
            str(r["wrong"]),
        ]
        for r in records
    ]
    header = ["tile", "", "n", "int8 products", "ms", "int8 TOPS", "of 1979", "wrong residues"]
    return markdown(header, rows) + source(records)


def residue_codec() -> str:
    """The encode and decode kernels alone: bandwidth of what they must move once."""
    names = {"kernel_encode_left": "encode a", "kernel_encode_right": "encode b", "kernel_decode": "decode"}
    records = [r for r in lines.read("h200") if r["operation"] in names]
    rows = [
        [
            names[r["operation"]],
            NAMES[r["limbs"]],
            dimensions(r),
            milliseconds(r),
            f"{1e12 * r['seconds'] / r['shape'][0] ** 2:.3g}",
            f"{r['bytes_per_second'] / 1e12:.2f}",
            percent(r["share"]),
            str(r["wrong"]),
        ]
        for r in sorted(records, key=lambda r: (r["limbs"], r["operation"], r["shape"]))
    ]
    header = ["kernel", "", "n", "ms", "ps an entry", "TB/s", "of 4.8", "wrong"]
    return markdown(header, rows) + source(records)


def steps(machine: str) -> Callable[[], str]:
    """The steps of a product in residues: milliseconds of each, and the rate of the int8 products."""

    def build() -> str:
        records = [r for r in lines.read(machine) if r["operation"] in (*STEPS, "residue_dot")]
        cases: dict[tuple[int, int], dict[str, Record]] = {}
        for record in records:
            cases.setdefault((record["limbs"], record["shape"][0]), {})[record["operation"]] = record
        rows = []
        for (limbs, n), found in sorted(cases.items()):
            times = [milliseconds(found[step]) if step in found else "–" for step in STEPS]
            matmul = found["residue_matmul"]
            rates = [
                f"{found[name]['tops']:.4g}" if name in found else "–" for name in ("residue_matmul", "residue_dot")
            ]
            rows.append([f"{NAMES[limbs]}, n = {n}", str(matmul["channels"]), *times, *rates])
        header = [
            "",
            "int8 products",
            "encode a",
            "encode b",
            "multiply",
            "decode (ms)",
            "int8 TOPS",
            "XLA's int8 TOPS",
        ]
        return markdown(header, rows) + source(records)

    return build


STEPS = ("residue_encode_left", "residue_encode_right", "residue_matmul", "residue_decode")


def table_1() -> str:
    records = select(lines.read("h200"), "table_1")
    cases: dict[tuple[int, int], dict[str, Record]] = {}
    for record in records:
        cases.setdefault((record["limbs"], record["shape"][0]), {})[record["engine"]] = record
    rows = []
    for (limbs, n), engines in cases.items():
        any_engine = next(iter(engines.values()))
        paper = [
            f"{any_engine[field]:.4g}" if field in any_engine else "–"
            for field in ("paper_t_TC", "paper_t_CUDA", "paper_error")
        ]
        ours = [f"{engines[e]['seconds']:.3g}" if e in engines else "–" for e in ("fp64", "direct")]
        errors = [f"{engines[e]['error_maximum']:.1e}" if e in engines else "–" for e in ("fp64", "direct")]
        rows.append([NAMES[limbs], str(n), *paper, *ours, *errors])
    header = [
        "",
        "n",
        "paper t_TC (s)",
        "paper t_CUDA (s)",
        "paper error",
        "fp64 (s)",
        "direct (s)",
        "fp64 error",
        "direct error",
    ]
    return markdown(header, rows) + source(records)


def table_2() -> str:
    records = select(lines.read("h200"), "table_2")
    rows = [
        [
            NAMES[r["limbs"]],
            r["engine"],
            dimensions(r),
            milliseconds(r),
            f"{r['T']:.3g}",
            f"{r['inflated_double_TF']:.3g}",
            units(r),
        ]
        for r in records
    ]
    header = ["", "engine", "m×k×n", "ms", "T", "double-TF of the paper's count", "max error / bound"]
    return markdown(header, rows) + source(records)


def spread() -> str:
    """From the GPU's lines, or the CPU's where there are none."""
    records = next((found for machine in MACHINES if (found := select(lines.read(machine), "exponent_spread"))), [])
    spreads = sorted({r["phi"] for r in records})
    methods = list(dict.fromkeys(r["method"] for r in records))
    cells = {(r["method"], r["phi"]): f"{r['error_relative']:.1e}" for r in records}
    rows = [[method, *(cells.get((method, phi), "–") for phi in spreads)] for method in methods]
    if records:
        groups = {r["phi"]: f"{r['paper_groups']:.0f}" for r in records}
        rows.append(["*products the paper's sign and exponent groups would need*", *(groups[phi] for phi in spreads)])
    return markdown(["largest error over (\\|A\\|\\|B\\|)", *(f"φ = {phi:g}" for phi in spreads)], rows) + source(
        records
    )


def batches() -> str:
    records = select(lines.read("h200"), "batched_matmul")
    rows = [
        [
            f"{r['batch']} × {r['shape'][0]}²",
            r["engine"],
            f"{1e6 * r['seconds']:.0f}",
            f"{r['T']:.3g}",
            percent(r.get("share_outside_kernel")),
            units(r),
        ]
        for r in records
    ]
    return markdown(["", "engine", "µs", "T", "outside the kernel", "max error / bound"], rows) + source(records)


def arithmetic(machine: str) -> Callable[[], str]:
    def build() -> str:
        records = [r for name in ("add", "mul", "div", "sqrt") for r in select(lines.read(machine), name)]
        records.sort(key=lambda r: r["limbs"])
        rows = [
            [
                f"{r['operation']} {NAMES[r['limbs']]}",
                f"{r['elements_per_second'] / 1e6:.3g}",
                f"{r['over_copy']:.2f}",
                units(r),
            ]
            for r in records
        ]
        return markdown(["", "10⁶ elements/s", "time / copy", "max error / 2^-53L"], rows) + source(records)

    return build


def targets() -> str:
    records = lines.read("cpu")
    rows = []
    for record in select(records, "cpu_target_product"):
        what = f"dd product n = {record['shape'][0]} against {record['float64_products']} jnp.matmul in float64"
        rows.append([what, f"{1e3 * record['seconds']:.3g} ms", f"{record['ratio']:.2f} ×", f"≤ {record['target']} ×"])
    for record in select(records, "cpu_target_multiply"):
        what = "dd multiplication of 10⁶ elements against a copy of the same arrays"
        rows.append([what, f"{1e3 * record['seconds']:.3g} ms", f"{record['ratio']:.2f} ×", f"≤ {record['target']} ×"])
    for record in select(records, "import"):
        rows.append(
            [
                "`import jaxmd` after `import jax`",
                f"{1e3 * record['seconds']:.3g} ms",
                "",
                f"≤ {1e3 * record['target']:.0f} ms",
            ]
        )
    return markdown(["", "measured", "ratio", "target"], rows) + source(records[:1])


def precision() -> str:
    """Limbs, name, digits and range; no measurement: p = 53L bits, the last limb normal above 2^(53(L − 1) − 1022)."""
    names = {1: "double", 2: "double double", 3: "triple double", 4: "quad double", 8: "octo double", 16: "hexa double"}
    makers = {2: "dd", 3: "td", 4: "qd", 8: "od", 16: "hd"}
    rows = []
    for limbs, name in names.items():
        maker = f"`{makers[limbs]}(x)`" if limbs in makers else "`asarray(x, 1)`"
        digits = int(53 * limbs * math.log10(2))
        rows.append(
            [name, str(limbs), maker, f"2^-{53 * limbs}", str(digits), f"2^{53 * (limbs - 1) - 1022} to 2^1024"]
        )
    return markdown(["", "limbs L", "made by", "unit 2^-53L", "digits", "range with all digits"], rows)


def single() -> str:
    """Engines of matmul_f32 and XLA's algorithms: a row each, TFLOPS by n, and the error at the largest."""
    records = [r for r in select(lines.read("h200"), "matmul_f32") if not r.get("kernel_only")]
    sizes = sorted({r["shape"][0] for r in records})
    rows = []
    for engine in dict.fromkeys(r["engine"] for r in records):
        own = {r["shape"][0]: r for r in records if r["engine"] == engine}
        speeds = [f"{own[n]['TFLOPS']:.3g}" if n in own else "–" for n in sizes]
        rows.append([engine, *speeds, f"{own[max(own)]['error']:.1e}"])
    return markdown(["TFLOPS", *(f"n = {n}" for n in sizes), "error"], rows) + source(records)


def single_accuracy(machine: str) -> Callable[[], str]:
    """Relative residuals of the chain of multiply-adds, and of our engines as multiples of it, by type and k."""

    def build() -> str:
        records = select(lines.read(machine), "single_accuracy")
        lengths = sorted({r["shape"][2] for r in records})
        errors = {(r["method"], r["engine"], r["shape"][2]): r["error"] for r in records}
        rows = []
        for kind in dict.fromkeys(r["method"] for r in records):
            for engine in ("float32 multiply-adds", "f16x3", "tf32x3"):
                row = [errors[kind, engine, k] for k in lengths if (kind, engine, k) in errors]
                if engine == "float32 multiply-adds":
                    rows.append([f"{kind}, {engine}", *(f"{e:.1e}" for e in row)])
                else:
                    base = [errors[kind, "float32 multiply-adds", k] for k in lengths]
                    rows.append([f"… {engine}", *(f"{e / b:.2g} ×" for e, b in zip(row, base, strict=True))])
        return markdown(["relative residual", *(f"k = {k}" for k in lengths)], rows) + source(records)

    return build


def placed(build: Callable[[], tensorcore_tables.Table]) -> Callable[[], str]:
    def table() -> str:
        header, rows, records = build()
        return markdown(header, rows) + source(records)

    return table


TABLES: dict[str, Callable[[], str]] = {
    "precision": precision,
    "kernel": kernel,
    "product": product("h200"),
    "product-cpu": product("cpu"),
    "residues": residue_grid,
    "residues-h200": residues("h200"),
    "steps-h200": steps("h200"),
    "tiles": residue_tiles,
    "codec": residue_codec,
    "guarantee": guarantee,
    "residue-batches": residue_batches,
    "residues-cpu": residues("cpu"),
    "steps-cpu": steps("cpu"),
    "residues-amx": residues("amx"),
    "steps-amx": steps("amx"),
    "table-1": table_1,
    "table-2": table_2,
    "spread": spread,
    "batches": batches,
    "arithmetic": arithmetic("h200"),
    "arithmetic-cpu": arithmetic("cpu"),
    "targets": targets,
    "single": single,
    "single-accuracy": single_accuracy("cpu"),
    "tensorcore": placed(tensorcore_tables.issued),
    "tensorcore-predict": placed(tensorcore_tables.predicted),
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
