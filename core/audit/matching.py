"""What can be said for certain of a published stream by one who has the input, and no trace.

Rows are matched by their *class*: what leaves of them as it is. A published row is one of the input rows of its class
that lie in its box, its *candidates*; which of them, nobody can tell. So everything here is a bound that holds whatever
the truth is:

- If more rows of a class are published under a box than input rows of that class lie in it, some are not contained.
- A group of m rows is of at least n persons, if no n - 1 persons have m candidate rows together; a person counts for no
  more rows of a class than are published of it.
- It is of no more persons than have candidates.

Where each person has one row, both bounds are the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.encode import siphash

__all__ = ["Bounds", "Candidates", "bounds", "bounds_of_moved", "marks", "not_among"]

Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: What rows are hashed by: nobody is to be kept from guessing here.
_KEY = np.array([1, 2], dtype=np.uint64)

#: Rows of a leaf of the index.
_LEAF = 256


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
        if len(points):
            self._least = np.minimum.reduceat(self._points, starts)
            self._most = np.maximum.reduceat(most, starts)
        else:
            self._least = self._most = np.zeros((0, qi.shape[1]))

    def within(self, lo: Floats, hi: Floats) -> Ints:
        """The rows in a box, as places in `order`. A quasi-identifier that is NaN is not published."""
        lo, hi = np.where(np.isnan(lo), -np.inf, lo), np.where(np.isnan(hi), np.inf, hi)
        near = np.flatnonzero(np.all((self._least <= hi) & (lo <= self._most), axis=1))
        places = _ranges(self._ends[near], self._ends[near + 1])
        for d in range(len(lo)):
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
    """
    person, kind = person[candidates.order], kind[candidates.order]
    order = np.argsort(box, kind="stable")
    ends = np.searchsorted(box[order], np.arange(len(lo) + 1))
    least, most, excess, unsure = (np.zeros(len(lo), np.int64) for _ in range(4))
    came = np.bincount(kind, minlength=int(published.max(initial=-1)) + 1)
    for group in range(len(lo)):
        classes, rows = np.unique(published[order[ends[group] : ends[group + 1]]], return_counts=True)
        places = candidates.within(lo[group], hi[group])
        at = np.searchsorted(classes, kind[places])
        of_class = classes[np.minimum(at, len(classes) - 1)] == kind[places]
        at, who = at[of_class], person[places[of_class]]
        there = np.bincount(at, minlength=len(classes))
        excess[group] = np.maximum(rows - there, 0).sum()
        unsure[group] = rows[there < came[classes]].sum()
        least[group], most[group] = _persons(at, who, rows)
        tick(int(rows.sum()))
    return Bounds(least=least, most=most, excess=excess, unsure=unsure)


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


def _persons(at: Ints, who: Ints, rows: Ints) -> tuple[int, int]:
    """The least and the most persons of a group, given the classes and persons of its candidates."""
    if not len(who):
        return 0, 0
    _, who = np.unique(who, return_inverse=True)
    pairs, held = np.unique(who * len(rows) + at, return_counts=True)
    explained = np.minimum(held, rows[pairs % len(rows)])
    of_person = np.bincount(pairs // len(rows), explained)
    covered = np.cumsum(np.sort(of_person)[::-1])
    least = min(int(np.searchsorted(covered, rows.sum())) + 1, len(covered))
    return least, min(len(covered), int(rows.sum()))


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
