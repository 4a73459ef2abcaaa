"""The output buffer of a kernel, and the releases that are taken from it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crenel.engine.contract import Releases
from crenel.engine.kernels.output import RELEASE, Output


def empty_output(capacity: int, dimensions: int) -> Output:
    """Return an output buffer for `capacity` rows, each of which may be a release of its own."""
    return Output(
        rows=np.empty(capacity, dtype=np.int64),
        releases=np.empty(capacity, dtype=RELEASE),
        lo=np.empty((capacity, dimensions)),
        hi=np.empty((capacity, dimensions)),
    )


def take_releases(out: Output, numbers: NDArray[Any]) -> Releases:
    """Return the releases in the buffer, and empty it."""
    count, rows = int(numbers["out_releases"][0]), int(numbers["out_rows"][0])
    numbers["out_releases"] = numbers["out_rows"] = 0
    releases = out.releases[:count]
    return Releases(
        rows=out.rows[:rows].copy(),
        offsets=np.concatenate([np.zeros(1, dtype=np.int64), releases["end"]]),
        kind=releases["kind"].astype(np.int8),
        lo=out.lo[:count].copy(),
        hi=out.hi[:count].copy(),
        loss=releases["loss"].copy(),
        persons=releases["persons"].copy(),
        moment=releases["moment"].copy(),
        arrivals=releases["arrivals"].copy(),
        group=releases["group"].copy(),
    )
