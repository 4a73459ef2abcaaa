"""The rows that an engine holds: a list in order of arrival, and a heap in order of deadlines.

Rows lie in slots. A method has a named tuple of its own for them, with at least the fields `slots` (`slot_type`),
`sensitive` [slot, column], `heap` (slots by deadline, then by number) and `free` (slots without a row).

Functions take `numbers`, an array of one element that has the fields `delay` and `delay_rows` (negative or 0: no such
limit), `clock`, `held`, `free` (how many slots are), `timed` (how many are in the heap), `oldest` and `newest` (slots,
or NONE). They are inlined, since passing all the arrays for every row would cost a tenth of the time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array, copy_into
from crenel.engine.kernels.compiler import bare, inlined, kernel


def slot_type(*own: tuple[str, str]) -> np.dtype[np.void]:
    """Return the type of a slot that has fields of the method's own."""
    shared = [
        ("number", "i8"),
        ("person", "i8"),
        ("deadline", "i8"),
        ("older", "i8"),  # slot of the row that arrived before, among all held rows
        ("newer", "i8"),
        ("heap_place", "i8"),
    ]
    return np.dtype([*shared, *own])


def empty_slots(capacity: int) -> dict[str, Any]:
    """Return the fields `heap` and `free` of slots that hold no row."""
    return {
        "heap": np.empty(capacity, dtype=np.int64),
        "free": np.arange(capacity, dtype=np.int64)[::-1].copy(),
    }


def first_deadline(rows: Any, numbers: Array) -> int | None:
    """Return the deadline that comes first, if a held row has one."""
    return int(rows.slots["deadline"][rows.heap[0]]) if numbers["timed"][0] else None


@inlined
def hold_row(rows: Any, numbers: Array, number: int, person: int, sensitive: Array, deadline: int) -> int:
    """Put a row into a free slot, as the newest, and return the slot."""
    n, slots = numbers[0], rows.slots
    n.free -= 1
    n.held += 1
    slot = rows.free[n.free]
    copy_into(sensitive, rows.sensitive[slot])
    row = slots[slot]
    row.number = number
    row.person = person
    row.deadline = deadline
    row.older = n.newest
    row.newer = NONE
    if n.newest == NONE:
        n.oldest = slot
    else:
        slots[n.newest].newer = slot
    n.newest = slot
    if n.delay >= 0:
        rows.heap[n.timed] = slot
        n.timed += 1
        _sift(slots, rows.heap, n.timed, n.timed - 1)
    return slot


@inlined
def drop_row(rows: Any, numbers: Array, slot: int) -> None:
    """Free the slot of a row that has left."""
    n, slots = numbers[0], rows.slots
    older, newer = slots[slot].older, slots[slot].newer
    if older == NONE:
        n.oldest = newer
    else:
        slots[older].newer = newer
    if newer == NONE:
        n.newest = older
    else:
        slots[newer].older = older
    if n.delay >= 0:
        n.timed -= 1
        place, last = slots[slot].heap_place, rows.heap[n.timed]
        if last != slot:
            rows.heap[place] = last
            _sift(slots, rows.heap, n.timed, place)
    n.held -= 1
    rows.free[n.free] = slot
    n.free += 1


@inlined
def next_due(rows: Any, numbers: Array, now: int) -> int:
    """Move the clock to the next deadline up to `now`, and return the slot of its row.

    Where there is no such deadline, move the clock to `now` and return NONE.
    """
    n = numbers[0]
    if n.timed > 0 and rows.slots[rows.heap[0]].deadline <= now:
        n.clock = max(n.clock, rows.slots[rows.heap[0]].deadline)
        return rows.heap[0]
    n.clock = max(n.clock, now)
    return NONE


@inlined
def too_old(rows: Any, numbers: Array, arrived: int) -> int:
    """Return the slot of the oldest row if it must leave now that row number `arrived` is there, else NONE."""
    n = numbers[0]
    if n.delay_rows > 0 and n.oldest != NONE and rows.slots[n.oldest].number <= arrived - n.delay_rows:
        return n.oldest
    return NONE


@kernel
def held_slots(rows: Any, numbers: Array) -> Array:
    """Return the slots that hold a row, in order of arrival."""
    held = np.empty(numbers[0].held, dtype=np.int64)
    slot = numbers[0].oldest
    for i in range(held.size):
        held[i] = slot
        slot = rows.slots[slot].newer
    return held


@bare
def _before(slots: Array, a: int, b: int) -> bool:
    if slots[a].deadline != slots[b].deadline:
        return slots[a].deadline < slots[b].deadline
    return slots[a].number < slots[b].number


@bare
def _sift(slots: Array, heap: Array, timed: int, place: int) -> None:
    """Move the slot at `place` of the heap up or down to where it belongs."""
    slot = heap[place]
    while place > 0:
        above = (place - 1) // 2
        if not _before(slots, slot, heap[above]):
            break
        heap[place] = heap[above]
        slots[heap[place]].heap_place = place
        place = above
    while 2 * place + 1 < timed:
        child = 2 * place + 1
        if child + 1 < timed and _before(slots, heap[child + 1], heap[child]):
            child += 1
        if not _before(slots, heap[child], slot):
            break
        heap[place] = heap[child]
        slots[heap[place]].heap_place = place
        place = child
    heap[place] = slot
    slots[slot].heap_place = place
