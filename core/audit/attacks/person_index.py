"""Where everybody is: the quasi-identifiers that an attacker with full knowledge looks up."""

from __future__ import annotations

import numpy as np

from crenel.audit.attacks.observation import Bools, Floats, Ints
from crenel.encoding.rows import Rows
from crenel.policy import Policy

__all__ = ["Places"]


class Places:
    """Everybody's quasi-identifiers, kept such that those inside a box are found quickly.

    An attacker is thought to know which quasi-identifiers somebody's rows have: where a box shows one, who lacks it is
    not inside, unless the method fills in what is missing.
    """

    def __init__(self, policy: Policy, rows: Rows) -> None:
        self._fills = policy.parameter("fill_missing", False)
        self.qi = rows.qi
        #: Persons numbered from 0, for each row.
        self.person: Ints = np.unique(rows.person, return_inverse=True)[1].astype(np.int64).reshape(-1)
        self.persons = int(self.person.max(initial=-1)) + 1
        # What is missing is sorted to the end, where no range reaches.
        self._order = [np.argsort(column, kind="stable") for column in rows.qi.T]
        self._sorted = [column[order] for column, order in zip(rows.qi.T, self._order, strict=True)]
        self._whole = [self._fills and bool(np.isnan(column).any()) for column in rows.qi.T]

    def inside(self, lo: Floats, hi: Floats) -> Ints:
        """The rows that a box contains."""
        shown = np.flatnonzero(~np.isnan(lo))
        found = self._narrowest(lo, hi, shown)
        for d in shown:
            found = found[self._within(self.qi[found, d], lo[d], hi[d])]
        return found

    def _narrowest(self, lo: Floats, hi: Floats, shown: Ints) -> Ints:
        """The rows that are inside in the one quasi-identifier in which fewest are."""
        best = np.arange(len(self.qi))
        for d in shown:
            if self._whole[d]:
                continue
            first = int(np.searchsorted(self._sorted[d], lo[d], "left"))
            last = int(np.searchsorted(self._sorted[d], hi[d], "right"))
            if last - first < len(best):
                best = self._order[d][first:last]
        return best

    def _within(self, values: Floats, lo: float, hi: float) -> Bools:
        inside = (lo <= values) & (values <= hi)
        return np.asarray(inside | np.isnan(values) if self._fills else inside)

    def persons_of(self, rows: Ints) -> Ints:
        """The persons whose rows these are, each once."""
        return np.unique(self.person[rows])
