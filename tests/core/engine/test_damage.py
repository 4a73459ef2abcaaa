"""Snapshots that were damaged: each is refused, whatever was damaged, and no kernel ever runs on it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crenel import avro
from crenel.engine import Engine, create_engine
from crenel.errors import SnapshotError
from crenel.policy import Policy
from crenel.policy.methods import find
from tests import golden

FILES = sorted((golden.TESTS / "core" / "engine" / "golden").glob("*.json"))
#: The schemas of engines that wrap another one: the field that has the other one's snapshot, and its schema.
WRAPPED = {
    "castleguard.1": ("castle", "castle.1"),
    "reordered.1": ("method", "castle.1"),
    "once_per.1": ("method", "castle.1"),
    "together.1": ("method", "bastion.1"),
}

each_engine = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


class Watched:
    """An engine whose `load` must never be called."""

    def __init__(self, path: Path) -> None:
        self.record: dict[str, Any] = json.loads(path.read_text("utf-8"))
        self.policy = Policy.from_dict(self.record["policy"])
        self.stored = golden.as_bytes(self.record["snapshot"])
        self.engine = create_engine(self.policy)

    def refuses(self, data: bytes, engine: Engine | None = None) -> None:
        engine = engine or self.engine
        engine.load = self._loaded  # type: ignore[method-assign]
        with pytest.raises(SnapshotError) as caught:
            engine.restore(data)
        said = str(caught.value)
        assert said.startswith("Stored state ") and len(said) < 300

    def _loaded(self, data: bytes) -> None:
        raise AssertionError("a damaged snapshot was loaded")


@each_engine
def test_any_damaged_byte_is_refused(path: Path) -> None:
    watched, drawn = Watched(path), random.Random(path.stem)
    for _ in range(300):
        damaged = bytearray(watched.stored)
        for _ in range(drawn.choice([1, 1, 1, 2, 8])):
            damaged[drawn.randrange(len(damaged))] ^= drawn.randrange(1, 256)
        watched.refuses(bytes(damaged))
    for size in (1, 8, 24, 25, 26, len(watched.stored) - 1):
        watched.refuses(watched.stored[:size])
        watched.refuses(watched.stored[size:])
    watched.refuses(b"")


@each_engine
def test_a_changed_number_is_refused_though_the_record_is_valid(path: Path) -> None:
    """The schema cannot tell that a number is wrong. Kernels crashed on such numbers, or never returned."""
    watched, drawn = Watched(path), random.Random(path.stem)
    other = create_engine(watched.policy)
    other.restore(watched.stored)
    body = other.dump()
    assert watched.stored.endswith(body)
    head = watched.stored[: -len(body)]
    different = {changed(path.stem, watched.policy, body, drawn) for _ in range(120)} - {body}
    assert len(different) > 60
    for wrong in different:
        watched.refuses(head + wrong)


def changed(name: str, policy: Policy, body: bytes, drawn: random.Random) -> bytes:
    """Change one number of a record, anywhere in it."""
    schemas = _schemas(name, policy)
    record = schemas.decode(body)
    inner, schema = WRAPPED.get(name, (None, ""))
    if inner is not None and drawn.random() < 0.5:
        record[inner] = changed(schema, policy, record[inner], drawn)
        return schemas.encode(record)
    owner, field = drawn.choice(list(_fields(record)))
    value = owner[field]
    if isinstance(value, bytes):
        array = np.frombuffer(value, "<i8" if len(value) % 8 == 0 else "u1").copy()
        array[drawn.randrange(len(array))] = drawn.choice([-1, 0, 1, 2**40, -(2**62)]) if array.itemsize == 8 else 7
        owner[field] = array.tobytes()
    elif isinstance(value, float):
        owner[field] = drawn.choice([-1.0, 0.5, float("nan"), 1e300])
    elif isinstance(value, int):
        owner[field] = value + drawn.choice([-1, 1, 10**6, -(10**12)])
    return schemas.encode(record)


def _schemas(name: str, policy: Policy) -> avro.Schemas:
    if name in ("reordered.1", "once_per.1", "together.1"):
        return avro.Schemas("crenel.engine.wrappers", (f"{name}.avsc",))
    declared = "crenel.engine.methods.castle:castle.1.avsc" if name == "castle.1" else find(policy.method).snapshot
    package, _, file = str(declared).partition(":")
    return avro.Schemas(package, (file,))


def _fields(record: dict[str, Any]) -> Any:
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _fields(value)
        elif isinstance(value, (int, float)) or (isinstance(value, bytes) and len(value) >= 8):
            yield record, name


@each_engine
def test_a_snapshot_of_another_secret_or_shard_is_refused(path: Path) -> None:
    watched = Watched(path)
    watched.refuses(watched.stored, create_engine(replace(watched.policy, seed=8)))
    watched.refuses(watched.stored, create_engine(watched.policy, shard=b"another"))
    watched.refuses(watched.stored, create_engine(replace(watched.policy, seed=None), secret=b"another secret"))


@each_engine
def test_without_a_secret_a_snapshot_carries_its_key(path: Path) -> None:
    """Another engine, which draws a secret of its own, can go on from it; and damage is still found."""
    watched = Watched(path)
    drawn = replace(watched.policy, seed=None)
    rows = golden.rows_of(watched.record)
    first, second = create_engine(drawn), create_engine(drawn)
    first.push(rows.slice(0, 150))
    stored = first.snapshot()
    second.restore(stored)
    assert second.snapshot() == stored
    assert golden.continued(second, rows) == golden.continued(first, rows)
    for at in range(0, len(stored), len(stored) // 40):
        watched.refuses(stored[:at] + bytes([stored[at] ^ 128]) + stored[at + 1 :], create_engine(drawn))
    watched.refuses(stored)  # a policy with a secret or a seed does not trust a key that comes along
    watched.refuses(watched.stored, create_engine(drawn))


def test_parts_that_do_not_fit_each_other_are_refused() -> None:
    """Whoever has the key could still be wrong: sizes are checked before a kernel sees them."""
    policy = Policy.from_dict(golden.ENGINE_POLICY)
    engine = create_engine(policy)
    engine.push(golden.engine_rows(100))
    schemas = _schemas("castle.1", policy)
    record = schemas.decode(engine.dump())
    for field in ("person", "qi", "sensitive", "deadline", "cluster"):
        short = {**record, "held": {**record["held"], field: record["held"][field][:-8]}}
        with pytest.raises(SnapshotError, match="its parts do not fit each other"):
            create_engine(policy).load(schemas.encode(short))
    for field in ("key", "domain_lo"):
        with pytest.raises(SnapshotError, match="its parts do not fit each other"):
            create_engine(policy).load(schemas.encode({**record, field: b"12345678"}))
