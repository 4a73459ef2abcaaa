"""Runs all attacks on one stream, and sums up each in a sentence."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from crenel.audit.attacks.claims import boundary, homogeneity, noise
from crenel.audit.attacks.ends import ends
from crenel.audit.attacks.links import intersection, linkage
from crenel.audit.attacks.observation import Observation
from crenel.audit.attacks.observer import observer
from crenel.audit.attacks.orders import order
from crenel.audit.attacks.outcomes import Chances, Outcome
from crenel.audit.attacks.outermost import outermost
from crenel.audit.attacks.posterior import posterior
from crenel.audit.attacks.reuse import shrinking
from crenel.encoding.rows import Rows
from crenel.policy import Policy

__all__ = ["AttackResult", "run_all"]

#: A result less likely than this is not explained by chance.
_NEVER = 1e-9

KEPT, BROKEN, INFORMATION = "kept", "broken", "information"

#: How precisely the observer knows when a row arrived: within this share of the delay.
_KNOWN = 0.1


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    """An attack and its result. It holds counts and declared names only."""

    name: str
    #: The result in a sentence.
    text: str
    targets: int
    #: The number of targets with a claim or a guess, and how many of these are right, or are expected to be.
    claims: int
    right: int
    #: The share of the targets that the attack succeeds on; for guesses, the probability for the worst-off target. And
    #: the promised bound on it; None if there is no promise.
    success: float
    bound: float | None
    #: `kept` or `broken` if there is a promise, else `information`.
    state: str

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary for the document."""
        return asdict(self)


def run_all(
    policy: Policy, rows: Rows, observation: Observation, releases: Any = None, *, most: int = 200, seed: int = 0
) -> list[AttackResult]:
    """Run the attacks on the rows of one shard.

    Args:
        policy: The promises, the method and its parameters.
        rows: All rows that went in.
        observation: The published rows. If its `rows` are -1, attacks that need the true rows are left out.
        releases: The releases in the order they left, if known: a `Published`, or any object with its columns.
        most: How many boxes, rows or persons a costly attack examines.
        seed: The seed that draws them.
    """
    known = bool(len(observation)) and not np.any(observation.rows < 0)
    left = None if releases is None or not known else releases
    found: list[AttackResult | None] = []
    if left is not None:
        found += [_run_posterior(policy, rows, left), _run_observer(policy, rows, left, most, seed)]
    found.append(_run_linkage(policy, observation, rows, most, seed))
    for column, name in enumerate(policy.sensitive):
        found.append(_run_homogeneity(policy, observation, rows, column, name, most, seed))
        found.append(None if left is None else _run_outermost(policy, rows, left, column, name))
    if known:
        found += [_run_boundary(policy, observation, rows), _run_ends(policy, observation, rows)]
        found += [_run_intersection(policy, observation, rows), _run_order(policy, observation)]
        found.append(None if left is None else _run_shrinking(policy, rows, left, most, seed))
    return [one for one in found if one is not None]


def _run_posterior(policy: Policy, rows: Rows, releases: Any) -> AttackResult | None:
    outcome = posterior(policy, rows, releases)
    if outcome is None:
        return None
    text = (
        "An attacker who knows everyone's quasi-identifiers, all times and the method has a best guess above 1/k for "
        f"{outcome.above} of {outcome.targets} rows ({outcome.reused} left alone under a reused generalization, "
        f"{outcome.stars} as stars, {outcome.together} in releases). The highest probability is {outcome.highest:.3g}."
    )
    return _of_chances(outcome, text, _crowd(policy, outcome))


def _run_observer(policy: Policy, rows: Rows, releases: Any, most: int, seed: int) -> AttackResult | None:
    outcome = observer(policy, rows, releases, known=_KNOWN, most=most, seed=seed)
    if outcome is None:
        return None
    text = (
        "An attacker who knows someone's quasi-identifiers, and when their row arrived to within a tenth of the delay, "
        f"finds fewer than k possible rows for {outcome.above} of {outcome.targets} rows, and only the right one for "
        f"{outcome.linked}."
    )
    return _of_chances(outcome, text, _crowd(policy, outcome))


def _crowd(policy: Policy, outcome: Chances) -> str:
    """Judge by the crowd, which alone promises something against an attacker who knows times."""
    if not policy.crowd:
        return INFORMATION
    return KEPT if outcome.kept else BROKEN


def _run_outermost(policy: Policy, rows: Rows, releases: Any, column: int, name: str) -> AttackResult | None:
    outcome = outermost(policy, rows, releases, column=column)
    if outcome is None:
        return None
    text = f"No group has exactly one member with a unique value of {name}."
    if outcome.targets:
        text = (
            f"An attacker who knows who is in a group guesses that the outermost member has the unique {name}. The "
            f"guess is right in {outcome.right} of {outcome.targets} groups, {outcome.ratio or 0.0:.3g} times as often "
            "as by chance."
        )
    return _of_claims(outcome, text, INFORMATION, name=f"outermost:{name}")


def _run_ends(policy: Policy, observation: Observation, rows: Rows) -> AttackResult:
    outcome = ends(policy, observation, rows)
    text = (
        f"{outcome.claims} of {outcome.targets} values that one person alone has were published exactly, as the end of "
        "a range. A step on the quasi-identifier puts the ends on a grid."
    )
    return _of_claims(outcome, text, INFORMATION)


def _run_linkage(policy: Policy, observation: Observation, rows: Rows, most: int, seed: int) -> AttackResult:
    outcome = linkage(policy, observation, rows, most=most, seed=seed)
    text = (
        "An attacker who knows everyone's quasi-identifiers, but no times, can link a row to its person with "
        f"probability at most {outcome.highest:.3g} ({outcome.mean:.3g} on average). 1/k is {outcome.bound:.3g}."
    )
    if outcome.only_stars and outcome.among_stars:
        text += (
            f" {outcome.only_stars} persons are inside no group, so their rows are among the suppressed ones, "
            f"where the probability is {outcome.among_stars:.3g}."
        )
    # With perturbed values the attacker cannot tell who is inside a box, so 1/k does not follow; nor does it where each
    # value is counted by itself.
    method = policy.declaration
    if method.perturbs or method.value_by_value:
        return _of_chances(outcome, text, INFORMATION)
    return _of_chances(outcome, text, KEPT if outcome.kept else BROKEN)


def _run_homogeneity(
    policy: Policy, observation: Observation, rows: Rows, column: int, name: str, most: int, seed: int
) -> AttackResult:
    targets = np.arange(len(rows))
    if len(targets) > most:
        targets = np.random.default_rng(seed).choice(targets, most, replace=False)
    outcome = homogeneity(observation, people=rows.qi[targets], truth=rows.sensitive[targets, column], column=column)
    text = (
        f"For {outcome.claims} of {outcome.targets} rows, an attacker who knows the person's quasi-identifiers finds a "
    )
    text += f"single {name} in all rows that may be theirs, and is right for {outcome.right}."
    promised = policy.l is not None and not observation.star.any()
    state = INFORMATION if not promised else BROKEN if outcome.claims else KEPT
    return _of_claims(outcome, text, state, name=f"homogeneity:{name}", bound=0.0 if promised else None)


def _run_boundary(policy: Policy, observation: Observation, rows: Rows) -> AttackResult:
    widest = np.array([qi.geometry.widest() for qi in policy.quasi_identifiers.values()]).reshape(-1, 2)
    present = np.zeros(len(rows), np.bool_)
    present[observation.rows] = True
    outcome = boundary(observation, people=rows.qi, published=present, widest=widest, scale=noise(policy, rows.qi))
    text = "Groups end at or near values of their own rows. An attacker who knows everyone's quasi-identifiers names "
    text += f"the group of {outcome.claims} of {outcome.targets} rows, and is right for {outcome.right}. "
    text += "Which row of the group it is stays hidden."
    return _of_claims(outcome, text, INFORMATION)


def _run_intersection(policy: Policy, observation: Observation, rows: Rows) -> AttackResult:
    outcome = intersection(policy, observation, rows)
    text = "No row was published under two generalizations: there is nothing to intersect."
    if outcome.targets:
        text = f"{outcome.targets} rows were published under several generalizations. {outcome.above} of them can be "
        text += f"linked with a probability above 1/k, at most {outcome.highest:.3g}."
    return _of_chances(outcome, text, KEPT if outcome.kept else BROKEN)


def _run_order(policy: Policy, observation: Observation) -> AttackResult:
    outcome = order(observation)
    told = outcome.by_chance < _NEVER
    text = f"In {outcome.right} of {outcome.targets} pairs of rows that left together, the first in the output arrived "
    text += "first: the order reveals who arrived first." if told else "first, no more than by chance."
    state = INFORMATION if policy.reorders else BROKEN if told else KEPT
    return _of_claims(outcome, text, state)


def _run_shrinking(policy: Policy, rows: Rows, releases: Any, most: int, seed: int) -> AttackResult | None:
    outcome = shrinking(policy, rows, releases, most=most, seed=seed)
    if outcome is None:
        return None
    text = "No row left alone."
    if outcome.targets:
        text = (
            "An attacker who knows everyone's quasi-identifiers and the method, but no times, has a best guess above "
            f"1/k for {outcome.above} of {outcome.targets} rows that left alone, with probability at most "
            f"{outcome.highest:.3g} ({outcome.mean:.3g} on average). Which generalization was reused changes the odds "
            f"between two persons by a factor of up to {outcome.odds:.3g}. {outcome.pinned} rows are known to be in a "
            f"group, because its box ends at their value. A star excludes {outcome.star_excludes:.0%} of the persons."
        )
    return _of_chances(outcome, text, INFORMATION)


def _of_chances(outcome: Chances, text: str, state: str) -> AttackResult:
    return AttackResult(
        name=outcome.attack,
        text=text,
        targets=outcome.targets,
        claims=outcome.targets,
        right=round(outcome.mean * outcome.targets),
        success=outcome.highest,
        bound=outcome.bound if state != INFORMATION else None,
        state=state,
    )


def _of_claims(outcome: Outcome, text: str, state: str, *, name: str = "", bound: float | None = None) -> AttackResult:
    return AttackResult(
        name=name or outcome.attack,
        text=text,
        targets=outcome.targets,
        claims=outcome.claims,
        right=outcome.right,
        success=outcome.success,
        bound=bound,
        state=state,
    )
