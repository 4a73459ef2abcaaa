"""Reads one partition of a topic: its rows, their event times, and a watermark."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from crenel.errors import Rejected
from crenel.pipelines.kafka.broker_errors import InputLost, is_unknown_topic, refusal
from crenel.pipelines.kafka.clients import consumer
from crenel.pipelines.kafka.messages.output_fit import OutputFit
from crenel.pipelines.kafka.messages.owner_text import shortened, value_as_text
from crenel.pipelines.kafka.messages.values import Unreadable, values
from crenel.pipelines.kafka.steady_time import SteadyTime
from crenel.pipelines.kafka.topics import Topic
from crenel.policy import Policy, columns
from crenel.runners import JobFailed
from crenel.transforms._pack.pack_step import as_text
from crenel.transforms._publish.timestamps import clamped

__all__ = ["PartitionReader", "Refused", "Row"]

#: The most records of one read, and the seconds to wait for them.
_MOST, _WAIT = 2_000, 0.2
#: Seconds between two requests to the broker whether a partition is silent, and for each answer.
_ASK = 1.0


@dataclass(slots=True, repr=False)
class Row:
    """A row, and its event time in microseconds."""

    row: dict[str, Any]
    time: int


@dataclass(slots=True, repr=False)
class Refused:
    """A message that is no row: the owner's record of it, and the message's time."""

    record: dict[str, str]
    time: int


class PartitionReader:
    """Reads a partition from an offset on.

    Args:
        topic: The topic.
        policy: Names the field of the event time, and how far rows are out of order.
        partition: The number of the partition.
        position: The offset of the first record to read.
        fit: Tells whether a row fits the output.
        clock: Tells the time, in seconds since the epoch.
    """

    def __init__(
        self,
        topic: Topic,
        policy: Policy,
        partition: int,
        position: int,
        fit: OutputFit | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        import confluent_kafka

        self._kafka = confluent_kafka
        self._topic = topic
        self._policy = policy
        self._fit = fit
        self._clock = clock
        #: The offset of the next record.
        self.position = position
        self._time = SteadyTime(policy.most_ahead, clock)
        #: Since when there has been nothing more to read, when the broker was last asked whether that is still so, and
        #: when it last said so.
        self._end_since: float | None = None
        self._asked = 0.0
        self._silent: float | None = None
        self._values = values(topic)
        self._place = confluent_kafka.TopicPartition(topic.name, partition, position)
        self._consumer = consumer(topic)
        self._consumer.assign([self._place])

    @property
    def is_at_end(self) -> bool:
        """Whether all records that were there have been read."""
        return self._end_since is not None

    @property
    def lag(self) -> int:
        """How many records there are that were not read yet, as far as the broker has said; 0 if it has not."""
        _, end = self._consumer.get_watermark_offsets(self._place, cached=True)
        return max(int(end) - self.position, 0)

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def read(self, wait: float | None = None) -> list[tuple[int, Row | Refused]]:
        """Read some records: the offset and the content of each.

        Args:
            wait: Seconds to wait for records. By default some time, or none if the end was reached before.

        Raises:
            InputLost: the broker has deleted records that were to be read.
            JobFailed: the broker refuses.
        """
        if wait is None:
            wait = 0.0 if self.is_at_end else _WAIT
        read: list[tuple[int, Row | Refused]] = []
        for message in self._consumer.consume(_MOST, wait):
            error = message.error()
            if error is not None:
                self._check(message, error)
                continue
            self.position = message.offset() + 1
            self._end_since = self._silent = None
            read.append((message.offset(), self._open(message)))
        return read

    def _check(self, message: Any, error: Any) -> None:
        codes = self._kafka.KafkaError
        if error.code() == codes._PARTITION_EOF:
            # The end may lie behind records that no reader is given: marks of transactions, and compacted ones.
            self.position = max(self.position, message.offset())
            if self._end_since is None:
                self._end_since = self._clock()
        elif error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            msg = (
                f"{self._topic!r}: the broker deleted records before they were read. Keep records longer "
                "(retention.ms), and start a new run; what was deleted cannot be published."
            )
            raise InputLost(msg)
        elif (
            error.fatal()
            or is_unknown_topic(error)
            or error.code() in (codes.TOPIC_AUTHORIZATION_FAILED, codes._AUTHENTICATION)
        ):
            raise JobFailed(refusal(self._topic, error))
        # The client retries after all other errors.

    def _open(self, message: Any) -> Row | Refused:
        value = message.value()
        try:
            if value is None:
                msg = "no value"
                raise Unreadable(msg)
            row = self._values.read(value)
        except Unreadable as why:
            return Refused({"row": value_as_text(value), "field": "", "reason": str(why)}, self._sent(message))
        try:
            at = self._event_time(row, message)
        except Rejected:  # the step that encodes rows will reject it; it moves no clock
            return Row(row, self._sent(message))
        misfit = None if self._fit is None else self._fit.problem(row, len(value))
        if misfit is not None:
            return Refused({"row": shortened(as_text(row)), "field": misfit[0], "reason": misfit[1]}, at)
        self._time.see(at)
        return Row(row, at)

    def _sent(self, message: Any) -> int:
        """The time of the message itself."""
        kind, millis = message.timestamp()
        if kind == self._kafka.TIMESTAMP_NOT_AVAILABLE:
            return self._time.latest or 0
        return clamped(int(millis) * 1000)

    def _event_time(self, row: dict[str, Any], message: Any) -> int:
        if self._policy.event_time is None:
            return self._sent(message)
        return clamped(int(columns.moment(row.get(self._policy.event_time))))

    def watermark(self) -> int | None:
        """The event time that no further row is expected to precede, in microseconds; None if nothing is known.

        A partition that has been silent since its end was reached, for as long as the topic's `idle`, counts as up to
        date: its next row will be recent. Only the broker's own word counts, and only a fresh one: a partition that
        cannot be read is not silent, and neither is one with an uncommitted transaction.
        """
        known = None if self._time.latest is None else self._time.latest - self._policy.disorder
        now = self._clock()
        if self._end_since is not None and now - self._end_since >= self._topic.idle:
            self._ask(now)
        if self._silent is None:
            return known
        silent = int((self._silent - self._topic.idle) * 1e6) - self._policy.disorder
        return silent if known is None else max(known, silent)

    def _ask(self, now: float) -> None:
        """Ask the broker whether the partition is still silent."""
        if now - self._asked < _ASK:
            return
        self._asked = now
        try:
            _, end = self._consumer.get_watermark_offsets(self._place, _ASK)
        except self._kafka.KafkaException:
            return
        if end <= self.position:
            self._silent = now
