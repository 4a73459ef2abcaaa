"""Paths into objects, and every form of ranges, with a schema registry."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

import fastavro
import jsonschema
import pytest
import yaml

from crenel.pipelines.cli import main
from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.kafka.messages.values import Unreadable
from crenel.pipelines.kafka.registry.avro_schemas import published_avro
from crenel.pipelines.kafka.registry.column_kinds import Kind, named
from crenel.pipelines.kafka.registry.framed_values import FramedWriter, row_schemas
from crenel.pipelines.kafka.registry.json_schemas import published_json
from crenel.pipelines.kafka.registry.published_fields import fields_of, text_columns
from crenel.pipelines.kafka.registry.published_protobuf import published_protobuf
from crenel.pipelines.kafka.registry.registry_client import Schema
from crenel.pipelines.kafka.topics import Topic
from crenel.policy import Policy
from crenel.transforms._pack.nested_fields import flat_rows
from crenel.transforms._publish.range_form import RangeForm, Ranges
from tests.pipelines.kafka.broker import Broker
from tests.pipelines.kafka.registry.nested_writers import POLICY, WRITERS, NestedWriter, make
from tests.pipelines.kafka.registry.writers import message_class
from tests.pipelines.kafka.registry_server import Registry

NAMED = Policy.from_dict(yaml.safe_load(POLICY))
PUBLISH = {
    "AVRO": published_avro,
    "JSON": published_json,
    "PROTOBUF": lambda fields: published_protobuf(fields, None),
}
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize("made_by", WRITERS)
def test_a_column_within_objects_is_read_by_its_path(made_by: Callable[[], NestedWriter]) -> None:
    writer = made_by()
    (schema,) = row_schemas(Schema(writer.form, writer.schema))
    found = {name: schema.kind(name) for name in named(NAMED)}
    assert found["patient.address.zip"] is Kind.TEXT
    assert found["patient.id"] is Kind.INTEGER
    assert schema.kind("patient.address.city") is None
    assert schema.kind("patient.id.x") is None
    assert schema.kind("note.zip") is None
    first, without = make(2)
    without["patient"] |= {"address": None, "unit": None}
    start = 1 if writer.form == "PROTOBUF" else 0
    rows = flat_rows([schema.row(writer.write(row)[start:]) for row in (first, without)], named(NAMED))
    assert [row["patient.address.zip"] for row in rows] == ["00000", None]
    assert [row["patient.unit"] for row in rows] == ["U0", None]
    assert [row["patient.id"] for row in rows] == [0, 1]


def test_a_row_of_json_that_is_not_nested_as_its_schema_says_is_no_row() -> None:
    writer = WRITERS[1]()
    (schema,) = row_schemas(Schema(writer.form, writer.schema))
    schema.kind("patient.address.zip")
    for wrong in (7, [{"address": {"zip": "1"}}], {"address": "x"}, {"address": {"zip": 1}}):
        with pytest.raises(Unreadable, match="not JSON"):
            schema.row(json.dumps({"patient": wrong}).encode())


@pytest.mark.parametrize("ranges", list(Ranges))
@pytest.mark.parametrize("made_by", WRITERS)
def test_published_rows_fit_their_schema_in_every_form(made_by: Callable[[], NestedWriter], ranges: Ranges) -> None:
    form = made_by().form
    kinds = dict.fromkeys(named(NAMED), Kind.TEXT) | {"note": Kind.INTEGER}
    schema = PUBLISH[form](fields_of(NAMED, kinds, ranges))  # type: ignore[operator]
    topic = Topic(
        servers="a:1",
        name="t",
        registry="http://r",
        format=form.lower(),
        schema_text=schema.text,
        schema_id=9,
        text_columns=text_columns(NAMED, kinds, ranges),
    )
    row = {
        "patient.address.zip": "12***",
        "age": {"lo": 5.0, "hi": 10.0},
        "weight": {"lo": 50.5, "hi": None},
        "born": {"lo": "1970-01-01T00:00:00Z", "hi": "1971-01-01T00:00:00Z"},
        "note": 1,
        "patient.unit": None,
    }
    formed = row if ranges is Ranges.STRUCT else RangeForm(NAMED, ranges, untyped=form == "JSON").row(row)
    read = READ[form](schema.text, FramedWriter(topic).write(formed)[5:])
    dot = "." if form == "JSON" else "_"
    assert read[f"patient{dot}address{dot}zip"] == "12***"
    assert read[f"patient{dot}unit"] is None
    if ranges is Ranges.COLUMNS:
        assert (read["age_lo"], read["age_hi"]) == (5, 10)
        assert type(read["age_lo"]) is int, "the step is whole"
        assert (read["weight_lo"], read["weight_hi"]) == (50.5, None)
        assert (read["born_lo"], read["born_hi"]) == ("1970-01-01", "1971-01-01")
    elif ranges is Ranges.TEXT:
        assert (read["age"], read["weight"]) == ("[5, 10]", "[50.5, *]")


def test_names_that_become_one_are_refused() -> None:
    policy = Policy.from_dict({**yaml.safe_load(POLICY), "publish": ["patient.unit", "patient_unit"]})
    kinds = dict.fromkeys(named(policy), Kind.TEXT)
    with pytest.raises(CommandError, match=r"names in Avro cannot have dots, and 'patient.unit' and 'patient_unit'"):
        published_avro(fields_of(policy, kinds))
    assert "patient_unit" in published_json(fields_of(policy, kinds)).text


@pytest.mark.kafka
@pytest.mark.parametrize("made_by", WRITERS)
def test_a_topic_of_nested_rows_is_published_in_columns(
    kafka: Broker,
    registry: Registry,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    made_by: Callable[[], NestedWriter],
) -> None:
    writer = made_by()
    source, published = (f"n-{uuid4().hex[:8]}" for _ in range(2))
    kafka.create(source, published)
    (tmp_path / "policy.yaml").write_text(POLICY)
    number = registry.register(f"{source}-value", writer.schema, writer.form)
    rows = make(300)
    kafka.produce(source, [b"\0" + number.to_bytes(4, "big") + writer.write(row) for row in rows])
    url = {"registry": registry.url}
    given = ["--input", kafka.url(source, until="end", **url), "--output", kafka.url(published, **url)]
    options = ["--ranges", "columns", "--json", "--most-suppressed", "100%"]
    assert main(["run", str(tmp_path / "policy.yaml"), *given, *options]) == 0, capfd.readouterr().err
    told = json.loads(capfd.readouterr().out)
    assert told["rejected"] in (0, {})
    latest = registry.latest(f"{published}-value")
    found = [READ[writer.form](latest["schema"], message.value()[5:]) for message in kafka.read(published)]
    assert len(found) == told["published"] > 150
    for row in found:
        given_row = rows[row["note"]]
        assert row["age_lo"] <= given_row["age"] <= row["age_hi"]
        assert row["weight_lo"] <= given_row["weight"] <= row["weight_hi"]
        born = (EPOCH + timedelta(seconds=given_row["born"])).date()
        assert date.fromisoformat(row["born_lo"]) <= born <= date.fromisoformat(row["born_hi"])
        code = row.get("patient.address.zip", row.get("patient_address_zip")).rstrip("*")
        assert given_row["patient"]["address"]["zip"].startswith(code)
    assert not any(b"SECRET" in message.value() for message in kafka.read(published))


def _read_avro(text: str, payload: bytes) -> dict[str, Any]:
    schema = fastavro.parse_schema(json.loads(text))
    return dict(fastavro.schemaless_reader(io.BytesIO(payload), schema, None))  # type: ignore[arg-type]


def _read_json(text: str, payload: bytes) -> dict[str, Any]:
    row = json.loads(payload)
    jsonschema.validate(row, json.loads(text))
    return dict(row)


def _read_protobuf(text: str, payload: bytes) -> dict[str, Any]:
    assert payload[:1] == b"\0"
    message = message_class(text, "crenel.Published").FromString(payload[1:])
    return {n: getattr(message, n) if message.HasField(n) else None for n in message.DESCRIPTOR.fields_by_name}


READ: dict[str, Callable[[str, bytes], dict[str, Any]]] = {
    "AVRO": _read_avro,
    "JSON": _read_json,
    "PROTOBUF": _read_protobuf,
}
