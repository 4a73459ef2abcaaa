"""Bastion's held rows: how they arrive, which of them are due, and how lonely they are."""

from __future__ import annotations

import math

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array, copy_into
from crenel.engine.kernels.compiler import bare, kernel
from crenel.engine.kernels.deadlines import EARLIEST, LATEST
from crenel.engine.methods.bastion.bastion_box import copy_row
from crenel.engine.methods.bastion.bastion_cells import Cells, cut_cells, move_in_cell, put_in_cell, take_from_cell
from crenel.engine.methods.bastion.bastion_losses import least_of, pair_losses
from crenel.engine.methods.bastion.bastion_state import SPAN, Held, State, Terrain


@bare
def loneliness(numbers: Array, terrain: Terrain, sample: Array, row: Array, cost: Array) -> float:
    """Estimate the loss of a group around the row: the mean distance to the nearest row in each part of the sample.

    There are as many parts as members of the group are to be expected in the sample. If less than one is expected, the
    group is smaller than that distance: by the power 1/4, as if rows lay evenly in four dimensions.
    """
    n = numbers[0]
    known = min(n.sampled, sample.shape[1])
    if known == 0:
        return 0.0
    expected = n.k * known / max(n.held, 1)
    parts = min(max(np.int64(np.rint(expected)), 1), known)
    size = known // parts
    pair_losses(terrain, sample, row, cost[: parts * size])
    total = 0.0
    for start in range(0, parts * size, size):
        total += least_of(cost[start : start + size])
    return total / parts * math.sqrt(math.sqrt(min(expected, 1.0)))


@bare
def take_sample(numbers: Array, sample: Array, row: Array) -> None:
    """Put the row into the sample if it is its turn: the sample spans about as many rows as are held."""
    n = numbers[0]
    size = sample.shape[1]
    if n.until_sample > 0:
        n.until_sample -= 1
        return
    at = n.sampled % size
    for d in range(row.size):
        sample[d, at] = row[d]
    n.sampled += 1
    n.until_sample = n.held // size


@bare
def _sample_held(s: State) -> None:
    """Draw the sample from the held rows, evenly spaced."""
    n, size = s.numbers[0], s.sample.shape[1]
    known, rank, count = min(n.held, size), 0, 0
    for i in range(n.first, n.places):
        if s.held.number[i] == NONE:
            continue
        if count < known and rank == count * n.held // known:
            for d in range(s.box.shape[1]):
                s.sample[d, count] = s.held.columns[d, i]
            count += 1
        rank += 1
    n.sampled, n.until_sample = known, n.held // size


@kernel
def estimate_again(s: State) -> None:
    """Estimate the loneliness of all held rows again: on arrival, a row of a burst is compared with too few rows."""
    _sample_held(s)
    for i in range(s.numbers[0].first, s.numbers[0].places):
        if s.held.number[i] != NONE:
            copy_row(s.held.columns, i, s.scratch.row)
            s.held.lonely[i] = loneliness(s.numbers, s.terrain, s.sample, s.scratch.row, s.search.cost)
            if s.numbers[0].indexed != 0:
                s.cells.lonely[s.cells.where[i]] = s.held.lonely[i]


@kernel
def close_gaps(numbers: Array, held: Held, cells: Cells) -> None:
    """Move the rows together, in their order."""
    n = numbers[0]
    at = 0
    for i in range(n.first, n.places):
        if held.number[i] == NONE:
            continue
        if at < i:
            held.number[at] = held.number[i]
            held.person[at] = held.person[i]
            if held.deadline.size > 0:
                held.deadline[at] = held.deadline[i]
            held.lonely[at] = held.lonely[i]
            for d in range(held.columns.shape[0]):
                held.columns[d, at] = held.columns[d, i]
            copy_into(held.sensitive[i], held.sensitive[at])
            if n.indexed != 0:
                move_in_cell(cells, i, at)
        at += 1
    n.places = at
    n.first = 0
    _note_deadlines(held, at)


@bare
def _note_deadlines(held: Held, places: int) -> None:
    """Write `earliest` anew, for rows without gaps."""
    if held.deadline.size > 0:
        for i in range(places):
            note_deadline(held, i)


@bare
def note_deadline(held: Held, place: int) -> None:
    """Update `earliest` with the deadline of a row that was added behind all others."""
    span = place // SPAN
    before = LATEST if place % SPAN == 0 else held.earliest[span]
    held.earliest[span] = min(before, held.deadline[place])


@bare
def has_many_gaps(numbers: Array, held: Held) -> bool:
    """Return whether there is no place for a row, or gaps make searches slow."""
    n = numbers[0]
    return n.places == held.number.size or 8 * (n.places - n.held) > n.places + 512


@bare
def hold(numbers: Array, held: Held, qi: Array, person: int, sensitive: Array, deadline: int, lonely: float) -> None:
    """Add a row behind the last one."""
    n = numbers[0]
    at = n.places
    held.number[at] = n.arrivals
    held.person[at] = person
    if held.deadline.size > 0:
        held.deadline[at] = deadline
        note_deadline(held, at)
    held.lonely[at] = lonely
    for d in range(qi.size):
        held.columns[d, at] = qi[d]
    copy_into(sensitive, held.sensitive[at])
    n.places += 1
    n.held += 1
    n.arrivals += 1


@bare
def index_last(s: State) -> None:
    """Put the row that was added last into its cell. Cut cells, or do without them, if it is time."""
    n = s.numbers[0]
    if n.indexed != 0 and n.arrivals < n.cut_at:
        put_in_cell(s.cells, s.held, n.places - 1)
        return
    n.indexed = np.int64(n.held > n.index_from)
    if n.indexed != 0:
        n.cut_at = n.arrivals + n.held
        cut_cells(s.terrain.space, s.cells, s.held, n.first, n.places, n.held, n.search_cells)


@bare
def let_go(s: State, place: int) -> None:
    """Hold a row no longer. Its columns stay in their place until the gaps are closed."""
    s.held.number[place] = NONE
    s.numbers[0].held -= 1
    if s.numbers[0].indexed != 0:
        take_from_cell(s.cells, place)


@bare
def first_place(numbers: Array, held: Held) -> int:
    """Return the place of the row that has waited longest. There must be a row."""
    n = numbers[0]
    while held.number[n.first] == NONE:
        n.first += 1
    return n.first


@bare
def soonest_place(numbers: Array, held: Held) -> int:
    """Return the place of the oldest row of those with the first deadline. There must be a row."""
    n, earliest = numbers[0], held.earliest
    spans = (n.places + SPAN - 1) // SPAN
    while True:
        span = n.first // SPAN
        for i in range(span + 1, spans):
            if earliest[i] < earliest[span]:
                span = i
        # Rows may have left since the entry was written.
        best, found = LATEST, NONE
        for i in range(span * SPAN, min((span + 1) * SPAN, n.places)):
            if held.number[i] != NONE and (found == NONE or held.deadline[i] < best):
                best, found = held.deadline[i], i
        if found != NONE and best == earliest[span]:
            return found
        earliest[span] = best


@bare
def must_leave(numbers: Array, held: Held, place: int) -> bool:
    """Return whether there is a row at the place, and whether it is due."""
    n, number = numbers[0], held.number[place]
    if number == NONE:
        return False
    if n.over != 0 or (n.delay_rows > 0 and number < n.arrivals - n.delay_rows):
        return True
    return n.delay >= 0 and held.deadline[place] <= n.until


@bare
def due_end(numbers: Array, held: Held) -> int:
    """Return a place behind all rows that are due."""
    n = numbers[0]
    if n.over != 0 or n.until != EARLIEST:
        return n.places
    end = n.first
    while end < n.places and (held.number[end] == NONE or held.number[end] < n.arrivals - n.delay_rows):
        end += 1
    return end


@bare
def _is_old(numbers: Array, held: Held) -> bool:
    """Return whether the oldest row must leave because of the number of rows that arrived after it."""
    n = numbers[0]
    if n.delay_rows == 0 or n.held == 0:
        return False
    return held.number[first_place(numbers, held)] < n.arrivals - n.delay_rows


@bare
def next_due(s: State, now: int) -> int:
    """Return the place of the first row that is due by `now`, or NONE.

    The clock moves to its deadline.
    """
    n = s.numbers[0]
    n.until = EARLIEST
    if n.held == 0:
        return NONE
    if n.over != 0 or _is_old(s.numbers, s.held):
        return first_place(s.numbers, s.held)
    if n.delay < 0 or n.soonest > now:
        return NONE
    due = soonest_place(s.numbers, s.held)
    n.soonest = s.held.deadline[due]
    if n.soonest > now:
        return NONE
    n.until = n.soonest
    n.clock = max(n.clock, n.soonest)
    return due
