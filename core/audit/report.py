"""The result of an audit: counts of broken promises, and the cost of anonymity.

A `Report` holds counts only, never a value of a row, so it can be logged. A promise that the evidence cannot decide
counts as not checked, never as kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from crenel.audit.differential_privacy import Statement

__all__ = ["Report"]

#: How rows leave that no crowd hides.
_FEWER = "fewer than k persons at one moment"

# Promises about a row's own values, and about domains learned from them. Methods that perturb do not make them.
_NOT_OF_PERTURBED = ("rows outside their box", "releases that report a wrong loss")


@dataclass(frozen=True, kw_only=True)
class Report:
    """The counts of an audit. None means that the evidence could not decide."""

    #: The rows that were pushed, and how they left.
    rows: int
    published: int
    suppressed: int
    sampled_out: int
    #: Rows that were left out because of `once_per`; and those among them for which there was no reason.
    left_out: int = 0
    left_out_wrongly: int = 0
    #: Published values that fewer than k persons had in the window before; only for methods that count value by value.
    rare_values: int = 0
    #: Published rows that follow another published row of their person within `once_per`.
    too_soon: int = 0
    #: Persons with several boxes that have fewer than k persons in common, against `together`.
    lacking_company: int | None = 0
    #: Rows that have not left yet, while the stream goes on.
    held: int
    #: Rows that never left.
    lost: int
    #: Rows that left more than once.
    twice: int
    #: Row numbers that left but were never pushed.
    unknown: int
    #: Rows that left before they had arrived.
    early: int | None
    #: Rows that left with fewer than k persons at one moment: in a release of fewer persons, or as a star. None if it
    #: is unknown which rows left together.
    alone: int | None
    #: Rows of releases that contain a person more than once; and rows to which either applies.
    repeated: int | None
    no_crowd: int | None
    #: Releases that left when fewer than k persons had been published under their box.
    small_groups: int
    #: Releases that left when fewer than l values had been published under their box, by sensitive column.
    low_diversity: Mapping[str, int]
    #: Releases whose group was further than t from the stream, by sensitive column.
    far: Mapping[str, int | None]
    #: Rows outside the box they were published under. A method that perturbs does not promise to contain them.
    outside: int
    #: Releases with a box that the geometry cannot publish.
    illegal: int
    #: Rows that left after their `delay`.
    late: int | None
    #: Rows that left after their `delay_rows`.
    late_rows: int | None
    #: Releases that report another loss, or another number of persons, than the audit computes.
    wrong_loss: int | None
    wrong_persons: int | None
    #: Suppressed releases whose box is not the widest.
    star_not_widest: int
    #: Mean loss over the published rows. A suppressed row loses everything: 1.0.
    loss: float | None
    #: Whether the policy promises that every published row leaves in a crowd.
    crowd: bool = False
    #: Whether boxes cover perturbed values.
    perturbed: bool = False
    #: The differential privacy that the policy provides, and its proof; None if there is none.
    differential: Statement | None = None
    #: Mean uncertainty penalty of the published rows: the shares of the domains that the box covers, added up over the
    #: quasi-identifiers without weights. The penalty of a suppressed row is the number of quasi-identifiers.
    uncertainty_penalty: float | None = None
    #: The same, growing with delay: each row's penalty times (1 + alpha)^delay.
    information_loss: float | None = None
    #: Mean delay of the published rows in instants: arrivals, or spans of event time.
    mean_delay: float | None = None

    @property
    def ok(self) -> bool:
        """Whether every promise was checked and kept."""
        return not self.problems() and not self.unchecked()

    def problems(self) -> list[str]:
        """Return one sentence for each kind of breach."""
        return [f"{count} {text}." for text, count in self._counts() if count]

    def unchecked(self) -> list[str]:
        """Return one sentence for each promise that the evidence cannot decide."""
        return [f"Not checked: {text}." for text, count in self._counts() if count is None]

    def _counts(self) -> list[tuple[str, int | None]]:
        values = [
            (f"releases of too few distinct values of sensitive column {name}", count)
            for name, count in self.low_diversity.items()
        ]
        distances = [
            (f"releases further than t from the stream in sensitive column {name}", far)
            for name, far in self.far.items()
        ]
        crowd = [
            (f"rows that left with {_FEWER}", self.alone),
            ("rows of releases in which a person is more than once", self.repeated),
        ]
        promises = [
            *(crowd if self.crowd else []),
            ("rows published within once_per of another row of their person", self.too_soon),
            ("persons whose boxes together leave fewer than k persons", self.lacking_company),
            ("rows left out without a reason", self.left_out_wrongly),
            ("rows lost", self.lost),
            ("rows that left more than once", self.twice),
            ("row numbers that were never pushed", self.unknown),
            ("rows that left before they arrived", self.early),
            ("releases of fewer than k persons", self.small_groups),
            ("published values that fewer than k persons had within the window", self.rare_values),
            *values,
            *distances,
            ("rows outside their box", self.outside),
            ("releases under a box that cannot be published", self.illegal),
            ("rows later than delay", self.late),
            ("rows later than delay_rows", self.late_rows),
            ("releases that report a wrong loss", self.wrong_loss),
            ("releases that report a wrong number of persons", self.wrong_persons),
            ("suppressed releases that are not fully generalized", self.star_not_widest),
        ]
        return [(text, count) for text, count in promises if not (self.perturbed and text in _NOT_OF_PERTURBED)]

    def __str__(self) -> str:
        alone = "unknown" if self.alone is None else self.alone
        names = ["rows", "published", "suppressed", "sampled_out", "held"]
        names += ["left_out"] if self.left_out else []
        lines = [f"{alone} rows left with {_FEWER}."]
        lines += [f"{name.replace('_', ' '):<12}{getattr(self, name):>12}" for name in names]
        average = "unknown" if self.loss is None else f"{self.loss:.6f}"
        lines.append(f"{'loss':<12}{average:>12}")
        if self.differential is not None:
            lines.append(str(self.differential))
        costs = ("uncertainty_penalty", "information_loss", "mean_delay")
        lines += [
            f"{name.replace('_', ' '):<20}{value:>16.6f}"
            for name in costs
            if (value := getattr(self, name)) is not None
        ]
        found = self.problems() + self.unchecked()
        return "\n".join(lines + (found or ["All promises kept."]))
