"""Schemas of Avro: what their fields hold, reading by them, and the schema of published rows."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

from crenel.pipelines.kafka.messages.values import Unreadable
from crenel.pipelines.kafka.registry.column_kinds import Kind, NotAColumn, RefusedSchema, joined
from crenel.pipelines.kafka.registry.published_fields import PublishedField, with_plain_names
from crenel.pipelines.kafka.registry.registry_client import Schema

__all__ = ["AvroSchema", "published_avro"]

_PLAIN = {
    "boolean": Kind.BOOLEAN,
    "int": Kind.INTEGER,
    "long": Kind.INTEGER,
    "float": Kind.NUMBER,
    "double": Kind.NUMBER,
    "string": Kind.TEXT,
    "enum": Kind.TEXT,
    "bytes": Kind.BYTES,
    "fixed": Kind.BYTES,
}
_LOGICAL = {
    "date": Kind.DATE,
    "time-millis": Kind.TIME,
    "time-micros": Kind.TIME,
    "timestamp-millis": Kind.MOMENT,
    "timestamp-micros": Kind.MOMENT,
    "local-timestamp-millis": Kind.LOCAL,
    "local-timestamp-micros": Kind.LOCAL,
    "decimal": Kind.DECIMAL,
    "uuid": Kind.UUID,
}
_WRITTEN: dict[Kind, Any] = {
    Kind.BOOLEAN: "boolean",
    Kind.INTEGER: "long",
    Kind.NUMBER: "double",
    Kind.TEXT: "string",
    Kind.BYTES: "bytes",
    Kind.MOMENT: {"type": "long", "logicalType": "timestamp-micros"},
}


class AvroSchema:
    """A record's schema of Avro.

    Args:
        schema: The schema.

    Raises:
        RefusedSchema: it is not the schema of a record.
    """

    def __init__(self, schema: Schema) -> None:
        import fastavro

        self._read = fastavro.schemaless_reader
        #: Types that have names.
        self._types: dict[str, Any] = {}
        try:
            for _, text in schema.references:
                fastavro.parse_schema(json.loads(text), named_schemas=self._types)
            self._schema: Any = fastavro.parse_schema(json.loads(schema.text), named_schemas=self._types)
        except Exception:  # fastavro raises all kinds of errors for a broken schema
            self._schema = None
        if not isinstance(self._schema, dict) or self._schema.get("type") != "record":
            msg = "is not of an Avro record"
            raise RefusedSchema(msg)
        self._fields = {field["name"]: field["type"] for field in self._schema["fields"]}

    def kind(self, column: str) -> Kind | None:
        """What a column holds; None if there is none of this name.

        Raises:
            NotAColumn: it has no single value of one kind.
        """
        declared = self._declared(column)
        return None if declared is None else self._kind(declared)

    def _declared(self, column: str) -> Any:
        """The type of a field, also of one within records, by its path; None if there is none."""
        if column in self._fields:
            return self._fields[column]
        fields, declared = self._fields, None
        for part in column.split("."):
            declared = fields.get(part)
            record = self._record(declared)
            fields = {field["name"]: field["type"] for field in record["fields"]} if record else {}
        return declared

    def _record(self, declared: Any) -> Any:
        """The record that a field holds; None if it holds none, or other values as well."""
        kinds = [one for one in (declared if isinstance(declared, list) else [declared]) if one != "null"]
        if len(kinds) != 1:
            return None
        found = self._types.get(kinds[0]) if isinstance(kinds[0], str) else kinds[0]
        return found if isinstance(found, dict) and found.get("type") == "record" else None

    def _kind(self, declared: Any) -> Kind:
        if isinstance(declared, list):
            return joined(self._kind(one) for one in declared if one != "null")
        form = declared["type"] if isinstance(declared, dict) else declared
        logical = declared.get("logicalType") if isinstance(declared, dict) else None
        if isinstance(form, str) and form in _PLAIN:
            return _LOGICAL.get(logical or "", _PLAIN[form])
        if isinstance(declared, str) and declared in self._types:
            return self._kind(self._types[declared])
        if isinstance(form, (dict, list)):  # a type in braces of its own
            return self._kind(form)
        msg = "records, lists or maps"
        raise NotAColumn(msg)

    def row(self, payload: bytes) -> Mapping[str, Any]:
        """Read all fields of a record.

        Raises:
            Unreadable: it was not written by this schema.
        """
        stream = io.BytesIO(payload)
        try:
            row = self._read(stream, self._schema, None)
        except Exception:  # fastavro raises all kinds of errors for broken bytes
            row = None
        if not isinstance(row, dict) or stream.read(1):
            msg = "not Avro"
            raise Unreadable(msg)
        return row


def published_avro(fields: list[PublishedField]) -> Schema:
    """The schema of published rows.

    Raises:
        CommandError: a column has a name that Avro does not allow.
    """
    fields = with_plain_names(fields, "Avro")
    told = [{"name": field.name, "type": ["null", _type(field)], "default": None} for field in fields]
    record = {"type": "record", "name": "Published", "namespace": "crenel", "fields": told}
    return Schema("AVRO", json.dumps(record))


def _type(field: PublishedField) -> Any:
    written = _WRITTEN[field.kind]
    if not field.is_range:
        return written
    ends = [{"name": end, "type": ["null", written]} for end in ("lo", "hi")]
    return {"type": "record", "name": f"Range_{field.name}", "fields": ends}
