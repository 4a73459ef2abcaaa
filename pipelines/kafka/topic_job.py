"""The job of `crenel run` for topics: rows from Kafka in, anonymized rows out, as they come.

On the local runner one process reads, holds and writes (`_Pump`): Beam's local runner keeps no
checkpoints, so there is nothing to wait for, and fires event-time timers too early to be used.
Everywhere else it is a pipeline:

    Partitions -> Read -> Anonymize -> Encode -> Durable -> Write
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import apache_beam as beam
import numpy as np
from apache_beam import typehints

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.files.file_job import PUBLISHED, REJECTED, RELEASES, SUPPRESSED, Launch, Outcome
from crenel.pipelines.files.scratch import Work
from crenel.pipelines.kafka import topics as kafka_topics
from crenel.pipelines.kafka.sink import EncodeRows, Sender, WriteRecords, records
from crenel.pipelines.kafka.source import Reading, ReadPartition, Refused, elements
from crenel.pipelines.kafka.topics import Topic, is_topic
from crenel.pipelines.kafka.values import derived, values
from crenel.policy import Policy
from crenel.policy.secret import secret_of
from crenel.transforms._hold.shard_set import Left, Shards
from crenel.transforms._pack.pack_step import as_text
from crenel.transforms._pack.row_pack import Packer
from crenel.transforms._publish.counts import Counts
from crenel.transforms._publish.publisher import Publisher, release_records
from crenel.transforms.anonymize import Anonymize, with_outputs
from crenel.transforms.durable import Durable

__all__ = ["STOP", "Request", "run"]

#: Set, it ends the runs of this process: what is held leaves, and no more is read.
STOP = threading.Event()

_ROW = typehints.Dict[str, Any]
_RECORD = typehints.Tuple[str, bytes, bytes]
_LINES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be done. Outputs are topics, or on the local runner files of JSON lines."""

    policy: Policy
    source: Topic
    outputs: Mapping[str, Topic | Path]

    @classmethod
    def of(cls, policy: Policy, inputs: Iterable[str], outputs: Mapping[str, str | None], *, local: bool) -> Request:
        """The request that a command line makes.

        Raises:
            CommandError: it cannot be done.
        """
        first, *others = inputs
        if others or not is_topic(first):
            msg = "--input must be one topic if anything is kafka://; files go to files."
            raise CommandError(msg)
        source = Topic.of(first, read=True)
        if source.until is not None and not local:
            msg = f"{source!r}: until=end is for the local runner; what leaves last would not be durable elsewhere."
            raise CommandError(msg)
        wanted = {name: _output(url, local=local) for name, url in outputs.items() if url is not None}
        wanted = {name: _with_schema(policy, source, name, place) for name, place in wanted.items()}
        _check_apart(source, wanted)
        return cls(policy=policy, source=source, outputs=wanted)


def _output(text: str, *, local: bool) -> Topic | Path:
    if is_topic(text):
        return Topic.of(text)
    if not local:
        msg = f"{text}: must be a topic (kafka://...): this runner's workers write to no file of this machine."
        raise CommandError(msg)
    path = Path(text)
    if path.suffix.lower() not in _LINES or not path.absolute().parent.is_dir():
        msg = (
            f"{text}: must be a topic (kafka://...) or a file of JSON lines ({', '.join(_LINES)}) in a folder there is."
        )
        raise CommandError(msg)
    return path.absolute()


def _with_schema(policy: Policy, source: Topic, name: str, place: Topic | Path) -> Topic | Path:
    """Let a topic of Avro whose schema is not there yet have one, and leave it where it is looked for."""
    if not isinstance(place, Topic) or place.format != "avro" or place.schema_text is not None:
        return place
    if name != PUBLISHED or source.format != "avro":
        msg = f"{place!r}: {place.schema} is not there. It can be made only for --output, if --input is Avro too."
        raise CommandError(msg)
    text = derived(policy, source)
    try:
        Path(str(place.schema)).write_text(text, encoding="utf-8")
    except OSError as error:
        msg = f"{place.schema} cannot be written: {os.strerror(error.errno or 5).lower()}."
        raise CommandError(msg) from None
    if place.encoding == "confluent" and place.schema_id is None:
        msg = f"{place!r}: {place.schema} was written. Register it, and give its id as schema_id=ID."
        raise CommandError(msg)
    return replace(place, schema_text=text)


def _check_apart(source: Topic, outputs: Mapping[str, Topic | Path]) -> None:
    places = [str(place) for place in (source, *outputs.values())]
    if len(set(places)) < len(places):
        msg = "the input and the outputs must be different topics and files."
        raise CommandError(msg)


def run(
    request: Request, launch: Launch, watch: Callable[[Work], Any] | None = None, *, local: bool = True
) -> Outcome | None:
    """Do it until the input ends, or `STOP` is set. What became of the rows is told of a local run.

    Raises:
        CommandError: a broker does not answer, or there is no such topic.
    """
    began = time.monotonic()
    bounds = kafka_topics.bounds(request.source)
    for place in request.outputs.values():
        if isinstance(place, Topic):
            kafka_topics.partitions(place)
            values(place)
    values(request.source)
    if not local:
        launch(lambda pipeline: build(pipeline, request, bounds), 0, request.policy.shards)
        return None
    work = Work.begin(None, watched=watch is not None)
    try:
        pump = _Pump(request, bounds, secret_of(request.policy), work)
        with nullcontext() if watch is None else watch(work):
            launch(lambda pipeline: pipeline | "Start" >> beam.Create([0]) | "Pump" >> beam.ParDo(pump), 0, 1)
        outcome = _outcome(work)
        outcome.seconds = time.monotonic() - began
        return outcome
    finally:
        work.end()


def build(pipeline: beam.Pipeline, request: Request, bounds: Mapping[int, tuple[int, int | None]]) -> None:
    """Add the steps to a pipeline whose runner has checkpoints."""
    partitions = pipeline | "Partitions" >> beam.Create(elements(bounds))
    partitions.element_type = typehints.Tuple[int, int, int]
    step = with_outputs(ReadPartition(request.source, request.policy), REJECTED, main="rows")
    read = partitions | "Read" >> step
    rows, unreadable = read["rows"], read[REJECTED]
    rows.element_type = unreadable.element_type = _ROW
    result = rows | "Anonymize" >> Anonymize(request.policy)
    rejected = (unreadable, result.rejected) | "All rejected" >> beam.Flatten()
    found = {PUBLISHED: result.published, SUPPRESSED: result.suppressed, REJECTED: rejected, RELEASES: result.releases}
    topics = {name: place for name, place in request.outputs.items() if isinstance(place, Topic)}
    encoded = []
    for name, topic in topics.items():
        made = found[name] | f"Encode {name}" >> beam.ParDo(EncodeRows(name, topic))
        made.element_type = _RECORD
        encoded.append(made)
    everything = encoded | "Together" >> beam.Flatten()
    everything.element_type = _RECORD
    durable = everything | "Durable" >> Durable(keys=request.policy.shards)
    _ = durable | "Write" >> beam.ParDo(WriteRecords(topics))


class _Pump(beam.DoFn):
    """Reads, holds and writes, all of it, until the input ends."""

    def __init__(
        self, request: Request, bounds: Mapping[int, tuple[int, int | None]], secret: bytes, work: Work
    ) -> None:
        self._request = request
        self._bounds = dict(bounds)
        self._secret = secret
        self._work = work

    def process(self, _: int) -> None:
        """Go."""
        request = self._request
        self._packer = Packer(request.policy, self._secret)
        self._publisher = Publisher(request.policy)
        self._shards = Shards(request.policy, self._secret)
        self._arrived, self._left = _Arrived(), Counts()
        self._writer = _Writer(request.outputs)
        starts = {partition: start for partition, (start, stop) in self._bounds.items() if stop is None or start < stop}
        reading = Reading(request.source, request.policy, starts)
        try:
            while starts and not STOP.is_set() and not self._is_over(reading, starts):
                self._work.check()
                self._take(self._within(reading.read()))
                self._advance(reading, starts)
                self._writer.flush()
            self._leave(self._shards.flush())
        finally:
            reading.close()
            self._writer.close()
        self._work.note("pump", 0, {"arrived": self._arrived.as_dict(), "left": self._left.as_dict()})

    def _is_over(self, reading: Reading, starts: Mapping[int, int]) -> bool:
        stops = {partition: self._bounds[partition][1] for partition in starts}
        return all(stop is not None and reading.position(p) >= stop for p, stop in stops.items())

    def _within(self, read: Iterable[tuple[int, int, Any]]) -> Iterator[Any]:
        """What is not beyond the end."""
        for partition, offset, what in read:
            stop = self._bounds[partition][1]
            if stop is None or offset < stop:
                yield what

    def _take(self, read: Iterable[Any]) -> None:
        rows, times = [], []
        for what in read:
            if isinstance(what, Refused):
                self._reject(what.record)
            else:
                rows.append(what.row)
                times.append(what.time)
        if not rows:
            return
        packed = self._packer.pack_dicts(rows, np.asarray(times, dtype=np.int64))
        for place, name, reason in packed.rejected:
            self._reject({"row": as_text(rows[place]), "field": name, "reason": reason})
        left: Left = []
        for pack in packed.packs:
            left += self._shards.push(pack)
            self._left.hold(self._shards.held_by(pack.shard))
        self._leave(left)
        self._arrived.rows += len(rows)
        self._work.tick("read", len(rows))

    def _reject(self, record: dict[str, str]) -> None:
        self._arrived.rejected[record["field"], record["reason"]] += 1
        if not record["field"]:
            self._arrived.rows += 1  # it was no row yet, and is not counted among them
        self._writer.write(REJECTED, [record])

    def _advance(self, reading: Reading, starts: Mapping[int, int]) -> None:
        """Tell the engines what time it is: as late as the partition that is behind all others."""
        marks = []
        for partition in starts:
            stop = self._bounds[partition][1]
            if stop is None or reading.position(partition) < stop:
                marks.append(reading.watermark(partition))
        known = [mark for mark in marks if mark is not None]
        if not known or len(known) < len(marks):
            return
        self._leave(self._shards.wake(min(known)))

    def _leave(self, left: Left) -> None:
        published: list[dict[str, Any]] = []
        for shard, departure in ((shard, departure) for shard, departures in left for departure in departures):
            published += self._publisher.published(departure)
            self._writer.write(SUPPRESSED, self._publisher.suppressed(departure))
            self._writer.write(RELEASES, release_records(departure.releases, shard))
            self._left.add(departure)
            self._work.tick("left", int(departure.releases.sizes.sum()))
        # What leaves at once leaves in random order: neither shards nor releases lie together.
        random.SystemRandom().shuffle(published)
        self._writer.write(PUBLISHED, published)


class _Writer:
    """Writes rows to topics and files, as far as they are wanted."""

    def __init__(self, outputs: Mapping[str, Topic | Path]) -> None:
        topics = {name: place for name, place in outputs.items() if isinstance(place, Topic)}
        self._values = {name: values(topic) for name, topic in topics.items()}
        self._sender = Sender(topics)
        self._files: dict[str, IO[str]] = {
            name: _opened(place, private=name != PUBLISHED)
            for name, place in outputs.items()
            if isinstance(place, Path)
        }

    def write(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write rows to an output, if there is one."""
        if name in self._values:
            for record in records(name, rows, self._values[name]):
                self._sender.send(record)
        elif name in self._files:
            self._files[name].writelines(json.dumps(row, default=str, ensure_ascii=False) + "\n" for row in rows)

    def flush(self) -> None:
        """Let all of it arrive."""
        self._sender.flush()
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        """Finish."""
        self.flush()
        for file in self._files.values():
            file.close()


def _opened(path: Path, *, private: bool) -> IO[str]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o666)
    if private:  # exact values: for the owner alone
        os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "w", encoding="utf-8")


class _Arrived:
    """The rows that came so far."""

    def __init__(self) -> None:
        self.rows = 0
        self.rejected: Counter[tuple[str, str]] = Counter()

    def as_dict(self) -> dict[str, Any]:
        """As a record."""
        return {"rows": self.rows, "rejected": [[*why, count] for why, count in self.rejected.items()]}


def _outcome(work: Work) -> Outcome:
    (note,) = work.notes("pump")
    counts = Counts.of([note["left"]])
    counts.rows = note["arrived"]["rows"]
    counts.rejected.update({(name, reason): count for name, reason, count in note["arrived"]["rejected"]})
    outcome = Outcome()
    outcome.take(counts, timed=True)
    if outcome.accounted != outcome.rows:
        msg = f"of {outcome.rows:,} rows only {outcome.accounted:,} are accounted for."
        raise RuntimeError(msg)
    return outcome
