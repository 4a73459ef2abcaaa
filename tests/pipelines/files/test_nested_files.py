"""Files whose rows hold objects, from `crenel init` to `crenel audit`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crenel.pipelines.cli import main
from crenel.pipelines.files.readers import open_file

POLICY = """
person: patient.id
event_time: visit.at
quasi_identifiers:
  patient.address.zip: {type: prefix, length: 5}
  patient.age: {type: numeric, domain: [0, 120], step: 5}
publish: [visit.day]
k: 3
delay: 1h
"""
SECRET = "UNDECLARED"
AVRO = {
    "patient": {"id": "string", "age": "int", "address": {"zip": "string", "street": "string"}},
    "visit": {"at": "string", "day": "string"},
}


def patients(count: int = 120) -> list[dict[str, Any]]:
    """Return rows whose objects have fields that the policy does not name."""
    return [
        {
            "patient": {
                "id": f"p{number % 40}",
                "age": 20 + number % 50,
                "address": {"zip": f"1{number % 30:04}", "street": SECRET},
            },
            "visit": {"at": f"2026-01-01T{number // 60:02}:{number % 60:02}:00", "day": "2026-01-01"},
        }
        for number in range(count)
    ]


def record(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a record, with a record for each dict in it; one of them may be missing."""
    told = [{"name": n, "type": ["null", record(n, t)] if isinstance(t, dict) else t} for n, t in fields.items()]
    return {"type": "record", "name": name, "fields": told}


def write(path: str, rows: list[dict[str, Any]]) -> str:
    if path.endswith(".jsonl"):
        Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        with open(path, "wb") as stream:
            fastavro.writer(stream, record("row", AVRO), rows)
    return path


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(POLICY)


@pytest.mark.parametrize(
    ("given", "out"), [("in.jsonl", "out.jsonl"), ("in.parquet", "out.parquet"), ("in.avro", "out.avro")]
)
def test_a_file_is_published_flat_and_audited(given: str, out: str, capsys: pytest.CaptureFixture[str]) -> None:
    write(given, patients())
    assert main(["check", "policy.yaml", "--data", given]) == 0
    assert main(["run", "policy.yaml", "--input", given, "--output", out, "--trace", "trace.parquet"]) == 0
    batches = [batch.to_pylist() for batch in open_file(out).batches()]
    rows = [row for batch in batches for row in batch]
    sep = "_" if out.endswith(".avro") else "."
    assert {frozenset(row) for row in rows} == {
        frozenset([f"patient{sep}address{sep}zip", f"patient{sep}age", f"visit{sep}day"])
    }
    assert len(rows) > 100
    # Text that Arrow would take for a moment is published as it came.
    assert {row[f"visit{sep}day"] for row in rows} == {"2026-01-01"}
    assert SECRET not in str(rows)
    capsys.readouterr()
    asked = ["audit", "policy.yaml", "--input", given, "--published", out, "--trace", "trace.parquet"]
    assert main(asked) == 0, capsys.readouterr().out


def test_rows_of_json_that_are_not_as_a_path_says_spoil_no_others() -> None:
    rows = patients()
    rows[3]["patient"], rows[4]["patient"], rows[5]["patient"]["address"] = "x", [1], 5
    write("in.jsonl", rows)
    asked = ["run", "policy.yaml", "--input", "in.jsonl", "--output", "out.jsonl", "--rejected", "rejected.jsonl"]
    assert main(asked) == 0
    found = [json.loads(line) for line in Path("rejected.jsonl").read_text().splitlines()]
    assert sorted((one["field"], one["reason"]) for one in found) == [
        ("patient.address.zip", "path through a value that is no object"),
        ("patient.id", "path through a list"),
        ("patient.id", "path through a value that is no object"),
    ]


def test_init_drafts_paths(capsys: pytest.CaptureFixture[str]) -> None:
    for given in ("in.jsonl", "in.parquet"):
        assert main(["init", write(given, patients())]) == 0
        text = capsys.readouterr().out
        assert "\nperson: patient.id\n" in text
        assert "\n  patient.address.zip: {type: prefix" in text
        assert "# - patient.address.street" in text  # never drafted to be published
        Path("drafted.yaml").write_text(text)
        assert main(["run", "drafted.yaml", "--input", given, "--output", f"{given}.out.jsonl"]) == 0
        assert SECRET not in Path(f"{given}.out.jsonl").read_text()


# -- attacks: an undeclared field of an object tries to leave ---------------------------------------


@pytest.mark.parametrize("given", ["in.jsonl", "in.parquet", "in.avro"])
@pytest.mark.parametrize("name", ["patient", "patient.address"])
def test_an_object_is_refused_as_a_whole(given: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("policy.yaml").write_text(POLICY.replace("visit.day", name))
    assert main(["run", "policy.yaml", "--input", write(given, patients()), "--output", "out.jsonl"]) != 0
    said = capsys.readouterr().err
    assert f"has an object in {name!r}: the policy must name its fields, as in '{name}." in said
    assert "street" not in said  # a field that the policy does not name
    assert not Path("out.jsonl").exists()


def test_an_object_does_not_leave_as_the_text_of_a_column_of_several_types() -> None:
    """A column of objects and texts would be text as a whole, with the objects written as JSON."""
    rows = [{**row, "note": row["patient"]["address"] if n % 2 else "text"} for n, row in enumerate(patients())]
    rows = [{**row, "list": [row["patient"]] if n % 3 else "text"} for n, row in enumerate(rows)]
    Path("policy.yaml").write_text(POLICY.replace("visit.day", "note, list"))
    write("in.jsonl", rows)
    main(["run", "policy.yaml", "--input", "in.jsonl", "--output", "out.jsonl", "--suppressed", "kept.jsonl"])
    for path in map(Path, ("out.jsonl", "kept.jsonl")):
        assert not path.exists() or SECRET not in path.read_text()


ONE_OBJECT = [{"Ada UNDECLARED": 1}, {}, [{"x": 1}], [{"x": 1}, 2]]
PLAIN_POLICY = """
person: p
quasi_identifiers:
  age: {type: numeric, domain: [0, 120]}
publish: [z]
k: 3
delay_rows: 50
"""


def plain_rows(**changes: Any) -> list[dict[str, Any]]:
    """Return flat rows; one of them is changed."""
    rows = [{"p": f"p{n}", "age": 20 + n % 50, "z": f"z{n}", "more": "m"} for n in range(150)]
    rows[7] |= changes
    Path("policy.yaml").write_text(PLAIN_POLICY)
    return rows


@pytest.mark.parametrize("end", ["\n", ""], ids=["line break", "no line break"])
@pytest.mark.parametrize("name", ["age", "z"])
@pytest.mark.parametrize("value", ONE_OBJECT, ids=["object", "empty", "list", "mixed list"])
def test_one_object_in_a_plain_column_rejects_its_row_alone(value: Any, name: str, end: str) -> None:
    rows = plain_rows(**{name: value})
    Path("in.jsonl").write_text("\n".join(map(json.dumps, rows)) + end)
    asked = ["run", "policy.yaml", "--input", "in.jsonl", "--output", "out.jsonl", "--rejected", "rejected.jsonl"]
    assert main(asked) == 0
    published = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert sorted(row["z"] for row in published) == sorted(row["z"] for row in rows if row is not rows[7])
    (rejected,) = map(json.loads, Path("rejected.jsonl").read_text().splitlines())
    assert (rejected["field"], rejected["reason"]) == (name, "an object (name its fields)")
    assert json.loads(rejected["row"]) == rows[7]


def test_the_object_of_the_last_line_rejects_its_row_alone() -> None:
    """Without a line break at its end, it is parsed for itself, and all values of its column are objects."""
    rows = [*plain_rows(), {"p": "last", "age": ONE_OBJECT[0], "z": "z", "more": "m"}]
    Path("in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    asked = ["run", "policy.yaml", "--input", "in.jsonl", "--output", "out.jsonl", "--rejected", "rejected.jsonl"]
    assert main(asked) == 0
    (rejected,) = map(json.loads, Path("rejected.jsonl").read_text().splitlines())
    assert json.loads(rejected["row"]) == rows[-1]


@pytest.mark.parametrize("value", ONE_OBJECT, ids=["object", "empty", "list", "mixed list"])
def test_one_object_in_a_plain_column_is_no_column_of_its_own(value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write("in.jsonl", plain_rows(age=value, more={SECRET: 1}))
    for command in (["check", "policy.yaml", "--data", "in.jsonl"], ["init", "in.jsonl"]):
        assert main(command) == 0
        said = "".join(capsys.readouterr())
        assert SECRET not in said
        assert "have no column" not in said
    assert main(["run", "policy.yaml", "--input", "in.jsonl", "--output", "out.jsonl"]) == 0
    assert main(["audit", "policy.yaml", "--input", "in.jsonl", "--published", "out.jsonl"]) == 0


@pytest.mark.parametrize("value", [f"crenel: {what}" for what in ("plain value", "no object")])
def test_a_field_that_is_called_as_our_own_marks_does_not_leave(value: str) -> None:
    rows = [{**row, value: SECRET} for row in plain_rows(z={value: SECRET})]
    rows[8]["age"] = {value: 20}
    write("in.jsonl", rows)
    asked = ["run", "policy.yaml", "--input", "in.jsonl", "--output", "out.jsonl", "--rejected", "rejected.jsonl"]
    assert main(asked) == 0
    assert SECRET not in Path("out.jsonl").read_text()
    rejected = [json.loads(json.loads(line)["row"]) for line in Path("rejected.jsonl").read_text().splitlines()]
    assert rejected == rows[7:9]


def test_two_columns_of_one_name_are_refused_in_avro(capsys: pytest.CaptureFixture[str]) -> None:
    Path("policy.yaml").write_text(POLICY.replace("visit.day", "visit.day, visit_day"))
    write("in.jsonl", [{**row, "visit_day": "x"} for row in patients()])
    assert main(["run", "policy.yaml", "--input", "in.jsonl", "--output", "out.avro"]) != 0
    assert "'visit.day' and 'visit_day' would both be called 'visit_day'" in capsys.readouterr().err
