"""Learns a tree of shards from a sample of encoded rows: leaves that are local, even, and not too thin.

Each step cuts the fullest leaf in two. Of all cuts of one quasi-identifier, the best leaves the least mean distance
between two rows of the same side; an uneven cut pays for it. Numbers are cut near the middle. Categories and prefixes
are cut between two children of a node, so that no node below it is torn.

The tree depends on the sample alone: the same rows, in any order, lead to the same tree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from crenel.encoding.row_sample import RowSample
from crenel.encoding.rows import Rows
from crenel.policy import Policy
from crenel.policy.geometry import Geometry, Interval, Radix, Tree
from crenel.policy.sharding.shard_rule import AUTO, MOST_AUTO
from crenel.policy.sharding.shard_tree import MOST_SHARDS, Cut, ShardTree, fingerprint

__all__ = [
    "CROWD",
    "HELD",
    "RATE",
    "Supply",
    "expected_persons",
    "learn_tree",
    "learned_from",
    "needed_shards",
    "rows_inside",
    "with_tree",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: A leaf should meet this many times k persons inside the deadline: with fewer it runs out of company (docs/scale.md).
CROWD = 8.0

#: With `shards: auto`, a shard has at most this many rows inside the deadline, so that its snapshot is some 15 MB, and
#: takes at most this many a second, which also a slow core does in half of its time (docs/scale.md).
HELD, RATE = 100_000, 40_000

#: Where numbers are cut: quantiles of the rows of a leaf.
_QUANTILES = (0.35, 0.5, 0.65)
#: The least share of a leaf's rows on either side of a cut, and what unevenness costs in units of the leaf's spread.
_LEAST_SIDE, _UNEVEN = 0.3, 0.5
#: A cut is judged by at most this many rows of its leaf.
_JUDGED = 2_000


@dataclass(frozen=True, kw_only=True)
class Supply:
    """What a sample stands for: the rows that a leaf meets inside the deadline."""

    #: Rows of the whole stream inside the deadline, to one row of the sample.
    rows: float = math.inf
    #: Rows of one shard inside the deadline, if the deadline counts rows.
    of_shard: float | None = None

    @classmethod
    def of(cls, policy: Policy, sampled: int, rows_inside: float) -> Supply:
        """Compute the supply of a stream that has `rows_inside` rows inside the deadline, from `sampled` of them."""
        return cls(rows=rows_inside / max(sampled, 1), of_shard=policy.delay_rows)

    def persons(self, rows: int, persons: int) -> float:
        """Estimate the persons that a leaf meets inside the deadline, given its rows and persons in the sample."""
        most = math.inf if self.of_shard is None else self.of_shard
        return expected_persons(min(rows * self.rows, most), _population(rows, persons))


def learned_from(policy: Policy, sample: RowSample) -> ShardTree:
    """Learn the tree of a policy's shards from a sample of bounded input."""
    inside = rows_inside(policy, sample)
    shards = needed_shards(inside) if policy.shards == AUTO else policy.shards
    return learn_tree(policy, sample.rows, shards, Supply.of(policy, len(sample.rows), inside))


def with_tree(policy: Policy, tree: ShardTree) -> Policy:
    """Return the policy with a tree in place of its shards."""
    return replace(policy, shards=tree.shards, shard_by=tree)


def rows_inside(policy: Policy, sample: RowSample) -> float:
    """Estimate how many rows of the sampled input arrive inside the deadline, if they come evenly."""
    if policy.delay is None or policy.event_time is None or sample.span == 0:
        return float(sample.count)
    return sample.count * min(1.0, policy.delay / sample.span)


def needed_shards(rows: float, rate: float = 0.0) -> int:
    """Return the fewest shards that keep each within what a core can do.

    Args:
        rows: Rows of the whole stream inside the deadline.
        rate: Rows of the whole stream in a second; 0 if they are there already.
    """
    return min(max(math.ceil(rows / HELD), math.ceil(rate / RATE), 1), MOST_AUTO)


def learn_tree(policy: Policy, sample: Rows, shards: int, supply: Supply = Supply()) -> ShardTree:
    """Learn a tree of at most this many shards.

    It has fewer leaves if more would be too thin (see `CROWD`), or if rows that are alike leave nothing to cut.

    Args:
        policy: The quasi-identifiers, k and the deadlines.
        sample: Encoded rows.
        shards: The most leaves.
        supply: What the sample stands for.
    """
    columns, space = tuple(policy.quasi_identifiers), fingerprint(policy.quasi_identifiers)
    shards = min(shards, MOST_SHARDS) if len(sample) else 1
    learner = _Learner(policy, _in_order(sample), supply) if shards > 1 else None
    leaves = [np.arange(len(sample))]
    cuts: list[_Found] = []
    parents: list[int] = []
    closed: set[int] = set()
    while learner is not None and len(leaves) < shards:
        leaf = _fullest(leaves, closed)
        if leaf is None:
            break
        found = learner.best_cut(leaves[leaf])
        if found is None:
            closed.add(leaf)
            continue
        cuts.append(found)
        parents.append(leaf)
        leaves[leaf] = found.below
        leaves.append(found.above)
    return ShardTree(columns, _linked(cuts, parents), space)


def expected_persons(rows: float, population: float) -> float:
    """Expected distinct persons among `rows` rows, if all persons are equally active."""
    if math.isinf(population):
        return rows
    return population * -math.expm1(-rows / population) if population else 0.0


@dataclass(frozen=True, eq=False)
class _Found:
    """A cut, and the rows of the sample on its sides."""

    column: int
    at: float
    below: Ints
    above: Ints


class _Learner:
    def __init__(self, policy: Policy, sample: Rows, supply: Supply) -> None:
        self._qi = sample.qi
        self._person = sample.person
        self._supply = supply
        self._least = CROWD * policy.k
        qis = list(policy.quasi_identifiers.values())
        self._geometries = [qi.geometry for qi in qis]
        weights = np.array([qi.weight for qi in qis])
        self._shares = weights / weights.sum()
        self._widths = [_width(qi.geometry, self._qi[:, d]) for d, qi in enumerate(qis)]

    def best_cut(self, rows: Ints) -> _Found | None:
        """Find the best cut of a leaf; None if there is none."""
        best, least = None, math.inf
        whole = self._spread(rows)
        for column in range(len(self._geometries)):
            for at in self._places(column, rows):
                is_above = self._qi[rows, column] >= at
                above, below = rows[is_above], rows[~is_above]
                share = len(below) / len(rows)
                if min(share, 1.0 - share) < _LEAST_SIDE or not (self._feeds(below) and self._feeds(above)):
                    continue
                spread = share * self._spread(below) + (1.0 - share) * self._spread(above)
                cost = spread / whole + _UNEVEN * abs(share - 0.5)
                if cost < least:
                    best, least = _Found(column, at, below, above), cost
        return best

    def _feeds(self, rows: Ints) -> bool:
        """Tell whether a leaf of these rows meets enough persons inside the deadline."""
        persons = len(np.unique(self._person[rows]))
        return self._supply.persons(len(rows), persons) >= self._least

    def _spread(self, rows: Ints) -> float:
        """Compute the mean distance of two rows, relative to the domains; at least a little, because it divides.

        Categories and prefixes count by their numbers, also inside a node: to a group, rows of equal values are worth
        more than rows of one node, and numbers that are near each other are rows of few values.
        """
        judged = rows if len(rows) <= _JUDGED else rows[:: -(-len(rows) // _JUDGED)]
        total = 0.0
        for column in range(len(self._geometries)):
            values = self._qi[judged, column]
            known = values[~np.isnan(values)]
            if len(known) and self._widths[column]:
                total += self._shares[column] * _mean_distance(known) / self._widths[column]
        return max(total, 1e-12)

    def _places(self, column: int, rows: Ints) -> list[float]:
        values = np.sort(self._qi[rows, column])
        values = values[~np.isnan(values)]
        if len(values) == 0 or values[0] == values[-1]:
            return []
        geometry = self._geometries[column]
        if isinstance(geometry, Interval):
            return sorted(set(_quantiles(values, whole=geometry.cells)))
        return sorted(set(_between_children(geometry, values)))


def _in_order(sample: Rows) -> Rows:
    """Sort the sample by its content, so that the order of the rows does not matter."""
    keys = (sample.time, sample.person, *sample.qi.T)
    return sample.take(np.lexsort(keys))


def _fullest(leaves: list[Ints], closed: set[int]) -> int | None:
    """Choose the leaf to cut; None if none is worth it: shards smaller than one that stays whole gain no speed."""
    sizes = [len(rows) for rows in leaves]
    largest = max((sizes[leaf] for leaf in closed), default=0)
    open_leaves = [leaf for leaf in range(len(leaves)) if leaf not in closed and 2 * sizes[leaf] > largest]
    return max(open_leaves, key=lambda leaf: (sizes[leaf], -leaf), default=None)


def _linked(found: list[_Found], parents: list[int]) -> tuple[Cut, ...]:
    """Link the cuts: each side of a cut is the next cut of that leaf, or the leaf as a shard."""
    sides: list[list[int]] = []
    where: dict[int, tuple[int, int]] = {}  # the open side of each leaf
    for place, leaf in enumerate(parents):
        if leaf in where:
            cut, side = where[leaf]
            sides[cut][side] = place
        sides.append([~leaf, ~(place + 1)])
        where[leaf], where[place + 1] = (place, 0), (place, 1)
    return tuple(Cut(one.column, one.at, *pair) for one, pair in zip(found, sides, strict=True))


# --- Where to cut ---


def _quantiles(values: Floats, *, whole: bool) -> Iterator[float]:
    """Cut sorted numbers near their middle, on both sides of a value that many rows share."""
    for quantile in _QUANTILES:
        value = values[int(quantile * len(values))]
        for side in ("left", "right"):
            place = int(np.searchsorted(values, value, side=side))
            if 0 < place < len(values):
                yield float(values[place]) if whole else _round_between(values[place - 1], values[place])


def _round_between(below: float, above: float) -> float:
    """Return a number with few digits that is greater than `below` and at most `above`.

    A cut should not be a row's exact value, unless no other number separates the rows.
    """
    width = above - below
    for exponent in range(math.ceil(math.log10(width)), math.floor(math.log10(width)) - 3, -1):
        size = 10.0**exponent
        number = math.floor(above / size) * size
        number = round(number, -exponent) if exponent < 0 else number
        if below < number <= above:
            return float(number)
    return float(above)


def _between_children(geometry: Geometry, values: Floats) -> Iterator[float]:
    """Cut between two children of a node: the lowest above all values, and heavy nodes below it.

    A node below is cut only if it has more than half of the rows, for then an even cut must go through it.
    """
    while values[0] != values[-1]:
        starts = _children(geometry, values[0], values[-1])
        inside = starts[(starts > values[0]) & (starts <= values[-1])]
        yield from (float(start) for start in inside)
        ends = np.searchsorted(values, [*inside, math.inf])
        begins = np.concatenate([[0], ends[:-1]])
        heavy = int(np.argmax(ends - begins))
        part = values[begins[heavy] : ends[heavy]]
        if 2 * len(part) <= len(values) or len(part) == len(values):
            return
        values = part


def _children(geometry: Geometry, first: float, last: float) -> Floats:
    """Return where the children begin of the lowest node above both."""
    if isinstance(geometry, Tree):
        node = geometry.ancestor(first, last)
        children = np.flatnonzero(geometry.parent == node)
        return np.array(geometry.first[children[children != node]], dtype=np.float64)
    if not isinstance(geometry, Radix):
        message = "an interval has no children."
        raise TypeError(message)
    lo, hi = geometry.span(first, last)
    size = (hi - lo + 1.0) / geometry.base
    return np.array([lo + size * digit for digit in range(geometry.base)])


# --- How far apart rows are ---


def _width(geometry: Geometry, values: Floats) -> float:
    """Return the width of a domain; of one that is learned, the width that the sample shows."""
    lo, hi = geometry.widest()
    if math.isinf(lo):
        known = values[~np.isnan(values)]
        lo, hi = (known.min(), known.max()) if len(known) else (0.0, 0.0)
    return float(hi - lo)


def _mean_distance(values: Floats) -> float:
    """Compute the mean distance between two values, each with each."""
    count = len(values)
    rank = 2.0 * np.arange(count) - count + 1.0
    return float(2.0 * (np.sort(values) * rank).sum() / count**2)


def _population(rows: int, persons: int) -> float:
    """Estimate how many persons there are, given how many different ones `rows` rows show; infinite if all differ."""
    if persons >= rows:
        return math.inf
    low, high = float(persons), float(persons) * 2.0
    while expected_persons(rows, high) < persons:
        low, high = high, high * 2.0
    for _ in range(50):
        middle = (low + high) / 2.0
        low, high = (middle, high) if expected_persons(rows, middle) < persons else (low, middle)
    return high
