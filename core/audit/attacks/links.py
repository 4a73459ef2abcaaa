"""Whose row is this? Look up who is inside its box, or inside all boxes known to belong to one row or one person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from crenel.audit.attacks.observation import Floats, Ints, Observation
from crenel.audit.attacks.outcomes import Chances
from crenel.audit.attacks.person_index import PersonIndex
from crenel.encoding.rows import Rows
from crenel.policy import Policy

__all__ = ["Linkage", "intersection", "linkage"]

_TOLERANCE = 1e-12


@dataclass(frozen=True, kw_only=True)
class Linkage(Chances):
    """The result of `linkage`."""

    #: The highest probability if the attacker also knows who is in each group, and with how many rows; None if that is
    #: unknown here. If each person has one row, it is one over the number of rows in the smallest group.
    told: float | None
    #: The persons inside no box, whose rows were therefore suppressed, and the probability of finding one of their rows
    #: among the published stars. They are not targets, because nothing is promised for them. None if not all boxes
    #: were examined.
    only_stars: int | None
    among_stars: float | None


def linkage(policy: Policy, observation: Observation, rows: Rows, *, most: int | None = None, seed: int = 0) -> Linkage:
    """Whose is a published row? Look up who is inside its box.

    The attacker knows the quasi-identifiers of everyone in the stream. A row under a box belongs to one of the persons
    inside it, each equally likely. So the probability of linking a person is one over the number of persons in the
    emptiest box that contains them. A box under which k persons were published contains at least those: the promise is
    1/k.

    Args:
        policy: The promises, and the quasi-identifiers.
        observation: The published rows.
        rows: All rows that went in: the attacker's knowledge.
        most: How many boxes to examine; None for all. The targets are the persons inside these boxes.
        seed: The seed that draws them.
    """
    index = PersonIndex(policy, rows)
    lo, hi, _ = observation.groups()
    every = most is None or len(lo) <= most
    looked = np.arange(len(lo)) if every else np.random.default_rng(seed).choice(len(lo), most, replace=False)
    chance = np.zeros(index.persons)
    for box in looked:
        persons = index.persons_of(index.inside(lo[box], hi[box]))
        chance[persons] = np.maximum(chance[persons], 1.0 / max(len(persons), 1))
    stars, uncovered = int(observation.star.sum()), int(np.count_nonzero(chance == 0.0))
    return Linkage(
        **_summed("linkage", chance[chance > 0.0], 1.0 / policy.k),
        told=_told(observation, index),
        only_stars=uncovered if every else None,
        among_stars=(1.0 / stars if stars and uncovered else 0.0) if every else None,
    )


def intersection(policy: Policy, observation: Observation, rows: Rows, *, of_person: bool = False) -> Chances:
    """Whose rows are these, which belong to one row, or to one person? Look up who is inside all of their boxes.

    Args:
        policy: The promises, and the quasi-identifiers.
        observation: The published rows; for two streams, `one.then(other)`.
        rows: All rows that went in: the attacker's knowledge.
        of_person: Whether the attacker knows which published rows belong to one person, instead of which are one row
            that was published more than once. Nothing is promised against that.
    """
    index = PersonIndex(policy, rows)
    lo, hi, group = observation.groups()
    row = observation.rows[~observation.star]
    pairs = np.unique(np.stack([index.person[row] if of_person else row, group], axis=1), axis=0)
    first = np.flatnonzero(np.diff(pairs[:, 0])) + 1
    chances = [
        1.0 / max(len(_inside_all(index, lo[of[:, 1]], hi[of[:, 1]], of_person)), 1)
        for of in np.split(pairs, first)
        if len(of) > 1
    ]
    bound = None if of_person else 1.0 / policy.k
    return Chances(**_summed("intersection", np.array(chances), bound))


def _inside_all(index: PersonIndex, lo: Floats, hi: Floats, of_person: bool) -> Ints:
    """Find the persons who have a row inside all of the boxes; with `of_person`, a row inside each box."""
    found = [index.inside(*box) for box in zip(lo, hi, strict=True)]
    if of_person:
        found = [index.persons_of(inside) for inside in found]
    left = found[0]
    for other in found[1:]:
        left = np.intersect1d(left, other)
    return left if of_person else index.persons_of(left)


def _told(observation: Observation, index: PersonIndex) -> float | None:
    """Return the largest share of a group's rows that belongs to one person."""
    row = observation.rows[~observation.star]
    if not row.size or np.any(row < 0):
        return None
    _, _, group = observation.groups()
    of, own = np.unique(np.stack([group, index.person[row]], axis=1), axis=0, return_counts=True)
    return float(np.max(own / np.bincount(group)[of[:, 0]]))


def _summed(attack: str, chances: Floats, bound: float | None) -> dict[str, Any]:
    above = 0 if bound is None else int(np.count_nonzero(chances > bound + _TOLERANCE))
    return {
        "attack": attack,
        "targets": len(chances),
        "highest": float(chances.max(initial=0.0)),
        "mean": float(chances.mean()) if len(chances) else 0.0,
        "bound": bound,
        "above": above,
    }
