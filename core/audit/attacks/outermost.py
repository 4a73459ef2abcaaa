"""Who in a group has the value that nobody else in it has? Guess the outermost member.

A method that first gathers the nearest rows, and then adds the nearest row with a new value, puts the unique value at
the rim. An attacker who knows the method and who is in the group finds its holder far more often than by chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from crenel.audit.attacks.observation import Floats
from crenel.audit.attacks.outcomes import Outcome
from crenel.audit.evidence import CLUSTER, Published
from crenel.audit.measures import domains
from crenel.encoding.rows import Rows
from crenel.policy import Policy
from crenel.policy.geometry import Geometry, Interval

__all__ = ["Outermost", "outermost"]


@dataclass(frozen=True, kw_only=True)
class Outermost(Outcome):
    """The result of `outermost`. Targets are groups in which exactly one member has a unique value."""

    #: How many guesses are expected to be right by chance: one over the number of rows, summed over the groups.
    expected: float
    #: The same figures for groups of more than k rows: some of those rows joined for their value.
    larger: int
    larger_right: int
    larger_expected: float

    @property
    def ratio(self) -> float | None:
        """How many times better than chance the guesses are; None if there are none."""
        return self.right / self.expected if self.targets else None

    @property
    def larger_ratio(self) -> float | None:
        """The same for groups of more than k rows."""
        return self.larger_right / self.larger_expected if self.larger else None

    def __str__(self) -> str:
        gain = "" if self.ratio is None else f", {self.ratio:.3g} times as often as by chance"
        return f"{super().__str__()}{gain}"


def outermost(policy: Policy, rows: Rows, releases: Any, *, column: int = 0) -> Outermost | None:
    """Who has the unique value of a group? Guess the member without whom its box would be smallest.

    The attacker knows the quasi-identifiers of everyone in the group, and sees that one of its values occurs once. If
    several members shrink the box equally, the attacker guesses the one farthest from the others.

    Args:
        policy: The quasi-identifiers and their weights.
        rows: All rows that went in.
        releases: The releases in the order they left: a `Published`, or any object with its columns.
        column: The number of the sensitive column to attack.

    Returns:
        None if it is unknown which rows left together.
    """
    out = Published.of(releases)
    if out.offsets is None or out.kind is None or not policy.sensitive:
        return None
    box = _Box(policy, rows)
    # For groups of k rows, and for larger ones: groups, right guesses, and guesses expected to be right by chance.
    found = np.zeros((2, 3))
    for i in np.flatnonzero(out.kind == CLUSTER):
        members = out.rows[out.offsets[i] : out.offsets[i + 1]]
        _, first, count = np.unique(rows.sensitive[members, column], return_index=True, return_counts=True)
        odd = first[count == 1]
        if len(odd) != 1 or len(members) < 2:
            continue
        guessed = box.outermost(rows.qi[members]) == odd[0]
        found[int(len(members) > policy.k)] += (1, guessed, 1.0 / len(members))
    groups, right, expected = found.sum(axis=0).tolist()
    larger, larger_right, larger_expected = found[1].tolist()
    return Outermost(
        attack="outermost",
        targets=int(groups),
        claims=int(groups),
        right=int(right),
        expected=expected,
        larger=int(larger),
        larger_right=int(larger_right),
        larger_expected=larger_expected,
    )


class _Box:
    """Measures boxes as anyone can: by shares of the domains, with the policy's weights."""

    def __init__(self, policy: Policy, rows: Rows) -> None:
        self._geometries: list[Geometry] = [qi.geometry for qi in policy.quasi_identifiers.values()]
        ends = domains(policy, rows.qi)
        self._width = np.where(ends[:, 1] > ends[:, 0], ends[:, 1] - ends[:, 0], 1.0)
        weights = np.array([float(qi.weight) for qi in policy.quasi_identifiers.values()])
        self._share = weights / weights.sum()

    def outermost(self, places: Floats) -> int:
        """Find the member without whom the box is smallest; of several, the one farthest from the others' mean."""
        scaled = np.where(np.isnan(places), 0.0, places) / self._width
        spared = np.zeros(len(places))
        for d, geometry in enumerate(self._geometries):
            spared += self._share[d] * self._spared(geometry, places[:, d], self._width[d])
        others = (scaled.sum(axis=0) - scaled) / max(len(places) - 1, 1)
        far = np.abs(scaled - others) @ self._share
        return int(np.lexsort([-far, -np.round(spared, 12)])[0])

    def _spared(self, geometry: Geometry, values: Floats, width: float) -> Floats:
        """Compute how much the group's box shrinks in this quasi-identifier without each of its members."""
        order = np.argsort(values, kind="stable")
        spared = np.zeros(len(values))
        if np.isnan(values).any() or len(values) < 3:
            return spared
        whole = _span(geometry, values[order[0]], values[order[-1]])
        # Only the first and the last in order can shrink the range.
        for place, lo, hi in ((0, order[1], order[-1]), (-1, order[0], order[-2])):
            less = _span(geometry, values[lo], values[hi])
            spared[order[place]] = max(whole - less, 0.0) / width
        return spared


def _span(geometry: Geometry, lo: float, hi: float) -> float:
    first, last = (lo, hi) if isinstance(geometry, Interval) else geometry.span(lo, hi)
    return float(last - first)
