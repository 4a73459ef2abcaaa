"""Policies whose ranges cannot be two columns: refused before a row is read."""

from __future__ import annotations

from crenel.pipelines.command_errors import CommandError
from crenel.policy import Policy
from crenel.transforms._publish.range_ends import is_ambiguous
from crenel.transforms._publish.range_form import Ranges, taken_names

__all__ = ["check"]


def check(policy: Policy, ranges: Ranges) -> None:
    """Refuse a form that the published columns cannot have.

    Raises:
        CommandError: two columns would have one name, or a missing value would look like a range without ends.
    """
    if ranges is not Ranges.COLUMNS:
        return
    problems = [
        f"--ranges columns makes a column {name!r}, which the policy publishes already. Rename the column, or use "
        "--ranges text."
        for name in taken_names(policy)
    ]
    problems += [
        f"--ranges columns cannot tell a missing {name!r} from a range without ends. Declare its domain in the policy, "
        "or use --ranges text."
        for name in policy.quasi_identifiers
        if is_ambiguous(policy, name)
    ]
    if problems:
        raise CommandError(*problems)
