"""What came of an attack: counts and chances, never a value."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Chances", "Outcome"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of an attack that claims something. Counts only."""

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


@dataclass(frozen=True, kw_only=True)
class Chances:
    """What came of an attack that guesses: how likely its best guess is right."""

    attack: str
    #: Persons, or rows, that the attacker asked about.
    targets: int
    #: The chance of the best guess: for the target who is worst off, and on average.
    highest: float
    mean: float
    #: What is promised of the highest; None if nothing is.
    bound: float | None = None
    #: Targets whose chance is above the bound.
    above: int = 0

    @property
    def kept(self) -> bool:
        """Whether no target is above what is promised."""
        return self.above == 0

    def __str__(self) -> str:
        promised = "" if self.bound is None else f", {self.above} of them above {self.bound:.3g}"
        return (
            f"{self.attack}: {self.targets} targets, at most {self.highest:.3g}, {self.mean:.3g} on average{promised}"
        )
