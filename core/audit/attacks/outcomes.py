"""The results of attacks: counts and probabilities, never a value of a row."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Chances", "Outcome"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of an attack that makes claims."""

    attack: str
    #: The persons or rows that the attacker asked about.
    targets: int
    #: The targets for which the attacker made a claim.
    claims: int
    #: Claims that are true.
    right: int

    @property
    def success(self) -> float:
        """The share of the targets with a true claim."""
        return self.right / self.targets if self.targets else 0.0

    @property
    def precision(self) -> float | None:
        """The share of the claims that are true; None if there are none."""
        return self.right / self.claims if self.claims else None

    def __str__(self) -> str:
        return f"{self.attack}: {self.claims} claims on {self.targets} targets, {self.right} of them right"


@dataclass(frozen=True, kw_only=True)
class Chances:
    """The result of an attack that guesses: how likely its best guess is right."""

    attack: str
    #: The persons or rows that the attacker asked about.
    targets: int
    #: The probability of the best guess: for the worst-off target, and on average.
    highest: float
    mean: float
    #: The promised bound on the highest probability; None if there is no promise.
    bound: float | None = None
    #: Targets whose probability is above the bound.
    above: int = 0

    @property
    def kept(self) -> bool:
        """Whether no target is above the bound."""
        return self.above == 0

    def __str__(self) -> str:
        promised = "" if self.bound is None else f", {self.above} of them above {self.bound:.3g}"
        return (
            f"{self.attack}: {self.targets} targets, at most {self.highest:.3g}, {self.mean:.3g} on average{promised}"
        )
