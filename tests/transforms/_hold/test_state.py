"""State: log, snapshot, token. When a bundle fails, a key moves or a pipeline is updated, no stale engine is used."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from apache_beam.transforms.window import GlobalWindow, IntervalWindow

from crenel.errors import INCURABLE, SnapshotError
from crenel.seal import Seal
from crenel.transforms._hold import engine_cache, hold_step
from crenel.transforms._hold.engine_cache import CACHE, CachedShards, EngineCache
from crenel.transforms._hold.shard_set import ShardSet
from crenel.transforms._hold.stored_state import Chain
from crenel.transforms._pack.row_pack import RowPack
from tests.transforms.cells import State, Worker, forget, packs, published, rolled_back, tagged
from tests.transforms.streams import SECOND, policy, rows

POLICY = policy()
GIVEN = rows(400)
PACKS = packs(POLICY, GIVEN, 25)
END = GlobalWindow().max_timestamp().micros
SEAL = Seal(bytes(32), carried=False)


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    forget()
    yield
    forget()


def through(state: State, workers: list[Worker], given: list[bytes] = PACKS, *, end: bool = True) -> list[Any]:
    """Push the packs, each through the next worker; with `end`, then fire the timer at the end of time."""
    out = []
    for i, pack in enumerate(given):
        out += workers[i % len(workers)].push(state, pack)
    if end:
        out += workers[0].fire(state, at=END)
    return out


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    forget()
    found = published(through(State(), [Worker(POLICY)]))
    assert sorted(row["number"] for row in found) == list(range(len(GIVEN)))
    return found


class Broken(Exception):
    """Raised in the middle of a bundle, as by a user's step."""


# --- Failures ---


@pytest.mark.parametrize("where", ["same worker", "another worker", "another process"])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_bundle_that_fails_half_way_is_tried_again(expected: list[Any], where: str, after: int) -> None:
    state, worker = State(), Worker(POLICY)
    out = []
    for start in range(0, len(PACKS), 3):
        bundle = PACKS[start : start + 3]
        before = rolled_back(state)
        for pack in bundle[:after]:  # a later step fails, so none of this is committed
            worker.push(state, pack)
        state = before
        if where == "another worker":
            worker = Worker(POLICY)
        elif where == "another process":
            forget()
        for pack in bundle:
            out += worker.push(state, pack)
    out += worker.fire(state, at=END)
    assert published(out) == expected


def test_an_engine_that_fails_leaves_nothing_behind(expected: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has taken rows when it raises, but the state does not have them: the engine must be discarded."""
    state, worker = State(), Worker(POLICY)
    out = through(state, [worker], PACKS[:5], end=False)
    push = ShardSet.push

    def broken(self: ShardSet, pack: RowPack) -> Any:
        push(self, pack)
        raise Broken

    before = rolled_back(state)
    with monkeypatch.context() as patch:
        patch.setattr(ShardSet, "push", broken)
        with pytest.raises(Broken):
            worker.push(state, PACKS[5])
    assert len(CACHE) == 0
    out += through(before, [worker], PACKS[5:])
    assert published(out) == expected


def test_the_state_is_written_before_the_output_is_read(expected: list[Any]) -> None:
    """Output is produced lazily, as the runner reads it. The state must not wait for that."""
    state, worker = State(), Worker(POLICY)
    pack = (0, worker.sealed(PACKS[0]))
    left = worker.step.process(pack, _zero(), GlobalWindow(), state.log, state.snapshot, state.token, state)
    out = through(state, [worker], PACKS[1:])
    assert published([*left, *out]) == expected


def _zero() -> Any:
    from apache_beam.utils.timestamp import Timestamp

    return Timestamp(0)


def test_every_bundle_is_done_twice(expected: list[Any]) -> None:
    state, out = State(), []
    for pack in PACKS:
        before = rolled_back(state)
        first = Worker(POLICY).push(state, pack)
        state = before
        second = Worker(POLICY).push(state, pack)
        assert published(first) == published(second)
        out += second
    out += Worker(POLICY).fire(state, at=END)
    assert published(out) == expected


# --- Keys that move ---


@pytest.mark.parametrize("workers", [2, 3])
def test_a_key_moves_between_instances(expected: list[Any], workers: int) -> None:
    assert published(through(State(), [Worker(POLICY) for _ in range(workers)])) == expected


def test_a_key_moves_between_processes(expected: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process has its own cache, in which the key's engine becomes stale while the key is elsewhere."""
    memories = [EngineCache(), EngineCache()]
    state, out = State(), []
    for i, pack in enumerate(PACKS):
        monkeypatch.setattr(hold_step, "CACHE", memories[i // 2 % 2])
        out += Worker(POLICY).push(state, pack)
    out += Worker(POLICY).fire(state, at=END)
    assert published(out) == expected


def test_a_cached_engine_of_this_state_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    state, worker = State(), Worker(POLICY)
    through(state, [worker], PACKS[:3], end=False)
    before = state.token.value
    monkeypatch.setattr(hold_step.HoldRows, "_rebuilt", None)  # rebuilding would fail
    worker.push(state, PACKS[3])
    assert state.token.value != before


def test_a_cached_engine_ahead_of_its_state_is_never_used(expected: list[Any]) -> None:
    """The cached engine has seen one pack more than the state, which was rolled back."""
    state, worker = State(), Worker(POLICY)
    out = through(state, [worker], PACKS[:4], end=False)
    before = rolled_back(state)
    worker.push(state, PACKS[4])
    (ahead,) = CACHE._kept.values()
    assert ahead.token == state.token.value != before.token.value
    out += through(before, [worker], PACKS[4:])
    assert published(out) == expected


def test_two_states_of_one_key_stay_separate(expected: list[Any]) -> None:
    """One transform object in two pipelines of a process, or applied twice, has equal keys but separate states."""
    states, worker = [State(), State()], Worker(POLICY)
    outs: list[list[Any]] = [[], []]
    for pack in PACKS:
        for state, out in zip(states, outs, strict=True):
            out.extend(worker.push(state, pack))
    for state, out in zip(states, outs, strict=True):
        out.extend(worker.fire(state, at=END))
        assert published(out) == expected


def test_tokens_are_never_the_same() -> None:
    state, worker, tokens = State(), Worker(POLICY), set()
    for pack in PACKS:
        worker.push(state, pack)
        tokens.add(state.token.value)
    assert len(tokens) == len(PACKS)


def test_the_cache_forgets_the_least_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_cache, "_MOST", 2)
    memory = EngineCache()
    first, second, third = [("uid", key, GlobalWindow()) for key in range(3)]
    for key in (first, second, third):
        memory.put(key, CachedShards(key, ShardSet(POLICY, b"secret"), b"token", Chain(SEAL, b"0")))
    assert memory.take(first) is None
    found = memory.take(second)
    assert found is not None
    assert memory.take(second) is None
    memory.put(second, found)
    assert len(memory) == 2


def test_an_engine_that_is_not_cached_is_rebuilt(expected: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_cache, "_MOST", 0)
    assert published(through(State(), [Worker(POLICY)])) == expected


def test_many_threads_share_the_cache() -> None:
    wrong = []

    def work(shard: int) -> None:
        state, worker = State(), Worker(POLICY)
        out = [row for pack in PACKS for row in worker.push(state, pack, shard=shard)]
        out += worker.fire(state, at=END, shard=shard)
        if sorted(row["number"] for row in published(out)) != list(range(len(GIVEN))):
            wrong.append(shard)

    threads = [threading.Thread(target=work, args=(shard,)) for shard in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# --- Log and snapshot ---


@pytest.mark.parametrize("shortest", [0, 5_000, 1 << 20])
@pytest.mark.parametrize("remembered", [True, False])
def test_a_long_log_becomes_a_snapshot(
    expected: list[Any], shortest: int, remembered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold_step, "_SHORTEST_LOG", shortest)
    state, worker, out, snapshots = State(), Worker(POLICY), [], []
    for pack in PACKS:
        if not remembered:
            forget()
        out += worker.push(state, pack)
        if state.snapshot.value not in [None, *snapshots[-1:]]:
            snapshots.append(state.snapshot.value)
            assert state.log.items == []
        assert sum(map(len, state.log.items)) <= max(shortest, 2 * len(state.snapshot.value or b"")) + len(pack) + 9
    out += worker.fire(state, at=END)
    assert published(out) == expected
    assert len(snapshots) > 1 if shortest < 1 << 20 else snapshots == []


def test_the_log_is_read_in_its_order_whatever_the_bag_says(expected: list[Any]) -> None:
    state = State()
    out = through(state, [Worker(POLICY)], PACKS[:9], end=False)
    assert len(state.log.items) == 10  # nine packs, and the entry that begins the log
    state.log.items = state.log.items[3:] + state.log.items[:3]
    forget()
    out += through(state, [Worker(POLICY)], PACKS[9:])
    assert published(out) == expected


def test_a_bundle_writes_only_its_own_rows() -> None:
    """The bytes that a bundle writes do not grow with the number of held rows."""
    long = policy(delay="1d")
    given = packs(long, rows(2_000, every=0.1), 25)
    state, worker = State(), Worker(long)
    for pack in given:
        before = len(state.log.items), state.snapshot.value
        worker.push(state, pack)
        if state.snapshot.value == before[1] and before[0]:
            assert len(state.log.items) == before[0] + 1
            assert len(state.log.items[-1]) < 2 * len(pack)


def test_nothing_is_left_at_the_end_of_time() -> None:
    state = State()
    through(state, [Worker(POLICY)])
    assert state.empty
    assert len(CACHE) == 0


def test_a_window_that_is_over_keeps_what_late_rows_need() -> None:
    window = IntervalWindow(GIVEN[0]["seen"], GIVEN[0]["seen"] + 3600)
    state, worker = State(), Worker(POLICY)
    for pack in PACKS[:8]:
        worker.push(state, pack, window=window)
    worker.fire(state, at=window.max_timestamp().micros, window=window)
    assert state.log.items == []
    assert not state.empty
    assert len(CACHE) == 0
    state.timers.clear()
    late = worker.push(state, PACKS[8], window=window)
    assert late == []
    assert state.timer is not None
    assert state.timer <= window.max_timestamp().micros
    late += worker.fire(state, at=window.max_timestamp().micros, window=window)
    assert len(published(late)) == 25
    # Some of them reuse a generalization that was published before.
    assert "reuse" in {record["kind"] for record in tagged(late, "releases")}


# --- Timers ---


def test_firing_twice_late_or_out_of_order_does_no_harm(expected: list[Any]) -> None:
    state, worker = State(), Worker(POLICY)
    out = []
    for i, pack in enumerate(PACKS):
        out += worker.push(state, pack)
        for at in (0, state.timer, state.timer, int(GIVEN[i * 25]["seen"] * SECOND)):
            if at is not None and at <= int(GIVEN[min(i * 25 + 25, 399)]["seen"] * SECOND):
                out += worker.fire(state, at=at)
    out += worker.fire(state, at=END)
    # These bundles differ from the expected run's, so rows of one moment come in another order: compare by number.
    assert {row["number"]: row for row in published(out)} == {row["number"]: row for row in expected}
    assert len(published(out)) == len(expected)
    for at in (0, END, int(GIVEN[5]["seen"] * SECOND)):
        assert worker.fire(state, at=at) == []
    assert state.empty
    assert len(CACHE) == 0


def test_the_timer_is_set_only_when_it_changes() -> None:
    state, worker = State(), Worker(POLICY)
    for pack in packs(POLICY, rows(100, every=0.001), 10):
        worker.push(state, pack)
    assert state.sets == 1


def test_the_timer_fires_until_nothing_is_held_and_no_longer() -> None:
    state, worker = State(), Worker(POLICY)
    out = through(state, [worker], PACKS, end=False)
    fired = 0
    while state.timer is not None:
        at = state.timers.pop("")
        out += worker.fire(state, at=at)
        fired += 1
        assert fired < 100
    assert sorted(row["number"] for row in published(out)) == list(range(len(GIVEN)))
    assert fired <= 17


def test_a_timer_that_nothing_waits_for_stores_nothing() -> None:
    state, worker = State(), Worker(POLICY)
    through(state, [worker], PACKS, end=False)
    while state.timer is not None:
        at = state.timers.pop("")
        worker.fire(state, at=at)
    before = rolled_back(state)
    assert worker.fire(state, at=int(GIVEN[-1]["seen"] * SECOND) + 10**10) == []
    assert (state.log.items, state.token.value) == (before.log.items, before.token.value)
    assert len(CACHE) == 1


def test_a_late_row_sets_a_timer_that_has_fired_in_vain() -> None:
    """All rows were released by count, so the timer found nothing to do. Then a row with the same deadline arrives."""
    pair = policy(k=2, delay_rows=2, parameters={"beta": 1})
    given = [{**row, "seen": 1_000_000.0, "patient": f"patient-{i}"} for i, row in enumerate(rows(7))]
    *before, late = packs(pair, given, 1)
    state, worker = State(), Worker(pair)
    out = [element for pack in before for element in worker.push(state, pack)]
    assert len(published(out)) == 6
    fired = state.timers.pop("")
    assert worker.fire(state, at=fired) == []
    worker.push(state, late)
    assert state.timer == fired


def test_a_late_row_sets_a_timer_that_has_fired_in_vain_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, but the key was in another process when the timer fired, and this one still remembers the key."""
    pair = policy(k=2, delay_rows=2, parameters={"beta": 1})
    given = [{**row, "seen": 1_000_000.0, "patient": f"patient-{i}"} for i, row in enumerate(rows(7))]
    *before, late = packs(pair, given, 1)
    state, worker = State(), Worker(pair)
    for pack in before:
        worker.push(state, pack)
    fired = state.timers.pop("")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(hold_step, "CACHE", EngineCache())
        assert Worker(pair).fire(state, at=fired) == []
    worker.push(state, late)
    assert state.timer == fired


# --- A pipeline that is updated ---


def test_another_secret_goes_on_with_the_state() -> None:
    """A rebuilt pipeline has a new secret, but the log is replayed with the generator that it was written under."""
    no_seed = policy(seed=None)
    for at in (1, 2, 5, 9):
        forget()
        state = State()
        first = Worker(no_seed, secret=b"one", uid="one")
        out = through(state, [first], packs(no_seed, GIVEN, 25, secret=b"one")[:at], end=False)
        second = Worker(no_seed, secret=b"two", uid="two")
        out += through(state, [second], packs(no_seed, GIVEN, 25, secret=b"two")[at:])
        assert sorted(row["number"] for row in published(out)) == list(range(len(GIVEN)))


def test_a_person_is_not_counted_twice_under_two_secrets() -> None:
    """The same three persons come before and after. Hashed with two keys they would count as six, and k is four."""
    no_seed = policy(seed=None, delay="1h")
    three = [{**row, "patient": i % 3, "age": 30.0, "zipcode": "53706"} for i, row in enumerate(rows(30, every=1.0))]
    state = State()
    first, second = Worker(no_seed, secret=b"one", uid="one"), Worker(no_seed, secret=b"two", uid="two")
    out = through(state, [first], packs(no_seed, three[:15], 5, secret=b"one"), end=False)
    out += through(state, [second], packs(no_seed, three[15:], 5, secret=b"two"))
    assert {record["kind"] for record in tagged(out, "releases")} == {"suppressed"}
    assert len(tagged(out, "suppressed")) == 30


def test_a_stronger_policy_goes_on_with_the_state() -> None:
    stronger = policy(k=8, delay="5m")
    state = State()
    out = through(state, [Worker(POLICY)], PACKS[:7], end=False)
    forget()
    later = through(state, [Worker(stronger, uid="new")], packs(stronger, GIVEN, 25)[7:])
    assert sorted(row["number"] for row in published(out + later)) == list(range(len(GIVEN)))
    persons = [record["persons"] for record in tagged(later, "releases") if record["kind"] != "suppressed"]
    assert persons and min(persons) >= 8


def test_a_column_that_is_no_longer_declared_is_not_published() -> None:
    """Rows are held since `number` was published. The new policy publishes `ward` instead, and `disease` as before."""
    other = policy(publish=["ward"])
    state = State()
    through(state, [Worker(POLICY)], PACKS[:2], end=False)
    forget()
    given = [{**row, "ward": "west"} for row in GIVEN]
    later = through(state, [Worker(other, uid="new")], packs(other, given, 25)[2:])
    assert {frozenset(row) for row in published(later)} == {
        frozenset(["age", "zipcode", "education", "disease", "ward"])
    }
    assert {row["ward"] for row in published(later)} == {None, "west"}


@pytest.mark.parametrize(
    "changes",
    [
        {"quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 100]}}},
        {
            "quasi_identifiers": {
                **POLICY.to_dict()["quasi_identifiers"],
                "age": {"type": "numeric", "domain": [0, 200]},
            }
        },
        {"sensitive": ["education_level"]},
    ],
    ids=["fewer", "wider", "another"],
)
def test_other_columns_are_refused(changes: dict[str, Any]) -> None:
    other = policy(**changes)
    given = [{**row, "education_level": 1} for row in GIVEN]
    state = State()
    through(state, [Worker(POLICY)], PACKS[:3], end=False)
    with pytest.raises(SnapshotError):
        Worker(other, uid="new").push(state, packs(other, given, 25)[3])
    # A pack that was in flight when the pipeline was updated.
    with pytest.raises(SnapshotError, match="Drain the pipeline before you change these"):
        Worker(other, uid="new").push(State(), PACKS[0])


def test_state_of_no_known_form_is_refused() -> None:
    state = State()
    through(state, [Worker(POLICY)], PACKS[:3], end=False)
    state.snapshot.value = b"\xc3\x01 something else"
    forget()
    with pytest.raises(SnapshotError, match="does not match its digest"):
        Worker(POLICY).push(state, PACKS[3])


def test_another_method_is_refused_with_a_sentence() -> None:
    other = policy(method="mondrian", on_suppress="drop", parameters=None)
    state = State()
    through(state, [Worker(POLICY)], PACKS[:3], end=False)
    with pytest.raises(SnapshotError) as caught:
        Worker(other, uid="new").push(state, PACKS[3])
    assert str(caught.value) == (
        "The state was written by the method 'castle', and the policy now names 'mondrian', which cannot go on from "
        f"it. Drain the pipeline before you change the method. {INCURABLE}"
    )
