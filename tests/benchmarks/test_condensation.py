"""Condensation, the method that CASTLE's paper compares with."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.condensation import condensation


@pytest.mark.parametrize("history", [20, 60])
def test_groups_have_k_to_2k_rows(history: int) -> None:
    qi = np.random.default_rng(1).uniform(0, 10, (300, 2))
    found = condensation(qi, np.array([0.1, 0.1]), k=5, history=history, seed=2)
    sizes = np.bincount(found.group)
    # Only the last few historical rows may make a group larger before it is first cut.
    assert sizes.min() >= 5
    assert sizes.max() < 10
    assert ((found.lo <= qi) & (qi <= found.hi)).all()
    assert found.loss == pytest.approx(((found.hi - found.lo) / 10).mean())
    assert found.loss < 0.4


def test_rows_join_the_nearest_group_which_is_cut_along_its_longest_axis() -> None:
    first = [[0.0, 0.0], [0.1, 0.0], [9.0, 9.0], [9.1, 9.0]]
    found = condensation(np.array([*first, [5.0, 0.1], [5.1, 0.0]]), np.array([0.1, 0.1]), k=2, history=4, seed=0)
    assert [set(np.flatnonzero(found.group == number)) for number in found.group[[0, 2, 4]]] == [{0, 1}, {2, 3}, {4, 5}]
