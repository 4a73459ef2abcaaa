"""Mondrian: a set of rows is cut into groups of k persons by their quasi-identifiers.

LeFevre, DeWitt, Ramakrishnan: *Mondrian Multidimensional K-Anonymity*, ICDE 2006. How a set is cut, and what was chosen
where the paper is silent, is in `docs/mondrian.md`.
"""

from __future__ import annotations

import numpy as np

from crenel.encoding.rows import Rows
from crenel.engine.buffered import Buffered
from crenel.engine.groups import Floats, Groups, Ints, dense, groups_of, learn
from crenel.engine.kernels.box_geometry import Space
from crenel.engine.kernels.deadlines import LATEST
from crenel.engine.methods.mondrian import MondrianParameters, mondrian_kernel

__all__ = ["Groups", "Mondrian", "groups_of", "learn", "partition"]


class Mondrian(Buffered[MondrianParameters]):
    """Mondrian on all held rows, whenever the first of them is due or there are `delay_rows` of them."""

    parameters_of = MondrianParameters

    def _until_full(self) -> int:
        return (self._policy.delay_rows or LATEST) - self.held

    def _decide(self) -> None:
        if not self._all_enough():
            self._suppress(self._due())
            return
        policy = self._policy
        self._release_groups(
            partition(self._space, self._held.rows, policy.k, policy.l, relaxed=self._parameters.relaxed)
        )

    def _finish(self) -> None:
        self._decide()
        self._suppress(np.arange(self.held))


def partition(space: Space, rows: Rows, k: int, l: int | None = None, *, relaxed: bool = True, spare: int = 0) -> Ints:
    """Return the number of each row's group, from 0.

    Every group has k distinct persons and l distinct values of each sensitive column. If all rows together have too
    few, there is no group, and every number is -1.

    Args:
        space: The quasi-identifiers, as `space_of` makes them; a learned domain must contain the rows (`learn`).
        rows: The set.
        k: Persons of a group, at least.
        l: Values of each sensitive column of a group, at least.
        relaxed: Whether rows with equal values may be separated where there is no other cut.
        spare: How many rows may be left over if the others lose less for it. Rows that would have been a group, had
            they been enough, have the same number: -1, -2, ...
    """
    group = np.empty(len(rows), dtype=np.int64)
    columns = np.ascontiguousarray(rows.qi.T)
    mondrian_kernel.partition(space, columns, _orders(space, columns), _needs(rows, k, l), relaxed, spare, group)
    return group


def _orders(space: Space, columns: Floats) -> Ints:
    """Return the rows in the order of each quasi-identifier.

    Rows with equal values are in the order of the sum of all quasi-identifiers, so that a cut between them goes by
    their other values and not by their arrival.
    """
    total = np.zeros(columns.shape[1])
    for scale, column in zip(space.dimensions["scale"], columns, strict=True):
        total += scale * column  # one by one, since a matrix product may differ between machines
    along = np.argsort(total, kind="stable")
    return along[np.argsort(columns[:, along], axis=1, kind="stable")]


def _needs(rows: Rows, k: int, l: int | None) -> mondrian_kernel.Needs:
    """Return what a group must have, as the kernel wants it."""
    lines = [rows.person] if l is None else [rows.person, *rows.sensitive.T]
    codes = np.stack([dense(line) for line in lines])
    return mondrian_kernel.Needs(
        needed=np.array([k] + [l] * (len(lines) - 1), dtype=np.int64),
        codes=codes,
        seen=np.zeros((len(lines), int(codes.max(initial=-1)) + 1), dtype=np.int64),
        checks=np.zeros(1, dtype=np.int64),
    )
