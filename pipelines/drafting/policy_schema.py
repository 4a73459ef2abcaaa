"""The JSON Schema of a policy, by which an editor completes and checks it.

It is made of the declarations that the checks go by: the fields of `Policy`, of the types of quasi-identifiers and of
`Sensitive`, and the parameters of each method, those of other installed packages among them. A description is what the
source says about the field. The schema accepts every policy that the checks accept; what concerns several fields (l is
at most k, a column has one role) only the checks know.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

from crenel.errors import PolicyError
from crenel.policy import OnSuppress, Policy, Sensitive, methods
from crenel.policy import quasi_identifiers as qi_types
from crenel.policy.durations import UNITS
from crenel.policy.hierarchy import Hierarchy
from crenel.policy.parameters import Parameter

__all__ = ["ID", "policy_schema"]

#: Names the schema; an editor never looks it up.
ID = "urn:crenel:policy:1"

_DURATION = {"type": "string", "pattern": rf"^\s*\d+(\.\d+)? ?({'|'.join(sorted(UNITS, key=len, reverse=True))})\s*$"}
_COLUMN = {"type": "string", "minLength": 1}
_EACH_ROW = {
    "type": "object",
    "properties": {"each": {"const": "row"}},
    "required": ["each"],
    "additionalProperties": False,
}
_COLUMNS = {"type": "array", "items": _COLUMN, "uniqueItems": True}
_ANY_VALUE = {"type": ["string", "number", "boolean", "null"]}

#: A policy that the least values of whole numbers are tried in.
_PROBE: dict[str, Any] = {
    "person": "a",
    "quasi_identifiers": {"b": {"type": "numeric"}},
    "sensitive": ["c"],
    "k": 2,
    "delay": "1h",
}


def policy_schema() -> dict[str, Any]:
    """Make the schema. The same packages always give the same one."""
    said = _comments(Policy)
    hints = typing.get_type_hints(Policy.__init__)
    signature = inspect.signature(Policy.__init__).parameters
    fields = {name: _described(_field(name, hints[name]), said.get(name, "")) for name in signature if name != "self"}
    required = [name for name, given in signature.items() if given.default is given.empty and name != "self"]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": ID,
        "title": "A policy of crenel",
        "description": "Which columns identify a person, what must stay hidden, and how long a row may wait.",
        "type": "object",
        "properties": fields,
        "required": required,
        "additionalProperties": False,
        "allOf": [_of_method(name) for name in methods.names()],
    }


def _field(name: str, hint: Any) -> dict[str, Any]:
    """The schema of one field of a policy."""
    special: dict[str, Callable[[], dict[str, Any]]] = {
        "quasi_identifiers": _quasi_identifiers,
        "sensitive": _sensitive,
        "method": lambda: {"enum": list(methods.names())},
        # What it holds depends on the method.
        "parameters": lambda: {"type": ["object", "null"]},
        "on_suppress": lambda: {"enum": [one.value for one in OnSuppress]},
        "shards": lambda: {"anyOf": [{"type": "integer", "minimum": 1}, {"enum": ["auto", None]}]},
        "shard_by": _shard_by,
        "treat": _treat,
        "together": lambda: {"anyOf": [{"type": "boolean"}, _DURATION]},
        "version": lambda: {"const": 1},
        "person": lambda: {"anyOf": [_COLUMN, _EACH_ROW]},
    }
    found = special[name]() if name in special else _of_hint(hint)
    if name not in special and "integer" in _types(found):
        found["minimum"] = next((number for number in (0, 1) if _is_accepted(name, number)), 2)
    if name == "event_time":
        found["minLength"] = 1
    if "pattern" in found and _is_accepted(name, 0):
        found = {"anyOf": [found, {"const": 0}]}
    return _or_null(found, "null" not in _types(found) and _is_accepted(name, None))


def _of_method(name: str) -> dict[str, Any]:
    """Under one method, its parameters."""
    method = methods.find(name)
    hints = typing.get_type_hints(method.parameters)
    properties = {field: _parameter(about, hints[field]) for field, about in method.fields.items()}
    parameters = {"type": ["object", "null"], "properties": properties, "additionalProperties": False}
    condition: dict[str, Any] = {"properties": {"method": {"const": name}}}
    if name != inspect.signature(Policy.__init__).parameters["method"].default:
        condition["required"] = ["method"]
    return {"if": condition, "then": {"properties": {"parameters": parameters}}}


def _parameter(about: Parameter, hint: Any) -> dict[str, Any]:
    if about.choices:
        found: dict[str, Any] = {"enum": [_plain(one) for one in about.choices]}
        if "off" in found["enum"]:  # YAML reads a bare `off` as false
            found["enum"].append(False)
    elif about.unit == "microseconds":
        # `Policy.to_dict` writes the microseconds themselves.
        found = _or_null({"anyOf": [_DURATION, {"type": "integer", "minimum": 0}]}, about.default is None)
    else:
        found = _of_hint(hint)
    unset = f" If it is not given: {about.unset}." if about.unset else ""
    found = _described(found, about.sentence + unset)
    if about.default is not None and about.unit != "microseconds" and not isinstance(about.default, Mapping):
        found["default"] = _plain(about.default)
    return found


def _quasi_identifiers() -> dict[str, Any]:
    kinds = [_of_class(qi_types.lookup(name), name) for name in qi_types.names()]
    one = {"type": "object", "required": ["type"], "properties": {"type": {"enum": qi_types.names()}}, "oneOf": kinds}
    return {"type": "object", "minProperties": 1, "additionalProperties": one}


def _sensitive() -> dict[str, Any]:
    one = _of_class(Sensitive, None)
    one["type"] = ["object", "null"]
    return {"anyOf": [_COLUMNS, {"type": "object", "additionalProperties": one}, {"type": "null"}]}


def _treat() -> dict[str, Any]:
    number, reference = {"type": "number"}, {"type": "string", "pattern": "^(env:|file:/|gcp:)"}
    characters = {"type": "integer", "minimum": 1}
    one = {
        "type": "object",
        "properties": {
            "pseudonymize": {**reference, "description": "Where the key is; it is never in the policy."},
            "rotate": {**_DURATION, "description": "Pseudonyms change after so much event time."},
            "redact": {"type": "string", "minLength": 1, "description": "The text that takes the place of all values."},
            "truncate": {"anyOf": [characters, _DURATION], "description": "Characters of a text, or part of a moment."},
            "round": {**number, "exclusiveMinimum": 0, "description": "Numbers become multiples of this."},
            "bin": {"type": "array", "items": number, "minItems": 1, "description": "The edges of the bins, rising."},
        },
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 2,
    }
    return {"type": ["object", "null"], "additionalProperties": one}


def _shard_by() -> dict[str, Any]:
    named = {"type": "object", "description": "A tree of shards that crenel plan has learned, by its file."}
    return {"anyOf": [{"enum": ["person", "locality"]}, {**_COLUMNS, "minItems": 1}, named]}


def _of_class(cls: type, kind: str | None) -> dict[str, Any]:
    """The fields of a declaration, and the name by which a policy calls it."""
    said, hints = _comments(cls), typing.get_type_hints(cls)
    properties: dict[str, Any] = {} if kind is None else {"type": {"const": kind}}
    needed = [] if kind is None else ["type"]
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        properties[field.name] = _described(_of_hint(hints[field.name]), said.get(field.name, ""))
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            needed.append(field.name)
        elif isinstance(field.default, (int, float, str)):
            properties[field.name]["default"] = field.default
    found = {"type": "object", "properties": properties, "additionalProperties": False}
    about = inspect.getdoc(cls) or ""
    return _described(found | ({"required": needed} if needed else {}), about.partition("\n\n")[0].replace("\n", " "))


def _of_hint(hint: Any) -> dict[str, Any]:
    """The schema of what a type hint allows, as YAML writes it; anything at all where that is not known."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    nothing = type(None) in parts
    # Python takes a span of time in two more ways: as a timedelta, and as whole microseconds.
    if dt.timedelta in parts:
        return _or_null(dict(_DURATION), nothing)
    if any(isinstance(part, type) and issubclass(part, Enum) for part in parts):
        parts = tuple(part for part in parts if part is not str)  # which names a member
    known = [_of_part(part) for part in parts if part is not type(None)]
    if not all(known):
        return {}
    if len(known) > 1 and all(set(one) == {"type"} for one in known):
        return _or_null({"type": list(dict.fromkeys(kind for one in known for kind in _types(one)))}, nothing)
    return _or_null(known[0] if len(known) == 1 else {"anyOf": known}, nothing)


def _of_part(part: Any) -> dict[str, Any]:
    plain = {int: "integer", float: "number", str: "string", bool: "boolean", dt.date: "string", dt.datetime: "string"}
    if part in plain:
        return {"type": plain[part]}
    if isinstance(part, type) and issubclass(part, Enum):
        return {"enum": [_plain(one) for one in part]}
    if part is Hierarchy:
        return {"type": ["string", "object", "array"]}
    origin, inner = typing.get_origin(part), typing.get_args(part)
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if origin is tuple and Ellipsis not in inner:
        items = [_of_hint(one) for one in inner]
        return {"type": "array", "items": items, "minItems": len(items), "maxItems": len(items)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object"}
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return {"type": "array", "items": _COLUMN if inner[:1] == (str,) else _ANY_VALUE}
    return {}


def _is_accepted(name: str, value: Any) -> bool:
    """Whether the checks have nothing against this value of this field."""
    try:
        Policy.from_dict({**_PROBE, name: value})
    except PolicyError as error:
        return not any(path.partition(".")[0] == name for path, _ in error.details)
    return True


def _types(found: dict[str, Any]) -> list[str]:
    kind = found.get("type", [])
    return [kind] if isinstance(kind, str) else list(kind)


def _or_null(found: dict[str, Any], nothing: bool) -> dict[str, Any]:
    if not nothing or {"type": "null"} in found.get("anyOf", ()):
        return found
    if "type" in found:
        return {**found, "type": [*_types(found), "null"]}
    return {"anyOf": [*found.get("anyOf", [found]), {"type": "null"}]}


def _described(found: dict[str, Any], text: str) -> dict[str, Any]:
    return {**found, "description": text} if text else found


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _comments(cls: type) -> dict[str, str]:
    """Read what the source says about each field: the comments that begin with `#:`."""
    said: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        try:
            source = inspect.getsource(base)
        except (OSError, TypeError):  # a class of a notebook, or of C
            continue
        for comment, name in re.findall(r"((?:^ +#: .*\n)+) +(\w+):", source, re.MULTILINE):
            lines = (line.strip().removeprefix("#:").strip() for line in comment.splitlines())
            text = " ".join(lines).replace("`", "").replace("None:", "if it is not given,")
            # Python counts microseconds; a policy writes `10m`.
            said[name] = text.replace("Microseconds of event time", "The event time").replace(
                "Microseconds", "The time"
            )
    return said
