"""What a column holds, in the words that Avro, JSON Schema and Protobuf share, and which changes of it are harmless."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum

from crenel.policy import Policy
from crenel.transforms._pack.text_columns import named_columns

__all__ = ["Columns", "Kind", "NotAColumn", "RefusedSchema", "check", "joined", "named", "taken"]


class Kind(str, Enum):
    """The values of a column."""

    BOOLEAN = "boolean"
    #: Of any size: it makes no difference to a row whether its writer counts in 32 or in 64 bits.
    INTEGER = "integer"
    NUMBER = "number"
    TEXT = "text"
    BYTES = "bytes"
    MOMENT = "timestamp"
    DATE = "date"
    TIME = "time of day"
    LOCAL = "local timestamp"
    DECIMAL = "decimal"
    UUID = "uuid"


#: Names of columns, and the kinds that each may hold; none if it may hold any.
Columns = tuple[tuple[str, tuple[str, ...]], ...]

_NUMBERS = frozenset((Kind.INTEGER, Kind.NUMBER, Kind.DECIMAL))


class NotAColumn(Exception):
    """A field that no policy can name, because it has no single value of one kind. The message says what it has."""


class RefusedSchema(Exception):
    """A schema by which no row is read. The message says why, and goes on where the schema is named."""


def joined(kinds: Iterable[Kind]) -> Kind:
    """The kind of a field that may hold values of several types.

    Raises:
        NotAColumn: they are of different kinds.
    """
    found = set(kinds)
    if found == {Kind.INTEGER, Kind.NUMBER}:
        return Kind.NUMBER
    if len(found) != 1:
        msg = "values of several types" if found else "no values"
        raise NotAColumn(msg)
    return found.pop()


def named(policy: Policy) -> tuple[str, ...]:
    """The columns that a policy names, each once. No other column of a record is read."""
    return tuple(named_columns(policy))


def taken(policy: Policy, name: str, kind: Kind) -> tuple[Kind, ...]:
    """The kinds that a column may hold while a run goes on: first the one that it began with.

    Numbers may widen where they are only measured. A column that is published as it is keeps a type that readers of the
    output know, and the person keeps theirs: one who was a number and became a text would count as two.
    """
    if name == policy.person:
        return (kind,)
    if kind in _NUMBERS and (name == policy.event_time or name in policy.measured):
        return (kind, *sorted(_NUMBERS - {kind}))
    return (kind, Kind.INTEGER) if kind is Kind.NUMBER else (kind,)


def check(columns: Columns, kind_of: Callable[[str], Kind | None]) -> None:
    """Check that a schema has the columns of a run, and means by them what they meant when it began.

    Args:
        columns: The columns.
        kind_of: Tells what a column holds by the schema; None if it has none of this name.

    Raises:
        RefusedSchema: a column is not there, or is another.
    """
    for name, kinds in columns:
        try:
            found = kind_of(name)
        except NotAColumn as why:
            msg = f"has {why} in the column {name!r}"
            raise RefusedSchema(msg) from None
        if found is None:
            msg = f"lacks the column {name!r}"
            raise RefusedSchema(msg)
        if kinds and found not in kinds:
            msg = f"changes the column {name!r} from {kinds[0]} to {found.value}"
            raise RefusedSchema(msg)
