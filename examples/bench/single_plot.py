"""Draws figures/single_accuracy.png and figures/single_speed.png from the committed JSON lines (needs matplotlib).

python examples/bench/single_plot.py
"""

from __future__ import annotations

import sys
from typing import Any

import lines
from plot import FIGURES, drawing, of

STYLES = {"f16x3": "o-", "tf32x3": "s-", "int8": "d-"}


def main() -> int:
    pyplot = drawing("single_plot")
    if pyplot is None:
        return 1
    accuracy(pyplot)
    speed(pyplot)
    return 0


def records(operation: str) -> list[lines.Record]:
    """Those of the GPU, or of the CPU where there are none."""
    return next((found for m in ("h200", "cpu") if (found := lines.select(lines.read(m), operation))), [])


def accuracy(pyplot: Any) -> None:
    """Relative residual against k, a panel for each type of entries."""
    found = records("single_accuracy")
    kinds = list(dict.fromkeys(r["method"] for r in found))
    if not kinds:
        return
    figure, panels = pyplot.subplots(1, len(kinds), figsize=(3.1 * len(kinds), 3.4), sharey=True, squeeze=False)
    for kind, axes in zip(kinds, panels[0], strict=True):
        for engine in dict.fromkeys(r["engine"] for r in found):
            points = sorted((r["shape"][2], r["error"]) for r in found if (r["engine"], r["method"]) == (engine, kind))
            axes.loglog([k for k, _ in points], [e for _, e in points], STYLES.get(engine, "--"), label=engine, ms=4)
        axes.set_title(kind, fontsize="small")
        axes.set_xlabel("k")
    panels[0][0].set_ylabel("|C − AB| / |AB|")
    figure.suptitle(f"Float32 products{of(found)}", fontsize="medium")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small")
    figure.tight_layout(rect=(0, 0.13, 1, 1))
    figure.savefig(FIGURES / "single_accuracy.png")
    print(FIGURES / "single_accuracy.png")


def speed(pyplot: Any) -> None:
    """TFLOPS against n; the single tiles of the kernels are left out."""
    found = [r for r in records("matmul_f32") if not r.get("kernel_only")]
    if not found:
        return
    figure, axes = pyplot.subplots(figsize=(6.6, 4.3))
    for engine in dict.fromkeys(r["engine"] for r in found):
        points = sorted((r["shape"][0], r["TFLOPS"]) for r in found if r["engine"] == engine)
        axes.semilogx([n for n, _ in points], [t for _, t in points], STYLES.get(engine, "--"), label=engine)
    sizes = sorted({r["shape"][0] for r in found})
    axes.set_xticks(sizes, sizes)
    axes.minorticks_off()
    axes.set_xlabel("n")
    axes.set_ylabel("2n³ / time / 10¹²")
    axes.set_title(f"Float32 products{of(found)}")
    axes.legend(fontsize="small")
    figure.savefig(FIGURES / "single_speed.png")
    print(FIGURES / "single_speed.png")


if __name__ == "__main__":
    sys.exit(main())
