"""Reads one partition of a topic: its rows, their event times, and a watermark."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, TypeVar, cast

import numpy as np

from crenel.pipelines.kafka.broker_errors import InputLost, is_unknown_topic, refusal
from crenel.pipelines.kafka.clients import consumer
from crenel.pipelines.kafka.messages.output_fit import OutputFit
from crenel.pipelines.kafka.messages.owner_text import shortened
from crenel.pipelines.kafka.messages.value_formats import reading
from crenel.pipelines.kafka.messages.values import NoRow, Unavailable, Unreadable
from crenel.pipelines.kafka.partition_ranges import FOREVER
from crenel.pipelines.kafka.steady_time import Pace, SteadyTime
from crenel.pipelines.kafka.topics import HEADER_COLUMN, Topic
from crenel.policy import Policy, columns
from crenel.runners import JobFailed
from crenel.transforms._pack.pack_step import as_text
from crenel.transforms._pack.row_batch import RowBatch
from crenel.transforms._pack.text_columns import named_columns
from crenel.transforms._publish.timestamps import RANGE, clamped

__all__ = ["PartitionReader", "Read", "Refused"]

_Item = TypeVar("_Item")

#: The most records of one read, and the seconds to wait for them.
_MOST, _WAIT = 2_000, 0.2
_ERROR, _VALUE = methodcaller("error"), methodcaller("value")
#: Seconds between two requests to the broker whether a partition is silent, and for each answer.
_ASK = 1.0
#: Seconds between two times that the position of a partition is told, while there is more to read.
_TELL = 1.0


@dataclass(slots=True, repr=False)
class Refused:
    """A message that is no row: the owner's record of it, and the message's time."""

    record: dict[str, str]
    time: int


@dataclass(slots=True, repr=False)
class Read:
    """What was read: rows with their event times, and messages that are none."""

    rows: RowBatch
    refused: list[Refused]
    #: Messages that have no row, and that nobody asked for.
    ignored: int = 0


@dataclass(slots=True, repr=False)
class _Opened:
    """Opened messages: rows, their sizes in bytes and their times; and the messages that are no row."""

    rows: list[dict[str, Any]]
    sizes: list[int]
    times: list[int]
    #: The places of rows without an event time of their own, which get the message's.
    timeless: set[int]
    refused: list[Refused]
    ignored: int

    @property
    def known_times(self) -> list[int]:
        """The event times of rows that have one."""
        if not self.timeless:
            return self.times
        return [time for place, time in enumerate(self.times) if place not in self.timeless]


class PartitionReader:
    """Reads a partition from an offset on.

    Args:
        topic: The topic.
        policy: Names the field of the event time, and how far rows are out of order.
        partition: The number of the partition.
        position: The offset of the first record to read.
        fit: Tells whether a row fits the output.
        clock: Tells the time, in seconds since the epoch.
        span: The most microseconds of event time of one read; None for any number.
    """

    def __init__(
        self,
        topic: Topic,
        policy: Policy,
        partition: int,
        position: int,
        fit: OutputFit | None = None,
        clock: Callable[[], float] = time.time,
        span: int | None = None,
    ) -> None:
        import confluent_kafka

        self._kafka = confluent_kafka
        self._topic = topic
        self._policy = policy
        self._fit = fit
        self._clock = clock
        #: The offset of the next record.
        self.position = position
        #: The position that was last told to those who watch, and when.
        self._told: int | None = None
        self._told_at = 0.0
        self._time = SteadyTime(policy.most_ahead, clock)
        #: Since when there has been nothing more to read, when the broker was last asked whether that is still so, and
        #: when it last said so.
        self._end_since: float | None = None
        self._asked = 0.0
        self._silent: float | None = None
        #: The columns that are headers, and the names of these.
        self._headers = {
            name: name.removeprefix(HEADER_COLUMN) for name in named_columns(policy) if name.startswith(HEADER_COLUMN)
        }
        self._values = reading(topic)
        #: Messages that were fetched, and wait for the next read.
        self._waiting: list[Any] = []
        self._pace = Pace(_MOST, span)
        self._place = confluent_kafka.TopicPartition(topic.name, partition, position)
        self._consumer = consumer(topic, partition)
        self._consumer.assign([self._place])

    @property
    def is_at_end(self) -> bool:
        """Whether all records that were there have been read."""
        return self._end_since is not None

    @property
    def is_caught_up(self) -> bool:
        """Whether everything was read that the broker has told of.

        Where rows trickle in, the broker never says that this is the end: it says so after half a second without a row.
        """
        return self.is_at_end or 0 <= self._known_end <= self.position

    @property
    def lag(self) -> int:
        """How many records there are that were not read yet, as far as the broker has said; 0 if it has not."""
        return max(self._known_end - self.position, 0)

    @property
    def _known_end(self) -> int:
        """The end of the partition when the broker was last asked for records; negative if it never was."""
        _, end = self._consumer.get_watermark_offsets(self._place, cached=True)
        return int(end)

    def has_news(self) -> bool:
        """Whether those who watch should be told the position: once a second, and always at the end.

        A new reader always has news, so that a partition without records has a lag too.
        """
        now = self._clock()
        if self._told == self.position or not (self.is_at_end or now - self._told_at >= _TELL):
            return False
        self._told, self._told_at = self.position, now
        return True

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def read(self, stop: int = FOREVER, wait: float | None = None) -> Read:
        """Read some records.

        Args:
            stop: The offset of the first record that is not to be read any more.
            wait: Seconds to wait for records. By default some time if there are any.

        Raises:
            InputLost: the broker has deleted records that were to be read.
            JobFailed: the broker refuses.
        """
        fetched = self._waiting or self._fetched(wait)
        try:
            part, opened = self._first(fetched, stop)
        except Unavailable:
            # The partition stays where it is. It is not at its end, so it holds event time back as well.
            self._waiting = fetched
            self._end_since = self._silent = None
            time.sleep(_WAIT)
            return Read(RowBatch([], []), [])
        self._waiting = fetched[len(part) :]
        # Offsets grow, so that the last message tells how far all of them go.
        for message in part[-1:] if _is_plain(part) else part:
            error = message.error()
            if error is not None:
                self._check(message, error)
                continue
            self.position = max(self.position, message.offset() + 1)
            self._end_since = self._silent = None
        return self._fitting(opened)

    def _fetched(self, wait: float | None) -> list[Any]:
        """Fetch messages: many if there are many, and otherwise those that are here already.

        At the end nothing is waited for, although an open transaction leaves a lag: its records are withheld.
        """
        if wait is not None:
            return list(self._consumer.consume(_MOST, wait))
        if not self.is_at_end and (self._known_end < 0 or self.lag >= _MOST):
            return list(self._consumer.consume(_MOST, _WAIT))
        found = self._consumer.consume(_MOST, 0.0)
        return list(found or (self._consumer.consume(1, _WAIT) if self.lag and not self.is_at_end else ()))

    def _first(self, fetched: list[Any], stop: int) -> tuple[list[Any], _Opened]:
        """Open the first of the messages that were fetched, as many as one read may take."""
        while True:
            part = fetched[: self._pace.count]
            messages = part
            if not _is_plain(part) or (part and part[-1].offset() >= stop):
                messages = [message for message in part if message.error() is None and message.offset() < stop]
            opened = self._opened(messages)
            if self._pace.allows(len(part), opened.known_times):
                return part, opened

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

    def _opened(self, messages: list[Any]) -> _Opened:
        """Tell rows from messages that are none.

        Raises:
            Unavailable: the messages cannot be read for now.
        """
        values = list(map(_VALUE, messages))
        contents = self._contents(values)
        refused: list[Refused] = []
        ignored = 0
        if not set(map(type, contents)) <= {dict}:
            refused = [
                Refused({"row": why.shown(value), "field": "", "reason": str(why)}, self._sent(message))
                for why, value, message in zip(contents, values, messages, strict=True)
                if isinstance(why, Unreadable) and not isinstance(why, NoRow)
            ]
            ignored = sum(isinstance(content, NoRow) for content in contents)
            kept = [place for place, content in enumerate(contents) if not isinstance(content, Unreadable)]
            contents, values, messages = _at(kept, contents), _at(kept, values), _at(kept, messages)
        rows = cast("list[dict[str, Any]]", contents)
        if self._headers:
            for row, message in zip(rows, messages, strict=True):
                self._add_headers(row, message)
        times, timeless = self._event_times(rows, messages)
        return _Opened(rows, list(map(len, values)), times, timeless, refused, ignored)

    def _fitting(self, opened: _Opened) -> Read:
        """Refuse the rows that do not fit the output, and take note of the times of all others."""
        rows, times, timeless = opened.rows, opened.times, opened.timeless
        misfits = {} if self._fit is None else self._fit.problems(rows, opened.sizes)
        # Rows without a time are left to the step that encodes rows: it rejects them for that reason.
        misfits = {place: why for place, why in misfits.items() if place not in timeless}
        if timeless or misfits:
            kept = [place for place in range(len(rows)) if place not in misfits]
            self._time.see_all([times[place] for place in kept if place not in timeless])
            refused = opened.refused
            for place, (field, reason) in misfits.items():
                record = {"row": shortened(as_text(rows[place])), "field": field, "reason": reason}
                refused.append(Refused(record, times[place]))
            return Read(RowBatch(_at(kept, rows), _at(kept, times)), refused, opened.ignored)
        self._time.see_all(times)
        return Read(RowBatch(rows, times), opened.refused, opened.ignored)

    def _contents(self, values: list[bytes | None]) -> list[dict[str, Any] | Unreadable]:
        """The row of each value, or why it is none."""
        if None not in values:
            return self._values.read_many(cast("list[bytes]", values))
        read = iter(self._values.read_many(value for value in values if value is not None))
        return [self._values.of_nothing() if value is None else next(read) for value in values]

    def _add_headers(self, row: dict[str, Any], message: Any) -> None:
        """Add the headers that the policy names as columns: of several of one name the last, None if there is none."""
        found = dict(message.headers() or ())
        for column, name in self._headers.items():
            row[column] = _as_text(found.get(name))

    def _event_times(self, rows: list[dict[str, Any]], messages: list[Any]) -> tuple[list[int], set[int]]:
        """The time of each row, and the places of rows that have none: they get the message's, and move no clock."""
        name = self._policy.event_time
        if name is None:
            return [self._sent(message) for message in messages], set()
        if not rows:
            return [], set()
        found, reasons = columns.moments([row.get(name) for row in rows])
        times: list[int] = np.clip(np.nan_to_num(found), *RANGE).astype(np.int64).tolist()
        if reasons is None:
            return times, set()
        timeless = set(np.flatnonzero(reasons != None).tolist())  # noqa: E711 - elementwise
        for place in timeless:
            times[place] = self._sent(messages[place])
        return times, timeless

    def _sent(self, message: Any) -> int:
        """The time of the message itself."""
        kind, millis = message.timestamp()
        if kind == self._kafka.TIMESTAMP_NOT_AVAILABLE:
            return self._time.latest or 0
        return clamped(int(millis) * 1000)

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


def _is_plain(messages: list[Any]) -> bool:
    """Whether none of them is an error. Without a step of Python for each: there are as many as rows."""
    return set(map(type, map(_ERROR, messages))) <= {type(None)}


def _as_text(value: bytes | None) -> str | bytes | None:
    """A header's value: text, if it is UTF-8."""
    try:
        return None if value is None else value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def _at(places: list[int], items: list[_Item]) -> list[_Item]:
    return [items[place] for place in places]
