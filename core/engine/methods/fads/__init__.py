"""FADS: the oldest row leaves with its nearest neighbours, or alone under a box that was published lately.

Guo, Zhang: *Fast clustering-based anonymization approaches with time constraints for data streams*, Knowledge-Based
Systems 46, 2013.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crenel.policy.checks import Problems
from crenel.policy.methods import Method
from crenel.policy.parameters import (
    Parameters,
    Reuse,
    integer,
    max_reusable,
    optional,
    parameter,
    reuse,
    rows_or_duration,
)

__all__ = ["METHOD", "FadsParameters"]


@dataclass(frozen=True, kw_only=True)
class FadsParameters(Parameters):
    """The parameters of `fads`."""

    buffer: int | None = parameter(
        None,
        optional(integer(at_least=2)),
        "The number of held rows at which the oldest leaves (delta in the paper).",
        unit="rows",
        unset="no limit: a row leaves at its deadline",
    )

    reuse: Reuse = reuse(Reuse.UNIFORM, Reuse.BEST, Reuse.OFF)

    reuse_for: int | str | None = parameter(
        None,
        optional(rows_or_duration),
        "How long a generalization may be used again (T_kc in the paper): a number of arrivals, or a duration of "
        "event time.",
        unset="delay_rows, or else delay",
        used_with=(Reuse.UNIFORM, Reuse.BEST),
    )

    max_reusable: int = max_reusable(1000)


def _check(policy: Mapping[str, Any], problems: Problems) -> None:
    parameters, k, delay_rows = policy["parameters"], policy["k"], policy["delay_rows"]
    if parameters.buffer is not None and parameters.buffer < k:
        problems.must("parameters.buffer", f"at least k ({k}): fewer rows are never a group", parameters.buffer)
    elif parameters.buffer is not None and delay_rows is not None and parameters.buffer > delay_rows:
        problems.must("parameters.buffer", f"at most delay_rows ({delay_rows}): rows leave by then", parameters.buffer)
    if isinstance(parameters.reuse_for, str) and policy["delay"] is None:
        problems.add("parameters.reuse_for", "must be a number of rows where policy.delay is not given.")


def _crowd(parameters: FadsParameters) -> bool:
    return parameters.reuse is Reuse.OFF


METHOD = Method(
    name="fads",
    summary="Releases the oldest row with its k - 1 nearest neighbours, or under a box that lost less.",
    parameters=FadsParameters,
    engine="crenel.engine.methods.fads.fads_engine:Fads",
    snapshot="crenel.engine:buffered.1.avsc",
    keeps_l=False,
    crowd=_crowd,
    check=_check,
)
