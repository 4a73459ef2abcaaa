"""Published Arrow columns contain only values of their own rows: no leftovers in dictionaries or behind slices."""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from crenel.transforms import published_schema
from crenel.transforms._pack.arrow_tables import alone
from tests.transforms._pack.test_rows import listed
from tests.transforms.streams import anonymize, policy, rows, run

WORDS = pa.dictionary(pa.int32(), pa.string())
SMALL = pa.dictionary(pa.int16(), pa.large_string())
ORDERED = pa.dictionary(pa.int16(), pa.string(), ordered=True)


def one(text: str) -> Any:
    return text


#: Types, and a function that wraps a text as a value of the type.
KINDS: dict[str, tuple[pa.DataType, Callable[[str], Any]]] = {
    "text": (pa.string(), one),
    "dictionary": (WORDS, one),
    "small dictionary": (SMALL, one),
    "ordered dictionary": (ORDERED, one),
    "list": (pa.list_(WORDS), lambda text: [text, None, text]),
    "large list": (pa.large_list(WORDS), lambda text: [text]),
    "list of fixed size": (pa.list_(WORDS, 2), lambda text: [text, None]),
    "list in a list": (pa.list_(pa.list_(SMALL)), lambda text: [[text], None]),
}


def secret(kind: str, number: int) -> str:
    """Return a text that is in no other row and in no other column."""
    return f"SECRET-{number}-{kind}."


def batch(given: list[dict[str, Any]], *kinds: str) -> pa.RecordBatch:
    """Return the rows with a column of each kind: a secret text of their own, or null for every ninth."""
    made = pa.RecordBatch.from_pylist(given)
    for kind in kinds or KINDS:
        plain, make = KINDS[kind]
        texts = [None if row["number"] % 9 == 8 else make(secret(kind, row["number"])) for row in given]
        made = made.append_column(kind, pa.array(texts, plain))
    return made


def told_of(**changes: Any) -> Any:
    """Return the transform with a policy that publishes the columns of all kinds."""
    return anonymize(publish=["number", *KINDS], **changes)


def written(value: pa.RecordBatch) -> list[bytes]:
    """Return the bytes of a batch as Beam sends it, as a file stores it, and as its buffers hold it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, value.schema) as writer:
        writer.write_batch(value)
    buffers = [buffer for column in value.columns for buffer in column.buffers() if buffer is not None]
    return [pickle.dumps(value), pickle.dumps(value, 5), bytes(sink.getvalue()), b"".join(map(bytes, buffers))]


def told(value: pa.RecordBatch) -> set[tuple[str, int]]:
    """Return the kind and the number of each secret that is found in the bytes of a batch."""
    found = {pair for data in written(value) for pair in re.findall(rb"SECRET-(\d+)-([^.]+)\.", data)}
    return {(kind.decode(), int(number)) for number, kind in found}


def own(value: pa.RecordBatch, *kinds: str) -> set[tuple[str, int]]:
    """Return the kind and the number of each secret of the batch's own rows."""
    numbers = [number for number in value["number"].to_pylist() if number % 9 != 8]
    return {(kind, number) for kind in kinds or KINDS for number in numbers}


def broken(count: int = 120) -> list[dict[str, Any]]:
    """Return rows, every fifth of which is rejected."""
    return [{**row, "age": 1000.0 if row["number"] % 5 == 0 else row["age"]} for row in rows(count)]


# Rejected rows are in no published batch; with `drop`, neither are suppressed rows.
@pytest.mark.parametrize("changes", [{}, {"delay": None, "delay_rows": 30}, {"shards": 3}], ids=str)
def test_only_values_of_its_own_rows_leave_with_a_batch(changes: dict[str, Any]) -> None:
    given = broken()
    out = run([batch(given[:60]), batch(given[60:])], told_of(on_suppress="drop", k=6, **changes))
    assert {row["number"] for row in given if row["number"] % 5 == 0} == {
        number for number in range(120) if any(f'"number": {number},' in left.value["row"] for left in out.rejected)
    }
    left = [left.value for left in (*out.published, *out.suppressed)]
    assert sum(value.num_rows for value in left) == 96
    for value in left:
        assert told(value) == own(value)
        value.validate(full=True)


def test_values_and_types_are_as_they_came() -> None:
    source = batch(rows(60))
    out = run([source], told_of())
    schema = published_schema(policy(publish=["number", *KINDS]), source.schema)
    for left in out.published:
        assert left.value.schema.equals(schema)
    for kind in KINDS:
        expected = {row["number"]: row[kind] for row in source.to_pylist()}
        assert {left.value["number"]: left.value[kind] for left in listed(out.published)} == expected, kind


def test_rows_outside_of_a_slice_do_not_leave() -> None:
    out = run([batch(rows(100)).slice(20, 50)], told_of())
    assert sum(left.value.num_rows for left in out.published) == 50
    for left in out.published:
        assert told(left.value) == own(left.value)
        assert set(left.value["number"].to_pylist()) <= set(range(20, 70))


def test_the_order_of_a_dictionary_is_that_of_its_own_rows() -> None:
    """The order of the input's dictionary would reveal whose row came first."""
    names = ["gout", "flu", "mumps", "croup", "cold", "ague"]
    ills = pa.DictionaryArray.from_arrays(pa.array([5, 3, 1] * 20, pa.int32()), pa.array(names))
    made = pa.RecordBatch.from_pylist(rows(60))
    made = made.set_column(made.schema.get_field_index("disease"), "disease", ills)
    for left in run([made], anonymize()).published:
        column = left.value["disease"]
        assert column.dictionary.to_pylist() == list(dict.fromkeys(column.to_pylist()))


def test_an_ordered_dictionary_keeps_its_order() -> None:
    """This order belongs to the values (mild is less than grave) and reveals nothing about the rows."""
    kinds = pd.Categorical(["grave", "mild", "fair"] * 20, categories=["none", "mild", "fair", "grave"], ordered=True)
    frame = pd.DataFrame([{**row, "disease": None} for row in rows(60)]).assign(disease=kinds)
    made = pa.RecordBatch.from_pandas(frame)
    assert made.schema.field("disease").type.ordered
    for left in run([made], anonymize()).published:
        assert left.value.schema.metadata is None
        column = left.value["disease"]
        assert column.type.ordered
        assert column.dictionary.to_pylist() == [k for k in ("mild", "fair", "grave") if k in set(column.to_pylist())]


def test_categories_of_pandas_that_no_row_has_do_not_leave() -> None:
    frame = pd.DataFrame(rows(60)).astype({"disease": "category"})
    frame["disease"] = frame["disease"].cat.add_categories([secret("text", 7)])
    out = run([pa.RecordBatch.from_pandas(frame)], anonymize())
    assert all(told(left.value) == set() for left in out.published)
    found = Counter(left.value["disease"] for left in listed(out.published))
    assert found == Counter(row["disease"] for row in rows(60))


def test_batches_that_leave_at_different_moments_share_no_memory() -> None:
    """A slice of a larger batch would carry the rows of later releases in its buffers."""
    out = run([batch(rows(120))], told_of(delay="2m"))
    assert len(out.published) > 3
    for left in out.published:
        assert told(left.value) == own(left.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_slice_that_stands_alone(kind: str) -> None:
    whole = batch(rows(50), kind)
    part = alone(whole.slice(10, 20))
    assert part.equals(whole.slice(10, 20)) or part.to_pylist() == whole.slice(10, 20).to_pylist()
    assert part.schema.equals(whole.schema)
    assert told(part) == own(part, kind)
