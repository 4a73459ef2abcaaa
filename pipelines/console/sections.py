"""The report of a command: sections of lines, and findings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
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
    "filled",
    "listed",
    "percent",
    "render",
    "section_text",
    "sentence",
    "spoken",
    "table",
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

    #: The run will fail, or publish almost nothing.
    PROBLEM = "problem"

    #: The run will work, but probably not do what was meant.
    WARNING = "warning"

    #: Worth knowing.
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """What was found, in a few sentences. It never holds a row's value."""

    severity: Severity
    text: str


#: A sentence, or a label and its text. The labels of a section form a column.
Line: TypeAlias = "str | tuple[str, str]"


@dataclass(frozen=True)
class Section:
    """A title, and the lines below it."""

    title: str
    lines: tuple[Line, ...]


def render(sections: Iterable[Section], findings: Iterable[Finding]) -> str:
    """Write a report as text. Findings come last, the worst first."""
    ranks = list(Severity)
    found = sorted(findings, key=lambda finding: ranks.index(finding.severity))
    said = tuple((f"{finding.severity.value}:", finding.text) for finding in found)
    parts = [section_text(section) for section in (*sections, Section("Findings", said))]
    return "\n\n".join([*filter(None, parts), _verdict(found)]) + "\n"


def section_text(section: Section) -> str:
    """Write one section as text, wrapped; empty if it has no lines."""
    if not section.lines:
        return ""
    width = max((len(line[0]) for line in section.lines if isinstance(line, tuple)), default=0)
    width = min(width, _WIDTH // 3)
    return "\n".join([section.title, *(_wrapped(line, width) for line in section.lines)])


def _wrapped(line: Line, width: int) -> str:
    label, text = line if isinstance(line, tuple) else ("", line)
    # Filled without the label, which may have spaces and must not be broken at them.
    indent = " " * (4 + width) if label else "  "
    first = f"  {label.ljust(width)}  " if label else "  "
    return first + filled(text, indent, _WIDTH - max(len(first) - len(indent), 0))[len(indent) :]


def filled(text: str, indent: str = "", width: int = _WIDTH) -> str:
    """Wrap a text to lines of at most `width` characters."""
    return textwrap.fill(
        text,
        width=width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _verdict(found: list[Finding]) -> str:
    problems = sum(finding.severity is Severity.PROBLEM for finding in found)
    warnings = sum(finding.severity is Severity.WARNING for finding in found)
    if not problems and not warnings:
        return "No problems, no warnings."
    return f"{count(problems, 'problem')}, {count(warnings, 'warning')}."


def count(number: int, noun: str) -> str:
    """Count things: `1 row`, `1,000 rows`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def percent(share: float) -> str:
    """Write a share in whole percent. Only nothing is 0%, and only all is 100%."""
    if 0 < share < 0.01:
        return "less than 1%"
    if 0.99 < share < 1:
        return "more than 99%"
    return f"{share:.0%}"


def listed(names: Iterable[str]) -> str:
    """Join names: `a, b and c`."""
    known = list(names)
    return " and ".join([", ".join(known[:-1]), known[-1]] if len(known) > 1 else known)


def sentence(text: str) -> str:
    """Begin a text with a capital letter, and leave the rest alone: it may quote names."""
    return text[:1].upper() + text[1:]


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Align cells in columns, a line for each row."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def spoken(micros: int) -> str:
    """Write a duration in words: `10 minutes`."""
    text = format_duration(micros)
    digits = text.rstrip("dhmsu")
    return count(int(digits), _UNITS[text[len(digits) :]])
