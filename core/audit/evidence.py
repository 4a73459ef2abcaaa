"""What an audit is given: columns of numbers, read from files elsewhere. No value of a row is in a repr."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.encoding.rows import Rows

__all__ = [
    "CLUSTER",
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
CLUSTER, REUSE, SUPPRESSED, SAMPLED_OUT = range(4)


@dataclass(frozen=True, kw_only=True, eq=False)
class Output:
    """Rows as they were published, or suppressed, in the order of the file; in that of the trace, if there is one."""

    #: The different boxes, a row each and a column for each quasi-identifier; NaN if that is not published.
    lo: Floats = field(repr=False)
    hi: Floats = field(repr=False)
    #: For each row its box.
    box: npt.NDArray[np.integer[Any]] = field(repr=False)
    #: For each row the codes of its sensitive values, a column each.
    sensitive: Ints = field(repr=False)
    #: For each row a number that is the same where all that leaves as it is is the same.
    kept: Ints = field(repr=False)
    #: The columns of the file.
    columns: tuple[str, ...]

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.box)


@dataclass(frozen=True, kw_only=True, eq=False)
class Input:
    """The rows that went in, in the order of the files."""

    #: Those that fit the policy.
    rows: Rows
    #: As `Output.kept`.
    kept: Ints = field(repr=False)
    #: Their places among all rows.
    number: Ints = field(repr=False)
    #: How many rows there are, with those that were rejected.
    total: int

    def __len__(self) -> int:
        """Count the rows that fit."""
        return len(self.number)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """What became of each row, by shard and release."""

    #: Its shard, and the number of its release there.
    shard: Ints = field(repr=False)
    release: Ints = field(repr=False)
    #: 0 cluster, 1 reuse, 2 suppressed, 3 sampled out.
    kind: Ints = field(repr=False)
    #: Its place in the input, and in the order of its shard.
    row: Ints = field(repr=False)
    arrival: Ints = field(repr=False)
    #: The clock at its release, in microseconds of event time; None if there is none.
    moment: Ints | None = field(repr=False)
    #: How many rows of the shard had arrived then.
    arrivals: Ints = field(repr=False)
    #: Releases of one number share a generalization that was decided once.
    group: Ints = field(repr=False)

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.row)


@dataclass(frozen=True, kw_only=True, eq=False)
class Reported:
    """What the run said of its releases, in their order."""

    shard: Ints = field(repr=False)
    rows: Ints = field(repr=False)
    persons: Ints = field(repr=False)
    loss: Floats = field(repr=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """All of it. What was not given is None, and what it would show is not known."""

    published: Output
    input: Input | None = None
    suppressed: Output | None = None
    trace: Trace | None = None
    reported: Reported | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Published:
    """What left, release by release, in columns. `None` where it is not known."""

    #: Row numbers (arrivals, counted from 0), release after release.
    rows: Ints = field(repr=False)
    #: Boxes, one row per release and one column per quasi-identifier; NaN if that is not published.
    lo: Floats = field(repr=False)
    hi: Floats = field(repr=False)
    #: Where each release begins in `rows`, and the end. Without it each row stands alone, and the
    #: order in which they left is taken as unknown.
    offsets: Ints | None = field(default=None, repr=False)
    #: 0 cluster, 1 reuse, 2 suppressed, 3 sampled out. Without it, a release of the widest box in
    #: every quasi-identifier is taken as suppressed, any other as published.
    kind: Ints | None = field(default=None, repr=False)
    #: As reported by who published; the persons are those of the group as it was decided.
    loss: Floats | None = field(default=None, repr=False)
    persons: Ints | None = field(default=None, repr=False)
    #: The clock (event time, microseconds) at the release.
    moment: Ints | None = field(default=None, repr=False)
    #: How many rows had been pushed at the release.
    arrivals: Ints | None = field(default=None, repr=False)
    #: Releases of one number share a generalization that was decided once.
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
            message = "published: lo and hi must have one row per release and one column per QI."
            raise ValueError(message)
        for name in ("kind", "loss", "persons", "moment", "arrivals", "group"):
            value = getattr(self, name)
            if value is not None and value.shape != (m,):
                message = f"published: {name} must have one value per release."
                raise ValueError(message)

    def __len__(self) -> int:
        """The number of releases."""
        return len(self.rows) if self.offsets is None else len(self.offsets) - 1

    @classmethod
    def of(cls, releases: Any) -> Published:
        """The view of anything that has these columns as attributes, an engine's releases say."""
        if isinstance(releases, cls):
            return releases
        optional = ("offsets", "kind", "loss", "persons", "moment", "arrivals", "group")
        return cls(
            rows=releases.rows,
            lo=releases.lo,
            hi=releases.hi,
            **{name: getattr(releases, name, None) for name in optional},
        )
