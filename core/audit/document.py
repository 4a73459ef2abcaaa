"""The audit's result as one document: what `crenel audit --json` prints, and the page is made of.

It holds counts, means and the policy's own names: never a value of a row. `docs/audit.md` says what each figure is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.audit import measures
from crenel.audit.attack_runs import run_attacks
from crenel.audit.differential_privacy import stated
from crenel.audit.evidence import Evidence
from crenel.audit.findings import Findings
from crenel.audit.measures import rounded
from crenel.audit.promises import BROKEN, KEPT, NOT_PROMISED, UNKNOWN, Promise, left, promises, seeded
from crenel.audit.utility import Workload, utility
from crenel.policy import Policy
from crenel.policy.durations import format_duration
from crenel.policy.parameters import takes_holes

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
    return _document(Findings(policy, evidence, tick), version, workload or Workload())


def _document(findings: Findings, version: str, workload: Workload) -> Document:
    judged = list(promises(findings))
    return {
        "crenel": version,
        "crowd": _crowd(findings, judged),
        "verdict": _verdict(judged),
        "knowledge": findings.knowledge,
        "policy": _said(findings),
        "rows": _rows(findings),
        "promises": [asdict(promise) for promise in judged],
        "loss": _loss(findings),
        "groups": _group_sizes(findings),
        "delay": findings.delay,
        "over_time": _over_time(findings),
        "utility": utility(findings, workload),
        "attacks": run_attacks(findings, workload.seed),
        "differential": _differential(findings),
        "notes": list(_notes(findings)),
    }


def _verdict(judged: list[Promise]) -> str:
    """What is weaker than the crowd is never called kept."""
    states = {promise.state for promise in judged}
    if BROKEN in states:
        return BROKEN
    if UNKNOWN in states:
        return "not proven"
    return "no crowd" if NOT_PROMISED in states else KEPT


def _crowd(findings: Findings, judged: list[Promise]) -> Document:
    """How many rows left with fewer than k persons at one moment: the first of all figures."""
    crowd = findings.crowd
    (promise,) = (promise for promise in judged if promise.name == "crowd")
    how = "not proven" if promise.state == UNKNOWN else promise.state
    danger = "; an attacker who knows the time can single them out" if crowd.offending else ""
    return {
        "alone": promise.value,
        "rows": crowd.rows,
        "k": findings.policy.k,
        "exact": crowd.exact,
        "repeated": crowd.repeated,
        "promised": findings.policy.crowd,
        "state": promise.state,
        "text": f"A crowd at one moment is {how}: {left(findings)}{danger}.",
        "seed": seeded(findings) or None,
    }


def _said(findings: Findings) -> Document:
    """What the policy says."""
    policy = findings.policy
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


def _rows(findings: Findings) -> Document:
    given = findings.given.input
    return {
        "input": None if given is None else given.total,
        "rejected": None if given is None else given.total - len(given),
        "published": int(findings.grouped.sum()),
        "suppressed": findings.suppressed,
        "sampled_out": findings.sampled_out,
        "lost": findings.accounts.lost,
        "groups": len(findings.groups),
    }


def _loss(findings: Findings) -> Document:
    found, suppressed = findings.losses, findings.suppressed
    every = int(findings.grouped.sum()) + (suppressed or 0)
    names = findings.policy.quasi_identifiers
    rate = None if suppressed is None or not every else rounded(suppressed / every)
    squares = int((findings.sizes.astype(np.int64) ** 2).sum()) + (suppressed or 0) * every
    costs = [(report.information_loss, report.rows) for report in findings.reports]
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


def _group_sizes(findings: Findings) -> Document:
    sizes = findings.persons
    few = not len(sizes)
    return {
        "smallest": None if few else int(sizes.min()),
        "median": None if few else float(np.median(sizes)),
        "largest": None if few else int(sizes.max()),
        "unit": "rows" if findings.exact is None else "persons",
        "histogram": measures.histogram_of_sizes(sizes, findings.sizes[findings.groups]),
    }


def _over_time(findings: Findings) -> Document:
    exact = findings.exact
    if exact is not None and exact.trace.moment is not None and len(findings.out):
        moment = exact.trace.moment[exact.leaves]
        span = next((s for s in _SPANS if np.ptp(moment) <= s * (_BINS_OVER_TIME - 1)), _SPANS[-1])
        edges = np.arange(moment.min() // span, moment.max() // span + 2) * span
        return {"unit": "event time", "bins": _bins(findings, moment, edges, _iso)}
    edges = np.unique(np.linspace(0, len(findings.out), _BINS_OVER_TIME + 1).astype(np.int64))
    return {"unit": "published rows", "bins": _bins(findings, np.arange(len(findings.out)), edges, int)}


def _bins(findings: Findings, at: Ints, edges: Ints, said: Callable[[Any], Any]) -> list[Document]:
    place = np.searchsorted(edges, at, side="right") - 1
    count = len(edges) - 1
    grouped = np.bincount(place[findings.grouped], minlength=count)
    stars = np.bincount(place[~findings.grouped], minlength=count)
    loss = np.zeros(count) if findings.losses is None else np.bincount(place, findings.losses.rows, minlength=count)
    return [
        {
            "from": said(edges[i]),
            "to": said(edges[i + 1]),
            "published": int(grouped[i]),
            "suppressed": int(stars[i]) if findings.star else None,
            "loss": rounded(loss[i] / (grouped[i] + stars[i])) if grouped[i] + stars[i] else None,
        }
        for i in range(count)
    ]


def _differential(findings: Findings) -> Document | None:
    statement = stated(findings.policy)
    if statement is None:
        return None
    return {"epsilon": statement.epsilon, "delta": statement.delta, "text": str(statement)}


def _notes(findings: Findings) -> Iterator[str]:
    if findings.given.input is None:
        yield "Only what was published is known. With --input, lost rows, wrong values and persons can be judged."
    if findings.given.trace is None:
        yield "With --trace (of crenel run), persons, deadlines and each row's way are known exactly."
    elif findings.exact is None:
        yield "The trace does not fit the published rows, and was not used."
    if not findings.star and findings.given.suppressed is None and findings.exact is None:
        yield "With --suppressed, rows that were suppressed are told from rows that were lost."
    if findings.perturbs:
        yield "The method perturbs quasi-identifiers: that a row lies in its box is not promised, and not judged."
    if takes_holes(findings.policy.parameters) and findings.exact is None:
        yield "A quasi-identifier that is not published of a row counts as lost, though the row may lack it."


def _iso(micros: int) -> str:
    return str(np.datetime64(int(micros), "us").astype("datetime64[m]")) + "Z"
