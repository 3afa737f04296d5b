"""The README's tables of tensor-core arithmetic, from the lines of tensorcore.py; tables.py places them."""

from __future__ import annotations

from collections.abc import Sequence

import lines
from lines import select

PARTS = {"mma": "mma.sync", "wgmma": "wgmma"}
FAMILIES = [  # name, type of d, types of a and b
    ("f16 → f32", "f32", ("f16",)),
    ("f16 → f16", "f16", ("f16",)),
    ("bf16 → f32", "f32", ("bf16",)),
    ("tf32 → f32", "f32", ("tf32",)),
    ("e4m3, e5m2 → f32", "f32", ("e4m3", "e5m2")),
    ("e4m3, e5m2 → f16", "f16", ("e4m3", "e5m2")),
    ("f64 → f64", "f64", ("f64",)),
    ("s8, u8 → s32", "s32", ("s8", "u8")),
]
Table = tuple[list[str], list[list[str]], list[lines.Record]]


def issued() -> Table:
    """Outputs compared with the model by family of instructions, and those that differ."""
    records = select(lines.read("h200"), "tensorcore-issue")
    rows = []
    for name, d, ab in FAMILIES:
        cells = [name]
        for part in PARTS:
            mine = [r for r in records if _is(r["engine"].split("."), part, d, ab)]
            outputs, wrong = sum(r["outputs"] for r in mine), sum(r["error"] for r in mine)
            cells += [str(len(mine)), f"{outputs / 1e6:.1f}", str(wrong)] if mine else ["–"] * 3
        rows.append(cells)
    header = [""]
    for text in PARTS.values():
        header += [f"{text} instructions", "10⁶ outputs", "mismatches"]
    return header, rows if records else [], records


def _is(name: Sequence[str], part: str, d: str, ab: tuple[str, ...]) -> bool:
    return name[0] == part and name[2] == d and name[3] in ab


def predicted() -> Table:
    """Share of a library product's outputs whose bits the model gives."""
    records = select(lines.read("h200"), "tensorcore-predict")
    rows = [
        [
            r["method"],
            r["engine"],
            "×".join(map(str, r["shape"])),
            str(r["split"]),
            r["order"] if r["split"] > 2 else "–",
            r["operands"],
            f"{100 * r['share']:.4g} %",
        ]
        for r in records
    ]
    return ["", "library", "m×k×n", "parts of k", "their order", "operands", "bits predicted"], rows, records
