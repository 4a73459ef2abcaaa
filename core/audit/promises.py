"""Judges each promise of a policy: kept, broken, or unknown because the evidence does not decide it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from crenel.audit import measures
from crenel.audit.boxes import legal
from crenel.audit.differential_privacy import stated
from crenel.audit.findings import Findings
from crenel.audit.measures import rounded
from crenel.audit.over_time.common_values import window_of
from crenel.policy.durations import FOREVER, format_duration, span_of_seconds

__all__ = ["BROKEN", "KEPT", "NOT_PROMISED", "UNKNOWN", "Promise", "describe_crowd", "promises", "seed_warning"]

Bools = npt.NDArray[np.bool_]

KEPT, BROKEN, UNKNOWN, NOT_PROMISED = "kept", "broken", "unknown", "not promised"


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What the policy promised, and what the audit measured. The fields are those of the document."""

    name: str
    promised: str
    measured: str
    value: float | None = None
    bound: float | None = None
    state: str
    groups: int | None = None
    rows: int | None = None
    note: str = ""


def promises(findings: Findings) -> Iterator[Promise]:
    """Judge each promise of the policy, in the document's order. The crowd is judged whether promised or not."""
    yield _crowd(findings)
    yield _common_values(findings) if findings.policy.declaration.value_by_value else _persons(findings)
    if findings.policy.within:
        yield _within(findings)
    if findings.policy.once_per is not None:
        yield _once_per(findings)
    if findings.policy.together is not None:
        yield _together(findings)
    for j, name in enumerate(findings.policy.sensitive):
        if findings.policy.l is not None:
            yield _diversity(findings, j, name)
    for j, name in enumerate(findings.policy.sensitive):
        if findings.policy.t is not None:
            yield _closeness(findings, j, name)
    if findings.policy.delay is not None or findings.policy.delay_rows is not None:
        yield _deadline(findings)
    yield _nothing_lost(findings)
    if not findings.perturbs:
        yield _contained(findings)
    yield _columns(findings)
    yield _boxes(findings)
    if findings.given.reported is not None and findings.exact is not None:
        yield _reported(findings)
    if stated(findings.policy) is not None:
        yield _epsilon(findings)


def seed_warning(findings: Findings) -> str:
    """Say what a seed in the policy gives away; empty if there is no seed."""
    if findings.policy.seed is None:
        return ""
    return (
        "The policy has a seed: whoever guesses it can recompute the order of the rows in each release and all other "
        "random draws. Remove the seed, and each pipeline draws a secret of its own."
    )


def _crowd(findings: Findings) -> Promise:
    k, crowd = findings.policy.k, findings.crowd
    promise = Promise(
        name="crowd",
        promised=f"every row leaves in a release of at least {k} persons, each person once, at one moment",
        measured=describe_crowd(findings),
        value=crowd.alone if crowd.exact or crowd.alone else None,
        bound=0,
        state=UNKNOWN,
        rows=crowd.offending,
    )
    if not findings.policy.crowd:
        return replace(promise, promised="not promised by the policy", state=NOT_PROMISED, note=_not_promised(findings))
    if crowd.offending:
        return replace(promise, state=BROKEN)
    if not crowd.exact:
        return replace(promise, note="Give --trace to know which rows left together, and when.")
    if findings.policy.seed is not None:
        return replace(promise, note="An attacker who guesses the seed can recompute the order in which rows left.")
    return replace(promise, state=KEPT)


def describe_crowd(findings: Findings) -> str:
    """Say how many rows left with fewer than k persons at one moment."""
    crowd, fewer = findings.crowd, f"rows left with fewer than {findings.policy.k} persons at one moment"
    if not crowd.exact and not crowd.alone:
        return f"it is unknown how many of {crowd.rows:,} {fewer}"
    least = "" if crowd.exact else "at least "
    repeated = f", and {crowd.repeated:,} in releases in which a person is more than once" if crowd.repeated else ""
    return f"{least}{crowd.alone:,} of {crowd.rows:,} {fewer}{repeated}"


def _not_promised(findings: Findings) -> str:
    crowd = findings.crowd
    if crowd.offending:
        said = "An attacker who knows when a row arrived can single these rows out."
    elif crowd.exact:
        said = "Still, every row of this stream left in a crowd."
    else:
        said = "Give --trace to know which rows left together, and when."
    return f"{said} The method bastion promises a crowd if the policy has reuse: off and on_suppress: drop."


def _persons(findings: Findings) -> Promise:
    k = findings.policy.k
    promise = Promise(name="k", promised=f"at least {k} persons in each group", bound=k, measured="", state=UNKNOWN)
    if not len(findings.groups):
        return replace(promise, measured="no groups", state=KEPT, groups=0, rows=0)
    if findings.exact is not None:
        return _persons_by_trace(findings, promise)
    if findings.given.input is None:
        least = int(findings.sizes[findings.groups].min())
        promise = replace(
            promise,
            measured=f"at least {least} rows; their persons are unknown",
            note="A person may have several rows in a group. Give --input to bound the number of persons.",
        )
        return _broken_if(findings, promise, findings.sizes[findings.groups] < k)
    least, most = int(findings.bounds.least.min()), int(findings.bounds.most.min())
    said = f"at least {least} persons" if least == most else f"at least {least} persons, at most {most} in the smallest"
    promise = replace(promise, measured=said, value=least)
    unproven = int(np.count_nonzero((findings.bounds.least < k) & (findings.bounds.most >= k)))
    if unproven:
        note = f"Give --trace to decide {unproven} of {len(findings.groups)} groups."
        promise = replace(promise, note=note)
    if (findings.bounds.least < k).any():
        return _broken_if(findings, promise, findings.bounds.most < k)
    return replace(promise, state=KEPT, groups=0, rows=0)


def _common_values(findings: Findings) -> Promise:
    k, window = findings.policy.k, format_duration(window_of(findings.policy))
    promise = Promise(
        name="k",
        promised=f"at least {k} persons had each published value, by itself, within {window} before",
        measured="unknown",
        bound=0,
        state=UNKNOWN,
        note="Give --input and --trace to know when each row came. Combinations of values are not protected.",
    )
    if findings.exact is None:
        return promise
    wrong = sum(report.rare_values for report in findings.reports)
    said = f"{wrong:,} values of fewer" if wrong else "all were"
    note = "Combinations of values are not protected."
    return replace(promise, measured=said, value=wrong, state=BROKEN if wrong else KEPT, note=note)


def _within(findings: Findings) -> Promise:
    names = " and ".join(findings.policy.within)
    promise = Promise(
        name="within",
        promised=f"no group has rows with different values of {names}, and k holds within each value",
        measured="unknown",
        bound=0,
        state=UNKNOWN,
        note="Give --input and --trace to know which rows are of one group.",
    )
    exact = findings.exact
    if exact is None or exact.input.apart is None:
        return promise
    mixed, values = exact.mixed(), len(np.unique(exact.input.apart))
    said = f"{mixed:,} rows in mixed groups; {values:,} different values"
    state = BROKEN if mixed else KEPT
    return replace(promise, measured=said, value=mixed, state=state, rows=mixed, note="")


def _once_per(findings: Findings) -> Promise:
    period = findings.policy.once_per or 0
    promise = Promise(
        name="once per",
        promised=f"any two published rows of a person are at least {format_duration(period)} of event time apart",
        measured="unknown",
        bound=0,
        state=UNKNOWN,
        note="Give --input and --trace to know whose rows were published.",
    )
    wrong = findings.too_soon
    if wrong is None:
        return promise
    said = f"{wrong:,} rows follow another of their person too soon" if wrong else "no row follows another too soon"
    note = f"{findings.left_out or 0:,} rows were left out for it."
    return replace(promise, measured=said, value=wrong, state=BROKEN if wrong else KEPT, rows=wrong, note=note)


def _together(findings: Findings) -> Promise:
    policy, period = findings.policy, findings.policy.together or 0
    span = "" if period == FOREVER else f" within {format_duration(period)} of each other"
    promise = Promise(
        name="together",
        promised=f"all boxes of a person{span}, intersected, leave at least {policy.k} persons",
        measured="unknown",
        bound=0,
        state=UNKNOWN,
        note="Give --input and --trace to know whose rows were published.",
    )
    counts = [report.lacking_company for report in findings.reports]
    if findings.exact is None or any(count is None for count in counts):
        return promise
    wrong = sum(count or 0 for count in counts)
    said = f"fewer are left of {wrong:,} persons' boxes" if wrong else "no person's boxes leave fewer"
    note = "A row that the earlier boxes do not contain, since its person's values changed, begins anew."
    return replace(promise, measured=said, value=wrong, state=BROKEN if wrong else KEPT, note=note)


def _persons_by_trace(findings: Findings, promise: Promise) -> Promise:
    least = int(findings.persons.min())
    promise = replace(promise, measured=f"at least {least} persons", value=least)
    small = sum(report.small_groups for report in findings.reports)
    if small and least >= findings.policy.k:
        note = f"{small} releases left before their group was complete."
        return replace(promise, state=BROKEN, groups=small, rows=None, note=note)
    return _broken_if(findings, replace(promise, state=KEPT, groups=0, rows=0), findings.persons < findings.policy.k)


def _broken_if(findings: Findings, promise: Promise, wrong: Bools) -> Promise:
    """Return the promise, marked as broken if any group is wrong."""
    if not wrong.any():
        return promise
    rows = int(findings.sizes[findings.groups[wrong]].sum())
    return replace(promise, state=BROKEN, groups=int(np.count_nonzero(wrong)), rows=rows)


def _diversity(findings: Findings, j: int, name: str) -> Promise:
    bound = int(findings.policy.l or 0)
    codes = findings.out.sensitive[findings.grouped, j]
    values, entropy = measures.diversity(findings.out.box[findings.grouped], codes, len(findings.sizes))
    promised = f"at least {bound} distinct values of {name} in each group"
    promise = Promise(name=f"l:{name}", promised=promised, measured="no groups", bound=bound, state=KEPT)
    if len(findings.groups):
        least = int(values[findings.groups].min())
        note = f"By entropy, each group has at least {entropy[findings.groups].min():.2f} equally likely values."
        promise = replace(promise, measured=f"at least {least} distinct values", value=least, note=note)
    early = sum(report.low_diversity[name] for report in findings.reports)
    promise = _broken_if(findings, replace(promise, groups=0, rows=0), values[findings.groups] < bound)
    if early and promise.state == KEPT:
        note = f"{promise.note} {early} releases left before their group had that many."
        return replace(promise, state=BROKEN, groups=early, rows=None, note=note)
    return promise


def _closeness(findings: Findings, j: int, name: str) -> Promise:
    bound, column = float(findings.policy.t or 0.0), findings.policy.sensitive[name]
    size = column.size if column.ordered else None
    codes = findings.out.sensitive[findings.grouped, j]
    far = measures.distances(findings.out.box[findings.grouped], codes, len(findings.sizes), size)
    most = float(far[findings.groups].max()) if len(findings.groups) else 0.0
    promise = Promise(
        name=f"t:{name}",
        promised=f"each group's {name} is within {bound:g} of the stream's when the group leaves",
        measured=f"within {most:.3f} of all published rows",
        value=rounded(most),
        bound=bound,
        state=UNKNOWN,
        note="Give --trace to compare each group with the stream at the moment of its release.",
    )
    counts = [report.far[name] for report in findings.reports]
    if findings.exact is None or any(count is None for count in counts):
        return promise
    wrong = sum(count or 0 for count in counts)
    note = "Judged at the moment of each release. The measured distance is that at the end."
    return replace(promise, state=BROKEN if wrong else KEPT, groups=wrong, rows=None, note=note)


def _deadline(findings: Findings) -> Promise:
    policy = findings.policy
    said = [] if policy.delay is None else [f"{format_duration(policy.delay)} of event time"]
    said += [] if policy.delay_rows is None else [f"{policy.delay_rows} arrivals"]
    bound = policy.delay_rows if policy.delay is None else policy.delay / 1e6
    promised = f"each row leaves within {' and '.join(said)}"
    promise = Promise(name="deadline", promised=promised, measured="unknown", bound=bound, state=UNKNOWN)
    late = [report.late for report in findings.reports]
    delay = findings.delay
    if findings.exact is None or None in late:
        return replace(promise, note="Give --trace to know when each row arrived and left.")
    wrong = sum(count or 0 for count in late) + sum(report.late_rows or 0 for report in findings.reports)
    early = sum(report.early or 0 for report in findings.reports)
    unordered = 0 if policy.event_time is None else findings.exact.out_of_order()
    if delay is not None:
        most = delay["largest"]
        longest = span_of_seconds(most) if delay["unit"] == "seconds" else f"{int(most):,} rows"
        promise = replace(promise, measured=f"at most {longest}", value=most)
    notes = []
    if unordered:
        notes.append(f"{unordered} rows of the trace are not in the order of their event times.")
    if early:
        notes.append(f"{early} rows of the trace left before they arrived.")
    broken = wrong + unordered + early
    return replace(promise, state=BROKEN if broken else KEPT, rows=broken, note=" ".join(notes))


def _nothing_lost(findings: Findings) -> Promise:
    lost, more, lacking = findings.accounts
    promise = Promise(
        name="nothing lost",
        promised="each row leaves exactly once" + (", or is sampled out" * findings.samples),
        measured="unknown",
        bound=0,
        state=UNKNOWN,
        note=lacking,
    )
    if more:
        promise = replace(promise, measured=f"{more} surplus rows", state=BROKEN, rows=more)
        if findings.exact is None and findings.given.trace is not None:
            note = f"The trace has {findings.traced} published rows, but the output has {len(findings.out)}."
            promise = replace(promise, note=note)
    if lost is None:
        return promise
    measured = " and ".join([f"{lost} rows lost", *([f"{more} surplus"] if more else [])])
    state = BROKEN if lost or more else KEPT
    return replace(promise, measured=measured, value=lost, state=state, rows=lost + more)


def _contained(findings: Findings) -> Promise:
    promise = Promise(
        name="contained",
        promised="ranges contain the row's own values, and all other values are unchanged",
        measured="unknown",
        bound=0,
        state=UNKNOWN,
        note="Give --input to compare published ranges with the rows' own values.",
    )
    if findings.exact is not None:
        changed, state, measured = findings.exact.changed(), KEPT, "in all rows"
        wrong = sum(report.outside for report in findings.reports) + changed
        note = f"{changed} rows have a changed value in a column that must leave unchanged." if changed else ""
    elif findings.given.input is not None:
        unsure = int(findings.bounds.unsure.sum())
        wrong, state, measured = int(findings.bounds.excess.sum()), UNKNOWN if unsure else KEPT, "no breach found"
        note = f"Give --trace to decide {unsure} rows: other rows with the same unchanged values lie outside their box."
        note = note if unsure else ""
        promise = replace(promise, groups=int(np.count_nonzero(findings.bounds.excess)))
    else:
        return promise
    if wrong:
        return replace(promise, measured=f"not in {wrong} rows", value=wrong, state=BROKEN, rows=wrong, note=note)
    return replace(promise, measured=measured, value=0, state=state, rows=0, note=note)


def _columns(findings: Findings) -> Promise:
    allowed = {*findings.policy.quasi_identifiers, *findings.policy.sensitive, *findings.policy.publish}
    more = [name for name in findings.out.columns if name not in allowed]
    person = " The person column is among them." if findings.policy.person in more else ""
    return Promise(
        name="columns",
        promised="no column is published that the policy does not name",
        measured=f"{len(more)} other columns" if more else "no other column",
        value=len(more),
        bound=0,
        state=BROKEN if more else KEPT,
        rows=len(findings.out) if more else 0,
        note=person.strip(),
    )


def _boxes(findings: Findings) -> Promise:
    wrong = ~legal(findings.policy, findings.out.lo, findings.out.hi)[findings.groups]
    promise = Promise(
        name="boxes",
        promised="every published value is one that the policy can publish",
        measured="all are",
        value=0,
        bound=0,
        state=KEPT,
        groups=0,
        rows=0,
    )
    narrow = sum(report.star_not_widest for report in findings.reports)
    surplus = 0 if findings.exact is None else findings.exact.surplus_boxes()
    notes = [f"{narrow} suppressed releases are not fully generalized."] if narrow else []
    notes += [f"Rows of one group were published under different boxes: {surplus} boxes too many."] if surplus else []
    count = int(np.count_nonzero(wrong)) + narrow + surplus
    if not count:
        return promise
    rows = int(findings.sizes[findings.groups[wrong]].sum())
    measured, note = f"{count} groups have other values", " ".join(notes)
    return replace(promise, measured=measured, value=count, state=BROKEN, groups=count, rows=rows or None, note=note)


def _reported(findings: Findings) -> Promise:
    if findings.exact is None or findings.given.reported is None:
        raise AssertionError
    counts = [(report.wrong_loss, report.wrong_persons) for report in findings.reports]
    # Recomputing this loss would need the perturbed values that the domain was learned from.
    unjudged = any(loss is None for loss, _ in counts)
    wrong = findings.exact.misreported(findings.given.reported)
    wrong += sum(0 if findings.perturbs else loss or 0 for loss, _ in counts) + sum(n or 0 for _, n in counts)
    return Promise(
        name="reported figures",
        promised="the reported loss, rows and persons of each release are right",
        measured=f"{wrong} releases are wrong" if wrong else "all are right",
        value=wrong,
        bound=0,
        state=BROKEN if wrong else KEPT,
        groups=wrong,
        note="Losses were not recomputed, because the domains are learned from perturbed values." if unjudged else "",
    )


def _epsilon(findings: Findings) -> Promise:
    statement = stated(findings.policy)
    if statement is None:
        raise AssertionError
    return Promise(
        name="epsilon",
        promised=f"epsilon {statement.epsilon:.4g} with delta {statement.delta:.3g}, for {statement.scope}",
        measured="unknown",
        value=None,
        bound=rounded(statement.epsilon),
        state=UNKNOWN,
        note="This is proven for the method. No output can show it.",
    )
