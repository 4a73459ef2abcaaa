"""Counts how often a published stream breaks its policy's promises.

`audit` takes the policy, the rows that went in and the releases that came out, and recomputes every promise from these
alone. It counts rows that left with fewer than `k` persons at one moment, groups of fewer than `k` persons or `l`
values, groups further than `t` from the stream, rows lost or published twice, rows outside their box, late rows, and
misreported figures.

The audit assumes that an attacker knows which quasi-identifiers a person's rows have, besides their values. So two
rows belong to one group only if the same quasi-identifiers are published for both.

The unit of privacy is a person. The audit judges what was published; it does not judge what an attacker could learn by
combining that with other data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.audit.boxes import legal
from crenel.audit.differential_privacy import stated
from crenel.audit.evidence import REUSE, SAMPLED_OUT, SUPPRESSED, Published
from crenel.audit.over_time.common_values import rare_values
from crenel.audit.over_time.company import lacking_company
from crenel.audit.over_time.spacing import left_out_wrongly, too_soon, without_left_out
from crenel.audit.report import Report
from crenel.encoding.rows import Rows
from crenel.policy import OnSuppress, Policy
from crenel.policy.durations import parse_duration
from crenel.policy.geometry import Geometry, Interval

__all__ = ["audit"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_TOLERANCE = 1e-9
#: The growth of a late row's penalty per instant, unless the caller or the method gives another.
_ALPHA = 0.001
_LAST = int(np.iinfo(np.int64).max)
_FIRST = int(np.iinfo(np.int64).min)


def audit(
    policy: Policy,
    rows: Rows,
    releases: Any,
    *,
    ended: bool = True,
    calls: Iterable[tuple[int, int]] | None = None,
    in_order: bool | None = None,
    alpha: float | None = None,
    instant: int | None = None,
) -> Report:
    """Judge what was published of `rows` under `policy`.

    Args:
        policy: The promises to judge by.
        rows: All rows of one shard and window, in the order they were pushed.
        releases: The releases in the order they left: a `Published`, or any object with its columns.
        ended: Whether the stream is over. If not, rows that have not left are held, not lost.
        calls: The watermarks that the engine was told, as (number of rows pushed before, watermark). Without them, a
            row that left at its own arrival never counts as late, because it may have arrived late.
        in_order: Whether to judge groups at each release, or only over the whole output. The default is at each
            release, unless the order is unknown or the policy reorders the output. A reordered group leaves row by
            row, and reaches its size only over the whole output.
        alpha: The growth of a row's penalty per instant of delay, for the information loss. The default is the
            method's own, or 0.001.
        instant: Microseconds of event time per instant; None makes every arrival an instant. The default is the
            method's own, or None.

    Raises:
        ValueError: `releases` has another number of quasi-identifiers than the policy.
    """
    out = Published.of(releases)
    if in_order is None:
        in_order = out.offsets is not None and not policy.reorders
    if alpha is None:
        alpha = float(policy.parameter("alpha", _ALPHA))
    if instant is None:
        instant = parse_duration(policy.parameter("instant", None) or "")
    judge = _Audit(policy, rows, out, in_order)
    report = judge.report(ended, None if calls is None else list(calls))
    penalty, cost, delay = judge.costs(alpha, instant)
    return replace(report, uncertainty_penalty=penalty, information_loss=cost, mean_delay=delay)


class _Audit:
    """One audit. Its columns have one entry per member, where a member is a row in a release."""

    def __init__(self, policy: Policy, rows: Rows, out: Published, in_order: bool) -> None:
        self.policy = policy
        #: All rows, and all releases. Below are those that the method saw, since by them it formed groups.
        self.given, self.all = rows, out
        rows, out, self.places = without_left_out(rows, out)
        self.rows = rows
        self.out = out
        self.in_order = in_order
        self.perturbed = policy.declaration.perturbs
        #: Whether rows may lack quasi-identifiers, and whether the method may publish a value for a missing one.
        self.holes = policy.declaration.takes_holes
        self.fills = policy.parameter("fill_missing", False)
        self.geometries: list[Geometry] = [qi.geometry for qi in policy.quasi_identifiers.values()]
        if out.lo.shape[1] != len(self.geometries):
            message = "published: lo and hi must have one column per quasi-identifier."
            raise ValueError(message)

        m, n = len(out), len(rows)
        sizes = np.ones(m, np.int64) if out.offsets is None else np.diff(out.offsets)
        release = np.repeat(np.arange(m), sizes)
        known = (out.rows >= 0) & (out.rows < n)
        self.unknown = int(np.count_nonzero(~known))
        #: For each member, its release and its row.
        self.release: Ints = release[known]
        self.row: Ints = out.rows[known]

        self.widest = np.array([g.widest() for g in self.geometries], np.float64).reshape(-1, 2)
        self.full: Bools = np.all((out.lo == self.widest[:, 0]) & (out.hi == self.widest[:, 1]), axis=1)
        #: For each release, how its rows left.
        if out.kind is None:
            self.suppressed: Bools = self.full
            self.sampled: Bools = np.zeros(m, np.bool_)
        else:
            self.suppressed = out.kind == SUPPRESSED
            self.sampled = out.kind == SAMPLED_OUT
        self.published: Bools = ~self.suppressed & ~self.sampled
        #: For each release, the number of its box.
        self.box: Ints = _numbered(np.hstack([out.lo, out.hi]))

    def report(self, ended: bool, calls: list[tuple[int, int]] | None) -> Report:
        times = np.bincount(self.row, minlength=len(self.rows))
        missing = int(np.count_nonzero(times == 0))
        losses = self._losses()
        by_value = self.policy.declaration.value_by_value
        left_out = len(self.given) - len(self.rows)
        return Report(
            rows=len(self.given),
            published=self._members_of(self.published),
            suppressed=self._members_of(self.suppressed),
            sampled_out=self._members_of(self.sampled),
            left_out=left_out,
            left_out_wrongly=left_out_wrongly(self.policy, self.given, self.all),
            too_soon=self._too_soon(),
            lacking_company=self._lacking_company(),
            held=0 if ended else missing,
            lost=missing if ended else 0,
            twice=int(np.count_nonzero(times > 1)),
            unknown=self.unknown,
            crowd=self.policy.crowd,
            alone=self._rows_of(self._alone()),
            repeated=self._rows_of(self._repeated()),
            no_crowd=self._rows_of(self._alone() | self._repeated()),
            early=self._early(),
            small_groups=0 if by_value else self._too_few(self.rows.person, self.policy.k),
            rare_values=rare_values(self.policy, self.rows, self.out) if by_value else 0,
            low_diversity=self._low_diversity(),
            far=self._far(),
            outside=self._outside(),
            illegal=self._illegal(),
            late=self._late(calls),
            late_rows=self._late_rows(),
            wrong_loss=self._wrong_loss(losses),
            wrong_persons=self._wrong_persons(),
            star_not_widest=int(np.count_nonzero(self.suppressed & ~self.full)),
            loss=self._average(losses),
            perturbed=self.perturbed,
            differential=stated(self.policy),
        )

    def _members_of(self, releases: Bools) -> int:
        return int(np.count_nonzero(releases[self.release]))

    def _too_soon(self) -> int:
        """Count the published rows that are too near in time to an earlier one of their person."""
        shown = ~self.sampled
        if self.policy.on_suppress is OnSuppress.DROP:
            shown &= ~self.suppressed
        row = self.row[shown[self.release]]
        return too_soon(self.policy.once_per or 0, self.rows.person[row], self.rows.time[row])

    def _lacking_company(self) -> int | None:
        """Count the persons whose boxes, intersected, leave fewer than k; None if it is unknown when they left."""
        span, out = self.policy.together, self.out
        if span is None:
            return 0
        if out.arrivals is None or out.moment is None:
            return None
        shown = self.published[self.release]
        row, of = self.row[shown], self.release[shown]
        return lacking_company(self.policy, self.rows, row, out.lo[of], out.hi[of], out.moment[of], out.arrivals[of])

    # -- crowds ----------------------------------------------------------------------------------

    def _alone(self) -> Bools:
        """Find the releases without a crowd: those of fewer than k persons, and stars."""
        leaves = ~self.sampled
        if self.policy.on_suppress is OnSuppress.DROP:
            leaves &= ~self.suppressed
        return leaves & (self.suppressed | (self._persons[0] < self.policy.k))

    def _repeated(self) -> Bools:
        """Find the releases that contain a person more than once. Stars are left out: they are no crowd anyway."""
        persons, rows = self._persons
        return self.published & (persons < rows)

    @cached_property
    def _persons(self) -> tuple[Ints, Ints]:
        """Count the persons and the rows of each release."""
        person = _numbered(self.rows.person[:, None])[self.row]
        most = int(person.max(initial=0)) + 1
        persons = np.bincount(np.unique(self.release * most + person) // most, minlength=len(self.out))
        return persons, np.bincount(self.release, minlength=len(self.out))

    def _rows_of(self, releases: Bools) -> int | None:
        """Count the rows of these releases; None if it is unknown which rows left together."""
        return None if self.out.offsets is None else self._members_of(releases)

    # -- groups ----------------------------------------------------------------------------------

    def _too_few(self, values: Ints, least: int) -> int:
        """Count the releases under whose box fewer than `least` distinct values had been published."""
        counted = self.published[self.release]
        release, row = self.release[counted], self.row[counted]
        if not release.size:
            return 0
        seen = _distinct_so_far(self.box[release], values[row], whole=not self.in_order)
        # The count only grows within a release: its last row has the final one.
        last = np.flatnonzero(np.append(release[1:] != release[:-1], True))
        return int(np.count_nonzero(seen[last] < least))

    def _low_diversity(self) -> dict[str, int]:
        l = self.policy.l
        if l is None:
            return {}
        return {name: self._too_few(self.rows.sensitive[:, j], l) for j, name in enumerate(self.policy.sensitive)}

    def _far(self) -> dict[str, int | None]:
        t = self.policy.t
        if t is None:
            return {}
        out = self.out
        far: dict[str, int | None] = dict.fromkeys(self.policy.sensitive)
        if out.group is None or out.arrivals is None or not self.in_order:
            return far
        for j, (name, column) in enumerate(self.policy.sensitive.items()):
            codes = self.rows.sensitive[:, j]
            size = column.size if column.ordered else None
            far[name] = self._further_than(t, codes, size, out.group, out.arrivals)
        return far

    def _further_than(self, t: float, codes: Ints, size: int | None, group: Ints, arrivals: Ints) -> int:
        stream: Counter[int] = Counter()
        # Where rows are sampled, groups are compared with the rows that were kept: the others leave no trace.
        kept = np.ones(len(self.rows), np.bool_)
        kept[self.row[self.sampled[self.release]]] = False
        pushed = 0
        groups: dict[int, Counter[int]] = {}
        begin = np.searchsorted(self.release, np.arange(len(self.out) + 1))
        count = 0
        for i in np.flatnonzero(self.published):
            members = self.row[begin[i] : begin[i + 1]]
            if not members.size:
                continue
            now = int(arrivals[i])
            if now < pushed:
                stream, pushed = Counter(), 0
            stream.update(codes[pushed:now][kept[pushed:now]].tolist())
            pushed = now
            values = groups.setdefault(int(group[i]), Counter())
            values.update(codes[members].tolist())
            count += _distance(values, stream, size) > t + _TOLERANCE
        return count

    # -- boxes -----------------------------------------------------------------------------------

    def _outside(self) -> int:
        boxed = ~self.sampled[self.release]
        release, qi = self.release[boxed], self.rows.qi[self.row[boxed]]
        inside = (self.out.lo[release] <= qi) & (qi <= self.out.hi[release])
        if self.holes:
            # An unpublished value is not wrong. A missing value must not be published, except as a star or if filled.
            stands_for_all = self.suppressed[release] | self.fills
            inside |= np.isnan(self.out.lo[release]) | (np.isnan(qi) & stands_for_all[:, None])
        return int(np.count_nonzero(~np.all(inside, axis=1)))

    def _illegal(self) -> int:
        return int(np.count_nonzero(self.published & ~legal(self.policy, self.out.lo, self.out.hi)))

    def _losses(self) -> Floats | None:
        """Compute the loss of each release; None if the domain at its moment is unknown."""
        weights = [float(qi.weight) for qi in self.policy.quasi_identifiers.values()]
        return self._weighed([weight / sum(weights) for weight in weights])

    def _weighed(self, shares: Sequence[float]) -> Floats | None:
        """Add up the shares of the domains that each release's box covers, each times its weight."""
        out, parts = self.out, []
        for j, geometry in enumerate(self.geometries):
            domain = self._domain_width(j, geometry)
            if domain is None:
                return None
            with np.errstate(invalid="ignore", divide="ignore"):
                width = out.hi[:, j] - out.lo[:, j] + _cell(geometry)
                parts.append(np.where(domain > 0, width / domain, 0.0))
        if self.holes:
            losses = sum(shares) * self._losses_with_holes(parts, shares)
        else:
            losses = np.zeros(len(out))
            for part, share in zip(parts, shares, strict=True):
                losses += share * part
        losses[self.suppressed] = sum(shares)
        return losses

    def _losses_with_holes(self, parts: Sequence[Floats], weights: Sequence[float]) -> Floats:
        """Average over a release's rows. A value counts as lost if it is present and unpublished, or filled in."""
        lost, whole = np.zeros(len(self.row)), np.zeros(len(self.row))
        for j, (part, weight) in enumerate(zip(parts, weights, strict=True)):
            has = ~np.isnan(self.rows.qi[self.row, j])
            published = ~np.isnan(self.out.lo[self.release, j])
            whole += weight * (has | published)
            lost += weight * np.where(has & published, part[self.release], has ^ published)
        loss = np.divide(lost, whole, out=np.zeros(len(lost)), where=whole > 0)
        sizes = np.bincount(self.release, minlength=len(self.out))
        return np.asarray(np.bincount(self.release, loss, minlength=len(self.out)) / np.maximum(sizes, 1))

    def costs(self, alpha: float, instant: int | None) -> tuple[float | None, float | None, float | None]:
        """Return the mean penalty, the mean penalty that grows with delay, and the mean delay of published rows."""
        boxed = ~self.sampled[self.release]
        release, row = self.release[boxed], self.row[boxed]
        if not release.size:
            return None, None, None
        penalties, delay = self._weighed([1.0] * len(self.geometries)), self._delays(release, row, instant)
        penalty = None if penalties is None else penalties[release]
        with np.errstate(over="ignore"):  # a delay too long for a float has lost infinitely much
            cost = None if penalty is None or delay is None else float(np.mean(penalty * (1.0 + alpha) ** delay))
        return (
            None if penalty is None else float(np.mean(penalty)),
            cost,
            None if delay is None else float(np.mean(delay)),
        )

    def _delays(self, release: Ints, row: Ints, instant: int | None) -> Floats | None:
        """Compute the delay of each published row, in instants."""
        if instant is not None:
            moment = self.out.moment
            since = self.rows.time[row].astype(np.float64)
            return None if moment is None else np.maximum(moment[release].astype(np.float64) - since, 0.0) / instant
        arrivals = self.out.arrivals
        return None if arrivals is None else (arrivals[release] - row - 1).astype(np.float64)

    def _domain_width(self, j: int, geometry: Geometry) -> Floats | None:
        """Compute the width of a domain at each release; if it is learned, from the rows that had arrived by then."""
        if not _learned(geometry):
            return np.full(len(self.out), self.widest[j, 1] - self.widest[j, 0] + _cell(geometry))
        # The domain is learned from perturbed values, which the audit does not have.
        if self.out.arrivals is None or self.perturbed:
            return None
        qi = self.rows.qi[:, j]
        # fmax and fmin skip missing values.
        width = np.nan_to_num(np.fmax.accumulate(qi) - np.fmin.accumulate(qi) + _cell(geometry))
        arrivals = np.clip(self.out.arrivals, 0, len(qi))
        return np.asarray(np.concatenate([[0.0], width])[arrivals])

    def _wrong_loss(self, losses: Floats | None) -> int | None:
        if self.out.loss is None or losses is None:
            return None
        with np.errstate(invalid="ignore"):
            right = np.abs(self.out.loss - losses) <= _TOLERANCE
        return int(np.count_nonzero(~right & ~self.sampled))

    def _average(self, losses: Floats | None) -> float | None:
        if losses is None:
            losses = self.out.loss
        member = self.release[~self.sampled[self.release]]
        if losses is None or not member.size:
            return None
        return float(np.mean(losses[member]))

    def _wrong_persons(self) -> int | None:
        """Count wrong numbers of persons. A release reports the persons of its group as decided, without reuses."""
        out = self.out
        if out.persons is None or out.group is None or out.kind is None:
            return None
        group = _numbered(out.group[:, None])
        decided = (out.kind != REUSE)[self.release]
        release, row = self.release[decided], self.row[decided]
        pairs = np.stack([group[release], _numbered(self.rows.person[:, None])[row]], axis=1)
        persons = np.bincount(np.unique(pairs, axis=0)[:, 0], minlength=len(out))[group]
        return int(np.count_nonzero((out.persons != persons) & ~self.sampled))

    # -- time ------------------------------------------------------------------------------------

    def _early(self) -> int | None:
        if self.out.arrivals is None:
            return None
        return int(np.count_nonzero(self.out.arrivals[self.release] <= self.row))

    def _late_rows(self) -> int | None:
        if self.policy.delay_rows is None:
            return 0
        if self.out.arrivals is None:
            return None
        waited = self.out.arrivals[self.release] - self.row - 1
        return int(np.count_nonzero(waited > self.policy.delay_rows))

    def _late(self, calls: list[tuple[int, int]] | None) -> int | None:
        if self.policy.delay is None:
            return 0
        moment, arrivals = self.out.moment, self.out.arrivals
        if moment is None:
            return None
        deadline = _plus(self.rows.time, self.policy.delay)[self.row]
        clock = self._clock(calls or [])
        # A row that arrived after its deadline can leave at its arrival at the earliest.
        late = moment[self.release] > np.maximum(deadline, clock[self.row + 1])
        if arrivals is not None:
            left = np.clip(arrivals[self.release], 0, len(self.rows))
            at_arrival = left == self.row + 1
            if calls is None:
                late &= ~at_arrival
            # Whatever moment is reported: the row was still held after another row had made it due.
            late |= ~at_arrival & (clock[left] >= deadline)
        return int(np.count_nonzero(late))

    def _clock(self, calls: Sequence[tuple[int, int]]) -> Ints:
        """Compute the clock after the first `i` rows, with the watermarks told before the last of them.

        Rows that were left out move it, too.
        """
        clock = np.concatenate([np.array([_FIRST], np.int64), _plus(self.given.time, -self.policy.disorder)])
        for pushed, now in calls:
            if pushed + 1 < len(clock):
                clock[pushed + 1] = max(int(clock[pushed + 1]), now)
        return np.asarray(np.maximum.accumulate(clock)[np.concatenate([[0], self.places + 1])])


def _numbered(values: npt.NDArray[Any]) -> Ints:
    """Number the distinct rows of a matrix, column by column: far faster than `np.unique(axis=0)`."""
    number = np.zeros(len(values), np.int64)
    for column in values.T:
        _, inverse = np.unique(column, return_inverse=True)
        number = number * (int(inverse.max(initial=0)) + 1) + inverse
        _, number = np.unique(number, return_inverse=True)
    return np.asarray(number, dtype=np.int64)


def _distinct_so_far(box: Ints, value: Ints, *, whole: bool) -> Ints:
    """For each member, count the distinct values in its box up to it; with `whole`, in the whole box."""
    pair = _numbered(np.stack([box, value], axis=1))
    new = np.zeros(len(box), np.int64)
    new[np.unique(pair, return_index=True)[1]] = 1
    if whole:
        totals = np.bincount(box, weights=new).astype(np.int64)
        return np.asarray(totals[box])
    order = np.argsort(box, kind="stable")
    running = np.cumsum(new[order])
    first = np.flatnonzero(np.append(True, box[order][1:] != box[order][:-1]))
    before = np.repeat(running[first] - 1, np.diff(np.append(first, len(box))))
    seen = np.empty(len(box), np.int64)
    seen[order] = running - before
    return seen


def _distance(group: Counter[int], stream: Counter[int], size: int | None) -> float:
    """Return the distance between two distributions; `size` is the number of values if they are ordered."""
    p_all, q_all = group.total(), stream.total()
    if not q_all:
        return float("inf")
    if size is None:
        # Each value that the group lacks adds its whole share of the stream.
        shared = sum(
            abs(count / p_all - stream[value] / q_all) - stream[value] / q_all for value, count in group.items()
        )
        return (1.0 + shared) / 2
    if size < 2:
        return 0.0
    p, q = (
        np.bincount(list(counts), weights=list(counts.values()), minlength=size) / counts.total()
        for counts in (group, stream)
    )
    return float(np.abs(np.cumsum(p - q)).sum() / (size - 1))


def _learned(geometry: Geometry) -> bool:
    return isinstance(geometry, Interval) and geometry.lo is None


def _cell(geometry: Geometry) -> float:
    """Return the width of a single coordinate: with a step, a whole cell is published."""
    return 1.0 if isinstance(geometry, Interval) and geometry.cells else 0.0


def _plus(times: Ints, duration: int) -> Ints:
    """Shift times by a duration, and clamp them to the first and the last possible moment."""
    if duration >= 0:
        return np.minimum(times, _LAST - duration) + duration
    return np.maximum(times, _FIRST - duration) + duration
