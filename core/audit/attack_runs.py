"""The attacks that an audit tries by itself, at a cost that does not grow without bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.audit import attacks
from crenel.audit.attacks import Observation
from crenel.audit.findings import Findings
from crenel.audit.measures import rounded

__all__ = ["run_attacks"]

#: Groups, rows and persons that costly attacks look at.
_MOST = 200
#: Published rows beyond which attacks that look at each of them are left out.
_MOST_ROWS = 200_000


def run_attacks(findings: Findings, seed: int) -> list[dict[str, Any]]:
    """What came of the attacks that can be tried with what is given."""
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
        found = attacks.run_all(findings.policy, given.rows, _seen(findings), most=_MOST, seed=seed)
    return [{**attack.as_dict(), "success": rounded(attack.success)} for attack in found]


def _seen(findings: Findings) -> Observation:
    """What everybody sees, without whose rows they are; of rows that look the same, one: others tell nothing more."""
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
    """Of rows that are equal, the first."""
    mark = np.zeros(len(table), np.int64)
    for column in table.T:
        _, code = np.unique(column, return_inverse=True)
        _, mark = np.unique(mark * (int(code.max(initial=0)) + 1) + code, return_inverse=True)
    return np.unique(mark, return_index=True)[1]
