from __future__ import annotations

import datetime as dt
import json
import math
import os
import pickle
import re
import subprocess
import sys
import types
import zoneinfo
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.errors import PolicyError, Rejected
from crenel.pipelines.auditing.published_values import box
from crenel.policy import Policy, columns
from crenel.policy import quasi_identifiers as qi_types
from crenel.policy.geometry import Interval
from crenel.policy.hierarchy import Hierarchy
from crenel.policy.quasi_identifiers import Categorical, Datetime, Numeric, Prefix, QuasiIdentifier, Range, register
from crenel.testing import check_quasi_identifier
from crenel.transforms._pack import text_columns

DOCS = Path(__file__).parents[3] / "docs"
UTC = dt.timezone.utc
EDUCATION = Hierarchy.from_mapping({"School": ["9th", "10th"], "Higher": {"BSc": None, "3": None}})


@dataclass(frozen=True, kw_only=True)
class Income(QuasiIdentifier):
    """A user-defined type with a logarithmic scale."""

    greatest: float = 1e6

    @cached_property
    def geometry(self) -> Interval:
        return Interval(0.0, math.log(self.greatest))

    def coordinate(self, value):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Rejected("missing" if value is None else "not an income")
        if not 1 <= value <= self.greatest:
            raise Rejected("outside the domain")
        return math.log(value)

    def publish(self, lo, hi):
        return [round(math.exp(lo), 6), round(math.exp(hi), 6)]


CASES = {
    "numeric": (
        Numeric(domain=(17, 90)),
        [17, 90, 34.5, Decimal("20.25"), np.int64(40)],
        [16, "34"],
    ),
    "numeric learned": (Numeric(), [-5, 0.0, -0.0, 1e280, 12], [True, 10**400, 1e-300, "x" * 9]),
    "numeric step": (
        Numeric(domain=(17, 90), step=5),
        [17, 90, 34.5, Decimal("20.25"), np.int64(40)],
        [16, 91, "34"],
    ),
    "numeric step learned": (Numeric(step=0.1), [-5, 0.0, -0.05, 0.3, 12, 10**12], [True, 1e280, 10**400, 1e-300]),
    "datetime step": (
        Datetime(domain=(dt.date(2020, 1, 1), "2030-01-01"), step="1h"),
        ["2020-01-01", dt.date(2021, 3, 4), dt.datetime(2022, 1, 1, tzinfo=UTC), 1.6e9],
        ["2019-12-31T23:59:59Z", "soon enough", 10**12, True],
    ),
    "datetime step learned": (Datetime(step="7d"), ["1690-01-01", "2250-01-01", 0], ["9999-12-31", "1600-01-01"]),
    "datetime": (
        Datetime(domain=(dt.date(2020, 1, 1), "2030-01-01")),
        ["2020-01-01", dt.date(2021, 3, 4), dt.datetime(2022, 1, 1, tzinfo=UTC), 1.6e9],
        ["2019-12-31T23:59:59Z", "soon enough", "2020-13-01", 10**12, True],
    ),
    "datetime learned": (Datetime(), ["1690-01-01", "2250-01-01", 0], ["9999-12-31", "1600-01-01"]),
    "categorical": (
        Categorical(hierarchy=EDUCATION, weight=2),
        ["9th", "10th", "BSc", "3", 3, 3.0],
        ["School", "*", "Doctorate", 4],
    ),
    "prefix": (
        Prefix(length=5),
        ["53706", 53703, "00000", "99999"],
        ["5370", 2139, "5370x", "٥٣٧٠٦"],
    ),
    "prefix hex": (
        Prefix(length=13, alphabet="hex"),
        ["0123456789abc", "FFFFFFFFFFFFF"],
        ["g" * 13],
    ),
    "prefix literal": (Prefix(length=3, alphabet="abc"), ["abc", "aaa", "ccc"], ["ABC", "abcd"]),
    "own": (Income(), [1, 50.0, 1e6], [0.5, 2e6, "money"]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_shared_suite(name):
    instance, samples, bad = CASES[name]
    check_quasi_identifier(instance, samples, bad=bad)


def test_the_page_on_quasi_identifiers():
    text = (DOCS / "quasi-identifiers.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    module = types.ModuleType("page_on_quasi_identifiers")
    sys.modules[module.__name__] = module
    try:
        for block in blocks:
            exec(compile(block, "docs/quasi-identifiers.md", "exec"), module.__dict__)
        policy = Policy.from_dict(
            {
                "person": "p",
                "quasi_identifiers": {
                    "address": {"type": "ipv4", "weight": 2},
                    "home": {"type": "cell", "levels": 12},
                },
                "k": 2,
                "delay": "1m",
            }
        )
        assert Policy.from_dict(policy.to_dict()) == policy
        assert pickle.loads(pickle.dumps(policy)) == policy
        address, home = policy.quasi_identifiers.values()
        lo, hi = sorted(map(address.coordinate, ["192.0.2.1", "192.0.2.200"]))
        assert address.publish(*address.geometry.span(lo, hi)) == "192.0.2.0/24"
        place = home.coordinate("43.07,-89.40")
        south, west, north, east = home.publish(place, place)
        assert south <= 43.07 <= north
        assert west <= -89.40 <= east
        # What they publish can be audited, however a format writes it.
        span = address.geometry.span(lo, hi)
        assert box(address, "192.0.2.0/24") == span
        cell = home.geometry.span(place, home.coordinate("43.2,-89.3"))
        assert box(home, home.publish(*cell)) == box(home, json.dumps(home.publish(*cell))) == cell
        with pytest.raises(PolicyError, match=r"home: levels must be from 1 to 26, not 99"):
            Policy.from_dict(
                {
                    "person": "p",
                    "quasi_identifiers": {"home": {"type": "cell", "levels": 99}},
                    "k": 2,
                    "delay": "1m",
                }
            )
    finally:
        del sys.modules[module.__name__]
        for name in ("ipv4", "cell"):
            qi_types._registered.pop(name, None)


def reason(instance, value):
    with pytest.raises(Rejected) as caught:
        instance.coordinate(value)
    return caught.value.reason


@pytest.mark.parametrize(
    ("instance", "value", "expected"),
    [
        (Numeric(), None, "missing"),
        (Numeric(), math.nan, "not a number"),
        (Numeric(), math.inf, "not a number"),
        (Numeric(), Decimal("sNaN"), "not a number"),
        (Numeric(), 1e-300, "too small"),
        (Numeric(), np.True_, "not a number"),
        (Numeric(domain=(0, 1)), 2, "outside the domain"),
        (Datetime(), "", "missing"),
        (Datetime(), "NA", "missing"),
        (Datetime(), "null", "missing"),
        (Datetime(), "NAN", "not a date"),
        (Datetime(), "now", "not a date"),
        (Datetime(), "2020-02-30", "not a date"),
        (Datetime(), "2020-01-01T00:00+25:00", "not a date"),
        (Datetime(), np.datetime64("NaT"), "missing"),
        (Datetime(), 1_700_000_000_000, "date too far"),
        (Categorical(hierarchy=EDUCATION), "x", "unknown value"),
        (Categorical(hierarchy=EDUCATION), math.nan, "missing"),
        (Categorical(hierarchy=EDUCATION), ["9th"], "wrong type"),
        (Prefix(length=5), "1234", "wrong length"),
        (Prefix(length=5), "1234x", "unknown character"),
        (Prefix(length=4), True, "wrong type"),
    ],
)
def test_reasons(instance, value, expected):
    assert reason(instance, value) == expected


def test_what_is_published():
    assert Numeric().publish(17, 20.5) == Range(17.0, 20.5)
    assert Numeric().publish(-math.inf, math.inf) == (None, None)
    micro = Datetime().coordinate("2020-01-31T12:00:00.000001+01:00")
    assert Datetime().publish(0.0, micro) == (
        "1970-01-01T00:00:00Z",
        "2020-01-31T11:00:00.000001Z",
    )
    assert Datetime().publish(-math.inf, math.inf) == (None, None)
    prefix = Prefix(length=5)
    assert prefix.publish(53706, 53706) == "53706"
    assert prefix.publish(700, 709) == "0070*"
    assert prefix.publish(*prefix.geometry.widest()) == "*****"
    assert Prefix(length=3, alphabet="alphanumeric").publish(10, 45) == "0**"
    education = Categorical(hierarchy=EDUCATION)
    assert education.publish(0, 1) == "School"
    assert education.publish(1, 2) == "*"


@given(st.text("0123456789", min_size=6, max_size=6), st.text("0123456789", min_size=6, max_size=6))
def test_a_published_prefix_is_the_common_prefix(a, b):
    prefix = Prefix(length=6)
    lo, hi = sorted((prefix.coordinate(a), prefix.coordinate(b)))
    published = prefix.publish(*prefix.geometry.span(lo, hi))
    shared = published.rstrip("*")
    assert len(published) == 6
    assert a.startswith(shared)
    assert b.startswith(shared)
    assert a == b or a[len(shared)] != b[len(shared)]


FIRST, LAST = dt.datetime(1690, 1, 1), dt.datetime(2250, 1, 1)  # noqa: DTZ001 - bounds of a strategy


@given(st.datetimes(FIRST, LAST, timezones=st.timezones()))
def test_a_moment_has_one_coordinate_however_it_is_written(moment):
    datetime = Datetime()
    place = datetime.coordinate(moment)
    # In UTC, because Python never considers a time in a repeated hour equal to a time in another zone (PEP 495).
    assert qi_types._moment(place) == moment.astimezone(UTC)
    offset = moment.utcoffset()
    if offset is not None and offset.seconds % 60 == 0:
        assert datetime.coordinate(moment.isoformat()) == place
    utc = moment.astimezone(UTC)
    assert datetime.coordinate(utc.isoformat().replace("+00:00", "Z")) == place
    assert datetime.coordinate(utc.replace(tzinfo=None)) == place
    assert datetime.coordinate(np.datetime64(utc.replace(tzinfo=None))) == place


NUMBERS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3))


@given(st.lists(NUMBERS))
def test_a_column_of_numbers_equals_its_single_values(values):
    compare(Numeric(domain=(-100, 1e9)), values, values)
    compare(Numeric(), values, values)
    compare(Numeric(domain=(-100, 1e9), step=0.5), values, values)
    compare(Numeric(step=1000), values, values)
    compare(Datetime(), values, values)
    compare(Datetime(step="1m"), values, values)


@given(st.lists(st.one_of(st.none(), st.integers(-(2**62), 2**62))), st.booleans())
def test_a_column_of_arrow_integers_equals_its_single_values(values, chunked):
    column = pa.array(values, type=pa.int64())
    column = pa.chunked_array([column[:3], column[3:]]) if chunked else column
    compare(Numeric(domain=(-100, 1e9)), column, values)
    compare(Datetime(), column, values)
    compare(Prefix(length=2), column, values)


@given(st.lists(st.one_of(st.none(), st.floats())))
def test_columns_of_arrow_and_numpy_floats_equal_their_single_values(values):
    compare(Numeric(), pa.array(values, type=pa.float64()), values)
    floats = [value for value in values if value is not None]
    compare(Numeric(), np.array(floats, dtype=np.float64), floats)
    compare(Datetime(), np.array(floats, dtype=np.float64), floats)


@given(st.lists(st.one_of(st.none(), st.sampled_from(["9th", "10th", "BSc", "x", ""]))))
def test_a_column_of_text_equals_its_single_values(values):
    education = Categorical(hierarchy=EDUCATION)
    plain = pa.array(values, type=pa.string())
    compare(education, plain, values)
    compare(education, plain.dictionary_encode(), values)
    compare(education, pa.chunked_array([plain[:2], plain[2:]]).dictionary_encode(), values)
    compare(education, values, values)
    text = [value for value in values if value is not None]
    compare(education, np.array(text, dtype="U4"), text)


@pytest.mark.parametrize("text", sorted(columns.MISSING_TEXTS))
def test_the_same_texts_are_missing_among_numbers_and_among_moments(text):
    written = pa.array([text, "2020"])
    assert text_columns.numbers(written).to_pylist() == [None, 2020]
    for column in (["2020-01-01", text], pa.array(["2020-01-01", text])):
        found, reasons = columns.moments(column)
        assert list(reasons) == [None, "missing"]
        assert np.isnan(found).tolist() == [False, True]


def test_columns_of_dates():
    days = [dt.date(2020, 1, 1), None, dt.date(1969, 12, 31), dt.date(9999, 12, 31)]
    moments = [dt.datetime(2020, 1, 1, 12, tzinfo=UTC), None, dt.datetime(1960, 1, 1, tzinfo=UTC)]
    for kind in (pa.date32(), pa.date64()):
        compare(Datetime(), pa.array(days, type=kind), days)
    for unit in ("s", "ms", "us", "ns"):
        column = pa.array(moments, type=pa.timestamp(unit, tz="Europe/Paris"))
        compare(Datetime(), column, moments)
        compare(Datetime(), pa.chunked_array([column, column]), moments * 2)
    compare(Datetime(), np.array(days, dtype="datetime64[D]"), days)
    far = np.array(["300000-01-01", "-5000-01-01", "NaT"], dtype="datetime64[s]")
    assert list(Datetime().coordinates(far)[1]) == ["date too far", "date too far", "missing"]


def test_columns_of_booleans_masked_arrays_and_odd_objects():
    compare(Numeric(), np.array([True, False]), [True, False])
    compare(Numeric(), pa.array([True, None]), [True, None])
    compare(Numeric(), np.ma.array([1.0, 2.0], mask=[False, True]), [1.0, None])
    compare(Numeric(), [Fraction(1, 3), Decimal("2.5"), [1], {}], [Fraction(1, 3), 2.5, "", ""])
    compare(Numeric(), pa.array([Decimal("1.5"), None]), [1.5, None])
    compare(Numeric(), pa.array([[1], None]), ["", None])
    with pytest.raises(TypeError, match="a column must be a sequence or an array, not str"):
        Numeric().coordinates("abc")


def compare(instance, column, values):
    """Check that `coordinates` of the column equals `coordinate` of each value."""
    found, reasons = instance.coordinates(column)
    assert found.dtype == np.float64
    assert len(found) == len(values)
    for place, value in enumerate(values):
        got = reasons[place] if reasons is not None else None
        try:
            expected = instance.coordinate(value)
        except Rejected as error:
            assert got == error.reason
            assert math.isnan(found[place])
        else:
            assert got is None
            assert found[place] == expected
            assert math.copysign(1, found[place]) == math.copysign(1, expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Numeric(domain=(90, 17)),
            r"domain must be .* less than the second, not \[90, 17\]",
        ),
        (lambda: Numeric(domain=(0, "x")), r"domain must be a list of two numbers, not \[0, 'x'\]"),
        (lambda: Numeric(domain=5), "domain must be a list of two numbers, not 5"),
        (lambda: Numeric(domain=(0, math.inf)), "domain must be a list of two numbers"),
        (lambda: Numeric(weight=0), "Numeric.weight must be a number above 0, not 0"),
        (lambda: Numeric(weight=True), "weight must be a number above 0, not True"),
        (lambda: Numeric(step=0), "step must be a number from 1e-280 to 1e[+]280, not 0"),
        (lambda: Numeric(step="5"), "step must be a number .*, not '5'"),
        (lambda: Numeric(step=True), "step must be a number .*, not True"),
        (lambda: Numeric(step=math.nan), "step must be a number"),
        (lambda: Numeric(domain=(0, 10), step=11), "step must be no wider than the domain, not 11"),
        (lambda: Numeric(domain=(0, 1e20), step=5), "step must be greater, because steps so far from 0 cannot be"),
        (lambda: Numeric(domain=(1e20, 2e20), step=0.5), "step must be greater, because steps so far from 0 cannot"),
        (lambda: Datetime(step=3600), "step must be a duration such as .*, not 3600"),
        (lambda: Datetime(step="soon"), "step must be a duration such as .*, not 'soon'"),
        (lambda: Datetime(step="0s"), "step must be a duration such as .*, not '0s'"),
        (lambda: Datetime(step="200000d"), "step must be at most 100000d, not '200000d'"),
        (lambda: Datetime(domain=("2020-01-01", "2020-01-02"), step="25h"), "step must be no longer than the domain"),
        (lambda: Datetime(domain=("2020", "2021")), "domain must be a list of two dates"),
        (lambda: Datetime(domain=(2020, 2021)), r"domain must be a list of two dates, not \[2020"),
        (lambda: Datetime(domain=("2021-01-01", "2020-01-01")), "less than the second"),
        (lambda: Prefix(length=16), "length must be at most 15 for an alphabet of 10 .*, not 16"),
        (lambda: Prefix(length=11, alphabet="alphanumeric"), "length must be at most 10"),
        (lambda: Prefix(length=14, alphabet="hex"), "length must be at most 13"),
        (lambda: Prefix(length=0), "length must be an integer of at least 1, not 0"),
        (lambda: Prefix(length=2, alphabet="aa"), "alphabet must be"),
        (lambda: Prefix(length=2, alphabet="a*"), "alphabet must be"),
        (lambda: Categorical(hierarchy=5), "hierarchy must be a CSV file's name, a mapping or a"),
        (
            lambda: Categorical(hierarchy={"A": ["x", "x"]}),
            "hierarchy: the label 'x' must occur",
        ),
    ],
)
def test_a_wrong_declaration_is_refused(make, message):
    with pytest.raises(PolicyError, match=message):
        make()


def test_equality_is_by_content():
    assert Datetime(domain=("2020-01-01", "2021-01-01")) == Datetime(
        domain=(dt.date(2020, 1, 1), dt.datetime(2021, 1, 1, tzinfo=UTC))
    )
    assert Numeric(domain=[0, 1]) == Numeric(domain=(0.0, 1.0), weight=1)
    assert Numeric() != Numeric(weight=2)
    again = Categorical(hierarchy=EDUCATION.to_mapping())
    assert again == Categorical(hierarchy=EDUCATION)
    assert len({again, Categorical(hierarchy=EDUCATION)}) == 1


def test_pickles_hold_no_cached_properties():
    prefix = Prefix(length=5)
    before = len(pickle.dumps(prefix))
    prefix.coordinate("12345")
    prefix.publish(1, 2)
    assert len(pickle.dumps(prefix)) == before


def test_registering():
    assert qi_types.names()[:4] == ["numeric", "prefix", "categorical", "datetime"]
    with pytest.raises(ValueError, match="name must be free, not 'numeric', which is Numeric"):
        register("numeric", Income)
    with pytest.raises(TypeError, match="must be a subclass of QuasiIdentifier"):
        register("own", int)
    with pytest.raises(KeyError, match="did you mean 'numeric'"):
        qi_types.lookup("numerc")
    with pytest.raises(PolicyError, match="Income must be registered"):
        qi_types.name_of(Income)
    register("income", Income)
    try:
        assert qi_types.lookup("income") is Income
        assert qi_types.name_of(Income) == "income"
    finally:
        qi_types._registered.pop("income")


def test_entry_points_are_loaded_when_needed(monkeypatch):
    class Entry:
        name = "income"

        @staticmethod
        def load():
            return Income

    monkeypatch.setattr(qi_types, "_entry_points", lambda: [Entry])
    assert "income" in qi_types.names()
    try:
        assert qi_types.name_of(Income) == "income"
        assert qi_types.lookup("income") is Income
    finally:
        qi_types._registered.pop("income")


class Broken(Numeric):
    """A type that breaks one of the promises of a type."""

    def __init__(self, what):
        super().__init__(domain=(0, 100))
        object.__setattr__(self, "what", what)

    @property
    def geometry(self):
        return Interval(0.0, 100.0)

    def coordinate(self, value):
        if self.what == "told" and isinstance(value, str):
            raise Rejected(f"bad {value}")
        if self.what == "accepts" and value is None:
            return 0.0
        place = super().coordinate(value)
        if self.what == "outside":
            return place + 1000
        return int(place) if self.what == "int" else place

    def publish(self, lo, hi):
        if self.what == "same":
            return "all"
        return {lo} if self.what == "json" else [lo, hi]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("outside", "must be within"),
        ("int", "must be a float"),
        ("json", "JSON can hold"),
        ("same", "publish must tell"),
        ("told", "a reason must not hold the value"),
        ("accepts", "must be as coordinate's|must raise Rejected"),
    ],
)
def test_the_suite_finds_a_broken_type(what, message):
    with pytest.raises(AssertionError, match=message):
        check_quasi_identifier(Broken(what), [1, 50, 99], bad=["somebody"])


def test_the_suite_refuses_samples_that_are_rejected_or_all_equal():
    with pytest.raises(AssertionError, match=r"coordinate\('x'\) must take the sample"):
        check_quasi_identifier(Numeric(), [1, "x"])
    with pytest.raises(AssertionError, match="at least two different coordinates"):
        check_quasi_identifier(Numeric(), [1, 1.0])


def test_a_repeated_hour_is_two_hours_in_a_column():
    zone = zoneinfo.ZoneInfo("America/Los_Angeles")
    twice = [dt.datetime(2012, 11, 4, 1, 30, tzinfo=zone, fold=fold) for fold in (0, 1)]
    compare(Datetime(), twice, twice)
    first, second = Datetime().coordinates(twice)[0]
    assert second - first == 3_600_000_000


def test_an_installed_package_adds_a_type(tmp_path: Path) -> None:
    """Another package declares the entry point that the page names. The test imports nothing by hand."""
    (tmp_path / "own_types.py").write_text(
        "from crenel.policy.quasi_identifiers import Numeric\n\n\nclass Height(Numeric):\n    type = 'height'\n"
    )
    metadata = tmp_path / "own_types-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own-types\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[crenel.quasi_identifiers]\nheight = own_types:Height\n")
    code = (
        "from crenel import Policy\n"
        "columns = {'h': {'type': 'height', 'domain': [0, 250]}}\n"
        "said = {'version': 1, 'person': 'who', 'quasi_identifiers': columns, 'k': 2, 'delay_rows': 10}\n"
        "print(type(Policy.from_dict(said).quasi_identifiers['h']).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.strip() == "Height", done.stderr
    assert "crenel.quasi_identifiers" in (DOCS / "quasi-identifiers.md").read_text("utf-8")
