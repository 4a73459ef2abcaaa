"""How the method `partition` forms a group: the rows that may join, the nearest of them, their box and its loss."""

from __future__ import annotations

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array
from crenel.engine.kernels.box_geometry import INTERVAL, TREE, Space, widen
from crenel.engine.kernels.compiler import bare
from crenel.engine.kernels.distinct_counts import count_down, count_up, erase_entry, find_entry, put_entry
from crenel.engine.methods.partition.partition_state import Buffer, GroupSearch, Partitions, State

# --- Partitions ---


@bare
def is_enough(numbers: Array, distinct: Array) -> bool:
    """Return whether there are k distinct persons, and with l as many values of each sensitive column."""
    if distinct[0] < numbers[0].k:
        return False
    for j in range(1, distinct.size):
        if distinct[j] < numbers[0].l:
            return False
    return True


@bare
def spare_tag(partitions: Partitions) -> int:
    """Return a tag that no partition uses, for other counts. The tag NONE finds the partition of a set."""
    return partitions.distinct.size


@bare
def count_row(counts: Array, distinct: Array, first_tag: int, person: int, sensitive: Array) -> None:
    """Count a row's person, and with l its sensitive values, under the tags from `first_tag` on."""
    for j in range(distinct.size):
        if count_up(counts, first_tag + j, person if j == 0 else sensitive[j - 1]):
            distinct[j] += 1


@bare
def uncount_row(counts: Array, distinct: Array, first_tag: int, person: int, sensitive: Array) -> None:
    """Undo `count_row`."""
    for j in range(distinct.size):
        if count_down(counts, first_tag + j, person if j == 0 else sensitive[j - 1]):
            distinct[j] -= 1


@bare
def partition_of(counts: Array, partitions: Partitions, numbers: Array, present: int) -> int:
    """Return the partition of a set; make one if no held row has the set."""
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
def forget_partition(counts: Array, partitions: Partitions, numbers: Array, partition: int) -> None:
    """Delete a partition without rows."""
    n = numbers[0]
    table, active = partitions.table, partitions.active
    erase_entry(counts, find_entry(counts, NONE, table[partition].set))
    n.partitions -= 1
    place, last = table[partition].place, active[n.partitions]
    active[place] = last
    table[last].place = place
    active[n.partitions] = partition


# --- The nearest rows ---


@bare
def _gather(buffer: Buffer, wanted: Array, slots: Array) -> int:
    """Write the slots of the rows in the wanted partitions, and return how many there are."""
    found = 0
    for slot in range(buffer.partition.size):
        partition = buffer.partition[slot]
        if partition != NONE and wanted[partition]:
            slots[found] = slot
            found += 1
    return found


@bare
def _measure(space: Space, qi: Array, due: int, slots: Array, distance: Array, shared: Array) -> None:
    """Write each row's distance to the row that is due, over what both have (definition 6); 1 if they share nothing."""
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
            distance[i] = -1.0  # the first, even before rows with the same values


@bare
def _nearer(rows: Array, search: GroupSearch, a: int, b: int) -> bool:
    if search.distance[a] != search.distance[b]:
        return search.distance[a] < search.distance[b]
    return rows[search.slots[a]].number < rows[search.slots[b]].number


@bare
def _sink(rows: Array, search: GroupSearch, size: int, place: int) -> None:
    """Move the item at `place` of the heap of near rows down to where it belongs."""
    heap = search.heap
    item = heap[place]
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _nearer(rows, search, heap[child + 1], heap[child]):
            child += 1
        if not _nearer(rows, search, heap[child], item):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = item


@bare
def _is_of_use(s: State, slot: int) -> bool:
    """Return whether a row adds a new person, or a sensitive value that l still needs."""
    tag = spare_tag(s.partitions)
    if s.counts[find_entry(s.counts, tag, s.buffer.slots[slot].person)].count == 0:
        return True
    distinct = s.search.distinct
    for j in range(1, distinct.size):
        if distinct[j] < s.numbers[0].l:
            value = s.buffer.sensitive[slot, j - 1]
            if s.counts[find_entry(s.counts, tag + j, value)].count == 0:
                return True
    return False


@bare
def nearest(s: State, due: int) -> int:
    """Form a group of the row that is due and the nearest rows in the wanted partitions; return its size."""
    search, rows = s.search, s.buffer.slots
    size = _gather(s.buffer, s.partitions.wanted, search.slots)
    slots = search.slots[:size]
    _measure(s.space, s.buffer.qi, due, slots, search.distance, search.shared)
    for i in range(size):
        search.heap[i] = i
    for place in range(size // 2 - 1, -1, -1):
        _sink(rows, search, size, place)
    tag = spare_tag(s.partitions)
    for j in range(search.distinct.size):
        search.distinct[j] = 0
    chosen = 0
    while size > 0 and not is_enough(s.numbers, search.distinct):
        slot = slots[search.heap[0]]
        size -= 1
        search.heap[0] = search.heap[size]
        _sink(rows, search, size, 0)
        if _is_of_use(s, slot):
            count_row(s.counts, search.distinct, tag, rows[slot].person, s.buffer.sensitive[slot])
            search.group[chosen] = slot
            chosen += 1
    for i in range(chosen):
        slot = search.group[i]
        for j in range(search.distinct.size):
            value = rows[slot].person if j == 0 else s.buffer.sensitive[slot, j - 1]
            count_down(s.counts, tag + j, value)
    return chosen


# --- The box and its loss ---


@bare
def generalize(space: Space, buffer: Buffer, group: Array, fill: int, lo: Array, hi: Array) -> None:
    """Write the span of each quasi-identifier that all rows have, or with `fill` any row; NaN for the others."""
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
def loss_for(space: Space, present: int, lo: Array, hi: Array) -> float:
    """Return the loss of a row with the set `present`: definition 5, weighted.

    A quasi-identifier that only one of row and box has is lost.
    """
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
def mean_loss(space: Space, slots: Array, group: Array, lo: Array, hi: Array) -> float:
    """Return the mean loss of a group's rows."""
    total = 0.0
    for slot in group:
        total += loss_for(space, slots[slot].set, lo, hi)
    return total / group.size
