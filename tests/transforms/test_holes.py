"""Rows with missing quasi-identifiers, in every form of missing value, through a whole pipeline."""

from __future__ import annotations

import math
import random
import typing
from collections import defaultdict
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.coders import RowCoder
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that
from apache_beam.typehints.schemas import typing_from_runner_api, typing_to_runner_api

from crenel.audit import Published, audit
from crenel.encoding.encoder import Encoder
from crenel.pipelines.auditing.published_values import box
from crenel.policy import Policy
from crenel.transforms import Anonymize, AnonymizeBounded
from crenel.transforms.testing import is_anonymous, is_k_anonymous, star_of
from tests.transforms.streams import Left, Outcome, anonymize, as_dict, check, policy, rows, run, with_tree

PARTITION: dict[str, Any] = {"method": "partition", "on_suppress": "star"}


def with_holes(count: int, *, seed: int = 5) -> list[dict[str, Any]]:
    """Return rows, some without an age, some without a zipcode, some without either."""
    draw = random.Random(seed)
    given = rows(count)
    for row in given:
        for name in ("age", "zipcode"):
            if draw.random() < 0.3:
                row[name] = None
    return given


GIVEN = with_holes(300)
#: Other forms of a missing value; `...` stands for a row without the column.
WAYS = {"NaN": math.nan, "empty text": "", "numpy's NaN": np.float64("nan"), "absent": ...}


class Visit(typing.NamedTuple):
    patient: str
    seen: float
    age: float | None
    zipcode: str | None
    education: str
    disease: str
    number: int
    nickname: str


@pytest.fixture(scope="module")
def plain() -> Outcome:
    return run(GIVEN, anonymize(**PARTITION))


def test_rows_with_holes_are_published(plain: Outcome) -> None:
    assert plain.rejected == []
    check(policy(**PARTITION), GIVEN, plain.published, plain.suppressed)
    looks = [(left.value["age"] is None, left.value["zipcode"] is None) for left in plain.published]
    assert len(set(looks)) == 4
    # The output for the owner has exact values, and missing values stay missing.
    by_number = {row["number"]: row for row in GIVEN}
    for left in plain.suppressed:
        given = by_number[left.value["number"]]
        assert left.value["zipcode"] == given["zipcode"]
        assert (left.value["age"] is None) == (given["age"] is None)


@pytest.mark.parametrize("way", WAYS)
def test_every_form_of_a_missing_value_counts_as_missing(plain: Outcome, way: str) -> None:
    said = WAYS[way]
    given = [{name: said if value is None else value for name, value in row.items()} for row in GIVEN]
    given = [{name: value for name, value in row.items() if value is not ...} for row in given]
    out = run(given, anonymize(**PARTITION))
    assert [left.value for left in out.published] == [left.value for left in plain.published]


def test_rows_with_a_schema(plain: Outcome) -> None:
    for kind in (Visit, beam.Row):
        out = run([kind(**row) for row in GIVEN], anonymize(**PARTITION))
        assert [as_dict(left.value) for left in out.published] == [left.value for left in plain.published]


def test_the_schema_has_room_for_holes() -> None:
    """Beam's row coder, which other languages also have, can encode a row whose whole range is missing."""
    with TestPipeline("FnApiRunner") as pipeline:
        published = (pipeline | beam.Create([Visit(**row) for row in GIVEN]) | anonymize(**PARTITION)).published
        schema = typing_to_runner_api(published.element_type).row_type.schema
    (age,) = [field for field in schema.fields if field.name == "age"]
    assert age.type.nullable
    coder = RowCoder(schema)
    row = beam.Row(age=None, zipcode=None, education="any", disease="flu", number=1)
    assert coder.decode(coder.encode(row)).age is None
    assert typing_from_runner_api(typing_to_runner_api(published.element_type)) is not None


def test_batches(plain: Outcome) -> None:
    out = run([pa.RecordBatch.from_pylist(GIVEN[i : i + 70]) for i in range(0, 300, 70)], anonymize(**PARTITION))
    found = {row["number"]: row for left in out.published for row in left.value.to_pylist()}
    assert found == {left.value["number"]: left.value for left in plain.published}
    ages = pa.concat_arrays([left.value.column("age") for left in out.published])
    assert ages.null_count == sum(left.value["age"] is None for left in plain.published)
    # The bytes under a null do not contain the unpublished value either.
    assert ages.field(0).null_count >= ages.null_count


def test_a_batch_without_the_column_lacks_it_in_all_rows() -> None:
    given = rows(40)
    batch = pa.RecordBatch.from_pylist(given).drop_columns(["age"])
    out = run([batch], anonymize(**PARTITION))
    assert out.rejected == []
    hidden = {row["number"] for left in out.suppressed for row in left.value.to_pylist()}
    for left in out.published:
        for row in left.value.to_pylist():
            assert (row["age"] is None) == (row["number"] not in hidden)


def test_other_methods_reject_a_hole_and_name_the_method_that_does_not() -> None:
    out = run(GIVEN, anonymize())
    reasons = {(left.value["field"], left.value["reason"]) for left in out.rejected}
    assert reasons == {(name, "missing (missing: category takes it)") for name in ("age", "zipcode")}


def test_what_is_wrong_is_still_rejected() -> None:
    given = with_holes(40)
    given[3]["age"], given[5]["zipcode"], given[7]["age"] = "old", "1", math.inf
    out = run(given, anonymize(**PARTITION))
    reasons = [(left.value["field"], left.value["reason"]) for left in out.rejected]
    assert sorted(reasons) == [("age", "not a number"), ("age", "not a number"), ("zipcode", "wrong length")]


def test_bounded_rows_do_not_depend_on_their_order() -> None:
    """Rows with one event time are sorted by their other columns too, with or without missing values."""
    given = [{**row, "seen": 1.0} for row in with_holes(100)]
    for row in given[:50]:
        row.update(age=None, zipcode=None, education="master", patient="one", disease="flu")
    outcomes = []
    for seed in range(3):
        random.Random(seed).shuffle(given)
        out = run(given, AnonymizeBounded(policy(**PARTITION)))
        outcomes.append([left.value for left in out.published])
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_shards_by_a_tree() -> None:
    given = with_holes(600)
    out = run(given, Anonymize(with_tree(policy(**PARTITION), given, 4)))
    assert len(out.published) == 600
    assert len({left.value["shard"] for left in out.releases}) > 1


def test_the_matchers_for_users_count_what_is_missing_as_a_value() -> None:
    of = policy(**PARTITION, publish=["number", "patient"], person="nickname")
    with TestPipeline("FnApiRunner") as pipeline:
        published = (pipeline | beam.Create(GIVEN) | Anonymize(of)).published
        assert_that(published, is_anonymous(of), label="all")
        looks = is_k_anonymous(4, of.quasi_identifiers, person="patient", star=star_of(of))
        assert_that(published, is_k_anonymous(4, of.quasi_identifiers, star=star_of(of)), label="k")
    alone = [{"age": None, "zipcode": "1", "education": "any", "patient": n} for n in range(4)]
    looks(alone)
    with pytest.raises(Exception, match="every group must have at least 4"):
        looks([*alone[:3], {**alone[3], "zipcode": None}])


# --- Public data with real holes ---


def leaves(name: str, data_dir: Path) -> dict[str, Any]:
    return {"type": "categorical", "hierarchy": str(data_dir / "hierarchies" / "adult_arx" / f"{name}.csv")}


def numbers(**domains: list[float]) -> dict[str, Any]:
    return {name: {"type": "numeric", "domain": domain} for name, domain in domains.items()}


def adult(data_dir: Path) -> tuple[pa.Table, dict[str, Any]]:
    table = pq.read_table(data_dir / "adult_48842_missing.parquet").slice(0, 12_000)
    quasi_identifiers = numbers(age=[17, 90], hours_per_week=[1, 99])
    quasi_identifiers |= {name: leaves(name, data_dir) for name in ("workclass", "occupation", "native_country")}
    said = {"quasi_identifiers": quasi_identifiers, "sensitive": ["income"], "k": 20, "l": 2, "delay_rows": 2000}
    return table.append_column("person", pa.array(np.arange(table.num_rows))), said


def charging(data_dir: Path) -> tuple[pa.Table, dict[str, Any]]:
    table = pq.read_table(data_dir / "ev_charging.parquet").sort_by("created")
    week = {"week": ["Mon", "Tue", "Wed", "Thu", "Fri"], "weekend": ["Sat", "Sun"]}
    quasi_identifiers = numbers(charge_time_hrs=[0, 60], distance=[0, 100])
    quasi_identifiers |= {"weekday": {"type": "categorical", "hierarchy": week}}
    said = {"person": "user_id", "event_time": "created", "k": 5, "delay": "7d"}
    return table, {"quasi_identifiers": quasi_identifiers, **said}


def air(data_dir: Path) -> tuple[pa.Table, dict[str, Any]]:
    table = pq.read_table(data_dir / "air_quality_beijing.parquet").sort_by("event_time").slice(0, 6_000)
    quasi_identifiers = numbers(pm2_5=[0, 1000], no2=[0, 400], temp=[-30, 50], wspm=[0, 20])
    quasi_identifiers |= {"so2": {"type": "numeric"}, "o3": {"type": "numeric"}}
    said = {"person": "station", "event_time": "event_time", "k": 4, "delay": "12h", "shards": 1}
    return table, {"quasi_identifiers": quasi_identifiers, **said}


@pytest.mark.slow
@pytest.mark.parametrize("data", [adult, charging, air])
def test_real_holes(data: Any, data_dir: Path) -> None:
    """No row is rejected, the audit passes, and rows that look the same belong to at least k persons."""
    table, said = data(data_dir)
    table = table.append_column("number", pa.array(np.arange(table.num_rows)))
    told = {"person": "person", "publish": ["number"], "seed": 1, **PARTITION, **said}
    of = Policy.from_dict(told, allow_outside_files=True)
    assert any(table[name].null_count for name in of.quasi_identifiers)
    out = run(parts(table.select(list(named(of))), 2000), Anonymize(of))
    assert out.rejected == []
    published = [left._replace(value=row) for left in out.published for row in left.value.to_pylist()]
    hidden = {row["number"] for left in out.suppressed for row in left.value.to_pylist()}
    assert sorted(left.value["number"] for left in published) == list(range(table.num_rows))
    assert len(hidden) < 0.05 * table.num_rows

    encoded = Encoder(of).encode({name: table[name] for name in table.column_names})
    report = audit(of, encoded.rows, seen(of, published, hidden))
    assert report.problems() == []

    persons = encoded.rows.person.tolist()
    looks: dict[str, set[int]] = defaultdict(set)
    for left in published:
        if left.value["number"] not in hidden:
            looks[repr([left.value[name] for name in of.quasi_identifiers])].add(persons[left.value["number"]])
    assert sum(len(group) < of.k for group in looks.values()) == 0
    assert any("None" in look for look in looks)


def named(of: Policy) -> dict[str, None]:
    """Return the columns that a policy names, each once."""
    names = (of.person, of.event_time, *of.quasi_identifiers, *of.sensitive, *of.publish)
    return dict.fromkeys(name for name in names if name is not None)


def parts(table: pa.Table, size: int) -> list[pa.Table]:
    """Split a table into copies. Beam would pickle the whole table for each slice."""
    starts = range(0, table.num_rows, size)
    return [table.take(np.arange(start, min(start + size, table.num_rows))) for start in starts]


def seen(of: Policy, published: list[Left], hidden: set[int]) -> Published:
    boxes = np.empty((len(published), len(of.quasi_identifiers), 2))
    for place, (name, qi) in enumerate(of.quasi_identifiers.items()):
        known: dict[str, tuple[float, float]] = {}
        for i, left in enumerate(published):
            value = left.value[name]
            if repr(value) not in known:
                known[repr(value)] = box(qi, value)
            boxes[i, place] = known[repr(value)]
    return Published(
        rows=np.array([left.value["number"] for left in published], np.int64),
        lo=boxes[:, :, 0],
        hi=boxes[:, :, 1],
        kind=np.array([2 if left.value["number"] in hidden else 0 for left in published]),
        moment=np.array([left.timestamp for left in published]),
    )
