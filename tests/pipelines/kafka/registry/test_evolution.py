"""`crenel run` from topic to topic, with a real registry, while the writers' schema changes in the middle."""

from __future__ import annotations

import base64
import io
import json
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import fastavro
import pytest

from crenel.pipelines.cli import main
from tests.pipelines.kafka import rows as made
from tests.pipelines.kafka.broker import Broker
from tests.pipelines.kafka.registry import writers
from tests.pipelines.kafka.registry.writers import BAD, GOOD, Writer
from tests.pipelines.kafka.registry_server import Registry

pytestmark = pytest.mark.kafka

#: How many rows come too late for a group depends on how partitions race. That is not tested here.
ANY = ("--most-suppressed", "100%", "--most-rejected", "100%")
EACH = 40


def names(count: int) -> list[str]:
    return [f"r-{uuid4().hex[:8]}" for _ in range(count)]


@pytest.mark.parametrize("made_by", [writers.avro, writers.json_schema, writers.protobuf])
def test_a_schema_changes_in_the_middle(
    kafka: Broker,
    registry: Registry,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    made_by: Callable[[], Writer],
) -> None:
    """No column leaves that the policy does not name, no row is lost, and each refusal names the schema's id."""
    writer = made_by()
    source, published, rejected = names(3)
    kafka.create(source, published, rejected)
    (tmp_path / "policy.yaml").write_text(made.POLICY)
    ids = {}
    for version in (*BAD, *reversed(GOOD)):  # the first one last: it is the latest when the run begins
        ids[version] = registry.register(f"{source}-value", writer.schemas[version], writer.form)
    rows = made.make(EACH * len(ids))
    for row in rows:
        row["ill"] = row["ill"] or "none"
    parts = dict(zip((*GOOD, *BAD), range(0, len(rows), EACH), strict=True))
    for version, start in parts.items():
        of_version = rows[start : start + EACH]
        kafka.produce(source, [writer.value(version, ids[version], row) for row in of_version])
    first = writer.value("first", ids["first"], rows[0])
    broken: list[bytes | None] = [None, b"", json.dumps(rows[0]).encode(), first[:10], first[:1] + b"\x7f" + first[2:]]
    kafka.produce(source, broken)

    url = {"registry": registry.url}
    given = ["--input", kafka.url(source, until="end", **url), "--output", kafka.url(published, **url)]
    told = main(["run", str(tmp_path / "policy.yaml"), *given, "--rejected", kafka.url(rejected), "--json", *ANY])
    captured = capfd.readouterr()
    assert told == 0, captured.err
    outcome = json.loads(captured.out)
    assert outcome["rows"] == len(rows) + len(broken)
    assert outcome["rows"] == outcome["published"] + outcome["suppressed"] + outcome["rejected"]

    latest = registry.latest(f"{published}-value")
    out = [_read(latest, message.value()) for message in kafka.read(published)]
    assert sorted(row["note"] for row in out) == list(range(EACH * len(GOOD)))
    assert all(made.covers(row, rows[row["note"]]) for row in out)
    assert all(set(row) == {"age", "zip", "ill", "note"} for row in out)
    assert not any(b"SECRET" in message.value() for message in kafka.read(published))
    assert "SECRET" not in captured.out + captured.err

    records = [json.loads(message.value()) for message in kafka.read(rejected)]
    reasons = Counter(record["reason"] for record in records)
    for version, why in BAD.items():
        assert reasons.pop(f"schema {ids[version]} {why}") == EACH
        assert f"{source}: schema {ids[version]} {why}. Its rows are rejected.\n" in captured.err
    named = {"AVRO": "Avro", "JSON": "JSON", "PROTOBUF": "Protobuf"}[writer.form]
    assert reasons == {
        "no value": 1,
        "no schema id": 2,
        f"not {named} of schema {ids['first']}": 1,
        f"schema {0x7F000000 + ids['first']} is not in the registry": 1,
    }
    for record in records:
        if record["reason"].startswith("schema ") and "column" in record["reason"]:
            assert _whole(record["row"])[:1] == b"\0", "the owner gets the whole record"


def _whole(text: str) -> bytes:
    return base64.b64decode(text[7:]) if text.startswith("base64:") else text.encode()


def _read(latest: Any, value: bytes) -> dict[str, Any]:
    """Read a published row by the schema that the registry has for its topic."""
    magic, number = struct.unpack_from(">BI", value)
    assert (magic, number) == (0, latest["id"])
    form, payload = latest.get("schemaType", "AVRO"), value[5:]
    if form == "AVRO":
        schema = fastavro.parse_schema(json.loads(latest["schema"]))
        return dict(fastavro.schemaless_reader(io.BytesIO(payload), schema, None))  # type: ignore[arg-type]
    if form == "JSON":
        import jsonschema

        row = json.loads(payload)
        jsonschema.validate(row, json.loads(latest["schema"]))
        return dict(row)
    assert payload[:1] == b"\0"
    message = writers.message_class(latest["schema"], "crenel.Published").FromString(payload[1:])
    row = {
        name: getattr(message, name) if message.HasField(name) else None for name in message.DESCRIPTOR.fields_by_name
    }
    row["age"] = {"lo": message.age.lo, "hi": message.age.hi}
    return row
