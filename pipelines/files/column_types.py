"""What a file's columns are to a policy: text that is a number or a moment is read as one.

The same value leads to the same coordinates whatever the format, and whatever rows are beside it
in a batch: each value is judged by itself.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from crenel.errors import Rejected
from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.files import formats as tables
from crenel.policy import Policy, columns
from crenel.policy.quasi_identifiers import Datetime, Numeric

__all__ = ["ROW", "ROWS_PER_FILE", "Typing", "in_order"]

#: The column of the rows' places in the files: it gives them their order where the policy names no event time.
ROW = "crenel: row"

#: Rows that a file has room for in the order; 2**20 files of these fill what float64 tells apart.
ROWS_PER_FILE = 1 << 33

_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
_NUMBER = r"^[+-]?(([1-9][0-9]*|0)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_MOMENT = r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?$"


def in_order(policy: Policy) -> Policy:
    """The policy for files: without an event time, rows are in the order of the files.

    Raises:
        CommandError: the policy has a delay, and nothing that it could be counted by.
    """
    if policy.event_time is not None:
        return policy
    if policy.delay is not None:
        msg = (
            "policy.event_time must name a column, since policy.delay is event time and the rows of a file have no "
            "other. Without one, use policy.delay_rows alone."
        )
        raise CommandError(msg)
    names = [name for name in policy.__dataclass_fields__ if name != "event_time"]
    return Policy(event_time=ROW, **{name: getattr(policy, name) for name in names})


class Typing:
    """Reads the columns of raw batches as a policy means them.

    Args:
        policy: What they are.
        numbered: Whether rows are to know their places in the files in any case.
    """

    def __init__(self, policy: Policy, *, numbered: bool = False) -> None:
        qis = policy.quasi_identifiers
        self._numbers = {name for name, qi in qis.items() if isinstance(qi, Numeric)}
        self._numbers |= {name for name, column in policy.sensitive.items() if column.domain is not None}
        self._moments = {name for name, qi in qis.items() if isinstance(qi, Datetime)}
        if policy.event_time is not None and policy.event_time not in qis:
            self._moments.add(policy.event_time)
        self._by_row = numbered or policy.event_time == ROW
        kept = [policy.person, policy.event_time, *qis, *policy.sensitive, *policy.publish]
        by = policy.shard_by if isinstance(policy.shard_by, tuple) else ()
        #: The columns a row is read by.
        self.needed = [name for name in dict.fromkeys([*kept, *by]) if name is not None and name != ROW]

    def of(self, raw: pa.RecordBatch, file: int, first: int) -> pa.RecordBatch:
        """The batch as the policy means it.

        Args:
            raw: As the file has it; a column that it lacks is missing in all of its rows.
            file: The file's place among the inputs.
            first: The number of the batch's first row in its file.
        """
        there = set(raw.schema.names)
        arrays: dict[str, pa.Array] = {
            name: self.column(name, raw.column(name)) if name in there else pa.nulls(raw.num_rows)
            for name in self.needed
        }
        if self._by_row:
            start = file * ROWS_PER_FILE + first
            numbers = np.arange(start, start + raw.num_rows, dtype=np.int64)
            arrays[ROW] = pa.array(numbers).cast(pa.timestamp("us"))
        return pa.RecordBatch.from_pydict(arrays)

    def column(self, name: str, column: pa.Array) -> pa.Array:
        """One column as the policy means it."""
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            return column
        if name in self._numbers:
            return _numbers(column)
        return _moments(column) if name in self._moments else column


def _all(column: pa.Array, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(column, pattern), min_count=0).as_py() is not False


def _numbers(column: pa.Array) -> pa.Array:
    """Text as numbers: null where it is missing, infinite where it is none. NaN would be missing too."""
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
    if not text or text in tables._MISSING_NUMBERS:
        return None
    return float(text) if re.fullmatch(_NUMBER, text, re.ASCII) else math.inf


def _moments(column: pa.Array) -> pa.Array:
    """Text as moments (ISO-8601, or seconds since the epoch); text where it is none, for the encoder to say so."""
    if _all(column, _MOMENT):
        try:
            return column.cast(pa.timestamp("us"))
        except pa.ArrowInvalid:  # 30 February
            pass
    elif _all(column, _NUMBER):
        return _numbers(column)
    distinct = column.dictionary_encode()
    micros = [_micros(text) for text in distinct.dictionary.to_pylist()]
    if None in micros:
        texts = [t if m is None else _iso(m) for t, m in zip(distinct.dictionary.to_pylist(), micros, strict=True)]
        return pa.array(texts, pa.string()).take(distinct.indices)
    return pa.array(micros, pa.timestamp("us")).take(distinct.indices)


def _micros(text: str) -> int | None:
    value: Any = float(text) if re.fullmatch(_NUMBER, text, re.ASCII) else text
    try:
        return int(columns.moment(value))
    except Rejected:
        return None


def _iso(micros: int) -> str:
    return str(np.datetime64(micros, "us"))
