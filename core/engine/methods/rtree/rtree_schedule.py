"""When the leaves of an R-tree are published: the drawn publishing times, and the next event over all leaves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array
from crenel.engine.kernels.compiler import inlined, inner
from crenel.engine.kernels.deadlines import LATEST, rounded_down, saturating_add
from crenel.engine.methods.rtree.chain_sampling import sample_row, samples_inside, trials
from crenel.engine.methods.rtree.rtree_index_kernel import active_leaves, box_loss, covering, is_mature
from crenel.engine.methods.rtree.rtree_state import State

#: Where there is no sample, no row may ever arrive. That hastens a leaf by a factor of e and no more: a publishing time
#: is drawn once, and beside a leaf that outweighed all others these would wait forever.
_MOST_HASTE = 1.0

# --- Events ---


@inner
def _event_time(numbers: Array, leaf: Any) -> int:
    """Return the event time of the next event of a leaf."""
    return min(leaf.deadline, leaf.due) if numbers[0].instant > 0 else leaf.deadline


@inner
def _event_row(numbers: Array, leaf: Any) -> int:
    """Return the row number of the next event of a leaf."""
    n = numbers[0]
    due = leaf.due if n.instant == 0 else np.int64(LATEST)
    return min(due, leaf.oldest + n.delay_rows) if n.delay_rows > 0 else due


@inner
def note_event(numbers: Array, nodes: Array, leaves: Array, leaf: int) -> None:
    """Note the next event of a leaf if it is the next of all. At one moment, the oldest leaf comes first."""
    n, born = numbers[0], nodes[leaf].born
    if n.delay >= 0:
        time, known = _event_time(numbers, leaves[leaf]), n.next_time_leaf
        if known == NONE or time < n.next_time or (time == n.next_time and born < nodes[known].born):
            n.next_time, n.next_time_leaf = time, leaf
    row, known = _event_row(numbers, leaves[leaf]), n.next_row_leaf
    if known == NONE or row < n.next_row or (row == n.next_row and born < nodes[known].born):
        n.next_row, n.next_row_leaf = row, leaf


@inner
def find_next_event(numbers: Array, nodes: Array, leaves: Array, active: Array) -> None:
    """Find the next event of all leaves."""
    n = numbers[0]
    n.next_time_leaf = n.next_row_leaf = NONE
    n.next_time = n.next_row = LATEST
    for i in range(active.size):
        note_event(numbers, nodes, leaves, active[i])


# --- Publishing times ---


@inner
def _arrival_rate(numbers: Array) -> float:
    """Return the number of rows to expect in an instant (section 4.4)."""
    n = numbers[0]
    if n.instant == 0:
        return 1.0
    instants = (float(n.clock) - n.rate_since) / n.instant
    return n.rate_rows / max(instants, 1.0)


@inner
def count_arrival(numbers: Array) -> None:
    """Count a row for the rate. The count covers recent rows: at most twice as many as are to be held."""
    n = numbers[0]
    if n.rate_rows == 0.0:
        n.rate_since = float(n.clock)
    n.rate_rows += 1.0
    if n.rate_rows >= 2.0 * n.active_rows:
        n.rate_rows /= 2.0
        n.rate_since += (float(n.clock) - n.rate_since) / 2.0


@inner
def _haste(numbers: Array, rows: int, samples: int, size: int, rate: float) -> float:
    """Return the logarithm of (1 + alpha)^wait, for the wait until a leaf has enough rows to be cut (section 4.2)."""
    n = numbers[0]
    if n.dense == 0 or n.decay == 0.0:
        return 0.0
    if samples == 0:
        return _MOST_HASTE
    return min(n.decay * max(2 * n.k - rows, 1) * size / (samples * rate), _MOST_HASTE)


@inner
def _chance(s: State, leaf: int) -> float:
    """Return the probability that a leaf is published in an instant: theorems 2 and 4.

    Both are the weight of the leaf over the sum of all rows' weights. That compares leaves only with each other; the
    more rows are held, the more leave, so that about `active_rows` are held.
    """
    n, tree = s.numbers[0], s.tree
    loss = box_loss(s.space, tree.boxes, leaf)
    if n.first_fit or loss <= 0.0:
        return 1.0
    rate, size = _arrival_rate(s.numbers), s.chains.table.size
    haste = _haste(s.numbers, tree.nodes[leaf].count, s.leaves[leaf].samples, size, rate)
    total = 0.0
    for other in active_leaves(tree):
        other_loss = box_loss(s.space, tree.boxes, other)
        if other_loss > 0.0 and is_mature(tree.distinct[other], tree.least):
            rows = tree.nodes[other].count
            total += rows / other_loss * math.exp(_haste(s.numbers, rows, s.leaves[other].samples, size, rate) - haste)
    return rate * n.held / n.active_rows / (loss * total)


@inner
def current_instant(numbers: Array) -> int:
    """Return the current instant: the number of the last row, or the moment at which the instant began."""
    n = numbers[0]
    return n.arrivals - 1 if n.instant == 0 else rounded_down(n.clock, n.instant)


@inner
def instant_after(numbers: Array, instants: int) -> int:
    """Return the instant that is `instants` later."""
    size = max(numbers[0].instant, 1)
    return min(saturating_add(current_instant(numbers), min(instants, (1 << 62) // size) * size), LATEST - 1)


@inner
def worth_waiting(numbers: Array, loss: float, later: float) -> int:
    """Return for how many instants a row may be held back: until its publishing deadline, and not too long."""
    n = numbers[0]
    most = n.patience / _arrival_rate(numbers)
    if later > 0.0 and n.decay > 0.0:
        most = min(most, math.log(loss / later) / n.decay)
    return np.int64(most)


@inner
def schedule(s: State, leaf: int) -> None:
    """Draw the publishing time of a leaf. There is none while the leaf cannot be published."""
    entry = s.leaves[leaf]
    entry.due = LATEST
    if not is_mature(s.tree.distinct[leaf], s.tree.least):
        return
    chance = _chance(s, leaf)
    later = trials(s.random, s.numbers, chance)
    if chance >= 1.0:
        later = 0
    entry.due = instant_after(s.numbers, later)


# --- What is known of a leaf ---


@inner
def count_samples(s: State, leaf: int) -> None:
    """Count the samples in the box of a leaf."""
    if s.numbers[0].dense:
        lo, hi = s.tree.boxes.lo[:, leaf], s.tree.boxes.hi[:, leaf]
        s.leaves[leaf].samples = samples_inside(s.chains, lo, hi, s.inside)


@inner
def measure(s: State, leaf: int) -> None:
    """Compute again what is known of a leaf, except for its publishing time."""
    entry = s.leaves[leaf]
    entry.deadline = entry.oldest = LATEST
    slot = s.tree.nodes[leaf].head
    while slot != NONE:
        entry.deadline = min(entry.deadline, s.slots[slot].deadline)
        entry.oldest = min(entry.oldest, s.slots[slot].number)
        slot = s.tree.rows[slot].next
    count_samples(s, leaf)


@inlined
def sample(s: State, row: Array, number: int) -> None:
    """Update the sample chains with a row, and the number of samples in each leaf."""
    chains = s.chains
    sample_row(chains, s.random, s.numbers, row, number)
    for i in range(chains.meta[0].changes):
        for j in range(covering(s.tree, chains.gone[i], s.found)):
            s.leaves[s.found[j]].samples -= 1
        for j in range(covering(s.tree, chains.points[chains.table[chains.changed[i]].head], s.found)):
            s.leaves[s.found[j]].samples += 1
