"""Generalizations that were published and may be used again."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crenel.avro import packed, unpacked
from crenel.engine.kernels import common

Floats = NDArray[np.float64]


class Box(NamedTuple):
    """A generalization, the release that it was published by first, and the persons of that."""

    lo: Floats
    hi: Floats
    group: int
    persons: int


class Pool:
    """At most `size` boxes, oldest first; a new one pushes out the oldest, and one that is there is not added again."""

    def __init__(self, dimensions: int, size: int) -> None:
        self._dimensions = dimensions
        self._size = size
        self._boxes: dict[bytes, Box] = {}
        #: The boxes by place, and their ends as arrays; None if they are to be made anew.
        self._arrays: tuple[list[Box], Floats, Floats] | None = None

    def __getitem__(self, place: int) -> Box:
        return self._listed()[0][place]

    def add(self, lo: Floats, hi: Floats, group: int, persons: int) -> None:
        """Keep a box."""
        name = packed(lo) + packed(hi)
        if name in self._boxes or self._size == 0:
            return
        if len(self._boxes) == self._size:
            del self._boxes[next(iter(self._boxes))]
        self._boxes[name] = Box(lo.copy(), hi.copy(), group, persons)
        self._arrays = None

    def containing(self, row: Floats) -> NDArray[np.int64]:
        """The places of the boxes that contain the row."""
        _, lo, hi = self._listed()
        return np.flatnonzero(((lo <= row) & (row <= hi)).all(axis=1))

    def losses(self, space: common.Space, places: NDArray[np.int64]) -> Floats:
        """The losses of boxes, by the domains of now."""
        _, lo, hi = self._listed()
        total = np.zeros(len(places))
        for d, (scale, cell) in enumerate(space.dimensions[["scale", "cell"]].tolist()):
            total += scale * (hi[places, d] - lo[places, d] + cell)
        return total

    def _listed(self) -> tuple[list[Box], Floats, Floats]:
        if self._arrays is None:
            boxes = list(self._boxes.values())
            lo, hi = np.array([box.lo for box in boxes]), np.array([box.hi for box in boxes])
            shape = (len(boxes), self._dimensions)
            self._arrays = boxes, lo.reshape(shape), hi.reshape(shape)
        return self._arrays

    def packed(self) -> dict[str, bytes]:
        """All of it as bytes."""
        boxes, lo, hi = self._listed()
        return {
            "lo": packed(lo),
            "hi": packed(hi),
            "group": packed(np.array([box.group for box in boxes], dtype=np.int64)),
            "persons": packed(np.array([box.persons for box in boxes], dtype=np.int64)),
        }

    def restore(self, stored: dict[str, Any], *, forget: bool) -> None:
        """Become what `packed` wrote, or empty."""
        self._boxes, self._arrays = {}, None
        if forget:
            return
        groups = unpacked(stored["group"], "<i8").tolist()
        persons = unpacked(stored["persons"], "<i8").tolist()
        shape = (len(groups), self._dimensions)
        los, his = unpacked(stored["lo"]).reshape(shape), unpacked(stored["hi"]).reshape(shape)
        for lo, hi, group, count in zip(los, his, groups, persons, strict=True):
            self.add(lo, hi, group, count)
