"""A value of a text column is judged by itself, whatever values are beside it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crenel.policy import columns
from crenel.transforms._pack.text_columns import TextColumns
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
