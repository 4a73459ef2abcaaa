"""Judges `together`: whether all boxes of a person, intersected, leave at least k persons.

Boxes of a person follow each other as long as each is published within the span of the one before, and contains a row
that is inside what the earlier ones have in common. A row outside of that begins anew, as does one after the span: the
engine may have forgotten the person.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from crenel.encoding.rows import Rows
from crenel.policy import Policy

__all__ = ["lacking_company"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: A box with k persons shows it by a few thousand rows, mostly. The others are looked at if it does not.
_FEW, _MORE = 4_096, 16


def lacking_company(policy: Policy, rows: Rows, row: Ints, lo: Floats, hi: Floats, moment: Ints, arrivals: Ints) -> int:
    """Count the persons whose boxes have, in common, fewer than k persons of the rows that had arrived by then.

    The columns have an entry for each published row of a group, in the order of publication: its number, its box, when
    it left, and how many rows had arrived by then.
    """
    order = np.argsort(rows.person[row], kind="stable")
    row, moment, arrivals = row[order], moment[order], arrivals[order]
    lo, hi = lo[order], hi[order]
    first, of = np.unique(rows.person[row], return_index=True, return_inverse=True)[1:]
    rank = np.arange(len(row)) - first[of.reshape(-1)]
    turns = np.argsort(rank, kind="stable")
    chains = _Chains(policy, _Register(rows), len(first), rows.qi.shape[1])
    for turn in np.split(turns, np.cumsum(np.bincount(rank))[:-1]) if len(row) else []:
        who = of.reshape(-1)[turn]
        chains.follow(who, rows.qi[row[turn]], lo[turn], hi[turn], moment[turn], arrivals[turn])
    chains.judge(np.arange(len(first)))
    return int(np.count_nonzero(chains.is_lacking))


class _Chains:
    """What the latest boxes of each person have in common."""

    def __init__(self, policy: Policy, register: _Register, persons: int, dimensions: int) -> None:
        self._k, self._span = policy.k, policy.together or 0
        self._register = register
        self.is_lacking = np.zeros(persons, np.bool_)
        self._lo = np.full((persons, dimensions), -np.inf)
        self._hi = np.full((persons, dimensions), np.inf)
        self._boxes = np.zeros(persons, np.int64)
        self._last = np.zeros(persons, np.int64)
        self._arrivals = np.zeros(persons, np.int64)

    def follow(self, who: Ints, qi: Floats, lo: Floats, hi: Floats, moment: Ints, arrivals: Ints) -> None:
        """Add one box of each of several persons."""
        is_inside = ((self._lo[who] <= qi) & (qi <= self._hi[who])).all(axis=1)
        is_anew = ~is_inside | ((self._boxes[who] > 0) & (moment - self._last[who] > self._span))
        self.judge(who[is_anew])
        anew = who[is_anew]
        self._lo[anew], self._hi[anew], self._boxes[anew] = -np.inf, np.inf, 0
        self._lo[who], self._hi[who] = np.maximum(self._lo[who], lo), np.minimum(self._hi[who], hi)
        self._boxes[who] += 1
        self._last[who], self._arrivals[who] = moment, arrivals

    def judge(self, who: Ints) -> None:
        """Look at the boxes so far of some persons, each by what all of them have in common."""
        for person in who[(self._boxes[who] > 1) & ~self.is_lacking[who]].tolist():
            box = self._lo[person], self._hi[person]
            self.is_lacking[person] = not self._register.has(self._k, *box, int(self._arrivals[person]))


class _Register:
    """All rows, in an order in which the first ones are like the others."""

    def __init__(self, rows: Rows) -> None:
        self._number = np.random.default_rng(0).permutation(len(rows))
        self._qi = rows.qi[self._number].T.copy()
        self._person = rows.person[self._number]

    def has(self, k: int, lo: Floats, hi: Floats, arrivals: int) -> bool:
        """Whether k persons have a row inside a box, among the first rows that arrived."""
        most = _FEW
        while True:
            inside = np.flatnonzero(self._number[:most] < arrivals)
            for column, least, greatest in zip(self._qi, lo, hi, strict=True):
                inside = inside[(least <= column[inside]) & (column[inside] <= greatest)]
            if len(np.unique(self._person[inside])) >= k:
                return True
            if most >= len(self._number):
                return False
            most *= _MORE
