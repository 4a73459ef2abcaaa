"""The query workload counts what it says it counts."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import datasets, queries
from benchmarks.queries import Queries
from benchmarks.runs import push_all
from crenel.geometry import Interval
from crenel.hierarchy import Hierarchy

TREE = Hierarchy.from_mapping({"*": {"left": ["a", "b"], "right": ["c", "d"], "lone": ["e"]}}).tree
AXES = [Interval(1.0, 20.0), TREE, Interval(0.0, 4.0)]


def some_rows(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    qi = np.column_stack([rng.integers(1, 21, count), rng.integers(0, 5, count)]).astype(float)
    return qi, rng.integers(0, 5, count)


def some_queries(count: int, theta: float = 0.2) -> Queries:
    return queries.draw(AXES, theta, count, np.random.default_rng(9))


def test_a_query_is_as_wide_as_its_selectivity_asks() -> None:
    drawn = some_queries(500, theta=0.2)
    share = 0.2 ** (1 / 3)
    assert set(drawn.hi[:, 0] - drawn.lo[:, 0] + 1) == {round(20 * share)}
    assert drawn.lo[:, 0].min() == 1
    assert drawn.hi[:, 0].max() == 20
    # 0.585 of five leaves: two, of either node that has them.
    assert {tuple(ends) for ends in np.column_stack([drawn.lo, drawn.hi])[:, [1, 4]]} == {
        (0.0, 1.0),
        (2.0, 3.0),
    }


def test_counts_are_those_of_a_loop() -> None:
    qi, sensitive = some_rows(60)
    drawn = some_queries(300)
    lo, hi = qi - np.array([2.0, 0.0]), qi + np.array([1.0, 0.0])
    act = queries.actual(drawn, qi, sensitive)
    est = queries.estimated(drawn, lo, hi, sensitive)
    for q in range(0, 300, 7):
        count, expected = 0, 0.0
        for row, value, low, high in zip(qi, sensitive, lo, hi, strict=True):
            allowed = [
                set(range(int(first), int(last) + 1)) for first, last in zip(drawn.lo[q], drawn.hi[q], strict=True)
            ]
            count += all(int(x) in fits for x, fits in zip([*row, value], allowed, strict=True))
            chance = float(int(value) in allowed[2])
            for j in range(2):
                possible = set(range(int(low[j]), int(high[j]) + 1))
                chance *= len(possible & allowed[j]) / len(possible)
            expected += chance
        assert act[q] == count
        assert est[q] == pytest.approx(expected)


def test_rows_published_as_they_are_answer_exactly() -> None:
    qi, sensitive = some_rows(200)
    drawn = some_queries(400)
    act = queries.actual(drawn, qi, sensitive)
    est = queries.estimated(drawn, qi, qi, sensitive)
    assert queries.relative_errors(act, est) == pytest.approx(0.0)


def test_errors_are_relative_to_the_actual_count() -> None:
    errors = queries.relative_errors(np.array([10.0, 4.0, 0.0, 0.0]), np.array([5.0, 8.0, 0.0, 1.0]))
    assert errors.tolist() == [0.5, 1.0, 0.0, np.inf]


def test_a_wider_group_answers_worse() -> None:
    stream = datasets.power_law(alpha=0.5, rows=2_000, dimensions=2, values=50)
    axes = [qi.geometry for qi in stream.quasi_identifiers.values()] + [Interval(0.0, 4.0)]
    sensitive = np.arange(2_000) % 5
    errors = []
    for k in (5, 100):
        releases = push_all(stream.policy(k=k, delay_rows=500), stream.rows)
        judged = queries.workload_error(stream.rows, releases, axes, sensitive, window=500, theta=0.1, queries=200)
        assert judged.windows == 4
        errors.append(judged.error)
    assert errors[0] < errors[1]
