"""SDGS: a sample of the persons, published by the cells of a grid that does not depend on the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from crenel.policy import sampling_privacy
from crenel.policy.checks import Problems, short, suggestion
from crenel.policy.frozen import FrozenDict
from crenel.policy.geometry import Interval, Radix, Tree
from crenel.policy.methods import Method
from crenel.policy.parameters import Parameters, choice, integer, mapping, number, optional, parameter

__all__ = ["METHOD", "Cover", "SdgsParameters", "depth"]

_MOST_BINS = 1_000_000


class Cover(Enum):
    """What the rows of a cell have in common, and so what the guarantee covers."""

    #: All that is published: the cell of the quasi-identifiers, and the sensitive values.
    ALL = "all"

    #: The cell of the quasi-identifiers alone: sensitive and published columns are not covered.
    QUASI_IDENTIFIERS = "quasi_identifiers"


@dataclass(frozen=True, kw_only=True)
class SdgsParameters(Parameters):
    """The parameters of `sdgs`."""

    beta_sample: float = parameter(
        0.5,
        number(above=0, at_most=1),
        "The probability that a person is kept in a window (the paper's beta); the others are never published.",
    )

    epsilon: float | None = parameter(
        None,
        optional(number()),
        "The epsilon that delta is stated for.",
        unset="the least, -ln(1 - beta_sample)",
    )

    grid: Mapping[str, int] = parameter(
        FrozenDict(),
        mapping(integer(at_least=0), "a mapping of quasi-identifiers to integers"),
        "How fine the grid is in each quasi-identifier: bins of a domain, levels below a hierarchy's root, characters "
        "of a prefix; by default 10 bins (fewer if a step leaves fewer cells), 1 level, half of the characters.",
    )

    cover: Cover = parameter(
        Cover.ALL, choice(Cover), "What the rows of a cell have in common, and so what the guarantee covers."
    )

    def fineness(self, name: str, geometry: Interval | Radix | Tree) -> int:
        """Return how fine the grid is in this quasi-identifier."""
        if isinstance(geometry, Interval):
            usual = min(10, _most_bins(geometry))
        else:
            usual = 1 if isinstance(geometry, Tree) else max(geometry.length // 2, 1)
        return self.grid.get(name, usual)


def depth(tree: Tree) -> int:
    """Return the number of levels below a tree's root."""
    level = [0] * len(tree.parent)
    for node, parent in enumerate(tree.parent.tolist()[1:], start=1):
        level[node] = level[parent] + 1
    return max(level)


def _most_bins(geometry: Interval) -> int:
    """The most bins that a domain may be cut into; a domain with a step is cut between its cells."""
    if geometry.cells and geometry.lo is not None and geometry.hi is not None:
        return min(_MOST_BINS, int(geometry.hi - geometry.lo) + 1)
    return _MOST_BINS


def _check(policy: Mapping[str, Any], problems: Problems) -> None:
    parameters: SdgsParameters = policy["parameters"]
    _check_epsilon(parameters, problems)
    if policy["on_suppress"].value != "drop":
        problems.add(
            "on_suppress",
            "must be 'drop' with the method sdgs: a row published as * would show what fewer than k persons have.",
        )
    if policy["shards"] != 1 and getattr(policy["shard_by"], "value", None) != "person":
        problems.add(
            "shard_by", "must be 'person' with the method sdgs: a person would count once in each of several shards."
        )
    if policy["within"]:
        problems.add("within", "must be empty with the method sdgs: a person would count once under each value.")
    _check_grid(parameters, policy["quasi_identifiers"], problems)
    if parameters.cover is Cover.ALL:
        _check_cover(policy, problems)


def _check_epsilon(parameters: SdgsParameters, problems: Problems) -> None:
    epsilon, beta = parameters.epsilon, parameters.beta_sample
    if epsilon is None:
        return
    if beta == 1:
        rule = "needs a beta_sample below 1: without sampling there is no differential privacy."
        problems.add("parameters.epsilon", rule)
    elif not sampling_privacy.is_epsilon(epsilon, beta):
        problems.must("parameters.epsilon", sampling_privacy.epsilon_range(beta), epsilon)


def _check_grid(parameters: SdgsParameters, columns: Mapping[str, Any], problems: Problems) -> None:
    for name in parameters.grid:
        if name not in columns:
            known = ", ".join(columns) or short(None)
            rule = f"must name a quasi-identifier; {suggestion(name, columns)}they are: {known}."
            problems.add(f"parameters.grid.{name}", rule)
    for name, column in columns.items():
        geometry = column.values
        if isinstance(geometry, Interval):
            if geometry.learned:
                rule = "must be declared with the method sdgs: its grid must not depend on the data."
                problems.add(f"quasi_identifiers.{name}.domain", rule)
            least, most, what = 1, _most_bins(geometry), "bins"
        elif isinstance(geometry, Radix):
            least, most, what = 0, geometry.length, "characters"
        else:
            least, most, what = 0, depth(geometry), "levels below the root"
        fineness = parameters.fineness(name, geometry)
        if not least <= fineness <= most:
            problems.must(f"parameters.grid.{name}", f"a number of {what} from {least} to {most}", fineness)


def _check_cover(policy: Mapping[str, Any], problems: Problems) -> None:
    otherwise = "or parameters.cover be 'quasi_identifiers', which leaves it out of the guarantee."
    if policy["publish"]:
        problems.add("publish", f"must be empty with the method sdgs, {otherwise}")
    for name, column in policy["sensitive"].items():
        if column.domain is not None:
            rule = f"must not be given with the method sdgs, whose cells are of equal values, {otherwise}"
            problems.add(f"sensitive.{name}.domain", rule)


METHOD = Method(
    name="sdgs",
    summary="Samples the persons of a window, and publishes the cells of a fixed grid that at least k of them share.",
    parameters=SdgsParameters,
    engine="crenel.engine.methods.sdgs.sdgs_engine:Sdgs",
    snapshot="crenel.engine.methods.sdgs:sdgs.1.avsc",
    samples=True,
    ends_at_values=False,
    check=_check,
)
