"""Bastion's cells: where many rows are held, a group is chosen among the rows of the nearest cells.

Cells are what cuts leave of the space of the quasi-identifiers. They are learned from a sample of the held rows, and
learned anew when about as many rows have arrived as were held. A search looks at a few thousand rows, however many are
held. No result depends on where a cell keeps its rows: a snapshot has the cuts, and nothing else of the cells.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array
from crenel.engine.kernels.box_geometry import Space
from crenel.engine.kernels.compiler import bare, kernel
from crenel.engine.kernels.row_tree import least_growth

#: Rows of a block. All blocks of a cell but the first one are full.
BLOCK = 64
#: The most cells, nodes of the cuts, and rows that they are learned from.
_CELLS, _SAMPLE = 4096, 16384
MOST_NODES = 2 * _CELLS
#: The most rows of a cell's sample that the cut is chosen by, and the fewest that a cell is cut for.
_LOOK, _FEW = 65, 8
#: A cell should have at most this part of the rows that a group is chosen among.
_PART = 8
#: A cut leaves at least a quarter of a cell on either side, so there are hardly ever more cells than this part allows.
_LEAST_PART = 4 * _PART

#: The columns of `links`. LEFT is the first of two children, which lie side by side, or NONE for a cell; AXIS is the
#: quasi-identifier that is cut; FIRST is a cell's first block, or NONE; ROWS are its rows; CELL is its number.
LEFT, AXIS, FIRST, ROWS, CELL = range(5)
#: Those that a snapshot has.
STORED = (LEFT, AXIS, CELL)


class Cells(NamedTuple):
    """The cuts, and the rows of the cells; all arrays are empty as long as they are not used."""

    links: Any  # [node, column]; node 0 is the root
    cut: Any  # by node: rows with at least this value are in the second child
    boxes: Any  # [node, 2, quasi-identifier]: lo and hi
    columns: Any  # [block, quasi-identifier, row]
    place: Any  # of each row of each block
    number: Any
    person: Any
    deadline: Any  # empty if the policy has no delay
    lonely: Any
    next: Any  # by block: the next one of its cell, or NONE
    node: Any  # by block: its cell
    where: Any  # by place: where the row is in the blocks
    free: Any  # blocks; the free ones come first
    counts: Any  # how many blocks are free, and how many nodes there are
    sample: Any  # scratch space: places
    look: Any  # scratch space: values


def most_nodes(rows: int, search: int) -> int:
    """Return how many nodes the cuts may have. Memory is reserved for them, in each shard."""
    return 2 * min(_CELLS, _LEAST_PART * rows // search)


def empty_cells(dimensions: int, capacity: int, timed: bool, nodes: int) -> Cells:
    """Return cells for at most `capacity` rows and `nodes` nodes. They must be cut before they are used."""
    blocks = capacity // BLOCK + nodes // 2 + 1 if capacity > 0 else 0
    rows, nodes = blocks * BLOCK, max(nodes, 1)
    return Cells(
        links=np.full((nodes, 5), NONE, dtype=np.int32),
        cut=np.zeros(nodes),
        boxes=np.empty((nodes, 2, dimensions)),
        columns=np.empty((blocks, dimensions, BLOCK)),
        place=np.empty(rows, dtype=np.int64),
        number=np.empty(rows, dtype=np.int64),
        person=np.empty(rows, dtype=np.int64),
        deadline=np.empty(rows if timed else 0, dtype=np.int64),
        lonely=np.empty(rows, dtype=np.float32),
        next=np.empty(blocks, dtype=np.int32),
        node=np.empty(blocks, dtype=np.int32),
        where=np.empty(capacity, dtype=np.int64),
        free=np.arange(blocks, dtype=np.int32),
        counts=np.array([blocks, 1]),
        sample=np.empty((2, min(capacity, _SAMPLE)), dtype=np.int64),
        look=np.empty(_LOOK),
    )


def take_over(cells: Cells, before: Cells) -> None:
    """Put the cuts and rows of other cells, which had less space, into cells without any."""
    if len(before.where) == 0:
        return
    for name in ("links", "cut", "boxes", "columns", "place", "number", "person", "deadline", "lonely", "next", "node"):
        old = getattr(before, name)
        getattr(cells, name)[: len(old)] = old
    cells.where[: len(before.where)] = before.where
    more, free = len(cells.free) - len(before.free), int(before.counts[0])
    cells.free[:more] = np.arange(len(before.free), len(cells.free))
    cells.free[more : more + free] = before.free[:free]
    cells.counts[:] = more + free, before.counts[1]


def restore_cuts(cells: Cells, links: Array, cut: Array) -> None:
    """Restore the cuts of cells without rows from what a snapshot has of them."""
    nodes = len(cut)
    cells.links[:nodes, STORED] = links.T
    cells.cut[:nodes] = cut
    cells.counts[1] = nodes
    cells.boxes[0, 0], cells.boxes[0, 1] = -np.inf, np.inf
    for node in np.flatnonzero(cells.links[:nodes, LEFT] != NONE):
        left, axis = cells.links[node, [LEFT, AXIS]]
        cells.boxes[left : left + 2] = cells.boxes[node]
        cells.boxes[left, 1, axis] = cells.boxes[left + 1, 0, axis] = cut[node]


# --- Cuts ---


@bare
def _sort(values: Array) -> None:
    for i in range(1, values.size):
        x, j = values[i], i
        while j > 0 and values[j - 1] > x:
            values[j] = values[j - 1]
            j -= 1
        values[j] = x


@bare
def _cut_of(values: Array) -> tuple[float, float]:
    """Return the cut of some sorted values, and how far they are from their median; -1 if they cannot be cut.

    At least a quarter of them is on either side.
    """
    count, middle, spread = values.size, values[values.size // 2], 0.0
    at = values.size // 2
    while at > 0 and values[at - 1] == middle:
        at -= 1
    if 4 * at < count:
        while at < count and values[at] == middle:
            at += 1
    if 4 * at < count or 4 * (count - at) < count:
        return 0.0, -1.0
    for i in range(count):
        spread += abs(values[i] - middle)
    return values[at], spread


@bare
def _choose_cut(space: Space, cells: Cells, node: int, columns: Array, rows: Array, some: Array) -> bool:
    """Choose the cut of a node by some of its rows: along the quasi-identifier in which they differ most."""
    count = min(rows.size, _LOOK)
    look, widest, axis = cells.look[:count], -1.0, NONE
    for i in range(count):
        some[i] = rows[i * rows.size // count]
    for d in range(columns.shape[0]):
        for i in range(count):
            look[i] = columns[d, some[i]]
        _sort(look)
        cut, spread = _cut_of(look)
        spread *= space.dimensions[d].scale
        if spread > widest and spread > 0.0:
            widest, axis = spread, d
            cells.cut[node] = cut
    cells.links[node, AXIS] = axis
    return axis != NONE


@bare
def _divide_rows(cells: Cells, node: int, columns: Array, rows: Array, other: Array) -> int:
    """Put the rows below the cut before the others, each in their order; return how many these are."""
    axis, cut, below, above = cells.links[node, AXIS], cells.cut[node], 0, 0
    for i in range(rows.size):
        if columns[axis, rows[i]] < cut:
            rows[below] = rows[i]
            below += 1
        else:
            other[above] = rows[i]
            above += 1
    for i in range(above):
        rows[below + i] = other[i]
    return below


@bare
def _open_node(cells: Cells, node: int) -> None:
    """Give a node two children."""
    left, axis = cells.counts[1], cells.links[node, AXIS]
    cells.counts[1] += 2
    cells.links[node, LEFT] = left
    for child in range(left, left + 2):
        for j in range(2):
            for d in range(cells.boxes.shape[2]):
                cells.boxes[child, j, d] = cells.boxes[node, j, d]
    cells.boxes[left, 1, axis] = cells.boxes[left + 1, 0, axis] = cells.cut[node]


@bare
def _clear(cells: Cells) -> None:
    """Free all blocks, and begin with one node."""
    for block in range(cells.free.size):
        cells.free[block] = block
    cells.counts[0], cells.counts[1] = cells.free.size, 1
    for d in range(cells.boxes.shape[2]):
        cells.boxes[0, 0, d], cells.boxes[0, 1, d] = -np.inf, np.inf


@bare
def cut_cells(space: Space, cells: Cells, held: Any, first: int, places: int, count: int, search: int) -> None:
    """Learn the cuts from a sample of the `count` held rows, of which none is before `first`; sort all into cells."""
    _clear(cells)
    size, nodes = min(count, cells.sample.shape[1]), 2 * min(_CELLS, _LEAST_PART * count // search)
    most, rank, taken = max(search * size // (_PART * count), _FEW), 0, 0
    rows, other = cells.sample[0], cells.sample[1]
    for i in range(first, places):
        if held.number[i] == NONE:
            continue
        if taken < size and rank == taken * count // size:
            rows[taken] = i
            taken += 1
        rank += 1
    links = cells.links
    links[0, FIRST], links[0, ROWS] = 0, taken  # meanwhile these say which rows of the sample a node has
    node, number = 0, 0
    order = cells.where  # scratch space: the nodes that wait
    order[0], waiting = 0, 1
    while waiting > 0:
        waiting -= 1
        node = order[waiting]
        begin, own = np.int64(links[node, FIRST]), np.int64(links[node, ROWS])
        mine = rows[begin : begin + own]
        if own > most and cells.counts[1] + 2 <= nodes and _choose_cut(space, cells, node, held.columns, mine, other):
            below = _divide_rows(cells, node, held.columns, mine, other)
            _open_node(cells, node)
            left = links[node, LEFT]
            links[left, FIRST], links[left, ROWS] = begin, below
            links[left + 1, FIRST], links[left + 1, ROWS] = begin + below, own - below
            order[waiting], order[waiting + 1] = left + 1, left
            waiting += 2
            continue
        links[node, LEFT], links[node, CELL] = NONE, number
        number += 1
    fill_cells(cells, held, first, places)


@kernel
def fill_cells(cells: Cells, held: Any, first: int, places: int) -> None:
    """Sort all held rows into cells that have none."""
    for node in range(cells.counts[1]):
        cells.links[node, FIRST], cells.links[node, ROWS] = NONE, 0
    for i in range(first, places):
        if held.number[i] != NONE:
            put_in_cell(cells, held, i)


# --- Rows ---


@bare
def put_in_cell(cells: Cells, held: Any, place: int) -> None:
    """Add a held row to its cell."""
    links, node = cells.links, 0
    while links[node, LEFT] != NONE:
        node = links[node, LEFT] + (held.columns[links[node, AXIS], place] >= cells.cut[node])
    at = links[node, ROWS] % BLOCK
    if at == 0:
        cells.counts[0] -= 1
        block = cells.free[cells.counts[0]]
        cells.next[block], cells.node[block] = links[node, FIRST], node
        links[node, FIRST] = block
    block = links[node, FIRST]
    to = block * BLOCK + at
    for d in range(held.columns.shape[0]):
        cells.columns[block, d, at] = held.columns[d, place]
    cells.place[to], cells.number[to], cells.person[to] = place, held.number[place], held.person[place]
    cells.lonely[to] = held.lonely[place]
    if held.deadline.size > 0:
        cells.deadline[to] = held.deadline[place]
    cells.where[place] = to
    links[node, ROWS] += 1


@bare
def take_from_cell(cells: Cells, place: int) -> None:
    """Remove a row: the last one of the cell's first block takes its place."""
    links, to = cells.links, cells.where[place]
    node = cells.node[to // BLOCK]
    links[node, ROWS] -= 1
    block = links[node, FIRST]
    last = block * BLOCK + links[node, ROWS] % BLOCK
    for d in range(cells.columns.shape[1]):
        cells.columns[to // BLOCK, d, to % BLOCK] = cells.columns[block, d, last % BLOCK]
    cells.place[to], cells.number[to], cells.person[to] = cells.place[last], cells.number[last], cells.person[last]
    cells.lonely[to] = cells.lonely[last]
    if cells.deadline.size > 0:
        cells.deadline[to] = cells.deadline[last]
    cells.where[cells.place[to]] = to
    if links[node, ROWS] % BLOCK == 0:
        links[node, FIRST] = cells.next[block]
        cells.free[cells.counts[0]] = block
        cells.counts[0] += 1


@bare
def move_in_cell(cells: Cells, place: int, to: int) -> None:
    """Note that a row has another place."""
    cells.place[cells.where[place]] = to
    cells.where[to] = cells.where[place]


# --- The nearest cells ---


@bare
def _is_before(cells: Cells, key: Array, node: Array, i: int, j: int) -> bool:
    """Return whether one waiting node is nearer than another: of equally near ones, nodes of cells, then cells."""
    if key[i] != key[j]:
        return key[i] < key[j]
    return _rank(cells, node[i]) < _rank(cells, node[j])


@bare
def _rank(cells: Cells, node: int) -> int:
    return np.int64(cells.links[node, CELL]) if cells.links[node, LEFT] == NONE else NONE


@bare
def _exchange(key: Array, node: Array, i: int, j: int) -> None:
    key[i], key[j] = key[j], key[i]
    node[i], node[j] = node[j], node[i]


@bare
def _add_waiting(space: Space, cells: Cells, box: Array, new: int, key: Array, node: Array, waiting: int) -> None:
    """Add a node to the heap of waiting ones, which has the nearest first."""
    key[waiting] = least_growth(space, cells.boxes, new, box[0], box[1], box[2])
    node[waiting] = new
    i = waiting
    while i > 0 and _is_before(cells, key, node, i, (i - 1) // 2):
        _exchange(key, node, i, (i - 1) // 2)
        i = (i - 1) // 2


@bare
def _sink_first(cells: Cells, key: Array, node: Array, waiting: int) -> None:
    """Move the first of `waiting` nodes down the heap to where it belongs."""
    i = 0
    while 2 * i + 1 < waiting:
        child = 2 * i + 1
        if child + 1 < waiting and _is_before(cells, key, node, child + 1, child):
            child += 1
        if not _is_before(cells, key, node, child, i):
            break
        _exchange(key, node, i, child)
        i = child


@bare
def _drop_first(cells: Cells, key: Array, node: Array, waiting: int) -> None:
    """Remove the first of `waiting` nodes from the heap."""
    last = waiting - 1
    key[0], node[0] = key[last], node[last]
    _sink_first(cells, key, node, last)


@bare
def next_cell(space: Space, cells: Cells, box: Array, key: Array, node: Array, waiting: int) -> int:
    """Bring the nearest waiting cell to the front of the heap. Return how many nodes wait; 0 if no cell is left."""
    links, boxes = cells.links, cells.boxes
    while waiting > 0 and links[node[0], LEFT] != NONE:
        parent = node[0]
        left, axis = links[parent, LEFT], links[parent, AXIS]
        # One child has the parent's nearest value along the axis. It is as near as the parent, and stays first.
        x = min(max(box[0, axis], boxes[parent, 0, axis]), boxes[parent, 1, axis])
        is_below = x < cells.cut[parent]
        node[0] = left if is_below else left + 1
        if links[node[0], LEFT] == NONE:
            _sink_first(cells, key, node, waiting)
        _add_waiting(space, cells, box, left + is_below, key, node, waiting)
        waiting += 1
    return waiting


@bare
def drop_cell(cells: Cells, key: Array, node: Array, waiting: int) -> int:
    """Remove the nearest cell from the heap, and return how many nodes still wait."""
    _drop_first(cells, key, node, waiting)
    return waiting - 1
