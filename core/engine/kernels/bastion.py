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
#: Of every so many-th candidate the least score is kept, so that the best is found without looking at all.
LANES = 32
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
        ("arrivals", "i8"),
        ("clock", "i8"),
        ("held", "i8"),
        ("places", "i8"),  # rows and gaps
        ("first", "i8"),  # no row lies before it
        ("soonest", "i8"),  # no deadline is before it
        ("due", "i8"),  # place of a row whose deadline has come
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
    """Room to look for company in."""

    cost: Any  # by place: the loss of a box of this row and the anchor
    order: Any  # the same, to be selected from
    place: Any  # of each candidate
    person: Any
    offset: Any  # [quasi-identifier, candidate]: how far it lies from the anchor; of single precision, as is the score
    score: Any  # of each candidate; infinite if it cannot join
    least: Any  # score of each lane of candidates, and room to find it
    members: Any  # places of the group
    company: Any  # their persons


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
    growth: Any  # by leaf


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
    out: Out


# --- Losses of many boxes at once ------------------------------------------------------------------------------------


@vectorized
def _add_distances(column: Array, x: float, scale: float, total: Array) -> None:
    """Add how far each value lies from x."""
    for i in range(total.size):
        total[i] += scale * abs(column[i] - x)


@vectorized
def _add_outside(offset: Array, lo: float, hi: float, total: Array) -> None:
    """Add how far each offset lies outside of an interval."""
    for i in range(total.size):
        total[i] += max(offset[i] - hi, np.float32(0.0)) + max(lo - offset[i], np.float32(0.0))


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
        growth = terrain.growth[:leaves]
        _grow_by_leaf(terrain.space, node, scale, growth)
        _add_of_leaves(column, growth, total)
    else:
        _add_widened(terrain.space, d, lo, hi, node, scale, column, total)


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
def _fold(score: Array, least: Array) -> None:
    """The lesser of each score and the one half of all further on."""
    for i in range(least.size):
        least[i] = min(score[i], score[least.size + i])


@bare
def _least_of_lanes(score: Array, least: Array) -> None:
    """The least of every LANES-th score; there are LANES times a power of two of them, infinite ones at the end."""
    half = score.size // 2
    _fold(score, least[:half])
    while half > LANES:
        half //= 2
        _fold(least, least[:half])


@kernel
def in_lanes(count: int) -> int:
    """How many scores there are for so many candidates, with infinite ones at the end."""
    size = 2 * LANES
    while size < count:
        size *= 2
    return size


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

    Costs are from 0 to 1, or infinite, if they are of a higher rank.
    """
    # To count is cheap: halve the range until few are left.
    low, high, under, upto = -0.001, 1.001, 0, cost.size
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
def _values(s: State, size: int, column: int, found: Array) -> int:
    """The different values that the first `size` members have in a sensitive column, as many as `found` takes."""
    count = 0
    for i in range(size):
        value = s.held.sensitive[s.search.members[i], column]
        for j in range(count):
            if found[j] == value:
                break
        else:
            found[count] = value
            count += 1
            if count == found.size:
                break
    return count


@bare
def _scarce_column(s: State, size: int, found: Array) -> int:
    """A sensitive column that has fewer than l values so far, those being in `found`; NONE if there is none."""
    if s.numbers[0].l > 0:
        for column in range(s.held.sensitive.shape[1]):
            if _values(s, size, column, found) < found.size:
                return column
    return NONE


@bare
def _count_members(s: State, size: int) -> None:
    """Count in `scratch.histogram` how often the members have each sensitive value."""
    histogram = s.scratch.histogram
    for j in range(histogram.shape[0]):
        for v in range(histogram.shape[1]):
            histogram[j, v] = 0
    for i in range(size):
        count_values(histogram, s.held.sensitive[s.search.members[i]])


@bare
def _is_close(s: State, size: int) -> bool:
    """Whether the members are within t of the stream, if that is asked for."""
    if s.numbers[0].t < 0.0:
        return True
    _count_members(s, size)
    return within_t(s.numbers, s.closeness, s.scratch.histogram, size)


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
def _rule_out(number: Array, person: Array, of: int, most: float, cost: Array) -> int:
    """Let gaps, the rows of a person, and what costs too much cost infinitely much; how many other rows there are."""
    count = 0
    for i in range(cost.size):
        able = (number[i] != NONE) & (person[i] != of) & (cost[i] <= most)
        cost[i] = cost[i] if able else np.inf
        count += able
    return count


@bare
def _rule_out_more(s: State, size: int, scarce: int, values: int) -> int:
    """The same for rows of persons who are in the group, and for those that bring no new value; how many are left."""
    search, count = s.search, 0
    for i in range(s.numbers[0].places):
        if search.cost[i] == np.inf:
            continue
        if _known(search.company, size, s.held.person[i]) or (
            scarce != NONE and _known(s.scratch.values, values, s.held.sensitive[i, scarce])
        ):
            search.cost[i] = np.inf
        else:
            count += 1
    return count


@bare
def _eligible(s: State, size: int, row: Array, scarce: int, values: int, most: float) -> int:
    """Compute `search.cost` for all rows that may join the group, and infinity for others; how many may."""
    cost = s.search.cost[: s.numbers[0].places]
    _pair_losses(s.terrain, s.held.columns, row, cost)
    count = _rule_out(s.held.number, s.held.person, s.search.company[0], most, cost)
    return count if size == 1 else _rule_out_more(s, size, scarce, values)


@bare
def _places_up_to(cost: Array, most: float, place: Array) -> int:
    """The places of what costs no more; how many.

    Each place is written, and kept or not: nobody can foresee which, so a branch would be dear.
    """
    count = 0
    for i in range(cost.size):
        place[count] = i
        count += cost[i] <= most
    return count


@bare
def _take_nearest(cost: Array, order: Array, place: Array, wanted: int) -> None:
    """The places of the `wanted` that cost least, in their order; of equal costs the first."""
    _, high, _ = _about(cost, wanted)
    found = _places_up_to(cost, high, place)
    for j in range(found):
        order[j] = cost[place[j]]
    limit = _smallest(order[:found], wanted)
    ties, count = wanted, 0
    for j in range(found):
        ties -= cost[place[j]] < limit
    for j in range(found):
        at = place[j]
        tied = (cost[at] == limit) & (ties > 0)
        ties -= tied
        place[count] = at
        count += tied | (cost[at] < limit)


@vectorized
def _reward_waiting(waiting: Array, most: float, credit: Array) -> None:
    """Let a row's credit grow with the time it has waited, in arrivals, to that of the anchor."""
    for j in range(waiting.size):
        credit[j] *= np.sqrt(np.sqrt(min(waiting[j] / most, 1.0)))


@bare
def _candidates(s: State, wanted: int) -> None:
    """Take the `wanted` rows that cost least by `search.cost`, in their order."""
    n = s.numbers[0]
    search, columns = s.search, s.held.columns
    _take_nearest(search.cost[: n.places], search.order, search.place, wanted)
    anchor = search.members[0]
    longest = n.arrivals - s.held.number[anchor]
    for j in range(wanted):
        place = search.place[j]
        search.person[j] = s.held.person[place]
        search.order[j] = n.arrivals - s.held.number[place]
        search.score[j] = -n.lonely * s.held.lonely[place]
    score = search.score[:wanted]
    _reward_waiting(search.order[:wanted], longest, score)
    for d in range(s.box.shape[1]):
        dimension = s.terrain.space.dimensions[d]
        if dimension.kind == INTERVAL:
            offset, x, scale = search.offset[d], columns[d, anchor], dimension.scale
            for j in range(wanted):
                offset[j] = scale * (columns[d, search.place[j]] - x)
            lo, hi = np.float32(scale * (s.box[0, d] - x)), np.float32(scale * (s.box[1, d] - x))
            _add_outside(offset, lo, hi, score)
        else:
            _add_span(s.terrain, s.box, d, dimension.scale, columns, search, score)
    for j in range(wanted, in_lanes(wanted)):
        search.score[j] = np.inf
    _least_of_lanes(search.score[: in_lanes(wanted)], search.least)


@bare
def _add_span(terrain: Terrain, box: Array, d: int, scale: float, columns: Array, search: Search, score: Array) -> None:
    """Add to the candidates' scores how much the box's span of a category or a prefix grows with each."""
    value = search.order[: score.size]
    for j in range(score.size):
        value[j] = columns[d, search.place[j]]
    _add_growth(terrain, d, box[0, d], box[1, d], np.int64(box[2, d]), scale, value, score)


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
    lowest = np.inf
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
        _add_span(terrain, box, d, -dimension.scale, columns, search, score)
        _grow_box(terrain.space, box, d, x)
        _add_span(terrain, box, d, dimension.scale, columns, search, score)
        return
    offset, anchor = search.offset[d], columns[d, search.members[0]]
    end, sign = (box[1, d], np.float32(1.0)) if x > box[1, d] else (box[0, d], np.float32(-1.0))
    old = np.float32(dimension.scale * (end - anchor))
    _come_nearer(offset, sign, sign * old, sign * offset[chosen], score)
    _grow_box(terrain.space, box, d, x)


@bare
def _best_new(score: Array, place: Array, sensitive: Array, scarce: int, found: Array, values: int) -> int:
    """The same among those that bring a new value of a sensitive column."""
    best, lowest = NONE, np.inf
    for j in range(score.size):
        if score[j] < lowest and not _known(found, values, sensitive[place[j], scarce]):
            best, lowest = j, score[j]
    return best


@bare
def _join(terrain: Terrain, box: Array, columns: Array, search: Search, count: int, size: int, chosen: int) -> None:
    """Let a candidate join, and the box and the scores follow."""
    place, score = search.place[chosen], search.score[:count]
    search.members[size] = place
    search.company[size] = search.person[chosen]
    grown = False
    for d in range(box.shape[1]):
        if columns[d, place] < box[0, d] or columns[d, place] > box[1, d]:
            _widen_span(terrain, box, d, columns, search, chosen, score)
            grown = True
    if grown:
        _least_of_lanes(search.score[: in_lanes(count)], search.least)


@bare
def _gather(s: State, count: int, size: int, wanted: int, most: float, scarce: int, values: int) -> int:
    """Let candidates join, best first, until the group has the wanted size; its size, or -1 if it loses too much."""
    search, score = s.search, s.search.score[:count]
    while size < wanted:
        if scarce == NONE:
            chosen = _best(score, search.least)
        else:
            chosen = _best_new(score, search.place, s.held.sensitive, scarce, s.scratch.values, values)
        if chosen == NONE:
            break
        _bar(chosen, score, search.least)
        if _known(search.company, size, search.person[chosen]):
            continue
        _join(s.terrain, s.box, s.held.columns, search, count, size, chosen)
        size += 1
        if _box_loss(s.terrain.space, s.box) > most:
            return -1
    return size


@bare
def _nearest(search: Search, count: int, rank: int) -> float:
    """The cost of a rank, from 1, among the candidates."""
    for j in range(count):
        search.order[j] = search.cost[search.place[j]]
    return _smallest(search.order[:count], rank)


@bare
def _note_ratios(s: State, anchor: int, nearest: float) -> None:
    """Let what groups lose, to what was foreseen, follow: the last twenty or so count."""
    n, loss, lonely = s.numbers[0], _box_loss(s.terrain.space, s.box), s.held.lonely[anchor]
    if nearest > 0.0:
        n.ratio += FOLLOW * (loss / nearest - n.ratio)
    if lonely > 0.0:
        n.guess += FOLLOW * (loss / lonely - n.guess)


@bare
def _group(s: State, anchor: int, most: float) -> int:
    """Form a group about the anchor, in `search.members` and `box`; its size, or 0 if there is none that loses less."""
    n = s.numbers[0]
    if n.held < n.k:
        return 0
    search, box = s.search, s.box
    row, found = s.scratch.row, s.scratch.values
    _copy_row(s.held.columns, anchor, row)
    _start_box(s.terrain.space, box, row)
    search.members[0] = anchor
    search.company[0] = s.held.person[anchor]
    size, count, nearest = 1, 0, 0.0
    while True:
        scarce, values, wanted = NONE, 0, n.k
        if size >= n.k:
            wanted = size + 1
            scarce = _scarce_column(s, size, found)
            if scarce != NONE:
                values = _values(s, size, scarce, found)
            elif _is_close(s, size):
                _note_ratios(s, anchor, nearest)
                return size
        before = size
        if count > 0:
            size = _gather(s, count, size, wanted, most, scarce, values)
        if size < 0:
            return 0
        if size > before:
            continue
        eligible = _eligible(s, size, row, scarce, values, most)
        if eligible == 0 or eligible < n.k - size:
            return 0
        if size == 1:
            if most < np.inf and _up_to(search.cost[: n.places], most / max(n.ratio, 1.0)) < n.k - 1:
                return 0
        count = min(search.person.size, eligible)
        _candidates(s, count)
        if size == 1:
            nearest = _nearest(search, count, n.k - 1)


# --- What leaves -----------------------------------------------------------------------------------------------------


@bare
def _leave(s: State, place: int) -> None:
    n = s.numbers[0]
    s.out.rows[n.out_rows] = s.held.number[place]
    s.held.number[place] = NONE
    n.out_rows += 1
    n.held -= 1


@bare
def _waited(s: State, size: int) -> float:
    """How long the members have waited, in the mean, as a part of what their anchor has."""
    n, members = s.numbers[0], s.search.members
    longest, total = n.arrivals - s.held.number[members[0]], 0.0
    for i in range(size):
        total += min((n.arrivals - s.held.number[members[i]]) / longest, 1.0)
    return total / size


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
def _release(s: State, size: int, persons: int) -> None:
    """Release the group, and keep its box for reuse."""
    members = s.search.members[:size]
    _count_members(s, size)
    waited = _waited(s, size)
    shuffle(s.random, s.numbers, members)
    for place in members:
        _leave(s, place)
    loss = _box_loss(s.terrain.space, s.box)
    group = s.numbers[0].released
    write_release(s.out, s.numbers, CLUSTER, s.box[0], s.box[1], loss, persons, group)
    _note_departure(s.numbers, loss, waited, size)
    _keep(s, loss, persons, group)


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
    size = _group(s, anchor, most)
    _note_try(s.numbers, size > 0)
    return size


@bare
def _expire(s: State, place: int, over: bool) -> None:
    """Let go of a row that can wait no longer: in a group about it, or alone under a box that was published."""
    n = s.numbers[0]
    box = _draw_reusable(s, place)
    most = np.inf
    if box != NONE:
        # A group of k that loses L costs k * L, and spares k - 1 rows what they would cost otherwise, and a wait.
        spared = (SPARED + IMPATIENCE * max(n.waited - PATIENCE, 0.0)) * n.average
        most = (s.reusable.table[box].loss + (n.k - 1) * spared) / n.k
    size = _try_group(s, place, most)
    if size > 0 and over:
        size = _take_the_rest(s, size)
    if size > 0:
        _release(s, size, _persons(s, size) if over else size)
    elif box != NONE:
        _reuse(s, box, place)
    else:
        _suppress(s, place)


@bare
def _beside(s: State, size: int) -> int:
    """Put the rows that are not of the group behind it, if they are of fewer than k persons; how many, or 0."""
    n = s.numbers[0]
    search, held = s.search, s.held
    persons = search.person
    known = 0
    for i in range(size):  # costs are never negative
        search.cost[search.members[i]] = -1.0
    count = 0
    for i in range(n.first, n.places):
        if held.number[i] == NONE or search.cost[i] < 0.0:
            continue
        search.members[size + count] = i
        count += 1
        for j in range(known):
            if persons[j] == held.person[i]:
                break
        else:
            persons[known] = held.person[i]
            known += 1
            if known == n.k:
                return 0
    return count


@bare
def _persons(s: State, size: int) -> int:
    """Distinct persons of the members."""
    person, members = s.held.person, s.search.members
    count = 0
    for i in range(size):
        known = False
        for j in range(i):
            if person[members[j]] == person[members[i]]:
                known = True
                break
        if not known:
            count += 1
    return count


@bare
def _take_the_rest(s: State, size: int) -> int:
    """At the end of the stream: take in all that would have no company left, if that costs less than to suppress it."""
    rest = _beside(s, size)
    if rest == 0:
        return size
    for j in range(3):
        copy_into(s.box[j], s.scratch.box[j])
    cost = size * _box_loss(s.terrain.space, s.box)
    for i in range(size, size + rest):
        for d in range(s.box.shape[1]):
            _grow_box(s.terrain.space, s.box, d, s.held.columns[d, s.search.members[i]])
    whole = size + rest
    if whole * _box_loss(s.terrain.space, s.box) < cost + rest and _is_close(s, whole):
        return whole
    for j in range(3):
        copy_into(s.scratch.box[j], s.box[j])
    return size


@bare
def _has_room(numbers: Array, reusable: Reusable, out: Out) -> bool:
    """Whether whatever a row's expiry brings can be written, and its box be kept."""
    n, boxes = numbers[0], reusable.table.size
    return (
        n.out_releases < out.releases.size
        and n.out_rows + n.held <= out.rows.size
        and (n.reusable < boxes or boxes == n.max_reusable)
    )


@bare
def _is_old(numbers: Array, held: Held) -> bool:
    """Whether so many rows came after one that it has to leave."""
    n = numbers[0]
    if n.delay_rows == 0 or n.held == 0:
        return False
    return held.number[_first(numbers, held)] <= n.arrivals - 1 - n.delay_rows


@bare
def _is_due(numbers: Array, held: Held, now: int) -> bool:
    """Whether a deadline is not after `now`; the place of the first is then in `due`."""
    n = numbers[0]
    if n.delay < 0 or n.held == 0 or n.soonest > now:
        return False
    n.due = _soonest(numbers, held)
    n.soonest = held.deadline[n.due]
    return n.soonest <= now


@inlined
def _settle(s: State, now: int) -> bool:
    """Let go of what is due, stopping at each deadline on the way to `now`; false if there was no room to write."""
    n = s.numbers[0]
    while _is_old(s.numbers, s.held):
        if not _has_room(s.numbers, s.reusable, s.out):
            return False
        _expire(s, n.first, False)
    while _is_due(s.numbers, s.held, now):
        if not _has_room(s.numbers, s.reusable, s.out):
            return False
        n.clock = max(n.clock, n.soonest)
        _expire(s, n.due, False)
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
    while over and n.held > 0:
        if not _has_room(s.numbers, s.reusable, s.out):
            return person.size
        _expire(s, _first(s.numbers, s.held), True)
    return NONE


@kernel
def run(s: State, qi: Array, person: Array, sensitive: Array, time: Array, start: int, now: int, over: bool) -> int:
    """Take rows from `start` on, then move the clock to `now`, then end the stream if it is over.

    Returns the row to go on with when what was written has been taken, or NONE if all is done.
    """
    return _take_in(s, qi, person, sensitive, time, start, now, over)
