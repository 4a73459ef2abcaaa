"""Attacks on a published stream, by somebody who knows more than what was published.

Each attack is a function of what everybody sees (`Seen`), of what the attacker knows besides, and of the truth, by
which its claims are judged. It returns an `Outcome`: of how many targets the attacker was certain, and how often that
was right. An attack never guesses: it claims only what cannot be otherwise if rows are published as they are, or, where
chance is known to be at work, what is at least as likely as `CERTAIN`.

An outcome holds counts only. That an attack failed says nothing of another; `docs/differential-privacy.md` says what is
known against all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.audit.guarantees import Published
from crenel.policy import OnSuppress, Policy
from crenel.rows import Rows

__all__ = ["CERTAIN", "Outcome", "Seen", "boundary", "enumeration", "homogeneity"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: The posterior chance at which an attacker takes a thing for certain.
CERTAIN = 0.95

# As the engine numbers them; written again here on purpose.
_SUPPRESSED = 2
_SAMPLED_OUT = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """What everybody sees: the published rows, one after another."""

    #: Boxes, a row each and a column per quasi-identifier.
    lo: Floats = field(repr=False)
    hi: Floats = field(repr=False)
    #: Sensitive values by their codes, a column each.
    sensitive: Ints = field(repr=False)
    #: Rows that were published fully generalized.
    star: Bools = field(repr=False)
    #: How many rows had arrived when it left: a stream is watched while it flows.
    left: Ints = field(repr=False)
    #: The numbers of the rows. Nobody sees these: claims are judged by them.
    rows: Ints = field(repr=False)

    def __len__(self) -> int:
        """The number of rows that were published."""
        return len(self.rows)

    @classmethod
    def of(cls, policy: Policy, rows: Rows, releases: Any) -> Seen:
        """What an outsider sees of an engine's releases of these rows."""
        out = Published.of(releases)
        sizes = np.ones(len(out), np.int64) if out.offsets is None else np.diff(out.offsets)
        kind = np.zeros(len(out), np.int64) if out.kind is None else out.kind
        leaves = kind != _SAMPLED_OUT
        if policy.on_suppress is OnSuppress.DROP:
            leaves &= kind != _SUPPRESSED
        release = np.repeat(np.arange(len(out)), sizes)
        member = leaves[release]
        release, row = release[member], out.rows[member]
        arrivals = np.zeros(len(out), np.int64) if out.arrivals is None else out.arrivals
        return cls(
            lo=out.lo[release],
            hi=out.hi[release],
            sensitive=rows.sensitive[row],
            star=kind[release] == _SUPPRESSED,
            left=arrivals[release],
            rows=row,
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of an attack. Counts only."""

    attack: str
    #: Persons, or rows, that the attacker asked about.
    targets: int
    #: Those of whom something was claimed.
    claims: int
    #: Claims that are true.
    right: int

    @property
    def success(self) -> float:
        """The part of the targets of whom something true was claimed."""
        return self.right / self.targets if self.targets else 0.0

    @property
    def precision(self) -> float | None:
        """The part of the claims that are true; None if there are none."""
        return self.right / self.claims if self.claims else None

    def __str__(self) -> str:
        return f"{self.attack}: {self.claims} claims on {self.targets} targets, {self.right} of them right"


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


def boundary(seen: Seen, *, people: Floats, published: Bools, widest: Floats) -> Outcome:
    """In which group is somebody? Look for their own values among the ends of boxes.

    The attacker knows the quasi-identifiers of everybody who may be in the stream. Where a box ends at a value that
    only one of them has, that person is in it.

    Parameters
    ----------
    people
        Quasi-identifiers, a row for each row of the stream, and for anybody else who may be in it behind these.
    published
        For each of them the truth: whether the row was published at all.
    widest
        The ends of each quasi-identifier's domain, which tell nothing: a row each.
    """
    boxes, group = np.unique(np.hstack([seen.lo, seen.hi])[~seen.star], axis=0, return_inverse=True)
    rows, group = seen.rows[~seen.star], group.reshape(-1)
    dimensions = people.shape[1]
    claims: dict[int, set[int]] = {}
    for d in range(dimensions):
        values, owner, count = np.unique(people[:, d], return_index=True, return_counts=True)
        owners = {float(value): int(row) for value, row in zip(values[count == 1], owner[count == 1], strict=True)}
        for ends in (boxes[:, d], boxes[:, dimensions + d]):
            for box, end in enumerate(ends.tolist()):
                if end in owners and end not in widest[d]:
                    claims.setdefault(owners[end], set()).add(box)
    # Who seems to be in two groups may have two rows, or none here: nothing is certain of them.
    certain = {person: next(iter(found)) for person, found in claims.items() if len(found) == 1}
    truth = dict(zip(rows.tolist(), group.tolist(), strict=True))
    right = sum(truth.get(person) == box for person, box in certain.items())
    return Outcome(attack="boundary", targets=int(published.sum()), claims=len(certain), right=right)


def homogeneity(
    seen: Seen, *, people: Floats, truth: Ints, column: int = 0, arrived: Ints | None = None, within: int = 0
) -> Outcome:
    """What is somebody's sensitive value? Look whether all who may be them have the same.

    The attacker knows the targets' quasi-identifiers, and that they are in the stream. A target may be in any group
    whose box contains their values; if all rows of these groups have one sensitive value, it is theirs.

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
    boxes, group = np.unique(np.hstack([seen.lo, seen.hi]), axis=0, return_inverse=True)
    group = group.reshape(-1)
    claims = right = 0
    for target, (person, secret) in enumerate(zip(people, truth.tolist(), strict=True)):
        possible = np.all((seen.lo <= person) & (person <= seen.hi), axis=1)
        if arrived is not None:
            possible &= (seen.left > arrived[target]) & (seen.left <= arrived[target] + within + 1)
        member = np.bincount(group[possible], minlength=len(boxes))[group] > 0
        values = np.unique(seen.sensitive[member, column])
        if len(values) == 1:
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
