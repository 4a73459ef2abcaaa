"""Targets such as `suppressed<1%`, and the cheapest setting that meets them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass

from crenel.pipelines.console.limits import share
from crenel.pipelines.exploring.settings import Cost
from crenel.policy.checks import suggestion
from crenel.policy.durations import A_DURATION, parse_duration

__all__ = ["Target", "cheapest", "target"]

_TARGET = re.compile(r"\s*([a-z_]+)\s*(<=|<)\s*(\S+)\s*")
#: What a target may bound, and what it is.
_MEASURES = {
    "suppressed": "the share of rows that find no group",
    "loss": "the mean loss",
    "error": "the error of queries",
    "delay": "the mean wait of a row",
}


@dataclass(frozen=True)
class Target:
    """A bound on one figure."""

    measure: str
    bound: float
    strict: bool
    #: As the user wrote it.
    text: str

    def is_met(self, cost: Cost) -> bool:
        """Whether a setting keeps below the bound. What was not measured is not met."""
        found = getattr(cost, self.measure)
        if found is None:
            return False
        return bool(found < self.bound if self.strict else found <= self.bound)


def target(text: str) -> Target:
    """Read a target from a command line.

    >>> target("suppressed<1%").bound, target("loss <= 0.3").bound, target("delay<10m").bound
    (0.01, 0.3, 600.0)
    """
    found = _TARGET.fullmatch(text)
    if found is None:
        msg = f"must be a bound such as 'suppressed<1%', 'loss<0.3', 'error<20%' or 'delay<10m', not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    measure, sign, bound = found.groups()
    if measure not in _MEASURES:
        listed = "; ".join(f"{name}, {meaning}" for name, meaning in _MEASURES.items())
        msg = f"must bound one of: {listed}; {suggestion(measure, _MEASURES)}not {measure!r}"
        raise argparse.ArgumentTypeError(msg)
    return Target(measure, _bound(measure, bound), sign == "<", text.strip())


def cheapest(costs: Sequence[Cost], targets: Sequence[Target], k: int) -> list[Cost]:
    """Find, for each guarantee, the shortest deadline that meets all targets; of two equal ones, the less lossy.

    The policy's own k comes first, then larger ones, which promise more, and then smaller ones.
    """
    best: dict[str, Cost] = {}
    for cost in costs:
        known = best.get(cost.setting.guarantee)
        if all(one.is_met(cost) for one in targets) and (known is None or _price(cost) < _price(known)):
            best[cost.setting.guarantee] = cost
    return sorted(best.values(), key=lambda cost: (cost.setting.k < k, abs(cost.setting.k - k)))


def _price(cost: Cost) -> tuple[tuple[float, float], float]:
    return cost.setting.longest, cost.loss


def _bound(measure: str, text: str) -> float:
    if measure != "delay":
        return share(text)
    micros = parse_duration(text)
    if micros is not None:
        return micros / 1e6
    try:
        return float(text)  # rows
    except ValueError:
        msg = f"delay must be below {A_DURATION}, or below a number of rows, not {text!r}"
        raise argparse.ArgumentTypeError(msg) from None
