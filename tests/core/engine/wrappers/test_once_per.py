"""`once_per`: any two published rows of a person are so far apart in event time, whatever the method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crenel.audit import audit
from crenel.encoding.rows import Rows
from crenel.engine import Kind, Releases, SnapshotError, create_engine
from crenel.policy import Policy
from crenel.testing.engine_checks import ALL_CHECKS, reason_to_skip
from crenel.testing.engine_streams import Case, Push, run
from tests.core.engine.cases import bastion_cases, cases, fads_parameters, mondrian_parameters, sdgs_cases

SECOND = 1_000_000


def policy(**changes: Any) -> Policy:
    said: dict[str, Any] = {
        "person": "id",
        "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 100]}},
        "k": 2,
        "delay": "16s",
        "once_per": "60s",
        "seed": 1,
    }
    return Policy.from_dict({name: value for name, value in (said | changes).items() if value is not None})


def rows(*given: tuple[int, int]) -> Rows:
    """Make rows of persons and seconds; all have the same age."""
    person, time = np.array(given, np.int64).reshape(-1, 2).T
    return Rows(
        np.full((len(given), 1), 30.0), person.copy(), np.zeros((len(given), 0), np.int64), time * np.int64(SECOND)
    )


def fates(of: Policy, given: Rows) -> dict[int, Kind]:
    """Run a stream, and return how each row left."""
    engine = create_engine(of)
    releases = Releases.concat([engine.push(given), engine.flush()])
    assert engine.held == 0
    left = zip(releases.rows.tolist(), releases.per_row(releases.kind).tolist(), strict=True)
    return {row: Kind(kind) for row, kind in sorted(left)}


# -- worked examples -------------------------------------------------------------------------------


def test_of_a_persons_rows_the_first_is_published_and_the_next_a_period_later() -> None:
    found = fates(policy(), rows((1, 0), (2, 0), (1, 1), (1, 59), (2, 59), (1, 60), (2, 60)))
    assert [row for row, kind in found.items() if kind is Kind.LEFT_OUT] == [2, 3, 4]
    assert [row for row, kind in found.items() if kind is Kind.CLUSTER] == [0, 1, 5, 6]


def test_a_period_counts_from_the_published_row_and_not_from_midnight() -> None:
    day = 86_400
    found = fates(policy(once_per="1d"), rows((1, day - 5), (2, day - 5), (1, day + 5), (2, day + 5)))
    assert list(found.values()) == [Kind.CLUSTER, Kind.CLUSTER, Kind.LEFT_OUT, Kind.LEFT_OUT]


def test_a_late_row_is_compared_with_those_after_it_too() -> None:
    given = rows((1, 100), (2, 100), (1, 50), (2, 39), (3, 39))
    found = fates(policy(disorder="120s"), given)
    assert found[2] is Kind.LEFT_OUT  # 50 seconds before another
    assert found[3] is Kind.CLUSTER  # 61 seconds before


def test_a_row_too_late_to_be_compared_is_left_out() -> None:
    given = rows((1, 1000), (2, 1000), (9, 940), (8, 939))
    found = fates(policy(), given)
    assert (found[2], found[3]) == (Kind.CLUSTER, Kind.LEFT_OUT)


def test_a_suppressed_row_gives_the_period_back_at_its_deadline() -> None:
    # Person 1 is alone until the deadline of the first row (16 s); then a crowd comes.
    given = rows((1, 0), (1, 15), (1, 17), (2, 17))
    found = fates(policy(), given)
    assert list(found.values()) == [Kind.SUPPRESSED, Kind.LEFT_OUT, Kind.CLUSTER, Kind.CLUSTER]


def test_a_star_is_published_and_uses_up_the_period() -> None:
    found = fates(policy(on_suppress="star"), rows((1, 0), (1, 17), (2, 17), (3, 17)))
    assert found[0] is Kind.SUPPRESSED
    assert found[1] is Kind.LEFT_OUT


def test_rows_that_are_left_out_move_the_clock() -> None:
    engine = create_engine(policy())
    assert len(engine.push(rows((1, 0), (2, 1)))) == 0
    left = engine.push(rows((1, 30)))
    assert sorted(left.rows.tolist()) == [0, 1, 2]
    assert left.kind.tolist() == [Kind.CLUSTER, Kind.LEFT_OUT]


def test_delay_rows_counts_the_rows_that_the_method_takes() -> None:
    of = policy(delay=None, delay_rows=3)
    engine = create_engine(of)
    first = engine.push(rows((1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 5), (3, 6)))
    assert first.rows.tolist() == [1, 2, 3, 4]
    assert 0 in engine.push(rows((4, 7))).rows.tolist()


def test_a_repr_shows_no_person() -> None:
    engine = create_engine(policy())
    engine.push(rows((31415, 0)))
    assert "31415" not in repr(engine)


# -- all promises ----------------------------------------------------------------------------------

METHODS = {
    "castle": cases(),
    "castle in order": cases(reorder=True),
    "castle with l and t": cases(diverse=True, close=True),
    "bastion": bastion_cases(),
    "bastion with l and t": bastion_cases(diverse=True, close=True),
    "mondrian": cases(method="mondrian", parameters=mondrian_parameters()),
    "fads": cases(method="fads", parameters=fads_parameters()),
    "sdgs": sdgs_cases(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_promises(name: str, data: st.DataObject) -> None:
    case = data.draw(METHODS[name], label="case")
    span = int(case.rows.time.max(initial=0)) - int(case.rows.time.min(initial=0))
    period = max(span // data.draw(st.sampled_from([1, 3, 10]), label="periods"), 1)
    case = replace(case, policy=replace(case.policy, once_per=period))
    for check in ALL_CHECKS:
        if reason_to_skip(check, case.policy) is None:
            check(case)


def stream(n: int = 3000) -> Rows:
    random = np.random.default_rng(5)
    time = np.sort(random.integers(0, 3000, n)) + random.integers(-3, 4, n)
    return Rows(
        random.integers(0, 100, (n, 1)).astype(np.float64),
        random.integers(0, n // 10, n),
        np.zeros((n, 0), np.int64),
        time * np.int64(SECOND),
    )


def plainly(of: Policy, given: Rows, suppressed: set[int]) -> set[int]:
    """Decide which rows are left out, given those that the method suppresses: an oracle, row by row."""
    out: set[int] = set()
    front = clock = -(2**62)
    for i, (person, time) in enumerate(zip(given.person.tolist(), given.time.tolist(), strict=True)):
        clock = max(clock, time - of.disorder)
        late = time < front - max(of.once_per or 0, of.delay or 0) - of.disorder
        taken = [j for j in range(i) if given.person[j] == person and j not in out]
        near = [j for j in taken if abs(int(given.time[j]) - time) < (of.once_per or 0)]
        if late or any(j not in suppressed or clock < given.time[j] + (of.delay or 0) for j in near):
            out.add(i)
        front = max(front, time)
    return out


@pytest.mark.parametrize("method", ["bastion", "castle", "mondrian"])
def test_which_rows_are_left_out(method: str) -> None:
    of, given = policy(method=method, k=5, delay="8s", disorder="3s", once_per="200s", l=None), stream()
    found = fates(of, given)
    suppressed = {row for row, kind in found.items() if kind is Kind.SUPPRESSED}
    left_out = {row for row, kind in found.items() if kind is Kind.LEFT_OUT}
    assert left_out == plainly(of, given, suppressed)
    assert len(left_out) > 500
    assert len(suppressed) > 3


def test_without_once_per_the_audit_finds_rows_too_soon() -> None:
    """The attack on a weak stream: the same rows, without the option, under a policy that promises it."""
    weak, strong = policy(k=5, once_per=None), policy(k=5)
    given = stream()
    case = Case(policy=weak, rows=given, cuts=(1000,))
    report = audit(strong, given, run(case, [Push(0, len(given))]))
    assert report.too_soon > 100
    assert any("within once_per" in problem for problem in report.problems())
    assert audit(strong, given, run(replace(case, policy=strong))).problems() == []


def test_the_audit_does_not_believe_that_every_row_had_to_be_left_out() -> None:
    of, given = policy(k=5), stream()
    releases = run(Case(policy=of, rows=given, cuts=(1000,)))
    kind = releases.kind.copy()
    suppressed = np.flatnonzero(kind == Kind.SUPPRESSED)
    assert len(suppressed) > 5
    kind[suppressed] = Kind.LEFT_OUT
    report = audit(of, given, replace(releases, kind=kind))
    assert report.left_out_wrongly > 5


# -- memory and state ------------------------------------------------------------------------------


def test_persons_are_forgotten() -> None:
    of = policy(once_per="10s", delay="10s", k=2)
    engine: Any = create_engine(of)
    sizes = []
    for start in range(0, 40_000, 2_000):
        person = np.arange(start, start + 2_000)
        part = Rows(np.full((2_000, 1), 5.0), person, np.zeros((2_000, 0), np.int64), person * (SECOND // 10))
        engine.push(part)
        sizes.append(len(engine.dump()))
    assert max(sizes[5:]) < 1.2 * sizes[5]
    assert sum(map(len, engine._taken.values())) < 1_000


def test_state_of_another_period_is_refused() -> None:
    engine = create_engine(policy())
    engine.push(rows((1, 0)))
    for other in (policy(once_per="30s"), policy(delay="90s")):
        with pytest.raises(SnapshotError, match="Drain the pipeline"):
            create_engine(other).restore(engine.snapshot())
