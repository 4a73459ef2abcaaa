"""The box of a group that bastion forms: `[3, quasi-identifier]`, with the ends lo and hi, and the tree node."""

from __future__ import annotations

import numpy as np

from crenel.engine.kernels.arrays import Array
from crenel.engine.kernels.box_geometry import TREE, Space, loss_of, widen
from crenel.engine.kernels.compiler import bare


@bare
def leaf_of(space: Space, d: int, x: float) -> int:
    """Return the tree node of a value; 0 if the quasi-identifier has no tree."""
    dimension = space.dimensions[d]
    return space.leaf[dimension.leaf_offset + np.int64(x)] if dimension.kind == TREE else 0


@bare
def box_loss(space: Space, box: Array) -> float:
    """Return the loss of a box."""
    return loss_of(space, box[0], box[1])


@bare
def start_box(space: Space, box: Array, row: Array) -> None:
    """Make the box that of one row."""
    for d in range(row.size):
        box[0, d] = box[1, d] = row[d]
        box[2, d] = leaf_of(space, d, row[d])


@bare
def grow_box(space: Space, box: Array, d: int, x: float) -> None:
    """Grow the box until it contains a value of quasi-identifier `d`."""
    box[0, d], box[1, d], box[2, d] = widen(space, d, box[0, d], box[1, d], np.int64(box[2, d]), x, x)


@bare
def copy_row(columns: Array, place: int, row: Array) -> None:
    """Copy the quasi-identifiers of a held row."""
    for d in range(row.size):
        row[d] = columns[d, place]
