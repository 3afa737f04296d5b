"""Draws figures/*.png from the committed JSON lines (needs matplotlib: pip install 'jaxmd[plot]').

python examples/bench/plot.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lines
from lines import Record, select

FIGURES = Path(__file__).resolve().parent / "figures"
NAMES = {1: "d", 2: "dd", 3: "td", 4: "qd", 8: "od", 16: "hd"}


def main() -> int:
    pyplot = drawing("plot")
    if pyplot is None:
        return 1
    figures = {
        "exponent_spread": exponent_spread,
        "product": product,
        "residues": residues,
        "error_and_time": error_and_time,
    }
    for name, draw in figures.items():
        figure, axes = pyplot.subplots(figsize=(6.6, 4.3))
        if draw(axes):
            figure.savefig(FIGURES / f"{name}.png")
            print(FIGURES / f"{name}.png")
        pyplot.close(figure)
    return 0


def drawing(who: str) -> Any:
    """matplotlib's pyplot with our settings and the folder of figures made; None, and a word of advice, without it."""
    try:
        import matplotlib
    except ImportError:
        print(f"{who}: matplotlib is not installed; pip install 'jaxmd[plot]'", file=sys.stderr)
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    FIGURES.mkdir(exist_ok=True)
    pyplot.rcParams.update({"axes.grid": True, "grid.alpha": 0.3, "savefig.dpi": 120, "savefig.bbox": "tight"})
    return pyplot


def exponent_spread(axes: Any) -> bool:
    """Error against the exponent spread φ of the entries, one curve a method."""
    records = next((found for m in ("h200", "cpu") if (found := select(lines.read(m), "exponent_spread"))), [])
    styles = ["v-", "^--", "s:", "o-", "d--", "x-."]
    methods = dict.fromkeys(r["method"] for r in records)
    for method, style in zip(methods, styles, strict=False):
        points = sorted((r["phi"], r["error_relative"]) for r in records if r["method"] == method)
        axes.semilogy([p for p, _ in points], [max(e, 1e-36) for _, e in points], style, label=method)
    axes.set_xlabel("φ: entries are (rand − 0.5)·exp(φ·randn)")
    axes.set_ylabel("largest |C − AB| / (|A||B|)")
    axes.set_title(f"dd product against exponent spread{of(records)}")
    if records:
        axes.legend(fontsize="small")
    return bool(records)


def product(axes: Any) -> bool:
    """Speed against n, one curve an engine and precision."""
    records = select(lines.read("h200"), "matmul")
    cases = dict.fromkeys((r["engine"], r["limbs"]) for r in records)
    for engine, limbs in cases:
        points = sorted((r["shape"][0], r["T"]) for r in select(records, "matmul", engine=engine, limbs=limbs))
        label = engine if engine.startswith("jnp") else f"{engine}, {NAMES[limbs]}"
        axes.loglog([n for n, _ in points], [t for _, t in points], "o-" if engine == "fp64" else "s--", label=label)
    return speed_against_n(axes, records, "Products end to end")


def residues(axes: Any) -> bool:
    """Speed of engine "int8" against n, one curve a precision, beside the double product."""
    records = select(lines.read("h200"), "residue_product")
    curves: list[tuple[str, dict[str, Any], str]] = [("double, jnp.matmul", {"engine": "jnp.matmul float64"}, "k--")]
    for limbs in sorted({r["limbs"] for r in records}):
        curves.append((NAMES[limbs], {"engine": "int8", "accuracy": "componentwise", "limbs": limbs}, "o-"))
    for label, wanted, style in curves:
        points = sorted((r["shape"][0], r["T"]) for r in select(records, "residue_product", **wanted))
        axes.loglog([n for n, _ in points], [t for _, t in points], style, label=label)
    return speed_against_n(axes, records, 'Engine "int8", default accuracy')


def speed_against_n(axes: Any, records: list[Record], title: str) -> bool:
    """Ticks, names and legend of a drawing of T against the sizes of the records."""
    sizes = sorted({r["shape"][0] for r in records})
    axes.set_xticks(sizes, sizes)
    axes.minorticks_off()
    axes.set_xlabel("n")
    axes.set_ylabel("T = 2n³ / time / 10¹²")
    axes.set_title(f"{title}{of(records)}")
    if records:
        axes.legend(fontsize="small", ncols=2)
    return bool(records)


def error_and_time(axes: Any) -> bool:
    """Error of a product against its time at one size: engines and precisions."""
    n = [1024, 1024, 1024]
    records = select(lines.read("h200"), "matmul", shape=n)
    records += select(lines.read("h200"), "residue_product", shape=n, engine="int8", accuracy="componentwise")
    for engine, style in {"int8": "o-", "fp64": "s--", "direct": "^:", "jnp.matmul float64": "kx"}.items():
        points = sorted((r["limbs"], r["seconds"], r["error_relative"]) for r in records if r["engine"] == engine)
        axes.loglog([1e3 * t for _, t, _ in points], [e for _, _, e in points], style, label=engine)
        for limbs, seconds, error in points:
            axes.annotate(NAMES[limbs], (1e3 * seconds, error), textcoords="offset points", xytext=(5, 3), fontsize=8)
    axes.set_xlabel("ms")
    axes.set_ylabel("largest |C − AB| / (|A||B|)")
    axes.set_title(f"Error and time of a product, n = {n[0]}{of(records)}")
    if records:
        axes.legend(fontsize="small")
    return bool(records)


def of(records: list[Record]) -> str:
    return f" ({records[0]['device']})" if records else ""


if __name__ == "__main__":
    sys.exit(main())
