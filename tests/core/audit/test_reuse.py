"""CASTLE's example 4: what the choice of a generalization reveals about the row published under it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crenel.audit.attacks import LEAST_LOSS, pinned, reuse_odds, shrinking
from crenel.audit.attacks.reuse import _memory, _reuses
from crenel.audit.evidence import Published
from crenel.encoding.rows import Rows
from crenel.engine import Kind
from crenel.policy import Policy
from crenel.policy.quasi_identifiers import Numeric
from crenel.testing.engine_streams import Case, run
from tests.core.audit.streams import CROWD, policy, published, stream
from tests.core.engine.cases import bastion_cases, cases
from tests.core.engine.methods.bastion import test_bastion_oracle
from tests.core.engine.methods.castle import test_castle_oracle
from tests.core.engine.methods.castle.castle_oracle import Oracle, OracleRelease

EASILY = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def columns(releases: list[OracleRelease], dimensions: int) -> Published:
    """Convert the releases of an oracle to columns."""
    return Published(
        rows=np.array([row for release in releases for row in release.rows], np.int64),
        offsets=np.cumsum([0, *(len(release.rows) for release in releases)]),
        lo=np.array([release.lo for release in releases]).reshape(-1, dimensions),
        hi=np.array([release.hi for release in releases]).reshape(-1, dimensions),
        kind=np.array([release.kind for release in releases], np.int64),
        loss=np.array([release.loss for release in releases], np.float64),
    )


def pushed(oracle: Oracle, rows: Rows) -> list[OracleRelease]:
    listed = zip(*(column.tolist() for column in (rows.qi, rows.person, rows.sensitive, rows.time)), strict=True)
    return [*oracle.push(list(listed)), *oracle.flush()]


def by_least_loss(of: Policy, rows: Rows) -> Published:
    """A weak publisher: bastion, but always with the box of least loss."""
    oracle = test_bastion_oracle.oracle(Case(policy=of, rows=rows))
    oracle.draw = lambda row: min(
        (box for box in oracle.boxes if box.contains(row)), key=lambda box: box.loss, default=None
    )
    return columns(pushed(oracle, rows), rows.qi.shape[1])


def example_6(box: tuple[float, float]) -> tuple[Policy, Rows, Published]:
    """C2 and C3 of figure 3 have left. Then a row of the second of four persons follows under C3."""
    of = policy("bastion", k=4, quasi_identifiers={"age": Numeric(domain=(18, 120))}, sensitive={})
    ages = [26.0, 28.0, 28.0, 28.0, 24.0, 25.0, 26.0, 27.0, 25.0]
    rows = Rows(
        np.array(ages)[:, None],
        np.array([11, 12, 13, 14, 1, 2, 3, 4, 2]),
        np.zeros((9, 0), np.int64),
        np.zeros(9, np.int64),
    )
    boxes = [(26.0, 28.0), (24.0, 27.0), box]
    out = Published(
        rows=np.arange(9),
        offsets=np.array([0, 4, 8, 9]),
        lo=np.array(boxes)[:, :1],
        hi=np.array(boxes)[:, 1:],
        kind=np.array([0, 0, 1]),
        loss=np.array([(hi - lo) / 102 for lo, hi in boxes]),
    )
    return of, rows, out


def test_example_4_and_6():
    """Persons 1 and 2 remain of the five inside, each with 1/2. A uniform draw excludes nobody."""
    of, rows, out = example_6((24.0, 27.0))
    least = shrinking(of, rows, out, eta=LEAST_LOSS, pins=False)
    assert (least.targets, least.excluded, least.wrong, least.highest) == (1, 1, 0, 0.5)
    assert least.odds == math.inf
    uniform = shrinking(of, rows, out, eta=0.0, pins=False)
    # Persons 1 and 2 are only in C3. Persons 3, 4 and 11 are in both, and leave under C3 half of the time: 2 to 1.
    assert (uniform.excluded, uniform.odds, uniform.odds_bound, uniform.weights) == (0, 2.0, 2.0, 1.0)
    assert uniform.highest == pytest.approx(1 / (2 + 3 / 2))
    of, rows, out = example_6((26.0, 28.0))
    assert shrinking(of, rows, out, eta=LEAST_LOSS, pins=False).excluded == 0


def test_a_person_who_alone_has_an_end_of_a_box_is_in_its_group():
    """24 and 27 are ends of C3 that one person has each. Both left with C3, so neither left alone."""
    of, rows, out = example_6((24.0, 27.0))
    assert np.flatnonzero(pinned(of, rows, out)).tolist() == [4, 7]
    found = shrinking(of, rows, out, eta=0.0)
    # Person 2 is only in C3. Persons 3 and 11 are in both: 2 to 1 for each.
    assert (found.pinned, found.wrong) == (2, 0)
    assert found.highest == pytest.approx(1 / (1 + 2 / 2))
    assert shrinking(of, rows, out, eta=LEAST_LOSS).highest == 1.0
    # One pin leads to another: without the row at 24, the lower end of C2 has one holder less.
    line = Rows(
        np.array([1.0, 2.0, 5.0, 5.0, 9.0])[:, None],
        np.arange(5),
        np.zeros((5, 0), np.int64),
        np.zeros(5, np.int64),
    )
    two = Published(
        rows=[0, 2, 1, 3, 4],
        offsets=[0, 2, 4, 5],
        lo=[[1.0], [2.0], [0.0]],
        hi=[[5.0], [5.0], [10.0]],
        kind=[0, 0, 2],
    )
    assert np.flatnonzero(pinned(of, line, two)).tolist() == [0, 1]


@pytest.mark.parametrize("method", ["castle", "bastion"])
@EASILY
@given(data=st.data())
def test_a_pinned_row_did_not_leave_alone(method: str, data: st.DataObject):
    case = data.draw(cases() if method == "castle" else bastion_cases(), label="case")
    releases = run(case)
    members = releases.rows[releases.per_row(releases.kind) == Kind.CLUSTER]
    assert set(np.flatnonzero(pinned(case.policy, case.rows, releases)).tolist()) <= set(members.tolist())
    # And a star never excludes its own person.
    assert shrinking(case.policy, case.rows, releases).wrong == 0


def test_a_star_excludes_everyone_inside_a_box():
    """C2 and C3 left, and then a star. It belongs to nobody inside them, so to one of the last two rows."""
    of, rows, out = example_6((18.0, 120.0))
    ages = np.append(rows.qi[:, 0], [60.0, 70.0])
    rows = Rows(ages[:, None], np.append(rows.person, [5, 6]), np.zeros((11, 0), np.int64), np.zeros(11, np.int64))
    star = Published(
        rows=[0, 1, 2, 3, 4, 5, 6, 7, 9],
        offsets=out.offsets,
        lo=out.lo,
        hi=out.hi,
        kind=[0, 0, 2],
        loss=out.loss,
    )
    found = shrinking(of, rows, star)
    assert (found.targets, found.stars, found.wrong, found.highest) == (1, 1, 0, 0.5)
    assert found.star_excludes == pytest.approx(8 / 10)
    assert found.above == 1
    # Without reuse a star excludes nobody, except persons that an end reveals.
    never = policy("bastion", k=4, quasi_identifiers=of.quasi_identifiers, sensitive={}, parameters={"reuse": "off"})
    assert shrinking(never, rows, star).highest == pytest.approx(1 / 8)
    assert shrinking(never, rows, star, pins=False).highest == pytest.approx(1 / 10)
    assert shrinking(of, rows, star, stars=False).targets == 0


@pytest.mark.parametrize("method", ["castle", "bastion"])
def test_stars_of_a_thin_stream_exclude_most(method: str, many: Rows):
    of = policy(method, k=20, delay_rows=25)
    found = shrinking(of, many, published(of, many), most=500)
    assert found.stars > 0
    assert found.wrong == 0
    assert found.star_excludes > 0.5


def test_weights_lie_between():
    """A larger eta reveals more, up to what least loss reveals."""
    of, rows, out = example_6((24.0, 27.0))
    found = [shrinking(of, rows, out, eta=eta, pins=False) for eta in (0.0, 1.0, 2.0, 20.0)]
    assert [one.odds for one in found] == sorted(one.odds for one in found)
    assert [one.highest for one in found] == sorted(one.highest for one in found)
    # The average is the loss of the first group, moved a tenth of the way to that of the second.
    average = (2 + (3 - 2) / 10) / 102
    gap = (3 / 102 - 2 / 102) / average
    assert gap > 0.25  # a larger gap changes nothing
    assert found[2].odds == pytest.approx(1 + math.exp(2))
    assert found[2].odds == pytest.approx(reuse_odds(2.0, boxes=2, averages=gap))
    assert found[3].highest == pytest.approx(0.5, abs=0.001)


@pytest.fixture(scope="module")
def many() -> Rows:
    return stream(3_000, seed=2)


def test_the_least_loss_is_broken(many: Rows):
    of = policy("bastion")
    weak = shrinking(of, many, by_least_loss(of, many), eta=LEAST_LOSS, most=500)
    assert weak.targets > 50
    assert weak.wrong == 0  # no excluded person is the true one
    assert weak.excluded > weak.targets / 2
    assert weak.highest > 1 / of.k


@pytest.mark.parametrize("method", ["castle", "bastion"])
def test_our_methods_exclude_nobody(method: str, many: Rows):
    of = policy(method)
    releases = published(of, many)
    ours = shrinking(of, many, releases, most=500, stars=False)
    assert ours.targets == np.count_nonzero(releases.kind == Kind.REUSE)
    assert ours.targets > 10
    assert (ours.excluded, ours.wrong) == (0, 0)
    assert 1.0 < ours.odds <= ours.odds_bound * (1 + 1e-9)
    assert (ours.weights == 1.0) == (method == "castle")
    # An attacker who assumes least loss excludes the true person of many rows.
    assert shrinking(of, many, releases, eta=LEAST_LOSS, most=500).wrong > 0


# -- the bound -------------------------------------------------------------------------------------------------------


@EASILY
@given(case=bastion_cases(), data=st.data())
def test_the_odds_are_bounded(case: Case, data: st.DataObject):
    """For any two places in the box, known or not."""
    out, of = Published.of(run(case)), case.policy
    memory = _memory(of)
    for reused in _reuses(memory, out, np.flatnonzero(out.kind == Kind.REUSE)):
        lo, hi = reused.lo[reused.box], reused.hi[reused.box]
        at = np.array([[data.draw(st.floats(0, 1)) for _ in lo] for _ in range(2)])
        places = np.clip(lo + at * (hi - lo), lo, hi)
        inside = reused.containing(places)
        chance = reused.chances(inside, of.parameters.eta)
        bound, weights = reused.bound(inside, of.parameters.eta)
        assert np.all(chance > 0)
        assert chance.max() / chance.min() <= bound * (1 + 1e-9)
        assert 1.0 <= weights <= math.exp(of.parameters.eta) * (1 + 1e-9)
        # As docs/bastion.md states it: for each place by the boxes that contain it.
        for x, y in ((0, 1), (1, 0)):
            gap = reused.gaps(inside)[y, reused.box]
            most = reuse_odds(of.parameters.eta, boxes=int(inside[y].sum()), averages=gap / 4)
            assert chance[x] / chance[y] <= most * (1 + 1e-9)


@EASILY
@given(case=bastion_cases())
def test_the_best_guess_is_bounded_by_the_odds(case: Case):
    found = shrinking(case.policy, case.rows, run(case), stars=False, pins=False)
    assert (found.excluded, found.wrong) == (0, 0)
    assert found.highest <= found.odds / (found.odds + case.policy.k - 1) + 1e-9


def test_the_default():
    """A box that loses at least a quarter of the average more than the best of two: 1 + e^4.6."""
    eta = policy("bastion").parameters.eta
    assert eta == 4.6
    assert reuse_odds(eta, boxes=1) == 1.0
    assert reuse_odds(eta, boxes=2) == pytest.approx(100.484, abs=0.001)
    assert reuse_odds(eta, boxes=2, averages=99.0) == reuse_odds(eta, boxes=2, averages=0.25)
    assert reuse_odds(eta, boxes=2, averages=0.1) == pytest.approx(1 + math.exp(0.4 * 4.6))
    assert reuse_odds(0.0, boxes=7) == 7.0


# -- the boxes that the attacker takes to be remembered ----------------------------------------------------------------


def drawn_from(oracle: Any, case: Case) -> list[Any]:
    """List for each row that leaves alone what an oracle draws from: its number, the boxes, the average."""
    seen: list[Any] = []

    def note(number: int, boxes: list[Any], average: float | None) -> None:
        seen.append((number, [(box.lo, box.hi) for box in boxes], average))

    if hasattr(oracle, "boxes"):
        leave_under = oracle.leave_under
        oracle.leave_under = lambda box, row: (
            note(row.number, oracle.boxes, oracle.average),
            leave_under(box, row),
        )
    else:
        leave_alone = oracle.leave_by_reuse
        oracle.leave_by_reuse = lambda number: note(number, oracle.omega, None) or leave_alone(number)
    oracle_run(oracle, case)
    return seen


def oracle_run(oracle: Any, case: Case) -> None:
    rows = case.rows
    listed = list(zip(*(column.tolist() for column in (rows.qi, rows.person, rows.sensitive, rows.time)), strict=True))
    for call in case.calls():
        if hasattr(call, "now"):
            oracle.advance(call.now)
        else:
            oracle.push(listed[call.start : call.stop])
    oracle.flush()


@pytest.mark.parametrize("method", ["castle", "bastion"])
@EASILY
@given(data=st.data())
def test_the_attacker_knows_what_is_remembered(method: str, data: st.DataObject):
    case = data.draw(cases() if method == "castle" else bastion_cases(), label="case")
    made = test_castle_oracle.oracle(case) if method == "castle" else test_bastion_oracle.oracle(case)
    expected = {number: (boxes, average) for number, boxes, average in drawn_from(made, case)}
    out = Published.of(run(case))
    for reused in _reuses(_memory(case.policy), out, np.flatnonzero(out.kind == Kind.REUSE)):
        boxes, average = expected[reused.row]
        assert [(tuple(lo), tuple(hi)) for lo, hi in zip(reused.lo, reused.hi, strict=True)] == boxes
        assert reused.average == (None if average is None else pytest.approx(average))


def test_an_unknown_memory_is_not_attacked():
    rows = stream(60)
    for method, parameters in (("castleguard", {}), ("mondrian", {}), ("castle", {"reorder": True})):
        of = policy(method, parameters=parameters)
        assert shrinking(of, rows, published(of, rows)) is None


def test_a_sample_of_the_rows(many: Rows):
    of = policy("bastion")
    releases = published(of, many)
    some = shrinking(of, many, releases, most=10, seed=4, stars=False)
    assert some.targets == 10
    assert some == shrinking(of, many, releases, most=10, seed=4, stars=False)
    assert "odds changed by up to" in str(some)
    never = policy("bastion", **CROWD)
    assert shrinking(never, many, published(never, many)).targets == 0
