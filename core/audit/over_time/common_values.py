"""Judges methods that count persons value by value: how many persons had a published value within the window before."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from crenel.audit.evidence import CLUSTER, REUSE, Published
from crenel.encoding.rows import Rows
from crenel.policy import Policy
from crenel.policy.durations import parse_duration

__all__ = ["rare_values", "window_of"]

Ints = npt.NDArray[np.int64]


def window_of(policy: Policy) -> int:
    """Return the microseconds before a row within which values count."""
    said = parse_duration(policy.parameter("window", None) or "")
    return (policy.delay or 0) if said is None else said


def rare_values(policy: Policy, rows: Rows, out: Published) -> int:
    """Count the published values that fewer than k persons had: in the window up to their row, its own among them."""
    if out.kind is None:
        return 0
    sizes = np.ones(len(out), np.int64) if out.offsets is None else np.diff(out.offsets)
    release = np.repeat(np.arange(len(out)), sizes)
    shown = np.isin(out.kind, (CLUSTER, REUSE))[release] & (out.rows >= 0) & (out.rows < len(rows))
    row, release = out.rows[shown], release[shown]
    since = np.maximum.accumulate(rows.time) - window_of(policy) if len(rows) else rows.time
    rare = 0
    for d in range(rows.qi.shape[1]):
        spans = np.stack([out.lo[release, d], out.hi[release, d]], axis=1)
        distinct, of = np.unique(spans, axis=0, return_inverse=True)
        for number, (lo, hi) in enumerate(distinct.tolist()):
            inside = np.flatnonzero((rows.qi[:, d] >= lo) & (rows.qi[:, d] <= hi))
            rare += _rare(policy.k, rows, inside, row[of.reshape(-1) == number], since)
    return rare


def _rare(k: int, rows: Rows, inside: Ints, published: Ints, since: Ints) -> int:
    """Count the rows published under a span before which it had too few persons; `inside` are all rows it contains."""
    asked, rare = set(published.tolist()), 0
    rare += len(asked - set(inside.tolist()))  # the span does not contain the row
    latest: dict[int, int] = {}
    order: list[tuple[int, int]] = []
    for at, person, time in zip(inside.tolist(), rows.person[inside].tolist(), rows.time[inside].tolist(), strict=True):
        latest[person] = max(time, latest.get(person, time))
        heapq.heappush(order, (time, person))
        while order and order[0][0] < since[at]:
            old, other = heapq.heappop(order)
            if latest.get(other) == old:
                del latest[other]
        rare += at in asked and len(latest) < k
    return rare
