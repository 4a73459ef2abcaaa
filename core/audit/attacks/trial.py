"""All attacks on one stream, each told in a sentence."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from crenel.audit.attacks.claims import boundary, homogeneity, noise
from crenel.audit.attacks.ends import ends
from crenel.audit.attacks.links import intersection, linkage
from crenel.audit.attacks.observation import Seen
from crenel.audit.attacks.observer import observer
from crenel.audit.attacks.orders import order
from crenel.audit.attacks.outcomes import Chances, Outcome
from crenel.audit.attacks.outermost import outermost
from crenel.audit.attacks.posterior import posterior
from crenel.audit.attacks.reuse import shrinking
from crenel.encoding.rows import Rows
from crenel.policy import Policy

__all__ = ["Tried", "tried"]

#: What has a smaller chance than this does not happen by chance.
_NEVER = 1e-9

KEPT, BROKEN, INFORMATION = "kept", "broken", "information"

#: How well the observer of time knows the moment of a row: within this part of the delay.
_KNOWN = 0.1


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
    known = bool(len(seen)) and not np.any(seen.rows < 0)
    left = None if releases is None or not known else releases
    found: list[Tried | None] = []
    if left is not None:
        found += [_believed(policy, rows, left), _observed(policy, rows, left, most, seed)]
    found.append(_linked(policy, seen, rows, most, seed))
    for column, name in enumerate(policy.sensitive):
        found.append(_homogeneous(policy, seen, rows, column, name, most, seed))
        found.append(None if left is None else _odd(policy, rows, left, column, name))
    if known:
        found += [_bounded(policy, seen, rows), _ended(policy, seen, rows)]
        found += [_intersected(policy, seen, rows), _ordered(policy, seen)]
        found.append(None if left is None else _shrunk(policy, rows, left, most, seed))
    return [one for one in found if one is not None]


def _believed(policy: Policy, rows: Rows, releases: Any) -> Tried | None:
    outcome = posterior(policy, rows, releases)
    if outcome is None:
        return None
    text = (
        "An attacker who knows everyone's quasi-identifiers, all times and the method has a best guess above 1/k for "
        f"{outcome.above} of {outcome.targets} rows ({outcome.reused} left alone under a generalization seen before, "
        f"{outcome.stars} as stars, {outcome.together} in releases); at most {outcome.highest:.3g}."
    )
    return _of_chances(outcome, text, _crowd(policy, outcome))


def _observed(policy: Policy, rows: Rows, releases: Any, most: int, seed: int) -> Tried | None:
    outcome = observer(policy, rows, releases, known=_KNOWN, most=most, seed=seed)
    if outcome is None:
        return None
    text = (
        "An attacker who knows someone's quasi-identifiers, and when their row came to within a tenth of the delay, "
        f"finds fewer than k possible rows for {outcome.above} of {outcome.targets} rows, and just the right one for "
        f"{outcome.linked}."
    )
    return _of_chances(outcome, text, _crowd(policy, outcome))


def _crowd(policy: Policy, outcome: Chances) -> str:
    """What is promised against who knows times, is so by the crowd alone."""
    if not policy.crowd:
        return INFORMATION
    return KEPT if outcome.kept else BROKEN


def _odd(policy: Policy, rows: Rows, releases: Any, column: int, name: str) -> Tried | None:
    outcome = outermost(policy, rows, releases, column=column)
    if outcome is None:
        return None
    text = f"No group has just one member with a value of {name} of its own."
    if outcome.targets:
        text = (
            f"An attacker who knows who is in a group guesses that the outermost member has the odd value of {name}: "
            f"right in {outcome.right} of {outcome.targets} groups, {outcome.ratio or 0.0:.3g} times what chance gives."
        )
    return _of_claims(outcome, text, INFORMATION, name=f"outermost:{name}")


def _ended(policy: Policy, seen: Seen, rows: Rows) -> Tried:
    outcome = ends(policy, seen, rows)
    text = (
        f"Of {outcome.targets} values that one person alone has, {outcome.claims} left exactly, as an end of a range; "
        "a step on the quasi-identifier puts the ends on a grid."
    )
    return _of_claims(outcome, text, INFORMATION)


def _linked(policy: Policy, seen: Seen, rows: Rows, most: int, seed: int) -> Tried:
    outcome = linkage(policy, seen, rows, most=most, seed=seed)
    text = (
        "An attacker who knows everyone's quasi-identifiers, and no times, can link a row to its person with a "
        f"probability of at most {outcome.highest:.3g} ({outcome.mean:.3g} on average); 1/k is {outcome.bound:.3g}."
    )
    if outcome.only_stars and outcome.among_stars:
        text += (
            f" {outcome.only_stars} persons are inside no group, so they are among the suppressed rows, "
            f"where the chance is {outcome.among_stars:.3g}."
        )
    # Of perturbed values nobody knows whose they are, and the rule behind 1/k is another.
    perturbs = policy.declaration.perturbs
    return _of_chances(outcome, text, INFORMATION if perturbs else KEPT if outcome.kept else BROKEN)


def _homogeneous(policy: Policy, seen: Seen, rows: Rows, column: int, name: str, most: int, seed: int) -> Tried:
    targets = np.arange(len(rows))
    if len(targets) > most:
        targets = np.random.default_rng(seed).choice(targets, most, replace=False)
    outcome = homogeneity(seen, people=rows.qi[targets], truth=rows.sensitive[targets, column], column=column)
    text = f"An attacker who knows someone's quasi-identifiers finds that all rows that may be theirs have one {name}: "
    text += f"for {outcome.claims} of {outcome.targets} rows, and is right for {outcome.right}."
    promised = policy.l is not None and not seen.star.any()
    state = INFORMATION if not promised else BROKEN if outcome.claims else KEPT
    return _of_claims(outcome, text, state, name=f"homogeneity:{name}", bound=0.0 if promised else None)


def _bounded(policy: Policy, seen: Seen, rows: Rows) -> Tried:
    widest = np.array([qi.geometry.widest() for qi in policy.quasi_identifiers.values()]).reshape(-1, 2)
    present = np.zeros(len(rows), np.bool_)
    present[seen.rows] = True
    outcome = boundary(seen, people=rows.qi, published=present, widest=widest, scale=noise(policy, rows.qi))
    text = "Groups end at, or near, values of their own rows: an attacker who knows everyone's quasi-identifiers names "
    text += f"the group of {outcome.claims} of {outcome.targets} rows, and is right for {outcome.right}. "
    text += "The row in it stays hidden."
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
    state = INFORMATION if policy.reorders else BROKEN if told else KEPT
    return _of_claims(outcome, text, state)


def _shrunk(policy: Policy, rows: Rows, releases: Any, most: int, seed: int) -> Tried | None:
    outcome = shrinking(policy, rows, releases, most=most, seed=seed)
    if outcome is None:
        return None
    text = "No row left alone."
    if outcome.targets:
        text = (
            "An attacker who knows everyone's quasi-identifiers and the method, and no times, has a best guess above "
            f"1/k for {outcome.above} of {outcome.targets} rows that left alone, at most {outcome.highest:.3g} "
            f"({outcome.mean:.3g} on average). Which generalization was reused changes the odds between two persons "
            f"by a factor of up to {outcome.odds:.3g}; {outcome.pinned} rows are known to be in a group, by a value "
            f"that it ends at; a star excludes {outcome.star_excludes:.0%} of the persons."
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
