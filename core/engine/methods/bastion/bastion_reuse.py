"""Bastion's reusable boxes: an index that finds those that contain a row, and the draw of one of them."""

from __future__ import annotations

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array
from crenel.engine.kernels.box_geometry import Space, inside
from crenel.engine.kernels.closeness import stays_within_t
from crenel.engine.kernels.compiler import bare
from crenel.engine.kernels.generator import unit
from crenel.engine.kernels.reusable_boxes import ReusableBoxes, new_place, same_box, write_box, write_histogram
from crenel.engine.methods.bastion.bastion_box import copy_row
from crenel.engine.methods.bastion.bastion_state import BINS, BoxIndex, State

#: A box whose loss exceeds the best one's by this share of the average is no more likely to be drawn than the widest.
_MUCH_MORE = 0.25
#: A number in which all runs of six bits differ: multiplying by a power of two finds the place of its bit.
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_BIT_OF = np.zeros(64, dtype=np.int64)
_BIT_OF[[(int(_DE_BRUIJN) << place & 2**64 - 1) >> 58 for place in range(64)]] = range(64)


@bare
def _bin_of(bounds: Array, d: int, x: float) -> int:
    """Return the bin of a value. It grows with the value."""
    place = (x - bounds[0, d]) * bounds[2, d]
    if not place > 0.0:
        return 0
    return np.int64(place) if place < BINS else BINS - 1


@bare
def _index_box(boxes: ReusableBoxes, index: BoxIndex, place: int) -> None:
    """Write in which bins the box at a place is."""
    word, bit = place // 64, np.uint64(1) << np.uint64(place % 64)
    for d in range(index.bounds.shape[1]):
        first = _bin_of(index.bounds, d, boxes.lo[place, d])
        last = _bin_of(index.bounds, d, boxes.hi[place, d])
        for i in range(BINS):
            if first <= i <= last:
                index.boxes[d, i, word] |= bit
            else:
                index.boxes[d, i, word] &= ~bit


@bare
def _cover_domains(space: Space, boxes: ReusableBoxes, index: BoxIndex, count: int) -> None:
    """Let the bins cover the domains. If these have grown, all boxes are indexed again."""
    bounds, same = index.bounds, True
    for d in range(bounds.shape[1]):
        lo, hi = space.dimensions[d].domain_lo, space.dimensions[d].domain_hi
        if bounds[0, d] != lo or bounds[1, d] != hi:
            bounds[0, d], bounds[1, d] = lo, hi
            bounds[2, d] = BINS / (hi - lo) if hi > lo else 0.0
            same = False
    if not same:
        for place in range(count):
            _index_box(boxes, index, place)


@bare
def _reverse(items: Array, start: int, stop: int) -> None:
    """Reverse the items from `start` to `stop`."""
    while start < stop - 1:
        stop -= 1
        items[start], items[stop] = items[stop], items[start]
        start += 1


@bare
def containing(s: State, row: Array) -> int:
    """Write the places of the boxes that contain the row to `candidates`, oldest first; return how many there are."""
    n, reusable, index = s.numbers[0], s.reusable, s.index
    boxes_of_bin, candidates = index.boxes, reusable.candidates
    _cover_domains(s.terrain.space, reusable, index, n.reusable)
    found, newer = 0, 0
    for d in range(row.size):
        index.bins[d] = _bin_of(index.bounds, d, row[d])
    for word in range((n.reusable + 63) // 64):
        covers = boxes_of_bin[0, index.bins[0], word]
        for d in range(1, row.size):
            covers &= boxes_of_bin[d, index.bins[d], word]
        while covers != 0:
            lowest = covers & (~covers + np.uint64(1))
            covers ^= lowest
            at = word * 64 + _BIT_OF[(lowest * _DE_BRUIJN) >> np.uint64(58)]
            if inside(reusable.lo[at], reusable.hi[at], row):
                candidates[found] = at
                found += 1
                newer += at < n.reusable_oldest
    # Rotate from the order of places to that of age: the ring begins at the oldest.
    _reverse(candidates, 0, newer)
    _reverse(candidates, newer, found)
    _reverse(candidates, 0, found)
    return found


@bare
def keep_box(s: State, loss: float, persons: int, group: int) -> None:
    """Keep the box that was published, in place of an equal one if there is one. Its histogram is in scratch space."""
    if s.reusable.table.size == 0:
        return
    lo, hi = s.box[0], s.box[1]
    place = NONE
    for i in range(containing(s, lo)):
        if same_box(s.reusable, s.reusable.candidates[i], lo, hi):
            place = s.reusable.candidates[i]
            break
    if place == NONE:
        place = new_place(s.reusable, s.numbers)
    write_box(s.reusable, s.numbers, place, lo, hi, loss, persons, group)
    write_histogram(s.reusable, place, s.closeness.scratch)
    _index_box(s.reusable, s.index, place)


@bare
def draw_box(s: State, place: int) -> int:
    """Draw a box that contains the row, with weights that fall with the loss; return its place, or NONE."""
    n = s.numbers[0]
    candidates, weight, table = s.reusable.candidates, s.reusable.weight, s.reusable.table
    row = s.scratch.row
    copy_row(s.held.columns, place, row)
    covering = containing(s, row)
    found, least = 0, np.inf
    for i in range(covering):
        if n.t < 0.0 or stays_within_t(
            s.numbers, s.closeness, s.reusable.histogram[candidates[i]], s.held.sensitive[place]
        ):
            candidates[found] = candidates[i]
            least = min(least, table[candidates[i]].loss)
            found += 1
    if found == 0:
        return NONE
    total, much_more, least_weight = 0.0, _MUCH_MORE * n.average, np.exp(-n.eta)
    for i in range(found):
        more = table[candidates[i]].loss - least
        # Most boxes lose much more than the best; this avoids the expensive weight.
        total += 1.0 if more == 0.0 else least_weight if more >= much_more else np.exp(-n.eta * (more / much_more))
        weight[i] = total
    point = unit(s.random, s.numbers) * total
    chosen = 0
    while chosen < found - 1 and weight[chosen] <= point:
        chosen += 1
    return candidates[chosen]
