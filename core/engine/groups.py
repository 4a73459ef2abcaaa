"""Groups of rows, and what is published for them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crenel.encoding.rows import Rows
from crenel.engine.kernels.box_geometry import Space
from crenel.engine.kernels.group_boxes import write_boxes
from crenel.engine.space import own

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Groups(NamedTuple):
    """Groups of rows and what is published for them, in the order of the groups' numbers."""

    #: The rows, group by group, and within a group in order of arrival.
    order: Ints
    #: Where each group begins in `order`, and the end.
    offsets: Ints
    lo: Floats
    hi: Floats
    #: Generalized loss, from 0 to 1.
    loss: Floats
    #: Distinct persons.
    persons: Ints


def groups_of(space: Space, rows: Rows, group: Ints) -> Groups:
    """Return what is published for groups. `group` has each row's group number; below 0, the row is in no group."""
    order = np.argsort(group, kind="stable")
    order = order[np.searchsorted(group[order], 0) :]
    count = int(group.max(initial=-1)) + 1
    offsets = np.searchsorted(group[order], np.arange(count + 1)).astype(np.int64)
    shape = (count, rows.qi.shape[1])
    found = Groups(
        order, offsets, np.empty(shape), np.empty(shape), np.empty(count), _persons(rows, order, group, count)
    )
    write_boxes(space, own(rows.qi), order, offsets, found.lo, found.hi, found.loss)
    return found


def learn(space: Space, qi: Floats) -> None:
    """Widen the domains that are not declared until they contain the rows."""
    dimensions = space.dimensions
    learned = np.flatnonzero(dimensions["learned"])
    if len(qi) == 0 or len(learned) == 0:
        return
    lo = np.minimum(dimensions["domain_lo"][learned], qi[:, learned].min(axis=0))
    hi = np.maximum(dimensions["domain_hi"][learned], qi[:, learned].max(axis=0))
    width = hi - lo + dimensions["cell"][learned]
    dimensions["domain_lo"][learned], dimensions["domain_hi"][learned] = lo, hi
    scale = np.zeros(len(learned))
    np.divide(dimensions["share"][learned], width, out=scale, where=width > 0.0)
    dimensions["scale"][learned] = scale


def dense(values: NDArray[Any]) -> Ints:
    """Return numbers from 0 on that are equal where the values are equal."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64, copy=False)


def _persons(rows: Rows, order: Ints, group: Ints, count: int) -> Ints:
    """Return the number of distinct persons in each group."""
    person = dense(rows.person)[order]
    persons = int(person.max(initial=0)) + 1
    pairs = np.unique(group[order] * persons + person)
    return np.bincount(pairs // persons, minlength=count).astype(np.int64, copy=False)
