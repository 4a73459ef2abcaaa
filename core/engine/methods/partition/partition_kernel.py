"""The partitioning method's hot loops: plain loops over the arrays of one `State`.

Words: a *slot* is a place in the buffer where a held row lies; the *set* of a row are the quasi-identifiers it has, a
bit each; a *partition* is a place in the table of those sets that held rows have. Names of the paper's procedures are
kept where there are such (`docs/partition.md` has each step).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from crenel.engine.kernels.common import (
    CLUSTER,
    INTERVAL,
    LATEST,
    NONE,
    REUSE,
    SUPPRESSED,
    TREE,
    Array,
    Out,
    Random,
    Space,
    bare,
    below,
    copy_into,
    count_down,
    count_up,
    erase_entry,
    find_entry,
    inlined,
    kernel,
    learn_domains,
    put_entry,
    saturating_add,
    shuffle,
    sift,
    widen,
    write_release,
)

OFF, BEST, UNIFORM, WEIGHTED = 0, 1, 2, 3
#: The parts of one that a weighted draw tells apart.
_FINE = 2**31

# What is one number: first what the policy fixes (0 or negative: not asked for), then what changes from row to row.
NUMBERS = np.dtype(
    [
        ("k", "i8"),
        ("l", "i8"),
        ("delay", "i8"),
        ("tick", "i8"),  # deadlines are multiples of it
        ("delay_rows", "i8"),
        ("disorder", "i8"),
        ("reuse", "i8"),
        ("reuse_rows", "i8"),
        ("reuse_time", "i8"),
        ("eta", "f8"),
        ("fill", "i8"),
        ("arrivals", "i8"),
        ("clock", "i8"),
        ("held", "i8"),
        ("free", "i8"),
        ("oldest", "i8"),
        ("newest", "i8"),
        ("timed", "i8"),
        ("partitions", "i8"),
        ("reusable", "i8"),
        ("reusable_oldest", "i8"),
        ("draws", "i8"),
        ("released", "i8"),
        ("out_rows", "i8"),
        ("out_releases", "i8"),
    ]
)
SLOT = np.dtype(
    [
        ("number", "i8"),
        ("person", "i8"),
        ("deadline", "i8"),
        ("set", "i8"),
        ("older", "i8"),  # the row that arrived before, among all held
        ("newer", "i8"),
        ("heap_place", "i8"),
    ]
)
PARTITION = np.dtype([("set", "i8"), ("rows", "i8"), ("place", "i8")])
REUSABLE = np.dtype([("set", "i8"), ("group", "i8"), ("persons", "i8"), ("arrivals", "i8"), ("moment", "i8")])


class Buffer(NamedTuple):
    """The held rows, by slot."""

    slots: Any  # SLOT
    qi: Any  # [quasi-identifier, slot]: one row is compared with many by column
    partition: Any  # NONE where no row is
    sensitive: Any
    heap: Any  # slots by (deadline, number)
    free: Any


class Partitions(NamedTuple):
    """The sets of quasi-identifiers that held rows have: the paper's Set_p."""

    table: Any  # PARTITION
    distinct: Any  # [partition, tracked]: how many different persons, and with l values of each sensitive column
    active: Any  # by place; behind the active ones lie the unused ones
    wanted: Any  # whose rows may join the group that is being formed


class Pool(NamedTuple):
    """Room to form a group in."""

    slots: Any  # the rows to choose from
    distance: Any
    shared: Any  # how much of the quasi-identifiers each has in common with the row that is due
    heap: Any  # places in the pool by (distance, number)
    group: Any  # the slots that were chosen
    distinct: Any  # as of a partition, of what is chosen
    lo: Any
    hi: Any


class Reusable(NamedTuple):
    """Generalizations that were published and may be used again: the paper's Set_kc, a ring."""

    table: Any  # REUSABLE
    lo: Any
    hi: Any
    covering: Any  # places of those that contain a row, and their weights
    weight: Any


class State(NamedTuple):
    """Everything an engine of this method is."""

    numbers: Any  # NUMBERS, one
    space: Space
    counts: Any  # ENTRY: how often each (tag, value) is there, an open-addressing table
    buffer: Buffer
    partitions: Partitions
    pool: Pool
    reusable: Reusable
    random: Random
    out: Out


# --- Partitions ------------------------------------------------------------------------------------------------------


@bare
def _enough(numbers: Array, distinct: Array) -> bool:
    """Whether there are k persons, and with l as many values of each sensitive column."""
    if distinct[0] < numbers[0].k:
        return False
    for j in range(1, distinct.size):
        if distinct[j] < numbers[0].l:
            return False
    return True


@bare
def _spare_tag(partitions: Partitions) -> int:
    """A tag behind those of the partitions, for counting on the side; below 0 are the places of sets."""
    return partitions.distinct.size


@bare
def _count_up(counts: Array, distinct: Array, first_tag: int, person: int, sensitive: Array) -> None:
    """Count a row's person, and with l its sensitive values, under the tags from `first_tag` on."""
    for j in range(distinct.size):
        if count_up(counts, first_tag + j, person if j == 0 else sensitive[j - 1]):
            distinct[j] += 1


@bare
def _count_down(counts: Array, distinct: Array, first_tag: int, person: int, sensitive: Array) -> None:
    for j in range(distinct.size):
        if count_down(counts, first_tag + j, person if j == 0 else sensitive[j - 1]):
            distinct[j] -= 1


@bare
def _partition_of(counts: Array, partitions: Partitions, numbers: Array, present: int) -> int:
    """The partition of a set; a new one, if no held row has that set."""
    entry = find_entry(counts, NONE, present)
    if counts[entry].count != 0:
        return counts[entry].count - 1
    n = numbers[0]
    partition = partitions.active[n.partitions]
    put_entry(counts, entry, NONE, present, partition + 1)
    partitions.table[partition].set = present
    partitions.table[partition].rows = 0
    partitions.table[partition].place = n.partitions
    for j in range(partitions.distinct.shape[1]):
        partitions.distinct[partition, j] = 0
    n.partitions += 1
    return partition


@bare
def _forget_partition(counts: Array, partitions: Partitions, numbers: Array, partition: int) -> None:
    n = numbers[0]
    table, active = partitions.table, partitions.active
    erase_entry(counts, find_entry(counts, NONE, table[partition].set))
    n.partitions -= 1
    place, last = table[partition].place, active[n.partitions]
    active[place] = last
    table[last].place = place
    active[n.partitions] = partition


# --- The buffer ------------------------------------------------------------------------------------------------------


@inlined
def _hold(s: State, number: int, qi: Array, person: int, sensitive: Array, deadline: int) -> None:
    """Put a row into the buffer, as its newest, and into its partition."""
    n = s.numbers[0]
    slots = s.buffer.slots
    n.free -= 1
    slot = s.buffer.free[n.free]
    n.held += 1
    present = 0
    for d in range(qi.size):
        s.buffer.qi[d, slot] = qi[d]
        if not np.isnan(qi[d]):
            present |= 1 << d
    copy_into(sensitive, s.buffer.sensitive[slot])
    row = slots[slot]
    row.number = number
    row.person = person
    row.deadline = deadline
    row.set = present
    row.older = n.newest
    row.newer = NONE
    if n.newest == NONE:
        n.oldest = slot
    else:
        slots[n.newest].newer = slot
    n.newest = slot
    if n.delay >= 0:
        s.buffer.heap[n.timed] = slot
        n.timed += 1
        sift(slots, s.buffer.heap, n.timed, n.timed - 1)
    partition = _partition_of(s.counts, s.partitions, s.numbers, present)
    s.buffer.partition[slot] = partition
    s.partitions.table[partition].rows += 1
    distinct = s.partitions.distinct[partition]
    _count_up(s.counts, distinct, partition * distinct.size, person, sensitive)


@bare
def _drop(s: State, slot: int) -> None:
    """Take a row that left out of the buffer."""
    n = s.numbers[0]
    slots = s.buffer.slots
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
        place, last = slots[slot].heap_place, s.buffer.heap[n.timed]
        if last != slot:
            s.buffer.heap[place] = last
            sift(slots, s.buffer.heap, n.timed, place)
    partition = s.buffer.partition[slot]
    s.buffer.partition[slot] = NONE
    distinct = s.partitions.distinct[partition]
    _count_down(s.counts, distinct, partition * distinct.size, slots[slot].person, s.buffer.sensitive[slot])
    s.partitions.table[partition].rows -= 1
    if s.partitions.table[partition].rows == 0:
        _forget_partition(s.counts, s.partitions, s.numbers, partition)
    n.held -= 1
    s.buffer.free[n.free] = slot
    n.free += 1


@bare
def _write_row(out: Out, numbers: Array, number: int) -> None:
    out.rows[numbers[0].out_rows] = number
    numbers[0].out_rows += 1


# --- A group: nearest rows, generalization, loss ---------------------------------------------------------------------


@bare
def _gather(buffer: Buffer, wanted: Array, slots: Array) -> int:
    """The rows of the partitions that are wanted; returns how many."""
    found = 0
    for slot in range(buffer.partition.size):
        partition = buffer.partition[slot]
        if partition != NONE and wanted[partition]:
            slots[found] = slot
            found += 1
    return found


@bare
def _measure(space: Space, qi: Array, due: int, slots: Array, distance: Array, shared: Array) -> None:
    """Definition 6: the distance of each row to the one that is due, over what both have; 1 where that is nothing."""
    for i in range(slots.size):
        distance[i] = 0.0
        shared[i] = 0.0
    for d in range(qi.shape[0]):
        column = qi[d]
        x = column[due]
        if np.isnan(x):
            continue
        dimension = space.dimensions[d]
        scale, share = dimension.scale, dimension.share
        if dimension.kind == INTERVAL:
            for i in range(slots.size):
                y = column[slots[i]]
                if not np.isnan(y):
                    distance[i] += scale * abs(y - x)
                    shared[i] += share
        elif dimension.kind == TREE:
            nodes = space.nodes
            leaf = space.leaf[dimension.leaf_offset + np.int64(x)]
            for i in range(slots.size):
                y = column[slots[i]]
                if not np.isnan(y):
                    at = leaf
                    while nodes[at].first > y or nodes[at].last < y:
                        at = nodes[at].parent
                    distance[i] += scale * (nodes[at].last - nodes[at].first)
                    shared[i] += share
        else:
            for i in range(slots.size):
                y = column[slots[i]]
                if not np.isnan(y):
                    lo, hi, _ = widen(space, d, x, x, NONE, y, y)
                    distance[i] += scale * (hi - lo)
                    shared[i] += share
    for i in range(slots.size):
        distance[i] = distance[i] / shared[i] if shared[i] > 0.0 else 1.0
        if slots[i] == due:
            distance[i] = -1.0  # first of all, also of those at the same place


@bare
def _nearer(rows: Array, pool: Pool, a: int, b: int) -> bool:
    if pool.distance[a] != pool.distance[b]:
        return pool.distance[a] < pool.distance[b]
    return rows[pool.slots[a]].number < rows[pool.slots[b]].number


@bare
def _sink(rows: Array, pool: Pool, size: int, place: int) -> None:
    """Let what is at `place` of the heap of near rows sink to where it belongs."""
    heap = pool.heap
    item = heap[place]
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _nearer(rows, pool, heap[child + 1], heap[child]):
            child += 1
        if not _nearer(rows, pool, heap[child], item):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = item


@bare
def _is_of_use(s: State, slot: int) -> bool:
    """Whether a row brings a new person, or a value that is still wanted for l."""
    tag = _spare_tag(s.partitions)
    if s.counts[find_entry(s.counts, tag, s.buffer.slots[slot].person)].count == 0:
        return True
    distinct = s.pool.distinct
    for j in range(1, distinct.size):
        if distinct[j] < s.numbers[0].l:
            value = s.buffer.sensitive[slot, j - 1]
            if s.counts[find_entry(s.counts, tag + j, value)].count == 0:
                return True
    return False


@bare
def _nearest(s: State, due: int) -> int:
    """Fill the group with the row that is due and its nearest in the partitions that are wanted; returns how many."""
    pool, rows = s.pool, s.buffer.slots
    size = _gather(s.buffer, s.partitions.wanted, pool.slots)
    slots = pool.slots[:size]
    _measure(s.space, s.buffer.qi, due, slots, pool.distance, pool.shared)
    for i in range(size):
        pool.heap[i] = i
    for place in range(size // 2 - 1, -1, -1):
        _sink(rows, pool, size, place)
    tag = _spare_tag(s.partitions)
    for j in range(pool.distinct.size):
        pool.distinct[j] = 0
    chosen = 0
    while size > 0 and not _enough(s.numbers, pool.distinct):
        slot = slots[pool.heap[0]]
        size -= 1
        pool.heap[0] = pool.heap[size]
        _sink(rows, pool, size, 0)
        if _is_of_use(s, slot):
            _count_up(s.counts, pool.distinct, tag, rows[slot].person, s.buffer.sensitive[slot])
            pool.group[chosen] = slot
            chosen += 1
    for i in range(chosen):
        slot = pool.group[i]
        for j in range(pool.distinct.size):
            value = rows[slot].person if j == 0 else s.buffer.sensitive[slot, j - 1]
            count_down(s.counts, tag + j, value)
    return chosen


@bare
def _generalize(space: Space, buffer: Buffer, group: Array, fill: int, lo: Array, hi: Array) -> None:
    """The span of each quasi-identifier that all rows have, or, to fill, any; NaN of the others."""
    published = buffer.slots[group[0]].set
    for slot in group:
        if fill:
            published |= buffer.slots[slot].set
        else:
            published &= buffer.slots[slot].set
    for d in range(lo.size):
        lo[d] = hi[d] = np.nan
        if (published >> d) & 1 == 0:
            continue
        dimension = space.dimensions[d]
        node = np.int64(NONE)
        for slot in group:
            x = buffer.qi[d, slot]
            if np.isnan(x):
                continue
            if not np.isnan(lo[d]):
                lo[d], hi[d], node = widen(space, d, lo[d], hi[d], node, x, x)
            else:
                lo[d] = hi[d] = x
                if dimension.kind == TREE:
                    node = space.leaf[dimension.leaf_offset + np.int64(x)]


@bare
def _loss(space: Space, present: int, lo: Array, hi: Array) -> float:
    """Definition 5, weighted: what the row had and is not published, or is and it had not, is lost."""
    lost = 0.0
    whole = 0.0
    for d in range(lo.size):
        has = (present >> d) & 1 == 1
        is_published = not np.isnan(lo[d])
        if not has and not is_published:
            continue
        dimension = space.dimensions[d]
        whole += dimension.share
        if has and is_published:
            lost += dimension.scale * (hi[d] - lo[d] + dimension.cell)
        else:
            lost += dimension.share
    return lost / whole if whole > 0.0 else 0.0


@bare
def _mean_loss(space: Space, slots: Array, group: Array, lo: Array, hi: Array) -> float:
    total = 0.0
    for slot in group:
        total += _loss(space, slots[slot].set, lo, hi)
    return total / group.size


# --- Reuse -----------------------------------------------------------------------------------------------------------


@bare
def _forget_old(reusable: Reusable, numbers: Array) -> None:
    """Line 1 of DelayConstraint: what is not younger than `reuse_for` goes."""
    n = numbers[0]
    while n.reusable > 0:
        oldest = reusable.table[n.reusable_oldest]
        if n.reuse_rows > 0:
            old = n.arrivals - oldest.arrivals >= n.reuse_rows
        else:
            old = saturating_add(oldest.moment, n.reuse_time) <= n.clock
        if not old:
            return
        n.reusable_oldest = (n.reusable_oldest + 1) % reusable.table.size
        n.reusable -= 1


@bare
def _covers(lo: Array, hi: Array, qi: Array, slot: int) -> bool:
    for d in range(lo.size):
        if qi[d, slot] < lo[d] or qi[d, slot] > hi[d]:
            return False
    return True


@inlined
def _drawn(s: State, covering: int) -> int:
    """One of the first `covering` places, by their weights."""
    reusable = s.reusable
    total = 0.0
    for i in range(covering):
        total += reusable.weight[i]
    at = below(s.random, s.numbers, _FINE) / _FINE * total
    for i in range(covering - 1):
        at -= reusable.weight[i]
        if at < 0.0:
            return reusable.covering[i]
    return reusable.covering[covering - 1]


@bare
def _choose_reusable(s: State, slot: int) -> int:
    """A generalization of the row's own partition that contains it, or NONE; they are looked at oldest first."""
    n, reusable = s.numbers[0], s.reusable
    _forget_old(reusable, s.numbers)
    row = s.buffer.slots[slot]
    covering = 0
    best = 0
    total = 0.0
    for i in range(n.reusable):
        at = (n.reusable_oldest + i) % reusable.table.size
        if reusable.table[at].set == row.set and _covers(reusable.lo[at], reusable.hi[at], s.buffer.qi, slot):
            loss = _loss(s.space, row.set, reusable.lo[at], reusable.hi[at])
            reusable.covering[covering] = at
            reusable.weight[covering] = loss
            if loss < reusable.weight[best]:
                best = covering
            total += loss
            covering += 1
    if covering == 0:
        return NONE
    if n.reuse == BEST:
        return reusable.covering[best]
    if n.reuse == UNIFORM:
        return reusable.covering[below(s.random, s.numbers, covering)]
    for i in range(covering):
        above_average = reusable.weight[i] * covering / total if total > 0.0 else 1.0
        reusable.weight[i] = np.exp(-n.eta * above_average)
    return _drawn(s, covering)


@inlined
def _keep_reusable(s: State, present: int, persons: int, group: int) -> None:
    """Keep a generalization that was published now, unless it is there; the oldest goes if there is no room."""
    n, reusable = s.numbers[0], s.reusable
    size = reusable.table.size
    if n.reuse == OFF or size == 0:
        return
    _forget_old(reusable, s.numbers)
    lo, hi = s.pool.lo, s.pool.hi
    for i in range(n.reusable):
        at = (n.reusable_oldest + i) % size
        same = reusable.table[at].set == present
        for d in range(lo.size):
            if not np.isnan(lo[d]) and (reusable.lo[at, d] != lo[d] or reusable.hi[at, d] != hi[d]):
                same = False
        if same:
            return
    if n.reusable == size:
        n.reusable_oldest = (n.reusable_oldest + 1) % size
        n.reusable -= 1
    at = (n.reusable_oldest + n.reusable) % size
    n.reusable += 1
    copy_into(lo, reusable.lo[at])
    copy_into(hi, reusable.hi[at])
    entry = reusable.table[at]
    entry.set = present
    entry.group = group
    entry.persons = persons
    entry.arrivals = n.arrivals
    entry.moment = n.clock


# --- The algorithm ---------------------------------------------------------------------------------------------------


@bare
def _release_alone(s: State, slot: int, at: int) -> None:
    """Release one row under a generalization that was published before."""
    reusable = s.reusable
    _write_row(s.out, s.numbers, s.buffer.slots[slot].number)
    loss = _loss(s.space, s.buffer.slots[slot].set, reusable.lo[at], reusable.hi[at])
    entry = reusable.table[at]
    write_release(s.out, s.numbers, REUSE, reusable.lo[at], reusable.hi[at], loss, entry.persons, entry.group)
    _drop(s, slot)


@inlined
def _suppress(s: State, slot: int) -> None:
    lo, hi = s.pool.lo, s.pool.hi
    for d in range(lo.size):
        lo[d] = s.space.dimensions[d].widest_lo
        hi[d] = s.space.dimensions[d].widest_hi
    _write_row(s.out, s.numbers, s.buffer.slots[slot].number)
    write_release(s.out, s.numbers, SUPPRESSED, lo, hi, 1.0, 1, NONE)
    _drop(s, slot)


@bare
def _release_group(s: State, group: Array, loss: float) -> None:
    shuffle(s.random, s.numbers, group)
    for slot in group:
        _write_row(s.out, s.numbers, s.buffer.slots[slot].number)
    write_release(s.out, s.numbers, CLUSTER, s.pool.lo, s.pool.hi, loss, s.pool.distinct[0], NONE)
    for slot in group:
        _drop(s, slot)


@inlined
def _cluster_in_partition(s: State, due: int) -> None:
    """Algorithm 3, its line 4 the right way round: of a new group and a reusable generalization the cheaper."""
    present = s.buffer.slots[due].set
    partition = s.buffer.partition[due]
    s.partitions.wanted[partition] = True
    group = s.pool.group[: _nearest(s, due)]
    s.partitions.wanted[partition] = False
    lo, hi = s.pool.lo, s.pool.hi
    _generalize(s.space, s.buffer, group, 0, lo, hi)
    loss = _loss(s.space, present, lo, hi)
    at = _choose_reusable(s, due)
    if at != NONE and _loss(s.space, present, s.reusable.lo[at], s.reusable.hi[at]) < loss:
        _release_alone(s, due, at)
        return
    number = s.numbers[0].released
    _release_group(s, group, loss)
    _keep_reusable(s, present, s.pool.distinct[0], number)


@bare
def _ones(bits: int) -> int:
    count = 0
    while bits:
        bits &= bits - 1
        count += 1
    return count


@bare
def _most_similar(partitions: Partitions, numbers: Array, present: int, common: int) -> int:
    """Of the partitions that are not wanted yet, that of the greatest Jaccard similarity; then the one of most rows."""
    n, table = numbers[0], partitions.table
    best = NONE
    both, either = 0, 1
    for i in range(n.partitions):
        other = partitions.active[i]
        its = table[other].set
        # Rows that have nothing in common would publish nothing: suppression costs but one row.
        if partitions.wanted[other] or (n.fill == 0 and common & its == 0):
            continue
        its_both, its_either = _ones(present & its), max(_ones(present | its), 1)
        better = its_both * either - both * its_either
        if best != NONE and better == 0:
            better = table[other].rows - table[best].rows
            if better == 0:
                better = table[best].set - its
        if best == NONE or better > 0:
            best, both, either = other, its_both, its_either
    return best


@bare
def _count_partition(s: State, partition: int, up: bool) -> None:
    tag, distinct = _spare_tag(s.partitions), s.pool.distinct
    slots, sensitive = s.buffer.slots, s.buffer.sensitive
    for slot in range(slots.size):
        if s.buffer.partition[slot] == partition:
            if up:
                _count_up(s.counts, distinct, tag, slots[slot].person, sensitive[slot])
            else:
                _count_down(s.counts, distinct, tag, slots[slot].person, sensitive[slot])


@inlined
def _merge(s: State, due: int) -> bool:
    """Lines 5-8 of algorithm 4: want the most similar partitions until there are k persons; whether there are."""
    partitions, distinct = s.partitions, s.pool.distinct
    present = s.buffer.slots[due].set
    common = present
    for j in range(distinct.size):
        distinct[j] = 0
    following = s.buffer.partition[due]
    while following != NONE:
        partitions.wanted[following] = True
        common &= partitions.table[following].set
        _count_partition(s, following, True)
        if _enough(s.numbers, distinct):
            break
        following = _most_similar(partitions, s.numbers, present, common)
    enough = _enough(s.numbers, distinct)
    for i in range(s.numbers[0].partitions):
        if partitions.wanted[partitions.active[i]]:
            _count_partition(s, partitions.active[i], False)
    return enough


@bare
def _want_none(partitions: Partitions, numbers: Array) -> None:
    for i in range(numbers[0].partitions):
        partitions.wanted[partitions.active[i]] = False


@inlined
def _cluster_with_merge(s: State, due: int) -> None:
    """Algorithms 4 and 5: a reusable generalization, or a group of similar partitions, or none."""
    at = _choose_reusable(s, due)
    if at != NONE:
        _release_alone(s, due, at)
        return
    if not _merge(s, due):
        _want_none(s.partitions, s.numbers)
        _suppress(s, due)
        return
    group = s.pool.group[: _nearest(s, due)]
    _want_none(s.partitions, s.numbers)
    lo, hi = s.pool.lo, s.pool.hi
    _generalize(s.space, s.buffer, group, s.numbers[0].fill, lo, hi)
    _release_group(s, group, _mean_loss(s.space, s.buffer.slots, group, lo, hi))


@bare
def _delay_constraint(s: State, slot: int) -> None:
    """Algorithm 2."""
    if _enough(s.numbers, s.partitions.distinct[s.buffer.partition[slot]]):
        _cluster_in_partition(s, slot)
    else:
        _cluster_with_merge(s, slot)


@inlined
def _expire_until(s: State, now: int) -> None:
    """Move the clock to `now`, stopping at each deadline on the way."""
    n = s.numbers[0]
    slots, heap = s.buffer.slots, s.buffer.heap
    while n.timed > 0 and slots[heap[0]].deadline <= now:
        n.clock = max(n.clock, slots[heap[0]].deadline)
        _delay_constraint(s, heap[0])
    n.clock = max(n.clock, now)


@inlined
def _arrive(s: State, qi: Array, person: int, sensitive: Array, time: int) -> None:
    """Algorithm 1, for one row, with deadlines in event time beside those in arrivals."""
    n = s.numbers[0]
    _expire_until(s, max(n.clock, saturating_add(time, -n.disorder)))
    learn_domains(s.space, qi)
    number = n.arrivals
    n.arrivals += 1
    deadline = np.int64(LATEST)
    if n.delay >= 0:
        deadline = saturating_add(time, n.delay)
        # Rounded down: who sees a row leave alone, at its deadline, must not learn its event time.
        deadline = saturating_add(deadline, -(deadline % n.tick))
    _hold(s, number, qi, person, sensitive, deadline)
    if n.delay_rows > 0:
        while n.oldest != NONE and s.buffer.slots[n.oldest].number <= number - n.delay_rows:
            _delay_constraint(s, n.oldest)
    _expire_until(s, n.clock)


@bare
def _take_in(s: State, qi: Array, person: Array, sensitive: Array, time: Array, now: int, over: bool) -> None:
    for i in range(person.size):
        _arrive(s, qi[i], person[i], sensitive[i], time[i])
    _expire_until(s, now)
    while over and s.numbers[0].oldest != NONE:
        _delay_constraint(s, s.numbers[0].oldest)


@kernel
def run(s: State, qi: Array, person: Array, sensitive: Array, time: Array, now: int, over: bool) -> None:
    """Take rows as they arrive, then move the clock to `now`, then end the stream if it is over.

    The one way into the method, so that it is compiled once.
    """
    _take_in(s, qi, person, sensitive, time, now, over)


# --- Snapshots -------------------------------------------------------------------------------------------------------


@kernel
def rebuild(s: State, number: Array, qi: Array, person: Array, sensitive: Array, deadline: Array) -> None:
    """Fill an empty state with held rows, in order of arrival."""
    for i in range(number.size):
        _hold(s, number[i], qi[i], person[i], sensitive[i], deadline[i])


@kernel
def held_slots(s: State) -> Array:
    """The slots that hold a row, in order of arrival."""
    held = np.empty(s.numbers[0].held, dtype=np.int64)
    slot = s.numbers[0].oldest
    for i in range(held.size):
        held[i] = slot
        slot = s.buffer.slots[slot].newer
    return held
