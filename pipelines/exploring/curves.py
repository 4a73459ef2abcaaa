"""Draws the curves of the page as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.ticker import FuncFormatter, Locator, MaxNLocator, MultipleLocator

from crenel.pipelines.auditing.page.drawing import CURVES, LINE, PAPER, STEPS, STYLE, canvas, percents, svg
from crenel.pipelines.auditing.page.words import clean, number
from crenel.policy.durations import span_of_seconds

__all__ = ["draw"]

#: Curves differ in their marks too: not everybody tells colours apart, and paper may have none.
_MARKS = ("o", "s", "^", "D", "v")

#: Distances between ticks of time, in seconds: from a second to a month.
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_TICKS = (1, 5, 10, 30, *(n * _MINUTE for n in (1, 5, 10, 30)), *(n * _HOUR for n in (1, 2, 6, 12)))
_TICKS += tuple(n * _DAY for n in (1, 2, 5, 10, 30))

#: The least share that an axis reaches: one row of thousands must not look like a mountain.
_LEAST = 0.01


def draw(document: Mapping[str, Any], plots: Iterable[str]) -> dict[str, str]:
    """Draw the plots that have a figure to show."""
    with mpl.rc_context(STYLE):
        made = {name: _curves(document, name) for name in plots}
    return {name: drawn for name, drawn in made.items() if drawn}


def _curves(document: Mapping[str, Any], name: str) -> str:
    settings = document["settings"]
    deadlines = list(dict.fromkeys(one["deadline"] for one in settings))
    guarantees = list(dict.fromkeys(one["guarantee"] for one in settings))
    figures = {(one["guarantee"], one["deadline"]): one[name] for one in settings}
    known = [value for value in figures.values() if value is not None]
    if not known:
        return ""
    figure, axes = canvas(230)
    # A last place beside the curves has room for their names.
    axes.set_xlim(-0.25, len(deadlines) - 0.25 + 0.16 * max(map(len, guarantees)) * max(len(deadlines), 2) / 4)
    axes.set_ylim(0, 1.12 * max([*known, 1e-9 if name == "wait" else _LEAST]))
    ends = []
    for guarantee, colour, mark in zip(guarantees, cycle(CURVES), cycle(_MARKS), strict=False):
        values = [figures.get((guarantee, deadline)) for deadline in deadlines]
        drawn = np.array([np.nan if value is None else value for value in values], float)
        axes.plot(drawn, color=colour, linewidth=2, marker=mark, markersize=6, markeredgecolor=PAPER)
        there = np.flatnonzero(~np.isnan(drawn))
        if len(there):
            ends.append((drawn[there[-1]], there[-1], guarantee, colour))
    _named(axes, ends)
    axes.set_xticks(range(len(deadlines)), [clean(label, 14) for label in _told_apart(deadlines)])
    axes.set_xlabel("deadline")
    axes.grid(axis="y", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    if name == "wait":
        in_seconds = document["unit"] == "seconds"
        axes.yaxis.set_major_locator(_times(max(known)) if in_seconds else MaxNLocator(4, steps=STEPS))
        say = span_of_seconds if in_seconds else number
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: say(round(value, 6))))
    else:
        percents(axes.yaxis)
    return svg(figure, name)


def _times(longest: float) -> Locator:
    """Put ticks at whole minutes, hours or days."""
    width = next((size for size in _TICKS if longest <= 4 * size), None)
    return MaxNLocator(4, steps=STEPS) if width is None else MultipleLocator(width)


def _told_apart(deadlines: Sequence[str]) -> list[str]:
    """Leave out what all deadlines share: of `1h or 1,000 rows` and `6h or 1,000 rows`, the rows."""
    parts = [deadline.split(" or ") for deadline in deadlines]
    if len({len(each) for each in parts}) != 1:
        return list(deadlines)
    differ = [place for place, each in enumerate(zip(*parts, strict=True)) if len(set(each)) > 1]
    return [" or ".join(each[place] for place in differ) if differ else " or ".join(each) for each in parts]


def _named(axes: Any, ends: list[tuple[float, int, str, str]]) -> None:
    """Write each curve's name beside its end, moved apart where two would overlap, and down where there is no room."""
    low, high = axes.get_ylim()
    room = 0.085 * (high - low)
    ends = sorted(ends)
    places = np.array([value for value, *_ in ends])
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + room)
    for i in range(len(places)):
        places[-1 - i] = min(places[-1 - i], high - i * room)
    for at, (_, place, guarantee, colour) in zip(places, ends, strict=True):
        axes.annotate(guarantee, (place, at), xytext=(9, 0), textcoords="offset points", va="center", color=colour)
