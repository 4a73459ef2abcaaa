"""Encoded rows, as an engine takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Rows"]


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """Rows as columns of numbers, in the order of arrival.

    Args:
        qi: float64 coordinates, one row each and one column per quasi-identifier. NaN marks a missing value, which few
            methods take.
        person: int64, equal for rows of the same person.
        sensitive: int64 codes, one row each and one column per sensitive column.
        time: int64, event time in microseconds.

    Raises:
        TypeError: A column is not a numpy array of its type and dimensions.
        ValueError: The columns differ in length, or are not contiguous.
    """

    qi: NDArray[np.float64]
    person: NDArray[np.int64]
    sensitive: NDArray[np.int64]
    time: NDArray[np.int64]

    def __post_init__(self) -> None:
        _check("qi", self.qi, np.float64, 2)
        _check("person", self.person, np.int64, 1)
        _check("sensitive", self.sensitive, np.int64, 2)
        _check("time", self.time, np.int64, 1)
        counts = {len(self.qi), len(self.person), len(self.sensitive), len(self.time)}
        if len(counts) > 1:
            msg = (
                f"rows: qi, person, sensitive and time must be of one length, not {len(self.qi)}, "
                f"{len(self.person)}, {len(self.sensitive)}, {len(self.time)}."
            )
            raise ValueError(msg)

    def __len__(self) -> int:
        return len(self.person)

    def __repr__(self) -> str:
        # Show no values: a repr ends up in logs.
        return f"Rows({len(self)} rows)"

    def take(self, indices: NDArray[np.integer[Any]]) -> Rows:
        """Return the rows at these positions, in this order."""
        return Rows(
            np.ascontiguousarray(self.qi[indices]),
            self.person[indices],
            np.ascontiguousarray(self.sensitive[indices]),
            self.time[indices],
        )

    def slice(self, start: int, stop: int) -> Rows:
        """Return the rows from `start` up to, not including, `stop`. They share memory with these."""
        part = slice(start, stop)
        return Rows(self.qi[part], self.person[part], self.sensitive[part], self.time[part])


def _check(name: str, array: Any, dtype: type, dimensions: int) -> None:
    if not isinstance(array, np.ndarray):
        msg = f"rows: {name} must be a numpy array, not {type(array).__name__}."
        raise TypeError(msg)
    if array.dtype != dtype or array.ndim != dimensions:
        msg = f"rows: {name} must be {np.dtype(dtype)} of {dimensions} dimensions, not {array.dtype} of {array.ndim}."
        raise TypeError(msg)
    if not array.flags.c_contiguous:
        msg = f"rows: {name} must be C-contiguous."
        raise ValueError(msg)
