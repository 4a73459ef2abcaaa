"""The audit's result as one document: what `crenel audit --json` prints, and the page is made of.

It holds counts, means and the policy's own names: never a value of a row. `docs/audit.md` says what each figure is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.audit import attempts, matching, measures
from crenel.audit.differential import stated
from crenel.audit.evidence import Evidence
from crenel.audit.exact import Exact
from crenel.audit.guarantees import Report, legal
from crenel.audit.queries import Axis, Boxes, workload_error
from crenel.durations import format_duration
from crenel.geometry import Interval
from crenel.parameters import takes_holes
from crenel.policy import OnSuppress, Policy

__all__ = ["BROKEN", "KEPT", "UNKNOWN", "Workload", "build"]

Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Document = dict[str, Any]

KEPT, BROKEN, UNKNOWN = "kept", "broken", "unknown"
NOT_PROVEN = "not proven"

_BINS_OVER_TIME = 50
_WINDOWS = 10
_SUPPRESSED, _SAMPLED_OUT = 2, 3
#: Microseconds that a bin of event time may have: from a minute to a year.
_SPANS = [60_000_000 * m for m in (1, 5, 15, 60, 180, 360, 720, 1440, 10_080, 43_200, 525_600)]


@dataclass(frozen=True)
class Workload:
    """How queries are drawn."""

    queries: int = 500
    theta: float = 0.1
    seed: int = 1


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What was promised, and what was measured. The fields are those of the document."""

    name: str
    promised: str
    measured: str
    value: float | None = None
    bound: float | None = None
    state: str
    groups: int | None = None
    rows: int | None = None
    note: str = ""


def build(
    policy: Policy,
    evidence: Evidence,
    *,
    version: str,
    workload: Workload | None = None,
    tick: Callable[[int], None] = lambda rows: None,
) -> Document:
    """Judge and measure a published stream by what is given.

    Parameters
    ----------
    version
        Of who judges.
    workload
        The queries that utility is measured by; None: it is not measured.
    tick
        Told how many published rows have been matched since, where they are.

    Raises
    ------
    TraceError
        The trace is none that a run could have written.
    """
    return _Audit(policy, evidence, tick).document(version, workload or Workload())


class _Audit:
    """One audit of what is given."""

    def __init__(self, policy: Policy, evidence: Evidence, tick: Callable[[int], None]) -> None:
        self.policy = policy
        self.given = evidence
        self.out = evidence.published
        self.tick = tick
        self.star = policy.on_suppress is OnSuppress.STAR
        self.samples = getattr(policy.parameters, "beta_sample", 1.0) < 1
        self.perturbs = bool(getattr(policy.parameters, "perturbs", False))
        self.exact = Exact.of(policy, evidence)
        self.knowledge = "published" if evidence.input is None else "input" if self.exact is None else "trace"
        ends = measures.widest(policy)
        is_star = np.all((self.out.lo == ends[:, 0]) & (self.out.hi == ends[:, 1]), axis=1) & self.star
        #: Which published rows are in groups; the others were suppressed.
        self.grouped: Bools = ~is_star[self.out.box] if self.exact is None else ~self.exact.suppressed()
        #: Rows in each box, without those.
        self.sizes: Ints = np.bincount(self.out.box[self.grouped], minlength=len(self.out.lo))
        self.groups: Ints = np.flatnonzero(self.sizes)

    # -- the document ----------------------------------------------------------------------------

    def document(self, version: str, workload: Workload) -> Document:
        promises = list(self.promises())
        states = {promise.state for promise in promises}
        verdict = BROKEN if BROKEN in states else NOT_PROVEN if UNKNOWN in states else KEPT
        return {
            "crenel": version,
            "policy": self.said(),
            "knowledge": self.knowledge,
            "verdict": verdict,
            "rows": self.rows(),
            "promises": [asdict(promise) for promise in promises],
            "loss": self.loss(),
            "groups": self.group_sizes(),
            "delay": self.delay(),
            "over_time": self.over_time(),
            "utility": self.utility(workload),
            "attacks": attempts.tried(self.policy, self.given, self.exact, workload.seed),
            "differential": self.differential(),
            "notes": list(self.notes()),
        }

    def said(self) -> Document:
        """What the policy says."""
        policy = self.policy
        return {
            "method": policy.method,
            "k": policy.k,
            "l": policy.l,
            "t": policy.t,
            "delay": None if policy.delay is None else format_duration(policy.delay),
            "delay_rows": policy.delay_rows,
            "on_suppress": policy.on_suppress.value,
            "person": policy.person,
            "quasi_identifiers": list(policy.quasi_identifiers),
            "sensitive": list(policy.sensitive),
            "publish": list(policy.publish),
        }

    def rows(self) -> Document:
        given = self.given.input
        return {
            "input": None if given is None else given.total,
            "rejected": None if given is None else given.total - len(given),
            "published": int(self.grouped.sum()),
            "suppressed": self.suppressed,
            "sampled_out": self.sampled_out,
            "lost": self.accounts[0],
            "groups": len(self.groups),
        }

    @cached_property
    def suppressed(self) -> int | None:
        """Rows that no group was found for, if that is known."""
        if self.exact is not None:
            return int(np.count_nonzero(self.exact.trace.kind == _SUPPRESSED))
        if self.star:
            return int(np.count_nonzero(~self.grouped))
        return None if self.given.suppressed is None else len(self.given.suppressed)

    @property
    def sampled_out(self) -> int | None:
        if self.exact is not None:
            return int(np.count_nonzero(self.exact.trace.kind == _SAMPLED_OUT))
        return None if self.samples else 0

    # -- the promises ----------------------------------------------------------------------------

    def promises(self) -> Iterator[Promise]:
        yield self.k()
        for j, name in enumerate(self.policy.sensitive):
            if self.policy.l is not None:
                yield self.l(j, name)
        for j, name in enumerate(self.policy.sensitive):
            if self.policy.t is not None:
                yield self.t(j, name)
        if self.policy.delay is not None or self.policy.delay_rows is not None:
            yield self.deadline()
        yield self.nothing_lost()
        if not self.perturbs:
            yield self.contained()
        yield self.columns()
        yield self.boxes()
        if self.given.reported is not None and self.exact is not None:
            yield self.reported()
        if stated(self.policy) is not None:
            yield self.epsilon()

    @cached_property
    def reports(self) -> list[Report]:
        return [] if self.exact is None else self.exact.reports(self.given.reported)

    def k(self) -> Promise:
        k = self.policy.k
        promise = Promise(name="k", promised=f"at least {k} persons in each group", bound=k, measured="", state=UNKNOWN)
        if not len(self.groups):
            return replace(promise, measured="no groups", state=KEPT, groups=0, rows=0)
        if self.exact is not None:
            return self._k_by_trace(promise)
        if self.given.input is None:
            least = int(self.sizes[self.groups].min())
            promise = replace(
                promise,
                measured=f"at least {least} rows in each group; whose they are is not known",
                note="A person may have several rows of a group. --input bounds the number of persons.",
            )
            return self._broken_if(promise, self.sizes[self.groups] < k)
        least, most = int(self.bounds.least.min()), int(self.bounds.most.min())
        unproven = self.bounds.least < k
        said = f"at least {least} persons" if least == most else f"at least {least} to {most} persons"
        promise = replace(promise, measured=f"{said} in each group", value=least)
        if unproven.any():
            count = int(np.count_nonzero(unproven & (self.bounds.most >= k)))
            note = f"Of {count} of {len(self.groups)} groups it cannot be told without --trace."
            return self._broken_if(replace(promise, note=note), self.bounds.most < k)
        return replace(promise, state=KEPT, groups=0, rows=0)

    def _k_by_trace(self, promise: Promise) -> Promise:
        least = int(self.persons.min())
        promise = replace(promise, measured=f"at least {least} persons in each group", value=least)
        small = sum(report.small_groups for report in self.reports)
        if small and least >= self.policy.k:
            note = f"{small} releases left before their group was complete."
            return replace(promise, state=BROKEN, groups=small, rows=None, note=note)
        return self._broken_if(replace(promise, state=KEPT, groups=0, rows=0), self.persons < self.policy.k)

    def _broken_if(self, promise: Promise, wrong: Bools) -> Promise:
        """The promise, broken if any group is wrong."""
        if not wrong.any():
            return promise
        rows = int(self.sizes[self.groups[wrong]].sum())
        return replace(promise, state=BROKEN, groups=int(np.count_nonzero(wrong)), rows=rows)

    @cached_property
    def persons(self) -> Ints:
        """The persons of each group, by the trace."""
        if self.exact is None:
            return self.sizes[self.groups]
        rows = self.exact.rows
        known = self.grouped & (rows >= 0)
        person = self.exact.input.rows.person[rows[known]]
        return measures.diversity(self.out.box[known], person, len(self.sizes))[0][self.groups]

    @cached_property
    def bounds(self) -> matching.Bounds:
        """What the input says of the groups' persons, and of rows in wrong boxes."""
        given = self.given.input
        if given is None:
            raise AssertionError
        if self.perturbs:
            return matching.bounds_of_moved(given.rows.person, self.sizes[self.groups])
        numbers = np.zeros(len(self.sizes), np.int64)
        numbers[self.groups] = np.arange(len(self.groups))
        kinds, published, _ = self.classes
        return matching.bounds(
            matching.Candidates(given.rows.qi, filled=bool(getattr(self.policy.parameters, "fill_missing", False))),
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
        """The classes of the input's, the published and the suppressed rows, by small numbers."""
        sources = [self.given.input, self.out, self.given.suppressed]
        kept = [np.zeros(0, np.int64) if source is None else source.kept for source in sources]
        _, numbers = np.unique(np.concatenate(kept), return_inverse=True)
        first, second = len(kept[0]), len(kept[0]) + len(kept[1])
        numbers = numbers.astype(np.int32)
        return numbers[:first], numbers[first:second], numbers[second:]

    def l(self, j: int, name: str) -> Promise:
        bound = int(self.policy.l or 0)
        codes = self.out.sensitive[self.grouped, j]
        values, entropy = measures.diversity(self.out.box[self.grouped], codes, len(self.sizes))
        promised = f"at least {bound} different values of {name} in each group"
        promise = Promise(name=f"l:{name}", promised=promised, measured="no groups", bound=bound, state=KEPT)
        if len(self.groups):
            least = int(values[self.groups].min())
            note = f"By their entropy, at least {entropy[self.groups].min():.2f} in each group."
            promise = replace(promise, measured=f"at least {least} different values", value=least, note=note)
        early = sum(report.low_diversity[name] for report in self.reports)
        promise = self._broken_if(replace(promise, groups=0, rows=0), values[self.groups] < bound)
        if early and promise.state == KEPT:
            note = f"{promise.note} {early} releases left before their group had them."
            return replace(promise, state=BROKEN, groups=early, rows=None, note=note)
        return promise

    def t(self, j: int, name: str) -> Promise:
        bound, column = float(self.policy.t or 0.0), self.policy.sensitive[name]
        size = column.size if column.ordered else None
        codes = self.out.sensitive[self.grouped, j]
        far = measures.distances(self.out.box[self.grouped], codes, len(self.sizes), size)
        most = float(far[self.groups].max()) if len(self.groups) else 0.0
        promise = Promise(
            name=f"t:{name}",
            promised=f"within {bound:g} of the stream's {name} in each group, when it leaves",
            measured=f"within {most:.3f} of what was published in all",
            value=_short(most),
            bound=bound,
            state=UNKNOWN,
            note="How the stream was at the moment of each release is known by --trace alone.",
        )
        counts = [report.far[name] for report in self.reports]
        if self.exact is None or any(count is None for count in counts):
            return promise
        wrong = sum(count or 0 for count in counts)
        note = "It is judged at the moment of each release; what is measured is at the end."
        return replace(promise, state=BROKEN if wrong else KEPT, groups=wrong, rows=None, note=note)

    def deadline(self) -> Promise:
        policy = self.policy
        said = [] if policy.delay is None else [f"{format_duration(policy.delay)} of event time"]
        said += [] if policy.delay_rows is None else [f"{policy.delay_rows} arrivals"]
        bound = policy.delay_rows if policy.delay is None else policy.delay / 1e6
        promised = f"each row leaves within {' and '.join(said)}"
        promise = Promise(name="deadline", promised=promised, measured="not known", bound=bound, state=UNKNOWN)
        late = [report.late for report in self.reports]
        delay = self.delay()
        if self.exact is None or None in late:
            return replace(promise, note="When a row came and left is known by --trace alone.")
        wrong = sum(count or 0 for count in late) + sum(report.late_rows or 0 for report in self.reports)
        early = sum(report.early or 0 for report in self.reports)
        unordered = 0 if policy.event_time is None else self.exact.out_of_order()
        if delay is not None:
            promise = replace(promise, measured=f"at most {delay['largest']:g} {delay['unit']}", value=delay["largest"])
        notes = []
        if unordered:
            notes.append(f"{unordered} rows of the trace are not in the order of their event times.")
        if early:
            notes.append(f"{early} rows of the trace left before they came.")
        broken = wrong + unordered + early
        return replace(promise, state=BROKEN if broken else KEPT, rows=broken, note=" ".join(notes))

    @cached_property
    def accounts(self) -> tuple[int | None, int, str]:
        """How many rows are lost, how many left that never came, or again; and what was not given to know it."""
        given = self.given.input
        if given is None:
            return None, 0, "What should have left is known by --input."
        if self.exact is not None:
            return self._accounts_by_trace(self.exact)
        came, left, hidden = (np.bincount(kinds, minlength=self._kinds) for kinds in self.classes)
        if not self.star:
            left = left + hidden
        more = int(np.maximum(left - came, 0).sum())
        if self.given.trace is not None:
            more += self._not_in_trace()
        if self.samples:
            return None, more, "Rows that were sampled out and rows that were lost are told apart by --trace."
        if not self.star and self.given.suppressed is None:
            return None, more, "Rows that were suppressed and rows that were lost are told apart by --suppressed."
        return int(np.maximum(came - left, 0).sum()), more, ""

    @property
    def _kinds(self) -> int:
        return max((int(kinds.max(initial=-1)) + 1 for kinds in self.classes), default=0)

    def _not_in_trace(self) -> int:
        """How many rows more or fewer there are than in a trace that does not fit."""
        return abs(self._traced() - len(self.out))

    def _traced(self) -> int:
        from crenel.audit.exact import leaving

        return 0 if self.given.trace is None else int(np.count_nonzero(leaving(self.policy, self.given.trace)))

    def _accounts_by_trace(self, exact: Exact) -> tuple[int, int, str]:
        times = exact.times()
        lost = int(np.count_nonzero(times == 0))
        if not self.samples:
            lost += int(np.count_nonzero(exact.trace.kind == _SAMPLED_OUT))
        more = int(np.maximum(times - 1, 0).sum()) + exact.unknown()
        if self.given.suppressed is not None:
            more += exact.not_those(self.given.suppressed)
        return lost, more, ""

    def nothing_lost(self) -> Promise:
        lost, more, lacking = self.accounts
        promise = Promise(
            name="nothing lost",
            promised="each row leaves exactly once: published or suppressed" + (" or sampled out" * self.samples),
            measured="not known",
            bound=0,
            state=UNKNOWN,
            note=lacking,
        )
        if more:
            promise = replace(promise, measured=f"{more} rows too many", state=BROKEN, rows=more)
            if self.exact is None and self.given.trace is not None:
                note = f"The trace is of {self._traced()} published rows, and there are {len(self.out)}."
                promise = replace(promise, note=note)
        if lost is None:
            return promise
        measured = " and ".join([f"{lost} rows lost", *([f"{more} too many"] if more else [])])
        state = BROKEN if lost or more else KEPT
        return replace(promise, measured=measured, value=lost, state=state, rows=lost + more)

    def contained(self) -> Promise:
        promise = Promise(
            name="contained",
            promised="each published value contains its row's own, and all else is as it came",
            measured="not known",
            bound=0,
            state=UNKNOWN,
            note="What a row's own values are is known by --input.",
        )
        if self.exact is not None:
            outside, changed = sum(report.outside for report in self.reports), self.exact.changed()
            wrong, note = (
                outside + changed,
                f"{changed} of them have other values in what leaves as it is." * bool(changed),
            )
            measured = f"{wrong} rows are not"
        elif self.given.input is not None:
            groups = int(np.count_nonzero(self.bounds.excess))
            wrong, measured = int(self.bounds.excess.sum()), "no row is certainly not"
            note = (
                "Rows are matched by what leaves as it is; a wrong box that another such row would fit is not noticed."
            )
            promise = replace(promise, groups=groups)
        else:
            return promise
        if wrong:
            return replace(promise, measured=f"{wrong} rows are not", value=wrong, state=BROKEN, rows=wrong, note=note)
        return replace(promise, measured=measured, value=0, state=KEPT, rows=0, note=note)

    def columns(self) -> Promise:
        allowed = {*self.policy.quasi_identifiers, *self.policy.sensitive, *self.policy.publish}
        more = [name for name in self.out.columns if name not in allowed]
        person = " The person is among them." if self.policy.person in more else ""
        return Promise(
            name="columns",
            promised="no column leaves that the policy does not name",
            measured=f"{len(more)} other columns" if more else "no other column",
            value=len(more),
            bound=0,
            state=BROKEN if more and len(self.out) else KEPT,
            rows=len(self.out) if more else 0,
            note=person.strip(),
        )

    def boxes(self) -> Promise:
        wrong = ~legal(self.policy, self.out.lo, self.out.hi)[self.groups]
        promise = Promise(
            name="boxes",
            promised="each published value is one that the policy can publish",
            measured="all are",
            value=0,
            bound=0,
            state=KEPT,
            groups=0,
            rows=0,
        )
        count = int(np.count_nonzero(wrong))
        narrow = sum(report.star_not_widest for report in self.reports)
        if narrow:
            note = f"{narrow} suppressed releases are not fully generalized."
            promise = replace(promise, state=BROKEN, groups=narrow, rows=None, note=note)
        if count or narrow:
            promise = replace(promise, measured=f"{count + narrow} groups have others", value=count + narrow)
        return self._broken_if(promise, wrong)

    def reported(self) -> Promise:
        if self.exact is None or self.given.reported is None:
            raise AssertionError
        counts = [(report.wrong_loss, report.wrong_persons) for report in self.reports]
        # A loss over perturbed values of a learned domain cannot be computed again.
        unjudged = any(loss is None for loss, _ in counts)
        wrong = self.exact.misreported(self.given.reported)
        wrong += sum(0 if self.perturbs else loss or 0 for loss, _ in counts) + sum(n or 0 for _, n in counts)
        return Promise(
            name="reported figures",
            promised="the loss, rows and persons of each release are as reported",
            measured=f"{wrong} are not" if wrong else "all are",
            value=wrong,
            bound=0,
            state=BROKEN if wrong else KEPT,
            groups=wrong,
            note="Losses were not computed again: domains are learned from perturbed values." if unjudged else "",
        )

    def epsilon(self) -> Promise:
        statement = stated(self.policy)
        if statement is None:
            raise AssertionError
        how = "It is proven for the method." if statement.proven else "It is claimed by the paper, and not proven."
        return Promise(
            name="epsilon",
            promised=f"epsilon {statement.epsilon:.4g} with delta {statement.delta:.3g}, for {statement.scope}",
            measured="not known",
            value=None,
            bound=_short(statement.epsilon),
            state=UNKNOWN,
            note=f"{how} No output can show it.",
        )

    # -- what it cost ----------------------------------------------------------------------------

    @cached_property
    def ends(self) -> Floats:
        """The domains; those that are learned as the input shows them, or else the boxes."""
        given = self.given.input
        seen = [self.out.lo, self.out.hi] if given is None else [given.rows.qi]
        return measures.domains(self.policy, *seen)

    @cached_property
    def losses(self) -> measures.Loss | None:
        has = None
        if self.exact is not None and takes_holes(self.policy.parameters):
            rows = self.exact.rows
            # A star stands for all, and has lost all.
            has = ~np.isnan(self.exact.input.rows.qi[rows]) | ~self.grouped[:, None]
        return measures.losses(self.policy, self.out.lo, self.out.hi, self.ends, self.out.box, has)

    def loss(self) -> Document:
        found, suppressed = self.losses, self.suppressed
        every = int(self.grouped.sum()) + (suppressed or 0)
        names = self.policy.quasi_identifiers
        rate = None if suppressed is None or not every else _short(suppressed / every)
        squares = int((self.sizes.astype(np.int64) ** 2).sum()) + (suppressed or 0) * every
        costs = [(report.information_loss, report.rows) for report in self.reports]
        known = [(cost, rows) for cost, rows in costs if cost is not None]
        cost = sum(cost * rows for cost, rows in known) / max(sum(rows for _, rows in known), 1)
        return {
            "overall": None if found is None else _short(found.overall),
            "per_attribute": dict.fromkeys(names)
            if found is None
            else dict(zip(names, map(_short, found.per_attribute), strict=True)),
            "ncp": None if found is None else _short(found.ncp),
            "discernibility": squares,
            "uncertainty_penalty": None if found is None else _short(found.penalty),
            "information_loss": _short(cost) if known and np.isfinite(cost) else None,
            "suppression_rate": rate,
        }

    def group_sizes(self) -> Document:
        sizes = self.persons
        few = not len(sizes)
        return {
            "smallest": None if few else int(sizes.min()),
            "median": None if few else float(np.median(sizes)),
            "largest": None if few else int(sizes.max()),
            "unit": "rows" if self.exact is None else "persons",
            "histogram": measures.histogram_of_sizes(sizes, self.sizes[self.groups]),
        }

    @cached_property
    def _delay(self) -> Document | None:
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
            "mean": _short(float(waited.mean())),
            "p50": _short(middle),
            "p99": _short(high),
            "largest": _short(largest),
            "histogram": measures.histogram(waited, max(largest, float(deadline or 0))),
        }

    def delay(self) -> Document | None:
        return self._delay

    def over_time(self) -> Document:
        exact = self.exact
        if exact is not None and exact.trace.moment is not None and len(self.out):
            moment = exact.trace.moment[exact.leaves]
            span = next((s for s in _SPANS if np.ptp(moment) <= s * (_BINS_OVER_TIME - 1)), _SPANS[-1])
            edges = np.arange(moment.min() // span, moment.max() // span + 2) * span
            return {"unit": "event time", "bins": self._bins(moment, edges, _iso)}
        edges = np.unique(np.linspace(0, len(self.out), _BINS_OVER_TIME + 1).astype(np.int64))
        return {"unit": "published rows", "bins": self._bins(np.arange(len(self.out)), edges, int)}

    def _bins(self, at: Ints, edges: Ints, said: Callable[[Any], Any]) -> list[Document]:
        place = np.searchsorted(edges, at, side="right") - 1
        count = len(edges) - 1
        grouped = np.bincount(place[self.grouped], minlength=count)
        stars = np.bincount(place[~self.grouped], minlength=count)
        loss = np.zeros(count) if self.losses is None else np.bincount(place, self.losses.rows, minlength=count)
        return [
            {
                "from": said(edges[i]),
                "to": said(edges[i + 1]),
                "published": int(grouped[i]),
                "suppressed": int(stars[i]) if self.star else None,
                "loss": _short(loss[i] / (grouped[i] + stars[i])) if grouped[i] + stars[i] else None,
            }
            for i in range(count)
        ]

    def utility(self, workload: Workload) -> Document | None:
        given = self.given.input
        if given is None or not len(given) or not len(self.out) or not workload.queries:
            return None
        paired = self.exact is not None and bool(np.all(self.exact.rows >= 0))
        rows = self.exact.rows if self.exact is not None and paired else np.arange(len(given))
        if paired:  # in the order of arrival, so that a window is one of the stream
            order = np.argsort(given.rows.time[rows], kind="stable")
        axes, points, lo, hi, of = self._columns_asked()
        if not axes:
            return None
        judged = workload_error(
            axes,
            points[rows[order]] if paired else points,
            Boxes(lo, hi, of[order] if paired else of),
            window=max(len(rows) // _WINDOWS, 1) if paired else None,
            theta=workload.theta,
            queries=workload.queries,
            seed=workload.seed,
            scale=1.0 if paired else 1.0 / float(getattr(self.policy.parameters, "beta_sample", 1.0)),
        )
        return {
            "theta": workload.theta,
            "queries": workload.queries,
            "windows": judged.windows,
            "error": _short(judged.error) if np.isfinite(judged.error) else None,
            "seed": workload.seed,
            "empty": _short(judged.empty),
        }

    def _columns_asked(self) -> tuple[list[Axis], Floats, Floats, Floats, Ints]:
        """The axes of queries; the input's points; the different boxes of the published rows, and which each has."""
        given = self.given.input
        if given is None:
            raise AssertionError
        axes, columns = [], []
        for j, qi in enumerate(self.policy.quasi_identifiers.values()):
            lo, hi = self.ends[j]
            if lo < hi:
                geometry = Interval(float(lo), float(hi)) if isinstance(qi.geometry, Interval) else qi.geometry
                values = given.rows.qi[:, j]
                axes.append(Axis(geometry, whole=bool(np.all(np.isnan(values) | (np.floor(values) == values)))))
                columns.append(j)
        box, points = self.out.box.astype(np.int64), given.rows.qi[:, columns]
        ends = self.ends[columns]
        lo = np.clip(np.where(np.isnan(self.out.lo), -np.inf, self.out.lo)[:, columns], ends[:, 0], ends[:, 1])
        hi = np.clip(np.where(np.isnan(self.out.hi), np.inf, self.out.hi)[:, columns], ends[:, 0], ends[:, 1])
        if self.policy.sensitive:
            values, codes = np.unique(given.rows.sensitive[:, 0], return_inverse=True)
            if len(values) > 1:
                axes.append(Axis(Interval(0.0, len(values) - 1.0)))
                points = np.column_stack([points, codes])
                seen = np.minimum(np.searchsorted(values, self.out.sensitive[:, 0]), len(values) - 1)
                cells, box = np.unique(box * len(values) + seen, return_inverse=True)
                code = (cells % len(values)).astype(np.float64)
                lo, hi = (np.column_stack([end[cells // len(values)], code]) for end in (lo, hi))
        return axes, points, lo, hi, box

    # -- and besides -----------------------------------------------------------------------------

    def differential(self) -> Document | None:
        statement = stated(self.policy)
        if statement is None:
            return None
        return {"epsilon": statement.epsilon, "delta": statement.delta, "text": str(statement)}

    def notes(self) -> Iterator[str]:
        if self.given.input is None:
            yield "Only what was published is known. With --input, persons, losses of rows and wrong values can be told."
        if self.given.trace is None:
            yield "With --trace (of crenel run), persons, deadlines and each row's way are known exactly."
        elif self.exact is None:
            yield "The trace does not fit the published rows, and was not used."
        if not self.star and self.given.suppressed is None and self.exact is None:
            yield "With --suppressed, rows that were suppressed are told from rows that were lost."
        if self.perturbs:
            yield "The method perturbs quasi-identifiers: that a row lies in its box is not promised, and not judged."
        if takes_holes(self.policy.parameters) and self.exact is None:
            yield "A quasi-identifier that is not published of a row counts as lost, though the row may lack it."


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _iso(micros: int) -> str:
    return str(np.datetime64(int(micros), "us").astype("datetime64[m]")) + "Z"
