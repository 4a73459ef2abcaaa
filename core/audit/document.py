"""The result of an audit as one document: `crenel audit --json` prints it, and the page shows it.

It holds counts, means and the policy's own names, never a value of a row. `docs/audit.md` explains each figure.
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
from crenel.audit.promises import BROKEN, KEPT, NOT_PROMISED, UNKNOWN, Promise, describe_crowd, promises, seed_warning
from crenel.audit.utility import Workload, utility
from crenel.policy import Policy
from crenel.policy.durations import format_duration

__all__ = ["Workload", "build"]

Ints = npt.NDArray[np.integer[Any]]
Document = dict[str, Any]

_BINS_OVER_TIME = 50
#: The possible widths of a bin of event time in microseconds: from a minute to a year.
_SPANS = [60_000_000 * m for m in (1, 5, 15, 60, 180, 360, 720, 1440, 10_080, 43_200, 525_600)]


def build(
    policy: Policy,
    evidence: Evidence,
    *,
    version: str,
    workload: Workload | None = None,
    tick: Callable[[int], None] = lambda rows: None,
) -> Document:
    """Judge and measure a published stream by the evidence.

    Args:
        policy: The promises to judge by.
        evidence: The published rows, and whatever else is known.
        version: The version of crenel that judges.
        workload: The queries that measure utility; None for the default workload.
        tick: Called with the number of published rows that were matched since the last call.

    Raises:
        TraceError: No run could have written the trace.
    """
    return _document(Findings(policy, evidence, tick), version, workload or Workload())


def _document(findings: Findings, version: str, workload: Workload) -> Document:
    judged = list(promises(findings))
    return {
        "crenel": version,
        "crowd": _crowd(findings, judged),
        "verdict": _verdict(judged),
        "knowledge": findings.knowledge,
        "policy": _policy(findings),
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
    """Summarize the promises. A stream without the promise of a crowd is never called kept."""
    states = {promise.state for promise in judged}
    if BROKEN in states:
        return BROKEN
    if UNKNOWN in states:
        return "not proven"
    return "no crowd" if NOT_PROMISED in states else KEPT


def _crowd(findings: Findings, judged: list[Promise]) -> Document:
    """Say how many rows left with fewer than k persons at one moment: the first of all figures."""
    crowd = findings.crowd
    (promise,) = (promise for promise in judged if promise.name == "crowd")
    how = "not proven" if promise.state == UNKNOWN else promise.state
    danger = "; an attacker who knows when a row arrived can single these rows out" if crowd.offending else ""
    return {
        "alone": promise.value,
        "rows": crowd.rows,
        "k": findings.policy.k,
        "exact": crowd.exact,
        "repeated": crowd.repeated,
        "promised": findings.policy.crowd,
        "state": promise.state,
        "text": f"A crowd at one moment is {how}: {describe_crowd(findings)}{danger}.",
        "seed": seed_warning(findings) or None,
    }


def _policy(findings: Findings) -> Document:
    """Summarize the policy."""
    policy = findings.policy
    return {
        "method": policy.method,
        "k": policy.k,
        "l": policy.l,
        "t": policy.t,
        "delay": None if policy.delay is None else format_duration(policy.delay),
        "delay_rows": policy.delay_rows,
        "once_per": None if policy.once_per is None else format_duration(policy.once_per),
        "together": policy.to_dict().get("together"),
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
        "left_out": findings.left_out,
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
        yield "Only the published rows are known. Give --input to judge lost rows, wrong values and persons."
    if findings.given.trace is None:
        yield "Give --trace (crenel run writes it) to know persons, deadlines and the release of each row exactly."
    elif findings.exact is None:
        yield "The trace does not fit the published rows, and was not used."
    if not findings.star and findings.given.suppressed is None and findings.exact is None:
        yield "Give --suppressed to tell lost rows from suppressed rows."
    if findings.perturbs:
        yield "The method perturbs quasi-identifiers, so it does not promise that a box contains its rows."
    if findings.policy.declaration.takes_holes and findings.exact is None:
        yield "An unpublished quasi-identifier counts as lost, although the row may never have had it."


def _iso(micros: int) -> str:
    return str(np.datetime64(int(micros), "us").astype("datetime64[m]")) + "Z"
