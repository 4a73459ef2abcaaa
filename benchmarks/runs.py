"""Runs an engine over a stream, and audits the result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crenel.audit import audit
from crenel.encoding.rows import Rows
from crenel.engine import Kind, Releases, create_engine
from crenel.engine.kernels.compiler import compile_from_now_on
from crenel.policy import Policy

#: Rows pushed at a time. The releases do not depend on it.
PACK = 500


class BrokenPromiseError(AssertionError):
    """The audit found a broken promise, so the figures of the run are worthless."""


@dataclass(frozen=True, eq=False)
class Run:
    """The result of a whole stream."""

    releases: Releases
    #: Mean over all rows. A suppressed row counts 1.
    loss: float
    #: Mean over the rows that were not suppressed.
    loss_published: float
    #: Shares of the rows.
    suppressed: float
    reused: float


def push_all(policy: Policy, rows: Rows, pack: int = PACK) -> Releases:
    compile_from_now_on()  # also for the few rows of a warm-up
    engine = create_engine(policy)
    parts = [engine.push(rows.slice(start, min(start + pack, len(rows)))) for start in range(0, len(rows), pack)]
    return Releases.concat([*parts, engine.flush()])


def run(policy: Policy, rows: Rows) -> Run:
    """Run the whole stream to its end, and audit the result.

    Raises:
        BrokenPromiseError: A promise was broken, or could not be checked.
    """
    releases = push_all(policy, rows)
    report = audit(policy, rows, releases)
    if not report.ok:
        raise BrokenPromiseError("\n".join(report.problems() + report.unchecked()))
    kind = releases.per_row(releases.kind)
    loss = releases.per_row(releases.loss)
    published = kind != Kind.SUPPRESSED
    return Run(
        releases=releases,
        loss=float(loss.mean()),
        loss_published=float(loss[published].mean()) if published.any() else 1.0,
        suppressed=float(np.mean(~published)),
        reused=float(np.mean(kind == Kind.REUSE)),
    )
