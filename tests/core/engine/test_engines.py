"""Every method keeps the promises of the design. Runs the checks that crenel ships on streams that Hypothesis draws.

To test a new method, add a name and its streams to `METHODS`. The method's declaration says what it does not promise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crenel.avro import Schemas
from crenel.encoding.rows import Rows
from crenel.engine import Releases, create_engine
from crenel.engine.methods.castle import CastleParameters
from crenel.policy import Policy, Sensitive
from crenel.policy.hierarchy import Hierarchy
from crenel.policy.methods import find, names
from crenel.policy.quasi_identifiers import Categorical, Numeric, Prefix
from crenel.testing.engine_checks import ALL_CHECKS, audited, reason_to_skip
from crenel.testing.engine_streams import Case, run
from tests.core.engine.cases import (
    adaptive_parameters,
    bastion_cases,
    cases,
    castleguard_cases,
    continuous,
    faanst_parameters,
    fads_parameters,
    mondrian_parameters,
    partition_parameters,
    sdgs_cases,
    z_anonymity_parameters,
)

PARTITION: dict[str, Any] = {"method": "partition", "parameters": partition_parameters()}


@dataclass(frozen=True)
class Tried:
    """A method under test, and its streams."""

    name: str
    cases: st.SearchStrategy[Case]


METHODS = [
    Tried("castle", cases()),
    Tried("castle with l", cases(diverse=True)),
    Tried("castle with t", cases(close=True)),
    Tried("castle with l and t", cases(diverse=True, close=True)),
    Tried("castle in order", cases(reorder=True)),
    Tried("castle in order with l and t", cases(reorder=True, diverse=True, close=True)),
    Tried("bastion", bastion_cases()),
    Tried("bastion with l and t", bastion_cases(diverse=True, close=True)),
    Tried("castleguard", castleguard_cases()),
    Tried("sdgs", sdgs_cases()),
    Tried("z-anonymity", cases(method="z-anonymity", parameters=z_anonymity_parameters(), declared=True)),
    Tried("partition", cases(**PARTITION)),
    Tried("partition with l", cases(diverse=True, **PARTITION)),
]


#: Methods that decide on all held rows at once.
BUFFERED = [
    Tried("mondrian with l", cases(diverse=True, method="mondrian", parameters=mondrian_parameters())),
    Tried(
        "adaptive-window with l",
        cases(diverse=True, method="adaptive-window", parameters=adaptive_parameters(), timed=True),
    ),
    Tried(
        "faanst-passive with l",
        cases(diverse=True, method="faanst-passive", parameters=faanst_parameters(), counted=True),
    ),
    Tried("faanst-proactive", cases(method="faanst-proactive", parameters=faanst_parameters(), counted=True)),
    Tried("fads", cases(method="fads", parameters=fads_parameters())),
    Tried("min-delay with l", continuous("min-delay", diverse=True)),
    Tried("rtree", continuous("rtree")),
    Tried("rtree-density", continuous("rtree-density")),
    Tried("rtree-full with l", continuous("rtree-full", diverse=True)),
]


def tried(method: Tried, data: st.DataObject) -> None:
    """Draw one stream, which costs more than most checks of it, for all checks of all promises."""
    case = data.draw(method.cases, label="case")
    for check in ALL_CHECKS:
        if reason_to_skip(check, case.policy) is None:
            check(case)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_promises(method: Tried, data: st.DataObject):
    tried(method, data)


@pytest.mark.slow
@pytest.mark.parametrize("method", BUFFERED, ids=lambda method: method.name)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_promises_of_the_buffered(method: Tried, data: st.DataObject):
    """They share most of their code, so that fewer examples of each are enough."""
    tried(method, data)


@pytest.mark.parametrize("name", names())
def test_a_snapshot_is_of_the_declared_schema(name: str):
    said = {"sdgs": {"cover": "quasi_identifiers"}}
    policy = long_case().policy
    policy = replace(policy, quasi_identifiers={"x": Numeric(domain=(0, 100))}, method=name, parameters=said.get(name))
    declared = find(name).snapshot
    assert declared is not None
    package, _, file = declared.partition(":")
    assert Schemas(package, (file,)).wrote(create_engine(policy).dump())


# -- streams that are longer than Hypothesis draws -----------------------------------------------


def stream(n: int, *, seed: int = 1) -> Rows:
    """Make rows in two drifting clouds, with persons who return."""
    random = np.random.default_rng(seed)
    person = random.integers(0, n // 3 + 1, n)
    cloud = random.integers(0, 2, n)[:, None] * 40.0
    qi = random.normal(30.0, 8.0, (n, 2)) + cloud
    return Rows(
        qi=np.ascontiguousarray(np.clip(qi, 0.0, 100.0)),
        person=person,
        sensitive=random.integers(0, 6, (n, 1)),
        time=np.cumsum(random.integers(0, 20, n)) + random.integers(-30, 30, n),
    )


def long_case(n: int = 3000, **changes: object) -> Case:
    settings: dict[str, object] = {
        "person": "person",
        "event_time": "at",
        "quasi_identifiers": {"x": Numeric(domain=(0, 100)), "y": Numeric()},
        "sensitive": {"s": Sensitive(values=tuple("abcdef"))},
        "k": 5,
        "delay": "2ms",
        "delay_rows": 200,
        "disorder": "30us",
        "method": "castle",
        "parameters": CastleParameters(beta=10, mu=20, max_reusable=20),
    }
    return Case(policy=Policy(**settings | changes), rows=stream(n))


LONG = {
    "k": {},
    "l": {"l": 3},
    "t": {"t": 0.3},
    "l and t": {"l": 2, "t": 0.4},
    "rows only": {"delay": None, "disorder": 0},
    "time only": {"delay_rows": None},
}


@pytest.mark.parametrize("changes", LONG.values(), ids=LONG)
def test_long_stream(changes: dict[str, object]):
    case = long_case(**changes)
    report = audited(case, run(case))
    assert report.ok, str(report)
    # Suppressing all rows would keep every promise, too.
    assert report.published > 0.9 * report.rows
    assert report.loss is not None
    assert report.loss < 0.6


def test_state_does_not_grow_with_the_stream():
    """Promise 7: the state consists of the held rows and a bounded number of generalizations."""
    case = long_case(6000, t=0.5, l=2)
    engine = case.engine()
    sizes = []
    for start in range(0, 6000, 100):
        engine.push(case.rows.slice(start, start + 100))
        sizes.append(len(engine.snapshot()))
    assert max(sizes[30:]) < 1.5 * max(sizes[:30])


def test_read_only_rows_are_accepted():
    """Columns that come from Arrow are read-only."""
    case = long_case(300)
    expected = run(case)
    for name in ("qi", "person", "sensitive", "time"):
        getattr(case.rows, name).flags.writeable = False
    np.testing.assert_array_equal(run(case).rows, expected.rows)


WRONG_ROWS = {
    "no number": ("qi", 0, np.nan),
    "no number, learned": ("qi", 1, np.nan),
    "infinite, learned": ("qi", 1, np.inf),
    "above the domain": ("qi", 0, 100.5),
    "below the domain": ("qi", 0, -0.5),
    "no such leaf": ("qi", 2, 4.0),
    "a negative leaf": ("qi", 2, -1.0),
    "between leaves": ("qi", 2, 0.5),
    "no such number": ("qi", 3, 100.0),
    "between numbers": ("qi", 3, 0.5),
    "no such code": ("sensitive", 0, 6),
    "a negative code": ("sensitive", 0, -1),
}


@pytest.mark.parametrize("wrong", WRONG_ROWS.values(), ids=WRONG_ROWS)
@pytest.mark.parametrize("promise", [{"l": 2}, {"t": 0.5}], ids=["l", "t"])
def test_rows_that_no_encoder_makes_are_refused(promise: dict[str, object], wrong: tuple[str, int, float]):
    """A leaf or a code that is out of range would make a kernel read or write outside of an array."""
    case = long_case(
        1,
        quasi_identifiers={
            "x": Numeric(domain=(0, 100)),
            "y": Numeric(),
            "c": Categorical(hierarchy=Hierarchy.flat("abcd")),
            "z": Prefix(length=2, alphabet="digits"),
        },
        **promise,
    )
    columns = {
        "qi": np.array([[1.0, 1.0, 1.0, 1.0]]),
        "person": np.array([1]),
        "sensitive": np.array([[1]]),
        "time": np.array([0]),
    }
    engine = case.engine()
    before = engine.snapshot()
    name, column, value = wrong
    columns[name][0, column] = value
    with pytest.raises(ValueError, match=r"must"):
        engine.push(Rows(**columns))
    assert engine.snapshot() == before


def test_other_keys_lead_to_other_releases():
    """Otherwise an attacker could compute which rows leave together."""
    one = run(long_case(500))
    other = run(Case(policy=long_case().policy, rows=stream(500), secret=b"other"))
    assert one.rows.tolist() != other.rows.tolist()


LAST = np.iinfo(np.int64).max
FIRST = np.iinfo(np.int64).min


@pytest.mark.parametrize(
    "times",
    [[FIRST, 0, LAST], [LAST, LAST, FIRST], [FIRST, FIRST, FIRST], [LAST - 1, LAST, LAST]],
    ids=["rise", "fall", "first", "last"],
)
@pytest.mark.parametrize("disorder", [0, "1us", "1d"])
def test_times_at_the_limits_of_int64(times: list[int], disorder: object):
    """Deadlines and clocks stop at the last moment that 64 bits can hold. None wraps around."""
    case = long_case(3, disorder=disorder, delay="1d", k=2)
    case = Case(
        policy=case.policy,
        rows=Rows(
            qi=case.rows.qi,
            person=np.arange(3),
            sensitive=case.rows.sensitive,
            time=np.array(times, np.int64),
        ),
    )
    engine = case.engine()
    parts = [engine.push(case.rows), engine.advance(int(LAST)), engine.flush()]
    report = audited(case, Releases.concat(parts))
    assert report.ok, str(report)
