"""Bounds on a published stream that follow from the input alone, without a trace.

Rows are matched by their *class*: the values that leave unchanged. A published row is one of the input rows of its
class that lie in its box, its *candidates*. Nobody can tell which of them. So only bounds that hold under every
possible matching are reported:

- If a box holds more published rows of a class than input rows of that class lie in it, some rows are not contained.
- A group of m rows has at least n persons if no n - 1 persons have m candidate rows together. A person counts for at
  most as many rows of a class as are published of it.
- A group has at most as many persons as there are persons with candidates.

If each person has one row, both bounds equal the number of rows. If there are too many candidates in total, the groups
with the most candidates get a coarser bound: no person counts for more rows than the most active person has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.encoding.keyed_hash import siphash

__all__ = ["Bounds", "Candidates", "bounds", "bounds_of_perturbed", "count_surplus", "fingerprints"]

Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: The key that rows are hashed with. It is no secret: these hashes stay inside the audit.
_KEY = np.array([1, 2], dtype=np.uint64)

#: Rows in a leaf of the index, and leaves that `a_few` reads at a time.
_LEAF, _FEW = 256, 16
#: How many candidates are examined in total: about ten seconds of work.
_COST = 100_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class Bounds:
    """The bounds on each group, under every possible matching."""

    #: The least and the largest possible number of persons.
    least: Ints = field(repr=False)
    most: Ints = field(repr=False)
    #: Rows that cannot all be contained.
    excess: Ints = field(repr=False)
    #: Rows that are contained only under some matchings: other rows of their class lie outside the box.
    unsure: Ints = field(repr=False)


class Candidates:
    """A spatial index that finds the rows in a box quickly, since most boxes are small.

    Args:
        qi: The rows' coordinates; NaN where one is missing.
        filled: Whether a value may be published for a missing one (`fill_missing`).
    """

    def __init__(self, qi: Floats, *, filled: bool = False) -> None:
        self._filled = filled
        hole = np.isnan(qi)
        # Missing values sort before all coordinates. Only a box that does not publish the column begins there.
        points = np.where(hole, -np.inf, qi)
        self.order, self._ends = _leaves(points)
        self._points = points[self.order]
        starts = self._ends[:-1]
        most = np.where(hole, np.inf, qi)[self.order] if filled else self._points
        #: The bounding boxes of the leaves, one row per quasi-identifier.
        self._least = self._most = np.zeros((qi.shape[1], 0))
        if len(points):
            self._least = np.minimum.reduceat(self._points, starts).T.copy()
            self._most = np.maximum.reduceat(most, starts).T.copy()

    def within(self, lo: Floats, hi: Floats) -> Ints:
        """Find the rows in a box, as positions in `order`. NaN marks an unpublished quasi-identifier."""
        return self._inside(self._near(lo, hi), lo, hi)

    def a_few(self, lo: Floats, hi: Floats) -> Iterator[Ints]:
        """Find the rows in a box, a few leaves at a time."""
        near = self._near(lo, hi)
        for start in range(0, len(near), _FEW):
            yield self._inside(near[start : start + _FEW], lo, hi)

    def most(self, lo: Floats, hi: Floats) -> Ints:
        """Return a cheap upper bound on the number of rows in each box."""
        sizes = np.diff(self._ends)
        return np.array([sizes[self._near(*box)].sum() for box in zip(lo, hi, strict=True)], dtype=np.int64)

    def _near(self, lo: Floats, hi: Floats) -> Ints:
        """Find the leaves that intersect a box. An unpublished quasi-identifier does not restrict them."""
        met = np.ones(self._least.shape[1], np.bool_)
        for d in np.flatnonzero(~np.isnan(lo)):
            met &= self._least[d] <= hi[d]
            met &= lo[d] <= self._most[d]
        return np.flatnonzero(met)

    def _inside(self, leaves: Ints, lo: Floats, hi: Floats) -> Ints:
        places = _ranges(self._ends[leaves], self._ends[leaves + 1])
        for d in np.flatnonzero(~np.isnan(lo)):
            # Column by column over the remaining rows: most rows drop out early.
            values = self._points[places, d]
            inside = (lo[d] <= values) & (values <= hi[d])
            if self._filled:
                inside |= np.isneginf(values)
            places = places[inside]
        return places


def bounds(
    candidates: Candidates,
    *,
    person: Ints,
    kind: Ints,
    lo: Floats,
    hi: Floats,
    box: Ints,
    published: Ints,
    tick: Callable[[int], None] = lambda rows: None,
    cost: int = _COST,
) -> Bounds:
    """Compute the bounds of each group.

    Args:
        candidates: An index of the input rows.
        person: The person of each input row.
        kind: The class of each input row.
        lo: The lower ends of the groups' boxes.
        hi: The upper ends of the groups' boxes.
        box: The group of each published row.
        published: The class of each published row.
        tick: Called with the number of published rows that were judged since the last call.
        cost: How many candidates to examine in total. Groups beyond that get the coarser bound.
    """
    judge = _Judge(candidates, person, kind)
    order = np.argsort(box, kind="stable")
    ends = np.searchsorted(box[order], np.arange(len(lo) + 1))
    most = candidates.most(lo, hi)
    by_cost = np.argsort(most, kind="stable")
    looked_at = np.zeros(len(lo), np.bool_)
    looked_at[by_cost] = np.cumsum(most[by_cost]) <= cost
    found = np.zeros((4, len(lo)), np.int64)
    for group in range(len(lo)):
        classes, rows = np.unique(published[order[ends[group] : ends[group + 1]]], return_counts=True)
        look = judge.all_of if looked_at[group] else judge.some_of
        found[:, group] = look(lo[group], hi[group], classes, rows)
        tick(int(rows.sum()))
    least, highest, excess, unsure = found
    return Bounds(least=least, most=highest, excess=excess, unsure=unsure)


class _Judge:
    """Computes the bounds of one group after another, and reuses its arrays of counts per person."""

    def __init__(self, candidates: Candidates, person: Ints, kind: Ints) -> None:
        self._candidates = candidates
        persons, who = np.unique(person, return_inverse=True)
        self._kind = kind[candidates.order]
        self._who = who[candidates.order]
        pairs, pair = np.unique(who * (int(kind.max(initial=0)) + 1) + kind, return_inverse=True)
        self._pair = pair[candidates.order]
        #: The number of input rows of each class, and the largest number of rows of a person.
        self._came = np.bincount(kind, minlength=1)
        self._most_rows = int(np.bincount(who, minlength=1).max())
        self._of_person, self._of_pair = _Sums(len(persons)), _Sums(len(pairs))

    def all_of(self, lo: Floats, hi: Floats, classes: Ints, rows: Ints) -> tuple[int, int, int, int]:
        """Compute the bounds from all candidates."""
        places, at = self._of_classes(self._candidates.within(lo, hi), classes)
        there = np.bincount(at, minlength=len(classes))
        least, most = self._persons(places, at, rows)
        return least, most, int(np.maximum(rows - there, 0).sum()), int(rows[there < self._rows_of(classes)].sum())

    def some_of(self, lo: Floats, hi: Floats, classes: Ints, rows: Ints) -> tuple[int, int, int, int]:
        """Compute the coarser bounds; examine only as many candidates as are needed to find enough of each class."""
        there = np.zeros(len(classes), np.int64)
        for places in self._candidates.a_few(lo, hi):
            there += np.bincount(self._of_classes(places, classes)[1], minlength=len(classes))
            if np.all(there >= rows):
                break
        every = int(rows.sum())
        least = -(-every // max(self._most_rows, 1))
        return least, min(every, len(self._of_person)), int(np.maximum(rows - there, 0).sum()), every

    def _of_classes(self, places: Ints, classes: Ints) -> tuple[Ints, Ints]:
        """Keep the candidates of these classes, and return the class of each."""
        kind = self._kind[places]
        at = np.searchsorted(classes, kind)
        chosen = classes[np.minimum(at, len(classes) - 1)] == kind
        return places[chosen], at[chosen]

    def _rows_of(self, classes: Ints) -> Ints:
        known = classes < len(self._came)
        return np.where(known, self._came[np.where(known, classes, 0)], 0)

    def _persons(self, places: Ints, at: Ints, rows: Ints) -> tuple[int, int]:
        """Compute the least and the largest number of persons from the candidates and their classes."""
        if not len(places):
            return 0, 0
        one, held = self._of_pair.of(self._pair[places], np.ones(len(places), np.int64))
        explained = np.minimum(held, rows[at[one]])
        _, of_person = self._of_person.of(self._who[places[one]], explained)
        every = int(rows.sum())
        persons = min(len(of_person), every)
        # In descending order, by counting instead of sorting: there are few distinct values.
        times = np.minimum(np.bincount(of_person)[::-1], persons)
        covered = np.cumsum(np.repeat(np.arange(len(times))[::-1], times)[:persons])
        return min(int(np.searchsorted(covered, every)) + 1, persons), persons


class _Sums:
    """Sums by key, fast for few keys out of many: it neither sorts nor touches arrays of all keys."""

    def __init__(self, size: int) -> None:
        self._sums, self._last = np.zeros((2, size), np.int64)

    def __len__(self) -> int:
        return len(self._sums)

    def of(self, keys: Ints, values: Ints) -> tuple[Ints, Ints]:
        """Return the last position of each distinct key, and the sum of its values."""
        np.add.at(self._sums, keys, values)
        numbers = np.arange(len(keys))
        self._last[keys] = numbers
        places = np.flatnonzero(self._last[keys] == numbers)
        sums = self._sums[keys[places]]
        self._sums[keys] = 0
        return places, sums


def fingerprints(qi: Floats, kept: Ints) -> npt.NDArray[np.int64]:
    """Number the rows so that rows with equal quasi-identifiers and class get equal numbers."""
    mark = kept.astype(np.int64)
    for column in qi.T:
        word = np.where(np.isnan(column), np.inf, column + 0.0).view(np.int64)
        mark = siphash(mark ^ word, _KEY)
    return mark


def count_surplus(some: Ints, others: Ints) -> int:
    """Count the values in `some` that `others` does not have, or does not have as often."""
    values, count = np.unique(some, return_counts=True)
    other, there = np.unique(others, return_counts=True)
    if not len(other):
        return len(some)
    at = np.minimum(np.searchsorted(other, values), len(other) - 1)
    return int(np.maximum(count - np.where(other[at] == values, there[at], 0), 0).sum())


def bounds_of_perturbed(person: Ints, rows: Ints) -> Bounds:
    """Compute the bounds where boxes do not contain their rows: anyone may be in any group of `rows` rows."""
    held = np.sort(np.unique(person, return_counts=True)[1])[::-1]
    least = np.minimum(np.searchsorted(np.cumsum(held), rows) + 1, len(held))
    none = np.zeros(len(rows), np.int64)
    return Bounds(least=least, most=np.minimum(rows, len(held)), excess=none, unsure=none)


def _leaves(points: Floats) -> tuple[Ints, Ints]:
    """Order the rows so that near ones are together, and cut them into the leaves of a k-d tree."""
    order = np.arange(len(points))
    scaled = _scaled(points)
    ends = [0]
    parts = [(0, len(points))]
    while parts:
        start, stop = parts.pop()
        if stop - start <= _LEAF:
            ends.append(stop)
            continue
        rows = order[start:stop]
        # Split across the widest side, estimated from a sample.
        d = int(np.argmax(np.ptp(scaled[rows[:: max(len(rows) // 1024, 1)]], axis=0)))
        middle = (stop - start) // 2
        order[start:stop] = rows[np.argpartition(scaled[rows, d], middle)]
        # The first half comes next off the stack, so that the ends rise.
        parts += [(start + middle, stop), (start, start + middle)]
    return order, np.array(ends if len(points) else [0])


def _scaled(points: Floats) -> npt.NDArray[np.float32]:
    """Scale the points to a unit cube, roughly; missing coordinates lie before it."""
    scaled = np.empty(points.shape, np.float32)
    for d, column in enumerate(points.T):
        there = np.isfinite(column)
        least, most = column.min(where=there, initial=np.inf), column.max(where=there, initial=-np.inf)
        width = max(most - least, 0.0) or 1.0
        scaled[:, d] = np.where(there, (column - least) / width, -1.0) if there.any() else 0.0
    return scaled


def _ranges(starts: Ints, stops: Ints) -> Ints:
    """List all numbers from each start up to, not including, its stop."""
    sizes = stops - starts
    before = np.concatenate([[0], np.cumsum(sizes)[:-1]]) if len(sizes) else sizes
    return np.asarray(np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes))
