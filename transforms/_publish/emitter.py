"""PUBLISH: departures become elements of a pipeline, with tags and timestamps, and are counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
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

from crenel.engine import Kind
from crenel.policy import Policy
from crenel.transforms._hold.shard_holder import Departure
from crenel.transforms._pack.arrow_tables import alone
from crenel.transforms._pack.nested_fields import colliding, plain_name
from crenel.transforms._pack.payloads import Form
from crenel.transforms._pack.row_batch import RowBatch
from crenel.transforms._pack.row_options import RowOptions
from crenel.transforms._publish.counts import LONGER, ROW_LOSS, WAITED, WAITS, Counts, waited_up_to
from crenel.transforms._publish.grouped_rows import LazyRows
from crenel.transforms._publish.owner_records import OwnerRecords
from crenel.transforms._publish.publisher import Publisher
from crenel.transforms._publish.row_order import RowOrder
from crenel.transforms._publish.timestamps import stamps

NAMESPACE = "crenel"
PUBLISHED, SUPPRESSED, REJECTED, RELEASES = "published", "suppressed", "rejected", "releases"
TRACE, COUNTS = "trace", "counts"

#: Beam's distributions are of integers.
_MILLIONTH = 1_000_000
#: Rows after which counts are emitted while a bundle goes on, for those who watch.
_OFTEN = 1 << 16
_NEVER = np.iinfo(np.int64).max


class Emitter:
    """Emits released rows, the owner's records of them, and counts.

    Args:
        policy: What is to be published.
        secret: The order of releases that are emitted at once is drawn from it.
        record: Makes records of releases: `dict`, or `beam.Row`.
        options: How rows are identified and ordered.
    """

    def __init__(
        self,
        policy: Policy,
        secret: bytes,
        record: Callable[..., Any] = dict,
        options: RowOptions = RowOptions(),  # noqa: B008 - frozen
    ) -> None:
        self._record = record
        self._owners = OwnerRecords(options.row_number, timed=not options.by_number)
        self._traces = options.trace
        self._order_column = options.order_column
        self._order = RowOrder(secret)
        self._at_end = options.at_end
        #: Whether a writer hides the order of all rows, so that there is none to hide here.
        self._order_is_hidden = options.at_end and options.order_column is not None
        digest = blake2b(secret, digest_size=16, person=b"crenel.emit").digest()
        self._key = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
        self._publisher = Publisher(policy)
        self._ranges = frozenset(policy.quasi_identifiers)
        self._has_deadlines = policy.delay is not None
        #: Whether rows are released in the order in which they came.
        self._reorders = policy.reorders
        #: Moments are rounded up to multiples of it.
        self.tick = policy.tick
        self._rows_of_kind = {
            Kind.CLUSTER: Metrics.counter(NAMESPACE, "published"),
            Kind.REUSE: Metrics.counter(NAMESPACE, "published"),
            Kind.SUPPRESSED: Metrics.counter(NAMESPACE, "suppressed"),
            Kind.SAMPLED_OUT: Metrics.counter(NAMESPACE, "sampled_out"),
            Kind.LEFT_OUT: Metrics.counter(NAMESPACE, "left_out"),
        }
        self._alone = Metrics.counter(NAMESPACE, "alone")
        self._releases = Metrics.counter(NAMESPACE, "releases")
        self._size = Metrics.distribution(NAMESPACE, "group_size")
        self._loss = Metrics.distribution(NAMESPACE, "loss_millionths")
        self._delay = Metrics.distribution(NAMESPACE, "delay_ms")
        self._held = Metrics.distribution(NAMESPACE, "held_rows")
        self._waits = [Metrics.counter(NAMESPACE, name) for name in (*map(waited_up_to, WAITS), LONGER)]
        self._waited = Metrics.counter(NAMESPACE, WAITED)
        self._row_loss = Metrics.counter(NAMESPACE, ROW_LOSS)
        self.start_bundle()

    def start_bundle(self) -> None:
        """Forget the counts of a bundle that failed."""
        self._counts: defaultdict[Any, Counts] = defaultdict(Counts)
        self._uncounted = 0

    def finish_bundle(self) -> Iterator[TaggedOutput]:
        """Emit the counts of the bundle, one record per window."""
        for window, counts in self._counts.items():
            yield counted(counts, (window,))
        self.start_bundle()

    def hold(self, rows: int, window: Any) -> None:
        """Note how many rows a shard holds after a step."""
        self._held.update(rows)
        self._counts[window].hold(rows)

    def refuse(self, rows: int, field: str, reason: str, window: Any) -> None:
        """Count rows that were refused after they had been packed."""
        self._counts[window].rejected[field, reason] += rows

    def stamp(self, moment: int, earliest: int, window: Any) -> int:
        """The timestamp of a record for the owner that belongs to no release."""
        latest = window.max_timestamp().micros
        return latest if self._at_end else stamps(np.array([moment]), earliest, latest, self.tick)[0]

    def place(self, shard: int, number: NDArray[np.int64], window: Any) -> NDArray[np.uint64]:
        """Hash rows of a shard by their numbers, for a writer that orders them."""
        return self._order.hashes(shard, number, window)

    def emit(self, departures: Iterable[Departure], shard: int, window: Any, earliest: int) -> Iterator[Any]:
        """Emit departures as elements of `window`, none before `earliest`, which must not be a row's event time."""
        # Chained: each further generator that passes an element on would add a tenth of the cost of making it.
        return chain.from_iterable(self._emitted(departures, shard, window, earliest))

    def _emitted(
        self, departures: Iterable[Departure], shard: int, window: Any, earliest: int
    ) -> Iterator[Iterable[Any]]:
        for departure in departures:
            self._count(departure, window)
            at = self._timestamps(departure, earliest, window.max_timestamp().micros)
            outputs = self._batches if departure.form.is_arrow else self._one_by_one
            if departure.form is Form.BATCH:
                outputs = self._row_batches
            yield from outputs(*self._mixed(departure, at, shard), shard, window)
            if self._uncounted >= _OFTEN:  # a bundle of bounded rows may have all of them
                yield list(self.finish_bundle())

    def _timestamps(self, departure: Departure, earliest: int, latest: int) -> list[int]:
        """The timestamp of each release."""
        if self._at_end:
            return [latest] * len(departure.releases)
        at = stamps(departure.releases.moment, earliest, latest, self.tick)
        if departure.form.is_arrow and not self._has_deadlines:
            return [max(at)] * len(at)  # nothing would be late: one batch
        return at

    def _mixed(self, departure: Departure, at: list[int], shard: int) -> tuple[Departure, list[int]]:
        """Order releases by timestamp, and those of one timestamp in an order drawn in secret.

        The order in which the engine decided on them would tell more of the time than their timestamps do.
        """
        releases = departure.releases
        if self._reorders or self._order_is_hidden or len(set(at)) == len(at):
            return departure, at
        first = int(departure.number[releases.rows[0]])
        # The number of the first row selects the part of the sequence. Hashing each release costs ten times as much.
        drawn = np.random.Philox(key=self._key, counter=np.array([0, first, shard, 0], dtype=np.uint64))
        order = np.lexsort([np.asarray(drawn.random_raw(len(at))), np.asarray(at)])
        mixed = replace(
            departure,
            releases=releases.take(order),
            release=departure.release[order],
            alone=departure.alone[order],
        )
        return mixed, np.take(at, order).tolist()

    def _batches(self, departure: Departure, at: list[int], shard: int, window: Any) -> Iterator[Iterable[Any]]:
        kinds, sizes, windows = departure.releases.kind, departure.releases.sizes, (window,)
        made = _as_table if departure.form is Form.TABLE else _as_batch
        publisher, end = self._publisher, max(at)
        published = publisher.published_batch(departure)
        published = self._placed(published, departure, publisher.published_places(departure), shard, window)
        stamped = self._stamped(published, np.where(publisher.leaves[kinds], sizes, 0), at)
        yield [windowed_value.create(made(batch), stamp, windows) for batch, stamp in stamped]
        if np.any(publisher.hidden[kinds]):
            suppressed = publisher.suppressed_batch(departure)
            suppressed = self._placed(suppressed, departure, publisher.suppressed_places(departure), shard, window)
            stamped = self._stamped(suppressed, np.where(publisher.hidden[kinds], sizes, 0), at)
            yield [_tagged(SUPPRESSED, made(batch), stamp, windows) for batch, stamp in stamped]
        if np.any(kinds != Kind.LEFT_OUT):
            yield [_tagged(RELEASES, made(self._owners.release_batch(departure.releases, shard)), end, windows)]
        if self._traces:
            traced = self._owners.trace_batch(departure, shard)
            traced = self._placed(traced, departure, departure.releases.rows, shard, window)
            yield [_tagged(TRACE, made(traced), end, windows)]

    def _one_by_one(self, departure: Departure, at: list[int], shard: int, window: Any) -> Iterator[Iterable[Any]]:
        windows = (window,)
        for tag, rows, stamp_of in self._outputs(departure, at, shard, window):
            if tag == PUBLISHED:
                # Without a step of Python for each row: there are as many stamps as rows.
                yield map(windowed_value.create, rows, stamp_of, repeat(windows))
            else:
                yield (_tagged(tag, row, stamp, windows) for row, stamp in zip(rows, stamp_of, strict=True))

    def _row_batches(self, departure: Departure, at: list[int], shard: int, window: Any) -> Iterator[Iterable[Any]]:
        for tag, rows, stamp_of in self._outputs(departure, at, shard, window):
            if stamp_of:
                batch = RowBatch(rows if isinstance(rows, LazyRows) else list(rows), stamp_of)
                made = _tagged(tag, batch, min(stamp_of), (window,))
                yield [made.value if tag == PUBLISHED else made]

    def _outputs(
        self, departure: Departure, at: list[int], shard: int, window: Any
    ) -> Iterator[tuple[str, Iterable[Any], list[int]]]:
        """Make the rows and records of each output, and their timestamps."""
        publisher = self._publisher
        stamp_of = np.repeat(at, departure.releases.sizes)
        kinds = np.repeat(departure.releases.kind, departure.releases.sizes)
        published: Iterable[Any] = publisher.published(departure)
        suppressed: Iterable[Any] = publisher.suppressed(departure)
        if self._order_column is not None:
            published = self._ordered(published, departure, publisher.published_places(departure), shard, window)
            suppressed = self._ordered(suppressed, departure, publisher.suppressed_places(departure), shard, window)
        if departure.form is Form.ROW:
            published, suppressed = map(self._as_beam_row, published), map(self._as_beam_row, suppressed)
        yield PUBLISHED, published, stamp_of[publisher.leaves[kinds]].tolist()
        yield SUPPRESSED, suppressed, stamp_of[publisher.hidden[kinds]].tolist()
        counted = departure.releases.kind != Kind.LEFT_OUT
        told = np.array(at, dtype=np.int64)[counted].tolist()
        yield RELEASES, self._released(departure, shard), told
        if self._traces:
            traced: Iterable[Any] = self._owners.trace(departure, shard)
            traced = self._ordered(traced, departure, departure.releases.rows, shard, window)
            yield TRACE, map(self.as_record, traced), stamp_of.tolist()

    def _released(self, departure: Departure, shard: int) -> LazyRows:
        count = int(np.count_nonzero(departure.releases.kind != Kind.LEFT_OUT))
        return LazyRows(count, lambda: map(self.as_record, self._owners.releases(departure, shard)))

    def _placed(
        self, batch: pa.RecordBatch, departure: Departure, places: NDArray[np.int64], shard: int, window: Any
    ) -> pa.RecordBatch:
        """The batch with the column that a writer orders it by, if there is to be one."""
        if self._order_column is None:
            return batch
        hashes = self._order.hashes(shard, departure.number[places], window)
        return batch.append_column(self._order_column, pa.array(hashes))

    def _ordered(
        self, rows: Iterable[dict[str, Any]], departure: Departure, places: NDArray[np.int64], shard: int, window: Any
    ) -> Iterable[dict[str, Any]]:
        """The rows with the column that a writer orders them by, if there is to be one."""
        if self._order_column is None:
            return rows
        hashes = self._order.hashes(shard, departure.number[places], window)
        # Schemas have no unsigned integers, and the order is the same.
        signed = (hashes ^ np.uint64(1 << 63)).view(np.int64).tolist()
        return ({**row, str(self._order_column): key} for row, key in zip(rows, signed, strict=True))

    def _stamped(
        self, batch: pa.RecordBatch, sizes: NDArray[np.int64], at: list[int]
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Cut the batch where the timestamp changes; `sizes` are its rows of each release."""
        if len(batch) == 0:
            return
        last = np.flatnonzero(np.diff(at, append=_NEVER))
        ends = np.cumsum(sizes)[last].tolist()
        for start, end, stamp in zip([0, *ends], ends, np.take(at, last).tolist(), strict=False):
            if start < end:
                # With memory of its own: a slice would take rows along that are released later.
                yield batch if end - start == len(batch) else alone(batch.slice(start, end - start)), stamp

    def _as_beam_row(self, row: dict[str, Any]) -> beam.Row:
        """Make a `beam.Row` of a published dict, and of its ranges."""
        ranges = self._ranges
        # The names of a row's fields cannot have dots.
        fields = {
            plain_name(name): beam.Row(**value) if isinstance(value, dict) and name in ranges else value
            for name, value in row.items()
        }
        if len(fields) < len(row):
            msg = f"Anonymize: rows of Beam cannot have all columns that the policy publishes: {colliding(row)}."
            raise ValueError(msg)
        return beam.Row(**fields)

    def as_record(self, record: dict[str, Any]) -> Any:
        """Give a record the form of all others: with a schema, if the rows have one."""
        return record if self._record is dict else self._record(**record)

    def _count(self, departure: Departure, window: Any) -> None:
        counts = self._counts[window]
        waits, waited, loss = counts.waits, counts.delay.total, counts.loss
        counts.add(departure)
        self._uncounted += len(departure.time)
        for counter, before, after in zip(self._waits, waits, counts.waits, strict=True):
            if after > before:
                counter.inc(after - before)
        self._waited.inc(round((counts.delay.total - waited) / 1000))
        self._row_loss.inc(round((counts.loss - loss) * _MILLIONTH))
        releases = departure.releases
        sizes = releases.sizes
        for kind, rows in enumerate(np.bincount(releases.kind, sizes).tolist()):
            if rows:
                self._rows_of_kind[Kind(kind)].inc(int(rows))
        # Also if it is 0, so that the metric exists.
        self._alone.inc(departure.rows_alone)
        self._releases.inc(int(np.count_nonzero(releases.kind != Kind.LEFT_OUT)))
        late = np.repeat(releases.moment, sizes) - departure.time[releases.rows]
        clusters = releases.kind == Kind.CLUSTER
        for size, loss in zip(
            sizes[clusters].tolist(), (releases.loss[clusters] * _MILLIONTH).astype(np.int64).tolist(), strict=True
        ):
            self._size.update(size)
            self._loss.update(loss)
        if len(late):
            self._delay.update(max(int(late.max()) // 1000, 0))


def _as_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _as_table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def counted(counts: Counts, windows: Any) -> TaggedOutput:
    """A record of counts; at the end of its windows, so that it is never late."""
    end = min(window.max_timestamp().micros for window in windows)
    return _tagged(COUNTS, counts.as_dict(), end, windows)


def _tagged(tag: str, value: Any, stamp: int, windows: Any) -> TaggedOutput:
    return TaggedOutput(tag, windowed_value.create(value, stamp, windows))
