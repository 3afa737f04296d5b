"""Text of a multiple-double array: every digit that tells its entries apart, laid out and elided as numpy does.

    MultiDouble([[0.1, 0.333333333333333333333333333333332],
                 [2.0, 1e-300]], limbs=2)

Large arrays show their edges (numpy's print options `threshold`, `edgeitems` and `linewidth` apply), and only entries
that are shown are converted; a traced value shows its shape.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from . import _decimal


def describe(limbs: Sequence[Any]) -> str:
    """The `repr` of a MultiDouble with these limbs: text that reads back as the same values; the shape of tracers."""
    kind = f"limbs={len(limbs)}"
    if not all(isinstance(limb, jax.Array | np.ndarray | np.generic) for limb in limbs):
        return f"MultiDouble({tuple(limbs)!r})"  # placeholders of a transformation
    shape = tuple(limbs[0].shape)
    if any(isinstance(limb, jax.core.Tracer) for limb in limbs):
        return f"MultiDouble(shape={shape}, {kind}, traced)"
    if not all(getattr(limb, "is_fully_addressable", True) for limb in limbs):
        return f"MultiDouble(shape={shape}, {kind}, on other processes too)"
    if 0 in shape:
        return f"MultiDouble([], shape={shape}, {kind})"
    columns = [np.asarray(limb).reshape(-1) for limb in limbs]
    numbers = np.arange(columns[0].size).reshape(shape)
    texts: dict[int, str] = {}

    def text_of(number: Any) -> str:
        number = int(number)
        if number not in texts:
            texts[number] = _decimal.limbs_to_text([float(column[number]) for column in columns])
        return texts[number]

    prefix, suffix = "MultiDouble(", f", {kind})"
    _lay_out(numbers, text_of, prefix, suffix)  # converts what is shown, so that the widths are known
    signed = any(text.startswith("-") for text in texts.values())
    texts = {number: (" " if signed and text[0] != "-" else "") + text for number, text in texts.items()}
    width = max(map(len, texts.values()))
    if not shape or 2 * width + len(prefix) + 4 > np.get_printoptions()["linewidth"]:
        width = 0  # one entry a line needs no columns
    texts = {number: text.ljust(width) for number, text in texts.items()}
    return prefix + _lay_out(numbers, text_of, prefix, suffix) + suffix


def _lay_out(numbers: np.ndarray, text_of: Any, prefix: str, suffix: str) -> str:
    return np.array2string(numbers, separator=", ", prefix=prefix, suffix=suffix, formatter={"int": text_of})
