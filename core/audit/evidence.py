"""The evidence of an audit, as columns of numbers. The caller reads it from files. No repr shows a value of a row."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.encoding.rows import Rows

__all__ = [
    "CLUSTER",
    "LEFT_OUT",
    "REUSE",
    "SAMPLED_OUT",
    "SUPPRESSED",
    "Evidence",
    "Input",
    "Output",
    "Published",
    "Reported",
    "Trace",
]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: The kinds of release. The engine uses the same numbers; they are written again here so that the audit shares no code
#: with it.
CLUSTER, REUSE, SUPPRESSED, SAMPLED_OUT, LEFT_OUT = range(5)


@dataclass(frozen=True, kw_only=True, eq=False)
class Output:
    """Published or suppressed rows, in the order of their file; with a trace, in the order of the trace."""

    #: The distinct boxes, one row each and one column per quasi-identifier; NaN if that is not published.
    lo: Floats = field(repr=False)
    hi: Floats = field(repr=False)
    #: The number of each row's box.
    box: npt.NDArray[np.integer[Any]] = field(repr=False)
    #: The codes of each row's sensitive values, one column each.
    sensitive: Ints = field(repr=False)
    #: For each row, a number that is equal where all values that leave unchanged are equal.
    kept: Ints = field(repr=False)
    #: The columns of the file.
    columns: tuple[str, ...]

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.box)


@dataclass(frozen=True, kw_only=True, eq=False)
class Input:
    """The rows that went in, in the order of their files."""

    #: The rows that fit the policy.
    rows: Rows
    #: For each of them, the same number as in `Output.kept`.
    kept: Ints = field(repr=False)
    #: Their positions among all rows.
    number: Ints = field(repr=False)
    #: The number of all rows, including rejected ones.
    total: int
    #: For each row that fits, a number that is equal where the values of `within` are; None without `within`.
    apart: Ints | None = field(default=None, repr=False)

    def __len__(self) -> int:
        """Count the rows that fit the policy."""
        return len(self.number)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """How each row left, by shard and release."""

    #: The shard of each row, and the number of its release in that shard.
    shard: Ints = field(repr=False)
    release: Ints = field(repr=False)
    #: The kind of the release: `CLUSTER`, `REUSE`, `SUPPRESSED`, `SAMPLED_OUT` or `LEFT_OUT`.
    kind: Ints = field(repr=False)
    #: The position of the row in the input, and among the arrivals of its shard.
    row: Ints = field(repr=False)
    arrival: Ints = field(repr=False)
    #: The clock at the release, in microseconds of event time; None if there is no clock.
    moment: Ints | None = field(repr=False)
    #: How many rows of the shard had arrived by then.
    arrivals: Ints = field(repr=False)
    #: Releases with the same number share a generalization that was decided once.
    group: Ints = field(repr=False)

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.row)

    def take(self, places: npt.NDArray[np.intp]) -> Trace:
        """Return the rows at these places, in this order."""
        taken: dict[str, Any] = {}
        for name in (column.name for column in fields(self)):
            column = getattr(self, name)
            taken[name] = None if column is None else column[places]
        return Trace(**taken)


@dataclass(frozen=True, kw_only=True, eq=False)
class Reported:
    """The figures that the run reported for its releases, in their order."""

    shard: Ints = field(repr=False)
    rows: Ints = field(repr=False)
    persons: Ints = field(repr=False)
    loss: Floats = field(repr=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """All evidence of one audit. None stands for what was not given."""

    published: Output
    input: Input | None = None
    suppressed: Output | None = None
    trace: Trace | None = None
    reported: Reported | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Published:
    """The releases of one shard, in columns. None stands for what is unknown."""

    #: Row numbers (arrivals, counted from 0), release after release.
    rows: Ints = field(repr=False)
    #: Boxes, one row per release and one column per quasi-identifier; NaN if that is not published.
    lo: Floats = field(repr=False)
    hi: Floats = field(repr=False)
    #: Where each release begins in `rows`, and the end. Without it, every row is a release of its own, and the order
    #: of the releases is unknown.
    offsets: Ints | None = field(default=None, repr=False)
    #: `CLUSTER`, `REUSE`, `SUPPRESSED`, `SAMPLED_OUT` or `LEFT_OUT`. Without it, a release with the widest box in every
    #: quasi-identifier counts as suppressed, and any other as published.
    kind: Ints | None = field(default=None, repr=False)
    #: The figures that the engine reported; the persons are those of the group when it was decided.
    loss: Floats | None = field(default=None, repr=False)
    persons: Ints | None = field(default=None, repr=False)
    #: The clock (event time, microseconds) at the release.
    moment: Ints | None = field(default=None, repr=False)
    #: How many rows had been pushed by the release.
    arrivals: Ints | None = field(default=None, repr=False)
    #: Releases with the same number share a generalization that was decided once.
    group: Ints | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        columns = {"rows": np.int64, "lo": np.float64, "hi": np.float64, "offsets": np.int64}
        columns |= dict.fromkeys(("kind", "persons", "moment", "arrivals", "group"), np.int64)
        for name, dtype in (columns | {"loss": np.float64}).items():
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, np.asarray(value, dtype=dtype))
        self._check_shapes()

    def _check_shapes(self) -> None:
        if self.offsets is not None and not (
            self.offsets.size
            and self.offsets[0] == 0
            and self.offsets[-1] == len(self.rows)
            and bool(np.all(np.diff(self.offsets) >= 0))
        ):
            message = "published: offsets must rise from 0 to the number of rows."
            raise ValueError(message)
        m = len(self)
        if self.lo.ndim != 2 or self.hi.shape != self.lo.shape or len(self.lo) != m:
            message = "published: lo and hi must have one row per release and one column per quasi-identifier."
            raise ValueError(message)
        for name in ("kind", "loss", "persons", "moment", "arrivals", "group"):
            value = getattr(self, name)
            if value is not None and value.shape != (m,):
                message = f"published: {name} must have one value per release."
                raise ValueError(message)

    def __len__(self) -> int:
        """Count the releases."""
        return len(self.rows) if self.offsets is None else len(self.offsets) - 1

    @classmethod
    def of(cls, releases: Any) -> Published:
        """Take any object that has these columns as attributes, such as an engine's releases."""
        if isinstance(releases, cls):
            return releases
        optional = ("offsets", "kind", "loss", "persons", "moment", "arrivals", "group")
        return cls(
            rows=releases.rows,
            lo=releases.lo,
            hi=releases.hi,
            **{name: getattr(releases, name, None) for name in optional},
        )
