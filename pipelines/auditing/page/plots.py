"""Draws the plots of the page as SVG that takes its colours and its font from the page around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from crenel.pipelines.auditing.page.drawing import (
    BAR,
    INK,
    LIMIT,
    LINE,
    PAPER,
    STEPS,
    STYLE,
    TYPE,
    WIDTH,
    canvas,
    percents,
    svg,
)
from crenel.pipelines.auditing.page.words import Format, amount, clean, number, percent

__all__ = ["MOST_BARS", "draw"]

#: The most columns that fit a plot. The table under it has all of them.
MOST_BARS = 30


def draw(document: Mapping[str, Any]) -> dict[str, str]:
    """Draw the plots, by name. What was not measured has no plot."""
    with mpl.rc_context(STYLE):
        made = {
            "loss": _loss(document["loss"]),
            "groups": _groups(document["groups"], document["policy"].get("k")),
            "delay": _delay(document.get("delay")),
            "loss-over-time": _over_time(document["over_time"], "loss"),
            "suppressed-over-time": _over_time(document["over_time"], "suppressed"),
        }
    return {name: svg for name, svg in made.items() if svg}


def _loss(loss: Mapping[str, Any]) -> str:
    """Draw the loss of each column, and the overall loss as a line."""
    known = {name: value for name, value in loss["per_attribute"].items() if value is not None}
    worst = set(sorted(known, key=lambda name: -known[name])[:MOST_BARS])
    names = [name for name in known if name in worst]
    if not names:
        return ""
    figure, axes = canvas(70 + 24.0 * len(names))
    values = [known[name] for name in names]
    bars = axes.barh(range(len(names)), values, height=0.62, color=BAR)
    axes.bar_label(bars, [percent(value) for value in values], padding=4)
    axes.set_yticks(range(len(names)), [clean(name, 18) for name in names])
    axes.tick_params(axis="y", labelcolor=INK)
    axes.invert_yaxis()
    # Leave room for the labels at the end of the bars.
    axes.set_xlim(0, 1.28 * max([*values, loss.get("overall") or 0.0, 0.01]))
    percents(axes.xaxis)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    if loss.get("overall") is not None:
        _limit(axes, loss["overall"], f"overall {percent(loss['overall'])}")
    return svg(figure, "loss")


def _groups(groups: Mapping[str, Any], k: int | None) -> str:
    """Draw how many groups have which size, and k as a line."""
    bins = groups["histogram"]
    if not bins:
        return ""
    figure, axes = canvas()
    _bars(axes, bins, [part["groups"] for part in bins], number)
    axes.set_xlabel(f"{clean(groups['unit'])} in a group")
    axes.set_ylabel("groups")
    if k is not None:
        _limit(axes, _place(bins, k), f"k = {number(k)}")
    return svg(figure, "groups")


def _delay(delay: Mapping[str, Any] | None) -> str:
    """Draw how many rows waited for how long, and the deadline as a line."""
    bins = delay["histogram"] if delay else []
    if not delay or not bins:
        return ""
    say = amount(delay["unit"])
    figure, axes = canvas()
    _bars(axes, bins, [part["rows"] for part in bins], say)
    axes.set_xlabel("delay" if delay["unit"] == "seconds" else "delay, in rows")
    axes.set_ylabel("rows")
    if delay.get("deadline") is not None:
        _limit(axes, _place(bins, delay["deadline"]), f"deadline {say(delay['deadline'])}")
    return svg(figure, "delay")


def _over_time(over_time: Mapping[str, Any], what: str) -> str:
    """Draw a figure for each part of the stream, in order."""
    bins = over_time["bins"]
    values = [part[what] for part in bins]
    if all(value is None for value in values):
        return ""
    figure, axes = canvas()
    if what == "loss":
        _line(axes, bins, values)
    else:
        _bars(axes, bins, [value or 0 for value in values], _moment)
        axes.set_ylabel("suppressed rows")
    axes.set_xlabel(clean(over_time["unit"]))
    return svg(figure, f"{what}-over-time")


def _line(axes: Axes, bins: Sequence[Mapping[str, Any]], values: Sequence[float | None]) -> None:
    """Draw losses as a line, with a gap where there is none."""
    known = [np.nan if value is None else value for value in values]
    few = len(known) <= 12
    axes.plot(np.arange(len(bins)) + 0.5, known, color=BAR, linewidth=2, marker="o" if few else "", markersize=5)
    alone = [place for place in range(len(known)) if _is_alone(known, place)]
    axes.plot([place + 0.5 for place in alone], [known[place] for place in alone], "o", color=BAR, markersize=5)
    axes.set_ylim(0, 1.12 * max(np.nanmax(known), 0.01))
    axes.set_ylabel("loss")
    percents(axes.yaxis)
    _ordered(axes, bins, _moment)


def _is_alone(values: Sequence[float], place: int) -> bool:
    """Whether both neighbours of a value are missing, so that no line would show it."""
    around = [*values[max(place - 1, 0) : place], *values[place + 1 : place + 2]]
    return not np.isnan(values[place]) and bool(np.all(np.isnan(around)))


def _bars(axes: Axes, bins: Sequence[Mapping[str, Any]], heights: Sequence[float], say: Format) -> None:
    axes.bar(np.arange(len(bins)) + 0.5, [float(height) for height in heights], width=0.86, color=BAR)
    axes.set_ylim(0, 1.12 * max(*heights, 1))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=STEPS, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    _ordered(axes, bins, say)


def _ordered(axes: Axes, bins: Sequence[Mapping[str, Any]], say: Format) -> None:
    """Put bins side by side, all equally wide, and label some of their bounds."""
    bounds = [part["from"] for part in bins] + [bins[-1]["to"]]
    labels = [say(bound) for bound in bounds]
    longest = max(len(line) for label in labels for line in label.split("\n"))
    room = int(WIDTH * 0.8 / (TYPE * 0.75 * max(longest, 1)))
    shown = np.unique(np.linspace(0, len(bins), min(max(room, 2), 5, len(bounds))).round().astype(int)).tolist()
    axes.set_xticks(shown, [labels[place] for place in shown])
    axes.set_xlim(-0.25, len(bins) + 0.25)
    axes.grid(axis="y", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)


def _place(bins: Sequence[Mapping[str, Any]], bound: float) -> float:
    """Find the place of a bound among bins side by side; just outside of them if it is beyond."""
    first, last = bins[0]["from"], bins[-1]["to"]
    if bound < first:
        return -0.2
    if bound > last:
        return len(bins) + 0.2
    starts = [float(part["from"]) for part in bins]
    place = int(np.searchsorted(starts, float(bound), side="right")) - 1
    start, end = bins[place]["from"], bins[place]["to"]
    share = (bound - start) / (end - start) if end > start else 0.0
    return place + min(share, 1.0)


def _limit(axes: Axes, at: float, text: str) -> None:
    """Draw a dashed line, and its label above it."""
    axes.axvline(at, color=PAPER, linewidth=4)
    axes.axvline(at, color=LIMIT, linewidth=1.8, linestyle=(0, (4, 2)))
    low, high = axes.get_xlim()
    right = at > low + 0.6 * (high - low)
    axes.annotate(
        text,
        (at, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 4),
        textcoords="offset points",
        ha="right" if right else "left",
        va="bottom",
        color=LIMIT,
        weight="bold",
    )


def _moment(bound: float | str) -> str:
    """Write a bound in the stream: a number of rows, or a time as its day above its hour."""
    if not isinstance(bound, str):
        return number(bound)
    day, _, hour = bound.removesuffix("Z").partition("T")
    return "\n".join(clean(part, 12) for part in (day, hour) if part)
