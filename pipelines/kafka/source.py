"""READ: a splittable step that reads the partitions of a topic, each with its own offset and watermark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils import windowed_value
from apache_beam.utils.timestamp import Duration, Timestamp

from crenel.pipelines.kafka.partition_reader import PartitionReader, Refused, Row
from crenel.pipelines.kafka.topics import Topic
from crenel.policy import Policy
from crenel.transforms._publish.emitter import NAMESPACE, REJECTED
from crenel.transforms._publish.timestamps import clamped

__all__ = ["Partition", "ReadPartition", "elements"]

#: The end of a range that has none.
_FOREVER = (1 << 63) - 1
#: Seconds after which an idle partition is read again. Flink rounds fractions down, to a busy loop.
_REST = 1
#: The most readers that a process keeps open between bundles.
_MOST_KEPT = 256
_WINDOWS = (GlobalWindow(),)

#: The number of a partition, and the offsets where reading begins and ends. Each partition is an element of its own:
#: runners distribute elements, not parts of one.
Partition = tuple[int, int, int]


def elements(bounds: Mapping[int, tuple[int, int | None]]) -> Sequence[Partition]:
    """The partitions of a topic."""
    return [(number, start, _FOREVER if stop is None else stop) for number, (start, stop) in bounds.items()]


class _Tracker(OffsetRestrictionTracker):
    """Offsets of a partition that are still to be read.

    The source claims the records of a read at once, by the last offset. So a range is split only behind what was
    claimed, never inside what may already be on its way.
    """

    def try_split(self, fraction_of_remainder: float) -> Any:
        return super().try_split(0) if fraction_of_remainder == 0 else None


class _Ranges(RestrictionProvider):
    """The offsets that are left of a partition. Checkpoints contain them."""

    def initial_restriction(self, element: Partition) -> OffsetRange:
        return OffsetRange(*element[1:])

    def create_tracker(self, restriction: OffsetRange) -> _Tracker:
        return _Tracker(restriction)

    def restriction_size(self, element: Partition, restriction: OffsetRange) -> int:
        return 1

    def truncate(self, element: Partition, restriction: OffsetRange) -> None:
        """Stop reading when the pipeline is drained."""


class _OpenReaders:
    """Readers that wait for their next bundle, by topic and partition."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[tuple[Topic, int], PartitionReader] = {}

    def take(self, topic: Topic, policy: Policy, partition: int, position: int) -> PartitionReader:
        """A reader at this position: a waiting one, or a new one."""
        with self._lock:
            reader = self._readers.pop((topic, partition), None)
        if reader is not None and reader.position != position:
            reader.close()
            reader = None
        return reader or PartitionReader(topic, policy, partition, position)

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

    def close(self, topic: Topic) -> None:
        """Close the waiting readers of a topic."""
        with self._lock:
            closed = [self._readers.pop(key) for key in list(self._readers) if key[0] == topic]
        for reader in closed:
            reader.close()


_OPEN = _OpenReaders()


class ReadPartition(beam.DoFn):
    """Reads a partition: rows with their event times. A message that is no row goes to the output `rejected`.

    Args:
        topic: The topic.
        policy: Names the field of the event time, and how far rows are out of order.
        seconds: How long one call reads, at most; 0 for one read. A long call delays checkpoints.
    """

    def __init__(self, topic: Topic, policy: Policy, seconds: float = 1.0) -> None:
        self._topic = topic
        self._policy = policy
        self._seconds = seconds

    def setup(self) -> None:
        """Create what cannot be pickled."""
        self._rows = Metrics.counter(NAMESPACE, "rows")
        self._rejected = Metrics.counter(NAMESPACE, "rejected")

    def teardown(self) -> None:
        """Close the connections."""
        _OPEN.close(self._topic)

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: Partition,
        tracker: Any = beam.DoFn.RestrictionParam(_Ranges()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        """Read until time is up, or the end is reached for now."""
        partition, left = element[0], tracker.current_restriction()
        if left.start >= left.stop:
            return
        reader = _OPEN.take(self._topic, self._policy, partition, left.start)
        claimed, until = left.start - 1, time.monotonic() + self._seconds
        while True:
            read = reader.read()
            # Offsets without a record for readers are claimed, too.
            last = min(reader.position, left.stop) - 1
            if last > claimed and not tracker.try_claim(last):
                reader.close()
                return  # the range was split before these records: another call reads them
            claimed = last
            for offset, content in read:
                if offset >= left.stop:
                    break
                if isinstance(content, Row):
                    yield windowed_value.create(content.row, content.time, _WINDOWS)
                else:
                    yield self._reject(content)
            _advance(watermark, reader.watermark())
            if last == left.stop - 1:
                reader.close()
                return
            if reader.is_at_end or time.monotonic() >= until:
                break
        _OPEN.put(self._topic, partition, reader)
        tracker.defer_remainder(Duration(_REST if reader.is_at_end else 0))

    def _reject(self, refused: Refused) -> TaggedOutput:
        self._rows.inc()
        self._rejected.inc()
        Metrics.counter(NAMESPACE, f"rejected: {refused.record['reason']}").inc()
        return TaggedOutput(REJECTED, windowed_value.create(refused.record, refused.time, _WINDOWS))


def _advance(estimator: Any, micros: int | None) -> None:
    """Raise the watermark; it never goes back."""
    if micros is None:
        return
    now, at = estimator.current_watermark(), Timestamp(micros=clamped(micros))
    if now is None or at > now:
        estimator.set_watermark(at)
