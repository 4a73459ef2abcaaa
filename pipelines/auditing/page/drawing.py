"""The canvas of a plot, and its way into a page: SVG that takes its colours and its font from the page around it."""

from __future__ import annotations

import io
import re
import warnings
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from crenel.pipelines.auditing.page.words import percent

__all__ = [
    "BAR",
    "CURVES",
    "INK",
    "LIMIT",
    "LINE",
    "MUTED",
    "PAPER",
    "STEPS",
    "STYLE",
    "TYPE",
    "WIDTH",
    "canvas",
    "percents",
    "svg",
]

#: In points. A phone shows the plot a little smaller, a desktop a little larger, so one drawing serves both.
WIDTH = 360.0
HEIGHT = 205.0
TYPE = 11.5

#: Placeholder colours. They become variables of the page, which has values for light, dark and print.
PAPER, INK, MUTED, LINE, BAR, LIMIT = "#010101", "#111111", "#222222", "#333333", "#444444", "#555555"
#: The same for curves that must be told apart.
CURVES = ("#666661", "#666662", "#666663", "#666664", "#666665")
_COLOURS = {PAPER: "paper", INK: "ink", MUTED: "muted", LINE: "line", BAR: "bar", LIMIT: "limit"} | {
    colour: f"curve-{place}" for place, colour in enumerate(CURVES)
}
STEPS = (1, 2, 2.5, 5, 10)

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"

STYLE: Any = {
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.labelsize": TYPE,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 72,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": TYPE,
    "svg.fonttype": "none",
    # A column may be called `$x`, which is not a formula.
    "text.parse_math": False,
    "text.color": INK,
    "xtick.color": LINE,
    "xtick.labelcolor": MUTED,
    "xtick.major.size": 3,
    "ytick.color": LINE,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
}


def percents(axis: Any) -> None:
    """Label an axis in percent."""
    axis.set_major_locator(MaxNLocator(4, steps=STEPS))
    axis.set_major_formatter(FuncFormatter(lambda value, _: percent(round(value, 9))))


def canvas(height: float = HEIGHT) -> tuple[Figure, Axes]:
    """Begin a plot."""
    figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
    return figure, figure.subplots()


def svg(figure: Figure, name: str) -> str:
    """Write a drawing so that a page can hold several of them."""
    file = io.StringIO()
    nothing = dict.fromkeys(["Creator", "Date", "Format", "Type"])
    # The salt makes ids differ between the figures of a page, and stay the same from run to run.
    with mpl.rc_context({"svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        figure.savefig(file, format="svg", metadata=nothing, transparent=True)
    return _bare(file.getvalue())


def _bare(drawn: str) -> str:
    """Give a drawing the page's colours, and remove its own style sheets, sizes and group ids."""
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    root = ElementTree.fromstring(drawn)
    for size in ("width", "height", "version"):
        root.attrib.pop(size, None)
    for parent in root.iter():
        for child in [child for child in parent if child.tag in {f"{{{_SVG}}}style", f"{{{_SVG}}}metadata"}]:
            parent.remove(child)
        if parent.tag == f"{{{_SVG}}}g":
            parent.attrib.pop("id", None)
        if "style" in parent.attrib:
            parent.set("style", _in_page_colours(parent.attrib["style"]))
        if parent.tag == f"{{{_SVG}}}path":
            parent.set("d", re.sub(r"\s+", " ", parent.get("d", "")).strip())
    return ElementTree.tostring(root, encoding="unicode")


def _in_page_colours(style: str) -> str:
    """Replace the placeholder colours of a style by the page's variables."""
    for drawn, name in _COLOURS.items():
        style = style.replace(drawn, f"var(--{name})")
    return style
