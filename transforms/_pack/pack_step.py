"""PACK: encodes rows and gathers those of one shard, within a bundle, into one element."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils import windowed_value
from apache_beam.utils.timestamp import MAX_TIMESTAMP
from numpy.typing import NDArray

from crenel.policy import Policy
from crenel.transforms._pack.row_pack import Packed, Packer, deal, written
from crenel.transforms._publish.counts import Counts
from crenel.transforms._publish.emitter import NAMESPACE, REJECTED, counted
from crenel.transforms._publish.timestamps import clamped

#: Rows that are encoded at once: more, as they came, are too much for the processor's cache.
_ROWS = 2_000
#: Encoded rows that are gathered for each shard: of fewer, the cost of a pack shows in that of a row.
_ROWS_OF_SHARD = 10_000
#: Rows of all shards that are gathered at most: what bounds a bundle's memory, and a pack in the state's log.
_MOST_ROWS = 131_072
#: What is said of a row in several windows.
OVERLAPPING = (
    "Anonymize: windows must not overlap, because a row that lies in several is published in each, and its "
    "generalizations can be intersected. Use global or fixed windows, or ask for it: overlapping_windows=True."
)
#: The record of a rejected row: the whole row as JSON text, the first field that did not fit, and why.
REJECTED_FIELDS = (("row", str), ("field", str), ("reason", str))


class Rejections:
    """Rejected rows as records of some kind, counted by their reasons."""

    def __init__(self, kind: Callable[..., Any]) -> None:
        self._kind = kind
        self._total = Metrics.counter(NAMESPACE, "rejected")
        self._by_reason: dict[str, Any] = {}

    def record(self, row: Any, field: str, reason: str, windows: int) -> Any:
        """The owner's record of a row that could not be encoded: the row is there, as text."""
        self._total.inc(windows)
        counter = self._by_reason.setdefault(reason, Metrics.counter(NAMESPACE, f"rejected: {reason}"))
        counter.inc(windows)
        return self._kind(row=as_text(row), field=field, reason=reason)


def as_text(row: Any) -> str:
    """A row of any kind as JSON text; what JSON has no word for is written as Python says it."""
    try:
        text = json.dumps(_sayable(row), allow_nan=False, ensure_ascii=False)
    except (RecursionError, ValueError):  # it holds itself
        text = json.dumps(f"a {type(row).__name__} that cannot be written")
    # Half of a surrogate pair is no text to a coder or a file; like this it is one to JSON.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _sayable(value: Any) -> Any:
    """A value in words of JSON."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): _sayable(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sayable(inner) for inner in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else str(value)


class _Buffer:
    """Elements of one type that lie in the same windows: as they came with their timestamps, and encoded."""

    __slots__ = ("counts", "elements", "encoded", "is_arrow", "kind", "since", "times", "windows")

    def __init__(self, kind: type, windows: Any) -> None:
        self.kind = kind
        self.is_arrow = issubclass(kind, _ARROW)
        self.windows = windows
        self.elements: list[Any] = []
        self.times: list[int] = []
        self.encoded: list[Packed] = []
        #: The earliest timestamp of what is encoded.
        self.since = _NEVER
        self.counts = Counts()


class Pack(beam.DoFn):
    """Packs rows of any form.

    A row that cannot be encoded goes to the output `rejected`. A pack has the windows of its rows, and the earliest of
    their timestamps.

    Args:
        policy: Which columns, and how.
        secret: What keys the hashes of persons; it travels with the pipeline.
        record: What makes records of rejected rows: `dict`, or `beam.Row`.
        one_key: Whether all shards share a key; otherwise each is one.
        overlapping: Whether to take rows that lie in several windows.
    """

    def __init__(
        self,
        policy: Policy,
        secret: bytes,
        record: Callable[..., Any] = dict,
        *,
        one_key: bool = False,
        overlapping: bool = False,
    ) -> None:
        self._policy = policy
        self._one_key = one_key
        self._overlapping = overlapping
        self._secret = secret
        self._record = record

    def setup(self) -> None:
        """Prepare what does not travel."""
        self._packer = Packer(self._policy, self._secret)
        self._rejections = Rejections(self._record)
        self._rows = Metrics.counter(NAMESPACE, "rows")
        self._enough = min(_ROWS_OF_SHARD * self._policy.shards, _MOST_ROWS)

    def start_bundle(self) -> None:
        """Begin without rows: what a failed bundle left is not this one's."""
        self._buffers: dict[Any, _Buffer] = {}
        self._last = _Buffer(type(None), None)

    def process(self, element: Any, value: Any = beam.DoFn.WindowedValueParam) -> Iterable[Any]:
        """Keep a row until its pack is full."""
        return self._keep(element, value.timestamp_micros, value.windows)

    def finish_bundle(self) -> Iterator[Any]:
        """Let go of packs that are not full: a pack adds no delay beyond the bundle."""
        for buffer in self._buffers.values():
            yield from self._encode(buffer)
            yield from self._deal(buffer)
            yield counted(buffer.counts, buffer.windows)
        self.start_bundle()

    def _keep(self, element: Any, time: int, windows: Any) -> Iterable[Any]:
        # Mostly of the type and in the windows of the one before; to hash windows costs more than all the rest of this.
        buffer = self._last
        if type(element) is not buffer.kind or windows is not buffer.windows:
            buffer = self._last = self._buffer(type(element), windows)
        if buffer.is_arrow:
            return self._keep_batch(buffer, element, time)
        elements = buffer.elements
        elements.append(element)
        buffer.times.append(time)
        return () if len(elements) < _ROWS else self._encode(buffer)

    def _keep_batch(self, buffer: _Buffer, batch: pa.RecordBatch | pa.Table, time: int) -> Iterator[Any]:
        """The same for rows in Arrow; those of one schema are encoded together."""
        if buffer.elements and not batch.schema.equals(buffer.elements[0].schema):
            yield from self._encode(buffer)
        for start in range(0, batch.num_rows, _MOST_ROWS):
            buffer.elements.append(batch.slice(start, _MOST_ROWS))
            buffer.times.append(time)
            if sum(part.num_rows for part in buffer.elements) >= _ROWS:
                yield from self._encode(buffer)

    def _buffer(self, kind: type, windows: Any) -> _Buffer:
        key = (kind, tuple(windows))
        buffer = self._buffers.get(key)
        if buffer is None:
            # Windows that are not Beam's own may overlap without a word of it before.
            if len(windows) > 1 and not self._overlapping:
                raise ValueError(OVERLAPPING)
            buffer = self._buffers[key] = _Buffer(kind, windows)
        return buffer

    def _encode(self, buffer: _Buffer) -> Iterator[Any]:
        """Encode the elements; emit what is rejected, and packs if there is enough for them."""
        elements, times = buffer.elements, buffer.times
        if not elements:
            return
        buffer.elements, buffer.times = [], []
        if buffer.is_arrow:
            batch = _one(elements)
            count, row = batch.num_rows, _reader(batch)
            packed = self._packer.pack_arrow(batch, self._given(np.repeat(times, [len(part) for part in elements])))
        else:
            count, row = len(elements), elements.__getitem__
            pack = self._packer.pack_dicts if issubclass(buffer.kind, dict) else self._packer.pack_objects
            packed = pack(elements, self._given(times))
        since = self._since(packed, times)
        buffer.encoded.append(packed)
        buffer.since = min(buffer.since, since)
        # A row that lies in several windows is one in each.
        self._rows.inc(count * len(buffer.windows))
        buffer.counts.arrive(count, [(field, reason) for _, field, reason in packed.rejected])
        if packed.rejected:
            yield from self._rejected(packed, row, since, buffer.windows)
        if sum(len(part.shard) for part in buffer.encoded) >= self._enough:
            yield from self._deal(buffer)

    def _rejected(self, packed: Packed, row: Any, timestamp: int, windows: Any) -> list[Any]:
        records = [
            self._rejections.record(row(place), field, reason, len(windows)) for place, field, reason in packed.rejected
        ]
        return [TaggedOutput(REJECTED, windowed_value.create(record, timestamp, windows)) for record in records]

    def _deal(self, buffer: _Buffer) -> Iterator[Any]:
        """Emit what is encoded, a pack for each shard."""
        encoded, since = buffer.encoded, buffer.since
        if not encoded:
            return
        buffer.encoded, buffer.since = [], _NEVER
        for pack in deal(encoded):
            with written(pack) as data:
                key = _ONE_KEY if self._one_key else pack.shard
                yield windowed_value.create((key, data), since, buffer.windows)

    def _given(self, times: Any) -> NDArray[np.int64] | None:
        """The rows' times, as Beam knows them."""
        return np.asarray(times, dtype=np.int64)

    def _since(self, packed: Packed, times: list[int]) -> int:
        """The timestamp of a pack."""
        return min(times)


class PackBounded(Pack):
    """The same for bounded rows of the global window whose event time is a column: Beam need not be asked for each."""

    def process(self, element: Any) -> Iterable[Any]:  # type: ignore[override]
        """Keep a row until its pack is full."""
        return self._keep(element, _NO_TIME, _GLOBAL)

    def _given(self, times: Any) -> None:
        return None

    def _since(self, packed: Packed, times: list[int]) -> int:
        time = packed.pack.rows.time
        return clamped(int(time.min())) if len(time) else _NO_TIME


def _one(batches: list[Any]) -> pa.RecordBatch | pa.Table:
    """Batches, or tables, of one schema as one."""
    if len(batches) == 1:
        return batches[0]
    tables = [pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part for part in batches]
    return pa.concat_tables(tables).combine_chunks()


def _reader(batch: pa.RecordBatch | pa.Table) -> Callable[[int], dict[str, Any]]:
    return lambda i: dict(batch.slice(i, 1).to_pylist()[0])


_ARROW = (pa.RecordBatch, pa.Table)
_GLOBAL = (GlobalWindow(),)
_NO_TIME = 0
_ONE_KEY = 0
_NEVER = MAX_TIMESTAMP.micros
