"""Text in columns of numbers and moments, parsed as the policy means it.

Each value is judged by itself: it leads to the same coordinates whatever the format of a file is, and whatever rows are
beside it in a batch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from crenel.encoding.text_format import TextFormat
from crenel.errors import Rejected
from crenel.policy import Policy, columns
from crenel.policy.checks import suggestion
from crenel.policy.quasi_identifiers import Datetime, Numeric
from crenel.policy.treatments.treatment import Bin, Round, Truncate

__all__ = ["TextColumns", "lacking", "moments", "named_columns", "numbers"]

#: Numbers with a decimal point, dates with the year first.
USUAL = TextFormat()

#: What people call columns; values often look different.
_NAME = r"[^\W\d][\w.\-]{0,79}"

#: How much alike each part of a suggested path must be. Two fields of one object share most of their paths.
_CLOSE = 0.7

_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
_NUMBER = r"^[+-]?(([1-9][0-9]*|0)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_MOMENT = r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?$"
_ZONED_MOMENT = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)$"


class TextColumns:
    """Parses text in the columns that a policy declares as numbers or moments.

    Args:
        policy: Declares the columns.
        written: How numbers and dates are written.
    """

    def __init__(self, policy: Policy, written: TextFormat = USUAL) -> None:
        self._written = written
        qis = policy.quasi_identifiers
        self._numbers = {name for name, qi in qis.items() if isinstance(qi, Numeric)}
        self._numbers |= {one for name, qi in qis.items() for one in qi.inputs(name) if one != name}
        self._numbers |= {name for name, column in policy.sensitive.items() if column.domain is not None}
        self._numbers |= {name for name, one in policy.treat.items() if isinstance(one, (Round, Bin))}
        self._moments = {name for name, qi in qis.items() if isinstance(qi, Datetime)} | cut_moments(policy)
        if policy.event_time is not None and policy.event_time not in qis:
            self._moments.add(policy.event_time)

    def array(self, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Array:
        """Parse a column of Arrow; one that holds no text stays as it is, but for dictionaries."""
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            return column
        if name in self._numbers:
            return numbers(column, self._written)
        return moments(column, self._written) if name in self._moments else column

    def arrays(self, batch: pa.RecordBatch | pa.Table, names: Sequence[str]) -> dict[str, pa.Array]:
        """Parse columns of a batch. One that the batch lacks is missing in all of its rows: files may differ."""
        there = set(batch.schema.names)
        return {
            name: self.array(name, batch.column(name)) if name in there else pa.nulls(batch.num_rows) for name in names
        }

    def values(self, name: str, column: Sequence[Any]) -> Sequence[Any]:
        """Parse the texts among Python objects."""
        if name in self._numbers:
            parse, write = _value, self._written.number
        elif name in self._moments:
            parse, write = _moment, self._written.moment
        else:
            return column
        if str not in set(map(type, column)):
            return column
        return [parse(write(value)) if type(value) is str else value for value in column]


def cut_moments(policy: Policy) -> set[str]:
    """Name the columns whose moments are cut to a duration."""
    return {name for name, one in policy.treat.items() if isinstance(one, Truncate) and one.to is not None}


def named_columns(policy: Policy) -> list[str]:
    """List the columns of the input that a policy names."""
    person = None if policy.each_row else policy.person
    roles = [person, policy.event_time, *policy.measured, *policy.sensitive, *policy.publish]
    by = policy.shard_by if isinstance(policy.shard_by, tuple) else ()
    return [name for name in dict.fromkeys([*roles, *by, *policy.within]) if name is not None]


def lacking(policy: Policy, there: Sequence[Any]) -> Iterator[str]:
    """Complain about columns that a policy names and that are not there: the rest of a sentence about each.

    The names that are there may be values: keys of objects, or a line of data instead of a header. So a sentence holds
    none of them, except one that is surely a misspelled name.

    Args:
        policy: Names the columns.
        there: The names of the columns that are there; in pandas, some may be no text.
    """
    needed, texts = named_columns(policy), [name for name in there if isinstance(name, str)]
    missing = [name for name in needed if name not in texts]
    is_header = 2 * len(missing) <= len(needed)
    others = [name for name in texts if name not in needed]
    for name in missing:
        yield _object_sentence(name, needed, texts) or _missing_sentence(name, others, is_header=is_header)
    if not is_header and any(map(_looks_like_a_value, texts)):
        yield "may have a row of data in its first line, instead of a header."


def _object_sentence(name: str, needed: Sequence[str], there: Sequence[str]) -> str:
    """Complain about an object that is named as a whole, or that is none; empty text if the column is just missing."""
    if _has_fields(name, there):
        example = next((other for other in needed if other.startswith(f"{name}.")), f"{name}.FIELD")
        return f"has an object in {name!r}: the policy must name its fields, as in {example!r}."
    around = next((other for other in there if name.startswith(f"{other}.")), None)
    if around is None or _has_fields(around, there):
        return ""
    return f"has no objects in {around!r}, so there is no column {name!r}; a path cannot go through lists."


def _has_fields(name: str, there: Sequence[str]) -> bool:
    return any(other.startswith(f"{name}.") for other in there)


def _missing_sentence(name: str, others: Sequence[str], *, is_header: bool) -> str:
    # A name that differs in letter case and spaces alone says no more than the policy.
    same = [other for other in others if other.strip().casefold() == name.casefold()]
    close = [other for other in others if is_header and _looks_like_a_name(other) and _is_close(name, other)]
    guess = suggestion(name, same or close)
    # Not `capitalize`, which would write the suggested name in small letters.
    return f"has no column {name!r}, which the policy names. {guess[:1].upper()}{guess[1:]}".strip()


def _looks_like_a_name(text: str) -> bool:
    return re.fullmatch(_NAME, text) is not None


def _looks_like_a_value(text: str) -> bool:
    """Whether a text begins with a digit or a sign; a name may have spaces, and may be empty."""
    return re.match(r"[\W\d]", text) is not None


def _is_close(name: str, other: str) -> bool:
    parts, others = name.casefold().split("."), other.casefold().split(".")
    pairs = zip(parts, others, strict=False)
    return len(parts) == len(others) and all(SequenceMatcher(None, *pair).ratio() >= _CLOSE for pair in pairs)


def _value(text: str) -> float | int | None:
    return int(text) if re.match(_INTEGER, text, re.ASCII) else _number(text)


def _moment(text: str) -> Any:
    """Parse a moment, None if it is missing; text that is none stays, for the encoder to reject."""
    if text in columns.MISSING_TEXTS:
        return None
    micros = _micros(text)
    return text if micros is None else np.datetime64(micros, "us")


def _all(column: pa.Array, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(column, pattern), min_count=0).as_py() is not False


def _rewritten(column: pa.Array, write: Callable[[str], str]) -> pa.Array:
    distinct = column.dictionary_encode()
    texts = [None if text is None else write(text) for text in distinct.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(distinct.indices)


def numbers(column: pa.Array, written: TextFormat = USUAL) -> pa.Array:
    """Parse numbers: null where one is missing, infinite where the text is none. NaN would count as missing."""
    if written.decimal != ".":
        column = _rewritten(column, written.number)
    if _all(column, _INTEGER):
        return column.cast(pa.int64())
    if _all(column, _NUMBER):
        try:
            return column.cast(pa.float64())
        except pa.ArrowInvalid:  # +1
            pass
    distinct = column.dictionary_encode()
    values = pa.array([_number(text) for text in distinct.dictionary.to_pylist()], pa.float64())
    return values.take(distinct.indices)


def _number(text: str) -> float | None:
    if not text or text in columns.MISSING_TEXTS:
        return None
    return float(text) if re.fullmatch(_NUMBER, text, re.ASCII) else math.inf


def moments(column: pa.Array, written: TextFormat = USUAL) -> pa.Array:
    """Parse moments (ISO-8601, or seconds since the epoch): null where one is missing.

    Text that is none stays, for the encoder to reject.
    """
    column = _without_missing(column)
    if written.date_format is not None or pc.any(pc.match_substring(column, "/")).as_py():
        column = _rewritten(column, written.moment)
    for pattern, zone in ((_MOMENT, None), (_ZONED_MOMENT, "UTC")):
        if _all(column, pattern):
            try:
                return column.cast(pa.timestamp("us", zone)).cast(pa.timestamp("us"))
            except pa.ArrowInvalid:  # 30 February
                break
    if _all(column, _NUMBER):
        return numbers(column)
    distinct = column.dictionary_encode()
    micros = [_micros(text) for text in distinct.dictionary.to_pylist()]
    if None in micros:
        texts = [t if m is None else _iso(m) for t, m in zip(distinct.dictionary.to_pylist(), micros, strict=True)]
        return pa.array(texts, pa.string()).take(distinct.indices)
    return pa.array(micros, pa.timestamp("us")).take(distinct.indices)


def _without_missing(column: pa.Array) -> pa.Array:
    """Write null where the text stands for a missing value."""
    missing = pc.is_in(column, value_set=pa.array(sorted(columns.MISSING_TEXTS), column.type))
    return pc.if_else(missing, pa.scalar(None, column.type), column) if pc.any(missing).as_py() else column


def _micros(text: str) -> int | None:
    value: Any = float(text) if re.fullmatch(_NUMBER, text, re.ASCII) else text
    try:
        return int(columns.moment(value))
    except Rejected:
        return None


def _iso(micros: int) -> str:
    return str(np.datetime64(micros, "us"))
