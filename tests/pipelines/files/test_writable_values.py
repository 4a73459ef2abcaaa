"""Values that an output cannot hold: whatever passes is written by every format, and what does not is told why."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.pipelines.files import writers
from crenel.pipelines.files.writable_values import WritableValues
from crenel.policy import Policy

POLICY = Policy.from_dict(
    {"person": "id", "quasi_identifiers": {"age": {"type": "numeric"}}, "publish": ["v"], "k": 2, "delay_rows": 9}
)
FAR = "date too far"


def misfits(column: pa.Array) -> dict[int, str]:
    batch = pa.RecordBatch.from_arrays([column, column], names=["v", "other"])
    found = WritableValues(POLICY).misfits(batch)
    assert {field for field, _ in found.values()} <= {"v"}
    return {place: reason for place, (_, reason) in found.items()}


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([0, 2**62, None, -(2**62)], pa.timestamp("us")), {1: FAR, 3: FAR}),
        (pa.array([253_402_300_799, 253_402_300_800], pa.timestamp("s")), {1: FAR}),
        (pa.array([-62_135_596_800, -62_135_596_801], pa.timestamp("s")), {1: FAR}),
        (pa.array([253_402_300_799_999, 253_402_300_800_000], pa.timestamp("ms", tz="UTC")), {1: FAR}),
        (pa.array([2**63 - 1], pa.timestamp("ns")), {}),
        (pa.array([2_932_896, 2_932_897, -719_162, -719_163], pa.date32()), {1: FAR, 3: FAR}),
        (pa.array([0, 2**60], pa.date64()), {1: FAR}),
        (pa.array([0, 2**62], pa.duration("s")), {1: "duration too long"}),
        (pa.array([{"a": 2**62}, {"a": 0}, None], pa.struct([("a", pa.timestamp("us"))])), {0: FAR}),
        (pa.array([[2**62], [0], None], pa.list_(pa.timestamp("us"))), {0: FAR}),
        (pa.array([2**62, 0], pa.timestamp("us")).dictionary_encode(), {0: FAR}),
        (pa.array([Decimal(10) ** 30, None]), {}),
        (pa.array(["text", None]), {}),
    ],
)
def test_moments_that_no_format_writes(column: pa.Array, expected: dict[int, str]) -> None:
    assert misfits(column) == expected


def test_avro_has_no_unsigned_integers(tmp_path: Path) -> None:
    numbers = [0, 2**63 - 1, 2**63, 2**64 - 1, None]
    column = pa.array(numbers, pa.uint64())
    assert misfits(column) == {}
    table = pa.table({"v": column, "inside": pa.StructArray.from_arrays([column], ["n"])})
    writers.write(str(tmp_path / "out.avro"), ".avro", None, table.schema, [table])
    with open(tmp_path / "out.avro", "rb") as file:
        rows = list(fastavro.reader(file))
    texts = [None if number is None else str(number) for number in numbers]
    assert [row["v"] for row in rows] == [row["inside"]["n"] for row in rows] == texts


_INT64 = st.integers(-(2**63), 2**63 - 1)
COLUMNS: dict[Any, st.SearchStrategy[Any]] = {
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.int64(): _INT64,
    pa.timestamp("s"): _INT64,
    pa.timestamp("ms", tz="Asia/Kolkata"): st.integers(-(2**48), 2**48),
    pa.timestamp("us", tz="UTC"): _INT64,
    pa.timestamp("us"): _INT64,
    pa.timestamp("ns"): _INT64,
    pa.date32(): st.integers(-(2**31), 2**31 - 1),
    pa.date64(): st.integers(-(2**36), 2**36).map(lambda days: days * 86_400_000),
    pa.duration("s"): _INT64,
    pa.duration("us"): _INT64,
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.bool_(): st.booleans(),
}


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    kind = draw(st.sampled_from(list(COLUMNS)))
    values = draw(st.lists(st.none() | COLUMNS[kind], min_size=1, max_size=5))
    if pa.types.is_temporal(kind):
        width = pa.int32() if pa.types.is_date32(kind) else pa.int64()
        column = pa.array(values, width).view(kind)
    else:
        column = pa.array(values, kind)
    if column.null_count:
        return column
    return draw(st.sampled_from([column, pa.StructArray.from_arrays([column], ["x"])]))


@pytest.mark.parametrize("extension", [".csv", ".tsv", ".jsonl", ".parquet", ".avro"])
@given(column=columns())
def test_what_passes_is_written(tmp_path_factory: pytest.TempPathFactory, extension: str, column: pa.Array) -> None:
    path: Path = tmp_path_factory.getbasetemp() / f"out{extension}"
    wrong = misfits(column)
    left = column.take(pa.array([i for i in range(len(column)) if i not in wrong], pa.int64()))
    table = pa.table({"v": left})
    writers.write(str(path), extension, None, table.schema, [table])


def test_names_that_are_not_there_are_no_misfit() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([2**62], pa.timestamp("us"))], names=["other"])
    assert WritableValues(POLICY).misfits(batch) == {}
