"""CASTLE's hot loops: plain loops over the arrays of one `State`.

A state is made of parts, and a function takes only the parts it needs: numba hands each array over as seven words, so
that what runs for every row must not be given everything.

Words: a *slot* is a place in the buffer where a held row lies; a *cluster* is a place in the table of clusters; a
*span* is a range widened to what can be published (`docs/castle.md` has the table). Names of the paper's procedures
are kept, so that the two can be read side by side.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from crenel.engine.kernels.common import (
    ANYWHERE,
    CLUSTER,
    LATEST,
    NONE,
    REUSE,
    SAME,
    SAMPLED_OUT,
    SUPPRESSED,
    Array,
    Boxes,
    Closeness,
    Out,
    Random,
    Space,
    bare,
    below,
    copy_into,
    count_down,
    count_down_in,
    count_up,
    count_up_in,
    count_values,
    enlargement_by_box,
    enlargements,
    enlargements_by,
    erase_entry,
    find_entry,
    grow_box,
    inlined,
    inner,
    inside,
    join_boxes,
    kernel,
    learn_domains,
    loss_of,
    loss_with,
    move_box,
    point_box,
    put_entry,
    saturating_add,
    shuffle,
    sift,
    within_t,
    write_release,
)

# What is one number: first what the policy fixes (0 or negative: not asked for), then what changes from row to row.
NUMBERS = np.dtype(
    [
        ("k", "i8"),
        ("l", "i8"),
        ("t", "f8"),
        ("delay", "i8"),
        ("tick", "i8"),  # deadlines are multiples of it
        ("delay_rows", "i8"),
        ("disorder", "i8"),
        ("beta", "i8"),
        ("mu", "i8"),
        ("reuse", "i8"),
        ("tracked", "i8"),  # values counted per cluster: the person, and with l each sensitive column
        ("arrivals", "i8"),
        ("clock", "i8"),
        ("held", "i8"),
        ("free", "i8"),
        ("oldest", "i8"),
        ("newest", "i8"),
        ("timed", "i8"),
        ("clusters", "i8"),
        ("born", "i8"),
        ("recent", "i8"),
        ("reusable", "i8"),
        ("reusable_oldest", "i8"),
        ("draws", "i8"),
        ("released", "i8"),
        ("out_rows", "i8"),
        ("out_releases", "i8"),
        ("tau", "f8"),
    ]
)
SLOT = np.dtype(
    [
        ("number", "i8"),
        ("person", "i8"),
        ("deadline", "i8"),
        ("cluster", "i8"),
        ("older", "i8"),  # the row that arrived before, among all held
        ("newer", "i8"),
        ("previous", "i8"),  # the row that arrived before, in the same cluster
        ("next", "i8"),
        ("heap_place", "i8"),
    ]
)
CLUSTERS = np.dtype([("head", "i8"), ("tail", "i8"), ("born", "i8"), ("place", "i8")])
REUSABLE = np.dtype([("group", "i8"), ("persons", "i8")])


class Buffer(NamedTuple):
    """The held rows, by slot."""

    slots: Any  # SLOT
    qi: Any
    sensitive: Any
    heap: Any  # slots by (deadline, number)
    free: Any


class Clusters(NamedTuple):
    """The clusters: Gamma of the paper."""

    table: Any  # CLUSTERS
    boxes: Boxes  # by place among the active
    distinct: Any  # [cluster, tracked]: how many different persons, values, ...
    held_distinct: Any  # [tracked]: the same of all held rows
    active: Any  # by place; behind the active ones lie the unused ones
    enlargement: Any  # by place, to compute with


class Reusable(NamedTuple):
    """Generalizations that were published and may be used again: Omega of the paper, a ring."""

    table: Any  # REUSABLE
    lo: Any
    hi: Any
    histogram: Any
    candidates: Any  # to compute with


class Persons(NamedTuple):
    """The persons of a cluster that is about to leave, numbered by their first row."""

    count: Any
    of: Any  # by member
    following: Any  # by member: the same person's next


class State(NamedTuple):
    """Everything a CASTLE engine is."""

    numbers: Any  # NUMBERS, one
    space: Space
    counts: Any  # GROUPED, a table for each that is tracked: how often each value is in each cluster
    scratch: Any  # ENTRY, an empty table to count with
    buffer: Buffer
    clusters: Clusters
    reusable: Reusable
    recent: Any  # the last mu losses, a ring
    closeness: Closeness
    random: Random
    out: Out


# --- Counting distinct values ----------------------------------------------------------------------------------------


@bare
def _enter(counts: Array, buffer: Buffer, clusters: Clusters, cluster: int, slot: int) -> None:
    """Count a row as one of the cluster's: its person, and with l its sensitive values."""
    buffer.slots[slot].cluster = cluster
    for j in range(counts.shape[0]):
        value = buffer.slots[slot].person if j == 0 else buffer.sensitive[slot, j - 1]
        first = count_up_in(counts[j], cluster, value)
        clusters.distinct[cluster, j] += first != SAME
        clusters.held_distinct[j] += first == ANYWHERE


@bare
def _leave(counts: Array, buffer: Buffer, clusters: Clusters, cluster: int, slot: int) -> None:
    for j in range(counts.shape[0]):
        value = buffer.slots[slot].person if j == 0 else buffer.sensitive[slot, j - 1]
        last = count_down_in(counts[j], cluster, value)
        clusters.distinct[cluster, j] -= last != SAME
        clusters.held_distinct[j] -= last == ANYWHERE


# --- The buffer ------------------------------------------------------------------------------------------------------


@inlined
def _hold(s: State, number: int, qi: Array, person: int, sensitive: Array, deadline: int) -> int:
    """Put a row into the buffer, as its newest."""
    n = s.numbers[0]
    slots = s.buffer.slots
    n.free -= 1
    slot = s.buffer.free[n.free]
    n.held += 1
    copy_into(qi, s.buffer.qi[slot])
    copy_into(sensitive, s.buffer.sensitive[slot])
    row = slots[slot]
    row.number = number
    row.person = person
    row.deadline = deadline
    row.cluster = NONE
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
    return slot


@bare
def _drop(buffer: Buffer, numbers: Array, slot: int) -> None:
    """Take a row that left out of the buffer."""
    n = numbers[0]
    slots = buffer.slots
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
        place, last = slots[slot].heap_place, buffer.heap[n.timed]
        if last != slot:
            buffer.heap[place] = last
            sift(slots, buffer.heap, n.timed, place)
    n.held -= 1
    buffer.free[n.free] = slot
    n.free += 1


# --- Clusters --------------------------------------------------------------------------------------------------------


@bare
def _new_cluster(s: State, slot: int) -> int:
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
def _delete_cluster(clusters: Clusters, numbers: Array, cluster: int) -> None:
    n = numbers[0]
    n.clusters -= 1
    place, last = clusters.table[cluster].place, clusters.active[n.clusters]
    clusters.active[place] = last
    clusters.table[last].place = place
    clusters.active[n.clusters] = cluster
    move_box(clusters.boxes, n.clusters, place)


@bare
def _append(slots: Array, table: Array, cluster: int, slot: int) -> None:
    """Make the row the last of the cluster's."""
    tail = table[cluster].tail
    slots[slot].previous = tail
    slots[slot].next = NONE
    if tail == NONE:
        table[cluster].head = slot
    else:
        slots[tail].next = slot
    table[cluster].tail = slot


@bare
def _take_out(s: State, slot: int) -> None:
    """Take one row out of its cluster, whose box shrinks to the rows that stay (Definition 3.1: minimal)."""
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
    _leave(s.counts, s.buffer, s.clusters, cluster, slot)
    if entry.head == NONE:
        _delete_cluster(s.clusters, s.numbers, cluster)
        return
    at = entry.head
    point_box(s.space, s.buffer.qi[at], s.clusters.boxes, entry.place)
    while at != NONE:
        grow_box(s.space, s.buffer.qi[at], s.clusters.boxes, entry.place)
        at = slots[at].next


@bare
def _absorb(s: State, cluster: int, other: int) -> None:
    """Merge `other` into `cluster`; members stay in order of arrival."""
    slots, table = s.buffer.slots, s.clusters.table
    join_boxes(s.space, s.clusters.boxes, table[cluster].place, table[other].place)
    slot = table[other].head
    while slot != NONE:
        _leave(s.counts, s.buffer, s.clusters, other, slot)
        _enter(s.counts, s.buffer, s.clusters, cluster, slot)
        slot = slots[slot].next
    mine, theirs = table[cluster].head, table[other].head
    table[cluster].head = table[cluster].tail = NONE
    while mine != NONE or theirs != NONE:
        if theirs == NONE or (mine != NONE and slots[mine].number < slots[theirs].number):
            slot, mine = mine, slots[mine].next
        else:
            slot, theirs = theirs, slots[theirs].next
        _append(slots, table, cluster, slot)
    _delete_cluster(s.clusters, s.numbers, other)


@bare
def _prefer(clusters: Clusters, cluster: int, other: int) -> bool:
    """Fewer persons first, then the older."""
    if other == NONE:
        return True
    if clusters.distinct[cluster, 0] != clusters.distinct[other, 0]:
        return clusters.distinct[cluster, 0] < clusters.distinct[other, 0]
    return clusters.table[cluster].born < clusters.table[other].born


@bare
def _best_selection(space: Space, clusters: Clusters, numbers: Array, row: Array) -> int:
    """The cluster that shall take the row, or NONE if it shall have a new one."""
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


# --- Guarantees ------------------------------------------------------------------------------------------------------


@bare
def _enough(distinct: Array, numbers: Array) -> bool:
    """Whether there are k persons and l values of each sensitive column."""
    if distinct[0] < numbers[0].k:
        return False
    for j in range(1, distinct.size):
        if distinct[j] < numbers[0].l:
            return False
    return True


@bare
def _ready(s: State, cluster: int) -> bool:
    """Whether a cluster may be published."""
    if not _enough(s.clusters.distinct[cluster], s.numbers):
        return False
    return s.numbers[0].t < 0.0 or _cluster_within_t(s, cluster)


@inner
def _cluster_within_t(s: State, cluster: int) -> bool:
    histogram = np.zeros_like(s.closeness.stream)
    total = 0
    slot = s.clusters.table[cluster].head
    while slot != NONE:
        count_values(histogram, s.buffer.sensitive[slot])
        total += 1
        slot = s.buffer.slots[slot].next
    return within_t(s.numbers, s.closeness, histogram, total)


@bare
def _all_ready(s: State) -> bool:
    """Whether all held rows together might be published."""
    if not _enough(s.clusters.held_distinct, s.numbers):
        return False
    return s.numbers[0].t < 0.0 or _all_within_t(s)


@inner
def _all_within_t(s: State) -> bool:
    histogram = np.zeros_like(s.closeness.stream)
    slot = s.numbers[0].oldest
    while slot != NONE:
        count_values(histogram, s.buffer.sensitive[slot])
        slot = s.buffer.slots[slot].newer
    return within_t(s.numbers, s.closeness, histogram, s.numbers[0].held)


# --- What leaves -----------------------------------------------------------------------------------------------------


@inlined
def _write_row(s: State, slot: int) -> None:
    n = s.numbers[0]
    s.out.rows[n.out_rows] = s.buffer.slots[slot].number
    n.out_rows += 1


@inner
def _write_widest(s: State, number: int, kind: int) -> None:
    """Let one row go of which nothing is told but that it was there."""
    dimensions = s.space.dimensions
    lo, hi = np.empty(dimensions.size), np.empty(dimensions.size)
    for d in range(dimensions.size):
        lo[d], hi[d] = dimensions[d].widest_lo, dimensions[d].widest_hi
    s.out.rows[s.numbers[0].out_rows] = number
    s.numbers[0].out_rows += 1
    write_release(s.out, s.numbers, kind, lo, hi, 1.0, 1, NONE)


@inner
def _suppress(s: State, slot: int) -> None:
    _write_widest(s, s.buffer.slots[slot].number, SUPPRESSED)
    _take_out(s, slot)
    _drop(s.buffer, s.numbers, slot)


@inner
def _stays_within_t(s: State, place: int, slot: int) -> bool:
    """Whether a reusable generalization may take the row as far as t goes."""
    histogram = s.reusable.histogram[place].copy()
    count_values(histogram, s.buffer.sensitive[slot])
    return within_t(s.numbers, s.closeness, histogram, histogram[0].sum())


@bare
def _reuse(s: State, slot: int) -> bool:
    """Release the row under a reusable generalization that contains it, drawn uniformly; false if there is none."""
    n = s.numbers[0]
    row = s.buffer.qi[slot]
    size = s.reusable.table.size
    found = 0
    for i in range(n.reusable):
        place = (n.reusable_oldest + i) % size
        if inside(s.reusable.lo[place], s.reusable.hi[place], row) and (n.t < 0.0 or _stays_within_t(s, place, slot)):
            s.reusable.candidates[found] = place
            found += 1
    if found == 0:
        return False
    place = s.reusable.candidates[below(s.random, s.numbers, found)]
    lo, hi = s.reusable.lo[place], s.reusable.hi[place]
    entry = s.reusable.table[place]
    _write_row(s, slot)
    write_release(s.out, s.numbers, REUSE, lo, hi, loss_of(s.space, lo, hi), entry.persons, entry.group)
    count_values(s.reusable.histogram[place], s.buffer.sensitive[slot])
    _take_out(s, slot)
    _drop(s.buffer, s.numbers, slot)
    return True


@bare
def _same_box(reusable: Reusable, place: int, lo: Array, hi: Array) -> bool:
    for d in range(lo.size):
        if reusable.lo[place, d] != lo[d] or reusable.hi[place, d] != hi[d]:
            return False
    return True


@bare
def _keep_reusable(s: State, lo: Array, hi: Array, persons: int, group: int, histogram: Array) -> None:
    """Add a generalization to Omega, pushing out the oldest if it is full."""
    n = s.numbers[0]
    size = s.reusable.table.size
    if size == 0 or n.reuse == 0:
        return
    place = NONE
    for i in range(n.reusable):
        at = (n.reusable_oldest + i) % size
        if _same_box(s.reusable, at, lo, hi):
            if n.t < 0.0:
                return
            place = at
            break
    if place == NONE:
        if n.reusable == size:
            n.reusable_oldest = (n.reusable_oldest + 1) % size
            n.reusable -= 1
        place = (n.reusable_oldest + n.reusable) % size
        n.reusable += 1
    copy_into(lo, s.reusable.lo[place])
    copy_into(hi, s.reusable.hi[place])
    for j in range(histogram.shape[0]):
        copy_into(histogram[j], s.reusable.histogram[place, j])
    s.reusable.table[place].persons = persons
    s.reusable.table[place].group = group


@bare
def _update_tau(recent: Array, numbers: Array, loss: float) -> None:
    n = numbers[0]
    recent[n.recent % n.mu] = loss
    n.recent += 1
    count = min(n.recent, n.mu)
    total = 0.0
    for i in range(n.recent - count, n.recent):  # from oldest to newest
        total += recent[i % n.mu]
    n.tau = total / count


# --- Splitting -------------------------------------------------------------------------------------------------------
#
# A cluster about to leave is an array of slots in order of arrival, `members`; `part[i]` is the sub-cluster of
# members[i], and box p of `boxes` that of sub-cluster p.


@bare
def _persons(s: State, cluster: int, members: Array, person_of: Array, following: Array, last: Array) -> int:
    """Group members by person: person_of[i] numbers persons by first row, following[i] is the same person's next."""
    for i in range(members.size):
        person_of[i] = i
        following[i] = NONE
    if s.clusters.distinct[cluster, 0] == members.size:
        return members.size
    persons = 0
    for i in range(members.size):
        person = s.buffer.slots[members[i]].person
        place = find_entry(s.scratch, 0, person)
        if s.scratch[place].count == 0:
            persons += 1
            put_entry(s.scratch, place, 0, person, persons)
            person_of[i] = persons - 1
        else:
            person_of[i] = s.scratch[place].count - 1
            following[last[person_of[i]]] = i
        last[person_of[i]] = i
    for i in range(members.size):
        if following[i] == NONE:
            erase_entry(s.scratch, find_entry(s.scratch, 0, s.buffer.slots[members[i]].person))
    return persons


@bare
def _nearest(space: Space, boxes: Boxes, row: Array, enlargement: Array) -> int:
    """The sub-cluster of smallest enlargement, the first made of several."""
    enlargements(space, boxes, row, enlargement)
    best = 0
    for p in range(1, enlargement.size):
        if enlargement[p] < enlargement[best]:
            best = p
    return best


@bare
def _write_columns(qi: Array, members: Array, columns: Array) -> None:
    """The members' coordinates, a quasi-identifier a row."""
    for i in range(members.size):
        for d in range(qi.shape[1]):
            columns[d, i] = qi[members[i], d]


@bare
def _sink(distance: Array, place: Array, i: int) -> None:
    """Restore the max-heap of (distance, place) below i."""
    n = distance.size
    while 2 * i + 1 < n:
        child = 2 * i + 1
        if child + 1 < n and (distance[child + 1], place[child + 1]) > (distance[child], place[child]):
            child += 1
        if (distance[i], place[i]) > (distance[child], place[child]):
            return
        distance[i], distance[child] = distance[child], distance[i]
        place[i], place[child] = place[child], place[i]
        i = child


@bare
def _neighbours(enlargement: Array, chosen: int, distance: Array, place: Array) -> None:
    """Write into `place` where the smallest of `enlargement` (but for `chosen`) are, as many as it has room for.

    Of several of the same size the first win.
    """
    room = place.size
    found = 0
    for a in range(enlargement.size):
        if a == chosen or room == 0:
            continue
        if found < room:
            distance[found] = enlargement[a]
            place[found] = a
            found += 1
            if found == room:
                for i in range(found // 2 - 1, -1, -1):
                    _sink(distance, place, i)
        elif enlargement[a] < distance[0]:
            distance[0] = enlargement[a]
            place[0] = a
            _sink(distance, place, 0)


@inner
def _split(s: State, persons: Persons, members: Array, part: Array, boxes: Boxes) -> int:
    """Function split(C) of the paper: k nearest neighbours, one row a person. Returns the number of sub-clusters."""
    k = s.numbers[0].k
    front = np.empty(persons.count, dtype=np.int64)
    columns = np.empty((boxes.lo.shape[0], members.size))
    enlargement = np.empty(members.size)  # persons repeat: there may be more sub-clusters than buckets
    distance = np.empty(k - 1)
    place = np.empty(k - 1, dtype=np.int64)
    _write_columns(s.buffer.qi, members, columns)
    return _split_into(s, persons, members, part, boxes, front, columns, enlargement, distance, place)


@bare
def _split_into(
    s: State,
    persons: Persons,
    members: Array,
    part: Array,
    boxes: Boxes,
    front: Array,
    columns: Array,
    enlargement: Array,
    distance: Array,
    place: Array,
) -> int:
    """The same, with room to compute in; `front` is the oldest row left in each bucket."""
    qi, following = s.buffer.qi, persons.following
    buckets = persons.count
    for i in range(members.size - 1, -1, -1):
        front[persons.of[i]] = i
    parts = 0
    while buckets >= s.numbers[0].k:
        chosen = below(s.random, s.numbers, buckets)
        seed = front[chosen]
        point_box(s.space, qi[members[seed]], boxes, parts)
        enlargements_by(s.space, boxes, parts, columns, front[:buckets], enlargement[:buckets])
        _neighbours(enlargement[:buckets], chosen, distance, place)
        part[seed] = parts
        front[chosen] = following[seed]
        for j in range(place.size):
            i = front[place[j]]
            part[i] = parts
            grow_box(s.space, qi[members[i]], boxes, parts)
            front[place[j]] = following[i]
        buckets = _compact(front, buckets)
        parts += 1
    for b in range(buckets):
        i = front[b]
        while i != NONE:
            row = qi[members[i]]
            part[i] = _nearest(s.space, boxes, row, enlargement[:parts])
            grow_box(s.space, row, boxes, part[i])
            i = following[i]
    return parts


@bare
def _compact(items: Array, n: int) -> int:
    """Take NONE out of the first n items; returns how many stay, in their order."""
    kept = 0
    for i in range(n):
        if items[i] != NONE:
            items[kept] = items[i]
            kept += 1
    return kept


@inner
def _generate_buckets(
    s: State,
    members: Array,
    column: int,
    person_of: Array,
    following: Array,
    representative: Array,
    bucket_of: Array,
) -> int:
    """One row a person, put into buckets by sensitive value. Returns the number of buckets."""
    counts, sensitive = s.scratch, s.buffer.sensitive
    persons = representative.size
    size = np.zeros(persons, dtype=np.int64)
    value = np.empty(persons, dtype=np.int64)
    buckets = 0
    first = 0
    for person in range(persons):
        while person_of[first] != person:  # persons are numbered by their first row
            first += 1
        best = first
        best_size = np.int64(LATEST)
        i = first
        while i != NONE:
            known = counts[find_entry(counts, 0, sensitive[members[i], column])].count
            i_size = size[known - 1] if known > 0 else 0
            if i_size < best_size:
                best, best_size = i, i_size
            i = following[i]
        code = sensitive[members[best], column]
        place = find_entry(counts, 0, code)
        if counts[place].count == 0:
            value[buckets] = code
            buckets += 1
            put_entry(counts, place, 0, code, buckets)
        bucket = counts[place].count - 1
        size[bucket] += 1
        representative[person] = best
        bucket_of[person] = bucket
    for b in range(buckets):
        erase_entry(counts, find_entry(counts, 0, value[b]))
    return buckets


@bare
def _scarcest_column(distinct: Array) -> int:
    best = 1
    for j in range(2, distinct.size):
        if distinct[j] < distinct[best]:
            best = j
    return best - 1


@inner
def _split_l(s: State, persons: Persons, cluster: int, members: Array, part: Array, boxes: Boxes) -> int:
    """Function split^l(C, a_s) of the paper. Returns the number of sub-clusters; 0 if it cannot be split."""
    qi = s.buffer.qi
    k, l = s.numbers[0].k, s.numbers[0].l
    representative = np.empty(persons.count, dtype=np.int64)
    bucket_of = np.empty(persons.count, dtype=np.int64)
    column = _scarcest_column(s.clusters.distinct[cluster])
    opened = _generate_buckets(s, members, column, persons.of, persons.following, representative, bucket_of)
    if opened < l:
        return 0
    # Bucket b is rows[start[b] : start[b] + size[b]], in order of insertion.
    size = np.zeros(opened, dtype=np.int64)
    start = np.zeros(opened + 1, dtype=np.int64)
    for person in range(persons.count):
        start[bucket_of[person] + 1] += 1
    for b in range(opened):
        start[b + 1] += start[b]
    rows = np.empty(persons.count, dtype=np.int64)
    for person in range(persons.count):
        b = bucket_of[person]
        rows[start[b] + size[b]] = representative[person]
        size[b] += 1
    alive = np.arange(opened)
    columns = np.empty((qi.shape[1], members.size))
    _write_columns(qi, members, columns)
    enlargement = np.empty(persons.count)
    distance = np.empty(persons.count)
    place = np.empty(persons.count, dtype=np.int64)
    buckets = opened
    left = persons.count
    parts = 0
    while buckets >= l and left >= k:
        total = left
        b = alive[below(s.random, s.numbers, buckets)]
        r = start[b] + below(s.random, s.numbers, size[b])
        part[rows[r]] = parts
        point_box(s.space, qi[members[rows[r]]], boxes, parts)
        rows[r] = NONE
        size[b] = _compact(rows[start[b] :], size[b])
        left -= 1
        for a in range(buckets):
            b = alive[a]
            bucket = rows[start[b] :]
            take = (k * size[b] + total - 1) // total
            bucket_enlargement = enlargement[: size[b]]
            enlargements_by(s.space, boxes, parts, columns, bucket, bucket_enlargement)
            _neighbours(bucket_enlargement, NONE, distance[:take], place[:take])
            for i in place[:take]:
                part[bucket[i]] = parts
                grow_box(s.space, qi[members[bucket[i]]], boxes, parts)
                bucket[i] = NONE
            size[b] = _compact(bucket, size[b])
            left -= take
            if size[b] == 0:
                alive[a] = NONE
        buckets = _compact(alive, buckets)
        parts += 1
    for a in range(buckets):
        b = alive[a]
        for i in rows[start[b] : start[b] + size[b]]:
            row = qi[members[i]]
            part[i] = _nearest(s.space, boxes, row, enlargement[:parts])
            grow_box(s.space, row, boxes, part[i])
    for i in range(members.size):
        part[i] = part[representative[persons.of[i]]]
        grow_box(s.space, qi[members[i]], boxes, part[i])
    return parts


@inner
def _part_ready(s: State, members: Array, part: Array, p: int) -> bool:
    """Whether sub-cluster p has l values of each sensitive column and is within t."""
    sensitive = s.buffer.sensitive
    for j in range(1, s.numbers[0].tracked):
        distinct = 0
        for i in range(members.size):
            if part[i] == p and count_up(s.scratch, 0, sensitive[members[i], j - 1]):
                distinct += 1
        for i in range(members.size):
            if part[i] == p:
                count_down(s.scratch, 0, sensitive[members[i], j - 1])
        if distinct < s.numbers[0].l:
            return False
    if s.numbers[0].t < 0.0:
        return True
    histogram = np.zeros_like(s.closeness.stream)
    total = 0
    for i in range(members.size):
        if part[i] == p:
            count_values(histogram, sensitive[members[i]])
            total += 1
    return within_t(s.numbers, s.closeness, histogram, total)


@bare
def _repair(s: State, members: Array, part: Array, boxes: Boxes, parts: int) -> int:
    """Join sub-clusters that may not be published with their nearest, until all may. Returns how many are left."""
    p = 0
    while p < parts and parts > 1:
        if _part_ready(s, members, part, p):
            p += 1
            continue
        best = NONE
        smallest = np.inf
        for other in range(parts):
            if other != p:
                enlargement = enlargement_by_box(s.space, boxes, p, other)
                if enlargement < smallest:
                    smallest = enlargement
                    best = other
        join_boxes(s.space, boxes, best, p)
        for i in range(members.size):
            if part[i] == p:
                part[i] = best
            if part[i] > p:
                part[i] -= 1
        for other in range(p, parts - 1):
            move_box(boxes, other + 1, other)
        parts -= 1
        p = 0  # with t, a sub-cluster that was ready may have taken in one that was not
    return parts


@bare
def _release_part(s: State, slots: Array, lo: Array, hi: Array, persons: int, histogram: Array) -> None:
    """Release one sub-cluster, update tau with its loss, and keep its span if it is a good one."""
    for i in range(slots.size):
        count_values(histogram, s.buffer.sensitive[slots[i]])
    shuffle(s.random, s.numbers, slots)
    for i in range(slots.size):
        _write_row(s, slots[i])
    loss = loss_of(s.space, lo, hi)
    group = s.numbers[0].released
    write_release(s.out, s.numbers, CLUSTER, lo, hi, loss, persons, group)
    _update_tau(s.recent, s.numbers, loss)
    if loss < s.numbers[0].tau:
        _keep_reusable(s, lo, hi, persons, group, histogram)


@bare
def _gather(persons: Persons, members: Array, part: Array, p: int, slots: Array, seen: Array) -> tuple[int, int]:
    """Write the slots of sub-cluster p; `seen` is the last sub-cluster of each person. Returns its rows and persons."""
    rows = 0
    different = 0
    for i in range(members.size):
        if part[i] == p:
            slots[rows] = members[i]
            rows += 1
            if seen[persons.of[i]] != p:
                seen[persons.of[i]] = p
                different += 1
    return rows, different


@bare
def _members(slots: Array, head: int, members: Array) -> int:
    """The rows of a cluster in order of arrival: writes as many as there is room for, returns how many there are."""
    n = 0
    slot = head
    while slot != NONE:
        if n < members.size:
            members[n] = slot
        n += 1
        slot = slots[slot].next
    return n


@bare
def _remove(s: State, cluster: int, members: Array) -> None:
    """Take a cluster that left out of all, with its rows."""
    for i in range(members.size):
        _leave(s.counts, s.buffer, s.clusters, cluster, members[i])
        _drop(s.buffer, s.numbers, members[i])
    _delete_cluster(s.clusters, s.numbers, cluster)


@inner
def _output_cluster(s: State, cluster: int) -> None:
    n = s.numbers[0]
    head = s.clusters.table[cluster].head
    members = np.empty(n.held, dtype=np.int64)
    members = members[: _members(s.buffer.slots, head, members)]
    part = np.zeros(members.size, dtype=np.int64)
    shape = (s.space.dimensions.size, max(members.size // n.k, 1))
    boxes = Boxes(np.empty(shape), np.empty(shape), np.zeros(shape, dtype=np.int64))
    person_of, following = np.empty(members.size, dtype=np.int64), np.empty(members.size, dtype=np.int64)
    slots = np.empty(members.size, dtype=np.int64)
    persons = Persons(_persons(s, cluster, members, person_of, following, slots), person_of, following)
    parts = 0
    if persons.count >= 2 * n.k:
        if n.l > 0:
            parts = _split_l(s, persons, cluster, members, part, boxes)
        else:
            parts = _split(s, persons, members, part, boxes)
    if parts == 0:
        parts = 1
        copy_into(s.clusters.boxes.lo[:, s.clusters.table[cluster].place], boxes.lo[:, 0])
        copy_into(s.clusters.boxes.hi[:, s.clusters.table[cluster].place], boxes.hi[:, 0])
    elif n.tracked > 2 or n.t >= 0.0:
        parts = _repair(s, members, part, boxes, parts)
    seen = np.full(persons.count, NONE, dtype=np.int64)
    lo, hi = np.empty(shape[0]), np.empty(shape[0])
    for p in range(parts):
        size, different = _gather(persons, members, part, p, slots, seen)
        copy_into(boxes.lo[:, p], lo)
        copy_into(boxes.hi[:, p], hi)
        _release_part(s, slots[:size], lo, hi, different, np.zeros_like(s.closeness.stream))
    _remove(s, cluster, members)


# --- The algorithm ---------------------------------------------------------------------------------------------------


@bare
def _is_outlier(clusters: Clusters, numbers: Array, cluster: int) -> bool:
    """Lines 10-14 of delay_constraint: most clusters have more persons."""
    n = numbers[0]
    larger = 0
    for i in range(n.clusters):
        if clusters.distinct[clusters.active[i], 0] > clusters.distinct[cluster, 0]:
            larger += 1
    return 2 * larger > n.clusters


@bare
def _merge_clusters(s: State, cluster: int) -> None:
    """Merge with the nearest cluster, again and again, until this one is ready."""
    n = s.numbers[0]
    table = s.clusters.table
    while n.clusters > 1 and not _ready(s, cluster):
        best = NONE
        smallest = np.inf
        for i in range(n.clusters):
            other = s.clusters.active[i]
            if other == cluster:
                continue
            enlargement = enlargement_by_box(s.space, s.clusters.boxes, table[cluster].place, i)
            if enlargement < smallest or (enlargement == smallest and table[other].born < table[best].born):
                smallest = enlargement
                best = other
        _absorb(s, cluster, best)


@inlined
def _delay_constraint(s: State, slot: int) -> None:
    cluster = s.buffer.slots[slot].cluster
    if _ready(s, cluster):
        _output_cluster(s, cluster)
    elif _reuse(s, slot):
        pass
    elif _is_outlier(s.clusters, s.numbers, cluster) or not _all_ready(s):
        _suppress(s, slot)
    else:
        _merge_clusters(s, cluster)
        _output_cluster(s, cluster)


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
def _place(s: State, slot: int) -> None:
    """Put a held row into the best cluster, or into one of its own."""
    row = s.buffer.qi[slot]
    cluster = _best_selection(s.space, s.clusters, s.numbers, row)
    if cluster == NONE:
        cluster = _new_cluster(s, slot)
    else:
        grow_box(s.space, row, s.clusters.boxes, s.clusters.table[cluster].place)
    _append(s.buffer.slots, s.clusters.table, cluster, slot)
    _enter(s.counts, s.buffer, s.clusters, cluster, slot)


@inlined
def _arrive(s: State, qi: Array, person: int, sensitive: Array, time: int, left_out: bool) -> None:
    """Algorithm 1, for one row, with deadlines in event time beside those in arrivals.

    A row that is left out moves the clock and is counted, and leaves no other trace.
    """
    n = s.numbers[0]
    _expire_until(s, max(n.clock, saturating_add(time, -n.disorder)))
    number = n.arrivals
    n.arrivals += 1
    if left_out:
        _write_widest(s, number, SAMPLED_OUT)
    else:
        learn_domains(s.space, qi)
        count_values(s.closeness.stream, sensitive)
        deadline = np.int64(LATEST)
        if n.delay >= 0:
            deadline = saturating_add(time, n.delay)
            # Rounded down: who sees a row leave alone, at its deadline, must not learn its event time.
            deadline = saturating_add(deadline, -(deadline % n.tick))
        _place(s, _hold(s, number, qi, person, sensitive, deadline))
    if n.delay_rows > 0:
        while n.oldest != NONE and s.buffer.slots[n.oldest].number <= number - n.delay_rows:
            _delay_constraint(s, n.oldest)
    _expire_until(s, n.clock)


@inlined
def _end(s: State) -> None:
    """The end of the stream, as in section 5.3."""
    n = s.numbers[0]
    last = np.int64(NONE)
    while True:
        oldest = NONE
        for i in range(n.clusters):
            cluster = s.clusters.active[i]
            born = s.clusters.table[cluster].born
            if born > last and (oldest == NONE or born < s.clusters.table[oldest].born):
                oldest = cluster
        if oldest == NONE:
            break
        last = s.clusters.table[oldest].born
        if _ready(s, oldest):
            _output_cluster(s, oldest)
    slot = n.oldest
    while slot != NONE:
        newer = s.buffer.slots[slot].newer
        _reuse(s, slot)
        slot = newer
    while n.clusters > 1:
        _absorb(s, s.clusters.active[0], s.clusters.active[1])
    if n.clusters == 1 and _ready(s, s.clusters.active[0]):
        _output_cluster(s, s.clusters.active[0])
    while n.oldest != NONE:
        _suppress(s, n.oldest)


@bare
def _take_in(s: State, qi: Array, person: Array, sensitive: Array, time: Array, left_out: Array) -> None:
    for i in range(person.size):
        _arrive(s, qi[i], person[i], sensitive[i], time[i], left_out[i])


@kernel
def run(
    s: State, qi: Array, person: Array, sensitive: Array, time: Array, left_out: Array, now: int, over: bool
) -> None:
    """Take rows as they arrive, then move the clock to `now`, then end the stream if it is over.

    The one way into the method, so that it is compiled once.
    """
    _take_in(s, qi, person, sensitive, time, left_out)
    _expire_until(s, now)
    if over:
        _end(s)


# --- Snapshots -------------------------------------------------------------------------------------------------------


@kernel
def rebuild(
    s: State,
    number: Array,
    qi: Array,
    person: Array,
    sensitive: Array,
    deadline: Array,
    cluster: Array,
) -> None:
    """Fill an empty state with held rows, in order of arrival; clusters are numbered by age."""
    made = np.full(s.clusters.active.size, NONE, dtype=np.int64)
    clusters = 0
    for i in range(number.size):
        slot = _hold(s, number[i], qi[i], person[i], sensitive[i], deadline[i])
        at = made[cluster[i]]
        if at == NONE:
            at = _new_cluster(s, slot)
            made[cluster[i]] = at
            s.clusters.table[at].born = cluster[i]
            clusters = max(clusters, cluster[i] + 1)
        else:
            grow_box(s.space, s.buffer.qi[slot], s.clusters.boxes, s.clusters.table[at].place)
        _append(s.buffer.slots, s.clusters.table, at, slot)
        _enter(s.counts, s.buffer, s.clusters, at, slot)
    s.numbers[0].born = clusters


@kernel
def held_slots(s: State) -> Array:
    """The slots that hold a row, in order of arrival."""
    held = np.empty(s.numbers[0].held, dtype=np.int64)
    slot = s.numbers[0].oldest
    for i in range(held.size):
        held[i] = slot
        slot = s.buffer.slots[slot].newer
    return held
