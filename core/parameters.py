"""The parameters of each method: what a policy's `parameters` may hold."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import Any

from crenel.checks import Problems, a_boolean, an_integer, one_of

__all__ = ["METHODS", "CastleParameters", "Reuse", "register_method_parameters"]


class Reuse(Enum):
    """Whether a row may leave under a generalization that was published before."""

    #: One of those that contain the row, drawn uniformly.
    UNIFORM = "uniform"

    #: Never.
    OFF = "off"


@dataclass(frozen=True, kw_only=True)
class CastleParameters:
    """The parameters of `castle`, by the paper's letters."""

    #: The most clusters held at once. More find closer company for a row, and cost more time for
    #: each.
    beta: int = 50

    #: How many of the last releases' losses the threshold tau is the mean of.
    mu: int = 100

    #: Whether a published generalization may take later rows; a late row is otherwise merged or
    #: suppressed.
    reuse: Reuse = Reuse.UNIFORM

    #: The most generalizations kept for reuse; the oldest go first. It bounds memory.
    max_reusable: int = 1000

    #: Whether rows are taken in the order of their event times instead of their arrival. Needs
    #: one kind of delay.
    reorder: bool = False

    def __post_init__(self) -> None:
        problems = Problems()
        # YAML reads a bare `off` as False.
        reuse: Any = self.reuse
        if reuse is False:
            reuse = "off"
        clean: dict[str, Any] = {
            "beta": an_integer(problems, "beta", self.beta, 1),
            "mu": an_integer(problems, "mu", self.mu, 1),
            "reuse": one_of(problems, "reuse", reuse, Reuse),
            "max_reusable": an_integer(problems, "max_reusable", self.max_reusable, 0),
            "reorder": a_boolean(problems, "reorder", self.reorder),
        }
        problems.raise_if_any("parameters")
        for name, value in clean.items():
            object.__setattr__(self, name, value)


#: For each method the frozen dataclass of its parameters.
METHODS: dict[str, type] = {"castle": CastleParameters}


def register_method_parameters(name: str, parameters: type) -> None:
    """Make a method known to policies.

    Its parameters are a frozen dataclass with a default for each field. If it has a method `check(policy, problems)`,
    that is asked about the fields of a policy that are right by themselves.
    """
    if not dataclasses.is_dataclass(parameters):
        msg = f"parameters of {name!r} must be a dataclass, not {parameters!r}."
        raise TypeError(msg)
    if METHODS.setdefault(name, parameters) is not parameters:
        msg = f"the method {name!r} must be registered once; it has {METHODS[name].__name__}."
        raise ValueError(msg)
