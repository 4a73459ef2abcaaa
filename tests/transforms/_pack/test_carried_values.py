"""Values that rows carry come back as they were, type and all; what cannot be carried is rejected, never pickled."""

from __future__ import annotations

import datetime as dt
import enum
import math
from collections import OrderedDict, namedtuple
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import apache_beam as beam
import msgpack
import numpy as np
import pandas as pd
import pytest
from apache_beam.utils.timestamp import Duration, Timestamp
from hypothesis import given
from hypothesis import strategies as st

from crenel.errors import Rejected
from crenel.transforms._pack import carried_values
from crenel.transforms._pack.carried_values import NESTED, WRONG_TYPE, pack, refusal, unpack
from crenel.transforms._pack.element_coders import CarriedCoder


class Point(NamedTuple):
    x: float
    y: Any


class Color(enum.Enum):
    RED = 1


class Word(str):
    __slots__ = ()


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in everything that can be seen of them."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            same(*pair) for items in zip(one.items(), other.items(), strict=True) for pair in zip(*items, strict=True)
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, beam.Row):
        return same(one._asdict(), other._asdict())
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, float):
        return np.float64(one).tobytes() == np.float64(other).tobytes()
    if isinstance(one, (dt.datetime, dt.time)):
        return repr(one) == repr(other) and one.fold == other.fold and type(one.tzinfo) is type(other.tzinfo)
    if isinstance(one, (Decimal, np.generic)) or one is pd.NaT:
        return repr(one) == repr(other)
    return bool(one == other)


VALUES = {
    "none": None,
    "booleans": [True, False],
    "integers": [0, -1, 2**63, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 10**40, -(10**40), 2**71, 255, 256, -256],
    "floats": [0.0, -0.0, 0.1, math.inf, -math.inf, math.nan, 5e-324],
    "text": ["", "ä\0", "lone \udc80 half", "🦔" * 300],
    "bytes": [b"", b"\x80\xff" * 200],
    "decimals": [Decimal("1.50"), Decimal("-0"), Decimal("1E+30"), Decimal("NaN"), Decimal("-Infinity")],
    "moments": [
        dt.datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001
        dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc),
        dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-3, seconds=7))),
        dt.datetime(2026, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=1), "here")),
        dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        dt.datetime.max,  # noqa: DTZ901
    ],
    "dates and times": [dt.date.min, dt.date(2026, 2, 28), dt.time(1, 2, 3, 4), dt.time(5, tzinfo=dt.timezone.utc)],
    "durations": [dt.timedelta(-1, 2, 3), dt.timedelta.max],
    "ids": UUID(int=2**127 + 5),
    "nested": {"a": [1, {"b": None, "c": [[], {}]}], "d": (1, ("x", b"y")), 7: {1.5, "z"}, (1, 2): frozenset([3])},
    "ordered": OrderedDict([("b", 1), ("a", 2)]),
    "numbers": [1 + 2j, Fraction(1, 3)],
    "numpy": [np.int32(-5), np.float32(0.1), np.bool_(True), np.datetime64("2026-01-01T00:00:00.5"), np.str_("é")],
    "numpy, more": [np.bytes_(b""), np.str_(""), np.timedelta64(3, "D"), np.uint64(2**64 - 1), np.datetime64("NaT")],
    "arrays": [np.arange(6, dtype="<f4").reshape(2, 3), np.zeros((0, 2)), np.array(["a", "bc"]), np.array(3)],
    "rows": [beam.Row(a=1, b=beam.Row(c=[None])), Point(1.5, Point(2, None))],
    "Beam": [Timestamp(micros=-5), Timestamp(micros=2**60), Duration(micros=7)],
    "pandas": [
        pd.Timestamp("2026-01-02T03:04:05.000000006"),
        pd.Timestamp("2026-01-02", tz=dt.timezone.utc),
        pd.Timestamp("2026-07-02", tz=ZoneInfo("Europe/Berlin")),
        pd.Timestamp("2026-01-02").as_unit("s"),
        pd.NaT,
    ],
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    found = unpack(pack(value))
    assert same(found, value), found


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.decimals()
    | st.datetimes(timezones=st.none() | st.timezones() | st.just(dt.timezone.utc), allow_imaginary=True)
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.uuids()
    | st.fractions()
    | st.complex_numbers(allow_nan=False)
)
KEYS = st.text() | st.integers() | st.binary() | st.tuples(st.integers(), st.text())
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(KEYS, inner)
        | st.tuples(inner, inner)
        | st.builds(Point, inner, inner)
        | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, min_size=1).map(lambda named: beam.Row(**named))
    ),
    max_leaves=12,
)


@given(value=ANYTHING)
def test_whatever_is_drawn_comes_back(value: Any) -> None:
    assert same(unpack(pack(value)), value)
    coder = CarriedCoder()
    assert same(coder.decode(coder.encode(value)), value)


DEEP: list[Any] = []
for _ in range(1100):
    DEEP = [DEEP]
TUPLES: tuple[Any, ...] = ()
for _ in range(20):
    TUPLES = (TUPLES,)
ITSELF: list[Any] = []
ITSELF.append(ITSELF)

REFUSED = {
    "an object": (object(), WRONG_TYPE),
    "an enum": (Color.RED, WRONG_TYPE),
    "a kind of text": (Word("x"), WRONG_TYPE),
    "a kind of dict": (type("Kind", (dict,), {})(), WRONG_TYPE),
    "a function": (len, WRONG_TYPE),
    "inside of others": ({"a": [(1, {2: object()})]}, WRONG_TYPE),
    "objects in an array": (np.array([None, 1], dtype=object), WRONG_TYPE),
    "records in an array": (np.zeros(2, dtype=[("a", "i4")]), WRONG_TYPE),
    "another kind of time zone": (dt.datetime(2026, 1, 1, tzinfo=type("Zone", (dt.tzinfo,), {})()), WRONG_TYPE),
    "deep lists": (DEEP, NESTED),
    "deep tuples": (TUPLES, NESTED),
    "a list in itself": (ITSELF, NESTED),
}


@pytest.mark.parametrize(("value", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_carried_is_rejected(value: Any, reason: str) -> None:
    with pytest.raises(Rejected) as caught:
        pack(value)
    assert caught.value.reason == refusal(value) == reason


@pytest.mark.parametrize("depth", [*range(460, 520, 3), *range(960, 1030, 3)])
def test_what_can_be_carried_can_be_read_again(depth: int) -> None:
    """MessagePack writes lists that are nested more deeply than it can read."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    if refusal(value) is None:
        found, levels = unpack(pack([[[[{"column": [value]}]]]]))[0][0][0][0]["column"], 0
        while found:
            found, levels = found[0], levels + 1
        assert levels == depth + 1


def test_a_named_tuple_whose_class_is_not_there_has_its_names() -> None:
    """No module is imported because stored data names it."""
    gone = namedtuple("gone", ["x", "y"])
    gone.__module__, gone.__qualname__ = "not.imported", "Gone"
    found = unpack(pack(gone(1, "two")))
    assert (found, found._fields, type(found).__name__) == ((1, "two"), ("x", "y"), "Gone")


@pytest.mark.parametrize(("module", "name"), [("os", "system"), ("builtins", "tuple"), ("subprocess", "Popen")])
def test_a_name_of_something_else_is_not_called(module: str, name: str) -> None:
    code = carried_values._CODES["NamedTuple"]
    data = msgpack.packb(msgpack.ExtType(code, msgpack.packb([module, name, ["x"], ["echo"]])))
    found = unpack(data)
    assert found == ("echo",) and found.x == "echo"
