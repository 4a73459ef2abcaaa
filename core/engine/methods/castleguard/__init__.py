"""CASTLEGUARD: CASTLE on rows that are sampled and perturbed. What its paper claims is refuted.

Robinson, Brown, Hall, Jackson, Kemp, Leeke: *CASTLEGUARD: Anonymised Data Streams with Guaranteed Differential
Privacy*, DASC 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crenel.engine.methods.castle import CastleParameters
from crenel.policy.checks import Problems, short, suggestion
from crenel.policy.frozen import FrozenDict
from crenel.policy.kinds.gap_rules import Missing
from crenel.policy.methods import Method
from crenel.policy.parameters import mapping, number, parameter

__all__ = ["METHOD", "CastleGuardParameters"]


@dataclass(frozen=True, kw_only=True)
class CastleGuardParameters(CastleParameters):
    """The parameters of `castleguard`: those of `castle`, and how it samples and perturbs."""

    beta_sample: float = parameter(
        0.5,
        number(above=0, at_most=1),
        "The probability that a row is kept (the paper's beta); the others are neither published nor suppressed.",
    )

    phi: float = parameter(
        100.0,
        number(above=0),
        "The range of a quasi-identifier, divided by the scale of its Laplace noise; more means less noise.",
    )

    perturb_sensitive: Mapping[str, float] = parameter(
        FrozenDict(),
        mapping(number(above=0), "a mapping of sensitive columns to their budgets"),
        "The sensitive columns that are published with noise, and the budget of each: more means less noise.",
    )


def _check(policy: Mapping[str, Any], problems: Problems) -> None:
    sensitive = policy["sensitive"]
    if policy["t"] is not None and policy["parameters"].perturb_sensitive:
        problems.add("parameters.perturb_sensitive", "must be empty with t: groups would be close to the noise.")
    for name in policy["parameters"].perturb_sensitive:
        path = f"parameters.perturb_sensitive.{name}"
        column = sensitive.get(name)
        if column is None:
            known = ", ".join(sensitive) or short(None)
            problems.add(path, f"must name a sensitive column; {suggestion(name, sensitive)}they are: {known}.")
        elif column.size is None:
            problems.add(path, f"needs the values or the domain of sensitive.{name}: noise is drawn from these.")
        elif column.missing is Missing.CATEGORY:
            problems.add(
                f"sensitive.{name}.missing", "must be 'reject' if the column is perturbed: noise needs a value."
            )
        if isinstance(policy["shard_by"], tuple) and name in policy["shard_by"]:
            problems.add("shard_by", f"must not name {name!r}, which is perturbed: its shard would show it.")


METHOD = Method(
    name="castleguard",
    summary="CASTLE on a random sample of the rows, with noise on their quasi-identifiers.",
    parameters=CastleGuardParameters,
    engine="crenel.engine.methods.castleguard.castleguard_engine:CastleGuard",
    snapshot="crenel.engine.methods.castleguard:castleguard.1.avsc",
    keeps_t=True,
    samples=True,
    ends_at_values=False,
    caution="castleguard is not differentially private: its paper's claim is refuted, since its groups depend on the "
    "data (docs/differential-privacy.md). The method sdgs is.",
    perturbs=True,
    check=_check,
)
