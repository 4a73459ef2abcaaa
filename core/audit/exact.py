"""Exact figures of a published stream, from its trace: the person and the times of every row are known.

The trace is not trusted where it can be checked. Its rows must be the input's rows, each once, in the order of their
event times. Values that leave unchanged must equal the input's. `guarantees.audit` recomputes the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from crenel.audit.evidence import (
    LEFT_OUT,
    REUSE,
    SAMPLED_OUT,
    SUPPRESSED,
    Evidence,
    Input,
    Output,
    Published,
    Reported,
    Trace,
)
from crenel.audit.guarantees import audit
from crenel.audit.measures import widest
from crenel.audit.over_time.spacing import without_left_out
from crenel.audit.report import Report
from crenel.encoding.rows import Rows
from crenel.policy import OnSuppress, Policy

__all__ = ["Exact", "TraceError", "leaving"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class TraceError(ValueError):
    """No run could have written this trace."""


def leaving(policy: Policy, trace: Trace) -> Bools:
    """Tell which rows of the trace are in the published file."""
    leaves = (trace.kind != SAMPLED_OUT) & (trace.kind != LEFT_OUT)
    if policy.on_suppress is OnSuppress.DROP:
        leaves &= trace.kind != SUPPRESSED
    return np.asarray(leaves)


@dataclass(frozen=True, eq=False)
class Exact:
    """The published rows, each with its row of the input as the trace tells it."""

    policy: Policy
    published: Output
    input: Input
    trace: Trace
    #: For each row of the trace, its position among the input rows that fit; -1 if there is no such row.
    place: Ints
    #: Which rows of the trace were published.
    leaves: Bools

    @classmethod
    def of(cls, policy: Policy, evidence: Evidence) -> Exact | None:
        """Match the trace with the published rows; None without a trace, or if their numbers of rows differ."""
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
        """The position of each published row among the input rows that fit; -1 if there is no such row."""
        return self.place[self.leaves]

    def one_shard(self) -> bool:
        """Whether a single engine saw all rows."""
        return len(np.unique(self.trace.shard)) == 1

    def suppressed(self) -> Bools:
        """Tell which published rows were suppressed."""
        return np.asarray(self.trace.kind == SUPPRESSED)[self.leaves]

    # -- rows ------------------------------------------------------------------------------------

    def times_left(self) -> Ints:
        """Count how often each row of the input left."""
        return np.bincount(self.place[self.place >= 0], minlength=len(self.input))

    def unknown(self) -> int:
        """Count the rows that left but never arrived."""
        return int(np.count_nonzero(self.place < 0))

    def changed(self) -> int:
        """Count the published rows in which a value that must leave unchanged was changed."""
        rows = self.rows
        return int(np.count_nonzero((self.input.kept[rows] != self.published.kept) & (rows >= 0)))

    def wrongly_suppressed(self, suppressed: Output) -> int:
        """Count the suppressed rows that differ from the owner's file, which lists them in the order of the output."""
        rows = self.place[np.isin(self.trace.kind, (SUPPRESSED, LEFT_OUT))]
        most = min(len(rows), len(suppressed))
        qi, box = self.input.rows.qi[rows[:most]], suppressed.box[:most]
        lo, hi = suppressed.lo[box], suppressed.hi[box]
        same = np.all((lo == qi) & (hi == qi) | np.isnan(lo) & np.isnan(qi), axis=1)
        same &= self.input.kept[rows[:most]] == suppressed.kept[:most]
        return max(len(rows), len(suppressed)) - int(np.count_nonzero(same & (rows[:most] >= 0)))

    # -- promises --------------------------------------------------------------------------------

    def shards(self, reported: Reported | None = None) -> Iterator[tuple[Rows, Published]]:
        """Yield the rows of each shard that the method saw, as they arrived, and the releases of the shard.

        Raises:
            TraceError: The arrivals of a shard do not count from 0.
        """
        for rows, out in self._all(reported):
            seen, left, _ = without_left_out(rows, out)
            if len(seen):
                yield seen, left

    def _all(self, reported: Reported | None) -> Iterator[tuple[Rows, Published]]:
        """Yield all rows of each shard, and how they left."""
        box = np.full(len(self.trace), -1, np.int64)
        box[self.leaves] = self.published.box
        for shard in np.unique(self.trace.shard):
            members = np.flatnonzero((self.trace.shard == shard) & (self.place >= 0))
            if not len(members):
                continue
            # Gather the rows of each release, in the order of the file, which may have them anywhere.
            members = members[np.argsort(self.trace.release[members], kind="stable")]
            of_shard = None if reported is None else _Figures.of(reported, int(shard))
            yield self._shard(members, box[members], of_shard)

    def reports(self, reported: Reported | None) -> list[Report]:
        """Audit each shard."""
        return [audit(self.policy, rows, out) for rows, out in self._all(reported)]

    def _shard(self, members: Ints, box: Ints, figures: _Figures | None) -> tuple[Rows, Published]:
        trace = self.trace
        arrival = trace.arrival[members]
        order = np.argsort(arrival, kind="stable")
        if len(np.unique(arrival)) < len(arrival) or (not self.unknown() and arrival[order[-1]] != len(order) - 1):
            message = "the arrivals of each shard must count from 0"
            raise TraceError(message)
        number = np.empty(len(order), np.int64)
        number[order] = np.arange(len(order))
        # Rows of one release that differ, for example in their box, are two releases to an attacker.
        told = [trace.release, trace.kind, trace.arrivals, trace.group]
        told += [] if trace.moment is None else [trace.moment]
        first = _changes(box, *(column[members] for column in told))
        at, ends = members[first], widest(self.policy)
        hidden = box[first] < 0
        lo, hi = (
            np.where(hidden[:, None], end, boxes[np.maximum(box[first], 0)] if len(boxes) else end)
            for end, boxes in ((ends[:, 0], self.published.lo), (ends[:, 1], self.published.hi))
        )
        release = None if figures is None else np.clip(trace.release[at], 0, len(figures.loss) - 1)
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
        """Take the rows of a shard as they arrived; sensitive values as published, with noise if the method adds it."""
        rows = self.input.rows.take(self.place[members])
        if self.policy.parameter("perturb_sensitive", {}):
            left = np.full(len(self.trace), -1, np.int64)
            left[self.leaves] = np.arange(len(self.published))
            seen = left[members]
            rows.sensitive[seen >= 0] = self.published.sensitive[seen[seen >= 0]]
        return rows

    def surplus_boxes(self) -> int:
        """Count the surplus boxes of groups. A group is decided once, so all of its rows must share one box."""
        grouped = ~self.suppressed()
        of = np.flatnonzero(self.leaves)[grouped]
        shard, group, box = self.trace.shard[of], self.trace.group[of], self.published.box[grouped]
        order = np.lexsort([box, group, shard])
        same = (np.diff(shard[order]) == 0) & (np.diff(group[order]) == 0)
        return int(np.count_nonzero(same & (np.diff(box[order]) != 0)))

    def mixed(self) -> int:
        """Count the rows of groups whose rows differ in the columns of `within`."""
        apart = self.input.apart
        of = np.flatnonzero((self.trace.kind <= REUSE) & (self.place >= 0))
        if apart is None or not len(of):
            return 0
        keys = np.stack([self.trace.shard[of], self.trace.group[of]], axis=1)
        _, group, size = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
        pairs = np.unique(np.stack([group.reshape(-1), apart[self.place[of]]], axis=1), axis=0)
        values = np.bincount(pairs[:, 0], minlength=len(size))
        return int(size[values > 1].sum())

    def out_of_order(self) -> int:
        """Count the rows that arrived after a row of later event time. A run sorts them, so there should be none."""
        trace = self.trace
        order = np.lexsort([trace.arrival, trace.shard])
        order = order[self.place[order] >= 0]
        time, shard = self.input.rows.time[self.place[order]], trace.shard[order]
        return int(np.count_nonzero((time[1:] < time[:-1]) & (shard[1:] == shard[:-1])))

    def misreported(self, reported: Reported) -> int:
        """Count the releases whose reported number of rows is wrong, and those missing on either side."""
        order = np.argsort(reported.shard, kind="stable")
        shard = reported.shard[order]
        number = np.arange(len(order)) - np.searchsorted(shard, shard)
        of = self.trace.take(np.flatnonzero(self.trace.kind != LEFT_OUT))  # these are in no release
        keys = [(shard << 40) + number, *np.unique((of.shard << 40) + of.release, return_counts=True)]
        theirs, ours, rows = keys
        _, at, other = np.intersect1d(theirs, ours, assume_unique=True, return_indices=True)
        same = np.count_nonzero(reported.rows[order][at] == rows[other])
        return len(np.union1d(theirs, ours)) - int(same)

    # -- time ------------------------------------------------------------------------------------

    def delays(self) -> Floats | None:
        """Compute how long each published row waited: in seconds of event time if `delay` is set, else in arrivals."""
        trace, leaves = self.trace, self.leaves & (self.place >= 0)
        if self.policy.delay is not None:
            if trace.moment is None:
                return None
            waited = trace.moment[leaves] - self.input.rows.time[self.place[leaves]]
            return np.asarray(np.maximum(waited, 0) / 1e6)
        return (trace.arrivals[leaves] - trace.arrival[leaves] - 1).astype(np.float64)


@dataclass(frozen=True, eq=False)
class _Figures:
    """The figures that were reported for the releases of a shard."""

    loss: Floats
    persons: Ints

    @classmethod
    def of(cls, reported: Reported, shard: int) -> _Figures | None:
        here = reported.shard == shard
        return cls(reported.loss[here], reported.persons[here]) if here.any() else None


def _changes(*columns: npt.NDArray[np.int64]) -> Ints:
    """Find where each run of equal rows begins."""
    new = np.zeros(len(columns[0]), np.bool_)
    new[:1] = True
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(new)
