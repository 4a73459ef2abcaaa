"""`together`: whoever links the rows of a person and intersects their boxes is left with k persons."""

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
from crenel.policy import Policy, Reuse
from crenel.testing.engine_checks import ALL_CHECKS, reason_to_skip
from crenel.testing.engine_streams import Case, Push, run
from tests.core.engine.cases import bastion_cases

SECOND = 1_000_000


def policy(**changes: Any) -> Policy:
    said: dict[str, Any] = {
        "person": "id",
        "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 100]}},
        "k": 2,
        "delay": "16s",
        "together": True,
        "seed": 1,
    }
    return Policy.from_dict({name: value for name, value in (said | changes).items() if value is not None})


def rows(*given: tuple[int, int, float]) -> Rows:
    """Make rows of persons, seconds and ages."""
    person, time, age = np.array(given, np.float64).reshape(-1, 3).T
    moments = (time * SECOND).astype(np.int64)
    return Rows(age.reshape(-1, 1).copy(), person.astype(np.int64), np.zeros((len(given), 0), np.int64), moments)


def boxes(of: Policy, given: Rows) -> dict[int, tuple[float, float]]:
    """Run a stream, and return the range of ages of each row that is published."""
    engine = create_engine(of)
    releases = Releases.concat([engine.push(given), engine.flush()])
    shown = [one for one in releases if one.kind == Kind.CLUSTER]
    return {int(row): (float(one.lo[0]), float(one.hi[0])) for one in shown for row in one.rows}


# -- worked examples -------------------------------------------------------------------------------

#: Persons 1 and 2 leave together, and then 1 leaves with 5. Only person 1 is inside both ranges.
RETURNS = rows((1, 0, 10), (2, 0, 12), (1, 60, 10), (5, 60, 9))


def test_a_box_is_widened_until_k_persons_are_left() -> None:
    assert list(boxes(policy(together=None), RETURNS).values()) == [(10, 12), (10, 12), (9, 10), (9, 10)]
    assert list(boxes(policy(), RETURNS).values()) == [(10, 12), (10, 12), (9, 12), (9, 12)]


def test_those_who_widen_it_least_are_taken() -> None:
    # 3 and 4 have left under a box of their own, and 3 is nearer to person 1 than 2 is.
    given = rows((1, 0, 10), (2, 0, 14), (3, 30, 11), (4, 30, 18), (1, 60, 10), (5, 60, 9))
    assert boxes(policy(), given)[4] == (9, 11)


def test_who_leaves_only_now_is_company_too() -> None:
    given = rows((1, 0, 10), (2, 0, 14), (1, 60, 10), (5, 60, 12))
    assert boxes(policy(), given)[2] == (10, 12)


def test_a_person_whose_values_change_begins_anew() -> None:
    given = rows((1, 0, 10), (2, 0, 12), (1, 60, 40), (5, 60, 39), (1, 120, 40), (6, 120, 41))
    found = boxes(policy(), given)
    assert found[2] == (39, 40)
    assert found[4] == (39, 41)  # as wide as what was published of 40, and not of 10


def test_after_the_time_a_person_is_forgotten() -> None:
    assert boxes(policy(together="30s"), RETURNS)[2] == (9, 10)
    assert boxes(policy(together="1m"), RETURNS)[2] == (9, 12)


def test_the_whole_common_part_is_taken_if_those_inside_it_left_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    from crenel.engine.wrappers import together

    monkeypatch.setattr(together, "_KNOWN", 2)
    monkeypatch.setattr(together, "_KNOWN_TO_K", 1)
    given = rows((1, 0, 10), (2, 0, 12), (3, 30, 50), (4, 30, 52), (1, 60, 10), (5, 60, 9))
    assert boxes(policy(), given)[4] == (9, 12)


def test_a_category_is_widened_to_a_node_of_its_hierarchy() -> None:
    column = {"type": "categorical", "hierarchy": {"any": {"ab": ["a", "b"], "cd": ["c", "d"]}}}
    engine = create_engine(policy(quasi_identifiers={"age": {"type": "numeric", "domain": [0, 100]}, "kind": column}))
    kinds = np.array([[0.0], [1.0], [0.0], [0.0]])
    engine.push(replace(RETURNS, qi=np.hstack([RETURNS.qi, kinds])))
    (last,) = engine.flush()
    assert (last.lo.tolist(), last.hi.tolist()) == ([9.0, 0.0], [12.0, 1.0])


def test_a_repr_shows_no_person() -> None:
    engine = create_engine(policy())
    engine.push(rows((31415, 0, 10)))
    assert "31415" not in repr(engine)


# -- all promises ----------------------------------------------------------------------------------

OFF = st.just(Reuse.OFF)
METHODS = {
    "bastion": bastion_cases(reuse=OFF),
    "bastion with l and t": bastion_cases(reuse=OFF, diverse=True, close=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_promises(name: str, data: st.DataObject) -> None:
    case = data.draw(METHODS[name], label="case")
    span = int(case.rows.time.max(initial=0)) - int(case.rows.time.min(initial=0))
    together = data.draw(st.sampled_from([True, max(span // 5, 1), max(span // 50, 1)]), label="together")
    once_per = data.draw(st.sampled_from([None, None, max(span // 20, 1)]), label="once_per")
    case = replace(case, policy=replace(case.policy, together=together, once_per=once_per))
    for check in ALL_CHECKS:
        if reason_to_skip(check, case.policy) is None:
            check(case)


def stream(n: int = 4000, persons: int = 800) -> Rows:
    """Make rows of persons who come five times each, with the same two values."""
    random = np.random.default_rng(5)
    person = random.permutation(np.repeat(np.arange(persons), n // persons))
    values = random.integers(0, 100, (persons, 2)).astype(np.float64)
    time = np.arange(n, dtype=np.int64) * SECOND
    return Rows(values[person], person, np.zeros((n, 0), np.int64), time)


def two_columns(**changes: Any) -> Policy:
    column = {"type": "numeric", "domain": [0, 100]}
    given: dict[str, Any] = {"quasi_identifiers": {"age": column, "weight": column}, "k": 5, "delay": "300s"}
    return policy(**given | changes)


def fewest_left(given: Rows, releases: Releases) -> int:
    """Attack: intersect the boxes of each person, and return the smallest number of persons who are left."""
    common: dict[int, Any] = {}
    for one in releases:
        if one.kind == Kind.CLUSTER:
            for person in given.person[one.rows].tolist():
                inside = ((one.lo <= given.qi) & (given.qi <= one.hi)).all(axis=1)
                common[person] = common.get(person, True) & inside
    return min(len(set(given.person[inside].tolist())) for inside in common.values())


@pytest.mark.parametrize("method", ["bastion", "fads"])
def test_the_attack_that_intersects_boxes(method: str) -> None:
    """On a weak stream it names persons for certain; under `together` it is left with k."""
    parameters = {} if method == "bastion" else {"reuse": "off"}
    given, strong = stream(), two_columns(method=method, parameters=parameters)
    weak = replace(strong, together=None)
    case = Case(policy=weak, rows=given, cuts=(1000, 1010, 3000))
    assert fewest_left(given, run(case)) == 1
    assert fewest_left(given, run(replace(case, policy=strong))) >= 5


def test_groups_stay_the_same_and_boxes_only_widen() -> None:
    given, of = stream(), two_columns()
    case = Case(policy=of, rows=given, cuts=(1000,))
    strong, weak = run(case), run(replace(case, policy=replace(of, together=None)))
    for name in ("rows", "offsets", "kind", "persons", "moment", "arrivals", "group"):
        assert np.array_equal(getattr(strong, name), getattr(weak, name)), name
    assert (strong.lo <= weak.lo).all() and (strong.hi >= weak.hi).all()
    shown = strong.kind == Kind.CLUSTER
    assert 1.0 < strong.loss[shown].mean() / weak.loss[shown].mean() < 2.0


def test_without_together_the_audit_finds_persons_without_company() -> None:
    """The same rows, without the option, under a policy that promises it."""
    strong, given = two_columns(), stream()
    case = Case(policy=replace(strong, together=None), rows=given, cuts=(1000,))
    report = audit(strong, given, run(case, [Push(0, len(given))]))
    assert (report.lacking_company or 0) > 100
    assert any("together leave fewer than k" in problem for problem in report.problems())
    assert audit(strong, given, run(replace(case, policy=strong))).problems() == []


def test_a_release_whose_moment_is_unknown_is_not_judged() -> None:
    of, given = two_columns(), stream(400, 80)
    releases = run(Case(policy=of, rows=given, cuts=()))
    report = audit(of, given, replace(releases, moment=None))  # type: ignore[arg-type]
    assert report.lacking_company is None
    assert any("together" in text for text in report.unchecked())


# -- memory and state ------------------------------------------------------------------------------


def test_persons_are_forgotten() -> None:
    of = policy(together="10s", delay="10s", k=2)
    engine: Any = create_engine(of)
    sizes = []
    for start in range(0, 40_000, 2_000):
        person = np.arange(start, start + 2_000)
        part = Rows(np.full((2_000, 1), 5.0), person, np.zeros((2_000, 0), np.int64), person * (SECOND // 10))
        engine.push(part)
        sizes.append(len(engine.dump()))
    assert max(sizes[8:]) < 1.2 * max(sizes[:8])
    assert len(engine._published.slot) < 10_000


def test_a_stream_goes_on_from_a_snapshot_as_if_nothing_had_happened() -> None:
    of, given = two_columns(), stream()
    whole, first, second = create_engine(of), create_engine(of), create_engine(of)
    first.push(given.slice(0, 2000))
    whole.push(given.slice(0, 2000))
    second.restore(first.snapshot())
    one, other = whole.push(given.slice(2000, 4000)), second.push(given.slice(2000, 4000))
    assert np.array_equal(one.lo, other.lo) and np.array_equal(one.hi, other.hi)
    assert whole.snapshot() == second.snapshot()


@pytest.mark.parametrize(("before", "after"), [({"k": 2}, {"k": 3}), ({"together": "10s"}, {"together": "20s"})])
def test_state_that_remembers_too_little_is_refused(before: dict[str, Any], after: dict[str, Any]) -> None:
    engine = create_engine(policy(**before))
    engine.push(rows((1, 0, 10)))
    with pytest.raises(SnapshotError, match="Drain the pipeline before you raise them"):
        create_engine(policy(**after)).restore(engine.snapshot())
    create_engine(policy(**before)).restore(engine.snapshot())
