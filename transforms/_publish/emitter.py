"""From departures to elements of a pipeline: tagged, stamped, counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from hashlib import blake2b
from itertools import chain, repeat
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.utils import windowed_value
from numpy.typing import NDArray

from crenel.engine import Kind, Releases
from crenel.policy import Policy
from crenel.transforms._hold.holder import Departure
from crenel.transforms._pack.payloads import Form, alone
from crenel.transforms._publish.counts import Counts
from crenel.transforms._publish.publisher import Publisher, release_records
from crenel.transforms._publish.timestamps import stamps

NAMESPACE = "crenel"
PUBLISHED, SUPPRESSED, REJECTED, RELEASES = "published", "suppressed", "rejected", "releases"
TRACE, COUNTS = "trace", "counts"

#: Beam's distributions are of integers.
_MILLIONTH = 1_000_000
_NEVER = np.iinfo(np.int64).max
#: Columns of releases that have no value for each.
_OWN = ("rows", "offsets")


class Emitter:
    """Emits what leaves a holder, and counts it.

    Args:
        policy: What is to leave.
        secret: What the order of releases that leave at once is drawn from.
        record: What makes records of releases: `dict`, or `beam.Row`.
    """

    def __init__(self, policy: Policy, secret: bytes, record: Callable[..., Any] = dict) -> None:
        self._record = record
        digest = blake2b(secret, digest_size=16, person=b"crenel.emit").digest()
        self._key = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
        self._publisher = Publisher(policy)
        self._ranges = frozenset(policy.quasi_identifiers)
        self._has_deadlines = policy.delay is not None
        #: Whether rows are to leave in the order in which they came.
        self._reorders = bool(getattr(policy.parameters, "reorder", False))
        #: What moments are rounded up to.
        self.tick = policy.tick
        self._rows_of_kind = {
            Kind.CLUSTER: Metrics.counter(NAMESPACE, "published"),
            Kind.REUSE: Metrics.counter(NAMESPACE, "published"),
            Kind.SUPPRESSED: Metrics.counter(NAMESPACE, "suppressed"),
            Kind.SAMPLED_OUT: Metrics.counter(NAMESPACE, "sampled_out"),
        }
        self._alone = Metrics.counter(NAMESPACE, "alone")
        self._releases = Metrics.counter(NAMESPACE, "releases")
        self._size = Metrics.distribution(NAMESPACE, "group_size")
        self._loss = Metrics.distribution(NAMESPACE, "loss_millionths")
        self._delay = Metrics.distribution(NAMESPACE, "delay_ms")
        self._held = Metrics.distribution(NAMESPACE, "held_rows")
        self.start_bundle()

    def start_bundle(self) -> None:
        """Forget the counts of a bundle that failed."""
        self._counts: defaultdict[Any, Counts] = defaultdict(Counts)

    def finish_bundle(self) -> Iterator[TaggedOutput]:
        """Emit the counts of the bundle, one record per window."""
        for window, counts in self._counts.items():
            yield counted(counts, (window,))
        self.start_bundle()

    def hold(self, rows: int, window: Any) -> None:
        """Note how many rows a shard holds after a step."""
        self._held.update(rows)
        self._counts[window].hold(rows)

    def emit(self, departures: Iterable[Departure], shard: int, window: Any, earliest: int) -> Iterator[Any]:
        """Emit what leaves, as elements of `window` that are not before `earliest`, which is no row's event time."""
        # Chained, since each generator that hands an element on costs as much as a tenth of making it.
        return chain.from_iterable(self._emitted(departures, shard, window, earliest))

    def _emitted(
        self, departures: Iterable[Departure], shard: int, window: Any, earliest: int
    ) -> Iterator[Iterable[Any]]:
        latest = window.max_timestamp().micros
        for departure in departures:
            self._count(departure, window)
            at = stamps(departure.releases.moment, earliest, latest, self.tick)
            if departure.form is Form.ARROW and not self._has_deadlines:
                at = [max(at)] * len(at)  # nothing would be late: one batch
            mixed, at = self._mixed(departure, at, shard)
            yield from self._rows(mixed, at, (window,))
            yield self._records(mixed, at, shard, (window,))

    def _mixed(self, departure: Departure, at: list[int], shard: int) -> tuple[Departure, list[int]]:
        """The releases in the order of their stamps, those of one stamp in an order drawn in secret.

        As the engine decided on them they would tell more of the time than their stamps do.
        """
        releases = departure.releases
        if self._reorders or len(set(at)) == len(at):
            return departure, at
        first = int(departure.number[releases.rows[0]])
        # Another part of the sequence for each row that may be the first. To hash each release costs ten times as much.
        drawn = np.random.Philox(key=self._key, counter=np.array([0, first, shard, 0], dtype=np.uint64))
        order = np.lexsort([np.asarray(drawn.random_raw(len(at))), np.asarray(at)])
        return replace(departure, releases=_taken(releases, order)), np.take(at, order).tolist()

    def _rows(self, departure: Departure, at: list[int], windows: Any) -> Iterator[Iterable[Any]]:
        by = self._batches if departure.form is Form.ARROW else self._one_by_one
        return by(departure, at, windows)

    def _records(self, departure: Departure, at: list[int], shard: int, windows: Any) -> Iterator[Any]:
        for record, stamp in zip(release_records(departure.releases, shard), at, strict=True):
            yield _tagged(RELEASES, self._record(**record), stamp, windows)

    def _batches(self, departure: Departure, at: list[int], windows: Any) -> Iterator[Iterable[Any]]:
        kinds, sizes = departure.releases.kind, departure.releases.sizes
        published = self._publisher.published_batch(departure)
        stamped = self._stamped(published, np.where(self._publisher.leaves[kinds], sizes, 0), at)
        yield [windowed_value.create(batch, stamp, windows) for batch, stamp in stamped]
        if not np.any(kinds == Kind.SUPPRESSED):
            return
        suppressed = self._publisher.suppressed_batch(departure)
        stamped = self._stamped(suppressed, np.where(kinds == Kind.SUPPRESSED, sizes, 0), at)
        yield [_tagged(SUPPRESSED, batch, stamp, windows) for batch, stamp in stamped]

    def _one_by_one(self, departure: Departure, at: list[int], windows: Any) -> Iterator[Iterable[Any]]:
        stamp_of = np.repeat(at, departure.releases.sizes)
        kinds = np.repeat(departure.releases.kind, departure.releases.sizes)
        published: Iterable[Any] = self._publisher.published(departure)
        suppressed: Iterable[Any] = self._publisher.suppressed(departure)
        if departure.form is Form.ROW:
            published, suppressed = map(self._as_beam_row, published), map(self._as_beam_row, suppressed)
        leave = stamp_of[self._publisher.leaves[kinds]].tolist()
        # Without a step of Python for each row: there are as many stamps as rows.
        yield map(windowed_value.create, published, leave, repeat(windows))
        hidden = stamp_of[kinds == Kind.SUPPRESSED].tolist()
        yield [_tagged(SUPPRESSED, row, stamp, windows) for row, stamp in zip(suppressed, hidden, strict=True)]

    def _stamped(
        self, batch: pa.RecordBatch, sizes: NDArray[np.int64], at: list[int]
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The batch, cut where the next stamp would be after a deadline; `sizes` are its rows of each release."""
        if len(batch) == 0:
            return
        last = np.flatnonzero(np.diff(at, append=_NEVER))
        ends = np.cumsum(sizes)[last].tolist()
        for start, end, stamp in zip([0, *ends], ends, np.take(at, last).tolist(), strict=False):
            if start < end:
                # What leaves later is not to leave with it, in the memory behind a slice.
                yield batch if end - start == len(batch) else alone(batch.slice(start, end - start)), stamp

    def _as_beam_row(self, row: dict[str, Any]) -> beam.Row:
        """A published dict as `beam.Row`, its ranges too."""
        ranges = self._ranges
        return beam.Row(
            **{
                name: beam.Row(**value) if isinstance(value, dict) and name in ranges else value
                for name, value in row.items()
            }
        )

    def _count(self, departure: Departure, window: Any) -> None:
        self._counts[window].add(departure)
        releases = departure.releases
        sizes = releases.sizes
        for kind, rows in enumerate(np.bincount(releases.kind, sizes).tolist()):
            if rows:
                self._rows_of_kind[Kind(kind)].inc(int(rows))
        # 0 too, so that the figure is there to be looked at.
        self._alone.inc(departure.rows_alone)
        self._releases.inc(len(releases))
        late = np.repeat(releases.moment, sizes) - departure.time[releases.rows]
        for i in np.flatnonzero(releases.kind == Kind.CLUSTER).tolist():
            self._size.update(int(sizes[i]))
            self._loss.update(int(releases.loss[i] * _MILLIONTH))
        if len(late):
            self._delay.update(max(int(late.max()) // 1000, 0))


def _taken(releases: Releases, order: NDArray[np.intp]) -> Releases:
    """The releases, each with its rows, in this order."""
    sizes = releases.sizes[order]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    places = np.arange(offsets[-1]) + np.repeat(releases.offsets[:-1][order] - offsets[:-1], sizes)
    columns = {field.name: getattr(releases, field.name)[order] for field in fields(Releases) if field.name not in _OWN}
    return Releases(rows=releases.rows[places], offsets=offsets, **columns)


def counted(counts: Counts, windows: Any) -> TaggedOutput:
    """A record of counts; at the end of its windows, so that it is never late."""
    end = min(window.max_timestamp().micros for window in windows)
    return _tagged(COUNTS, counts.as_dict(), end, windows)


def _tagged(tag: str, value: Any, stamp: int, windows: Any) -> TaggedOutput:
    return TaggedOutput(tag, windowed_value.create(value, stamp, windows))
