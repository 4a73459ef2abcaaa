"""The tree of shards changes while rows are held: at a moment of event time, or by an update of the pipeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from crenel.encoding.tree_learning import with_tree
from crenel.policy import Policy, ShardTree
from crenel.policy.sharding.shard_tree import Cut, fingerprint
from crenel.policy.sharding.tree_schedule import TreeSchedule
from crenel.transforms import Anonymize
from crenel.transforms._pack.row_pack import Packer
from tests.transforms.cells import END, State, Worker, forget, published, rolled_back, tagged
from tests.transforms.streams import SECOND, check, policy, rows, run

PLAIN = policy(method="bastion", on_suppress="drop", k=4, delay="10m")
GIVEN = rows(600, every=5.0)
CHANGE = int(GIVEN[300]["seen"]) * SECOND


def tree(column: int, at: float) -> ShardTree:
    return ShardTree(tuple(PLAIN.quasi_identifiers), (Cut(column, at, ~0, ~1),), fingerprint(PLAIN.quasi_identifiers))


YOUNG, LEARNED = tree(0, 50.0), tree(2, 2.0)
CHANGING = policy(**{**PLAIN.to_dict(), "shard_by": TreeSchedule((YOUNG, LEARNED), (CHANGE,))})


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    forget()
    yield
    forget()


def dealt(of: Policy, given: list[dict[str, Any]]) -> list[tuple[int, bytes]]:
    """Return packs of 20 rows or fewer, with their shards."""
    packer = Packer(of, b"secret")
    parts = [packer.pack_dicts(given[start : start + 20], None) for start in range(0, len(given), 20)]
    return [(pack.shard, pack.to_bytes()) for part in parts for pack in part.packs]


def played(of: Policy, given: list[dict[str, Any]], states: dict[int, State], *, fails: bool = False) -> list[Any]:
    """Push the rows; with `fails`, every other pack first in vain: the worker dies, and its state is rolled back."""
    out = []
    for number, (shard, pack) in enumerate(dealt(of, given)):
        if fails and number % 2:
            Worker(of, uid=f"{number}").push(rolled_back(states[shard]), pack, shard=shard)
            forget()
        out += Worker(of, uid=f"{number % 3}").push(states[shard], pack, shard=shard)
    return out


def ended(of: Policy, states: dict[int, State]) -> list[Any]:
    return [
        element for shard, state in sorted(states.items()) for element in Worker(of).fire(state, at=END, shard=shard)
    ]


def numbers(elements: list[Any]) -> list[int]:
    return sorted(row["number"] for row in [*published(elements), *tagged(elements, "suppressed")])


def test_a_tree_changes_at_a_moment_under_failures() -> None:
    calm: dict[int, State] = defaultdict(State)
    out = played(CHANGING, GIVEN, calm) + ended(CHANGING, calm)
    assert numbers(out) == list(range(600))
    forget()
    rough: dict[int, State] = defaultdict(State)
    again = played(CHANGING, GIVEN, rough, fails=True) + ended(CHANGING, rough)
    assert sorted(map(repr, published(again))) == sorted(map(repr, published(out)))
    # Both trees were used.
    router = Packer(CHANGING, b"secret")
    before, after = (
        {(row[-1], pack.shard) for pack in router.pack_dicts(part, None).packs for row in pack.payload.rows()}
        for part in (GIVEN[:300], GIVEN[300:])
    )
    ages = np.array([row["age"] for row in GIVEN])
    assert before == {(i, int(ages[i] >= 50)) for i in range(300)}
    assert after != {(i, int(ages[i] >= 50)) for i in range(300, 600)}


def test_an_update_brings_another_tree() -> None:
    """Rows that are held stay in their shards; rows that come go by the new tree."""
    states: dict[int, State] = defaultdict(State)
    first, second = with_tree(PLAIN, YOUNG), with_tree(PLAIN, LEARNED)
    out = played(first, GIVEN[:300], states)
    held = 300 - len(numbers(out))
    assert held > 20
    forget()
    out += played(second, GIVEN[300:], states, fails=True) + ended(second, states)
    assert numbers(out) == list(range(600))
    persons = [record["persons"] for record in tagged(out, "releases") if record["kind"] != "suppressed"]
    assert min(persons) >= 4


def test_promises_hold_while_the_tree_changes() -> None:
    outcome = run(GIVEN, Anonymize(CHANGING))
    check(CHANGING, GIVEN, outcome.published, outcome.suppressed)
