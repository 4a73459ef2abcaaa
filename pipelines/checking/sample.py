"""What a sample of the data says about a policy. Counts and shares only, never a row's value."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from crenel.encoding.encoder import Encoded, Encoder
from crenel.pipelines.console.limits import Limits
from crenel.pipelines.console.limits import said as exactly
from crenel.pipelines.console.sections import Finding, Line, Section, Severity, count, listed, percent, spoken
from crenel.pipelines.drafting import sample_measures as measures
from crenel.policy import Policy, columns
from crenel.policy.checks import suggestion
from crenel.policy.columns import Floats, Ints
from crenel.policy.durations import format_duration
from crenel.policy.geometry import Interval, Tree
from crenel.policy.quasi_identifiers import Datetime, Numeric, QuasiIdentifier

if TYPE_CHECKING:
    from crenel.pipelines.checking.delay_trials import Step

__all__ = ["Sample"]

#: Fewer persons tell nothing about what is rare.
_ENOUGH = 20

#: With fewer rows among k persons of the same quasi-identifiers, much is lost for the holes alone.
_ALIKE = 0.9

#: Where the middle 98% use less than this of a domain, outliers stretch it.
_STRETCHED = 0.2

_DAY = 86_400_000_000


class Sample:
    """A sample of the data, under a policy.

    Args:
        policy: What is to be guaranteed.
        table: The sample, Arrow's.
        limits: How many rows may be suppressed and rejected.
        tick: Told how far it is.
    """

    def __init__(
        self,
        policy: Policy,
        table: Any,
        limits: Limits | None = None,
        tick: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.policy = policy
        self.table = table
        self.findings: list[Finding] = []
        self._limits = limits or Limits()
        self._tick = tick

    def look(self) -> list[Section]:
        """All that the sample says, in sections; `findings` has what is wrong."""
        said: list[Section] = [Section("The sample", tuple(self._columns()))]
        if not self._complete:
            return said
        parts = {
            "Rows that would be rejected": self._rejections,
            "Persons": self._persons,
            "Quasi-identifiers": self._quasi_identifiers,
            "Holes": self._holes,
            "Columns that leave as they are": self._as_they_are,
            "Time": self._time,
            "Company": self._company,
            "Deadlines": self._deadlines,
        }
        for title, part in parts.items():
            if title == "Holes" and not self.policy.declaration.takes_holes:
                continue
            if title == "Rows that would be rejected" or len(self._encoded.kept):
                said.append(Section(title, tuple(part())))
        return said

    @cached_property
    def _encoded(self) -> Encoded:
        batch = {name: self.table[name] for name in self.table.column_names}
        time = None
        if self.policy.event_time is None:
            time = np.zeros(self.table.num_rows, dtype=np.int64)
        return Encoder(self.policy).encode(batch, time)

    @cached_property
    def _who(self) -> Ints:
        """The kept rows' persons, from 0."""
        return measures.places(self._encoded.rows.person)

    @property
    def _number_of_persons(self) -> int:
        return int(self._who.max(initial=-1)) + 1

    @cached_property
    def _complete(self) -> bool:
        """Whether all columns are there that a row is encoded by."""
        policy = self.policy
        needed = [policy.person, *policy.quasi_identifiers, *policy.sensitive]
        needed += [policy.event_time] if policy.event_time else []
        return set(needed) <= set(self.table.column_names)

    def _problem(self, text: str) -> None:
        self.findings.append(Finding(Severity.PROBLEM, text))

    def _warn(self, text: str) -> None:
        self.findings.append(Finding(Severity.WARNING, text))

    def _columns(self) -> Iterator[Line]:
        policy, there = self.policy, self.table.column_names
        yield f"{count(self.table.num_rows, 'row')} of {count(len(there), 'column')}."
        leaving = [*policy.quasi_identifiers, *policy.sensitive, *policy.publish]
        named = [policy.person, *([policy.event_time] if policy.event_time else []), *leaving]
        staying = [name for name in there if name not in leaving]
        if staying:
            yield f"These columns will not leave: {listed(staying)}."
        for name in dict.fromkeys(named):
            if name not in there:
                guess = suggestion(name, [other for other in there if other not in named])
                self._problem(f"{name}: the data have no such column. {guess.capitalize()}".strip())
        if not self._complete:
            yield "Nothing more can be said until its columns are those of the policy."

    def _rejections(self) -> Iterator[Line]:
        rows, rejected = self.table.num_rows, self._encoded.rejected
        if not rejected:
            yield "None."
            return
        share = len(rejected) / rows
        yield f"{len(rejected):,} of {count(rows, 'row')} ({percent(share)}). What did not fit:"
        found = Counter((one.field, one.reason) for one in rejected)
        for (name, reason), number in found.most_common():
            yield name, f"{reason}: {count(number, 'row')}"
        text = f"{percent(share)} of the rows would be rejected."
        if share > self._limits.rejected:
            limit = f"more than --most-rejected ({exactly(self._limits.rejected)}) allows"
            self._problem(f"{text} That is {limit}. Widen domains and hierarchies, or leave columns out.")
        else:
            self._warn(text)

    def _persons(self) -> Iterator[Line]:
        k, persons, rows = self.policy.k, self._number_of_persons, len(self._who)
        yield f"{count(persons, 'person')} in {count(rows, 'row')}; k is {k}."
        if persons < k:
            self._problem(
                f"The sample has {count(persons, 'person')}, fewer than k ({k}): nothing could be "
                "published but suppressed rows."
            )
        elif persons < 2 * k:
            self._warn(f"{count(persons, 'person')} are hardly more than k ({k}): one large group.")
        alone = measures.unique_persons(self._encoded.rows.qi, self._who)
        yield (
            f"{count(alone, 'person')} ({percent(alone / persons)}) could be singled out as the "
            "data are: nobody else has the same quasi-identifiers. That is what is anonymized."
        )

    def _quasi_identifiers(self) -> Iterator[Line]:
        for place, (name, qi) in enumerate(self.policy.quasi_identifiers.items()):
            yield name, self._use(name, qi, self._encoded.rows.qi[:, place])

    def _holes(self) -> Iterator[Line]:
        """Rows by which quasi-identifiers they have: k persons of the same set keep all of it."""
        absent = np.isnan(self._encoded.rows.qi)
        sets = measures.combinations(absent)
        share = float(absent.any(axis=1).mean())
        number = int(sets.max(initial=-1)) + 1
        yield f"{percent(share)} of the rows lack a quasi-identifier; what rows have are {count(number, 'set')}."
        alike = self._in_time(sets)
        if alike is None:
            return
        yield (
            f"{percent(alike)} of the rows meet {self.policy.k} persons of the same set before their deadline; the "
            "others leave with similar sets, and publish what all of a group have."
        )
        if alike < _ALIKE:
            self._warn(
                f"Only {percent(alike)} of the rows meet {self.policy.k} persons who have the same quasi-identifiers: "
                "the others lose some, or are suppressed. Leave out what is seldom there, wait longer, or lower k."
            )

    def _in_time(self, sets: Ints) -> float | None:
        """The share of rows that k persons of the same set come after, before the deadline; None if it is not known."""
        policy, time = self.policy, self._encoded.rows.time
        by_time = policy.delay is not None and policy.event_time is not None
        if policy.delay_rows is None and not by_time:
            return None
        order = np.argsort(time, kind="stable") if by_time else np.arange(len(time))
        time, sets, who = time[order], sets[order], self._who[order]
        fits = 0
        for one in np.unique(sets):
            at = np.flatnonzero(sets == one)
            until = measures.rows_until(who[at], policy.k)
            start = np.flatnonzero(until >= 0)
            first, last = at[start], at[start + until[start]]
            good = last - first <= (policy.delay_rows or len(time))
            if by_time and policy.delay is not None:
                good &= time[last] - time[first] <= policy.delay
            fits += int(good.sum())
        return fits / max(len(time), 1)

    def _use(self, name: str, qi: QuasiIdentifier, found: Floats) -> str:
        holes = np.isnan(found)
        if holes.all():
            self._warn(f"{name} is missing in all rows: leave it out, or take a larger sample.")
            return "missing in all rows"
        seldom = f"; missing in {percent(float(holes.mean()))} of the rows" if holes.any() else ""
        self._exact_ends(name, qi, found[~holes], self._who[~holes])
        return self._use_of(name, qi, found[~holes]) + seldom

    def _exact_ends(self, name: str, qi: QuasiIdentifier, found: Floats, who: Ints) -> None:
        """Warn of a column whose ranges would mostly end at a value that is one person's."""
        # Exactly these: what a subclass publishes is its own.
        if type(qi) not in (Numeric, Datetime) or not isinstance(qi.geometry, Interval) or qi.geometry.cells:
            return
        if not self.policy.declaration.ends_at_values:
            return
        if self._number_of_persons < _ENOUGH:
            return
        alone = measures.only_one(measures.places(found), who)
        if len(alone) <= _ENOUGH or alone.mean() <= 0.5:
            return
        lo, hi = (found.min(), found.max()) if qi.geometry.learned else qi.geometry.widest()
        step = measures.round_step(found, float(hi - lo), moments=isinstance(qi, Datetime))
        self._warn(
            f"{name}: {np.count_nonzero(alone):,} of {len(alone):,} values are each one person's, and a range ends at "
            "the exact values of two of its rows. Round its ends"
            + (f", by step: {step} say." if step else " by a step.")
        )

    def _use_of(self, name: str, qi: QuasiIdentifier, found: Floats) -> str:
        geometry, distinct = qi.geometry, len(np.unique(found))
        if distinct == 1:
            self._warn(f"{name} has one value only: leave it out, or take a larger sample.")
        if isinstance(geometry, Tree):
            leaves = len(geometry.leaf)
            return f"{distinct:,} of the hierarchy's {count(leaves, 'value')} are used"
        if not isinstance(geometry, Interval):
            return f"{count(distinct, 'different code')}"
        lo, hi = (found.min(), found.max()) if geometry.learned else geometry.widest()
        width = hi - lo + geometry.cell
        core = measures.middle(found, width)
        if core < _STRETCHED and distinct > _ENOUGH:
            whose = "range seen" if geometry.learned else "domain"
            self._warn(
                f"{name}: the middle 98% of the rows lie in {percent(core)} of the {whose}. A loss "
                "is relative to it, so that they look nearly alike: "
                + ("declare a domain." if geometry.learned else "a narrower domain is worth it.")
            )
        if geometry.learned:
            return (
                f"{count(distinct, 'different cell' if geometry.cells else 'different value')}; no domain is declared"
            )
        used = float(found.max() - found.min() + geometry.cell) / width
        return f"{percent(used)} of the domain is used, {percent(core)} by the middle 98% of rows"

    def _as_they_are(self) -> Iterator[Line]:
        for place, name in enumerate(self.policy.sensitive):
            codes = measures.places(self._encoded.rows.sensitive[:, place])
            yield name, self._sensitive(name, codes)
        for name in self.policy.publish:
            if name in self.table.column_names:
                codes, _ = columns.factorize(self.table[name])
                kept = measures.places(codes[self._encoded.kept])
                yield name, f"{count(int(kept.max()) + 1, 'different value')}"
                self._identifying(name, kept)

    def _sensitive(self, name: str, codes: Ints) -> str:
        sizes = np.bincount(codes)
        most, l = float(sizes.max() / len(codes)), self.policy.l
        bins = self.policy.sensitive[name].domain is not None
        noun = "range" if bins else "value"
        if l is not None and len(sizes) < l:
            self._problem(
                f"{name} has {count(len(sizes), noun)}, fewer than l ({l}): no group could ever be published."
            )
        elif most > 0.9:
            self._warn(
                f"{name}: {percent(most)} of the rows have the same {noun}; groups "
                "with others are rare, and who guesses it is mostly right."
            )
        if not bins:
            self._identifying(name, codes)
        return f"{count(len(sizes), noun)}, the most frequent in {percent(most)} of the rows"

    def _identifying(self, name: str, codes: Ints) -> None:
        if self._number_of_persons < _ENOUGH:
            return
        share = float(measures.only_one(codes, self._who)[codes].mean())
        if share > 0.5:
            self._warn(
                f"{name} leaves as it is, and {percent(share)} of the rows have a value that only "
                "one person has: it is as good as a name to who knows it."
            )

    def _time(self) -> Iterator[Line]:
        policy, time = self.policy, self._encoded.rows.time
        if policy.event_time is None:
            if policy.delay is not None:
                yield "The policy names no event_time: nothing can be said about the delay."
            return
        first, last = _around(int(time.min()), int(time.max()))
        yield f"Event times lie within {first} and {last}."
        yield from self._disorder(time)
        if policy.delay is not None:
            window = policy.delay + policy.disorder
            rows = measures.held(time, window)
            if policy.delay_rows is not None:
                rows = np.minimum(rows, policy.delay_rows)
            yield (
                f"A shard of all these rows would hold about {count(int(np.median(rows)), 'row')}, "
                f"and {rows.max():,} at most."
            )

    def _disorder(self, time: Ints) -> Iterator[Line]:
        policy, late = self.policy, measures.lateness(time)
        behind = late > policy.disorder
        if not late.any():
            yield "They are in order."
            return
        worst = measures.round_duration(float(late.max()))
        most = measures.round_duration(float(np.quantile(late, 0.999)))
        yield (
            f"{percent(float((late > 0).mean()))} of the rows are out of order, by less than "
            f"{spoken(worst)}, nearly all by less than {spoken(most)}."
        )
        if policy.delay is None or not behind.any():
            return
        share = float(behind.mean())
        after = int((late >= policy.delay + policy.disorder).sum())
        lost = f"; {count(after, 'row')} would come after the deadline" if after else ""
        if 2 * most > time.max() - time.min():
            advice = "The file seems not to be in the order of the stream."
        else:
            advice = f"disorder: {format_duration(most)} would cover nearly all."
        self._warn(
            f"{percent(share)} of the rows are further out of order than disorder "
            f"({format_duration(policy.disorder)}) says{lost}. {advice}"
        )

    def _company(self) -> Iterator[Line]:
        policy, time = self.policy, self._encoded.rows.time
        by_time = policy.delay is not None and policy.event_time is not None
        if self._number_of_persons < policy.k or (policy.delay_rows is None and not by_time):
            return
        order = np.argsort(time, kind="stable") if by_time else np.arange(len(time))
        until = measures.rows_until(self._who[order], policy.k)
        start = np.flatnonzero(until >= 0)
        rows = until[start]
        if policy.delay_rows is not None:
            half, most = (int(q) for q in np.quantile(rows, [0.5, 0.9]))
            yield (
                f"Half of the rows have {policy.k} persons after {count(half, 'later row')}, nine "
                f"of ten after {most:,}; delay_rows is {policy.delay_rows:,}."
            )
        if by_time and policy.delay is not None:
            ordered = time[order]
            waits = ordered[start + rows] - ordered[start]
            half, most = (measures.round_duration(q) for q in np.quantile(waits, [0.5, 0.9]))
            yield (
                f"Half of the rows have {policy.k} persons within {spoken(half)}, nine of ten "
                f"within {spoken(most)}; delay is {spoken(policy.delay)}."
            )
        if policy.shards > 1:
            yield "Each shard has a part of this company only; deadlines are tried with the policy's shards."

    def _deadlines(self) -> Iterator[Line]:
        """The engine's word on how many rows leave in time, and how many would if they could wait longer."""
        from crenel.pipelines.checking import delay_trials as delays

        policy = self.policy
        if self._number_of_persons < policy.k:
            return
        tried = list(delays.steps(policy, self._encoded, self.table, self._tick))
        if not tried:
            return
        how = "reuse off, " if policy.declaration.reuses else ""
        rows = tried[0].rows
        where = ", the middle of the sample" if rows < len(self._who) else ""
        yield (
            f"The engine ({policy.method}, {how}on_suppress: drop) was run on {count(rows, 'row')} that follow "
            f"one another{where}. A row that finds no company in time is suppressed:"
        )
        head = "suppressed"
        yield "deadline", f"{head}  average loss (a suppressed row: 1)"
        for step in tried:
            mark = "  the policy's" if step is tried[0] else ""
            yield step.deadline, f"{exactly(step.share):>{len(head)}}  {step.loss:.3f}{mark}"
        self._judge(tried)

    def _judge(self, tried: list[Step]) -> None:
        """Say if the stream is too thin for k within the deadline."""
        policy, limit = self.policy, self._limits.suppressed
        now, *longer = tried
        if now.share <= limit:
            return
        asked = {"k": f"k ({policy.k})"}
        asked |= {} if policy.l is None else {"l": f"l ({policy.l})"}
        asked |= {} if policy.t is None else {"t": f"t ({policy.t:g})"}
        enough = next((step for step in longer if step.share <= limit), None)
        advice = f"Wait longer, or ask for less than this {listed(asked)}."
        if enough is not None:
            advice = f"Within {enough.deadline} it would be {exactly(enough.share)}. {advice}"
        elif longer:
            advice = f"Even within {longer[-1].deadline} it would be {exactly(longer[-1].share)}. {advice}"
        fate = "would be suppressed" if policy.crowd else "would leave alone, or be suppressed"
        self._problem(
            f"The stream is too thin for {listed(asked.values())} within the deadline ({now.deadline}): "
            f"{exactly(now.share)} of the rows find no company in time, and {fate}; --most-suppressed is "
            f"{exactly(limit)}. {advice}"
        )


def _around(first: int, last: int) -> tuple[str, str]:
    """The range rounded outward to days, so that no moment of a row is told."""
    epoch = dt.date(1970, 1, 1)
    start, end = (dt.timedelta(days=days) for days in (first // _DAY, -(-last // _DAY)))
    return (epoch + start).isoformat(), (epoch + end).isoformat()
