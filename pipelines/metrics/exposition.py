"""Prometheus' text format: what a scrape gets.

It is a page of a few lines, so it is written here, and tests read it with Prometheus' own parser.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["CONTENT_TYPE", "Family", "Sample", "counter", "gauge", "histogram", "text"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Sample:
    """A figure."""

    value: float
    labels: Mapping[str, str]
    #: What follows the name of the family: nothing, or `_bucket`, `_sum` or `_count`.
    suffix: str = ""


@dataclass(frozen=True)
class Family:
    """Figures of one name."""

    name: str
    kind: str
    help: str
    samples: Sequence[Sample]


def counter(name: str, help_: str, *samples: tuple[float, Mapping[str, str]]) -> Family:
    """Make figures that only grow."""
    return Family(name, "counter", help_, [Sample(value, labels) for value, labels in samples])


def gauge(name: str, help_: str, *samples: tuple[float, Mapping[str, str]]) -> Family:
    """Make figures that come and go."""
    return Family(name, "gauge", help_, [Sample(value, labels) for value, labels in samples])


def histogram(name: str, help_: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> Family:
    """Make a histogram.

    Args:
        name: Its name.
        help_: What it is about.
        bounds: The upper bound of each bucket but the last, which has none.
        counts: How many there are in each bucket alone.
        total: The sum of all that were counted.
    """
    samples, below = [], 0
    for bound, count in zip([*bounds, math.inf], counts, strict=True):
        below += count
        samples.append(Sample(below, {"le": _number(bound)}, "_bucket"))
    return Family(name, "histogram", help_, [*samples, Sample(total, {}, "_sum"), Sample(below, {}, "_count")])


def text(families: Iterable[Family]) -> str:
    """Write a page."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {_escaped(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for sample in family.samples:
            labels = ",".join(f'{name}="{_quoted(value)}"' for name, value in sample.labels.items())
            shown = f"{{{labels}}}" if labels else ""
            lines.append(f"{family.name}{sample.suffix}{shown} {_number(sample.value)}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


def _escaped(said: str) -> str:
    return said.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(value: str) -> str:
    return _escaped(value).replace('"', '\\"')
