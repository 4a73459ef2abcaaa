"""What a policy promises, beside what was measured: each promise kept, broken, or not known by what is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from crenel.audit import measures
from crenel.audit.differential_privacy import stated
from crenel.audit.guarantees import legal
from crenel.audit.measures import rounded
from crenel.audit.view import View
from crenel.policy.durations import format_duration

__all__ = ["BROKEN", "KEPT", "NOT_PROMISED", "UNKNOWN", "Promise", "left", "promises", "seeded"]

Bools = npt.NDArray[np.bool_]

KEPT, BROKEN, UNKNOWN, NOT_PROMISED = "kept", "broken", "unknown", "not promised"


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


def promises(view: View) -> Iterator[Promise]:
    """Each promise that the policy makes, in the document's order, and the crowd whether it is promised or not."""
    yield _crowd(view)
    yield _crowded(view)
    for j, name in enumerate(view.policy.sensitive):
        if view.policy.l is not None:
            yield _diverse(view, j, name)
    for j, name in enumerate(view.policy.sensitive):
        if view.policy.t is not None:
            yield _close(view, j, name)
    if view.policy.delay is not None or view.policy.delay_rows is not None:
        yield _deadline(view)
    yield _nothing_lost(view)
    if not view.perturbs:
        yield _contained(view)
    yield _columns(view)
    yield _boxes(view)
    if view.given.reported is not None and view.exact is not None:
        yield _reported(view)
    if stated(view.policy) is not None:
        yield _epsilon(view)


def seeded(view: View) -> str:
    """What a seed in the policy gives away; nothing if there is none."""
    if view.policy.seed is None:
        return ""
    return (
        "The policy has a seed: whoever guesses it can recompute the order of the rows in each release and all other "
        "draws, so that the order is not secret. Leave the seed out to have a secret drawn."
    )


def _crowd(view: View) -> Promise:
    k, crowd = view.policy.k, view.crowd
    promise = Promise(
        name="crowd",
        promised=f"every row leaves in a release of at least {k} persons, each of them once, at one moment",
        measured=left(view),
        value=crowd.alone if crowd.exact or crowd.alone else None,
        bound=0,
        state=UNKNOWN,
        rows=crowd.offending,
    )
    if not view.policy.crowd:
        return replace(promise, promised="not promised by the policy", state=NOT_PROMISED, note=_not_promised(view))
    if crowd.offending:
        return replace(promise, state=BROKEN)
    if not crowd.exact:
        return replace(promise, note="Which rows left together, and when, is known by --trace alone.")
    if view.policy.seed is not None:
        return replace(promise, note="Whoever guesses the seed can recompute the order in which rows left.")
    return replace(promise, state=KEPT)


def left(view: View) -> str:
    """How many rows left with fewer than k persons at one moment, in words."""
    crowd, fewer = view.crowd, f"rows left with fewer than {view.policy.k} persons at one moment"
    if not crowd.exact and not crowd.alone:
        return f"it is not known how many of {crowd.rows:,} {fewer}"
    least = "" if crowd.exact else "at least "
    repeated = f", and {crowd.repeated:,} in releases in which a person is more than once" if crowd.repeated else ""
    return f"{least}{crowd.alone:,} of {crowd.rows:,} {fewer}{repeated}"


def _not_promised(view: View) -> str:
    crowd = view.crowd
    if crowd.offending:
        said = "An attacker who knows the time can single them out."
    elif crowd.exact:
        said = "Every row of this stream left in a crowd all the same."
    else:
        said = "Which rows left together, and when, is known by --trace alone."
    return f"{said} The method bastion promises a crowd, with reuse: off and on_suppress: drop."


def _crowded(view: View) -> Promise:
    k = view.policy.k
    promise = Promise(name="k", promised=f"at least {k} persons in each group", bound=k, measured="", state=UNKNOWN)
    if not len(view.groups):
        return replace(promise, measured="no groups", state=KEPT, groups=0, rows=0)
    if view.exact is not None:
        return _k_by_trace(view, promise)
    if view.given.input is None:
        least = int(view.sizes[view.groups].min())
        promise = replace(
            promise,
            measured=f"at least {least} rows; whose is not known",
            note="A person may have several rows of a group. --input bounds the number of persons.",
        )
        return _broken_if(view, promise, view.sizes[view.groups] < k)
    least, most = int(view.bounds.least.min()), int(view.bounds.most.min())
    said = f"at least {least} persons" if least == most else f"at least {least} persons, at most {most} in the smallest"
    promise = replace(promise, measured=said, value=least)
    unproven = int(np.count_nonzero((view.bounds.least < k) & (view.bounds.most >= k)))
    if unproven:
        note = f"Of {unproven} of {len(view.groups)} groups it cannot be told without --trace."
        promise = replace(promise, note=note)
    if (view.bounds.least < k).any():
        return _broken_if(view, promise, view.bounds.most < k)
    return replace(promise, state=KEPT, groups=0, rows=0)


def _k_by_trace(view: View, promise: Promise) -> Promise:
    least = int(view.persons.min())
    promise = replace(promise, measured=f"at least {least} persons", value=least)
    small = sum(report.small_groups for report in view.reports)
    if small and least >= view.policy.k:
        note = f"{small} releases left before their group was complete."
        return replace(promise, state=BROKEN, groups=small, rows=None, note=note)
    return _broken_if(view, replace(promise, state=KEPT, groups=0, rows=0), view.persons < view.policy.k)


def _broken_if(view: View, promise: Promise, wrong: Bools) -> Promise:
    """The promise, broken if any group is wrong."""
    if not wrong.any():
        return promise
    rows = int(view.sizes[view.groups[wrong]].sum())
    return replace(promise, state=BROKEN, groups=int(np.count_nonzero(wrong)), rows=rows)


def _diverse(view: View, j: int, name: str) -> Promise:
    bound = int(view.policy.l or 0)
    codes = view.out.sensitive[view.grouped, j]
    values, entropy = measures.diversity(view.out.box[view.grouped], codes, len(view.sizes))
    promised = f"at least {bound} different values of {name} in each group"
    promise = Promise(name=f"l:{name}", promised=promised, measured="no groups", bound=bound, state=KEPT)
    if len(view.groups):
        least = int(values[view.groups].min())
        note = f"By their entropy, at least {entropy[view.groups].min():.2f} in each group."
        promise = replace(promise, measured=f"at least {least} different values", value=least, note=note)
    early = sum(report.low_diversity[name] for report in view.reports)
    promise = _broken_if(view, replace(promise, groups=0, rows=0), values[view.groups] < bound)
    if early and promise.state == KEPT:
        note = f"{promise.note} {early} releases left before their group had them."
        return replace(promise, state=BROKEN, groups=early, rows=None, note=note)
    return promise


def _close(view: View, j: int, name: str) -> Promise:
    bound, column = float(view.policy.t or 0.0), view.policy.sensitive[name]
    size = column.size if column.ordered else None
    codes = view.out.sensitive[view.grouped, j]
    far = measures.distances(view.out.box[view.grouped], codes, len(view.sizes), size)
    most = float(far[view.groups].max()) if len(view.groups) else 0.0
    promise = Promise(
        name=f"t:{name}",
        promised=f"within {bound:g} of the stream's {name} in each group, when it leaves",
        measured=f"within {most:.3f} of what was published in all",
        value=rounded(most),
        bound=bound,
        state=UNKNOWN,
        note="How the stream was at the moment of each release is known by --trace alone.",
    )
    counts = [report.far[name] for report in view.reports]
    if view.exact is None or any(count is None for count in counts):
        return promise
    wrong = sum(count or 0 for count in counts)
    note = "It is judged at the moment of each release; what is measured is at the end."
    return replace(promise, state=BROKEN if wrong else KEPT, groups=wrong, rows=None, note=note)


def _deadline(view: View) -> Promise:
    policy = view.policy
    said = [] if policy.delay is None else [f"{format_duration(policy.delay)} of event time"]
    said += [] if policy.delay_rows is None else [f"{policy.delay_rows} arrivals"]
    bound = policy.delay_rows if policy.delay is None else policy.delay / 1e6
    promised = f"each row leaves within {' and '.join(said)}"
    promise = Promise(name="deadline", promised=promised, measured="not known", bound=bound, state=UNKNOWN)
    late = [report.late for report in view.reports]
    delay = view.delay
    if view.exact is None or None in late:
        return replace(promise, note="When a row came and left is known by --trace alone.")
    wrong = sum(count or 0 for count in late) + sum(report.late_rows or 0 for report in view.reports)
    early = sum(report.early or 0 for report in view.reports)
    unordered = 0 if policy.event_time is None else view.exact.out_of_order()
    if delay is not None:
        promise = replace(promise, measured=f"at most {delay['largest']:g} {delay['unit']}", value=delay["largest"])
    notes = []
    if unordered:
        notes.append(f"{unordered} rows of the trace are not in the order of their event times.")
    if early:
        notes.append(f"{early} rows of the trace left before they came.")
    broken = wrong + unordered + early
    return replace(promise, state=BROKEN if broken else KEPT, rows=broken, note=" ".join(notes))


def _nothing_lost(view: View) -> Promise:
    lost, more, lacking = view.accounts
    promise = Promise(
        name="nothing lost",
        promised="each row leaves once" + (", or is sampled out" * view.samples),
        measured="not known",
        bound=0,
        state=UNKNOWN,
        note=lacking,
    )
    if more:
        promise = replace(promise, measured=f"{more} rows too many", state=BROKEN, rows=more)
        if view.exact is None and view.given.trace is not None:
            note = f"The trace is of {view.traced} published rows, and there are {len(view.out)}."
            promise = replace(promise, note=note)
    if lost is None:
        return promise
    measured = " and ".join([f"{lost} rows lost", *([f"{more} too many"] if more else [])])
    state = BROKEN if lost or more else KEPT
    return replace(promise, measured=measured, value=lost, state=state, rows=lost + more)


def _contained(view: View) -> Promise:
    promise = Promise(
        name="contained",
        promised="ranges hold the row's own values, and the rest is as it came",
        measured="not known",
        bound=0,
        state=UNKNOWN,
        note="What a row's own values are is known by --input.",
    )
    if view.exact is not None:
        changed, state, measured = view.exact.changed(), KEPT, "all do"
        wrong = sum(report.outside for report in view.reports) + changed
        note = f"{changed} rows have other values in what leaves as it is." if changed else ""
    elif view.given.input is not None:
        unsure = int(view.bounds.unsure.sum())
        wrong, state, measured = int(view.bounds.excess.sum()), UNKNOWN if unsure else KEPT, "no breach found"
        note = f"Of {unsure} rows it cannot be told without --trace: others that leave as they do lie elsewhere."
        note = note if unsure else ""
        promise = replace(promise, groups=int(np.count_nonzero(view.bounds.excess)))
    else:
        return promise
    if wrong:
        return replace(promise, measured=f"{wrong} rows do not", value=wrong, state=BROKEN, rows=wrong, note=note)
    return replace(promise, measured=measured, value=0, state=state, rows=0, note=note)


def _columns(view: View) -> Promise:
    allowed = {*view.policy.quasi_identifiers, *view.policy.sensitive, *view.policy.publish}
    more = [name for name in view.out.columns if name not in allowed]
    person = " The person is among them." if view.policy.person in more else ""
    return Promise(
        name="columns",
        promised="no column leaves that the policy does not name",
        measured=f"{len(more)} other columns" if more else "no other column",
        value=len(more),
        bound=0,
        state=BROKEN if more else KEPT,
        rows=len(view.out) if more else 0,
        note=person.strip(),
    )


def _boxes(view: View) -> Promise:
    wrong = ~legal(view.policy, view.out.lo, view.out.hi)[view.groups]
    promise = Promise(
        name="boxes",
        promised="values are such as the policy can publish",
        measured="all are",
        value=0,
        bound=0,
        state=KEPT,
        groups=0,
        rows=0,
    )
    narrow = sum(report.star_not_widest for report in view.reports)
    mixed = 0 if view.exact is None else view.exact.mixed()
    notes = [f"{narrow} suppressed releases are not fully generalized."] if narrow else []
    notes += [f"{mixed} times, rows of a group were published otherwise than the rest of it."] if mixed else []
    count = int(np.count_nonzero(wrong)) + narrow + mixed
    if not count:
        return promise
    rows = int(view.sizes[view.groups[wrong]].sum())
    measured, note = f"{count} groups have others", " ".join(notes)
    return replace(promise, measured=measured, value=count, state=BROKEN, groups=count, rows=rows or None, note=note)


def _reported(view: View) -> Promise:
    if view.exact is None or view.given.reported is None:
        raise AssertionError
    counts = [(report.wrong_loss, report.wrong_persons) for report in view.reports]
    # A loss over perturbed values of a learned domain cannot be computed again.
    unjudged = any(loss is None for loss, _ in counts)
    wrong = view.exact.misreported(view.given.reported)
    wrong += sum(0 if view.perturbs else loss or 0 for loss, _ in counts) + sum(n or 0 for _, n in counts)
    return Promise(
        name="reported figures",
        promised="releases have the loss, rows and persons reported",
        measured=f"{wrong} are not" if wrong else "all are",
        value=wrong,
        bound=0,
        state=BROKEN if wrong else KEPT,
        groups=wrong,
        note="Losses were not computed again: domains are learned from perturbed values." if unjudged else "",
    )


def _epsilon(view: View) -> Promise:
    statement = stated(view.policy)
    if statement is None:
        raise AssertionError
    return Promise(
        name="epsilon",
        promised=f"epsilon {statement.epsilon:.4g} with delta {statement.delta:.3g}, for {statement.scope}",
        measured="not known",
        value=None,
        bound=rounded(statement.epsilon),
        state=UNKNOWN,
        note="It is proven for the method. No output can show it.",
    )
