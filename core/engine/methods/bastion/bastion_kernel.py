"""Bastion's algorithm: what happens when a row arrives, when rows are due, and when the stream ends.

`docs/bastion.md` explains each step.
"""

from __future__ import annotations

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array
from crenel.engine.kernels.box_geometry import learn_domains
from crenel.engine.kernels.closeness import count_values
from crenel.engine.kernels.compiler import bare, inlined, kernel
from crenel.engine.kernels.deadlines import clock_after, deadline_after
from crenel.engine.kernels.output import Output
from crenel.engine.kernels.reusable_boxes import ReusableBoxes
from crenel.engine.methods.bastion.bastion_plan import (
    begin_writing,
    most_added,
    plan_due,
    plan_group,
    reuse_box,
    suppress,
    write_group,
)
from crenel.engine.methods.bastion.bastion_reuse import draw_box
from crenel.engine.methods.bastion.bastion_rows import (
    close_gaps,
    due_end,
    estimate_again,
    has_many_gaps,
    hold,
    index_last,
    loneliness,
    must_leave,
    next_due,
    take_sample,
)
from crenel.engine.methods.bastion.bastion_search import form_group
from crenel.engine.methods.bastion.bastion_state import State

#: What a row costs that joins a group early, instead of leaving later, relative to the average: such rows are easier.
_SPARED = 0.95
#: The mean wait, relative to the longest, above which leaving alone becomes more expensive; and how much so.
_PATIENCE = 0.515
_IMPATIENCE = 18.0
#: How much the loneliness is trusted: no group is tried if the caution times its expected loss is too much. It falls
#: with a group that is found and rises with one that is not, so that few are tried in vain.
LEAST_CAUTION = 0.7
_MOST_CAUTION = 2.0
_FOUND = 0.05
_NOT_FOUND = 0.01


@bare
def _note_try(numbers: Array, found: bool) -> None:
    """Update the caution."""
    n = numbers[0]
    n.caution = max(n.caution - _FOUND, LEAST_CAUTION) if found else min(n.caution + _NOT_FOUND, _MOST_CAUTION)


@bare
def _try_group(s: State, anchor: int, most: float) -> int:
    """Form a group around the anchor if its expected loss is acceptable; otherwise a search of all rows is saved."""
    n = s.numbers[0]
    if n.caution * n.guess * s.held.lonely[anchor] > most:
        return 0
    size = form_group(s, anchor, n.first, n.places - 1, most)
    _note_try(s.numbers, size > 0)
    return size


@bare
def _expire(s: State, place: int) -> None:
    """With reuse: plan a group around a row that is due, or release the row under a reusable box, or suppress it."""
    n = s.numbers[0]
    box = draw_box(s, place)
    most = np.inf
    if box != NONE:
        # A group of k rows with loss L costs k * L, and saves k - 1 rows what they would cost later, and a wait.
        spared = (_SPARED + _IMPATIENCE * max(n.waited - _PATIENCE, 0.0)) * n.average
        most = (s.reusable.table[box].loss + (n.k - 1) * spared) / n.k
    size = _try_group(s, place, most)
    if size > 0:
        plan_group(s, size)
    elif box != NONE:
        reuse_box(s, box, place)
    else:
        suppress(s, place)


@bare
def _plan(s: State, last: int, due: int) -> None:
    """Plan groups for the `due` rows that are due, none of them after place `last`, among all held rows."""
    n = s.numbers[0]
    n.planned = n.planned_rows = 0
    if due >= n.k and 2 * due >= n.held:
        estimate_again(s)
    plan_due(s, n.first, last, n.places - 1, most_added(s.numbers))


@bare
def _begin(s: State, place: int) -> bool:
    """Decide on the rows that are due; with reuse, on the one at a place.

    Returns False if the caller must empty the output buffer, or divide the rows.
    """
    n = s.numbers[0]
    if n.max_reusable > 0:
        if not _has_space(s.numbers, s.reusable, s.out, 1):
            return False
        n.planned = n.planned_rows = 0
        _expire(s, place)
    else:
        end, due = due_end(s.numbers, s.held), 0
        for i in range(n.first, end):
            due += must_leave(s.numbers, s.held, i)
        n.staying = due < n.held
        if due == n.held and due >= 2 * n.k:
            n.dividing = 1
            return False
        _plan(s, end - 1, due)
    begin_writing(s)
    return True


@bare
def _finish(s: State) -> bool:
    """Write the planned groups, suppress the due rows in none of them. Return False if the output buffer is full."""
    n = s.numbers[0]
    while n.written < n.planned:
        if not _has_space(s.numbers, s.reusable, s.out, s.plan.size[n.written]):
            return False
        write_group(s, n.written)
        n.written += 1
    if n.max_reusable == 0:
        for i in range(n.first, due_end(s.numbers, s.held)):
            if must_leave(s.numbers, s.held, i):
                if not _has_space(s.numbers, s.reusable, s.out, 1):
                    return False
                suppress(s, i)
    n.writing = 0
    return True


@bare
def _has_space(numbers: Array, reusable: ReusableBoxes, out: Output, rows: int) -> bool:
    """Return whether the output buffer has space for a release of `rows` rows, and the ring for its box."""
    n, boxes = numbers[0], reusable.table.size
    return (
        n.out_releases < out.releases.size
        and n.out_rows + rows <= out.rows.size
        and (n.reusable < boxes or boxes == n.max_reusable)
    )


@inlined
def _settle(s: State, now: int) -> bool:
    """Release what is due on the way to `now`. Return False if the caller has something to do first."""
    n = s.numbers[0]
    while True:
        if n.writing != 0 and not _finish(s):
            return False
        due = next_due(s, now)
        if due == NONE:
            break
        if not _begin(s, due):
            return False
    n.clock = max(n.clock, now)
    return True


@inlined
def _arrive(s: State, qi: Array, person: int, sensitive: Array, time: int) -> None:
    """Take one row."""
    n = s.numbers[0]
    learn_domains(s.terrain.space, qi)
    count_values(s.closeness.stream, sensitive)
    deadline = deadline_after(time, n.delay, n.tick)
    if n.delay >= 0:
        n.soonest = min(n.soonest, deadline) if n.held > 0 else deadline
    lonely = loneliness(s.numbers, s.terrain, s.sample, qi, s.search.cost)
    take_sample(s.numbers, s.sample, qi)
    if has_many_gaps(s.numbers, s.held):
        close_gaps(s.numbers, s.held, s.cells)
    hold(s.numbers, s.held, qi, person, sensitive, deadline, lonely)
    if n.indexed != 0 or n.held > n.index_from:
        index_last(s)


@bare
def _take_in(
    s: State, qi: Array, person: Array, sensitive: Array, time: Array, start: int, now: int, over: bool
) -> int:
    n = s.numbers[0]
    # One step more than there are rows: what is due leaves before each row, and after the last.
    for i in range(start, person.size + 1):
        until = clock_after(n.clock, time[i], n.disorder) if i < person.size else max(n.clock, now)
        if not _settle(s, until):
            return i
        if i < person.size:
            _arrive(s, qi[i], person[i], sensitive[i], time[i])
    if over:
        n.over = 1
        if not _settle(s, n.clock):
            return person.size
        n.over = 0
    return NONE


@kernel
def run(s: State, qi: Array, person: Array, sensitive: Array, time: Array, start: int, now: int, over: bool) -> int:
    """Take rows from `start` on, then move the clock to `now`, then end the stream if it is over.

    Returns NONE if everything is done. Otherwise the caller must empty the output buffer, divide the held rows if
    `dividing` is set, and call again from the row that is returned.
    """
    return _take_in(s, qi, person, sensitive, time, start, now, over)
