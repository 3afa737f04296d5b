"""One line while something runs, one line when it is done: nothing stays silent for more than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def step(what: str) -> Iterator[None]:
    """Show `what` while the block runs; on a terminal the line is erased afterwards, in a log it stays."""
    terminal = sys.stderr.isatty()
    start = time.perf_counter()
    print(f"  … {what}", end="" if terminal else "\n", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        seconds = time.perf_counter() - start
        if terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        elif seconds > 1:
            print(f"    {what}: {seconds:.1f} s", file=sys.stderr, flush=True)


def table(header: list[str], rows: list[list[str]], indent: str = "  ") -> None:
    """Print rows under a header, columns as wide as their widest cell; the first column left, the others right."""
    widths = [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]
    for line in [header, ["-" * width for width in widths], *rows]:
        cells = [line[0].ljust(widths[0])] + [
            cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)
        ]
        print((indent + "  ".join(cells)).rstrip())
