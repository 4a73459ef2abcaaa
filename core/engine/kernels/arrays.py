"""What every kernel needs to work on arrays."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from crenel.engine.kernels.compiler import bare

Array = NDArray[Any]

#: No slot, no place, no group: in arrays of numbers that are otherwise 0 or more.
NONE = -1


@bare
def copy_into(source: Array, target: Array) -> None:
    """Copy one row. A slice assignment would do the same, but takes a second to compile at every place."""
    for d in range(source.size):
        target[d] = source[d]
