"""Records for the owner: of releases, and of which row left in which. No box, and no value of a person.

Rows that came in Arrow have records in Arrow, of the schemas below; all others have one record at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

import numpy as np
import pyarrow as pa
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from numpy.typing import NDArray

from crenel.engine import Kind, Releases
from crenel.transforms._hold.shard_holder import Departure
from crenel.transforms._pack.payloads import Batch, Objects

__all__ = ["REFUSED", "RELEASES_SCHEMA", "RELEASE_FIELDS", "TRACE_FIELDS", "TRACE_SCHEMA", "OwnerRecords"]

#: The record of a release.
RELEASE_FIELDS = (
    ("shard", int),
    ("kind", str),
    ("rows", int),
    ("persons", int),
    ("loss", float),
    ("moment", Optional[Timestamp]),  # noqa: UP045 - Beam makes no schema of `Timestamp | None`
    ("arrivals", int),
    ("group", int),
)
_MOMENT = pa.timestamp("us", tz="UTC")
RELEASES_SCHEMA = pa.schema(
    [
        ("shard", pa.int64()),
        ("kind", pa.string()),
        ("rows", pa.int64()),
        ("persons", pa.int64()),
        ("loss", pa.float64()),
        ("moment", _MOMENT),
        ("arrivals", pa.int64()),
        ("group", pa.int64()),
    ]
)
#: The record of a row. `row` is its number in the input, and `arrival` its number in its shard.
TRACE_SCHEMA = pa.schema(
    [
        ("shard", pa.int64()),
        ("release", pa.int64()),
        ("kind", pa.string()),
        ("row", pa.int64()),
        ("arrival", pa.int64()),
        ("moment", _MOMENT),
        ("arrivals", pa.int64()),
        ("group", pa.int64()),
    ]
)
TRACE_FIELDS = (
    ("shard", int),
    ("release", int),
    ("kind", str),
    ("row", int),
    ("arrival", int),
    ("moment", Optional[Timestamp]),  # noqa: UP045 - as above
    ("arrivals", int),
    ("group", int),
)
#: The kinds by their numbers, as records call them.
_KINDS = tuple(kind.name.lower() for kind in Kind)
#: What the trace calls a row that was refused because it was too far ahead of the clock.
REFUSED = "ahead"
#: Beam's timestamp of elements that were given none.
_NO_TIME = MIN_TIMESTAMP.micros


class OwnerRecords:
    """Makes records of departures.

    `moment` is the engine's clock at a release: event time, or Beam's timestamp where the policy names no event time.
    It is None where rows have neither. `arrivals` counts the rows of the shard that had arrived by then, and `group` is
    the number, in its shard, of the release whose generalization this is: its own, or the reused one.

    Args:
        row_number: The column that numbers rows, for traces.
        timed: Whether the engine's clock is a time at all, and not the row number.
    """

    def __init__(self, row_number: str | None = None, *, timed: bool = True) -> None:
        self._row_number = row_number
        self._timed = timed

    def releases(self, departure: Departure, shard: int) -> Iterator[dict[str, Any]]:
        """Make one record per release."""
        releases = departure.releases
        columns = (releases.kind, releases.sizes, releases.persons, releases.loss)
        clock = (releases.moment, releases.arrivals, releases.group)
        last, timestamp = None, None
        left_out = int(Kind.LEFT_OUT)
        for kind, rows, persons, loss, moment, arrivals, group in zip(
            *(column.tolist() for column in (*columns, *clock)), strict=True
        ):
            if kind == left_out:
                continue
            if moment != last:  # mostly many releases at one moment
                last, timestamp = moment, self._timestamp(moment)
            yield {
                "shard": shard,
                "kind": _KINDS[kind],
                "rows": rows,
                "persons": persons,
                "loss": loss,
                "moment": timestamp,
                "arrivals": arrivals,
                "group": group,
            }

    def release_batch(self, releases: Releases, shard: int) -> pa.RecordBatch:
        """Make one record per release, in Arrow. Rows that are left out belong to none."""
        columns = {
            **self._columns(releases, shard),
            "rows": pa.array(releases.sizes),
            "persons": pa.array(releases.persons),
            "loss": pa.array(releases.loss),
        }
        return _batch(columns, RELEASES_SCHEMA).filter(pa.array(releases.kind != Kind.LEFT_OUT))

    def trace(self, departure: Departure, shard: int) -> Iterator[dict[str, Any]]:
        """Make one record per row, in the order in which the rows leave."""
        payload, releases = departure.payload, departure.releases
        if not isinstance(payload, Objects):
            message = "trace: the rows must have come one by one."
            raise TypeError(message)
        numbers = payload.column(str(self._row_number))
        of = np.repeat(np.arange(len(releases)), releases.sizes).tolist()
        columns = (departure.release, releases.kind, releases.moment, releases.arrivals, releases.group)
        release, kind, moment, arrivals, group = (column.tolist() for column in columns)
        for i, place in zip(of, releases.rows.tolist(), strict=True):
            yield {
                "shard": shard,
                "release": release[i],
                "kind": _KINDS[kind[i]],
                "row": numbers[place],
                "arrival": int(departure.number[place]),
                "moment": self._timestamp(moment[i]),
                "arrivals": arrivals[i],
                "group": group[i],
            }

    def trace_batch(self, departure: Departure, shard: int) -> pa.RecordBatch:
        """Make one record per row, in Arrow, in the order in which the rows leave."""
        payload, releases = departure.payload, departure.releases
        if not isinstance(payload, Batch):
            message = "trace: the rows must have come as Arrow."
            raise TypeError(message)
        known = {**self._columns(releases, shard), "release": pa.array(departure.release)}
        of = pa.array(releases.per_row(np.arange(len(releases))))
        columns = {name: column.take(of) for name, column in known.items()}
        places = pa.array(releases.rows)
        columns["row"] = payload.column(str(self._row_number)).combine_chunks().take(places)
        columns["arrival"] = pa.array(departure.number).take(places)
        return _batch(columns, TRACE_SCHEMA)

    def refused(self, row: int, moment: int, shard: int) -> dict[str, Any]:
        """Make the record of a row that was too far ahead of the clock, and belongs to no release."""
        nowhere = {"release": -1, "arrival": -1, "arrivals": -1, "group": -1}
        return {"shard": shard, "kind": REFUSED, "row": row, "moment": self._timestamp(moment), **nowhere}

    def refused_batch(self, records: list[dict[str, Any]]) -> pa.RecordBatch:
        """Make records of `refused` a batch."""
        columns = {name: [record[name] for record in records] for name in TRACE_SCHEMA.names}
        columns["moment"] = [None if moment is None else moment.micros for moment in columns["moment"]]
        return _batch({name: pa.array(column) for name, column in columns.items()}, TRACE_SCHEMA)

    def _timestamp(self, moment: int) -> Timestamp | None:
        # Microseconds by position: by name they cost a quarter more.
        return Timestamp(0, moment) if self._timed and moment > _NO_TIME else None

    def _columns(self, releases: Releases, shard: int) -> dict[str, pa.Array]:
        """The columns that both kinds of records have."""
        return {
            "shard": pa.array(np.full(len(releases), shard)),
            "kind": pa.array(_KINDS).take(pa.array(releases.kind)),
            "moment": self._moments(releases.moment),
            "arrivals": pa.array(releases.arrivals),
            "group": pa.array(releases.group),
        }

    def _moments(self, moment: NDArray[np.int64]) -> pa.Array:
        unknown = moment <= _NO_TIME if self._timed else np.ones(len(moment), dtype=bool)
        return pa.array(moment, mask=unknown if unknown.any() else None)


def _batch(columns: dict[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([columns[field.name].cast(field.type) for field in schema], schema=schema)
