"""How bastion forms a group: the anchor, and the rows that enlarge its box the least."""

from __future__ import annotations

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array, copy_into
from crenel.engine.kernels.closeness import clear_scratch, count_values, within_t
from crenel.engine.kernels.compiler import bare
from crenel.engine.methods.bastion.bastion_box import box_loss, copy_row, grow_box, start_box
from crenel.engine.methods.bastion.bastion_candidates import (
    best_candidate,
    choose,
    choose_nearby,
    exclude,
    is_among,
    widen_span,
)
from crenel.engine.methods.bastion.bastion_losses import in_lanes, pair_losses, value_of_rank, write_lane_minima
from crenel.engine.methods.bastion.bastion_state import State

#: How much the loss of each group changes the recent averages.
_FOLLOW = 0.05

# --- Guarantees ---


@bare
def _has_l_values(s: State, size: int, skip: int, until: int, column: int) -> bool:
    """Return whether the members without those from `skip` to `until` have l distinct values of a sensitive column."""
    found, count = s.scratch.values, 0
    for i in range(size):
        if skip <= i < until:
            continue
        value = s.held.sensitive[s.search.members[i], column]
        for j in range(count):
            if found[j] == value:
                break
        else:
            found[count] = value
            count += 1
            if count == s.numbers[0].l:
                return True
    return False


@bare
def count_members(s: State, size: int, skip: int, until: int) -> None:
    """Count the sensitive values of the members without those from `skip` to `until`, in the scratch histogram."""
    clear_scratch(s.closeness)
    for i in range(size):
        if i < skip or i >= until:
            count_values(s.closeness.scratch, s.held.sensitive[s.search.members[i]])


@bare
def has_values(s: State, size: int, skip: int, until: int) -> bool:
    """Return whether the members without those from `skip` to `until` have l values and are within t of the stream."""
    n = s.numbers[0]
    if n.l > 0:
        for column in range(s.held.sensitive.shape[1]):
            if not _has_l_values(s, size, skip, until, column):
                return False
    if n.t < 0.0:
        return True
    count_members(s, size, skip, until)
    return within_t(s.numbers, s.closeness, s.closeness.scratch, size - (until - skip))


# --- Joining ---


@bare
def _join(s: State, size: int, place: int, is_last: bool) -> None:
    """Add a row to the group, and update the box; and the scores, if they are needed once more."""
    search, box, columns = s.search, s.box, s.held.columns
    search.members[size], search.company[size] = place, s.held.person[place]
    grown, count = False, s.numbers[0].candidates
    for d in range(box.shape[1]):
        x = columns[d, place]
        if x < box[0, d] or x > box[1, d]:
            if is_last:
                grow_box(s.terrain.space, box, d, x)
            else:
                widen_span(s, d, x)
            grown = True
    if grown and not is_last:
        write_lane_minima(search.score[: in_lanes(count)], search.least)


@bare
def _gather(s: State, size: int, wanted: int, most: float) -> int:
    """Add candidates, best first, until the group has the wanted size. Return its size; -1 if k rows lose too much."""
    n, search = s.numbers[0], s.search
    may_grow = n.l > 0 or n.t >= 0.0
    while size < wanted:
        score = search.score[: in_lanes(n.candidates)]
        chosen = best_candidate(score, search.least, search.place, n.nearby == 0)
        if chosen == NONE:
            break
        exclude(chosen, score, search.least)
        place = search.place[chosen]
        if is_among(search.company, size, s.held.person[place]):
            continue
        _join(s, size, place, size + 1 == wanted and not may_grow)
        size += 1
        if size <= n.k and most < np.inf and box_loss(s.terrain.space, s.box) > most:
            return -1
    return size


@bare
def _grow(s: State, first: int, last: int, size: int, wanted: int, most: float) -> int:
    """Add rows until the group has the wanted size or no row is left, and return its size.

    The size is -1 if the group loses too much before it has k rows, or with k rows.
    """
    n = s.numbers[0]
    while size < wanted:
        if n.candidates > 0:
            size = _gather(s, size, wanted, most)
            if size < 0 or size == wanted or (n.nearby == 0 and n.candidates < n.search):  # all rows were candidates
                break
        elif n.indexed != 0 and choose_nearby(s):
            continue
        if not choose(s, first, last, size, most):
            break
    return size


@bare
def _take_oldest(s: State, first: int, last: int) -> int:
    """Add the oldest rows to the anchor, one of each person, until the group has k. Return its size."""
    size = 1
    for place in range(first, last + 1):
        if size == s.numbers[0].k:
            break
        if s.held.number[place] != NONE and not is_among(s.search.company, size, s.held.person[place]):
            _join(s, size, place, True)  # scores do not count
            size += 1
    return size


# --- The group ---


@bare
def _pair_costs(s: State, row: Array, most: float) -> float:
    """Write `search.cost`, and return that of the (k-1)-th nearest row; infinity if a group would cost too much."""
    n, search = s.numbers[0], s.search
    cost = search.cost[: n.places]
    pair_losses(s.terrain, s.held.columns, row, cost)
    eligible = 0
    for i in range(n.places):
        if s.held.number[i] != NONE and s.held.person[i] != search.company[0] and cost[i] <= most:
            search.order[eligible] = cost[i]
            eligible += 1
    if eligible < n.k - 1:
        return np.inf
    nearest = value_of_rank(search.order[:eligible], n.k - 1)
    return np.inf if nearest > most / max(n.ratio, 1.0) else nearest


@bare
def _note_ratios(s: State, anchor: int, nearest: float) -> None:
    """Update the averages of what groups lose relative to two estimates. About the last twenty groups count."""
    n, loss, lonely = s.numbers[0], box_loss(s.terrain.space, s.box), s.held.lonely[anchor]
    if nearest > 0.0:
        n.ratio += _FOLLOW * (loss / nearest - n.ratio)
    if lonely > 0.0:
        n.guess += _FOLLOW * (loss / lonely - n.guess)


@bare
def _with_values(s: State, first: int, last: int, size: int, most: float) -> int:
    """Enlarge the group by half its size until it has the sensitive values; return its size, or 0 if it never has them.

    A ring of half as many rows as the group joins as a whole, or not at all. Group and ring are three parts of one
    size, and the ring stays out only if any two of the parts have the values. So an attacker who sees the ring join
    learns that some part lacks values, but not which one: the rows that joined last are not more likely to have the
    rare value.
    """
    while True:
        for j in range(3):
            copy_into(s.box[j], s.scratch.box[j])
        half, wanted = size // 2, size + size // 2
        all_three = _grow(s, first, last, size, wanted, most)
        if all_three < wanted:
            return all_three if has_values(s, all_three, 0, 0) else 0
        if has_values(s, wanted, size, wanted) and has_values(s, wanted, 0, half) and has_values(s, wanted, half, size):
            for j in range(3):
                copy_into(s.scratch.box[j], s.box[j])
            return size
        size = wanted


@bare
def form_group(s: State, anchor: int, first: int, last: int, most: float) -> int:
    """Form a group of the anchor and rows from `first` to `last`; return its size, or 0 if there is none.

    The group is in `search.members` and `box`. Which rows join depends on their quasi-identifiers and their age, never
    on their sensitive values.
    """
    n, search, row = s.numbers[0], s.search, s.scratch.row
    if n.held < n.k:
        return 0
    copy_row(s.held.columns, anchor, row)
    start_box(s.terrain.space, s.box, row)
    search.members[0], search.company[0] = anchor, s.held.person[anchor]
    n.candidates = 0
    nearest = 0.0
    if n.max_reusable > 0:
        nearest = _pair_costs(s, row, most)
        if nearest == np.inf:
            return 0
    if n.staying != 0 and n.held < n.thin:
        size = _take_oldest(s, first, last)  # those who stay have the most time to find others
    else:
        size = _grow(s, first, last, 1, n.k, most)
    if size < n.k:
        return 0
    if n.l > 0 or n.t >= 0.0:
        size = _with_values(s, first, last, size, most)
    if size > 0 and box_loss(s.terrain.space, s.box) > most:
        size = 0
    if size > 0 and n.max_reusable > 0:
        _note_ratios(s, anchor, nearest)
    return size
