"""The boxes of groups that a method found in Python."""

from __future__ import annotations

import numpy as np

from crenel.engine.kernels.arrays import Array
from crenel.engine.kernels.box_geometry import Space, loss_of, span_of
from crenel.engine.kernels.compiler import kernel
from crenel.engine.kernels.generator import Random, shuffle


@kernel
def write_boxes(space: Space, qi: Array, order: Array, offsets: Array, lo: Array, hi: Array, loss: Array) -> None:
    """Write the box of each group and its loss. `order` has the rows, group by group."""
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
    """Shuffle the rows of each group. Every order is exactly as likely."""
    for group in range(offsets.size - 1):
        shuffle(random, numbers, order[offsets[group] : offsets[group + 1]])
