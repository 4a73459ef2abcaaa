"""ENCODE and WRITE: rows to topics, and on this machine to files of JSON lines.

The record of a row in a topic has a random name, drawn before anything is sent: its key, and the
header `crenel-row`. A reader of the topic recognizes by it a record that was sent twice. It tells
nothing else, not even which rows were released together. It also chooses the partition.

A row that does not fit the schema of its topic is rejected. A record that a topic does not take goes
to a file of dead letters.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import IO, Any

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput

from crenel.pipelines.files.scratch import Scratch
from crenel.pipelines.kafka import dead_letters
from crenel.pipelines.kafka.dead_letters import DEAD, DeadLetters
from crenel.pipelines.kafka.messages.owner_text import shortened
from crenel.pipelines.kafka.messages.values import JsonValues, Unfit, values
from crenel.pipelines.kafka.sender import HEADER, Record, Sender
from crenel.pipelines.kafka.topics import Topic
from crenel.transforms._pack.pack_step import Rejections, as_text
from crenel.transforms._publish.emitter import NAMESPACE, PUBLISHED, REJECTED, RELEASES, SUPPRESSED

__all__ = ["HEADER", "EncodeRows", "Record", "WriteRecords"]

#: Bytes of a name, and names that are drawn at once.
_NAME, _AT_ONCE = 16, 1024
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class EncodeRows(beam.DoFn):
    """Makes records of rows. A row that is encoded again after a failure becomes another record.

    A published or suppressed row that does not fit the schema of its topic goes to the output `rejected`. Any other
    record that does not fit becomes a dead letter.

    Args:
        output: The name of the output.
        place: The topic, or the file of JSON lines.
    """

    def __init__(self, output: str, place: Topic | Path) -> None:
        self._output = output
        self._place = place

    def setup(self) -> None:
        """Create what cannot be pickled."""
        self._names = _names() if isinstance(self._place, Topic) else None
        self._write = (values(self._place) if isinstance(self._place, Topic) else JsonValues()).write
        self._rejections = Rejections(dict)

    def process(self, row: Mapping[str, Any]) -> list[Record | TaggedOutput]:
        """Encode a row."""
        if self._output == RELEASES:
            row = {**row, "moment": _as_datetime(row["moment"])}
        elif self._output == REJECTED:
            row = {**row, "row": shortened(row["row"])}
        try:
            value = self._write(row)
        except Unfit as why:
            return [self._unfit(row, why)]
        if self._names is None:
            return [(self._output, b"", value + b"\n")]
        return [(self._output, next(self._names), value)]

    def _unfit(self, row: Mapping[str, Any], why: Unfit) -> Record | TaggedOutput:
        if self._output in (PUBLISHED, SUPPRESSED):
            return TaggedOutput(REJECTED, self._rejections.record(row, why.field, why.reason, 1))
        reason = f"{why.field}: {why.reason}"
        return DEAD, b"", dead_letters.line(self._output, self._place, b"", reason, as_text(row).encode())


def _names() -> Iterator[bytes]:
    """Random names. They are drawn many at a time: each call of the system costs a microsecond."""
    while True:
        drawn = secrets.token_bytes(_NAME * _AT_ONCE)
        yield from (drawn[start : start + _NAME] for start in range(0, len(drawn), _NAME))


def _as_datetime(moment: Any) -> datetime | None:
    """Beam's timestamp as a date and time; None if there is none, or it is beyond the year 9999."""
    try:
        return None if moment is None else _EPOCH + timedelta(microseconds=moment.micros)
    except OverflowError:
        return None


class WriteRecords(beam.DoFn):
    """Writes records, those of a bundle in random order. A bundle ends when all its records have arrived.

    In the order in which they were encoded, the rows of a release and of a shard would lie together.

    Args:
        outputs: The topics and files, by output.
        dead: The folder for records that a topic does not take; None for the user's own.
        scratch: Where a run on this machine notes how many there were.
    """

    def __init__(
        self, outputs: Mapping[str, Topic | Path], dead: str | None = None, scratch: Scratch | None = None
    ) -> None:
        self._outputs = dict(outputs)
        self._folder = dead
        self._scratch = scratch

    def setup(self) -> None:
        """Create what cannot be pickled."""
        self._sent = Metrics.counter(NAMESPACE, "sent")
        self._died = Metrics.counter(NAMESPACE, "dead letters")
        self._dead = DeadLetters(self._folder)
        self._lost = 0
        topics = {name: place for name, place in self._outputs.items() if isinstance(place, Topic)}
        self._sender = Sender(topics)
        self._files: dict[str, IO[bytes]] = {
            name: _opened(place, private=name != PUBLISHED)
            for name, place in self._outputs.items()
            if isinstance(place, Path)
        }

    def start_bundle(self) -> None:
        """Begin without records: those of a failed bundle are not this one's."""
        self._records: list[Record] = []
        self._sender.begin()

    def process(self, record: Record) -> None:
        """Keep a record until the bundle ends."""
        self._records.append(record)

    def finish_bundle(self) -> None:
        """Write the records, and wait until they have arrived."""
        records = self._records
        if not records:
            return
        dead = [value for output, _, value in records if output == DEAD]
        for place in _random_order(len(records)):
            record = records[place]
            if record[0] in self._files:
                self._files[record[0]].write(record[2])
            elif record[0] != DEAD:
                self._sender.send(record)
        dead += self._sender.flush()
        for file in self._files.values():
            file.flush()
        self._bury(dead)
        self._sent.inc(len(records) - len(dead))

    def _bury(self, dead: list[bytes]) -> None:
        """Keep dead letters, and say so."""
        self._dead.write(dead)
        self._died.inc(len(dead))
        self._lost += len(dead)
        if dead and self._scratch is not None:
            self._scratch.note(DEAD, 0, {"records": self._lost, "file": str(self._dead.path)})

    def teardown(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


def _random_order(count: int) -> list[int]:
    """The numbers below `count`, shuffled by the system's generator."""
    drawn = np.frombuffer(secrets.token_bytes(8 * count), dtype=np.uint64)
    return np.argsort(drawn, kind="stable").tolist()  # type: ignore[no-any-return]


def _opened(path: Path, *, private: bool) -> IO[bytes]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o666)
    if private:  # exact values: for the owner alone
        os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "wb")
