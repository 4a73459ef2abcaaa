"""Rows to topics.

Each record has a name of its own, drawn at random when the row leaves and before anything is
sent: its key, and the header `crenel-row`. Whoever reads the topic can tell by it that a record
came twice; it tells nothing else, not even which rows left together. Records are dealt out to
partitions by it.
"""

from __future__ import annotations

import os
import random
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics

from crenel.pipelines.kafka.topics import Topic, producer
from crenel.pipelines.kafka.values import Values, values
from crenel.transforms._publish.emitter import NAMESPACE

__all__ = ["HEADER", "EncodeRows", "Record", "Sender", "WriteRecords", "records"]

#: The header that names a row.
HEADER = "crenel-row"
#: What the record of a row is made of: which output it is for, its name, and its value.
Record = tuple[str, bytes, bytes]

_NAME = 16
#: Seconds that the broker has to take what was sent, at the end of a bundle.
_PATIENCE = 120.0


def records(output: str, rows: Iterable[Mapping[str, Any]], writes: Values) -> list[Record]:
    """The records of rows, in random order."""
    made = [(output, secrets.token_bytes(_NAME), writes.write(row)) for row in rows]
    random.SystemRandom().shuffle(made)
    return made


class Sender:
    """Sends records, and knows that they have arrived.

    Args:
        topics: The topics, by output.
    """

    def __init__(self, topics: Mapping[str, Topic]) -> None:
        self._topics = topics
        self._producers = {output: _producer(topic) for output, topic in topics.items()}
        self._failed: list[str] = []

    def send(self, record: Record) -> None:
        """Send a record; it may be on its way for a while."""
        output, name, value = record
        client, topic = self._producers[output], self._topics[output].name
        while True:
            try:
                client.produce(topic, value, name, headers=[(HEADER, name)], on_delivery=self._delivered)
                return
            except BufferError:  # as much as is on its way at most
                client.poll(0.1)

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._failed.append(error.str())

    def flush(self) -> None:
        """Wait until all that was sent has arrived.

        Raises:
            RuntimeError: some has not.
        """
        left = sum(client.flush(_PATIENCE) for client in dict.fromkeys(self._producers.values()))
        failed, self._failed = self._failed, []
        if left or failed:
            said = failed[0] if failed else "no answer"
            msg = f"{max(left, len(failed))} records could not be written: {said}."
            raise RuntimeError(msg)


_LOCK = threading.Lock()
_PRODUCERS: dict[Any, Any] = {}


def _producer(topic: Topic) -> Any:
    """The process's producer for a cluster: each has threads and connections of its own."""
    key = (os.getpid(), topic.servers, topic.settings)
    with _LOCK:
        if key not in _PRODUCERS:
            _PRODUCERS[key] = producer(topic.servers, dict(topic.settings))
        return _PRODUCERS[key]


class EncodeRows(beam.DoFn):
    """Makes records of rows. What it makes of a row once more after a failure is another record."""

    def __init__(self, output: str, topic: Topic) -> None:
        self._output = output
        self._topic = topic

    def setup(self) -> None:
        """Prepare what does not travel."""
        self._values = values(self._topic)

    def process(self, row: Mapping[str, Any]) -> Iterator[Record]:
        """Take a row."""
        yield from records(self._output, [row], self._values)


class WriteRecords(beam.DoFn):
    """Sends records; a bundle is over when all of its have arrived."""

    def __init__(self, topics: Mapping[str, Topic]) -> None:
        self._topics = dict(topics)

    def setup(self) -> None:
        """Prepare what does not travel."""
        self._sender = Sender(self._topics)
        self._sent = Metrics.counter(NAMESPACE, "sent")

    def start_bundle(self) -> None:
        """Begin with nothing sent."""
        self._count = 0

    def process(self, record: Record) -> None:
        """Take a record."""
        self._sender.send(record)
        self._count += 1

    def finish_bundle(self) -> None:
        """Wait for the broker."""
        if self._count:
            self._sender.flush()
            self._sent.inc(self._count)
