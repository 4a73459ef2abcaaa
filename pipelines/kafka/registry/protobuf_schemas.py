"""Schemas of Protobuf: what the fields of their messages hold, reading by them, and the schema of published rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from crenel.pipelines.kafka.messages.values import Unreadable
from crenel.pipelines.kafka.registry.column_kinds import Kind, NotAColumn
from crenel.pipelines.kafka.registry.proto_files import messages_of
from crenel.pipelines.kafka.registry.registry_client import Schema

__all__ = ["Message", "ProtobufSchema"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_PLAIN = {
    FieldDescriptor.CPPTYPE_BOOL: Kind.BOOLEAN,
    FieldDescriptor.CPPTYPE_INT32: Kind.INTEGER,
    FieldDescriptor.CPPTYPE_INT64: Kind.INTEGER,
    FieldDescriptor.CPPTYPE_UINT32: Kind.INTEGER,
    FieldDescriptor.CPPTYPE_UINT64: Kind.INTEGER,
    FieldDescriptor.CPPTYPE_FLOAT: Kind.NUMBER,
    FieldDescriptor.CPPTYPE_DOUBLE: Kind.NUMBER,
    FieldDescriptor.CPPTYPE_ENUM: Kind.TEXT,
    FieldDescriptor.CPPTYPE_STRING: Kind.TEXT,
}
_TIMESTAMP = "google.protobuf.Timestamp"
#: Messages of Google that hold one value, which may be missing.
_WRAPPERS = {
    f"google.protobuf.{name}Value" for name in ("Bool", "Int32", "Int64", "UInt32", "UInt64", "Float", "Double")
} | {"google.protobuf.StringValue", "google.protobuf.BytesValue"}


class ProtobufSchema:
    """A file of Protobuf, which may define several messages. Each record says which of them it is.

    Args:
        schema: The schema.

    Raises:
        RefusedSchema: it cannot be compiled.
    """

    def __init__(self, schema: Schema) -> None:
        self._messages = messages_of(schema)

    def message(self, path: Sequence[int]) -> Message:
        """The message at a place in the file: the number of a message, that of one inside it, and so on.

        Raises:
            Unreadable: there is none.
        """
        found: Any = None
        level = self._messages
        for place in path:
            if not 0 <= place < len(level):
                msg = "not a message"
                raise Unreadable(msg)
            found = level[place]
            level = list(found.nested_types)
        return Message(found)

    def messages(self) -> Iterator[Message]:
        """The messages of the file, without those inside others."""
        return (Message(one) for one in self._messages)


class Message:
    """A message of Protobuf, as the schema of rows.

    Args:
        descriptor: Its descriptor.
    """

    def __init__(self, descriptor: Descriptor) -> None:
        self._class = message_factory.GetMessageClass(descriptor)
        self._fields = dict(descriptor.fields_by_name)
        #: How to take the columns that were asked for.
        self._takes: dict[str, Callable[[Any], Any]] = {}

    def kind(self, column: str) -> Kind | None:
        """What a column holds; None if there is none of this name.

        Raises:
            NotAColumn: it has no single value of one kind.
        """
        fields, path = self._fields, []
        for part in [column] if column in fields else column.split("."):
            if part not in fields:
                return None
            path.append(fields[part])
            fields = _inner(fields[part])
        kind = _kind(path[-1])
        self._takes[column] = _take_within(path)
        return kind

    def row(self, payload: bytes) -> Mapping[str, Any]:
        """Read the columns that were asked for.

        Raises:
            Unreadable: it is not this message.
        """
        try:
            found = self._class.FromString(payload)
            return {name: take(found) for name, take in self._takes.items()}
        except (DecodeError, ValueError, OverflowError, KeyError):  # also a moment that is none, and an unknown enum
            msg = "not Protobuf"
            raise Unreadable(msg) from None


def _kind(field: FieldDescriptor) -> Kind:
    if field.is_repeated:
        msg = "lists or maps"
        raise NotAColumn(msg)
    inner = field.message_type
    if inner is not None:
        if inner.full_name == _TIMESTAMP:
            return Kind.MOMENT
        if inner.full_name in _WRAPPERS:
            return _kind(inner.fields_by_name["value"])
        msg = "messages"
        raise NotAColumn(msg)
    return Kind.BYTES if field.type == FieldDescriptor.TYPE_BYTES else _PLAIN[field.cpp_type]


def _inner(field: FieldDescriptor) -> dict[str, FieldDescriptor]:
    """The fields of the message that a field holds; none if it holds a value."""
    inner = field.message_type
    if inner is None or field.is_repeated or inner.full_name == _TIMESTAMP or inner.full_name in _WRAPPERS:
        return {}
    return dict(inner.fields_by_name)


def _take_within(path: Sequence[FieldDescriptor]) -> Callable[[Any], Any]:
    """How the value of a field is taken that lies within messages; None if one of them is not there."""
    *around, last = path
    take = _take(last)
    if not around:
        return take
    names = [field.name for field in around]

    def found(message: Any) -> Any:
        for name in names:
            if not message.HasField(name):
                return None
            message = getattr(message, name)
        return take(message)

    return found


def _take(field: FieldDescriptor) -> Callable[[Any], Any]:
    """How the value of a field is taken from a message; None if the message does not have it."""
    name, inner = field.name, field.message_type
    if inner is not None:
        value = _moment if inner.full_name == _TIMESTAMP else lambda wrapper: wrapper.value
        return lambda message: value(getattr(message, name)) if message.HasField(name) else None
    if field.enum_type is not None:
        names = {number: one.name for number, one in field.enum_type.values_by_number.items()}
        if field.has_presence:
            return lambda message: names[getattr(message, name)] if message.HasField(name) else None
        return lambda message: names[getattr(message, name)]
    if field.has_presence and not field.has_default_value:
        return lambda message: getattr(message, name) if message.HasField(name) else None
    return lambda message: getattr(message, name)


def _moment(timestamp: Any) -> datetime:
    return _EPOCH + timedelta(seconds=timestamp.seconds, microseconds=timestamp.nanos // 1000)
