"""Looks for persons inside a box."""

from __future__ import annotations

import numpy as np

from crenel.engine.kernels.arrays import Array
from crenel.engine.kernels.compiler import kernel
from crenel.engine.kernels.interpreter import instead_of


@kernel
def find_inside(lo: Array, hi: Array, columns: Array, known: int, enough: int, found: Array) -> int:
    """Write the places of points inside a box, in order, and return how many there are, or `enough`.

    The points are the first `known` ones of `columns`, each quasi-identifier in one line of memory.
    """
    count = 0
    for i in range(known):
        d = 0
        while d < lo.size and lo[d] <= columns[d, i] <= hi[d]:
            d += 1
        if d == lo.size:
            found[count] = i
            count += 1
            if count == enough:
                break
    return count


@instead_of(find_inside)
def _find_inside_in_numpy(lo: Array, hi: Array, columns: Array, known: int, enough: int, found: Array) -> int:
    places = np.arange(known)
    for d in range(lo.size):
        column = columns[d, places]
        places = places[(lo[d] <= column) & (column <= hi[d])]
    places = places[:enough]
    found[: len(places)] = places
    return len(places)
