"""`shards` and `shard_by` of a policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crenel.policy import Policy, PolicyError, ShardBy, ShardTree
from crenel.policy.sharding.shard_tree import Cut, fingerprint
from crenel.policy.sharding.tree_schedule import TreeSchedule

QIS = {"age": {"type": "numeric", "domain": [0, 100]}}


def policy(folder: Path | str = ".", **changes: Any) -> Policy:
    return Policy.from_dict({"person": "who", "quasi_identifiers": QIS, "k": 5, "delay": "1m", **changes}, folder)


TREE = ShardTree(("age",), (Cut(0, 40.0, ~0, ~1),), fingerprint(policy().quasi_identifiers))


def test_a_tree_is_named_by_its_file_and_brings_its_number_of_shards(tmp_path: Path) -> None:
    TREE.write(tmp_path / "shards.json")
    by_file = policy(tmp_path, shard_by={"tree": "shards.json"})
    assert (by_file.shard_by, by_file.shards, by_file.most_shards) == (TREE, 2, 2)
    assert policy(tmp_path, shard_by={"tree": "shards.json"}, shards="auto") == by_file
    assert policy(tmp_path, shard_by={"tree": "shards.json"}, shards=2) == by_file
    assert policy(shard_by=TREE) == by_file
    # By content, since the reader may not have the file.
    assert Policy.from_dict(json.loads(json.dumps(by_file.to_dict()))) == by_file


def test_the_file_of_a_tree_lies_below_the_policy(tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    TREE.write(tmp_path / "shards.json")
    with pytest.raises(PolicyError, match=r"shard_by\.tree: '\.\./shards\.json' must be a file below"):
        policy(tmp_path / "policy", shard_by={"tree": "../shards.json"})


def test_auto_is_for_shards_that_the_rows_decide() -> None:
    auto = policy(shards="auto", shard_by="locality")
    assert (auto.shards, auto.shard_by, auto.most_shards) == ("auto", ShardBy.LOCALITY, 64)
    assert Policy.from_dict(auto.to_dict()) == auto
    for by in ("person", ["age"]):
        with pytest.raises(PolicyError, match="shards must be a number unless shard_by is 'locality' or a tree"):
            policy(shards="auto", shard_by=by)


def test_locality_needs_no_domain() -> None:
    assert policy(quasi_identifiers={"age": {"type": "numeric"}}, shards=4, shard_by="locality").shards == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shard_by": TREE, "shards": 3}, "shards must be 2, the leaves of the tree, or left out, not 3"),
        ({"shard_by": TREE, "quasi_identifiers": {"age": {"type": "numeric"}}}, "shard_by.tree must be a tree that"),
        ({"shard_by": {"tree": {}}}, "shard_by.tree must be a tree of shards of version 1"),
        ({"shard_by": {"tree": "none.json"}}, "shard_by.tree: there is no file 'none.json'"),
        (
            {"shard_by": {"forest": 1}},
            "shard_by must be 'person', 'locality', {tree: FILE}, {trees: [...]} or a list of columns",
        ),
        ({"shard_by": []}, "shard_by must be 'person', 'locality', {tree: FILE}, {trees: [...]} or a list of columns"),
        ({"shards": "many"}, "shards must be an integer of at least 1"),
        ({"shards": 5000, "shard_by": "locality"}, "shards must be at most 4,096 if shard_by is 'locality'"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        policy(**changes)
    assert words in str(caught.value)


# --- Trees that follow each other ---

LATER = ShardTree(("age",), (Cut(0, 20.0, 1, ~0), Cut(0, 10.0, ~1, ~2)), TREE.space)


def test_a_tree_holds_from_its_moment_on(tmp_path: Path) -> None:
    TREE.write(tmp_path / "old.json")
    LATER.write(tmp_path / "new.json")
    trees = [{"tree": "old.json"}, {"tree": "new.json", "from": "1970-01-01T00:00:01Z"}]
    scheduled = policy(tmp_path, shard_by={"trees": trees})
    assert scheduled.shards == 3
    assert Policy.from_dict(json.loads(json.dumps(scheduled.to_dict()))) == scheduled
    rule = scheduled.shard_by
    assert isinstance(rule, TreeSchedule)
    qi, time = np.array([[15.0], [15.0], [15.0], [60.0]]), np.array([0, 999_999, 1_000_000, 2_000_000])
    # Whatever the order of the rows, and whichever come together.
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0]):
        expected = np.array([0, 0, 2, 0])[order]
        assert rule.find(qi[order], time[order]).tolist() == expected.tolist()


@pytest.mark.parametrize(
    "trees",
    [
        [],
        "old.json",
        [{"tree": TREE, "from": "2026-01-01"}],
        [{"tree": TREE}, {"tree": LATER}],
        [{"tree": TREE}, {"tree": LATER, "from": "soon"}],
        [{"tree": TREE}, {"tree": LATER, "from": "2026-02-01"}, {"tree": TREE, "from": "2026-01-01"}],
    ],
    ids=["none", "text", "no first", "no moment", "not a moment", "not in order"],
)
def test_a_schedule_that_makes_no_sense_is_refused(trees: Any) -> None:
    with pytest.raises(PolicyError, match=r"shard_by\.trees must be a list of \{tree: FILE, from: MOMENT\}"):
        policy(shard_by={"trees": trees})


def test_every_tree_of_a_schedule_must_fit() -> None:
    other = ShardTree(("age",), (), "another")
    with pytest.raises(PolicyError, match=r"shard_by\.trees must be a tree that was learned for these"):
        policy(shard_by={"trees": [{"tree": TREE}, {"tree": other, "from": "2026-01-01"}]})
