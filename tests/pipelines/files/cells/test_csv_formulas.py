"""Text that a spreadsheet would run as a formula: what is escaped, and that it can be undone."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.pipelines.files.cells.csv_formulas import escaped, unescaped


@pytest.mark.parametrize(
    "text",
    [
        "=1+1",
        "+1+1",
        "-1+1",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        "=cmd|' /C calc'!A0",
        "\uff1d1+1",
        "\uff201",
        "-",
        "+x",
    ],
)
def test_a_formula_becomes_text(text: str) -> None:
    assert escaped(pa.array([text])).to_pylist() == ["'" + text]


@pytest.mark.parametrize(
    "text", ["-5", "+5", "-0.5", "-.5", "-5.", "-1e-9", "5", "", "a=1", " =1", "[1, 2]", "*", "'", "'a"]
)
def test_numbers_and_other_text_stay(text: str) -> None:
    assert escaped(pa.array([text])).to_pylist() == [text]


def test_a_missing_value_stays_missing() -> None:
    assert escaped(pa.array([None, "=1"])).to_pylist() == [None, "'=1"]


@given(st.lists(st.none() | st.text("'=+-@\t\r\n\uff1d1.ea ", max_size=6)))
def test_it_can_be_undone(texts: list[str | None]) -> None:
    cells = escaped(pa.array(texts, pa.string()))
    numbers = pa.array(range(len(texts)))
    batch = unescaped(pa.RecordBatch.from_arrays([cells, numbers], names=["text", "number"]))
    assert batch.column("text").to_pylist() == texts
    assert batch.column("number").equals(numbers)
