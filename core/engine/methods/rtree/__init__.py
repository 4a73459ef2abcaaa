"""Continuous publishing: leaves of an R-tree that are published at times drawn at random, poor ones later.

Zhou, Han, Pei, Jiang, Tao, Jia: *Continuous privacy preserving publishing of data streams*, EDBT 2009.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crenel.policy.checks import Problems
from crenel.policy.methods import Method
from crenel.policy.parameters import Parameters, duration_text, integer, number, optional, parameter

__all__ = [
    "MIN_DELAY",
    "RTREE",
    "RTREE_DENSITY",
    "RTREE_FULL",
    "MinDelayParameters",
    "RTreeDensityParameters",
    "RTreeParameters",
    "sample_size",
]


@dataclass(frozen=True, kw_only=True)
class MinDelayParameters(Parameters):
    """`min-delay` has no parameters."""


@dataclass(frozen=True, kw_only=True)
class RTreeParameters(Parameters):
    """The parameters of `rtree`."""

    active_rows: int | None = parameter(
        None,
        optional(integer(at_least=1)),
        "About how many rows are held at once; more find closer company, and leave later.",
        unit="rows",
        unset="30 k",
    )

    instant: str | None = parameter(
        None,
        optional(duration_text()),
        "The event time that publishing times and delays are counted in, such as 1s.",
        unset="an arrival is an instant",
    )


@dataclass(frozen=True, kw_only=True)
class RTreeDensityParameters(RTreeParameters):
    """The parameters of `rtree-density` and `rtree-full`."""

    alpha: float = parameter(
        0.001, number(at_least=0, below=1), "What an instant's delay adds to a row's loss, as a fraction of it."
    )

    sample: int = parameter(
        3000,
        integer(at_least=1),
        "The number of samples of the latest rows that show where the stream is dense (the paper's omega).",
        unit="rows",
    )

    window_rows: int = parameter(
        10_000,
        integer(at_least=1),
        "The number of latest rows that the samples are drawn from (the paper's W).",
        unit="rows",
    )


def sample_size(quasi_identifiers: int, epsilon: float, delta: float) -> int:
    """Return how many samples estimate the share of the window in any box to within `epsilon`: theorem 3.

    The estimate is further off with a probability of at most `delta`. The paper gives the order of the number only,
    d / epsilon^2 * log(1 / epsilon) + log(1 / delta); the constant here is 1, and the second term is divided by
    epsilon^2, too. Then Hoeffding's inequality proves it for every box that does not depend on the samples, if epsilon
    or delta is at most 0.5.

    >>> sample_size(7, epsilon=0.1, delta=0.05)
    1912

    Raises:
        ValueError: A number is outside of its bounds.
    """
    if quasi_identifiers < 1:
        message = f"sample_size: quasi_identifiers must be at least 1, not {quasi_identifiers}."
        raise ValueError(message)
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if not 0 < value < 1:
            message = f"sample_size: {name} must be above 0 and below 1, not {value}."
            raise ValueError(message)
    return math.ceil((quasi_identifiers * math.log(1 / epsilon) + math.log(1 / delta)) / epsilon**2)


def _check(policy: Mapping[str, Any], problems: Problems) -> None:
    parameters: RTreeParameters = policy["parameters"]
    active_rows, k = parameters.active_rows, policy["k"]
    if active_rows is not None and active_rows < 2 * k:
        rule = f"at least 2 k ({2 * k}): there is no choice among fewer rows"
        problems.must("parameters.active_rows", rule, active_rows)
    if parameters.instant is not None and policy["delay"] is None:
        problems.add("parameters.instant", "needs policy.delay: without it event times do not count.")


def _check_density(policy: Mapping[str, Any], problems: Problems) -> None:
    _check(policy, problems)
    parameters: RTreeDensityParameters = policy["parameters"]
    if parameters.sample > parameters.window_rows:
        rule = f"at most window_rows ({parameters.window_rows})"
        problems.must("parameters.sample", rule, parameters.sample)


_ENGINE = "crenel.engine.methods.rtree.rtree_engine:Continuous"
_SNAPSHOT = "crenel.engine.methods.rtree:rtree.1.avsc"

MIN_DELAY = Method(
    name="min-delay",
    summary="Publishes a group as soon as it can be published.",
    parameters=MinDelayParameters,
    engine=_ENGINE,
    snapshot=_SNAPSHOT,
)

RTREE = Method(
    name="rtree",
    summary="Keeps rows in an R-tree, and publishes its leaves at times drawn at random, poor leaves later.",
    parameters=RTreeParameters,
    engine=_ENGINE,
    snapshot=_SNAPSHOT,
    check=_check,
)

RTREE_DENSITY = Method(
    name="rtree-density",
    summary="As rtree, and publishes a leaf sooner where the stream promises it no closer company.",
    parameters=RTreeDensityParameters,
    engine=_ENGINE,
    snapshot=_SNAPSHOT,
    check=_check_density,
)

RTREE_FULL = Method(
    name="rtree-full",
    summary="As rtree-density, and holds back rows of a leaf that would lose less a little later.",
    parameters=RTreeDensityParameters,
    engine=_ENGINE,
    snapshot=_SNAPSHOT,
    check=_check_density,
)
