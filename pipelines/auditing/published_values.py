"""Reads published values back: columns of generalized values become spans of coordinates, and rows become boxes.

A distinct value is parsed once, however many rows have it. A value that the policy would not publish exactly so is
refused: two ways to write a value could carry a secret.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crenel.errors import Rejected
from crenel.policy import columns
from crenel.policy.quasi_identifiers import Categorical, Datetime, Numeric, Prefix, QuasiIdentifier, Range

__all__ = ["Boxes", "NotReadableError", "Spans", "box"]

Floats = NDArray[np.float64]

_RANGE = re.compile(r"\[([^,\[\]]+), ([^,\[\]]+)\]")
_ENDS = ["lo", "hi"]


class NotReadableError(ValueError):
    """The policy cannot have published a value. The error never holds the value."""


def box(qi: QuasiIdentifier, value: Any) -> tuple[float, float]:
    """Find the span that a published value stands for, however a format writes it; NaN if the value is missing.

    Raises:
        NotReadableError: the policy cannot have published this value.
        TypeError: the type of the quasi-identifier cannot read what it publishes.
    """
    if value is None:
        nothing = math.nan if qi.missing_at is None else qi.missing_at
        return nothing, nothing
    read = _READERS.get(type(qi), _by_type)
    try:
        lo, hi = read(qi, value)
    except NotImplementedError:
        message = f"published values of type {type(qi).__name__} cannot be read back: the class must define read()."
        raise TypeError(message) from None
    except (Rejected, KeyError, TypeError, ValueError, AttributeError):
        raise NotReadableError from None
    if not lo <= hi:
        raise NotReadableError
    return lo, hi


def _ends(value: Any) -> tuple[Any, Any]:
    """Find the two ends of a range (a record, its JSON, or CSV's text); None for an end that is open."""
    if isinstance(value, str):
        if value == "*":
            return None, None
        if not value.startswith("{"):
            found = _RANGE.fullmatch(value)
            if found is None:
                raise NotReadableError
            return found[1], None if found[2] == "*" else found[2]
        value = json.loads(value)
    if sorted(value) != sorted(_ENDS):
        raise NotReadableError
    return value["lo"], value["hi"]


def _numeric(qi: Any, value: Any) -> tuple[float, float]:
    lo, hi = _ends(value)
    return _coordinates(qi, -math.inf if lo is None else _number(lo), math.inf if hi is None else _number(hi))


def _coordinates(qi: Any, begin: float, end: float) -> tuple[float, float]:
    """Turn the ends of a range into coordinates."""
    lo, hi = _between(qi, np.array([begin]), np.array([end]))
    return float(lo[0]), float(hi[0])


def _between(qi: Any, begin: Floats, end: Floats) -> tuple[Floats, Floats]:
    """Turn the ends of ranges into coordinates.

    Where missing values are a category, a range without an upper end reaches to them, and no range is one of them.
    """
    if qi.missing_at is None:
        return (begin, end) if qi.cells is None else qi.cells.between(begin, end)
    if np.any(np.isinf(begin)):
        raise NotReadableError
    to_missing, alone = np.isposinf(end), np.isnan(begin)
    end = np.where(to_missing, qi.values.hi if qi.cells is None else qi.cells.domain[1], end)
    lo, hi = (begin, end) if qi.cells is None else qi.cells.between(begin, end)
    return np.where(alone, qi.missing_at, lo), np.where(to_missing | alone, qi.missing_at, hi)


def _number(value: Any) -> float:
    if not isinstance(value, str):
        return columns.number(value)
    number = float(value)
    # Only one way to write a number is allowed: a second one could tell apart rows that must look the same.
    if not math.isfinite(number) or pa.scalar(number).cast(pa.string()).as_py() != value:
        raise NotReadableError
    return number


def _datetime(qi: Any, value: Any) -> tuple[float, float]:
    ends = _ends(value)
    begin = -math.inf if ends[0] is None else columns.moment(ends[0])
    lo, hi = _coordinates(qi, begin, math.inf if ends[1] is None else columns.moment(ends[1]))
    if any(isinstance(end, str) for end in ends) and qi.publish(lo, hi) != ends:
        raise NotReadableError
    return lo, hi


def _prefix(qi: Any, value: Any) -> tuple[float, float]:
    text = columns.text_of(value)
    first, last = qi.characters[0], qi.characters[-1]
    lo, hi = qi.coordinate(text.replace("*", first)), qi.coordinate(text.replace("*", last))
    if set(text) == {"*"}:  # missing values, too, if they are a category
        lo, hi = qi.geometry.widest()
    return _as_published(qi, text, *qi.geometry.span(lo, hi))


def _categorical(qi: Any, value: Any) -> tuple[float, float]:
    tree, text = qi.geometry, columns.text_of(value)
    node = qi.hierarchy.labels.index(text)
    return _as_published(qi, text, float(tree.first[node]), float(tree.last[node]))


def _as_published(qi: Any, text: str, lo: float, hi: float) -> tuple[float, float]:
    if qi.publish(lo, hi) != text:
        raise NotReadableError
    return lo, hi


def _by_type(qi: Any, value: Any) -> tuple[float, float]:
    """Let the type read what it has published, and publish it again: it must be the same."""
    made = json.loads(value) if isinstance(value, str) and value[:1] in ("[", "{") else value
    for said in (value, made):
        try:
            lo, hi = qi.read(said)
        except (Rejected, KeyError, TypeError, ValueError, AttributeError, IndexError):
            continue
        if _plain(qi.publish(lo, hi)) == _plain(said):
            return lo, hi
    raise NotReadableError


def _plain(value: Any) -> Any:
    """Write a value as JSON has it: tuples are lists, and ranges are records."""
    if isinstance(value, Range):
        return {"lo": value.lo, "hi": value.hi}
    return list(value) if isinstance(value, tuple) else value


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


# Exactly these types: a subclass may publish something else.
_READERS: dict[type, Callable[[Any, Any], tuple[float, float]]] = {
    Numeric: _numeric,
    Datetime: _datetime,
    Prefix: _prefix,
    Categorical: _categorical,
}


class Spans:
    """Reads the published column of one quasi-identifier, and caches what it has parsed."""

    def __init__(self, qi: QuasiIdentifier) -> None:
        self._qi = qi
        self._known: dict[Any, tuple[float, float]] = {}

    def of(self, column: pa.Array) -> tuple[Floats, Floats]:
        """Find the ends of the spans.

        Raises:
            NotReadableError: the policy cannot have published one of the values.
        """
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_struct(column.type) and type(self._qi) in _READERS:
            return self._of_struct(column)
        codes, distinct = columns.factorize(column)
        spans = np.array([self._span(value) for value in distinct], dtype=np.float64).reshape(-1, 2)
        return spans[codes, 0], spans[codes, 1]

    def _of_struct(self, column: pa.Array) -> tuple[Floats, Floats]:
        qi = self._qi
        if sorted(field.name for field in column.type) != sorted(_ENDS) or type(qi) not in (Numeric, Datetime):
            raise NotReadableError
        lo, hi = (self._end(column.field(name), open_end) for name, open_end in (("lo", -math.inf), ("hi", math.inf)))
        if column.null_count:
            missing = column.is_null().to_numpy(zero_copy_only=False)
            lo, hi = np.where(missing, np.nan, lo), np.where(missing, np.nan, hi)
        if np.any(lo > hi):
            raise NotReadableError
        try:
            return _between(qi, lo, hi)
        except ValueError:
            raise NotReadableError from None

    def _end(self, ends: pa.Array, open_end: float) -> Floats:
        if pa.types.is_null(ends.type):
            return np.full(len(ends), open_end)
        read = columns.numbers if type(self._qi) is Numeric else columns.moments
        found, reasons = read(ends)
        null = ends.is_null().to_numpy(zero_copy_only=False)
        if reasons is not None and np.any((reasons != None) & ~null):  # noqa: E711 - elementwise
            raise NotReadableError
        if type(self._qi) is Datetime and _is_text(ends.type):
            self._check_texts(ends)
        return np.where(null, open_end, found)

    @staticmethod
    def _check_texts(ends: pa.Array) -> None:
        """Refuse a moment that is not written as moments are published."""
        for text in ends.unique().drop_null().to_pylist():
            micros = columns.moment(text)
            published = Datetime().publish(micros, micros)
            if published is None or published.lo != text:
                raise NotReadableError

    def _span(self, value: Any) -> tuple[float, float]:
        key = value if isinstance(value, (str, int, float, type(None))) else json.dumps(value, default=str)
        if key not in self._known:
            self._known[key] = box(self._qi, value)
        return self._known[key]


class Boxes:
    """Numbers boxes in the order of their first appearance. Boxes equal in all quasi-identifiers share a number."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self._numbers: dict[bytes, int] = {}

    def numbers(self, lo: Floats, hi: Floats) -> NDArray[np.int32]:
        """Find the number of each row's box."""
        both = np.hstack([lo, hi]) + 0.0
        both[np.isnan(both)] = np.nan  # NaN has many bit patterns; here it gets one
        # Rows of a release are neighbours, so a box is looked up only where it changes.
        keys = both.view(np.uint64)
        starts = np.append(True, np.any(keys[1:] != keys[:-1], axis=1))[: len(keys)]
        known = self._numbers
        size = 2 * self._dimensions * 8
        data = np.ascontiguousarray(both[starts]).tobytes()
        found = [known.setdefault(data[at : at + size], len(known)) for at in range(0, len(data), size)]
        return np.array(found, dtype=np.int32)[np.cumsum(starts) - 1] if found else np.zeros(0, dtype=np.int32)

    def all(self) -> tuple[Floats, Floats]:
        """Return the boxes, in the order of their numbers."""
        flat = np.frombuffer(b"".join(self._numbers), dtype=np.float64)
        both = flat.reshape(len(self._numbers), 2 * self._dimensions)
        return both[:, : self._dimensions].copy(), both[:, self._dimensions :].copy()
