"""The algorithm of continuous publishing: what happens when a row arrives, when an event comes, when the stream ends.

Zhou, Han, Pei, Jiang, Tao, Jia: *Continuous privacy preserving publishing of data streams*, EDBT 2009. The four methods
are one algorithm here: they differ in which leaf a row joins (`first_fit`), in whether the density of the stream counts
(`dense`) and in whether rows are held back (`holds`). `docs/continuous.md` explains each step.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array, copy_into
from crenel.engine.kernels.box_geometry import (
    Boxes,
    Space,
    enlargements_by,
    grow_box,
    inside,
    learn_domains,
    loss_of,
    point_box,
    widen,
    write_widest,
)
from crenel.engine.kernels.compiler import inlined, inner, kernel
from crenel.engine.kernels.deadlines import LATEST, clock_after, deadline_after
from crenel.engine.kernels.distinct_counts import count_down, count_up
from crenel.engine.kernels.generator import shuffle
from crenel.engine.kernels.interpreter import instead_of
from crenel.engine.kernels.output import CLUSTER, SUPPRESSED, write_release, write_row
from crenel.engine.methods.rtree.chain_sampling import samples_inside
from crenel.engine.methods.rtree.rtree_index_kernel import (
    Tree,
    absorb,
    active_leaves,
    box_loss,
    has_person,
    is_mature,
    nearest_company,
    nearest_leaf,
    put,
    put_leaf,
    remove_leaf,
    remove_row,
    split,
)
from crenel.engine.methods.rtree.rtree_schedule import (
    count_arrival,
    count_samples,
    current_instant,
    find_next_event,
    instant_after,
    measure,
    note_event,
    sample,
    schedule,
    worth_waiting,
)
from crenel.engine.methods.rtree.rtree_state import State

# --- Held rows ---


@inner
def _hold(s: State, number: int, qi: Array, person: int, sensitive: Array, deadline: int, patience: int) -> int:
    """Put a row into a slot, and return the slot."""
    n = s.numbers[0]
    n.free -= 1
    n.held += 1
    slot = s.free[n.free]
    s.slots[slot].number = number
    s.slots[slot].deadline = deadline
    s.slots[slot].patience = patience
    copy_into(qi, s.tree.points[slot])
    labels = s.tree.labels[slot]
    for label in range(labels.size):
        labels[label] = person if label == 0 else sensitive[label - 1]
    for label in range(s.held_distinct.size):
        if count_up(s.tree.counts, -1 - label, labels[label]):
            s.held_distinct[label] += 1
    return slot


@inner
def _drop(s: State, slot: int) -> None:
    """Free the slot of a row that has left."""
    n = s.numbers[0]
    labels = s.tree.labels[slot]
    for label in range(s.held_distinct.size):
        if count_down(s.tree.counts, -1 - label, labels[label]):
            s.held_distinct[label] -= 1
    s.free[n.free] = slot
    n.free += 1
    n.held -= 1


@inner
def _first_without(tree: Tree, person: int) -> int:
    """Return the first equivalence class without this person (section 2.2)."""
    for leaf in active_leaves(tree):
        if not has_person(tree.counts, tree.least, leaf, person):
            return leaf
    return NONE


@inner
def _place(s: State, slot: int) -> None:
    """Put a held row into a leaf, and draw the publishing time of a new equivalence class if that makes one."""
    tree = s.tree
    row, person = tree.points[slot], tree.labels[slot, 0]
    if s.numbers[0].first_fit:
        chosen = _first_without(tree, person)
    else:
        chosen = nearest_leaf(tree, s.space, row, person)
    grows = chosen == NONE or not inside(tree.boxes.lo[:, chosen], tree.boxes.hi[:, chosen], row)
    leaf, other = put(tree, s.space, slot, chosen)
    if other != NONE:
        _renew(s, leaf, other)
        return
    entry = s.leaves[leaf]
    if chosen == NONE:
        measure(s, leaf)
        entry.due = LATEST
    else:
        entry.deadline = min(entry.deadline, s.slots[slot].deadline)
        entry.oldest = min(entry.oldest, s.slots[slot].number)
        if grows:
            count_samples(s, leaf)
    if entry.due == LATEST:
        schedule(s, leaf)
    note_event(s.numbers, tree.nodes, s.leaves, leaf)


@inner
def _renew(s: State, leaf: int, other: int) -> None:
    """Draw publishing times for two new leaves; the second may be NONE."""
    measure(s, leaf)
    if other != NONE:
        measure(s, other)
        schedule(s, leaf)
        schedule(s, other)
    else:
        schedule(s, leaf)
    find_next_event(s.numbers, s.tree.nodes, s.leaves, active_leaves(s.tree))


# --- Holding back ---


@inner
def _is_due(numbers: Array, row: Any) -> bool:
    """Return whether a row has reached its deadline."""
    n = numbers[0]
    if n.delay >= 0 and row.deadline <= n.clock:
        return True
    return n.delay_rows > 0 and row.number + n.delay_rows < n.arrivals


@inner
def _first_least(values: Array) -> int:
    best = 0
    for i in range(1, values.size):
        if values[i] < values[best]:
            best = i
    return best


@instead_of(_first_least)
def _first_least_in_numpy(values: Array) -> int:
    return int(np.argmin(values))


@inner
def _minimal_loss(space: Space, boxes: Boxes, columns: Array, near: Array, needed: int, enlargement: Array) -> float:
    """Return the loss of a small box that contains `needed` of the samples near a row: the greedy SC(t).

    The box of the row is the last one.
    """
    at = boxes.lo.shape[1] - 1
    left = near.size
    loss = box_loss(space, boxes, at)
    for _ in range(needed):
        enlargements_by(space, boxes, at, columns, near, enlargement[:left])
        best = _first_least(enlargement[:left])
        loss += enlargement[best]
        join = near[best]
        for d in range(columns.shape[0]):
            x = columns[d, join]
            boxes.lo[d, at], boxes.hi[d, at], boxes.node[d, at] = widen(
                space, d, boxes.lo[d, at], boxes.hi[d, at], boxes.node[d, at], x, x
            )
        left -= 1
        near[best] = near[left]
    return loss


@inner
def _later_losses(s: State, leaf: int, slots: Array, later: Array) -> None:
    """Write what each row of a leaf may lose if it is published later; infinity if that is unknown."""
    n, chains = s.numbers[0], s.chains
    size, window = chains.table.size, min(chains.buckets.size, n.arrivals)
    # Each sample stands for window / size rows.
    needed = -(-(n.k - 1) * size // window)
    count = samples_inside(chains, s.tree.boxes.lo[:, leaf], s.tree.boxes.hi[:, leaf], s.inside)
    columns = np.empty((chains.heads.shape[0], count))
    numbers = np.empty(count, dtype=np.int64)
    at = 0
    for chain in range(size):
        if s.inside[chain]:
            for d in range(columns.shape[0]):
                columns[d, at] = chains.heads[d, chain]
            numbers[at] = chains.links[chains.table[chain].head].number
            at += 1
    near, enlargement = np.empty(count, dtype=np.int64), np.empty(count)
    for i in range(slots.size):
        others = 0
        for at in range(count):
            if numbers[at] != s.slots[slots[i]].number:
                near[others] = at
                others += 1
        later[i] = np.inf
        row = s.slots[slots[i]]
        if others >= needed and not _is_due(s.numbers, row) and current_instant(s.numbers) < row.patience:
            point_box(s.space, s.tree.points[slots[i]], s.tree.boxes, s.tree.boxes.lo.shape[1] - 1)
            later[i] = _minimal_loss(s.space, s.tree.boxes, columns, near[:others], needed, enlargement)


@inner
def _choose_held(s: State, leaf: int, slots: Array, held: Array) -> None:
    """Choose the rows that are held back when a leaf is published (section 4.3)."""
    n = s.numbers[0]
    if n.holds == 0 or n.over or slots.size <= n.k:
        return
    later = np.empty(slots.size)
    _later_losses(s, leaf, slots, later)
    # A row that is published at least one instant later must lose this much less, for the delay.
    loss = box_loss(s.space, s.tree.boxes, leaf)
    now = loss / math.exp(n.decay)
    may_stay = slots.size - n.k
    while may_stay > 0:
        best = NONE
        for i in range(slots.size):
            # The latest publishing deadline first: that of the smallest loss; then the newest row.
            if later[i] < now and (
                best == NONE
                or later[i] < later[best]
                or (later[i] == later[best] and s.slots[slots[i]].number > s.slots[slots[best]].number)
            ):
                best = i
        if best == NONE:
            return
        held[best] = True
        if _still_diverse(s.tree, slots, held):
            may_stay -= 1
            row = s.slots[slots[best]]
            if row.patience == LATEST:
                row.patience = instant_after(s.numbers, worth_waiting(s.numbers, loss, later[best]))
        else:
            held[best] = False
        later[best] = np.inf


@inner
def _still_diverse(tree: Tree, slots: Array, held: Array) -> bool:
    """Return whether the rows that are not held back have l values of each sensitive column."""
    tag = tree.distinct.size
    enough = True
    for label in range(1, tree.least.size):
        distinct = 0
        for i in range(slots.size):
            if not held[i] and count_up(tree.counts, tag, tree.labels[slots[i], label]):
                distinct += 1
        for i in range(slots.size):
            if not held[i]:
                count_down(tree.counts, tag, tree.labels[slots[i], label])
        enough = enough and distinct >= tree.least[label]
    return enough


# --- Releases ---


@inner
def _suppress(s: State, slot: int) -> None:
    """Release one row without a group."""
    lo, hi = np.empty(s.space.dimensions.size), np.empty(s.space.dimensions.size)
    write_widest(s.space, lo, hi)
    write_row(s.out, s.numbers, s.slots[slot].number)
    write_release(s.out, s.numbers, SUPPRESSED, lo, hi, 1.0, 1, NONE)
    leaf = remove_row(s.tree, s.space, slot)
    if leaf != NONE:
        measure(s, leaf)
    _drop(s, slot)
    find_next_event(s.numbers, s.tree.nodes, s.leaves, active_leaves(s.tree))


@inner
def _publish(s: State, leaf: int) -> None:
    """Publish a mature leaf, except for the rows that are held back; these are put into the tree again."""
    tree = s.tree
    n = tree.nodes[leaf].count
    slots = np.empty(n, dtype=np.int64)
    slot = tree.nodes[leaf].head
    for i in range(n):
        slots[i] = slot
        slot = tree.rows[slot].next
    held = np.zeros(n, dtype=np.bool_)
    _choose_held(s, leaf, slots, held)
    remove_leaf(tree, s.space, leaf)
    find_next_event(s.numbers, s.tree.nodes, s.leaves, active_leaves(s.tree))
    leaving = np.empty(n, dtype=np.int64)
    persons = 0
    scratch = tree.boxes.lo.shape[1] - 1
    for i in range(n):
        if not held[i]:
            if persons == 0:
                point_box(s.space, tree.points[slots[i]], tree.boxes, scratch)
            grow_box(s.space, tree.points[slots[i]], tree.boxes, scratch)
            leaving[persons] = slots[i]
            persons += 1
    shuffle(s.random, s.numbers, leaving[:persons])
    for i in range(persons):
        write_row(s.out, s.numbers, s.slots[leaving[i]].number)
        _drop(s, leaving[i])
    lo, hi = tree.boxes.lo[:, scratch], tree.boxes.hi[:, scratch]
    write_release(s.out, s.numbers, CLUSTER, lo, hi, loss_of(s.space, lo, hi), persons, NONE)
    for i in range(n):
        if held[i]:
            _place(s, slots[i])


# --- The algorithm ---


@inner
def _most_urgent(s: State, leaf: int, by_time: bool) -> int:
    """Return the row of a leaf that must leave first."""
    best = s.tree.nodes[leaf].head
    slot = s.tree.rows[best].next
    while slot != NONE:
        row, known = s.slots[slot], s.slots[best]
        earlier = row.number < known.number
        if by_time and row.deadline != known.deadline:
            earlier = row.deadline < known.deadline
        if earlier:
            best = slot
        slot = s.tree.rows[slot].next
    return best


@inner
def _enough_held(s: State) -> bool:
    """Return whether all held rows together have enough persons and values for a group."""
    for label in range(s.held_distinct.size):
        if s.held_distinct[label] < s.tree.least[label]:
            return False
    return True


@inner
def _settle(s: State, leaf: int, by_time: bool) -> None:
    """Handle an event of a leaf: publish it, merge it with others until it can be, or suppress the row that is due."""
    tree = s.tree
    if is_mature(tree.distinct[leaf], tree.least):
        _publish(s, leaf)
        return
    slot = _most_urgent(s, leaf, by_time)
    company = np.int64(NONE)
    while _enough_held(s):
        company = nearest_company(tree, s.space, leaf)
        if company == NONE:
            break
        left = absorb(tree, s.space, leaf, company)
        if left != NONE:
            measure(s, left)
            if not is_mature(tree.distinct[left], tree.least):
                s.leaves[left].due = LATEST
        _renew(s, leaf, split(tree, s.space, leaf))
        leaf = tree.rows[slot].leaf
        if is_mature(tree.distinct[leaf], tree.least):
            _publish(s, leaf)
            return
    _suppress(s, slot)


@inner
def _expire_until(s: State, now: int) -> None:
    """Move the clock to `now`, and handle the events on the way."""
    n = s.numbers[0]
    while n.next_time_leaf != NONE and n.next_time <= now:
        n.clock = max(n.clock, n.next_time)
        _settle(s, n.next_time_leaf, True)
    n.clock = max(n.clock, now)


@inlined
def _arrive(s: State, qi: Array, person: int, sensitive: Array, time: int) -> None:
    """Take one row: algorithms 1 and 2."""
    n = s.numbers[0]
    _expire_until(s, clock_after(n.clock, time, n.disorder))
    learn_domains(s.space, qi)
    number = n.arrivals
    n.arrivals += 1
    if n.instant > 0:
        count_arrival(s.numbers)
    if n.dense:
        sample(s, qi, number)
    _place(s, _hold(s, number, qi, person, sensitive, deadline_after(time, n.delay, n.tick), LATEST))
    while n.next_row_leaf != NONE and n.next_row <= number:
        _settle(s, n.next_row_leaf, False)
    _expire_until(s, n.clock)


@inlined
def _end(s: State) -> None:
    """End the stream: every row has reached its deadline."""
    n, tree = s.numbers[0], s.tree
    n.over = 1
    at = 0
    while at < tree.meta[0].leaves:
        if is_mature(tree.distinct[tree.leaves[at]], tree.least):
            at += 1
        else:
            _settle(s, tree.leaves[at], False)
            at = 0
    while tree.meta[0].leaves > 0:
        _publish(s, tree.leaves[0])
    n.over = 0


@kernel
def run(s: State, qi: Array, person: Array, sensitive: Array, time: Array, now: int, over: bool) -> None:
    """Take rows as they arrive, then move the clock to `now`, then end the stream if it is over.

    The only entry into the methods, so that they are compiled once.
    """
    for i in range(person.size):
        _arrive(s, qi[i], person[i], sensitive[i], time[i])
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
    patience: Array,
    size: Array,
    split_at: Array,
    due: Array,
) -> None:
    """Fill an empty state with leaves, the oldest first, and their rows. The sample chains are already there."""
    slots = np.empty(number.size, dtype=np.int64)
    for i in range(number.size):
        slots[i] = _hold(s, number[i], qi[i], person[i], sensitive[i], deadline[i], patience[i])
    start = 0
    for i in range(size.size):
        leaf = put_leaf(s.tree, s.space, slots[start : start + size[i]], split_at[i])
        measure(s, leaf)
        # Under another policy the leaf may no longer be mature.
        s.leaves[leaf].due = due[i] if is_mature(s.tree.distinct[leaf], s.tree.least) else LATEST
        start += size[i]
    find_next_event(s.numbers, s.tree.nodes, s.leaves, active_leaves(s.tree))


@kernel
def held_slots(s: State) -> Array:
    """Return the slots of the held rows, leaf after leaf, the oldest leaf first."""
    slots = np.empty(s.numbers[0].held, dtype=np.int64)
    at = 0
    for leaf in active_leaves(s.tree):
        slot = s.tree.nodes[leaf].head
        while slot != NONE:
            slots[at] = slot
            at += 1
            slot = s.tree.rows[slot].next
    return slots
