"""Rows that come in batches lead to the same as rows that come one by one."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import registry
from apache_beam.transforms.window import TimestampedValue

from crenel.transforms import Anonymize
from crenel.transforms._pack.row_batch import RowBatch
from tests.transforms.streams import SECOND, Left, Stamped, policy, rows, run

GIVEN = rows(120)
GIVEN[7]["age"] = -1.0
SIZE = 17


def batches(given: list[dict[str, Any]]) -> list[RowBatch]:
    parts = [given[start : start + SIZE] for start in range(0, len(given), SIZE)]
    return [RowBatch(part, [int(row["seen"] * SECOND) for row in part]) for part in parts]


class InBatches(beam.PTransform):
    """Rows as elements of many, each stamped as the earliest of its rows."""

    def expand(self, begin: Any) -> Any:
        stamped = [TimestampedValue(batch, batch.times[0] / SECOND) for batch in batches(GIVEN)]
        given = begin | beam.Create(stamped, reshuffle=False) | beam.Map(lambda stamped: stamped)
        given.element_type = RowBatch
        return given


def one_by_one(left: list[Left]) -> list[tuple[Any, int]]:
    assert all(one.timestamp == min(one.value.times) for one in left)
    return [pair for one in left for pair in zip(one.value.rows, one.value.times, strict=True)]


@pytest.mark.parametrize("changes", [{}, {"event_time": None}, {"shards": 3}, {"on_suppress": None}])
def test_batches_lead_to_the_same(changes: dict[str, Any]) -> None:
    alone = run(Stamped(GIVEN), Anonymize(policy(**changes)))
    together = run(InBatches(), Anonymize(policy(**changes)))
    assert all(isinstance(left.value, RowBatch) for left in (*together.published, *together.releases))
    for name in ("published", "suppressed", "releases"):
        found = sorted(map(repr, one_by_one(getattr(together, name))))
        expected = sorted(repr((left.value, left.timestamp)) for left in getattr(alone, name))
        assert found == expected
    assert [left.value for left in together.rejected] == [left.value for left in alone.rejected]
    assert sum(left.value["rows"] for left in together.counts) == len(GIVEN)


def test_a_batch_is_written_and_read_by_its_coder() -> None:
    (batch,) = batches(GIVEN[:SIZE])
    coder = registry.get_coder(RowBatch)
    found = coder.decode(coder.encode(batch))
    assert (found.rows, found.times) == (batch.rows, batch.times)
    assert repr(batch) == "RowBatch(17 rows)"
