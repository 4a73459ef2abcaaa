"""The output of every benchmark: tables in Markdown, and a last line of JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Format a table with the first column aligned left and the others right."""
    cells = [list(header), *([_text(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [_line(row, widths) for row in cells]
    rule = ["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]
    return "\n".join([lines[0], "|" + "|".join(rule) + "|", *lines[1:]])


def finish(figures: Mapping[str, Any]) -> None:
    """Print the figures as the last line, in JSON."""
    print(json.dumps(figures, separators=(",", ":")), flush=True)


def rounded(value: float, digits: int = 4) -> float:
    """Round to as many significant digits as a measurement deserves."""
    return float(f"{value:.{digits}g}")


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        cell.ljust(width) if i == 0 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "| " + " | ".join([first, *others]) + " |"


def _text(value: Any) -> str:
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        return f"{value:.3f}" if value < 10 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
