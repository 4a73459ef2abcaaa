"""Columns of pandas and polars that Arrow has no type for are densified, or named in one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import crenel

POLICY: dict[str, Any] = {
    "version": 1,
    "person": "p",
    "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 120]}},
    "publish": ["note"],
    "k": 3,
    "delay_rows": 20,
}
COUNT = 60
AGES = [number % 50 for number in range(COUNT)]


def pandas_frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"p": range(COUNT), "age": AGES, "note": range(COUNT), **columns})


def polars_frame(**columns: Any) -> pl.DataFrame:
    return pl.DataFrame({"p": range(COUNT), "age": AGES, "note": range(COUNT), **columns})


def refusal(given: Any) -> str:
    with pytest.raises(ValueError, match="anonymize") as caught:
        crenel.anonymize(given, POLICY)
    return str(caught.value)


@pytest.mark.parametrize("names", [[0, 1, 2], [("a", "p"), ("a", "age"), ("a", "note")]], ids=["numbers", "MultiIndex"])
def test_a_column_that_is_missing_beside_names_that_are_no_text_is_named(names: list[Any]) -> None:
    given = pandas_frame().set_axis(names if names[0] == 0 else pd.MultiIndex.from_tuples(names), axis=1)
    missing = [f"anonymize: the table has no column {name!r}, which the policy names." for name in ("p", "age", "note")]
    assert refusal(given) == "\n".join(missing)


@pytest.mark.parametrize("role", ["note", "age", "p"])
def test_a_sparse_column_is_as_a_dense_one(role: str) -> None:
    given = pandas_frame()
    sparse = given.assign(**{role: pd.arrays.SparseArray(given[role])})
    found, expected = crenel.anonymize(sparse, POLICY), crenel.anonymize(given, POLICY)
    assert found.summary == expected.summary
    assert sorted(found.published["note"]) == sorted(expected.published["note"]) == list(range(COUNT))


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pd.cut(pd.Series(np.arange(COUNT)), [0, 10, 20, 90]), r"interval[int64, right]"),
        (pd.Series(pd.period_range("2000-01-01", periods=COUNT)).astype("category"), "period[D]"),
    ],
    ids=["intervals", "periods"],
)
def test_categories_that_would_not_come_back_are_named_before_the_work_starts(column: Any, kind: str) -> None:
    said = f"anonymize: the column 'note' holds categories of type {kind}; make them text (astype(str))."
    assert refusal(pandas_frame(note=column)) == said
    as_text = crenel.anonymize(pandas_frame(note=column.astype(str)), POLICY)
    assert set(as_text.published["note"]) == set(column.astype(str))


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pl.Series(range(COUNT)).cast(pl.Int128), "Int128"),
        (pl.Series([object()] * COUNT, dtype=pl.Object), "Object"),
    ],
    ids=["integers", "objects"],
)
def test_a_type_of_polars_that_arrow_does_not_have_is_named(column: pl.Series, kind: str) -> None:
    said = f"anonymize: the column 'note' has the type {kind}, which Arrow does not have; cast it to another."
    assert refusal(polars_frame(note=column)) == said
    assert crenel.anonymize(polars_frame(more=column), POLICY).summary.rows == COUNT
