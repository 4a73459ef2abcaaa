"""Bastion's plan: the groups of the rows that are due at one moment, and how they are written as releases."""

from __future__ import annotations

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array, copy_into
from crenel.engine.kernels.box_geometry import loss_of, widen, write_widest
from crenel.engine.kernels.closeness import count_values
from crenel.engine.kernels.compiler import bare, kernel
from crenel.engine.kernels.generator import shuffle
from crenel.engine.kernels.output import CLUSTER, REUSE, SUPPRESSED, write_release, write_row
from crenel.engine.methods.bastion.bastion_box import box_loss, grow_box
from crenel.engine.methods.bastion.bastion_reuse import keep_box
from crenel.engine.methods.bastion.bastion_rows import let_go, must_leave
from crenel.engine.methods.bastion.bastion_search import count_members, form_group, has_values
from crenel.engine.methods.bastion.bastion_state import State

#: The loss of a row that is suppressed.
SUPPRESSED_LOSS = 1.0

# --- Planning ---


@bare
def most_added(numbers: Array) -> float:
    """Return what a row that is left over may add to the loss of a group, not to be suppressed."""
    return numbers[0].at_end if numbers[0].over != 0 else SUPPRESSED_LOSS


@bare
def _plan_row(s: State, place: int, group: int) -> None:
    """Move a row from the held rows to the plan."""
    n, plan = s.numbers[0], s.plan
    plan.place[n.planned_rows] = place
    plan.number[n.planned_rows] = s.held.number[place]
    plan.group[n.planned_rows] = group
    n.planned_rows += 1
    let_go(s, place)


@bare
def plan_group(s: State, size: int) -> None:
    """Move the group that was formed from the held rows to the plan."""
    n = s.numbers[0]
    for i in range(size):
        _plan_row(s, s.search.members[i], n.planned)
    for j in range(3):
        copy_into(s.box[j], s.plan.box[n.planned, j])
    s.plan.size[n.planned] = size
    n.planned += 1


@bare
def _members_of(s: State, group: int) -> int:
    """Write the places of a planned group's rows to `search.members`, and return how many there are."""
    count = 0
    for i in range(s.numbers[0].planned_rows):
        if s.plan.group[i] == group:
            s.search.members[count] = s.plan.place[i]
            count += 1
    return count


@bare
def _may_join(s: State, group: int, place: int) -> bool:
    """Return whether a planned group has no row of the row's person, and stays within t with the row."""
    size = _members_of(s, group)
    for i in range(size):
        if s.held.person[s.search.members[i]] == s.held.person[place]:
            return False
    s.search.members[size] = place
    return s.numbers[0].t < 0.0 or has_values(s, size + 1, 0, 0)


@bare
def join_plan(s: State, place: int, first: int, most: float) -> None:
    """Add a row to the planned group, from `first` on, to which it adds the least loss, if that is less than `most`."""
    n, plan, space = s.numbers[0], s.plan, s.terrain.space
    best, least = NONE, most
    for group in range(first, n.planned):
        loss, growth = box_loss(space, plan.box[group]), 0.0
        for d in range(s.box.shape[1]):
            lo, hi, x = plan.box[group, 0, d], plan.box[group, 1, d], s.held.columns[d, place]
            new_lo, new_hi, _ = widen(space, d, lo, hi, np.int64(plan.box[group, 2, d]), x, x)
            growth += space.dimensions[d].scale * ((new_hi - new_lo) - (hi - lo))
        added = plan.size[group] * growth + loss + growth
        if added < least and _may_join(s, group, place):
            best, least = group, added
    if best == NONE:
        return
    for d in range(s.box.shape[1]):
        grow_box(space, plan.box[best], d, s.held.columns[d, place])
    plan.size[best] += 1
    _plan_row(s, place, best)


@bare
def plan_due(s: State, first: int, last: int, company: int, most: float) -> None:
    """Plan groups for the rows from `first` to `last` that are due. Rows that are left over join one of these groups.

    Other rows that may join lie up to place `company`. A row that is left over adds less than `most` to the loss.
    """
    n, groups = s.numbers[0], s.numbers[0].planned
    for i in range(first, last + 1):
        if must_leave(s.numbers, s.held, i):
            size = form_group(s, i, first, company, np.inf)
            if size > 0:
                plan_group(s, size)
    if n.planned > groups:
        for i in range(first, last + 1):
            if must_leave(s.numbers, s.held, i):
                join_plan(s, i, groups, most)


@kernel
def plan_parts(s: State, offsets: Array) -> float:
    """Plan groups for all held rows, within each of some parts; return the total loss, a suppressed row counting 1."""
    n = s.numbers[0]
    n.planned = n.planned_rows = 0
    for part in range(offsets.size - 1):
        plan_due(s, offsets[part], offsets[part + 1] - 1, offsets[part + 1] - 1, SUPPRESSED_LOSS)
    most = most_added(s.numbers)
    for i in range(n.places):  # rows of parts that have no group, and rows that are far from their part's groups
        if s.held.number[i] != NONE:
            join_plan(s, i, 0, most)
    total = np.float64(n.held)
    for group in range(n.planned):
        total += s.plan.size[group] * box_loss(s.terrain.space, s.plan.box[group])
    return total


@kernel
def hold_again(s: State) -> None:
    """Undo a plan: hold its rows again."""
    n = s.numbers[0]
    for i in range(n.planned_rows):
        s.held.number[s.plan.place[i]] = s.plan.number[i]
    n.held += n.planned_rows
    n.planned = n.planned_rows = 0


# --- Writing ---


@bare
def _order_plan(s: State) -> None:
    """Sort the planned rows by group, and write each group's end in `order`."""
    n, plan = s.numbers[0], s.plan
    at = 0
    for group in range(n.planned):
        plan.end[group] = at
        at += plan.size[group]
    for i in range(n.planned_rows):
        group = plan.group[i]
        plan.order[plan.end[group]] = i
        plan.end[group] += 1


@kernel
def begin_writing(s: State) -> None:
    """Start to write the plan."""
    _order_plan(s)
    s.numbers[0].written, s.numbers[0].writing = 0, 1


@bare
def _write_leaving(s: State, place: int) -> None:
    """Write a held row that leaves alone."""
    write_row(s.out, s.numbers, s.held.number[place])
    let_go(s, place)


@bare
def _waited(s: State, order: Array) -> float:
    """Return the mean wait of planned rows, relative to the wait of the first of them."""
    n, number = s.numbers[0], s.plan.number
    longest, total = n.arrivals - number[order[0]], 0.0
    for i in range(order.size):
        total += min((n.arrivals - number[order[i]]) / longest, 1.0)
    return total / order.size


@bare
def _note_departure(numbers: Array, loss: float, waited: float, rows: int) -> None:
    """Update the averages: about the last ten groups count for the loss, the last twenty for the wait."""
    n = numbers[0]
    n.waited += min(rows / (20.0 * n.k), 0.5) * (waited - n.waited)
    n.average = loss if n.average < 0.0 else n.average + min(rows / (10.0 * n.k), 0.5) * (loss - n.average)


@bare
def suppress(s: State, place: int) -> None:
    """Release a row without a group."""
    write_widest(s.terrain.space, s.box[0], s.box[1])
    _write_leaving(s, place)
    write_release(s.out, s.numbers, SUPPRESSED, s.box[0], s.box[1], 1.0, 1, NONE)


@bare
def reuse_box(s: State, box: int, place: int) -> None:
    """Release one row under a reusable box."""
    entry = s.reusable.table[box]
    count_values(s.reusable.histogram[box], s.held.sensitive[place])
    _write_leaving(s, place)
    lo, hi = s.reusable.lo[box], s.reusable.hi[box]
    write_release(s.out, s.numbers, REUSE, lo, hi, loss_of(s.terrain.space, lo, hi), entry.persons, entry.group)
    _note_departure(s.numbers, entry.loss, 1.0, 1)


@bare
def write_group(s: State, group: int) -> None:
    """Release a planned group, and keep its box for reuse."""
    n, plan = s.numbers[0], s.plan
    size = plan.size[group]
    order = plan.order[plan.end[group] - size : plan.end[group]]
    for j in range(3):
        copy_into(plan.box[group, j], s.box[j])
    loss = box_loss(s.terrain.space, s.box)
    if n.max_reusable > 0:
        for i in range(size):
            s.search.members[i] = plan.place[order[i]]
        count_members(s, size, 0, 0)
        _note_departure(s.numbers, loss, _waited(s, order), size)
    shuffle(s.random, s.numbers, order)
    for i in range(size):
        write_row(s.out, s.numbers, plan.number[order[i]])
    number = n.released
    write_release(s.out, s.numbers, CLUSTER, s.box[0], s.box[1], loss, size, number)
    keep_box(s, loss, size, number)
