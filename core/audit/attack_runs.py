"""Runs the attacks on the evidence of an audit, at a bounded cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.audit import attacks
from crenel.audit.attacks import Observation
from crenel.audit.findings import Findings
from crenel.audit.measures import rounded

__all__ = ["run_attacks"]

#: How many groups, rows or persons a costly attack examines.
_MOST = 200
#: With more published rows than this, attacks that examine every row are left out.
_MOST_ROWS = 200_000


def run_attacks(findings: Findings, seed: int) -> list[dict[str, Any]]:
    """Run the attacks that the evidence allows, and return their results for the document."""
    given, exact = findings.given.input, findings.exact
    if given is None or not len(given) or not len(findings.out):
        return []
    whole = exact is not None and exact.one_shard() and not exact.unknown() and len(findings.out) <= _MOST_ROWS
    if exact is not None and whole:
        ((rows, releases),) = exact.shards(findings.given.reported)
        found = attacks.run_all(
            findings.policy, rows, Observation.of(findings.policy, rows, releases), releases, most=_MOST, seed=seed
        )
    else:
        found = attacks.run_all(findings.policy, given.rows, _observation(findings), most=_MOST, seed=seed)
    return [{**attack.as_dict(), "success": rounded(attack.success)} for attack in found]


def _observation(findings: Findings) -> Observation:
    """Build what everyone observes, without the rows' persons. Of rows that look alike, one is enough."""
    out = findings.out
    chosen = _distinct(np.column_stack([out.box, out.sensitive, findings.grouped]))
    box, none = out.box[chosen], np.full(len(chosen), -1)
    return Observation(
        lo=out.lo[box],
        hi=out.hi[box],
        sensitive=out.sensitive[chosen],
        star=~findings.grouped[chosen],
        left=none,
        rows=none,
        release=np.arange(len(chosen)),
    )


def _distinct(table: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Keep the first of equal rows."""
    mark = np.zeros(len(table), np.int64)
    for column in table.T:
        _, code = np.unique(column, return_inverse=True)
        _, mark = np.unique(mark * (int(code.max(initial=0)) + 1) + code, return_inverse=True)
    return np.unique(mark, return_index=True)[1]
