"""The audit's result as one document: what `crenel audit --json` prints, and the page is made of.

It holds counts, means and the policy's own names: never a value of a row. `docs/audit.md` says what each figure is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.audit import attack_runs as attempts
from crenel.audit import measures
from crenel.audit.differential_privacy import stated
from crenel.audit.evidence import Evidence
from crenel.audit.measures import rounded
from crenel.audit.promises import BROKEN, KEPT, NOT_PROMISED, UNKNOWN, Promise, left, promises, seeded
from crenel.audit.utility import Workload, utility
from crenel.audit.view import View
from crenel.policy import Policy
from crenel.policy.durations import format_duration

__all__ = ["Workload", "build"]

Ints = npt.NDArray[np.integer[Any]]
Document = dict[str, Any]

_BINS_OVER_TIME = 50
#: Microseconds that a bin of event time may have: from a minute to a year.
_SPANS = [60_000_000 * m for m in (1, 5, 15, 60, 180, 360, 720, 1440, 10_080, 43_200, 525_600)]


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
    return _document(View(policy, evidence, tick), version, workload or Workload())


def _document(view: View, version: str, workload: Workload) -> Document:
    judged = list(promises(view))
    return {
        "crenel": version,
        "crowd": _crowd(view, judged),
        "verdict": _verdict(judged),
        "knowledge": view.knowledge,
        "policy": _said(view),
        "rows": _rows(view),
        "promises": [asdict(promise) for promise in judged],
        "loss": _loss(view),
        "groups": _group_sizes(view),
        "delay": view.delay,
        "over_time": _over_time(view),
        "utility": utility(view, workload),
        "attacks": attempts.tried(view, workload.seed),
        "differential": _differential(view),
        "notes": list(_notes(view)),
    }


def _verdict(judged: list[Promise]) -> str:
    """What is weaker than the crowd is never called kept."""
    states = {promise.state for promise in judged}
    if BROKEN in states:
        return BROKEN
    if UNKNOWN in states:
        return "not proven"
    return "no crowd" if NOT_PROMISED in states else KEPT


def _crowd(view: View, judged: list[Promise]) -> Document:
    """How many rows left with fewer than k persons at one moment: the first of all figures."""
    crowd = view.crowd
    (promise,) = (promise for promise in judged if promise.name == "crowd")
    how = "not proven" if promise.state == UNKNOWN else promise.state
    danger = "; an attacker who knows the time can single them out" if crowd.offending else ""
    return {
        "alone": promise.value,
        "rows": crowd.rows,
        "k": view.policy.k,
        "exact": crowd.exact,
        "repeated": crowd.repeated,
        "promised": view.policy.crowd,
        "state": promise.state,
        "text": f"A crowd at one moment is {how}: {left(view)}{danger}.",
        "seed": seeded(view) or None,
    }


def _said(view: View) -> Document:
    """What the policy says."""
    policy = view.policy
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


def _rows(view: View) -> Document:
    given = view.given.input
    return {
        "input": None if given is None else given.total,
        "rejected": None if given is None else given.total - len(given),
        "published": int(view.grouped.sum()),
        "suppressed": view.suppressed,
        "sampled_out": view.sampled_out,
        "lost": view.accounts.lost,
        "groups": len(view.groups),
    }


def _loss(view: View) -> Document:
    found, suppressed = view.losses, view.suppressed
    every = int(view.grouped.sum()) + (suppressed or 0)
    names = view.policy.quasi_identifiers
    rate = None if suppressed is None or not every else rounded(suppressed / every)
    squares = int((view.sizes.astype(np.int64) ** 2).sum()) + (suppressed or 0) * every
    costs = [(report.information_loss, report.rows) for report in view.reports]
    known = [(cost, rows) for cost, rows in costs if cost is not None]
    cost = sum(cost * rows for cost, rows in known) / max(sum(rows for _, rows in known), 1)
    return {
        "overall": None if found is None else rounded(found.overall),
        "per_attribute": dict.fromkeys(names)
        if found is None
        else dict(zip(names, map(rounded, found.per_attribute), strict=True)),
        "ncp": None if found is None else rounded(found.ncp),
        "discernibility": squares,
        "uncertainty_penalty": None if found is None else rounded(found.penalty),
        "information_loss": rounded(cost) if known and np.isfinite(cost) else None,
        "suppression_rate": rate,
    }


def _group_sizes(view: View) -> Document:
    sizes = view.persons
    few = not len(sizes)
    return {
        "smallest": None if few else int(sizes.min()),
        "median": None if few else float(np.median(sizes)),
        "largest": None if few else int(sizes.max()),
        "unit": "rows" if view.exact is None else "persons",
        "histogram": measures.histogram_of_sizes(sizes, view.sizes[view.groups]),
    }


def _over_time(view: View) -> Document:
    exact = view.exact
    if exact is not None and exact.trace.moment is not None and len(view.out):
        moment = exact.trace.moment[exact.leaves]
        span = next((s for s in _SPANS if np.ptp(moment) <= s * (_BINS_OVER_TIME - 1)), _SPANS[-1])
        edges = np.arange(moment.min() // span, moment.max() // span + 2) * span
        return {"unit": "event time", "bins": _bins(view, moment, edges, _iso)}
    edges = np.unique(np.linspace(0, len(view.out), _BINS_OVER_TIME + 1).astype(np.int64))
    return {"unit": "published rows", "bins": _bins(view, np.arange(len(view.out)), edges, int)}


def _bins(view: View, at: Ints, edges: Ints, said: Callable[[Any], Any]) -> list[Document]:
    place = np.searchsorted(edges, at, side="right") - 1
    count = len(edges) - 1
    grouped = np.bincount(place[view.grouped], minlength=count)
    stars = np.bincount(place[~view.grouped], minlength=count)
    loss = np.zeros(count) if view.losses is None else np.bincount(place, view.losses.rows, minlength=count)
    return [
        {
            "from": said(edges[i]),
            "to": said(edges[i + 1]),
            "published": int(grouped[i]),
            "suppressed": int(stars[i]) if view.star else None,
            "loss": rounded(loss[i] / (grouped[i] + stars[i])) if grouped[i] + stars[i] else None,
        }
        for i in range(count)
    ]


def _differential(view: View) -> Document | None:
    statement = stated(view.policy)
    if statement is None:
        return None
    return {"epsilon": statement.epsilon, "delta": statement.delta, "text": str(statement)}


def _notes(view: View) -> Iterator[str]:
    if view.given.input is None:
        yield "Only what was published is known. With --input, lost rows, wrong values and persons can be judged."
    if view.given.trace is None:
        yield "With --trace (of crenel run), persons, deadlines and each row's way are known exactly."
    elif view.exact is None:
        yield "The trace does not fit the published rows, and was not used."
    if not view.star and view.given.suppressed is None and view.exact is None:
        yield "With --suppressed, rows that were suppressed are told from rows that were lost."
    if view.perturbs:
        yield "The method perturbs quasi-identifiers: that a row lies in its box is not promised, and not judged."
    if view.policy.declaration.takes_holes and view.exact is None:
        yield "A quasi-identifier that is not published of a row counts as lost, though the row may lack it."


def _iso(micros: int) -> str:
    return str(np.datetime64(int(micros), "us").astype("datetime64[m]")) + "Z"
