"""The releases that a kernel writes, until Python takes them.

Functions take `numbers`, an array of one element that has the fields `clock`, `arrivals`, `released` (releases so far),
`out_rows` and `out_releases` (how much of the buffer is used).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array, copy_into
from crenel.engine.kernels.compiler import bare

#: Why rows leave: the numbers of `contract.Kind`.
CLUSTER, REUSE, SUPPRESSED, SAMPLED_OUT = 0, 1, 2, 3


RELEASE = np.dtype(
    [
        ("kind", "i8"),
        ("loss", "f8"),
        ("persons", "i8"),
        ("moment", "i8"),
        ("arrivals", "i8"),
        ("group", "i8"),
        ("end", "i8"),
    ]
)


class Output(NamedTuple):
    """The output buffer: the numbers of the rows, and the releases that they are in."""

    rows: Any
    releases: Any  # RELEASE
    lo: Any
    hi: Any


@bare
def write_row(out: Output, numbers: Array, number: int) -> None:
    """Write one row of the release that is being written."""
    out.rows[numbers[0].out_rows] = number
    numbers[0].out_rows += 1


@bare
def write_release(
    out: Output, numbers: Array, kind: int, lo: Array, hi: Array, loss: float, persons: int, group: int
) -> None:
    """Close the release whose rows were just written. The group NONE stands for the release's own number."""
    n = numbers[0]
    copy_into(lo, out.lo[n.out_releases])
    copy_into(hi, out.hi[n.out_releases])
    release = out.releases[n.out_releases]
    release.kind = kind
    release.loss = loss
    release.persons = persons
    release.moment = n.clock
    release.arrivals = n.arrivals
    release.group = n.released if group == NONE else group
    release.end = n.out_rows
    n.out_releases += 1
    n.released += 1
