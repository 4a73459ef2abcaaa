"""Paths lead to the same values in dicts and in Arrow, and never to a whole object."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.encoding.encoder import Rejection
from crenel.transforms._pack.nested_fields import (
    A_LIST,
    NOT_AN_OBJECT,
    ODD,
    WHOLE_OBJECT,
    colliding,
    column_of,
    flat,
    flattened,
    is_or_has_object,
    names_of,
)


class Address(NamedTuple):
    """A row within a row, with a field that is a method of tuples, too."""

    zip: str | None
    count: int = 1


ROWS = [
    {"p": {"a": {"zip": "1"}}},
    {"p": {"a": None}},
    {"p": {}},
    {},
    {"p": [{"a": 1}]},
    {"p": 7},
    {"p": {"a": "x"}},
    {"p.a.zip": "own", "p": {"a": {"zip": "2"}}},
    {"p": {"a": Address("3")}},
    {"p": float("nan")},
]


def test_a_path_is_followed_in_dicts() -> None:
    values, wrong = column_of(ROWS, "p.a.zip")
    assert values == ["1", None, None, None, None, None, None, "own", "3", None]
    assert wrong == [
        Rejection(4, "p.a.zip", A_LIST),
        Rejection(5, "p.a.zip", NOT_AN_OBJECT),
        Rejection(6, "p.a.zip", NOT_AN_OBJECT),
    ]
    assert column_of([{"p": Address(None)}], "p.index") == ([None], [])  # a method is no field


def test_what_is_no_row_has_no_fields() -> None:
    assert column_of(["text", None, 7], "a.b") == ([None] * 3, [])
    assert column_of(["text"], "count.b") == ([None], [Rejection(0, "count.b", NOT_AN_OBJECT)])


def test_a_row_that_has_the_name_of_our_own_mark_is_rejected() -> None:
    table, wrong = flat(pa.table({"a": [{"b": 1, ODD: 5}, {"b": 2, ODD: None}]}), ["a.b"])
    assert wrong == [Rejection(0, "a.b", NOT_AN_OBJECT)]
    assert table.column("a.b").to_pylist() == [1, 2]


def test_a_flat_batch_stays_what_it_is() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1], "b.c": [2], "list": [[1]]})
    assert flat(batch, ["a", "b.c", "list", "absent"])[0] is batch


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        ([{"b": 1}], "a.b", A_LIST),
        (5, "a.b", NOT_AN_OBJECT),
        ({"b": {"c": 1}}, "a.b", WHOLE_OBJECT),
        ({"b": 1}, "a", WHOLE_OBJECT),
        ([{"b": 1}], "a", WHOLE_OBJECT),
    ],
)
def test_arrow_rejects_where_a_path_leads_nowhere_or_to_an_object(value: Any, path: str, reason: str) -> None:
    table, wrong = flat(pa.table({"a": pa.array([None, value])}), [path])
    assert wrong == [Rejection(1, path, reason)]
    assert table.column(path).null_count == 2


def test_a_map_is_an_object() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    assert flat(pa.table({"a": pa.array([[("k", 1)]], kind)}), ["a"])[1] == [Rejection(0, "a", WHOLE_OBJECT)]


LEAVES = st.none() | st.integers(-5, 5)
OBJECTS = st.none() | st.fixed_dictionaries({"x": LEAVES, "y": st.none() | st.fixed_dictionaries({"z": LEAVES})})


@given(st.lists(st.fixed_dictionaries({"p": OBJECTS, "q": LEAVES}), min_size=1))
def test_dicts_and_arrow_agree(rows: list[dict[str, Any]]) -> None:
    leaf = pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.int64())]))])
    table = pa.Table.from_pylist(rows, pa.schema([("p", leaf), ("q", pa.int64())]))
    names = ["p.x", "p.y.z", "q"]
    assert names_of(table.schema) == names
    expected = {name: column_of(rows, name)[0] for name in names}
    for batch in (table, table.combine_chunks().to_batches()[0], table.slice(1)):
        found, wrong = flat(batch, names)
        skipped = table.num_rows - batch.num_rows
        assert (found.to_pydict(), wrong) == ({n: values[skipped:] for n, values in expected.items()}, [])
    assert flattened(table).to_pydict() == expected


def test_objects_are_found_in_lists() -> None:
    assert is_or_has_object([1, (2, {"a": 1})])
    assert not is_or_has_object([1, (2, "a")])


def test_names_without_dots_may_collide() -> None:
    assert colliding(["a.b", "a", "a_c"]) is None
    assert colliding(["a.b", "a_b"]) == "'a.b' and 'a_b' would both be called 'a_b'"
