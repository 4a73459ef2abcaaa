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
    inner,
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
SPARED = 0.9
#: A group is not tried if it would cost too much by this part of what groups cost lately.
SURE = 0.9
#: By how much each group changes what groups cost lately.
FOLLOW = 0.05
#: A box that loses more than so many times the average is as likely to be used again as one that loses so much.
FARTHEST = 5.0


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
        ("reuse", "i8"),
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
        ("ratio", "f8"),  # loss of a group to the least it could be, lately
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
HELD = np.dtype([("number", "i8"), ("person", "i8"), ("deadline", "i8"), ("lonely", "f8")])
#: Where the widths of a quasi-identifier's tree begin, and how many leaves it has; 0: it must be climbed.
REACH = np.dtype([("start", "i8"), ("leaves", "i8")])
REUSABLE = np.dtype([("group", "i8"), ("persons", "i8"), ("loss", "f8")])


class Held(NamedTuple):
    """The held rows by place; a gap has the number NONE."""

    rows: Any  # HELD
    columns: Any  # [quasi-identifier, place]
    sensitive: Any


class Search(NamedTuple):
    """Room to look for company in."""

    cost: Any  # by place: the loss of a box of this row and the anchor
    order: Any  # the same, to be selected from
    place: Any  # of each candidate
    person: Any
    value: Any  # [quasi-identifier, candidate]
    enlargement: Any  # [quasi-identifier, candidate]
    credit: Any  # what speaks for a candidate, whatever the box; -inf if it cannot join
    score: Any
    members: Any  # places of the group


class Reusable(NamedTuple):
    """Generalizations that were published and may be used again, a ring."""

    table: Any  # REUSABLE
    lo: Any
    hi: Any
    histogram: Any
    candidates: Any  # to compute with
    weight: Any


class Terrain(NamedTuple):
    """The quasi-identifiers, and what their trees' nodes widen to."""

    space: Space
    reach: Any  # by node and leaf of small trees: the width of the smallest node that has both
    reach_at: Any  # REACH


class State(NamedTuple):
    """Everything a bastion engine is."""

    numbers: Any  # NUMBERS, one
    terrain: Terrain
    held: Held
    sample: Any  # [quasi-identifier, place]: some of the rows that came lately
    search: Search
    box: Any  # [3, quasi-identifier]: lo, hi and tree node of the group that is being formed
    reusable: Reusable
    closeness: Closeness
    random: Random
    out: Out


# --- Losses of many boxes at once ------------------------------------------------------------------------------------


@vectorized
def _add_outside(column: Array, lo: float, hi: float, scale: float, total: Array) -> None:
    """Add how far each value lies outside of an interval."""
    for i in range(total.size):
        x = column[i]
        total[i] += scale * (max(x - hi, 0.0) + max(lo - x, 0.0))


@bare
def _add_enlargements(s: Terrain, d: int, lo: float, hi: float, node: int, column: Array, total: Array) -> None:
    """Add to `total` how much the loss grows if the span of quasi-identifier `d` takes each of the column's values."""
    dimension = s.space.dimensions[d]
    scale, width = dimension.scale, hi - lo
    if dimension.kind == INTERVAL:
        _add_outside(column, lo, hi, scale, total)
    elif s.reach_at[d].leaves > 0:
        reach = s.reach
        start = s.reach_at[d].start + node * s.reach_at[d].leaves
        for i in range(total.size):
            total[i] += scale * (reach[start + np.int64(column[i])] - width)
    else:
        for i in range(total.size):
            x = column[i]
            if x < lo or x > hi:
                new_lo, new_hi, _ = widen(s.space, d, lo, hi, node, x, x)
                total[i] += scale * ((new_hi - new_lo) - width)


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
        _add_enlargements(terrain, d, row[d], row[d], _leaf(terrain.space, d, row[d]), columns[d], cost)


@bare
def _few_smallest(cost: Array, rank: int, least: Array) -> float:
    """The cost of this rank, from 1; `least` has room for as many."""
    count = 0
    for i in range(cost.size):
        x = cost[i]
        if count == rank and x >= least[rank - 1]:
            continue
        at = count if count < rank else rank - 1
        while at > 0 and least[at - 1] > x:
            least[at] = least[at - 1]
            at -= 1
        least[at] = x
        if count < rank:
            count += 1
    return least[rank - 1]


@bare
def _smallest(cost: Array, order: Array, rank: int) -> float:
    """The cost of this rank, from 1; `order` is room to look for it in."""
    if rank <= 16:
        return _few_smallest(cost, rank, order)
    copy_into(cost, order)
    lo, hi, wanted = 0, cost.size - 1, rank - 1
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


# --- The held rows ---------------------------------------------------------------------------------------------------


@bare
def _loneliness(numbers: Array, terrain: Terrain, sample: Array, row: Array, cost: Array, order: Array) -> float:
    """What a group about the row would lose: by the row of the sample that would be its farthest member."""
    n = numbers[0]
    known = min(n.sampled, sample.shape[1])
    if known == 0:
        return 0.0
    _pair_losses(terrain, sample, row, cost[:known])
    rank = np.int64(np.rint(n.k * known / max(n.held, 1)))
    return _smallest(cost[:known], order, min(max(rank, 1), known))


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
        if held.rows[i].number == NONE:
            continue
        if at < i:
            held.rows[at].number = held.rows[i].number
            held.rows[at].person = held.rows[i].person
            held.rows[at].deadline = held.rows[i].deadline
            held.rows[at].lonely = held.rows[i].lonely
            for d in range(held.columns.shape[0]):
                held.columns[d, at] = held.columns[d, i]
            copy_into(held.sensitive[i], held.sensitive[at])
        at += 1
    n.places = at
    n.first = 0


@bare
def _hold(numbers: Array, held: Held, qi: Array, person: int, sensitive: Array, deadline: int, lonely: float) -> None:
    n = numbers[0]
    if n.places == held.rows.size or 8 * (n.places - n.held) > n.places + 512:
        close_gaps(numbers, held)
    at = n.places
    row = held.rows[at]
    row.number = n.arrivals
    row.person = person
    row.deadline = deadline
    row.lonely = lonely
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
    while held.rows[n.first].number == NONE:
        n.first += 1
    return n.first


@bare
def _soonest(numbers: Array, held: Held) -> int:
    """The place of the row whose deadline comes first, and that came first among such; there is one."""
    n = numbers[0]
    best = _first(numbers, held)
    for i in range(best + 1, n.places):
        if held.rows[i].number != NONE and held.rows[i].deadline < held.rows[best].deadline:
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


@inner
def _histogram(s: State, size: int) -> Array:
    histogram = np.zeros_like(s.closeness.stream)
    for i in range(size):
        count_values(histogram, s.held.sensitive[s.search.members[i]])
    return histogram


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
def _grow_box(space: Space, box: Array, d: int, x: float) -> bool:
    """Let the box hold a value; true if it had to grow."""
    if box[0, d] <= x <= box[1, d]:
        return False
    box[0, d], box[1, d], box[2, d] = widen(space, d, box[0, d], box[1, d], np.int64(box[2, d]), x, x)
    return True


@inner
def _row(columns: Array, place: int) -> Array:
    row = np.empty(columns.shape[0])
    for d in range(row.size):
        row[d] = columns[d, place]
    return row


@bare
def _known(found: Array, values: int, value: int) -> bool:
    for v in range(values):
        if found[v] == value:
            return True
    return False


@bare
def _eligible(s: State, size: int, row: Array, scarce: int, found: Array, values: int) -> int:
    """Compute `search.cost` for all rows that may join the group, and infinity for others; how many may."""
    n = s.numbers[0]
    search, rows, members = s.search, s.held.rows, s.search.members
    _pair_losses(s.terrain, s.held.columns, row, search.cost[: n.places])
    count = 0
    for i in range(n.places):
        able = rows[i].number != NONE
        if able and scarce != NONE:
            able = not _known(found, values, s.held.sensitive[i, scarce])
        for j in range(size):
            if not able:
                break
            able = rows[members[j]].person != rows[i].person
        if able:
            count += 1
        else:
            search.cost[i] = np.inf
    return count


@bare
def _near(cost: Array, most: float) -> int:
    """How many rows have a pair box with the anchor that loses no more."""
    count = 0
    for i in range(cost.size):
        if cost[i] <= most:
            count += 1
    return count


@bare
def _candidates(s: State, wanted: int) -> None:
    """Take the `wanted` rows that cost least by `search.cost`, in their order."""
    n = s.numbers[0]
    search = s.search
    limit = _smallest(search.cost[: n.places], search.order, wanted)
    ties = wanted
    for i in range(n.places):
        if search.cost[i] < limit:
            ties -= 1
    count = 0
    for i in range(n.places):
        if search.cost[i] > limit or (search.cost[i] == limit and ties == 0):
            continue
        if search.cost[i] == limit:
            ties -= 1
        search.place[count] = i
        search.person[count] = s.held.rows[i].person
        search.credit[count] = n.lonely * s.held.rows[i].lonely
        count += 1
    for d in range(s.box.shape[1]):
        for j in range(count):
            search.value[d, j] = s.held.columns[d, search.place[j]]
        _enlarge(s.terrain, s.box, d, search.value[d], search.enlargement[d][:count])
    _score(search.enlargement, search.credit, search.score[:count])


@bare
def _enlarge(terrain: Terrain, box: Array, d: int, column: Array, enlargement: Array) -> None:
    """How much each of the column's values would enlarge the box."""
    for j in range(enlargement.size):
        enlargement[j] = 0.0
    _add_enlargements(terrain, d, box[0, d], box[1, d], np.int64(box[2, d]), column, enlargement)


@vectorized
def _score(enlargement: Array, credit: Array, score: Array) -> None:
    for j in range(score.size):
        score[j] = -credit[j]
    for d in range(enlargement.shape[0]):
        for j in range(score.size):
            score[j] += enlargement[d, j]


@bare
def _best(score: Array) -> int:
    """The first of the least score; NONE if there is none below infinity."""
    best, least = NONE, np.inf
    for j in range(score.size):
        if score[j] < least:
            best, least = j, score[j]
    return best


@bare
def _bar(person: Array, of: int, credit: Array, score: Array) -> None:
    """No other row of the same person can follow."""
    for j in range(score.size):
        if person[j] == of:
            credit[j] = -np.inf
            score[j] = np.inf


@bare
def _gather(terrain: Terrain, box: Array, search: Search, count: int, size: int, wanted: int, most: float) -> int:
    """Let candidates join, best first, until the group has the wanted size; its size, or -1 if it loses too much."""
    space, value, enlargement = terrain.space, search.value, search.enlargement
    person, credit, score = search.person[:count], search.credit[:count], search.score[:count]
    while size < wanted:
        chosen = _best(score)
        if chosen == NONE:
            break
        search.members[size] = search.place[chosen]
        size += 1
        _bar(person, person[chosen], credit, score)
        grown = False
        for d in range(value.shape[0]):
            if _grow_box(space, box, d, value[d, chosen]):
                _enlarge(terrain, box, d, value[d], enlargement[d][:count])
                grown = True
        if grown:
            if _box_loss(space, box) > most:
                return -1
            _score(enlargement, credit, score)
    return size


@bare
def _bar_known(sensitive: Array, scarce: int, search: Search, count: int, found: Array, values: int) -> None:
    """Let only such candidates join next that bring a new value."""
    for j in range(count):
        if _known(found, values, sensitive[search.place[j], scarce]):
            search.score[j] = np.inf


@inner
def _group(s: State, anchor: int, most: float) -> int:
    """Form a group about the anchor, in `search.members` and `box`; its size, or 0 if there is none that loses less."""
    n = s.numbers[0]
    if n.held < n.k:
        return 0
    space, search, box = s.terrain.space, s.search, s.box
    row = _row(s.held.columns, anchor)
    found = np.empty(max(n.l, 1), dtype=np.int64)
    _start_box(space, box, row)
    search.members[0] = anchor
    size, count, least = 1, 0, 0.0
    while True:
        scarce, values, wanted = NONE, 0, n.k
        if size >= n.k:
            wanted = size + 1
            scarce = _scarce_column(s, size, found)
            if scarce != NONE:
                values = _values(s, size, scarce, found)
                _bar_known(s.held.sensitive, scarce, search, count, found, values)
            elif n.t < 0.0 or within_t(s.numbers, s.closeness, _histogram(s, size), size):
                if least > 0.0:
                    n.ratio += FOLLOW * (_box_loss(space, box) / least - n.ratio)
                return size
        before = size
        if count > 0:
            size = _gather(s.terrain, box, search, count, size, wanted, most)
        if size < 0:
            return 0
        if size > before:
            if scarce != NONE:
                _score(search.enlargement, search.credit, search.score[:count])
            continue
        eligible = _eligible(s, size, row, scarce, found, values)
        if eligible == 0 or eligible < n.k - size:
            return 0
        if size == 1:
            # A box loses no less than that of two of its rows, and a group's lately so many times that.
            if most < np.inf and _near(search.cost[: n.places], most / max(SURE * n.ratio, 1.0)) < n.k - 1:
                return 0
            least = _smallest(search.cost[: n.places], search.order, n.k - 1)
        count = min(search.place.size, eligible)
        _candidates(s, count)


# --- What leaves -----------------------------------------------------------------------------------------------------


@bare
def _leave(s: State, place: int) -> None:
    n = s.numbers[0]
    s.out.rows[n.out_rows] = s.held.rows[place].number
    s.held.rows[place].number = NONE
    n.out_rows += 1
    n.held -= 1


@bare
def _note_loss(numbers: Array, loss: float, rows: int) -> None:
    """Let the average follow: the last twenty groups or so count."""
    n = numbers[0]
    n.average = loss if n.average < 0.0 else n.average + min(rows / (20.0 * n.k), 0.5) * (loss - n.average)


@bare
def _suppress(s: State, place: int) -> None:
    dimensions = s.terrain.space.dimensions
    for d in range(dimensions.size):
        s.box[0, d], s.box[1, d] = dimensions[d].widest_lo, dimensions[d].widest_hi
    _leave(s, place)
    write_release(s.out, s.numbers, SUPPRESSED, s.box[0], s.box[1], 1.0, 1, NONE)


@inner
def _release(s: State, size: int, persons: int) -> None:
    """Release the group, and keep its box for reuse."""
    members = s.search.members[:size]
    histogram = _histogram(s, size)
    shuffle(s.random, s.numbers, members)
    for place in members:
        _leave(s, place)
    loss = _box_loss(s.terrain.space, s.box)
    group = s.numbers[0].released
    write_release(s.out, s.numbers, CLUSTER, s.box[0], s.box[1], loss, persons, group)
    _note_loss(s.numbers, loss, size)
    _keep(s, loss, persons, group, histogram)


# --- Reuse -----------------------------------------------------------------------------------------------------------


@bare
def _same_box(s: State, place: int) -> bool:
    for d in range(s.box.shape[1]):
        if s.reusable.lo[place, d] != s.box[0, d] or s.reusable.hi[place, d] != s.box[1, d]:
            return False
    return True


@bare
def _keep(s: State, loss: float, persons: int, group: int, histogram: Array) -> None:
    """Keep a box that was published, in place of an equal one, or of the oldest if there are enough."""
    n = s.numbers[0]
    size = s.reusable.table.size
    if size == 0 or n.reuse == 0:
        return
    place = NONE
    for i in range(n.reusable):
        at = (n.reusable_oldest + i) % size
        if _same_box(s, at):
            place = at
            break
    if place == NONE:
        if n.reusable == size:
            n.reusable_oldest = (n.reusable_oldest + 1) % size
            n.reusable -= 1
        place = (n.reusable_oldest + n.reusable) % size
        n.reusable += 1
    copy_into(s.box[0], s.reusable.lo[place])
    copy_into(s.box[1], s.reusable.hi[place])
    for j in range(histogram.shape[0]):
        copy_into(histogram[j], s.reusable.histogram[place, j])
    entry = s.reusable.table[place]
    entry.loss, entry.persons, entry.group = loss, persons, group


@inner
def _stays_within_t(s: State, place: int, row: int) -> bool:
    """Whether a reusable box may take the row as far as t goes."""
    histogram = s.reusable.histogram[place].copy()
    count_values(histogram, s.held.sensitive[row])
    return within_t(s.numbers, s.closeness, histogram, histogram[0].sum())


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
def _covering(n: Numbers, lo: Array, hi: Array, row: Array, candidates: Array) -> int:
    """The reusable boxes that contain the row, oldest first; how many."""
    found, size = 0, lo.shape[0]
    for i in range(n.reusable):
        at = n.reusable_oldest + i
        if at >= size:
            at -= size
        covers = True
        for d in range(row.size):
            if row[d] < lo[at, d] or row[d] > hi[at, d]:
                covers = False
                break
        if covers:
            candidates[found] = at
            found += 1
    return found


@inner
def _draw_reusable(s: State, place: int) -> int:
    """A box that contains the row, drawn with weights that fall with its loss; NONE if there is none."""
    n = s.numbers[0]
    candidates, weight, table = s.reusable.candidates, s.reusable.weight, s.reusable.table
    row = _row(s.held.columns, place)
    covering = _covering(n, s.reusable.lo, s.reusable.hi, row, candidates)
    found, total = 0, 0.0
    for i in range(covering):
        at = candidates[i]
        if n.t >= 0.0 and not _stays_within_t(s, at, place):
            continue
        total += np.exp(-n.eta * min(table[at].loss / n.average, FARTHEST)) if n.average > 0.0 else 1.0
        candidates[found] = at
        weight[found] = total
        found += 1
    if found == 0:
        return NONE
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
    _note_loss(s.numbers, entry.loss, 1)


# --- The algorithm ---------------------------------------------------------------------------------------------------


@inner
def _expire(s: State, place: int, over: bool) -> None:
    """Let go of a row that can wait no longer: in a group about it, or alone under a box that was published."""
    n = s.numbers[0]
    box = _draw_reusable(s, place)
    most = np.inf
    if box != NONE:
        # A group of k that loses L costs k * L, and spares k - 1 rows what they would cost otherwise.
        most = (s.reusable.table[box].loss + (n.k - 1) * SPARED * n.average) / n.k
    size = _group(s, place, most)
    if size > 0 and over:
        size = _take_the_rest(s, size)
    if size > 0:
        _release(s, size, _persons(s, size) if over else size)
    elif box != NONE:
        _reuse(s, box, place)
    else:
        _suppress(s, place)


@inner
def _beside(s: State, size: int) -> int:
    """Put the rows that are not of the group behind it, if they are of fewer than k persons; how many, or 0."""
    n = s.numbers[0]
    search, rows = s.search, s.held.rows
    persons = np.empty(n.k, dtype=np.int64)
    known = 0
    for i in range(size):  # costs are never negative
        search.cost[search.members[i]] = -1.0
    count = 0
    for i in range(n.first, n.places):
        if rows[i].number == NONE or search.cost[i] < 0.0:
            continue
        search.members[size + count] = i
        count += 1
        for j in range(known):
            if persons[j] == rows[i].person:
                break
        else:
            persons[known] = rows[i].person
            known += 1
            if known == n.k:
                return 0
    return count


@bare
def _persons(s: State, size: int) -> int:
    """Distinct persons of the members."""
    rows, members = s.held.rows, s.search.members
    count = 0
    for i in range(size):
        known = False
        for j in range(i):
            if rows[members[j]].person == rows[members[i]].person:
                known = True
                break
        if not known:
            count += 1
    return count


@inner
def _take_the_rest(s: State, size: int) -> int:
    """At the end of the stream: take in all that would have no company left, if that costs less than to suppress it."""
    rest = _beside(s, size)
    if rest == 0:
        return size
    before = s.box.copy()
    cost = size * _box_loss(s.terrain.space, s.box)
    for i in range(size, size + rest):
        for d in range(s.box.shape[1]):
            _grow_box(s.terrain.space, s.box, d, s.held.columns[d, s.search.members[i]])
    whole = size + rest
    if whole * _box_loss(s.terrain.space, s.box) < cost + rest and (
        s.numbers[0].t < 0.0 or within_t(s.numbers, s.closeness, _histogram(s, whole), whole)
    ):
        return whole
    for j in range(3):
        copy_into(before[j], s.box[j])
    return size


@bare
def _has_room(numbers: Array, out: Out) -> bool:
    """Whether whatever a row's expiry brings can be written."""
    n = numbers[0]
    return n.out_releases < out.releases.size and n.out_rows + n.held <= out.rows.size


@bare
def _is_old(numbers: Array, held: Held) -> bool:
    """Whether so many rows came after one that it has to leave."""
    n = numbers[0]
    if n.delay_rows == 0 or n.held == 0:
        return False
    return held.rows[_first(numbers, held)].number <= n.arrivals - 1 - n.delay_rows


@bare
def _is_due(numbers: Array, held: Held, now: int) -> bool:
    """Whether a deadline is not after `now`; the place of the first is then in `due`."""
    n = numbers[0]
    if n.delay < 0 or n.held == 0 or n.soonest > now:
        return False
    n.due = _soonest(numbers, held)
    n.soonest = held.rows[n.due].deadline
    return n.soonest <= now


@inlined
def _settle(s: State, now: int) -> bool:
    """Let go of what is due, stopping at each deadline on the way to `now`; false if there was no room to write."""
    n = s.numbers[0]
    while _is_old(s.numbers, s.held):
        if not _has_room(s.numbers, s.out):
            return False
        _expire(s, n.first, False)
    while _is_due(s.numbers, s.held, now):
        if not _has_room(s.numbers, s.out):
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
    lonely = _loneliness(s.numbers, s.terrain, s.sample, qi, s.search.cost, s.search.order)
    _take_sample(s.numbers, s.sample, qi)
    _hold(s.numbers, s.held, qi, person, sensitive, deadline, lonely)


@kernel
def run(s: State, qi: Array, person: Array, sensitive: Array, time: Array, start: int, now: int, over: bool) -> int:
    """Take rows from `start` on, then move the clock to `now`, then end the stream if it is over.

    Returns the row to go on with when what was written has been taken, or NONE if all is done.
    """
    n = s.numbers[0]
    # One step more than there are rows: what is due is let go before each row, and after the last.
    for i in range(start, person.size + 1):
        until = saturating_add(time[i], -n.disorder) if i < person.size else now
        if not _settle(s, max(n.clock, until)):
            return i
        if i < person.size:
            _arrive(s, qi[i], person[i], sensitive[i], time[i])
    while over and n.held > 0:
        if not _has_room(s.numbers, s.out):
            return person.size
        _expire(s, _first(s.numbers, s.held), True)
    return NONE
