"""What to change in a policy so that fewer rows are rejected: a sentence for each kind of reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from crenel.pipelines.console.sections import listed
from crenel.policy import Policy, columns

__all__ = ["rejection_advice"]

#: Why a text cannot be read, and the option that may help.
_UNREADABLE = {
    columns.NOT_A_NUMBER: "--decimal ','",
    columns.NOT_A_DATE: "--date-format '%d/%m/%Y'",
    columns.WRONG_TYPE: None,
}


def rejection_advice(policy: Policy, found: Iterable[tuple[str, str]]) -> str:
    """Advise what to change.

    Args:
        policy: The policy that the rows do not fit.
        found: The columns and the reasons of rejections.
    """
    by_reason: dict[str, list[str]] = {}
    for name, reason in found:
        by_reason.setdefault(reason, []).append(name)
    return " ".join(_sentences(policy, by_reason))


def _sentences(policy: Policy, by_reason: dict[str, list[str]]) -> Iterator[str]:
    qis = policy.quasi_identifiers
    lacking = by_reason.pop(columns.MISSING_QUASI_IDENTIFIER, [])
    placed = [name for name in lacking if qis[name].PLACES_MISSING and not policy.declaration.perturbs]
    if placed:
        learned = [name for name in placed if qis[name].geometry.widest()[1] == float("inf")]
        domain = f" {listed(learned)} also {'needs' if len(learned) == 1 else 'need'} a domain." if learned else ""
        yield (
            f"Set missing: category for {listed(placed)}: a missing value is then published as a value of its own, "
            f"under the same k.{domain}"
        )
    if set(lacking) - set(placed):
        yield f"Leave out {listed(sorted(set(lacking) - set(placed)))}, or fill in what is missing."
    sensitive = [name for name in by_reason.get(columns.MISSING, []) if name in policy.sensitive]
    if sensitive:
        yield f"Set missing: category for {listed(sensitive)}: a missing value is then one of the values."
    unknown = by_reason.pop(columns.UNKNOWN, [])
    if unknown:
        roots = [name for name in unknown if name in qis]
        yield f"Add the values that occur to {listed(unknown)}" + (
            ", or set unknown: root, which publishes the others as the root." if roots else "."
        )
    outside = by_reason.pop(columns.OUTSIDE, [])
    for field in ("domain", "bounds"):
        names = [name for name in outside if hasattr(qis.get(name), "bounds") == (field == "bounds")]
        if names:
            yield f"Widen the {field} of {listed(names)}."
    unreadable = {reason: by_reason.pop(reason) for reason in _UNREADABLE if reason in by_reason}
    if unreadable:
        names = list(dict.fromkeys(name for some in unreadable.values() for name in some))
        options = " or ".join(filter(None, (_UNREADABLE[reason] for reason in unreadable)))
        say = f", or say it, as in {options}" if options else ""
        yield (
            f"Look at how {listed(names)} {'is' if len(names) == 1 else 'are'} written{say}: "
            "numbers are 1234.5, moments 2020-01-31T12:00:00Z."
        )
    others = [name for reason, names in by_reason.items() for name in names if name not in sensitive]
    if others:
        yield f"Correct {listed(dict.fromkeys(others))} in the data, or leave out what need not be published."
