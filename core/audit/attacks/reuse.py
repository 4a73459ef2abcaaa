"""Whose is a row that left alone? Ask where a row would have been given this box, or none.

This is example 4 of the CASTLE paper. An attacker who knows the rule of reuse and all published boxes can compute how
likely a row at each place would have been given this box. The rule of least loss excludes places. A random draw only
makes some places likelier than others.

A row that no remembered box contains is suppressed, so a star excludes everyone inside a remembered box. A person who
alone has the value that a group's box ends at is a member of that group, and so did not leave alone.

What the methods remember follows from what they publish. It is recomputed here from `docs/castle.md` and
`docs/bastion.md`, so that the audit shares no code with the engine.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crenel.audit.attacks.observation import Bools, Floats, Ints
from crenel.audit.attacks.outcomes import Chances
from crenel.audit.attacks.person_index import PersonIndex
from crenel.audit.evidence import CLUSTER, REUSE, SUPPRESSED, Published
from crenel.audit.measures import domains, losses
from crenel.encoding.rows import Rows
from crenel.policy import OnSuppress, Policy
from crenel.policy.geometry import Interval
from crenel.policy.parameters import Reuse

__all__ = ["LEAST_LOSS", "Shrinking", "pinned", "reuse_odds", "shrinking"]

#: The eta of the rule that always takes the box of least loss.
LEAST_LOSS = math.inf

_TOLERANCE = 1e-12
#: An end of a box with more holders than this is not examined for the one who is in no other group.
_FEW = 64
#: How many places are weighed at a time.
_BLOCK = 256
#: In multiples of the average loss: a box that loses this much more than the best gets the least weight.
_FARTHEST = 0.25


@dataclass(frozen=True, kw_only=True)
class Shrinking(Chances):
    """The result of `shrinking`. Targets are rows that left alone: under a reused box, or as a star.

    The bound is 1/k, as for `linkage`, but it is not promised here. `above` counts the rows above it.
    """

    #: How many targets left as stars, and the average share of the persons that a star excludes.
    stars: int
    star_excludes: float
    #: Rows known to be members of a group, because its box ends at their value.
    pinned: int
    #: Rows for which the rule excluded a person inside the box, and rows for which it excluded the true person because
    #: the method has another rule.
    excluded: int
    wrong: int
    #: The largest factor by which the odds between two persons changed; the largest that `reuse_odds` allows for these
    #: rows; and the largest factor in it that comes from the weights, e^(eta * ...): 1 for a uniform draw.
    odds: float
    odds_bound: float
    weights: float

    def __str__(self) -> str:
        gained = f"odds changed by up to {self.odds:.3g}, of at most {self.odds_bound:.3g}"
        return f"{super().__str__()}; {gained}; {self.excluded} with a person excluded"


@dataclass(frozen=True, eq=False)
class Reused:
    """A row that left alone, and the remembered boxes that its box was drawn from."""

    row: int
    #: Which of the remembered boxes it was given.
    box: int
    lo: Floats
    hi: Floats
    loss: Floats
    #: The average loss of recent releases; None before the first.
    average: float | None

    def containing(self, places: Floats) -> Bools:
        """Tell for each place and box whether the box contains the place."""
        inside = np.ones((len(places), len(self.lo)), np.bool_)
        for value, lo, hi in zip(places.T, self.lo.T, self.hi.T, strict=True):
            inside &= (lo <= value[:, None]) & (value[:, None] <= hi)
        return inside

    def gaps(self, inside: Bools) -> Floats:
        """For each place and box, scale the extra loss over the best box there to 0..1; more does not count."""
        least = np.min(np.where(inside, self.loss, np.inf), axis=1)
        more = np.maximum(self.loss - least[:, None], 0.0)
        average = self.average or 0.0
        far = more >= average * _FARTHEST
        gap = np.divide(more, average * _FARTHEST, out=np.ones(more.shape), where=~far)
        return np.asarray(np.where(more == 0.0, 0.0, gap))

    def chances(self, inside: Bools, eta: float) -> Floats:
        """For each place inside the box, compute the probability that a row there is given this box."""
        if eta == LEAST_LOSS:
            least = np.min(np.where(inside, self.loss, np.inf), axis=1)
            lightest = inside & (self.loss <= least[:, None])
            return np.asarray(lightest[:, self.box] / lightest.sum(axis=1))
        weight = np.where(inside, np.exp(-eta * self.gaps(inside)), 0.0)
        return np.asarray(weight[:, self.box] / weight.sum(axis=1))

    def bound(self, inside: Bools, eta: float) -> tuple[float, float]:
        """Bound the change of the odds between two places, and return the factor in it that comes from the weights."""
        if eta == LEAST_LOSS:
            return math.inf, math.inf
        weights = np.exp(eta * self.gaps(inside)[:, self.box])
        return float(np.max(1.0 + (inside.sum(axis=1) - 1) * weights)), float(weights.max())


def reuse_odds(eta: float, *, boxes: int, averages: float = 1.0) -> float:
    """Bound what reuse can reveal: the factor by which the odds between two places in a box change when it is reused.

    Args:
        eta: How strongly boxes of less loss are preferred.
        boxes: The number of remembered boxes that contain a place, including the box itself.
        averages: The extra loss of the box over the best of these, in multiples of the average loss.
    """
    return 1.0 + (boxes - 1) * math.exp(eta * min(averages / _FARTHEST, 1.0))


def shrinking(
    policy: Policy,
    rows: Rows,
    releases: Any,
    *,
    eta: float | None = None,
    most: int = 200,
    seed: int = 0,
    stars: bool = True,
    pins: bool = True,
) -> Shrinking | None:
    """Whose is a row that was published alone? Weigh those inside its box by their probability of being given it.

    The attacker knows everyone's quasi-identifiers, everything published, the method and its parameters, but no times.
    The attack ignores why the row left alone, which depends on the rows held at that time, and, with `t`, the
    sensitive values.

    Args:
        policy: The promises, the method and its parameters.
        rows: All rows that went in.
        releases: The releases in the order they left: a `Published`, or any object with its columns.
        eta: The rule that the attacker assumes; by default the method's own. `LEAST_LOSS` is the box of least loss.
        most: How many rows under a reused box to ask about, and how many stars.
        seed: The seed that draws them.
        stars: Whether to ask about rows that were published as stars.
        pins: Whether to rule out rows known to be in a group by an end of its box (`pinned`).

    Returns:
        None if it is unknown how the method remembers boxes.
    """
    out = Published.of(releases)
    if eta is None:
        eta = float(policy.parameter("eta", 0.0)) if policy.reuse is Reuse.WEIGHTED else 0.0
    memory = _memory(policy)
    if memory is None or out.kind is None or out.offsets is None:
        return None
    kind = out.kind
    if out.loss is None:
        out = replace(out, loss=_losses(policy, rows, out))
    index, found = PersonIndex(policy, rows), _Found()
    if pins:
        found.pinned = pinned(policy, rows, out)
    for reused in _reuses(memory, out, _drawn(kind, REUSE, most, seed)):
        _weigh(index, reused, eta, found)
    if stars and policy.on_suppress is OnSuppress.STAR:
        _weigh_stars(index, policy, out, _drawn(kind, SUPPRESSED, most, seed), found)
    chances = np.array(found.chances)
    return Shrinking(
        attack="shrinking",
        targets=len(chances),
        highest=float(chances.max(initial=0.0)),
        mean=float(chances.mean()) if len(chances) else 0.0,
        bound=1.0 / policy.k,
        above=int(np.count_nonzero(chances > 1.0 / policy.k + _TOLERANCE)),
        stars=len(found.excludes),
        star_excludes=float(np.mean(found.excludes)) if found.excludes else 0.0,
        pinned=0 if found.pinned is None else int(np.count_nonzero(found.pinned)),
        excluded=found.excluded,
        wrong=found.wrong,
        odds=found.odds,
        odds_bound=found.bound,
        weights=found.weights,
    )


def pinned(policy: Policy, rows: Rows, releases: Any) -> Bools:
    """Find the rows that are known to be in a group, because they alone have the value that its box ends at.

    Each end of a range is the value of a member. If a single row in the box has that value, apart from rows known to be
    in other groups, that row is the member. Ends on a grid (`step`) and nodes of hierarchies reveal nothing like that.
    """
    out = Published.of(releases)
    tells = [
        d
        for d, qi in enumerate(policy.quasi_identifiers.values())
        if isinstance(qi.geometry, Interval) and getattr(qi, "step", None) is None
    ]
    faces = list(_faces(PersonIndex(policy, rows), out, tells))
    of = np.full(len(rows), -1, np.int64)
    found = -1
    while found != np.count_nonzero(of >= 0):
        found = int(np.count_nonzero(of >= 0))
        for i, holders in faces:
            free = holders[(of[holders] < 0) | (of[holders] == i)]
            if len(free) == 1:
                of[free] = i
    return np.asarray(of >= 0)


def _faces(index: PersonIndex, out: Published, tells: list[int]) -> Iterator[tuple[int, Ints]]:
    """Yield groups, and for each end of their box the rows in the box that have this value, if they are few."""
    groups = np.arange(len(out)) if out.kind is None else np.flatnonzero(out.kind == CLUSTER)
    for i in groups.tolist():
        inside = index.inside(out.lo[i], out.hi[i])
        for d in tells:
            values = index.qi[inside, d]
            for end in {out.lo[i, d], out.hi[i, d]}:
                holders = inside[values == end]
                if len(holders) <= _FEW:
                    yield i, holders


def _drawn(kind: Ints, wanted: int, most: int, seed: int) -> Ints:
    """Draw some of the releases of this kind, in order."""
    numbers = np.flatnonzero(kind == wanted)
    if len(numbers) > most:
        numbers = np.sort(np.random.default_rng(seed).choice(numbers, most, replace=False))
    return numbers


def _losses(policy: Policy, rows: Rows, out: Published) -> Floats:
    """Compute the loss of each box, as anyone can; a learned domain is taken from all rows."""
    found = losses(policy, out.lo, out.hi, domains(policy, rows.qi), np.arange(len(out)))
    return np.zeros(0) if found is None else found.rows


class _Found:
    """What the attacker has found so far."""

    def __init__(self) -> None:
        self.chances: list[float] = []
        self.excludes: list[float] = []
        self.pinned: Bools | None = None
        self.excluded = self.wrong = 0
        self.odds = self.bound = self.weights = 1.0


def _weigh(index: PersonIndex, reused: Reused, eta: float, found: _Found) -> None:
    """Weigh the persons inside a reused box."""
    box = reused.box
    rows = index.inside(reused.lo[box], reused.hi[box])
    if found.pinned is not None:
        rows = rows[~found.pinned[rows]]
    if not len(rows):
        found.wrong += 1
        return
    chance = np.zeros(len(rows))
    for block in _blocks(index.qi[rows]):
        points = index.qi[rows[block]]
        near = _overlapping(reused, points.min(axis=0), points.max(axis=0))
        inside = near.containing(points)
        chance[block] = near.chances(inside, eta)
        bound, weights = near.bound(inside, eta)
        found.bound, found.weights = max(found.bound, bound), max(found.weights, weights)
    # At first all persons are equally likely; a person's row may be any of their rows in the box.
    persons, at = np.unique(index.person[rows], return_inverse=True)
    weight = np.bincount(at.reshape(-1), chance) / np.bincount(at.reshape(-1))
    possible = weight[weight > 0]
    if not len(possible):
        return
    found.chances.append(float(possible.max() / possible.sum()))
    found.excluded += len(possible) < len(persons)
    found.wrong += bool(weight[persons == index.person[reused.row]].sum() == 0)
    found.odds = max(found.odds, float(chance.max() / chance.min()) if chance.min() > 0 else math.inf)


def _weigh_stars(index: PersonIndex, policy: Policy, out: Published, wanted: Ints, found: _Found) -> None:
    """Weigh the persons who may be a star: those with a row that no remembered box contains."""
    memory = _memory(policy)
    assert memory is not None and out.kind is not None and out.offsets is not None and out.loss is not None
    # With t the method may refuse a box to a row inside it, so a star excludes nobody.
    excludes = policy.t is None and policy.reuse is not Reuse.OFF
    free = np.ones(len(index.qi), np.bool_) if found.pinned is None else ~found.pinned
    whole = np.bincount(index.person[free], minlength=index.persons)
    boxes, asked = np.zeros(len(index.qi), np.int64), set(wanted.tolist())
    for i, (kind, begin, end) in enumerate(zip(out.kind.tolist(), out.offsets[:-1], out.offsets[1:], strict=True)):
        if i in asked:
            possible = free & (boxes == 0) if excludes else free
            held = np.bincount(index.person[possible], minlength=index.persons)
            weight = held[held > 0] / whole[held > 0]
            truth = index.person[out.rows[begin:end]]
            found.wrong += int(np.count_nonzero(held[truth] == 0))
            if len(weight):
                found.chances.append(float(weight.max() / weight.sum()))
                found.excludes.append(1.0 - len(weight) / max(index.persons, 1))
        for added, lo, hi in memory.left(kind, int(end - begin), out.lo[i], out.hi[i], float(out.loss[i])):
            boxes[index.inside(lo, hi)] += added


def _blocks(points: Floats) -> Iterator[Ints]:
    """Cut the points into small blocks of neighbours, since few boxes meet a block."""
    parts = [np.arange(len(points))]
    while parts:
        part = parts.pop()
        if len(part) <= _BLOCK:
            yield part
            continue
        d = int(np.argmax(np.ptp(points[part], axis=0) / np.maximum(np.ptp(points, axis=0), np.finfo(np.float64).tiny)))
        middle = len(part) // 2
        part = part[np.argpartition(points[part, d], middle)]
        parts += [part[:middle], part[middle:]]


def _overlapping(reused: Reused, lo: Floats, hi: Floats) -> Reused:
    """Keep the boxes that meet this range. The box that was given always does."""
    near = np.all((reused.lo <= hi) & (lo <= reused.hi), axis=1)
    return Reused(
        reused.row,
        int(np.count_nonzero(near[: reused.box])),
        reused.lo[near],
        reused.hi[near],
        reused.loss[near],
        reused.average,
    )


# --- What methods remember -------------------------------------------------------------------------------------------


class _Memory(ABC):
    """The boxes that a method remembers, oldest first. A box that is published again keeps its position."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.boxes: dict[bytes, tuple[Floats, Floats, float]] = {}
        self.average: float | None = None

    def left(self, kind: int, rows: int, lo: Floats, hi: Floats, loss: float) -> list[tuple[int, Floats, Floats]]:
        """Record a release, and return the boxes that are remembered from now on (1) or forgotten (-1)."""
        key = _key(lo, hi)
        if kind == REUSE and key in self.boxes:
            self._note(rows, self.boxes[key][2])  # the loss when the box was made
        if kind != CLUSTER:
            return []
        self._note(rows, loss)
        if not self._keeps(loss) or self._most <= 0:
            return []
        changes = [] if key in self.boxes else [(1, lo, hi)]
        if key not in self.boxes and len(self.boxes) == self._most:
            old = self.boxes.pop(next(iter(self.boxes)))
            changes.append((-1, old[0], old[1]))
        self.boxes[key] = lo, hi, loss
        return changes

    @abstractmethod
    def _keeps(self, loss: float) -> bool:
        """Whether the method remembers a new box of this loss."""

    @abstractmethod
    def _note(self, rows: int, loss: float) -> None:
        """Record the loss of `rows` rows."""


class _CastleMemory(_Memory):
    """Remembers boxes that lose less than the average of the last mu boxes."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters.max_reusable)
        self._losses: deque[float] = deque(maxlen=parameters.mu)

    def _keeps(self, loss: float) -> bool:
        self._losses.append(loss)
        return loss < sum(self._losses) / len(self._losses)

    def _note(self, rows: int, loss: float) -> None:
        pass  # no average is needed for a uniform draw


class _BastionMemory(_Memory):
    """Remembers all boxes, and the average loss that the weights are relative to."""

    def __init__(self, k: int, parameters: Any) -> None:
        super().__init__(parameters.max_reusable)
        self._pace = 10.0 * k

    def _keeps(self, loss: float) -> bool:
        return True

    def _note(self, rows: int, loss: float) -> None:
        if self.average is None:
            self.average = loss
        else:
            self.average += min(rows / self._pace, 0.5) * (loss - self.average)


def _key(lo: Floats, hi: Floats) -> bytes:
    return bytes((np.concatenate([lo, hi]) + 0.0).tobytes())  # -0.0 is 0.0


def _memory(policy: Policy) -> _Memory | None:
    parameters = policy.parameters
    # If the output is reordered, its releases are not those that the method decided on.
    if policy.reorders or policy.declaration.perturbs:
        return None
    if policy.method == "bastion":
        return _BastionMemory(policy.k, parameters)
    return _CastleMemory(parameters) if policy.method == "castle" else None


def _reuses(memory: _Memory, out: Published, wanted: Ints) -> Iterator[Reused]:
    """Yield the wanted releases with the boxes they were drawn from."""
    assert out.kind is not None and out.offsets is not None and out.loss is not None
    asked = set(wanted.tolist())
    for i, (kind, begin, end) in enumerate(zip(out.kind.tolist(), out.offsets[:-1], out.offsets[1:], strict=True)):
        key = _key(out.lo[i], out.hi[i])
        if i in asked and key in memory.boxes:  # otherwise this method did not publish it, whatever its kind says
            lo, hi, loss = (np.array(column) for column in zip(*memory.boxes.values(), strict=True))
            yield Reused(int(out.rows[begin]), list(memory.boxes).index(key), lo, hi, loss, memory.average)
        memory.left(kind, int(end - begin), out.lo[i], out.hi[i], float(out.loss[i]))
