"""z-anonymity: each row leaves at once, and each of its values only if enough persons had it lately.

Jha, Favale, Vassio, Trevisan, Mellia: *z-anonymity: Zero-Delay Anonymization for Data Streams*, IEEE Big Data 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crenel.policy.checks import Problems
from crenel.policy.geometry import Interval
from crenel.policy.methods import Method
from crenel.policy.parameters import Parameters, duration_text, integer, optional, parameter

__all__ = ["METHOD", "ZAnonymityParameters"]


@dataclass(frozen=True, kw_only=True)
class ZAnonymityParameters(Parameters):
    """The parameters of `z-anonymity`."""

    window: str | None = parameter(
        None,
        optional(duration_text()),
        "How far back in event time other persons' values count (the paper's delta t).",
        unset="the policy's delay",
    )

    bins: int = parameter(
        64,
        integer(at_least=1),
        "The parts that a domain of numbers or moments is cut into where an exact value is too rare; each next level "
        "has half as many.",
    )


def _check(policy: Mapping[str, Any], problems: Problems) -> None:
    if policy["delay"] is None and policy["parameters"].window is None:
        problems.add("parameters.window", "must be given where policy.delay is not: it is how far back values count.")
    for name, column in policy["quasi_identifiers"].items():
        if isinstance(column.values, Interval) and column.values.learned:
            rule = "must be declared with the method z-anonymity: its levels must not depend on the data."
            problems.add(f"quasi_identifiers.{name}.domain", rule)


METHOD = Method(
    name="z-anonymity",
    summary="Releases each row at once, each value as exact as at least k persons had it within the window before.",
    parameters=ZAnonymityParameters,
    engine="crenel.engine.methods.z_anonymity.z_anonymity_engine:ZAnonymity",
    snapshot="crenel.engine.methods.z_anonymity:z_anonymity.1.avsc",
    keeps_l=False,
    value_by_value=True,
    ends_at_values=False,
    caution=(
        "z-anonymity counts the persons of each value by itself. Combinations are not protected: a row may be the only "
        "one with its values, and whoever knows two or three of them finds it. The other methods protect combinations."
    ),
    check=_check,
)
