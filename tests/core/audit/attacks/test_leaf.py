"""An attacker who has the tree of shards rules persons out of a release, but at least k are always left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crenel.audit.attacks.leaf import LeafGain, leaf_gain
from crenel.encoding.rows import Rows
from crenel.encoding.tree_learning import learn_tree, with_tree
from crenel.engine import Kind, create_engine
from crenel.policy import Policy, ShardTree
from crenel.policy.quasi_identifiers import Categorical, Numeric, QuasiIdentifier

PLACES = {"North": [f"n{i}" for i in range(12)], "South": [f"s{i}" for i in range(4)]}
K = 4


def attacked(qis: dict[str, QuasiIdentifier], qi: NDArray[np.float64], **changes: Any) -> LeafGain:
    """Publish rows by a tree of four shards, and attack every release."""
    count = len(qi)
    rows = Rows(qi, np.arange(count, dtype=np.int64), np.zeros((count, 0), np.int64), np.zeros(count, np.int64))
    plain = Policy(person="who", quasi_identifiers=qis, k=K, delay_rows=40, seed=1, **changes)
    policy = with_tree(plain, learn_tree(plain, rows, 4))
    tree = policy.shard_by
    assert isinstance(tree, ShardTree) and tree.shards == 4
    lo, hi, shard = [], [], []
    for leaf in range(4):
        mine = rows.take(np.flatnonzero(tree.find(qi) == leaf))
        engine = create_engine(policy, shard=b"%d" % leaf)
        for releases in (engine.push(mine), engine.flush()):
            crowds = releases.kind == Kind.CLUSTER
            lo.append(releases.lo[crowds])
            hi.append(releases.hi[crowds])
            shard += [leaf] * int(crowds.sum())
    return leaf_gain(tree, np.concatenate(lo), np.concatenate(hi), np.array(shard), qi, rows.person)


def numbers(count: int) -> NDArray[np.float64]:
    return np.random.default_rng(0).integers(0, 50, (count, 2)).astype(np.float64)


@pytest.mark.parametrize("step", [None, 5])
def test_boxes_of_numbers_lie_in_their_leaf(step: float | None) -> None:
    """Their ends are values, or cells, of the leaf's own rows: the tree tells nothing that the box does not."""
    qis: dict[str, QuasiIdentifier] = {name: Numeric(domain=(0, 250), step=step) for name in ("a", "b")}
    gain = attacked(qis, numbers(400))
    assert gain.narrowed == 0.0
    assert gain.fewest >= K


@pytest.mark.parametrize("method", ["bastion", "castle"])
def test_a_node_that_is_torn_is_narrowed_to_its_leaf(method: str) -> None:
    """The weak stream: nearly all rows are under one node, so that cuts go through it."""
    places = np.random.default_rng(1).choice(16, 400, p=[0.07] * 12 + [0.04] * 4).astype(np.float64)
    qis: dict[str, QuasiIdentifier] = {
        "place": Categorical(hierarchy=PLACES),  # type: ignore[arg-type]
        "age": Numeric(domain=(0, 50)),
    }
    gain = attacked(qis, np.column_stack([places, numbers(400)[:, 0]]), method=method)
    assert gain.narrowed > 0.1
    assert gain.by_leaf.mean() < 0.9 * gain.by_box.mean()
    # Members of a release are of one leaf, and at least k: no tree takes that away.
    assert gain.fewest >= K
