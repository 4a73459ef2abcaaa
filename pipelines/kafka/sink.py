"""ENCODE and WRITE: rows to topics, and on this machine to files of JSON lines.

The record of a row in a topic has a random name, drawn before anything is sent: its key. A reader of
the topic recognizes by it a record that was sent twice. It tells nothing else, not even which rows
were released together. It also chooses the partition.

A row that does not fit the schema of its topic is rejected. A record that a topic does not take goes
to a file of dead letters.
"""

from __future__ import annotations

import os
import secrets
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import IO, Any, cast

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput

from crenel.pipelines.files.scratch import Scratch
from crenel.pipelines.kafka import dead_letters
from crenel.pipelines.kafka.dead_letters import DEAD, DeadLetters
from crenel.pipelines.kafka.messages.owner_text import shortened
from crenel.pipelines.kafka.messages.value_formats import writing
from crenel.pipelines.kafka.messages.values import JsonValues, Unfit
from crenel.pipelines.kafka.sender import Record, Sender
from crenel.pipelines.kafka.topics import Topic
from crenel.pipelines.metrics.live_figures import Tap
from crenel.transforms._pack.pack_step import Rejections, as_text
from crenel.transforms._pack.row_batch import RowBatch
from crenel.transforms._publish.emitter import NAMESPACE, PUBLISHED, REJECTED, RELEASES, SUPPRESSED
from crenel.transforms._publish.grouped_rows import GroupedRows
from crenel.transforms._publish.random_order import shuffled
from crenel.transforms._publish.range_form import RangeForm

__all__ = ["EncodeRows", "Record", "WriteRecords"]

#: Bytes of a name.
_NAME = 16
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class EncodeRows(beam.DoFn):
    """Makes lists of records of rows. A row that is encoded again after a failure becomes another record.

    A published or suppressed row that does not fit the schema of its topic goes to the output `rejected`. Any other
    record that does not fit becomes a dead letter.

    Args:
        output: The name of the output.
        place: The topic, or the file of JSON lines.
        form: The form of ranges; None if they stay structs.
    """

    def __init__(self, output: str, place: Topic | Path, form: RangeForm | None = None) -> None:
        self._output = output
        self._place = place
        self._form = form

    def setup(self) -> None:
        """Create what cannot be pickled."""
        self._values = writing(self._place) if isinstance(self._place, Topic) else JsonValues()
        self._rejections = Rejections(dict)

    def process(self, element: RowBatch | Mapping[str, Any]) -> Iterator[list[Record] | TaggedOutput]:
        """Encode a row, or the rows of a batch."""
        rows = self._as_written(element.rows if isinstance(element, RowBatch) else [element])
        made: Sequence[bytes | Unfit] = self._values.write_many(rows)
        unfit = []
        if Unfit in set(map(type, made)):
            unfit = [(row, why) for row, why in zip(rows, made, strict=True) if isinstance(why, Unfit)]
            made = [value for value in made if not isinstance(value, Unfit)]
        records = self._records(cast("Sequence[bytes]", made))
        for row, why in unfit:
            if self._output in (PUBLISHED, SUPPRESSED):
                yield TaggedOutput(REJECTED, self._rejections.record(row, why.field, why.reason, 1))
            else:
                records.append(self._dead(row, why))
        if records:
            yield records

    def _as_written(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        if self._output == RELEASES:
            return [{**row, "moment": _as_datetime(row["moment"])} for row in rows]
        if self._output == REJECTED:
            return [{**row, "row": shortened(row["row"])} for row in rows]
        if self._form is None:
            return rows
        if isinstance(rows, GroupedRows):
            return rows.with_boxes([self._form.row(box) for box in rows.boxes])
        return [self._form.row(row) for row in rows]

    def _records(self, made: Sequence[bytes]) -> list[Record]:
        output = self._output
        if not isinstance(self._place, Topic):
            return [(output, b"", value + b"\n") for value in made]
        # All names are drawn at once: each call of the system costs a microsecond.
        drawn = secrets.token_bytes(_NAME * len(made))
        return [(output, drawn[_NAME * i : _NAME * (i + 1)], value) for i, value in enumerate(made)]

    def _dead(self, row: Mapping[str, Any], why: Unfit) -> Record:
        reason = f"{why.field}: {why.reason}"
        return DEAD, b"", dead_letters.line(self._output, self._place, b"", reason, as_text(row).encode())


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
        tap: Where it reports what was sent.
    """

    def __init__(
        self,
        outputs: Mapping[str, Topic | Path],
        dead: str | None = None,
        scratch: Scratch | None = None,
        tap: Tap | None = None,
    ) -> None:
        self._tap = tap
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

    def process(self, records: list[Record]) -> None:
        """Keep records until the bundle ends."""
        self._records += records

    def finish_bundle(self) -> None:
        """Write the records, and wait until they have arrived."""
        records = self._records
        if not records:
            return
        dead = []
        by_output: defaultdict[str, list[Record]] = defaultdict(list)
        for record in shuffled(records):
            by_output[record[0]].append(record)
        for output, some in by_output.items():
            if output in self._files:
                self._files[output].writelines(value for _, _, value in some)
            elif output == DEAD:
                dead += [value for _, _, value in some]
            else:
                self._sender.send(some)
        dead += self._sender.flush()
        for file in self._files.values():
            file.flush()
        self._bury(dead)
        self._sent.inc(len(records) - len(dead))
        if self._tap is not None:
            self._tap.note("sent", len(records) - len(dead))
            self._tap.note("dead letters", len(dead))

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


def _opened(path: Path, *, private: bool) -> IO[bytes]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o666)
    if private:  # exact values: for the owner alone
        os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "wb")
