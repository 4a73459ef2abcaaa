"""Envelopes of Debezium: changes of the rows of a table. Only the row after a change is read.

    {"before": {...}, "after": {...}, "source": {...}, "op": "u", "ts_ms": 1}

or, if Kafka Connect writes schemas into values, the same as `payload` beside a `schema`. `before` is never looked at,
and is in no record of what was rejected.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

__all__ = ["DEBEZIUM", "IGNORED", "Deletes", "Envelopes", "Ignored", "Refused", "converted", "converter", "withheld"]

#: The name by which users ask for these envelopes.
DEBEZIUM = "debezium"

#: What Debezium writes for a large value that an update did not change, and that the database did not tell.
_UNAVAILABLE = "__debezium_unavailable_value"
_WITH_ROW = frozenset("cru")
_WITHOUT_ROW = {"d": "a delete", "t": "a truncate"}
_TOMBSTONE = "a tombstone"
_NO_ENVELOPE, _NO_ROW, _NO_OPERATION = "no Debezium envelope", "an envelope without a row", "an unknown operation"
#: What the owner is told of a change without a row. `query`, which is not among it, may quote rows.
_TOLD = ("connector", "name", "db", "schema", "table", "ts_ms", "txId", "lsn", "file", "pos", "scn", "commit_lsn")


class Deletes(str, Enum):
    """What becomes of a change without a row: a delete, a truncate, a tombstone."""

    #: It is counted.
    IGNORE = "ignore"
    #: The owner gets a record of it, without the row that was deleted.
    REJECT = "reject"


@dataclass(frozen=True)
class Refused:
    """A message that is no row: the owner's text of it, and why."""

    text: str | None
    reason: str

    def __repr__(self) -> str:
        """Show the reason alone."""
        return f"Refused({self.reason!r})"


class Ignored:
    """A message that has no row, and that nobody asked for."""


IGNORED = Ignored()


@dataclass(frozen=True)
class Envelopes:
    """Opens envelopes."""

    deletes: Deletes = Deletes.IGNORE

    def opened(self, message: Any) -> dict[str, Any] | Refused | Ignored:
        """Take the row out of a message; None is a tombstone. The text of a refusal is None where it is withheld."""
        schema, body = None, message
        if isinstance(message, Mapping) and "payload" in message and message.keys() <= {"schema", "payload"}:
            schema, body = message.get("schema"), message["payload"]
        if body is None:
            return self._gone(_TOMBSTONE, {})
        if not isinstance(body, Mapping) or "op" not in body:
            return Refused(None, _NO_ENVELOPE)
        operation = body["op"]
        if operation == "m":  # a message that somebody wrote into the log of the database
            return IGNORED
        if not isinstance(operation, str) or operation not in {*_WITH_ROW, *_WITHOUT_ROW}:
            return Refused(None, _NO_OPERATION)
        if operation in _WITHOUT_ROW:
            return self._gone(_WITHOUT_ROW[operation], body)
        row = body.get("after")
        if not isinstance(row, Mapping):
            return Refused(_told(body), _NO_ROW)
        return _row(row, schema)

    def _gone(self, what: str, body: Mapping[str, Any]) -> Refused | Ignored:
        return IGNORED if self.deletes is Deletes.IGNORE else Refused(_told(body) if body else "", what)


def withheld(value: bytes) -> str:
    """Stand for a message whose text may hold what was before a change: by its length and its digest."""
    return f"[withheld: {len(value):,} bytes, sha256 {hashlib.sha256(value).hexdigest()}]"


def _told(body: Mapping[str, Any]) -> str:
    """The operation, and where it is in the log of the database; no value of a row."""
    source = body.get("source")
    known = source if isinstance(source, Mapping) else {}
    place = {name: known[name] for name in _TOLD if isinstance(known.get(name), (str, int))}
    return json.dumps({"op": body["op"], "source": place}, ensure_ascii=True)


def _row(row: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """The row with None for values that Debezium did not have, and with moments where the schema says so."""
    made = {name: None if value == _UNAVAILABLE else value for name, value in row.items()}
    if schema is not None:
        for name, convert in _conversions(schema):
            value = made.get(name)
            if value is not None:
                made[name] = converted(convert, value)
    return made


def _conversions(schema: Any) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """The columns that the schema of a message gives a meaning beyond their type."""
    try:
        after = next(field["fields"] for field in schema["fields"] if field.get("field") == "after")
        named = [(field["field"], field["name"], field.get("parameters")) for field in after if "name" in field]
    except (AttributeError, KeyError, StopIteration, TypeError):  # no schema of Kafka Connect
        return
    for column, kind, parameters in named:
        convert = converter(kind, parameters)
        if isinstance(column, str) and convert is not None:
            yield column, convert


def converter(kind: Any, parameters: Any = None) -> Callable[[Any], Any] | None:
    """What makes a moment, a date or a decimal of a value, by the name of its type in Kafka Connect."""
    if kind == "org.apache.kafka.connect.data.Decimal" and isinstance(parameters, Mapping):
        return lambda value: _decimal(value, parameters.get("scale"))
    return _KINDS.get(kind) if isinstance(kind, str) else None


def converted(convert: Callable[[Any], Any], value: Any) -> Any:
    """Convert a value; one that is beyond Python's years stays a number, too large for any moment."""
    try:
        return convert(value)
    except (ArithmeticError, TypeError, ValueError):
        return value


def _decimal(value: Any, scale: Any) -> Decimal:
    digits = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
    return Decimal(digits).scaleb(-int(scale))


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def _moment(micros: float) -> dt.datetime:
    return _EPOCH + dt.timedelta(microseconds=micros)


def _date(days: int) -> dt.date:
    return _EPOCH.date() + dt.timedelta(days=days)


_KINDS: dict[str, Callable[[Any], Any]] = {
    "io.debezium.time.Date": _date,
    "io.debezium.time.Timestamp": lambda millis: _moment(millis * 1000),
    "io.debezium.time.MicroTimestamp": _moment,
    "io.debezium.time.NanoTimestamp": lambda nanos: _moment(nanos // 1000),
    "org.apache.kafka.connect.data.Date": _date,
    "org.apache.kafka.connect.data.Timestamp": lambda millis: _moment(millis * 1000),
}
