"""Change events as Debezium's connectors for PostgreSQL write them, with and without the schema of Kafka Connect."""

from __future__ import annotations

import base64
import io
import json
from decimal import Decimal
from typing import Any

import fastavro

#: What the rows before a change hold, and nothing else does.
BEFORE = "BEFORE-SECRET"
UNAVAILABLE = "__debezium_unavailable_value"

#: PostgreSQL's table, as Kafka Connect names its types.
COLUMNS: list[dict[str, Any]] = [
    {"type": "int32", "optional": False, "default": 0, "field": "id"},
    {"type": "string", "optional": True, "field": "zip"},
    {"type": "int16", "optional": True, "field": "age"},
    {"type": "string", "optional": True, "field": "ill"},
    {"type": "int64", "optional": True, "name": "io.debezium.time.MicroTimestamp", "version": 1, "field": "seen"},
    {"type": "int32", "optional": True, "name": "io.debezium.time.Date", "version": 1, "field": "born"},
    {
        "type": "bytes",
        "optional": True,
        "name": "org.apache.kafka.connect.data.Decimal",
        "version": 1,
        "parameters": {"scale": "2", "connect.decimal.precision": "10"},
        "field": "paid",
    },
]
BEGAN = 1_700_000_000


def row(number: int, **changes: Any) -> dict[str, Any]:
    """A row of the table, as JSON has it."""
    return {
        "id": number % 40,
        "zip": f"{number % 30:05}",
        "age": 20 + number % 50,
        "ill": ("flu", "cold", "cough")[number % 3],
        "seen": (BEGAN + number) * 1_000_000,
        "born": -3650 + number % 50,
        "paid": base64.b64encode((number * 7 - 100).to_bytes(3, "big", signed=True)).decode(),
        **changes,
    }


def before() -> dict[str, Any]:
    return {**dict.fromkeys((one["field"] for one in COLUMNS), BEFORE), "id": 999_999_999}


def source(lsn: int) -> dict[str, Any]:
    return {
        "version": "2.7.0.Final",
        "connector": "postgresql",
        "name": "clinic",
        "ts_ms": 1_700_000_000_000 + lsn,
        "snapshot": "false",
        "db": "clinic",
        "sequence": f'["{lsn - 1}","{lsn}"]',
        "ts_us": 1_700_000_000_000_000,
        "ts_ns": 1_700_000_000_000_000_000,
        "schema": "public",
        "table": "visits",
        "txId": 556,
        "lsn": lsn,
        "xmin": None,
        "query": f"delete from visits where name = '{BEFORE}'",
    }


def payload(op: str, after: dict[str, Any] | None, lsn: int = 1) -> dict[str, Any]:
    """The envelope of an operation."""
    common = {"source": source(lsn), "transaction": None, "op": op, "ts_ms": 1_700_000_000_123}
    if op == "t":
        return common
    if op == "m":
        return {**common, "message": {"prefix": "note", "content": base64.b64encode(BEFORE.encode()).decode()}}
    return {"before": before() if op in "ud" else None, "after": after, **common}


def schema() -> dict[str, Any]:
    name = "clinic.public.visits"
    value = {"type": "struct", "fields": COLUMNS, "optional": True, "name": f"{name}.Value"}
    fields = [
        {**value, "field": "before"},
        {**value, "field": "after"},
        {"type": "struct", "fields": [], "optional": False, "name": "io.debezium.connector.Source", "field": "source"},
        {"type": "string", "optional": False, "field": "op"},
        {"type": "int64", "optional": True, "field": "ts_ms"},
    ]
    return {"type": "struct", "fields": fields, "optional": False, "name": f"{name}.Envelope", "version": 2}


def message(op: str, after: dict[str, Any] | None = None, lsn: int = 1, *, wrapped: bool = False) -> dict[str, Any]:
    inner = payload(op, after, lsn)
    return {"schema": schema(), "payload": inner} if wrapped else inner


def changes(count: int, *, wrapped: bool) -> list[dict[str, Any] | None]:
    """A snapshot, inserts and updates of `count` rows, among them everything that is no row."""
    found: list[dict[str, Any] | None] = []
    for number in range(count):
        found.append(message("rcu"[number % 3], row(number), number, wrapped=wrapped))
        if number % 10 == 0:
            found += [message("d", None, number, wrapped=wrapped), None]
    return [*found, message("t", wrapped=wrapped), message("m", wrapped=wrapped)]


def as_json(messages: list[dict[str, Any] | None]) -> list[bytes | None]:
    return [None if one is None else json.dumps(one).encode() for one in messages]


# -- Avro, as Confluent's converter writes it -------------------------------------------------------


def _connect(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "connect.version": 1, "connect.name": name}


_DECIMAL = {
    **_connect("bytes", "org.apache.kafka.connect.data.Decimal"),
    "logicalType": "decimal",
    "scale": 2,
    "precision": 10,
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
}
_VALUE: dict[str, Any] = {
    "id": {"type": "int", "connect.default": 0},
    "zip": ["null", "string"],
    "age": ["null", {"type": "int", "connect.type": "int16"}],
    "ill": ["null", "string"],
    "seen": ["null", _connect("long", "io.debezium.time.MicroTimestamp")],
    "born": ["null", _connect("int", "io.debezium.time.Date")],
    "paid": ["null", _DECIMAL],
}


def avro_schema(**changed: Any) -> dict[str, Any]:
    """The schema of envelopes; `changed` are other types of columns."""
    name = "clinic.public.visits"
    columns = [{"name": column, "type": kind} for column, kind in {**_VALUE, **changed}.items()]
    value = {"type": "record", "name": "Value", "fields": columns, "connect.name": f"{name}.Value"}
    place = [{"name": "table", "type": "string"}, {"name": "lsn", "type": ["null", "long"], "default": None}]
    fields = [
        {"name": "before", "type": ["null", value], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": {"type": "record", "name": "Source", "namespace": "io.debezium", "fields": place}},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ]
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": name,
        "fields": fields,
        "connect.name": f"{name}.Envelope",
    }


def as_avro(one: dict[str, Any], **changed: Any) -> bytes:
    """Write an envelope, without a head."""
    rows = {side: one.get(side) and _with_decimal(one[side]) for side in ("before", "after")}
    stream = io.BytesIO()
    schema = fastavro.parse_schema(avro_schema(**changed))
    fastavro.schemaless_writer(stream, schema, {**one, **rows, "source": {"table": "visits", "lsn": 1}})
    return stream.getvalue()


def _with_decimal(row: dict[str, Any]) -> dict[str, Any]:
    if row["paid"] == BEFORE:
        return {**row, "age": 1, "seen": 1, "born": 1, "paid": None}
    return {**row, "paid": Decimal(int.from_bytes(base64.b64decode(row["paid"]), "big", signed=True)).scaleb(-2)}
