"""A tree of shards from a sample, and what it means: how even it is, and how many persons its thinnest leaf meets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from crenel.encoding.row_sample import RowSample
from crenel.encoding.rows import Rows
from crenel.encoding.tree_learning import CROWD, Supply, learn_tree
from crenel.pipelines.console.sections import Finding, Line, Severity, count, listed
from crenel.policy import Policy
from crenel.policy.sharding.shard_tree import ShardTree

__all__ = ["TreePlan", "rate_of"]


@dataclass(frozen=True, kw_only=True, eq=False)
class TreePlan:
    """A learned tree, measured on its sample. It tells counts and shares, never where a cut is."""

    tree: ShardTree
    asked: int
    #: Rows of the sample, and those of the fullest leaf to the mean.
    rows: int
    fullest: float
    #: The fewest persons that a leaf meets inside the deadline, and how many times k that is.
    persons: float
    crowd: float
    #: How many cuts each quasi-identifier has.
    cuts: dict[str, int]

    @classmethod
    def of(cls, policy: Policy, sample: Rows, shards: int, rows_inside: float) -> TreePlan:
        """Learn a tree of at most this many shards.

        Args:
            policy: The policy.
            sample: Encoded rows.
            shards: The most leaves.
            rows_inside: Rows of the whole stream inside the deadline.
        """
        supply = Supply.of(policy, len(sample), rows_inside)
        tree = learn_tree(policy, sample, shards, supply)
        leaf = tree.find(sample.qi)
        sizes = np.bincount(leaf, minlength=tree.shards)
        persons = min(
            supply.persons(int(size), len(np.unique(sample.person[leaf == shard])))
            for shard, size in enumerate(sizes.tolist())
        )
        named = Counter(tree.columns[cut.column] for cut in tree.cuts)
        return cls(
            tree=tree,
            asked=shards,
            rows=len(sample),
            fullest=float(sizes.max() / max(sizes.mean(), 1e-12)),
            persons=persons,
            crowd=persons / policy.k,
            cuts=dict(named),
        )

    def lines(self) -> Iterator[Line]:
        """Describe the tree."""
        yield "shards", f"{self.tree.shards}, learned from {count(self.rows, 'row')}"
        yield "fullest", f"{self.fullest:.2f} times the mean, on the sample"
        yield "thinnest", f"meets {self.persons:,.0f} persons inside the deadline, {self.crowd:.3g} times k"
        if self.cuts:
            yield "cut by", listed([f"{name} ({number})" for name, number in self.cuts.items()])

    def findings(self) -> Iterator[Finding]:
        """Report what is less than was asked for."""
        if self.tree.shards < self.asked:
            text = (
                f"The tree has {count(self.tree.shards, 'shard')}, not {self.asked}: a shard should meet {CROWD:g} "
                "times k persons inside the deadline, and rows that are alike cannot be parted. A longer delay, or a "
                "smaller k, feeds more."
            )
            yield Finding(Severity.NOTE, text)

    def as_dict(self) -> dict[str, object]:
        """Return the figures for JSON."""
        return {
            "shards": self.tree.shards,
            "asked": self.asked,
            "rows": self.rows,
            "fullest": self.fullest,
            "persons": self.persons,
            "crowd": self.crowd,
            "cuts": self.cuts,
        }


def rate_of(policy: Policy, sample: RowSample) -> float | None:
    """Compute the rows per second of a sample of consecutive rows; None if they have no event times."""
    if policy.event_time is None or sample.span == 0:
        return None
    return sample.count * 1e6 / sample.span
