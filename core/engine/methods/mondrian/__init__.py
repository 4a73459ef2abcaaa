"""Mondrian: cuts all held rows in halves, for as long as both halves can be published."""

from __future__ import annotations

from dataclasses import dataclass

from crenel.policy.methods import Method
from crenel.policy.parameters import Parameters, boolean, parameter

__all__ = ["METHOD", "MondrianParameters"]


@dataclass(frozen=True, kw_only=True)
class MondrianParameters(Parameters):
    """The parameters of `mondrian`."""

    relaxed: bool = parameter(
        True, boolean(), "Whether rows of equal values may be cut apart where no other cut is allowed."
    )


METHOD = Method(
    name="mondrian",
    summary="Buffers rows until one is due, then cuts the buffer in halves for as long as both can be published.",
    parameters=MondrianParameters,
    engine="crenel.engine.methods.mondrian.mondrian_engine:Mondrian",
    snapshot="crenel.engine:buffered.1.avsc",
)
