"""Which of two rows arrived first? Guess the one that is first in the output."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from crenel.audit.attacks.observation import Observation
from crenel.audit.attacks.outcomes import Outcome

__all__ = ["Order", "order"]


@dataclass(frozen=True, kw_only=True)
class Order(Outcome):
    """The result of `order`. If the output reveals nothing, half of the claims are right."""

    @property
    def by_chance(self) -> float:
        """An upper bound on the probability of a result this far from half by chance (Hoeffding)."""
        if not self.targets:
            return 1.0
        return min(1.0, 2.0 * math.exp(-2.0 * (self.right - self.targets / 2) ** 2 / self.targets))


def order(observation: Observation) -> Order:
    """Of two rows that left together, which arrived first? Claim the one that is first in the output.

    Each release is cut in half, and the rows of the halves are paired in order. No row is in two pairs, so the pairs
    are independent if rows leave in random order.
    """
    pairs = right = 0
    for rows in np.split(observation.rows, np.flatnonzero(np.diff(observation.release)) + 1):
        half = len(rows) // 2
        pairs += half
        right += int(np.count_nonzero(rows[:half] < rows[half : 2 * half]))
    return Order(attack="order", targets=pairs, claims=pairs, right=right)
