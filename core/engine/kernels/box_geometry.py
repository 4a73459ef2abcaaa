"""The geometry of boxes: the span that is published for a range, the loss of a box, and how much a box grows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array
from crenel.engine.kernels.compiler import bare, inner
from crenel.engine.kernels.interpreter import instead_of, without_compiler

#: Kinds of quasi-identifiers: numbers and times; categories, in a tree; prefixes, in blocks of digits.
INTERVAL, TREE, RADIX = 0, 1, 2
DIMENSION = np.dtype(
    [
        ("kind", "i8"),
        ("digits", "f8"),  # of a prefix: how many different digits there are
        ("share", "f8"),  # weight / sum of weights
        ("scale", "f8"),  # share / width of the domain
        ("cell", "f8"),  # width of what one coordinate stands for
        ("learned", "i8"),  # whether the domain is not declared, but grows with the rows
        ("domain_lo", "f8"),
        ("domain_hi", "f8"),
        ("widest_lo", "f8"),  # what is published for a suppressed row
        ("widest_hi", "f8"),
        ("leaf_offset", "i8"),  # of a category: where its leaves begin in `Space.leaf`
    ]
)
NODE = np.dtype([("parent", "i8"), ("first", "f8"), ("last", "f8")])


class Space(NamedTuple):
    """The quasi-identifiers. The trees of all of them lie in one array of nodes."""

    dimensions: Any  # DIMENSION
    nodes: Any  # NODE
    leaf: Any  # node of each leaf, from leaf_offset on


class Boxes(NamedTuple):
    """Boxes, one per column: the ends of their spans, and the tree nodes of the spans.

    Each quasi-identifier is one line of memory, so that vector instructions compare one row with many boxes.
    """

    lo: Any
    hi: Any
    node: Any


@bare
def widen(space: Space, d: int, lo: float, hi: float, node: int, x_lo: float, x_hi: float) -> tuple[float, float, int]:
    """Return the smallest span of quasi-identifier `d` that contains two ranges.

    The first, [lo, hi], is a span itself, that of tree node `node`; the second is [x_lo, x_hi].
    """
    if x_lo >= lo and x_hi <= hi:
        return lo, hi, node
    dimension = space.dimensions[d]
    if dimension.kind == INTERVAL:
        return min(lo, x_lo), max(hi, x_hi), node
    if dimension.kind == TREE:
        nodes = space.nodes
        while nodes[node].first > x_lo or nodes[node].last < x_hi:
            node = nodes[node].parent
        return nodes[node].first, nodes[node].last, node
    size = hi - lo + 1.0
    while x_lo < lo or x_hi > hi:
        size *= dimension.digits
        lo = np.floor(lo / size) * size
        hi = lo + size - 1.0
    return lo, hi, node


@inner
def span_of(space: Space, d: int, lo: float, hi: float) -> tuple[float, float, int]:
    """Return the smallest span of quasi-identifier `d` that contains [lo, hi], and its tree node."""
    dimension = space.dimensions[d]
    if dimension.kind == INTERVAL:
        return lo, hi, NONE
    if dimension.kind == TREE:
        node = space.leaf[dimension.leaf_offset + np.int64(lo)]
        while space.nodes[node].last < hi:
            node = space.nodes[node].parent
        return space.nodes[node].first, space.nodes[node].last, node
    size = 1.0
    first = lo
    while first + size - 1.0 < hi:
        size *= dimension.digits
        first = np.floor(lo / size) * size
    return first, first + size - 1.0, NONE


@bare
def point_box(space: Space, row: Array, boxes: Boxes, at: int) -> None:
    """Make box `at` the box of one row."""
    lo, hi, node = boxes.lo, boxes.hi, boxes.node
    for d in range(row.size):
        lo[d, at] = hi[d, at] = row[d]
        dimension = space.dimensions[d]
        if dimension.kind == TREE:
            node[d, at] = space.leaf[dimension.leaf_offset + np.int64(row[d])]


@bare
def grow_box(space: Space, row: Array, boxes: Boxes, at: int) -> None:
    """Grow box `at` until it contains the row."""
    lo, hi, node = boxes.lo, boxes.hi, boxes.node
    for d in range(row.size):
        x = row[d]
        if x < lo[d, at] or x > hi[d, at]:
            lo[d, at], hi[d, at], node[d, at] = widen(space, d, lo[d, at], hi[d, at], node[d, at], x, x)


@bare
def join_boxes(space: Space, boxes: Boxes, at: int, other: int) -> None:
    """Grow box `at` until it contains box `other`."""
    lo, hi, node = boxes.lo, boxes.hi, boxes.node
    for d in range(lo.shape[0]):
        lo[d, at], hi[d, at], node[d, at] = widen(
            space, d, lo[d, at], hi[d, at], node[d, at], lo[d, other], hi[d, other]
        )


@bare
def move_box(boxes: Boxes, source: int, target: int) -> None:
    """Copy box `source` to the column `target`."""
    for d in range(boxes.lo.shape[0]):
        boxes.lo[d, target] = boxes.lo[d, source]
        boxes.hi[d, target] = boxes.hi[d, source]
        boxes.node[d, target] = boxes.node[d, source]


@bare
def loss_of(space: Space, lo: Array, hi: Array) -> float:
    """Return the generalized loss of a box, from 0 to 1."""
    total = 0.0
    for d in range(lo.size):
        total += space.dimensions[d].scale * (hi[d] - lo[d] + space.dimensions[d].cell)
    return total


@bare
def loss_with(space: Space, boxes: Boxes, at: int, row: Array) -> float:
    """Return the loss that box `at` has once it contains the row."""
    los, his, node = boxes.lo, boxes.hi, boxes.node
    total = 0.0
    for d in range(row.size):
        lo, hi, _ = widen(space, d, los[d, at], his[d, at], node[d, at], row[d], row[d])
        total += space.dimensions[d].scale * (hi - lo + space.dimensions[d].cell)
    return total


@bare
def enlargements(space: Space, boxes: Boxes, row: Array, enlargement: Array) -> None:
    """Write how much the loss of each box grows if it takes the row, for the first `enlargement.size` boxes."""
    n = enlargement.size
    for i in range(n):
        enlargement[i] = 0.0
    for d in range(row.size):
        x = row[d]
        scale = space.dimensions[d].scale
        lo, hi, node = boxes.lo[d], boxes.hi[d], boxes.node[d]
        if space.dimensions[d].kind == INTERVAL:
            for i in range(n):
                enlargement[i] += scale * ((max(hi[i], x) - min(lo[i], x)) - (hi[i] - lo[i]))
        elif space.dimensions[d].kind == TREE:  # the same as `widen`, which takes three times as long here
            nodes = space.nodes
            for i in range(n):
                if x < lo[i] or x > hi[i]:
                    at = node[i]
                    while nodes[at].first > x or nodes[at].last < x:
                        at = nodes[at].parent
                    enlargement[i] += scale * ((nodes[at].last - nodes[at].first) - (hi[i] - lo[i]))
        else:
            for i in range(n):
                if x < lo[i] or x > hi[i]:
                    new_lo, new_hi, _ = widen(space, d, lo[i], hi[i], node[i], x, x)
                    enlargement[i] += scale * ((new_hi - new_lo) - (hi[i] - lo[i]))


@bare
def enlargements_by(space: Space, boxes: Boxes, at: int, columns: Array, rows: Array, enlargement: Array) -> None:
    """Write how much the loss of box `at` grows if it takes each of `rows`, which are columns of `columns`."""
    n = enlargement.size
    for i in range(n):
        enlargement[i] = 0.0
    for d in range(columns.shape[0]):
        column = columns[d]
        scale = space.dimensions[d].scale
        lo, hi, node = boxes.lo[d, at], boxes.hi[d, at], boxes.node[d, at]
        width = hi - lo
        if space.dimensions[d].kind == INTERVAL:
            for i in range(n):
                x = column[rows[i]]
                enlargement[i] += scale * ((max(hi, x) - min(lo, x)) - width)
        elif space.dimensions[d].kind == TREE:
            nodes = space.nodes
            for i in range(n):
                x = column[rows[i]]
                if x < lo or x > hi:
                    ancestor = node
                    while nodes[ancestor].first > x or nodes[ancestor].last < x:
                        ancestor = nodes[ancestor].parent
                    enlargement[i] += scale * ((nodes[ancestor].last - nodes[ancestor].first) - width)
        else:
            for i in range(n):
                x = column[rows[i]]
                if x < lo or x > hi:
                    new_lo, new_hi, _ = widen(space, d, lo, hi, node, x, x)
                    enlargement[i] += scale * ((new_hi - new_lo) - width)


@instead_of(enlargements_by)
def _enlargements_by_in_numpy(
    space: Space, boxes: Boxes, at: int, columns: Array, rows: Array, enlargement: Array
) -> None:
    widened = without_compiler(getattr(widen, "py_func", widen))
    enlargement[:] = 0.0
    for d in range(columns.shape[0]):
        x, scale = columns[d][rows[: enlargement.size]], space.dimensions[d].scale
        lo, hi, node = boxes.lo[d, at], boxes.hi[d, at], boxes.node[d, at]
        if space.dimensions[d].kind == INTERVAL:
            enlargement += scale * ((np.maximum(hi, x) - np.minimum(lo, x)) - (hi - lo))
            continue
        for i in np.flatnonzero((x < lo) | (x > hi)):
            new_lo, new_hi, _ = widened(space, d, lo, hi, node, x[i], x[i])
            enlargement[i] += scale * ((new_hi - new_lo) - (hi - lo))


@bare
def enlargements_of(space: Space, boxes: Boxes, at: int, columns: Array, enlargement: Array) -> None:
    """Do the same for the first `enlargement.size` rows of `columns`, which lie side by side."""
    n = enlargement.size
    for i in range(n):
        enlargement[i] = 0.0
    for d in range(columns.shape[0]):
        column = columns[d]
        scale = space.dimensions[d].scale
        lo, hi, node = boxes.lo[d, at], boxes.hi[d, at], boxes.node[d, at]
        width = hi - lo
        if space.dimensions[d].kind == INTERVAL:
            for i in range(n):
                enlargement[i] += scale * ((max(hi, column[i]) - min(lo, column[i])) - width)
        else:
            for i in range(n):
                if column[i] < lo or column[i] > hi:
                    new_lo, new_hi, _ = widen(space, d, lo, hi, node, column[i], column[i])
                    enlargement[i] += scale * ((new_hi - new_lo) - width)


@bare
def enlargement_by_box(space: Space, boxes: Boxes, at: int, other: int) -> float:
    """Return how much the loss of box `at` grows if it takes box `other`."""
    los, his = boxes.lo, boxes.hi
    total = 0.0
    for d in range(los.shape[0]):
        lo, hi = los[d, at], his[d, at]
        new_lo, new_hi, _ = widen(space, d, lo, hi, boxes.node[d, at], los[d, other], his[d, other])
        total += space.dimensions[d].scale * ((new_hi - new_lo) - (hi - lo))
    return total


@bare
def inside(lo: Array, hi: Array, row: Array) -> bool:
    """Return whether a box contains the row. A missing coordinate (NaN) is inside any span."""
    for d in range(row.size):
        if row[d] < lo[d] or row[d] > hi[d]:
            return False
    return True


@bare
def write_widest(space: Space, lo: Array, hi: Array) -> None:
    """Write the box that is published for a suppressed row: it contains every row."""
    for d in range(lo.size):
        lo[d] = space.dimensions[d].widest_lo
        hi[d] = space.dimensions[d].widest_hi


@bare
def learn_domains(space: Space, row: Array) -> None:
    """Widen the domains that are not declared until they contain the row."""
    for d in range(row.size):
        dimension = space.dimensions[d]
        if dimension.learned and (row[d] < dimension.domain_lo or row[d] > dimension.domain_hi):
            dimension.domain_lo = min(dimension.domain_lo, row[d])
            dimension.domain_hi = max(dimension.domain_hi, row[d])
            width = dimension.domain_hi - dimension.domain_lo + dimension.cell
            dimension.scale = dimension.share / width if width > 0.0 else 0.0
