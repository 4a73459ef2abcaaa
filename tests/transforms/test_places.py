"""A quasi-identifier that is made of two columns: a latitude and a longitude."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.testing.util import assert_that

from crenel import AnonymizeBounded, Policy, PolicyError, anonymize

POLICY: dict[str, Any] = {
    "person": "id",
    "quasi_identifiers": {
        "home": {"type": "coordinates", "columns": ["lat", "lon"], "bounds": [45, -74, 46, -73], "levels": 6}
    },
    "publish": ["note"],
    "k": 4,
    "delay_rows": 60,
    "seed": 3,
}
DRAW = random.Random(4)
ROWS = [
    {"id": n, "lat": round(DRAW.uniform(45, 46), 4), "lon": round(DRAW.uniform(-74, -73), 4), "note": f"n{n}"}
    for n in range(80)
]


class Visit(NamedTuple):
    id: int
    lat: float
    lon: float
    note: str


def contains(row: Any, given: Any) -> bool:
    south, west, north, east = map(float, row["home"].split(","))
    return south <= given["lat"] <= north and west <= given["lon"] <= east


def check(found: list[Any]) -> None:
    rows = [row if isinstance(row, dict) else row._asdict() for row in found]
    assert len(rows) == len(ROWS)
    assert all(set(row) == {"home", "note"} for row in rows)
    assert all(contains(row, ROWS[int(row["note"][1:])]) for row in rows)
    assert len({row["home"] for row in rows}) > 3


@pytest.mark.parametrize("kind", [dict, Visit, beam.Row])
def test_rows_of_every_kind(kind: Any) -> None:
    with beam.Pipeline("DirectRunner") as pipeline:
        create = beam.Create([kind(**row) for row in ROWS])
        rows = pipeline | (create.with_output_types(Visit) if kind is Visit else create)
        assert_that((rows | AnonymizeBounded({**POLICY, "event_time": None})).published, check)


def test_a_table_and_its_columns() -> None:
    found = anonymize(pa.Table.from_pylist(ROWS), POLICY)
    check(found.published.to_pylist())
    assert found.published.column_names == ["home", "note"]


def test_gaps_are_a_value_of_their_own_or_reject_the_row() -> None:
    rows = [
        {**row, **({"lat": None} if n % 4 == 0 else {"lon": None} if n % 4 == 1 else {})} for n, row in enumerate(ROWS)
    ]
    table = pa.Table.from_pylist(rows)
    assert anonymize(table, POLICY).summary.rejected == {("home", "missing (missing: category takes it)"): 40}
    home = {**POLICY["quasi_identifiers"]["home"], "missing": "category"}
    found = anonymize(table, {**POLICY, "quasi_identifiers": {"home": home}})
    assert found.published.num_rows == 80
    assert found.published.column("home").null_count >= 4


def test_a_place_outside_of_the_bounds_is_rejected() -> None:
    table = pa.Table.from_pylist([*ROWS, {"id": 99, "lat": 0.0, "lon": 0.0, "note": "x"}])
    assert anonymize(table, POLICY).summary.rejected == {("home", "outside the domain"): 1}


def test_each_column_has_one_role_and_is_there() -> None:
    with pytest.raises(PolicyError, match=r"the column 'lat' must have one role, not quasi_identifiers and publish"):
        Policy.from_dict({**POLICY, "publish": ["lat"]})
    twice = {**POLICY["quasi_identifiers"], "lat": {"type": "numeric"}}
    with pytest.raises(PolicyError, match=r"the column 'lat' must have one role, not quasi_identifiers and quasi"):
        Policy.from_dict({**POLICY, "quasi_identifiers": twice})
    with pytest.raises(ValueError, match=r"has no column 'lon', which the policy names"):
        anonymize(pa.Table.from_pylist(ROWS).drop_columns(["lon"]), POLICY)
    policy = Policy.from_dict(POLICY)
    assert Policy.from_dict(policy.to_dict()) == policy
    assert policy.measured == ("lat", "lon")
