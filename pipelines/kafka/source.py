"""READ: a splittable step that reads the partitions of a topic, each with its own offset and watermark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils import windowed_value
from apache_beam.utils.timestamp import Duration, Timestamp

from crenel.pipelines.kafka.committed_offsets import OFFSETS
from crenel.pipelines.kafka.messages.output_fit import OutputFit
from crenel.pipelines.kafka.partition_ranges import FOREVER, Partition, Partitions, Watermarks
from crenel.pipelines.kafka.partition_reader import PartitionReader, Read, Refused
from crenel.pipelines.kafka.topic_watch import TopicWatch
from crenel.pipelines.kafka.topics import Topic
from crenel.pipelines.metrics.live_figures import Tap
from crenel.policy import Policy
from crenel.runners import JobFailed
from crenel.transforms._publish.emitter import NAMESPACE, REJECTED
from crenel.transforms._publish.timestamps import clamped

__all__ = ["IGNORED", "ReadPartition"]

#: The output that has how many messages have no row, where there is an envelope around rows.
IGNORED = "ignored"

#: Seconds after which an idle partition is read again. Flink rounds fractions down, to a busy loop.
_REST = 1
#: By this fraction of the time for which rows are held, partitions may run ahead of each other.
_FRACTION = 8
#: The most readers that a process keeps open between bundles.
_MOST_KEPT = 256
_WINDOWS = (GlobalWindow(),)
#: The event time of offsets, which have none.
_NOW = GlobalWindow().start.micros


class _OpenReaders:
    """Readers that wait for their next bundle, by topic and partition."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[tuple[Topic, int], PartitionReader] = {}

    def take(
        self, topic: Topic, policy: Policy, partition: int, position: int, fit: OutputFit | None, span: int | None
    ) -> PartitionReader:
        """A reader at this position: a waiting one, or a new one."""
        with self._lock:
            reader = self._readers.pop((topic, partition), None)
        if reader is not None and reader.position != position:
            reader.close()
            reader = None
        return reader or PartitionReader(topic, policy, partition, position, fit, span=span)

    def put(self, topic: Topic, partition: int, reader: PartitionReader) -> None:
        """Keep a reader open; too many close the one that has waited longest."""
        with self._lock:
            closed = [self._readers.pop((topic, partition), None)]
            self._readers[topic, partition] = reader
            if len(self._readers) > _MOST_KEPT:
                closed.append(self._readers.pop(next(iter(self._readers))))
        for old in closed:
            if old is not None:
                old.close()

    def waiting(self, topic: Topic) -> int:
        """Count the waiting readers of a topic."""
        with self._lock:
            return sum(of == topic for of, _ in self._readers)

    def close(self, topic: Topic) -> None:
        """Close the waiting readers of a topic."""
        with self._lock:
            closed = [self._readers.pop(key) for key in list(self._readers) if key[0] == topic]
        for reader in closed:
            reader.close()


_OPEN = _OpenReaders()


class ReadPartition(beam.DoFn):
    """Reads a partition: rows with their event times, many in one element.

    A message that is no row, and a row that could not be published, go to the output `rejected`. How far each partition
    is read goes to the output `offsets`, if the topic has a group. If the topic has envelopes, the number of messages
    without a row goes to `ignored`.

    Each bundle ends with a question to the broker: is it still the same topic, and are there more partitions? If the
    topic is another, the bundle fails, and nothing that was read of it goes on.

    Args:
        topic: The topic.
        policy: Names the field of the event time, and how far rows are out of order.
        seconds: How long this process reads until it has called each of its partitions once, at most: a checkpoint
            waits for all of them, and so does the watermark. 0 for one read a call.
        output: The topic that rows are published to, if it is a topic.
        tap: Where a run on this machine reports what is not read yet.
    """

    def __init__(
        self,
        topic: Topic,
        policy: Policy,
        seconds: float = 1.0,
        output: Topic | None = None,
        tap: Tap | None = None,
    ) -> None:
        self._tap = tap
        self._topic = topic
        self._policy = policy
        self._seconds = seconds
        self._output = output
        self._watch: TopicWatch | None = None
        #: Whether the bundle has read anything; and how many partitions there were when the broker was last asked.
        self._has_read = False
        self._partitions = 0

    def setup(self) -> None:
        """Create what cannot be pickled."""
        self._rows = Metrics.counter(NAMESPACE, "rows")
        self._rejected = Metrics.counter(NAMESPACE, "rejected")
        self._ignored = Metrics.counter(NAMESPACE, "ignored")
        self._fit = None if self._output is None else OutputFit(self._policy, self._output)

    def start_bundle(self) -> None:
        """Forget a bundle that failed."""
        self._has_read = False

    def finish_bundle(self) -> None:
        """Make sure that all of the bundle came from the topic that the run began with, as far as the broker answers.

        Raises:
            InputLost: the topic was deleted, or it is another of the same name.
        """
        if self._watch is None or not self._has_read:
            return
        try:
            self._partitions = self._watch.look() or self._partitions
        except BaseException:
            _OPEN.close(self._topic)
            raise

    def teardown(self) -> None:
        """Close the connections."""
        _OPEN.close(self._topic)

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: Partition,
        tracker: Any = beam.DoFn.RestrictionParam(Partitions()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(Watermarks()),
    ) -> Iterator[Any]:
        """Read until time is up, or all that is known of was read."""
        readers: dict[int, PartitionReader] = {}
        # A longer call would read on anyway.
        span = None if self._seconds else _span(self._policy, element)
        try:
            for number, start, stop in tracker.current_restriction():
                if start < stop:
                    readers[number] = _OPEN.take(self._topic, self._policy, number, start, self._fit, span)
            yield from self._read(element, tracker, watermark, readers)
        except BaseException:
            for reader in readers.values():
                reader.close()
            raise

    def _read(
        self, element: Partition, tracker: Any, watermark: Any, readers: dict[int, PartitionReader]
    ) -> Iterator[Any]:
        stops = {number: stop for number, _, stop in tracker.current_restriction()}
        watch, until = self._watch_of(element), time.monotonic() + self._seconds / (1 + _OPEN.waiting(self._topic))
        while readers:
            for number, reader in list(readers.items()):
                read = self._next(reader, stops[number], watch)
                # Offsets without a record for readers are claimed, too.
                behind = min(reader.position, stops[number])
                if not tracker.try_claim({number: behind}):
                    for taken in readers.values():
                        taken.close()
                    return  # the ranges were split before these records: another call reads them
                yield from self._emit(read)
                if behind == stops[number]:
                    yield from self._tell(number, behind)
                    readers.pop(number).close()
            _advance(watermark, [reader.watermark() for reader in readers.values()])
            if all(reader.is_caught_up for reader in readers.values()) or time.monotonic() >= until:
                break
        if not readers:
            if watch is not None and stops:
                watch.confirm()
            return
        self._has_read = True
        tracker.try_claim(dict.fromkeys(_added(element, self._partitions, stops), 0))
        for number, reader in readers.items():
            Metrics.gauge(NAMESPACE, f"lag {number}").set(reader.lag)
            if self._tap is not None:
                self._tap.set_lag(number, reader.lag)
            if reader.has_news():
                yield from self._tell(number, reader.position)
            _OPEN.put(self._topic, number, reader)
        has_more = not all(reader.is_caught_up for reader in readers.values())
        tracker.defer_remainder(Duration(0 if has_more else _REST))

    def _watch_of(self, element: Partition) -> TopicWatch | None:
        """The watch over the topic that this element is of; None if the broker gave the topic no id."""
        identity = element[4]
        if self._watch is None and identity:
            self._watch = TopicWatch(self._topic, identity)
        return self._watch

    def _next(self, reader: PartitionReader, stop: int, watch: TopicWatch | None) -> Read:
        try:
            return reader.read(stop)
        except JobFailed:
            if watch is not None:
                watch.look()  # if this is another topic, that is the reason
            raise

    def _emit(self, read: Read) -> Iterator[Any]:
        if read.rows:
            yield windowed_value.create(read.rows, min(read.rows.times), _WINDOWS)
        yield from map(self._reject, read.refused)
        if read.ignored:
            self._ignored.inc(read.ignored)
            yield TaggedOutput(IGNORED, windowed_value.create(read.ignored, _NOW, _WINDOWS))

    def _tell(self, number: int, offset: int) -> Iterator[TaggedOutput]:
        """Tell how far a partition is read."""
        if self._topic.group:
            yield TaggedOutput(OFFSETS, windowed_value.create((number, offset), _NOW, _WINDOWS))

    def _reject(self, refused: Refused) -> TaggedOutput:
        self._rows.inc()
        self._rejected.inc()
        Metrics.counter(NAMESPACE, f"rejected: {refused.record['reason']}").inc()
        return TaggedOutput(REJECTED, windowed_value.create(refused.record, refused.time, _WINDOWS))


def _span(policy: Policy, element: Partition) -> int | None:
    """How much event time one read may take: a partition that is alone is ahead of no other.

    What is read to an end has the watermark for its clock. Rows of a partition that is ahead are held for longer then,
    and no row is late.
    """
    _, _, stop, at_start, _ = element
    if policy.delay is None or at_start == 1:
        return None
    return max(policy.disorder, policy.delay if stop < FOREVER else policy.delay // _FRACTION)


def _added(element: Partition, partitions: int, known: Mapping[int, int]) -> list[int]:
    """The partitions that were added to the topic, and that the reader of this element takes over."""
    number, _, stop, at_start, _ = element
    if stop < FOREVER:  # only what was there is asked for
        return []
    return [new for new in range(number + at_start, partitions, at_start) if new not in known]


def _advance(estimator: Any, watermarks: list[int | None]) -> None:
    """Raise the watermark to that of the partition that is furthest behind; it never goes back."""
    known = [micros for micros in watermarks if micros is not None]
    if not known or len(known) < len(watermarks):
        return
    at = Timestamp(micros=clamped(min(known)))
    if at > estimator.current_watermark():
        estimator.set_watermark(at)
