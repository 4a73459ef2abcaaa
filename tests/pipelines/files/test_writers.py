"""Writers that work by columns write what a writer of single rows would write."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crenel.pipelines.files import writers
from crenel.pipelines.files.cells.distinct_ranges import each_once

RANGE = pa.struct([("lo", pa.float64()), ("hi", pa.float64())])
ENDS = st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.5, 1e300]), st.floats(allow_nan=False, allow_infinity=False))
VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "range": (RANGE, st.fixed_dictionaries({"lo": ENDS, "hi": ENDS})),
    "text": (pa.string(), st.text(st.characters(exclude_categories=["Cs", "Cc"]))),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small": (pa.int8(), st.integers(-128, 127)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "flag": (pa.bool_(), st.booleans()),
    "bytes": (pa.binary(), st.binary()),
    "day": (pa.date32(), st.dates()),
    "moment": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.timezone.utc))),
    "local": (pa.timestamp("us"), st.datetimes()),
    "nested": (pa.struct([("a", pa.int32()), ("b", pa.string())]), st.just({"a": 1, "b": None})),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, unique=True))
    count = draw(st.integers(1, 12))
    columns = {}
    for name in names:
        kind, values = VALUES[name]
        columns[name] = pa.array([draw(st.one_of(st.none(), values)) for _ in range(count)], kind)
    return pa.table(columns)


def one_by_one(schema: Any, records: list[Any]) -> bytes:
    """Encode records with fastavro, one after the other."""
    stream = io.BytesIO()
    for record in records:
        fastavro.schemaless_writer(stream, schema, record)
    return stream.getvalue()


@given(table=tables())
@settings(max_examples=200, deadline=None)
def test_avro_is_what_fastavro_writes(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("avro") / "out.avro"
    writers.write(str(path), ".avro", None, table.schema, [table])
    with open(path, "rb") as file:
        blocks = list(fastavro.block_reader(file))
    schema = blocks[0].writer_schema
    assert b"".join(block.bytes_.getvalue() for block in blocks) == one_by_one(schema, table.to_pylist())
    with open(path, "rb") as file:
        assert list(fastavro.reader(file)) == table.to_pylist()


def test_values_of_types_that_avro_lacks_are_text(tmp_path: Path) -> None:
    table = pa.table(
        {
            "amount": pa.array([Decimal("1.50"), None]),
            "tags": pa.array([["a", "b"], None]),
            "long": pa.array(["x", None], pa.large_string()),
            "inside": pa.array([{"amount": Decimal("2.25")}, None]),
        }
    )
    writers.write(str(tmp_path / "out.avro"), ".avro", None, table.schema, [table])
    with open(tmp_path / "out.avro", "rb") as file:
        assert list(fastavro.reader(file)) == [
            {"amount": "1.50", "tags": '["a", "b"]', "long": "x", "inside": {"amount": "2.25"}},
            {"amount": None, "tags": None, "long": None, "inside": None},
        ]


@given(table=tables())
@settings(max_examples=100, deadline=None)
def test_json_lines_are_the_rows(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("json") / "out.jsonl"
    writers.write(str(path), ".jsonl", None, table.schema, [table])
    lines = path.read_text("utf-8").split("\n")
    assert lines.pop() == ""
    for line, row in zip(lines, table.to_pylist(), strict=True):
        assert list(json.loads(line)) == list(row)
        for name in {"range", "text", "long", "flag", "nested"} & set(row):
            assert json.loads(line)[name] == row[name]


@given(ranges=st.lists(st.one_of(st.none(), VALUES["range"][1]), min_size=1))
@settings(deadline=None)
def test_csv_has_each_range_in_its_row(ranges: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("csv") / "out.csv"
    table = pa.table({"range": pa.array(ranges, RANGE), "place": list(range(len(ranges)))})
    writers.write(str(path), ".csv", None, table.schema, [table])
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for place, (row, known) in enumerate(zip(rows, ranges, strict=True)):
        assert row["place"] == str(place)
        if known is None or known["lo"] is None or known["hi"] is None:
            continue
        lo, hi = row["range"].removeprefix("[").removesuffix("]").split(", ")
        assert (float(lo), float(hi)) == (known["lo"], known["hi"])


@given(ranges=st.lists(st.one_of(st.none(), VALUES["range"][1])))
def test_ranges_that_differ_are_never_taken_for_one(ranges: list[Any]) -> None:
    column = pa.array(ranges, RANGE)
    written: list[int] = []

    def write(values: pa.Array) -> pa.Array:
        written.append(len(values))
        return values

    assert repr(each_once(column, write).to_pylist()) == repr(column.to_pylist())
    assert written == [len({repr(known) for known in column.to_pylist()})]
