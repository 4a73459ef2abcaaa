"""Published rows as messages of Protobuf: their schema, and writing by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from google.protobuf import descriptor_pb2, message_factory

from crenel.pipelines.kafka.messages.values import UNFIT, Unfit, Values
from crenel.pipelines.kafka.registry.column_kinds import Kind, RefusedSchema
from crenel.pipelines.kafka.registry.proto_files import messages_of
from crenel.pipelines.kafka.registry.published_fields import PublishedField, with_plain_names
from crenel.pipelines.kafka.registry.registry_client import Schema
from crenel.transforms._pack.nested_fields import plain_name

__all__ = ["ProtobufValues", "published_protobuf"]

_WRITTEN = {
    Kind.BOOLEAN: "bool",
    Kind.INTEGER: "int64",
    Kind.NUMBER: "double",
    Kind.TEXT: "string",
    Kind.BYTES: "bytes",
    Kind.MOMENT: "google.protobuf.Timestamp",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: Numbers that Protobuf keeps for itself.
_KEPT = range(19_000, 20_000)


def published_protobuf(fields: list[PublishedField], before: Schema | None) -> Schema:
    """The schema of published rows.

    Args:
        fields: Their fields.
        before: The latest schema of the subject: a field keeps the number that it has there, and no number is used
            again.

    Raises:
        CommandError: a column has a name that Protobuf does not allow.
    """
    fields = with_plain_names(fields, "Protobuf")
    numbers, gone = _numbers([field.name for field in fields], before)
    lines = ['syntax = "proto3";', "package crenel;"]
    if any(field.kind is Kind.MOMENT for field in fields):
        lines.append('import "google/protobuf/timestamp.proto";')
    lines.append("message Published {")
    lines += [f"  reserved {number};" for number in gone]
    for field in fields:
        lines += _declared(field, numbers[field.name])
    return Schema("PROTOBUF", "\n".join([*lines, "}", ""]))


def _declared(field: PublishedField, number: int) -> list[str]:
    written = _WRITTEN[field.kind]
    if not field.is_range:
        return [f"  optional {written} {field.name} = {number};"]
    ends = "".join(f" optional {written} {end} = {place};" for place, end in enumerate(("lo", "hi"), 1))
    return [f"  message Range_{field.name} {{{ends} }}", f"  optional Range_{field.name} {field.name} = {number};"]


def _numbers(names: Sequence[str], before: Schema | None) -> tuple[dict[str, int], list[int]]:
    """The numbers of fields, and those that are used no more."""
    known, gone = _known(before)
    gone += [number for name, number in known.items() if name not in names]
    numbers = {name: known[name] for name in names if name in known}
    last = max([0, *known.values(), *gone])
    for name in names:
        if name not in numbers:
            last = _KEPT.stop if last + 1 in _KEPT else last + 1
            numbers[name] = last
    return numbers, sorted(gone)


def _known(before: Schema | None) -> tuple[dict[str, int], list[int]]:
    if before is None or before.form != "PROTOBUF":
        return {}, []
    try:
        message = messages_of(before)[0]
    except (RefusedSchema, IndexError):
        return {}, []
    told = descriptor_pb2.DescriptorProto()
    message.CopyToProto(told)
    gone = [number for kept in told.reserved_range for number in range(kept.start, kept.end)]
    return {field.name: field.number for field in told.field}, gone


class ProtobufValues(Values):
    """Writes published rows as messages, without a frame.

    Args:
        text: The schema.
    """

    def __init__(self, text: str) -> None:
        self._class: Any = message_factory.GetMessageClass(messages_of(Schema("PROTOBUF", text))[0])

    def read(self, value: bytes) -> dict[str, Any]:
        """Published rows are not read."""
        raise NotImplementedError

    def write(self, row: Mapping[str, Any]) -> bytes:
        """Encode a row.

        Raises:
            Unfit: it does not fit the schema.
        """
        message = self._class()
        for name, value in row.items():
            if not _is_set(message, plain_name(name), value):
                raise Unfit(name, UNFIT)
        return bytes(message.SerializeToString())

    def misfits(self, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[int, str]:
        """Tell which rows have one of these columns that could not be written: by place, the first such column."""
        message = self._class()
        found: dict[int, str] = {}
        for place, row in enumerate(rows):
            for name in names:
                if not _is_set(message, plain_name(name), row.get(name)):
                    found.setdefault(place, name)
        return found


def _is_set(message: Any, name: str, value: Any) -> bool:
    """Set a field, if the value is one of its type."""
    try:
        _set(message, name, value)
    except (TypeError, ValueError, AttributeError):  # its message contains the value
        return False
    return True


def _set(message: Any, name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, Mapping):
        inner = getattr(message, name)
        inner.SetInParent()
        for end, one in value.items():
            _set(inner, end, one)
    elif isinstance(value, datetime):
        since = (value if value.tzinfo else value.replace(tzinfo=timezone.utc)) - _EPOCH
        moment = getattr(message, name)
        moment.SetInParent()
        moment.seconds, rest = divmod(since, timedelta(seconds=1))
        moment.nanos = rest.microseconds * 1000
    else:
        setattr(message, name, value)
