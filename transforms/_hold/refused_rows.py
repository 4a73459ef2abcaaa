"""The owner's records of rows that were too far ahead of the clock: in `rejected`, and in the trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from apache_beam.pvalue import TaggedOutput
from apache_beam.utils import windowed_value

from crenel.policy import Policy
from crenel.policy.columns import AHEAD
from crenel.transforms._hold.ahead import Refusal
from crenel.transforms._pack.pack_step import Rejections, batch_rows
from crenel.transforms._pack.payloads import Batch, Form, Objects, Payload
from crenel.transforms._pack.row_batch import RowBatch
from crenel.transforms._pack.row_options import RowOptions
from crenel.transforms._publish.emitter import REJECTED, TRACE, Emitter
from crenel.transforms._publish.owner_records import OwnerRecords
from crenel.transforms._publish.publisher import Publisher

__all__ = ["RefusedRows"]

#: The numbers of refused rows, for the order of a trace, begin here: no row that is released has such a number.
_NUMBERS = 1 << 43


class RefusedRows:
    """Makes records of refused rows, and counts them.

    Args:
        policy: The policy.
        emitter: Counts, and places rows in the order of a writer.
        record: Makes records: `dict`, or `beam.Row`.
        options: How rows are identified and ordered.
    """

    def __init__(self, policy: Policy, emitter: Emitter, record: Callable[..., Any], options: RowOptions) -> None:
        self._field = policy.event_time or ""
        self._kept = (*policy.sensitive, *policy.publish)
        self._emitter = emitter
        self._rejections = Rejections(record)
        self._publisher = Publisher(policy)
        self._options = options
        self._owners = OwnerRecords(options.row_number)

    def emit(self, refusal: Refusal, shard: int, window: Any, earliest: int) -> Iterator[TaggedOutput]:
        """Emit the records of refused rows."""
        rows, windows = refusal.rows, (window,)
        stamp = self._emitter.stamp(refusal.moment, earliest, window)
        self._emitter.refuse(len(rows.rows), self._field, AHEAD, window)
        numbers = self._numbers(rows.payload)
        order = self._options.order_column
        for place, row in enumerate(self._rows(refusal)):
            more = {} if order is None or self._options.row_number is None else {order: numbers[place]}
            record = self._rejections.record(row, self._field, AHEAD, 1, **more)
            yield TaggedOutput(REJECTED, windowed_value.create(record, stamp, windows))
        if self._options.trace:
            for traced in self._traced(refusal, numbers, shard, window, stamp):
                yield TaggedOutput(TRACE, windowed_value.create(traced, stamp, windows))

    def _rows(self, refusal: Refusal) -> Iterator[dict[str, Any]]:
        """What is known of the rows: their time, and the columns that the policy names, without the person."""
        rows = refusal.rows
        exact = self._publisher.exact(rows.rows.qi, _values(rows.payload, self._kept))
        for time, row in zip(rows.rows.time.tolist(), exact, strict=True):
            yield {self._field or "timestamp": str(np.datetime64(time, "us")), **{n: _point(v) for n, v in row.items()}}

    def _numbers(self, payload: Payload) -> list[int]:
        """The row numbers, if rows carry them."""
        if not self._options.carried:
            return []
        column = payload.column(str(self._options.row_number))
        return list(column.to_pylist() if isinstance(payload, Batch) else column)

    def _traced(self, refusal: Refusal, numbers: list[int], shard: int, window: Any, stamp: int) -> Iterable[Any]:
        """Make records of the trace, in the form of the rows."""
        place = np.arange(len(numbers), dtype=np.int64) + refusal.first + _NUMBERS
        records = [self._owners.refused(number, refusal.moment, shard) for number in numbers]
        hashes = self._emitter.place(shard, place, window)
        order = self._options.order_column
        if not refusal.rows.form.is_arrow:
            # As for released rows: schemas have no unsigned integers, and the order is the same.
            signed = (hashes ^ np.uint64(1 << 63)).view(np.int64).tolist()
            rows = [row if order is None else {**row, order: key} for row, key in zip(records, signed, strict=True)]
            made = list(map(self._emitter.as_record, rows))
            return [RowBatch(made, [stamp] * len(made))] if refusal.rows.form is Form.BATCH else made
        batch = self._owners.refused_batch(records)
        batch = batch if order is None else batch.append_column(order, pa.array(hashes))
        return [pa.Table.from_batches([batch]) if refusal.rows.form is Form.TABLE else batch]


def _values(payload: Payload, names: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """The values of some columns, row by row; None where the rows have no such column."""
    if isinstance(payload, Objects):
        return payload.under(names).rows()
    if not isinstance(payload, Batch):
        raise TypeError
    rows = batch_rows(payload.table, list(range(len(payload))))
    return (tuple(row.get(name) for name in names) for row in rows)


def _point(value: Any) -> Any:
    """A range that is a point, as a number."""
    is_point = isinstance(value, dict) and value.keys() == {"lo", "hi"} and value["lo"] == value["hi"]
    return value["lo"] if is_point else value
