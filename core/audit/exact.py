"""A published stream judged by its trace: whose each row is, and when it came and left, is known.

The trace is not believed where it can be checked: its rows must be those of the input, each once, in the order of their
event times; what leaves of them as it is must be what went in; and `guarantees.audit` computes the rest again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from crenel.audit.evidence import Evidence, Input, Output, Reported, Trace
from crenel.audit.guarantees import Published, Report, audit
from crenel.audit.measures import widest
from crenel.encoding.rows import Rows
from crenel.policy import OnSuppress, Policy

__all__ = ["Exact", "TraceError", "leaving"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_SUPPRESSED = 2
_SAMPLED_OUT = 3


class TraceError(ValueError):
    """The trace is none that a run could have written."""


def leaving(policy: Policy, trace: Trace) -> Bools:
    """Which rows of the trace are in the published file."""
    leaves = trace.kind != _SAMPLED_OUT
    if policy.on_suppress is OnSuppress.DROP:
        leaves &= trace.kind != _SUPPRESSED
    return np.asarray(leaves)


@dataclass(frozen=True, eq=False)
class Exact:
    """What is known of each published row by the trace."""

    policy: Policy
    published: Output
    input: Input
    trace: Trace
    #: For each row of the trace its place among the rows that fit; -1 if there is no such row.
    place: Ints
    #: Which rows of the trace were published.
    leaves: Bools

    @classmethod
    def of(cls, policy: Policy, evidence: Evidence) -> Exact | None:
        """The view of the evidence; None if the trace is not of the published rows: they are not as many."""
        trace, given = evidence.trace, evidence.input
        if trace is None or given is None:
            return None
        leaves = leaving(policy, trace)
        if np.count_nonzero(leaves) != len(evidence.published):
            return None
        places = np.full(given.total, -1, np.int64)
        places[given.number] = np.arange(len(given))
        known = (trace.row >= 0) & (trace.row < given.total)
        place = np.where(known, places[np.where(known, trace.row, 0)] if given.total else -1, -1)
        return cls(policy, evidence.published, given, trace, place, leaves)

    @property
    def rows(self) -> Ints:
        """The place of each published row among the input's; -1 if there is no such row."""
        return self.place[self.leaves]

    def one_shard(self) -> bool:
        """Whether one engine saw all rows."""
        return len(np.unique(self.trace.shard)) == 1

    def suppressed(self) -> Bools:
        """Which published rows were suppressed."""
        return np.asarray(self.trace.kind == _SUPPRESSED)[self.leaves]

    # -- rows ------------------------------------------------------------------------------------

    def times(self) -> Ints:
        """How often each row of the input left."""
        return np.bincount(self.place[self.place >= 0], minlength=len(self.input))

    def unknown(self) -> int:
        """Rows that left, and never came."""
        return int(np.count_nonzero(self.place < 0))

    def changed(self) -> int:
        """Published rows of which what leaves as it is is not what came."""
        rows = self.rows
        return int(np.count_nonzero((self.input.kept[rows] != self.published.kept) & (rows >= 0)))

    def not_those(self, suppressed: Output) -> int:
        """Rows that were suppressed, and are not so in the owner's file: it has them in the order of the output."""
        rows = self.place[self.trace.kind == _SUPPRESSED]
        most = min(len(rows), len(suppressed))
        qi, box = self.input.rows.qi[rows[:most]], suppressed.box[:most]
        lo, hi = suppressed.lo[box], suppressed.hi[box]
        same = np.all((lo == qi) & (hi == qi) | np.isnan(lo) & np.isnan(qi), axis=1)
        same &= self.input.kept[rows[:most]] == suppressed.kept[:most]
        return max(len(rows), len(suppressed)) - int(np.count_nonzero(same & (rows[:most] >= 0)))

    # -- promises --------------------------------------------------------------------------------

    def shards(self, reported: Reported | None = None) -> Iterator[tuple[Rows, Published]]:
        """The rows of each shard as they arrived, and what left of them.

        Raises
        ------
        TraceError
            The arrivals of a shard do not count from 0.
        """
        box = np.full(len(self.trace), -1, np.int64)
        box[self.leaves] = self.published.box
        for shard in np.unique(self.trace.shard):
            members = np.flatnonzero((self.trace.shard == shard) & (self.place >= 0))
            if not len(members):
                continue
            # The rows of a release together, in the order of the file: it may have them anywhere.
            members = members[np.argsort(self.trace.release[members], kind="stable")]
            of_shard = None if reported is None else _Figures.of(reported, int(shard))
            yield self._shard(members, box[members], of_shard)

    def reports(self, reported: Reported | None) -> list[Report]:
        """What the audit says of each shard."""
        return [audit(self.policy, rows, out) for rows, out in self.shards(reported)]

    def _shard(self, members: Ints, box: Ints, figures: _Figures | None) -> tuple[Rows, Published]:
        trace = self.trace
        arrival = trace.arrival[members]
        order = np.argsort(arrival, kind="stable")
        if len(np.unique(arrival)) < len(arrival) or (not self.unknown() and arrival[order[-1]] != len(order) - 1):
            message = "the arrivals of each shard must count from 0"
            raise TraceError(message)
        number = np.empty(len(order), np.int64)
        number[order] = np.arange(len(order))
        # Rows of one release that differ, by their box say, are two releases to whoever sees them.
        told = [trace.release, trace.kind, trace.arrivals, trace.group]
        told += [] if trace.moment is None else [trace.moment]
        first = _changes(box, *(column[members] for column in told))
        at, ends = members[first], widest(self.policy)
        hidden = box[first] < 0
        lo, hi = (
            np.where(hidden[:, None], end, boxes[np.maximum(box[first], 0)] if len(boxes) else end)
            for end, boxes in ((ends[:, 0], self.published.lo), (ends[:, 1], self.published.hi))
        )
        release = None if figures is None else np.minimum(trace.release[at], len(figures.loss) - 1)
        out = Published(
            rows=number,
            lo=lo,
            hi=hi,
            offsets=np.append(first, len(members)),
            kind=trace.kind[at],
            loss=None if figures is None else figures.loss[release],
            persons=None if figures is None else figures.persons[release],
            moment=None if trace.moment is None else trace.moment[at],
            arrivals=trace.arrivals[at],
            group=trace.group[at],
        )
        return self._rows(members[order]), out

    def _rows(self, members: Ints) -> Rows:
        """The rows of a shard as they arrived; sensitive values as they left, which is with noise where it is added."""
        rows = self.input.rows.take(self.place[members])
        if self.policy.parameter("perturb_sensitive", {}):
            left = np.full(len(self.trace), -1, np.int64)
            left[self.leaves] = np.arange(len(self.published))
            seen = left[members]
            rows.sensitive[seen >= 0] = self.published.sensitive[seen[seen >= 0]]
        return rows

    def mixed(self) -> int:
        """How often rows of one group, which was decided once, were published under another box than the rest."""
        grouped = ~self.suppressed()
        of = np.flatnonzero(self.leaves)[grouped]
        shard, group, box = self.trace.shard[of], self.trace.group[of], self.published.box[grouped]
        order = np.lexsort([box, group, shard])
        same = (np.diff(shard[order]) == 0) & (np.diff(group[order]) == 0)
        return int(np.count_nonzero(same & (np.diff(box[order]) != 0)))

    def out_of_order(self) -> int:
        """Rows that arrived after one of a later event time, though a run puts them in order."""
        trace = self.trace
        order = np.lexsort([trace.arrival, trace.shard])
        order = order[self.place[order] >= 0]
        time, shard = self.input.rows.time[self.place[order]], trace.shard[order]
        return int(np.count_nonzero((time[1:] < time[:-1]) & (shard[1:] == shard[:-1])))

    def misreported(self, reported: Reported) -> int:
        """Releases whose number of rows is not what was reported; or that are only in one of the two."""
        order = np.argsort(reported.shard, kind="stable")
        shard = reported.shard[order]
        number = np.arange(len(order)) - np.searchsorted(shard, shard)
        keys = [(shard << 40) + number, *np.unique((self.trace.shard << 40) + self.trace.release, return_counts=True)]
        theirs, ours, rows = keys
        _, at, other = np.intersect1d(theirs, ours, assume_unique=True, return_indices=True)
        same = np.count_nonzero(reported.rows[order][at] == rows[other])
        return len(np.union1d(theirs, ours)) - int(same)

    # -- time ------------------------------------------------------------------------------------

    def delays(self) -> Floats | None:
        """How long each published row waited: seconds of event time where they count, or else arrivals."""
        trace, leaves = self.trace, self.leaves & (self.place >= 0)
        if self.policy.delay is not None:
            if trace.moment is None:
                return None
            waited = trace.moment[leaves] - self.input.rows.time[self.place[leaves]]
            return np.asarray(np.maximum(waited, 0) / 1e6)
        return (trace.arrivals[leaves] - trace.arrival[leaves] - 1).astype(np.float64)


@dataclass(frozen=True, eq=False)
class _Figures:
    """What was reported of the releases of a shard."""

    loss: Floats
    persons: Ints

    @classmethod
    def of(cls, reported: Reported, shard: int) -> _Figures | None:
        here = reported.shard == shard
        return cls(reported.loss[here], reported.persons[here]) if here.any() else None


def _changes(*columns: npt.NDArray[np.int64]) -> Ints:
    """Where a run of equal rows begins."""
    new = np.zeros(len(columns[0]), np.bool_)
    new[:1] = True
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(new)
