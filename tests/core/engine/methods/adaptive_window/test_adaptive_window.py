"""The adaptive window: every number of the paper's example, and how windows begin and end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crenel.encoding.rows import Rows
from crenel.engine import Engine, Kind, Releases, create_engine
from crenel.engine.methods.adaptive_window import AdaptiveWindowParameters
from crenel.engine.methods.adaptive_window.adaptive_window_engine import (
    LeftOver,
    chance_of,
    expected_arrivals,
    first_to_wait,
    remaining_life,
)
from crenel.errors import PolicyError
from crenel.policy import Policy
from crenel.policy.hierarchy import Hierarchy
from crenel.policy.parameters import Reuse
from crenel.policy.quasi_identifiers import Categorical, Numeric
from crenel.testing.engine_streams import Case, run
from tests.core.engine.cases import adaptive_parameters, cases
from tests.core.engine.methods.adaptive_window.adaptive_window_oracle import AdaptiveOracle

MS = 1000

# The part of figure 2 that table 1 needs.
CRIMES = Hierarchy.from_mapping(
    {
        "Violent Crime": ["Murder", "Rape", "Robbery"],
        "Misdemeanors": ["Forgery", "Drunken Driving"],
        "Property Crime": ["Vandalism", "Theft", "Corruption", "Burglary", "Arson"],
    }
)

# Table 1: the crime, the age, and how many milliseconds the record has waited when the window ends.
TABLE_1 = [
    ("Vandalism", 60, 4782),
    ("Murder", 20, 4017),
    ("Theft", 50, 3361),
    ("Corruption", 60, 2566),
    ("Rape", 30, 2118),
    ("Burglary", 70, 2069),
    ("Forgery", 35, 1492),
    ("Arson", 40, 1214),
    ("Drunken Driving", 50, 417),
    ("Robbery", 40, 100),
]


def policy(**changes: Any) -> Policy:
    said: dict[str, Any] = {
        "person": "reporter",
        "quasi_identifiers": {"crime": Categorical(hierarchy=CRIMES), "age": Numeric(domain=(0, 100))},
        "k": 3,
        "delay": "5s",
        "method": "adaptive-window",
        "parameters": {"min_delay": "2s", "processing": "80ms"},
        "seed": 1,
    }
    return Policy(**said | changes)


def rows_of(*reports: tuple[str, float, int], first_person: int = 0) -> Rows:
    """Make rows from reports: the crime, the age, and the time of arrival in milliseconds."""
    crime = Categorical(hierarchy=CRIMES)
    return Rows(
        qi=np.array([[crime.coordinate(name), age] for name, age, _ in reports], np.float64).reshape(-1, 2),
        person=np.arange(first_person, first_person + len(reports)),
        sensitive=np.zeros((len(reports), 0), np.int64),
        time=np.array([at * MS for _, _, at in reports], np.int64),
    )


def published(releases: Releases) -> dict[tuple[str, float, float], set[int]]:
    """Return the published values of each group with the IDs of its records, which begin at 1 as in the paper."""
    crime = Categorical(hierarchy=CRIMES)
    return {
        (crime.publish(r.lo[0], r.hi[0]), r.lo[1], r.hi[1]): set((r.rows + 1).tolist())
        for r in releases
        if r.kind is Kind.CLUSTER
    }


# --- The example of section 3.2 ---


def test_phase_3_remaining_life():
    assert remaining_life(5000, 1492, 80) == 3428
    assert remaining_life(5000, 417, 80) == 4503


def test_phase_4_arrival_rate():
    assert expected_arrivals(2, 5000, 3428) == pytest.approx(1.37, abs=0.005)


def test_phase_5_probability():
    assert chance_of(1, expected_arrivals(2, 5000, 3428)) == pytest.approx(0.75, abs=0.005)
    assert chance_of(0, 1.0) == 1.0
    assert chance_of(3, 0.0) == 0.0
    assert chance_of(2, 3.0) == pytest.approx(1 - np.exp(-3) * 4)
    assert chance_of(1000, 900.0) < 0.01, "e^-900 is 0 as a number"
    assert chance_of(1000, 1100.0) > 0.99


def test_phase_6_next_window():
    left_over = [LeftOver(remaining=3428, came=2, lacks=1), LeftOver(remaining=4503, came=2, lacks=1)]
    assert first_to_wait(left_over, 5000, 2000, 0.4) == 0
    assert first_to_wait(left_over, 5000, 2000, 0.8) == 1, "it has longer, and so the better chance"
    assert first_to_wait(left_over, 5000, 2000, 0.9) is None
    assert first_to_wait(left_over, 5000, 3500, 0.4) == 1, "no window lives for less"


@pytest.fixture
def engine() -> Engine:
    """Return the engine after the window of table 1 has ended. `after` has the releases."""
    made = create_engine(policy())
    assert len(made.push(rows_of(*((name, age, 5000 - waited) for name, age, waited in TABLE_1)))) == 0
    return made


def test_table_1_gives_the_clusters_of_table_2(engine: Engine):
    assert engine.next_deadline() == 5000 * MS
    assert published(engine.advance(5000 * MS)) == {
        ("Violent Crime", 20.0, 40.0): {2, 5, 10},
        ("Property Crime", 40.0, 70.0): {1, 3, 4, 6, 8},
    }
    assert engine.held == 2, "the third cluster, records 7 and 9, waits"


def test_the_next_window_lives_for_3428_ms(engine: Engine):
    engine.advance(5000 * MS)
    # Ends are rounded down to a multiple of a sixteenth of the delay, 312.5 ms: 8428 to 8125.
    assert engine._end == 8125 * MS
    assert policy().tick == 312_500


def test_similar_records_of_the_next_window_join_those_that_waited(engine: Engine):
    engine.advance(5000 * MS)
    assert len(engine.push(rows_of(("Forgery", 45, 6000), first_person=10))) == 0
    assert engine.next_deadline() == 8125 * MS
    assert published(engine.advance(8125 * MS)) == {("Misdemeanors", 35.0, 50.0): {7, 9, 11}}


def test_records_that_nobody_joins_are_suppressed_at_their_deadlines(engine: Engine):
    engine.advance(5000 * MS)
    # 5000 - 1492 + 5000 and 5000 - 417 + 5000, rounded down to ticks.
    assert engine.next_deadline() == 8437_500
    (seventh,) = engine.advance(8437_500)
    assert (seventh.kind, seventh.rows.tolist(), seventh.loss) == (Kind.SUPPRESSED, [6], 1.0)
    assert engine.next_deadline() == 9375 * MS
    (ninth,) = engine.advance(9375 * MS)
    assert (ninth.kind, ninth.rows.tolist()) == (Kind.SUPPRESSED, [8])
    assert engine.next_deadline() is None


# --- Rows that cannot wait ---


def busy(**parameters: Any) -> Engine:
    """Return an engine that has published ("Violent Crime", 20 to 40) and ("Violent Crime", 20 to 60)."""
    given = {"min_delay": "2s", **parameters}
    engine = create_engine(policy(parameters=given))
    engine.push(rows_of(("Murder", 20, 0), ("Rape", 30, 0), ("Robbery", 40, 0)))
    engine.advance(5000 * MS)
    engine.push(rows_of(("Murder", 20, 6000), ("Rape", 30, 6000), ("Robbery", 60, 6000), first_person=3))
    engine.advance(11_000 * MS)
    assert engine.held == 0
    return engine


def left_alone(engine: Engine) -> Any:
    engine.push(rows_of(("Murder", 25, 20_000), first_person=6))
    (alone,) = engine.advance(26_000 * MS)
    return alone


def test_a_row_that_can_neither_wait_nor_join_reuses_a_published_box():
    alone = left_alone(busy(reuse="best"))
    assert (alone.kind, alone.lo[1], alone.hi[1]) == (Kind.REUSE, 20.0, 40.0)
    assert left_alone(busy(reuse="off")).kind is Kind.SUPPRESSED


def test_best_reuse_reveals_where_a_row_is_not_and_uniform_reuse_does_not():
    """CASTLE's example 4: with `best`, a row inside the narrower box is never published under the wider one."""
    seen = {"best": set(), "uniform": set()}
    for reuse, boxes in seen.items():
        for seed in range(20):
            engine = create_engine(policy(seed=seed, parameters={"min_delay": "2s", "reuse": reuse}))
            engine.push(rows_of(("Murder", 20, 0), ("Rape", 30, 0), ("Robbery", 40, 0)))
            engine.advance(5000 * MS)
            engine.push(rows_of(("Murder", 20, 6000), ("Rape", 30, 6000), ("Robbery", 60, 6000), first_person=3))
            engine.advance(11_000 * MS)
            boxes.add(left_alone(engine).hi[1])
    # With `best`, an attacker who sees a row alone under 20 to 60 concludes that its age is over 40.
    assert seen == {"best": {40.0}, "uniform": {40.0, 60.0}}


def test_rows_too_few_for_any_group_wait_until_their_deadlines():
    engine = create_engine(policy(parameters={"min_delay": "2s"}))
    engine.push(rows_of(("Murder", 20, 0), ("Rape", 30, 2500)))
    (first,) = engine.advance(5000 * MS)
    assert first.kind is Kind.SUPPRESSED
    # The second row may wait until 7500. Two more arrive, and the window ends when the second row is due.
    engine.push(rows_of(("Murder", 21, 6000), ("Rape", 31, 7000), first_person=2))
    assert engine.next_deadline() == 7500 * MS
    assert published(engine.advance(7500 * MS)) == {("Violent Crime", 21.0, 31.0): {2, 3, 4}}


def test_a_window_ends_when_there_is_no_more_room():
    engine = create_engine(policy(delay_rows=4))
    (release,) = engine.push(rows_of(*(("Murder", 20 + i, 100 * i) for i in range(4))))
    assert release.rows.size == 4
    assert engine.held == 0


# --- Numbers alone ---


def numbers(quasi_identifiers: int, **parameters: Any) -> Releases:
    """Run readings whose quasi-identifiers are all numbers: most are near each other, and some far off."""
    draw = np.random.default_rng(3)
    count = 300
    values = np.where(draw.random((count, 1)) < 0.2, draw.uniform(0, 1000, (count, 1)), draw.normal(500, 5, (count, 1)))
    qi = np.clip(values + draw.normal(0, 1, (count, quasi_identifiers)), 0, 1000)
    rows = Rows(qi, np.arange(count), np.zeros((count, 0), np.int64), np.cumsum(draw.integers(1, 800, count)) * MS)
    chosen = policy(
        quasi_identifiers={f"v{d}": Numeric(domain=(0, 1000)) for d in range(quasi_identifiers)},
        parameters={"min_delay": "2s", **parameters},
    )
    engine = create_engine(chosen)
    return Releases.concat([engine.push(rows), engine.flush()])


@pytest.mark.parametrize("quasi_identifiers", [1, 3])
def test_the_threshold_matters_when_all_quasi_identifiers_are_numbers(quasi_identifiers: int):
    moments = {
        threshold: numbers(quasi_identifiers, threshold=threshold).moment.tolist() for threshold in (1e-9, 0.4, 0.999)
    }
    assert moments[1e-9] != moments[0.4] != moments[0.999] != moments[1e-9]


@pytest.mark.parametrize(("spare", "size", "left"), [(0.1, 8, 0), (0.1, 16, 1), (0.25, 8, 1), (0.0, 16, 0)])
def test_rows_left_over_are_a_share_of_the_window(spare: float, size: int, left: int):
    """One row of the window lies far off; a tenth of 8 rows is none."""
    engine = create_engine(
        policy(quasi_identifiers={"v": Numeric(domain=(0, 100))}, parameters={"min_delay": "2s", "spare": spare})
    )
    values = np.array([[50 + i / 10] for i in range(size - 1)] + [[100.0]])
    engine.push(Rows(values, np.arange(size), np.zeros((size, 0), np.int64), np.arange(size) * 250 * MS))
    engine.advance(5000 * MS)
    assert engine.held == left


# --- Against the oracle ---


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    case=st.booleans().flatmap(
        lambda diverse: cases(
            diverse=diverse,
            method="adaptive-window",
            parameters=adaptive_parameters().map(lambda p: p if p.reuse is not Reuse.UNIFORM else best(p)),
            timed=True,
        )
    )
)
def test_releases_are_those_of_the_oracle(case: Case):
    expected = AdaptiveOracle(case).left
    releases = list(run(case))
    found = [(int(r.kind), tuple(sorted(r.rows.tolist())), r.moment, r.arrivals, r.group) for r in releases]
    assert found == [(one.kind, one.rows, one.moment, one.arrivals, one.group) for one in expected]
    for release, one in zip(releases, expected, strict=True):
        assert release.loss == pytest.approx(one.loss)
        if release.kind is not Kind.SUPPRESSED:
            assert list(zip(release.lo.tolist(), release.hi.tolist(), strict=True)) == one.box


def best(parameters: AdaptiveWindowParameters) -> AdaptiveWindowParameters:
    return replace(parameters, reuse=Reuse.BEST)


# --- Policies ---


WRONG = {
    "no delay": ({"delay": None, "delay_rows": 10}, "policy.delay must be given with method 'adaptive-window'"),
    "t": ({"t": 0.3, "sensitive": ["crime2"]}, "policy.t is not kept by the method 'adaptive-window'"),
    "a window that is too long": (
        {"parameters": {"max_delay": "6s"}},
        r"parameters.max_delay must be at most delay \(5s\): a row must leave by then, not '6s'.",
    ),
    "a least that is the most": (
        {"parameters": {"min_delay": "4s", "max_delay": "3s"}},
        r"parameters.min_delay must be from a sixteenth of delay to max_delay \(312500us to 3s\), not '4s'.",
    ),
    "a bare number": ({"parameters": {"min_delay": 2}}, "parameters.min_delay must be from a sixteenth"),
    "processing": ({"parameters": {"processing": "5s"}}, r"parameters.processing must be less than delay \(5s\)"),
    "a threshold": ({"parameters": {"threshold": 1.0}}, "parameters.threshold must be a number above 0 and below 1"),
    "a number of spare rows": (
        {"parameters": {"spare": 5}},
        "parameters.spare must be a number of at least 0 and below 1",
    ),
    "a rule": ({"parameters": {"reuse": "worst"}}, "parameters.reuse must be 'uniform', 'best' or 'off'"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_contradictions_are_refused(changes: dict[str, Any], message: str):
    with pytest.raises(PolicyError, match=message):
        policy(**changes)


def test_the_bounds_come_from_the_delay():
    assert policy(parameters=None, delay="10s").parameters.lives(10_000_000) == (4_000_000, 10_000_000)
    # YAML reads a bare `off` as False.
    assert policy(parameters={"reuse": False}) == policy(parameters={"reuse": "off"})
    assert Policy.from_dict(policy().to_dict()) == policy()
