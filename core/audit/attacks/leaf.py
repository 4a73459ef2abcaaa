"""The attacker who has the tree of shards: who may be in a release, given its box and the leaf that it comes from.

All rows of a release come from one leaf. So the attacker keeps only the persons whose values lie in the box and in the
leaf. The ends of numbers are values of the leaf's own rows, or cells of its grid, and tell that much already. But what
is published for a category or a prefix may reach over a cut: of "Europe", one leaf may have only a half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crenel.policy.sharding.shard_tree import ShardTree

__all__ = ["LeafGain", "leaf_gain"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LeafGain:
    """The persons who may be in each release: without the tree, and with it."""

    by_box: NDArray[np.int64]
    by_leaf: NDArray[np.int64]

    @property
    def narrowed(self) -> float:
        """The share of the releases of which the tree rules somebody out."""
        return float(np.mean(self.by_leaf < self.by_box)) if len(self.by_box) else 0.0

    @property
    def fewest(self) -> int:
        """The fewest persons who may be in a release, to an attacker who has the tree."""
        return int(self.by_leaf.min(initial=np.iinfo(np.int64).max))


def leaf_gain(
    tree: ShardTree, lo: Floats, hi: Floats, shard: NDArray[np.int64], qi: Floats, person: NDArray[np.int64]
) -> LeafGain:
    """Count who may be in each release.

    Args:
        tree: The tree of shards.
        lo: Where the box of each release begins, one row each and one column per quasi-identifier.
        hi: Where it ends.
        shard: The leaf of each release. The attacker may know it from the time, or from the box itself.
        qi: The quasi-identifiers of everybody whom the attacker knows.
        person: Their persons.
    """
    leaf = tree.find(qi)
    by_box = np.zeros(len(lo), dtype=np.int64)
    by_leaf = np.zeros(len(lo), dtype=np.int64)
    for release in range(len(lo)):
        fits = np.all((qi >= lo[release]) & (qi <= hi[release]), axis=1)
        by_box[release] = len(np.unique(person[fits]))
        by_leaf[release] = len(np.unique(person[fits & (leaf == shard[release])]))
    return LeafGain(by_box, by_leaf)
