"""How likely does a row belong to a person, for an attacker who knows all but the values that leave unchanged?

This is the attacker of the theorem in `docs/guarantee.md`, who knows everyone's quasi-identifiers, all times, the
method and its parameters. Such an attacker can run the method, and so knows whose rows leave when and together. Only
the secret draws stay unknown: the order within a release, and which box a row is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from crenel.audit.attacks.observation import Floats, Ints
from crenel.audit.attacks.outcomes import Chances
from crenel.audit.evidence import CLUSTER, REUSE, SAMPLED_OUT, SUPPRESSED, Published
from crenel.encoding.rows import Rows
from crenel.policy import OnSuppress, Policy

__all__ = ["Posterior", "posterior"]

_TOLERANCE = 1e-12


@dataclass(frozen=True, kw_only=True)
class Posterior(Chances):
    """The result of `posterior`. Targets are all published rows."""

    #: The targets above the bound: those that left alone under a reused box, as stars, and with others in a release.
    reused: int
    stars: int
    together: int


def posterior(policy: Policy, rows: Rows, releases: Any) -> Posterior | None:
    """Whose is each published row? Guess the person who has most of the rows that it may be.

    A row in a release of n rows is one of these n. The best guess is the person with most of them, and is right with
    that person's share: 1/n if each person has one row. A row that leaves alone may be any row in its box that left
    alone at the same moment. A star may be any star of the same moment.

    Args:
        policy: The promises, and whether suppressed rows are published.
        rows: All rows that went in.
        releases: The releases in the order they left: a `Published`, or any object with its columns.

    Returns:
        None if it is unknown which rows left together.
    """
    out = Published.of(releases)
    if out.kind is None or out.offsets is None or out.arrivals is None:
        return None
    person = np.unique(rows.person, return_inverse=True)[1].reshape(-1).astype(np.int64)
    release = np.repeat(np.arange(len(out)), np.diff(out.offsets))
    kind = out.kind[release]
    chances = np.zeros(len(release))
    together = kind == CLUSTER
    chances[together] = _largest(release[together], person[out.rows[together]])
    moment = np.zeros(len(out), np.int64) if out.moment is None else out.moment
    when = np.unique(np.stack([out.arrivals, moment], axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    stars = kind == SUPPRESSED
    chances[stars] = _largest(when[release[stars]], person[out.rows[stars]])
    reused = np.flatnonzero(kind == REUSE)
    chances[reused] = _among(out, release[reused], when, rows.qi[out.rows[reused]], person[out.rows[reused]])
    leaves = kind != SAMPLED_OUT
    if policy.on_suppress is OnSuppress.DROP:
        leaves &= ~stars
    bound = 1.0 / policy.k
    above = leaves & (chances > bound + _TOLERANCE)
    return Posterior(
        attack="posterior",
        targets=int(np.count_nonzero(leaves)),
        highest=float(chances.max(where=leaves, initial=0.0)),
        mean=float(chances[leaves].mean()) if leaves.any() else 0.0,
        bound=bound,
        above=int(np.count_nonzero(above)),
        reused=int(np.count_nonzero(above & (kind == REUSE))),
        stars=int(np.count_nonzero(above & stars)),
        together=int(np.count_nonzero(above & together)),
    )


def _largest(of: Ints, person: Ints) -> Floats:
    """For each row, return the share of its set that belongs to the person with most of it."""
    if not len(of):
        return np.zeros(0)
    pairs, held = np.unique(np.stack([of, person], axis=1), axis=0, return_counts=True)
    most = np.zeros(int(of.max()) + 1)
    np.maximum.at(most, pairs[:, 0], held)
    return np.asarray(most[of] / np.bincount(of)[of])


def _among(out: Published, release: Ints, when: Ints, qi: Floats, person: Ints) -> Floats:
    """For each row that left alone, return the probability of the best guess among those at the same moment."""
    chances = np.zeros(len(release))
    order = np.argsort(when[release], kind="stable")
    ends = np.flatnonzero(np.diff(when[release][order])) + 1
    for together in np.split(order, ends) if len(order) else []:
        for i in together:
            lo, hi = out.lo[release[i]], out.hi[release[i]]
            inside = np.all((lo <= qi[together]) & (qi[together] <= hi) | np.isnan(lo), axis=1)
            _, held = np.unique(person[together[inside]], return_counts=True)
            chances[i] = held.max() / held.sum() if len(held) else 1.0
    return chances
