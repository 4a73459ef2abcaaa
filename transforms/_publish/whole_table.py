"""PUBLISH: the tables of all rows that leave, made at the end, for a caller that waits for them anyway.

A pipeline makes the rows of each release as it comes, and a writer that hides their order copies them all again. Here a
row is made once, of the box of its release, in the place that its hash gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crenel.engine import Releases
from crenel.policy import Policy
from crenel.transforms._hold.shard_holder import Departure
from crenel.transforms._pack.arrow_tables import concat, own
from crenel.transforms._pack.frames import SharedRows
from crenel.transforms._publish.counts import Counts
from crenel.transforms._publish.owner_records import RELEASES_SCHEMA, OwnerRecords
from crenel.transforms._publish.publisher import Publisher
from crenel.transforms._publish.row_order import RowOrder, order_of

__all__ = ["WholeTable"]

#: Rows after which a new record of counts begins, as in a pipeline. How floats are grouped changes their sum: so the
#: loss is the same to the last bit.
_COUNTED_TOGETHER = 1 << 16


class WholeTable:
    """Gathers the departures of all shards, and makes a table of each output.

    Args:
        policy: What is to be published.
        order: Hashes rows. They are sorted by their hashes.
        owners: Makes the records of releases.
        window: The window that all rows are in.
    """

    def __init__(self, policy: Policy, order: RowOrder, owners: OwnerRecords, window: Any) -> None:
        self._publisher = Publisher(policy)
        self._order = order
        self._owners = owners
        self._window = window
        self._shards: dict[int, _Left] = {}
        self._counted = 0
        #: What became of the rows.
        self.counts = [Counts()]

    def __repr__(self) -> str:
        """Show sizes, never values."""
        return f"WholeTable({sum(len(one) for left in self._shards.values() for one in left.releases)} releases)"

    def add(self, departure: Departure, shard: int) -> None:
        """Take what has left a shard."""
        self._count(departure)
        rows = departure.releases.rows
        left = self._shards.setdefault(shard, _Left())
        left.releases.append(replace(departure.releases, rows=departure.number[rows]))
        left.kept.append(self._publisher.kept_of(departure, rows))
        hidden = self._publisher.suppressed_places(departure)
        if len(hidden):
            left.exact.append(departure.qi[hidden])

    def hold(self, rows: int) -> None:
        """Note how many rows a shard holds after a step."""
        self.counts[-1].hold(rows)

    def published(self, given: pa.Schema) -> SharedRows:
        """Make the published rows, of rows of the given schema."""
        return self._sorted([self._boxed(shard, left) for shard, left in self._shards.items()], given)

    def suppressed(self, given: pa.Schema) -> SharedRows:
        """Make the rows that are suppressed, with their exact values: for the owner alone."""
        return self._sorted([self._exact(shard, left) for shard, left in self._shards.items() if left.exact], given)

    def releases(self) -> pa.Table:
        """Make the records of all releases, shard by shard."""
        batches = [self._owners.release_batch(left.joined(), shard) for shard, left in self._shards.items()]
        return pa.Table.from_batches(batches, RELEASES_SCHEMA)

    def _count(self, departure: Departure) -> None:
        self.counts[-1].add(departure)
        self._counted += len(departure.time)
        if self._counted >= _COUNTED_TOGETHER:
            self.counts.append(Counts())
            self._counted = 0

    def _boxed(self, shard: int, left: _Left) -> _Boxed:
        releases = left.joined()
        leave = self._publisher.leaves[releases.kind]
        chosen = _places(releases, leave)
        return self._rows(shard, left, chosen, releases.lo[leave], releases.hi[leave], releases.sizes[leave])

    def _exact(self, shard: int, left: _Left) -> _Boxed:
        releases, points = left.joined(), np.concatenate(left.exact)
        chosen = _places(releases, self._publisher.hidden[releases.kind])
        return self._rows(shard, left, chosen, points, points, np.ones(len(points), dtype=np.int64))

    def _rows(self, shard: int, left: _Left, chosen: Any, lo: Any, hi: Any, sizes: Any) -> _Boxed:
        """Choose rows among those that have left. Each box is that of the next rows, as many as `sizes` says."""
        hashes = self._order.hashes(shard, left.joined().rows[chosen], self._window)
        kept = left.kept_table()
        return _Boxed(lo, hi, sizes, hashes, kept if isinstance(chosen, slice) else kept.take(pa.array(chosen)))

    def _sorted(self, parts: Sequence[_Boxed], given: pa.Schema) -> SharedRows:
        """Sort rows by their hashes."""
        parts = [part for part in parts if len(part.hashes)]
        if not parts:
            return self._no_rows(given)
        rows = _Boxed.join(parts)
        order = order_of(rows.hashes)
        box_of = pa.array(np.repeat(np.arange(len(rows.sizes), dtype=np.int32), rows.sizes)[order])
        others = {}
        if rows.kept.num_columns:
            kept = rows.kept.take(pa.array(order))
            for name, column in zip(kept.schema.names, kept.columns, strict=True):
                others[name] = pa.chunked_array([own(chunk) for chunk in column.chunks], column.type)
        return SharedRows(self._publisher.boxes(rows.lo, rows.hi), box_of, others)

    def _no_rows(self, given: pa.Schema) -> SharedRows:
        shared = {name: pa.array([], kind) for name, kind in self._publisher.fields()}
        none = self._publisher.schema(given).empty_table()
        others = {name: none.column(name) for name in none.schema.names if name not in shared}
        return SharedRows(shared, pa.array([], pa.int32()), others)


@dataclass(eq=False, repr=False)
class _Left:
    """What has left one shard."""

    #: The releases. `rows` holds the rows' numbers in the shard.
    releases: list[Releases] = field(default_factory=list)
    #: The columns that are published unchanged, of all rows.
    kept: list[pa.Table] = field(default_factory=list)
    #: The coordinates of rows that are suppressed.
    exact: list[NDArray[np.float64]] = field(default_factory=list)

    def joined(self) -> Releases:
        """All releases."""
        self.releases = [Releases.concat(self.releases)]
        return self.releases[0]

    def kept_table(self) -> pa.Table:
        """The kept columns of all rows, in the order of the releases."""
        if len(self.kept) > 1:
            self.kept = [concat(self.kept).combine_chunks()]
        return self.kept[0]


@dataclass(eq=False, repr=False)
class _Boxed:
    """Rows and their boxes. Each box is that of the next rows, as many as `sizes` says."""

    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    sizes: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    kept: pa.Table

    @classmethod
    def join(cls, parts: Sequence[_Boxed]) -> _Boxed:
        if len(parts) == 1:
            return parts[0]
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS}
        return cls(**arrays, kept=concat([part.kept for part in parts]).combine_chunks())


_ARRAYS = ("lo", "hi", "sizes", "hashes")


def _places(releases: Releases, chosen: NDArray[np.bool_]) -> NDArray[np.int64] | slice:
    """Find the rows of some releases among all; without a copy if these are all of them."""
    return slice(None) if chosen.all() else np.flatnonzero(np.repeat(chosen, releases.sizes))
