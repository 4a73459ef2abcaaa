"""Ranges as two columns or as text: the same ends as the struct has, in types that sinks take without a Map."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import pandas as pd
import pyarrow as pa
import pytest
from apache_beam.typehints.schemas import named_tuple_to_schema
from apache_beam.utils.timestamp import Timestamp
from pyarrow import parquet

import crenel
from crenel.transforms import Anonymize, published_schema
from crenel.transforms._publish.range_form import RangeForm, Ranges

LINE = pa.schema([("size", pa.struct([("lo", pa.float64()), ("hi", pa.float64())]))])

POLICY: dict[str, Any] = {
    "version": 1,
    "person": "who",
    "quasi_identifiers": {
        "age": {"type": "numeric", "domain": [0, 120]},
        "born": {"type": "datetime", "domain": ["1900-01-01", "2030-01-01"]},
        "zip": {"type": "prefix", "length": 5},
        "size": {"type": "numeric"},
    },
    "publish": ["ward"],
    "k": 4,
    "delay_rows": 40,
    "seed": 7,
}
ROWS = [
    {
        "who": number,
        "age": 7 * number % 90,
        "born": dt.datetime(1950, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(days=211 * number % 9000),
        "zip": f"48{number % 100:03}",
        "size": number % 17 + 0.5,
        "ward": f"w{number % 3}",
    }
    for number in range(60)
]


class Visit(NamedTuple):
    who: int
    age: int
    born: Timestamp
    zip: str
    size: float
    ward: str


def published(kind: Any = None, **options: Any) -> Any:
    table = pa.Table.from_pylist(ROWS)
    return crenel.anonymize(table if kind is None else kind(table), POLICY, **options).published


def test_two_columns_hold_the_ends_of_the_struct_in_the_types_of_the_input() -> None:
    structs, columns = published().to_pylist(), published(ranges="columns")
    assert {field.name: str(field.type) for field in columns.schema} == {
        "age_lo": "int64",
        "age_hi": "int64",
        "born_lo": "timestamp[us, tz=UTC]",
        "born_hi": "timestamp[us, tz=UTC]",
        "zip": "string",
        "size_lo": "double",
        "size_hi": "double",
        "ward": "string",
    }
    for plain, row in zip(columns.to_pylist(), structs, strict=True):
        assert (plain["age_lo"], plain["age_hi"]) == (row["age"]["lo"], row["age"]["hi"])
        assert plain["born_lo"].isoformat().replace("+00:00", "Z") == row["born"]["lo"]
        assert (plain["zip"], plain["ward"]) == (row["zip"], row["ward"])


def test_text_is_that_of_csv() -> None:
    for text, row in zip(published(ranges="text").to_pylist(), published().to_pylist(), strict=True):
        assert text["age"] == f"[{int(row['age']['lo'])}, {int(row['age']['hi'])}]"
        assert text["size"] == f"[{row['size']['lo']}, {row['size']['hi']}]"
        assert text["born"] == f"[{row['born']['lo']}, {row['born']['hi']}]"


@pytest.mark.parametrize("end", [0.0, 83.0, 2.5, 0.1, 1e-7, 123_456_789_012.0, 1e20])
def test_the_text_of_a_row_is_that_of_a_batch(end: float) -> None:
    form = RangeForm(crenel.Policy.of(POLICY), Ranges.TEXT)
    row = {"size": {"lo": end, "hi": None}}
    assert [form.row(row)] == form.batch(pa.table({"size": [{"lo": end, "hi": None}]}).cast(LINE)).to_pylist()


def test_whole_numbers_with_a_step_that_is_not_whole_stay_floats() -> None:
    halves = {
        **POLICY,
        "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 120], "step": 2.5}},
        "publish": [],
    }
    made = crenel.anonymize(pa.Table.from_pylist(ROWS), halves, ranges="columns").published
    assert str(made.schema.field("age_lo").type) == "double"


DAYS: dict[str, Any] = {
    **POLICY,
    "quasi_identifiers": {
        "age": {"type": "numeric", "domain": [0, 120], "step": 5},
        "born": {"type": "datetime", "domain": ["1900-01-01", "2030-01-01"], "step": "30d"},
    },
}


def test_a_step_of_whole_days_makes_dates() -> None:
    made = crenel.anonymize(pa.Table.from_pylist(ROWS), DAYS, ranges="columns").published
    assert made.schema.field("born_lo").type == pa.date32()
    structs = crenel.anonymize(pa.Table.from_pylist(ROWS), DAYS).published.to_pylist()
    for plain, row in zip(made.to_pylist(), structs, strict=True):
        assert f"{plain['born_hi'].isoformat()}T00:00:00Z" == row["born"]["hi"]


@pytest.mark.parametrize(
    "changes", [{"step": "36h"}, {"domain": ["1900-01-01T12:00:00Z", "2030-01-01"]}, {"step": None}]
)
def test_ends_that_may_lie_within_a_day_stay_moments(changes: dict[str, Any]) -> None:
    born = {**DAYS["quasi_identifiers"]["born"], **changes}
    born = {name: value for name, value in born.items() if value is not None}
    policy = {**DAYS, "quasi_identifiers": {"born": born}}
    made = crenel.anonymize(pa.Table.from_pylist(ROWS), policy, ranges="columns").published
    assert made.schema.field("born_lo").type == pa.timestamp("us", "UTC")


def test_a_whole_step_makes_whole_numbers_of_rows_without_a_schema(tmp_path: Path) -> None:
    with beam.Pipeline("FnApiRunner") as pipeline:
        made = pipeline | beam.Create(ROWS) | Anonymize(DAYS, ranges="columns")

        def check(row: dict[str, Any]) -> None:
            assert type(row["age_lo"]) is int
            assert type(row["born_lo"]) is dt.date

        made.published | beam.Map(check)


def test_pandas_gets_plain_columns() -> None:
    frame = published(pa.Table.to_pandas, ranges="columns")
    assert frame["age_lo"].dtype == "int64"
    assert isinstance(frame["born_lo"].dtype, pd.DatetimeTZDtype)


def test_suppressed_rows_have_the_same_form() -> None:
    result = crenel.anonymize(pa.Table.from_pylist(ROWS[:3]), POLICY, ranges="columns")
    assert result.published.num_rows == 0
    assert "age_lo" in result.published.schema.names
    assert result.suppressed.column("age_lo").to_pylist() == result.suppressed.column("age_hi").to_pylist()


def run(rows: list[Any], folder: Path, schema: pa.Schema) -> pa.Table:
    with beam.Pipeline("FnApiRunner") as pipeline:
        made = pipeline | beam.Create(rows) | Anonymize(POLICY, ranges="columns")
        made.published | beam.io.WriteToParquet(str(folder / "out"), schema)
    return pa.concat_tables([parquet.read_table(path) for path in sorted(folder.glob("out*"))])


def test_dicts_go_to_parquet_without_a_map(tmp_path: Path) -> None:
    schema = published_schema(crenel.Policy.of(POLICY), pa.Table.from_pylist(ROWS).schema, "columns")
    made = run(ROWS, tmp_path, schema)
    assert made.schema.names == ["age_lo", "age_hi", "born_lo", "born_hi", "zip", "size_lo", "size_hi", "ward"]
    assert made.num_rows > 50
    assert all(row["age_lo"] <= row["age_hi"] and row["born_lo"] <= row["born_hi"] for row in made.to_pylist())


def test_arrow_batches_are_turned_as_batches() -> None:
    given = pa.Table.from_pylist(ROWS)
    with beam.Pipeline("FnApiRunner") as pipeline:
        made = pipeline | beam.Create(given.to_batches()) | Anonymize(POLICY, ranges="columns")
        expected = published_schema(crenel.Policy.of(POLICY), given.schema, "columns")

        def check(batch: pa.RecordBatch) -> None:
            assert batch.schema.equals(expected)

        made.published | beam.Map(check)


def test_rows_with_a_schema_keep_one() -> None:
    pipeline = beam.Pipeline("FnApiRunner")
    given = [Visit(**{**row, "born": Timestamp.of(row["born"])}) for row in ROWS]
    rows = pipeline | beam.Create(given).with_output_types(Visit)
    made = rows | Anonymize(POLICY, ranges="columns")
    types = dict(made.published.element_type._fields)
    assert list(types) == ["age_lo", "age_hi", "born_lo", "born_hi", "zip", "size_lo", "size_hi", "ward"]
    # BigQuery and other sinks of Beam make their schema of this one.
    fields = {field.name: field.type for field in named_tuple_to_schema(made.published.element_type.user_type).fields}
    assert fields["age_lo"].atomic_type != fields["size_lo"].atomic_type

    def check(row: Any) -> None:
        assert isinstance(row.age_lo, int)
        assert isinstance(row.born_lo, Timestamp)

    made.published | beam.Map(check)
    pipeline.run().wait_until_finish()


def test_a_range_that_is_missing_is_null_at_both_ends() -> None:
    rows = [{**row, "age": None if number % 2 else row["age"]} for number, row in enumerate(ROWS)]
    holes = {**POLICY, "method": "partition", "seed": 7}
    made = crenel.anonymize(pa.Table.from_pylist(rows), holes, ranges="columns").published.to_pylist()
    texts = crenel.anonymize(pa.Table.from_pylist(rows), holes, ranges="text").published.to_pylist()
    assert any(row["age_lo"] is None for row in made)
    assert all(
        (row["age_lo"] is None) == (row["age_hi"] is None) == (text["age"] is None)
        for row, text in zip(made, texts, strict=True)
    )


def test_mistakes_are_explained() -> None:
    with pytest.raises(ValueError, match="ranges must be 'columns', 'text' or 'struct', not 'list'"):
        Anonymize(POLICY, ranges="list")
    taken = {**POLICY, "publish": ["ward", "age_lo"]}
    with pytest.raises(ValueError, match="makes a column 'age_lo', which the policy publishes already"):
        Anonymize(taken, ranges="columns")
    Anonymize(taken, ranges="text")
