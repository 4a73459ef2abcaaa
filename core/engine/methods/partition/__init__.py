"""Partition: rows that may lack quasi-identifiers, grouped with others that have the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crenel.policy.checks import Problems
from crenel.policy.methods import Method
from crenel.policy.parameters import (
    Parameters,
    Reuse,
    boolean,
    max_reusable,
    number,
    optional,
    parameter,
    reuse,
    rows_or_duration,
)

__all__ = ["METHOD", "PartitionParameters"]

#: A set of quasi-identifiers is a number of 64 bits, one of which is the sign.
_MOST_QUASI_IDENTIFIERS = 62


@dataclass(frozen=True, kw_only=True)
class PartitionParameters(Parameters):
    """The parameters of `partition`."""

    reuse: Reuse = reuse(Reuse.UNIFORM, Reuse.BEST, Reuse.WEIGHTED, Reuse.OFF)

    reuse_for: int | str | None = parameter(
        None,
        optional(rows_or_duration),
        "How long a generalization may be used again (the paper's omega): a number of arrivals, or a duration of "
        "event time.",
        unset="a tenth of delay_rows, or else of delay",
        used_with=(Reuse.UNIFORM, Reuse.BEST, Reuse.WEIGHTED),
    )

    eta: float = parameter(
        1.0,
        number(at_least=0),
        "How steeply the weights of reuse: weighted fall with the loss; 0 draws uniformly.",
        used_with=(Reuse.WEIGHTED,),
    )

    max_reusable: int = max_reusable(1000)

    fill_missing: bool = parameter(
        False,
        boolean(),
        "Whether a group publishes every quasi-identifier that any of its rows has, also for rows that lack it, "
        "instead of those that all of its rows have.",
    )


def _check(policy: Mapping[str, Any], problems: Problems) -> None:
    if isinstance(policy["parameters"].reuse_for, str) and policy["delay"] is None:
        problems.add("parameters.reuse_for", "must be a number of rows where policy.delay is not given.")
    if len(policy["quasi_identifiers"]) > _MOST_QUASI_IDENTIFIERS:
        problems.add("quasi_identifiers", f"must be at most {_MOST_QUASI_IDENTIFIERS} with the method partition.")


METHOD = Method(
    name="partition",
    summary="Takes rows that lack quasi-identifiers, and groups them with rows that have the same ones, or nearly.",
    parameters=PartitionParameters,
    engine="crenel.engine.methods.partition.partition_engine:Partition",
    snapshot="crenel.engine.methods.partition:partition.1.avsc",
    takes_holes=True,
    check=_check,
)
