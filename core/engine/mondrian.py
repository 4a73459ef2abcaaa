"""Mondrian: a set of rows, cut into groups of k persons by their quasi-identifiers.

LeFevre, DeWitt, Ramakrishnan: *Mondrian Multidimensional K-Anonymity*, ICDE 2006. How a set is cut, and what was chosen
where the paper is silent, is in `docs/mondrian.md`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crenel.engine.kernels import common
from crenel.engine.kernels import mondrian as kernels
from crenel.engine.space import own
from crenel.rows import Rows

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Groups(NamedTuple):
    """Groups of rows and what is published of them, in the order of their numbers."""

    #: The rows, group by group, in each in the order of arrival.
    order: Ints
    #: Where each group begins in `order`, and the end.
    offsets: Ints
    lo: Floats
    hi: Floats
    #: Generalized loss, from 0 to 1.
    loss: Floats
    #: Distinct persons.
    persons: Ints


def partition(
    space: common.Space, rows: Rows, k: int, l: int | None = None, *, relaxed: bool = True, spare: int = 0
) -> Ints:
    """The number of each row's group, from 0.

    Every group has k distinct persons and l distinct values of each sensitive column. Where all rows together have not,
    there is no group, and every number is -1.

    Parameters
    ----------
    space
        The quasi-identifiers, as `space_of` makes them; a domain that is learned must hold the rows (`learn`).
    rows
        The set.
    relaxed
        Whether rows of equal values may be cut apart where no other cut is allowed.
    spare
        How many rows may be left over where the others lose less for it. Those that would have been a group, had they
        been enough, have the same number: -1, -2, ...
    """
    group = np.empty(len(rows), dtype=np.int64)
    columns = np.ascontiguousarray(rows.qi.T)
    kernels.partition(space, columns, _orders(space, columns), _wanted(rows, k, l), relaxed, spare, group)
    return group


def groups_of(space: common.Space, rows: Rows, group: Ints) -> Groups:
    """What is published of groups, whose rows have their numbers in `group`; rows of a number below 0 are in none."""
    order = np.argsort(group, kind="stable")
    order = order[np.searchsorted(group[order], 0) :]
    count = int(group.max(initial=-1)) + 1
    offsets = np.searchsorted(group[order], np.arange(count + 1)).astype(np.int64)
    shape = (count, rows.qi.shape[1])
    found = Groups(
        order, offsets, np.empty(shape), np.empty(shape), np.empty(count), _persons(rows, order, group, count)
    )
    kernels.boxes(space, own(rows.qi), order, offsets, found.lo, found.hi, found.loss)
    return found


def learn(space: common.Space, qi: Floats) -> None:
    """Let undeclared domains hold the rows."""
    dimensions = space.dimensions
    learned = np.flatnonzero(dimensions["learned"])
    if len(qi) == 0 or len(learned) == 0:
        return
    lo = np.minimum(dimensions["domain_lo"][learned], qi[:, learned].min(axis=0))
    hi = np.maximum(dimensions["domain_hi"][learned], qi[:, learned].max(axis=0))
    width = hi - lo
    dimensions["domain_lo"][learned], dimensions["domain_hi"][learned] = lo, hi
    scale = np.zeros(len(learned))
    np.divide(dimensions["share"][learned], width, out=scale, where=width > 0.0)
    dimensions["scale"][learned] = scale


def _orders(space: common.Space, columns: Floats) -> Ints:
    """The rows in the order of each quasi-identifier.

    Where that is equal, in the order of the sum of all, so that rows which must be cut apart are cut by what else they
    have, and not by when they came.
    """
    along = np.argsort(space.dimensions["scale"] @ columns, kind="stable")
    return along[np.argsort(columns[:, along], axis=1, kind="stable")]


def _wanted(rows: Rows, k: int, l: int | None) -> kernels.Wanted:
    """What a group must have, in the kernel's terms."""
    lines = [rows.person] if l is None else [rows.person, *rows.sensitive.T]
    codes = np.stack([_dense(line) for line in lines])
    return kernels.Wanted(
        needed=np.array([k] + [l] * (len(lines) - 1), dtype=np.int64),
        codes=codes,
        seen=np.zeros((len(lines), int(codes.max(initial=-1)) + 1), dtype=np.int64),
        asked=np.zeros(1, dtype=np.int64),
    )


def _dense(values: NDArray[Any]) -> Ints:
    return np.unique(values, return_inverse=True)[1].astype(np.int64, copy=False)


def _persons(rows: Rows, order: Ints, group: Ints, count: int) -> Ints:
    """Distinct persons of each group."""
    person = _dense(rows.person)[order]
    pairs = np.unique(group[order] * (int(person.max(initial=0)) + 1) + person)
    return np.bincount(pairs // (int(person.max(initial=0)) + 1), minlength=count).astype(np.int64, copy=False)
