"""The two ends of a published range, as columns: their names, and what a policy tells of their types.

An audit reads such columns back without Beam, so nothing here imports it.
"""

from __future__ import annotations

from typing import Any

from crenel.policy import Policy
from crenel.policy.kinds.gap_rules import Missing
from crenel.policy.quasi_identifiers import Datetime, Numeric

__all__ = ["has_whole_ends", "has_whole_step", "is_ambiguous", "is_of_days", "range_ends"]

#: Microseconds of a day.
_DAY = 86_400_000_000


def range_ends(name: str) -> tuple[str, str]:
    """Name the two columns of a range."""
    return f"{name}_lo", f"{name}_hi"


def is_of_days(qi: Any) -> bool:
    """Whether ranges of moments end at midnight (UTC), whatever the rows are."""
    if type(qi) is not Datetime or qi.cells is None:
        return False
    return not any(micros % _DAY for micros in (qi.cells.numerator, *(qi.cells.domain or ())))


def has_whole_step(qi: Any) -> bool:
    """Whether ranges end at whole numbers, whatever the rows are."""
    return type(qi) is Numeric and qi.step is not None and has_whole_ends(qi)


def has_whole_ends(qi: Any) -> bool:
    """Whether ranges of whole numbers end at whole numbers."""
    ends = [*(qi.domain or ()), *([] if qi.step is None else [qi.step])] if type(qi) is Numeric else [0.5]
    return all(float(end).is_integer() for end in ends)


def is_ambiguous(policy: Policy, name: str) -> bool:
    """Whether two empty ends could mean either a missing value or a range without ends."""
    qi = policy.quasi_identifiers[name]
    return isinstance(qi, (Numeric, Datetime)) and qi.domain is None and policy.missing(name) is not Missing.REJECT
