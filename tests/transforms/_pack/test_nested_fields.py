"""Paths lead to the same values in dicts and in Arrow, and never to a whole object."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.encoding.encoder import Rejection
from crenel.transforms._pack.element_coders import BatchCoder
from crenel.transforms._pack.nested_fields import (
    A_LIST,
    NOT_AN_OBJECT,
    ODD,
    PLAIN,
    WHOLE_OBJECT,
    as_it_came,
    colliding,
    column_of,
    flat,
    flattened,
    is_or_has_object,
    marked,
    names_of,
    struct_field,
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


# -- columns of objects and plain values ------------------------------------------------------------

#: An object in a column of numbers, of which one is missing.
MIXED = [20, {"key": 1}, None, 21, [{"key": 2}], {}]


def mixed(values: list[Any]) -> pa.Table:
    """Return a column `a` of objects and plain integers, as a reader makes it."""
    kinds = {PLAIN: pa.int64(), "key": pa.int64(), ODD: pa.string()}
    return pa.table(
        {"a": pa.array(map(marked, values), pa.struct([struct_field(n, kind) for n, kind in kinds.items()]))}
    )


@pytest.mark.parametrize("is_encoded", [False, True])
def test_an_object_among_plain_values_rejects_its_row_alone(is_encoded: bool) -> None:
    (batch,) = mixed(MIXED).to_batches()
    if is_encoded:  # for another process
        batch = BatchCoder().decode(BatchCoder().encode(batch))
    found, wrong = flat(batch, ["a"])
    assert found.to_pydict() == {"a": [20, None, None, 21, None, None]}
    assert wrong == [Rejection(place, "a", WHOLE_OBJECT) for place in (1, 4, 5)]


def test_a_path_into_objects_among_plain_values_rejects_the_plain_ones() -> None:
    found, wrong = flat(mixed(MIXED), ["a.key"])
    assert found.to_pydict() == {"a.key": [None, 1, None, None, None, None]}
    reasons = {0: NOT_AN_OBJECT, 3: NOT_AN_OBJECT, 4: A_LIST}
    assert sorted(wrong) == [Rejection(place, "a.key", why) for place, why in reasons.items()]


def test_objects_among_plain_values_can_be_named_either_way() -> None:
    assert names_of(mixed(MIXED).schema) == ["a", "a.key"]
    assert flattened(mixed(MIXED).slice(0, 0)).column_names == ["a", "a.key"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([20, {"key": 1}, None, 21], {"a": [20, None, None, 21]}),
        ([{"key": 1}, {"key": 2}, 20], {"a.key": [1, 2, None]}),
    ],
)
def test_of_objects_and_plain_values_the_fewer_are_no_column(values: list[Any], expected: dict[str, Any]) -> None:
    assert flattened(mixed(values)).to_pydict() == expected


def test_a_column_with_a_dot_is_no_path_into_an_object() -> None:
    given = mixed([20, 21, {"key": 1}]).append_column("a.top", pa.array([1, 2, 3]))
    assert flattened(given).column_names == ["a", "a.top"]
    objects = pa.table({"a": [{"b": 1}], "a.b": [{"c": 1}]})
    assert flattened(objects).column_names == ["a.b", "a.b.c"]


def test_marked_values_are_told_as_they_came() -> None:
    given = [{"a": value} for value in MIXED]
    assert list(map(as_it_came, mixed(MIXED).to_pylist())) == given
    assert as_it_came({ODD: "no JSON"}) == "no JSON"
    assert as_it_came({"a": {"b": None}, "c": 1}) == {"a": {"b": None}, "c": 1}


def test_a_field_that_is_called_as_ours_is_no_plain_value() -> None:
    """It is a field that nobody declared, also where plain values are beside it."""
    given = pa.table({"a": [{PLAIN: "UNDECLARED"}]})
    assert names_of(given.schema) == [f"a.{PLAIN}"]
    found, wrong = flat(given, ["a"])
    assert (found.to_pydict(), wrong) == ({"a": [None]}, [Rejection(0, "a", WHOLE_OBJECT)])
    found, wrong = flat(mixed([7, {PLAIN: "UNDECLARED"}]), ["a"])
    assert (found.to_pydict(), wrong) == ({"a": [7, None]}, [Rejection(1, "a", WHOLE_OBJECT)])


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
