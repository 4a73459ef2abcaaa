"""What a command tells: sections of lines, and findings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from crenel.policy.durations import format_duration

__all__ = [
    "Finding",
    "Line",
    "Section",
    "Severity",
    "count",
    "listed",
    "percent",
    "render",
    "spoken",
]

_WIDTH = 96
_UNITS = {
    "d": "day",
    "h": "hour",
    "m": "minute",
    "s": "second",
    "ms": "millisecond",
    "us": "microsecond",
}


class Severity(Enum):
    """How much a finding matters."""

    #: The run will fail, or publish next to nothing.
    PROBLEM = "problem"

    #: It will run, and probably not be what was meant.
    WARNING = "warning"

    #: Worth knowing.
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """One sentence, or a few, on what was found. It never holds a row's value."""

    severity: Severity
    text: str


#: A sentence; or a name and what is said of it, the names of a section in one column.
Line: TypeAlias = "str | tuple[str, str]"


@dataclass(frozen=True)
class Section:
    """A title, and what is under it."""

    title: str
    lines: tuple[Line, ...]


def render(sections: Iterable[Section], findings: Iterable[Finding]) -> str:
    """The text of a report; findings come last, the worst first."""
    ranks = list(Severity)
    found = sorted(findings, key=lambda finding: ranks.index(finding.severity))
    said = tuple((f"{finding.severity.value}:", finding.text) for finding in found)
    parts = [_section(section) for section in (*sections, Section("Findings", said))]
    return "\n\n".join([*filter(None, parts), _verdict(found)]) + "\n"


def _section(section: Section) -> str:
    if not section.lines:
        return ""
    width = max((len(line[0]) for line in section.lines if isinstance(line, tuple)), default=0)
    width = min(width, _WIDTH // 3)
    return "\n".join([section.title, *(_wrapped(line, width) for line in section.lines)])


def _wrapped(line: Line, width: int) -> str:
    label, text = line if isinstance(line, tuple) else ("", line)
    # A label may have spaces of its own, which are not to be broken at.
    indent = " " * (4 + width) if label else "  "
    first = f"  {label.ljust(width)}  " if label else "  "
    filled = textwrap.fill(
        text,
        width=_WIDTH - max(len(first) - len(indent), 0),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return first + filled[len(indent) :]


def _verdict(found: list[Finding]) -> str:
    problems = sum(finding.severity is Severity.PROBLEM for finding in found)
    warnings = sum(finding.severity is Severity.WARNING for finding in found)
    if not problems and not warnings:
        return "Nothing to complain about."
    return f"{count(problems, 'problem')}, {count(warnings, 'warning')}."


def count(number: int, noun: str) -> str:
    """`1 row`, `1,000 rows`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def percent(share: float) -> str:
    """A share in whole percent; never 0% or 100% of what is not all or nothing."""
    if 0 < share < 0.01:
        return "less than 1%"
    if 0.99 < share < 1:
        return "more than 99%"
    return f"{share:.0%}"


def listed(names: Iterable[str]) -> str:
    """`a, b and c`."""
    known = list(names)
    return " and ".join([", ".join(known[:-1]), known[-1]] if len(known) > 1 else known)


def spoken(micros: int) -> str:
    """A duration in words: `10 minutes`."""
    text = format_duration(micros)
    digits = text.rstrip("dhmsu")
    return count(int(digits), _UNITS[text[len(digits) :]])
