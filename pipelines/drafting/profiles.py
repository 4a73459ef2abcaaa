"""What the values of a column look like: their kind, how many are different, how far they reach."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np

from crenel.errors import Rejected
from crenel.pipelines.drafting import column_names
from crenel.policy import columns
from crenel.policy.columns import Floats, Ints

__all__ = ["FEW", "Kind", "Profile", "profile"]

#: Text with at most this many different values is a category, if the values repeat.
FEW = 100

#: The most values that a hierarchy is drafted of.
_MOST_LEAVES = 5_000

#: The values of a category occur at least this often, on average.
_REPEATS = 3

#: Numbers in this range are seconds since the epoch (1985 to 2099), if the column's name speaks of time.
_SECONDS = (5e8, 4.1e9)

#: The most digits or characters of a prefix (2**53 codes).
_LONGEST = {"digits": 15, "alphanumeric": 10}


class Kind(Enum):
    """What a column holds."""

    NUMBER = "numbers"
    MOMENT = "dates"
    CODE = "codes of one length"
    CATEGORY = "categories"
    TEXT = "text or labels"
    CONSTANT = "one value only"
    EMPTY = "no values"
    OTHER = "nested or mixed values"


@dataclass(frozen=True, eq=False, kw_only=True)
class Profile:
    """What is known about a column."""

    name: str
    kind: Kind
    rows: int
    missing: int

    #: How many different values there are. A missing value does not count.
    distinct: int

    #: For each row, the number of its value among the distinct ones.
    codes: Ints

    #: Numbers as they are, moments in microseconds; NaN where they are missing. Empty for other kinds.
    coordinates: Floats

    #: All values of a category, in order. Empty for other kinds, whose values may belong to one person.
    values: tuple[Any, ...] = ()

    #: How often each value of a category, or of text with not too many values, occurs. Values of text may belong to one
    #: person, so they are written only to a file of their own.
    counts: Mapping[str, int] = field(default_factory=dict, repr=False)

    #: The number of characters of a code, and its alphabet.
    length: int = 0
    alphabet: str = "digits"

    @property
    def present(self) -> Floats:
        """The coordinates that are not missing."""
        return self.coordinates[~np.isnan(self.coordinates)]

    @property
    def once(self) -> int:
        """How many values occur in one row only. For numbers and moments."""
        return int(np.count_nonzero(np.unique(self.present, return_counts=True)[1] == 1))

    @property
    def numbers_rows(self) -> bool:
        """Whether the column only numbers the rows: whole numbers without a gap, each once, in their order."""
        found = self.present
        if self.kind is not Kind.NUMBER or self.missing or self.distinct < self.rows or self.rows < 3:
            return False
        # Of a sample, several stretches may be there.
        return bool(np.all(found % 1 == 0) and np.mean(np.diff(found) == 1) > 0.99)

    @property
    def can_be_grouped(self) -> bool:
        """Whether a hierarchy of its values can be drafted: they are known, and repeat."""
        return bool(self.counts) and self.repeats >= _REPEATS

    @property
    def repeats(self) -> float:
        """In how many rows a value occurs, on average."""
        return (self.rows - self.missing) / max(self.distinct, 1)


def profile(name: str, column: Any) -> Profile:
    """Profile a column: an Arrow array, or anything that `columns.factorize` takes."""
    codes, distinct = columns.factorize(column)
    absent = np.array([columns.is_missing(value) for value in distinct], dtype=bool)
    values = [value for value in distinct if not columns.is_missing(value)]
    kind = _kind(name, values, len(codes))
    coordinates = _coordinates(kind, codes, distinct)
    if kind in (Kind.NUMBER, Kind.MOMENT) and np.isnan(coordinates).all():
        kind = Kind.OTHER  # all values are infinite, or too large
    known: dict[str, Any] = {}
    if kind is Kind.CODE:
        known["length"] = len(columns.text_of(values[0]))
        known["alphabet"] = _alphabet(values)
    elif kind is Kind.CATEGORY:
        known["values"] = tuple(sorted(set(values)))
    if kind in (Kind.CATEGORY, Kind.TEXT) and len(values) <= _MOST_LEAVES:
        known["counts"] = _counts(codes, distinct)
    return Profile(
        name=name,
        kind=kind,
        rows=len(codes),
        missing=int(absent[codes].sum()),
        distinct=len(values),
        codes=codes,
        coordinates=coordinates,
        **known,
    )


def _counts(codes: Ints, distinct: list[Any]) -> dict[str, int]:
    rows = np.bincount(codes, minlength=len(distinct)).tolist()
    return {columns.text_of(v): n for v, n in zip(distinct, rows, strict=True) if not columns.is_missing(v)}


def _kind(name: str, values: list[Any], rows: int) -> Kind:
    if len(values) < 2:
        return Kind.CONSTANT if values else Kind.EMPTY
    types = set(map(type, values))
    if types == {bool}:
        return Kind.CATEGORY
    if types <= {int, float, Decimal}:
        return _kind_of_numbers(name, values)
    if types <= {dt.datetime, dt.date}:
        return Kind.MOMENT
    return _kind_of_text(name, values, rows) if types == {str} else Kind.OTHER


def _kind_of_numbers(name: str, values: list[Any]) -> Kind:
    whole = all(isinstance(value, int) for value in values)
    if whole and column_names.place_code(name) and _alphabet(values) and min(values) > 99:
        return Kind.CODE
    if column_names.event_time(name) and min(values) > _SECONDS[0] and max(values) < _SECONDS[1]:
        return Kind.MOMENT
    if whole and (column_names.is_label(name) or len(values) == 2):
        return Kind.CATEGORY if len(values) <= FEW else Kind.TEXT
    return Kind.NUMBER


def _kind_of_text(name: str, values: list[str], rows: int) -> Kind:
    if all(map(_is_moment, values)):
        return Kind.MOMENT
    few = len(values) <= FEW and rows >= _REPEATS * len(values)
    alphabet = _alphabet(values)
    if alphabet and (column_names.place_code(name) or (alphabet == "digits" and not few)):
        return Kind.CODE
    return Kind.CATEGORY if few and column_names.direct_identifier(name) is None else Kind.TEXT


def _is_moment(value: str) -> bool:
    try:
        columns.moment(value)
    except Rejected:
        return False
    return True


def _alphabet(values: list[Any]) -> str:
    """Find the alphabet of codes that all have one length; empty if the values are not such codes."""
    texts = [columns.text_of(value) for value in values]
    if len(set(map(len, texts))) != 1 or not all(text.isascii() for text in texts):
        return ""
    if all(map(str.isdigit, texts)):
        alphabet = "digits"
    elif all(text.isalnum() for text in texts):
        alphabet = "alphanumeric"
    else:
        return ""
    return alphabet if len(texts[0]) <= _LONGEST[alphabet] else ""


def _coordinates(kind: Kind, codes: Ints, distinct: list[Any]) -> Floats:
    if kind is Kind.NUMBER:
        return _spread(codes, distinct, columns.number)
    if kind is Kind.MOMENT:
        return _spread(codes, distinct, columns.moment)
    return np.empty(0)


def _spread(codes: Ints, distinct: list[Any], function: Callable[[Any], float]) -> Floats:
    found: Floats = columns.spread(codes, distinct, function)[0]
    return found
