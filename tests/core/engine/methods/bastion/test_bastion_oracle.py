"""The engine publishes exactly what the oracle publishes, bit for bit.

The oracle (`tests.core.engine.methods.bastion.bastion_oracle`) is `docs/bastion.md` in plain Python.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from crenel.encoding.rows import Rows
from crenel.engine import Kind, Releases, create_engine
from crenel.engine.methods.bastion import BastionParameters, bastion_engine
from crenel.policy import OnSuppress, Policy, Reuse, Sensitive
from crenel.policy.quasi_identifiers import Categorical, Numeric
from crenel.testing.engine_checks import check_crowd, check_groups, expect_same
from crenel.testing.engine_streams import Case, apply, run
from tests.core.engine.cases import RAGGED, bastion_cases, in_bursts, judged, promised
from tests.core.engine.methods.bastion import bastion_oracle
from tests.core.engine.methods.bastion.bastion_oracle import BastionOracle, Group
from tests.core.engine.methods.castle.castle_oracle import OracleRelease
from tests.core.engine.methods.castle.test_castle_oracle import as_oracle

PROMISES: dict[str, dict[str, bool]] = {
    "k": {},
    "l": {"diverse": True},
    "t": {"close": True},
    "l and t": {"diverse": True, "close": True},
}
REUSE = {"reuse": Reuse.WEIGHTED, "uniform reuse": Reuse.UNIFORM, "no reuse": Reuse.OFF}
#: Event times are rounded down to a multiple of one of these, so that rows of one time are due at one moment.
BURSTS = st.sampled_from([1, 25, 100, 1_000])

EASILY = settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


#: One of several shards publishes more at its end.
SHARDS = st.sampled_from([1, 3])


def of_shards(case: Case, shards: int) -> Case:
    return replace(case, policy=replace(case.policy, shards=shards))


def oracle(case: Case) -> BastionOracle:
    parameters = case.policy.parameters
    return BastionOracle(
        **promised(case.policy),
        reuse=parameters.reuse is not Reuse.OFF,
        max_reusable=parameters.max_reusable,
        eta=parameters.eta if parameters.reuse is Reuse.WEIGHTED else 0.0,
        lonely=parameters.lonely,
        search=parameters.search,
        shards=case.policy.most_shards,
        key=case.engine().key,
    )


def oracle_run(case: Case) -> list[OracleRelease]:
    return judged(case, oracle(case))


def run_restored(case: Case) -> Releases:
    """Run a chain of engines, each of which gets one call and passes its snapshot to the next."""
    engine, parts = case.engine(), []
    for call in case.calls():
        parts.append(apply(engine, case.rows, call))
        stored = engine.snapshot()
        engine = case.engine()
        engine.restore(stored)
    return Releases.concat([*parts, engine.flush()])


def assert_equal(published: list[OracleRelease], expected: list[OracleRelease]) -> None:
    for number, (ours, theirs) in enumerate(zip(published, expected, strict=False)):
        assert astuple(ours) == astuple(theirs), f"release {number}"
    assert len(published) == len(expected)


def compare(case: Case) -> list[OracleRelease]:
    published = as_oracle(run_restored(case))
    assert_equal(published, oracle_run(case))
    return published


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("reuse", REUSE)
@EASILY
@given(data=st.data())
def test_engine_publishes_what_the_oracle_does(reuse: str, promise: str, data: st.DataObject):
    strategy = bastion_cases(reuse=st.just(REUSE[reuse]), **PROMISES[promise])
    compare(
        of_shards(in_bursts(data.draw(strategy, label="case"), data.draw(BURSTS, label="bursts")), data.draw(SHARDS))
    )


@contextmanager
def always_in_cells() -> Iterator[None]:
    """Keep rows in cells from the first row on. Without this it takes hundreds of rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bastion_engine, "_CELLED", 0)
        patch.setattr(bastion_oracle, "CELLED", 0)
        yield


@pytest.mark.parametrize("promise", PROMISES)
@EASILY
@given(data=st.data())
def test_cells_have_what_the_oracle_finds(promise: str, data: st.DataObject):
    strategy = bastion_cases(reuse=st.just(Reuse.OFF), **PROMISES[promise])
    with always_in_cells():
        case = in_bursts(data.draw(strategy, label="case"), data.draw(BURSTS, label="bursts"))
        compare(of_shards(case, data.draw(SHARDS)))


@pytest.mark.parametrize(("shards", "suppressed"), [(1, 1), (2, 0)])
def test_one_of_several_shards_suppresses_nobody_who_could_join_at_the_end(shards: int, suppressed: int):
    """A row far from all others would add more to a group's loss than its own suppression does."""
    places = np.append(np.linspace(10, 11, 59), 99.0)
    count = len(places)
    rows = Rows(places[:, None], np.arange(count), np.zeros((count, 0), np.int64), np.arange(count))
    policy = Policy(
        person="who", quasi_identifiers={"x": Numeric(domain=(0, 100))}, k=20, delay_rows=1_000, shards=shards, seed=1
    )
    engine = create_engine(policy)
    assert len(engine.push(rows)) == 0
    left = engine.flush()
    assert left.sizes[left.kind == Kind.SUPPRESSED].sum() == suppressed
    assert left.sizes.sum() == count


def thin_policy(k: int, inside: int, shards: int = 2, **changes: Any) -> Policy:
    """Return the policy of a shard that holds each row until `inside` others arrived."""
    said: dict[str, Any] = {"quasi_identifiers": {"x": Numeric(domain=(0, 100))}, "k": k, "delay_rows": inside}
    return Policy(**said | {"person": "who", "method": "bastion", "shards": shards, "seed": 1} | changes)


def rows_at(places: np.ndarray, person: np.ndarray | None = None) -> Rows:
    """Make a row for each place, each of another person if none are given."""
    number = np.arange(len(places))
    nothing = np.zeros((len(places), 0), np.int64)
    return Rows(places[:, None].astype(float), number if person is None else person, nothing, number)


@EASILY
@given(data=st.data())
def test_a_thin_shard_releases_the_oldest_and_suppresses_nobody(data: st.DataObject):
    """A row that is due finds k persons if so many meet; at the end, k are left if twice as many meet."""
    k = data.draw(st.integers(2, 12), label="k")
    inside = data.draw(st.integers(k, 2 * k + k // 2 - 2), label="inside")
    rows = data.draw(st.integers(0, 8 * k), label="rows")
    seed = data.draw(st.integers(0, 99), label="seed")
    engine = create_engine(thin_policy(k, inside))
    left = engine.push(rows_at(np.random.default_rng(seed).integers(0, 100, rows)))
    assert set(left.kind.tolist()) <= {Kind.CLUSTER}
    assert [sorted(group) for group in np.split(left.rows, left.offsets[1:-1]) if len(group)] == [
        list(range(first, first + k)) for first in range(0, len(left.rows), k)
    ]
    at_end = engine.flush()
    assert len(left.rows) + len(at_end.rows) == rows
    if inside >= 2 * k - 1 and rows >= k:
        assert set(at_end.kind.tolist()) == {Kind.CLUSTER}


@pytest.mark.parametrize(("shards", "inside", "oldest"), [(2, 8, True), (2, 9, False), (1, 8, False)])
def test_a_shard_is_thin_below_two_and_a_half_times_k(shards: int, inside: int, oldest: bool):
    """Else the nearest rows join: here the youngest ones."""
    engine = create_engine(thin_policy(4, inside, shards))
    places = np.append(np.full(1, 5.0), np.full(inside, 90.0))
    places[-3:] = 6.0
    (group,) = [set(rows.tolist()) for rows in np.split(engine.push(rows_at(places)).rows, [4])[:1]]
    assert group == ({0, 1, 2, 3} if oldest else {0, inside - 2, inside - 1, inside})


def test_a_thin_shard_takes_the_oldest_row_of_each_person():
    engine = create_engine(thin_policy(3, 5))
    released = engine.push(rows_at(np.arange(6.0), np.array([1, 2, 1, 2, 3, 4])))
    assert sorted(released.rows.tolist()) == [0, 1, 4]


def test_in_a_thin_shard_the_nearest_rows_join_where_all_are_due():
    """Nobody stays, so there is nothing to keep the youngest for."""
    engine = create_engine(thin_policy(3, 50, event_time="time", delay="16us"))
    rows = rows_at(np.array([5.0, 90.0, 91.0, 6.0, 7.0]))
    engine.push(replace(rows, time=np.zeros(len(rows), np.int64)))
    released = engine.advance(16)
    assert set(released.rows[:3].tolist()) == {0, 3, 4}


class Happened(Counter[str]):
    """Counts of the events in the oracles' runs."""

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        for cls, name in (
            (BastionOracle, "estimate_again"),
            (BastionOracle, "divide"),
            (BastionOracle, "leave_under"),
            (BastionOracle, "leave_as_nothing"),
            (Group, "take"),
            (Group, "take_oldest"),
        ):
            patch.setattr(cls, name, self._counting(name, getattr(cls, name)))
        patch.setattr(Group, "choose", self._choosing(Group.choose))
        patch.setattr(Group, "add_rings", self._growing(Group.add_rings))

    def _counting(self, name: str, method: Any) -> Any:
        def counted(*given: Any) -> Any:
            self[name] += 1
            return method(*given)

        return counted

    def _choosing(self, choose: Any) -> Any:
        def chosen(group: Group) -> bool:
            found = bool(choose(group))
            self["chosen among more"] += found and len(group.candidates) < len(group.scores)
            self["chosen anew"] += found and len(group.rows) > 1
            return found

        return chosen

    def _growing(self, add_rings: Any) -> Any:
        def grown(group: Group) -> bool:
            size, found = len(group.rows), bool(add_rings(group))
            self["ring joined"] += found and len(group.rows) > size
            self["ring given back"] += found and len(group.rows) == size
            return found

        return grown


def test_cases_reach_what_they_are_for():
    """Everything that the page describes happens in some of the drawn cases."""
    happened = Happened()
    with pytest.MonkeyPatch.context() as patch:
        happened.watch(patch)

        @settings(
            max_examples=120,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(bastion_cases(diverse=True), BURSTS, SHARDS)
        def count(case: Case, every: int, shards: int) -> None:
            oracle_run(of_shards(in_bursts(case, every), shards))

        count()
    assert min(happened.values()) >= 5, happened
    assert len(happened) == 10, happened


def seeded_case(seed: int, rows: int = 700) -> Case:
    random = np.random.default_rng(seed)
    diverse, close, by_time, reuse = seed % 3 == 1, seed % 4 == 2, seed % 2 == 1, seed % 8 < 4
    policy = Policy(
        person="person",
        quasi_identifiers={
            "x": Numeric(domain=(0, 100)),
            "y": Numeric(),
            "c": Categorical(hierarchy=RAGGED, weight=2.0),
        },
        sensitive={"s": Sensitive(values=tuple("abcd")), "u": Sensitive()},
        k=5,
        l=2 if diverse else None,
        t=0.6 if close else None,
        delay="200us" if by_time else None,
        delay_rows=None if by_time else 60,
        method="bastion",
        parameters=BastionParameters(
            reuse=Reuse.WEIGHTED if reuse else Reuse.OFF,
            max_reusable=20,
            search=[3, 20, 8192][seed % 3],
            eta=2.0 * (seed % 4),
        ),
        on_suppress=OnSuppress.DROP,
        shards=1 + seed % 2,
    )
    places = random.normal(50, 15, (rows, 2)).clip(0, 100).round(seed % 3)
    time = np.cumsum(random.integers(0, 8, rows)) + random.integers(-20, 20, rows)
    return Case(
        policy=policy,
        rows=Rows(
            qi=np.column_stack([places, random.integers(0, len(RAGGED.leaves), rows)]).astype(np.float64),
            person=random.integers(0, [40, 400, 10**6][seed % 3], rows),
            sensitive=np.column_stack(
                [random.integers(0, 4, rows), random.integers(0, 2**60, 3)[random.integers(0, 3, rows)]]
            ),
            time=time // [1, 90][seed // 8 % 2] * [1, 90][seed // 8 % 2],
        ),
        cuts=tuple(sorted(random.integers(0, rows, 5).tolist())),
    )


@pytest.mark.parametrize("seed", range(16))
def test_engine_publishes_what_the_oracle_does_for_longer(seed: int):
    """The streams are long enough for boxes to be reused and pushed out, and for gaps to be closed."""
    case = seeded_case(seed)
    kinds = {release.kind for release in compare(case)}
    assert Kind.CLUSTER in kinds
    assert (Kind.REUSE in kinds) == (case.policy.reuse is not Reuse.OFF)


@pytest.mark.parametrize("seed", [4, 5, 6, 7, 12, 13, 14, 15])
def test_cells_have_what_the_oracle_finds_for_longer(seed: int):
    """Many rows come and go, so that cells are cut again and again."""
    with always_in_cells():
        assert Kind.CLUSTER in {release.kind for release in compare(seeded_case(seed))}


def large(rows: int, k: int, time: np.ndarray, persons: int = 10**6, **changes: Any) -> Case:
    """Make a case of many rows in two clouds, with a number and a category."""
    random = np.random.default_rng(5)
    said: dict[str, Any] = {
        "person": "person",
        "quasi_identifiers": {"x": Numeric(domain=(0, 100)), "c": Categorical(hierarchy=RAGGED)},
        "sensitive": {"s": Sensitive(values=tuple("abc"))},
        "k": k,
        "delay": "900us",
        "method": "bastion",
        "parameters": BastionParameters(reuse=Reuse.OFF),
        "on_suppress": OnSuppress.DROP,
    }
    qi = np.column_stack([random.normal(50, 15, rows).clip(0, 100), random.integers(0, len(RAGGED.leaves), rows)])
    person = random.permutation(rows) % persons
    return Case(
        policy=Policy(**said | changes), rows=Rows(qi, person, random.integers(0, 3, (rows, 1)), time.astype(np.int64))
    )


@pytest.mark.parametrize("reuse", ["no reuse", *(pytest.param(name, marks=pytest.mark.slow) for name in [*REUSE][:2])])
def test_engine_publishes_what_the_oracle_does_with_many_rows(reuse: str):
    """There are enough rows to exceed the space that is first reserved, and the number of candidates."""
    time = np.arange(1_300) - np.random.default_rng(6).integers(0, 90, 1_300)
    parameters = BastionParameters(reuse=REUSE[reuse], search=300)
    case = large(1_300, 80, time, delay_rows=2_000, parameters=parameters)
    case = replace(case, cuts=(700,))
    engine = case.engine()
    engine.push(case.rows.slice(0, 740))
    assert engine.held == 740
    assert Kind.CLUSTER in {release.kind for release in compare(case)}


def test_cells_have_what_the_oracle_finds_with_many_rows():
    """There are more rows than candidates, and more cells than one."""
    time = np.arange(1_300) - np.random.default_rng(6).integers(0, 90, 1_300)
    parameters = BastionParameters(reuse=Reuse.OFF, search=100)
    case = replace(large(1_300, 80, time, delay_rows=600, parameters=parameters), cuts=(700,))
    with always_in_cells():
        assert Kind.CLUSTER in {release.kind for release in compare(case)}


@pytest.mark.parametrize("l", [None, 2])
def test_a_set_is_divided_as_by_the_oracle(l: int | None):
    """600 rows are due at one moment and form more groups than one call writes. The flush releases the others."""
    time = np.repeat([0, 5_000], [600, 100])
    published = compare(large(700, 3, time, l=l, persons=400))
    first = [release for release in published if release.moment < 5_000]
    assert len({release.moment for release in first}) == 1
    assert len(first) > 128


def test_space_for_rows_grows_by_shares_of_them():
    """To copy all held rows at every push would take longer the more rows are held."""
    rows, push = 12_000, 100
    case = large(rows, 3, np.zeros(rows), delay_rows=rows)
    made: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        reserve = bastion_engine._held
        patch.setattr(bastion_engine, "_held", lambda policy, rows: made.append(rows) or reserve(policy, rows))
        engine = case.engine()
        for start in range(0, rows, push):
            engine.push(case.rows.slice(start, start + push))
    assert engine.held == rows
    assert len(made) < 50
    assert made[-1] < 1.2 * rows


@pytest.mark.slow
def test_more_suppressed_rows_than_a_call_writes():
    """There are too few persons for any group."""
    published = compare(large(300, 4, np.zeros(300), persons=3))
    assert [release.kind for release in published] == [Kind.SUPPRESSED] * 300
    assert [release.rows for release in published] == [[i] for i in range(300)]


@pytest.mark.parametrize("l", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_a_very_large_set_leaves_in_crowds(l: int | None):
    """The set has several times as many rows as one part of a division."""
    case = large(13_000, 3, np.zeros(13_000), l=l, persons=11_000)
    check_crowd(case)
    check_groups(case)
    releases = run(case)
    assert sorted(releases.rows.tolist()) == list(range(13_000))
    assert len(set(releases.moment.tolist())) == 1
    lost = np.repeat(releases.loss, np.diff(releases.offsets))
    assert lost.mean() < 0.05


# -- state that one call leaves for the next ---------------------------------------------------------------------------


def as_tuples(rows: Rows) -> list[Any]:
    return list(zip(*(column.tolist() for column in (rows.qi, rows.person, rows.sensitive, rows.time)), strict=True))


@pytest.mark.parametrize("seed", range(16))
def test_a_stream_may_continue_after_a_flush(seed: int):
    case = seeded_case(seed, rows=300)
    engine, judge = case.engine(), oracle(case)
    listed = list(
        zip(*(getattr(case.rows, name).tolist() for name in ("qi", "person", "sensitive", "time")), strict=True)
    )
    for start, stop in ((0, 140), (140, 200), (200, 300)):
        published = Releases.concat([engine.push(case.rows.slice(start, stop)), engine.flush()])
        assert_equal(as_oracle(published), [*judge.push(listed[start:stop]), *judge.flush()])


@pytest.mark.parametrize("changes", [{"delay_rows": 9}, {"delay_rows": 25, "k": 9}, {"k": 2}, {"k": 20}], ids=str)
@pytest.mark.parametrize("seed", [2, 4, 6, 12])
def test_an_engine_continues_under_another_policy(seed: int, changes: dict[str, Any]):
    """With a shorter delay, many rows are due at once."""
    case = seeded_case(seed, rows=300)
    case = replace(case, policy=replace(case.policy, t=None, l=None, delay=None, delay_rows=60))
    changed = replace(case, policy=replace(case.policy, **changes))
    first, judge = case.engine(), oracle(case)
    listed = list(
        zip(*(getattr(case.rows, name).tolist() for name in ("qi", "person", "sensitive", "time")), strict=True)
    )
    assert_equal(as_oracle(first.push(case.rows.slice(0, 150))), judge.push(listed[:150]))
    engine = changed.engine()
    engine.restore(first.snapshot())
    if changed.policy.k > case.policy.k:
        judge.boxes = []  # they have too few persons for the new k
    judge.k, judge.delay_rows = changed.policy.k, changed.policy.delay_rows
    published = Releases.concat([engine.push(case.rows.slice(150, 300)), engine.flush()])
    assert_equal(as_oracle(published), [*judge.push(listed[150:]), *judge.flush()])


def test_reuse_may_be_turned_off():
    """Turning reuse off discards all boxes, and turning it on again does not bring them back."""
    case = seeded_case(0, rows=400)
    engine = case.engine()
    assert Kind.REUSE in engine.push(case.rows.slice(0, 300)).kind
    policy = replace(case.policy, parameters=BastionParameters(reuse=Reuse.OFF))
    without = create_engine(policy, secret=case.secret)
    without.restore(engine.snapshot())
    releases = Releases.concat([without.push(case.rows.slice(300, 350)), without.flush()])
    assert set(releases.kind.tolist()) <= {Kind.CLUSTER, Kind.SUPPRESSED}
    again = case.engine()
    again.restore(without.snapshot())
    assert Kind.CLUSTER in Releases.concat([again.push(case.rows.slice(350, 400)), again.flush()]).kind


def test_engines_in_many_threads_do_not_disturb_each_other():
    """Engines in one thread share scratch space. Kernels that run at the same time must not."""
    cases = [seeded_case(2 * seed, rows=3_000) for seed in range(4)] * 4
    alone = [as_oracle(run(case)) for case in cases]
    with ThreadPoolExecutor(max_workers=8) as threads:
        together = list(threads.map(lambda case: as_oracle(run(case)), cases))
    assert together == alone


# -- what sensitive values decide --------------------------------------------------------------------------------------


def with_values(case: Case, values: np.ndarray) -> Case:
    """Give each row one of these values in every sensitive column. The columns no longer declare their values."""
    columns = len(case.policy.sensitive)
    policy = replace(case.policy, sensitive={name: Sensitive() for name in case.policy.sensitive})
    return replace(case, policy=policy, rows=replace(case.rows, sensitive=np.repeat(values[:, None], columns, axis=1)))


@EASILY
@given(case=bastion_cases(diverse=True), every=BURSTS, seed=st.integers(0, 2**32))
def test_which_value_is_whose_decides_nothing(case: Case, every: int, seed: int):
    """If all values differ, no ring is needed, whichever row has which value."""
    case = in_bursts(replace(case, policy=replace(case.policy, l=2)), every)
    values = np.arange(len(case.rows), dtype=np.int64)
    others = np.random.default_rng(seed).permutation(values) * 7 + 10**6
    expect_same(run(with_values(case, values)), run(with_values(case, others)), "whatever the sensitive values are")


@EASILY
@given(case=bastion_cases(reuse=st.just(Reuse.OFF), diverse=True), seed=st.integers(0, 2**32))
def test_where_no_ring_joins_there_might_as_well_be_no_l(case: Case, seed: int):
    """If all values differ and there are enough rows for a ring, rings are tried and rejected."""
    random = np.random.default_rng(seed)
    rows = case.rows.take(random.integers(0, max(len(case.rows), 1), 150 if len(case.rows) else 0))
    rows = replace(rows, person=np.arange(len(rows)), time=np.zeros(len(rows), np.int64))
    policy = replace(case.policy, k=min(case.policy.k, 6), l=2, delay=None, delay_rows=60)
    diverse = with_values(replace(case, policy=policy, rows=rows, moves=(), cuts=()), np.arange(len(rows)))
    plain = replace(diverse, policy=replace(diverse.policy, l=None))
    # Only until the flush: then too few rows are left for a ring.
    first, second = (one.engine().push(one.rows) for one in (diverse, plain))
    enough = _with_rows_for_a_ring(second, policy.k)
    expect_same(*(one.take(np.arange(min(enough, len(one)))) for one in (first, second)), "whatever l asks for")


def _with_rows_for_a_ring(releases: Releases, k: int) -> int:
    """Count the first releases at which enough rows were held for a group of k and a ring."""
    held = releases.arrivals - releases.offsets[:-1]
    return int(np.argmax(np.append(held < k + k // 2, True)))
