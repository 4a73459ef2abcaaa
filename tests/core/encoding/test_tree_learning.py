"""A learned tree: even on its sample, along hierarchies, on the grid, never thin, and the same for the same rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crenel.encoding import tree_learning
from crenel.encoding.rows import Rows
from crenel.encoding.tree_learning import CROWD, Supply, learn_tree
from crenel.policy import Policy
from crenel.policy.geometry import Tree
from crenel.policy.hierarchy import Hierarchy
from crenel.policy.quasi_identifiers import Categorical, Numeric, Prefix, QuasiIdentifier
from crenel.policy.sharding.shard_tree import ShardTree
from tests.core.policy.test_geometry import trees

PLACES = Hierarchy.from_mapping({"North": {"A": ["a1", "a2", "a3"], "B": ["b1", "b2"]}, "South": {"C": ["c1", "c2"]}})
QIS: dict[str, QuasiIdentifier] = {
    "age": Numeric(domain=(0, 100)),
    "income": Numeric(step=500),
    "zip": Prefix(length=3),
    "place": Categorical(hierarchy=PLACES),
}


def policy(qis: dict[str, QuasiIdentifier] | None = None, k: int = 5) -> Policy:
    return Policy(person="who", quasi_identifiers=qis or QIS, k=k, delay="10s", delay_rows=10**9)


def rows_of(qi: NDArray[np.float64], person: NDArray[np.int64] | None = None) -> Rows:
    count = len(qi)
    who = np.arange(count, dtype=np.int64) if person is None else person
    return Rows(np.ascontiguousarray(qi), who, np.zeros((count, 0), np.int64), np.zeros(count, np.int64))


def drawn(count: int, seed: int = 0) -> Rows:
    random = np.random.default_rng(seed)
    age = random.normal(40, 12, count).clip(0, 100)
    income = random.geometric(0.02, count)
    code = random.integers(0, 1000, count) // random.choice([1, 5], count)
    place = random.choice(7, count, p=[0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
    return rows_of(np.column_stack([age, income, code, place]).astype(np.float64))


@given(count=st.integers(1, 300), shards=st.integers(1, 20), seed=st.integers(0, 99))
@settings(max_examples=30)
def test_leaves_partition_the_sample(count: int, shards: int, seed: int) -> None:
    sample = drawn(count, seed)
    tree = learn_tree(policy(), sample, shards)
    sizes = np.bincount(tree.find(sample.qi), minlength=tree.shards)
    assert 1 <= tree.shards <= shards
    assert sizes.sum() == count and sizes.min() >= 1


@pytest.mark.parametrize("shards", [2, 8, 32])
def test_leaves_are_even_on_the_sample_and_on_other_rows(shards: int) -> None:
    tree = learn_tree(policy(), drawn(4000), shards)
    assert tree.shards == shards
    for rows in (drawn(4000), drawn(20_000, seed=1)):
        sizes = np.bincount(tree.find(rows.qi), minlength=shards)
        assert sizes.max() <= 1.6 * sizes.mean()


def test_the_order_of_the_sample_does_not_matter() -> None:
    sample = drawn(500)
    mixed = sample.take(np.random.default_rng(3).permutation(500))
    assert learn_tree(policy(), mixed, 16) == learn_tree(policy(), sample, 16)


def cut_nodes(tree: Tree, at: float) -> list[int]:
    """The nodes whose leaves lie on both sides of a cut."""
    return [node for node in range(len(tree.parent)) if tree.first[node] < at <= tree.last[node]]


@given(trees(), st.integers(0, 10**6), st.integers(2, 12))
@settings(max_examples=40)
def test_a_cut_tears_one_path_of_a_hierarchy(tree: Tree, seed: int, shards: int) -> None:
    """A cut runs between two children of a node: it tears that node and its ancestors, and no other."""
    labels = [f"n{node}" for node in range(len(tree.parent))]
    qis: dict[str, QuasiIdentifier] = {"place": Categorical(hierarchy=Hierarchy(labels, tree.parent))}
    values = np.random.default_rng(seed).integers(0, len(tree.leaf), 200).astype(np.float64)
    for cut in learn_tree(policy(qis), rows_of(values.reshape(-1, 1)), shards).cuts:
        torn = cut_nodes(tree, cut.at)
        assert cut.at in tree.first
        assert all(tree.parent[node] in torn for node in torn)
        assert len({int(tree.parent[node]) for node in torn if node}) == len(torn) - 1


def test_a_node_is_torn_only_if_it_is_too_full() -> None:
    # Four even towns under two even regions: two shards are the regions.
    places = Hierarchy.from_mapping({"North": ["a", "b"], "South": ["c", "d"]})
    values = np.repeat(np.arange(4.0), 25).reshape(-1, 1)
    tree = learn_tree(policy({"place": Categorical(hierarchy=places)}), rows_of(values), 2)
    assert [cut.at for cut in tree.cuts] == [2.0]
    codes = np.array([100.0, 101, 110, 111, 200, 201, 210, 211] * 10).reshape(-1, 1)
    tree = learn_tree(policy({"zip": Prefix(length=3)}), rows_of(codes), 2)
    assert [cut.at for cut in tree.cuts] == [200.0]


def test_cuts_lie_on_the_grid_of_a_step_and_are_round_elsewhere() -> None:
    sample = drawn(3000)
    cuts = learn_tree(policy(), sample, 24).cuts
    assert {cut.column for cut in cuts} >= {0, 1}
    assert all(cut.at == int(cut.at) for cut in cuts if cut.column != 0)  # a cell, a prefix, a leaf
    assert not {cut.at for cut in cuts if cut.column == 0} & set(sample.qi[:, 0])


def test_thin_leaves_are_not_made() -> None:
    """Ten rows of the stream come inside the deadline for each row of the sample."""
    sample = drawn(400)
    tree = learn_tree(policy(k=5), sample, 64, Supply(rows=1.0))
    sizes = np.bincount(tree.find(sample.qi))
    assert 2 <= tree.shards < 64
    assert sizes.min() >= CROWD * 5
    assert learn_tree(policy(k=5), sample, 64, Supply(rows=10.0)).shards > tree.shards
    assert learn_tree(policy(k=500), sample, 64, Supply(rows=1.0)).shards == 1
    # A deadline in rows of the shard feeds every leaf alike.
    assert learn_tree(policy(k=5), sample, 64, Supply(of_shard=10 * CROWD * 5)).shards == 64


def test_persons_count_not_rows() -> None:
    sample = drawn(400)
    few = rows_of(sample.qi, np.arange(400, dtype=np.int64) % 30)
    assert learn_tree(policy(k=5), sample, 8, Supply(rows=10.0)).shards == 8
    assert learn_tree(policy(k=5), few, 8, Supply(rows=10.0)).shards == 1


def test_rows_that_are_alike_stay_together() -> None:
    alike = rows_of(np.tile([40.0, 3.0, 111.0, 2.0], (500, 1)))
    assert learn_tree(policy(), alike, 8).shards == 1
    # Where most rows are alike, nothing smaller is cut: it would be no faster.
    mixed = rows_of(np.vstack([alike.qi, drawn(150).qi]))
    assert learn_tree(policy(), mixed, 8).shards <= 3


def test_missing_values_do_no_harm() -> None:
    sample = drawn(400)
    sample.qi[::3, 0] = np.nan
    sample.qi[:, 1] = np.nan
    tree = learn_tree(policy(), sample, 8)
    assert tree.shards == 8
    assert {cut.column for cut in tree.cuts} <= {0, 2, 3}


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=12))
def test_the_mean_distance_is_that_of_all_pairs(values: list[int]) -> None:
    slow = np.mean([[abs(a - b) for b in values] for a in values])
    assert tree_learning._mean_distance(np.array(values, dtype=np.float64)) == pytest.approx(float(slow))


@pytest.mark.parametrize(
    ("below", "above", "at"), [(39.7, 41.2, 40), (0.0, 1.0, 1), (0.12, 0.131, 0.13), (-3.2, -2.9, -3)]
)
def test_cuts_are_round_numbers(below: float, above: float, at: float) -> None:
    assert tree_learning._round_between(below, above) == pytest.approx(at)


def test_an_empty_sample_makes_one_shard() -> None:
    tree = learn_tree(policy(), drawn(1).take(np.array([], dtype=np.int64)), 8)
    assert isinstance(tree, ShardTree) and tree.shards == 1
