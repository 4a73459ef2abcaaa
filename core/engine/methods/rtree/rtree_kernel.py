"""The hot loops of continuous publishing: when the leaves of an R-tree leave.

Zhou, Han, Pei, Jiang, Tao, Jia: *Continuous privacy preserving publishing of data streams*, EDBT 2009. The four methods
are one here: they differ in which leaf a row joins (`first_fit`), in whether the density of the stream counts (`dense`)
and in whether rows are held back (`holds`). `docs/continuous.md` says how each step is done.

A *slot* is a place where a held row lies; a *leaf* a node of the tree. What happens next happens to a leaf: its drawn
publishing time comes, or the deadline of one of its rows. The least of both over all leaves is kept, in event time
(`next_time`) and in arrivals (`next_row`), and looked for again when a leaf has gone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from crenel.engine.kernels.common import (
    CLUSTER,
    LATEST,
    NONE,
    SUPPRESSED,
    Array,
    Boxes,
    Out,
    Random,
    Space,
    copy_into,
    count_down,
    count_up,
    enlargements_by,
    grow_box,
    inlined,
    inner,
    inside,
    kernel,
    learn_domains,
    loss_of,
    point_box,
    saturating_add,
    shuffle,
    widen,
    write_release,
)
from crenel.engine.methods.rtree.chain_sampling import Chains, sample_row, samples_inside, trials
from crenel.engine.methods.rtree.rtree_index_kernel import (
    Tree,
    absorb,
    active_leaves,
    box_loss,
    covering,
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

# What is one number: first what the policy fixes (0 or negative: not asked for), then what changes from row to row.
NUMBERS = np.dtype(
    [
        ("k", "i8"),
        ("delay", "i8"),
        ("tick", "i8"),  # deadlines are multiples of it
        ("delay_rows", "i8"),
        ("disorder", "i8"),
        ("instant", "i8"),  # microseconds; 0: an arrival
        ("active_rows", "i8"),
        ("patience", "f8"),  # rows for which one may be held back
        ("decay", "f8"),  # log(1 + alpha)
        ("first_fit", "i8"),
        ("dense", "i8"),
        ("holds", "i8"),
        ("arrivals", "i8"),
        ("clock", "i8"),
        ("held", "i8"),
        ("free", "i8"),
        ("over", "i8"),  # the stream has ended: nothing is held back
        ("next_time", "i8"),
        ("next_time_leaf", "i8"),
        ("next_row", "i8"),
        ("next_row_leaf", "i8"),
        ("rate_rows", "f8"),  # rows counted
        ("rate_since", "f8"),  # since this moment
        ("draws", "i8"),
        ("released", "i8"),
        ("out_rows", "i8"),
        ("out_releases", "i8"),
    ]
)
#: Where no sample is, no row may ever come. That hastens a leaf e-fold and no more: a publishing time is drawn once,
#: and beside one leaf that outweighed all others these would be told to wait for ever.
_MOST_HASTE = 1.0
SLOT = np.dtype([("number", "i8"), ("deadline", "i8"), ("patience", "i8")])  # held back before this; LATEST: never yet
LEAF = np.dtype(
    [
        ("due", "i8"),  # the publishing time; LATEST: none
        ("deadline", "i8"),  # the first of its rows'
        ("oldest", "i8"),  # the least number of its rows
        ("samples", "i8"),  # of the stream, in its box
    ]
)


class State(NamedTuple):
    """Everything an engine is."""

    numbers: Any  # NUMBERS, one
    space: Space
    tree: Tree
    slots: Any  # SLOT
    free: Any  # slots that are not used
    leaves: Any  # LEAF, by node
    held_distinct: Any  # how many different labels of each kind all held rows have
    chains: Chains
    inside: Any  # uint8 per chain, to compute with
    found: Any  # leaves or slots, to compute with
    random: Random
    out: Out


# --- What happens next -----------------------------------------------------------------------------------------------


@inner
def _time_of(numbers: Array, leaf: Any) -> int:
    """When something happens to a leaf, in event time."""
    return min(leaf.deadline, leaf.due) if numbers[0].instant > 0 else leaf.deadline


@inner
def _row_of(numbers: Array, leaf: Any) -> int:
    """The same as the number of a row."""
    n = numbers[0]
    due = leaf.due if n.instant == 0 else np.int64(LATEST)
    return min(due, leaf.oldest + n.delay_rows) if n.delay_rows > 0 else due


@inner
def _note(numbers: Array, nodes: Array, leaves: Array, leaf: int) -> None:
    """Take note of what happens to a leaf, if it is what happens next. An older leaf comes first."""
    n, born = numbers[0], nodes[leaf].born
    if n.delay >= 0:
        time, known = _time_of(numbers, leaves[leaf]), n.next_time_leaf
        if known == NONE or time < n.next_time or (time == n.next_time and born < nodes[known].born):
            n.next_time, n.next_time_leaf = time, leaf
    row, known = _row_of(numbers, leaves[leaf]), n.next_row_leaf
    if known == NONE or row < n.next_row or (row == n.next_row and born < nodes[known].born):
        n.next_row, n.next_row_leaf = row, leaf


@inner
def _look_ahead(numbers: Array, nodes: Array, leaves: Array, active: Array) -> None:
    """Find what happens next."""
    n = numbers[0]
    n.next_time_leaf = n.next_row_leaf = NONE
    n.next_time = n.next_row = LATEST
    for i in range(active.size):
        _note(numbers, nodes, leaves, active[i])


# --- Publishing times ------------------------------------------------------------------------------------------------


@inner
def _rate(numbers: Array) -> float:
    """Rows that are expected in an instant (section 4.4)."""
    n = numbers[0]
    if n.instant == 0:
        return 1.0
    instants = (float(n.clock) - n.rate_since) / n.instant
    return n.rate_rows / max(instants, 1.0)


@inner
def _count_arrival(numbers: Array) -> None:
    """Count a row for the rate. The count is of some of the last rows: twice as many as are held, at most."""
    n = numbers[0]
    if n.rate_rows == 0.0:
        n.rate_since = float(n.clock)
    n.rate_rows += 1.0
    if n.rate_rows >= 2.0 * n.active_rows:
        n.rate_rows /= 2.0
        n.rate_since += (float(n.clock) - n.rate_since) / 2.0


@inner
def _haste(numbers: Array, rows: int, samples: int, size: int, rate: float) -> float:
    """The logarithm of (1 + alpha)^wait, for the wait of a leaf until it has rows enough to be cut (section 4.2)."""
    n = numbers[0]
    if n.dense == 0 or n.decay == 0.0:
        return 0.0
    if samples == 0:
        return _MOST_HASTE
    return min(n.decay * max(2 * n.k - rows, 1) * size / (samples * rate), _MOST_HASTE)


@inner
def _chance(s: State, leaf: int) -> float:
    """The probability that a leaf is published in an instant: theorems 2 and 4.

    Both are the leaf's weight over the sum of all rows' weights. That weighs leaves against each other only; so that
    as many rows are held as shall be, the more leave the more there are.
    """
    n, tree = s.numbers[0], s.tree
    loss = box_loss(s.space, tree.boxes, leaf)
    if n.first_fit or loss <= 0.0:
        return 1.0
    rate, size = _rate(s.numbers), s.chains.table.size
    haste = _haste(s.numbers, tree.nodes[leaf].count, s.leaves[leaf].samples, size, rate)
    total = 0.0
    for other in active_leaves(tree):
        other_loss = box_loss(s.space, tree.boxes, other)
        if other_loss > 0.0 and is_mature(tree.distinct[other], tree.least):
            rows = tree.nodes[other].count
            total += rows / other_loss * np.exp(_haste(s.numbers, rows, s.leaves[other].samples, size, rate) - haste)
    return rate * n.held / n.active_rows / (loss * total)


@inner
def _now(numbers: Array) -> int:
    """The present instant: the number of the last row, or the moment at which it began."""
    n = numbers[0]
    return n.arrivals - 1 if n.instant == 0 else saturating_add(n.clock, -(n.clock % n.instant))


@inner
def _after(numbers: Array, instants: int) -> int:
    """So many instants later."""
    size = max(numbers[0].instant, 1)
    return min(saturating_add(_now(numbers), min(instants, (1 << 62) // size) * size), LATEST - 1)


@inner
def _worth_waiting(numbers: Array, loss: float, later: float) -> int:
    """For how many instants a row that is held back may be so: until its publishing deadline, and not too long."""
    n = numbers[0]
    most = n.patience / _rate(numbers)
    if later > 0.0 and n.decay > 0.0:
        most = min(most, np.log(loss / later) / n.decay)
    return np.int64(most)


@inner
def _schedule(s: State, leaf: int) -> None:
    """Draw the publishing time of a leaf; it has none while it may not be published."""
    entry = s.leaves[leaf]
    entry.due = LATEST
    if not is_mature(s.tree.distinct[leaf], s.tree.least):
        return
    chance = _chance(s, leaf)
    later = trials(s.random, s.numbers, chance)
    if chance >= 1.0:
        later = 0
    entry.due = _after(s.numbers, later)


@inner
def _count_samples(s: State, leaf: int) -> None:
    if s.numbers[0].dense:
        lo, hi = s.tree.boxes.lo[:, leaf], s.tree.boxes.hi[:, leaf]
        s.leaves[leaf].samples = samples_inside(s.chains, lo, hi, s.inside)


@inner
def _measure(s: State, leaf: int) -> None:
    """Compute anew what is known of a leaf, but for its publishing time."""
    entry = s.leaves[leaf]
    entry.deadline = entry.oldest = LATEST
    slot = s.tree.nodes[leaf].head
    while slot != NONE:
        entry.deadline = min(entry.deadline, s.slots[slot].deadline)
        entry.oldest = min(entry.oldest, s.slots[slot].number)
        slot = s.tree.rows[slot].next
    _count_samples(s, leaf)


@inlined
def _sample(s: State, row: Array, number: int) -> None:
    """Maintain the sample chains, and how many samples each leaf has."""
    chains = s.chains
    sample_row(chains, s.random, s.numbers, row, number)
    for i in range(chains.meta[0].changes):
        for j in range(covering(s.tree, chains.gone[i], s.found)):
            s.leaves[s.found[j]].samples -= 1
        for j in range(covering(s.tree, chains.points[chains.table[chains.changed[i]].head], s.found)):
            s.leaves[s.found[j]].samples += 1


# --- Rows in ---------------------------------------------------------------------------------------------------------


@inner
def _hold(s: State, number: int, qi: Array, person: int, sensitive: Array, deadline: int, patience: int) -> int:
    """Put a row into a slot."""
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
    """Empty the slot of a row that left."""
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
    """The first equivalence class without this person (section 2.2)."""
    for leaf in active_leaves(tree):
        if not has_person(tree.counts, tree.least, leaf, person):
            return leaf
    return NONE


@inner
def _place(s: State, slot: int) -> None:
    """Put a held row into a leaf, and draw the publishing time of what becomes a new equivalence class by that."""
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
        _measure(s, leaf)
        entry.due = LATEST
    else:
        entry.deadline = min(entry.deadline, s.slots[slot].deadline)
        entry.oldest = min(entry.oldest, s.slots[slot].number)
        if grows:
            _count_samples(s, leaf)
    if entry.due == LATEST:
        _schedule(s, leaf)
    _note(s.numbers, tree.nodes, s.leaves, leaf)


@inner
def _renew(s: State, leaf: int, other: int) -> None:
    """Draw publishing times for two leaves that are new; the second may be NONE."""
    _measure(s, leaf)
    if other != NONE:
        _measure(s, other)
        _schedule(s, leaf)
        _schedule(s, other)
    else:
        _schedule(s, leaf)
    _look_ahead(s.numbers, s.tree.nodes, s.leaves, active_leaves(s.tree))


# --- What leaves -----------------------------------------------------------------------------------------------------


@inlined
def _write_row(s: State, slot: int) -> None:
    n = s.numbers[0]
    s.out.rows[n.out_rows] = s.slots[slot].number
    n.out_rows += 1


@inner
def _suppress(s: State, slot: int) -> None:
    dimensions = s.space.dimensions
    lo, hi = np.empty(dimensions.size), np.empty(dimensions.size)
    for d in range(dimensions.size):
        lo[d], hi[d] = dimensions[d].widest_lo, dimensions[d].widest_hi
    _write_row(s, slot)
    write_release(s.out, s.numbers, SUPPRESSED, lo, hi, 1.0, 1, NONE)
    leaf = remove_row(s.tree, s.space, slot)
    if leaf != NONE:
        _measure(s, leaf)
    _drop(s, slot)
    _look_ahead(s.numbers, s.tree.nodes, s.leaves, active_leaves(s.tree))


@inner
def _is_due(numbers: Array, row: Any) -> bool:
    """Whether a row has reached its deadline."""
    n = numbers[0]
    if n.delay >= 0 and row.deadline <= n.clock:
        return True
    return n.delay_rows > 0 and row.number + n.delay_rows < n.arrivals


@inner
def _minimal_loss(space: Space, boxes: Boxes, columns: Array, near: Array, needed: int, enlargement: Array) -> float:
    """The loss of a small box that has so many of the samples near a row, whose box is the last: the greedy SC(t)."""
    at = boxes.lo.shape[1] - 1
    left = near.size
    loss = box_loss(space, boxes, at)
    for _ in range(needed):
        enlargements_by(space, boxes, at, columns, near, enlargement[:left])
        best = 0
        for i in range(1, left):
            if enlargement[i] < enlargement[best]:
                best = i
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
    """For each row of a leaf what it might lose if it is published later; infinite if that cannot be told."""
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
        if others >= needed and not _is_due(s.numbers, row) and _now(s.numbers) < row.patience:
            point_box(s.space, s.tree.points[slots[i]], s.tree.boxes, s.tree.boxes.lo.shape[1] - 1)
            later[i] = _minimal_loss(s.space, s.tree.boxes, columns, near[:others], needed, enlargement)


@inner
def _choose_held(s: State, leaf: int, slots: Array, held: Array) -> None:
    """Choose the rows that stay when a leaf is published (section 4.3)."""
    n = s.numbers[0]
    if n.holds == 0 or n.over or slots.size <= n.k:
        return
    later = np.empty(slots.size)
    _later_losses(s, leaf, slots, later)
    # Published an instant later, at the best, a row loses this much more by the delay.
    loss = box_loss(s.space, s.tree.boxes, leaf)
    now = loss / np.exp(n.decay)
    may_stay = slots.size - n.k
    while may_stay > 0:
        best = NONE
        for i in range(slots.size):
            # The latest publishing deadline first: that of the least loss; then the row that came last.
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
                row.patience = _after(s.numbers, _worth_waiting(s.numbers, loss, later[best]))
        else:
            held[best] = False
        later[best] = np.inf


@inner
def _still_diverse(tree: Tree, slots: Array, held: Array) -> bool:
    """Whether the rows that are not held have l values of each sensitive column."""
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


@inner
def _publish(s: State, leaf: int) -> None:
    """Publish a leaf, which may be, but for the rows that are held back; these are put into the tree again."""
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
    _look_ahead(s.numbers, s.tree.nodes, s.leaves, active_leaves(s.tree))
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
        _write_row(s, leaving[i])
        _drop(s, leaving[i])
    lo, hi = tree.boxes.lo[:, scratch], tree.boxes.hi[:, scratch]
    write_release(s.out, s.numbers, CLUSTER, lo, hi, loss_of(s.space, lo, hi), persons, NONE)
    for i in range(n):
        if held[i]:
            _place(s, slots[i])


@inner
def _most_urgent(s: State, leaf: int, by_time: bool) -> int:
    """The row of a leaf that must leave first."""
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
    """Whether all held rows together have persons and values enough for a group."""
    for label in range(s.held_distinct.size):
        if s.held_distinct[label] < s.tree.least[label]:
            return False
    return True


@inner
def _settle(s: State, leaf: int, by_time: bool) -> None:
    """A leaf's publishing time has come, or a row's deadline: it leaves with its leaf, with others', or alone."""
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
            _measure(s, left)
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
    """Move the clock to `now`, stopping at all that happens on the way."""
    n = s.numbers[0]
    while n.next_time_leaf != NONE and n.next_time <= now:
        n.clock = max(n.clock, n.next_time)
        _settle(s, n.next_time_leaf, True)
    n.clock = max(n.clock, now)


@inlined
def _arrive(s: State, qi: Array, person: int, sensitive: Array, time: int) -> None:
    """Algorithms 1 and 2, for one row."""
    n = s.numbers[0]
    _expire_until(s, max(n.clock, saturating_add(time, -n.disorder)))
    learn_domains(s.space, qi)
    number = n.arrivals
    n.arrivals += 1
    if n.instant > 0:
        _count_arrival(s.numbers)
    if n.dense:
        _sample(s, qi, number)
    deadline = np.int64(LATEST)
    if n.delay >= 0:
        deadline = saturating_add(time, n.delay)
        # Rounded down: who sees a row leave alone, at its deadline, must not learn its event time.
        deadline = saturating_add(deadline, -(deadline % n.tick))
    _place(s, _hold(s, number, qi, person, sensitive, deadline, LATEST))
    while n.next_row_leaf != NONE and n.next_row <= number:
        _settle(s, n.next_row_leaf, False)
    _expire_until(s, n.clock)


@inlined
def _end(s: State) -> None:
    """The end of the stream: every row has reached its deadline."""
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

    The one way into the methods, so that they are compiled once.
    """
    for i in range(person.size):
        _arrive(s, qi[i], person[i], sensitive[i], time[i])
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
    patience: Array,
    size: Array,
    split_at: Array,
    due: Array,
) -> None:
    """Fill an empty state with leaves, the oldest first, and their rows; the chains are there."""
    slots = np.empty(number.size, dtype=np.int64)
    for i in range(number.size):
        slots[i] = _hold(s, number[i], qi[i], person[i], sensitive[i], deadline[i], patience[i])
    start = 0
    for i in range(size.size):
        leaf = put_leaf(s.tree, s.space, slots[start : start + size[i]], split_at[i])
        _measure(s, leaf)
        # Under another policy it may no longer be one that may be published.
        s.leaves[leaf].due = due[i] if is_mature(s.tree.distinct[leaf], s.tree.least) else LATEST
        start += size[i]
    _look_ahead(s.numbers, s.tree.nodes, s.leaves, active_leaves(s.tree))


@kernel
def held_slots(s: State) -> Array:
    """The slots of held rows, leaf after leaf, the oldest first."""
    slots = np.empty(s.numbers[0].held, dtype=np.int64)
    at = 0
    for leaf in active_leaves(s.tree):
        slot = s.tree.nodes[leaf].head
        while slot != NONE:
            slots[at] = slot
            at += 1
            slot = s.tree.rows[slot].next
    return slots
