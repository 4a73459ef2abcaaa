"""Plain stateful DoFns that the transform is compared with, and the sources and sinks of all cases."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pyarrow.parquet as pq
from apache_beam import typehints
from apache_beam.coders import BytesCoder, FastPrimitivesCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils import windowed_value
from apache_beam.utils.timestamp import Duration

#: One row per second.
SECOND = 1_000_000
_GLOBAL = (GlobalWindow(),)

Keyed = typehints.Tuple[int, typehints.Any]
KeyedBytes = typehints.Tuple[int, bytes]


def micros(row: int) -> int:
    """Return the event time of a row in microseconds."""
    return row * SECOND


class Rows(beam.DoFn):
    """Reads row groups of a Parquet file as dicts with their own timestamps; with shards, also with keys."""

    def __init__(self, path: str, shards: int | None = None) -> None:
        self._path = path
        self._shards = shards

    def process(self, group: int) -> Iterator[Any]:
        with pq.ParquetFile(self._path) as file:
            table = file.read_row_group(group)
        names = table.column_names
        columns = [column.to_pylist() for column in table.columns]
        for person, values in zip(table["person"].to_pylist(), zip(*columns, strict=True), strict=True):
            row: Any = dict(zip(names, values, strict=True))
            if self._shards is not None:
                row = (person % self._shards, row)
            yield windowed_value.create(row, micros(person), _GLOBAL)


class Discard(beam.DoFn):
    """Discards published rows."""

    def process(self, element: Any) -> None:
        """Do nothing."""


class Buffer(beam.DoFn):
    """Holds each row in a bag and sets a timer for it, as in Beam's guide."""

    ROWS = BagStateSpec("rows", FastPrimitivesCoder())
    DUE = TimerSpec("due", TimeDomain.WATERMARK)

    def __init__(self, delay: int) -> None:
        self._delay = Duration(seconds=delay)

    def process(
        self,
        element: tuple[int, Any],
        timestamp: Any = beam.DoFn.TimestampParam,
        rows: Any = beam.DoFn.StateParam(ROWS),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> None:
        rows.add(element[1])
        due.set(timestamp + self._delay)

    @on_timer(DUE)
    def release(self, rows: Any = beam.DoFn.StateParam(ROWS)) -> Iterator[Any]:
        yield from rows.read()
        rows.clear()


class PackRows(beam.DoFn):
    """Gathers the rows of a shard in a bundle into one pickled element; with `timed`, keeps their times."""

    def __init__(self, shards: int, size: int, *, timed: bool = False) -> None:
        self._shards = shards
        self._size = size
        self._timed = timed

    def start_bundle(self) -> None:
        self._packs: dict[int, tuple[list[Any], list[int]]] = {}

    def process(self, row: dict[str, Any], value: Any = beam.DoFn.WindowedValueParam) -> Any:
        shard = row["person"] % self._shards
        pack = self._packs.get(shard)
        if pack is None:
            pack = self._packs[shard] = ([], [])
        pack[0].append(row)
        pack[1].append(value.timestamp_micros)
        if len(pack[0]) < self._size:
            return ()
        del self._packs[shard]
        return (self._pickled(shard, pack),)

    def finish_bundle(self) -> Iterator[Any]:
        for shard, pack in self._packs.items():
            yield self._pickled(shard, pack)
        self._packs = {}

    def _pickled(self, shard: int, pack: tuple[list[Any], list[int]]) -> Any:
        data = pickle.dumps(pack if self._timed else pack[0], protocol=5)
        return windowed_value.create((shard, data), min(pack[1]), _GLOBAL)


class BufferPacks(beam.DoFn):
    """Does the same as `Buffer`, with packs."""

    PACKS = BagStateSpec("packs", BytesCoder())
    DUE = TimerSpec("due", TimeDomain.WATERMARK)

    def __init__(self, delay: int) -> None:
        self._delay = Duration(seconds=delay)

    def process(
        self,
        element: tuple[int, bytes],
        timestamp: Any = beam.DoFn.TimestampParam,
        packs: Any = beam.DoFn.StateParam(PACKS),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> None:
        packs.add(element[1])
        due.set(timestamp + self._delay)

    @on_timer(DUE)
    def release(self, packs: Any = beam.DoFn.StateParam(PACKS)) -> Iterator[bytes]:
        yield from packs.read()
        packs.clear()


class Explode(beam.DoFn):
    """Unpacks rows, all with the timestamp of the timer."""

    def process(self, pack: bytes) -> list[Any]:
        return pickle.loads(pack)  # type: ignore[no-any-return]


class ExplodeTimed(beam.DoFn):
    """Unpacks rows, each with the timestamp of its own deadline."""

    def __init__(self, delay: int) -> None:
        self._delay = delay * SECOND

    def process(self, pack: bytes) -> Iterator[Any]:
        for row, time in zip(*pickle.loads(pack), strict=True):
            yield windowed_value.create(row, time + self._delay, _GLOBAL)
