"""A value of a text column is judged by itself, whatever values are beside it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crenel.policy import columns
from crenel.transforms._pack.text_columns import TextColumns, lacking
from tests.transforms.streams import policy

ZONES = ("", "Z", "z", "+00:00", "+02:00", "-0330", "+2:00", "+02", "+24:00", "-23:59", " Z")
MOMENTS = st.builds(
    "{:04}-{:02}-{:02}{}{:02}:{:02}{}{}".format,
    st.integers(1800, 2200),
    st.integers(1, 12),
    st.integers(1, 31),
    st.sampled_from(["T", " "]),
    st.integers(0, 24),
    st.integers(0, 60),
    st.sampled_from(["", ":00", ":59.5", ":60", ":01.123456", ":01.1234567", ":01,5"]),
    st.sampled_from(ZONES),
)


@given(st.lists(st.one_of(MOMENTS, st.none()), max_size=5), st.sampled_from(ZONES))
@example(["2026-03-02T09:00:00", "2026-03-02T09:00:00.25"], "Z")
@example(["2026-03-02T09:00:00", "2026-02-30T09:00:00"], "+02:00")
@settings(deadline=None)
def test_moments_of_a_column_are_those_of_its_values(texts: list[str | None], zone: str) -> None:
    reader = TextColumns(policy())
    # Mostly all values of a column have the same zone.
    for column in (texts, [text and text[:16] + zone for text in texts]):
        found, reasons = columns.moments(reader.array("seen", pa.array(column, pa.string())))
        for place, text in enumerate(column):
            alone, why = columns.moments(reader.values("seen", [text]))
            assert (None if reasons is None else reasons[place]) == (None if why is None else why[0])
            np.testing.assert_equal(found[place], alone[0])


@pytest.mark.parametrize("text", sorted(columns.MISSING_TEXTS))
@pytest.mark.parametrize("others", [["2026-03-02"], ["soon"], ["1600000000"], ["2026-03-02T09:00:00Z", "soon"], []])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_the_texts_of_missing_numbers_are_missing_moments(text: str, others: list[str], kind: pa.DataType) -> None:
    reader = TextColumns(policy())
    for column in (reader.values("seen", [*others, text]), reader.array("seen", pa.array([*others, text]).cast(kind))):
        _, reasons = columns.moments(column)
        assert reasons is not None
        assert reasons[-1] == columns.MISSING
        assert columns.holes(column, np.array([len(others)])).tolist() == [len(others)]


# -- columns that are not there ----------------------------------------------------------------------

#: All columns that the policy names.
NAMED = ["patient", "seen", "age", "zipcode", "education", "disease", "number"]
HEADLESS = "may have a row of data in its first line, instead of a header."


def no_column(name: str, guess: str = "") -> str:
    return f"has no column {name!r}, which the policy names. {guess}".strip()


def but(name: str, *others: object) -> list[object]:
    """Return the columns of the policy, with others instead of one."""
    return [*(one for one in NAMED if one != name), *others]


@pytest.mark.parametrize("name", ["zipcod", "zip_code", "Zipcode", " zipcode "])
def test_a_misspelled_name_is_suggested(name: str) -> None:
    assert list(lacking(policy(), but("zipcode", name))) == [no_column("zipcode", f"Did you mean {name!r}?")]


@pytest.mark.parametrize("name", ["disease X", "disease{", "diseas\n", "1disease", "diabetes", "disease" + "e" * 90])
def test_what_may_be_a_value_is_not_suggested(name: str) -> None:
    assert list(lacking(policy(), but("disease", name))) == [no_column("disease")]


@pytest.mark.parametrize(
    "line",
    [
        ["P00145", "2026-01-01", "23", "12345", "educatio", "diseases", "7"],
        ['{"patient": "P00145"', '"age": 23', '"zipcode": "12345"}'],
    ],
    ids=["CSV", "JSON"],
)
def test_a_line_of_data_instead_of_a_header_is_not_quoted(line: list[str]) -> None:
    assert list(lacking(policy(), line)) == [*map(no_column, NAMED), HEADLESS]


def test_an_odd_header_is_not_taken_for_data() -> None:
    assert list(lacking(policy(), ["First name", "", "_note"])) == [*map(no_column, NAMED)]


@pytest.mark.parametrize("others", [[0, 1], [("a", "age"), ("a", "b")], [None, float("nan")]])
def test_names_that_are_no_text_are_no_columns_of_a_policy(others: list[object]) -> None:
    assert list(lacking(policy(), but("age", *others))) == [no_column("age")]


def test_keys_of_objects_are_not_told() -> None:
    said = "has an object in 'disease': the policy must name its fields, as in 'disease.FIELD'."
    assert list(lacking(policy(), but("disease", "disease.Zacharias"))) == [said]
    of = policy(publish=["scores.Ada"])
    assert list(lacking(of, but("number", "scores.Zacharias"))) == [no_column("scores.Ada")]
    assert list(lacking(of, but("number", "scores", "scores.Zacharias"))) == [no_column("scores.Ada")]
    assert list(lacking(of, but("number", "score.Ada"))) == [no_column("scores.Ada", "Did you mean 'score.Ada'?")]
