"""Rows with objects inside, in the three formats of a registry: their schemas, and how a writer writes them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, NamedTuple

import fastavro

from tests.pipelines.kafka.registry.writers import message_class

POLICY = """\
person: patient.id
event_time: at
quasi_identifiers:
  patient.address.zip: {type: prefix, length: 5}
  age: {type: numeric, domain: [0, 100], step: 5}
  weight: {type: numeric, domain: [0, 200]}
  born: {type: datetime, domain: [1920-01-01, 2020-01-01], step: 365d}
publish: [note, patient.unit]
k: 3
delay: 60s
disorder: 300s
seed: 7
"""


class NestedWriter(NamedTuple):
    form: str
    schema: str
    write: Callable[[dict[str, Any]], bytes]


def make(count: int) -> list[dict[str, Any]]:
    """Make rows; some have no address, and some no patient's unit."""
    return [
        {
            "at": 1_600_000_000 + n,
            "age": n * 7 % 100,
            "weight": 40 + n * 11 % 90 + 0.5,
            "born": 86_400 * (n * 137 % 10_000),
            "note": n,
            "secret": "SECRET",
            "patient": {"id": n % 40, "address": {"zip": f"{n % 9:05}", "street": "SECRET"}, "unit": f"U{n % 3}"},
        }
        for n in range(count)
    ]


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def avro() -> NestedWriter:
    moment = {"type": "long", "logicalType": "timestamp-micros"}
    address = {
        "type": "record",
        "name": "Address",
        "fields": [{"name": n, "type": "string"} for n in ("zip", "street")],
    }
    inner = [("id", "int"), ("address", ["null", address]), ("unit", ["null", "string"])]
    patient = {"type": "record", "name": "Patient", "fields": [{"name": n, "type": kind} for n, kind in inner]}
    kinds = {"at": moment, "age": "int", "weight": "double", "born": moment, "note": "long", "secret": "string"}
    fields = [{"name": n, "type": kind} for n, kind in {**kinds, "patient": patient}.items()]
    schema = {"type": "record", "name": "Visit", "fields": fields}

    def write(row: dict[str, Any]) -> bytes:
        stream = io.BytesIO()
        told = {**row, "at": _moment(row["at"]), "born": _moment(row["born"])}
        fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), told)
        return stream.getvalue()

    return NestedWriter("AVRO", json.dumps(schema), write)


def json_schema() -> NestedWriter:
    address = {"type": "object", "properties": {"zip": {"type": "string"}, "street": {"type": "string"}}}
    inner = {"id": {"type": "integer"}, "address": {"anyOf": [{"type": "null"}, {"$ref": "#/definitions/address"}]}}
    patient = {"type": ["object", "null"], "properties": {**inner, "unit": {"type": ["string", "null"]}}}
    numbers = {name: {"type": "number"} for name in ("at", "weight", "born")}
    whole = {name: {"type": "integer"} for name in ("age", "note")}
    properties = {**numbers, **whole, "secret": {"type": "string"}, "patient": patient}
    schema = {"type": "object", "properties": properties, "definitions": {"address": address}}
    return NestedWriter("JSON", json.dumps(schema), lambda row: json.dumps(row).encode())


_PROTOBUF = """syntax = "proto3";
package visits;
import "google/protobuf/timestamp.proto";
message Visit {
  message Address { string zip = 1; string street = 2; }
  message Patient { int32 id = 1; Address address = 2; optional string unit = 3; }
  google.protobuf.Timestamp at = 1;
  int32 age = 2;
  double weight = 3;
  google.protobuf.Timestamp born = 4;
  int64 note = 5;
  string secret = 6;
  Patient patient = 7;
}
"""


def protobuf() -> NestedWriter:
    def write(row: dict[str, Any]) -> bytes:
        message = message_class(_PROTOBUF, "visits.Visit")()
        for name, value in row.items():
            if name in ("at", "born"):
                getattr(message, name).FromDatetime(_moment(value))
            elif name != "patient":
                setattr(message, name, value)
        message.patient.id = row["patient"]["id"]
        if row["patient"]["unit"] is not None:
            message.patient.unit = row["patient"]["unit"]
        for name, value in (row["patient"]["address"] or {}).items():
            setattr(message.patient.address, name, value)
        return b"\0" + bytes(message.SerializeToString())

    return NestedWriter("PROTOBUF", _PROTOBUF, write)


WRITERS = [avro, json_schema, protobuf]
