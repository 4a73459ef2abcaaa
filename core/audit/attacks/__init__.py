"""Attacks on a published stream, by an attacker who knows more than what was published.

Each attack is a function of what everyone observes (`Observation`, or the releases), of the attacker's extra knowledge,
and of the truth, which judges it. Some attacks make claims and return an `Outcome`: for how many targets the attacker
was certain, and how often that was right. They claim only what must be true if rows are published unchanged; where
chance is involved, they claim what has at least the probability `CERTAIN`. Other attacks guess and return `Chances`:
how likely the attacker's best guess is to be right.

Results hold counts and probabilities only. A failed attack says nothing about other attacks. `docs/attacks.md` shows
what each attack achieves, and `docs/differential-privacy.md` what is known against all of them.

Here belongs one module per attack, and `suite`, which runs them all. Promises are judged in `crenel.audit.guarantees`.
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
