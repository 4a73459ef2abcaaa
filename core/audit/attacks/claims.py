"""Attacks that claim something, and are right or wrong: those of the CASTLEGUARD paper's section II-B."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from crenel.audit.attacks.observation import Bools, Floats, Ints, Seen
from crenel.audit.attacks.outcomes import Outcome
from crenel.audit.measures import domains
from crenel.policy import Policy

__all__ = ["CERTAIN", "LIKELY", "boundary", "enumeration", "homogeneity", "noise"]

#: The posterior chance at which an attacker takes a thing for certain.
CERTAIN = 0.95
#: That from which on he claims it where there is noise, and nothing is certain.
LIKELY = 0.3


def enumeration(seen: Seen, *, known: int, present: bool, beta_sample: float = 1.0) -> Outcome:
    """Was somebody's row in the stream? Count what was published.

    The attacker knows all other rows, and the chance of sampling; both answers were as likely before. Without sampling
    every row leaves, and the count tells.

    Parameters
    ----------
    known
        The other rows of the stream.
    present
        The truth.
    beta_sample
        The chance that a row is kept; 1 where the method does not sample.
    """
    with_it, without = (_log_chance(len(seen), rows, beta_sample) for rows in (known + 1, known))
    if max(with_it, without) == -math.inf:
        # More, or fewer, than there can be: rows were suppressed too. Nothing is certain then.
        return _one("enumeration", claimed=None, truth=present)
    believed = 1.0 / (1.0 + math.exp(min(without - with_it, 700.0)))
    claimed = True if believed >= CERTAIN else False if believed <= 1 - CERTAIN else None
    return _one("enumeration", claimed=claimed, truth=present)


def noise(policy: Policy, people: Floats) -> Floats | None:
    """The scale of the noise on each quasi-identifier, which everybody can compute; None if there is none."""
    phi = policy.parameter("phi", None)
    if phi is None:
        return None
    ends = domains(policy, people)
    return np.asarray((ends[:, 1] - ends[:, 0]) / float(phi))


def boundary(seen: Seen, *, people: Floats, published: Bools, widest: Floats, scale: Floats | None = None) -> Outcome:
    """In which group is somebody? Look for their own values among the ends of boxes.

    The attacker knows the quasi-identifiers of everybody who may be in the stream. Where a box ends at a value that
    only one of them has, that person is in it. Where values were moved by noise, whose scale is known, somebody's
    value is near the end instead of equal to it: he weighs everybody by how likely the noise is that takes their
    values to this end and into the box, and claims it of the best if that is at least as likely as `LIKELY`.

    Parameters
    ----------
    people
        Quasi-identifiers, a row for each row of the stream, and for anybody else who may be in it behind these.
    published
        For each of them the truth: whether the row was published at all.
    widest
        The ends of each quasi-identifier's domain, which tell nothing: a row each.
    scale
        The scale of the Laplace noise on each quasi-identifier (`noise`); None: there is none.
    """
    lo, hi, group = seen.groups()
    rows = seen.rows[~seen.star]
    claims: dict[int, set[int]] = {}
    pairs = _exactly(lo, hi, people, widest) if scale is None else _nearest(lo, hi, people, widest, scale)
    for person, box in pairs:
        claims.setdefault(person, set()).add(box)
    # Who seems to be in two groups may have two rows, or none here: nothing is certain of them.
    certain = {person: next(iter(found)) for person, found in claims.items() if len(found) == 1}
    truth = dict(zip(rows.tolist(), group.tolist(), strict=True))
    right = sum(truth.get(person) == box for person, box in certain.items())
    return Outcome(attack="boundary", targets=int(published.sum()), claims=len(certain), right=right)


def _exactly(lo: Floats, hi: Floats, people: Floats, widest: Floats) -> Iterator[tuple[int, int]]:
    """Persons and boxes that end at a value which nobody else has."""
    for d in range(people.shape[1]):
        values, owner, count = np.unique(people[:, d], return_index=True, return_counts=True)
        owners = {float(value): int(row) for value, row in zip(values[count == 1], owner[count == 1], strict=True)}
        for ends in (lo[:, d], hi[:, d]):
            for box, end in enumerate(ends.tolist()):
                if end in owners and end not in widest[d]:
                    yield owners[end], box


def _nearest(lo: Floats, hi: Floats, people: Floats, widest: Floats, scale: Floats) -> Iterator[tuple[int, int]]:
    """Persons and boxes an end of which is likely that person's value, moved by noise."""
    least = np.where(scale > 0, scale, np.finfo(np.float64).tiny)
    for box in range(len(lo)):
        with np.errstate(invalid="ignore", over="ignore"):
            # How far each value must have been moved to be inside, in scales.
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
    seen: Seen, *, people: Floats, truth: Ints, column: int = 0, arrived: Ints | None = None, within: int = 0
) -> Outcome:
    """What is somebody's sensitive value? Look whether all rows that may be theirs have the same.

    The attacker knows the targets' quasi-identifiers, and that they are in the stream. Any row under a box that
    contains their values may be theirs, so the whole group: if all have one sensitive value, it is theirs. Who knows
    besides when they arrived need not look at the whole group, but only at those of its rows that left in time.

    Parameters
    ----------
    people
        The targets' quasi-identifiers, a row each.
    truth
        Their sensitive values.
    column
        Which of the sensitive columns is asked for.
    arrived, within
        Where the attacker knows when the targets' rows arrived: their numbers, and the `delay_rows` by which they left.
    """
    claims = right = 0
    for target, (person, secret) in enumerate(zip(people, truth.tolist(), strict=True)):
        possible = seen.star | np.all((seen.lo <= person) & (person <= seen.hi) | np.isnan(seen.lo), axis=1)
        if arrived is not None:
            possible &= (seen.left > arrived[target]) & (seen.left <= arrived[target] + within + 1)
        values = seen.sensitive[possible, column]
        if values.size and np.all(values == values[0]):
            claims += 1
            right += int(values[0]) == secret
    return Outcome(attack="homogeneity", targets=len(people), claims=claims, right=right)


def _one(attack: str, *, claimed: bool | None, truth: bool) -> Outcome:
    return Outcome(attack=attack, targets=1, claims=int(claimed is not None), right=int(claimed is truth))


def _log_chance(published: int, rows: int, beta: float) -> float:
    """The logarithm of the chance that so many of the rows are published."""
    if published > rows:
        return -math.inf
    if beta == 1:
        return 0.0 if published == rows else -math.inf
    ways = math.lgamma(rows + 1) - math.lgamma(published + 1) - math.lgamma(rows - published + 1)
    return ways + published * math.log(beta) + (rows - published) * math.log1p(-beta)
