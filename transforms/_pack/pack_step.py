"""PACK: encodes rows, and gathers those of one shard, within a bundle, into one element."""

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
from crenel.policy.secret import Secret, as_secret
from crenel.policy.sharding.shard_rule import TREES
from crenel.transforms._pack.nested_fields import as_it_came
from crenel.transforms._pack.payloads import Form
from crenel.transforms._pack.row_batch import RowBatch
from crenel.transforms._pack.row_options import RowOptions
from crenel.transforms._pack.row_pack import Packed, Packer, deal, hand_over
from crenel.transforms._pack.sharding import shard_name
from crenel.transforms._publish.counts import Counts
from crenel.transforms._publish.emitter import NAMESPACE, REJECTED, counted
from crenel.transforms._publish.timestamps import clamped

#: Rows encoded at once: the raw rows of a larger batch would not fit into the processor's cache.
_ROWS = 2_000
#: Encoded rows gathered for each shard: in smaller packs, the fixed cost of a pack shows in that of a row.
_ROWS_OF_SHARD = 10_000
#: The most rows gathered for all shards: this bounds a bundle's memory, and a pack in the log of state.
_MOST_ROWS = 131_072
#: The key of all shards, where they share one.
ONE_KEY = 0
#: The error of a row in several windows.
OVERLAPPING = (
    "Anonymize: windows must not overlap, because a row that lies in several is published in each, and its "
    "generalizations can be intersected. Use global or fixed windows, or ask for it by overlapping_windows=True."
)
#: The record of a rejected row: the whole row as JSON text, the first field that did not fit, and why.
REJECTED_FIELDS = (("row", str), ("field", str), ("reason", str))


class Rejections:
    """Makes records of rejected rows, and counts them by reason."""

    def __init__(self, kind: Callable[..., Any]) -> None:
        self._kind = kind
        self._total = Metrics.counter(NAMESPACE, "rejected")
        self._by_reason: dict[str, Any] = {}

    def record(self, row: Any, field: str, reason: str, windows: int, **more: Any) -> Any:
        """Make the owner's record of a row that could not be encoded, with the row as text."""
        self._total.inc(windows)
        counter = self._by_reason.setdefault(reason, Metrics.counter(NAMESPACE, f"rejected: {reason}"))
        counter.inc(windows)
        return self._kind(row=as_text(row), field=field, reason=reason, **more)


class Fullness:
    """Counts the rows of each leaf of a tree: they tell when the stream has drifted away from it."""

    def __init__(self) -> None:
        self._rows: dict[int, Any] = {}

    def count(self, shard: int, rows: int) -> None:
        """Count rows of a shard."""
        self._rows.setdefault(shard, Metrics.counter(NAMESPACE, f"rows of shard {shard}")).inc(rows)


def as_text(row: Any) -> str:
    """Write a row of any kind as JSON text; a value that JSON cannot express is written as Python prints it."""
    try:
        text = json.dumps(_plain(row), allow_nan=False, ensure_ascii=False)
    except (RecursionError, ValueError):  # it contains itself
        text = json.dumps(f"a {type(row).__name__} that cannot be written")
    # No coder and no file takes half of a surrogate pair; escaped, JSON does.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _plain(value: Any) -> Any:
    """Express a value in the types of JSON."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else str(value)


class _Buffer:
    """Elements of one type and one set of windows: raw with their timestamps, and encoded."""

    __slots__ = ("counts", "elements", "encoded", "is_arrow", "kind", "since", "times", "windows")

    def __init__(self, kind: type, windows: Any) -> None:
        self.kind = kind
        self.is_arrow = issubclass(kind, _ARROW)
        self.windows = windows
        self.elements: list[Any] = []
        self.times: list[int] = []
        self.encoded: list[Packed] = []
        #: The earliest timestamp of the encoded rows.
        self.since = _NEVER
        self.counts = Counts()


class PackRows(beam.DoFn):
    """Packs rows of any form.

    A row that cannot be encoded goes to the output `rejected`. There is a pack for each window of its rows, with the
    earliest of their timestamps.

    Args:
        policy: Which columns, and how.
        secret: Keys the hashes of persons, and the seal of packs.
        record: Makes records of rejected rows: `dict`, or `beam.Row`.
        options: How rows are read and identified.
        one_key: Whether all shards share a key; otherwise each has its own.
        overlapping: Whether to take rows that lie in several windows.
    """

    def __init__(
        self,
        policy: Policy,
        secret: bytes | Secret,
        record: Callable[..., Any] = dict,
        options: RowOptions = RowOptions(),  # noqa: B008 - frozen
        *,
        one_key: bool = False,
        overlapping: bool = False,
    ) -> None:
        self._policy = policy
        self._options = options
        self._one_key = one_key
        self._overlapping = overlapping
        self._secret = as_secret(secret, policy)
        self._record = record

    def setup(self) -> None:
        """Prepare what does not travel."""
        self._packer = Packer(self._policy, self._secret, self._options)
        self._rejections = Rejections(self._record)
        self._rows = Metrics.counter(NAMESPACE, "rows")
        self._fullness = Fullness() if isinstance(self._policy.shard_by, TREES) else None
        shards = self._policy.most_shards
        self._enough = _MOST_ROWS if self._policy.within else min(_ROWS_OF_SHARD * shards, _MOST_ROWS)

    def start_bundle(self) -> None:
        """Begin without rows: a bundle that failed leaves none."""
        self._buffers: dict[Any, _Buffer] = {}
        self._last = _Buffer(type(None), None)

    def process(self, element: Any, value: Any = beam.DoFn.WindowedValueParam) -> Iterable[Any]:
        """Keep a row until its pack is full."""
        return self._keep(element, value.timestamp_micros, value.windows)

    def finish_bundle(self) -> Iterator[Any]:
        """Emit packs that are not full, and counts: a pack adds no delay beyond the bundle."""
        for buffer in self._buffers.values():
            yield from self._encode(buffer)
            yield from self._deal(buffer)
            yield counted(buffer.counts, buffer.windows)
        self.start_bundle()

    def _keep(self, element: Any, time: int, windows: Any) -> Iterable[Any]:
        # Most elements have the type and the windows of the one before. Hashing windows costs more than all the rest.
        buffer = self._last
        if type(element) is not buffer.kind or windows is not buffer.windows:
            buffer = self._last = self._buffer(type(element), windows)
        if buffer.is_arrow:
            return self._keep_batch(buffer, element, time)
        elements = buffer.elements
        if buffer.kind is RowBatch:
            elements.extend(element.rows)
            buffer.times.extend(element.times)
        else:
            elements.append(element)
            buffer.times.append(time)
        return () if len(elements) < _ROWS else self._encode(buffer)

    def _keep_batch(self, buffer: _Buffer, batch: pa.RecordBatch | pa.Table, time: int) -> Iterator[Any]:
        """Keep a batch; batches of one schema are encoded together."""
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
            # Only Beam's own windows tell beforehand that they overlap.
            if len(windows) > 1 and not self._overlapping:
                raise ValueError(OVERLAPPING)
            buffer = self._buffers[key] = _Buffer(kind, windows)
        return buffer

    def _encode(self, buffer: _Buffer) -> Iterator[Any]:
        """Encode the elements; emit rejected rows, and packs if there are enough rows for them."""
        elements, times = buffer.elements, buffer.times
        if not elements:
            return
        buffer.elements, buffer.times = [], []
        if buffer.is_arrow:
            batch = _one(elements)
            count, rows = batch.num_rows, _batch_reader(batch)
            given = self._given(np.repeat(times, [len(part) for part in elements]))
            form = Form.TABLE if issubclass(buffer.kind, pa.Table) else Form.ARROW
            packed = self._packer.pack_arrow(batch, given, form)
        else:
            count, rows = len(elements), _list_reader(elements)
            packed = self._packed(buffer.kind, elements, self._given(times))
        since = self._since(packed, times)
        buffer.encoded.append(packed)
        buffer.since = min(buffer.since, since)
        # A row that lies in several windows counts once for each.
        self._rows.inc(count * len(buffer.windows))
        buffer.counts.arrive(count, [(field, reason) for _, field, reason in packed.rejected])
        if packed.rejected:
            yield from self._rejected(packed, rows, since, buffer.windows)
        if sum(len(part.shard) for part in buffer.encoded) >= self._enough:
            yield from self._deal(buffer)
            yield counted(buffer.counts, buffer.windows)  # a bundle may have all rows of a file
            buffer.counts = Counts()

    def _packed(self, kind: type, rows: list[Any], times: NDArray[np.int64] | None) -> Packed:
        """Encode rows that came as elements of this type."""
        if kind is RowBatch:
            return self._packer.pack_dicts(rows, times, Form.BATCH)
        return (self._packer.pack_dicts if issubclass(kind, dict) else self._packer.pack_objects)(rows, times)

    def _rejected(self, packed: Packed, rows: _Reader, timestamp: int, windows: Any) -> Iterator[Any]:
        """Emit the owner's records of rejected rows, each row as it came, but for its number."""
        number, order = self._options.row_number, self._options.order_column
        found = rows([place for place, _, _ in packed.rejected])
        for row, (_, field, reason) in zip(found, packed.rejected, strict=True):
            plain = row._asdict() if hasattr(row, "_asdict") else row
            more = {} if order is None or number is None else {order: plain.get(number)}
            shown = row if number is None else {name: plain[name] for name in plain if name != number}
            record = self._rejections.record(shown, field, reason, len(windows), **more)
            yield TaggedOutput(REJECTED, windowed_value.create(record, timestamp, windows))

    def _deal(self, buffer: _Buffer) -> Iterator[Any]:
        """Emit the encoded rows, one pack for each shard."""
        encoded, since = buffer.encoded, buffer.since
        if not encoded:
            return
        buffer.encoded, buffer.since = [], _NEVER
        for pack in deal(encoded):
            if self._fullness is not None:
                leaf = pack.shard % self._policy.most_shards  # of one tree, whatever keeps rows apart
                self._fullness.count(leaf, len(pack.rows) * len(buffer.windows))
            key = ONE_KEY if self._one_key else pack.shard
            # Each window has its own, sealed for it.
            for window in buffer.windows:
                with hand_over(pack, self._packer.seal, shard_name(key, window)) as data:
                    yield windowed_value.create((key, data), since, (window,))

    def _given(self, times: Any) -> NDArray[np.int64] | None:
        """The rows' timestamps, as Beam knows them."""
        return np.asarray(times, dtype=np.int64)

    def _since(self, packed: Packed, times: list[int]) -> int:
        """The timestamp of a pack."""
        return min(times)


class PackBoundedRows(PackRows):
    """Packs bounded rows of the global window that have their own times: Beam need not be asked for each row's."""

    def process(self, element: Any) -> Iterable[Any]:  # type: ignore[override]
        """Keep a row until its pack is full."""
        return self._keep(element, _NO_TIME, _GLOBAL)

    def _given(self, times: Any) -> None:
        return None

    def _since(self, packed: Packed, times: list[int]) -> int:
        time = packed.pack.rows.time
        return clamped(int(time.min())) if len(time) else _NO_TIME


def _one(batches: list[Any]) -> pa.RecordBatch | pa.Table:
    """Join batches, or tables, of one schema."""
    if len(batches) == 1:
        return batches[0]
    tables = [pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part for part in batches]
    return pa.concat_tables(tables).combine_chunks()


def _batch_reader(batch: pa.RecordBatch | pa.Table) -> _Reader:
    return lambda places: batch_rows(batch, places)


def batch_rows(batch: pa.RecordBatch | pa.Table, places: list[int]) -> list[dict[str, Any]]:
    """Give the rows of some places as dicts, also those with a value that Python cannot hold."""
    chosen = batch.take(pa.array(places))
    try:
        rows: list[dict[str, Any]] = chosen.to_pylist()
    except (OverflowError, ValueError):  # a date after the year 9999, text that is not UTF-8
        columns = [[_value(value) for value in column] for column in chosen.columns]
        rows = [dict(zip(chosen.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]
    return [{name: as_it_came(value) for name, value in row.items()} for row in rows]


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return f"a {scalar.type} that cannot be written"


def _list_reader(rows: list[Any]) -> _Reader:
    return lambda places: [rows[place] for place in places]


#: Gives the raw rows of some places.
_Reader = Callable[[list[int]], list[Any]]
_ARROW = (pa.RecordBatch, pa.Table)
_GLOBAL = (GlobalWindow(),)
_NO_TIME = 0
_NEVER = MAX_TIMESTAMP.micros
