"""Follows a stream with a tree of shards: learns the tree from the first rows, and anew when the stream has changed.

One follower sees all rows, in one order. It samples them, period by period. At the end of a period it judges the tree
by the sample: is a shard too full, or too thin, or are there too few or too many shards? If so, it learns another tree
from the same sample, which holds from a moment of event time on that lies after all rows so far.

What it decides depends on the rows and their order alone, not on how they are cut into packs. Its state is small: the
trees, a few counts, and the sample of the present period.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from crenel.encoding.row_sample import joined
from crenel.encoding.rows import Rows
from crenel.encoding.tree_learning import CROWD, Supply, learn_tree, needed_shards
from crenel.policy import Policy
from crenel.policy.sharding.shard_rule import AUTO
from crenel.policy.sharding.shard_tree import ShardTree, fingerprint
from crenel.policy.sharding.tree_schedule import TreeSchedule

__all__ = ["MOST_TREES", "TreeFollower", "Watch", "one_shard"]

#: The rows of a sample: at least this many, and this many for each shard, but no more than the third.
_SAMPLE, _SAMPLE_OF_SHARD, _MOST_SAMPLE = 8_192, 64, 65_536
#: A period may end after each of these parts of its sample, if it has become this many deadlines long.
_PARTS, _LONG = 8, 2.0
#: The most rows of the stream to one of the sample; where time does not tell, the second.
_MOST_EVERY, _MOST_EVERY_UNTIMED = 4_096, 64

#: A shard is too full if it surely has more than this many times the mean. A tree is learned with 1.6 at most.
_FULL = 2.0
#: A new tree must take this share of rows off the fullest shard, at least.
_RELIEF = 0.2
#: A shard is too thin if it meets less than this share of the persons that a leaf is learned with.
_THIN = 0.5
#: More shards are tried only when this many times as many rows are inside the deadline as when they were tried last.
_GROWTH = 2.0

#: The most trees that are remembered. Rows that are older than all of them go by the oldest.
MOST_TREES = 8
#: Event times outside of these quantiles do not count: some rows have wrong dates.
_STRAY = 0.05
#: A tree takes effect this part of the deadline after the latest row.
_AHEAD = 16


@dataclass(frozen=True, kw_only=True)
class Watch:
    """How far a period has come."""

    #: The number of the period.
    period: int = 0
    #: Rows in the period so far. Of each `every` rows, the first is sampled.
    rows: int = 0
    every: int = 1
    #: Rows inside the deadline when trees were learned last.
    inside: float = 0.0

    @property
    def sampled(self) -> int:
        """The number of rows that were sampled in the period."""
        return -(-self.rows // self.every)


def one_shard(policy: Policy) -> TreeSchedule:
    """Return the schedule before anything is learned: one shard holds all rows."""
    tree = ShardTree(tuple(policy.quasi_identifiers), (), fingerprint(policy.quasi_identifiers))
    return TreeSchedule((tree,))


class TreeFollower:
    """Deals out rows to shards, in the order in which they come, and learns from them.

    Args:
        policy: The quasi-identifiers, k, the deadlines, and the shards that are asked for.
        schedule: The trees so far.
        watch: How far the present period has come.
        stored: Reads the sample of the present period, apart from `fresh`.
    """

    def __init__(
        self, policy: Policy, schedule: TreeSchedule, watch: Watch, stored: Callable[[], Iterable[Rows]]
    ) -> None:
        self._policy = policy
        self._stored = stored
        self.schedule = schedule
        self.watch = watch
        #: Rows of the sample that are not stored yet; and whether what is stored is of a period that is over.
        self.fresh: list[Rows] = []
        self.is_over = False
        #: The number of trees that were learned.
        self.learned = 0

    def __repr__(self) -> str:
        """Show sizes, never values."""
        return f"TreeFollower({len(self.schedule.trees)} trees, period {self.watch.period})"

    def deal(self, rows: Rows) -> NDArray[np.int64]:
        """Find the shard of each row."""
        shard = np.empty(len(rows), dtype=np.int64)
        start = 0
        while start < len(rows):
            part = self._part_rows()
            stop = min(len(rows), start + part - self.watch.rows % part)
            now = rows.slice(start, stop)
            shard[start:stop] = self.schedule.find(now.qi, now.time)
            self._sample(now)
            if self.watch.rows % part == 0:
                self._end_part()
            start = stop
        return shard

    def _part_rows(self) -> int:
        return self._sample_size() // _PARTS * self.watch.every

    def _sample_size(self) -> int:
        return min(max(_SAMPLE, _SAMPLE_OF_SHARD * self.schedule.trees[-1].shards), _MOST_SAMPLE)

    def _sample(self, rows: Rows) -> None:
        watch = self.watch
        chosen = np.arange(-watch.rows % watch.every, len(rows), watch.every)
        if len(chosen):
            taken = rows.take(chosen)
            self.fresh.append(replace(taken, sensitive=np.zeros((len(taken), 0), dtype=np.int64)))
        self.watch = replace(watch, rows=watch.rows + len(rows))

    def _end_part(self) -> None:
        """End the period if its sample is large enough, or if it has taken long."""
        parts = [*([] if self.is_over else self._stored()), *self.fresh]
        sample = _Sample(self._policy, joined(parts), self.watch.every)
        if self.watch.sampled < self._sample_size() and not sample.is_long:
            return
        self._judge(sample)
        self.watch = replace(self.watch, period=self.watch.period + 1, rows=0, every=sample.next_every)
        self.fresh, self.is_over = [], True

    def _judge(self, sample: _Sample) -> None:
        tree = self.schedule.trees[-1]
        wanted = sample.needed if self._policy.shards == AUTO else self._policy.shards
        fullest, is_full, is_thin = sample.judge(tree)
        could_grow = tree.shards < wanted and sample.inside >= _GROWTH * self.watch.inside
        # Rates go up and down: the number of shards should not follow each of them.
        has_shrunk = tree.shards > (2 * wanted if self._policy.shards == AUTO else wanted)
        if not (is_full or is_thin or could_grow or has_shrunk):
            return
        self.watch = replace(self.watch, inside=sample.inside)
        learned = learn_tree(self._policy, sample.rows, wanted, sample.supply)
        now_fullest, _, still_thin = sample.judge(learned)
        is_better = (
            (is_full and now_fullest <= (1.0 - _RELIEF) * fullest)
            or (is_thin and not still_thin)
            or (could_grow and learned.shards > tree.shards)
            or (has_shrunk and learned.shards < tree.shards)
        )
        if is_better:
            self._adopt(learned, sample.moment)

    def _adopt(self, tree: ShardTree, moment: int) -> None:
        # A tree of a later moment was put off by wrong dates, or is of a future that the stream has gone back from.
        earlier = bisect_left(self.schedule.moments, moment)
        trees = (*self.schedule.trees[: earlier + 1], tree)
        moments = (*self.schedule.moments[:earlier], moment)
        surplus = max(0, len(trees) - MOST_TREES)
        self.schedule = TreeSchedule(trees[surplus:], moments[surplus:])
        self.learned += 1


class _Sample:
    """What the sample of a period says about the stream.

    Args:
        policy: The deadlines, and k.
        rows: The sample.
        every: Rows of the stream to one of the sample.
    """

    def __init__(self, policy: Policy, rows: Rows, every: int) -> None:
        self.rows = rows
        self._policy = policy
        self._every = every
        time = np.sort(rows.time)
        stray = int(len(time) * _STRAY)
        first, self._last = int(time[stray]), int(time[-1 - stray])
        self._time = time
        #: Microseconds of event time, and rows of the stream in them.
        self._span = self._last - first
        self._count = (len(time) - 2 * stray) * every

    @property
    def is_long(self) -> bool:
        """Whether the sample covers more than enough time."""
        return self._policy.delay is not None and self._span >= _LONG * self._policy.delay

    @property
    def inside(self) -> float:
        """Rows of the stream inside the deadline; where time does not tell, those of the period."""
        if self._policy.delay is None or not self._span:
            return float(self._count)
        return self._count * self._policy.delay / self._span

    @property
    def supply(self) -> Supply:
        """What the sample stands for. A deadline of rows alone waits as long as it takes for them."""
        inside = math.inf if self._policy.delay is None else self.inside
        return Supply.of(self._policy, len(self.rows), inside)

    @property
    def needed(self) -> int:
        """The fewest shards that keep each within what a core can do."""
        held = self._policy.delay_rows if self._policy.delay is None else self.inside
        rate = self._count * 1e6 / self._span if self._span else 0.0
        return needed_shards(float(held or 0), rate)

    @property
    def moment(self) -> int:
        """A moment after all rows, apart from those with wrong dates."""
        reach = self._span if self._policy.delay is None else self._policy.delay
        latest = self._time[np.searchsorted(self._time, self._last + reach, side="right") - 1]
        return int(latest) + (self._policy.delay or 0) // _AHEAD + 1

    @property
    def next_every(self) -> int:
        """Rows of the stream to one of the next sample, so that it covers a deadline."""
        if self._policy.delay is None or not self._span:
            return min(2 * self._every, _MOST_EVERY_UNTIMED)
        return min(max(round(self._every * self._policy.delay / self._span), 1), _MOST_EVERY)

    def judge(self, tree: ShardTree) -> tuple[int, bool, bool]:
        """Count the sampled rows of the fullest shard; tell whether it is too full, and whether any is too thin."""
        shard = tree.find(self.rows.qi)
        counts = np.bincount(shard, minlength=tree.shards)
        fullest = int(counts.max())
        is_full = fullest - 3.0 * math.sqrt(fullest) > _FULL * counts.mean()
        is_thin = tree.shards > 1 and self._thinnest(tree, shard, counts) < _THIN * CROWD * self._policy.k
        return fullest, is_full, is_thin

    def _thinnest(self, tree: ShardTree, shard: NDArray[np.int64], counts: NDArray[np.int64]) -> float:
        """Estimate the persons that the thinnest shard meets inside the deadline, generously where rows are few."""
        pairs = np.unique(np.stack([shard, self.rows.person], axis=1), axis=0)
        persons = np.bincount(pairs[:, 0], minlength=tree.shards)
        generous = counts + 2.0 * np.sqrt(counts) + 1.0
        supply, shares = self.supply, generous / np.maximum(counts, 1)
        return float(
            min(
                supply.persons(max(rows, 1), max(known, 1)) * share
                for rows, known, share in zip(counts.tolist(), persons.tolist(), shares.tolist(), strict=True)
            )
        )
