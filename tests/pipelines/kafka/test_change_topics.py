"""`crenel run` on topics of change events, with a real broker and a real registry."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from uuid import uuid4

import pytest

from crenel.pipelines.cli import main
from tests.pipelines import debezium_records as made
from tests.pipelines.kafka.broker import Broker
from tests.pipelines.kafka.registry_server import Registry

pytestmark = pytest.mark.kafka

ANY = ("--most-suppressed", "100%", "--most-rejected", "100%", "--json")
POLICY = """
person: id
event_time: seen
quasi_identifiers:
  zip: {type: prefix, length: 5}
  age: {type: numeric, domain: [0, 120], step: 5}
publish: [ill, born]
k: 3
delay: 1h
"""
COUNT, GONE, MESSAGES = 120, 25, 1


def names(count: int) -> list[str]:
    return [f"d-{uuid4().hex[:8]}" for _ in range(count)]


@pytest.mark.parametrize("deletes", ["ignore", "reject"])
def test_json_envelopes(kafka: Broker, tmp_path: Path, capfd: pytest.CaptureFixture[str], deletes: str) -> None:
    source, published, rejected = names(3)
    kafka.create(source, published, rejected)
    (tmp_path / "policy.yaml").write_text(POLICY)
    old = made.message("c", made.row(7, age=300), wrapped=True)
    kafka.produce(
        source, [*made.as_json([*made.changes(COUNT, wrapped=True), old]), b'{"before": "' + b"BEFORE-SECRET"]
    )
    url = kafka.url(source, until="end", envelope="debezium", deletes=deletes)
    given = ["--input", url, "--output", kafka.url(published), "--rejected", kafka.url(rejected)]
    assert main(["run", str(tmp_path / "policy.yaml"), *given, *ANY]) == 0
    captured = capfd.readouterr()
    outcome = json.loads(captured.out)
    refused = 0 if deletes == "ignore" else GONE
    assert outcome["rows"] == COUNT + 2 + refused == outcome["published"] + outcome["suppressed"] + outcome["rejected"]
    assert outcome["ignored"] == GONE - refused + MESSAGES
    assert outcome["rejected"] == 2 + refused
    out = [json.loads(message.value()) for message in kafka.read(published)]
    assert len(out) == outcome["published"] > COUNT / 2
    assert all(set(row) == {"zip", "age", "ill", "born"} for row in out)
    assert all(row["born"].startswith("1960-") for row in out)
    owners = b"".join(message.value() for message in kafka.read(rejected))
    everything = b"".join(message.value() for message in kafka.read(published)) + owners
    assert b"BEFORE" not in everything + captured.err.encode()
    assert b"999999999" not in everything
    reasons = [json.loads(message.value())["reason"] for message in kafka.read(rejected)]
    assert reasons.count("a delete") == reasons.count("a tombstone") == refused // 2
    assert {"not JSON", "outside the domain"} <= set(reasons)


def test_avro_envelopes_with_a_registry(
    kafka: Broker, registry: Registry, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also a writer whose table lost a column that the policy names: its rows are refused, with the schema's id."""
    source, published, rejected = names(3)
    kafka.create(source, published, rejected)
    (tmp_path / "policy.yaml").write_text(POLICY)
    lacking = made.avro_schema(zip="int")
    bad = registry.register(f"{source}-value", lacking | {"name": "Envelope2"})
    good = registry.register(f"{source}-value", made.avro_schema())
    messages = made.changes(COUNT, wrapped=False)[:-2]  # a truncate has no schema of its own here
    values = [None if one is None else struct.pack(">BI", 0, good) + made.as_avro(one) for one in messages]
    changed = struct.pack(">BI", 0, bad) + made.as_avro(
        made.message("u", made.row(1, zip=77)) | {"before": None}, zip="int"
    )
    kafka.produce(source, [*values, changed, struct.pack(">BI", 0, good) + b"BEFORE-SECRET"])
    options = {"registry": registry.url}
    given = ["--input", kafka.url(source, until="end", envelope="debezium", **options)]
    given += ["--output", kafka.url(published, **options), "--rejected", kafka.url(rejected)]
    assert main(["run", str(tmp_path / "policy.yaml"), *given, *ANY]) == 0
    captured = capfd.readouterr()
    outcome = json.loads(captured.out)
    assert outcome["rows"] == COUNT + 2
    assert outcome["ignored"] == 24
    assert outcome["published"] + outcome["suppressed"] == COUNT
    records = [json.loads(message.value()) for message in kafka.read(rejected)]
    assert {record["reason"] for record in records} == {
        f"schema {bad} changes the column 'zip' from text to integer",
        f"not Avro of schema {good}",
    }
    assert all(record["row"].startswith("[withheld: ") for record in records)
    told = json.loads(registry.latest(f"{published}-value")["schema"])
    assert [field["name"] for field in told["fields"]] == ["zip", "age", "ill", "born"]
    assert not any(b"BEFORE" in message.value() for message in kafka.read(published))
