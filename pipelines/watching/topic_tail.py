"""Reads a topic from all its partitions, as any reader does, and tells how far time has come in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from crenel.pipelines.kafka.broker_errors import is_unknown_topic, refusal
from crenel.pipelines.kafka.clients import bounds, consumer
from crenel.pipelines.kafka.topics import Topic
from crenel.runners import JobFailed

__all__ = ["TopicTail"]

#: The most records of one read, and the seconds to wait for them.
_MOST, _WAIT = 2_000, 0.5
_ISOLATION = "isolation.level"
#: An empty end of a topic is up to date but for what is on its way.
_ON_ITS_WAY = 2_000_000


class TopicTail:
    """Reads a topic. Also what was sent and then aborted: everyone can read it.

    Args:
        topic: The topic.
        clock: Tells the time, in seconds since the epoch.

    Raises:
        CommandError: there is no such topic, or the broker does not answer.
    """

    def __init__(self, topic: Topic, clock: Callable[[], float] = time.time) -> None:
        import confluent_kafka

        self._kafka = confluent_kafka
        if _ISOLATION not in dict(topic.settings):
            topic = replace(topic, settings=(*topic.settings, (_ISOLATION, "read_uncommitted")))
        self._topic = topic
        self._clock = clock
        found = bounds(topic)
        #: The next offset of each partition, where it ends if it ends, and the latest time in it.
        self.positions = {number: start for number, (start, _) in found.items()}
        self._stops = {number: stop for number, (_, stop) in found.items() if stop is not None}
        self._latest: dict[int, int] = {}
        self._first: dict[int, int] = {}
        self._at_end = {number for number, (start, stop) in found.items() if stop is not None and start >= stop}
        self._consumer = consumer(topic)
        self._consumer.assign(
            [confluent_kafka.TopicPartition(topic.name, number, start) for number, start in self.positions.items()]
        )

    @property
    def is_over(self) -> bool:
        """Whether everything was read that was to be read."""
        return bool(self._stops) and all(self.positions[number] >= stop for number, stop in self._stops.items())

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def lag(self) -> dict[int, int]:
        """How many records of each partition are not read yet, as far as the broker has said."""
        found = {}
        for number, position in self.positions.items():
            place = self._kafka.TopicPartition(self._topic.name, number)
            _, end = self._consumer.get_watermark_offsets(place, cached=True)
            found[number] = max(int(end) - position, 0)
        return found

    def read(self) -> list[tuple[int, bytes | None, bytes | None]]:
        """Read some records: when each was sent, in microseconds, its key and its value.

        Raises:
            JobFailed: the broker refuses, or has deleted what was to be read.
        """
        found = []
        for message in self._consumer.consume(_MOST, _WAIT):
            error = message.error()
            if error is not None:
                self._check(message, error)
                continue
            number = message.partition()
            if message.offset() >= self._stops.get(number, message.offset() + 1):
                self.positions[number] = max(self.positions[number], self._stops[number])
                continue
            self._at_end.discard(number)
            self.positions[number] = message.offset() + 1
            at = int(message.timestamp()[1]) * 1000
            self._latest[number] = max(self._latest.get(number, at), at)
            self._first.setdefault(number, at)
            found.append((at, message.key(), message.value()))
        return found

    def _check(self, message: Any, error: Any) -> None:
        codes = self._kafka.KafkaError
        if error.code() == codes._PARTITION_EOF:
            self._at_end.add(message.partition())
            self.positions[message.partition()] = max(self.positions[message.partition()], message.offset())
        elif error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            msg = f"{self._topic!r}: the broker deleted records before they were read, so they cannot be judged."
            raise JobFailed(msg)
        elif error.fatal() or is_unknown_topic(error) or error.code() == codes.TOPIC_AUTHORIZATION_FAILED:
            raise JobFailed(refusal(self._topic, error))

    @property
    def began(self) -> int:
        """When the first record was sent of the partition that began last; 0 if nothing was read."""
        return max(self._first.values(), default=0)

    def now(self) -> int:
        """The time before which no further record is expected, in microseconds since the epoch."""
        here = int(self._clock() * 1e6) - _ON_ITS_WAY
        reached = [here if number in self._at_end else self._latest.get(number, 0) for number in self.positions]
        return min(reached)
