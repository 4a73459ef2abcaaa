"""The figures that follow from the evidence on a published stream, each computed once, when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from crenel.audit import matching, measures
from crenel.audit.evidence import LEFT_OUT, SAMPLED_OUT, SUPPRESSED, Evidence, Input
from crenel.audit.exact import Exact, leaving
from crenel.audit.measures import rounded
from crenel.audit.over_time.spacing import too_soon
from crenel.audit.report import Report
from crenel.policy import OnSuppress, Policy

__all__ = ["Accounts", "Crowd", "Findings"]

Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: In a stream of this many rows for each shard, no shard is without a row.
_FEW = 64


class Accounts(NamedTuple):
    """Whether each row left exactly once."""

    #: Rows that did not leave; None if unknown.
    lost: int | None
    #: Rows that left but never arrived, or left again.
    more: int
    #: The evidence that is missing to know it.
    lacking: str = ""


class Crowd(NamedTuple):
    """Whether rows left in crowds: in releases of at least k persons, each person once, at one moment."""

    #: Published rows, including stars.
    rows: int
    #: Rows that left with fewer than k persons at one moment; a lower bound if `exact` is false.
    alone: int
    #: Rows of releases that contain a person more than once; None if unknown.
    repeated: int | None
    #: Rows to which either applies.
    offending: int
    #: Whether it is known which rows left together.
    exact: bool


class Findings:
    """A published stream, as far as the evidence shows it."""

    def __init__(self, policy: Policy, evidence: Evidence, tick: Callable[[int], None]) -> None:
        self.policy = policy
        self.given = evidence
        self.out = evidence.published
        self.tick = tick
        self.star = policy.on_suppress is OnSuppress.STAR
        self.samples = policy.parameter("beta_sample", 1.0) < 1
        self.perturbs = policy.declaration.perturbs
        self.exact = Exact.of(policy, evidence)
        self.knowledge = "published" if evidence.input is None else "input" if self.exact is None else "trace"
        ends = measures.widest(policy)
        is_star = np.all((self.out.lo == ends[:, 0]) & (self.out.hi == ends[:, 1]), axis=1) & self.star
        #: Which published rows are in groups. The others were suppressed.
        self.grouped: Bools = ~is_star[self.out.box] if self.exact is None else ~self.exact.suppressed()
        #: The number of grouped rows in each box.
        self.sizes: Ints = np.bincount(self.out.box[self.grouped], minlength=len(self.out.lo))
        self.groups: Ints = np.flatnonzero(self.sizes)

    @cached_property
    def suppressed(self) -> int | None:
        """The number of suppressed rows; None if unknown."""
        if self.exact is not None:
            return int(np.count_nonzero(self.exact.trace.kind == SUPPRESSED))
        if self.star:
            return int(np.count_nonzero(~self.grouped))
        return None if self.given.suppressed is None else len(self.given.suppressed)

    @property
    def sampled_out(self) -> int | None:
        """The number of rows that the method sampled out; None if unknown."""
        if self.exact is not None:
            return int(np.count_nonzero(self.exact.trace.kind == SAMPLED_OUT))
        return None if self.samples else 0

    @property
    def left_out(self) -> int | None:
        """The number of rows that were left out because of `once_per`; None if unknown."""
        if self.exact is not None:
            return int(np.count_nonzero(self.exact.trace.kind == LEFT_OUT))
        return 0 if self.policy.once_per is None else None

    @cached_property
    def too_soon(self) -> int | None:
        """The number of published rows too near in time to another of their person; None if that is not promised."""
        if self.exact is None or self.policy.once_per is None:
            return None
        shown = self.exact.rows[self.exact.rows >= 0]
        rows = self.exact.input.rows
        return too_soon(self.policy.once_per, rows.person[shown], rows.time[shown])

    @cached_property
    def reports(self) -> list[Report]:
        """The audit of each shard by the trace; empty without a trace."""
        return [] if self.exact is None else self.exact.reports(self.given.reported)

    @cached_property
    def crowd(self) -> Crowd:
        """How many rows left without a crowd. Without a trace: stars, and rows of groups that are too small."""
        rows = len(self.out)
        if self.exact is not None:
            alone = sum(report.alone or 0 for report in self.reports)
            repeated = sum(report.repeated or 0 for report in self.reports)
            either = sum(report.no_crowd or 0 for report in self.reports)
            # A row that never arrived has no person.
            return Crowd(rows, alone, repeated, either, exact=not self.exact.unknown())
        most = self.sizes[self.groups] if self.given.input is None else self.bounds.most
        alone = int(np.count_nonzero(~self.grouped) + self.sizes[self.groups[most < self.policy.k]].sum())
        return Crowd(rows, alone, None, alone, exact=False)

    @cached_property
    def persons(self) -> Ints:
        """The number of persons in each group by the trace; without a trace, the number of rows."""
        if self.exact is None:
            return self.sizes[self.groups]
        rows = self.exact.rows
        known = self.grouped & (rows >= 0)
        person = self.exact.input.rows.person[rows[known]]
        return measures.diversity(self.out.box[known], person, len(self.sizes))[0][self.groups]

    @cached_property
    def bounds(self) -> matching.Bounds:
        """The bounds on each group's persons and misplaced rows that follow from the input."""
        given = self.given.input
        if given is None:
            raise AssertionError
        if self.perturbs:
            return matching.bounds_of_perturbed(given.rows.person, self.sizes[self.groups])
        numbers = np.zeros(len(self.sizes), np.int64)
        numbers[self.groups] = np.arange(len(self.groups))
        kinds, published, _ = self.classes
        return matching.bounds(
            matching.Candidates(given.rows.qi, filled=self.policy.parameter("fill_missing", False)),
            person=given.rows.person,
            kind=kinds,
            lo=self.out.lo[self.groups],
            hi=self.out.hi[self.groups],
            box=numbers[self.out.box[self.grouped]],
            published=published[self.grouped],
            tick=self.tick,
        )

    @cached_property
    def classes(self) -> tuple[Ints, Ints, Ints]:
        """The classes of the input rows, the published rows and the suppressed rows, as small numbers."""
        sources = [self.given.input, self.out, self.given.suppressed]
        kept = [np.zeros(0, np.int64) if source is None else source.kept for source in sources]
        _, numbers = np.unique(np.concatenate(kept), return_inverse=True)
        first, second = len(kept[0]), len(kept[0]) + len(kept[1])
        numbers = numbers.astype(np.int32)
        return numbers[:first], numbers[first:second], numbers[second:]

    @property
    def traced(self) -> int:
        """The number of rows that were published according to the trace."""
        return 0 if self.given.trace is None else int(np.count_nonzero(leaving(self.policy, self.given.trace)))

    @cached_property
    def accounts(self) -> Accounts:
        """Whether each row that went in left exactly once."""
        given = self.given.input
        if given is None:
            return Accounts(None, 0, "Give --input to find lost rows.")
        if self.exact is not None:
            return self._accounts_by_trace(self.exact)
        lost, more = self._accounts_by_class()
        if self.given.trace is not None:
            lost, more = max(lost, self.traced - len(self.out)), max(more, len(self.out) - self.traced)
        elif self.samples:
            return Accounts(None, more, "Give --trace to tell lost rows from rows that were sampled out.")
        elif not self.star and self.given.suppressed is None:
            lacking = "Give --suppressed to tell lost rows from suppressed rows."
            return Accounts(None, more, lacking)
        elif 0 < lost <= self._perhaps_ahead(given):
            return Accounts(None, more, "Give --trace to tell lost rows from rows that were too far ahead (max_ahead).")
        return Accounts(lost, more)

    def _perhaps_ahead(self, given: Input) -> int:
        """Count the rows that the run may have refused because no row of their shard had come near them in time.

        They follow a silence longer than `max_ahead`. Of several shards, one may be silent while others are not.
        """
        most, time = self.policy.most_ahead, np.sort(given.rows.time)
        if most is None or not len(time):
            return 0
        if self.policy.within:  # any of its shards may have been silent
            return len(time)
        before = np.arange(len(time)) - np.searchsorted(time, time - most)
        few = 1 if self.policy.shards == 1 else _FEW * self.policy.most_shards
        silent = np.flatnonzero((before < few) & (time - time[0] > most))
        return len(time) - int(silent[0]) if len(silent) else 0

    def _accounts_by_class(self) -> tuple[int, int]:
        """Count the missing and the surplus rows of each class. A suppressed row that never arrived is surplus."""
        count = max(int(kinds.max(initial=-1)) + 1 for kinds in self.classes)
        came, left, hidden = (np.bincount(kinds, minlength=count) for kinds in self.classes)
        stars = np.bincount(self.classes[1][~self.grouped], minlength=count)
        invented = np.maximum(hidden - stars, 0).sum() if self.star else 0
        left = left if self.star else left + hidden
        if self.given.suppressed is not None and self.given.input is not None:
            one = self.given.suppressed
            marks = (
                matching.fingerprints(one.lo[one.box], one.kept),
                matching.fingerprints(self.given.input.rows.qi, self.given.input.kept),
            )
            invented += matching.count_surplus(*marks)
        return int(np.maximum(came - left, 0).sum()), int(np.maximum(left - came, 0).sum() + invented)

    def _accounts_by_trace(self, exact: Exact) -> Accounts:
        times = exact.times_left()
        lost = int(np.count_nonzero(times == 0))
        if not self.samples:
            lost += int(np.count_nonzero(exact.trace.kind == SAMPLED_OUT))
        lost += sum(report.left_out_wrongly for report in self.reports)
        more = int(np.maximum(times - 1, 0).sum()) + exact.unknown()
        if self.given.suppressed is not None:
            more += exact.wrongly_suppressed(self.given.suppressed)
        return Accounts(lost, more)

    @cached_property
    def ends(self) -> Floats:
        """The ends of the domains. A learned domain is taken from the input, or else from the boxes."""
        given = self.given.input
        seen = [self.out.lo, self.out.hi] if given is None else [given.rows.qi]
        return measures.domains(self.policy, *seen)

    @cached_property
    def losses(self) -> measures.Loss | None:
        """What the published rows have lost; None if there are none."""
        has = None
        if self.exact is not None and self.policy.declaration.takes_holes:
            rows = self.exact.rows
            # A star stands for everything, so it has lost everything.
            has = ~np.isnan(self.exact.input.rows.qi[rows]) | ~self.grouped[:, None]
        return measures.losses(self.policy, self.out.lo, self.out.hi, self.ends, self.out.box, has)

    @cached_property
    def delay(self) -> dict[str, Any] | None:
        """How long rows waited, as the document shows it; None if unknown."""
        waited = None if self.exact is None else self.exact.delays()
        if waited is None or not len(waited):
            return None
        seconds = self.policy.delay is not None
        deadline = (self.policy.delay or 0) / 1e6 if seconds else self.policy.delay_rows
        largest = float(waited.max())
        middle, high = np.percentile(waited, [50, 99]).tolist()
        return {
            "unit": "seconds" if seconds else "rows",
            "deadline": None if deadline is None else float(deadline),
            "mean": rounded(float(waited.mean())),
            "p50": rounded(middle),
            "p99": rounded(high),
            "largest": rounded(largest),
            "histogram": measures.histogram(waited, max(largest, float(deadline or 0))),
        }
