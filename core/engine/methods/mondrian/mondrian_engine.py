"""Mondrian: a set of rows, cut into groups of k persons by their quasi-identifiers.

LeFevre, DeWitt, Ramakrishnan: *Mondrian Multidimensional K-Anonymity*, ICDE 2006. How a set is cut, and what was chosen
where the paper is silent, is in `docs/mondrian.md`.
"""

from __future__ import annotations

import numpy as np

from crenel.encoding.rows import Rows
from crenel.engine.buffered import Buffered
from crenel.engine.groups import Floats, Groups, Ints, dense, groups_of, learn
from crenel.engine.kernels import common
from crenel.engine.methods.mondrian import MondrianParameters
from crenel.engine.methods.mondrian import mondrian_kernel as kernels

__all__ = ["Groups", "Mondrian", "groups_of", "learn", "partition"]


class Mondrian(Buffered[MondrianParameters]):
    """Mondrian on all rows that are held, when the first of them is due or `delay_rows` of them are there."""

    parameters_of = MondrianParameters

    def _until_full(self) -> int:
        return (self._policy.delay_rows or common.LATEST) - self.held

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


def _orders(space: common.Space, columns: Floats) -> Ints:
    """The rows in the order of each quasi-identifier.

    Where that is equal, in the order of the sum of all, so that rows which must be cut apart are cut by what else they
    have, and not by when they came.
    """
    total = np.zeros(columns.shape[1])
    for scale, column in zip(space.dimensions["scale"], columns, strict=True):
        total += scale * column  # one by one: a matrix product may differ between machines
    along = np.argsort(total, kind="stable")
    return along[np.argsort(columns[:, along], axis=1, kind="stable")]


def _wanted(rows: Rows, k: int, l: int | None) -> kernels.Wanted:
    """What a group must have, in the kernel's terms."""
    lines = [rows.person] if l is None else [rows.person, *rows.sensitive.T]
    codes = np.stack([dense(line) for line in lines])
    return kernels.Wanted(
        needed=np.array([k] + [l] * (len(lines) - 1), dtype=np.int64),
        codes=codes,
        seen=np.zeros((len(lines), int(codes.max(initial=-1)) + 1), dtype=np.int64),
        asked=np.zeros(1, dtype=np.int64),
    )
