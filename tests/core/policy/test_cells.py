"""Quasi-identifiers with a step: the cell of a value, and where ranges of cells begin and end."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from crenel.errors import Rejected
from crenel.policy import Policy
from crenel.policy.columns import moment
from crenel.policy.quasi_identifiers import Datetime, Numeric

UTC = dt.timezone.utc
STEPS = st.one_of(
    st.sampled_from([5, 0.1, 0.01, 0.25, 1 / 3, 1000, 7.3, 1e-9, 123456.789]),
    st.floats(1e-6, 1e6),
    st.integers(1, 10**6),
)
VALUES = st.one_of(
    st.integers(-(10**6), 10**6), st.floats(-1e6, 1e6).filter(lambda x: x == 0 or abs(x) > 1e-200), st.integers()
)


@st.composite
def stepped(draw: st.DrawFn) -> tuple[Numeric, float]:
    """Draw a quasi-identifier with a declared or a learned domain, and a value that it accepts."""
    step, value = draw(STEPS), draw(VALUES)
    if draw(st.booleans()):
        near = draw(st.integers(-3, 3))
        value = float(Fraction(repr(float(step))) * (round(value / step) + near)) if abs(value) < 1e6 else value
    lo, hi = draw(st.floats(0, 1e6)), draw(st.floats(0, 1e6))
    value = float(value)
    domain = (value - lo, value + hi) if draw(st.booleans()) and lo + hi >= step else None
    try:
        qi = Numeric(domain=domain, step=step)
        qi.coordinate(value)
    except (ValueError, Rejected):
        assume(False)
    return qi, value


def multiple(step: Any, number: float) -> float:
    """Return the float nearest to a multiple of the step as it is written."""
    return float(Fraction(str(step)) * int(number))


@given(stepped())
def test_a_published_range_contains_the_value_and_ends_at_multiples(drawn: tuple[Numeric, float]) -> None:
    qi, value = drawn
    cell = qi.coordinate(value)
    assert cell.is_integer()
    lo, hi = qi.publish(cell, cell)
    assert lo <= value <= hi
    assert lo < hi, "a range must not be a single value"
    ends = {multiple(qi.step, cell), multiple(qi.step, cell + 1), *(qi.domain or ())}
    assert {lo, hi} <= ends


@given(stepped(), st.integers(0, 50), st.integers(0, 50))
def test_wider_ranges_end_at_multiples_too(drawn: tuple[Numeric, float], before: int, after: int) -> None:
    qi, value = drawn
    cell = qi.coordinate(value)
    least, most = qi.geometry.widest()
    first, last = max(cell - before, least), min(cell + after, most)
    lo, hi = qi.publish(first, last)
    assert lo <= value <= hi
    outer = qi.domain or (-math.inf, math.inf)
    assert lo == max(multiple(qi.step, first), outer[0])
    assert hi == min(multiple(qi.step, last + 1), outer[1])
    cells = qi.cells
    assert cells is not None
    assert [end.tolist() for end in cells.between(np.array([lo]), np.array([hi]))] == [[first], [last]]
    assert [end.tolist() for end in qi.ends(np.array([first]), np.array([last]))] == [[lo], [hi]]


@given(stepped(), st.floats(0, 1))
def test_the_coordinate_holds_nothing_of_a_value_but_its_cell(drawn: tuple[Numeric, float], at: float) -> None:
    qi, value = drawn
    cell = qi.coordinate(value)
    lo, hi = qi.publish(cell, cell)
    other = min(max(lo + at * (hi - lo), lo), hi)
    assume(other < hi or (qi.domain is not None and hi == qi.domain[1]))
    assume(other == 0 or abs(other) >= 1e-280)
    assert qi.coordinate(other) == cell


def test_multiples_are_those_of_the_written_step() -> None:
    tenths = Numeric(step=0.1)
    assert tenths.coordinate(0.3) == 3
    assert tenths.publish(3, 3) == (0.3, 0.4)
    assert tenths.publish(-1, 0) == (-0.1, 0.1)
    assert [tenths.publish(i, i).lo for i in range(100)] == [float(f"{i // 10}.{i % 10}") for i in range(100)]
    assert Numeric(step=Decimal("0.1")) == tenths
    assert Numeric(step=5).publish(4, 6) == (20.0, 35.0)
    assert Numeric(step=5).publish(-math.inf, math.inf) == (None, None)


def test_ranges_end_where_the_domain_ends() -> None:
    ages = Numeric(domain=(17, 90), step=5)
    assert ages.geometry.widest() == (3, 17)
    assert ages.publish(3, 3) == (17, 20)
    assert ages.publish(*ages.geometry.widest()) == (17, 90)
    # The largest value shares a cell with others. In a cell of its own, it would be published exactly.
    assert ages.coordinate(90) == ages.coordinate(85)
    assert ages.publish(17, 17) == (85, 90)
    whole = Numeric(domain=(0, 10), step=10)
    assert (whole.coordinate(0), whole.coordinate(10)) == (0, 0)
    assert whole.geometry.loss(0, 0) == 1.0


def test_large_numbers_are_exact() -> None:
    qi = Numeric(step=5)
    most = 2**53 // 5 * 5
    for value in (most - 1, most - 5, -(2**53) + 2, -(2**53) + 3):
        lo, hi = qi.publish(*[qi.coordinate(value)] * 2)
        assert (lo, hi) == (value // 5 * 5, value // 5 * 5 + 5)
    with pytest.raises(Rejected, match="too large"):
        qi.coordinate(2**53 + 10)
    assert Numeric(step=1).coordinate(2**53 - 1) == 2**53 - 1
    thousands = Numeric(step=1000)
    assert thousands.publish(*[thousands.coordinate(10**17 + 16)] * 2) == (1e17, float(10**17 + 1000))


@given(
    st.datetimes(dt.datetime(1690, 1, 1), dt.datetime(2240, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    st.sampled_from(["1us", "1s", "7s", "1h", "1d", "7d", "1.5h", "3650d"]),
)
def test_moments_are_rounded_to_multiples_since_the_epoch(value: dt.datetime, step: str) -> None:
    qi = Datetime(step=step)
    cell = qi.coordinate(value)
    lo, hi = (moment(end) for end in qi.publish(cell, cell))
    micros = Fraction(step[:-2] if step == "1us" else step[:-1])
    micros *= {"us": 1, "s": 10**6, "h": 3600 * 10**6, "d": 86_400 * 10**6}[step.lstrip("0123456789.")]
    assert lo <= moment(value) < hi
    assert hi - lo == micros
    assert int(lo) % micros == 0


def test_days_begin_at_midnight_in_utc() -> None:
    days = Datetime(domain=("2020-01-01T12:00:00Z", "2021-01-01"), step="1d")
    cell = days.coordinate("2020-01-31T23:30:00-01:00")
    assert days.publish(cell, cell) == ("2020-02-01T00:00:00Z", "2020-02-02T00:00:00Z")
    first, last = days.geometry.widest()
    assert days.publish(first, first) == ("2020-01-01T12:00:00Z", "2020-01-02T00:00:00Z")
    assert days.publish(last, last) == ("2020-12-31T00:00:00Z", "2021-01-01T00:00:00Z")
    assert Datetime(step=dt.timedelta(hours=24)) == Datetime(step="1d")
    weeks = Datetime(step="7d")
    assert weeks.publish(0, 0) == ("1970-01-01T00:00:00Z", "1970-01-08T00:00:00Z")


def test_a_step_survives_the_policy_file() -> None:
    spec = {
        "person": "p",
        "quasi_identifiers": {
            "age": {"type": "numeric", "domain": [17, 90], "step": 5},
            "share": {"type": "numeric", "step": 0.1},
            "at": {"type": "datetime", "step": "1h"},
        },
        "k": 2,
        "delay": "1m",
    }
    policy = Policy.from_dict(spec)
    written = policy.to_dict()
    assert Policy.from_dict(written) == policy
    said = {name: one.get("step") for name, one in written["quasi_identifiers"].items()}
    assert said == {"age": 5, "share": 0.1, "at": "1h"}
    assert type(said["age"]) is int


@pytest.mark.parametrize(
    ("begin", "end"), [(20, 26), (21, 25), (25, 25), (30, 25), (15, 20), (17, 91), (85, 95), (-math.inf, math.inf)]
)
def test_a_range_that_ends_between_multiples_is_refused(begin: float, end: float) -> None:
    cells = Numeric(domain=(17, 90), step=5).cells
    assert cells is not None
    with pytest.raises(ValueError, match="must end at multiples"):
        cells.between(np.array([begin]), np.array([end]))


def test_unpublished_ranges_stay_unpublished() -> None:
    cells = Numeric(step=0.5).cells
    assert cells is not None
    nowhere, everywhere = np.array([math.nan]), np.array([math.inf])
    assert np.isnan(cells.between(nowhere, nowhere)).all()
    assert [end.tolist() for end in cells.between(-everywhere, everywhere)] == [[-math.inf], [math.inf]]
    with pytest.raises(ValueError, match="must end at multiples"):
        cells.between(-everywhere, np.array([1.0]))
