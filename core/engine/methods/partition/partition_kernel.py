"""The algorithm of the method `partition`: what happens when a row arrives, when it is due, and when the stream ends.

Functions have the names of the paper's procedures where it has such (`docs/partition.md` explains each step).
"""

from __future__ import annotations

import math

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array
from crenel.engine.kernels.box_geometry import inside, learn_domains, write_widest
from crenel.engine.kernels.compiler import bare, inlined, kernel
from crenel.engine.kernels.deadlines import clock_after, deadline_after, saturating_add
from crenel.engine.kernels.generator import below, shuffle
from crenel.engine.kernels.held_rows import drop_row, hold_row, next_due, too_old
from crenel.engine.kernels.output import CLUSTER, REUSE, SUPPRESSED, write_release, write_row
from crenel.engine.kernels.reusable_boxes import (
    ReusableBoxes,
    find_box,
    forget_oldest,
    new_place,
    place_by_age,
    write_box,
)
from crenel.engine.methods.partition.partition_groups import (
    count_row,
    forget_partition,
    generalize,
    is_enough,
    loss_for,
    mean_loss,
    nearest,
    partition_of,
    spare_tag,
    uncount_row,
)
from crenel.engine.methods.partition.partition_state import BEST, OFF, UNIFORM, Partitions, State

#: Steps between 0 and 1 that a weighted draw distinguishes.
_STEPS = 2**31

# --- Held rows ---


@inlined
def _hold(s: State, number: int, qi: Array, person: int, sensitive: Array, deadline: int) -> None:
    """Put a row into the buffer, and into its partition."""
    slot = hold_row(s.buffer, s.numbers, number, person, sensitive, deadline)
    present = 0
    for d in range(qi.size):
        s.buffer.qi[d, slot] = qi[d]
        if not np.isnan(qi[d]):
            present |= 1 << d
    s.buffer.slots[slot].set = present
    partition = partition_of(s.counts, s.partitions, s.numbers, present)
    s.buffer.partition[slot] = partition
    s.partitions.table[partition].rows += 1
    distinct = s.partitions.distinct[partition]
    count_row(s.counts, distinct, partition * distinct.size, person, sensitive)


@bare
def _drop(s: State, slot: int) -> None:
    """Take a row that has left out of its partition and the buffer."""
    partition = s.buffer.partition[slot]
    s.buffer.partition[slot] = NONE
    distinct = s.partitions.distinct[partition]
    person, sensitive = s.buffer.slots[slot].person, s.buffer.sensitive[slot]
    uncount_row(s.counts, distinct, partition * distinct.size, person, sensitive)
    s.partitions.table[partition].rows -= 1
    if s.partitions.table[partition].rows == 0:
        forget_partition(s.counts, s.partitions, s.numbers, partition)
    drop_row(s.buffer, s.numbers, slot)


# --- Reuse ---


@bare
def _forget_old(boxes: ReusableBoxes, numbers: Array) -> None:
    """Forget boxes that are older than `reuse_for`: line 1 of DelayConstraint."""
    n = numbers[0]
    while n.reusable > 0:
        oldest = boxes.table[n.reusable_oldest]
        if n.reuse_rows > 0:
            old = n.arrivals - oldest.arrivals >= n.reuse_rows
        else:
            old = saturating_add(oldest.moment, n.reuse_time) <= n.clock
        if not old:
            return
        forget_oldest(boxes, numbers)


@inlined
def _drawn(s: State, count: int) -> int:
    """Draw one of the first `count` candidates by their weights."""
    boxes = s.reusable
    total = 0.0
    for i in range(count):
        total += boxes.weight[i]
    at = below(s.random, s.numbers, _STEPS) / _STEPS * total
    for i in range(count - 1):
        at -= boxes.weight[i]
        if at < 0.0:
            return boxes.candidates[i]
    return boxes.candidates[count - 1]


@bare
def _choose_reusable(s: State, slot: int) -> int:
    """Return the place of a box that contains the row and has the same set, or NONE."""
    n, boxes = s.numbers[0], s.reusable
    _forget_old(boxes, s.numbers)
    present, row = s.buffer.slots[slot].set, s.buffer.qi[:, slot]
    count = 0
    best = 0
    total = 0.0
    for age in range(n.reusable):
        at = place_by_age(boxes, s.numbers, age)
        if boxes.table[at].present == present and inside(boxes.lo[at], boxes.hi[at], row):
            loss = loss_for(s.space, present, boxes.lo[at], boxes.hi[at])
            boxes.candidates[count] = at
            boxes.weight[count] = loss
            if loss < boxes.weight[best]:
                best = count
            total += loss
            count += 1
    if count == 0:
        return NONE
    if n.reuse == BEST:
        return boxes.candidates[best]
    if n.reuse == UNIFORM:
        return boxes.candidates[below(s.random, s.numbers, count)]
    for i in range(count):
        above_average = boxes.weight[i] * count / total if total > 0.0 else 1.0
        boxes.weight[i] = math.exp(-n.eta * above_average)
    return _drawn(s, count)


@inlined
def _keep_reusable(s: State, present: int, loss: float, persons: int, group: int) -> None:
    """Keep the box that was published now, unless there is one with the same ends."""
    boxes, lo, hi = s.reusable, s.search.lo, s.search.hi
    if s.numbers[0].reuse == OFF or boxes.table.size == 0:
        return
    _forget_old(boxes, s.numbers)
    if find_box(boxes, s.numbers, lo, hi) == NONE:
        place = new_place(boxes, s.numbers)
        write_box(boxes, s.numbers, place, lo, hi, loss, persons, group)
        boxes.table[place].present = present


# --- Releases ---


@bare
def _release_alone(s: State, slot: int, at: int) -> None:
    """Release one row under a reusable box."""
    reusable = s.reusable
    write_row(s.out, s.numbers, s.buffer.slots[slot].number)
    loss = loss_for(s.space, s.buffer.slots[slot].set, reusable.lo[at], reusable.hi[at])
    entry = reusable.table[at]
    write_release(s.out, s.numbers, REUSE, reusable.lo[at], reusable.hi[at], loss, entry.persons, entry.group)
    _drop(s, slot)


@inlined
def _suppress(s: State, slot: int) -> None:
    """Release one row without a group."""
    write_widest(s.space, s.search.lo, s.search.hi)
    write_row(s.out, s.numbers, s.buffer.slots[slot].number)
    write_release(s.out, s.numbers, SUPPRESSED, s.search.lo, s.search.hi, 1.0, 1, NONE)
    _drop(s, slot)


@bare
def _release_group(s: State, group: Array, loss: float) -> None:
    """Release the group that was formed."""
    shuffle(s.random, s.numbers, group)
    for slot in group:
        write_row(s.out, s.numbers, s.buffer.slots[slot].number)
    write_release(s.out, s.numbers, CLUSTER, s.search.lo, s.search.hi, loss, s.search.distinct[0], NONE)
    for slot in group:
        _drop(s, slot)


# --- The algorithm ---


@inlined
def _cluster_in_partition(s: State, due: int) -> None:
    """Release a row by algorithm 3: the cheaper of a new group and a reusable box.

    Line 4 of the paper has this comparison the wrong way round.
    """
    present = s.buffer.slots[due].set
    partition = s.buffer.partition[due]
    s.partitions.wanted[partition] = True
    group = s.search.group[: nearest(s, due)]
    s.partitions.wanted[partition] = False
    lo, hi = s.search.lo, s.search.hi
    generalize(s.space, s.buffer, group, 0, lo, hi)
    loss = loss_for(s.space, present, lo, hi)
    at = _choose_reusable(s, due)
    if at != NONE and loss_for(s.space, present, s.reusable.lo[at], s.reusable.hi[at]) < loss:
        _release_alone(s, due, at)
        return
    number = s.numbers[0].released
    _release_group(s, group, loss)
    _keep_reusable(s, present, loss, s.search.distinct[0], number)


@bare
def _ones(bits: int) -> int:
    """Return how many bits are set."""
    count = 0
    while bits:
        bits &= bits - 1
        count += 1
    return count


@bare
def _most_similar(partitions: Partitions, numbers: Array, present: int, common: int) -> int:
    """Return the most similar partition (Jaccard) that is not wanted yet; of equal ones, that with most rows."""
    n, table = numbers[0], partitions.table
    best = NONE
    both, either = 0, 1
    for i in range(n.partitions):
        other = partitions.active[i]
        its = table[other].set
        # A group without a common quasi-identifier would publish nothing; suppression costs only one row.
        if partitions.wanted[other] or (n.fill_missing == 0 and common & its == 0):
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
    """Count the rows of a partition, or undo that."""
    tag, distinct = spare_tag(s.partitions), s.search.distinct
    slots, sensitive = s.buffer.slots, s.buffer.sensitive
    for slot in range(slots.size):
        if s.buffer.partition[slot] == partition:
            if up:
                count_row(s.counts, distinct, tag, slots[slot].person, sensitive[slot])
            else:
                uncount_row(s.counts, distinct, tag, slots[slot].person, sensitive[slot])


@inlined
def _merge(s: State, due: int) -> bool:
    """Want the most similar partitions until they have k persons; return whether they do: algorithm 4, lines 5-8."""
    partitions, distinct = s.partitions, s.search.distinct
    present = s.buffer.slots[due].set
    common = present
    for j in range(distinct.size):
        distinct[j] = 0
    following = s.buffer.partition[due]
    while following != NONE:
        partitions.wanted[following] = True
        common &= partitions.table[following].set
        _count_partition(s, following, True)
        if is_enough(s.numbers, distinct):
            break
        following = _most_similar(partitions, s.numbers, present, common)
    enough = is_enough(s.numbers, distinct)
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
    """Release a row by algorithms 4 and 5: under a reusable box, in a group of similar partitions, or alone."""
    at = _choose_reusable(s, due)
    if at != NONE:
        _release_alone(s, due, at)
        return
    if not _merge(s, due):
        _want_none(s.partitions, s.numbers)
        _suppress(s, due)
        return
    group = s.search.group[: nearest(s, due)]
    _want_none(s.partitions, s.numbers)
    lo, hi = s.search.lo, s.search.hi
    generalize(s.space, s.buffer, group, s.numbers[0].fill_missing, lo, hi)
    _release_group(s, group, mean_loss(s.space, s.buffer.slots, group, lo, hi))


@bare
def _delay_constraint(s: State, slot: int) -> None:
    """Release a row that is due: algorithm 2."""
    if is_enough(s.numbers, s.partitions.distinct[s.buffer.partition[slot]]):
        _cluster_in_partition(s, slot)
    else:
        _cluster_with_merge(s, slot)


@inlined
def _expire_until(s: State, now: int) -> None:
    """Move the clock to `now`, and release the rows that are due on the way."""
    due = next_due(s.buffer, s.numbers, now)
    while due != NONE:
        _delay_constraint(s, due)
        due = next_due(s.buffer, s.numbers, now)


@inlined
def _arrive(s: State, qi: Array, person: int, sensitive: Array, time: int) -> None:
    """Take one row: algorithm 1, with deadlines in event time beside those in arrivals."""
    n = s.numbers[0]
    _expire_until(s, clock_after(n.clock, time, n.disorder))
    learn_domains(s.space, qi)
    number = n.arrivals
    n.arrivals += 1
    _hold(s, number, qi, person, sensitive, deadline_after(time, n.delay, n.tick))
    old = too_old(s.buffer, s.numbers, number)
    while old != NONE:
        _delay_constraint(s, old)
        old = too_old(s.buffer, s.numbers, number)
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

    The only entry into the method, so that it is compiled once.
    """
    _take_in(s, qi, person, sensitive, time, now, over)


# --- Snapshots ---


@kernel
def rebuild(s: State, number: Array, qi: Array, person: Array, sensitive: Array, deadline: Array) -> None:
    """Fill an empty state with held rows, in order of arrival."""
    for i in range(number.size):
        _hold(s, number[i], qi[i], person[i], sensitive[i], deadline[i])
