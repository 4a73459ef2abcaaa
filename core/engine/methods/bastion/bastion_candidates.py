"""The candidates of a group that bastion forms: rows that may join, and their scores.

Candidates come from a scan of all held rows, or, if many are held, from the cells that are nearest to the anchor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array, copy_into
from crenel.engine.kernels.box_geometry import INTERVAL, TREE
from crenel.engine.kernels.compiler import bare, inlined, vectorized
from crenel.engine.methods.bastion.bastion_box import grow_box
from crenel.engine.methods.bastion.bastion_cells import BLOCK, FIRST, ROWS, drop_cell, next_cell
from crenel.engine.methods.bastion.bastion_losses import (
    add_growth,
    add_regrowth,
    come_nearer,
    in_lanes,
    value_of_rank,
    write_lane_minima,
    write_values,
)
from crenel.engine.methods.bastion.bastion_state import LANES, Search, State

#: Integers below this are the same in single precision.
_EXACT = 2.0**24
#: Rows of a block whose scores are computed together, whether all are there or not; a divisor of BLOCK.
_TOGETHER = 32

# --- Scores ---


@vectorized
def _age_in_rows(number: Array, arrivals: int, share: float, age: Array) -> None:
    """Write how much of its time each row has waited, from 0 to 1, in arrivals; an arrival is a `share` of that."""
    for j in range(age.size):
        age[j] = min((arrivals - number[j]) * share, 1.0)


@vectorized
def _age_in_time(deadline: Array, clock: int, share: float, age: Array) -> None:
    """Do the same in event time, where a microsecond is a `share`. The greater age counts."""
    for j in range(age.size):
        age[j] = max(age[j], min(1.0 - (np.float64(deadline[j]) - np.float64(clock)) * share, 1.0))


@vectorized
def _credit(lonely: Array, age: Array, weight: float, score: Array) -> None:
    """Start the scores with what favours each row: its loneliness, the more the longer it has waited."""
    for j in range(score.size):
        score[j] = -weight * lonely[j] * age[j]


@vectorized
def _add_offsets(column: Array, x: float, scale: float, lo: float, hi: float, offset: Array, total: Array) -> None:
    """Write how far each value is from the anchor's, and add how far that is outside an interval."""
    for j in range(total.size):
        away = np.float32(scale * (column[j] - x))
        offset[j] = away
        total[j] += max(away - hi, np.float32(0.0)) + max(lo - away, np.float32(0.0))


@inlined
def _score(
    s: State, columns: Array, number: Array, deadline: Array, lonely: Array, first: int, at: int, count: int
) -> None:
    """Write the scores of some rows as candidates from `at` on: how much the box grows with each, less its credit.

    Their columns begin at `first`. There may be more numbers than the `count` rows: what is written behind these rows
    means nothing, and vector instructions need not stop before it.
    """
    n, search = s.numbers[0], s.search
    until, end = first + number.size, at + number.size
    age, score = search.order[at:end], search.score[at:end]
    for j in range(age.size):
        age[j] = 0.0 if n.over == 0 else 1.0
    if n.over == 0 and n.delay_rows > 0:
        _age_in_rows(number, n.arrivals, 1.0 / n.delay_rows, age)
    if n.over == 0 and n.delay >= 0:
        _age_in_time(deadline[: age.size], n.clock, 1.0 / n.delay, age)
    _credit(lonely, age, n.lonely, score)
    for d in range(s.box.shape[1]):
        dimension, column, offset = s.terrain.space.dimensions[d], columns[d, first:until], search.offset[d, at:end]
        if dimension.kind == INTERVAL:
            x, scale = s.held.columns[d, search.members[0]], dimension.scale
            lo, hi = np.float32(scale * (s.box[0, d] - x)), np.float32(scale * (s.box[1, d] - x))
            _add_offsets(column, x, scale, lo, hi, offset, score)
        else:
            value, node = column[:count], np.int64(s.box[2, d])
            add_growth(s.terrain, d, s.box[0, d], s.box[1, d], node, dimension.scale, value, score[:count])
            if _is_exact(dimension):
                copy_into(value, offset)


@bare
def _is_exact(dimension: Any) -> bool:
    """Return whether single precision has the values of a quasi-identifier, which is a category."""
    return dimension.kind == TREE and dimension.widest_hi < _EXACT


@bare
def widen_span(s: State, d: int, x: float) -> None:
    """Grow the box to contain a value, and update the scores: values nearby enlarge it less now."""
    terrain, box, search, column, count = s.terrain, s.box, s.search, s.held.columns[d], s.numbers[0].candidates
    dimension, score = terrain.space.dimensions[d], search.score[:count]
    if dimension.kind != INTERVAL:
        value = search.order[:count]
        if _is_exact(dimension):
            copy_into(search.offset[d, :count], value)
        else:
            write_values(column, search.place[:count], value, s.numbers[0].nearby == 0)
        lo, hi, node = box[0, d], box[1, d], np.int64(box[2, d])
        grow_box(terrain.space, box, d, x)
        add_regrowth(terrain, d, lo, hi, node, box, value, score)
        return
    anchor = column[search.members[0]]
    end, sign = (box[1, d], np.float32(1.0)) if x > box[1, d] else (box[0, d], np.float32(-1.0))
    old, new = np.float32(dimension.scale * (end - anchor)), np.float32(dimension.scale * (x - anchor))
    come_nearer(search.offset[d, :count], sign, sign * old, sign * new, score)
    grow_box(terrain.space, box, d, x)


# --- All rows ---


@bare
def is_among(found: Array, values: int, value: int) -> bool:
    """Return whether a value is among the first `values` ones."""
    for v in range(values):
        if found[v] == value:
            return True
    return False


@vectorized
def _exclude_ineligible(number: Array, person: Array, of: int, score: Array) -> int:
    """Give gaps and the rows of one person infinite scores, and return how many other rows there are."""
    count = 0
    for j in range(score.size):
        able = (number[j] != NONE) & (person[j] != of)
        score[j] = score[j] if able else np.float32(np.inf)
        count += able
    return count


@bare
def _exclude_more(s: State, first: int, size: int, most: float, score: Array) -> int:
    """Do the same for persons who are in the group, and for rows that are too far from the anchor."""
    count = 0
    for j in range(score.size):
        if score[j] == np.inf:
            continue
        far = most < np.inf and s.search.cost[first + j] > most
        if far or is_among(s.search.company, size, s.held.person[first + j]):
            score[j] = np.inf
        else:
            count += 1
    return count


@bare
def _keep_least(search: Search, first: int, count: int, wanted: int) -> None:
    """Keep the `wanted` candidates with the smallest scores, in their order; of equal scores, the first."""
    score = search.score
    for j in range(count):
        search.order[j] = score[j]
    limit = value_of_rank(search.order[:count], wanted)
    ties, kept = wanted, 0
    for j in range(count):
        ties -= score[j] < limit
    for j in range(count):
        tied = (score[j] == limit) & (ties > 0)
        ties -= tied
        if tied | (score[j] < limit):
            score[kept] = score[j]
            search.place[kept] = first + j
            for d in range(search.offset.shape[0]):
                search.offset[d, kept] = search.offset[d, j]
            kept += 1


@bare
def choose(s: State, first: int, last: int, size: int, most: float) -> bool:
    """Make the held rows from `first` to `last` that may join candidates, at most `search` of them.

    Some of them may be excluded already. Returns False if there are too few others.
    """
    n, search, count = s.numbers[0], s.search, last + 1 - first
    number, person = s.held.number[first : last + 1], s.held.person[first : last + 1]
    _score(s, s.held.columns, number, s.held.deadline[first:], s.held.lonely[first : last + 1], first, 0, count)
    score = search.score[:count]
    eligible = _exclude_ineligible(number, person, search.company[0], score)
    if size > 1 or most < np.inf:
        eligible = _exclude_more(s, first, size, most, score)
    if eligible == 0 or eligible < n.k - size:
        return False
    if eligible > n.search:
        _keep_least(search, first, count, n.search)
        count = n.search
    else:
        for j in range(count):
            search.place[j] = first + j
    n.candidates, n.nearby = count, 0
    _close_lanes(search, count)
    return True


# --- Rows of the nearest cells ---


@inlined
def _take_block(s: State, block: int, rows: int, at: int) -> int:
    """Make the rows of a block candidates, from `at` on. Return how many of them can join."""
    cells, search, first = s.cells, s.search, block * BLOCK
    full = (rows + _TOGETHER - 1) // _TOGETHER * _TOGETHER
    number, lonely = cells.number[first : first + full], cells.lonely[first : first + full]
    _score(s, cells.columns[block], number, cells.deadline[first:], lonely, 0, at, rows)
    for j in range(rows):
        search.place[at + j] = cells.place[first + j]
    person = cells.person[first : first + rows]
    return _exclude_ineligible(number[:rows], person, search.company[0], search.score[at : at + rows])


@bare
def choose_nearby(s: State) -> bool:
    """Make the rows of the cells that are nearest to the anchor candidates, about `search_cells` of them.

    Returns False if there are too few others than the anchor's.
    """
    n, search, cells, space = s.numbers[0], s.search, s.cells, s.terrain.space
    key, node, waiting, count, eligible = search.key, search.node, 1, 0, 0
    key[0], node[0] = 0.0, 0
    while True:
        waiting = next_cell(space, cells, s.box, key, node, waiting)
        if waiting == 0:
            break
        rows, block = np.int64(cells.links[node[0], ROWS]), cells.links[node[0], FIRST]
        # A small cell may lie beside a large one. To choose among all held rows instead would take far longer.
        if count > 0 and count + rows > n.search_cells and eligible >= n.k - 1:
            break
        while block != NONE:
            size = (rows - 1) % BLOCK + 1
            eligible += _take_block(s, block, size, count)
            count, rows, block = count + size, rows - size, cells.next[block]
        waiting = drop_cell(cells, key, node, waiting)
    if eligible == 0 or eligible < n.k - 1:
        return False
    n.candidates, n.nearby = count, 1
    _close_lanes(search, count)
    return True


# --- The best candidate ---


@bare
def _close_lanes(search: Search, count: int) -> None:
    """Fill the lanes behind the last candidate, and write the minimum of each lane."""
    for j in range(count, in_lanes(count)):
        search.score[j] = np.inf
    write_lane_minima(search.score[: in_lanes(count)], search.least)


@bare
def exclude(j: int, score: Array, least: Array) -> None:
    """Exclude a candidate."""
    score[j] = np.inf
    lane = j % LANES
    least[lane] = np.inf
    for i in range(lane, score.size, LANES):
        least[lane] = min(least[lane], score[i])


@bare
def best_candidate(score: Array, least: Array, place: Array, in_order: bool) -> int:
    """Return the candidate with the smallest score, the first of several in order of arrival; NONE if there is none."""
    lowest = np.float32(np.inf)
    for lane in range(LANES):
        lowest = min(lowest, least[lane])
    if lowest == np.inf:
        return NONE
    best = NONE
    for lane in range(LANES):
        if least[lane] == lowest:
            for j in range(lane, score.size, LANES):
                if score[j] == lowest:
                    if best == NONE or place[j] < place[best]:
                        best = j
                    if in_order:
                        break
    return best
