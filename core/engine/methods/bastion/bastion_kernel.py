"""Bastion's hot loops: plain loops over the arrays of one `State`. `docs/bastion.md` says what each step is for.

Held rows lie in order of arrival, a column for each quasi-identifier; one that has left stays as a gap until the rows
are moved together. What is computed never depends on the gaps: places are compared by their order only.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np

from crenel.engine.kernels.common import (
    CLUSTER,
    EARLIEST,
    INTERVAL,
    LATEST,
    NONE,
    REUSE,
    SUPPRESSED,
    TREE,
    WORDS,
    Array,
    Closeness,
    Out,
    Random,
    Space,
    bare,
    chacha20_block,
    copy_into,
    count_values,
    inlined,
    inside,
    kernel,
    learn_domains,
    loss_of,
    saturating_add,
    shuffle,
    widen,
    within_t,
    write_release,
)

_Function = TypeVar("_Function")

#: How much of the average a row that is taken along is thought to cost otherwise: it is easier than most.
SPARED = 0.95
#: How long rows may wait, in the mean, as a part of the longest; and how much dearer it then is to leave alone.
PATIENCE = 0.515
IMPATIENCE = 18.0
#: A box that loses so much of the average more than the best is no more likely to be drawn than one that loses all.
DEARER = 0.25
#: How far the loneliness is believed: a group is not tried if this part of what it is likely to lose is too much.
#: It falls with a group that is found, and rises with one that is not: so that few are tried in vain.
LEAST_CAUTION = 0.7
MOST_CAUTION = 2.0
FOUND = 0.05
NOT_FOUND = 0.01
#: In so many parts of its domain the boxes of a quasi-identifier are kept apart.
BINS = 32
#: A number whose parts of six bits all differ: a bit's place is found by multiplying.
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_BIT = np.zeros(64, dtype=np.int64)
_BIT[[(int(_DE_BRUIJN) << place & 2**64 - 1) >> 58 for place in range(64)]] = range(64)
#: Candidates are striped over so many lanes; caching each lane's least score avoids a scan of all to find the best.
LANES = 128
#: Until so few costs are left their range is halved.
FEW = 8
#: All leaves of a tree are looked at once if there are no more of them than this, for each value; else the tree is
#: climbed from each value.
LEAVES_A_VALUE = 8
#: By how much each group changes what groups cost lately.
FOLLOW = 0.05


def vectorized(function: _Function) -> _Function:
    """As `bare`, for loops that shall become vector instructions: nothing there is ever NaN, and zeros have no sign."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False, "fastmath": {"nnan", "nsz"}}
    return cast(_Function, numba.njit(cache=True, nogil=True, **options)(function))


# What is one number: first what the policy fixes (0 or negative: not asked for), then what changes from row to row.
NUMBERS = np.dtype(
    [
        ("k", "i8"),
        ("l", "i8"),
        ("t", "f8"),
        ("delay", "i8"),
        ("tick", "i8"),
        ("delay_rows", "i8"),
        ("disorder", "i8"),
        ("max_reusable", "i8"),
        ("eta", "f8"),
        ("lonely", "f8"),
        ("search", "i8"),
        ("arrivals", "i8"),
        ("clock", "i8"),
        ("held", "i8"),
        ("places", "i8"),  # rows and gaps
        ("first", "i8"),  # no row lies before it
        ("soonest", "i8"),  # no deadline is before it
        ("until", "i8"),  # the deadline of the rows that are due
        ("over", "i8"),  # whether the stream is over, and all rows are due
        ("writing", "i8"),  # whether a plan was made and is not all written
        ("dividing", "i8"),  # whether all held rows are due, and to be divided
        ("planned", "i8"),  # groups of the plan
        ("planned_rows", "i8"),
        ("written", "i8"),  # groups of the plan that were written
        ("sampled", "i8"),  # rows that went into the sample
        ("until_sample", "i8"),  # arrivals until the next one does
        ("average", "f8"),  # loss of what left lately, by row
        ("ratio", "f8"),  # loss of groups to that of the anchor and its (k-1)-th nearest row, lately
        ("waited", "f8"),  # by what left lately, as a part of what its anchor had
        ("guess", "f8"),  # and to its loneliness
        ("caution", "f8"),  # from LEAST_CAUTION to MOST_CAUTION
        ("reusable", "i8"),
        ("reusable_oldest", "i8"),
        ("draws", "i8"),
        ("released", "i8"),
        ("out_rows", "i8"),
        ("out_releases", "i8"),
    ]
)
#: One element of `NUMBERS`.
Numbers = Any
REUSABLE = np.dtype([("group", "i8"), ("persons", "i8"), ("loss", "f8")])


class Held(NamedTuple):
    """The held rows by place; a gap has the number NONE."""

    number: Any
    person: Any
    deadline: Any  # if there is a delay
    lonely: Any
    columns: Any  # [quasi-identifier, place]
    sensitive: Any


class Search(NamedTuple):
    """Scratch space to form one group in."""

    cost: Any  # by place: the loss of a box of this row and the anchor
    order: Any  # the same, to be selected from
    place: Any  # of each candidate
    offset: Any  # [quasi-identifier, candidate]: how far it lies from the anchor; of single precision, as is the score
    score: Any  # of each candidate; infinite if it cannot join
    least: Any  # score of each lane of candidates
    members: Any  # places of the group
    company: Any  # their persons


class Plan(NamedTuple):
    """The groups of the rows that are due at one moment, before they are written. Planned rows are held no more."""

    place: Any  # of each planned row: its columns stay there until the plan is written
    number: Any
    group: Any
    size: Any  # of each group
    box: Any  # [group, 3, quasi-identifier]: as `State.box`
    end: Any  # of each group in `order`
    order: Any  # planned rows by group


class Scratch(NamedTuple):
    """Room for what is needed for a moment: nothing is allocated where references are not counted."""

    row: Any  # a row's quasi-identifiers
    box: Any  # as `State.box`
    values: Any  # of a sensitive column: l
    histogram: Any  # as `Closeness.stream`


class Reusable(NamedTuple):
    """Generalizations that were published and may be used again, a ring."""

    table: Any  # REUSABLE
    lo: Any
    hi: Any
    histogram: Any
    marks: Any  # [quasi-identifier, bin, word]: of the boxes that have something of the bin, a bit each
    frame: Any  # [3, quasi-identifier]: the domain that the bins cover, and how many of them there are to one
    bins: Any  # to compute with: the bins of a row
    candidates: Any
    weight: Any


class Terrain(NamedTuple):
    """The quasi-identifiers, and room to compute with their trees."""

    space: Space
    growth: Any  # [2, leaf]


class Kept(NamedTuple):
    """Everything a bastion engine is."""

    numbers: Any  # NUMBERS, one
    terrain: Terrain
    held: Held
    sample: Any  # [quasi-identifier, place]: some of the rows that came lately
    box: Any  # [3, quasi-identifier]: lo, hi and tree node of the group that is being formed
    scratch: Scratch
    reusable: Reusable
    closeness: Closeness
    random: Random


class State(NamedTuple):
    """The same, and room to compute in and to write to."""

    numbers: Any
    terrain: Terrain
    held: Held
    sample: Any
    box: Any
    scratch: Scratch
    reusable: Reusable
    closeness: Closeness
    random: Random
    search: Search
    plan: Plan
    out: Out


# --- Losses of many boxes at once ------------------------------------------------------------------------------------


@vectorized
def _add_distances(column: Array, x: float, scale: float, total: Array) -> None:
    """Add how far each value lies from x."""
    for i in range(total.size):
        total[i] += scale * abs(column[i] - x)


@vectorized
def _come_nearer(offset: Array, sign: float, old: float, new: float, total: Array) -> None:
    """Subtract how much nearer each offset comes to the end of an interval when that moves outwards."""
    for i in range(total.size):
        x = sign * offset[i]
        total[i] += max(x - new, np.float32(0.0)) - max(x - old, np.float32(0.0))


@bare
def _grow_by_leaf(space: Space, node: int, scale: float, growth: Array) -> None:
    """Compute how much the span of a tree's node grows by taking in each leaf: by climbing once for all of them."""
    nodes = space.nodes
    first, last = np.int64(nodes[node].first), np.int64(nodes[node].last)
    width = last - first
    for leaf in range(first, last + 1):
        growth[leaf] = 0.0
    while last - first + 1 < growth.size:
        node = nodes[node].parent
        lo, hi = np.int64(nodes[node].first), np.int64(nodes[node].last)
        more = scale * ((hi - lo) - width)
        for leaf in range(lo, first):
            growth[leaf] = more
        for leaf in range(last + 1, hi + 1):
            growth[leaf] = more
        first, last = lo, hi


@vectorized
def _add_of_leaves(column: Array, growth: Array, total: Array) -> None:
    for i in range(total.size):
        total[i] += growth[np.uint32(column[i])]


@bare
def _add_widened(
    space: Space, d: int, lo: float, hi: float, node: int, scale: float, column: Array, total: Array
) -> None:
    """Add how much the span grows if it takes each value; for what has no table."""
    for i in range(total.size):
        x = column[i]
        if x < lo or x > hi:
            new_lo, new_hi, _ = widen(space, d, lo, hi, node, x, x)
            total[i] += scale * ((new_hi - new_lo) - (hi - lo))


@bare
def _add_growth(
    terrain: Terrain, d: int, lo: float, hi: float, node: int, scale: float, column: Array, total: Array
) -> None:
    """Add `scale` times how much the span of a category or a prefix grows if it takes each of the column's values."""
    dimension, leaves = terrain.space.dimensions[d], np.int64(terrain.space.dimensions[d].widest_hi) + 1
    if dimension.kind == TREE and leaves <= LEAVES_A_VALUE * total.size:
        growth = terrain.growth[0, :leaves]
        _grow_by_leaf(terrain.space, node, scale, growth)
        _add_of_leaves(column, growth, total)
    else:
        _add_widened(terrain.space, d, lo, hi, node, scale, column, total)


@bare
def _values_of(column: Array, place: Array, value: Array) -> None:
    """The values at some places. They mostly lie side by side: then nothing has to be looked up."""
    count = value.size
    if place[count - 1] - place[0] == count - 1:
        copy_into(column[place[0] : place[0] + count], value)
        return
    for j in range(count):
        value[j] = column[place[j]]


@bare
def _add_regrowth(
    terrain: Terrain, d: int, lo: float, hi: float, node: int, box: Array, column: Array, total: Array
) -> None:
    """Add by how much less each value enlarges the span of a category or a prefix, which has become the box's."""
    space, dimension = terrain.space, terrain.space.dimensions[d]
    leaves, scale = np.int64(dimension.widest_hi) + 1, dimension.scale
    new_lo, new_hi, new_node = box[0, d], box[1, d], np.int64(box[2, d])
    if dimension.kind == TREE and leaves <= LEAVES_A_VALUE * total.size:
        growth, before = terrain.growth[0, :leaves], terrain.growth[1, :leaves]
        _grow_by_leaf(space, node, scale, before)
        _grow_by_leaf(space, new_node, scale, growth)
        for leaf in range(leaves):
            growth[leaf] -= before[leaf]
        _add_of_leaves(column, growth, total)
        return
    for i in range(total.size):
        x = column[i]
        if x < lo or x > hi:
            old_lo, old_hi, _ = widen(space, d, lo, hi, node, x, x)
            wide_lo, wide_hi, _ = widen(space, d, new_lo, new_hi, new_node, x, x)
            old_growth = scale * ((old_hi - old_lo) - (hi - lo))
            total[i] += scale * ((wide_hi - wide_lo) - (new_hi - new_lo)) - old_growth


@bare
def _leaf(space: Space, d: int, x: float) -> int:
    """The tree node of a value, if it has one."""
    dimension = space.dimensions[d]
    return space.leaf[dimension.leaf_offset + np.int64(x)] if dimension.kind == TREE else 0


@bare
def _pair_losses(terrain: Terrain, columns: Array, row: Array, cost: Array) -> None:
    """The loss of a box of the row and each of the first in `columns`, as many as `cost` has room for."""
    for i in range(cost.size):
        cost[i] = 0.0
    for d in range(row.size):
        dimension = terrain.space.dimensions[d]
        if dimension.kind == INTERVAL:
            _add_distances(columns[d], row[d], dimension.scale, cost)
        else:
            leaf = _leaf(terrain.space, d, row[d])
            _add_growth(terrain, d, row[d], row[d], leaf, dimension.scale, columns[d], cost)


@vectorized
def _lessen(least: Array, score: Array) -> None:
    """The lesser of each two."""
    for lane in range(least.size):
        least[lane] = min(least[lane], score[lane])


@bare
def _least_of_lanes(score: Array, least: Array) -> None:
    """The least score of each lane; there are LANES times a whole number of scores."""
    copy_into(score[:LANES], least)
    for start in range(LANES, score.size, LANES):
        _lessen(least, score[start : start + LANES])


@kernel
def in_lanes(count: int) -> int:
    """Scores for `count` candidates, padded with infinite ones."""
    return max((count + LANES - 1) // LANES, 1) * LANES


@vectorized
def _up_to(cost: Array, most: float) -> int:
    """How many cost no more."""
    count = 0
    for i in range(cost.size):
        count += cost[i] <= most
    return count


@vectorized
def _least(cost: Array) -> float:
    """The least of some costs."""
    least = np.inf
    for i in range(cost.size):
        least = min(least, cost[i])
    return least


@bare
def _quick_select(order: Array, rank: int) -> float:
    """What is of this rank, from 1; the order of all changes."""
    lo, hi, wanted = 0, order.size - 1, rank - 1
    while lo < hi:
        pivot = order[(lo + hi) // 2]
        i, j = lo, hi
        while i <= j:
            while order[i] < pivot:
                i += 1
            while order[j] > pivot:
                j -= 1
            if i <= j:
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if wanted <= j:
            hi = j
        elif wanted >= i:
            lo = i
        else:
            break
    return order[wanted]


@bare
def _about(cost: Array, rank: int) -> tuple[float, float, int]:
    """Bounds of the cost of a rank, from 1, that few others are between, and how many are not above the lower one.

    Costs are from -1 to 1, or infinite, if they are of a higher rank.
    """
    # To count is cheap: halve the range until few are left.
    low, high, under, upto = -1.001, 1.001, 0, cost.size
    for _ in range(20):
        if upto - under <= FEW:
            break
        middle = (low + high) / 2.0
        count = _up_to(cost, middle)
        if count >= rank:
            upto, high = count, middle
        else:
            under, low = count, middle
    return low, high, under


@bare
def _smallest(cost: Array, rank: int) -> float:
    """The cost of a rank, from 1; the order of all changes."""
    low, high, under = _about(cost, rank)
    count = 0
    for i in range(cost.size):
        x = cost[i]
        cost[count] = x
        count += (x > low) & (x <= high)
    return _quick_select(cost[:count], rank - under)


# --- The held rows ---------------------------------------------------------------------------------------------------


@bare
def _loneliness(numbers: Array, terrain: Terrain, sample: Array, row: Array, cost: Array) -> float:
    """What a group about the row would lose: by the nearest row in parts of the sample that have one member each."""
    n = numbers[0]
    known = min(n.sampled, sample.shape[1])
    if known == 0:
        return 0.0
    parts = min(max(np.int64(np.rint(n.k * known / max(n.held, 1))), 1), known)
    size = known // parts
    _pair_losses(terrain, sample, row, cost[: parts * size])
    total = 0.0
    for start in range(0, parts * size, size):
        total += _least(cost[start : start + size])
    return total / parts


@bare
def _take_sample(numbers: Array, sample: Array, row: Array) -> None:
    """Let every so many rows into the sample, so that it is of about as many as are held; the oldest go."""
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


@kernel
def close_gaps(numbers: Array, held: Held) -> None:
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
        at += 1
    n.places = at
    n.first = 0


@bare
def _hold(numbers: Array, held: Held, qi: Array, person: int, sensitive: Array, deadline: int, lonely: float) -> None:
    n = numbers[0]
    if n.places == held.number.size or 8 * (n.places - n.held) > n.places + 512:
        close_gaps(numbers, held)
    at = n.places
    held.number[at] = n.arrivals
    held.person[at] = person
    if held.deadline.size > 0:
        held.deadline[at] = deadline
    held.lonely[at] = lonely
    for d in range(qi.size):
        held.columns[d, at] = qi[d]
    copy_into(sensitive, held.sensitive[at])
    n.places += 1
    n.held += 1
    n.arrivals += 1


@bare
def _first(numbers: Array, held: Held) -> int:
    """The place of the row that has waited longest; there is one."""
    n = numbers[0]
    while held.number[n.first] == NONE:
        n.first += 1
    return n.first


@bare
def _soonest(numbers: Array, held: Held) -> int:
    """The place of the row whose deadline comes first, and that came first among such; there is one."""
    n = numbers[0]
    best = _first(numbers, held)
    for i in range(best + 1, n.places):
        if held.number[i] != NONE and held.deadline[i] < held.deadline[best]:
            best = i
    return best


# --- Guarantees ------------------------------------------------------------------------------------------------------


@bare
def _has_l_values(s: State, size: int, skip: int, until: int, column: int) -> bool:
    """Whether the members, but for those from `skip` until `until`, have l different values of a sensitive column."""
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
def _count_members(s: State, size: int, skip: int, until: int) -> None:
    """Count in `scratch.histogram` how often the members, but for some, have each sensitive value."""
    histogram = s.scratch.histogram
    for j in range(histogram.shape[0]):
        for v in range(histogram.shape[1]):
            histogram[j, v] = 0
    for i in range(size):
        if i < skip or i >= until:
            count_values(histogram, s.held.sensitive[s.search.members[i]])


@bare
def _has_values(s: State, size: int, skip: int, until: int) -> bool:
    """Whether the members, but for those from `skip` until `until`, have l values and are within t of the stream."""
    n = s.numbers[0]
    if n.l > 0:
        for column in range(s.held.sensitive.shape[1]):
            if not _has_l_values(s, size, skip, until, column):
                return False
    if n.t < 0.0:
        return True
    _count_members(s, size, skip, until)
    return within_t(s.numbers, s.closeness, s.scratch.histogram, size - (until - skip))


# --- Forming a group -------------------------------------------------------------------------------------------------


@bare
def _box_loss(space: Space, box: Array) -> float:
    return loss_of(space, box[0], box[1])


@bare
def _start_box(space: Space, box: Array, row: Array) -> None:
    for d in range(row.size):
        box[0, d] = box[1, d] = row[d]
        box[2, d] = _leaf(space, d, row[d])


@bare
def _grow_box(space: Space, box: Array, d: int, x: float) -> None:
    """Let the box hold a value."""
    box[0, d], box[1, d], box[2, d] = widen(space, d, box[0, d], box[1, d], np.int64(box[2, d]), x, x)


@bare
def _copy_row(columns: Array, place: int, row: Array) -> None:
    for d in range(row.size):
        row[d] = columns[d, place]


@bare
def _known(found: Array, values: int, value: int) -> bool:
    for v in range(values):
        if found[v] == value:
            return True
    return False


@vectorized
def _age_in_rows(number: Array, arrivals: int, share: float, age: Array) -> None:
    """How much of its time each row has waited, from 0 to 1, where that is counted in arrivals, each a `share`."""
    for j in range(age.size):
        age[j] = min((arrivals - number[j]) * share, 1.0)


@vectorized
def _age_in_time(deadline: Array, clock: int, share: float, age: Array) -> None:
    """The same where it is measured in event time, each microsecond a `share`; the greater of both counts."""
    for j in range(age.size):
        age[j] = max(age[j], min(1.0 - (np.float64(deadline[j]) - np.float64(clock)) * share, 1.0))


@vectorized
def _credit(lonely: Array, age: Array, weight: float, score: Array) -> None:
    """Let the scores begin at what speaks for each row: its loneliness, the more the longer it has waited."""
    for j in range(score.size):
        score[j] = -weight * lonely[j] * age[j]


@vectorized
def _add_offsets(column: Array, x: float, scale: float, lo: float, hi: float, offset: Array, total: Array) -> None:
    """Compute how far each value lies from the anchor's, and add how far that is outside of an interval."""
    for j in range(total.size):
        away = np.float32(scale * (column[j] - x))
        offset[j] = away
        total[j] += max(away - hi, np.float32(0.0)) + max(lo - away, np.float32(0.0))


@bare
def _score(s: State, first: int, count: int) -> None:
    """Compute the scores of the rows from place `first` on: what the box grows by with each, less its credit."""
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
            _add_growth(s.terrain, d, s.box[0, d], s.box[1, d], np.int64(s.box[2, d]), dimension.scale, column, score)


@vectorized
def _bar_ineligible(number: Array, person: Array, of: int, score: Array) -> int:
    """Let gaps and the rows of a person score infinity; how many other rows there are."""
    count = 0
    for j in range(score.size):
        able = (number[j] != NONE) & (person[j] != of)
        score[j] = score[j] if able else np.float32(np.inf)
        count += able
    return count


@bare
def _bar_more(s: State, first: int, size: int, most: float, score: Array) -> int:
    """The same for rows of persons who are in the group, and for those too far from the anchor; how many are left."""
    count = 0
    for j in range(score.size):
        if score[j] == np.inf:
            continue
        far = most < np.inf and s.search.cost[first + j] > most
        if far or _known(s.search.company, size, s.held.person[first + j]):
            score[j] = np.inf
        else:
            count += 1
    return count


@bare
def _keep_least(search: Search, first: int, count: int, wanted: int) -> None:
    """Keep the `wanted` candidates of the least scores, in their order; of equal scores the first."""
    score = search.score
    for j in range(count):
        search.order[j] = score[j]
    limit = _smallest(search.order[:count], wanted)
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
    """Make candidates of the held rows that may join: all from `first` to `last`, or the best `search`; how many."""
    n, search, count = s.numbers[0], s.search, last + 1 - first
    _score(s, first, count)
    score = search.score[:count]
    number, person = s.held.number[first : last + 1], s.held.person[first : last + 1]
    eligible = _bar_ineligible(number, person, search.company[0], score)
    if size > 1 or most < np.inf:
        eligible = _bar_more(s, first, size, most, score)
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
    _least_of_lanes(search.score[: in_lanes(count)], search.least)
    return count


@bare
def _bar(j: int, score: Array, least: Array) -> None:
    """Let a candidate not be the next to join."""
    score[j] = np.inf
    lane = j % LANES
    least[lane] = np.inf
    for i in range(lane, score.size, LANES):
        least[lane] = min(least[lane], score[i])


@bare
def _best(score: Array, least: Array) -> int:
    """The first of the least score; NONE if there is none below infinity."""
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


@bare
def _widen_span(
    terrain: Terrain, box: Array, d: int, columns: Array, search: Search, chosen: int, score: Array
) -> None:
    """Let the box hold a candidate's value outside of it, and the scores follow: what is nearer enlarges it less."""
    dimension, x = terrain.space.dimensions[d], columns[d, search.place[chosen]]
    if dimension.kind != INTERVAL:
        value = search.order[: score.size]
        _values_of(columns[d], search.place, value)
        lo, hi, node = box[0, d], box[1, d], np.int64(box[2, d])
        _grow_box(terrain.space, box, d, x)
        _add_regrowth(terrain, d, lo, hi, node, box, value, score)
        return
    offset, anchor = search.offset[d], columns[d, search.members[0]]
    end, sign = (box[1, d], np.float32(1.0)) if x > box[1, d] else (box[0, d], np.float32(-1.0))
    old = np.float32(dimension.scale * (end - anchor))
    _come_nearer(offset, sign, sign * old, sign * offset[chosen], score)
    _grow_box(terrain.space, box, d, x)


@bare
def _join(
    terrain: Terrain, box: Array, columns: Array, search: Search, count: int, size: int, chosen: int, person: int
) -> None:
    """Let a candidate join, and the box and the scores follow."""
    place, score = search.place[chosen], search.score[:count]
    search.members[size] = place
    search.company[size] = person
    grown = False
    for d in range(box.shape[1]):
        if columns[d, place] < box[0, d] or columns[d, place] > box[1, d]:
            _widen_span(terrain, box, d, columns, search, chosen, score)
            grown = True
    if grown:
        _least_of_lanes(search.score[: in_lanes(count)], search.least)


@bare
def _gather(s: State, count: int, size: int, wanted: int, most: float) -> int:
    """Let candidates join, best first, until the group has the wanted size; its size, or -1 if k lose too much."""
    search, score = s.search, s.search.score[: in_lanes(count)]
    while size < wanted:
        chosen = _best(score, search.least)
        if chosen == NONE:
            break
        _bar(chosen, score, search.least)
        person = s.held.person[search.place[chosen]]
        if _known(search.company, size, person):
            continue
        _join(s.terrain, s.box, s.held.columns, search, count, size, chosen, person)
        size += 1
        if size <= s.numbers[0].k and most < np.inf and _box_loss(s.terrain.space, s.box) > most:
            return -1
    return size


@bare
def _pair_costs(s: State, row: Array, most: float) -> float:
    """Compute `search.cost`, and return that of the (k-1)-th nearest row; infinity if a group would cost too much."""
    n, search = s.numbers[0], s.search
    cost = search.cost[: n.places]
    _pair_losses(s.terrain, s.held.columns, row, cost)
    eligible = 0
    for i in range(n.places):
        if s.held.number[i] != NONE and s.held.person[i] != search.company[0] and cost[i] <= most:
            search.order[eligible] = cost[i]
            eligible += 1
    if eligible < n.k - 1:
        return np.inf
    nearest = _smallest(search.order[:eligible], n.k - 1)
    return np.inf if nearest > most / max(n.ratio, 1.0) else nearest


@bare
def _note_ratios(s: State, anchor: int, nearest: float) -> None:
    """Let what groups lose, to what was foreseen, follow: the last twenty or so count."""
    n, loss, lonely = s.numbers[0], _box_loss(s.terrain.space, s.box), s.held.lonely[anchor]
    if nearest > 0.0:
        n.ratio += FOLLOW * (loss / nearest - n.ratio)
    if lonely > 0.0:
        n.guess += FOLLOW * (loss / lonely - n.guess)


@bare
def _grow(s: State, first: int, last: int, size: int, wanted: int, most: float, count: int) -> tuple[int, int]:
    """Let rows join until the group has the wanted size, or none is left; its size, and how many candidates there are.

    The size is -1 if the group loses too much before it has k rows, or with them.
    """
    while size < wanted:
        if count > 0:
            size = _gather(s, count, size, wanted, most)
            if size < 0 or size == wanted or count < s.numbers[0].search:  # then all rows were candidates
                break
        count = _choose(s, first, last, size, most)
        if count == 0:
            break
    return size, count


@bare
def _with_values(s: State, first: int, last: int, size: int, most: float, count: int) -> int:
    """Enlarge the group by halves until it has the sensitive values that are asked for; its size, or 0 if it never has.

    A ring of half as many rows as the group has joins as a whole, or not at all. Group and ring are three parts of one
    size, and the ring stays out only where any two of them have the values. So whoever sees it join learns that some
    part lacks values, not which: there is no reason to look for the odd value among those that came last.
    """
    while True:
        for j in range(3):
            copy_into(s.box[j], s.scratch.box[j])
        half, wanted = size // 2, size + size // 2
        all_three, count = _grow(s, first, last, size, wanted, most, count)
        if all_three < wanted:
            return all_three if _has_values(s, all_three, 0, 0) else 0
        if (
            _has_values(s, wanted, size, wanted)
            and _has_values(s, wanted, 0, half)
            and _has_values(s, wanted, half, size)
        ):
            for j in range(3):
                copy_into(s.scratch.box[j], s.box[j])
            return size
        size = wanted


@bare
def _group(s: State, anchor: int, first: int, last: int, most: float) -> int:
    """Form a group of the anchor and rows from `first` to `last`, in `search.members` and `box`; its size, or 0.

    Which rows join depends on their quasi-identifiers and their age, never on their sensitive values.
    """
    n = s.numbers[0]
    if n.held < n.k:
        return 0
    search, row = s.search, s.scratch.row
    _copy_row(s.held.columns, anchor, row)
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
    if size > 0 and _box_loss(s.terrain.space, s.box) > most:
        size = 0
    if size > 0 and n.max_reusable > 0:
        _note_ratios(s, anchor, nearest)
    return size


# --- What leaves -----------------------------------------------------------------------------------------------------


@bare
def _leave(s: State, place: int) -> None:
    n = s.numbers[0]
    s.out.rows[n.out_rows] = s.held.number[place]
    s.held.number[place] = NONE
    n.out_rows += 1
    n.held -= 1


@bare
def _waited(s: State, order: Array) -> float:
    """How long planned rows have waited, in the mean, as a part of what the first of them has."""
    n, number = s.numbers[0], s.plan.number
    longest, total = n.arrivals - number[order[0]], 0.0
    for i in range(order.size):
        total += min((n.arrivals - number[order[i]]) / longest, 1.0)
    return total / order.size


@bare
def _note_departure(numbers: Array, loss: float, waited: float, rows: int) -> None:
    """Let the averages follow: the last ten groups or so count, and twenty."""
    n = numbers[0]
    n.waited += min(rows / (20.0 * n.k), 0.5) * (waited - n.waited)
    n.average = loss if n.average < 0.0 else n.average + min(rows / (10.0 * n.k), 0.5) * (loss - n.average)


@bare
def _suppress(s: State, place: int) -> None:
    dimensions = s.terrain.space.dimensions
    for d in range(dimensions.size):
        s.box[0, d], s.box[1, d] = dimensions[d].widest_lo, dimensions[d].widest_hi
    _leave(s, place)
    write_release(s.out, s.numbers, SUPPRESSED, s.box[0], s.box[1], 1.0, 1, NONE)


@bare
def _plan_row(s: State, place: int, group: int) -> None:
    n, plan = s.numbers[0], s.plan
    plan.place[n.planned_rows] = place
    plan.number[n.planned_rows] = s.held.number[place]
    plan.group[n.planned_rows] = group
    n.planned_rows += 1
    s.held.number[place] = NONE
    n.held -= 1


@bare
def _plan_group(s: State, size: int) -> None:
    """Move the group that was formed from the held rows to the plan."""
    n = s.numbers[0]
    for i in range(size):
        _plan_row(s, s.search.members[i], n.planned)
    for j in range(3):
        copy_into(s.box[j], s.plan.box[n.planned, j])
    s.plan.size[n.planned] = size
    n.planned += 1


@bare
def _members_of(s: State, group: int) -> int:
    """Put the places of a planned group in `search.members`; how many."""
    count = 0
    for i in range(s.numbers[0].planned_rows):
        if s.plan.group[i] == group:
            s.search.members[count] = s.plan.place[i]
            count += 1
    return count


@bare
def _may_join(s: State, group: int, place: int) -> bool:
    """Whether a planned group lacks the row's person, and stays within t with the row."""
    size = _members_of(s, group)
    for i in range(size):
        if s.held.person[s.search.members[i]] == s.held.person[place]:
            return False
    s.search.members[size] = place
    return s.numbers[0].t < 0.0 or _has_values(s, size + 1, 0, 0)


@bare
def _join_plan(s: State, place: int, first: int) -> None:
    """Let a row join the planned group, from `first` on, to which it adds the least loss, if that is less than 1."""
    n, plan, space = s.numbers[0], s.plan, s.terrain.space
    best, least = NONE, 1.0
    for group in range(first, n.planned):
        loss, growth = _box_loss(space, plan.box[group]), 0.0
        for d in range(s.box.shape[1]):
            lo, hi, x = plan.box[group, 0, d], plan.box[group, 1, d], s.held.columns[d, place]
            new_lo, new_hi, _ = widen(space, d, lo, hi, np.int64(plan.box[group, 2, d]), x, x)
            growth += space.dimensions[d].scale * ((new_hi - new_lo) - (hi - lo))
        added = plan.size[group] * growth + loss + growth
        if added < least and _may_join(s, group, place):
            best, least = group, added
    if best == NONE:
        return
    for d in range(s.box.shape[1]):
        _grow_box(space, plan.box[best], d, s.held.columns[d, place])
    plan.size[best] += 1
    _plan_row(s, place, best)


@bare
def _order_plan(s: State) -> None:
    """Sort the planned rows by group; each group's start in `order` is moved to its end."""
    n, plan = s.numbers[0], s.plan
    at = 0
    for group in range(n.planned):
        plan.end[group] = at
        at += plan.size[group]
    for i in range(n.planned_rows):
        group = plan.group[i]
        plan.order[plan.end[group]] = i
        plan.end[group] += 1


@bare
def _write_group(s: State, group: int) -> None:
    """Release a planned group, and keep its box for reuse."""
    n, plan = s.numbers[0], s.plan
    size = plan.size[group]
    order = plan.order[plan.end[group] - size : plan.end[group]]
    for j in range(3):
        copy_into(plan.box[group, j], s.box[j])
    loss = _box_loss(s.terrain.space, s.box)
    if n.max_reusable > 0:
        for i in range(size):
            s.search.members[i] = plan.place[order[i]]
        _count_members(s, size, 0, 0)
        _note_departure(s.numbers, loss, _waited(s, order), size)
    shuffle(s.random, s.numbers, order)
    for i in range(size):
        s.out.rows[n.out_rows] = plan.number[order[i]]
        n.out_rows += 1
    number = n.released
    write_release(s.out, s.numbers, CLUSTER, s.box[0], s.box[1], loss, size, number)
    _keep(s, loss, size, number)


# --- Reuse -----------------------------------------------------------------------------------------------------------


@bare
def _bin(frame: Array, d: int, x: float) -> int:
    """The bin of a value; no smaller a value has a greater one."""
    place = (x - frame[0, d]) * frame[2, d]
    if not place > 0.0:
        return 0
    return np.int64(place) if place < BINS else BINS - 1


@bare
def _mark(reusable: Reusable, place: int) -> None:
    """Note in which bins the box at a place is."""
    word, bit = place // 64, np.uint64(1) << np.uint64(place % 64)
    for d in range(reusable.frame.shape[1]):
        first = _bin(reusable.frame, d, reusable.lo[place, d])
        last = _bin(reusable.frame, d, reusable.hi[place, d])
        for i in range(BINS):
            if first <= i <= last:
                reusable.marks[d, i, word] |= bit
            else:
                reusable.marks[d, i, word] &= ~bit


@bare
def _frame(space: Space, reusable: Reusable, boxes: int) -> None:
    """Let the bins cover the domains; if these have grown all boxes are marked anew."""
    frame, same = reusable.frame, True
    for d in range(frame.shape[1]):
        lo, hi = space.dimensions[d].domain_lo, space.dimensions[d].domain_hi
        if frame[0, d] != lo or frame[1, d] != hi:
            frame[0, d], frame[1, d] = lo, hi
            frame[2, d] = BINS / (hi - lo) if hi > lo else 0.0
            same = False
    if not same:
        for place in range(boxes):
            _mark(reusable, place)


@bare
def _reverse(items: Array, start: int, stop: int) -> None:
    while start < stop - 1:
        stop -= 1
        items[start], items[stop] = items[stop], items[start]
        start += 1


@bare
def _covering(s: State, row: Array) -> int:
    """Put the reusable boxes that contain the row in `candidates`, oldest first; how many."""
    n, reusable = s.numbers[0], s.reusable
    marks, candidates, frame = reusable.marks, reusable.candidates, reusable.frame
    _frame(s.terrain.space, reusable, n.reusable)
    found, newer = 0, 0
    for d in range(row.size):
        reusable.bins[d] = _bin(frame, d, row[d])
    for word in range((n.reusable + 63) // 64):
        covers = marks[0, reusable.bins[0], word]
        for d in range(1, row.size):
            covers &= marks[d, reusable.bins[d], word]
        while covers != 0:
            lowest = covers & (~covers + np.uint64(1))
            covers ^= lowest
            at = word * 64 + _BIT[(lowest * _DE_BRUIJN) >> np.uint64(58)]
            if inside(reusable.lo[at], reusable.hi[at], row):
                candidates[found] = at
                found += 1
                newer += at < n.reusable_oldest
    # From the order of places to that of age: the ring begins at the oldest.
    _reverse(candidates, 0, newer)
    _reverse(candidates, newer, found)
    _reverse(candidates, 0, found)
    return found


@bare
def _same_box(s: State, place: int) -> bool:
    for d in range(s.box.shape[1]):
        if s.reusable.lo[place, d] != s.box[0, d] or s.reusable.hi[place, d] != s.box[1, d]:
            return False
    return True


@bare
def _keep(s: State, loss: float, persons: int, group: int) -> None:
    """Keep a box that was published, in place of an equal one, or of the oldest if there are enough."""
    n = s.numbers[0]
    size = s.reusable.table.size
    if size == 0:
        return
    place = NONE
    for i in range(_covering(s, s.box[0])):
        if _same_box(s, s.reusable.candidates[i]):
            place = s.reusable.candidates[i]
            break
    if place == NONE:
        if n.reusable == size:
            n.reusable_oldest = (n.reusable_oldest + 1) % size
            n.reusable -= 1
        place = (n.reusable_oldest + n.reusable) % size
        n.reusable += 1
    copy_into(s.box[0], s.reusable.lo[place])
    copy_into(s.box[1], s.reusable.hi[place])
    _mark(s.reusable, place)
    for j in range(s.scratch.histogram.shape[0]):
        copy_into(s.scratch.histogram[j], s.reusable.histogram[place, j])
    entry = s.reusable.table[place]
    entry.loss, entry.persons, entry.group = loss, persons, group


@bare
def _stays_within_t(s: State, place: int, row: int) -> bool:
    """Whether a reusable box may take the row as far as t goes."""
    histogram = s.scratch.histogram
    total = 0
    for j in range(histogram.shape[0]):
        copy_into(s.reusable.histogram[place, j], histogram[j])
    count_values(histogram, s.held.sensitive[row])
    for v in range(histogram.shape[1]):
        total += histogram[0, v]
    return within_t(s.numbers, s.closeness, histogram, total)


@bare
def _unit(random: Random, numbers: Array) -> float:
    """A number from 0 up to, not including, 1."""
    n = numbers[0]
    bits = np.int64(0)
    for _ in range(2):
        word = n.draws % WORDS
        if word == 0:
            chacha20_block(random, n.draws // WORDS)
        n.draws += 1
        bits = (bits << 32) | np.int64(random.block[word])
    return np.float64((bits >> 11) & 0x1FFFFFFFFFFFFF) / 9007199254740992.0


@bare
def _draw_reusable(s: State, place: int) -> int:
    """A box that contains the row, drawn with weights that fall with its loss; NONE if there is none."""
    n = s.numbers[0]
    candidates, weight, table = s.reusable.candidates, s.reusable.weight, s.reusable.table
    row = s.scratch.row
    _copy_row(s.held.columns, place, row)
    covering = _covering(s, row)
    found, least = 0, np.inf
    for i in range(covering):
        if n.t < 0.0 or _stays_within_t(s, candidates[i], place):
            candidates[found] = candidates[i]
            least = min(least, table[candidates[i]].loss)
            found += 1
    if found == 0:
        return NONE
    total, dearer, least_weight = 0.0, DEARER * n.average, np.exp(-n.eta)
    for i in range(found):
        more = table[candidates[i]].loss - least
        # Most boxes lose much more; and what a box weighs is dear to compute.
        total += 1.0 if more == 0.0 else least_weight if more >= dearer else np.exp(-n.eta * (more / dearer))
        weight[i] = total
    point = _unit(s.random, s.numbers) * total
    chosen = 0
    while chosen < found - 1 and weight[chosen] <= point:
        chosen += 1
    return candidates[chosen]


@bare
def _reuse(s: State, box: int, place: int) -> None:
    """Release one row under a box that was published before."""
    entry = s.reusable.table[box]
    count_values(s.reusable.histogram[box], s.held.sensitive[place])
    _leave(s, place)
    lo, hi = s.reusable.lo[box], s.reusable.hi[box]
    write_release(s.out, s.numbers, REUSE, lo, hi, loss_of(s.terrain.space, lo, hi), entry.persons, entry.group)
    _note_departure(s.numbers, entry.loss, 1.0, 1)


# --- The algorithm ---------------------------------------------------------------------------------------------------


@bare
def _note_try(numbers: Array, found: bool) -> None:
    """Let the caution follow."""
    n = numbers[0]
    n.caution = max(n.caution - FOUND, LEAST_CAUTION) if found else min(n.caution + NOT_FOUND, MOST_CAUTION)


@bare
def _try_group(s: State, anchor: int, most: float) -> int:
    """Form a group about the anchor where it is likely to lose no more; else that would cost a look at all rows."""
    n = s.numbers[0]
    if n.caution * n.guess * s.held.lonely[anchor] > most:
        return 0
    size = _group(s, anchor, n.first, n.places - 1, most)
    _note_try(s.numbers, size > 0)
    return size


@bare
def _expire(s: State, place: int) -> None:
    """With reuse: plan a group about a row that is due, or let it leave alone under a published box, or suppress it."""
    n = s.numbers[0]
    box = _draw_reusable(s, place)
    most = np.inf
    if box != NONE:
        # A group of k that loses L costs k * L, and spares k - 1 rows what they would cost otherwise, and a wait.
        spared = (SPARED + IMPATIENCE * max(n.waited - PATIENCE, 0.0)) * n.average
        most = (s.reusable.table[box].loss + (n.k - 1) * spared) / n.k
    size = _try_group(s, place, most)
    if size > 0:
        _plan_group(s, size)
    elif box != NONE:
        _reuse(s, box, place)
    else:
        _suppress(s, place)


@bare
def _must_leave(numbers: Array, held: Held, place: int) -> bool:
    """Whether there is a row that is due."""
    n, number = numbers[0], held.number[place]
    if number == NONE:
        return False
    if n.over != 0 or (n.delay_rows > 0 and number < n.arrivals - n.delay_rows):
        return True
    return n.delay >= 0 and held.deadline[place] <= n.until


@bare
def _due_end(numbers: Array, held: Held) -> int:
    """The place before which all rows that are due lie."""
    n = numbers[0]
    if n.over != 0 or n.until != EARLIEST:
        return n.places
    end = n.first
    while end < n.places and (held.number[end] == NONE or held.number[end] < n.arrivals - n.delay_rows):
        end += 1
    return end


@bare
def _sample_held(s: State) -> None:
    """Make the sample one of the held rows, evenly spaced."""
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
    """Estimate the loneliness of all held rows anew: on arrival, a row of a burst is compared with too few others."""
    _sample_held(s)
    for i in range(s.numbers[0].first, s.numbers[0].places):
        if s.held.number[i] != NONE:
            _copy_row(s.held.columns, i, s.scratch.row)
            s.held.lonely[i] = _loneliness(s.numbers, s.terrain, s.sample, s.scratch.row, s.search.cost)


@bare
def _plan_due(s: State, first: int, last: int, company: int) -> None:
    """Plan groups for the rows from `first` to `last` that are due; those left over join one of these groups.

    Company is looked for up to place `company`.
    """
    n, groups = s.numbers[0], s.numbers[0].planned
    for i in range(first, last + 1):
        if _must_leave(s.numbers, s.held, i):
            size = _group(s, i, first, company, np.inf)
            if size > 0:
                _plan_group(s, size)
    if n.planned > groups:
        for i in range(first, last + 1):
            if _must_leave(s.numbers, s.held, i):
                _join_plan(s, i, groups)


@kernel
def plan_parts(s: State, offsets: Array) -> float:
    """Plan groups for all held rows, in each of some parts by itself; the loss of all, suppressed rows counting 1."""
    n = s.numbers[0]
    n.planned = n.planned_rows = 0
    for part in range(offsets.size - 1):
        _plan_due(s, offsets[part], offsets[part + 1] - 1, offsets[part + 1] - 1)
    for i in range(n.places):  # those of parts without a group
        if s.held.number[i] != NONE:
            _join_plan(s, i, 0)
    total = np.float64(n.held)
    for group in range(n.planned):
        total += s.plan.size[group] * _box_loss(s.terrain.space, s.plan.box[group])
    return total


@kernel
def hold_again(s: State) -> None:
    """Undo a plan: hold its rows again."""
    n = s.numbers[0]
    for i in range(n.planned_rows):
        s.held.number[s.plan.place[i]] = s.plan.number[i]
    n.held += n.planned_rows
    n.planned = n.planned_rows = 0


@kernel
def begin_writing(s: State) -> None:
    """Let a plan be written."""
    _order_plan(s)
    s.numbers[0].written, s.numbers[0].writing = 0, 1


@bare
def _plan(s: State, last: int, due: int) -> None:
    """Plan groups for the rows that are due, `due` of them, none after place `last`, among all that are held."""
    n = s.numbers[0]
    n.planned = n.planned_rows = 0
    if due >= n.k and 2 * due >= n.held:
        estimate_again(s)
    _plan_due(s, n.first, last, n.places - 1)


@bare
def _begin(s: State, place: int) -> bool:
    """Decide what becomes of the rows that are due; with reuse, of the one at a place.

    False if the caller has to make room, or to divide the rows.
    """
    n = s.numbers[0]
    if n.max_reusable > 0:
        if not _has_room(s.numbers, s.reusable, s.out, 1):
            return False
        n.planned = n.planned_rows = 0
        _expire(s, place)
    else:
        end, due = _due_end(s.numbers, s.held), 0
        for i in range(n.first, end):
            due += _must_leave(s.numbers, s.held, i)
        if due == n.held and due >= 2 * n.k:
            n.dividing = 1
            return False
        _plan(s, end - 1, due)
    begin_writing(s)
    return True


@bare
def _finish(s: State) -> bool:
    """Write the planned groups, and suppress the rows that are due and in none; false if there is no room."""
    n = s.numbers[0]
    while n.written < n.planned:
        if not _has_room(s.numbers, s.reusable, s.out, s.plan.size[n.written]):
            return False
        _write_group(s, n.written)
        n.written += 1
    if n.max_reusable == 0:
        for i in range(n.first, _due_end(s.numbers, s.held)):
            if _must_leave(s.numbers, s.held, i):
                if not _has_room(s.numbers, s.reusable, s.out, 1):
                    return False
                _suppress(s, i)
    n.writing = 0
    return True


@bare
def _has_room(numbers: Array, reusable: Reusable, out: Out, rows: int) -> bool:
    """Whether a release can be written, and its box be kept."""
    n, boxes = numbers[0], reusable.table.size
    return (
        n.out_releases < out.releases.size
        and n.out_rows + rows <= out.rows.size
        and (n.reusable < boxes or boxes == n.max_reusable)
    )


@bare
def _is_old(numbers: Array, held: Held) -> bool:
    """Whether so many rows came after one that it has to leave."""
    n = numbers[0]
    if n.delay_rows == 0 or n.held == 0:
        return False
    return held.number[_first(numbers, held)] < n.arrivals - n.delay_rows


@bare
def _next_due(s: State, now: int) -> int:
    """The place of the first row that is due by `now`, the clock being moved to its deadline; NONE if there is none."""
    n = s.numbers[0]
    n.until = EARLIEST
    if n.held == 0:
        return NONE
    if n.over != 0 or _is_old(s.numbers, s.held):
        return _first(s.numbers, s.held)
    if n.delay < 0 or n.soonest > now:
        return NONE
    due = _soonest(s.numbers, s.held)
    n.soonest = s.held.deadline[due]
    if n.soonest > now:
        return NONE
    n.until = n.soonest
    n.clock = max(n.clock, n.soonest)
    return due


@inlined
def _settle(s: State, now: int) -> bool:
    """Release what is due, stopping at each deadline on the way to `now`; false if the caller has something to do."""
    n = s.numbers[0]
    while True:
        if n.writing != 0 and not _finish(s):
            return False
        due = _next_due(s, now)
        if due == NONE:
            break
        if not _begin(s, due):
            return False
    n.clock = max(n.clock, now)
    return True


@inlined
def _arrive(s: State, qi: Array, person: int, sensitive: Array, time: int) -> None:
    n = s.numbers[0]
    learn_domains(s.terrain.space, qi)
    count_values(s.closeness.stream, sensitive)
    deadline = np.int64(LATEST)
    if n.delay >= 0:
        deadline = saturating_add(time, n.delay)
        # Rounded down: who sees a row leave alone, at its deadline, must not learn its event time.
        deadline = saturating_add(deadline, -(deadline % n.tick))
        n.soonest = min(n.soonest, deadline) if n.held > 0 else deadline
    lonely = _loneliness(s.numbers, s.terrain, s.sample, qi, s.search.cost)
    _take_sample(s.numbers, s.sample, qi)
    _hold(s.numbers, s.held, qi, person, sensitive, deadline, lonely)


@bare
def _take_in(
    s: State, qi: Array, person: Array, sensitive: Array, time: Array, start: int, now: int, over: bool
) -> int:
    n = s.numbers[0]
    # One step more than there are rows: what is due is let go before each row, and after the last.
    for i in range(start, person.size + 1):
        until = saturating_add(time[i], -n.disorder) if i < person.size else now
        if not _settle(s, max(n.clock, until)):
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

    Returns NONE if all is done. Else what was written has to be taken, and if `dividing` is set the held rows have to
    be divided, before it goes on with the row that is returned.
    """
    return _take_in(s, qi, person, sensitive, time, start, now, over)
