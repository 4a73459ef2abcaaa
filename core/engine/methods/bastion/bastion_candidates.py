"""The candidates of a group that bastion forms: rows that may join, and their scores.

Candidates come from a scan of all held rows, or from a tree of them (`row_tree`), which finds those that can be the
best next without looking at the others. The scores are the same, bit by bit: each is computed by the same steps, in the
same order. So is the choice: no result depends on where candidates come from.
"""

from __future__ import annotations

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array, copy_into
from crenel.engine.kernels.box_geometry import INTERVAL, Space, widen
from crenel.engine.kernels.compiler import bare, vectorized
from crenel.engine.kernels.row_tree import BLOCK, CREDIT, LEAF, LEFT, ROWS, least_growth
from crenel.engine.methods.bastion.bastion_box import grow_box, start_box
from crenel.engine.methods.bastion.bastion_losses import (
    add_growth,
    add_regrowth,
    come_nearer,
    in_lanes,
    value_of_rank,
    write_lane_minima,
    write_values,
)
from crenel.engine.methods.bastion.bastion_state import LANES, Search, State, Terrain

#: More than the rounding of one step can change a score, which is from -1 to 2 and has single precision.
_ROUNDING = 2.0**-22

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


@bare
def _score(s: State, first: int, count: int) -> None:
    """Write the scores of the rows from place `first` on: how much the box grows with each, less its credit."""
    n, search, held = s.numbers[0], s.search, s.held
    age, score, until = search.order[:count], search.score[:count], first + count
    for j in range(count):
        age[j] = 0.0 if n.over == 0 else 1.0
    if n.over == 0 and n.delay_rows > 0:
        _age_in_rows(held.number[first:until], n.arrivals, 1.0 / n.delay_rows, age)
    if n.over == 0 and n.delay >= 0:
        _age_in_time(held.deadline[first:until], n.clock, 1.0 / n.delay, age)
    _credit(held.lonely[first:until], age, n.lonely, score)
    for d in range(s.box.shape[1]):
        dimension, column = s.terrain.space.dimensions[d], held.columns[d, first:until]
        if dimension.kind == INTERVAL:
            x, scale = held.columns[d, search.members[0]], dimension.scale
            lo, hi = np.float32(scale * (s.box[0, d] - x)), np.float32(scale * (s.box[1, d] - x))
            _add_offsets(column, x, scale, lo, hi, search.offset[d], score)
        else:
            add_growth(s.terrain, d, s.box[0, d], s.box[1, d], np.int64(s.box[2, d]), dimension.scale, column, score)


@bare
def widen_span(
    terrain: Terrain,
    box: Array,
    d: int,
    x: float,
    columns: Array,
    search: Search,
    first: int,
    until: int,
    nearby: bool,
) -> None:
    """Grow the box to contain a value, and update scores from `first` to `until`: values nearby enlarge it less now."""
    dimension, score = terrain.space.dimensions[d], search.score[first:until]
    if dimension.kind != INTERVAL:
        value = search.order[first:until]
        write_values(columns[d], search.place[first:until], value, not nearby)
        lo, hi, node = box[0, d], box[1, d], np.int64(box[2, d])
        grow_box(terrain.space, box, d, x)
        add_regrowth(terrain, d, lo, hi, node, box, value, score)
        return
    anchor = columns[d, search.members[0]]
    end, sign = (box[1, d], np.float32(1.0)) if x > box[1, d] else (box[0, d], np.float32(-1.0))
    old, new = np.float32(dimension.scale * (end - anchor)), np.float32(dimension.scale * (x - anchor))
    come_nearer(search.offset[d, first:until], sign, sign * old, sign * new, score)
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
    _score(s, first, count)
    score = search.score[:count]
    number, person = s.held.number[first : last + 1], s.held.person[first : last + 1]
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
    n.candidates = count
    _close_lanes(search, count)
    return True


# --- Rows of the tree ---


@bare
def _bound(space: Space, boxes: Array, marks: Array, weight: float, node: int, box: Array) -> float:
    """Return the least score that a row below a node of the tree can have, with this box."""
    return least_growth(space, boxes, node, box[0], box[1], box[2]) - weight * marks[node, CREDIT]


@vectorized
def _start_bounds(credit: Array, weight: float, bound: Array) -> None:
    """Start the least scores of a leaf's rows with what may favour them."""
    for j in range(bound.size):
        bound[j] = -weight * credit[j]


@vectorized
def _add_outside(column: Array, scale: float, lo: float, hi: float, bound: Array) -> None:
    """Add how far values are outside an interval."""
    for j in range(bound.size):
        bound[j] += scale * (max(column[j] - hi, np.float32(0.0)) + max(lo - column[j], np.float32(0.0)))


@bare
def _leaf_bounds(s: State, node: int, box: Array, limit: float, bound: Array) -> None:
    """Write the least score that each row of a leaf can have, with this box; anything above the limit if it is."""
    space, tree, dimensions = s.terrain.space, s.tree, box.shape[1]
    block = tree.links[node, BLOCK]
    columns, rows = tree.columns[block], tree.rows[block * LEAF :]
    _start_bounds(columns[dimensions], np.float32(s.numbers[0].lonely), bound)
    for d in range(dimensions):
        dimension, origin = space.dimensions[d], tree.origin[d]
        if dimension.kind == INTERVAL:
            lo, hi = np.float32(box[0, d] - origin), np.float32(box[1, d] - origin)
            _add_outside(columns[d], np.float32(dimension.scale), lo, hi, bound)
            continue
        lo, hi, at = box[0, d], box[1, d], np.int64(box[2, d])
        for j in range(bound.size):
            x = tree.points[d, rows[j]]
            if bound[j] <= limit and (x < lo or x > hi):
                new_lo, new_hi, _ = widen(space, d, lo, hi, at, x, x)
                bound[j] += dimension.scale * ((new_hi - new_lo) - (hi - lo))


@bare
def _sift(node: Array, key: Array, taken: Array, waiting: int, i: int) -> None:
    """Move a waiting node up or down to where it belongs in the heap: the one with the least key is the first."""
    this_node, this_key, this_taken = node[i], key[i], taken[i]
    while i > 0 and this_key < key[(i - 1) // 2]:
        above = (i - 1) // 2
        node[i], key[i], taken[i] = node[above], key[above], taken[above]
        i = above
    while 2 * i + 1 < waiting:
        child = 2 * i + 1
        if child + 1 < waiting and key[child + 1] < key[child]:
            child += 1
        if not key[child] < this_key:
            break
        node[i], key[i], taken[i] = node[child], key[child], taken[child]
        i = child
    node[i], key[i], taken[i] = this_node, this_key, this_taken


@bare
def begin_nearby(s: State) -> None:
    """Begin a group, which is only its anchor, with candidates from the tree."""
    n = s.numbers[0]
    for lane in range(LANES):
        s.search.score[lane] = s.search.least[lane] = np.inf
    n.farthest, n.waiting = -np.inf, 1
    s.search.node[0], s.search.key[0], s.search.taken[0] = 0, -np.inf, 0


@bare
def _take_rows(s: State, most: float, grown: float) -> int:
    """Make the rows of the first waiting leaf that have keys up to `most` candidates; return how many there are.

    Without a limit, take the best row.
    """
    search, person, node = s.search, s.held.person, s.search.node[0]
    bound, start = search.leaf[: s.tree.links[node, ROWS]], s.tree.links[node, BLOCK] * LEAF
    rows = s.tree.rows[start : start + bound.size]
    _leaf_bounds(s, node, s.box, most - grown, bound)
    taken, least, count = search.taken[0], np.inf, s.numbers[0].candidates
    if most == np.inf:
        for j in range(bound.size):
            if (taken >> j) & 1 == 0 and person[rows[j]] != search.company[0]:
                most = min(most, bound[j] + grown)
    for j in range(bound.size):
        if (taken >> j) & 1 != 0:
            continue
        if bound[j] + grown > most:
            least = min(least, bound[j] + grown)
            continue
        taken |= 1 << j
        if person[rows[j]] != search.company[0]:
            search.place[count] = rows[j]
            count += 1
    search.taken[0], search.key[0] = taken, least
    return count


@bare
def _score_further(s: State, first: int, until: int, size: int) -> None:
    """Write the scores of the candidates from `first` to `until`, as if they had been there when the group began."""
    n, search, held, row = s.numbers[0], s.search, s.held, s.scratch.row
    place, score, value = search.place[first:until], search.score[first:until], search.order[first:until]
    for j in range(place.size):
        age = 0.0 if n.over == 0 else 1.0
        if n.over == 0 and n.delay_rows > 0:
            age = min((n.arrivals - held.number[place[j]]) * (1.0 / n.delay_rows), 1.0)
        if n.over == 0 and n.delay >= 0:
            left = np.float64(held.deadline[place[j]]) - np.float64(n.clock)
            age = max(age, min(1.0 - left * (1.0 / n.delay), 1.0))
        score[j] = -n.lonely * held.lonely[place[j]] * age
    box, space = s.scratch.replay, s.terrain.space
    start_box(space, box, row)
    for d in range(row.size):
        dimension, column = space.dimensions[d], held.columns[d]
        for j in range(place.size):
            value[j] = column[place[j]]
        if dimension.kind == INTERVAL:
            zero = np.float32(0.0)
            _add_offsets(value, row[d], dimension.scale, zero, zero, search.offset[d, first:until], score)
        else:
            add_growth(s.terrain, d, row[d], row[d], np.int64(box[2, d]), dimension.scale, value, score)
    copy_into(score, search.begun[first:until])
    for i in range(1, size):
        for d in range(row.size):
            x = held.columns[d, search.members[i]]
            if x < box[0, d] or x > box[1, d]:
                widen_span(s.terrain, box, d, x, held.columns, search, first, until, True)


@bare
def _add_candidates(s: State, until: int, size: int, best: float) -> float:
    """Score the candidates behind the last one. Return the best score of a row that can join, if it is below `best`."""
    n, search, first = s.numbers[0], s.search, s.numbers[0].candidates
    for j in range(in_lanes(first), in_lanes(until)):
        search.score[j] = np.inf
    _score_further(s, first, until, size)
    for j in range(first, until):
        score = search.score[j]
        search.least[j % LANES] = min(search.least[j % LANES], score)
        if score < best and not is_among(search.company, size, s.held.person[search.place[j]]):
            best = np.float64(score)
    n.candidates = until
    return best


@bare
def look_further(s: State, size: int, best: float) -> bool:
    """Make sure that no row is better than the best candidate. Return whether there are more candidates now.

    A score falls by no more than the box grows. So a node whose rows cannot have had a score below some key, less what
    the box had grown when that was found out, cannot have one below the key less what the box has grown until now.
    """
    n, links, box, space, grown = s.numbers[0], s.tree.links, s.box, s.terrain.space, 0.0
    boxes, marks, weight, waiting = s.tree.boxes, s.tree.marks, s.numbers[0].lonely, s.numbers[0].waiting
    node, key, taken = s.search.node, s.search.key, s.search.taken
    for d in range(box.shape[1]):
        grown += space.dimensions[d].scale * (box[1, d] - box[0, d])
    margin, before = grown + _ROUNDING * (size + 4) * box.shape[1], n.candidates
    while waiting > 0 and key[0] <= best + margin:
        bound, left = _bound(space, boxes, marks, weight, node[0], box) + grown, links[node[0], LEFT]
        if bound > key[0] + _ROUNDING:
            key[0] = bound  # the box did not grow towards it
        elif left != NONE:
            node[0], key[0] = left, _bound(space, boxes, marks, weight, left, box) + grown
            _sift(node, key, taken, waiting, 0)
            node[waiting], taken[waiting] = left + 1, 0
            key[waiting] = _bound(space, boxes, marks, weight, left + 1, box) + grown
            waiting += 1
            _sift(node, key, taken, waiting, waiting - 1)
            continue
        else:
            until = _take_rows(s, best + margin, grown)
            if until > n.candidates:
                best = _add_candidates(s, until, size, best)
            if key[0] == np.inf:  # all its rows were taken
                waiting -= 1
                node[0], key[0], taken[0] = node[waiting], key[waiting], taken[waiting]
        _sift(node, key, taken, waiting, 0)
    n.waiting = waiting
    return n.candidates > before


@bare
def _count_nearby(s: State, most: float, rows: int) -> int:
    """Return a number of rows that is not below that of rows with scores up to `most` when the group began.

    Nodes of at most `rows` rows count as a whole; if it is 0, leaves are counted row by row. Ends if there are more
    than `search`.
    """
    n, search, links, box, count = s.numbers[0], s.search, s.tree.links, s.scratch.replay, 0
    start_box(s.terrain.space, box, s.scratch.row)
    n.waiting, search.node[0] = 1, 0
    while n.waiting > 0 and count <= n.search:
        n.waiting -= 1
        node = search.node[n.waiting]
        if _bound(s.terrain.space, s.tree.boxes, s.tree.marks, n.lonely, node, box) > most:
            continue
        if links[node, ROWS] <= rows:
            count += links[node, ROWS]
        elif links[node, LEFT] != NONE:
            search.node[n.waiting], search.node[n.waiting + 1] = links[node, LEFT], links[node, LEFT] + 1
            n.waiting += 2
        else:
            bound = search.leaf[: links[node, ROWS]]
            _leaf_bounds(s, node, box, most, bound)
            for j in range(bound.size):
                count += bound[j] <= most
    n.waiting = 0
    return count


@bare
def all_allowed(s: State) -> bool:
    """Return whether a scan would have found all members too: it is limited to the `search` best rows."""
    n = s.numbers[0]
    if n.held <= n.search:
        return True
    most = n.farthest + _ROUNDING * 4 * s.box.shape[1]
    return _count_nearby(s, most, 4 * LEAF) <= n.search or _count_nearby(s, most, 0) <= n.search


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
