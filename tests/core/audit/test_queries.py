"""The query workload counts what it claims to count."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import datasets
from benchmarks.runs import push_all
from crenel.audit import queries
from crenel.audit.queries import Axis, Boxes, Queries
from crenel.policy.geometry import Interval, Radix
from crenel.policy.hierarchy import Hierarchy

TREE = Hierarchy.from_mapping({"*": {"left": ["a", "b"], "right": ["c", "d"], "lone": ["e"]}}).tree
AXES = [Axis(Interval(1.0, 20.0)), Axis(TREE), Axis(Interval(0.0, 4.0))]


def some_rows(count: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    return np.column_stack([rng.integers(1, 21, count), *rng.integers(0, 5, (2, count))]).astype(float)


def some_queries(count: int, theta: float = 0.2) -> Queries:
    return queries.draw(AXES, theta, count, np.random.default_rng(9))


def test_a_query_has_the_width_of_its_selectivity() -> None:
    drawn = some_queries(500, theta=0.2)
    share = 0.2 ** (1 / 3)
    assert set(drawn.hi[:, 0] - drawn.lo[:, 0] + 1) == {round(20 * share)}
    assert drawn.lo[:, 0].min() == 1
    assert drawn.hi[:, 0].max() == 20
    # 0.585 of five leaves is nearest to two leaves: either node that has two.
    assert {tuple(ends) for ends in np.column_stack([drawn.lo, drawn.hi])[:, [1, 4]]} == {
        (0.0, 1.0),
        (2.0, 3.0),
    }


def test_counts_equal_those_of_a_loop() -> None:
    points = some_rows(60)
    drawn = some_queries(300)
    lo, hi = points - np.array([2.0, 0.0, 0.0]), points + np.array([1.0, 0.0, 0.0])
    act = queries.actual(drawn, points)
    est = queries.estimated(drawn, AXES, Boxes.distinct(lo, hi))
    for q in range(0, 300, 7):
        count, expected = 0, 0.0
        for row, low, high in zip(points, lo, hi, strict=True):
            allowed = [
                set(range(int(first), int(last) + 1)) for first, last in zip(drawn.lo[q], drawn.hi[q], strict=True)
            ]
            count += all(int(x) in fits for x, fits in zip(row, allowed, strict=True))
            chance = float(int(row[2]) in allowed[2])
            for j in range(2):
                possible = set(range(int(low[j]), int(high[j]) + 1))
                chance *= len(possible & allowed[j]) / len(possible)
            expected += chance
        assert act[q] == count
        assert est[q] == pytest.approx(expected)


def test_rows_published_unchanged_answer_exactly() -> None:
    points = some_rows(200)
    drawn = some_queries(400)
    act = queries.actual(drawn, points)
    est = queries.estimated(drawn, AXES, Boxes.distinct(points, points))
    assert queries.relative_errors(act, est) == pytest.approx(0.0)


def test_errors_are_relative_to_the_actual_count() -> None:
    errors = queries.relative_errors(np.array([10.0, 4.0, 0.0, 0.0]), np.array([5.0, 8.0, 0.0, 1.0]))
    assert errors.tolist() == [0.5, 1.0, 0.0, np.inf]


def test_a_wider_group_answers_worse() -> None:
    stream = datasets.power_law(alpha=0.5, rows=2_000, dimensions=2, values=50)
    axes = [Axis(qi.geometry) for qi in stream.quasi_identifiers.values()] + [Axis(Interval(0.0, 4.0))]
    points = np.column_stack([stream.rows.qi, np.arange(2_000) % 5])
    errors = []
    for k in (5, 100):
        releases = push_all(stream.policy(k=k, delay_rows=500), stream.rows)
        lo, hi = points.copy(), points.copy()
        lo[releases.rows, :-1] = releases.per_row(releases.lo)
        hi[releases.rows, :-1] = releases.per_row(releases.hi)
        boxes = Boxes.distinct(lo, hi)
        judged = queries.workload_error(axes, points, boxes, window=500, theta=0.1, queries=200)
        assert judged.windows == 4
        errors.append(judged.error)
    assert errors[0] < errors[1]


def test_fractional_numbers_have_their_own_width() -> None:
    axes = [Axis(Interval(0.0, 1.0), whole=False)]
    drawn = queries.draw(axes, 0.25, 100, np.random.default_rng(1))
    assert drawn.hi - drawn.lo == pytest.approx(0.25)
    assert drawn.lo.min() >= 0
    assert drawn.hi.max() <= 1
    asked = Queries(np.array([[0.2]]), np.array([[0.4]]))
    boxes = Boxes.distinct(np.array([[0.0], [0.3], [0.5]]), np.array([[0.8], [0.3], [0.5]]))
    assert queries.estimated(asked, axes, boxes) == pytest.approx(0.25 + 1.0 + 0.0)


def test_unpaired_rows_make_the_whole_stream_one_window() -> None:
    points = some_rows(100)
    shuffled = points[np.random.default_rng(0).permutation(100)]
    judged = queries.workload_error(AXES, points, Boxes.distinct(shuffled, shuffled), window=None, theta=0.5)
    assert (judged.windows, judged.error) == (1, 0.0)


def test_a_predicate_on_a_code_is_a_prefix() -> None:
    drawn = queries.draw([Axis(Radix(10, 3))], 0.08, 200, np.random.default_rng(1))
    assert set(np.ravel(drawn.hi - drawn.lo)) == {99.0}
    assert set(np.ravel(drawn.lo % 100)) == {0.0}
    assert len(set(np.ravel(drawn.lo))) == 10


def test_queries_without_an_answer_may_be_left_out() -> None:
    points = np.zeros((50, 1))
    boxes = Boxes(np.zeros((1, 1)), np.full((1, 1), 9.0), np.zeros(50, np.int64))
    how = {"window": None, "theta": 0.5, "queries": 400}
    axes = [Axis(Interval(0.0, 9.0))]
    assert queries.workload_error(axes, points, boxes, **how).error == np.inf
    judged = queries.workload_error(axes, points, boxes, **how, answered=True)
    assert judged.error == pytest.approx(0.5)
    assert 0.5 < judged.empty < 1


@pytest.mark.parametrize("ends", [(1e18, 1e20), (-1e19, 5.0), (0.0, 2.0**63), (-1e280, 1e280)])
def test_whole_numbers_beyond_64_bits_are_drawn_as_well(ends: tuple[float, float]) -> None:
    least, most = ends
    drawn = queries.draw([Axis(Interval(least, most))], 0.1, 500, np.random.default_rng(2))
    assert least <= drawn.lo.min() < drawn.hi.max() <= most
    assert np.all(drawn.lo == np.rint(drawn.lo))
    np.testing.assert_allclose(drawn.hi - drawn.lo, 0.1 * (most - least))
    assert len(np.unique(drawn.lo)) == 500
