"""Judges what reaches the topics: each record once a checkpoint has it, and each row as one record only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from simulation.history import REFUSED, Row
from simulation.judging.promises import Promise, expect, expect_silent
from simulation.judging.seen_rows import box, check_published, rejected_number


class TopicJudge:
    """Judges the records of one history.

    Args:
        rows: The rows that go in.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        #: The names of the records that are in the outbox or were, with their numbers.
        self._kept: dict[bytes, int] = {}
        #: How many of them the last completed checkpoint has.
        self._durable = 0
        #: Whether the end of time has come: then nothing waits for checkpoints.
        self.is_over = False
        #: What was sent, by output and row number, or by name if the record is of no row: the name and the value.
        self._sent: dict[tuple[str, Any], tuple[bytes, bytes]] = {}
        #: How many records were sent again, identical.
        self.repeated = 0

    @property
    def kept(self) -> int:
        """How many records the outbox has or had."""
        return len(self._kept)

    @property
    def left(self) -> int:
        """How many messages were published, suppressed or rejected."""
        return len({about for output, about in self._sent if output in _OF_ROWS})

    def keep(self, names: Iterable[bytes]) -> None:
        """Note the records that the outbox has now."""
        for name in names:
            self._kept[name] = len(self._kept)

    def completed(self, kept: int) -> None:
        """Note that a checkpoint is complete that has so many records."""
        self._durable = kept

    def restore(self, kept: int) -> None:
        """Note that only so many records are left. What was sent was sent."""
        self._kept = {name: number for name, number in self._kept.items() if number < kept}

    def send(self, output: str, name: bytes, value: bytes) -> None:
        """Judge a record that reaches a topic."""
        is_durable = self.is_over or self._kept.get(name, self._durable) < self._durable
        what = f"a record of {output} is sent before a completed checkpoint has it"
        expect(Promise.ONE_GENERALIZATION, is_durable, what)
        record = json.loads(value)
        if output == "published":
            check_published(record, self._rows)
            expect_silent(value.decode(), f"published row {record['n']}")
        about = _number(output, record)
        place = (output, name if about is None else about)
        self.repeated += place in self._sent
        is_same = self._sent.setdefault(place, (name, value)) == (name, value)
        expect(Promise.ONE_GENERALIZATION, is_same, f"row {about} is sent to {output} as two different records")

    def finish(self, released: Mapping[int, str], refused: Set[int]) -> None:
        """Judge the whole: every message is in one topic, as it was released.

        Args:
            released: The generalization of each row that HOLD released; empty if it was suppressed.
            refused: The rows that HOLD refused.
        """
        for number, row in enumerate(self._rows):
            if row.fault in REFUSED:
                self._check_refused(number, row)
            elif not row.fault:
                self._check_row(number, released.get(number), number in refused)
        tombstones = sum(row.fault == "tombstone" for row in self._rows)
        nameless = sum(output == "rejected" and isinstance(about, bytes) for output, about in self._sent)
        what = f"{nameless} of {tombstones} messages without a value are rejected"
        expect(Promise.NOTHING_LOST, nameless == tombstones, what)
        records = [json.loads(value) for (output, _), (_, value) in self._sent.items() if output == "releases"]
        told = sum(record["rows"] for record in records)
        expect(Promise.NOTHING_LOST, told == len(released), f"{told} of {len(released)} rows are told to be released")

    def _check_row(self, number: int, released: str | None, refused: bool) -> None:
        published, suppressed, rejected = (self._sent.get((name, number)) for name in _OF_ROWS)
        expect(Promise.NOTHING_LOST, published or suppressed or rejected, f"row {number} is lost")
        expect(Promise.NOTHING_LOST, bool(rejected) == refused, f"row {number} is rejected, or else it should be")
        if refused:
            expect(Promise.CROWD, not published and not suppressed, f"row {number} is rejected, and has left, too")
            return
        sent = box(json.loads(published[1])) if published else ""
        expect(Promise.ONE_GENERALIZATION, sent == released, f"row {number} was released in another way than sent")

    def _check_refused(self, number: int, row: Row) -> None:
        published, suppressed, rejected = (self._sent.get((name, number)) for name in _OF_ROWS)
        expect(Promise.NOTHING_LOST, rejected or row.fault == "tombstone", f"message {number} is not rejected")
        expect(Promise.TRUE, not published and not suppressed, f"message {number} is no row, and is published")


#: The outputs that have a record for a row.
_OF_ROWS = ("published", "suppressed", "rejected")


def _number(output: str, record: Mapping[str, Any]) -> int | None:
    """The number of the row that a record is about."""
    if output == "releases":
        return None
    return rejected_number(record) if output == "rejected" else int(record["n"])
