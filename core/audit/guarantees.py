"""Counts the ways in which a published stream breaks the promises made for it.

`audit` takes the policy, the rows that went in and what came out, and computes every promise again
from these alone: rows that left with fewer than `k` persons at one moment, groups of fewer than `k`
persons or `l` values, groups further than `t` from the stream, rows lost or published twice, rows
outside their box, late rows, misreported figures.

An outsider is thought to know which quasi-identifiers a person's rows have, besides their values: rows are of one group
only if the same quasi-identifiers are published of them.

The unit of privacy is a person. The audit says what was published; it does not say what an
outsider could learn by combining it with other data.

A `Report` holds counts only, never a value of a row, so that it can be logged. A promise that
cannot be judged with what is known (no moments, say) is reported as not checked, never as kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.audit.differential_privacy import Statement, stated
from crenel.encoding.rows import Rows
from crenel.policy import OnSuppress, Policy
from crenel.policy.durations import parse_duration
from crenel.policy.geometry import Geometry, Interval, Radix, Tree

__all__ = ["FEWER", "Published", "Report", "audit", "legal"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# How a row left. The numbers are those of the engine's releases, written again here on purpose.
_REUSE = 1
_SUPPRESSED = 2
_SAMPLED_OUT = 3

#: What rows left with that no crowd hides.
FEWER = "fewer than k persons at one moment"

_TOLERANCE = 1e-9
# What is said of a row's own values, and of domains that are learned from them.
_NOT_OF_PERTURBED = ("rows outside their box", "releases that report a wrong loss")
#: The decay of late rows where nobody says another.
_ALPHA = 0.001
_LAST = int(np.iinfo(np.int64).max)
_FIRST = int(np.iinfo(np.int64).min)


@dataclass(frozen=True, kw_only=True, eq=False)
class Published:
    """What left, release by release, in columns. `None` where it is not known."""

    #: Row numbers (arrivals, counted from 0), release after release.
    rows: Ints = field(repr=False)
    #: Boxes, one row per release and one column per quasi-identifier; NaN if that is not published.
    lo: Floats = field(repr=False)
    hi: Floats = field(repr=False)
    #: Where each release begins in `rows`, and the end. Without it each row stands alone, and the
    #: order in which they left is taken as unknown.
    offsets: Ints | None = field(default=None, repr=False)
    #: 0 cluster, 1 reuse, 2 suppressed, 3 sampled out. Without it, a release of the widest box in
    #: every quasi-identifier is taken as suppressed, any other as published.
    kind: Ints | None = field(default=None, repr=False)
    #: As reported by who published; the persons are those of the group as it was decided.
    loss: Floats | None = field(default=None, repr=False)
    persons: Ints | None = field(default=None, repr=False)
    #: The clock (event time, microseconds) at the release.
    moment: Ints | None = field(default=None, repr=False)
    #: How many rows had been pushed at the release.
    arrivals: Ints | None = field(default=None, repr=False)
    #: Releases of one number share a generalization that was decided once.
    group: Ints | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        columns = {"rows": np.int64, "lo": np.float64, "hi": np.float64, "offsets": np.int64}
        columns |= dict.fromkeys(("kind", "persons", "moment", "arrivals", "group"), np.int64)
        for name, dtype in (columns | {"loss": np.float64}).items():
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, np.asarray(value, dtype=dtype))
        self._check_shapes()

    def _check_shapes(self) -> None:
        if self.offsets is not None and not (
            self.offsets.size
            and self.offsets[0] == 0
            and self.offsets[-1] == len(self.rows)
            and bool(np.all(np.diff(self.offsets) >= 0))
        ):
            message = "published: offsets must rise from 0 to the number of rows."
            raise ValueError(message)
        m = len(self)
        if self.lo.ndim != 2 or self.hi.shape != self.lo.shape or len(self.lo) != m:
            message = "published: lo and hi must have one row per release and one column per QI."
            raise ValueError(message)
        for name in ("kind", "loss", "persons", "moment", "arrivals", "group"):
            value = getattr(self, name)
            if value is not None and value.shape != (m,):
                message = f"published: {name} must have one value per release."
                raise ValueError(message)

    def __len__(self) -> int:
        """The number of releases."""
        return len(self.rows) if self.offsets is None else len(self.offsets) - 1

    @classmethod
    def of(cls, releases: Any) -> Published:
        """The view of anything that has these columns as attributes, an engine's releases say."""
        if isinstance(releases, cls):
            return releases
        optional = ("offsets", "kind", "loss", "persons", "moment", "arrivals", "group")
        return cls(
            rows=releases.rows,
            lo=releases.lo,
            hi=releases.hi,
            **{name: getattr(releases, name, None) for name in optional},
        )


@dataclass(frozen=True, kw_only=True)
class Report:
    """What an audit counted. `None`: could not be checked with what is known."""

    #: Rows that were pushed, and what became of them.
    rows: int
    published: int
    suppressed: int
    sampled_out: int
    #: Rows that have not left, though the stream has not ended either.
    held: int
    #: Rows that never left.
    lost: int
    #: Rows that left more than once.
    twice: int
    #: Row numbers that left and were never pushed.
    unknown: int
    #: Rows that left before they had arrived.
    early: int | None
    #: Rows that left with fewer than k persons at one moment: in a release of fewer persons, or as a star. None if it
    #: is not known which rows left together.
    alone: int | None
    #: Rows of releases in which a person is more than once; and rows of which either is so.
    repeated: int | None
    no_crowd: int | None
    #: Releases that left when fewer than k persons had been published under their box.
    small_groups: int
    #: The same for l and the values of each sensitive column, by column.
    low_diversity: Mapping[str, int]
    #: Releases whose group was further than t from the stream, by sensitive column.
    far: Mapping[str, int | None]
    #: Rows that are not inside the box they were published under. A method that perturbs does not promise it.
    outside: int
    #: Releases whose box is none that the geometry can publish.
    illegal: int
    #: Rows that left after their `delay`.
    late: int | None
    #: Rows that left after their `delay_rows`.
    late_rows: int | None
    #: Releases whose reported loss or number of persons is not what it is computed to be.
    wrong_loss: int | None
    wrong_persons: int | None
    #: Suppressed releases whose box is not the widest.
    star_not_widest: int
    #: Mean loss over the rows published (a suppressed row loses everything: 1.0).
    loss: float | None
    #: Whether the policy promises that every published row leaves in a crowd.
    crowd: bool = False
    #: Whether boxes are over perturbed values.
    perturbed: bool = False
    #: What is guaranteed besides, and how well that is founded; None: nothing.
    differential: Statement | None = None
    #: Mean over the rows published of the uncertainty penalty: the parts of the domains that the box takes up, added up
    #: over the quasi-identifiers, without weights. A suppressed row's is their number.
    uncertainty_penalty: float | None = None
    #: The same with the decay of what is late: each row's penalty times (1 + alpha)^delay.
    information_loss: float | None = None
    #: Mean delay of the rows published, in instants: arrivals, or a span of event time.
    mean_delay: float | None = None

    @property
    def ok(self) -> bool:
        """Whether every promise was checked and none was found broken."""
        return not self.problems() and not self.unchecked()

    def problems(self) -> list[str]:
        """One sentence for every kind of breach that was found."""
        return [f"{count} {text}." for text, count in self._counts() if count]

    def unchecked(self) -> list[str]:
        """One sentence for every promise that could not be judged."""
        return [f"Not checked: {text}." for text, count in self._counts() if count is None]

    def _counts(self) -> list[tuple[str, int | None]]:
        values = [
            (f"releases of too few distinct values of sensitive column {name}", count)
            for name, count in self.low_diversity.items()
        ]
        distances = [
            (f"releases further than t from the stream in sensitive column {name}", far)
            for name, far in self.far.items()
        ]
        crowd = [
            (f"rows that left with {FEWER}", self.alone),
            ("rows of releases in which a person is more than once", self.repeated),
        ]
        promises = [
            *(crowd if self.crowd else []),
            ("rows lost", self.lost),
            ("rows that left more than once", self.twice),
            ("row numbers that were never pushed", self.unknown),
            ("rows that left before they arrived", self.early),
            ("releases of fewer than k persons", self.small_groups),
            *values,
            *distances,
            ("rows outside their box", self.outside),
            ("releases under a box that cannot be published", self.illegal),
            ("rows later than delay", self.late),
            ("rows later than delay_rows", self.late_rows),
            ("releases that report a wrong loss", self.wrong_loss),
            ("releases that report a wrong number of persons", self.wrong_persons),
            ("suppressed releases that are not fully generalized", self.star_not_widest),
        ]
        return [(text, count) for text, count in promises if not (self.perturbed and text in _NOT_OF_PERTURBED)]

    def __str__(self) -> str:
        alone = "unknown" if self.alone is None else self.alone
        names = ("rows", "published", "suppressed", "sampled_out", "held")
        lines = [f"{alone} rows left with {FEWER}."]
        lines += [f"{name.replace('_', ' '):<12}{getattr(self, name):>12}" for name in names]
        average = "unknown" if self.loss is None else f"{self.loss:.6f}"
        lines.append(f"{'loss':<12}{average:>12}")
        if self.differential is not None:
            lines.append(str(self.differential))
        costs = ("uncertainty_penalty", "information_loss", "mean_delay")
        lines += [
            f"{name.replace('_', ' '):<20}{value:>16.6f}"
            for name in costs
            if (value := getattr(self, name)) is not None
        ]
        found = self.problems() + self.unchecked()
        return "\n".join(lines + (found or ["All promises kept."]))


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
    """Judges what was published of `rows` under `policy`.

    Parameters
    ----------
    rows
        All rows of one shard and window, in the order they were pushed.
    releases
        What left, in the order it left: a `Published`, or anything with its columns.
    ended
        Whether the stream is over. If not, rows that have not left are held, not lost.
    calls
        The watermarks told between rows, as (number of rows pushed before, watermark). Without
        them a row that left at its own arrival is never late, as it may have arrived late.
    in_order
        Whether the promises on groups are judged at each release, or only for the whole output.
        By default at each release, unless the order is unknown or the policy reorders the output:
        then the rows of a group leave one by one, and only together they are a group.
    alpha, instant
        What the information loss is computed with: what an instant's delay adds to a row's penalty, as a part of it,
        and the microseconds of event time that an instant has; None: an arrival is one. By default the method's own,
        or 0.001 and arrivals.
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
    """One audit: the columns of the stream, lined up member by member (a row in a release)."""

    def __init__(self, policy: Policy, rows: Rows, out: Published, in_order: bool) -> None:
        self.policy = policy
        self.rows = rows
        self.out = out
        self.in_order = in_order
        self.perturbed = policy.declaration.perturbs
        #: Whether rows may lack quasi-identifiers, and whether these may be published all the same.
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
        #: Per member: which release, which row.
        self.release: Ints = release[known]
        self.row: Ints = out.rows[known]

        self.widest = np.array([g.widest() for g in self.geometries], np.float64).reshape(-1, 2)
        self.full: Bools = np.all((out.lo == self.widest[:, 0]) & (out.hi == self.widest[:, 1]), axis=1)
        #: Per release: how its rows left.
        if out.kind is None:
            self.suppressed: Bools = self.full
            self.sampled: Bools = np.zeros(m, np.bool_)
        else:
            self.suppressed = out.kind == _SUPPRESSED
            self.sampled = out.kind == _SAMPLED_OUT
        self.published: Bools = ~self.suppressed & ~self.sampled
        #: Per release: the number of its box.
        self.box: Ints = _numbered(np.hstack([out.lo, out.hi]))

    def report(self, ended: bool, calls: list[tuple[int, int]] | None) -> Report:
        times = np.bincount(self.row, minlength=len(self.rows))
        missing = int(np.count_nonzero(times == 0))
        losses = self._losses()
        return Report(
            rows=len(self.rows),
            published=self._members_of(self.published),
            suppressed=self._members_of(self.suppressed),
            sampled_out=self._members_of(self.sampled),
            held=0 if ended else missing,
            lost=missing if ended else 0,
            twice=int(np.count_nonzero(times > 1)),
            unknown=self.unknown,
            crowd=self.policy.crowd,
            alone=self._rows_of(self._alone()),
            repeated=self._rows_of(self._repeated()),
            no_crowd=self._rows_of(self._alone() | self._repeated()),
            early=self._early(),
            small_groups=self._too_few(self.rows.person, self.policy.k),
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

    # -- crowds ----------------------------------------------------------------------------------

    def _alone(self) -> Bools:
        """The releases that no crowd hides: of fewer than k persons, or stars."""
        leaves = ~self.sampled
        if self.policy.on_suppress is OnSuppress.DROP:
            leaves &= ~self.suppressed
        return leaves & (self.suppressed | (self._persons[0] < self.policy.k))

    def _repeated(self) -> Bools:
        """The releases in which a person is more than once; a star is no crowd anyway."""
        persons, rows = self._persons
        return self.published & (persons < rows)

    @cached_property
    def _persons(self) -> tuple[Ints, Ints]:
        """The persons and the rows of each release."""
        person = _numbered(self.rows.person[:, None])[self.row]
        most = int(person.max(initial=0)) + 1
        persons = np.bincount(np.unique(self.release * most + person) // most, minlength=len(self.out))
        return persons, np.bincount(self.release, minlength=len(self.out))

    def _rows_of(self, releases: Bools) -> int | None:
        """The rows of these releases; None if it is not known which rows left together."""
        return None if self.out.offsets is None else self._members_of(releases)

    # -- groups ----------------------------------------------------------------------------------

    def _too_few(self, values: Ints, least: int) -> int:
        """Releases under whose box fewer than `least` distinct values had been published."""
        counted = self.published[self.release]
        release, row = self.release[counted], self.row[counted]
        if not release.size:
            return 0
        seen = _distinct_so_far(self.box[release], values[row], whole=not self.in_order)
        # Persons only grow within a release: its last row says how many it ended with.
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
            stream.update(codes[pushed:now].tolist())
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
            # What is not published is not false. What the row lacks must not be, but in a star or if it is filled in.
            stands_for_all = self.suppressed[release] | self.fills
            inside |= np.isnan(self.out.lo[release]) | (np.isnan(qi) & stands_for_all[:, None])
        return int(np.count_nonzero(~np.all(inside, axis=1)))

    def _illegal(self) -> int:
        return int(np.count_nonzero(self.published & ~legal(self.policy, self.out.lo, self.out.hi)))

    def _losses(self) -> Floats | None:
        """The loss of each release, or `None` where the domain of its moment is not known."""
        weights = [float(qi.weight) for qi in self.policy.quasi_identifiers.values()]
        return self._weighed([weight / sum(weights) for weight in weights])

    def _weighed(self, shares: Sequence[float]) -> Floats | None:
        """The parts of the domains that each release's box takes up, each times its share, added up."""
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
        """The mean over a release's rows: what a row has and is not published is lost, and so is what is filled in."""
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
        """The mean penalty, the mean penalty with the decay of delays, and the mean delay, of the rows published."""
        boxed = ~self.sampled[self.release]
        release, row = self.release[boxed], self.row[boxed]
        if not release.size:
            return None, None, None
        penalties, delay = self._weighed([1.0] * len(self.geometries)), self._delays(release, row, instant)
        penalty = None if penalties is None else penalties[release]
        with np.errstate(over="ignore"):  # what is later than a number can say has lost infinitely much
            cost = None if penalty is None or delay is None else float(np.mean(penalty * (1.0 + alpha) ** delay))
        return (
            None if penalty is None else float(np.mean(penalty)),
            cost,
            None if delay is None else float(np.mean(delay)),
        )

    def _delays(self, release: Ints, row: Ints, instant: int | None) -> Floats | None:
        """The delay of each row published, in instants."""
        if instant is not None:
            moment = self.out.moment
            since = self.rows.time[row].astype(np.float64)
            return None if moment is None else np.maximum(moment[release].astype(np.float64) - since, 0.0) / instant
        arrivals = self.out.arrivals
        return None if arrivals is None else (arrivals[release] - row - 1).astype(np.float64)

    def _domain_width(self, j: int, geometry: Geometry) -> Floats | None:
        """The width of a domain at each release: if learned, of what had arrived by then."""
        if not _learned(geometry):
            return np.full(len(self.out), self.widest[j, 1] - self.widest[j, 0] + _cell(geometry))
        # Of perturbed values, which are not known here.
        if self.out.arrivals is None or self.perturbed:
            return None
        qi = self.rows.qi[:, j]
        # Of those that are not missing.
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
        """A release reports the persons of its group as it was decided, without later reuses."""
        out = self.out
        if out.persons is None or out.group is None or out.kind is None:
            return None
        group = _numbered(out.group[:, None])
        decided = (out.kind != _REUSE)[self.release]
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
        # A row that arrived after its deadline can leave no sooner than at its arrival.
        late = moment[self.release] > np.maximum(deadline, clock[self.row + 1])
        if arrivals is not None:
            left = np.clip(arrivals[self.release], 0, len(self.rows))
            at_arrival = left == self.row + 1
            if calls is None:
                late &= ~at_arrival
            # Whatever moment is reported: it was still here after a row that had made it due.
            late |= ~at_arrival & (clock[left] >= deadline)
        return int(np.count_nonzero(late))

    def _clock(self, calls: Sequence[tuple[int, int]]) -> Ints:
        """The clock when the first `i` rows were in, with the watermarks told before the last."""
        clock = np.concatenate([np.array([_FIRST], np.int64), _plus(self.rows.time, -self.policy.disorder)])
        for pushed, now in calls:
            if pushed + 1 < len(clock):
                clock[pushed + 1] = max(int(clock[pushed + 1]), now)
        return np.maximum.accumulate(clock)


def legal(policy: Policy, lo: Floats, hi: Floats) -> Bools:
    """Whether each box, a row each, is one that the policy's geometries can publish."""
    right = np.ones(len(lo), np.bool_)
    for j, qi in enumerate(policy.quasi_identifiers.values()):
        geometry = qi.geometry
        unpublished = np.isnan(lo[:, j]) & np.isnan(hi[:, j]) & policy.declaration.takes_holes
        right &= _legal(geometry, np.where(unpublished, geometry.widest()[0], lo[:, j]), hi[:, j]) | unpublished
    return right


def _numbered(values: npt.NDArray[Any]) -> Ints:
    """Numbers the distinct rows of a matrix, column by column: far faster than `axis=0`."""
    number = np.zeros(len(values), np.int64)
    for column in values.T:
        _, inverse = np.unique(column, return_inverse=True)
        number = number * (int(inverse.max(initial=0)) + 1) + inverse
        _, number = np.unique(number, return_inverse=True)
    return np.asarray(number, dtype=np.int64)


def _distinct_so_far(box: Ints, value: Ints, *, whole: bool) -> Ints:
    """For each member, the distinct values among the members of its box up to it (or, all)."""
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
    """The distance of two distributions; `size` is given for ordered values."""
    p_all, q_all = group.total(), stream.total()
    if not q_all:
        return float("inf")
    if size is None:
        # Values that the group lacks add their whole share of the stream.
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
    """What a range of one coordinate is wide: where there is a step, a whole cell is published."""
    return 1.0 if isinstance(geometry, Interval) and geometry.cells else 0.0


def _legal(geometry: Geometry, lo: Floats, hi: Floats) -> Bools:
    """Whether each range is a span: not computed by `span`, which the engine uses too."""
    least, most = geometry.widest()
    inside = (least <= lo) & (lo <= hi) & (hi <= most)
    if isinstance(geometry, Interval):
        everything = (lo == least) & (hi == most)
        if geometry.cells:
            inside &= (np.floor(lo) == lo) & (np.floor(hi) == hi)
        return np.asarray(inside & ((np.isfinite(lo) & np.isfinite(hi)) | everything))
    whole = inside & (np.floor(lo) == lo) & (np.floor(hi) == hi)
    first = np.where(whole, lo, 0).astype(np.int64)
    last = np.where(whole, hi, 0).astype(np.int64)
    if isinstance(geometry, Radix):
        block = np.zeros(len(lo), np.bool_)
        for free in range(geometry.length + 1):
            size = geometry.base**free
            block |= (first % size == 0) & (last - first == size - 1)
        return np.asarray(whole & block)
    return np.asarray(whole & _is_node(geometry, first, last))


def _is_node(tree: Tree, first: Ints, last: Ints) -> Bools:
    leaves = len(tree.leaf)
    nodes = tree.first.astype(np.int64) * leaves + tree.last.astype(np.int64)
    return np.isin(first * leaves + last, nodes)


def _plus(times: Ints, duration: int) -> Ints:
    """Times moved by a duration, stopping at the first and the last moment there is."""
    if duration >= 0:
        return np.minimum(times, _LAST - duration) + duration
    return np.maximum(times, _FIRST - duration) + duration
