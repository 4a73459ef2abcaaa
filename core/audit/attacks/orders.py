"""Which of two rows came first? Look which is first in the output."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from crenel.audit.attacks.observation import Observation
from crenel.audit.attacks.outcomes import Outcome

__all__ = ["Order", "order"]


@dataclass(frozen=True, kw_only=True)
class Order(Outcome):
    """What came of `order`. Half of the claims are right if the output tells nothing."""

    @property
    def by_chance(self) -> float:
        """No less than the chance that as much, or more, is right (or wrong) if nothing is told (Hoeffding)."""
        if not self.targets:
            return 1.0
        return min(1.0, 2.0 * math.exp(-2.0 * (self.right - self.targets / 2) ** 2 / self.targets))


def order(observation: Observation) -> Order:
    """Of two rows that left together, which arrived first? Claim it of the one that is first in the output.

    In each release, the first row of the one half is compared with the first of the other, and so on: no row is in two
    pairs, so that pairs are independent if rows leave in random order.
    """
    pairs = right = 0
    for rows in np.split(observation.rows, np.flatnonzero(np.diff(observation.release)) + 1):
        half = len(rows) // 2
        pairs += half
        right += int(np.count_nonzero(rows[:half] < rows[half : 2 * half]))
    return Order(attack="order", targets=pairs, claims=pairs, right=right)
