"""`crenel run --ranges`: what leaves has the types that other tools expect, and an audit reads it back."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyarrow import parquet

from crenel.pipelines.cli import main

POLICY = """\
person: who
event_time: at
quasi_identifiers:
  age: {type: numeric, domain: [0, 100]}
  wage: {type: numeric}
  born: {type: datetime, domain: [1900-01-01, 2020-01-01], step: 30d}
  seen: {type: datetime, domain: [2020-01-01, 2022-01-01]}
  zip: {type: prefix, length: 5}
  job: {type: categorical, hierarchy: {Office: [clerk, boss], Field: [farmer, miner]}}
sensitive: [ill]
k: 4
delay: 10m
secret: env:OURS
"""
TYPES = {
    "age_lo": "int64",
    "age_hi": "int64",
    "wage_lo": "double",
    "wage_hi": "double",
    "born_lo": "date32[day]",
    "born_hi": "date32[day]",
    "seen_lo": "timestamp[us, tz=UTC]",
    "seen_hi": "timestamp[us, tz=UTC]",
    "zip": "string",
    "job": "string",
    "ill": "string",
}


def rows(count: int = 200) -> list[dict[str, Any]]:
    draw = random.Random(1)
    return [
        {
            "who": number % 60,
            "at": 1_600_000_000 + 7 * number,
            "age": draw.randrange(100),
            "wage": draw.randrange(100_000) / 10,
            "born": f"19{draw.randrange(10, 99)}-01-11",
            "seen": f"2021-0{draw.randrange(1, 10)}-11T10:00:00Z",
            "zip": f"{draw.randrange(20):05}",
            "job": draw.choice(["clerk", "boss", "farmer", "miner"]),
            "ill": draw.choice(["flu", "gout"]),
        }
        for number in range(count)
    ]


def alone() -> list[dict[str, Any]]:
    """Make rows of one person, after all others: the last of them find no group."""
    return [{**rows(1)[0], "who": 99, "at": 1_600_001_400 + 200 * number} for number in range(1, 12)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OURS", bytes(range(32)).hex())
    Path("policy.yaml").write_text(POLICY)
    given(rows())
    return tmp_path


def given(made: list[dict[str, Any]]) -> None:
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))


def run(output: str, ranges: str = "columns", *more: str) -> int:
    owners = ["--trace", "trace.csv", "--most-suppressed", "100%", "--ranges", ranges]
    return main(["run", "policy.yaml", "--input", "in.jsonl", "--output", output, *owners, *more])


def audit(output: str, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    capsys.readouterr()
    files = ["--input", "in.jsonl", "--published", output, "--trace", "trace.csv", *more]
    main(["audit", "policy.yaml", *files, "--queries", "0", "--json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def csv_rows(path: str) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("ranges", ["columns", "text"])
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "avro"])
def test_an_audit_judges_it_as_it_judges_structs(
    here: Path, capsys: pytest.CaptureFixture[str], form: str, ranges: str
) -> None:
    documents = []
    for made in (ranges, "struct"):
        assert run(f"out.{form}", made, "--suppressed", f"suppressed.{form}") == 0
        document = audit(f"out.{form}", capsys, "--suppressed", f"suppressed.{form}")
        documents.append({name: document[name] for name in ("verdict", "promises", "rows", "loss", "groups")})
    assert documents[0] == documents[1]
    assert documents[0]["verdict"] == "kept"
    assert documents[0]["rows"]["published"] > 100


def test_parquet_has_the_types_of_the_values(here: Path) -> None:
    run("out.parquet")
    made = parquet.read_table("out.parquet")
    assert {field.name: str(field.type) for field in made.schema} == TYPES


def test_csv_has_plain_numbers_dates_and_moments(here: Path) -> None:
    run("out.csv")
    run("out.parquet")
    for text, row in zip(csv_rows("out.csv"), parquet.read_table("out.parquet").to_pylist(), strict=True):
        assert (text["age_lo"], text["age_hi"]) == (str(row["age_lo"]), str(row["age_hi"]))
        assert float(text["wage_lo"]) == row["wage_lo"]
        assert text["born_lo"] == row["born_lo"].isoformat()
        assert text["seen_lo"] == row["seen_lo"].strftime("%Y-%m-%dT%H:%M:%SZ")
        assert (text["zip"], text["job"]) == (row["zip"], row["job"])


def test_json_has_whole_numbers_and_avro_its_own_dates(here: Path) -> None:
    run("out.jsonl")
    run("out.avro")
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    with open("out.avro", "rb") as file:
        records = list(fastavro.reader(file))
    for line, record in zip(lines, records, strict=True):
        assert type(line["age_lo"]) is type(record["age_lo"]) is int
        assert line["born_hi"] == record["born_hi"].isoformat()
        assert line["seen_hi"] == record["seen_hi"].strftime("%Y-%m-%dT%H:%M:%SZ")


def test_a_value_that_is_suppressed_does_not_change_a_published_type(here: Path) -> None:
    later = alone()
    given([*rows(), *later[:-1], {**later[-1], "age": 12.5}])
    run("out.parquet", "columns", "--suppressed", "suppressed.parquet")
    assert parquet.read_schema("out.parquet").field("age_lo").type == pa.int64()
    suppressed = parquet.read_table("suppressed.parquet")
    assert suppressed.schema.field("age_lo").type == pa.float64()
    assert 12.5 in suppressed.column("age_lo").to_pylist()


def test_without_rows_the_policy_tells_the_types(here: Path) -> None:
    Path("policy.yaml").write_text(POLICY.replace("domain: [0, 100]", "domain: [0, 100], step: 5"))
    given(rows(2))
    run("out.parquet")
    assert parquet.read_table("out.parquet").num_rows == 0
    assert {f.name: str(f.type) for f in parquet.read_schema("out.parquet")} == TYPES


def test_a_missing_value_is_two_empty_ends(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("policy.yaml").write_text(POLICY.replace("domain: [0, 100]", "domain: [0, 100], missing: category"))
    given([{**row, "age": None if number % 3 else row["age"]} for number, row in enumerate(rows())])
    run("out.csv")
    made = csv_rows("out.csv")
    assert any(row["age_lo"] == row["age_hi"] == "" for row in made)
    assert any(row["age_lo"] and row["age_hi"] for row in made)
    assert audit("out.csv", capsys)["verdict"] == "kept"


def test_stars_without_a_domain_are_read_back(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("policy.yaml").write_text(POLICY + "on_suppress: star\n")
    given([*rows(), *alone()])
    run("out.csv")
    assert any(row["wage_lo"] == row["wage_hi"] == "" for row in csv_rows("out.csv"))
    assert audit("out.csv", capsys)["verdict"] == "no crowd"


def test_names_that_are_taken_are_refused_before_a_row_is_read(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("policy.yaml").write_text(POLICY + "publish: [age_lo]\n")
    Path("in.jsonl").unlink()
    assert run("out.csv") == 2
    said = capsys.readouterr().err
    assert "--ranges columns makes a column 'age_lo', which the policy publishes already." in said
    assert "Rename the column, or use --ranges text." in said


def test_what_two_empty_ends_could_not_tell_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("policy.yaml").write_text(POLICY + "method: partition\n")
    assert run("out.csv") == 2
    assert "cannot tell a missing 'wage' from a range without ends. Declare its domain" in capsys.readouterr().err


def test_pubsub_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given_to = ["--input", "pubsub://projects/p/subscriptions/s", "--output", "pubsub://projects/p/topics/t"]
    assert main(["run", "policy.yaml", *given_to, "--ranges", "columns"]) == 2
    assert "--ranges columns is for files and topics of Kafka, not for pubsub://." in capsys.readouterr().err


# -- forged files ----------------------------------------------------------------------------------


def refused(output: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["audit", "policy.yaml", "--published", output]) == 2
    return capsys.readouterr().err


def forge(name: str, value: str) -> None:
    made = csv_rows("out.csv")
    made[3][name] = value.format(made[3].get(name))
    with open("out.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(made[3]), restval="")
        writer.writeheader()
        writer.writerows(made)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("age_lo", "{}.0"),
        ("age_lo", "+{}"),
        ("age_lo", "0{}"),
        ("age_hi", "101x"),
        ("born_lo", "{}T00:00:00Z"),
        ("seen_lo", "2021-01-11 10:00:00Z"),
        ("seen_lo", "2021-01-11T10:00:00+00:00"),
    ],
)
def test_a_second_way_to_write_a_value_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    """Attack: mark a row by how its value is written, so that it no longer looks like those of its group."""
    run("out.csv")
    forge(name, value)
    said = refused("out.csv", capsys)
    assert f"has a value in column '{name[:-3]}' that the policy cannot have published" in said


def test_one_end_alone_is_a_missing_column(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("out.parquet")
    parquet.write_table(parquet.read_table("out.parquet").drop_columns("age_hi"), "out.parquet")
    assert "has no column 'age'" in refused("out.parquet", capsys)


def test_ends_beside_the_range_itself_are_columns_that_nobody_declared(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Attack: hide exact values in columns that an audit might take for the range."""
    run("out.parquet", "text")
    made = parquet.read_table("out.parquet")
    exact = pa.array([7] * made.num_rows)
    parquet.write_table(made.append_column("age_lo", exact).append_column("age_hi", exact), "out.parquet")
    assert audit("out.parquet", capsys)["verdict"] == "broken"
