"""Rows of every kind are published as the same kind, with a schema that the next step can use."""

from __future__ import annotations

import datetime as dt
import json
import typing
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.coders import RowCoder
from apache_beam.io.parquetio import ReadFromParquetBatched, WriteToParquetBatched
from apache_beam.portability.api import schema_pb2
from apache_beam.typehints.schemas import typing_from_runner_api, typing_to_runner_api
from apache_beam.utils.timestamp import Timestamp

from crenel import PolicyError
from crenel.transforms import Anonymize, AnonymizeBounded, published_schema
from tests.transforms.streams import UNNAMED, Left, anonymize, as_dict, check, keep, kept, policy, rows, run


class Visit(typing.NamedTuple):
    """A row with a schema."""

    patient: str
    seen: float
    age: float
    zipcode: str
    education: str
    disease: str
    number: int
    nickname: str


class SparseVisit(typing.NamedTuple):
    """A row with optional columns."""

    patient: str | None
    seen: float
    age: float
    zipcode: str
    education: str
    disease: str | None
    number: int | None


def as_rows(given: list[dict[str, Any]]) -> list[beam.Row]:
    return [beam.Row(**row) for row in given]


def as_tuples(given: list[dict[str, Any]]) -> list[Visit]:
    return [Visit(**row) for row in given]


def as_batches(given: list[dict[str, Any]]) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist(given[i : i + 70]) for i in range(0, len(given), 70)]


def listed(batches: list[Left]) -> list[Left]:
    """Return the rows of batches, one by one."""
    return [left._replace(value=row) for left in batches for row in left.value.to_pylist()]


GIVEN = rows(300)
COLUMNS = ["age", "zipcode", "education", "disease", "number"]


@pytest.fixture(scope="module")
def dicts() -> Any:
    return run(GIVEN, anonymize())


def test_dicts_leave_as_dicts(dicts: Any) -> None:
    check(policy(), GIVEN, dicts.published, dicts.suppressed)
    assert all(type(left.value) is dict and list(left.value) == COLUMNS for left in dicts.published)


@pytest.mark.parametrize("kind", [as_rows, as_tuples])
def test_rows_with_a_schema_leave_as_rows(dicts: Any, kind: Any) -> None:
    out = run(kind(GIVEN), anonymize())
    check(policy(), GIVEN, out.published, out.suppressed)
    assert [as_dict(left.value) for left in out.published] == [left.value for left in dicts.published]
    assert [left.value._asdict() for left in out.releases] == [left.value for left in dicts.releases]


@pytest.mark.parametrize("kind", [pa.RecordBatch, pa.Table])
def test_batches_and_tables_leave_as_they_came(dicts: Any, kind: Any) -> None:
    batches = as_batches(GIVEN)
    given = batches if kind is pa.RecordBatch else [pa.Table.from_batches([batch]) for batch in batches]
    out = run(given, anonymize())
    assert all(type(left.value) is kind for left in (*out.published, *out.suppressed, *out.releases))
    assert {left.value.schema.remove_metadata() for left in out.published} == {out.published[0].value.schema}
    check(policy(), GIVEN, listed(out.published), listed(out.suppressed))
    by_number = {left.value["number"]: left.value for left in dicts.published}
    assert all(left.value == by_number[left.value["number"]] for left in listed(out.published))


def test_parquet_in_tables_is_written_in_tables(tmp_path: Path) -> None:
    given = pa.Table.from_batches(as_batches(GIVEN))
    pq.write_table(given, tmp_path / "given.parquet")
    with beam.Pipeline("FnApiRunner") as pipeline:
        tables = pipeline | ReadFromParquetBatched(str(tmp_path / "given.parquet"))
        result = tables | Anonymize(policy())
        _ = result | WriteToParquetBatched(str(tmp_path / "published"), published_schema(policy(), given.schema))
    published = pa.concat_tables(map(pq.read_table, tmp_path.glob("published*")))
    assert sorted(published["number"].to_pylist()) == sorted(row["number"] for row in GIVEN)


def test_numbers_leave_as_structs_and_categories_as_text() -> None:
    out = run(as_batches(GIVEN), anonymize())
    schema = out.published[0].value.schema
    assert schema.field("age").type == pa.struct([("lo", pa.float64()), ("hi", pa.float64())])
    assert schema.field("zipcode").type == schema.field("education").type == pa.string()
    assert schema.field("number").type == pa.int64()


def test_the_schema_of_batches_is_known_beforehand() -> None:
    given = as_batches(GIVEN)
    out = run(given, anonymize())
    assert {left.value.schema for left in (*out.published, *out.suppressed)} == {
        published_schema(policy(), given[0].schema)
    }


@pytest.mark.parametrize("on_suppress", ["star", "drop"])
@pytest.mark.parametrize("kind", [list, as_rows, as_batches])
def test_a_suppressed_row_is_the_whole_domain(kind: Any, on_suppress: str) -> None:
    few = rows(3)
    out = run(kind(few), anonymize(on_suppress=on_suppress))
    # They are released at one moment, so their order is random.
    published, suppressed = (
        sorted(
            (as_dict(left.value) for left in (listed(found) if kind is as_batches else found)),
            key=itemgetter("number"),
        )
        for found in (out.published, out.suppressed)
    )
    star = {"age": {"lo": 0.0, "hi": 100.0}, "zipcode": "*****", "education": "any"}
    expected = [{**star, "disease": row["disease"], "number": row["number"]} for row in few]
    assert published == (expected if on_suppress == "star" else [])
    # This output is for the owner, and has exact values.
    assert [(row["age"], row["zipcode"]) for row in suppressed] == [
        ({"lo": row["age"], "hi": row["age"]}, row["zipcode"]) for row in few
    ]


def test_an_undeclared_domain_leaves_as_null() -> None:
    of = policy(quasi_identifiers={"age": {"type": "numeric"}})
    assert [left.value["age"] for left in run(rows(2), Anonymize(of)).published] == [{"lo": None, "hi": None}] * 2
    (batch,) = [left.value for left in run(as_batches(rows(2)), Anonymize(of)).published]
    assert batch.column("age").to_pylist() == [{"lo": None, "hi": None}] * 2
    for left in run(as_rows(rows(2)), Anonymize(of)).published:
        assert left.value.age == beam.Row(lo=None, hi=None)


def test_kinds_may_be_mixed() -> None:
    mixed = [row if i % 2 else beam.Row(**row) for i, row in enumerate(GIVEN)]
    out = run(beam.Create(mixed[1:] + mixed[:1], reshuffle=False), anonymize(disorder="2h"))
    assert {type(left.value) for left in out.published} == {dict, beam.Row}
    check(policy(), GIVEN, out.published, out.suppressed)
    assert sum(left.value["rows"] for left in out.releases) == len(GIVEN)


# --- Schemas ---


RELEASE = ["shard", "kind", "rows", "persons", "loss", "moment", "arrivals", "group"]


def typed(of: Any, given: Any) -> tuple[Any, Any]:
    """Apply the transform in a pipeline that is not run; return its results."""
    pipeline = beam.Pipeline(runner="FnApiRunner")
    return pipeline, pipeline | beam.Create(given) | Anonymize(of)


@pytest.mark.parametrize("kind", [as_rows, as_tuples])
def test_the_schema_is_told(kind: Any) -> None:
    _, out = typed(policy(), kind(GIVEN))
    fields = dict(out.published.element_type._fields)
    assert list(fields) == COLUMNS
    assert dict(fields["age"]._fields) == {"lo": float | None, "hi": float | None}
    assert fields["education"] == str | None
    assert (fields["disease"], fields["number"]) == (str, int)
    assert out.suppressed.element_type == out.published.element_type
    assert dict(out.rejected.element_type._fields) == {"row": str, "field": str, "reason": str}
    assert list(dict(out.releases.element_type._fields)) == RELEASE
    # The schema that other languages would receive.
    assert typing_from_runner_api(typing_to_runner_api(out.published.element_type))._fields


def test_what_may_be_missing_is_told() -> None:
    given = [SparseVisit(**{name: row[name] for name in SparseVisit._fields}) for row in GIVEN]
    _, out = typed(policy(), given)
    schema = typing_to_runner_api(out.published.element_type).row_type.schema
    assert {field.name: field.type.atomic_type for field in schema.fields if field.name in ("disease", "number")} == {
        "disease": schema_pb2.STRING,
        "number": schema_pb2.INT64,
    }
    assert all(field.type.nullable for field in schema.fields if field.name != "age")


def test_the_kind_is_told_where_there_is_no_schema() -> None:
    _, out = typed(policy(), GIVEN)
    assert out.published.element_type == beam.typehints.Dict[str, typing.Any]
    _, out = typed(policy(), as_batches(GIVEN))
    assert out.published.element_type == pa.RecordBatch


def test_published_rows_can_be_selected_grouped_and_sent() -> None:
    pipeline = beam.testing.test_pipeline.TestPipeline(runner="FnApiRunner")
    out = pipeline | beam.Create(as_tuples(GIVEN)) | anonymize()
    keep(out | "Sent" >> beam.Reshuffle(), "sent")
    keep(out | beam.Select("disease", low=lambda row: row.age.lo), "selected")
    keep(out | beam.GroupBy("education").aggregate_field("number", sum, "total"), "grouped")
    keep(out.releases | "Sent too" >> beam.Reshuffle() | beam.Select("rows"), "releases")
    pipeline.run().wait_until_finish()
    assert sorted(as_dict(row)["number"] for row in kept("sent")) == list(range(300))
    assert all(type(row.low) is float for row in kept("selected"))
    assert sum(row.total for row in kept("grouped")) == sum(range(300))
    assert sum(row.rows for row in kept("releases")) == 300


def test_a_coder_of_the_schema_takes_every_published_row() -> None:
    given = [*GIVEN, *rows(1)]
    given[-1].update(seen=9e6, number=300)  # released alone, so it is suppressed
    _, out = typed(policy(), as_tuples(given))
    coder = RowCoder(typing_to_runner_api(out.published.element_type).row_type.schema)
    for left in run(as_tuples(given), anonymize()).published:
        assert as_dict(coder.decode(coder.encode(left.value))) == as_dict(left.value)


def test_published_dicts_can_be_written_as_json(dicts: Any) -> None:
    again = [json.loads(json.dumps(left.value)) for left in dicts.published]
    assert again == [left.value for left in dicts.published]


def test_values_that_leave_as_they_are_keep_their_type() -> None:
    odd = [2, [None, (1.5, "a")]]
    given = [{**row, "number": odd} for row in rows(20)]
    assert [left.value["number"] for left in run(given, anonymize()).published] == [odd] * 20
    as_row = run([beam.Row(**row) for row in given], anonymize()).published
    assert [left.value.number for left in as_row] == [odd] * 20


def test_a_published_column_that_a_row_has_not_is_none() -> None:
    given = [{name: value for name, value in row.items() if name != "number"} for row in rows(20)]
    assert {left.value["number"] for left in run(given, anonymize()).published} == {None}


def test_a_column_that_the_schema_has_not_is_refused_when_the_pipeline_is_built() -> None:
    with pytest.raises(PolicyError, match="names the column 'weight', which the rows do not have; they have: patient,"):
        typed(policy(publish=["weight", "number"]), as_tuples(GIVEN))


# --- Moments ---


def test_beam_timestamps_are_moments() -> None:
    of = policy(
        quasi_identifiers={"born": {"type": "datetime", "domain": ["1900-01-01", "2020-01-01"]}},
        publish=["number"],
        sensitive=None,
    )
    given = [
        {"patient": i, "seen": Timestamp(1_000_000 + i), "born": Timestamp(micros=i * 10**9 + 1), "number": i}
        for i in range(40)
    ]
    plain = [
        {
            **row,
            "seen": row["seen"].micros / 1e6,
            "born": dt.datetime.fromtimestamp(0, dt.timezone.utc) + dt.timedelta(microseconds=row["born"].micros),
        }
        for row in given
    ]
    expected = [left.value for left in run(plain, Anonymize(of)).published]
    assert len(expected) == 40
    assert [left.value for left in run(given, Anonymize(of)).published] == expected
    some = [a if i % 2 else b for i, (a, b) in enumerate(zip(given, plain, strict=True))]
    assert [left.value for left in run(some, Anonymize(of)).published] == expected


# --- What does not fit ---


@pytest.mark.parametrize("kind", [list, as_rows, as_batches])
def test_a_row_that_does_not_fit_is_rejected_whole(kind: Any) -> None:
    given = rows(40)
    given[3]["age"] = 130.0
    given[5]["patient"] = ""
    given[7]["education"] = "doctor"
    out = run(kind(given), anonymize())
    found = [as_dict(left.value) for left in out.rejected]
    assert [(row["field"], row["reason"]) for row in found] == [
        ("age", "outside the domain"),
        ("patient", "missing"),
        ("education", "unknown value"),
    ]
    assert [json.loads(row["row"]) for row in found] == [given[i] for i in (3, 5, 7)]
    fine = [row for i, row in enumerate(given) if i not in (3, 5, 7)]
    published = listed(out.published) if kind is as_batches else out.published
    suppressed = listed(out.suppressed) if kind is as_batches else out.suppressed
    check(policy(), fine, published, suppressed)


def test_a_batch_without_a_column_is_rejected() -> None:
    batch = pa.RecordBatch.from_pylist(rows(5)).drop_columns(["age"])
    out = run([batch], anonymize())
    assert [(left.value["field"], left.value["reason"]) for left in out.rejected] == [("age", "no such column")] * 5


def test_a_misspelled_column_of_a_dict_is_no_missing_value() -> None:
    misspelled = [{("Age" if name == "age" else name): value for name, value in row.items()} for row in rows(3)]
    empty = {**rows(1)[0], "age": None}
    reasons = [(left.value["field"], left.value["reason"]) for left in run([*misspelled, empty], anonymize()).rejected]
    assert reasons[:3] == [("age", "no such column")] * 3
    assert reasons[3][1].startswith("missing")


def test_a_column_that_the_schema_spells_otherwise_is_suggested() -> None:
    given = [beam.Row(**{("Number" if name == "number" else name): value for name, value in GIVEN[0].items()})]
    with pytest.raises(PolicyError, match=r"which the rows do not have; did you mean 'Number'\? they have: "):
        typed(policy(), given)


class Opaque:
    """A value that only a pickle could store."""


def odd_rows() -> list[dict[str, Any]]:
    given = rows(40)
    given[3]["number"] = Opaque()
    given[5]["number"] = [1, {"inside": Opaque()}]
    given[9] |= {"number": Opaque(), "age": 130.0}  # the first reason counts
    return given


def made(make: Any) -> Any:
    """Make rows in the pipeline: Beam's coders could not store some of them."""
    return beam.Create([None]) | beam.FlatMap(lambda _: make())


@pytest.mark.parametrize("kind", [list, as_rows])
@pytest.mark.parametrize("transform", [Anonymize, AnonymizeBounded])
def test_a_row_with_a_value_that_cannot_be_stored_is_rejected(kind: Any, transform: Any) -> None:
    out, given = run(made(lambda: kind(odd_rows())), transform(policy())), odd_rows()
    assert [(as_dict(left.value)["field"], as_dict(left.value)["reason"]) for left in out.rejected] == [
        ("number", "type that cannot be stored"),
        ("number", "type that cannot be stored"),
        ("age", "outside the domain"),
    ]
    fine = [row for i, row in enumerate(given) if i not in (3, 5, 9)]
    check(policy(), fine, out.published, out.suppressed)


def many_types() -> list[Any]:
    return [
        *(10**40, Decimal("1.50"), dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc), dt.date(2026, 1, 2), b"\xff"),
        *([1, (2, None)], Timestamp(7), None, True, -0.0, {1, 2}),
    ]


def rows_of_many_types() -> list[dict[str, Any]]:
    values = many_types()
    return [{**row, "number": value} for row, value in zip(rows(len(values)), values, strict=True)]


@pytest.mark.parametrize("transform", [Anonymize, AnonymizeBounded])
def test_values_of_many_types_leave_as_they_came(transform: Any) -> None:
    values = many_types()
    found = [left.value["number"] for left in run(made(rows_of_many_types), transform(policy(k=2))).published]
    assert sorted(map(repr, found)) == sorted(map(repr, values))
    assert {type(value) for value in found} == {type(value) for value in values}


HOLDS_ITSELF: dict[str, Any] = {}
HOLDS_ITSELF["self"] = HOLDS_ITSELF


@pytest.mark.parametrize(
    ("strange", "said"),
    [
        ("text", '"text"'),
        (None, "null"),
        (7, "7"),
        ({}, "{}"),
        ({"age": float("nan"), "when": dt.date(2020, 2, 1)}, '{"age": "nan", "when": "2020-02-01"}'),
        ({"name": "lone \udc80 half"}, '{"name": "lone \\udc80 half"}'),
        ({(1, 2): b"x", "ö": [beam.Row(a=1)]}, '{"(1, 2)": "b\'x\'", "ö": [{"a": 1}]}'),
        (HOLDS_ITSELF, '"a dict that cannot be written"'),
    ],
)
def test_whatever_comes_is_rejected_as_text(strange: Any, said: str) -> None:
    from crenel.transforms._pack.pack_step import as_text

    text = as_text(strange)
    assert text == said
    assert text.encode("utf-8")
    json.loads(text)


def test_elements_that_are_no_rows_are_rejected() -> None:
    out = run(["text", None, 7, {}, []], anonymize())
    assert len(out.rejected) == 5
    assert {left.value["reason"] for left in out.rejected} == {"missing", "no such column"}
    assert out.published == []


def test_unnamed_columns_do_not_leave(dicts: Any) -> None:
    told = repr([left.value for left in (*dicts.published, *dicts.suppressed, *dicts.releases)])
    assert UNNAMED not in told
    assert not any(row[UNNAMED] in told or row["patient"] in told for row in GIVEN)


def test_no_rows_at_all() -> None:
    out = run([], anonymize())
    assert [out.published, out.suppressed, out.rejected, out.releases] == [[]] * 4
    empty = pa.RecordBatch.from_pylist(rows(3)).slice(0, 0)
    assert run([empty], anonymize()).published == []


def test_types_of_batches_may_differ() -> None:
    first, second = (pa.RecordBatch.from_pylist(part) for part in (GIVEN[:20], GIVEN[20:40]))
    narrow = second.set_column(second.schema.get_field_index("number"), "number", second["number"].cast(pa.int32()))
    out = run([first, narrow], anonymize())
    assert sorted(left.value["number"] for left in listed(out.published)) == list(range(40))
