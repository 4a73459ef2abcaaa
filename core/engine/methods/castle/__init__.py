"""CASTLE: clusters that grow as rows arrive, and boxes that are used again.

Cao, Carminati, Ferrari, Tan: *CASTLE: Continuously anonymizing data streams*, TDSC 2011.
"""

from __future__ import annotations

from dataclasses import dataclass

from crenel.policy.methods import Method
from crenel.policy.parameters import Parameters, Reuse, integer, max_reusable, parameter, reorder, reuse

__all__ = ["METHOD", "CastleParameters"]


@dataclass(frozen=True, kw_only=True)
class CastleParameters(Parameters):
    """The parameters of `castle`, by the paper's letters."""

    beta: int = parameter(
        50,
        integer(at_least=1),
        "The most clusters held at once; more find closer company for a row, and cost more time.",
        unit="clusters",
    )

    mu: int = parameter(
        100,
        integer(at_least=1),
        "A loss counts as good below the mean loss of this many latest releases (tau).",
        unit="releases",
    )

    reuse: Reuse = reuse(Reuse.UNIFORM, Reuse.OFF)

    max_reusable: int = max_reusable(1000)

    reorder: bool = reorder()


METHOD = Method(
    name="castle",
    summary="Gathers arriving rows in clusters, and publishes the cluster of a row whose deadline has come.",
    parameters=CastleParameters,
    engine="crenel.engine.methods.castle.castle_engine:Castle",
    snapshot="crenel.engine.methods.castle:castle.1.avsc",
    keeps_t=True,
)
