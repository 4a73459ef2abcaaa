"""What every attacker observes of a published stream."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.audit.evidence import SAMPLED_OUT, SUPPRESSED, Published
from crenel.encoding.rows import Rows
from crenel.policy import OnSuppress, Policy

__all__ = ["Bools", "Floats", "Ints", "Observation"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """The published rows, one after another, as everyone sees them."""

    #: Boxes, one row each and one column per quasi-identifier; NaN if that is not published.
    lo: Floats = field(repr=False)
    hi: Floats = field(repr=False)
    #: The codes of the sensitive values, one column each.
    sensitive: Ints = field(repr=False)
    #: Which rows were published fully generalized.
    star: Bools = field(repr=False)
    #: How many rows had arrived when each row left: an attacker may watch the stream as it flows.
    left: Ints = field(repr=False)
    #: The numbers of the rows; -1 if unknown. No attacker sees them: they judge the claims.
    rows: Ints = field(repr=False)
    #: Rows with the same number left together.
    release: Ints = field(repr=False)

    def __len__(self) -> int:
        """Count the published rows."""
        return len(self.rows)

    def groups(self) -> tuple[Floats, Floats, Ints]:
        """Return the distinct boxes of all rows but stars, and the number of each such row's box."""
        lo, hi = self.lo[~self.star], self.hi[~self.star]
        # Compare bytes, so that two unpublished values (NaN) are equal.
        both = np.ascontiguousarray(np.hstack([lo, hi]) + 0.0)
        keys = both.view(np.dtype((np.void, both.itemsize * both.shape[1]))).reshape(-1)
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
        return lo[first], hi[first], group.reshape(-1)

    @classmethod
    def of(cls, policy: Policy, rows: Rows, releases: Any) -> Observation:
        """Observe an engine's releases of these rows."""
        out = Published.of(releases)
        sizes = np.ones(len(out), np.int64) if out.offsets is None else np.diff(out.offsets)
        kind = np.zeros(len(out), np.int64) if out.kind is None else out.kind
        leaves = kind != SAMPLED_OUT
        if policy.on_suppress is OnSuppress.DROP:
            leaves &= kind != SUPPRESSED
        release = np.repeat(np.arange(len(out)), sizes)
        member = leaves[release]
        release, row = release[member], out.rows[member]
        arrivals = np.zeros(len(out), np.int64) if out.arrivals is None else out.arrivals
        return cls(
            lo=out.lo[release],
            hi=out.hi[release],
            sensitive=rows.sensitive[row],
            star=kind[release] == SUPPRESSED,
            left=arrivals[release],
            rows=row,
            release=release,
        )

    def then(self, other: Observation) -> Observation:
        """Append another observation, for example of a stream that was published twice."""
        columns = {
            column.name: np.concatenate([getattr(self, column.name), getattr(other, column.name)])
            for column in fields(self)
            if column.name != "release"
        }
        after = int(self.release.max(initial=-1)) + 1
        return Observation(release=np.concatenate([self.release, other.release + after]), **columns)
