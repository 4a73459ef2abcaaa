"""CASTLE's algorithm: what happens when a row arrives, when a row is due, and when the stream ends.

Functions have the names of the paper's procedures, so that the two can be read side by side.
"""

from __future__ import annotations

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array, copy_into
from crenel.engine.kernels.box_geometry import (
    Boxes,
    enlargement_by_box,
    grow_box,
    learn_domains,
    loss_of,
    write_widest,
)
from crenel.engine.kernels.closeness import clear_scratch, count_values, stays_within_t
from crenel.engine.kernels.compiler import bare, inlined, inner, kernel
from crenel.engine.kernels.deadlines import clock_after, deadline_after
from crenel.engine.kernels.generator import below, shuffle
from crenel.engine.kernels.held_rows import drop_row, hold_row, next_due, too_old
from crenel.engine.kernels.output import CLUSTER, REUSE, SAMPLED_OUT, SUPPRESSED, write_release, write_row
from crenel.engine.kernels.reusable_boxes import containing, find_box, new_place, write_box, write_histogram
from crenel.engine.methods.castle.castle_clusters import (
    absorb,
    all_ready,
    append,
    best_selection,
    delete_cluster,
    enter,
    is_ready,
    leave,
    new_cluster,
    take_out,
)
from crenel.engine.methods.castle.castle_split import group_by_person, repair, split, split_l
from crenel.engine.methods.castle.castle_state import Clusters, Persons, State

# --- Held rows ---


@inlined
def _hold(s: State, number: int, qi: Array, person: int, sensitive: Array, deadline: int) -> int:
    """Put a row into the buffer, in no cluster yet, and return its slot."""
    slot = hold_row(s.buffer, s.numbers, number, person, sensitive, deadline)
    copy_into(qi, s.buffer.qi[slot])
    s.buffer.slots[slot].cluster = NONE
    return slot


# --- Releases ---


@inner
def _write_widest(s: State, number: int, kind: int) -> None:
    """Release one row under the widest box, which tells only that the row exists."""
    lo, hi = np.empty(s.space.dimensions.size), np.empty(s.space.dimensions.size)
    write_widest(s.space, lo, hi)
    write_row(s.out, s.numbers, number)
    write_release(s.out, s.numbers, kind, lo, hi, 1.0, 1, NONE)


@inner
def _suppress(s: State, slot: int) -> None:
    """Release one row without a group."""
    _write_widest(s, s.buffer.slots[slot].number, SUPPRESSED)
    take_out(s, slot)
    drop_row(s.buffer, s.numbers, slot)


@bare
def _reuse(s: State, slot: int) -> bool:
    """Release the row under a reusable box that contains it, drawn uniformly; return False if there is none."""
    boxes, sensitive = s.reusable, s.buffer.sensitive[slot]
    found = containing(boxes, s.numbers, s.buffer.qi[slot])
    if s.numbers[0].t >= 0.0:
        close = 0
        for i in range(found):
            if stays_within_t(s.numbers, s.closeness, boxes.histogram[boxes.candidates[i]], sensitive):
                boxes.candidates[close] = boxes.candidates[i]
                close += 1
        found = close
    if found == 0:
        return False
    place = boxes.candidates[below(s.random, s.numbers, found)]
    lo, hi, box = boxes.lo[place], boxes.hi[place], boxes.table[place]
    write_row(s.out, s.numbers, s.buffer.slots[slot].number)
    write_release(s.out, s.numbers, REUSE, lo, hi, loss_of(s.space, lo, hi), box.persons, box.group)
    count_values(boxes.histogram[place], sensitive)
    take_out(s, slot)
    drop_row(s.buffer, s.numbers, slot)
    return True


@bare
def _keep_reusable(s: State, lo: Array, hi: Array, loss: float, persons: int, group: int) -> None:
    """Add a box to Omega; its histogram is in the scratch space."""
    n = s.numbers[0]
    if s.reusable.table.size == 0 or n.reuse == 0:
        return
    place = find_box(s.reusable, s.numbers, lo, hi)
    if place != NONE and n.t < 0.0:
        return
    if place == NONE:
        place = new_place(s.reusable, s.numbers)
    write_box(s.reusable, s.numbers, place, lo, hi, loss, persons, group)
    write_histogram(s.reusable, place, s.closeness.scratch)


@bare
def _update_tau(recent: Array, numbers: Array, loss: float) -> None:
    """Set tau to the mean of the last mu losses."""
    n = numbers[0]
    recent[n.recent % n.mu] = loss
    n.recent += 1
    count = min(n.recent, n.mu)
    total, newest = 0.0, (n.recent - 1) % n.mu
    for i in range(newest + 1, count):  # from oldest to newest
        total += recent[i]
    for i in range(newest + 1):
        total += recent[i]
    n.tau = total / count


@bare
def _release_part(s: State, slots: Array, lo: Array, hi: Array, persons: int) -> None:
    """Release one sub-cluster, update tau with its loss, and keep its box for reuse if the loss is below tau."""
    clear_scratch(s.closeness)
    for i in range(slots.size):
        count_values(s.closeness.scratch, s.buffer.sensitive[slots[i]])
    shuffle(s.random, s.numbers, slots)
    for i in range(slots.size):
        write_row(s.out, s.numbers, s.buffer.slots[slots[i]].number)
    loss = loss_of(s.space, lo, hi)
    group = s.numbers[0].released
    write_release(s.out, s.numbers, CLUSTER, lo, hi, loss, persons, group)
    _update_tau(s.recent, s.numbers, loss)
    if loss < s.numbers[0].tau:
        _keep_reusable(s, lo, hi, loss, persons, group)


@bare
def _sort_by_part(part: Array, order: Array, end: Array) -> None:
    """Write the members by sub-cluster, each in order of arrival, and where each sub-cluster ends."""
    for p in range(end.size):
        end[p] = 0
    for i in range(part.size):
        end[part[i]] += 1
    start = 0
    for p in range(end.size):
        start, end[p] = start + end[p], start
    for i in range(part.size):
        order[end[part[i]]] = i
        end[part[i]] += 1


@bare
def _gather(persons: Persons, members: Array, part: Array, p: int, slots: Array, seen: Array) -> int:
    """Write the slots of sub-cluster p, whose members are `part`; return how many persons it has.

    `seen` has the last sub-cluster in which each person was seen.
    """
    different = 0
    for i in range(part.size):
        slots[i] = members[part[i]]
        if seen[persons.of[part[i]]] != p:
            seen[persons.of[part[i]]] = p
            different += 1
    return different


@bare
def _members(slots: Array, head: int, members: Array) -> int:
    """Write the slots of a cluster's rows in order of arrival, as many as fit, and return how many there are."""
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
    """Delete a cluster that has left, with its rows."""
    for i in range(members.size):
        leave(s.counts, s.buffer, s.clusters, cluster, members[i])
        drop_row(s.buffer, s.numbers, members[i])
    delete_cluster(s.clusters, s.numbers, cluster)


@inner
def _output_cluster(s: State, cluster: int) -> None:
    """Release a cluster, split if it is large enough."""
    n = s.numbers[0]
    head = s.clusters.table[cluster].head
    members = np.empty(n.held, dtype=np.int64)
    members = members[: _members(s.buffer.slots, head, members)]
    part = np.zeros(members.size, dtype=np.int64)
    shape = (s.space.dimensions.size, max(members.size // n.k, 1))
    boxes = Boxes(np.empty(shape), np.empty(shape), np.zeros(shape, dtype=np.int64))
    person_of, following = np.empty(members.size, dtype=np.int64), np.empty(members.size, dtype=np.int64)
    slots = np.empty(members.size, dtype=np.int64)
    persons = Persons(group_by_person(s, cluster, members, person_of, following, slots), person_of, following)
    parts = 0
    if persons.count >= 2 * n.k:
        if n.l > 0:
            parts = split_l(s, persons, cluster, members, part, boxes)
        else:
            parts = split(s, persons, members, part, boxes)
    if parts == 0:
        parts = 1
        copy_into(s.clusters.boxes.lo[:, s.clusters.table[cluster].place], boxes.lo[:, 0])
        copy_into(s.clusters.boxes.hi[:, s.clusters.table[cluster].place], boxes.hi[:, 0])
    elif n.tracked > 2 or n.t >= 0.0:
        parts = repair(s, members, part, boxes, parts)
    order, end = np.empty(members.size, dtype=np.int64), np.empty(parts, dtype=np.int64)
    _sort_by_part(part, order, end)
    seen = np.full(persons.count, NONE, dtype=np.int64)
    lo, hi = np.empty(shape[0]), np.empty(shape[0])
    start = 0
    for p in range(parts):
        size = end[p] - start
        different = _gather(persons, members, order[start : end[p]], p, slots, seen)
        copy_into(boxes.lo[:, p], lo)
        copy_into(boxes.hi[:, p], hi)
        _release_part(s, slots[:size], lo, hi, different)
        start = end[p]
    _remove(s, cluster, members)


# --- The algorithm ---


@bare
def _is_outlier(clusters: Clusters, numbers: Array, cluster: int) -> bool:
    """Return whether most clusters have more persons: lines 10 to 14 of delay_constraint."""
    n = numbers[0]
    larger = 0
    for i in range(n.clusters):
        if clusters.distinct[clusters.active[i], 0] > clusters.distinct[cluster, 0]:
            larger += 1
    return 2 * larger > n.clusters


@bare
def _merge_clusters(s: State, cluster: int) -> None:
    """Merge the cluster with its nearest, again and again, until it is ready."""
    n = s.numbers[0]
    table = s.clusters.table
    while n.clusters > 1 and not is_ready(s, cluster):
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
        absorb(s, cluster, best)


@inlined
def _delay_constraint(s: State, slot: int) -> None:
    """Release a row that is due: with its cluster, under a reusable box, alone, or with merged clusters."""
    cluster = s.buffer.slots[slot].cluster
    if is_ready(s, cluster):
        _output_cluster(s, cluster)
    elif _reuse(s, slot):
        pass
    elif _is_outlier(s.clusters, s.numbers, cluster) or not all_ready(s):
        _suppress(s, slot)
    else:
        _merge_clusters(s, cluster)
        _output_cluster(s, cluster)


@inlined
def _expire_until(s: State, now: int) -> None:
    """Move the clock to `now`, and release the rows that are due on the way."""
    due = next_due(s.buffer, s.numbers, now)
    while due != NONE:
        _delay_constraint(s, due)
        due = next_due(s.buffer, s.numbers, now)


@inlined
def _place(s: State, slot: int) -> None:
    """Put a held row into the best cluster, or into one of its own."""
    row = s.buffer.qi[slot]
    cluster = best_selection(s.space, s.clusters, s.numbers, row)
    if cluster == NONE:
        cluster = new_cluster(s, slot)
    else:
        grow_box(s.space, row, s.clusters.boxes, s.clusters.table[cluster].place)
    append(s.buffer.slots, s.clusters.table, cluster, slot)
    enter(s.counts, s.buffer, s.clusters, cluster, slot)


@inlined
def _arrive(s: State, qi: Array, person: int, sensitive: Array, time: int, left_out: bool) -> None:
    """Take one row: algorithm 1, with deadlines in event time beside those in arrivals.

    A row that is left out moves the clock and is counted, and has no other effect.
    """
    n = s.numbers[0]
    _expire_until(s, clock_after(n.clock, time, n.disorder))
    number = n.arrivals
    n.arrivals += 1
    if left_out:
        _write_widest(s, number, SAMPLED_OUT)
    else:
        learn_domains(s.space, qi)
        count_values(s.closeness.stream, sensitive)
        _place(s, _hold(s, number, qi, person, sensitive, deadline_after(time, n.delay, n.tick)))
    old = too_old(s.buffer, s.numbers, number)
    while old != NONE:
        _delay_constraint(s, old)
        old = too_old(s.buffer, s.numbers, number)
    _expire_until(s, n.clock)


@inlined
def _end(s: State) -> None:
    """End the stream, as in section 5.3."""
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
        if is_ready(s, oldest):
            _output_cluster(s, oldest)
    slot = n.oldest
    while slot != NONE:
        newer = s.buffer.slots[slot].newer
        _reuse(s, slot)
        slot = newer
    while n.clusters > 1:
        absorb(s, s.clusters.active[0], s.clusters.active[1])
    if n.clusters == 1 and is_ready(s, s.clusters.active[0]):
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

    The only entry into the method, so that it is compiled once.
    """
    _take_in(s, qi, person, sensitive, time, left_out)
    _expire_until(s, now)
    if over:
        _end(s)


# --- Snapshots ---


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
    """Fill an empty state with held rows, in order of arrival. Clusters are numbered by age."""
    made = np.full(s.clusters.active.size, NONE, dtype=np.int64)
    clusters = 0
    for i in range(number.size):
        slot = _hold(s, number[i], qi[i], person[i], sensitive[i], deadline[i])
        at = made[cluster[i]]
        if at == NONE:
            at = new_cluster(s, slot)
            made[cluster[i]] = at
            s.clusters.table[at].born = cluster[i]
            clusters = max(clusters, cluster[i] + 1)
        else:
            grow_box(s.space, s.buffer.qi[slot], s.clusters.boxes, s.clusters.table[at].place)
        append(s.buffer.slots, s.clusters.table, at, slot)
        enter(s.counts, s.buffer, s.clusters, at, slot)
    s.numbers[0].born = clusters
