"""Lines of JSON that are rows, but that no run can take: they are rejected one by one, and spoil no other row.

Arrow reads JSON by recursion, and a line that nests deep enough ends the process. A number beyond the largest double,
half of a surrogate pair, or a field that is given twice makes it refuse a whole block of lines. `unreadable` finds the
lines that are to blame.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "TOO_DEEP",
    "IgnoredRows",
    "NoObject",
    "UnreadableRow",
    "has_infinity",
    "is_deep",
    "is_of_one_row",
    "nests_deep",
    "unreadable",
]

#: The deepest nesting that is read; rows of real streams nest a few times.
MOST_DEEP = 64

TOO_DEEP, TOO_LARGE, NO_TEXT, TWICE = (
    "nested too deep",
    "number too large",
    "half of a surrogate pair",
    "field given twice",
)

#: What Arrow says if one row is to blame, and the others can be read.
_ONE_ROW = ("Number too big", "surrogate pair", "was specified twice")

_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True)
class UnreadableRow:
    """A row that is rejected before it is parsed."""

    #: The line.
    text: str
    #: The field that is to blame, or empty text, and a reason that never holds a value.
    field: str
    reason: str

    def __repr__(self) -> str:
        """Show the reason, never the row."""
        return f"UnreadableRow({self.field!r}, {self.reason!r})"


@dataclass(frozen=True)
class IgnoredRows:
    """Lines that have no row, and that nobody asked for, such as the deletes of a change stream."""

    count: int


class NoObject(Exception):
    """A line is no JSON object. The argument is its place."""


def is_of_one_row(message: str) -> bool:
    """Whether Arrow's message blames one row, while the rest of the block can be read."""
    return any(said in message for said in _ONE_ROW)


def nests_deep(data: bytes) -> bool:
    """Tell whether a line of a block nests too deep, or may nest together with others.

    Brackets can nest across lines only if a line does not begin with one brace and end with another.
    """
    codes = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(codes == ord("\n"))
    if not data.endswith(b"\n"):
        ends = np.append(ends, len(codes))
    starts = np.append(0, ends[:-1] + 1)
    last = np.maximum(ends - 1, 0)
    last = last - (codes[last] == ord("\r"))
    if np.any(codes[starts] != ord("{")) or np.any(codes[last] != ord("}")):
        lines = [line.strip() for line in data.splitlines()]
        return any(line and (not line.startswith(b"{") or not line.endswith(b"}") or is_deep(line)) for line in lines)
    is_open = codes | 0x20 == ord("{")  # also [
    if np.count_nonzero(is_open) <= len(ends) + MOST_DEEP:
        return False  # each line has a bracket, and not enough are left for one line to nest deep
    opened = np.searchsorted(np.flatnonzero(is_open), ends)
    suspect = np.flatnonzero(np.diff(opened, prepend=0) > MOST_DEEP)
    return any(is_deep(data[starts[line] : ends[line]]) for line in suspect.tolist())


def has_infinity(table: pa.Table) -> bool:
    """Whether a column holds a number that became infinite."""
    floats = [table.column(field.name) for field in table.schema if pa.types.is_floating(field.type)]
    return any(pc.any(pc.is_inf(column)).as_py() for column in floats)


def unreadable(lines: Sequence[bytes]) -> dict[int, UnreadableRow]:
    """Find the lines that cannot be read, by their places.

    Raises:
        NoObject: a line is no JSON object at all.
    """
    found = {}
    for place, line in enumerate(lines):
        try:
            why = _why(line)
        except ValueError:
            raise NoObject(place) from None
        if why is not None:
            found[place] = UnreadableRow(line.decode("utf-8", "replace"), *why)
    return found


def _why(line: bytes) -> tuple[str, str] | None:
    """The field and the reason of a line that cannot be read; None if it can.

    Raises:
        ValueError: it is no JSON object.
    """
    if is_deep(line):
        return "", TOO_DEEP
    twice: list[str] = []

    def pairs(given: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(given)
        if len(made) < len(given):
            names = [name for name, _ in given]
            twice.append(next(name for name in names if names.count(name) > 1))
        return made

    row = json.loads(line, parse_int=float, parse_constant=_constant, object_pairs_hook=pairs)
    if not isinstance(row, dict):
        raise ValueError
    if twice:
        return _shown(twice[0]), TWICE
    for name, value in row.items():
        for reason, is_wrong in ((TOO_LARGE, _is_too_large), (NO_TEXT, _is_no_text)):
            if is_wrong(name) or _any(value, is_wrong):
                return _shown(name), reason
    return None


def is_deep(line: bytes) -> bool:
    """Whether a line nests too deep. Brackets in text do not count."""
    if line.count(b"{") + line.count(b"[") <= MOST_DEEP:
        return False
    codes = np.frombuffer(_TEXT.sub(b"", line), dtype=np.uint8) | 0x20
    depth = np.cumsum((codes == ord("{")).astype(np.int64) - (codes == ord("}")))
    return int(depth.max(initial=0)) > MOST_DEEP


def _constant(text: str) -> float:
    """NaN stands for a missing number. Infinity is no number."""
    return math.nan if text == "NaN" else math.inf


def _any(value: Any, is_wrong: Any) -> bool:
    if isinstance(value, dict):
        return any(is_wrong(name) or _any(inner, is_wrong) for name, inner in value.items())
    if isinstance(value, list):
        return any(_any(inner, is_wrong) for inner in value)
    return bool(is_wrong(value))


def _is_too_large(value: Any) -> bool:
    return isinstance(value, float) and math.isinf(value)


def _is_no_text(value: Any) -> bool:
    return isinstance(value, str) and _shown(value) != value


def _shown(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
