"""An index of persons by their quasi-identifiers, for an attacker who knows everyone's."""

from __future__ import annotations

import numpy as np

from crenel.audit.attacks.observation import Bools, Floats, Ints
from crenel.encoding.rows import Rows
from crenel.policy import Policy

__all__ = ["PersonIndex"]


class PersonIndex:
    """Everyone's quasi-identifiers, sorted so that the rows inside a box are found quickly.

    The attacker knows which quasi-identifiers each row has. If a box shows a quasi-identifier that a row lacks, the row
    is not inside, unless the method fills in missing values.
    """

    def __init__(self, policy: Policy, rows: Rows) -> None:
        self._fills = policy.parameter("fill_missing", False)
        self.qi = rows.qi
        #: For each row, the number of its person, counted from 0.
        self.person: Ints = np.unique(rows.person, return_inverse=True)[1].astype(np.int64).reshape(-1)
        self.persons = int(self.person.max(initial=-1)) + 1
        # Missing values sort to the end, where no range reaches.
        self._order = [np.argsort(column, kind="stable") for column in rows.qi.T]
        self._sorted = [column[order] for column, order in zip(rows.qi.T, self._order, strict=True)]
        self._whole = [self._fills and bool(np.isnan(column).any()) for column in rows.qi.T]

    def inside(self, lo: Floats, hi: Floats) -> Ints:
        """Find the rows that a box contains."""
        shown = np.flatnonzero(~np.isnan(lo))
        found = self._narrowest(lo, hi, shown)
        for d in shown:
            found = found[self._within(self.qi[found, d], lo[d], hi[d])]
        return found

    def _narrowest(self, lo: Floats, hi: Floats, shown: Ints) -> Ints:
        """Find the rows within the box in the one quasi-identifier that admits the fewest."""
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
        """Return the persons of these rows, each once."""
        return np.unique(self.person[rows])
