"""Values that no output can hold, found when a row is read.

A row that turned out not to fit when its release is written would be missing from its crowd. So the columns that are
published as they are, are checked before the row enters the engine, and a row that does not fit is rejected.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crenel.policy import Policy
from crenel.policy.columns import TOO_FAR
from crenel.transforms._pack.nested_fields import flat

__all__ = ["WritableValues"]

Bools = NDArray[np.bool_]

#: The first and the last second of the calendar, from year 1 to year 9999, and the seconds of a day.
_FIRST, _LAST, _DAY = -62_135_596_800, 253_402_300_799, 86_400
#: Seconds of the longest duration that Python holds, about 2.7 million years.
_LONGEST = 999_999_999 * _DAY
_PARTS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

TOO_LONG = "duration too long"


class WritableValues:
    """Finds rows that the outputs cannot hold.

    Which they are does not depend on the outputs' formats, so that the same rows are published in all of them.

    Args:
        policy: Names the columns that are published as they are.
    """

    def __init__(self, policy: Policy) -> None:
        self._names = (*policy.sensitive, *policy.publish)

    def misfits(self, batch: pa.RecordBatch) -> dict[int, tuple[str, str]]:
        """Find the rows that do not fit, by their places: the first column that does not, and why."""
        found: dict[int, tuple[str, str]] = {}
        for name in self._names:
            rows = batch if name in batch.schema.names else flat(batch, (name,))[0]
            if name not in rows.schema.names:
                continue
            for wrong, reason in _wrong(rows.column(name)):
                for place in np.flatnonzero(wrong).tolist():
                    found.setdefault(place, (name, reason))
        return found


def _wrong(column: pa.Array) -> Iterator[tuple[Bools, str]]:
    """Yield which values do not fit, for each reason."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_timestamp(kind):
        margin = 0 if kind.tz in (None, "UTC", "Z", "+00:00") else _DAY  # it is written in its own time zone
        yield _outside(column.view(pa.int64()), _PARTS[kind.unit], _FIRST + margin, _LAST - margin), TOO_FAR
    elif pa.types.is_date32(kind):
        yield _outside(column.view(pa.int32()), 1, _FIRST // _DAY, _LAST // _DAY), TOO_FAR
    elif pa.types.is_date64(kind):
        yield _outside(column.view(pa.int64()), _PARTS["ms"], _FIRST, _LAST), TOO_FAR
    elif pa.types.is_duration(kind):
        yield _outside(column.view(pa.int64()), _PARTS[kind.unit], -_LONGEST, _LONGEST), TOO_LONG
    elif pa.types.is_struct(kind):
        for field in column.flatten():
            yield from _wrong(field)
    elif pa.types.is_nested(kind):
        yield np.array([_is_far(value) for value in column], dtype=bool), TOO_FAR


def _outside(column: pa.Array, parts: int, least: int, most: int) -> Bools:
    """Tell which integers are outside of a range; `parts` of them are one of its units."""
    found = np.asarray(column.fill_null(0)) // parts
    return (found < least) | (found > most)


def _is_far(value: pa.Scalar) -> bool:
    try:
        value.as_py()
    except (OverflowError, ValueError):
        return True
    return False
