"""Rows that are made when somebody asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crenel.transforms._publish.grouped_rows import GroupedRows, LazyRows

#: Two releases, of two rows and of one.
ROWS = GroupedRows([{"age": {"lo": 1.0, "hi": 2.0}}, {"age": None}], [2, 1], {"ill": ["flu", None, "gout"]})


def test_rows_are_made_of_what_a_release_shares() -> None:
    shared = {"lo": 1.0, "hi": 2.0}
    expected = [{"age": shared, "ill": "flu"}, {"age": shared, "ill": None}, {"age": None, "ill": "gout"}]
    assert list(ROWS) == list(ROWS) == expected
    assert len(ROWS) == 3
    assert ROWS[1] == expected[1]
    assert ROWS[1:] == expected[1:]


def test_rows_without_other_columns() -> None:
    assert list(GroupedRows([{"age": 1}, {"age": 2}], [1, 2], {})) == [{"age": 1}, {"age": 2}, {"age": 2}]
    assert list(GroupedRows([], [], {"ill": []})) == []


def test_a_row_that_is_changed_changes_no_cache() -> None:
    first, *_ = ROWS
    first["age"]["lo"] = 99.0
    assert ROWS.boxes[0]["age"]["lo"] == 1.0


def test_what_releases_share_is_replaced() -> None:
    assert [row["age"] for row in ROWS.with_boxes([{"age": "x"}, {"age": "y"}])] == ["x", "x", "y"]


def test_rows_that_nobody_reads_are_not_made() -> None:
    made: list[int] = []

    def make() -> Iterator[dict[str, Any]]:
        made.append(1)
        yield {"a": 1}

    rows = LazyRows(1, make)
    assert len(rows) == 1
    assert repr(rows) == "LazyRows(1 rows)"
    assert not made
    assert list(rows) == [{"a": 1}]
    assert made
