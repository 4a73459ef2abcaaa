"""Writers of records, as producers with a schema registry write them, in three formats. They share no code with crenel.

Each format has the same versions of one schema of visits:

    first    who, at, age, zip, ill, note, secret
    swapped  the same fields in another order
    added    another field, and one of a type that no policy can name
    removed  a field less, which the policy does not name
    widened  32 bits become 64
    lacking  a field less, which the policy names
    changed  a field of another type
"""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro

GOOD = ("first", "swapped", "added", "removed", "widened")
BAD = {"lacking": "lacks the column 'note'", "changed": "changes the column 'zip' from text to integer"}
_SWAPPED = ("secret", "ill", "zip", "note", "age", "at", "who")


class Writer:
    """Writes rows by the versions of a schema, in one format.

    Args:
        form: AVRO, JSON or PROTOBUF.
        schemas: The versions.
        write: Writes a row by a version, without its head.
    """

    def __init__(self, form: str, schemas: Mapping[str, str], write: Callable[[str, dict[str, Any]], bytes]) -> None:
        self.form = form
        self.schemas = schemas
        self._write = write

    def value(self, version: str, number: int, row: Mapping[str, Any]) -> bytes:
        """Write a row by a version of the schema, which the registry knows by a number."""
        whole = {**row, "more": "SECRET more", "inner": {"deep": "SECRET deep"}}
        if version == "changed":
            whole["zip"] = int(row["zip"])
        return struct.pack(">BI", 0, number) + self._write(self.schemas[version], whole)


# --- Avro ---

_AVRO = {
    "who": "int",
    "at": {"type": "long", "logicalType": "timestamp-millis"},
    "age": "int",
    "zip": "string",
    "ill": ["null", "string"],
    "note": "int",
    "secret": "string",
}
_INNER = {"type": "record", "name": "Inner", "fields": [{"name": "deep", "type": "string"}]}


def _versions(first: dict[str, Any], more: dict[str, Any], wide: dict[str, Any], changed: Any) -> dict[str, Any]:
    return {
        "first": first,
        "swapped": {name: first[name] for name in _SWAPPED},
        "added": {**more, **first},
        "removed": {name: kind for name, kind in first.items() if name != "secret"},
        "widened": {**first, **wide},
        "lacking": {name: kind for name, kind in first.items() if name != "note"},
        "changed": {**first, "zip": changed},
    }


def avro() -> Writer:
    wide = {"who": "long", "age": "double", "note": "long", "ill": "string"}
    versions = _versions(_AVRO, {"more": "string", "inner": _INNER}, wide, "int")
    return Writer("AVRO", {name: _record(fields) for name, fields in versions.items()}, _write_avro)


def _record(fields: Mapping[str, Any]) -> str:
    told = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "Visit", "fields": told})


def _write_avro(schema: str, row: dict[str, Any]) -> bytes:
    row = {**row, "at": int(row["at"] * 1000), "ill": row["ill"] or "none"}
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(schema)), row)
    return stream.getvalue()


# --- JSON ---

_JSON: dict[str, Any] = {
    "who": {"type": "integer"},
    "at": {"type": "number"},
    "age": {"$ref": "#/definitions/age"},
    "zip": {"type": "string"},
    "ill": {"oneOf": [{"type": "null"}, {"enum": ["flu", "cold", "none"]}]},
    "note": {"type": "integer"},
    "secret": {"type": "string"},
}


def json_schema() -> Writer:
    wide = {"age": {"type": "number"}, "ill": {"type": ["string", "null"]}}
    versions = _versions(_JSON, {"more": {"type": "string"}, "inner": {"type": "object"}}, wide, {"type": "integer"})
    return Writer("JSON", {name: _object(fields) for name, fields in versions.items()}, _write_json)


def _object(properties: Mapping[str, Any]) -> str:
    return json.dumps(
        {"type": "object", "properties": properties, "definitions": {"age": {"type": "integer", "minimum": 0}}}
    )


def _write_json(schema: str, row: dict[str, Any]) -> bytes:
    # As a writer does that does not mind that its schema has changed: a reader must not take more than is named.
    declared = json.loads(schema)["properties"]
    return json.dumps({name: row[name] for name in declared if name in row} | {"stray": "SECRET stray"}).encode()


# --- Protobuf ---

_PROTOBUF = {
    "who": "int32",
    "at": "google.protobuf.Timestamp",
    "age": "int32",
    "zip": "string",
    "ill": "optional string",
    "note": "int32",
    "secret": "string",
}


def protobuf() -> Writer:
    wide = {"who": "int64", "age": "double", "note": "sint64"}
    more = {"more": "string", "inner": "Inner"}
    versions = _versions(_PROTOBUF, more, wide, "int32")
    return Writer("PROTOBUF", {name: _file(fields) for name, fields in versions.items()}, _write_protobuf)


def _file(fields: Mapping[str, str]) -> str:
    """The second message of the file is that of the rows, and a field has another number in each version."""
    told = "".join(f"  {kind} {name} = {number};\n" for number, (name, kind) in enumerate(fields.items(), 1))
    head = 'syntax = "proto3";\npackage visits;\nimport "google/protobuf/timestamp.proto";\n'
    return f"{head}message Inner {{ string deep = 1; }}\nmessage Visit {{\n{told}}}\n"


def _write_protobuf(schema: str, row: dict[str, Any]) -> bytes:
    message = message_class(schema, "visits.Visit")()
    for name in message.DESCRIPTOR.fields_by_name:
        if name == "at":
            message.at.FromDatetime(datetime.fromtimestamp(row["at"], timezone.utc))
        elif name == "inner":
            message.inner.deep = row["inner"]["deep"]
        elif row[name] is not None:
            setattr(message, name, row[name])
    # One place, which is 1: both in zigzag.
    return b"\x02\x02" + bytes(message.SerializeToString())


@cache
def message_class(text: str, name: str) -> Any:
    """Compile a file of Protobuf, and return the class of a message."""
    import grpc_tools
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    with TemporaryDirectory() as folder:
        (Path(folder) / "visit.proto").write_text(text)
        include = [f"-I{folder}", f"-I{Path(str(grpc_tools.__file__)).parent / '_proto'}"]
        command = [sys.executable, "-m", "grpc_tools.protoc", *include, "--include_imports"]
        subprocess.run([*command, f"--descriptor_set_out={folder}/set", "visit.proto"], check=True, timeout=60)
        files = descriptor_pb2.FileDescriptorSet.FromString((Path(folder) / "set").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
