"""Policies that name fields of objects within rows: what leaves is flat, and nothing that was not named."""

from __future__ import annotations

import json
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest

import crenel
from crenel.policy import PolicyError
from crenel.transforms import AnonymizeBounded
from tests.transforms.streams import run

POLICY: dict[str, Any] = {
    "person": "patient.id",
    "event_time": "visit.at",
    "quasi_identifiers": {"patient.address.zip": {"type": "prefix", "length": 5}},
    "sensitive": ["visit.illness"],
    "publish": ["number"],
    "treat": {"visit.ward": {"truncate": 1}},
    "within": ["patient.country"],
    "k": 3,
    "delay": "1h",
}
SECRET = "UNDECLARED"


def patients(count: int) -> list[dict[str, Any]]:
    """Return rows whose objects have fields that no policy names."""
    return [
        {
            "number": number,
            "patient": {
                "id": f"p{number}",
                "country": "at" if number % 2 else "de",
                "address": {"zip": f"1{number % 7:04}", "street": SECRET},
                "hiv": SECRET,
            },
            "visit": {"at": 60.0 * number, "illness": "flu", "ward": f"W{SECRET}", "notes": [{"text": SECRET}]},
        }
        for number in range(count)
    ]


def as_row(value: Any) -> Any:
    """Return dicts as rows of Beam, and without lists, for which Beam has no type of its own."""
    if not isinstance(value, dict):
        return value
    return beam.Row(**{name: as_row(inner) for name, inner in value.items() if not isinstance(inner, list)})


def test_dicts_leave_flat() -> None:
    out = run(patients(40), AnonymizeBounded(POLICY))
    left = [one.value for one in (*out.published, *out.suppressed)]
    assert sorted(row["number"] for row in left) == list(range(40))
    assert {tuple(row) for row in left} == {("patient.address.zip", "visit.illness", "number", "visit.ward")}
    assert {row["visit.ward"] for row in left} == {"W"}
    assert SECRET not in json.dumps(left)


def test_rows_of_beam_leave_flat_with_names_without_dots() -> None:
    out = run([as_row(row) for row in patients(40)], AnonymizeBounded(POLICY))
    left = [one.value._asdict() for one in (*out.published, *out.suppressed)]
    assert sorted(row["number"] for row in left) == list(range(40))
    assert {frozenset(row) for row in left} == {
        frozenset(["patient_address_zip", "visit_illness", "number", "visit_ward"])
    }
    assert SECRET not in json.dumps(left)


@pytest.mark.parametrize("kind", ["table", "batch", "pandas"])
def test_tables_leave_flat(kind: str) -> None:
    table = pa.Table.from_pylist(patients(40))
    given = {"table": table, "batch": table.to_batches()[0], "pandas": table.to_pandas()}[kind]
    made = crenel.anonymize(given, POLICY)
    assert made.summary.rows == 40
    for left in (made.published, made.suppressed):
        names = list(left.columns) if kind == "pandas" else left.schema.names
        assert set(names) == {"patient.address.zip", "visit.illness", "number", "visit.ward"}
        assert SECRET not in str(left.to_dict() if kind == "pandas" else left.to_pydict())


def test_rows_with_other_objects_are_rejected_with_a_reason() -> None:
    bad: list[dict[str, Any]] = patients(4)
    bad[0]["patient"] = [bad[0]["patient"]]
    bad[1]["patient"]["address"] = "Main Street 1"
    bad[2]["patient"] = None
    bad[3]["visit"]["illness"] = {"name": "flu"}
    out = run([*patients(40), *bad], AnonymizeBounded(POLICY))
    assert sorted((one.value["field"], one.value["reason"]) for one in out.rejected) == [
        ("patient.address.zip", "path through a value that is no object"),
        ("patient.id", "missing"),
        ("patient.id", "path through a list"),
        ("visit.illness", "wrong type"),
    ]


# -- attacks: an undeclared field of an object tries to leave ---------------------------------------

#: Columns that hold undeclared fields, as one might name them.
WHOLE = ["patient", "patient.address", "visit.notes"]


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("role", ["publish", "sensitive"])
def test_an_object_never_leaves_as_a_whole(name: str, role: str) -> None:
    asked = {**POLICY, "within": [], role: [name]}
    out = run(patients(12), AnonymizeBounded(asked))
    assert (out.published, out.suppressed, len(out.rejected)) == ([], [], 12)
    batches = run(pa.Table.from_pylist(patients(12)).to_batches(), AnonymizeBounded(asked))
    assert (batches.published, batches.suppressed, len(batches.rejected)) == ([], [], 12)
    told = {(one.value["field"], one.value["reason"]) for one in (*out.rejected, *batches.rejected)}
    assert told <= {(name, "an object (name its fields)"), (name, "wrong type")}


@pytest.mark.parametrize(
    ("publish", "sentence"),
    [
        ("patient", "has an object in 'patient': the policy must name its fields, as in 'patient.id'"),
        ("visit.notes.text", "no column 'visit.notes.text'; a path cannot go through lists"),
        ("patient.adress.street", "Did you mean 'patient.address.street'"),
    ],
)
def test_a_schema_tells_beforehand(publish: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        crenel.anonymize(pa.Table.from_pylist(patients(9)), {**POLICY, "publish": [publish]})


def test_a_row_of_beam_within_a_row_is_refused_as_a_whole() -> None:
    with pytest.raises(PolicyError, match="names the column 'patient'"):
        run([as_row(row) for row in patients(3)], AnonymizeBounded({**POLICY, "publish": ["patient"]}))


def test_two_columns_of_one_name_are_refused_in_rows_of_beam() -> None:
    given = [beam.Row(**as_row(row)._asdict(), visit_illness="x") for row in patients(3)]
    with pytest.raises(PolicyError, match=r"'visit.illness' and 'visit_illness' would both be called"):
        run(given, AnonymizeBounded({**POLICY, "publish": ["visit_illness"]}))
