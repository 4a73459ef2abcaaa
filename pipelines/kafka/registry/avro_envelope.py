"""Schemas of Avro whose records are envelopes of Debezium. The columns are those of the row after the change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from crenel.pipelines.debezium import Envelopes, converted, converter
from crenel.pipelines.kafka.messages.envelope_values import row_of
from crenel.pipelines.kafka.registry.avro_schemas import AvroSchema
from crenel.pipelines.kafka.registry.column_kinds import Kind, RefusedSchema
from crenel.pipelines.kafka.registry.registry_client import Schema
from crenel.transforms._pack.nested_fields import column_of

__all__ = ["AvroEnvelope"]

#: Where Kafka Connect leaves the name of its own type.
_NAME = "connect.name"
_DATE = ".Date"


class AvroEnvelope(AvroSchema):
    """The schema of an envelope.

    Args:
        schema: The schema.
        envelopes: Opens the envelopes.

    Raises:
        RefusedSchema: it is not the schema of an envelope.
    """

    def __init__(self, schema: Schema, envelopes: Envelopes) -> None:
        if schema.form != "AVRO":
            msg = f"is of the type {schema.form}, and envelopes are read from AVRO"
            raise RefusedSchema(msg)
        super().__init__(schema)
        self._envelopes = envelopes
        after = self._record(self._fields.get("after"))
        if after is None or "op" not in self._fields:
            msg = "is not of a Debezium envelope"
            raise RefusedSchema(msg)
        self._fields = {field["name"]: field["type"] for field in after["fields"]}
        told = {name: _converter(kind) for name, kind in self._fields.items()}
        #: Converters of fields within records, by path: of those that `kind` was asked for.
        self._within: dict[str, Callable[[Any], Any]] = {}
        self._converters = {name: convert for name, convert in told.items() if convert is not None}

    def kind(self, column: str) -> Kind | None:
        """What a column holds; None if there is none of this name."""
        convert = None if column in self._fields else _converter(self._declared(column))
        if convert is not None:
            self._within[column] = convert
        return super().kind(column)

    def _kind(self, declared: Any) -> Kind:
        if isinstance(declared, dict) and _converter(declared) is not None:
            return Kind.DATE if declared[_NAME].endswith(_DATE) else Kind.MOMENT
        return super()._kind(declared)

    def row(self, payload: bytes) -> Mapping[str, Any]:
        """Read the row of an envelope.

        Raises:
            Unreadable: it has none, or it was not written by this schema.
        """
        row = row_of(self._envelopes, super().row(payload))
        for name, convert in self._converters.items():
            if type(row[name]) is int:
                row[name] = converted(convert, row[name])
        for path, convert in self._within.items():
            (value,), _ = column_of([row], path)
            row[path] = converted(convert, value) if type(value) is int else value
        return row


def _converter(declared: Any) -> Callable[[Any], Any] | None:
    """What makes moments or dates of a field's values, if only the name of a Kafka Connect type says what they are."""
    for kind in declared if isinstance(declared, list) else [declared]:
        if isinstance(kind, dict) and "logicalType" not in kind and _NAME in kind:
            return converter(kind[_NAME])
    return None
