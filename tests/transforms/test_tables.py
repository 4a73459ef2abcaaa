"""`crenel.anonymize`: a table in, a table of the same kind out, and the rows that a pipeline would publish."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import crenel
from crenel.pipelines.cli import main
from crenel.policy import Policy, PolicyError
from crenel.transforms import tables
from crenel.transforms._hold import event_order
from crenel.transforms._pack.frames import SharedRows, frame_of
from tests.transforms.streams import UNNAMED, policy, rows

#: Policies of different roads through the steps: by time or by rows, one shard or several, stars, holes, noise.
POLICIES = {
    "by time": policy(method="bastion", on_suppress=None),
    "stars": policy(),
    "shards": policy(shards=3),
    "a tree of shards": policy(shards=3, shard_by="locality"),
    "by rows": policy(event_time=None, delay=None, delay_rows=100),
    "sampled": policy(method="castleguard", event_time=None, delay=None, delay_rows=100),
}

#: What a range of numbers is published as.
RANGE = pa.struct([("lo", pa.float64()), ("hi", pa.float64())])


def table(count: int = 600, **changes: Any) -> pa.Table:
    """Rows that arrive out of order, of which one in fifty does not fit."""
    given = rows(count, every=5.0)
    for number in range(0, count, 50):
        given[number]["age"] = 1000
    for number in range(0, count - 1, 7):
        given[number], given[number + 1] = given[number + 1], given[number]
    return pa.Table.from_pylist([row | changes for row in given])


@pytest.mark.parametrize("of", POLICIES.values(), ids=POLICIES)
def test_a_table_is_published_as_crenel_run_publishes_its_file(of: Policy, tmp_path: Any) -> None:
    given = table()
    pq.write_table(given, tmp_path / "given.parquet")
    (tmp_path / "policy.yaml").write_text(of.to_yaml())
    outputs = {name: tmp_path / f"{name}.parquet" for name in ("output", "suppressed", "releases", "trace")}
    flags = [text for name, path in outputs.items() for text in (f"--{name}", str(path))]
    run = ["run", str(tmp_path / "policy.yaml"), "--input", str(tmp_path / "given.parquet"), *flags]
    assert main(run) in (0, 3)  # 3: many rows do not fit
    result = crenel.anonymize(given, of, trace=True)
    made = dict(zip(outputs, (result.published, result.suppressed, result.releases, result.trace), strict=True))
    for name, path in outputs.items():
        assert made[name].to_pylist() == pq.read_table(path).to_pylist(), name


@pytest.mark.parametrize("of", POLICIES.values(), ids=POLICIES)
def test_every_row_is_accounted_for(of: Policy) -> None:
    result = crenel.anonymize(table(), of, trace=True)
    counts = result.summary
    assert counts.rows == 600
    assert counts.published + counts.suppressed + counts.sampled_out + counts.rejected.total() == 600
    assert counts.rejected.total() == len(result.rejected) >= 12
    assert sorted([*result.trace["row"].to_pylist(), *result.rejected["row"].to_pylist()]) == list(range(600))
    assert UNNAMED not in result.published.schema.names


def test_a_rejected_row_is_found_by_its_place() -> None:
    given = table()
    for record in crenel.anonymize(given, POLICIES["by time"]).rejected.to_pylist():
        assert record["field"] == "age"
        assert record["reason"] == "outside the domain"
        assert given["age"][record["row"]].as_py() == 1000


def test_a_row_ahead_of_its_time_is_rejected() -> None:
    given = table().to_pylist()
    given[303]["seen"] += 10 * 365 * 86_400
    result = crenel.anonymize(pa.Table.from_pylist(given), POLICIES["by time"], trace=True)
    ahead = [record for record in result.rejected.to_pylist() if record["field"] == "seen"]
    assert [record["row"] for record in ahead] == [303]
    assert result.trace.num_rows + result.rejected.num_rows - 1 == 600


def test_what_comes_is_what_leaves() -> None:
    given, of = table(), POLICIES["by time"]
    arrow = crenel.anonymize(given, of).published
    batch = crenel.anonymize(given.combine_chunks().to_batches()[0], of).published
    frame = crenel.anonymize(given.to_pandas(), of).published
    polars = crenel.anonymize(pl.from_arrow(given), of).published
    assert isinstance(batch, pa.RecordBatch)
    assert batch.to_pylist() == arrow.to_pylist()
    assert isinstance(polars, pl.DataFrame)
    assert polars.to_arrow().to_pylist() == arrow.to_pylist()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns) == arrow.schema.names
    assert [(age.left, age.right) for age in frame["age"]] == [
        (age["lo"], age["hi"]) for age in arrow["age"].to_pylist()
    ]
    assert frame["zipcode"].to_list() == arrow["zipcode"].to_pylist()


def test_an_open_end_is_infinite_and_a_hole_is_missing_in_pandas() -> None:
    given = pd.DataFrame({"who": range(40), "x": [None, 1.5, 2.5, 3.5] * 10})
    of = {
        "version": 1,
        "person": "who",
        "quasi_identifiers": {"x": {"type": "numeric"}},
        "k": 3,
        "delay_rows": 20,
        "method": "partition",
        "on_suppress": "star",
        "seed": 1,
    }
    published = crenel.anonymize(given, of).published["x"]
    assert published.isna().sum() == 10
    assert all(span.closed == "both" for span in published.dropna())


def test_an_open_end_beside_a_hole_in_pandas() -> None:
    ends = pa.array([{"lo": None, "hi": 2.0}, None, {"lo": 1.0, "hi": None}], RANGE)
    rows = SharedRows({"x": ends}, pa.array([2, 0, 1, 0]), {})
    made = frame_of(pd.DataFrame()).from_shared(rows)["x"].array
    assert made.isna().tolist() == [False, False, True, False]
    assert made.dropna().left.tolist() == [1.0, -math.inf, -math.inf]
    assert made.dropna().right.tolist() == [math.inf, 2.0, 2.0]


def test_a_data_frame_can_be_written_to() -> None:
    made = crenel.anonymize(table().to_pandas(), POLICIES["by rows"]).published
    for name, value in {"age": pd.Interval(5, 6, closed="both"), "zipcode": "*", "number": -1}.items():
        made.loc[3, name] = value
        assert made[name][3] == value
        assert made[name][2] != value


def test_an_empty_data_frame_has_the_types_of_a_full_one() -> None:
    of = POLICIES["by rows"]
    full = crenel.anonymize(table().to_pandas(), of).published
    empty = crenel.anonymize(table().slice(0, 0).to_pandas(), of).published
    assert list(empty.columns) == list(full.columns)
    assert empty.dtypes["age"] == full.dtypes["age"] == pd.IntervalDtype("float64", closed="both")


def test_a_table_in_several_pieces_is_published_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    of = POLICIES["by rows"]
    monkeypatch.setattr(event_order, "ROWS", 64)
    whole = crenel.anonymize(table(), of)
    monkeypatch.setattr(tables, "_ROWS", 100)
    pieces = crenel.anonymize(table(), of)
    for name in ("published", "suppressed", "rejected", "releases", "summary"):
        assert getattr(pieces, name) == getattr(whole, name), name


def test_a_published_dictionary_has_only_values_of_published_rows_in_their_order() -> None:
    notes = [f"note {number}" for number in table()["number"].to_pylist()]
    given = table().append_column("note", pa.array(notes).dictionary_encode())
    of = policy(method="bastion", on_suppress=None, publish=["number", "note"])
    result = crenel.anonymize(given, of)
    assert result.suppressed.num_rows + result.rejected.num_rows > 0
    for made in (result.published, result.suppressed):
        note = made["note"].combine_chunks()
        assert note.dictionary.to_pylist() == note.to_pylist()
        assert note.to_pylist() == [f"note {number}" for number in made["number"].to_pylist()]


@pytest.mark.parametrize(
    "kind", [lambda t: t, lambda t: t.to_pandas(), pl.from_arrow], ids=["arrow", "pandas", "polars"]
)
def test_an_empty_table_gives_empty_tables(kind: Any) -> None:
    result = crenel.anonymize(kind(table().slice(0, 0)), POLICIES["by time"], trace=True)
    for made in (result.published, result.suppressed, result.rejected, result.releases, result.trace):
        assert len(made) == 0
    assert list(
        result.published.columns if not isinstance(result.published, pa.Table) else result.published.schema.names
    )
    assert result.summary.rows == 0


def test_two_calls_draw_two_secrets() -> None:
    of = policy(method="bastion", on_suppress=None, seed=None)
    first, second = (crenel.anonymize(table(), of).published.to_pylist() for _ in range(2))
    assert first != second


def test_the_result_shows_no_values() -> None:
    result = crenel.anonymize(table(nickname="Zacharias", disease="consumption"), POLICIES["stars"])
    assert "consumption" not in repr(result)
    assert "rows=600" in repr(result)


@pytest.mark.parametrize("written", ["zipcod", "ZipCode", "ZIPCODE", "zipcode "])
def test_columns_that_are_missing_are_named(written: str) -> None:
    given = table().rename_columns([{"zipcode": written}.get(name, name) for name in table().schema.names])
    sentence = f"the table has no column 'zipcode', which the policy names. Did you mean '{written}'?"
    with pytest.raises(ValueError, match=re.escape(sentence)):
        crenel.anonymize(given, POLICIES["by time"])


@pytest.mark.parametrize("kind", [pa.Table.to_pandas, lambda given: given], ids=["pandas", "arrow"])
def test_the_places_of_a_column_that_is_there_twice_are_named(kind: Any) -> None:
    given = kind(table().append_column("age", table()["age"]))
    age = table().schema.get_field_index("age") + 1
    said = f"the table must have each column once: columns {age} and {given.shape[1]} have the same name."
    with pytest.raises(ValueError, match=re.escape(said)):
        crenel.anonymize(given, POLICIES["by time"])


def test_a_column_of_several_types_is_named_without_its_values() -> None:
    given = pd.DataFrame({"who": [1, "Zacharias", 2.5], "age": [1, 2, 3]})
    of = {"version": 1, "person": "who", "quasi_identifiers": {"age": {"type": "numeric"}}, "k": 2, "delay_rows": 5}
    with pytest.raises(ValueError, match="the column 'who' holds values of several types") as caught:
        crenel.anonymize(given, of)
    assert "Zacharias" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([{"age": 1}], r"not builtins\.list\.$"),
        (pl.LazyFrame({"age": [1]}), r"LazyFrame\. Collect it first\."),
        (np.zeros(3), r"not numpy\.ndarray\.$"),
    ],
    ids=["list", "lazy", "numpy"],
)
def test_other_kinds_of_tables_are_refused(given: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        crenel.anonymize(given, POLICIES["by time"])


def test_a_delay_needs_an_event_time() -> None:
    with pytest.raises(PolicyError, match=r"use policy\.delay_rows alone"):
        crenel.anonymize(table(), policy(event_time=None))


def test_text_is_parsed_if_asked_for() -> None:
    given = table()
    as_text = given.set_column(given.schema.get_field_index("age"), "age", given["age"].cast(pa.string()))
    assert crenel.anonymize(as_text, POLICIES["by time"]).summary.published == 0
    parsed = crenel.anonymize(as_text, POLICIES["by time"], parse_text=True)
    assert parsed.published.to_pylist() == crenel.anonymize(given, POLICIES["by time"]).published.to_pylist()
