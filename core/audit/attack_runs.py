"""The attacks that an audit tries by itself, at a cost that does not grow without bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.audit import attacks
from crenel.audit.attacks import Seen
from crenel.audit.measures import rounded
from crenel.audit.view import View

__all__ = ["tried"]

#: Groups, rows and persons that costly attacks look at.
_MOST = 200
#: Published rows beyond which attacks that look at each of them are left out.
_MOST_ROWS = 200_000


def tried(view: View, seed: int) -> list[dict[str, Any]]:
    """What came of the attacks that can be tried with what is given."""
    given, exact = view.given.input, view.exact
    if given is None or not len(given) or not len(view.out):
        return []
    whole = exact is not None and exact.one_shard() and not exact.unknown() and len(view.out) <= _MOST_ROWS
    if exact is not None and whole:
        ((rows, releases),) = exact.shards(view.given.reported)
        found = attacks.tried(view.policy, rows, Seen.of(view.policy, rows, releases), releases, most=_MOST, seed=seed)
    else:
        found = attacks.tried(view.policy, given.rows, _seen(view), most=_MOST, seed=seed)
    return [{**attack.as_dict(), "success": rounded(attack.success)} for attack in found]


def _seen(view: View) -> Seen:
    """What everybody sees, without whose rows they are; of rows that look the same, one: others tell nothing more."""
    out = view.out
    chosen = _distinct(np.column_stack([out.box, out.sensitive, view.grouped]))
    box, none = out.box[chosen], np.full(len(chosen), -1)
    return Seen(
        lo=out.lo[box],
        hi=out.hi[box],
        sensitive=out.sensitive[chosen],
        star=~view.grouped[chosen],
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
