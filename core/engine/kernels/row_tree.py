"""A tree of rows, to find the rows near a box without looking at all of them.

A leaf has at most LEAF rows, which lie in one block. Every node has a box that contains all rows below it, so none of
them is nearer than that box. A search that skips nodes by their boxes finds exactly what a search of all rows finds,
whatever the shape of the tree: no result depends on the shape.

Node 0 is the root. The two children of a node lie side by side: pair i is the nodes 2 i + 1 and 2 i + 2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array
from crenel.engine.kernels.box_geometry import INTERVAL, Space, widen
from crenel.engine.kernels.compiler import bare, inner

#: The most rows of a leaf.
LEAF = 32
#: The fewest rows on either side of a cut. A tree of n rows, none of which was removed, has at most n / LEAST leaves.
_LEAST = 11
#: A node with at most this number of rows is one leaf.
_FEW = LEAF // 2
#: A node with more rows than _LARGE is rebuilt if one of its children has more than this share of them.
_LOPSIDED, _LARGE = 0.9, 4 * LEAF

#: The columns of `links`. LEFT is the first child, NONE for a leaf; BLOCK is that of a leaf; ROWS are all rows below;
#: ADDED are those that were added since the box was made; AXIS is the quasi-identifier by which the rows are cut, NONE
#: if they are cut by their order, and the number behind the last quasi-identifier if they are cut by their credit.
PARENT, LEFT, BLOCK, ROWS, ADDED, AXIS = range(6)
#: The columns of `marks`. Rows below CUT are in the first child; no row below the node is before FIRST in the order of
#: rows, or has more than CREDIT.
CUT, FIRST, CREDIT = range(3)


class RowTree(NamedTuple):
    """The tree, and what it needs to know about rows."""

    points: Any  # [quasi-identifier, row]
    order: Any  # by row; rows with the same quasi-identifiers are cut by it
    credit: Any  # by row; empty if no row has any
    links: Any  # [node, column]
    marks: Any  # [node, column]
    boxes: Any  # [node, 2, quasi-identifier]: lo and hi
    rows: Any  # LEAF rows for each block
    columns: Any  # [block, quasi-identifier, LEAF]: their coordinates from the origin; then their credit, if any has
    origin: Any
    where: Any  # by row: its index in `rows`
    node_of: Any  # by block
    pairs: Any  # the free ones come first
    blocks: Any  # the free ones come first
    free: Any  # how many pairs and blocks are free
    full: Any  # scratch space: the rows of a full leaf, and one more
    values: Any  # scratch space: a number for each of them


def most_nodes(rows: int) -> int:
    """Return how many nodes a tree has, if it has space for some rows."""
    return 2 * (rows // _LEAST + 1) + 1


def resized_tree(before: RowTree | None, points: Array, order: Array, credit: Array, capacity: int) -> RowTree:
    """Return a tree with space for `capacity` rows, with the nodes of a smaller one.

    A tree that begins without another one must be cleared before it is used. It has coordinates in single precision.
    """
    nodes, blocks, dimensions = most_nodes(capacity), capacity // _LEAST + 1, points.shape[0]
    tree = RowTree(
        points=points,
        order=order,
        credit=credit,
        links=np.empty((nodes, 6), dtype=np.int32),
        marks=np.empty((nodes, 3)),
        boxes=np.empty((nodes, 2, dimensions)),
        rows=np.empty(blocks * LEAF, dtype=np.int32),
        columns=np.empty((blocks, dimensions + 1, LEAF), dtype=np.float32),
        origin=np.zeros(dimensions) if before is None else before.origin,
        where=np.empty(capacity, dtype=np.int32),
        node_of=np.empty(blocks, dtype=np.int32),
        pairs=np.empty(blocks, dtype=np.int32),
        blocks=np.empty(blocks, dtype=np.int32),
        free=np.zeros(2, dtype=np.int64),
        full=np.empty(LEAF + 1, dtype=np.int32),
        values=np.empty(LEAF + 1),
    )
    if before is None:
        return tree
    for name in ("links", "marks", "boxes", "rows", "columns", "where", "node_of"):
        old = getattr(before, name)
        getattr(tree, name)[: len(old)] = old
    more = blocks - len(before.blocks)
    for at, name in enumerate(("pairs", "blocks")):
        free = before.free[at]
        getattr(tree, name)[:more] = np.arange(blocks - 1, blocks - 1 - more, -1)
        getattr(tree, name)[more : more + free] = getattr(before, name)[:free]
        tree.free[at] = more + free
    return tree


@inner
def new_tree(points: Array, order: Array, credit: Array, capacity: int) -> RowTree:
    """Return a tree without rows, with space for `capacity` rows, which have no credit."""
    blocks = capacity // _LEAST + 1
    nodes = 2 * blocks + 1
    tree = RowTree(
        points,
        order,
        credit,
        np.empty((nodes, 6), dtype=np.int32),
        np.empty((nodes, 3)),
        np.empty((nodes, 2, points.shape[0])),
        np.empty(blocks * LEAF, dtype=np.int32),
        np.empty((blocks, points.shape[0], LEAF)),
        np.zeros(points.shape[0]),
        np.empty(capacity, dtype=np.int32),
        np.empty(blocks, dtype=np.int32),
        np.empty(blocks, dtype=np.int32),
        np.empty(blocks, dtype=np.int32),
        np.empty(2, dtype=np.int64),
        np.empty(LEAF + 1, dtype=np.int32),
        np.empty(LEAF + 1),
    )
    clear_tree(tree)
    return tree


@bare
def clear_tree(tree: RowTree) -> None:
    """Remove all rows."""
    count = tree.blocks.size
    for i in range(count):
        tree.pairs[i] = tree.blocks[i] = count - 1 - i
    tree.free[0] = tree.free[1] = count
    tree.links[0, PARENT] = NONE
    _make_leaf(tree, 0, _take_block(tree))


# --- Nodes ---


@bare
def _take_block(tree: RowTree) -> int:
    tree.free[1] -= 1
    return tree.blocks[tree.free[1]]


@bare
def _free_block(tree: RowTree, block: int) -> None:
    tree.blocks[tree.free[1]] = block
    tree.free[1] += 1


@bare
def _free_pair(tree: RowTree, left: int) -> None:
    tree.pairs[tree.free[0]] = (left - 1) // 2
    tree.free[0] += 1


@bare
def _make_leaf(tree: RowTree, node: int, block: int) -> None:
    """Make a node a leaf without rows."""
    tree.links[node, LEFT] = NONE
    tree.links[node, BLOCK] = block
    tree.links[node, ROWS] = 0
    tree.node_of[block] = node
    _empty_box(tree, node)


@bare
def _empty_box(tree: RowTree, node: int) -> None:
    tree.links[node, ADDED] = 0
    tree.marks[node, FIRST], tree.marks[node, CREDIT] = np.inf, 0.0
    for d in range(tree.boxes.shape[2]):
        tree.boxes[node, 0, d], tree.boxes[node, 1, d] = np.inf, -np.inf


@bare
def _cover_row(tree: RowTree, node: int, row: int) -> bool:
    """Let the box of a node contain the row. Return whether it did not yet."""
    lo, hi, grown = tree.boxes[node, 0], tree.boxes[node, 1], False
    for d in range(lo.size):
        x = tree.points[d, row]
        if x < lo[d] or x > hi[d]:
            lo[d], hi[d], grown = min(lo[d], x), max(hi[d], x), True
    if tree.order[row] < tree.marks[node, FIRST]:
        tree.marks[node, FIRST], grown = np.float64(tree.order[row]), True
    if tree.credit.size > 0 and tree.credit[row] > tree.marks[node, CREDIT]:
        tree.marks[node, CREDIT], grown = np.float64(tree.credit[row]), True
    return grown


@bare
def _cover_again(tree: RowTree, node: int) -> None:
    """Make the box of a node anew, from the rows of a leaf or from the boxes of two children."""
    left = tree.links[node, LEFT]
    _empty_box(tree, node)
    if left == NONE:
        start = tree.links[node, BLOCK] * LEAF
        for i in range(start, start + tree.links[node, ROWS]):
            _cover_row(tree, node, tree.rows[i])
        return
    marks = tree.marks
    marks[node, FIRST] = min(marks[left, FIRST], marks[left + 1, FIRST])
    marks[node, CREDIT] = max(marks[left, CREDIT], marks[left + 1, CREDIT])
    for d in range(tree.boxes.shape[2]):
        tree.boxes[node, 0, d] = min(tree.boxes[left, 0, d], tree.boxes[left + 1, 0, d])
        tree.boxes[node, 1, d] = max(tree.boxes[left, 1, d], tree.boxes[left + 1, 1, d])


# --- Adding rows ---


@bare
def _put(tree: RowTree, node: int, row: int) -> None:
    """Put a row at the end of a leaf's block."""
    block, at = tree.links[node, BLOCK], tree.links[node, ROWS]
    tree.rows[block * LEAF + at] = row
    tree.where[row] = block * LEAF + at
    for d in range(tree.points.shape[0]):
        tree.columns[block, d, at] = tree.points[d, row] - tree.origin[d]
    if tree.credit.size > 0:
        tree.columns[block, tree.points.shape[0], at] = tree.credit[row]
    tree.links[node, ROWS] += 1


@bare
def _value(tree: RowTree, row: int, axis: int) -> float:
    """Return what rows are cut by."""
    if axis == tree.points.shape[0]:
        return np.float64(tree.credit[row])
    return np.float64(tree.order[row]) if axis == NONE else tree.points[axis, row]


@bare
def _spread(tree: RowTree, axis: int) -> float:
    """Return how far the rows of a full leaf are from their mean."""
    full, mean, total = tree.full, 0.0, 0.0
    for i in range(full.size):
        mean += tree.points[axis, full[i]]
    mean /= full.size
    for i in range(full.size):
        total += abs(tree.points[axis, full[i]] - mean)
    return total


@bare
def _cut(tree: RowTree, axis: int, middle: int) -> tuple[float, int]:
    """Return the cut of a full leaf that has nearly `middle` rows below it, and how many there are."""
    values = tree.values
    for i in range(values.size):
        x, j = _value(tree, tree.full[i], axis), i
        while j > 0 and values[j - 1] > x:
            values[j] = values[j - 1]
            j -= 1
        values[j] = x
    below, above = middle, middle
    while below > 0 and values[below - 1] == values[middle]:
        below -= 1
    while above < values.size and values[above] == values[middle]:
        above += 1
    if above < values.size and above - middle < middle - below:
        below = above
    return values[below], below


@bare
def _choose_cut(space: Space, tree: RowTree) -> tuple[int, float]:
    """Return the axis along which LEAF + 1 rows are spread most and can be cut in two, and the cut."""
    limit = np.inf
    while True:
        axis, most = NONE, 0.0
        for d in range(tree.boxes.shape[2]):
            spread = space.dimensions[d].scale * _spread(tree, d)
            if most < spread < limit:
                axis, most = d, spread
        cut, below = _cut(tree, axis, (LEAF + 1) // 2)
        if axis == NONE or _LEAST <= below <= LEAF + 1 - _LEAST:
            return axis, cut
        limit = most


@bare
def _choose_credit(space: Space, tree: RowTree, node: int) -> tuple[int, float]:
    """Return the axis and the cut for many rows, of which `full` has a sample.

    The rows with the most credit are cut off first, and those with the most of these again: a few rows with much credit
    would make all nodes that have one of them look near.
    """
    credit = tree.points.shape[0]
    if node == 0 or (node % 2 == 0 and tree.links[tree.links[node, PARENT], AXIS] == credit):
        cut, below = _cut(tree, credit, 3 * LEAF // 4)
        if below > 0:
            return credit, cut
    return _choose_cut(space, tree)


@bare
def _divide(tree: RowTree, node: int, axis: int, cut: float) -> int:
    """Give a node two children, and return the first."""
    tree.free[0] -= 1
    left = 2 * tree.pairs[tree.free[0]] + 1
    tree.links[node, LEFT], tree.links[node, AXIS], tree.marks[node, CUT] = left, axis, cut
    tree.links[left, PARENT] = tree.links[left + 1, PARENT] = node
    return left


@bare
def _is_above(tree: RowTree, node: int, row: int) -> bool:
    """Return whether a row belongs to the second child of a node."""
    return _value(tree, row, tree.links[node, AXIS]) >= tree.marks[node, CUT]


@bare
def _split_leaf(space: Space, tree: RowTree, node: int, row: int) -> None:
    """Split a leaf that has no space for the row."""
    full, links, block = tree.full, tree.links, tree.links[node, BLOCK]
    for i in range(LEAF):
        full[i] = tree.rows[block * LEAF + i]
    full[LEAF] = row
    axis, cut = _choose_cut(space, tree)
    left = _divide(tree, node, axis, cut)
    links[node, ROWS] += 1
    _make_leaf(tree, left, block)
    _make_leaf(tree, left + 1, _take_block(tree))
    for i in range(full.size):
        _put(tree, left + _is_above(tree, node, full[i]), full[i])
    for child in range(left, left + 2):
        _cover_again(tree, child)
    _cover_again(tree, node)


@bare
def insert_row(space: Space, tree: RowTree, top: int, row: int) -> int:
    """Add a row below a node. Return a node that should be rebuilt because most rows are below one child, or NONE."""
    links, node, lopsided = tree.links, top, NONE
    while links[node, LEFT] != NONE:
        left, rows = links[node, LEFT], links[node, ROWS]
        if links[node, ADDED] >= rows:
            most = max(links[left, ROWS], links[left + 1, ROWS])
            if lopsided == NONE and rows > _LARGE and most > _LOPSIDED * rows:
                lopsided = node
            _cover_again(tree, node)
        links[node, ROWS] += 1
        links[node, ADDED] += 1
        node = left + _is_above(tree, node, row)
    if links[node, ROWS] == LEAF:
        _split_leaf(space, tree, node, row)
    else:
        _put(tree, node, row)
        links[node, ADDED] += 1
        if links[node, ADDED] > LEAF:
            _cover_again(tree, node)
        else:
            _cover_row(tree, node, row)
    node = links[node, PARENT]
    while node != NONE and _cover_row(tree, node, row):  # if a box contains the row, so do all boxes above it
        node = links[node, PARENT]
    return lopsided


@bare
def _partition(tree: RowTree, node: int, rows: Array) -> int:
    """Put the rows that belong to the first child of a node before the others, and return how many these are."""
    i, j = 0, rows.size - 1
    while i <= j:
        if _is_above(tree, node, rows[i]):
            rows[i], rows[j] = rows[j], rows[i]
            j -= 1
        else:
            i += 1
    return i


@bare
def insert_all(space: Space, tree: RowTree, top: int, rows: Array) -> None:
    """Add rows below a leaf that has none. Their order changes."""
    links, node = tree.links, top
    _free_block(tree, links[top, BLOCK])
    links[top, ROWS], links[top, ADDED] = rows.size, 0  # meanwhile, ADDED says where the rows of a node begin
    while True:
        while links[node, ROWS] > LEAF:
            start, count = links[node, ADDED], np.int64(links[node, ROWS])
            for i in range(LEAF + 1):
                tree.full[i] = rows[start + i * count // (LEAF + 1)]
            if tree.credit.size > 0 and count > _LARGE:
                axis, cut = _choose_credit(space, tree, node)
            else:
                axis, cut = _choose_cut(space, tree)
            left = _divide(tree, node, axis, cut)
            below = _partition(tree, node, rows[start : start + count])
            links[left, ROWS], links[left, ADDED] = below, start
            links[left + 1, ROWS], links[left + 1, ADDED] = count - below, start + below
            node = left
        start, count = links[node, ADDED], links[node, ROWS]
        _make_leaf(tree, node, _take_block(tree))
        for i in range(start, start + count):
            _put(tree, node, rows[i])
        _cover_again(tree, node)
        while node != top and node % 2 == 0:  # a second child
            node = links[node, PARENT]
            _cover_again(tree, node)
        if node == top:
            break
        node += 1


# --- Removing rows ---


@bare
def _remove_leaf(tree: RowTree, node: int) -> int:
    """Remove a leaf without rows: its sibling becomes its parent. Return that node."""
    links = tree.links
    parent = links[node, PARENT]
    left = links[parent, LEFT]
    other = left + 1 if node == left else left
    _free_block(tree, links[node, BLOCK])
    _free_pair(tree, left)
    for column in range(LEFT, links.shape[1]):
        links[parent, column] = links[other, column]
    for column in range(tree.marks.shape[1]):
        tree.marks[parent, column] = tree.marks[other, column]
    for d in range(tree.boxes.shape[2]):
        tree.boxes[parent, 0, d], tree.boxes[parent, 1, d] = tree.boxes[other, 0, d], tree.boxes[other, 1, d]
    if links[parent, LEFT] == NONE:
        tree.node_of[links[parent, BLOCK]] = parent
    else:
        for child in range(links[parent, LEFT], links[parent, LEFT] + 2):
            links[child, PARENT] = parent
    return parent


@bare
def _join_leaves(tree: RowTree, node: int) -> None:
    """Make a node of two leaves one leaf."""
    links = tree.links
    left = links[node, LEFT]
    block, start = links[left, BLOCK], links[left + 1, BLOCK] * LEAF
    for i in range(start, start + links[left + 1, ROWS]):
        _put(tree, left, tree.rows[i])
    _free_block(tree, links[left + 1, BLOCK])
    _free_pair(tree, left)
    links[node, LEFT], links[node, BLOCK] = NONE, block
    tree.node_of[block] = node
    _cover_again(tree, node)


@bare
def remove_row(tree: RowTree, row: int) -> None:
    """Remove a row."""
    links, at = tree.links, tree.where[row]
    block = at // LEAF
    node = tree.node_of[block]
    links[node, ROWS] -= 1
    last = block * LEAF + links[node, ROWS]
    tree.rows[at] = tree.rows[last]
    tree.where[tree.rows[at]] = at
    for d in range(tree.columns.shape[1]):
        tree.columns[block, d, at % LEAF] = tree.columns[block, d, last % LEAF]
    if links[node, ROWS] == 0 and node != 0:
        node = _remove_leaf(tree, node)
    node = links[node, PARENT]
    while node != NONE:
        links[node, ROWS] -= 1
        if links[node, ROWS] <= _FEW:
            _join_leaves(tree, node)
        node = links[node, PARENT]


@bare
def rebuild(space: Space, tree: RowTree, top: int, rows: Array) -> None:
    """Rebuild the tree below a node. `rows` is scratch space for all its rows."""
    links, node, count = tree.links, top, 0
    while True:
        while links[node, LEFT] != NONE:
            node = links[node, LEFT]
        for i in range(links[node, ROWS]):
            rows[count] = tree.rows[links[node, BLOCK] * LEAF + i]
            count += 1
        _free_block(tree, links[node, BLOCK])
        while node != top and node % 2 == 0:  # a second child
            node = links[node, PARENT]
            _free_pair(tree, links[node, LEFT])
        if node == top:
            break
        node += 1
    _make_leaf(tree, top, _take_block(tree))
    insert_all(space, tree, top, rows[:count])


@bare
def move_row(tree: RowTree, row: int, to: int) -> None:
    """Call a row by another number."""
    tree.rows[tree.where[row]] = to
    tree.where[to] = tree.where[row]


@bare
def add_row(space: Space, tree: RowTree, row: int, rows: Array) -> None:
    """Add a row, and rebuild what needs it. `rows` is scratch space for all rows."""
    if tree.free[0] == 0 or tree.free[1] == 0:  # leaves with few rows occupy the space
        rebuild(space, tree, 0, rows)
    lopsided = insert_row(space, tree, 0, row)
    if lopsided != NONE:
        rebuild(space, tree, lopsided, rows)


# --- Searching ---


@bare
def least_growth(space: Space, boxes: Array, node: int, lo: Array, hi: Array, leaf: Array) -> float:
    """Return the least that the loss of a box grows by taking a row below the node; `boxes` are those of the tree.

    It is computed as the growth by a row is, and each step is monotone: it never exceeds the growth by any of the rows.
    """
    total = 0.0
    for d in range(lo.size):
        x = min(max(lo[d], boxes[node, 0, d]), boxes[node, 1, d])  # the nearest; inside, if there is one
        scale, width = space.dimensions[d].scale, hi[d] - lo[d]
        if space.dimensions[d].kind == INTERVAL:
            total += scale * ((max(hi[d], x) - min(lo[d], x)) - width)
        elif x < lo[d] or x > hi[d]:
            new_lo, new_hi, _ = widen(space, d, lo[d], hi[d], np.int64(leaf[d]), x, x)
            total += scale * ((new_hi - new_lo) - width)
    return total
