"""Values with an envelope around each row, as a topic has them."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.kafka.messages.value_formats import reading
from crenel.pipelines.kafka.messages.values import NoRow, Unreadable, derived, whole_numbers
from crenel.pipelines.kafka.topics import Topic
from crenel.policy import Policy
from tests.pipelines import debezium_records as made

JSON = Topic(servers="a:1", name="t", envelope="debezium")
AVRO = replace(JSON, format="avro", schema="s.avsc", schema_text=json.dumps(made.avro_schema()))


def test_many_values_are_read_as_one_by_one() -> None:
    values = [value for value in made.as_json(made.changes(20, wrapped=True)) if value is not None]
    found = reading(JSON).read_many([*values, b"{", b"[]"])
    rows = [one for one in found if isinstance(one, dict)]
    assert [row["id"] for row in rows] == list(range(20))
    assert sum(isinstance(one, NoRow) for one in found) == 4
    assert [str(one) for one in found[-2:]] == ["not JSON", "not a JSON object"]
    assert reading(JSON).read(values[0]) == rows[0]


@pytest.mark.parametrize("deletes", ["ignore", "reject"])
def test_what_the_owner_is_shown_has_nothing_of_the_row_before(deletes: str) -> None:
    topic = replace(JSON, deletes=deletes)
    values = [
        json.dumps(made.message("d", wrapped=True)).encode(),
        json.dumps({"before": made.BEFORE}).encode(),
        b'{"before": "' + made.BEFORE.encode(),
        b'["' + made.BEFORE.encode() + b'"]',
    ]
    refused = [one for one in reading(topic).read_many(values) if not isinstance(one, NoRow)]
    assert len(refused) == (3 if deletes == "ignore" else 4)
    shown = [
        one.shown(value) for one, value in zip(refused, values[-len(refused) :], strict=True) if type(one) is not dict
    ]
    assert len(shown) == len(refused)
    assert not any(made.BEFORE in text for text in shown)
    assert shown[-1].startswith("[withheld: 17 bytes, sha256 ")


@pytest.mark.parametrize(("deletes", "said"), [("ignore", ""), ("reject", "a tombstone")])
def test_a_tombstone(deletes: str, said: str) -> None:
    found = reading(replace(JSON, deletes=deletes)).of_nothing()
    assert isinstance(found, NoRow) == (deletes == "ignore")
    assert str(found) == said
    assert str(reading(Topic(servers="a:1", name="t")).of_nothing()) == "no value"


def test_avro_with_a_schema_of_its_own() -> None:
    values = reading(AVRO)
    row: Any = values.read(made.as_avro(made.message("u", made.row(3))))
    assert (row["id"], row["zip"], row["paid"]) == (3, "00003", Decimal("-0.79"))
    with pytest.raises(NoRow):
        values.read(made.as_avro(made.message("d")))
    (broken,) = values.read_many([b"\x01"])
    assert isinstance(broken, Unreadable)
    assert broken.shown(b"\x01").startswith("[withheld: 1 bytes")


def test_the_schema_of_published_rows_is_derived_from_the_row_within() -> None:
    policy = Policy.from_dict(
        {
            "person": "id",
            "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 120]}},
            "publish": ["ill"],
            "k": 2,
            "delay_rows": 9,
        }
    )
    fields = json.loads(derived(policy, AVRO))["fields"]
    assert [field["name"] for field in fields] == ["age", "ill"]
    assert whole_numbers(replace(AVRO, schema_text=json.dumps(made.avro_schema(age="int")))) == {"age"}
    with pytest.raises(CommandError, match="must have a record `after`"):
        whole_numbers(replace(AVRO, schema_text=json.dumps({"type": "record", "name": "R", "fields": []})))
