"""Schemas of rows in three formats: which columns they have, and what of a record is read."""

from __future__ import annotations

import base64
import io
import json
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import fastavro
import pytest
import yaml

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.kafka.messages.values import Unreadable
from crenel.pipelines.kafka.registry.avro_schemas import published_avro
from crenel.pipelines.kafka.registry.column_kinds import Kind, NotAColumn, RefusedSchema, check, joined, named, taken
from crenel.pipelines.kafka.registry.framed_values import FramedWriter, row_schemas
from crenel.pipelines.kafka.registry.json_schemas import published_json
from crenel.pipelines.kafka.registry.protobuf_schemas import ProtobufSchema
from crenel.pipelines.kafka.registry.published_fields import PublishedField, fields_of, text_columns
from crenel.pipelines.kafka.registry.published_protobuf import ProtobufValues, published_protobuf
from crenel.pipelines.kafka.registry.registry_client import Schema
from crenel.pipelines.kafka.topics import Topic
from crenel.policy import Policy
from tests.pipelines.kafka import rows as made


def _policy(text: str) -> Policy:
    return Policy.from_dict(yaml.safe_load(text))


NESTED = "nested"
SEVERAL = "values of several types"


def kind(schema: Any, column: str) -> Any:
    try:
        return schema.kind(column)
    except NotAColumn as why:
        return str(why)


# --- What a column holds ---


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("int", Kind.INTEGER),
        ("double", Kind.NUMBER),
        (["null", "long"], Kind.INTEGER),
        (["int", "long", "null"], Kind.INTEGER),
        (["int", "double"], Kind.NUMBER),
        (["int", "string"], SEVERAL),
        ("null", "records, lists or maps"),
        ({"type": "string", "logicalType": "uuid"}, Kind.UUID),
        ({"type": "long", "logicalType": "timestamp-micros"}, Kind.MOMENT),
        ([{"type": "int", "logicalType": "date"}, "null"], Kind.DATE),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, Kind.DECIMAL),
        ({"type": "long", "logicalType": "made up"}, Kind.INTEGER),
        ("Color", Kind.TEXT),
        ("Inner", "records, lists or maps"),
        ({"type": "array", "items": "int"}, "records, lists or maps"),
        ({"type": "map", "values": "int"}, "records, lists or maps"),
    ],
)
def test_what_a_field_of_avro_holds(declared: Any, expected: Any) -> None:
    color = {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["A"]}}
    inner = {"name": "inner", "type": {"type": "record", "name": "Inner", "fields": [color]}}
    record = {"type": "record", "name": "Row", "fields": [inner, {"name": "x", "type": declared}]}
    (schema,) = row_schemas(Schema("AVRO", json.dumps(record)))
    assert kind(schema, "x") == expected
    assert schema.kind("y") is None


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({"type": "integer"}, Kind.INTEGER),
        ({"type": ["number", "null"]}, Kind.NUMBER),
        ({"type": ["integer", "number"]}, Kind.NUMBER),
        ({"enum": ["a", "b", None]}, Kind.TEXT),
        ({"const": True}, Kind.BOOLEAN),
        ({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a~1b"}]}, Kind.TEXT),
        ({"$ref": "other.json#/definitions/n"}, Kind.INTEGER),
        ({"type": ["integer", "string"]}, SEVERAL),
        ({"type": "object"}, NESTED),
        ({"type": "array"}, NESTED),
        ({"$ref": "#/$defs/none"}, NESTED),
        ({"$ref": "#/properties/x"}, NESTED),
        ({}, NESTED),
        (True, NESTED),
        ({"enum": [[1]]}, NESTED),
        ({"type": "null"}, "no values"),
    ],
)
def test_what_a_property_of_json_holds(declared: Any, expected: Any) -> None:
    whole = {"type": "object", "properties": {"x": declared}, "$defs": {"a/b": {"type": "string"}}}
    other = ("other.json", json.dumps({"definitions": {"n": {"$ref": "#/definitions/m"}, "m": {"type": "integer"}}}))
    (schema,) = row_schemas(Schema("JSON", json.dumps(whole), (other,)))
    expected = "objects, lists, or what its schema does not say" if expected == NESTED else expected
    assert kind(schema, "x") == expected
    assert schema.kind("y") is None


FILE = """syntax = "proto3";
package visits;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "shared/kinds.proto";
message Visit {
  message Inner { string deep = 1; }
  uint64 number = 1;
  optional float weight = 2;
  oneof either { string text = 3; int32 count = 4; }
  google.protobuf.Timestamp at = 5;
  google.protobuf.StringValue name = 6;
  shared.Kind kind = 7;
  repeated int32 list = 8;
  map<string, int32> map = 9;
  Inner inner = 10;
  bytes raw = 11;
}
"""
SHARED = ("shared/kinds.proto", 'syntax = "proto3"; package shared; enum Kind { NONE = 0; FLU = 1; }')


def test_what_a_field_of_protobuf_holds() -> None:
    (schema,) = row_schemas(Schema("PROTOBUF", FILE, (SHARED,)))
    expected = {
        "number": Kind.INTEGER,
        "weight": Kind.NUMBER,
        "text": Kind.TEXT,
        "count": Kind.INTEGER,
        "at": Kind.MOMENT,
        "name": Kind.TEXT,
        "kind": Kind.TEXT,
        "list": "lists or maps",
        "map": "lists or maps",
        "inner": "messages",
        "raw": Kind.BYTES,
        "other": None,
    }
    assert {name: kind(schema, name) for name in expected} == expected
    # A field that has no value is missing, or what Protobuf says that it is.
    empty = {"number": 0, "weight": None, "text": None, "count": None, "at": None, "name": None}
    assert schema.row(b"") == {**empty, "kind": "NONE", "raw": b""}
    assert schema.row(b"\x20\x07\x38\x01\x2a\x02\x08\x01\x32\x03\x0a\x01a") == {
        **empty,
        "count": 7,
        "kind": "FLU",
        "at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc),
        "name": "a",
        "raw": b"",
    }
    for broken in (b"\x08", b"\x38\x09", b"\x2a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00"):
        with pytest.raises(Unreadable, match="not Protobuf"):
            schema.row(broken)


def test_a_record_says_which_message_of_a_file_it_is() -> None:
    schema = ProtobufSchema(Schema("PROTOBUF", FILE, (SHARED,)))
    inner = schema.message((0, 0))
    assert inner.kind("deep") is Kind.TEXT
    assert inner.row(b"\x0a\x01a") == {"deep": "a"}
    for path in ((1,), (0, 2), (0, 0, 0)):
        with pytest.raises(Unreadable, match="not a message"):
            schema.message(path)


def test_a_file_of_protobuf_may_be_kept_as_a_descriptor() -> None:
    """Confluent's client for Python registers that, not text."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(name="visit.proto", syntax="proto3", package="visits")
    file.dependency.append("google/protobuf/timestamp.proto")
    message = file.message_type.add(name="Visit")
    message.field.add(name="age", number=1, type=5, label=1)
    message.field.add(name="at", number=2, type=11, label=1, type_name=".google.protobuf.Timestamp")
    text = base64.b64encode(file.SerializeToString()).decode()
    (schema,) = row_schemas(Schema("PROTOBUF", text))
    assert (schema.kind("age"), schema.kind("at")) == (Kind.INTEGER, Kind.MOMENT)
    assert schema.row(b"\x08\x07") == {"age": 7, "at": None}


def test_named_types_of_other_schemas_are_known() -> None:
    kinds = ("k.Kind", json.dumps({"type": "enum", "name": "Kind", "namespace": "k", "symbols": ["FLU"]}))
    record = {"type": "record", "name": "Row", "fields": [{"name": "x", "type": "k.Kind"}]}
    (schema,) = row_schemas(Schema("AVRO", json.dumps(record), (kinds,)))
    assert schema.kind("x") is Kind.TEXT
    assert schema.row(b"\0") == {"x": "FLU"}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (Schema("AVRO", "{"), "is not of an Avro record"),
        (Schema("AVRO", '"int"'), "is not of an Avro record"),
        (Schema("AVRO", '{"type": "record", "name": "R", "fields": [{"name": "x", "type": "Absent"}]}'), "Avro record"),
        (Schema("JSON", "{"), "is not of a JSON object with properties"),
        (Schema("JSON", '{"type": "array"}'), "is not of a JSON object with properties"),
        (Schema("PROTOBUF", "message {"), "is not a file of Protobuf that can be compiled"),
        (Schema("PROTOBUF", "AAAA"), "is not a file of Protobuf that can be compiled"),
        (
            Schema("PROTOBUF", "message A {}", (("../../a.proto", ""),)),
            "is not a file of Protobuf that can be compiled",
        ),
        (Schema("THRIFT", ""), "is of the type THRIFT, which is not known"),
    ],
)
def test_a_schema_that_is_none_is_refused(schema: Schema, said: str) -> None:
    with pytest.raises(RefusedSchema, match=said):
        row_schemas(schema)


@pytest.mark.parametrize("value", [b"{", b"[]", b'{"x": "7"}', b'{"x": true}', b'{"x": 7.5}', b'{"x": [7]}'])
def test_json_that_is_not_what_its_schema_says_is_no_row(value: bytes) -> None:
    (schema,) = row_schemas(Schema("JSON", '{"properties": {"x": {"type": "integer"}, "y": {"type": "string"}}}'))
    assert schema.kind("x") is Kind.INTEGER
    with pytest.raises(Unreadable):
        schema.row(value)
    # 7.0 is an integer there; `y` was not asked for.
    found = schema.row(b'{"x": 7.0, "y": 1}')["x"]
    assert (found, type(found)) == (7, int)
    assert schema.row(b"{}")["x"] is None


# --- Which changes are harmless ---

POLICY = _policy(made.POLICY)


@pytest.mark.parametrize(
    ("column", "before", "now", "harmless"),
    [
        ("age", Kind.INTEGER, Kind.NUMBER, True),
        ("age", Kind.NUMBER, Kind.DECIMAL, True),
        ("age", Kind.INTEGER, Kind.TEXT, False),
        ("at", Kind.INTEGER, Kind.NUMBER, True),
        ("at", Kind.INTEGER, Kind.MOMENT, False),
        ("note", Kind.INTEGER, Kind.NUMBER, False),
        ("note", Kind.NUMBER, Kind.INTEGER, True),
        ("ill", Kind.TEXT, Kind.BYTES, False),
        ("who", Kind.INTEGER, Kind.INTEGER, True),
        ("who", Kind.INTEGER, Kind.NUMBER, False),
        ("who", Kind.INTEGER, Kind.TEXT, False),
    ],
)
def test_a_column_may_widen_where_nobody_is_misled(column: str, before: Kind, now: Kind, harmless: bool) -> None:
    columns = ((column, tuple(one.value for one in taken(POLICY, column, before))),)
    if harmless:
        check(columns, lambda _: now)
    else:
        with pytest.raises(RefusedSchema, match=f"changes the column '{column}' from {before.value} to {now.value}"):
            check(columns, lambda _: now)


def test_the_columns_of_a_policy() -> None:
    assert named(POLICY) == ("who", "at", "age", "zip", "ill", "note")
    sharded = _policy(made.POLICY + "shard_by: [region]\n")
    assert named(sharded)[-1] == "region"
    with pytest.raises(NotAColumn, match=SEVERAL):
        joined([Kind.TEXT, Kind.MOMENT])


# --- Published rows ---

FIELDS = [
    PublishedField("age", Kind.NUMBER, is_range=True),
    PublishedField("zip", Kind.TEXT),
    PublishedField("at", Kind.MOMENT),
    PublishedField("note", Kind.INTEGER),
    PublishedField("raw", Kind.BYTES),
]
PUBLISHED = {
    "age": {"lo": 1.0, "hi": None},
    "zip": "12***",
    "at": datetime(1950, 1, 2, 3, 4, 5, 6, tzinfo=timezone.utc),
    "note": 7,
    "raw": None,
}


def test_published_rows_are_written_in_each_format() -> None:
    for form, schema in (("avro", published_avro(FIELDS)), ("protobuf", published_protobuf(FIELDS, None))):
        topic = Topic(servers="a:1", name="t", registry="http://r", format=form, schema_text=schema.text, schema_id=9)
        values = FramedWriter(topic)
        written = values.write(PUBLISHED)
        assert written[:5] == b"\0\0\0\0\x09"
        (read,) = row_schemas(schema)
        for name in ("zip", "at", "note", "raw"):
            read.kind(name)
        row = read.row(written[6:] if form == "protobuf" else written[5:])
        assert {name: row[name] for name in ("zip", "at", "note", "raw")} == {
            name: PUBLISHED[name] for name in ("zip", "at", "note", "raw")
        }
        unfit = [{**PUBLISHED, "note": 2**70}, PUBLISHED, {**PUBLISHED, "zip": 7, "note": "x"}]
        assert values.misfits(unfit, ["zip", "note"]) == {0: "note", 2: "zip"}
    told = json.loads(published_json(FIELDS).text)
    assert told["additionalProperties"] is False
    assert told["properties"]["age"]["properties"]["lo"] == {"type": ["number", "null"]}
    assert told["properties"]["at"] == {"type": ["string", "null"], "format": "date-time"}


def test_a_field_of_protobuf_keeps_its_number() -> None:
    first = published_protobuf(FIELDS[:3], None)
    second = published_protobuf([FIELDS[3], FIELDS[0]], first)
    third = published_protobuf([FIELDS[1], FIELDS[0]], second)
    for text in ("age = 1;", "note = 4;", "reserved 2;", "reserved 3;"):
        assert text in second.text
    for text in ("age = 1;", "zip = 5;", "reserved 2;", "reserved 3;", "reserved 4;"):
        assert text in third.text
    assert ProtobufValues(third.text).write({"zip": "a"}) == b"\x2a\x01a"


def test_what_only_avro_has_is_published_as_text() -> None:
    """A decimal as a float would not be exact."""
    policy = _policy(made.POLICY.replace("publish: [note]", "publish: [note, day, price]"))
    kinds = dict.fromkeys(named(policy), Kind.TEXT) | {"day": Kind.DATE, "price": Kind.DECIMAL, "note": Kind.INTEGER}
    texts = text_columns(policy, kinds)
    assert texts == ("day", "price")
    schema = published_avro(fields_of(policy, kinds))
    topic = Topic(
        servers="a:1",
        name="t",
        registry="http://r",
        format="avro",
        schema_text=schema.text,
        schema_id=9,
        text_columns=texts,
    )
    row = {"age": None, "zip": "*", "ill": None, "note": 1, "day": date(2020, 1, 2), "price": Decimal("1.10")}
    written = FramedWriter(topic).write(row)
    parsed = fastavro.parse_schema(json.loads(schema.text))
    found = fastavro.schemaless_reader(io.BytesIO(written[5:]), parsed, None)
    assert found == {**row, "day": "2020-01-02", "price": "1.10"}
    assert FramedWriter(topic).misfits([row], ["day", "price"]) == {}


def test_a_name_that_a_format_does_not_allow_is_refused() -> None:
    for published in (published_avro, lambda fields: published_protobuf(fields, None)):
        with pytest.raises(CommandError, match=r"'zip-code' is no name of a field in (Avro|Protobuf)"):
            published([PublishedField("zip-code", Kind.TEXT)])
    assert "zip-code" in published_json([PublishedField("zip-code", Kind.TEXT)]).text
