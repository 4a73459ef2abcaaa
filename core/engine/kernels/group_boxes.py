"""What is published of groups that were found, for methods that find them in Python."""

from __future__ import annotations

import numpy as np

from crenel.engine.kernels.common import (
    INTERVAL,
    NONE,
    TREE,
    Array,
    Random,
    Space,
    below,
    inner,
    kernel,
    loss_of,
    shuffle,
)


@inner
def span_of(space: Space, d: int, lo: float, hi: float) -> tuple[float, float, int]:
    """What the range is published as, and the tree node of it."""
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
        size *= dimension.base
        first = np.floor(lo / size) * size
    return first, first + size - 1.0, NONE


@kernel
def boxes(space: Space, qi: Array, order: Array, offsets: Array, lo: Array, hi: Array, loss: Array) -> None:
    """Write the box of each group, and its loss; `order` has the rows, group by group."""
    for group in range(loss.size):
        for d in range(qi.shape[1]):
            least, greatest = np.inf, -np.inf
            for i in range(offsets[group], offsets[group + 1]):
                x = qi[order[i], d]
                least, greatest = min(least, x), max(greatest, x)
            lo[group, d], hi[group, d], _ = span_of(space, d, least, greatest)
        loss[group] = loss_of(space, lo[group], hi[group])


@kernel
def shuffle_groups(random: Random, numbers: Array, order: Array, offsets: Array) -> None:
    """Put the rows of each group in an order of which each is as likely."""
    for group in range(offsets.size - 1):
        shuffle(random, numbers, order[offsets[group] : offsets[group + 1]])


@kernel
def draw(random: Random, numbers: Array, n: int) -> int:
    """A number from 0 to n - 1, exactly uniform."""
    return below(random, numbers, n)
