"""What can be said for certain of a published stream by one who has the input, and no trace.

Rows are matched by their *class*: what leaves of them as it is. A published row is one of the input rows of its class
that lie in its box, its *candidates*; which of them, nobody can tell. So everything here is a bound that holds whatever
the truth is:

- If more rows of a class are published under a box than input rows of that class lie in it, some are not contained.
- A group of m rows is of at least n persons, if no n - 1 persons have m candidate rows together; a person counts for no
  more rows of a class than are published of it.
- It is of no more persons than have candidates.

Where each person has one row, both bounds are the number of rows. If there are very many candidates in all, the groups
that have the most of them are judged by less: no person counts for more rows than any person has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.encoding.keyed_hash import siphash

__all__ = ["Bounds", "Candidates", "bounds", "bounds_of_moved", "marks", "not_among"]

Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: What rows are hashed by: nobody is to be kept from guessing here.
_KEY = np.array([1, 2], dtype=np.uint64)

#: Rows of a leaf of the index, and leaves that are a few.
_LEAF, _FEW = 256, 16
#: Candidates that are looked at in all: some ten seconds of work.
_COST = 100_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class Bounds:
    """What is certain of each group, whatever the truth."""

    #: Persons, at least and at most.
    least: Ints = field(repr=False)
    most: Ints = field(repr=False)
    #: Rows that cannot all be contained.
    excess: Ints = field(repr=False)
    #: Rows of which it is not certain: some of their class lie outside of the box.
    unsure: Ints = field(repr=False)


class Candidates:
    """Finds the rows that lie in a box, by an index: a box is mostly small.

    Args:
        qi: The rows' coordinates; NaN where one is missing.
        filled: Whether a row may be published with what it lacks (`fill_missing`).
    """

    def __init__(self, qi: Floats, *, filled: bool = False) -> None:
        self._filled = filled
        hole = np.isnan(qi)
        # Before all coordinates: only a box that does not show this quasi-identifier begins there.
        points = np.where(hole, -np.inf, qi)
        self.order, self._ends = _leaves(points)
        self._points = points[self.order]
        starts = self._ends[:-1]
        most = np.where(hole, np.inf, qi)[self.order] if filled else self._points
        #: The ends of the leaves, a row for each quasi-identifier.
        self._least = self._most = np.zeros((qi.shape[1], 0))
        if len(points):
            self._least = np.minimum.reduceat(self._points, starts).T.copy()
            self._most = np.maximum.reduceat(most, starts).T.copy()

    def within(self, lo: Floats, hi: Floats) -> Ints:
        """The rows in a box, as places in `order`. A quasi-identifier that is NaN is not published."""
        return self._inside(self._near(lo, hi), lo, hi)

    def a_few(self, lo: Floats, hi: Floats) -> Iterator[Ints]:
        """The same, some at a time."""
        near = self._near(lo, hi)
        for start in range(0, len(near), _FEW):
            yield self._inside(near[start : start + _FEW], lo, hi)

    def most(self, lo: Floats, hi: Floats) -> Ints:
        """No less than the rows in each of some boxes, at little cost."""
        sizes = np.diff(self._ends)
        return np.array([sizes[self._near(*box)].sum() for box in zip(lo, hi, strict=True)], dtype=np.int64)

    def _near(self, lo: Floats, hi: Floats) -> Ints:
        """The leaves that a box meets; what is not published bounds nothing."""
        met = np.ones(self._least.shape[1], np.bool_)
        for d in np.flatnonzero(~np.isnan(lo)):
            met &= self._least[d] <= hi[d]
            met &= lo[d] <= self._most[d]
        return np.flatnonzero(met)

    def _inside(self, leaves: Ints, lo: Floats, hi: Floats) -> Ints:
        places = _ranges(self._ends[leaves], self._ends[leaves + 1])
        for d in np.flatnonzero(~np.isnan(lo)):
            # Column by column, and only those that are still in: most rows leave early.
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
    """The bounds of each group.

    Parameters
    ----------
    candidates
        An index of the input rows.
    person, kind
        The person and the class of each input row.
    lo, hi
        The boxes of the groups.
    box, published
        For each published row its group and its class.
    tick
        Told how many published rows have been judged since.
    cost
        The candidates that are looked at in all. Once these are used up, groups that have more are judged by less: no
        person has more candidates than rows.
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
    """Finds the bounds of one group after another. What is counted by person is in arrays that are used again."""

    def __init__(self, candidates: Candidates, person: Ints, kind: Ints) -> None:
        self._candidates = candidates
        persons, who = np.unique(person, return_inverse=True)
        self._kind = kind[candidates.order]
        self._who = who[candidates.order]
        pairs, pair = np.unique(who * (int(kind.max(initial=0)) + 1) + kind, return_inverse=True)
        self._pair = pair[candidates.order]
        #: The rows of each class, and the most that a person has.
        self._came = np.bincount(kind, minlength=1)
        self._most_rows = int(np.bincount(who, minlength=1).max())
        self._of_person, self._of_pair = _Sums(len(persons)), _Sums(len(pairs))

    def all_of(self, lo: Floats, hi: Floats, classes: Ints, rows: Ints) -> tuple[int, int, int, int]:
        """The bounds, by all candidates."""
        places, at = self._of_classes(self._candidates.within(lo, hi), classes)
        there = np.bincount(at, minlength=len(classes))
        least, most = self._persons(places, at, rows)
        return least, most, int(np.maximum(rows - there, 0).sum()), int(rows[there < self._rows_of(classes)].sum())

    def some_of(self, lo: Floats, hi: Floats, classes: Ints, rows: Ints) -> tuple[int, int, int, int]:
        """The bounds, by no more candidates than show that none are too few."""
        there = np.zeros(len(classes), np.int64)
        for places in self._candidates.a_few(lo, hi):
            there += np.bincount(self._of_classes(places, classes)[1], minlength=len(classes))
            if np.all(there >= rows):
                break
        every = int(rows.sum())
        least = -(-every // max(self._most_rows, 1))
        return least, min(every, len(self._of_person)), int(np.maximum(rows - there, 0).sum()), every

    def _of_classes(self, places: Ints, classes: Ints) -> tuple[Ints, Ints]:
        """Those that are of these classes, and of which."""
        kind = self._kind[places]
        at = np.searchsorted(classes, kind)
        chosen = classes[np.minimum(at, len(classes) - 1)] == kind
        return places[chosen], at[chosen]

    def _rows_of(self, classes: Ints) -> Ints:
        known = classes < len(self._came)
        return np.where(known, self._came[np.where(known, classes, 0)], 0)

    def _persons(self, places: Ints, at: Ints, rows: Ints) -> tuple[int, int]:
        """The least and the most persons, given the candidates and their classes."""
        if not len(places):
            return 0, 0
        one, held = self._of_pair.of(self._pair[places], np.ones(len(places), np.int64))
        explained = np.minimum(held, rows[at[one]])
        _, of_person = self._of_person.of(self._who[places[one]], explained)
        every = int(rows.sum())
        persons = min(len(of_person), every)
        # The greatest first, without a sort: there are few different ones.
        times = np.minimum(np.bincount(of_person)[::-1], persons)
        covered = np.cumsum(np.repeat(np.arange(len(times))[::-1], times)[:persons])
        return min(int(np.searchsorted(covered, every)) + 1, persons), persons


class _Sums:
    """Adds up by keys from 0, for few of them at a time: no sort, and nothing of the size of all keys is touched."""

    def __init__(self, size: int) -> None:
        self._sums, self._last = np.zeros((2, size), np.int64)

    def __len__(self) -> int:
        return len(self._sums)

    def of(self, keys: Ints, values: Ints) -> tuple[Ints, Ints]:
        """For each different key a place where it is, and its sum."""
        np.add.at(self._sums, keys, values)
        numbers = np.arange(len(keys))
        self._last[keys] = numbers
        places = np.flatnonzero(self._last[keys] == numbers)
        sums = self._sums[keys[places]]
        self._sums[keys] = 0
        return places, sums


def marks(qi: Floats, kept: Ints) -> npt.NDArray[np.int64]:
    """A number for each row, the same where its quasi-identifiers and its class are."""
    mark = kept.astype(np.int64)
    for column in qi.T:
        word = np.where(np.isnan(column), np.inf, column + 0.0).view(np.int64)
        mark = siphash(mark ^ word, _KEY)
    return mark


def not_among(some: Ints, others: Ints) -> int:
    """How many of some are more than there are of them among others."""
    values, count = np.unique(some, return_counts=True)
    other, there = np.unique(others, return_counts=True)
    if not len(other):
        return len(some)
    at = np.minimum(np.searchsorted(other, values), len(other) - 1)
    return int(np.maximum(count - np.where(other[at] == values, there[at], 0), 0).sum())


def bounds_of_moved(person: Ints, rows: Ints) -> Bounds:
    """The bounds of groups of so many rows where boxes do not contain their rows: anybody may be in any."""
    held = np.sort(np.unique(person, return_counts=True)[1])[::-1]
    least = np.minimum(np.searchsorted(np.cumsum(held), rows) + 1, len(held))
    none = np.zeros(len(rows), np.int64)
    return Bounds(least=least, most=np.minimum(rows, len(held)), excess=none, unsure=none)


def _leaves(points: Floats) -> tuple[Ints, Ints]:
    """The rows in an order in which near ones are together, and the ends of the leaves: a k-d tree's."""
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
        # Across its widest side; a sample tells which.
        d = int(np.argmax(np.ptp(scaled[rows[:: max(len(rows) // 1024, 1)]], axis=0)))
        middle = (stop - start) // 2
        order[start:stop] = rows[np.argpartition(scaled[rows, d], middle)]
        # The first half is done first, so that the ends rise.
        parts += [(start + middle, stop), (start, start + middle)]
    return order, np.array(ends if len(points) else [0])


def _scaled(points: Floats) -> npt.NDArray[np.float32]:
    """The points in a cube, roughly: those that lack a coordinate lie before it."""
    scaled = np.empty(points.shape, np.float32)
    for d, column in enumerate(points.T):
        there = np.isfinite(column)
        least, most = column.min(where=there, initial=np.inf), column.max(where=there, initial=-np.inf)
        width = max(most - least, 0.0) or 1.0
        scaled[:, d] = np.where(there, (column - least) / width, -1.0) if there.any() else 0.0
    return scaled


def _ranges(starts: Ints, stops: Ints) -> Ints:
    """All numbers from each start up to its stop."""
    sizes = stops - starts
    before = np.concatenate([[0], np.cumsum(sizes)[:-1]]) if len(sizes) else sizes
    return np.asarray(np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes))
