"""The arrays of reusable boxes: how they are made, grown and stored. The kernels work on them (`reusable_boxes`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crenel.avro import packed, unpacked
from crenel.engine.kernels.reusable_boxes import BOX, ReusableBoxes
from crenel.policy import Policy

#: How the fields of a box are stored.
_STORED = {"group": "<i8", "persons": "<i8", "loss": "<f8", "arrivals": "<i8", "moment": "<i8"}
#: Boxes that there is space for at first, where that grows.
_FIRST_BOXES = 16


def empty_boxes(size: int, dimensions: int, histogram: tuple[int, ...] = (0, 0)) -> ReusableBoxes:
    """Return a ring for `size` boxes.

    Args:
        size: Boxes.
        dimensions: Quasi-identifiers.
        histogram: The shape of the histograms that t-closeness counts with: columns and values.
    """
    return ReusableBoxes(
        table=np.zeros(size, dtype=BOX),
        lo=np.empty((size, dimensions)),
        hi=np.empty((size, dimensions)),
        histogram=np.zeros((size, *histogram), dtype=np.int64),
        candidates=np.empty(size, dtype=np.int64),
        weight=np.empty(size),
    )


def grown_boxes(boxes: ReusableBoxes, wanted: int, most: int) -> ReusableBoxes:
    """Return a ring for at least `wanted` boxes, but at most `most`; it at least doubles, so that this is rare.

    While there are fewer than `most`, none was pushed out, and the oldest box has the first place.
    """
    size = len(boxes.table)
    if size >= min(wanted, most):
        return boxes
    grown = empty_boxes(min(max(wanted, 2 * size, _FIRST_BOXES), most), boxes.lo.shape[1], boxes.histogram.shape[1:])
    for name in ("table", "lo", "hi", "histogram"):
        getattr(grown, name)[:size] = getattr(boxes, name)
    return grown


def stored_boxes(boxes: ReusableBoxes, numbers: NDArray[Any]) -> dict[str, bytes]:
    """Return the boxes as they are stored, the oldest first."""
    count, oldest = int(numbers["reusable"][0]), int(numbers["reusable_oldest"][0])
    places = (oldest + np.arange(count)) % max(len(boxes.table), 1)
    return {
        "lo": packed(boxes.lo[places]),
        "hi": packed(boxes.hi[places]),
        "histogram": packed(boxes.histogram[places]),
        **{name: packed(boxes.table[name][places]) for name in _STORED},
    }


def count_stored(stored: Mapping[str, bytes]) -> int:
    """Return how many boxes were stored."""
    return len(unpacked(stored["group"], "<i8"))


def restore_boxes(boxes: ReusableBoxes, numbers: NDArray[Any], stored: Mapping[str, bytes]) -> None:
    """Fill an empty ring with stored boxes. If they are too many, the oldest are left out."""
    total = count_stored(stored)
    count = min(total, len(boxes.table))
    newest = slice(total - count, None)
    for name in ("lo", "hi"):
        getattr(boxes, name)[:count] = unpacked(stored[name], shape=(total, boxes.lo.shape[1]))[newest]
    boxes.histogram[:count] = unpacked(stored["histogram"], "<i8", (total, *boxes.histogram.shape[1:]))[newest]
    for name, dtype in _STORED.items():
        boxes.table[name][:count] = unpacked(stored[name], dtype, (total,))[newest]
    numbers["reusable"], numbers["reusable_oldest"] = count, 0


def is_weaker(record: Mapping[str, Any], policy: Policy) -> bool:
    """Return whether a snapshot's guarantee is weaker than the policy's: then its boxes must not be used again."""
    t = -1.0 if policy.t is None else policy.t
    return bool(record["k"] < policy.k or record["l"] < (policy.l or 0) or record.get("t", -1.0) > t >= 0.0)
