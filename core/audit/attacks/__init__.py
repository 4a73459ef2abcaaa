"""Attacks on a published stream, by somebody who knows more than what was published.

Each attack is a function of what everybody sees (`Observation`, or the releases), of what the attacker knows besides, and of
the truth, by which it is judged. Some claim something, and return an `Outcome`: of how many targets the attacker was
certain, and how often that was right. They claim only what cannot be otherwise if rows are published as they are, or,
where chance is known to be at work, what is at least as likely as `CERTAIN`. Others weigh what is possible, and return
`Chances`: how likely the attacker's best guess is to be right.

Results hold counts and chances only. That an attack failed says nothing of another; `docs/attacks.md` has what each of
them achieves, `docs/differential-privacy.md` what is known against all of them.
"""

from __future__ import annotations

from crenel.audit.attacks.claims import CERTAIN, LIKELY, boundary, enumeration, homogeneity, noise
from crenel.audit.attacks.ends import Ends, ends
from crenel.audit.attacks.links import Linkage, intersection, linkage
from crenel.audit.attacks.observation import Observation
from crenel.audit.attacks.observer import Observer, observer
from crenel.audit.attacks.orders import Order, order
from crenel.audit.attacks.outcomes import Chances, Outcome
from crenel.audit.attacks.outermost import Outermost, outermost
from crenel.audit.attacks.posterior import Posterior, posterior
from crenel.audit.attacks.reuse import LEAST_LOSS, Shrinking, pinned, reuse_odds, shrinking
from crenel.audit.attacks.suite import AttackResult, run_all

__all__ = [
    "CERTAIN",
    "LEAST_LOSS",
    "LIKELY",
    "AttackResult",
    "Chances",
    "Ends",
    "Linkage",
    "Observation",
    "Observer",
    "Order",
    "Outcome",
    "Outermost",
    "Posterior",
    "Shrinking",
    "boundary",
    "ends",
    "enumeration",
    "homogeneity",
    "intersection",
    "linkage",
    "noise",
    "observer",
    "order",
    "outermost",
    "pinned",
    "posterior",
    "reuse_odds",
    "run_all",
    "shrinking",
]
