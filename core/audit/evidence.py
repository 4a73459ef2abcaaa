"""What an audit is given: columns of numbers, read from files elsewhere. No value of a row is in a repr."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from crenel.encoding.rows import Rows

__all__ = ["Evidence", "Input", "Output", "Reported", "Trace"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


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
