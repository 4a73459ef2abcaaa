"""Checks that the audit distinguishes rows by which quasi-identifiers are published, besides their values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crenel.audit import Published, Report, audit
from crenel.encoding.rows import Rows
from crenel.policy import Policy
from crenel.policy.quasi_identifiers import Numeric

NAN = float("nan")
STAR = ([0, 0], [100, 100])


def judged(
    qi: list[list[float]],
    boxes: list[tuple[list[int], list[float], list[float]]],
    *,
    kind: list[int] | None = None,
    **said: Any,
) -> Report:
    """Audit boxes that each hold rows of distinct persons, under k = 2."""
    settings: dict[str, Any] = {"k": 2, "delay_rows": 100, "method": "partition", **said}
    columns = {"a": Numeric(domain=(0, 100)), "b": Numeric(domain=(0, 100))}
    n = len(qi)
    rows = Rows(np.array(qi, np.float64), np.arange(n), np.zeros((n, 0), np.int64), np.zeros(n, np.int64))
    out = Published(
        rows=np.array([row for members, _, _ in boxes for row in members]),
        offsets=np.cumsum([0, *(len(members) for members, _, _ in boxes)]),
        lo=np.array([lo for _, lo, _ in boxes], np.float64),
        hi=np.array([hi for _, _, hi in boxes], np.float64),
        kind=np.array(kind or [0] * len(boxes)),
    )
    return audit(Policy(person="p", quasi_identifiers=columns, **settings), rows, out)


def test_rows_with_the_same_published_columns_are_a_group():
    report = judged([[10, 50], [20, NAN]], [([0, 1], [10, NAN], [20, NAN])])
    assert report.problems() == []
    # Lost: 0.1 of a and all of b, out of two columns; 0.1 of a, out of one.
    assert report.loss == pytest.approx((1.1 / 2 + 0.1) / 2)


def test_a_row_that_shows_an_extra_column_is_alone():
    """Both rows show the same range of a, but one also shows b: an attacker who knows who has a b finds that row."""
    boxes = [([0], [10, 50], [20, 50]), ([1], [10, NAN], [20, NAN])]
    report = judged([[10, 50], [20, NAN]], boxes)
    assert report.small_groups == 2


def test_rows_that_hide_a_column_are_a_group_of_their_own():
    boxes = [([0, 1], [NAN, NAN], [NAN, NAN]), ([2], [NAN, NAN], [NAN, NAN])]
    assert judged([[10, 50], [20, 60], [NAN, NAN]], boxes).problems() == []


def test_a_published_value_that_the_row_lacks_is_wrong_unless_filled_in():
    boxes = [([0, 1], [10, 50], [20, 50])]
    assert judged([[10, 50], [20, NAN]], boxes).outside == 1
    assert judged([[10, 50], [20, NAN]], boxes, parameters={"fill_missing": True}).outside == 0


def test_a_star_stands_for_missing_values_too():
    assert judged([[10, NAN]], [([0], *STAR)], kind=[2]).problems() == []
    narrow = judged([[10, NAN]], [([0], [0, NAN], [100, NAN])], kind=[2])
    assert narrow.star_not_widest == 1


def test_half_a_range_is_illegal():
    report = judged([[10, 50], [20, 60]], [([0, 1], [10, NAN], [20, 60])])
    assert report.illegal == 1


def test_other_methods_publish_every_quasi_identifier():
    boxes = [([0, 1], [10, NAN], [20, NAN])]
    report = judged([[10, 50], [20, 60]], boxes, method="castle")
    assert (report.illegal, report.outside) == (1, 2)
