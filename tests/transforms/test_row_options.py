"""The options for rows from files: parsed text, row numbers, the trace, and a secret order."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.transforms.window import FixedWindows, GlobalWindow
from apache_beam.utils.timestamp import Timestamp

from crenel.policy import PolicyError
from crenel.transforms import Anonymize, AnonymizeBounded
from tests.transforms.streams import Outcome, Stamped, as_dicts, check, policy, rows, run

GIVEN = [{**row, "place": 1_000 + i} for i, row in enumerate(rows(300))]
BOTH = pytest.mark.parametrize("transform", [Anonymize, AnonymizeBounded])
TRACE = ["shard", "release", "kind", "row", "arrival", "moment", "arrivals", "group"]


def as_text(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row as a CSV file has it."""
    return {name: str(int(value) if name == "age" else value) for name, value in row.items()}


def in_forms(given: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {
        "dict": given,
        "row": [beam.Row(**row) for row in given],
        "arrow": [pa.RecordBatch.from_pylist(given[start : start + 70]) for start in range(0, len(given), 70)],
    }


def numbers(out: Outcome) -> list[int]:
    return sorted(int(row["number"]) for row in as_dicts(out.published))


# --- Text ---


@BOTH
@pytest.mark.parametrize("form", ["dict", "row", "arrow"])
def test_text_is_parsed_as_the_policy_means_it(transform: Any, form: str) -> None:
    plain = run(in_forms(GIVEN)[form], transform(policy()))
    text = run(in_forms([as_text(row) for row in GIVEN])[form], transform(policy(), parse_text=True))
    key = lambda row: int(row["number"])  # noqa: E731
    expected = [{**row, "number": str(row["number"])} for row in sorted(as_dicts(plain.published), key=key)]
    assert sorted(as_dicts(text.published), key=key) == expected
    assert not text.rejected
    if form != "arrow":  # without `parse_text`, text is not a number
        refused = run(in_forms([as_text(row) for row in GIVEN])[form], transform(policy()))
        assert not refused.published


@BOTH
@pytest.mark.parametrize("form", ["dict", "arrow"])
def test_a_rejected_row_is_shown_as_it_came(transform: Any, form: str) -> None:
    given = [as_text(row) for row in GIVEN]
    given[7]["age"], given[8]["seen"], given[9]["age"] = "old", "soon", "NA"
    options = {"parse_text": True, "row_number": "place", "order_column": "order"}
    given = [{**row, "place": int(row["place"])} for row in given]
    out = run(in_forms(given)[form], transform(policy(), **options))
    records = sorted((left.value for left in out.rejected), key=lambda record: record["order"])
    assert [(record["order"], record["field"]) for record in records] == [(1007, "age"), (1008, "seen"), (1009, "age")]
    for record, row in zip(records, given[7:10], strict=True):
        assert json.loads(record["row"]) == {name: value for name, value in row.items() if name != "place"}
        assert list(json.loads(record["row"])) == [name for name in row if name != "place"]


def test_a_column_that_a_batch_lacks_is_missing_in_it() -> None:
    batches = in_forms(GIVEN)["arrow"]
    batches[1] = batches[1].drop_columns(["zipcode"])
    out = run(batches, AnonymizeBounded(policy(), parse_text=True))
    assert {left.value["reason"].split(" (")[0] for left in out.rejected} == {"missing"}
    assert len(out.rejected) == 70


# --- Numbers ---


@pytest.mark.parametrize("form", ["dict", "row", "arrow"])
def test_rows_are_taken_in_the_order_of_their_numbers(form: str) -> None:
    """The order of arrival does not matter, and no event time is needed."""
    of = policy(event_time=None, delay=None, delay_rows=50)
    there = run(in_forms(GIVEN)[form], AnonymizeBounded(of, row_number="place"))
    back = run(in_forms(GIVEN[::-1])[form], AnonymizeBounded(of, row_number="place"))
    assert sorted(map(str, as_dicts(there.published))) == sorted(map(str, as_dicts(back.published)))
    assert {record["moment"] for record in as_dicts(there.releases)} == {None}
    end = GlobalWindow().max_timestamp()
    assert {left.timestamp // 1000 for left in there.published} == {end.micros // 1000}
    assert all("place" not in row for row in as_dicts(there.published))
    if form == "dict":
        check(of, GIVEN, there.published, there.suppressed)


def test_row_numbers_cannot_count_a_delay() -> None:
    with pytest.raises(PolicyError, match=r"event_time must name a column.* use policy\.delay_rows alone"):
        AnonymizeBounded(policy(event_time=None), row_number="place")
    AnonymizeBounded(policy(event_time=None))
    Anonymize(policy(event_time=None), row_number="place")


@pytest.mark.parametrize("place", [None, "seventh", 7.5])
def test_a_row_without_a_number_is_an_error(place: Any) -> None:
    of = policy(event_time=None, delay=None, delay_rows=50)
    with pytest.raises(Exception, match="row_number must name a column of integers"):
        run([*GIVEN[:20], {**GIVEN[20], "place": place}], AnonymizeBounded(of, row_number="place"))


# --- The trace ---


@BOTH
@pytest.mark.parametrize("form", ["dict", "row", "arrow"])
def test_the_trace_tells_which_row_left_in_which_release(transform: Any, form: str) -> None:
    of = policy(shards=2, on_suppress="drop")
    out = run(in_forms(GIVEN)[form], transform(of, row_number="place", trace=True))
    trace, releases = as_dicts(out.trace), as_dicts(out.releases)
    assert all(list(record) == TRACE for record in trace)
    assert sorted(record["row"] for record in trace) == [row["place"] for row in GIVEN]
    published = {record["row"] for record in trace if record["kind"] in ("cluster", "reuse")}
    assert sorted(published) == [number + 1_000 for number in numbers(out)]
    by_shard: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    for record in trace:
        by_shard[record["shard"]].append(record)
    for shard, records in by_shard.items():
        assert sorted(record["arrival"] for record in records) == list(range(len(records)))
        found = {record["release"] for record in records}
        assert found == set(range(len([record for record in releases if record["shard"] == shard])))
        own = [record for record in records if record["kind"] != "reuse"]
        assert all(record["group"] == record["release"] for record in own)
        moments = {(record["release"], record["moment"]) for record in records}
        assert len(moments) == len(found)
    assert all(type(record["moment"]) is Timestamp for record in trace) or form == "arrow"


def test_a_trace_needs_numbers() -> None:
    with pytest.raises(ValueError, match="trace needs row_number"):
        Anonymize(policy(), trace=True)


@pytest.mark.parametrize("option", ["row_number", "order_column"])
def test_a_column_of_the_policy_is_no_number_and_no_order(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be a column of its own, not 'number'"):
        Anonymize(policy(), **{option: "number"})
    with pytest.raises(ValueError, match="must be a column of its own, not 'x'"):
        Anonymize(policy(), row_number="x", order_column="x")


# --- The order ---


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("form", ["dict", "row", "arrow"])
def test_the_order_depends_on_the_secret_alone(transform: Any, form: str) -> None:
    out = run(in_forms(GIVEN)[form], transform(policy(shards=3, on_suppress="drop"), order_column="order"))
    ordered = sorted([*as_dicts(out.published), *as_dicts(out.suppressed)], key=lambda row: row["order"])
    assert len({row["order"] for row in ordered}) == len(GIVEN)
    places = [row["number"] for row in ordered]
    again = run(in_forms(GIVEN)[form], transform(policy(shards=3, on_suppress="drop", seed=8), order_column="order"))
    other = sorted([*as_dicts(again.published), *as_dicts(again.suppressed)], key=lambda row: row["order"])
    assert sorted(places) == list(range(300))
    # A random order: about half of the adjacent pairs are ascending.
    for found in (places, [row["number"] for row in other]):
        assert 100 < sum(a < b for a, b in pairwise(found)) < 200
    assert places != [row["number"] for row in other]


def test_forms_agree_on_the_order() -> None:
    orders = []
    for given in in_forms(GIVEN).values():
        out = run(given, AnonymizeBounded(policy(), row_number="place", trace=True, order_column="order"))
        for found, name in ((out.published, "number"), (out.trace, "row")):
            orders.append([row[name] % 1_000 for row in sorted(as_dicts(found), key=lambda row: row["order"])])
    assert all(order == orders[0] for order in orders)
    assert len(orders[0]) == 300


def test_timestamps_do_not_undo_the_order() -> None:
    out = run(Stamped(GIVEN), AnonymizeBounded(policy(), order_column="order"), window=FixedWindows(1_000))
    assert all(left.timestamp // 1000 == left.window.max_timestamp().micros // 1000 for left in out.published)
    hashes = [row["order"] for row in as_dicts(out.published)]
    assert len(set(hashes)) == len(hashes) == 300
    stream = run(Stamped(GIVEN), Anonymize(policy(), order_column="order"))
    assert len({left.timestamp for left in stream.published}) > 10


def test_the_order_is_in_the_schema() -> None:
    pipeline = beam.Pipeline(runner="FnApiRunner")
    given = pipeline | beam.Create([beam.Row(**row) for row in GIVEN[:3]])
    out = given | AnonymizeBounded(policy(), row_number="place", order_column="order")
    assert dict(out.published.element_type._fields)["order"] is int
    assert dict(out.rejected.element_type._fields)["order"] is int


def test_batches_of_an_undeclared_type_are_records_of_any() -> None:
    pipeline = beam.Pipeline(runner="FnApiRunner")
    given = pipeline | beam.Create([1, 2]) | beam.Map(lambda _: pa.RecordBatch.from_pylist(GIVEN))
    out = given | AnonymizeBounded(policy(), row_number="place", trace=True)
    assert out.published.element_type == out.releases.element_type == out.trace.element_type == Any
    typed = given | "Typed" >> beam.Map(lambda batch: batch).with_output_types(pa.RecordBatch)
    out = typed | "Typed rows" >> AnonymizeBounded(policy(), row_number="place", trace=True)
    assert out.published.element_type == out.releases.element_type == out.trace.element_type == pa.RecordBatch
