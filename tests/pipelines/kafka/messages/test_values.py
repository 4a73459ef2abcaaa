"""Avro values: a record is read with the schema that it was written with, or not at all."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastavro
import pytest

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.kafka.messages.values import Unreadable, Values, values
from crenel.pipelines.kafka.topic_job import Request
from crenel.pipelines.kafka.topics import Topic
from crenel.policy import Policy

#: The reader's schema, which has the columns of the policy.
VISIT = {
    "type": "record",
    "name": "Visit",
    "fields": [
        {"name": "who", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "kind", "type": "string"},
    ],
}
#: The same fields, but two of one type are swapped: either schema can read the bytes of the other.
SWAPPED = {**VISIT, "fields": [VISIT["fields"][0], VISIT["fields"][2], VISIT["fields"][1]]}  # type: ignore[index]
#: The same fields, and one more.
GROWN = {
    "type": "record",
    "name": "Visit",
    "fields": [{"name": "age", "type": ["null", "int"]}, *VISIT["fields"]],  # type: ignore[misc]
}
ROW = {"who": 7, "name": "Xanthippe", "kind": "check-up"}

POLICY = Policy.from_dict(
    {
        "version": 1,
        "person": "who",
        "quasi_identifiers": {"kind": {"type": "categorical", "hierarchy": ["check-up", "flu"]}},
        "publish": ["name"],
        "k": 2,
        "delay_rows": 9,
    }
)


def confluent(schema: Mapping[str, Any], number: int, row: Mapping[str, Any]) -> bytes:
    """Write a value as a producer with a schema registry does."""
    stream = io.BytesIO()
    stream.write(struct.pack(">BI", 0, number))
    fastavro.schemaless_writer(stream, fastavro.parse_schema(dict(schema)), row)
    return stream.getvalue()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "visit.avsc").write_text(json.dumps(VISIT))
    (tmp_path / "ids").mkdir()
    return tmp_path


def url(here: Path, **options: str) -> str:
    options = {"format": "avro", "schema": str(here / "visit.avsc"), "encoding": "confluent", **options}
    return "kafka://a:1/visits?" + "&".join(f"{name}={value}" for name, value in options.items() if value)


def reader(here: Path, **options: str) -> Values:
    return values(Topic.of(url(here, **options), read=True))


def why(of: Values, value: bytes) -> str:
    with pytest.raises(Unreadable) as raised:
        of.read(value)
    return str(raised.value)


# -- one schema ------------------------------------------------------------------------------------


def test_without_an_id_nothing_is_read(here: Path) -> None:
    """Without an id, any record would be read with this schema. If two fields are swapped, a name becomes a kind."""
    with pytest.raises(CommandError) as raised:
        Topic.of(url(here), read=True)
    said = str(raised.value)
    assert "encoding=confluent needs schema_id=ID" in said
    assert "schemas=FOLDER" in said


def test_a_record_of_another_id_is_rejected(here: Path) -> None:
    """A writer that swaps two fields has another schema, and therefore another id."""
    of = reader(here, schema_id="7")
    assert of.read(confluent(VISIT, 7, ROW)) == ROW
    assert why(of, confluent(SWAPPED, 8, ROW)) == "Avro of another schema id"
    assert why(of, confluent(VISIT, 0, ROW)) == "Avro of another schema id"


@pytest.mark.parametrize(
    "value", [b"", b"\0", b"\0\0\0\0", b"{}", b"\1\0\0\0\7\16\2a\2b", b"\0\0\0\0\7", b"\0\0\0\0\7\16"]
)
def test_what_is_not_of_this_form_is_rejected(here: Path, value: bytes) -> None:
    assert why(reader(here, schema_id="7"), value) == "not Avro of this schema"


def test_bytes_after_the_record_are_no_record(here: Path) -> None:
    assert why(reader(here, schema_id="7"), confluent(VISIT, 7, ROW) + b"\0") == "not Avro of this schema"


# -- several schemas -------------------------------------------------------------------------------


def test_each_record_is_read_by_its_own_schema(here: Path) -> None:
    for number, schema in ((7, VISIT), (8, SWAPPED), (1234567, GROWN)):
        (here / "ids" / f"{number}.avsc").write_text(json.dumps(schema))
    (here / "ids" / "README").write_text("schemas of the registry")
    of = reader(here, schemas=str(here / "ids"))
    assert of.read(confluent(VISIT, 7, ROW)) == ROW
    assert of.read(confluent(SWAPPED, 8, ROW)) == ROW
    assert of.read(confluent(GROWN, 1234567, {**ROW, "age": 3})) == ROW
    assert why(of, confluent(SWAPPED, 9, ROW)) == "Avro of another schema id"


def test_defaults_and_wider_types_are_those_of_the_reader(here: Path) -> None:
    wider = [{"name": "who", "type": "double"}, *VISIT["fields"][1:], {"name": "age", "type": "int", "default": -1}]  # type: ignore[index]
    (here / "visit.avsc").write_text(json.dumps({**VISIT, "fields": wider}))
    (here / "ids" / "7.avsc").write_text(json.dumps(VISIT))
    found = reader(here, schemas=str(here / "ids")).read(confluent(VISIT, 7, ROW))
    assert found == {**ROW, "who": 7.0, "age": -1}


def test_schemas_travel_with_the_topic(here: Path) -> None:
    """Workers run on other machines, which do not have the folder of schemas."""
    (here / "ids" / "8.avsc").write_text(json.dumps(SWAPPED))
    topic = Topic.of(url(here, schemas=str(here / "ids")), read=True)
    (here / "ids" / "8.avsc").unlink()
    assert values(topic).read(confluent(SWAPPED, 8, ROW)) == ROW
    assert hash(topic) == hash(topic)


@pytest.mark.parametrize(
    ("name", "schema", "said"),
    [
        (None, None, "must have files ID.avsc"),
        ("visit.avsc", VISIT, "must have files ID.avsc"),
        ("7.avsc", "long", "7.avsc must hold the Avro schema of a record"),
        ("7.avsc", {**VISIT, "fields": VISIT["fields"][:2]}, "7.avsc has no field 'kind'"),  # type: ignore[index]
        ("7.avsc", {**VISIT, "name": "Stay"}, "7.avsc is of a record 'Stay', not 'Visit'"),
    ],
)
def test_unusable_schemas_are_reported(here: Path, name: str | None, schema: Any, said: str) -> None:
    if name is not None:
        (here / "ids" / name).write_text(json.dumps(schema))
    with pytest.raises(CommandError, match=said):
        reader(here, schemas=str(here / "ids"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"schema_id": "7", "schemas": "ids"}, "schema_id or schemas, not both"),
        ({"schema_id": "7", "encoding": "bare"}, "schema_id and schemas are of encoding=confluent"),
        ({"schemas": "ids", "encoding": "single"}, "schema_id and schemas are of encoding=confluent"),
        ({"schemas": "/not/there"}, "/not/there cannot be read"),
    ],
)
def test_options_that_do_not_go_together(here: Path, options: dict[str, str], said: str) -> None:
    options = {name: str(here / value) if value == "ids" else value for name, value in options.items()}
    with pytest.raises(CommandError, match=said):
        Topic.of(url(here, **options), read=True)


# -- writing ---------------------------------------------------------------------------------------


def test_an_id_is_written_only_if_it_is_known(here: Path) -> None:
    with pytest.raises(CommandError, match="encoding=confluent needs schema_id=ID"):
        Topic.of(url(here))
    written = values(Topic.of(url(here, schema_id="7"))).write(ROW)
    assert written == confluent(VISIT, 7, ROW)
    with pytest.raises(CommandError, match="'schemas' must be one of"):
        Topic.of(url(here, schemas=str(here / "ids")))


def test_a_schema_that_is_made_must_be_registered_first(here: Path) -> None:
    out = here / "out.avsc"
    outputs = {"published": url(here, schema=str(out)).replace("visits", "published")}
    with pytest.raises(CommandError) as raised:
        Request.of(POLICY, [url(here, schema_id="7")], outputs, local=True)
    assert "out.avsc was written. Register it, and give its id as schema_id=ID." in str(raised.value)
    assert {field["name"] for field in json.loads(out.read_text())["fields"]} == {"kind", "name"}
    with pytest.raises(CommandError, match="encoding=confluent needs schema_id=ID"):
        Request.of(POLICY, [url(here, schema_id="7")], outputs, local=True)
    outputs = {"published": outputs["published"] + "&schema_id=9"}
    request = Request.of(POLICY, [url(here, schema_id="7")], outputs, local=True)
    topic = request.outputs["published"]
    assert isinstance(topic, Topic)
    assert values(topic).write({"kind": "*", "name": "x"})[:5] == b"\0\0\0\0\x09"
