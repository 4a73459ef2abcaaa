"""All attacks on one stream, each told in a sentence."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from crenel.audit.attacks.claims import boundary, homogeneity
from crenel.audit.attacks.links import intersection, linkage
from crenel.audit.attacks.orders import order
from crenel.audit.attacks.outcomes import Chances, Outcome
from crenel.audit.attacks.reuse import shrinking
from crenel.audit.attacks.seen import Seen
from crenel.policy import Policy
from crenel.rows import Rows

__all__ = ["Tried", "tried"]

#: What has a smaller chance than this does not happen by chance.
_NEVER = 1e-9

KEPT, BROKEN, INFORMATION = "kept", "broken", "information"


@dataclass(frozen=True, kw_only=True)
class Tried:
    """An attack, and what it achieved. Counts and declared names only."""

    name: str
    #: What came of it, in a sentence.
    text: str
    targets: int
    #: Of how many of them something was claimed, or guessed; and how often that was right, or is expected of guesses.
    claims: int
    right: int
    #: The part of the targets, or of guesses the chance for the one who is worst off; and what is promised of it, None
    #: if nothing is.
    success: float
    bound: float | None
    #: `kept` or `broken` where something is promised, else `information`.
    state: str

    def as_dict(self) -> dict[str, Any]:
        """The same for machines."""
        return asdict(self)


def tried(
    policy: Policy, rows: Rows, seen: Seen, releases: Any = None, *, most: int = 200, seed: int = 0
) -> list[Tried]:
    """Try the attacks on one shard's rows.

    Parameters
    ----------
    rows
        All that went in.
    seen
        What was published. Where its `rows` are -1, attacks that must be judged by whose rows they are are left out.
    releases
        What left, in the order it left, if that is known: a `Published`, or anything with its columns.
    most
        The boxes, rows or persons that costly attacks look at, drawn at random by `seed`.
    """
    found = [_linked(policy, seen, rows, most, seed)]
    for column, name in enumerate(policy.sensitive):
        found.append(_homogeneous(policy, seen, rows, column, name, most, seed))
    if len(seen) and not np.any(seen.rows < 0):
        found += [_bounded(policy, seen, rows), _intersected(policy, seen, rows), _ordered(policy, seen)]
        shrunk = None if releases is None else _shrunk(policy, rows, releases, most, seed)
        found += [] if shrunk is None else [shrunk]
    return found


def _linked(policy: Policy, seen: Seen, rows: Rows, most: int, seed: int) -> Tried:
    outcome = linkage(policy, seen, rows, most=most, seed=seed)
    text = (
        "Who knows everybody's quasi-identifiers names the person of a row with a chance of at most "
        f"{outcome.highest:.3g} ({outcome.mean:.3g} on average); 1/k is {outcome.bound:.3g}."
    )
    if outcome.only_stars and outcome.among_stars:
        text += (
            f" {outcome.only_stars} persons are inside no group, so they are among the suppressed rows, "
            f"where the chance is {outcome.among_stars:.3g}."
        )
    # Of perturbed values nobody knows whose they are, and the rule behind 1/k is another.
    perturbs = bool(getattr(policy.parameters, "perturbs", False))
    return _of_chances(outcome, text, INFORMATION if perturbs else KEPT if outcome.kept else BROKEN)


def _homogeneous(policy: Policy, seen: Seen, rows: Rows, column: int, name: str, most: int, seed: int) -> Tried:
    targets = np.arange(len(rows))
    if len(targets) > most:
        targets = np.random.default_rng(seed).choice(targets, most, replace=False)
    outcome = homogeneity(seen, people=rows.qi[targets], truth=rows.sensitive[targets, column], column=column)
    text = f"Who knows somebody's quasi-identifiers finds that all rows that may be theirs have one value of {name}: "
    text += f"of {outcome.claims} in {outcome.targets} rows, and rightly of {outcome.right}."
    promised = policy.l is not None and not seen.star.any()
    state = INFORMATION if not promised else BROKEN if outcome.claims else KEPT
    return _of_claims(outcome, text, state, name=f"homogeneity:{name}", bound=0.0 if promised else None)


def _bounded(policy: Policy, seen: Seen, rows: Rows) -> Tried:
    widest = np.array([qi.geometry.widest() for qi in policy.quasi_identifiers.values()]).reshape(-1, 2)
    present = np.zeros(len(rows), np.bool_)
    present[seen.rows] = True
    outcome = boundary(seen, people=rows.qi, published=present, widest=widest)
    text = "Groups end at values of their own rows: who knows everybody's quasi-identifiers tells the group of "
    text += f"{outcome.claims} in {outcome.targets} rows, and rightly of {outcome.right}. The row in it stays hidden."
    return _of_claims(outcome, text, INFORMATION)


def _intersected(policy: Policy, seen: Seen, rows: Rows) -> Tried:
    outcome = intersection(policy, seen, rows)
    text = "No row was published under two generalizations: there is nothing to intersect."
    if outcome.targets:
        text = f"{outcome.targets} rows were published under several generalizations; {outcome.above} of them can be "
        text += f"linked with a chance above 1/k, at most {outcome.highest:.3g}."
    return _of_chances(outcome, text, KEPT if outcome.kept else BROKEN)


def _ordered(policy: Policy, seen: Seen) -> Tried:
    outcome = order(seen)
    told = outcome.by_chance < _NEVER
    text = f"Of {outcome.targets} pairs of rows that left together, the first to leave came first in {outcome.right}: "
    text += "the order tells who came first." if told else "no more than by chance."
    state = INFORMATION if getattr(policy.parameters, "reorder", False) else BROKEN if told else KEPT
    return _of_claims(outcome, text, state)


def _shrunk(policy: Policy, rows: Rows, releases: Any, most: int, seed: int) -> Tried | None:
    outcome = shrinking(policy, rows, releases, most=most, seed=seed)
    if outcome is None:
        return None
    text = "No row left alone under a generalization that was published before."
    if outcome.targets:
        text = (
            f"Which generalization was reused changes the odds between two persons by a factor of up to "
            f"{outcome.odds:.3g}, of at most {outcome.odds_bound:.3g} (the weights' part of that is "
            f"{outcome.weights:.3g}); the best guess of the person is right with a chance of at most "
            f"{outcome.highest:.3g} ({outcome.mean:.3g} on average), for {outcome.above} of {outcome.targets} rows "
            f"more than 1/k. Somebody is excluded for {outcome.excluded}."
        )
    return _of_chances(outcome, text, INFORMATION)


def _of_chances(outcome: Chances, text: str, state: str) -> Tried:
    return Tried(
        name=outcome.attack,
        text=text,
        targets=outcome.targets,
        claims=outcome.targets,
        right=round(outcome.mean * outcome.targets),
        success=outcome.highest,
        bound=outcome.bound if state != INFORMATION else None,
        state=state,
    )


def _of_claims(outcome: Outcome, text: str, state: str, *, name: str = "", bound: float | None = None) -> Tried:
    return Tried(
        name=name or outcome.attack,
        text=text,
        targets=outcome.targets,
        claims=outcome.claims,
        right=outcome.right,
        success=outcome.success,
        bound=bound,
        state=state,
    )
