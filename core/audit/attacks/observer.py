"""Which row is someone's, if the attacker knows when it arrived? Look at what left between arrival and deadline.

Reuse and stars are weakest against this attacker: a row that leaves alone leaves at its deadline, and often no other
possible row leaves then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from crenel.audit.attacks.observation import Bools, Floats, Ints
from crenel.audit.attacks.outcomes import Chances
from crenel.audit.evidence import CLUSTER, SAMPLED_OUT, SUPPRESSED, Published
from crenel.encoding.rows import Rows
from crenel.policy import OnSuppress, Policy, Reuse

__all__ = ["Observer", "observer"]

_TOLERANCE = 1e-12
#: A delay in event time has this many ticks. Deadlines are rounded down to a tick.
_TICKS = 16
#: Methods under which a row that leaves alone does so at its deadline.
_LEAVE_AT_THE_DEADLINE = ("bastion", "castle", "castleguard")


@dataclass(frozen=True, kw_only=True)
class Observer(Chances):
    """The result of `observer`. Targets are published rows; `above` counts those with fewer than k possible rows."""

    #: Targets with a single possible row, which is theirs.
    linked: int
    #: Targets whose own row is not among the possible ones. The attacker is wrong, for example because of noise.
    missed: int


def observer(
    policy: Policy, rows: Rows, releases: Any, *, known: float = 0.1, most: int = 200, seed: int = 0
) -> Observer | None:
    """Which row is someone's? Look at what left in time under a box that contains their values, or as a star.

    The attacker knows the victim's quasi-identifiers, when their row arrived, and the policy. For `castle` and
    `bastion` the attacker also knows that a row leaves alone only at its deadline or at the end of the stream, and
    that `bastion` with reuse suppresses no row inside a box it has published. All possible rows are equally likely, so
    the best guess is right with probability one over their number. In a crowd that is at most 1/k, because the whole
    release of the victim's row is possible.

    Args:
        policy: The promises, and the quasi-identifiers.
        rows: All rows that went in.
        releases: The releases in the order they left: a `Published`, or any object with its columns.
        known: How precisely the attacker knows the arrival: within this share of the delay, before and after.
        most: How many victims to try.
        seed: The seed that draws them.

    Returns:
        None if the policy has no deadline, or if it is unknown when rows left.
    """
    out = Published.of(releases)
    clock = _Clock.of(policy, rows, out)
    if clock is None or out.kind is None or out.offsets is None:
        return None
    leaves = out.kind != SAMPLED_OUT
    if policy.on_suppress is OnSuppress.DROP:
        leaves &= out.kind != SUPPRESSED
    of = np.repeat(np.arange(len(out)), np.diff(out.offsets))
    published = leaves[of]
    of, row = of[published], out.rows[published]
    victims = np.arange(len(row))
    if len(victims) > most:
        victims = np.sort(np.random.default_rng(seed).choice(victims, most, replace=False))
    stars = _Stars(policy, out)
    possible, own = np.zeros(len(victims), np.int64), np.zeros(len(victims), np.bool_)
    for i, victim in enumerate(victims.tolist()):
        near = clock.possible(int(row[victim]), of, known)
        near = near[_contains(out, of[near], rows.qi[row[victim]])]
        near = near[stars.possible(of[near], rows.qi[row[victim]])]
        possible[i], own[i] = len(near), bool(np.any(near == victim))
    chances = 1.0 / np.maximum(possible, 1)
    chances[possible == 0] = 0.0
    bound = 1.0 / policy.k
    return Observer(
        attack="observer",
        targets=len(victims),
        highest=float(chances.max(initial=0.0)),
        mean=float(chances.mean()) if len(chances) else 0.0,
        bound=bound,
        above=int(np.count_nonzero(chances > bound + _TOLERANCE)),
        linked=int(np.count_nonzero((possible == 1) & own)),
        missed=int(np.count_nonzero(~own)),
    )


def _contains(out: Published, release: Ints, values: Floats) -> Bools:
    """Tell which releases may hold a row with these values. An unpublished quasi-identifier contains every value."""
    lo, hi = out.lo[release], out.hi[release]
    with np.errstate(invalid="ignore"):
        inside = (lo <= values) & (values <= hi) | np.isnan(lo)
    assert out.kind is not None
    return np.asarray(np.all(inside, axis=1) | (out.kind[release] == SUPPRESSED))


class _Stars:
    """Which stars may be someone's, if the method gives a row inside a published box that box instead of a star."""

    def __init__(self, policy: Policy, out: Published) -> None:
        parameters = policy.parameters
        assert out.kind is not None
        self._stars = out.kind == SUPPRESSED
        boxes = np.flatnonzero(out.kind == CLUSTER)
        # With t the method may refuse a box to a row, and a box that was forgotten goes to no row.
        follows = policy.method == "bastion" and policy.reuse is not Reuse.OFF and policy.t is None
        follows = follows and not policy.reorders and len(boxes) <= parameters.max_reusable
        self._boxes = boxes if follows else boxes[:0]
        self._lo, self._hi = out.lo[self._boxes], out.hi[self._boxes]

    def possible(self, release: Ints, values: Floats) -> Bools:
        """Tell which of these releases may hold a row with these values."""
        inside = self._boxes[np.all((self._lo <= values) & (values <= self._hi), axis=1)]
        return np.asarray(~self._stars[release] | (release < inside[0])) if len(inside) else np.ones(len(release), bool)


@dataclass(frozen=True, eq=False)
class _Clock:
    """When rows arrived and left, in event time or in arrivals, and how long they may wait."""

    came: Ints
    left: Ints
    delay: int
    tick: int
    #: Releases of one row that the method makes only at the row's deadline.
    alone: Bools
    #: Releases at the end of the stream, where rows leave before their deadline.
    end: Bools

    @classmethod
    def of(cls, policy: Policy, rows: Rows, out: Published) -> _Clock | None:
        if out.kind is None or out.arrivals is None:
            return None
        sizes = np.ones(len(out), np.int64) if out.offsets is None else np.diff(out.offsets)
        follows = policy.method in _LEAVE_AT_THE_DEADLINE
        follows &= not policy.reorders
        # With two deadlines, the attacker does not know which one a row left at.
        follows &= policy.delay is None or policy.delay_rows is None
        alone = (out.kind != CLUSTER) & (sizes == 1) & follows
        end = out.arrivals >= len(rows)
        if policy.delay is not None and out.moment is not None:
            return cls(rows.time, out.moment, policy.delay, max(policy.delay // _TICKS, 1), alone, end)
        if policy.delay_rows is None:
            return None
        return cls(np.arange(len(rows)) + 1, out.arrivals, policy.delay_rows, 0, alone, end)

    def possible(self, row: int, of: Ints, known: float) -> Ints:
        """Find the published rows, given by their releases, that left when this row may have left."""
        off = round(known * self.delay)
        first, last = int(self.came[row]) - off, int(self.came[row]) + off + self.delay
        at = self.left[of]
        in_time = (first <= at) & (at <= last)
        due = at >= first + self.delay - self.tick
        return np.flatnonzero(in_time & (due | ~self.alone[of] | self.end[of]))
