"""Whose is a row that left alone? Ask where a row would have been given this box, or none.

CASTLE's example 4. Whoever knows the rule by which a generalization is reused, and has seen which ones there were, can
say how likely a row at each place would have been given the one it was. By the rule of the least loss that excludes
places; by a random draw it makes some more likely than others.

A row that no remembered box contains is suppressed: a star excludes everybody who lies in one. And whoever alone has
the value that a group's box ends at is a member of that group, and so is not the one who left alone.

The memory of the methods is written again here, from `docs/castle.md` and `docs/bastion.md`: what they remember follows
from what they publish.
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
from crenel.audit.attacks.person_index import Places
from crenel.audit.guarantees import Published
from crenel.audit.measures import domains, losses
from crenel.encoding.rows import Rows
from crenel.policy import OnSuppress, Policy
from crenel.policy.geometry import Interval
from crenel.policy.parameters import Reuse

__all__ = ["LEAST_LOSS", "Shrinking", "pinned", "reuse_odds", "shrinking"]

#: The eta of the rule that always takes the box of least loss.
LEAST_LOSS = math.inf

_TOLERANCE = 1e-12
_CLUSTER = 0
_REUSE = 1
_SUPPRESSED = 2
#: Holders of a value beyond which it is not looked for the one of them who is no member of another group.
_FEW = 64
#: Places that are weighed at a time.
_BLOCK = 256
#: A box that loses more than the best by more averages than this weighs no less.
_FARTHEST = 0.25


@dataclass(frozen=True, kw_only=True)
class Shrinking(Chances):
    """What came of `shrinking`. Targets are rows that left alone: under a box seen before, or as a star.

    Its bound is 1/k, as that of `linkage`; but it is not promised, and `above` says how many rows are above it.
    """

    #: Of the targets, those that left as stars, and the part of the persons that a star excludes, on average.
    stars: int
    star_excludes: float
    #: Rows that are known to be members of a group, by a value that its box ends at.
    pinned: int
    #: Rows of which the rule excluded a person inside the box; and those of which it excluded the true one, since the
    #: rule is another.
    excluded: int
    wrong: int
    #: The greatest factor by which the odds between two persons changed, the greatest that `reuse_odds` allows for the
    #: same rows, and the greatest part of that which is due to the weights, e^(eta * ...): 1 for a uniform draw.
    odds: float
    odds_bound: float
    weights: float

    def __str__(self) -> str:
        gained = f"odds changed by up to {self.odds:.3g}, of at most {self.odds_bound:.3g}"
        return f"{super().__str__()}; {gained}; {self.excluded} with a person excluded"


@dataclass(frozen=True, eq=False)
class Reused:
    """A row that left alone, and what there was to draw from."""

    row: int
    #: Which of the remembered boxes it was given.
    box: int
    lo: Floats
    hi: Floats
    loss: Floats
    #: Of what left lately; None before anything has.
    average: float | None

    def containing(self, places: Floats) -> Bools:
        """For each place and box, whether this contains that."""
        inside = np.ones((len(places), len(self.lo)), np.bool_)
        for value, lo, hi in zip(places.T, self.lo.T, self.hi.T, strict=True):
            inside &= (lo <= value[:, None]) & (value[:, None] <= hi)
        return inside

    def gaps(self, inside: Bools) -> Floats:
        """For each place and box how much more it loses than the best there, from 0 to 1, where no more counts."""
        least = np.min(np.where(inside, self.loss, np.inf), axis=1)
        more = np.maximum(self.loss - least[:, None], 0.0)
        average = self.average or 0.0
        far = more >= average * _FARTHEST
        gap = np.divide(more, average * _FARTHEST, out=np.ones(more.shape), where=~far)
        return np.asarray(np.where(more == 0.0, 0.0, gap))

    def chances(self, inside: Bools, eta: float) -> Floats:
        """For each place, which the box contains, the chance that a row there is given this box."""
        if eta == LEAST_LOSS:
            least = np.min(np.where(inside, self.loss, np.inf), axis=1)
            lightest = inside & (self.loss <= least[:, None])
            return np.asarray(lightest[:, self.box] / lightest.sum(axis=1))
        weight = np.where(inside, np.exp(-eta * self.gaps(inside)), 0.0)
        return np.asarray(weight[:, self.box] / weight.sum(axis=1))

    def bound(self, inside: Bools, eta: float) -> tuple[float, float]:
        """What the odds between two of the places can change by at most, and what of that is due to weights."""
        if eta == LEAST_LOSS:
            return math.inf, math.inf
        weights = np.exp(eta * self.gaps(inside)[:, self.box])
        return float(np.max(1.0 + (inside.sum(axis=1) - 1) * weights)), float(weights.max())


def reuse_odds(eta: float, *, boxes: int, averages: float = 1.0) -> float:
    """The most that reuse can tell: by what factor the odds between two places in a box change when it is reused.

    Parameters
    ----------
    eta
        How much a box of less loss is preferred.
    boxes
        The remembered boxes that contain a place; the box itself is one of them.
    averages
        By how many times the average loss the box loses more than the best of these.
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
    """Whose is a row that was published alone? Weigh those inside its box by the chance that they would be given it.

    The attacker knows everybody's quasi-identifiers, all that was published, the method and its parameters; no times.
    That the row left alone, which depends on the rows that were held, and with `t` the sensitive values, are not
    weighed. None if it is not known how the method remembers boxes.

    Parameters
    ----------
    releases
        What left, in the order it left: a `Published`, or anything with its columns.
    eta
        The rule that the attacker takes the method to have; by default its own. `LEAST_LOSS`: the box of least loss.
    most
        Rows to ask about, drawn at random by `seed`: so many that were given a box again, and so many stars.
    stars
        Whether rows that were published as stars are asked about.
    pins
        Whether members of groups that an end of their box tells are left out (`pinned`).
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
    places, found = Places(policy, rows), _Found()
    if pins:
        found.pinned = pinned(policy, rows, out)
    for reused in _reuses(memory, out, _drawn(kind, _REUSE, most, seed)):
        _weigh(places, reused, eta, found)
    if stars and policy.on_suppress is OnSuppress.STAR:
        _weigh_stars(places, policy, out, _drawn(kind, _SUPPRESSED, most, seed), found)
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
    """Which rows are known to be members of a group: they alone have the value that an end of its box is.

    Each end of a range is the value of a member. Where one row alone in the box has it, of those that are not known to
    be members of other groups, that is the member. Ends that lie on a grid (`step`), and the nodes of hierarchies, tell
    nothing of this kind.
    """
    out = Published.of(releases)
    tells = [
        d
        for d, qi in enumerate(policy.quasi_identifiers.values())
        if isinstance(qi.geometry, Interval) and getattr(qi, "step", None) is None
    ]
    faces = list(_faces(Places(policy, rows), out, tells))
    of = np.full(len(rows), -1, np.int64)
    found = -1
    while found != np.count_nonzero(of >= 0):
        found = int(np.count_nonzero(of >= 0))
        for i, holders in faces:
            free = holders[(of[holders] < 0) | (of[holders] == i)]
            if len(free) == 1:
                of[free] = i
    return np.asarray(of >= 0)


def _faces(places: Places, out: Published, tells: list[int]) -> Iterator[tuple[int, Ints]]:
    """Groups, and for each end of their boxes the rows in the box that have this value, if they are few."""
    groups = np.arange(len(out)) if out.kind is None else np.flatnonzero(out.kind == _CLUSTER)
    for i in groups.tolist():
        inside = places.inside(out.lo[i], out.hi[i])
        for d in tells:
            values = places.qi[inside, d]
            for end in {out.lo[i, d], out.hi[i, d]}:
                holders = inside[values == end]
                if len(holders) <= _FEW:
                    yield i, holders


def _drawn(kind: Ints, wanted: int, most: int, seed: int) -> Ints:
    """Some of the releases of this kind, in order."""
    numbers = np.flatnonzero(kind == wanted)
    if len(numbers) > most:
        numbers = np.sort(np.random.default_rng(seed).choice(numbers, most, replace=False))
    return numbers


def _losses(policy: Policy, rows: Rows, out: Published) -> Floats:
    """What boxes lose, which everybody can compute; where a domain is learned, by all that came."""
    found = losses(policy, out.lo, out.hi, domains(policy, rows.qi), np.arange(len(out)))
    return np.zeros(0) if found is None else found.rows


class _Found:
    """What an attacker has found so far."""

    def __init__(self) -> None:
        self.chances: list[float] = []
        self.excludes: list[float] = []
        self.pinned: Bools | None = None
        self.excluded = self.wrong = 0
        self.odds = self.bound = self.weights = 1.0


def _weigh(places: Places, reused: Reused, eta: float, found: _Found) -> None:
    """Weigh the persons inside a box that was reused."""
    box = reused.box
    rows = places.inside(reused.lo[box], reused.hi[box])
    if found.pinned is not None:
        rows = rows[~found.pinned[rows]]
    if not len(rows):
        found.wrong += 1
        return
    chance = np.zeros(len(rows))
    for block in _blocks(places.qi[rows]):
        points = places.qi[rows[block]]
        near = _overlapping(reused, points.min(axis=0), points.max(axis=0))
        inside = near.containing(points)
        chance[block] = near.chances(inside, eta)
        bound, weights = near.bound(inside, eta)
        found.bound, found.weights = max(found.bound, bound), max(found.weights, weights)
    # Before, one person is as likely as another; of one with several places any may be the row's.
    persons, at = np.unique(places.person[rows], return_inverse=True)
    weight = np.bincount(at.reshape(-1), chance) / np.bincount(at.reshape(-1))
    possible = weight[weight > 0]
    if not len(possible):
        return
    found.chances.append(float(possible.max() / possible.sum()))
    found.excluded += len(possible) < len(persons)
    found.wrong += bool(weight[persons == places.person[reused.row]].sum() == 0)
    found.odds = max(found.odds, float(chance.max() / chance.min()) if chance.min() > 0 else math.inf)


def _weigh_stars(places: Places, policy: Policy, out: Published, wanted: Ints, found: _Found) -> None:
    """Weigh the persons who may be a star: those who have a row that no remembered box contains."""
    memory = _memory(policy)
    assert memory is not None and out.kind is not None and out.offsets is not None and out.loss is not None
    # With t a box may be refused to a row that it contains: that the row is a star excludes nobody.
    excludes = policy.t is None and policy.reuse is not Reuse.OFF
    free = np.ones(len(places.qi), np.bool_) if found.pinned is None else ~found.pinned
    whole = np.bincount(places.person[free], minlength=places.persons)
    boxes, asked = np.zeros(len(places.qi), np.int64), set(wanted.tolist())
    for i, (kind, begin, end) in enumerate(zip(out.kind.tolist(), out.offsets[:-1], out.offsets[1:], strict=True)):
        if i in asked:
            possible = free & (boxes == 0) if excludes else free
            held = np.bincount(places.person[possible], minlength=places.persons)
            weight = held[held > 0] / whole[held > 0]
            truth = places.person[out.rows[begin:end]]
            found.wrong += int(np.count_nonzero(held[truth] == 0))
            if len(weight):
                found.chances.append(float(weight.max() / weight.sum()))
                found.excludes.append(1.0 - len(weight) / max(places.persons, 1))
        for added, lo, hi in memory.left(kind, int(end - begin), out.lo[i], out.hi[i], float(out.loss[i])):
            boxes[places.inside(lo, hi)] += added


def _blocks(points: Floats) -> Iterator[Ints]:
    """The points in blocks of a few that lie near each other: few boxes meet a block."""
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
    """The same without the boxes that have no place between these ends; the one that was given has."""
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
    """The boxes that are kept, oldest first; one that is there already keeps its place."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.boxes: dict[bytes, tuple[Floats, Floats, float]] = {}
        self.average: float | None = None

    def left(self, kind: int, rows: int, lo: Floats, hi: Floats, loss: float) -> list[tuple[int, Floats, Floats]]:
        """Take note of a release; the boxes that are remembered since (1), or no longer (-1)."""
        key = _key(lo, hi)
        if kind == _REUSE and key in self.boxes:
            self._note(rows, self.boxes[key][2])  # what it lost when it was made
        if kind != _CLUSTER:
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
        """Whether a new box of this loss is kept."""

    @abstractmethod
    def _note(self, rows: int, loss: float) -> None:
        """Take note of what so many rows lost."""


class _CastleMemory(_Memory):
    """Boxes that lose less than the last mu did on average."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters.max_reusable)
        self._losses: deque[float] = deque(maxlen=parameters.mu)

    def _keeps(self, loss: float) -> bool:
        self._losses.append(loss)
        return loss < sum(self._losses) / len(self._losses)

    def _note(self, rows: int, loss: float) -> None:
        pass  # no average is needed for a uniform draw


class _BastionMemory(_Memory):
    """All boxes, and the average that weights are relative to."""

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
    # Where rows are put in order, the releases are no longer those that were decided on.
    if policy.reorders or policy.declaration.perturbs:
        return None
    if policy.method == "bastion":
        return _BastionMemory(policy.k, parameters)
    return _CastleMemory(parameters) if policy.method == "castle" else None


def _reuses(memory: _Memory, out: Published, wanted: Ints) -> Iterator[Reused]:
    """The wanted releases, with what there was to draw from."""
    assert out.kind is not None and out.offsets is not None and out.loss is not None
    asked = set(wanted.tolist())
    for i, (kind, begin, end) in enumerate(zip(out.kind.tolist(), out.offsets[:-1], out.offsets[1:], strict=True)):
        key = _key(out.lo[i], out.hi[i])
        if i in asked and key in memory.boxes:  # else it was not published by this method, whatever is said
            lo, hi, loss = (np.array(column) for column in zip(*memory.boxes.values(), strict=True))
            yield Reused(int(out.rows[begin]), list(memory.boxes).index(key), lo, hi, loss, memory.average)
        memory.left(kind, int(end - begin), out.lo[i], out.hi[i], float(out.loss[i]))
