"""Which row is somebody's, if it is known when it came? Look at what left in the time that it had.

The attacker of time is the one that reuse and stars are weakest against: a row that leaves alone leaves at its
deadline, and often nothing else that could be the victim's leaves then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from crenel.audit.attacks.observation import Bools, Floats, Ints
from crenel.audit.attacks.outcomes import Chances
from crenel.audit.guarantees import Published
from crenel.encoding.rows import Rows
from crenel.policy import OnSuppress, Policy, Reuse

__all__ = ["Observer", "observer"]

_TOLERANCE = 1e-12
# As the engine numbers them; written again here on purpose.
_CLUSTER = 0
_SUPPRESSED = 2
_SAMPLED_OUT = 3
#: Deadlines in time are rounded down to such a part of the delay.
_TICKS = 16
#: Methods under which a row that leaves alone does so at its deadline.
_LEAVE_AT_THE_DEADLINE = ("bastion", "castle", "castleguard")


@dataclass(frozen=True, kw_only=True)
class Observer(Chances):
    """What came of `observer`. Targets are rows that were published; `above` counts those with fewer than k rows."""

    #: Targets of whom one row alone is possible, and it is theirs.
    linked: int
    #: Targets whose own row is not among the possible ones: the attacker is wrong, since values were perturbed, say.
    missed: int


def observer(
    policy: Policy, rows: Rows, releases: Any, *, known: float = 0.1, most: int = 200, seed: int = 0
) -> Observer | None:
    """Which row is somebody's? Look at what left in its time under a box, or as a star, that contains their values.

    The attacker knows the victim's quasi-identifiers, the moment of their row, and the policy. Where the method is
    `castle` or `bastion`, he knows besides that a row that leaves alone does so at its deadline, or at the end of the
    stream; and that `bastion` with reuse suppresses no row that lies in a box it has published. All rows that are
    possible are as likely to him, so that his best guess is right with a chance of one over
    their number. Under a crowd that is at most 1/k: the victim's own release is possible as a whole. None if the
    policy has no deadline, or it is not known when rows left.

    Parameters
    ----------
    releases
        What left, in the order it left: a `Published`, or anything with its columns.
    known
        How well the moment is known: within this part of the delay, before and after.
    most
        Victims, drawn at random by `seed`.
    """
    out = Published.of(releases)
    clock = _Clock.of(policy, rows, out)
    if clock is None or out.kind is None or out.offsets is None:
        return None
    leaves = out.kind != _SAMPLED_OUT
    if policy.on_suppress is OnSuppress.DROP:
        leaves &= out.kind != _SUPPRESSED
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
    """Whether each of these releases may be of a row with these values. What is not published contains all."""
    lo, hi = out.lo[release], out.hi[release]
    with np.errstate(invalid="ignore"):
        inside = (lo <= values) & (values <= hi) | np.isnan(lo)
    assert out.kind is not None
    return np.asarray(np.all(inside, axis=1) | (out.kind[release] == _SUPPRESSED))


class _Stars:
    """Which stars may be somebody's, if rows that lie in a box that was published are given that instead."""

    def __init__(self, policy: Policy, out: Published) -> None:
        parameters = policy.parameters
        assert out.kind is not None
        self._stars = out.kind == _SUPPRESSED
        boxes = np.flatnonzero(out.kind == _CLUSTER)
        # With t a box may be refused to a row; and a box that was forgotten is given to none.
        follows = policy.method == "bastion" and policy.reuse is not Reuse.OFF and policy.t is None
        follows = follows and not policy.reorders and len(boxes) <= parameters.max_reusable
        self._boxes = boxes if follows else boxes[:0]
        self._lo, self._hi = out.lo[self._boxes], out.hi[self._boxes]

    def possible(self, release: Ints, values: Floats) -> Bools:
        """Whether each of these releases may be of a row with these values."""
        inside = self._boxes[np.all((self._lo <= values) & (values <= self._hi), axis=1)]
        return np.asarray(~self._stars[release] | (release < inside[0])) if len(inside) else np.ones(len(release), bool)


@dataclass(frozen=True, eq=False)
class _Clock:
    """When rows came and left, in event time or in arrivals, and how long they may take."""

    came: Ints
    left: Ints
    delay: int
    tick: int
    #: Releases of one row that left at its deadline, for all that is known of the method.
    alone: Bools
    #: Releases at the end of the stream, where rows leave before they are due.
    end: Bools

    @classmethod
    def of(cls, policy: Policy, rows: Rows, out: Published) -> _Clock | None:
        if out.kind is None or out.arrivals is None:
            return None
        sizes = np.ones(len(out), np.int64) if out.offsets is None else np.diff(out.offsets)
        follows = policy.method in _LEAVE_AT_THE_DEADLINE
        follows &= not policy.reorders
        # Of two deadlines, nobody knows which one a row left at.
        follows &= policy.delay is None or policy.delay_rows is None
        alone = (out.kind != _CLUSTER) & (sizes == 1) & follows
        end = out.arrivals >= len(rows)
        if policy.delay is not None and out.moment is not None:
            return cls(rows.time, out.moment, policy.delay, max(policy.delay // _TICKS, 1), alone, end)
        if policy.delay_rows is None:
            return None
        return cls(np.arange(len(rows)) + 1, out.arrivals, policy.delay_rows, 0, alone, end)

    def possible(self, row: int, of: Ints, known: float) -> Ints:
        """The published rows that may be this one by the time at which they left, each given by its release."""
        off = round(known * self.delay)
        first, last = int(self.came[row]) - off, int(self.came[row]) + off + self.delay
        at = self.left[of]
        in_time = (first <= at) & (at <= last)
        due = at >= first + self.delay - self.tick
        return np.flatnonzero(in_time & (due | ~self.alone[of] | self.end[of]))
