"""Bastion's loops over all held rows: the losses of many boxes at once, and the smallest of many numbers."""

from __future__ import annotations

import numpy as np

from crenel.engine.kernels.arrays import Array, copy_into
from crenel.engine.kernels.box_geometry import INTERVAL, TREE, Space
from crenel.engine.kernels.compiler import bare, kernel, vectorized
from crenel.engine.methods.bastion.bastion_box import leaf_of
from crenel.engine.methods.bastion.bastion_state import LANES, PART, Terrain

#: The range of values is halved until at most this number of values is left.
_FEW_VALUES = 8
#: A tree with at most this number of leaves per value is tabulated by leaf; a larger one is climbed from each value.
_LEAVES_A_VALUE = 8

# --- Losses ---


@vectorized
def _add_distances(column: Array, x: float, scale: float, total: Array) -> None:
    """Add the distance of each value from x."""
    for i in range(total.size):
        total[i] += scale * abs(column[i] - x)


@vectorized
def come_nearer(offset: Array, sign: float, old: float, new: float, total: Array) -> None:
    """Subtract how much nearer each offset is to the end of an interval that moves outwards."""
    for i in range(total.size):
        x = sign * offset[i]
        total[i] += max(x - new, np.float32(0.0)) - max(x - old, np.float32(0.0))


@bare
def _grow_by_leaf(space: Space, node: int, scale: float, growth: Array) -> None:
    """Write how much the span of a tree node grows by taking in each leaf. The tree is climbed once for all leaves."""
    nodes = space.nodes
    first, last = np.int64(nodes[node].first), np.int64(nodes[node].last)
    width = last - first
    for leaf in range(first, last + 1):
        growth[leaf] = 0.0
    while last - first + 1 < growth.size:
        node = nodes[node].parent
        lo, hi = np.int64(nodes[node].first), np.int64(nodes[node].last)
        more = scale * ((hi - lo) - width)
        for leaf in range(lo, first):
            growth[leaf] = more
        for leaf in range(last + 1, hi + 1):
            growth[leaf] = more
        first, last = lo, hi


@vectorized
def _add_of_leaves(column: Array, growth: Array, total: Array) -> None:
    """Add the table's number for each value."""
    for i in range(total.size):
        total[i] += growth[np.uint32(column[i])]


@bare
def _spans_around(space: Space, d: int, lo: float, hi: float, node: int, scale: float, spans: Array) -> int:
    """Write a span and all spans that it widens to, and how much it grows to each; return how many there are."""
    dimension, nodes, count = space.dimensions[d], space.nodes, 0
    first, last, size = lo, hi, hi - lo + 1.0
    while True:
        spans[0, count], spans[1, count], spans[2, count] = first, last, scale * ((last - first) - (hi - lo))
        count += 1
        if first <= dimension.widest_lo and last >= dimension.widest_hi:
            return count
        if dimension.kind == TREE:
            node = nodes[node].parent
            first, last = nodes[node].first, nodes[node].last
        else:
            size *= dimension.digits
            first = np.floor(first / size) * size
            last = first + size - 1.0


@vectorized
def _write_within(column: Array, lo: float, hi: float, more: float, growth: Array) -> None:
    """Write a number for each value that is within a span."""
    for i in range(growth.size):
        growth[i] = more if (lo <= column[i]) & (column[i] <= hi) else growth[i]


@bare
def _grow_by_value(spans: Array, count: int, column: Array, growth: Array) -> None:
    """Write how much a span grows if it takes each value: the smallest span around it that has the value tells."""
    for i in range(growth.size):
        growth[i] = spans[2, count - 1]
    for j in range(count - 2, -1, -1):
        _write_within(column, spans[0, j], spans[1, j], spans[2, j], growth)


@vectorized
def _add(growth: Array, total: Array) -> None:
    """Add a number to each total."""
    for i in range(total.size):
        total[i] += growth[i]


@vectorized
def _subtract(before: Array, growth: Array) -> None:
    """Subtract a number from each."""
    for i in range(growth.size):
        growth[i] -= before[i]


@bare
def add_growth(
    terrain: Terrain, d: int, lo: float, hi: float, node: int, scale: float, column: Array, total: Array
) -> None:
    """Add `scale` times how much the span of a category or a prefix grows if it takes each of the column's values."""
    dimension, leaves = terrain.space.dimensions[d], np.int64(terrain.space.dimensions[d].widest_hi) + 1
    if dimension.kind == TREE and leaves <= _LEAVES_A_VALUE * total.size:
        growth = terrain.growth[0, :leaves]
        _grow_by_leaf(terrain.space, node, scale, growth)
        _add_of_leaves(column, growth, total)
        return
    spans = terrain.spans[0]
    count = _spans_around(terrain.space, d, lo, hi, node, scale, spans)
    for start in range(0, total.size, PART):
        part, grown = total[start : start + PART], terrain.part[0, : min(total.size - start, PART)]
        _grow_by_value(spans, count, column[start : start + PART], grown)
        _add(grown, part)


@bare
def write_values(column: Array, place: Array, value: Array, in_order: bool) -> None:
    """Write the values at some places. If these are in order they mostly lie side by side: nothing is looked up."""
    count = value.size
    if in_order and place[count - 1] - place[0] == count - 1:
        copy_into(column[place[0] : place[0] + count], value)
        return
    for j in range(count):
        value[j] = column[place[j]]


@bare
def add_regrowth(
    terrain: Terrain, d: int, lo: float, hi: float, node: int, box: Array, column: Array, total: Array
) -> None:
    """Add how much less each value enlarges the span of a category or a prefix now that the span is the box's."""
    space, dimension = terrain.space, terrain.space.dimensions[d]
    leaves, scale = np.int64(dimension.widest_hi) + 1, dimension.scale
    new_lo, new_hi, new_node = box[0, d], box[1, d], np.int64(box[2, d])
    if dimension.kind == TREE and leaves <= _LEAVES_A_VALUE * total.size:
        growth, before = terrain.growth[0, :leaves], terrain.growth[1, :leaves]
        _grow_by_leaf(space, node, scale, before)
        _grow_by_leaf(space, new_node, scale, growth)
        for leaf in range(leaves):
            growth[leaf] -= before[leaf]
        _add_of_leaves(column, growth, total)
        return
    old, new = terrain.spans[0], terrain.spans[1]
    old_count = _spans_around(space, d, lo, hi, node, scale, old)
    new_count = _spans_around(space, d, new_lo, new_hi, new_node, scale, new)
    for start in range(0, total.size, PART):
        value, size = column[start : start + PART], min(total.size - start, PART)
        less, more = terrain.part[0, :size], terrain.part[1, :size]
        _grow_by_value(old, old_count, value, less)
        _grow_by_value(new, new_count, value, more)
        _subtract(less, more)
        _add(more, total[start : start + PART])


@bare
def pair_losses(terrain: Terrain, columns: Array, row: Array, cost: Array) -> None:
    """Write the loss of a box of the row and each of the first `cost.size` rows of `columns`."""
    for i in range(cost.size):
        cost[i] = 0.0
    for d in range(row.size):
        dimension = terrain.space.dimensions[d]
        if dimension.kind == INTERVAL:
            _add_distances(columns[d], row[d], dimension.scale, cost)
        else:
            leaf = leaf_of(terrain.space, d, row[d])
            add_growth(terrain, d, row[d], row[d], leaf, dimension.scale, columns[d], cost)


# --- Lanes ---


@vectorized
def _take_minima(least: Array, score: Array) -> None:
    """Write the smaller one of each two."""
    for lane in range(least.size):
        least[lane] = min(least[lane], score[lane])


@bare
def write_lane_minima(score: Array, least: Array) -> None:
    """Write the minimum of each lane. The number of scores is a multiple of LANES."""
    copy_into(score[:LANES], least)
    for start in range(LANES, score.size, LANES):
        _take_minima(least, score[start : start + LANES])


@kernel
def in_lanes(count: int) -> int:
    """Return how many scores `count` candidates need: a multiple of LANES, the rest infinite."""
    return max((count + LANES - 1) // LANES, 1) * LANES


# --- The smallest of many ---


@vectorized
def least_of(cost: Array) -> float:
    """Return the smallest value."""
    least = np.inf
    for i in range(cost.size):
        least = min(least, cost[i])
    return least


@vectorized
def _count_up_to(cost: Array, most: float) -> int:
    """Return how many values are at most `most`."""
    count = 0
    for i in range(cost.size):
        count += cost[i] <= most
    return count


@bare
def _quick_select(order: Array, rank: int) -> float:
    """Return the value of a rank, from 1. The order of the values changes."""
    lo, hi, wanted = 0, order.size - 1, rank - 1
    while lo < hi:
        pivot = order[(lo + hi) // 2]
        i, j = lo, hi
        while i <= j:
            while order[i] < pivot:
                i += 1
            while order[j] > pivot:
                j -= 1
            if i <= j:
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if wanted <= j:
            hi = j
        elif wanted >= i:
            lo = i
        else:
            break
    return order[wanted]


@bare
def _bracket(cost: Array, rank: int) -> tuple[float, float, int]:
    """Return bounds with few values between them that include the value of a rank, and how many values are below.

    Ranks begin at 1. Values are from -1 to 1; a value of a higher rank may be infinite.
    """
    # Counting is cheap: halve the range until few are left.
    low, high, under, upto = -1.001, 1.001, 0, cost.size
    for _ in range(20):
        if upto - under <= _FEW_VALUES:
            break
        middle = (low + high) / 2.0
        count = _count_up_to(cost, middle)
        if count >= rank:
            upto, high = count, middle
        else:
            under, low = count, middle
    return low, high, under


@bare
def value_of_rank(cost: Array, rank: int) -> float:
    """Return the value of a rank, from 1. The order of the values changes."""
    low, high, under = _bracket(cost, rank)
    count = 0
    for i in range(cost.size):
        x = cost[i]
        cost[count] = x
        count += (x > low) & (x <= high)
    return _quick_select(cost[:count], rank - under)
