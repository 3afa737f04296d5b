"""Reading the committed JSON lines, results/<machine>.jsonl: h200, cpu (AVX2), amx; the last counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
KEY = ("operation", "engine", "accuracy", "method", "limbs", "slices", "batch", "shape", "phi")
Record = dict[str, Any]


def read(machine: str) -> list[Record]:
    """Records of results/<machine>.jsonl, [] where the file is missing; a case measured again replaces its old line."""
    file = RESULTS / f"{machine}.jsonl"
    if not file.is_file():
        return []
    latest: dict[str, Record] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{file}, line {number}: {error}") from None
        latest[json.dumps([record.get(field) for field in KEY])] = record
    return list(latest.values())


def select(records: list[Record], operation: str, **wanted: Any) -> list[Record]:
    """Records of one operation whose fields have the wanted values."""
    return [
        record
        for record in records
        if record["operation"] == operation and all(record.get(field) == value for field, value in wanted.items())
    ]
