"""The fields of published rows, whatever the format that they are written in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.kafka.registry.column_kinds import Kind
from crenel.policy import Policy
from crenel.transforms._pack.nested_fields import colliding, plain_name
from crenel.transforms._pack.perturb import published_as_floats, published_as_text
from crenel.transforms._publish.publisher import Publisher
from crenel.transforms._publish.range_form import RangeForm, Ranges

__all__ = ["PublishedField", "fields_of", "text_columns", "with_plain_names"]

_ARROW = (
    (pa.types.is_boolean, Kind.BOOLEAN),
    (pa.types.is_integer, Kind.INTEGER),
    (pa.types.is_floating, Kind.NUMBER),
    (pa.types.is_string, Kind.TEXT),
    (pa.types.is_timestamp, Kind.MOMENT),
    (pa.types.is_date, Kind.DATE),
)
#: Kinds that no format but Avro has. They are published as text, which is exact.
_AS_TEXT = frozenset((Kind.DATE, Kind.TIME, Kind.LOCAL, Kind.DECIMAL, Kind.UUID))
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class PublishedField:
    """A column of published rows: a value, or a range of two."""

    name: str
    kind: Kind
    is_range: bool = False


def fields_of(policy: Policy, columns: Mapping[str, Kind], ranges: Ranges = Ranges.STRUCT) -> list[PublishedField]:
    """The fields of published rows.

    Every one may be missing, and integers and numbers are of the widest type, so that a writer that widens a type does
    not make the schema of published rows another.

    Args:
        policy: The policy.
        columns: What the columns of the input hold.
        ranges: What ranges are published as. Their ends are whole numbers only where the step is: a writer may widen
            integers to numbers at any time.
    """
    fields = [_generalized(field.name, field.type) for field in _ranged(policy, ranges)]
    floats, texts = published_as_floats(policy), published_as_text(policy)
    for name in (*policy.sensitive, *policy.publish):
        kind = Kind.NUMBER if name in floats else Kind.TEXT if name in texts else columns[name]
        fields.append(PublishedField(name, Kind.TEXT if kind in _AS_TEXT else kind))
    return fields


def text_columns(policy: Policy, columns: Mapping[str, Kind], ranges: Ranges = Ranges.STRUCT) -> tuple[str, ...]:
    """The columns whose values become text when they are published."""
    ends = [field.name for field in _ranged(policy, ranges) if pa.types.is_date(field.type)]
    return tuple(name for name in (*policy.sensitive, *policy.publish) if columns[name] in _AS_TEXT) + tuple(ends)


def _ranged(policy: Policy, ranges: Ranges) -> pa.Schema:
    """The schema of generalized columns."""
    schema = pa.schema(Publisher(policy).fields())
    return schema if ranges is Ranges.STRUCT else RangeForm(policy, ranges).schema(schema)


def _generalized(name: str, published: Any) -> PublishedField:
    inner = published.field(0).type if pa.types.is_struct(published) else published
    for is_kind, kind in _ARROW:
        if is_kind(inner):
            return PublishedField(name, Kind.TEXT if kind in _AS_TEXT else kind, is_range=inner is not published)
    msg = f"{name!r} is published as {published}, for which no schema is derived: leave out registry= for --output."
    raise CommandError(msg)


def with_plain_names(fields: list[PublishedField], form: str) -> list[PublishedField]:
    """Name fields as a format allows: without dots. Other names are refused.

    Raises:
        CommandError: there is one, or two fields would have the same name.
    """
    twice = colliding(field.name for field in fields)
    if twice is not None:
        msg = f"names in {form} cannot have dots, and {twice}: say format=json for --output."
        raise CommandError(msg)
    fields = [replace(field, name=plain_name(field.name)) for field in fields]
    for field in fields:
        if not _NAME.fullmatch(field.name):
            msg = f"{field.name!r} is no name of a field in {form}: rename the column, or say format=json for --output."
            raise CommandError(msg)
    return fields
