"""Rows from a topic: read by partition, each with its own place and its own time."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

from crenel.errors import Rejected
from crenel.pipelines.kafka.topics import Topic, consumer
from crenel.pipelines.kafka.values import Unreadable, Values, values
from crenel.policy import Policy, columns
from crenel.transforms._publish.emitter import NAMESPACE, REJECTED
from crenel.transforms._publish.timestamps import clamped

__all__ = ["Partition", "ReadPartition", "Reading", "Refused", "Row", "elements"]

#: Where reading ends that does not.
FOREVER = (1 << 63) - 1
#: Records that are fetched at once, and the seconds they are waited for.
_AT_ONCE, _WAIT = 2_000, 0.2
#: Seconds between two questions whether a partition is silent, and for an answer.
_ASK = 1.0
#: Seconds after which a bundle is over: a long one would hold up checkpoints.
_BUNDLE = 1.0
#: Readers that a process keeps for the next bundle.
_MOST_KEPT = 64


@dataclass(frozen=True, repr=False)
class Row:
    """A row that came, and its event time in microseconds."""

    row: dict[str, Any]
    time: int


@dataclass(frozen=True, repr=False)
class Refused:
    """A record that holds no row: the owner's record of it."""

    record: dict[str, str]
    time: int


@dataclass
class _Progress:
    """How far the reading of one partition is."""

    #: The next offset.
    position: int
    #: The latest event time, and since when there has been nothing more to read.
    latest: int | None = None
    at_end: float | None = None
    #: When the broker was last asked whether that is still so, and when it last said yes.
    asked: float = 0.0
    silent: float | None = None


@dataclass(eq=False)
class Reading:
    """Reads partitions of a topic from where it is told.

    Args:
        topic: The topic.
        policy: What says which field is the event time, and how much rows are out of order.
        offsets: Where to begin, by partition.
        clock: Tells the time, in seconds since the epoch.
    """

    topic: Topic
    policy: Policy
    offsets: Mapping[int, int]
    clock: Callable[[], float] = time.time
    _values: Values = field(init=False)

    def __post_init__(self) -> None:
        import confluent_kafka

        self._kafka = confluent_kafka
        self._values = values(self.topic)
        self._progress = {partition: _Progress(offset) for partition, offset in self.offsets.items()}
        self._consumer = consumer(self.topic)
        self._consumer.assign(
            [confluent_kafka.TopicPartition(self.topic.name, p, offset) for p, offset in self.offsets.items()]
        )

    def close(self) -> None:
        """Give up the connection."""
        self._consumer.close()

    def position(self, partition: int) -> int:
        """The offset of the next record."""
        return self._progress[partition].position

    def is_at_end(self, partition: int) -> bool:
        """Whether all that was there has been read."""
        return self._progress[partition].at_end is not None

    def read(self, most: int = _AT_ONCE, wait: float = _WAIT) -> list[tuple[int, int, Row | Refused]]:
        """Some records: for each its partition, its offset, and what it holds.

        Raises:
            RuntimeError: the broker refuses, or has deleted what was to be read.
        """
        read: list[tuple[int, int, Row | Refused]] = []
        for message in self._consumer.consume(most, wait):
            error = message.error()
            if error is not None:
                self._mind(message, error)
                continue
            progress = self._progress[message.partition()]
            progress.position = message.offset() + 1
            progress.at_end = progress.silent = None
            read.append((message.partition(), message.offset(), self._open(message, progress)))
        return read

    def _mind(self, message: Any, error: Any) -> None:
        codes = self._kafka.KafkaError
        if error.code() == codes._PARTITION_EOF:
            progress = self._progress[message.partition()]
            # What no reader is given (marks of transactions, what was compacted away) is passed by, too.
            progress.position = max(progress.position, message.offset())
            if progress.at_end is None:
                progress.at_end = self.clock()
        elif error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            msg = f"{self.topic!r}: records that were to be read have been deleted."
            raise RuntimeError(msg)
        elif error.fatal() or error.code() in (
            codes.TOPIC_AUTHORIZATION_FAILED,
            codes.UNKNOWN_TOPIC_OR_PART,
            codes._UNKNOWN_TOPIC,
            codes._UNKNOWN_PARTITION,
            codes._AUTHENTICATION,
        ):
            msg = f"{self.topic!r}: cannot be read: {error.str()}."
            raise RuntimeError(msg)
        # Anything else the client tries again by itself.

    def _open(self, message: Any, progress: _Progress) -> Row | Refused:
        value = message.value()
        stamp = self._stamp(message, progress)
        try:
            if value is None:
                msg = "no value"
                raise Unreadable(msg)
            row = self._values.read(value)
        except Unreadable as why:
            return Refused({"row": _as_text(value), "field": "", "reason": str(why)}, stamp)
        at = self._event_time(row, stamp)
        if at is None:  # the row will be rejected, and moves no clock
            return Row(row, stamp)
        progress.latest = at if progress.latest is None else max(progress.latest, at)
        return Row(row, at)

    def _stamp(self, message: Any, progress: _Progress) -> int:
        kind, millis = message.timestamp()
        if kind == self._kafka.TIMESTAMP_NOT_AVAILABLE:
            return progress.latest or 0
        return clamped(int(millis) * 1000)

    def _event_time(self, row: dict[str, Any], stamp: int) -> int | None:
        if self.policy.event_time is None:
            return stamp
        try:
            return clamped(int(columns.moment(row.get(self.policy.event_time))))
        except Rejected:
            return None

    def watermark(self, partition: int) -> int | None:
        """The event time that no row to come is expected to be before; None if nothing is known.

        A partition whose end was reached, and that has been silent for a while since, is taken to be up to date: rows
        to come are from then on. The broker must have said so, just now: one that cannot be read is not silent, and
        neither is one with a transaction that is not committed.
        """
        progress = self._progress[partition]
        known = None if progress.latest is None else progress.latest - self.policy.disorder
        now = self.clock()
        if progress.at_end is not None and now - progress.at_end >= self.topic.idle:
            self._ask(partition, progress, now)
        if progress.silent is None:
            return known
        silent = int((progress.silent - self.topic.idle) * 1e6) - self.policy.disorder
        return silent if known is None else max(known, silent)

    def _ask(self, partition: int, progress: _Progress, now: float) -> None:
        if now - progress.asked < _ASK:
            return
        progress.asked = now
        place = self._kafka.TopicPartition(self.topic.name, partition)
        try:
            _, end = self._consumer.get_watermark_offsets(place, _ASK)
        except self._kafka.KafkaException:
            return
        if end <= progress.position:
            progress.silent = now


def _as_text(value: bytes | None) -> str:
    """A value that could not be read, for the owner: as text if it is any, else as base64."""
    if value is None:
        return ""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode("ascii")


# -- as a step of a pipeline ----------------------------------------------------------------------


#: A partition, an element of its own, since runners deal out elements, not parts of one: its number, and the offsets
#: where reading begins and ends.
Partition = tuple[int, int, int]


class _Ranges(RestrictionProvider):
    """What is left of a partition: offsets. It is what checkpoints hold."""

    def initial_restriction(self, element: Partition) -> OffsetRange:
        return OffsetRange(*element[1:])

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: Partition, restriction: OffsetRange) -> int:
        return 1

    def truncate(self, element: Partition, restriction: OffsetRange) -> None:
        """Read no more when the pipeline is drained."""


class _Kept:
    """Readings that wait for their next bundle, by topic and partition."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readings: dict[Any, Reading] = {}

    def take(self, topic: Topic, policy: Policy, partition: int, position: int) -> Reading:
        """A reading that goes on there."""
        with self._lock:
            reading = self._readings.pop((topic, partition), None)
        if reading is not None and reading.position(partition) != position:
            reading.close()
            reading = None
        return reading or Reading(topic, policy, {partition: position})

    def put(self, topic: Topic, partition: int, reading: Reading) -> None:
        """Keep a reading."""
        with self._lock:
            old = self._readings.pop((topic, partition), None)
            self._readings[topic, partition] = reading
            extra = [self._readings.pop(next(iter(self._readings)))] if len(self._readings) > _MOST_KEPT else []
        for gone in [*extra, *([old] if old is not None else [])]:
            gone.close()


_KEPT = _Kept()


class ReadPartition(beam.DoFn):
    """Reads a partition: rows with their event times; what is no row goes to the output `rejected`.

    Args:
        topic: The topic.
        policy: As for `Reading`.
    """

    def __init__(self, topic: Topic, policy: Policy) -> None:
        self._topic = topic
        self._policy = policy

    def setup(self) -> None:
        """Prepare what does not travel."""
        self._rows = Metrics.counter(NAMESPACE, "rows")
        self._rejected = Metrics.counter(NAMESPACE, "rejected")

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: Partition,
        tracker: Any = beam.DoFn.RestrictionParam(_Ranges()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        """Read until the bundle is long enough, or there is nothing more for now."""
        partition = element[0]
        left = tracker.current_restriction()
        if left.start >= left.stop:
            return
        reading = _KEPT.take(self._topic, self._policy, partition, left.start)
        claimed, until = left.start - 1, time.monotonic() + _BUNDLE
        while True:
            for _, offset, what in reading.read():
                if not tracker.try_claim(offset):
                    reading.close()
                    return
                claimed = offset
                yield self._element(what)
            _advance(watermark, reading.watermark(partition))
            # Offsets that no reader is given are done, too.
            passed = reading.position(partition) - 1
            if (passed > claimed and not tracker.try_claim(passed)) or passed >= left.stop - 1:
                reading.close()
                return
            claimed = passed
            if reading.is_at_end(partition) or time.monotonic() >= until:
                break
        _KEPT.put(self._topic, partition, reading)
        # Flink knows of whole seconds only.
        tracker.defer_remainder(Duration(1 if reading.is_at_end(partition) else 0))

    def _element(self, what: Row | Refused) -> Any:
        at = Timestamp(micros=what.time)
        if isinstance(what, Row):
            return TimestampedValue(what.row, at)
        self._rows.inc()
        self._rejected.inc()
        Metrics.counter(NAMESPACE, f"rejected: {what.record['reason']}").inc()
        return TaggedOutput(REJECTED, TimestampedValue(what.record, at))


def _advance(estimator: Any, micros: int | None) -> None:
    if micros is None:
        return
    now, at = estimator.current_watermark(), Timestamp(micros=clamped(micros))
    if now is None or at > now:
        estimator.set_watermark(at)


def elements(bounds: Mapping[int, tuple[int, int | None]]) -> Sequence[Partition]:
    """The partitions of a topic."""
    return [(number, start, FOREVER if stop is None else stop) for number, (start, stop) in bounds.items()]
