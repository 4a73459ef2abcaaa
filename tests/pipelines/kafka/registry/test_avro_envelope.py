"""Schemas of envelopes: the columns are those of the row after the change."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest

from crenel.pipelines.debezium import Deletes, Envelopes
from crenel.pipelines.kafka.messages.envelope_values import RefusedEnvelope
from crenel.pipelines.kafka.messages.values import NoRow, Unreadable
from crenel.pipelines.kafka.registry.column_kinds import Kind, RefusedSchema
from crenel.pipelines.kafka.registry.framed_values import row_schemas
from crenel.pipelines.kafka.registry.registry_client import Schema
from tests.pipelines import debezium_records as made


def schema(deletes: Deletes = Deletes.IGNORE, **changed: Any) -> Any:
    (found,) = row_schemas(Schema("AVRO", json.dumps(made.avro_schema(**changed))), Envelopes(deletes))
    return found


def test_columns_are_those_of_the_row() -> None:
    kinds = {name: schema().kind(name) for name in ("id", "zip", "age", "seen", "born", "paid", "op", "after")}
    assert kinds == {
        "id": Kind.INTEGER,
        "zip": Kind.TEXT,
        "age": Kind.INTEGER,
        "seen": Kind.MOMENT,
        "born": Kind.DATE,
        "paid": Kind.DECIMAL,
        "op": None,
        "after": None,
    }


@pytest.mark.parametrize("op", ["c", "u", "r"])
def test_the_row_after_a_change_is_read(op: str) -> None:
    row = schema().row(made.as_avro(made.message(op, made.row(1))))
    assert row["seen"] == dt.datetime.fromtimestamp(made.BEGAN + 1, dt.timezone.utc)
    assert (row["born"], row["paid"]) == (dt.date(1960, 1, 5), Decimal("-0.93"))
    far = schema().row(made.as_avro(made.message(op, made.row(1, seen=9223372036825200000, born=None))))
    assert (far["seen"], far["born"]) == (9223372036825200000, None)


def test_deletes_have_no_row() -> None:
    value = made.as_avro(made.message("d"))
    with pytest.raises(NoRow):
        schema().row(value)
    with pytest.raises(RefusedEnvelope, match="a delete"):
        schema(Deletes.REJECT).row(value)
    with pytest.raises(Unreadable, match="not Avro"):
        schema().row(value[:3])


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        ("JSON", "{}", "is of the type JSON, and envelopes are read from AVRO"),
        ("AVRO", json.dumps(made.avro_schema()["fields"][0]["type"][1]), "is not of a Debezium envelope"),
    ],
)
def test_other_schemas_are_refused(form: str, text: str, said: str) -> None:
    with pytest.raises(RefusedSchema, match=said):
        row_schemas(Schema(form, text), Envelopes())
