"""How bastion forms a group: the anchor, and the rows that enlarge its box the least."""

from __future__ import annotations

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array, copy_into
from crenel.engine.kernels.box_geometry import INTERVAL, Space, loss_of, widen
from crenel.engine.kernels.closeness import clear_scratch, count_values, within_t
from crenel.engine.kernels.compiler import bare, vectorized
from crenel.engine.methods.bastion.bastion_losses import (
    add_growth,
    add_regrowth,
    come_nearer,
    in_lanes,
    leaf_of,
    pair_losses,
    value_of_rank,
    write_lane_minima,
    write_values,
)
from crenel.engine.methods.bastion.bastion_state import LANES, Search, State, Terrain

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


# --- The box ---


@bare
def box_loss(space: Space, box: Array) -> float:
    """Return the loss of a box."""
    return loss_of(space, box[0], box[1])


@bare
def _start_box(space: Space, box: Array, row: Array) -> None:
    """Make the box that of one row."""
    for d in range(row.size):
        box[0, d] = box[1, d] = row[d]
        box[2, d] = leaf_of(space, d, row[d])


@bare
def grow_box(space: Space, box: Array, d: int, x: float) -> None:
    """Grow the box until it contains a value of quasi-identifier `d`."""
    box[0, d], box[1, d], box[2, d] = widen(space, d, box[0, d], box[1, d], np.int64(box[2, d]), x, x)


@bare
def copy_row(columns: Array, place: int, row: Array) -> None:
    """Copy the quasi-identifiers of a held row."""
    for d in range(row.size):
        row[d] = columns[d, place]


# --- Candidates ---


@bare
def _is_among(found: Array, values: int, value: int) -> bool:
    """Return whether a value is among the first `values` ones."""
    for v in range(values):
        if found[v] == value:
            return True
    return False


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
        if far or _is_among(s.search.company, size, s.held.person[first + j]):
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
def _choose(s: State, first: int, last: int, size: int, most: float) -> int:
    """Make the held rows from `first` to `last` that may join candidates, at most `search` of them.

    Returns how many there are, including excluded ones.
    """
    n, search, count = s.numbers[0], s.search, last + 1 - first
    _score(s, first, count)
    score = search.score[:count]
    number, person = s.held.number[first : last + 1], s.held.person[first : last + 1]
    eligible = _exclude_ineligible(number, person, search.company[0], score)
    if size > 1 or most < np.inf:
        eligible = _exclude_more(s, first, size, most, score)
    if eligible == 0 or eligible < n.k - size:
        return 0
    if eligible > n.search:
        _keep_least(search, first, count, n.search)
        count = n.search
    else:
        for j in range(count):
            search.place[j] = first + j
    for j in range(count, in_lanes(count)):
        search.score[j] = np.inf
    write_lane_minima(search.score[: in_lanes(count)], search.least)
    return count


@bare
def _exclude(j: int, score: Array, least: Array) -> None:
    """Exclude a candidate."""
    score[j] = np.inf
    lane = j % LANES
    least[lane] = np.inf
    for i in range(lane, score.size, LANES):
        least[lane] = min(least[lane], score[i])


@bare
def _best_candidate(score: Array, least: Array) -> int:
    """Return the first candidate with the smallest score, or NONE if all are excluded."""
    lowest = np.float32(np.inf)
    for lane in range(LANES):
        lowest = min(lowest, least[lane])
    if lowest == np.inf:
        return NONE
    best = score.size
    for lane in range(LANES):
        if least[lane] == lowest:
            j = lane
            while score[j] != lowest:
                j += LANES
            best = min(best, j)
    return best


# --- Joining ---


@bare
def _widen_span(
    terrain: Terrain, box: Array, d: int, columns: Array, search: Search, chosen: int, score: Array
) -> None:
    """Grow the box to contain a candidate's value, and update the scores: values nearby enlarge it less now."""
    dimension, x = terrain.space.dimensions[d], columns[d, search.place[chosen]]
    if dimension.kind != INTERVAL:
        value = search.order[: score.size]
        write_values(columns[d], search.place, value)
        lo, hi, node = box[0, d], box[1, d], np.int64(box[2, d])
        grow_box(terrain.space, box, d, x)
        add_regrowth(terrain, d, lo, hi, node, box, value, score)
        return
    offset, anchor = search.offset[d], columns[d, search.members[0]]
    end, sign = (box[1, d], np.float32(1.0)) if x > box[1, d] else (box[0, d], np.float32(-1.0))
    old = np.float32(dimension.scale * (end - anchor))
    come_nearer(offset, sign, sign * old, sign * offset[chosen], score)
    grow_box(terrain.space, box, d, x)


@bare
def _join(
    terrain: Terrain, box: Array, columns: Array, search: Search, count: int, size: int, chosen: int, person: int
) -> None:
    """Add a candidate to the group, and update the box and the scores."""
    place, score = search.place[chosen], search.score[:count]
    search.members[size] = place
    search.company[size] = person
    grown = False
    for d in range(box.shape[1]):
        if columns[d, place] < box[0, d] or columns[d, place] > box[1, d]:
            _widen_span(terrain, box, d, columns, search, chosen, score)
            grown = True
    if grown:
        write_lane_minima(search.score[: in_lanes(count)], search.least)


@bare
def _gather(s: State, count: int, size: int, wanted: int, most: float) -> int:
    """Add candidates, best first, until the group has the wanted size. Return its size; -1 if k rows lose too much."""
    search, score = s.search, s.search.score[: in_lanes(count)]
    while size < wanted:
        chosen = _best_candidate(score, search.least)
        if chosen == NONE:
            break
        _exclude(chosen, score, search.least)
        person = s.held.person[search.place[chosen]]
        if _is_among(search.company, size, person):
            continue
        _join(s.terrain, s.box, s.held.columns, search, count, size, chosen, person)
        size += 1
        if size <= s.numbers[0].k and most < np.inf and box_loss(s.terrain.space, s.box) > most:
            return -1
    return size


@bare
def _grow(s: State, first: int, last: int, size: int, wanted: int, most: float, count: int) -> tuple[int, int]:
    """Add rows until the group has the wanted size or no row is left; return its size and the number of candidates.

    The size is -1 if the group loses too much before it has k rows, or with k rows.
    """
    while size < wanted:
        if count > 0:
            size = _gather(s, count, size, wanted, most)
            if size < 0 or size == wanted or count < s.numbers[0].search:  # all rows were candidates
                break
        count = _choose(s, first, last, size, most)
        if count == 0:
            break
    return size, count


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
def _with_values(s: State, first: int, last: int, size: int, most: float, count: int) -> int:
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
        all_three, count = _grow(s, first, last, size, wanted, most, count)
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
    n = s.numbers[0]
    if n.held < n.k:
        return 0
    search, row = s.search, s.scratch.row
    copy_row(s.held.columns, anchor, row)
    _start_box(s.terrain.space, s.box, row)
    search.members[0], search.company[0] = anchor, s.held.person[anchor]
    nearest = 0.0
    if n.max_reusable > 0:
        nearest = _pair_costs(s, row, most)
        if nearest == np.inf:
            return 0
    size, count = _grow(s, first, last, 1, n.k, most, 0)
    if size < n.k:
        return 0
    if n.l > 0 or n.t >= 0.0:
        size = _with_values(s, first, last, size, most, count)
    if size > 0 and box_loss(s.terrain.space, s.box) > most:
        size = 0
    if size > 0 and n.max_reusable > 0:
        _note_ratios(s, anchor, nearest)
    return size
