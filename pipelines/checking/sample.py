"""How a policy fits a sample of the data. It reports counts and shares, never a row's value."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from crenel.encoding.encoder import Encoded, Encoder
from crenel.encoding.treated_values import TreatedValues
from crenel.pipelines.checking.rejection_advice import rejection_advice
from crenel.pipelines.console.limits import Limits
from crenel.pipelines.console.limits import said as exactly
from crenel.pipelines.console.sections import (
    Finding,
    Line,
    Section,
    Severity,
    count,
    listed,
    percent,
    sentence,
    spoken,
)
from crenel.pipelines.drafting import sample_measures
from crenel.policy import Policy, columns
from crenel.policy.checks import suggestion
from crenel.policy.columns import EACH_ROW, Floats, Ints
from crenel.policy.durations import format_duration
from crenel.policy.geometry import Interval, Tree
from crenel.policy.quasi_identifiers import Categorical, Datetime, Numeric, QuasiIdentifier

if TYPE_CHECKING:
    from crenel.pipelines.checking.delay_trials import Step

__all__ = ["Sample"]

#: With fewer persons, a sample does not show what is rare.
_ENOUGH = 20

#: If a smaller share of rows meets k persons with the same quasi-identifiers, missing values alone cost much.
_ALIKE = 0.9

#: A published value that keeps less of what the data could have told tells next to nothing.
_BLURRED = 0.8

_DAY = 86_400_000_000


class Sample:
    """A sample of the data, seen through a policy.

    Args:
        policy: The policy.
        table: The sample, an Arrow table.
        limits: How many rows may be suppressed and rejected.
        tick: Called with a line about the progress.
        total: The rows of the file that the table is a sample of; None if it is the whole file.
    """

    def __init__(
        self,
        policy: Policy,
        table: Any,
        limits: Limits | None = None,
        tick: Callable[[str], None] = lambda line: None,
        *,
        total: int | None = None,
    ) -> None:
        self.total = table.num_rows if total is None else total
        self.policy = policy
        self.table = table
        self.findings: list[Finding] = []
        self._limits = limits or Limits()
        self._tick = tick
        #: What the engine did at the policy's deadline, once it was tried.
        self._now: Step | None = None

    def look(self) -> list[Section]:
        """Report on the sample, in sections. `findings` then holds what is wrong."""
        sections = [Section("The sample", tuple(self._columns()))]
        if not self._complete:
            return sections
        sections.append(Section("Rows that would be rejected", tuple(self._rejections())))
        if not len(self.encoded.kept):
            return sections
        parts = {
            "Persons": self._persons,
            "Rows that are kept apart": self._within,
            "Quasi-identifiers": self._quasi_identifiers,
            "Missing values": self._holes,
            "Columns published as they are": self._as_they_are,
            "Event times": self._time,
            "Waiting for k persons": self._waits,
            "Deadlines": self._deadlines,
            "What each column loses": self._costs,
        }
        if not self.policy.declaration.takes_holes:
            del parts["Missing values"]
        if not self.policy.within:
            del parts["Rows that are kept apart"]
        return sections + [Section(title, tuple(part())) for title, part in parts.items()]

    @cached_property
    def encoded(self) -> Encoded:
        """The rows as an engine takes them, and those that do not fit the policy."""
        batch = {name: self.table[name] for name in self.table.column_names}
        if self.policy.each_row:
            batch[EACH_ROW] = np.arange(self.table.num_rows)
        time = None
        if self.policy.event_time is None:
            time = np.zeros(self.table.num_rows, dtype=np.int64)
        encoded = Encoder(self.policy).encode(batch, time)
        treatments = TreatedValues(self.policy, None)
        for name in (name for name in treatments.columns if name in batch):
            refused = treatments.of(name, batch[name], np.zeros(self.table.num_rows, dtype=np.int64)).refused(name)
            encoded = encoded.without(refused) if refused else encoded
        return encoded

    @cached_property
    def _who(self) -> Ints:
        """The persons of the rows that are not rejected, numbered from 0."""
        return sample_measures.places(self.encoded.rows.person)

    @property
    def _number_of_persons(self) -> int:
        return int(self._who.max(initial=-1)) + 1

    @cached_property
    def _complete(self) -> bool:
        """Whether the sample has all columns that a row is encoded by."""
        policy = self.policy
        needed = [*self._person_column, *policy.measured, *policy.sensitive, *policy.within]
        needed += [policy.event_time] if policy.event_time else []
        return set(needed) <= set(self.table.column_names)

    @property
    def _person_column(self) -> list[str]:
        return [] if self.policy.each_row else [self.policy.person]

    def _problem(self, text: str) -> None:
        self.findings.append(Finding(Severity.PROBLEM, text))

    def _warn(self, text: str) -> None:
        self.findings.append(Finding(Severity.WARNING, text))

    def _columns(self) -> Iterator[Line]:
        policy, there = self.policy, self.table.column_names
        yield f"{count(self.table.num_rows, 'row')} of {count(len(there), 'column')}."
        if self.table.num_rows < self.total:
            yield (
                f"The file has {count(self.total, 'row')}. Stretches of consecutive rows were looked at, drawn from "
                "all of it; --sample 0 looks at all."
            )
        leaving = [*policy.quasi_identifiers, *policy.sensitive, *policy.publish]
        times = [policy.event_time] if policy.event_time else []
        read = [*policy.measured, *policy.sensitive, *policy.publish]
        named = [*self._person_column, *times, *read, *policy.within]
        staying = [name for name in there if name not in leaving]
        if staying:
            yield f"Not published: {listed(staying)}."
        for name in dict.fromkeys(named):
            if name not in there:
                guess = suggestion(name, [other for other in there if other not in named])
                self._problem(f"The data have no column {name!r}, which the policy names. {sentence(guess)}".strip())
        if not self._complete:
            yield "The rest was not checked, because columns are missing."

    def _rejections(self) -> Iterator[Line]:
        rows, rejected = self.table.num_rows, self.encoded.rejected
        if not rejected:
            yield "None."
            return
        share = len(rejected) / rows
        yield f"{len(rejected):,} of {count(rows, 'row')} ({percent(share)}), because of:"
        found = Counter((one.field, one.reason) for one in rejected)
        for (name, reason), number in found.most_common():
            yield name, f"{reason}: {count(number, 'row')}"
        text = f"{count(len(rejected), 'row')} ({percent(share)}) would be rejected"
        advice = rejection_advice(self.policy, [column for column, _ in found.most_common()])
        if share > self._limits.rejected:
            limit = f"more than --most-rejected ({exactly(self._limits.rejected)}) allows"
            self._problem(f"{text}, {limit}. {advice}")
        else:
            self._warn(f"{text}. {advice}")

    def _persons(self) -> Iterator[Line]:
        k, persons, rows = self.policy.k, self._number_of_persons, len(self._who)
        yield f"{count(rows, 'row')} of {count(persons, 'person')}; k is {k}."
        if persons < k:
            self._problem(
                f"The sample has {count(persons, 'person')}, fewer than k ({k}): every row would be suppressed. "
                "Take a larger sample, or lower k."
            )
        elif persons < 2 * k:
            self._warn(
                f"{count(persons, 'person')} are hardly more than k ({k}): they form a single group. Take a larger "
                "sample, or lower k."
            )
        alone = sample_measures.unique_persons(self.encoded.rows.qi, self._who)
        yield (
            f"In the data as they are, {count(alone, 'person')} ({percent(alone / persons)}) can be singled out: "
            "nobody else has the same quasi-identifiers."
        )

    def _within(self) -> Iterator[Line]:
        """Count the persons of each value that rows are kept apart by: k of them must come together."""
        codes = [columns.factorize(self.table[name])[0][self.encoded.kept] for name in self.policy.within]
        _, value = np.unique(np.stack(codes, axis=1), axis=0, return_inverse=True)
        pairs = np.unique(np.stack([value.reshape(-1), self._who], axis=1), axis=0)
        persons = np.bincount(pairs[:, 0])
        few, k, names = persons < self.policy.k, self.policy.k, listed(self.policy.within)
        yield (
            f"{count(len(persons), 'different value')} of {names}, with {persons.min():,} to {persons.max():,} persons "
            "each. Each is a stream of its own, with its own engine."
        )
        if few.any():
            rows = int(np.isin(value.reshape(-1), np.flatnonzero(few)).sum())
            self._warn(
                f"{np.count_nonzero(few):,} of {count(len(persons), 'value')} of {names} have fewer than k ({k}) "
                f"persons: their {count(rows, 'row')} would be suppressed."
            )

    def _quasi_identifiers(self) -> Iterator[Line]:
        for place, (name, qi) in enumerate(self.policy.quasi_identifiers.items()):
            yield name, self._use(name, qi, self.encoded.rows.qi[:, place])

    def _holes(self) -> Iterator[Line]:
        """Look at which quasi-identifiers rows have. k persons who have the same ones keep all of them."""
        absent = np.isnan(self.encoded.rows.qi)
        sets = sample_measures.combinations(absent)
        share = float(absent.any(axis=1).mean())
        number = int(sets.max(initial=-1)) + 1
        yield (
            f"{percent(share)} of the rows lack a quasi-identifier. There are {count(number, 'combination')} of "
            "quasi-identifiers that a row has."
        )
        alike = self._in_time(sets)
        if alike is None:
            return
        yield (
            f"{percent(alike)} of the rows meet {self.policy.k} persons with the same combination before their "
            "deadline. The others join rows with similar combinations, and only what all rows of a group have is "
            "published."
        )
        if alike < _ALIKE:
            self._warn(
                f"Only {percent(alike)} of the rows meet {self.policy.k} persons who have the same quasi-identifiers. "
                "The others lose some, or are suppressed. Leave out columns that are mostly missing, set a longer "
                "delay, or lower k."
            )

    def _in_time(self, sets: Ints) -> float | None:
        """Compute the share of rows that meet k persons of the same set before the deadline; None if not known."""
        policy, time = self.policy, self.encoded.rows.time
        by_time = policy.delay is not None and policy.event_time is not None
        if policy.delay_rows is None and not by_time:
            return None
        order = np.argsort(time, kind="stable") if by_time else np.arange(len(time))
        time, sets, who = time[order], sets[order], self._who[order]
        fits = 0
        for one in np.unique(sets):
            at = np.flatnonzero(sets == one)
            until = sample_measures.rows_until(who[at], policy.k)
            start = np.flatnonzero(until >= 0)
            first, last = at[start], at[start + until[start]]
            good = last - first <= (policy.delay_rows or len(time))
            if by_time and policy.delay is not None:
                good &= time[last] - time[first] <= policy.delay
            fits += int(good.sum())
        return fits / max(len(time), 1)

    def _use(self, name: str, qi: QuasiIdentifier, found: Floats) -> str:
        holes = np.isnan(found) if qi.missing_at is None else found == qi.missing_at
        if holes.all():
            self._warn(f"{name} is missing in all rows. Leave it out, or take a larger sample.")
            return "missing in all rows"
        seldom = f"; missing in {percent(float(holes.mean()))} of the rows" if holes.any() else ""
        self._exact_ends(name, qi, found[~holes], self._who[~holes])
        return self._use_of(name, qi, found[~holes]) + seldom

    def _exact_ends(self, name: str, qi: QuasiIdentifier, found: Floats, who: Ints) -> None:
        """Warn about a column whose ranges would mostly end at a value that belongs to one person."""
        # Exactly these types: a subclass may publish something else.
        if type(qi) not in (Numeric, Datetime) or not isinstance(qi.geometry, Interval) or qi.geometry.cells:
            return
        if not self.policy.declaration.ends_at_values:
            return
        if self._number_of_persons < _ENOUGH:
            return
        alone = sample_measures.only_one(sample_measures.places(found), who)
        if len(alone) <= _ENOUGH or alone.mean() <= 0.5:
            return
        lo, hi = (found.min(), found.max()) if qi.geometry.learned else qi.geometry.widest()
        step = sample_measures.round_step(found, float(hi - lo), moments=isinstance(qi, Datetime))
        self._warn(
            f"{name}: {np.count_nonzero(alone):,} of {len(alone):,} values belong to one person each, and a published "
            "range ends at the exact values of two of its rows. Set a step, which rounds the ends"
            + (f": step: {step}, for instance." if step else ".")
        )

    def _use_of(self, name: str, qi: QuasiIdentifier, found: Floats) -> str:
        geometry, distinct = qi.values, len(np.unique(found))
        if distinct == 1:
            self._warn(f"{name} has only one value. Leave it out, or take a larger sample.")
        if isinstance(geometry, Tree):
            return self._use_of_tree(qi, found)
        if not isinstance(geometry, Interval):
            return f"{count(distinct, 'different code')}"
        lo, hi = (found.min(), found.max()) if geometry.learned else geometry.widest()
        width = hi - lo + geometry.cell
        core = sample_measures.middle(found, width)
        if sample_measures.is_stretched(core, distinct):
            whose = "range seen" if geometry.learned else "domain"
            self._warn(
                f"{name}: the middle 98% of the rows lie in {percent(core)} of the {whose}. Loss is measured against "
                f"the whole {whose}, so these rows look nearly alike. "
                + ("Declare a domain." if geometry.learned else "Declare a narrower domain.")
            )
        if geometry.learned:
            return (
                f"{count(distinct, 'different cell' if geometry.cells else 'different value')}; no domain is declared"
            )
        used = float(found.max() - found.min() + geometry.cell) / width
        return f"the rows use {percent(used)} of the domain, the middle 98% of them {percent(core)}"

    def _use_of_tree(self, qi: QuasiIdentifier, found: Floats) -> str:
        unknown = found == getattr(qi, "unknown_at", None)
        leaves = len(qi.hierarchy) if isinstance(qi, Categorical) else int(qi.geometry.widest()[1]) + 1
        used = f"{len(np.unique(found[~unknown])):,} of the {count(leaves, 'value')} of the hierarchy occur"
        seldom = f"; {percent(float(unknown.mean()))} of the rows have others, published as the root"
        return used + (seldom if unknown.any() else "")

    def _as_they_are(self) -> Iterator[Line]:
        for place, name in enumerate(self.policy.sensitive):
            codes = sample_measures.places(self.encoded.rows.sensitive[:, place])
            yield name, self._sensitive(name, codes)
        for name in self.policy.publish:
            if name in self.table.column_names:
                codes, _ = columns.factorize(self.table[name])
                kept = sample_measures.places(codes[self.encoded.kept])
                yield name, f"{count(int(kept.max()) + 1, 'different value')}"
                if name not in self.policy.treat:
                    self._identifying(name, kept)

    def _sensitive(self, name: str, codes: Ints) -> str:
        sizes = np.bincount(codes)
        most, l = float(sizes.max() / len(codes)), self.policy.l
        bins = self.policy.sensitive[name].domain is not None
        noun = "range" if bins else "value"
        if l is not None and len(sizes) < l:
            self._problem(
                f"{name} has {count(len(sizes), noun)}, fewer than l ({l}): no group could ever be published. Lower "
                "l, or take a larger sample."
            )
        elif most > 0.9:
            self._warn(
                f"{name}: {percent(most)} of the rows have the same {noun}. An attacker who guesses it is mostly "
                "right, and groups with other values are rare."
            )
        if not bins:
            self._identifying(name, codes)
        return f"{count(len(sizes), noun)}, the most frequent in {percent(most)} of the rows"

    def _identifying(self, name: str, codes: Ints) -> None:
        if self._number_of_persons < _ENOUGH:
            return
        share = float(sample_measures.only_one(codes, self._who)[codes].mean())
        if share > 0.5:
            self._warn(
                f"{name} is published as it is, and {percent(share)} of the rows have a value that only one person "
                "has. To an attacker who knows that value, it is as good as a name. Leave the column out, or make it "
                "coarser."
            )

    def _time(self) -> Iterator[Line]:
        policy, time = self.policy, self.encoded.rows.time
        if policy.event_time is None:
            if policy.delay is not None:
                yield "The policy names no event_time, so the delay cannot be checked."
            return
        first, last = _around(int(time.min()), int(time.max()))
        yield f"Event times lie between {first} and {last}."
        yield from self._disorder(time)
        if policy.delay is not None:
            window = policy.delay + policy.disorder
            rows = sample_measures.held(time, window)
            if policy.delay_rows is not None:
                rows = np.minimum(rows, policy.delay_rows)
            yield (
                f"One shard with all these rows would hold about {count(int(np.median(rows)), 'row')}, and at most "
                f"{rows.max():,}."
            )

    def _disorder(self, time: Ints) -> Iterator[Line]:
        policy, late = self.policy, sample_measures.lateness(time)
        behind = late > policy.disorder
        if not late.any():
            yield "The rows are in the order of their event times."
            return
        worst = sample_measures.round_duration(float(late.max()))
        most, is_stream = sample_measures.usual_disorder(time)
        nearly_all = f", and nearly all by less than {spoken(most)}" if most < worst else ""
        yield (
            f"{percent(float((late > 0).mean()))} of the rows are out of order, by less than {spoken(worst)}"
            f"{nearly_all}."
        )
        if policy.delay is None or not behind.any():
            return
        share = float(behind.mean())
        after = int((late >= policy.delay + policy.disorder).sum())
        lost = f", and {count(after, 'row')} would come after the deadline" if after else ""
        if is_stream:
            advice = f"disorder: {format_duration(most)} would cover nearly all rows."
        else:
            advice = "The file does not seem to be in the order of the stream."
            if self.table.num_rows < self.total:
                advice += " Then stretches of it are thinner than the stream is: look at all rows, with --sample 0."
        self._warn(
            f"disorder ({format_duration(policy.disorder)}) is too small: {percent(share)} of the rows are further out "
            f"of order{lost}. {advice}"
        )

    def _waits(self) -> Iterator[Line]:
        policy, time = self.policy, self.encoded.rows.time
        by_time = policy.delay is not None and policy.event_time is not None
        if self._number_of_persons < policy.k or (policy.delay_rows is None and not by_time):
            return
        order = np.argsort(time, kind="stable") if by_time else np.arange(len(time))
        rows, waits = sample_measures.waits(self._who[order], time[order], policy.k)
        if policy.delay_rows is not None:
            half, most = (int(q) for q in np.quantile(rows, [0.5, 0.9]))
            yield (
                f"Half of the rows see {policy.k} persons within {count(half, 'later row')}, nine of ten within "
                f"{most:,}; delay_rows is {policy.delay_rows:,}."
            )
        if by_time and policy.delay is not None:
            half, most = (sample_measures.round_duration(q) for q in np.quantile(waits, [0.5, 0.9]))
            yield (
                f"Half of the rows see {policy.k} persons within {spoken(half)}, nine of ten within {spoken(most)}; "
                f"delay is {spoken(policy.delay)}."
            )
        if policy.shards != 1:
            yield "This counts all shards together. The deadlines below are tried with the policy's shards."

    def _deadlines(self) -> Iterator[Line]:
        """Let the engine say how many rows find a group in time, and how many would if they could wait longer."""
        from crenel.pipelines.checking import delay_trials

        policy = self.policy
        if self._number_of_persons < policy.k:
            return
        tried = list(delay_trials.steps(policy, self.encoded, self.table, self._tick))
        if not tried:
            return
        how = "reuse off, " if policy.declaration.reuses else ""
        rows = tried[0].rows
        where = ", the middle of the sample" if rows < len(self._who) else ""
        yield (
            f"The engine ({policy.method}, {how}on_suppress: drop) was run on {count(rows, 'consecutive row')}{where}. "
            "A row that finds no group in time is suppressed:"
        )
        head = "suppressed"
        yield "deadline", f"{head}  average loss (1 for a suppressed row)"
        for step in tried:
            mark = "  the policy's" if step is tried[0] else ""
            yield step.deadline, f"{exactly(step.share):>{len(head)}}  {step.loss:.3f}{mark}"
        self._now = tried[0]
        if policy.once_per is not None and policy.event_time is not None:
            share = self._now.trial.left_out / rows
            yield (
                f"once_per leaves out {exactly(share)} of the rows, since their person has another within "
                f"{spoken(policy.once_per)}. They count neither as suppressed nor in the loss."
            )
        self._judge(tried)

    def _costs(self) -> Iterator[Line]:
        """Tell what each quasi-identifier loses at the policy's deadline, in its domain and among the rows."""
        from crenel.pipelines.checking.trial_measures import by_column

        costs = [] if self._now is None else by_column(self._now.trial)
        if not costs:
            return
        yield (
            "At the policy's deadline, a published value covers this share of its domain (its loss), and of the "
            "sample's rows; in brackets, the share of the rows that have the exact value:"
        )
        for cost in costs:
            rows = f"{exactly(cost.covered)} of the rows ({exactly(cost.exact)})"
            yield cost.name, f"{cost.loss:.3f} of the domain, {rows}"
            if cost.blurred > _BLURRED and cost.loss < cost.blurred / 2:
                text = (
                    f"{cost.name}: a published value covers {exactly(cost.covered)} of the rows on average, so it "
                    f"tells next to nothing, though its loss is only {cost.loss:.3f}: most values of the domain do not "
                    "occur. Set a longer deadline or a smaller k, and compare the rows rather than the loss."
                )
                self.findings.append(Finding(Severity.NOTE, text))

    def _judge(self, tried: list[Step]) -> None:
        """Report a problem if the stream is too thin for k within the deadline."""
        policy, limit = self.policy, self._limits.suppressed
        now, *longer = tried
        if now.share <= limit:
            return
        asked = {"k": f"k ({policy.k})"}
        asked |= {} if policy.l is None else {"l": f"l ({policy.l})"}
        asked |= {} if policy.t is None else {"t": f"t ({policy.t:g})"}
        enough = next((step for step in longer if step.share <= limit), None)
        advice = f"Set a longer deadline, or relax {listed(asked)}: crenel explore shows what each costs."
        if enough is not None:
            advice = f"Within {enough.deadline}, it would be {exactly(enough.share)}. {advice}"
        elif longer:
            advice = f"Even within {longer[-1].deadline}, it would be {exactly(longer[-1].share)}. {advice}"
        fate = "would be suppressed" if policy.crowd else "would be released alone, or suppressed"
        self._problem(
            f"The stream is too thin for {listed(asked.values())} within the deadline ({now.deadline}): "
            f"{exactly(now.share)} of the rows find no group in time and {fate}. --most-suppressed is "
            f"{exactly(limit)}. {advice}"
        )


def _around(first: int, last: int) -> tuple[str, str]:
    """Round a range outward to days, so that it reveals no row's event time."""
    epoch = dt.date(1970, 1, 1)
    start, end = (dt.timedelta(days=days) for days in (first // _DAY, -(-last // _DAY)))
    return (epoch + start).isoformat(), (epoch + end).isoformat()
