"""An R-tree whose leaves are groups of rows that might be published.

A *slot* is where a row lies; a *node* is an entry of the table of nodes; leaves are nodes. The first label of a row is
its person: no two rows of a leaf have the same. The tree is only an index: which leaf a row joins, and how a leaf is
cut, depends only on the leaves, so that a tree with the same leaves may have another shape.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array
from crenel.engine.kernels.box_geometry import (
    Boxes,
    Space,
    enlargement_by_box,
    grow_box,
    inside,
    join_boxes,
    move_box,
    point_box,
    widen,
)
from crenel.engine.kernels.compiler import inner, kernel
from crenel.engine.kernels.distinct_counts import count_down, count_up, find_entry

#: Children of an inner node, at most and at least; the root has at least two.
FAN_OUT, LEAST_CHILDREN = 12, 4
#: More than the rounding error of losses, sums of shares of 1. A branch is skipped only if it is worse by more.
_SLACK = 1e-12


META = np.dtype([("root", "i8"), ("free", "i8"), ("leaves", "i8"), ("born", "i8")])


NODE = np.dtype(
    [
        ("parent", "i8"),
        ("level", "i8"),  # 0: a leaf
        ("count", "i8"),  # children, or rows of a leaf
        ("born", "i8"),  # of a leaf: how many leaves had been made before
        ("head", "i8"),
        ("tail", "i8"),
        ("split_at", "i8"),  # number of rows at which a cut is tried
    ]
)


ROW = np.dtype([("leaf", "i8"), ("previous", "i8"), ("next", "i8")])


class Tree(NamedTuple):
    """The tree, its leaves and their rows."""

    meta: Any  # META, one
    nodes: Any  # NODE
    children: Any  # [node, FAN_OUT + 1]
    boxes: Boxes  # by node
    free: Any  # unused nodes
    leaves: Any  # nodes, the oldest leaf first
    stack: Any  # scratch space: nodes of a search
    bound: Any  # scratch space: how much each must grow at least
    rows: Any  # ROW, by slot
    points: Any  # [slot, quasi-identifier]
    labels: Any  # [slot, label]: the person, then the values that must be diverse
    least: Any  # for each kind of label, how many distinct ones a group must have
    counts: Any  # ENTRY: how often each label is in each leaf
    distinct: Any  # [node, label]: how many distinct ones each leaf has


# --- Boxes ---


@inner
def box_loss(space: Space, boxes: Boxes, at: int) -> float:
    """Return the loss of a box, from 0 to 1."""
    total = 0.0
    for d in range(boxes.lo.shape[0]):
        total += space.dimensions[d].scale * (boxes.hi[d, at] - boxes.lo[d, at] + space.dimensions[d].cell)
    return total


@inner
def _enlargement(space: Space, boxes: Boxes, at: int, point: Array, limit: float) -> float:
    """Return how much the loss of a box grows if it takes the point; any number above `limit` if it is above."""
    total = 0.0
    for d in range(point.size):
        lo, hi = boxes.lo[d, at], boxes.hi[d, at]
        if point[d] < lo or point[d] > hi:
            new_lo, new_hi, _ = widen(space, d, lo, hi, boxes.node[d, at], point[d], point[d])
            total += space.dimensions[d].scale * ((new_hi - new_lo) - (hi - lo))
            if total > limit:
                break
    return total


@inner
def _tighten(tree: Tree, space: Space, node: int) -> None:
    """Make the box of a node the smallest that contains its children or rows."""
    if tree.nodes[node].level > 0:
        move_box(tree.boxes, tree.children[node, 0], node)
        for i in range(1, tree.nodes[node].count):
            join_boxes(space, tree.boxes, node, tree.children[node, i])
        return
    slot = tree.nodes[node].head
    point_box(space, tree.points[slot], tree.boxes, node)
    while slot != NONE:
        grow_box(space, tree.points[slot], tree.boxes, node)
        slot = tree.rows[slot].next


@inner
def _tighten_up(tree: Tree, space: Space, node: int) -> None:
    """Do the same for a node and all nodes above it."""
    while node != NONE:
        _tighten(tree, space, node)
        node = tree.nodes[node].parent


# --- Nodes ---


@inner
def _new_node(tree: Tree, level: int) -> int:
    meta = tree.meta[0]
    meta.free -= 1
    at = tree.free[meta.free]
    node = tree.nodes[at]
    node.level = level
    node.count = 0
    node.parent = node.head = node.tail = NONE
    return at


@inner
def _free_node(tree: Tree, node: int) -> None:
    tree.free[tree.meta[0].free] = node
    tree.meta[0].free += 1


@inner
def _add_child(tree: Tree, node: int, child: int) -> None:
    tree.children[node, tree.nodes[node].count] = child
    tree.nodes[node].count += 1
    tree.nodes[child].parent = node


@inner
def _remove_child(tree: Tree, node: int, child: int) -> None:
    children = tree.children[node]
    tree.nodes[node].count -= 1
    last = tree.nodes[node].count
    for i in range(last):
        if children[i] == child:
            children[i] = children[last]
            break


@inner
def _new_root(tree: Tree, space: Space, one: int, other: int) -> int:
    root = _new_node(tree, tree.nodes[one].level + 1)
    _add_child(tree, root, one)
    _add_child(tree, root, other)
    _tighten(tree, space, root)
    tree.meta[0].root = root
    return root


@inner
def _add_beside(tree: Tree, space: Space, node: int, other: int) -> None:
    """Give a node a sibling, and cut the nodes above that become too large."""
    while True:
        parent = tree.nodes[node].parent
        if parent == NONE:
            _new_root(tree, space, node, other)
            return
        _add_child(tree, parent, other)
        if tree.nodes[parent].count <= FAN_OUT:
            return
        node, other = parent, _cut_node(tree, space, parent)


@inner
def _attach(tree: Tree, space: Space, node: int) -> None:
    """Add a node, with everything below it, where the boxes above grow the least."""
    root, level = tree.meta[0].root, tree.nodes[node].level
    if root == NONE:
        tree.meta[0].root = node
        return
    at = root
    while tree.nodes[at].level > level:
        join_boxes(space, tree.boxes, at, node)
        best, smallest = tree.children[at, 0], np.inf
        for i in range(tree.nodes[at].count):
            child = tree.children[at, i]
            enlargement = enlargement_by_box(space, tree.boxes, child, node)
            if enlargement < smallest:
                best, smallest = child, enlargement
        at = best
    _add_beside(tree, space, at, node)


@inner
def _detach(tree: Tree, space: Space, node: int) -> None:
    """Take a node out. Nodes above with too few children are dissolved, and their children added elsewhere."""
    above = tree.nodes[node].parent
    tree.nodes[node].parent = NONE
    if above == NONE:
        tree.meta[0].root = NONE
        return
    orphans = 0
    child = node
    while above != NONE:
        at, above = above, tree.nodes[above].parent
        if child != NONE:
            _remove_child(tree, at, child)
        child = NONE
        if above != NONE and tree.nodes[at].count < LEAST_CHILDREN:
            for i in range(tree.nodes[at].count):
                tree.stack[orphans] = tree.children[at, i]
                tree.nodes[tree.children[at, i]].parent = NONE
                orphans += 1
            _free_node(tree, at)
            child = at
        else:
            _tighten(tree, space, at)
    root = tree.meta[0].root
    if tree.nodes[root].count == 1:
        tree.meta[0].root = tree.children[root, 0]
        tree.nodes[tree.children[root, 0]].parent = NONE
        _free_node(tree, root)
    for i in range(orphans - 1, -1, -1):  # the highest one first
        _attach(tree, space, tree.stack[i])


# --- Cutting in two ---


@inner
def _sort(keys: Array, order: Array, spare: Array) -> None:
    """Sort `order` by its keys, with a stable merge sort."""
    n = order.size
    width = 1
    while width < n:
        for start in range(0, n, 2 * width):
            i, j = start, min(start + width, n)
            middle, end = j, min(start + 2 * width, n)
            for at in range(start, end):
                if j >= end or (i < middle and keys[order[i]] <= keys[order[j]]):
                    spare[at] = order[i]
                    i += 1
                else:
                    spare[at] = order[j]
                    j += 1
        for at in range(n):
            order[at] = spare[at]
        width *= 2


@inner
def _first_diverse(tree: Tree, slots: Array, order: Array, backwards: bool) -> int:
    """Return how many rows, taken in this order, have enough distinct labels of each kind except the person."""
    n = order.size
    needed = 0
    tag = tree.distinct.size
    for label in range(1, tree.least.size):
        distinct = 0
        taken = 0
        while taken < n and distinct < tree.least[label]:
            slot = slots[order[n - 1 - taken if backwards else taken]]
            taken += 1
            if count_up(tree.counts, tag, tree.labels[slot, label]):
                distinct += 1
        for i in range(taken):
            slot = slots[order[n - 1 - i if backwards else i]]
            count_down(tree.counts, tag, tree.labels[slot, label])
        needed = max(needed, taken if distinct >= tree.least[label] else n + 1)
    return needed


@inner
def _best_cut(tree: Tree, space: Space, boxes: Boxes, slots: Array, fewest: int, order: Array) -> int:
    """Order boxes along one dimension and cut that order where both parts together lose the least.

    There are as many boxes as `order` is long, and one more for scratch. They are the boxes of the rows in `slots`, and
    both parts must be diverse; or if there are no slots, the boxes of nodes. Returns how many are in the first part, 0
    if there is no cut.
    """
    n = order.size
    keys, before = np.empty(n), np.empty(n + 1)
    trial, spare = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    best, cut = np.inf, 0
    for d in range(boxes.lo.shape[0]):
        for i in range(n):
            trial[i] = i
            keys[i] = boxes.lo[d, i] + boxes.hi[d, i]
        _sort(keys, trial, spare)
        first, last = fewest, n - fewest
        if slots.size > 0 and tree.least.size > 1:
            first = max(first, _first_diverse(tree, slots, trial, False))
            last = min(last, n - _first_diverse(tree, slots, trial, True))
        if first > last:
            continue
        move_box(boxes, trial[0], n)
        for i in range(last):
            join_boxes(space, boxes, n, trial[i])
            before[i + 1] = box_loss(space, boxes, n)
        move_box(boxes, trial[n - 1], n)
        for i in range(n - 1, first - 1, -1):
            join_boxes(space, boxes, n, trial[i])
            if i <= last:
                penalty = i * before[i] + (n - i) * box_loss(space, boxes, n)
                if penalty < best:
                    best, cut = penalty, i
                    for at in range(n):
                        order[at] = trial[at]
    return cut


@inner
def _scratch(tree: Tree, n: int) -> Boxes:
    """Return scratch space for n boxes."""
    dimensions = tree.boxes.lo.shape[0]
    shape = (n, dimensions + 1)
    return Boxes(
        np.empty(shape).T[:dimensions], np.empty(shape).T[:dimensions], np.zeros(shape, dtype=np.int64).T[:dimensions]
    )


@inner
def _cut_node(tree: Tree, space: Space, node: int) -> int:
    """Cut an inner node in two, and return the new one, which has no parent yet."""
    n = tree.nodes[node].count
    boxes = _scratch(tree, n + 1)
    children = tree.children[node].copy()
    for i in range(n):
        for d in range(boxes.lo.shape[0]):
            boxes.lo[d, i] = tree.boxes.lo[d, children[i]]
            boxes.hi[d, i] = tree.boxes.hi[d, children[i]]
            boxes.node[d, i] = tree.boxes.node[d, children[i]]
    order = np.empty(n, dtype=np.int64)
    cut = _best_cut(tree, space, boxes, order[:0], LEAST_CHILDREN, order)
    other = _new_node(tree, tree.nodes[node].level)
    tree.nodes[node].count = 0
    for i in range(n):
        _add_child(tree, node if i < cut else other, children[order[i]])
    _tighten(tree, space, node)
    _tighten(tree, space, other)
    return other


# --- Leaves and their rows ---


@inner
def _enter(tree: Tree, leaf: int, slot: int) -> None:
    """Add the row to the end of a leaf. The box is the caller's to update."""
    node = tree.nodes[leaf]
    row = tree.rows[slot]
    row.leaf = leaf
    row.previous = node.tail
    row.next = NONE
    if node.tail == NONE:
        node.head = slot
    else:
        tree.rows[node.tail].next = slot
    node.tail = slot
    node.count += 1
    labels = tree.least.size
    for label in range(labels):
        if count_up(tree.counts, leaf * labels + label, tree.labels[slot, label]):
            tree.distinct[leaf, label] += 1


@inner
def _leave(tree: Tree, slot: int) -> None:
    """Take the row out of its leaf. The box is the caller's to update."""
    row = tree.rows[slot]
    leaf = row.leaf
    node = tree.nodes[leaf]
    if row.previous == NONE:
        node.head = row.next
    else:
        tree.rows[row.previous].next = row.next
    if row.next == NONE:
        node.tail = row.previous
    else:
        tree.rows[row.next].previous = row.previous
    row.leaf = NONE
    node.count -= 1
    labels = tree.least.size
    for label in range(labels):
        if count_down(tree.counts, leaf * labels + label, tree.labels[slot, label]):
            tree.distinct[leaf, label] -= 1


@inner
def has_person(counts: Array, least: Array, leaf: int, person: int) -> bool:
    """Return whether the leaf has a row of this person."""
    return counts[find_entry(counts, leaf * least.size, person)].count != 0


@inner
def is_mature(distinct: Array, least: Array) -> bool:
    """Return whether a leaf with these numbers of distinct labels can be published."""
    for label in range(least.size):
        if distinct[label] < least[label]:
            return False
    return True


@inner
def _new_leaf(tree: Tree) -> int:
    leaf = _new_node(tree, 0)
    for label in range(tree.least.size):
        tree.distinct[leaf, label] = 0
    _append_leaf(tree, leaf)
    return leaf


@inner
def _append_leaf(tree: Tree, leaf: int) -> None:
    """Make a leaf the youngest."""
    meta = tree.meta[0]
    tree.nodes[leaf].born = meta.born
    tree.nodes[leaf].split_at = 2 * tree.least[0]
    tree.leaves[meta.leaves] = leaf
    meta.born += 1
    meta.leaves += 1


@inner
def _strike_leaf(tree: Tree, leaf: int) -> None:
    """Remove a leaf from the list of leaves, which stays in order of age."""
    leaves, meta = tree.leaves, tree.meta[0]
    meta.leaves -= 1
    at = 0
    while leaves[at] != leaf:
        at += 1
    while at < meta.leaves:
        leaves[at] = leaves[at + 1]
        at += 1


@inner
def active_leaves(tree: Tree) -> Array:
    """Return the leaves, the oldest first."""
    return tree.leaves[: tree.meta[0].leaves]


@inner
def nearest_leaf(tree: Tree, space: Space, point: Array, person: int) -> int:
    """Return the leaf without this person that has the least (enlargement, loss, age), or NONE.

    A box grows at least as much as the boxes around it do: that is why branches can be skipped.
    """
    best, smallest = NONE, np.inf
    if tree.meta[0].root == NONE:
        return best
    tree.stack[0] = tree.meta[0].root
    tree.bound[0] = _enlargement(space, tree.boxes, tree.stack[0], point, np.inf)
    top = 1
    while top > 0:
        top -= 1
        node = tree.stack[top]
        if tree.bound[top] > smallest + _SLACK:
            continue
        if tree.nodes[node].level == 0:
            if has_person(tree.counts, tree.least, node, person):
                continue
            enlargement = tree.bound[top]
            if enlargement < smallest or (enlargement == smallest and _prefer(tree, space, node, best)):
                best, smallest = node, enlargement
            continue
        promising = top
        for i in range(tree.nodes[node].count):
            child = tree.children[node, i]
            bound = _enlargement(space, tree.boxes, child, point, smallest + _SLACK)
            if bound <= smallest + _SLACK:
                tree.stack[top] = child
                tree.bound[top] = bound
                if bound < tree.bound[promising]:
                    promising = top
                top += 1
        if top > promising:  # the most promising one is searched first
            last = top - 1
            tree.stack[promising], tree.stack[last] = tree.stack[last], tree.stack[promising]
            tree.bound[promising], tree.bound[last] = tree.bound[last], tree.bound[promising]
    return best


@inner
def _prefer(tree: Tree, space: Space, leaf: int, other: int) -> bool:
    """Return whether a leaf loses less than another, or as much and is older."""
    loss, other_loss = box_loss(space, tree.boxes, leaf), box_loss(space, tree.boxes, other)
    return loss < other_loss or (loss == other_loss and tree.nodes[leaf].born < tree.nodes[other].born)


@inner
def covering(tree: Tree, point: Array, found: Array) -> int:
    """Write the leaves whose boxes contain the point to `found`, and return how many there are."""
    count = 0
    top = 0
    if tree.meta[0].root != NONE:
        tree.stack[0] = tree.meta[0].root
        top = 1
    while top > 0:
        top -= 1
        node = tree.stack[top]
        if not inside(tree.boxes.lo[:, node], tree.boxes.hi[:, node], point):
            continue
        if tree.nodes[node].level == 0:
            found[count] = node
            count += 1
            continue
        for i in range(tree.nodes[node].count):
            tree.stack[top] = tree.children[node, i]
            top += 1
    return count


@inner
def put(tree: Tree, space: Space, slot: int, leaf: int) -> tuple[int, int]:
    """Put a row into a leaf, or into a new one if the leaf is NONE.

    Returns the leaf, and NONE; or two new leaves if the leaf was cut, one of which has the row.
    """
    if leaf == NONE:
        leaf = _new_leaf(tree)
        _enter(tree, leaf, slot)
        _tighten(tree, space, leaf)
        _attach(tree, space, leaf)
        return leaf, NONE
    _enter(tree, leaf, slot)
    node = leaf
    while node != NONE:
        grow_box(space, tree.points[slot], tree.boxes, node)
        node = tree.nodes[node].parent
    return leaf, split(tree, space, leaf)


@inner
def split(tree: Tree, space: Space, leaf: int) -> int:
    """Cut a leaf that is large enough into two that can both be published. Return the second, or NONE."""
    n = tree.nodes[leaf].count
    if n < tree.nodes[leaf].split_at:
        return NONE
    slots, order = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    boxes = _scratch(tree, n + 1)
    slot = tree.nodes[leaf].head
    for i in range(n):
        slots[i] = slot
        point_box(space, tree.points[slot], boxes, i)
        slot = tree.rows[slot].next
    cut = _best_cut(tree, space, boxes, slots, tree.least[0], order)
    if cut == 0:  # not tried again for every row, which would take quadratic time
        tree.nodes[leaf].split_at = n + max(n // 2, 1)
        return NONE
    _strike_leaf(tree, leaf)
    _append_leaf(tree, leaf)
    other = _new_leaf(tree)
    moves = np.zeros(n, dtype=np.bool_)
    for i in range(cut, n):
        moves[order[i]] = True
    for i in range(n):
        if moves[i]:
            _leave(tree, slots[i])
            _enter(tree, other, slots[i])
    _tighten(tree, space, leaf)
    _tighten(tree, space, other)
    _add_beside(tree, space, leaf, other)
    return other


@inner
def absorb(tree: Tree, space: Space, leaf: int, other: int) -> int:
    """Move the rows whose persons `leaf` lacks from `other` to it. Return `other`, or NONE if it is empty and gone."""
    slot = tree.nodes[other].head
    while slot != NONE:
        following = tree.rows[slot].next
        if not has_person(tree.counts, tree.least, leaf, tree.labels[slot, 0]):
            _leave(tree, slot)
            _enter(tree, leaf, slot)
        slot = following
    _tighten_up(tree, space, leaf)
    if tree.nodes[other].count == 0:
        _drop_leaf(tree, space, other)
        return NONE
    _tighten_up(tree, space, other)
    return other


@inner
def _drop_leaf(tree: Tree, space: Space, leaf: int) -> None:
    _strike_leaf(tree, leaf)
    _detach(tree, space, leaf)
    _free_node(tree, leaf)


@inner
def remove_leaf(tree: Tree, space: Space, leaf: int) -> None:
    """Delete a leaf with all its rows."""
    while tree.nodes[leaf].head != NONE:
        _leave(tree, tree.nodes[leaf].head)
    _drop_leaf(tree, space, leaf)


@inner
def remove_row(tree: Tree, space: Space, slot: int) -> int:
    """Delete a row, and return its leaf, or NONE if the leaf had no other."""
    leaf = tree.rows[slot].leaf
    _leave(tree, slot)
    if tree.nodes[leaf].count == 0:
        _drop_leaf(tree, space, leaf)
        return NONE
    _tighten_up(tree, space, leaf)
    return leaf


@inner
def nearest_company(tree: Tree, space: Space, leaf: int) -> int:
    """Return the leaf that enlarges this one's box least and has a person this one lacks; of equals, the oldest."""
    best, smallest = NONE, np.inf
    for other in active_leaves(tree):
        if other == leaf:
            continue
        enlargement = enlargement_by_box(space, tree.boxes, leaf, other)
        if enlargement < smallest and _has_other_person(tree, leaf, other):
            best, smallest = other, enlargement
    return best


@inner
def _has_other_person(tree: Tree, leaf: int, other: int) -> bool:
    slot = tree.nodes[other].head
    while slot != NONE:
        if not has_person(tree.counts, tree.least, leaf, tree.labels[slot, 0]):
            return True
        slot = tree.rows[slot].next
    return False


@inner
def put_leaf(tree: Tree, space: Space, slots: Array, split_at: int) -> int:
    """Make a leaf of these rows, as it was stored, and return it."""
    leaf = _new_leaf(tree)
    tree.nodes[leaf].split_at = split_at
    for i in range(slots.size):
        _enter(tree, leaf, slots[i])
    _tighten(tree, space, leaf)
    _attach(tree, space, leaf)
    return leaf


@kernel
def insert(tree: Tree, space: Space, slot: int) -> None:
    """Put a row into the leaf that it enlarges the least."""
    put(tree, space, slot, nearest_leaf(tree, space, tree.points[slot], tree.labels[slot, 0]))


@kernel
def delete_leaf(tree: Tree, space: Space, leaf: int) -> None:
    """Delete a leaf with all its rows."""
    remove_leaf(tree, space, leaf)


@kernel
def delete_row(tree: Tree, space: Space, slot: int) -> None:
    """Delete one row."""
    remove_row(tree, space, slot)


@kernel
def merge(tree: Tree, space: Space, leaf: int, other: int) -> None:
    """Move the rows of another leaf whose persons this one lacks into it, and cut it if it is then too large."""
    absorb(tree, space, leaf, other)
    split(tree, space, leaf)


@kernel
def find_covering(tree: Tree, point: Array, found: Array) -> int:
    """Write the leaves whose boxes contain the point to `found`, and return how many there are."""
    return covering(tree, point, found)
