"""What is left to read of partitions. Checkpoints hold it, as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from apache_beam.coders import Coder, TimestampCoder, TupleCoder, TupleSequenceCoder, VarIntCoder
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.core import RestrictionProvider, WatermarkEstimatorProvider
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp

__all__ = ["FOREVER", "Partition", "Partitions", "Range", "Tracker", "Watermarks", "elements"]

#: The end of a range that has none.
FOREVER = (1 << 63) - 1

#: The number of a partition, the offset of its next record, and the offset where reading ends.
Range = tuple[int, int, int]

#: An element of the source: a range, how many partitions the topic had at the start, and the topic's id. Each partition
#: is an element of its own, because runners distribute elements, not parts of one. It also reads partitions that are
#: added later, those whose number leaves the same remainder.
Partition = tuple[int, int, int, int, str]


def elements(bounds: Mapping[int, tuple[int, int | None]], identity: str = "") -> Sequence[Partition]:
    """The elements of a topic.

    Args:
        bounds: Where reading begins and ends, by partition.
        identity: The topic's id, if it has one.
    """
    return [
        (number, start, FOREVER if stop is None else stop, len(bounds), identity)
        for number, (start, stop) in bounds.items()
    ]


class Tracker(RestrictionTracker):
    """Offsets of partitions that are still to be read.

    A claim names the offset after the last record that was read of a partition, which may be a new one. The source
    claims the records of a read at once, so ranges are split only after what was claimed, never inside what may already
    be on its way.
    """

    def __init__(self, ranges: Sequence[Range]) -> None:
        self._ranges = {number: (start, stop) for number, start, stop in ranges}
        self._next = {number: start for number, start, _ in ranges}
        self._is_split = False

    def current_restriction(self) -> tuple[Range, ...]:
        """Everything that this call reads, or has read."""
        return tuple((number, start, stop) for number, (start, stop) in self._ranges.items())

    def try_claim(self, position: Mapping[int, int]) -> bool:
        """Claim everything below these offsets, by partition."""
        if self._is_split:
            return False
        for number, offset in position.items():
            self._ranges.setdefault(number, (offset, FOREVER))
            self._next[number] = offset
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[tuple[Range, ...], tuple[Range, ...]] | None:
        """Leave all that was not claimed to another call."""
        rest = self._rest()
        if fraction_of_remainder != 0 or self._is_split or not rest:
            return None
        self._is_split = True
        self._ranges = {number: (start, self._next[number]) for number, (start, _) in self._ranges.items()}
        return self.current_restriction(), rest

    def _rest(self) -> tuple[Range, ...]:
        return tuple((n, self._next[n], stop) for n, (_, stop) in self._ranges.items() if self._next[n] < stop)

    def check_done(self) -> None:
        """Check that nothing is left."""
        if self._rest():
            msg = "records are left that were not claimed."
            raise ValueError(msg)

    def current_progress(self) -> RestrictionProgress:
        """How many records were claimed. How many are left is not known."""
        done = sum(self._next[number] - start for number, (start, _) in self._ranges.items())
        return RestrictionProgress(completed=done, remaining=1 if self._rest() else 0)

    def is_bounded(self) -> bool:
        """Whether reading ends."""
        return all(stop < FOREVER for _, stop in self._ranges.values())


class Partitions(RestrictionProvider):
    """The ranges of an element."""

    def initial_restriction(self, element: Partition) -> tuple[Range, ...]:
        """At first, the partition alone."""
        return (element[:3],)

    def create_tracker(self, restriction: Sequence[Range]) -> Tracker:
        """Track what is read."""
        return Tracker(restriction)

    def restriction_size(self, element: Partition, restriction: Sequence[Range]) -> int:
        """All ranges count the same."""
        return 1

    def restriction_coder(self) -> Coder:
        """Numbers: what is restored is never code."""
        return TupleSequenceCoder(TupleCoder([VarIntCoder()] * 3))

    def truncate(self, element: Partition, restriction: Sequence[Range]) -> None:
        """Stop reading when the pipeline is drained."""


class Watermarks(WatermarkEstimatorProvider):
    """Watermarks that the source sets, and that checkpoints hold."""

    def initial_estimator_state(self, element: Any, restriction: Any) -> Timestamp:
        """Nothing is known yet."""
        return MIN_TIMESTAMP

    def create_watermark_estimator(self, estimator_state: Timestamp) -> ManualWatermarkEstimator:
        """Go on from where it was."""
        return ManualWatermarkEstimator(estimator_state)

    def estimator_state_coder(self) -> Coder:
        """A time: what is restored is never code."""
        return TimestampCoder()
