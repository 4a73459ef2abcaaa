"""A tree of shards: every row has one leaf, and a file that is something else is refused without being quoted."""

from __future__ import annotations

import json
import pickle
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.policy import PolicyError
from crenel.policy.quasi_identifiers import Categorical, Numeric
from crenel.policy.sharding.shard_tree import Cut, ShardTree, fingerprint

QIS = {"age": Numeric(domain=(0, 100)), "zone": Numeric(domain=(0, 9), step=1)}


@st.composite
def shard_trees(draw: st.DrawFn) -> ShardTree:
    """Draw a tree by cutting leaves in any order."""
    cuts: list[list[Any]] = []
    open_sides: list[tuple[int, int] | None] = [None]
    for _ in range(draw(st.integers(0, 12))):
        leaf = draw(st.integers(0, len(open_sides) - 1))
        side = open_sides[leaf]
        if side is not None:
            cuts[side[0]][side[1]] = len(cuts)
        cuts.append([draw(st.integers(0, 1)), draw(st.integers(0, 9)) * 1.0, ~leaf, ~len(open_sides)])
        open_sides[leaf] = (len(cuts) - 1, 2)
        open_sides.append((len(cuts) - 1, 3))
    return ShardTree(tuple(QIS), tuple(Cut(*cut) for cut in cuts), fingerprint(QIS))


def walk(tree: ShardTree, row: np.ndarray) -> int:
    """Find the shard of one row, cut by cut."""
    side = 0 if tree.cuts else ~0
    while side >= 0:
        cut = tree.cuts[side]
        side = cut.above if row[cut.column] >= cut.at else cut.below
    return ~side


POINTS = st.lists(st.tuples(st.floats(0, 9) | st.just(float("nan")), st.integers(0, 9)), max_size=30)


@given(shard_trees(), POINTS)
def test_column_by_column_is_row_by_row(tree: ShardTree, points: list[tuple[float, float]]) -> None:
    qi = np.array(points, dtype=np.float64).reshape(-1, 2)
    assert tree.find(qi).tolist() == [walk(tree, row) for row in qi]


@given(shard_trees(), POINTS)
def test_every_row_lies_in_one_leaf(tree: ShardTree, points: list[tuple[float, float]]) -> None:
    qi = np.nan_to_num(np.array(points, dtype=np.float64).reshape(-1, 2))
    boxes = tree.boxes()
    assert len(boxes) == tree.shards
    inside = [
        [shard for shard, box in enumerate(boxes) if all(lo <= x < hi for x, (lo, hi) in zip(row, box, strict=True))]
        for row in qi
    ]
    assert inside == [[shard] for shard in tree.find(qi).tolist()]


@given(shard_trees())
def test_a_tree_survives_its_file_and_a_pickle(tree: ShardTree) -> None:
    assert ShardTree.from_dict(json.loads(json.dumps(tree.to_dict()))) == tree
    assert pickle.loads(pickle.dumps(tree)) == tree


def test_only_its_owner_may_read_the_file(tmp_path: Path) -> None:
    tree = ShardTree(tuple(QIS), (Cut(0, 40.0, ~0, ~1),), fingerprint(QIS))
    tree.write(tmp_path / "shards.json")
    assert ShardTree.read(tmp_path / "shards.json") == tree
    assert stat.S_IMODE((tmp_path / "shards.json").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "must be a tree of shards of version 1"),
        ({"format": "other"}, "must be a tree of shards of version 1"),
        ({"cuts": [{"column": "secret", "at": 40.0, "below": {"shard": 0}, "above": {"shard": 1}}]}, "a field is"),
        ({"cuts": [{"column": "age", "at": "40", "below": {"shard": 0}, "above": {"shard": 1}}]}, "a field is"),
        ({"cuts": [{"column": "age", "at": 40.0, "below": {"shard": 0}, "above": {"shard": 0}}]}, "numbered from 0"),
        ({"cuts": [{"column": "age", "at": 40.0, "below": {"shard": 0}, "above": {"cut": 0}}]}, "numbered from 0"),
        ({"cuts": [{"column": "age", "at": 40.0, "below": {"shard": 0}}]}, "a field is"),
        ({"cuts": 7}, "a field is"),
    ],
)
def test_what_is_no_tree_is_refused(changes: dict[str, Any], words: str) -> None:
    tree = ShardTree(tuple(QIS), (Cut(0, 40.0, ~0, ~1),), fingerprint(QIS))
    with pytest.raises(PolicyError, match=words) as caught:
        ShardTree.from_dict(tree.to_dict() | changes)
    assert "secret" not in str(caught.value) and "40" not in str(caught.value)


def test_a_file_that_is_not_json_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "shards.json").write_text("password")
    with pytest.raises(PolicyError, match="is not JSON") as caught:
        ShardTree.read(tmp_path / "shards.json")
    assert "password" not in str(caught.value)
    with pytest.raises(PolicyError, match="there is no file"):
        ShardTree.read(tmp_path / "none.json")


@pytest.mark.parametrize(
    "other",
    [
        {"age": Numeric(domain=(0, 99)), "zone": QIS["zone"]},
        {"age": Numeric(domain=(0, 100), step=5), "zone": QIS["zone"]},
        {"zone": QIS["zone"], "age": QIS["age"]},
        {"age": QIS["age"], "zone": Categorical(hierarchy=["a", "b"])},  # type: ignore[arg-type]
        {"age": QIS["age"]},
    ],
    ids=["domain", "step", "order", "type", "fewer"],
)
def test_a_tree_of_other_quasi_identifiers_is_refused(other: dict[str, Any]) -> None:
    tree = ShardTree(tuple(QIS), (), fingerprint(QIS))
    tree.check({name: Numeric(domain=qi.domain, step=qi.step, weight=2.0) for name, qi in QIS.items()})
    with pytest.raises(PolicyError, match="learned for these quasi-identifiers"):
        tree.check(other)
