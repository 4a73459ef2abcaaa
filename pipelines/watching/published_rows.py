"""Reads published rows of a topic as their readers see them, and finds what the policy cannot have published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crenel.audit import measures
from crenel.audit.boxes import legal
from crenel.errors import Rejected
from crenel.pipelines.auditing.published_values import Boxes, NotReadableError, Spans
from crenel.pipelines.auditing.range_columns import RangeColumns
from crenel.policy import Policy, columns
from crenel.transforms._pack.nested_fields import plain_name
from crenel.transforms._publish.range_ends import range_ends

__all__ = ["PublishedRows", "Reading"]

Floats = NDArray[np.float64]


@dataclass
class Reading:
    """What some rows are, in their order."""

    #: The generalization of each row, with its values of `within`; None if the policy cannot have published the row.
    keys: list[bytes | None]
    #: Whether a row is as wide as can be.
    stars: list[bool]
    #: The codes of its sensitive values.
    codes: list[tuple[int, ...]]
    #: The loss of each row, and the sum by quasi-identifier.
    losses: list[float]
    #: How many rows have a column that the policy does not publish.
    leaks: int = 0


class PublishedRows:
    """Reads rows.

    Args:
        policy: The policy that they were published under.
        plain: Whether names have no dots, as in Avro.
    """

    def __init__(self, policy: Policy, *, plain: bool = False) -> None:
        self._policy = policy
        self._ranges = RangeColumns(policy)
        self._spans = {name: Spans(qi) for name, qi in policy.quasi_identifiers.items()}
        names = [*policy.quasi_identifiers, *policy.sensitive, *policy.publish]
        ends = [end for name in policy.quasi_identifiers for end in range_ends(name)]
        self._names, self._known = frozenset(names), frozenset([*names, *ends])
        self._plain = {plain_name(name): name for name in self._known} if plain else {}
        #: Domains that the policy does not declare are those of the rows so far.
        self._widest = measures.widest(policy)

    def read(self, rows: Sequence[Mapping[str, Any]]) -> Reading:
        """Read rows."""
        if self._plain:
            rows = [{self._plain.get(name, name): value for name, value in row.items()} for row in rows]
        reading = Reading([], [], [], [], sum(not self._known.issuperset(row) for row in rows))
        start = 0
        while start < len(rows):  # rows of one form at a time
            stop = start + 1
            while stop < len(rows) and rows[stop].keys() == rows[start].keys():
                stop += 1
            self._read(rows[start:stop], reading)
            start = stop
        return reading

    def _read(self, rows: Sequence[Mapping[str, Any]], reading: Reading) -> None:
        """Read rows of one form; if that fails, by halves."""
        try:
            self._take(rows, reading)
        except (NotReadableError, Rejected, TypeError, ValueError, OverflowError, pa.ArrowException):
            if len(rows) == 1:
                reading.keys.append(None)
                reading.stars.append(False)
                reading.codes.append(())
                reading.losses.append(0.0)
                return
            middle = len(rows) // 2
            self._read(rows[:middle], reading)
            self._read(rows[middle:], reading)

    def _take(self, rows: Sequence[Mapping[str, Any]], reading: Reading) -> None:
        """Read rows of one form.

        Raises:
            ValueError: the policy cannot have published one of them; also other errors of values and types.
        """
        policy = self._policy
        there = [name for name in rows[0] if name in self._known]
        if not self._names.issubset(self._ranges.named(there)):
            raise NotReadableError
        batch = pa.RecordBatch.from_arrays([pa.array([row[name] for row in rows]) for name in there], names=there)
        ends = [self._ends(batch, name) for name in policy.quasi_identifiers]
        lo, hi = (np.column_stack(end) for end in zip(*ends, strict=True))
        if not legal(policy, lo, hi).all():
            raise NotReadableError
        codes = [self._codes(batch, name) for name in policy.sensitive]
        boxes = Boxes(lo.shape[1])
        box = boxes.numbers(lo, hi)
        low, high = boxes.all()
        lost = measures.losses(policy, low, high, self._domains(low, high), np.asarray(box, np.int64))
        wide = np.all((low == self._widest[:, 0]) & (high == self._widest[:, 1]), axis=1)
        found = [b"".join(pair) for pair in zip(map(bytes, low), map(bytes, high), strict=True)]
        within = zip(*([_text(row[name]) for row in rows] for name in policy.within), strict=True)
        apart = ["\0".join(values).encode() for values in within] if policy.within else [b""] * len(rows)
        reading.keys += [found[number] + value for number, value in zip(box.tolist(), apart, strict=True)]
        reading.stars += wide[box].tolist()
        reading.codes += list(zip(*codes, strict=True)) if codes else [()] * len(rows)
        reading.losses += [] if lost is None else lost.rows.tolist()

    def _ends(self, batch: pa.RecordBatch, name: str) -> tuple[Floats, Floats]:
        joined = self._ranges.find(batch, name)
        return self._spans[name].of(batch.column(name) if joined is None else joined)

    def _codes(self, batch: pa.RecordBatch, name: str) -> list[int]:
        codes, reasons = self._policy.sensitive[name].codes(batch.column(name))
        if reasons is not None:
            raise NotReadableError
        return list(codes.tolist())

    def _domains(self, lo: Floats, hi: Floats) -> Floats:
        return measures.domains(self._policy, lo, hi)


def _text(value: Any) -> str:
    return "" if columns.is_missing(value) else columns.text_of(value)
