"""JSON Schemas: what their properties hold, reading by them, and the schema of published rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from crenel.pipelines.kafka.messages.values import JsonValues, Unreadable
from crenel.pipelines.kafka.registry.column_kinds import Kind, NotAColumn, RefusedSchema, joined
from crenel.pipelines.kafka.registry.published_fields import PublishedField
from crenel.pipelines.kafka.registry.registry_client import Schema
from crenel.transforms._pack.nested_fields import column_of

__all__ = ["JsonSchema", "published_json"]

_PLAIN = {"boolean": Kind.BOOLEAN, "integer": Kind.INTEGER, "number": Kind.NUMBER, "string": Kind.TEXT}
_OF_PYTHON = {bool: Kind.BOOLEAN, int: Kind.INTEGER, float: Kind.NUMBER, str: Kind.TEXT}
_TYPES = {Kind.BOOLEAN: (bool,), Kind.INTEGER: (int,), Kind.NUMBER: (int, float), Kind.TEXT: (str,)}
_WRITTEN: dict[Kind, dict[str, Any]] = {
    Kind.BOOLEAN: {"type": "boolean"},
    Kind.INTEGER: {"type": "integer"},
    Kind.NUMBER: {"type": "number"},
    Kind.TEXT: {"type": "string"},
    Kind.BYTES: {"type": "string"},
    Kind.MOMENT: {"type": "string", "format": "date-time"},
}
#: The most references that lead from one to the next.
_MOST = 50
_NOT_JSON = "not JSON"
_NO_COLUMN = "objects, lists, or what its schema does not say"


class JsonSchema:
    """The JSON Schema of an object.

    Values are not validated. Only those of a policy's columns are used, and each must be of the kind that the schema
    declares.

    Args:
        schema: The schema.

    Raises:
        RefusedSchema: it is not the schema of an object with properties.
    """

    def __init__(self, schema: Schema) -> None:
        self._values = JsonValues()
        try:
            self._documents = {name: json.loads(text) for name, text in schema.references}
            self._whole = json.loads(schema.text)
        except (ValueError, RecursionError):
            self._whole = None
        declared = self._followed(self._whole)
        properties = declared.get("properties") if isinstance(declared, dict) else None
        if not isinstance(properties, dict):
            msg = "is not of a JSON object with properties"
            raise RefusedSchema(msg)
        self._properties: dict[str, Any] = properties
        #: What the columns hold that were asked for.
        self._kinds: dict[str, Kind] = {}

    def kind(self, column: str) -> Kind | None:
        """What a column holds; None if there is none of this name.

        Raises:
            NotAColumn: it has no single value of one kind.
        """
        declared = self._declared(column)
        if declared is None:
            return None
        self._kinds[column] = joined(self._of(declared))
        return self._kinds[column]

    def _declared(self, column: str) -> Any:
        """The schema of a property, also of one within objects, by its path; None if there is none."""
        if column in self._properties:
            return self._properties[column]
        properties, declared = self._properties, None
        for part in column.split("."):
            declared = properties.get(part)
            properties = self._inner(declared)
        return declared

    def _inner(self, given: Any) -> dict[str, Any]:
        """The properties of the one object that a schema allows, perhaps beside null; empty if there is none."""
        declared = self._followed(given)
        for choice in ("anyOf", "oneOf"):
            if isinstance(declared, dict) and isinstance(declared.get(choice), list):
                others = [one for one in declared[choice] if self._followed(one) != {"type": "null"}]
                declared = self._followed(others[0]) if len(others) == 1 else None
        properties = declared.get("properties") if isinstance(declared, dict) else None
        return properties if isinstance(properties, dict) else {}

    def _of(self, given: Any, depth: int = 0) -> set[Kind]:
        """The kinds of the values that a schema allows, without null."""
        declared = self._followed(given)
        if not isinstance(declared, dict) or depth > _MOST:
            raise NotAColumn(_NO_COLUMN)
        for choice in ("anyOf", "oneOf"):
            if isinstance(declared.get(choice), list):
                return {kind for one in declared[choice] for kind in self._of(one, depth + 1)}
        if "type" in declared:
            names = declared["type"] if isinstance(declared["type"], list) else [declared["type"]]
            return {_known(_PLAIN, name) for name in names if name != "null"}
        values = declared.get("enum", [declared["const"]] if "const" in declared else [[]])
        return {_known(_OF_PYTHON, type(one)) for one in values if one is not None}

    def _followed(self, given: Any) -> Any:
        """What a reference leads to, in this schema or in one that it refers to."""
        whole = self._whole
        for _ in range(_MOST):
            if not isinstance(given, dict) or "$ref" not in given:
                return given
            name, _, pointer = str(given["$ref"]).partition("#")
            whole = self._documents.get(name) if name else whole
            given = whole
            for step in pointer.split("/")[1:]:
                key = unquote(step).replace("~1", "/").replace("~0", "~")
                given = given.get(key) if isinstance(given, dict) else None
        return None

    def row(self, payload: bytes) -> Mapping[str, Any]:
        """Read an object.

        Raises:
            Unreadable: it is none, or a column of it is not what the schema says.
        """
        row = self._values.read(payload)
        for name, kind in self._kinds.items():
            (value,), wrong = column_of([row], name)
            if wrong:
                raise Unreadable(_NOT_JSON)
            row[name] = _taken(kind, value)
        return row


def _known(kinds: Mapping[Any, Kind], key: Any) -> Kind:
    try:
        return kinds[key]
    except (KeyError, TypeError):
        raise NotAColumn(_NO_COLUMN) from None


def _taken(kind: Kind, value: Any) -> Any:
    """A value of a column.

    Raises:
        Unreadable: it is of another kind.
    """
    if value is None or type(value) in _TYPES[kind]:
        return value
    if kind is Kind.INTEGER and type(value) is float and value.is_integer():  # 7.0 is an integer in JSON Schema
        return int(value)
    raise Unreadable(_NOT_JSON)


def published_json(fields: list[PublishedField]) -> Schema:
    """The schema of published rows."""
    properties = {field.name: _nullable(_type(field)) for field in fields}
    told = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Published", **_object(properties)}
    return Schema("JSON", json.dumps(told))


def _type(field: PublishedField) -> dict[str, Any]:
    written = _WRITTEN[field.kind]
    return _object(dict.fromkeys(("lo", "hi"), _nullable(written))) if field.is_range else written


def _nullable(declared: dict[str, Any]) -> dict[str, Any]:
    return {**declared, "type": [declared["type"], "null"]}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}
