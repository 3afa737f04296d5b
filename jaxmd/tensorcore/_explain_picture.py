"""Explanations as a picture: every term a row of bits over one axis of powers of two, what is cut in another colour."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ._explain_text import number

if TYPE_CHECKING:
    from ._explain import Explanation

_KEPT, _CUT, _SUM, _ZERO = "#2b6cb0", "#e53e3e", "#2f855a", "#cbd5e0"
_ROWS = 40  # a picture of more is not read


def draw(x: Explanation, path: Any = None) -> Any:
    """See `Explanation.picture`."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle
    except ImportError as error:
        raise ImportError('jaxmd.tensorcore: pictures need matplotlib; `pip install "jaxmd[plot]"`.') from error
    rows = _rows(x)
    places = [p for *_, value, _ in rows for p in _places(value)]
    low, high = (min(places), max(places)) if places else (-1, 1)
    low, high = max(low, high - 80), high
    figure = Figure(figsize=(4 + 0.16 * (high - low + 1), 1.2 + 0.3 * len(rows)), dpi=150)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    for i, (name, colour, value, last_place) in enumerate(rows):
        y = -i
        axes.text(high + 2, y + 0.5, name, ha="right", va="center", family="monospace", fontsize=8)
        right = 2 * high - low + 5
        axes.text(right, y + 0.5, number(value), ha="left", va="center", family="monospace", fontsize=8)
        if not isinstance(value, Fraction):
            continue
        mine = set(_places(value))
        for p in range(min(mine, default=0), max(mine, default=-1) + 1):
            cut = last_place is not None and p < last_place
            face = (_CUT if cut else colour) if p in mine else "white"
            left = high + 3 + (high - p)
            axes.add_patch(Rectangle((left, y + 0.12), 1, 0.76, facecolor=face, edgecolor=_ZERO, linewidth=0.5))
        if last_place is not None and low <= last_place:
            axes.plot([high + 4 + high - last_place] * 2, [y, y + 1], color=_CUT, linewidth=1)
    for p in range(high, low - 1, -1):
        if p % 4 == 0:
            axes.text(high + 3.5 + high - p, 1.5, f"$2^{{{p}}}$", ha="center", va="center", fontsize=7)
    axes.text(high + 3, 2.6, str(x.spec), ha="left", va="center", fontsize=8)
    axes.set_xlim(high - 14, 2 * high - low + 26)
    axes.set_ylim(-len(rows) + 0.5, 3.2)
    axes.set_axis_off()
    if path is not None:
        figure.savefig(path, bbox_inches="tight")
    return figure


def _rows(x: Explanation) -> list[tuple[str, str, Fraction | float, int | None]]:
    """Name, colour, value and the last place kept, of each row from the top."""
    rows: list[tuple[str, str, Fraction | float, int | None]] = []
    for i, step in enumerate(x.steps):
        for t in step.terms:
            if t.value != 0:
                rows.append((t.name, _KEPT, t.value, step.last_place))
        several = f" {i + 1}" if len(x.steps) > 1 else ""
        rows.append((f"sum{several}", _SUM, step.total, None))
        rows.append((f"rounded{several}", _SUM, step.result, None))
    rows = rows[-_ROWS:]
    return [*rows, ("exact", _ZERO, x.exact, None), ("FMA chain", _ZERO, x.fma_chain, None)]


def _places(value: Fraction | float) -> list[int]:
    """The powers of two in |value|, as a finite number is written in binary."""
    if not isinstance(value, Fraction):
        return []
    down = value.denominator.bit_length() - 1
    bits = abs(value.numerator)
    return [p - down for p in range(bits.bit_length()) if bits >> p & 1]
