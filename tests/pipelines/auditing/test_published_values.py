"""Published values are read back as the spans that they stand for, however a format writes them."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.pipelines.auditing.published_values import Boxes, NotReadableError, Spans, box
from crenel.pipelines.files import writers
from crenel.policy.hierarchy import Hierarchy
from crenel.policy.quasi_identifiers import Categorical, Datetime, Numeric, Prefix, QuasiIdentifier, Range

TREE = Hierarchy.from_mapping({"*": {"left": ["a", "b"], "right": ["c", "d"], "lone": ["e"]}})
KINDS: dict[str, QuasiIdentifier] = {
    "numeric": Numeric(),
    "datetime": Datetime(),
    "numeric with a step": Numeric(step=0.1),
    "numeric with a step and a domain": Numeric(domain=(17, 90), step=5),
    "datetime with a step": Datetime(step="1h"),
    "datetime with a step and a domain": Datetime(domain=("2020-01-01T12:00:00Z", "2030-01-01"), step="7d"),
    "prefix": Prefix(length=3, alphabet="hex"),
    "categorical": Categorical(hierarchy=TREE),
}
numbers = st.floats(-1e9, 1e9).filter(lambda x: x == 0 or abs(x) > 1e-9).map(lambda x: x + 0.0)


@st.composite
def spans(draw: st.DrawFn) -> tuple[QuasiIdentifier, float, float]:
    qi = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    if isinstance(qi, Numeric) and qi.step is None:
        ends = draw(numbers), draw(numbers)
    elif isinstance(qi, (Numeric, Datetime)) and qi.step is not None:
        least, most = (-(10**5), 10**5) if qi.geometry.learned else map(int, qi.geometry.widest())
        whole = st.integers(least, most).map(float)
        ends = draw(whole), draw(whole)
    else:
        least, most = (-(10**14), 10**14) if isinstance(qi, Datetime) else map(int, qi.geometry.widest())
        whole = st.integers(least, most).map(float)
        ends = draw(whole), draw(whole)
    return qi, *qi.geometry.span(min(ends), max(ends))


def columns_of(qi: QuasiIdentifier, lo: float, hi: float) -> list[pa.Array]:
    """The value as it is in Parquet and JSON, as it is read from Avro, and as it is in CSV."""
    value: Any = qi.publish(lo, hi)
    if not isinstance(value, Range):
        return [pa.array([value])]
    record = pa.array([{"lo": value.lo, "hi": value.hi}])
    return [record, pa.array([json.dumps({"lo": value.lo, "hi": value.hi})]), writers._flat(record)]


@given(spans())
def test_what_is_published_is_read_back(drawn: tuple[QuasiIdentifier, float, float]) -> None:
    qi, lo, hi = drawn
    for column in columns_of(qi, lo, hi):
        assert [end.tolist() for end in Spans(qi).of(column)] == [[lo], [hi]]
        assert box(qi, column[0].as_py()) == (lo, hi)


def test_a_range_without_ends_and_a_missing_value() -> None:
    for qi in (KINDS["numeric"], KINDS["datetime"]):
        for column in (pa.array(["*"]), pa.array([{"lo": None, "hi": None}])):
            assert [end.tolist() for end in Spans(qi).of(column)] == [[-math.inf], [math.inf]]
    for qi in KINDS.values():
        for nothing in (pa.nulls(1), pa.array([None], pa.string())):
            assert all(np.isnan(end).all() for end in Spans(qi).of(nothing))


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize(
    "value", ["", " ", "x", "[1, 2", "**", "{}", '{"lo": 1}', "[2, 1]", "[nan, nan]", "[1, inf]", 5]
)
def test_anything_else_is_refused(kind: str, value: Any) -> None:
    with pytest.raises(NotReadableError):
        Spans(KINDS[kind]).of(pa.array([value]))


def test_a_type_that_is_not_built_in_is_refused() -> None:
    class Own(Numeric):
        pass

    with pytest.raises(TypeError, match="published values of type Own cannot be read back"):
        Spans(Own()).of(pa.array(["[1, 2]"]))


def test_equal_boxes_have_one_number() -> None:
    boxes = Boxes(2)
    lo = np.array([[1.0, np.nan], [1.0, np.nan], [0.0, 2.0], [1.0, -np.nan]])
    hi = np.array([[2.0, np.nan], [2.0, np.nan], [1.0, 3.0], [2.0, np.nan]])
    assert boxes.numbers(lo, hi).tolist() == [0, 0, 1, 0]
    assert boxes.numbers(lo[2:3], hi[2:3]).tolist() == [1]
    assert boxes.numbers(-lo[2:3] * [1, -1], hi[2:3]).tolist() == [1]  # -0.0 is 0.0
    assert boxes.numbers(lo[:0], hi[:0]).tolist() == []
    found = boxes.all()
    assert found[0][1].tolist() == [0.0, 2.0]
    assert np.isnan(found[1][0, 1])
