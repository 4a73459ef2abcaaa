"""FAANST: a buffer of rows, sorted into clusters whenever it is full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crenel.policy.checks import Problems
from crenel.policy.methods import Method
from crenel.policy.parameters import Parameters, Reuse, integer, max_reusable, number, optional, parameter, reuse

__all__ = ["PASSIVE", "PROACTIVE", "FaanstParameters"]


@dataclass(frozen=True, kw_only=True)
class FaanstParameters(Parameters):
    """The parameters of `faanst-passive` and `faanst-proactive`."""

    mu: int | None = parameter(
        None,
        optional(integer(at_least=2)),
        "The number of buffered rows at which the buffer is sorted into clusters.",
        unit="rows",
        unset="half of delay_rows",
    )

    clusters: int | None = parameter(
        None,
        optional(integer(at_least=1)),
        "The number of clusters that the buffered rows are sorted into.",
        unit="clusters",
        unset="mu / k",
    )

    max_loss: float = parameter(
        0.5, number(above=0, at_most=1), "The most loss of a cluster that is published, and may be used again."
    )

    reuse: Reuse = reuse(Reuse.UNIFORM, Reuse.BEST, Reuse.OFF)

    max_reusable: int = max_reusable(1000)

    def buffer(self, k: int, delay_rows: int | None) -> int | None:
        """Return how many rows the buffer holds; None if it has no limit.

        By default that is half of delay_rows: with more, a row that is held on would be due before the next round.
        """
        if self.mu is not None or delay_rows is None:
            return self.mu
        return max(delay_rows // 2, k)


def _check(policy: Mapping[str, Any], problems: Problems) -> None:
    mu, k, delay_rows = policy["parameters"].mu, policy["k"], policy["delay_rows"]
    if mu is None:
        if delay_rows is None:
            problems.add("parameters.mu", "must be given if delay_rows is not: it is the size of the buffer.")
    elif mu < k:
        problems.must("parameters.mu", f"at least k ({k}): fewer rows are never a group", mu)
    elif delay_rows is not None and mu > delay_rows:
        problems.must("parameters.mu", f"at most delay_rows ({delay_rows}): rows leave by then", mu)


PASSIVE = Method(
    name="faanst-passive",
    summary="Sorts a full buffer into clusters, publishes those of little loss, and holds the other rows on.",
    parameters=FaanstParameters,
    engine="crenel.engine.methods.faanst.faanst_engine:Faanst",
    snapshot="crenel.engine:buffered.1.avsc",
    check=_check,
)

PROACTIVE = Method(
    name="faanst-proactive",
    summary="As faanst-passive, and publishes a poor cluster too if one of its rows is due before the next round.",
    parameters=FaanstParameters,
    engine="crenel.engine.methods.faanst.faanst_engine:ProactiveFaanst",
    snapshot="crenel.engine:buffered.1.avsc",
    check=_check,
)
