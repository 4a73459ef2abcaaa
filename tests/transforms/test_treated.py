"""Treated columns, through tables, pipelines, files and the audit: the values themselves leave nowhere."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import crenel
from crenel.errors import SecretError
from crenel.pipelines.cli import main
from crenel.policy import Policy
from tests.transforms.streams import run

KEY = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
START = 1_700_000_000.0
TREAT: dict[str, Any] = {
    "id": {"pseudonymize": "env:PSEUDONYMS"},
    "note": {"redact": "removed"},
    "phone": {"truncate": 4},
    "seen": {"truncate": "1d"},
    "price": {"round": 10},
    "cost": {"bin": [0, 50]},
}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSEUDONYMS", KEY)


@cache
def rows(count: int = 240) -> tuple[dict[str, Any], ...]:
    draw = random.Random(4)
    return tuple(
        {
            "id": f"person {draw.randrange(60)}",
            "at": START + 600 * number,
            "age": float(draw.randrange(17, 91)),
            "note": None if number % 3 else f"note {number}",
            "phone": f"0664{draw.randrange(10**6):06d}",
            "seen": f"2020-05-{1 + number % 28:02d}T12:34:56Z",
            "price": draw.randrange(1000),
            "cost": draw.uniform(-10, 100) if number % 7 else None,
            "number": number,
        }
        for number in range(count)
    )


def policy(treat: dict[str, Any] = TREAT, **changes: Any) -> Policy:
    given: dict[str, Any] = {
        "person": "id",
        "event_time": "at",
        "quasi_identifiers": {"age": {"type": "numeric", "domain": [17, 90]}},
        "publish": ["number"],
        "treat": treat,
        "k": 3,
        "delay": "6h",
        "seed": 1,
    }
    return Policy.from_dict(given | changes)


def check(published: list[dict[str, Any]]) -> None:
    assert len(published) > 200
    names: dict[str, set[str]] = {}
    for row in published:
        own = rows()[int(row["number"])]  # text, if it came as text
        names.setdefault(own["id"], set()).add(row["id"])
        assert row["note"] == "removed"
        assert row["phone"] == "0664"
        assert row["seen"] == own["seen"][:10] + "T00:00:00Z"
        assert row["price"] % 10 == 0
        assert abs(row["price"] - own["price"]) <= 5
        assert (row["cost"] is None) == (own["cost"] is None)
        assert row["cost"] in ("below 0", "[0, 50)", "50 and above", None)
    assert {len(found) for found in names.values()} == {1}  # a pseudonym joins the rows of a person
    assert len({name for found in names.values() for name in found}) == len(names)
    shown = str(published)
    assert not any(row[name] in shown for row in rows() for name in ("id", "phone", "seen"))


def test_every_form_of_rows_is_treated_alike() -> None:
    table = crenel.anonymize(pa.Table.from_pylist(list(rows())), policy()).published
    check(table.to_pylist())
    assert table.schema.field("price").type == pa.float64()
    out = run([dict(row) for row in rows()], crenel.Anonymize(policy()))
    check([left.value for left in out.published])
    texts = {left.value["number"]: left.value["id"] for left in out.published}
    assert all(texts[row["number"]] == row["id"] for row in table.to_pylist())


def test_pseudonyms_change_by_event_time() -> None:
    turning = policy(TREAT | {"id": {"pseudonymize": "env:PSEUDONYMS", "rotate": "1d"}})
    published = crenel.anonymize(pa.Table.from_pylist(list(rows())), turning).published.to_pylist()
    by_day: dict[tuple[str, int], set[str]] = {}
    for row in published:
        own = rows()[row["number"]]
        by_day.setdefault((own["id"], int(own["at"] // 86_400)), set()).add(row["id"])
    assert {len(found) for found in by_day.values()} == {1}
    assert len({name for found in by_day.values() for name in found}) == len(by_day)


def linked(published: list[dict[str, Any]]) -> int:
    """Attack: count the persons whom the ranges of their linked rows leave alone, of all persons in the data."""
    ages = {row["id"]: set() for row in rows()}  # type: dict[str, set[float]]
    for row in rows():
        ages[row["id"]].add(row["age"])
    boxes: dict[str, list[Any]] = {}
    for row in published:
        boxes.setdefault(row["id"], []).append(row["age"])

    def fits(known: set[float], found: list[Any]) -> bool:
        return all(any(box["lo"] <= age <= box["hi"] for age in known) for box in found)

    return sum(1 for found in boxes.values() if sum(fits(known, found) for known in ages.values()) == 1)


def test_what_links_rows_narrows_the_crowd_as_check_says() -> None:
    fixed = crenel.anonymize(pa.Table.from_pylist(list(rows())), policy()).published.to_pylist()
    # Against rows that nothing links, the same attacker singles out nobody; linked rows intersect.
    unlinked = [row | {"id": str(place)} for place, row in enumerate(fixed)]
    assert linked(unlinked) == 0
    assert linked(fixed) > 5


def test_values_that_do_not_fit_are_rejected_and_a_lacking_key_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = [dict(row, price="cheap" if row["number"] < 9 else row["price"]) for row in rows()]
    out = run(odd, crenel.Anonymize(policy()))
    assert {(left.value["field"], left.value["reason"]) for left in out.rejected} == {("price", "not a number")}
    assert len(out.rejected) == 9
    monkeypatch.delenv("PSEUDONYMS")
    with pytest.raises(SecretError, match=r"policy\.treat\.id\.pseudonymize names the environment variable PSEUDONYMS"):
        crenel.anonymize(pa.Table.from_pylist(list(rows())), policy())
    monkeypatch.setenv("PSEUDONYMS", "short")
    with pytest.raises(SecretError, match=r"treat\.id\.pseudonymize must name a secret"):
        crenel.anonymize(pa.Table.from_pylist(list(rows())), policy())


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_files_are_treated_and_the_audit_knows_it(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pa.csv.write_csv(pa.Table.from_pylist(list(rows())), tmp_path / "in.csv")
    (tmp_path / "policy.yaml").write_text(policy().to_yaml())
    output, trace = str(tmp_path / f"out.{kind}"), str(tmp_path / "trace.parquet")
    every = [str(tmp_path / "policy.yaml"), "--input", str(tmp_path / "in.csv"), "--trace", trace]
    assert main(["run", *every, "--output", output]) == 0
    monkeypatch.delenv("PSEUDONYMS")  # an audit needs no keys
    assert main(["audit", *every, "--published", output]) == 0
    if kind == "parquet":
        table = pq.read_table(output)
        check(table.to_pylist())
        raw = pa.array([rows()[int(number)]["phone"] for number in table.column("number").to_pylist()])
        pq.write_table(table.set_column(table.column_names.index("phone"), "phone", raw), output)
        capsys.readouterr()
        assert main(["audit", *every, "--published", output]) == 2
        assert "a value in column 'phone' that the policy cannot have published" in capsys.readouterr().err


def test_check_needs_no_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PSEUDONYMS")
    (tmp_path / "policy.yaml").write_text(policy(shards=2).to_yaml())
    pa.csv.write_csv(pa.Table.from_pylist(list(rows())), tmp_path / "in.csv")
    main(["check", str(tmp_path / "policy.yaml"), "--data", str(tmp_path / "in.csv")])
    said = " ".join(capsys.readouterr().out.split())
    assert "On this machine, a run would fail: policy.treat.id.pseudonymize names the environment variable" in said
    assert "A row that finds no group in time is suppressed" in said


def test_check_says_what_treatments_reveal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "policy.yaml").write_text(policy().to_yaml())
    pa.csv.write_csv(pa.Table.from_pylist(list(rows())), tmp_path / "in.csv")
    assert main(["check", str(tmp_path / "policy.yaml"), "--data", str(tmp_path / "in.csv")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "id treated column: as a pseudonym, which links all rows with the same value for ever." in said
    assert "the person: used only to count persons, and published as a pseudonym" in said
    assert "id: its pseudonyms never change" in said
    assert "The promise about one row does not cover what several tell together." in said
    assert "phone, seen, price and cost: treated value by value, without regard to k." in said
    assert "note treated column: as 'removed' in all rows, which reveals nothing" in said
