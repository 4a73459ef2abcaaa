"""ENCODE and WRITE: rows to topics, and on this machine to files of JSON lines.

The record of a row in a topic has a random name, drawn before anything is sent: its key, and the
header `crenel-row`. A reader of the topic recognizes by it a record that was sent twice. It tells
nothing else, not even which rows were released together. It also chooses the partition.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import IO, Any

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics

from crenel.pipelines.kafka.topics import Topic, producer
from crenel.pipelines.kafka.values import JsonValues, values
from crenel.runners import JobFailed
from crenel.transforms._publish.emitter import NAMESPACE, PUBLISHED, RELEASES

__all__ = ["HEADER", "EncodeRows", "Record", "WriteRecords"]

#: The header that names a row.
HEADER = "crenel-row"
#: The output that a record is for, its name, and its value.
Record = tuple[str, bytes, bytes]

#: Bytes of a name, and names that are drawn at once.
_NAME, _AT_ONCE = 16, 1024
#: Seconds that the broker has to take the records of a bundle.
_PATIENCE = 120.0
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class EncodeRows(beam.DoFn):
    """Makes records of rows. A row that is encoded again after a failure becomes another record.

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

    def process(self, row: Mapping[str, Any]) -> list[Record]:
        """Encode a row."""
        if self._output == RELEASES:
            row = {**row, "moment": _as_datetime(row["moment"])}
        if self._names is None:
            return [(self._output, b"", self._write(row) + b"\n")]
        return [(self._output, next(self._names), self._write(row))]


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
    """

    def __init__(self, outputs: Mapping[str, Topic | Path]) -> None:
        self._outputs = dict(outputs)

    def setup(self) -> None:
        """Create what cannot be pickled."""
        self._sent = Metrics.counter(NAMESPACE, "sent")
        topics = {name: place for name, place in self._outputs.items() if isinstance(place, Topic)}
        self._sender = _Sender(topics)
        self._files: dict[str, IO[bytes]] = {
            name: _opened(place, private=name != PUBLISHED)
            for name, place in self._outputs.items()
            if isinstance(place, Path)
        }

    def start_bundle(self) -> None:
        """Begin without records: those of a failed bundle are not this one's."""
        self._records: list[Record] = []

    def process(self, record: Record) -> None:
        """Keep a record until the bundle ends."""
        self._records.append(record)

    def finish_bundle(self) -> None:
        """Write the records, and wait until they have arrived."""
        records = self._records
        if not records:
            return
        for place in _random_order(len(records)):
            output, name, value = records[place]
            if output in self._files:
                self._files[output].write(value)
            else:
                self._sender.send(output, name, value)
        self._sender.flush()
        for file in self._files.values():
            file.flush()
        self._sent.inc(len(records))

    def teardown(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


def _random_order(count: int) -> list[int]:
    """The numbers below `count`, shuffled by the system's generator."""
    drawn = np.frombuffer(secrets.token_bytes(8 * count), dtype=np.uint64)
    return np.argsort(drawn, kind="stable").tolist()  # type: ignore[no-any-return]


class _Sender:
    """Sends records to topics, and knows when they have arrived.

    Args:
        topics: The topics, by output.
    """

    def __init__(self, topics: Mapping[str, Topic]) -> None:
        self._clients = {output: (_producer(topic), topic.name) for output, topic in topics.items()}
        self._failed: list[str] = []

    def send(self, output: str, name: bytes, value: bytes) -> None:
        """Send a record; it may take a while to arrive."""
        client, topic = self._clients[output]
        while True:
            try:
                client.produce(topic, value, name, headers=[(HEADER, name)], on_delivery=self._delivered)
                return
            except BufferError:  # too many records are on their way
                client.poll(0.1)

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._failed.append(error.str())

    def flush(self) -> None:
        """Wait until all records that were sent have arrived.

        Raises:
            JobFailed: some have not.
        """
        left = sum(client.flush(_PATIENCE) for client in {client for client, _ in self._clients.values()})
        failed, self._failed = self._failed, []
        if left or failed:
            said = failed[0].rstrip(".") if failed else "the broker does not answer"
            msg = f"{max(left, len(failed))} records could not be written: {said}."
            raise JobFailed(msg)


_LOCK = threading.Lock()
_PRODUCERS: dict[Any, Any] = {}


def _producer(topic: Topic) -> Any:
    """The process's producer for a cluster: each has threads and connections of its own."""
    key = (os.getpid(), topic.servers, topic.settings)
    with _LOCK:
        if key not in _PRODUCERS:
            _PRODUCERS[key] = producer(topic)
        return _PRODUCERS[key]


def _opened(path: Path, *, private: bool) -> IO[bytes]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o666)
    if private:  # exact values: for the owner alone
        os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "wb")
