"""Rows for topics, and a check of published ones."""

from __future__ import annotations

import json
import random
from typing import Any

POLICY = """\
person: who
event_time: at
quasi_identifiers:
  age: {type: numeric, domain: [0, 100]}
  zip: {type: prefix, length: 5}
sensitive: [ill]
publish: [note]
k: 3
delay: 60s
disorder: 5s
on_suppress: star
shards: 2
seed: 7
"""
SCHEMA = {
    "type": "record",
    "name": "Visit",
    "fields": [
        {"name": "who", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "age", "type": "int"},
        {"name": "zip", "type": "string"},
        {"name": "ill", "type": ["null", "string"]},
        {"name": "note", "type": "long"},
        {"name": "secret", "type": "string"},
    ],
}
BEGAN = 1_600_000_000


def make(count: int = 600, persons: int = 40) -> list[dict[str, Any]]:
    """Make rows. `note` is the number of the row, which is published."""
    draw = random.Random(1)
    return [
        {
            "who": draw.randrange(persons),
            "at": BEGAN + i * 0.5 + draw.randrange(-2, 2),
            "age": draw.randrange(0, 100),
            "zip": f"{draw.randrange(20):05}",
            "ill": draw.choice(["flu", "cold", None]),
            "note": i,
            "secret": f"SECRET{i}",
        }
        for i in range(count)
    ]


def as_json(rows: list[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(row).encode() for row in rows]


def covers(published: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether a published row is a generalization of the original."""
    age, prefix = published["age"], published["zip"].rstrip("*")
    same = published["ill"] == row["ill"] and published["note"] == row["note"]
    return same and age["lo"] <= row["age"] <= age["hi"] and row["zip"].startswith(prefix)
