"""Attacks that claim something and are right or wrong: those of section II-B of the CASTLEGUARD paper."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from crenel.audit.attacks.observation import Bools, Floats, Ints, Observation
from crenel.audit.attacks.outcomes import Outcome
from crenel.audit.measures import domains
from crenel.policy import Policy

__all__ = ["CERTAIN", "LIKELY", "boundary", "enumeration", "homogeneity", "noise"]

#: The posterior probability at which an attacker counts as certain.
CERTAIN = 0.95
#: The posterior probability at which an attacker makes a claim despite noise, where nothing is certain.
LIKELY = 0.3


def enumeration(observation: Observation, *, known: int, present: bool, beta_sample: float = 1.0) -> Outcome:
    """Was someone's row in the stream? Count the published rows.

    The attacker knows all other rows and the probability of sampling, and held both answers equally likely before.
    Without sampling every row leaves, so the count gives the answer.

    Args:
        observation: The published rows.
        known: The number of other rows in the stream.
        present: The truth.
        beta_sample: The probability that a row is kept; 1 if the method does not sample.
    """
    with_it, without = (_log_chance(len(observation), rows, beta_sample) for rows in (known + 1, known))
    if max(with_it, without) == -math.inf:
        # The count is impossible under both answers: rows were suppressed too, so nothing is certain.
        return _one("enumeration", claimed=None, truth=present)
    believed = 1.0 / (1.0 + math.exp(min(without - with_it, 700.0)))
    claimed = True if believed >= CERTAIN else False if believed <= 1 - CERTAIN else None
    return _one("enumeration", claimed=claimed, truth=present)


def noise(policy: Policy, people: Floats) -> Floats | None:
    """Compute the scale of the noise on each quasi-identifier, as anyone can; None if there is no noise."""
    phi = policy.parameter("phi", None)
    if phi is None:
        return None
    ends = domains(policy, people)
    return np.asarray((ends[:, 1] - ends[:, 0]) / float(phi))


def boundary(
    observation: Observation, *, people: Floats, published: Bools, widest: Floats, scale: Floats | None = None
) -> Outcome:
    """In which group is someone? Look for their own values among the ends of boxes.

    The attacker knows the quasi-identifiers of everyone who may be in the stream. If a box ends at a value that only
    one of them has, that person is in it. With noise of a known scale, the person's value is near the end instead. The
    attacker then weighs everyone by the likelihood of the noise that moves their values to this end and into the box,
    and claims the likeliest person if their probability is at least `LIKELY`.

    Args:
        observation: The published rows.
        people: Quasi-identifiers: first one row for each row of the stream, then anyone else who may be in it.
        published: The truth: whether each of these rows was published at all.
        widest: The ends of each quasi-identifier's domain, one row each. A box that ends there reveals nothing.
        scale: The scale of the Laplace noise on each quasi-identifier (`noise`); None if there is no noise.
    """
    lo, hi, group = observation.groups()
    rows = observation.rows[~observation.star]
    claims: dict[int, set[int]] = {}
    pairs = _exactly(lo, hi, people, widest) if scale is None else _nearest(lo, hi, people, widest, scale)
    for person, box in pairs:
        claims.setdefault(person, set()).add(box)
    # Someone who seems to be in two groups may have two rows, or none here: nothing is certain.
    certain = {person: next(iter(found)) for person, found in claims.items() if len(found) == 1}
    truth = dict(zip(rows.tolist(), group.tolist(), strict=True))
    right = sum(truth.get(person) == box for person, box in certain.items())
    return Outcome(attack="boundary", targets=int(published.sum()), claims=len(certain), right=right)


def _exactly(lo: Floats, hi: Floats, people: Floats, widest: Floats) -> Iterator[tuple[int, int]]:
    """Yield persons, and boxes that end at a value which only that person has."""
    for d in range(people.shape[1]):
        values, owner, count = np.unique(people[:, d], return_index=True, return_counts=True)
        owners = {float(value): int(row) for value, row in zip(values[count == 1], owner[count == 1], strict=True)}
        for ends in (lo[:, d], hi[:, d]):
            for box, end in enumerate(ends.tolist()):
                if end in owners and end not in widest[d]:
                    yield owners[end], box


def _nearest(lo: Floats, hi: Floats, people: Floats, widest: Floats, scale: Floats) -> Iterator[tuple[int, int]]:
    """Yield persons, and boxes with an end that is likely that person's value moved by noise."""
    least = np.where(scale > 0, scale, np.finfo(np.float64).tiny)
    for box in range(len(lo)):
        with np.errstate(invalid="ignore", over="ignore"):
            # How far the noise must have moved each value to be inside, in multiples of the scale.
            outside = np.maximum(np.maximum(lo[box] - people, people - hi[box]), 0.0) / least
            inside = np.nan_to_num(outside, nan=0.0, posinf=np.inf).sum(axis=1)
            for d in range(people.shape[1]):
                for end in {lo[box, d], hi[box, d]}:
                    if not np.isfinite(end) or end in widest[d]:
                        continue
                    moved = inside - np.nan_to_num(outside[:, d]) + np.abs(people[:, d] - end) / least[d]
                    weight = np.exp(np.min(moved) - moved)
                    best = int(np.argmax(weight))
                    if weight[best] >= LIKELY * weight.sum():
                        yield best, box


def homogeneity(
    observation: Observation,
    *,
    people: Floats,
    truth: Ints,
    column: int = 0,
    arrived: Ints | None = None,
    within: int = 0,
) -> Outcome:
    """What is someone's sensitive value? See whether all rows that may be theirs have the same one.

    The attacker knows the targets' quasi-identifiers, and that they are in the stream. Every row under a box that
    contains their values may be theirs. If all of these rows have one sensitive value, it is theirs. An attacker who
    also knows when the targets' rows arrived needs to look only at the rows that left in time.

    Args:
        observation: The published rows.
        people: The targets' quasi-identifiers, one row each.
        truth: Their sensitive values.
        column: The number of the sensitive column to attack.
        arrived: The arrival numbers of the targets' rows; None if the attacker does not know them.
        within: The policy's `delay_rows`, if `arrived` is given.
    """
    claims = right = 0
    for target, (person, secret) in enumerate(zip(people, truth.tolist(), strict=True)):
        possible = observation.star | np.all(
            (observation.lo <= person) & (person <= observation.hi) | np.isnan(observation.lo), axis=1
        )
        if arrived is not None:
            possible &= (observation.left > arrived[target]) & (observation.left <= arrived[target] + within + 1)
        values = observation.sensitive[possible, column]
        if values.size and np.all(values == values[0]):
            claims += 1
            right += int(values[0]) == secret
    return Outcome(attack="homogeneity", targets=len(people), claims=claims, right=right)


def _one(attack: str, *, claimed: bool | None, truth: bool) -> Outcome:
    return Outcome(attack=attack, targets=1, claims=int(claimed is not None), right=int(claimed is truth))


def _log_chance(published: int, rows: int, beta: float) -> float:
    """Return the logarithm of the probability that `published` of `rows` rows are published."""
    if published > rows:
        return -math.inf
    if beta == 1:
        return 0.0 if published == rows else -math.inf
    ways = math.lgamma(rows + 1) - math.lgamma(published + 1) - math.lgamma(rows - published + 1)
    return ways + published * math.log(beta) + (rows - published) * math.log1p(-beta)
