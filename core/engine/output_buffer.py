"""Releases as kernels write them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crenel.engine.contract import Releases
from crenel.engine.kernels.common import RELEASE, Out


def room(capacity: int, dimensions: int) -> Out:
    """Room for the releases of so many rows."""
    return Out(
        rows=np.empty(capacity, dtype=np.int64),
        releases=np.empty(capacity, dtype=RELEASE),
        lo=np.empty((capacity, dimensions)),
        hi=np.empty((capacity, dimensions)),
    )


def taken(out: Out, numbers: NDArray[Any]) -> Releases:
    """Take what was written, so that there is room again."""
    releases, leaving = int(numbers["out_releases"][0]), int(numbers["out_rows"][0])
    numbers["out_releases"] = numbers["out_rows"] = 0
    written = out.releases[:releases]
    return Releases(
        rows=out.rows[:leaving].copy(),
        offsets=np.concatenate([np.zeros(1, dtype=np.int64), written["end"]]),
        kind=written["kind"].astype(np.int8),
        lo=out.lo[:releases].copy(),
        hi=out.hi[:releases].copy(),
        loss=written["loss"].copy(),
        persons=written["persons"].copy(),
        moment=written["moment"].copy(),
        arrivals=written["arrivals"].copy(),
        group=written["group"].copy(),
    )
