"""What the judge makes of rows: those that went in, and those that came out. It shares no code with the steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from simulation.history import START, Row
from simulation.judging.promises import Promise, expect

#: The columns of a published row.
_COLUMNS = {"age", "area", "illness", "n"}
_WIDEST = "0.0 100.0 ***"
_NUMBER = re.compile(r'"n": (\d+)')


def event_time(row: Row) -> int:
    """The event time of a row, in microseconds."""
    return round((START + row.at / 1000) * 1e6)


def box(row: Mapping[str, Any]) -> str:
    """The generalization of a published row."""
    return f"{row['age']['lo']} {row['age']['hi']} {row['area']}"


def is_widest(row: Mapping[str, Any]) -> bool:
    """Whether a published row is generalized to the whole domain."""
    return box(row) == _WIDEST


def contains(row: Mapping[str, Any], given: Row) -> bool:
    """Whether a generalization contains the row's own values."""
    area = f"{given.area:03d}"
    is_near = len(row["area"]) == len(area) and area.startswith(row["area"].rstrip("*"))
    return bool(row["age"]["lo"] <= given.age <= row["age"]["hi"]) and is_near


def is_exact(row: Mapping[str, Any], given: Row) -> bool:
    """Whether a suppressed row has the row's own values."""
    return contains(row, given) and row["age"]["lo"] == row["age"]["hi"] and "*" not in row["area"]


def check_published(row: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Check that a published row is true, and says no more than it may."""
    number, given = row["n"], rows[row["n"]]
    expect(Promise.SILENT, set(row) == _COLUMNS, f"row {number} is published with the columns {sorted(row)}")
    expect(Promise.TRUE, contains(row, given), f"row {number} lies outside its generalization")
    expect(Promise.TRUE, row["illness"] == f"illness {given.illness}", f"row {number} has another illness")


def rejected_number(record: Mapping[str, Any]) -> int | None:
    """The number of a rejected message; None if the message had none."""
    found = _NUMBER.search(record["row"])
    return int(found[1]) if found else None
