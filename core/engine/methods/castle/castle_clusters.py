"""CASTLE's clusters: which rows they have, which cluster takes a new row, and when a cluster can be published."""

from __future__ import annotations

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array
from crenel.engine.kernels.box_geometry import Space, enlargements, grow_box, join_boxes, loss_with, move_box, point_box
from crenel.engine.kernels.closeness import clear_scratch, count_values, within_t
from crenel.engine.kernels.compiler import bare
from crenel.engine.kernels.distinct_counts import ANYWHERE, SAME, count_down_in, count_up_in
from crenel.engine.methods.castle.castle_state import Buffer, Clusters, State

# --- Rows of a cluster ---


@bare
def enter(counts: Array, buffer: Buffer, clusters: Clusters, cluster: int, slot: int) -> None:
    """Count a row as one of the cluster's: its person, and with l its sensitive values."""
    buffer.slots[slot].cluster = cluster
    for j in range(counts.shape[0]):
        value = buffer.slots[slot].person if j == 0 else buffer.sensitive[slot, j - 1]
        first = count_up_in(counts[j], cluster, value)
        clusters.distinct[cluster, j] += first != SAME
        clusters.held_distinct[j] += first == ANYWHERE


@bare
def leave(counts: Array, buffer: Buffer, clusters: Clusters, cluster: int, slot: int) -> None:
    """Undo `enter`."""
    for j in range(counts.shape[0]):
        value = buffer.slots[slot].person if j == 0 else buffer.sensitive[slot, j - 1]
        last = count_down_in(counts[j], cluster, value)
        clusters.distinct[cluster, j] -= last != SAME
        clusters.held_distinct[j] -= last == ANYWHERE


@bare
def append(slots: Array, table: Array, cluster: int, slot: int) -> None:
    """Add the row to the end of the cluster's list."""
    tail = table[cluster].tail
    slots[slot].previous = tail
    slots[slot].next = NONE
    if tail == NONE:
        table[cluster].head = slot
    else:
        slots[tail].next = slot
    table[cluster].tail = slot


@bare
def take_out(s: State, slot: int) -> None:
    """Take one row out of its cluster. The box shrinks to the rows that stay (definition 3.1: it is minimal)."""
    slots = s.buffer.slots
    cluster = slots[slot].cluster
    entry = s.clusters.table[cluster]
    before, after = slots[slot].previous, slots[slot].next
    if before == NONE:
        entry.head = after
    else:
        slots[before].next = after
    if after == NONE:
        entry.tail = before
    else:
        slots[after].previous = before
    leave(s.counts, s.buffer, s.clusters, cluster, slot)
    if entry.head == NONE:
        delete_cluster(s.clusters, s.numbers, cluster)
        return
    at = entry.head
    point_box(s.space, s.buffer.qi[at], s.clusters.boxes, entry.place)
    while at != NONE:
        grow_box(s.space, s.buffer.qi[at], s.clusters.boxes, entry.place)
        at = slots[at].next


# --- Clusters ---


@bare
def new_cluster(s: State, slot: int) -> int:
    """Make a cluster whose box is that of the row, and return it. The row is the caller's to add."""
    n = s.numbers[0]
    cluster = s.clusters.active[n.clusters]
    entry = s.clusters.table[cluster]
    entry.place = n.clusters
    entry.born = n.born
    entry.head = entry.tail = NONE
    n.clusters += 1
    n.born += 1
    for j in range(n.tracked):
        s.clusters.distinct[cluster, j] = 0
    point_box(s.space, s.buffer.qi[slot], s.clusters.boxes, entry.place)
    return cluster


@bare
def delete_cluster(clusters: Clusters, numbers: Array, cluster: int) -> None:
    """Delete a cluster."""
    n = numbers[0]
    n.clusters -= 1
    place, last = clusters.table[cluster].place, clusters.active[n.clusters]
    clusters.active[place] = last
    clusters.table[last].place = place
    clusters.active[n.clusters] = cluster
    move_box(clusters.boxes, n.clusters, place)


@bare
def absorb(s: State, cluster: int, other: int) -> None:
    """Merge `other` into `cluster`. The rows stay in order of arrival."""
    slots, table = s.buffer.slots, s.clusters.table
    join_boxes(s.space, s.clusters.boxes, table[cluster].place, table[other].place)
    slot = table[other].head
    while slot != NONE:
        leave(s.counts, s.buffer, s.clusters, other, slot)
        enter(s.counts, s.buffer, s.clusters, cluster, slot)
        slot = slots[slot].next
    mine, theirs = table[cluster].head, table[other].head
    table[cluster].head = table[cluster].tail = NONE
    while mine != NONE or theirs != NONE:
        if theirs == NONE or (mine != NONE and slots[mine].number < slots[theirs].number):
            slot, mine = mine, slots[mine].next
        else:
            slot, theirs = theirs, slots[theirs].next
        append(slots, table, cluster, slot)
    delete_cluster(s.clusters, s.numbers, other)


@bare
def _prefer(clusters: Clusters, cluster: int, other: int) -> bool:
    """Return whether `cluster` has fewer persons than `other`, or as many and is older."""
    if other == NONE:
        return True
    if clusters.distinct[cluster, 0] != clusters.distinct[other, 0]:
        return clusters.distinct[cluster, 0] < clusters.distinct[other, 0]
    return clusters.table[cluster].born < clusters.table[other].born


@bare
def best_selection(space: Space, clusters: Clusters, numbers: Array, row: Array) -> int:
    """Return the cluster that takes the row, or NONE if the row gets a cluster of its own."""
    n = numbers[0]
    boxes, active = clusters.boxes, clusters.active
    enlargement = clusters.enlargement[: n.clusters]
    enlargements(space, boxes, row, enlargement)
    smallest = np.inf
    for i in range(enlargement.size):
        smallest = min(smallest, enlargement[i])
    within_tau = NONE
    any_loss = NONE
    for i in range(enlargement.size):
        if enlargement[i] != smallest:
            continue
        if _prefer(clusters, active[i], any_loss):
            any_loss = active[i]
        if _prefer(clusters, active[i], within_tau) and loss_with(space, boxes, i, row) <= n.tau:
            within_tau = active[i]
    if within_tau != NONE:
        return within_tau
    return any_loss if n.clusters >= n.beta else NONE


# --- Guarantees ---


@bare
def is_enough(distinct: Array, numbers: Array) -> bool:
    """Return whether there are k distinct persons, and l distinct values of each sensitive column."""
    if distinct[0] < numbers[0].k:
        return False
    for j in range(1, distinct.size):
        if distinct[j] < numbers[0].l:
            return False
    return True


@bare
def is_ready(s: State, cluster: int) -> bool:
    """Return whether a cluster can be published."""
    if not is_enough(s.clusters.distinct[cluster], s.numbers):
        return False
    return s.numbers[0].t < 0.0 or _cluster_within_t(s, cluster)


@bare
def _cluster_within_t(s: State, cluster: int) -> bool:
    clear_scratch(s.closeness)
    total = 0
    slot = s.clusters.table[cluster].head
    while slot != NONE:
        count_values(s.closeness.scratch, s.buffer.sensitive[slot])
        total += 1
        slot = s.buffer.slots[slot].next
    return within_t(s.numbers, s.closeness, s.closeness.scratch, total)


@bare
def all_ready(s: State) -> bool:
    """Return whether all held rows together could be published."""
    if not is_enough(s.clusters.held_distinct, s.numbers):
        return False
    return s.numbers[0].t < 0.0 or _all_within_t(s)


@bare
def _all_within_t(s: State) -> bool:
    clear_scratch(s.closeness)
    slot = s.numbers[0].oldest
    while slot != NONE:
        count_values(s.closeness.scratch, s.buffer.sensitive[slot])
        slot = s.buffer.slots[slot].newer
    return within_t(s.numbers, s.closeness, s.closeness.scratch, s.numbers[0].held)
