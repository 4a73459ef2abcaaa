"""Whose exact value is published? Look for values that one person alone has among the ends of ranges."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from crenel.audit.attacks.observation import Bools, Floats, Observation
from crenel.audit.attacks.outcomes import Outcome
from crenel.encoding.rows import Rows
from crenel.policy import Policy
from crenel.policy.geometry import Interval

__all__ = ["Ends", "ends"]


@dataclass(frozen=True, kw_only=True)
class Ends(Outcome):
    """The result of `ends`. Targets are the values that one person alone has; claims are those that end a range."""

    #: For each quasi-identifier published as a range, how many such values were published exactly.
    of: dict[str, int] = field(default_factory=dict)


def ends(policy: Policy, observation: Observation, rows: Rows) -> Ends:
    """Which values that one person alone has were published exactly, as an end of a range?

    The attacker needs only the output: each end is someone's value. A claim is right if a row with that value was
    published under such a range. Ranges whose ends lie on a grid (`step`) reveal no values, and are left out.
    """
    lo, hi, group = observation.groups()
    row = observation.rows[~observation.star]
    targets = claims = right = 0
    found: dict[str, int] = {}
    for d, (name, qi) in enumerate(policy.quasi_identifiers.items()):
        if not isinstance(qi.geometry, Interval) or getattr(qi, "step", None) is not None:
            continue
        alone = _of_one_person(rows, d)
        targets += len(np.unique(rows.qi[alone, d]))
        published = np.unique(np.concatenate([lo[:, d], hi[:, d]]))
        widest = qi.geometry.widest()
        told = alone & np.isin(rows.qi[:, d], published) & ~np.isin(rows.qi[:, d], widest)
        found[name] = len(np.unique(rows.qi[told, d]))
        claims += found[name]
        own = rows.qi[row, d]
        at_end = told[row] & ((own == lo[group, d]) | (own == hi[group, d])) if len(row) else np.zeros(0, np.bool_)
        right += len(np.unique(own[at_end]))
    return Ends(attack="ends", targets=targets, claims=claims, right=right, of=found)


def _of_one_person(rows: Rows, d: int) -> Bools:
    """Find the rows whose value only one person has."""
    values: Floats = rows.qi[:, d]
    _, code = np.unique(values, return_inverse=True)
    code = code.reshape(-1)
    pairs = np.unique(np.stack([code, rows.person], axis=1), axis=0)[:, 0]
    return np.asarray((np.bincount(pairs)[code] == 1) & ~np.isnan(values)) if len(code) else np.zeros(0, np.bool_)
