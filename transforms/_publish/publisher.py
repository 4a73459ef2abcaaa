"""PUBLISH: the columns of released rows, made of boxes and payloads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crenel.engine import Kind, Releases
from crenel.policy import OnSuppress, Policy
from crenel.policy.quasi_identifiers import Numeric, QuasiIdentifier, Range
from crenel.transforms._hold.shard_holder import Departure
from crenel.transforms._pack.arrow_tables import own
from crenel.transforms._pack.nested_fields import flattened
from crenel.transforms._pack.payloads import Batch, Objects
from crenel.transforms._pack.perturb import published_as_floats, published_as_text
from crenel.transforms._publish.grouped_rows import GroupedRows, LazyRows

#: Published values that are cached, per quasi-identifier.
_CACHE = 65_536


class Publisher:
    """Turns departures into published rows, in the order in which they are released."""

    def __init__(self, policy: Policy) -> None:
        self._names = tuple(policy.quasi_identifiers)
        self._columns = [_Column(qi) for qi in policy.quasi_identifiers.values()]
        self._kept = (*policy.sensitive, *policy.publish)
        self._floats = published_as_floats(policy)
        self._texts = published_as_text(policy)
        #: By kind, whether the rows of such a release are published.
        self.leaves = np.zeros(len(Kind), dtype=bool)
        self.leaves[[Kind.CLUSTER, Kind.REUSE]] = True
        #: By kind, whether the owner gets them as suppressed: no group was found for them, or `once_per` left them out.
        self.hidden = np.zeros(len(Kind), dtype=bool)
        self.hidden[[Kind.SUPPRESSED, Kind.LEFT_OUT]] = True
        self.leaves[Kind.SUPPRESSED] = policy.on_suppress is OnSuppress.STAR

    def published(self, departure: Departure) -> GroupedRows:
        """Make the published rows."""
        releases = departure.releases
        leave = self.leaves[releases.kind]
        rows = _objects(departure).take(_rows_of(releases, leave)).under(self._kept)
        lo, hi = releases.lo[leave], releases.hi[leave]
        spans = zip(*(column.values(lo[:, d], hi[:, d]) for d, column in enumerate(self._columns)), strict=True)
        boxes = [dict(zip(self._names, values, strict=True)) for values in spans]
        return GroupedRows(boxes, releases.sizes[leave].tolist(), dict(zip(self._kept, rows.columns, strict=True)))

    def suppressed(self, departure: Departure) -> LazyRows:
        """Make the rows that are suppressed, with their exact values: for the owner alone."""
        hidden, objects = self.suppressed_places(departure), _objects(departure)
        return LazyRows(
            len(hidden), lambda: self.exact(departure.qi[hidden], objects.take(hidden).under(self._kept).rows())
        )

    def exact(self, qi: NDArray[np.float64], kept: Iterable[Sequence[Any]]) -> Iterator[dict[str, Any]]:
        """Make rows with their exact values: for the owner alone.

        Args:
            qi: Their coordinates.
            kept: For each row the values of the sensitive columns, and of those that are published as they are.
        """
        for point, values in zip(qi, kept, strict=True):
            row = {n: c.value(x, x) for n, c, x in zip(self._names, self._columns, point.tolist(), strict=True)}
            row.update(zip(self._kept, values, strict=True))
            yield row

    def published_batch(self, departure: Departure) -> pa.RecordBatch:
        """Make the published rows, as Arrow."""
        releases = departure.releases
        leave = self.leaves[releases.kind]
        sizes = releases.sizes[leave]
        places = self.published_places(departure)
        return self._batch(departure, releases.lo[leave], releases.hi[leave], sizes, places)

    def published_places(self, departure: Departure) -> NDArray[np.int64]:
        """Find the places of published rows in the departure."""
        return _rows_of(departure.releases, self.leaves[departure.releases.kind])

    def suppressed_batch(self, departure: Departure) -> pa.RecordBatch:
        """Make the rows that are suppressed, with their exact values: for the owner alone."""
        places = self.suppressed_places(departure)
        exact = departure.qi[places]
        return self._batch(departure, exact, exact, np.ones(len(places), dtype=np.int64), places)

    def suppressed_places(self, departure: Departure) -> NDArray[np.int64]:
        """Find the places of suppressed rows in the departure."""
        return _rows_of(departure.releases, self.hidden[departure.releases.kind])

    def _batch(
        self,
        departure: Departure,
        lo: NDArray[np.float64],
        hi: NDArray[np.float64],
        sizes: NDArray[np.int64],
        places: NDArray[np.int64],
    ) -> pa.RecordBatch:
        """Make rows from boxes. Each box is that of the next rows, as many as `sizes` says."""
        arrays = self.boxes(lo, hi)
        if len(sizes) < len(places):  # to make the values of boxes once, and repeat them, takes a third of the time
            box_of = pa.array(np.repeat(np.arange(len(sizes)), sizes))
            arrays = {name: boxes.take(box_of) for name, boxes in arrays.items()}
        kept = self.kept_of(departure, places).combine_chunks()
        for name, column in zip(kept.schema.names, kept.columns, strict=True):
            arrays[name] = own(column.chunk(0)) if column.num_chunks else pa.array([], column.type)
        return pa.RecordBatch.from_pydict(arrays)

    def boxes(self, lo: NDArray[np.float64], hi: NDArray[np.float64]) -> dict[str, pa.Array]:
        """Make the published values of boxes, by quasi-identifier."""
        return {
            name: column.array(lo[:, d], hi[:, d])
            for d, (name, column) in enumerate(zip(self._names, self._columns, strict=True))
        }

    def kept_of(self, departure: Departure, places: NDArray[np.int64]) -> pa.Table:
        """Choose rows of a departure, and their columns that are published unchanged: none where there are none."""
        payload = departure.payload
        if not isinstance(payload, Batch):
            message = "published_batch: the rows must have come as Arrow."
            raise TypeError(message)
        kept = [name for name in self._kept if name in payload.table.schema.names]
        return payload.table.select(kept).take(pa.array(places)) if kept else pa.table({})

    def star(self) -> dict[str, Any]:
        """Make the row that a suppressed row is published as, if it is: every quasi-identifier at its widest."""
        return {name: column.widest() for name, column in zip(self._names, self._columns, strict=True)}

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Tell the schema of published batches, for rows of the given schema: a sink needs it beforehand."""
        given = flattened(given.empty_table()).schema
        types = dict(self.fields())
        types |= {name: given.field(name).type for name in self._kept if name in given.names}
        types |= {name: pa.float64() for name in self._floats if name in given.names}
        types |= {name: pa.string() for name in self._texts if name in given.names}
        return pa.schema(list(types.items()))

    def fields(self) -> list[tuple[str, pa.DataType]]:
        """List the quasi-identifiers and their published types."""
        return [(n, c.type) for n, c in zip(self._names, self._columns, strict=True)]


class _Column:
    """The published values of one quasi-identifier, cached."""

    def __init__(self, qi: QuasiIdentifier) -> None:
        self._qi = qi
        self._known: dict[tuple[float, float], Any] = {}
        lo = qi.geometry.widest()[0]
        point = 0.0 if math.isinf(lo) else lo
        self.type = pa.infer_type([self.value(point, point)])

    def widest(self) -> Any:
        """Publish the whole domain."""
        return self.value(*self._qi.geometry.widest())

    def value(self, lo: float, hi: float) -> Any:
        """Publish a span: a range becomes a struct of `lo` and `hi`. NaN becomes None: it is not published."""
        if lo != lo:  # noqa: PLR0124 - NaN
            return None
        key = (lo, hi)
        if key in self._known:
            found = self._known[key]
        else:
            found = self._qi.publish(lo, hi)
            if isinstance(found, Range):
                found = {"lo": found.lo, "hi": found.hi}
            if len(self._known) >= _CACHE:
                self._known.clear()
            self._known[key] = found
        return found

    def values(self, lo: NDArray[np.float64], hi: NDArray[np.float64]) -> list[Any]:
        return [self.value(a, b) for a, b in zip(lo.tolist(), hi.tolist(), strict=True)]

    def array(self, lo: NDArray[np.float64], hi: NDArray[np.float64]) -> pa.Array:
        """Publish spans as Arrow; numbers without a Python object each."""
        if type(self._qi) is Numeric:
            unpublished = np.isnan(lo) | (lo == self._qi.missing_at)
            lo, hi = self._qi.ends(lo, hi)
            mask = pa.array(unpublished) if unpublished.any() else None
            return pa.StructArray.from_arrays([_ends(lo), _ends(hi)], ["lo", "hi"], mask=mask)
        spans, codes = _distinct(lo, hi)
        values = pa.array([self.value(a, b) for a, b in spans], self.type)
        return values.take(pa.array(codes))


def _ends(ends: NDArray[np.float64]) -> pa.Array:
    """Make an infinite end null."""
    nowhere = ~np.isfinite(ends)
    return pa.array(ends, mask=nowhere if nowhere.any() else None)


def _distinct(lo: NDArray[np.float64], hi: NDArray[np.float64]) -> tuple[list[tuple[float, float]], NDArray[np.int64]]:
    """Find the different spans, and which of them each row has; rows of a release lie together, so runs suffice."""
    if len(lo) == 0:
        return [], np.zeros(0, dtype=np.int64)
    both_missing = np.isnan(lo[1:]) & np.isnan(lo[:-1])
    starts = np.concatenate([[True], ((lo[1:] != lo[:-1]) | (hi[1:] != hi[:-1])) & ~both_missing])
    runs = np.flatnonzero(starts)
    return list(zip(lo[runs].tolist(), hi[runs].tolist(), strict=True)), np.cumsum(starts) - 1


def _rows_of(releases: Releases, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    return releases.rows if chosen.all() else releases.rows[np.repeat(chosen, releases.sizes)]


def _objects(departure: Departure) -> Objects:
    if not isinstance(departure.payload, Objects):
        message = "published: the rows must have come one by one."
        raise TypeError(message)
    return departure.payload
