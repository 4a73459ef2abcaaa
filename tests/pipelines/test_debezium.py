"""Envelopes of Debezium: what is a row, what is not, and that the row before a change is in nothing that is written."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.pipelines.cli import main
from crenel.pipelines.debezium import Deletes, Envelopes, Ignored, Refused
from tests.pipelines import debezium_records as made

POLICY = """
person: id
event_time: seen
quasi_identifiers:
  zip: {type: prefix, length: 5}
  age: {type: numeric, domain: [0, 120], step: 5}
sensitive: [ill]
publish: [born, paid]
k: 3
delay: 1h
"""
COUNT = 120
#: Deletes, tombstones and the truncate among these, and the message that is no change of a row.
GONE, MESSAGES = 25, 1


@pytest.mark.parametrize("op", ["c", "u", "r"])
def test_the_row_after_a_change_is_the_row(op: str) -> None:
    assert Envelopes().opened(made.message(op, made.row(1))) == made.row(1)


def test_the_schema_of_kafka_connect_says_which_numbers_are_moments() -> None:
    found = Envelopes().opened(made.message("c", made.row(1), wrapped=True))
    assert isinstance(found, dict)
    assert found["seen"] == dt.datetime.fromtimestamp(made.BEGAN + 1, dt.timezone.utc)
    assert found["born"] == dt.date(1960, 1, 5)
    assert found["paid"] == Decimal("-0.93")
    far = Envelopes().opened(made.message("c", made.row(1, seen=9223372036825200000, paid="?"), wrapped=True))
    assert isinstance(far, dict)
    assert (far["seen"], far["paid"]) == (9223372036825200000, "?")


def test_a_value_that_the_database_did_not_tell_is_missing() -> None:
    found = Envelopes().opened(made.message("u", made.row(1, ill=made.UNAVAILABLE)))
    assert found == made.row(1, ill=None)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(("op", "why"), [("d", "a delete"), ("t", "a truncate"), (None, "a tombstone")])
def test_deletes_are_ignored_or_rejected(op: str | None, why: str, wrapped: bool) -> None:
    message = None if op is None else made.message(op, wrapped=wrapped)
    assert isinstance(Envelopes().opened(message), Ignored)
    refused = Envelopes(Deletes.REJECT).opened(message)
    assert isinstance(refused, Refused)
    assert refused.reason == why
    if op is not None:
        told = json.loads(refused.text or "")
        assert told["op"] == op
        assert told["source"]["table"] == "visits"


def test_a_message_in_the_log_is_no_row_and_is_never_rejected() -> None:
    assert isinstance(Envelopes(Deletes.REJECT).opened(made.message("m")), Ignored)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"id": 1, "age": 30}, "no Debezium envelope"),
        ({"schema": None, "payload": 7}, "no Debezium envelope"),
        ({"schema": made.schema(), "payload": made.row(1)}, "no Debezium envelope"),
        ({**made.payload("c", made.row(1)), "op": "x"}, "an unknown operation"),
        ({**made.payload("c", made.row(1)), "op": ["c"]}, "an unknown operation"),
        (made.message("u", None), "an envelope without a row"),
    ],
)
def test_what_is_no_envelope_is_refused(message: Any, why: str) -> None:
    found = Envelopes().opened(message)
    assert isinstance(found, Refused)
    assert found.reason == why
    assert made.BEFORE not in (found.text or "") + repr(found)


_VALUES = st.recursive(
    st.none() | st.integers() | st.sampled_from(["c", "u", "d", "t", "m", "after", "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=4,
)


@given(
    body=st.fixed_dictionaries({"before": st.just(made.before())}, optional={n: _VALUES for n in ("op", "after")})
    | _VALUES,
    wrapped=st.booleans(),
    schema=_VALUES | st.just(made.schema()),
    deletes=st.sampled_from(Deletes),
)
def test_whatever_comes_nothing_tells_what_was_before(body: Any, wrapped: bool, schema: Any, deletes: Deletes) -> None:
    found = Envelopes(deletes).opened({"schema": schema, "payload": body} if wrapped else body)
    said = "" if isinstance(found, Ignored) else str(found.text if isinstance(found, Refused) else found)
    assert made.BEFORE not in said + repr(found)


# -- files ------------------------------------------------------------------------------------------


def write(path: Path, messages: list[Any], *more: str) -> str:
    path.write_text("".join(json.dumps(one) + "\n" for one in messages) + "".join(more))
    return str(path)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(POLICY)


def run(given: str, *flags: str) -> int:
    owners = ["--rejected", "rejected.jsonl", "--suppressed", "suppressed.jsonl", "--trace", "trace.jsonl"]
    any_ = ["--most-suppressed", "100%", "--most-rejected", "100%"]
    command = ["run", "policy.yaml", "--input", given, "--envelope", "debezium", "--output", "out.jsonl"]
    return main([*command, *owners, *any_, "--json", *flags])


@pytest.mark.parametrize("deletes", ["ignore", "reject"])
def test_a_file_is_run_and_audited(tmp_path: Path, capfd: pytest.CaptureFixture[str], deletes: str) -> None:
    far = made.message("c", made.row(5, age=300), wrapped=True)
    nobody = {"before": {"zip": made.BEFORE}, "after": None}
    given = write(tmp_path / "in.jsonl", [*made.changes(COUNT, wrapped=True), far, nobody])
    assert run(given, "--deletes", deletes) == 0
    outcome = json.loads(capfd.readouterr().out)
    refused = 0 if deletes == "ignore" else GONE
    assert outcome["rows"] == COUNT + 2 + refused
    assert outcome["ignored"] == MESSAGES + GONE - refused
    assert outcome["rejected"] == 2 + refused
    assert outcome["published"] + outcome["suppressed"] == COUNT
    published = read(tmp_path / "out.jsonl")
    assert {row["born"] for row in published} <= {str(dt.date(1960, 1, 4) + dt.timedelta(days=d)) for d in range(50)}
    assert all(isinstance(row["paid"], float) for row in published)
    # The person, the zip and the rest are of the row after the change; nothing has the row before it.
    everything = "".join(path.read_text() for path in tmp_path.glob("*.jsonl") if path.name != "in.jsonl")
    assert made.BEFORE not in everything
    assert "999999999" not in everything
    reasons = [record["reason"] for record in read(tmp_path / "rejected.jsonl")]
    assert reasons.count("no Debezium envelope") == reasons.count("outside the domain") == 1
    assert reasons.count("a delete") == reasons.count("a tombstone") == (12 if refused else 0)
    # The numbers of rows in the trace are those that the audit counts.
    audit = ["audit", "policy.yaml", "--published", "out.jsonl", "--input", given, "--envelope", "debezium"]
    audit += ["--deletes", deletes, "--suppressed", "suppressed.jsonl", "--trace", "trace.jsonl", "--queries", "0"]
    assert main([*audit, "--most-rejected", "100%", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["verdict"] == "kept"


def test_check_and_init_read_envelopes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    given = write(tmp_path / "in.jsonl", made.changes(COUNT, wrapped=True))
    assert main(["check", "policy.yaml", "--data", given, "--envelope", "debezium"]) == 0
    assert "no column" not in capfd.readouterr().out
    assert main(["init", given, "--envelope", "debezium"]) == 0
    drafted = capfd.readouterr().out
    assert "zip" in drafted
    assert made.BEFORE not in drafted


def test_lines_that_cannot_be_read_tell_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    deep = '{"before": "' + made.BEFORE + '", "op": "c", "after": ' + '{"a":' * 99 + "1" + "}" * 99 + "}\n"
    digits = json.dumps(made.message("c", made.row(1))).replace('"age": 21', '"age": 1' + "0" * 5000) + "\n"
    given = write(tmp_path / "in.jsonl", made.changes(30, wrapped=False)[:-2], deep, digits)
    Path("policy.yaml").write_text(POLICY.replace("event_time: seen\n", "").replace("delay: 1h", "delay_rows: 30"))
    run(given)
    outcome = json.loads(capfd.readouterr().out)
    assert {one["reason"] for one in outcome["rejected_by"]} == {"nested too deep", "number too large"}
    records = (tmp_path / "rejected.jsonl").read_text()
    assert made.BEFORE not in records
    assert "withheld: " in records
    broken = write(tmp_path / "broken.jsonl", [], '{"before": "' + made.BEFORE + "\n")
    assert run(broken) == 2
    said = capfd.readouterr().err
    assert "each line must be one JSON object" in said
    assert made.BEFORE not in said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--input", "in.csv", "--envelope", "debezium"], "must have JSON lines for --envelope, not CSV"),
        (["--input", "in.jsonl", "--deletes", "reject"], "--deletes needs --envelope"),
        (["--input", "kafka://a:1/b", "--envelope", "debezium"], "envelope=debezium"),
        (["--input", "kafka://a:1/b?deletes=reject"], "deletes needs envelope=debezium"),
        (["--input", "kafka://a:1/b?envelope=avro"], "envelope must be debezium"),
    ],
)
def test_options_that_do_not_go_together(flags: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("in.csv").write_text("id\n1\n")
    Path("in.jsonl").write_text("{}\n")
    out = "kafka://a:1/out" if "kafka" in flags[1] else "out.jsonl"
    assert main(["run", "policy.yaml", *flags, "--output", out]) == 2
    assert said in capfd.readouterr().err
