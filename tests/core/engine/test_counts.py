"""Counting in groups gives the same results as a plain dict of counts."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from crenel.engine.kernels import distinct_counts
from crenel.engine.kernels.compiler import kernel
from crenel.engine.kernels.distinct_counts import count_down_in, count_up_in

#: The table is so small that entries collide and wrap around its end.
SIZE = 16


@kernel
def count(table: np.ndarray, up: bool, group: int, value: int) -> int:
    """Call the functions from a kernel, because plain Python cannot."""
    return count_up_in(table, group, value) if up else count_down_in(table, group, value)


moves = st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(-2, 3)), max_size=60)


def meaning(counts: Counter[tuple[int, int]], group: int, value: int) -> int:
    if counts[group, value]:
        return distinct_counts.SAME
    elsewhere = any(count and other == value for (_, other), count in counts.items())
    return distinct_counts.IN_GROUP if elsewhere else distinct_counts.ANYWHERE


@given(moves)
def test_counting_in_groups(moves: list[tuple[bool, int, int]]) -> None:
    table = np.zeros(SIZE, dtype=distinct_counts.GROUPED)
    counts: Counter[tuple[int, int]] = Counter()
    for up, group, value in moves:
        if up and sum(count > 0 for count in counts.values()) < SIZE // 2:
            expected = meaning(counts, group, value)
            counts[group, value] += 1
            assert count(table, up, group, value) == expected
        elif not up and counts[group, value]:
            counts[group, value] -= 1
            assert count(table, up, group, value) == meaning(counts, group, value)
    used = table[table["count"] > 0]
    found = {(int(e["group"]), int(e["value"])): int(e["count"]) for e in used}
    assert found == {key: count for key, count in counts.items() if count}
