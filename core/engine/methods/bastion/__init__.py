"""Bastion: the default method. Every release is a crowd of at least k persons."""

from __future__ import annotations

from dataclasses import dataclass

from crenel.policy.methods import Method
from crenel.policy.parameters import Parameters, Reuse, integer, max_reusable, number, parameter, reorder, reuse

__all__ = ["METHOD", "BastionParameters"]


@dataclass(frozen=True, kw_only=True)
class BastionParameters(Parameters):
    """The parameters of `bastion`."""

    reuse: Reuse = reuse(Reuse.OFF, Reuse.WEIGHTED, Reuse.UNIFORM)

    eta: float = parameter(
        4.6,
        number(at_least=0, at_most=20),
        "How strongly a generalization of less loss is preferred for reuse: one that loses a quarter of the average "
        "loss more than the best, or worse, is drawn e^eta times less often.",
        used_with=(Reuse.WEIGHTED,),
    )

    lonely: float = parameter(
        0.25,
        number(at_least=0, at_most=1),
        "How strongly a group prefers rows that will be hard to find company for.",
    )

    search: int = parameter(
        8192,
        integer(at_least=2),
        "The most rows that a group is chosen among, which bounds the time; if more are held, those that fit best. If "
        "many more are held, half as many that are nearby, and at most 128 for each of k.",
        unit="rows",
    )

    max_reusable: int = max_reusable(4000)

    reorder: bool = reorder()


def _crowd(parameters: BastionParameters) -> bool:
    # Rows published in the order of the input do not leave together.
    return parameters.reuse is Reuse.OFF and not parameters.reorder


METHOD = Method(
    name="bastion",
    summary="Holds each row until its deadline, then gathers the company for it that costs the whole stream least.",
    parameters=BastionParameters,
    engine="crenel.engine.methods.bastion.bastion_engine:Bastion",
    snapshot="crenel.engine.methods.bastion:bastion.1.avsc",
    keeps_t=True,
    crowd=_crowd,
)
