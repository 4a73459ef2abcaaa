"""Reusable boxes: generalizations that were published and that later rows may be published under.

They lie in a ring: a new box takes the place of the oldest when the ring is full. Functions take `numbers`, an array of
one element that has the fields `reusable` (how many boxes there are), `reusable_oldest` (where the oldest is),
`arrivals` and `clock`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array, copy_into
from crenel.engine.kernels.box_geometry import inside
from crenel.engine.kernels.compiler import bare, kernel

BOX = np.dtype(
    [
        ("group", "i8"),  # number of the release that published it first
        ("persons", "i8"),  # distinct persons of that release
        ("loss", "f8"),  # when it was published
        ("arrivals", "i8"),  # rows that had arrived then
        ("moment", "i8"),  # the clock then
        ("present", "i8"),  # where rows may lack quasi-identifiers: those of the box, one bit each
    ]
)


class ReusableBoxes(NamedTuple):
    """The ring."""

    table: Any  # BOX
    lo: Any  # [place, quasi-identifier]
    hi: Any
    histogram: Any  # [place, column, value]: with t, the sensitive values of all rows published under it
    candidates: Any  # scratch space: places
    weight: Any  # scratch space: one number for each candidate


@bare
def place_by_age(boxes: ReusableBoxes, numbers: Array, age: int) -> int:
    """Return the place of a box: 0 is the age of the oldest, then 1, 2, ..."""
    return (numbers[0].reusable_oldest + age) % boxes.table.size


@bare
def same_box(boxes: ReusableBoxes, place: int, lo: Array, hi: Array) -> bool:
    """Return whether a box has these ends. A missing quasi-identifier (NaN) is missing in both."""
    for d in range(lo.size):
        if np.isnan(lo[d]):
            if not np.isnan(boxes.lo[place, d]):
                return False
        elif boxes.lo[place, d] != lo[d] or boxes.hi[place, d] != hi[d]:
            return False
    return True


@bare
def find_box(boxes: ReusableBoxes, numbers: Array, lo: Array, hi: Array) -> int:
    """Return the place of the box that has these ends, or NONE."""
    for age in range(numbers[0].reusable):
        place = place_by_age(boxes, numbers, age)
        if same_box(boxes, place, lo, hi):
            return place
    return NONE


@bare
def containing(boxes: ReusableBoxes, numbers: Array, row: Array) -> int:
    """Write the places of the boxes that contain the row to `candidates`, oldest first, and return how many."""
    found = 0
    for age in range(numbers[0].reusable):
        place = place_by_age(boxes, numbers, age)
        if inside(boxes.lo[place], boxes.hi[place], row):
            boxes.candidates[found] = place
            found += 1
    return found


@kernel
def find_containing(boxes: ReusableBoxes, numbers: Array, row: Array) -> int:
    """Do the same as `containing`, for callers in Python."""
    return containing(boxes, numbers, row)


@bare
def forget_oldest(boxes: ReusableBoxes, numbers: Array) -> None:
    """Take the oldest box out of the ring."""
    n = numbers[0]
    n.reusable_oldest = (n.reusable_oldest + 1) % boxes.table.size
    n.reusable -= 1


@bare
def new_place(boxes: ReusableBoxes, numbers: Array) -> int:
    """Return the place for a new box, which is the oldest box's if the ring is full."""
    n = numbers[0]
    if n.reusable == boxes.table.size:
        forget_oldest(boxes, numbers)
    n.reusable += 1
    return place_by_age(boxes, numbers, n.reusable - 1)


@bare
def write_box(
    boxes: ReusableBoxes, numbers: Array, place: int, lo: Array, hi: Array, loss: float, persons: int, group: int
) -> None:
    """Write a box that was published now. Its histogram is the caller's to write."""
    copy_into(lo, boxes.lo[place])
    copy_into(hi, boxes.hi[place])
    entry = boxes.table[place]
    entry.loss = loss
    entry.persons = persons
    entry.group = group
    entry.arrivals = numbers[0].arrivals
    entry.moment = numbers[0].clock


@bare
def write_histogram(boxes: ReusableBoxes, place: int, histogram: Array) -> None:
    """Write the sensitive values of the rows that are published under a box."""
    for j in range(histogram.shape[0]):
        copy_into(histogram[j], boxes.histogram[place, j])


@kernel
def keep_box(boxes: ReusableBoxes, numbers: Array, lo: Array, hi: Array, loss: float, persons: int, group: int) -> None:
    """Add a box, unless there is one with the same ends."""
    if boxes.table.size > 0 and find_box(boxes, numbers, lo, hi) == NONE:
        write_box(boxes, numbers, new_place(boxes, numbers), lo, hi, loss, persons, group)
