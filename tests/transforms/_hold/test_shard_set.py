"""Shards that share a key: each releases what it would release alone, whatever shares its key or its storage."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.internal import pickler
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2 as api
from hypothesis import given, settings
from hypothesis import strategies as st

from crenel.transforms import AnonymizeBounded
from crenel.transforms._hold import local_runners
from crenel.transforms._hold.shard_holder import Departure, ShardHolder
from crenel.transforms._hold.shard_set import Left, ShardSet
from crenel.transforms._pack.row_pack import Packer, RowPack
from tests.transforms.cells import END, State, Worker, forget, published, rolled_back, short_logs, tagged
from tests.transforms.streams import SECOND, Stamped, anonymize, policy, rows, run, stream
from tests.transforms.test_external import expanded

POLICY = policy(shards=3)
GIVEN = rows(240)
PACKER = Packer(POLICY, b"secret")
#: Packs of three shards, interleaved.
PACKS = [pack for i in range(0, len(GIVEN), 24) for pack in PACKER.pack_dicts(GIVEN[i : i + 24], None).packs]
FIRST = GIVEN[0]["seen"]


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    forget()
    yield
    forget()


def rows_of(departures: list[Departure]) -> list[Any]:
    return [
        (departure.number[releases.rows].tolist(), releases.lo.tolist(), releases.hi.tolist(), releases.moment.tolist())
        for departure in departures
        for releases in [departure.releases]
    ]


def add(found: dict[int, list[Any]], left: Left) -> None:
    for shard, departures in left:
        found.setdefault(shard, []).extend(rows_of(departures))


def alone(now: list[int]) -> dict[int, list[Any]]:
    """Return what each shard releases on its own; event time advances to `now[i]` before pack `i`."""
    found: dict[int, list[Any]] = {}
    for shard in range(POLICY.shards):
        holder = ShardHolder(POLICY, b"secret", b"%d" % shard)
        left: list[Departure] = []
        for at, pack in zip(now, PACKS, strict=True):
            due = holder.next_deadline() if holder.held else None
            if due is not None and due <= at:
                left += holder.advance(at)
            left += holder.push(pack) if pack.shard == shard else []
        found[shard] = rows_of(left + holder.flush())
    return found


# --- Shards with one key compared with separate shards ---


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_shard_releases_what_it_would_release_alone(data: st.DataObject) -> None:
    """Event time advances, and the shards are stored and restored, at arbitrary points."""
    steps = data.draw(st.lists(st.integers(0, 120), min_size=len(PACKS), max_size=len(PACKS)))
    stored = data.draw(st.lists(st.booleans(), min_size=len(PACKS), max_size=len(PACKS)))
    now = [int(FIRST * SECOND) + int(at) * SECOND for at in np.cumsum(steps)]
    shards, found = ShardSet(POLICY, b"secret"), dict[int, list[Any]]()
    for at, store, pack in zip(now, stored, PACKS, strict=True):
        if store and len(shards):
            kept = shards.snapshot()
            shards = ShardSet(POLICY, b"another secret")
            shards.restore(kept)
            shards._secret = b"secret"  # for shards that begin later
        add(found, shards.wake(at))
        add(found, shards.push(pack))
    add(found, shards.flush())
    assert shards.held == 0
    assert found == alone(now)


def test_what_is_due_and_when() -> None:
    shards = ShardSet(POLICY, b"secret")
    assert (len(shards), shards.held, shards.next_deadline()) == (0, 0, None)
    for pack in PACKS[:9]:
        shards.push(pack)
    held = [shards.held_by(shard) for shard in range(3)]
    assert len(shards) == 3
    assert min(held) > 0
    assert shards.held == sum(held)
    due = shards.next_deadline()
    assert due is not None
    assert shards.is_due(due)
    assert not shards.is_due(due - 1)
    assert shards.wake(due - 1) == []
    assert any(departures for _, departures in shards.wake(due))
    assert not shards.is_due(due)


def test_a_shard_begins_once() -> None:
    shards = ShardSet(POLICY, b"secret")
    first, second = PACKS[0], PACKS[1]
    assert ShardSet.written_under(shards.begin(first))
    shards.push(first)
    assert shards.begin(first) == b""
    assert shards.begin(second)


# --- In the step ---


def through(state: State, given: list[RowPack], *, fail: bool = False, restart: bool = False) -> list[Any]:
    """Push the packs under one key; with `fail`, the first attempt at each pack is rolled back."""
    worker, out = Worker(POLICY), list[Any]()
    for pack in given:
        if fail:
            worker.push(rolled_back(state), pack.to_bytes())
        if restart:
            forget()
        out += worker.push(state, pack.to_bytes())
    return out + worker.fire(state, at=END)


def fired(worker: Worker, state: State, *, shard: int = 0) -> list[Any]:
    """Fire the timer whenever it is set, until it is unset or set to the end of time; return what is released."""
    out: list[Any] = []
    for _ in range(200):
        if state.timer is None or state.timer >= END:
            return out
        at = state.timers.pop("")
        out += worker.fire(state, at=at, shard=shard)
    raise AssertionError("the timer re-arms for ever")


def numbers(out: list[Any]) -> list[int]:
    return sorted(row["number"] for row in published(out))


@pytest.mark.parametrize("shortest", [0, 800, 1 << 20])
@pytest.mark.parametrize(("fail", "restart"), [(False, True), (True, False), (True, True)])
def test_shards_of_one_key_survive_failures(shortest: int, fail: bool, restart: bool) -> None:
    expected = through(State(), PACKS)
    assert numbers(expected) == list(range(len(GIVEN)))
    assert {record["shard"] for record in tagged(expected, "releases")} == {0, 1, 2}
    forget()
    state = State()
    with short_logs(shortest):
        out = through(state, PACKS, fail=fail, restart=restart)
    assert published(out) == published(expected)
    assert state.empty


@pytest.mark.parametrize("shortest", [0, 1 << 20])
def test_a_shard_goes_on_with_the_generator_it_began_with(shortest: int) -> None:
    """Later secrets, which pipelines draw that are built again, do not change it."""
    unnamed = policy(shards=3, seed=None)
    worker = Worker(unnamed)
    state = State()
    expected = [element for pack in PACKS for element in worker.push(state, pack.to_bytes())]
    expected += worker.fire(state, at=END)
    forget()
    state, out = State(), list[Any]()
    with short_logs(shortest):
        for i, pack in enumerate(PACKS):
            forget()
            secret = b"secret" if i < POLICY.shards else b"another"
            out += Worker(unnamed, secret=secret).push(state, pack.to_bytes())
        out += Worker(unnamed, secret=b"a third").fire(state, at=END)
    # The current secret orders releases of one moment, so compare them by number.
    assert sorted(published(out), key=itemgetter("number")) == sorted(published(expected), key=itemgetter("number"))


def test_one_timer_wakes_every_shard() -> None:
    state, worker, out = State(), Worker(POLICY), list[Any]()
    for pack in PACKS[:6]:
        out += worker.push(state, pack.to_bytes())
    out += fired(worker, state)
    assert {record["shard"] for record in tagged(out, "releases")} == {0, 1, 2}
    assert len(numbers(out)) == sum(len(pack.rows) for pack in PACKS[:6])
    # Each shard under its own key releases the same rows.
    apart: list[Any] = []
    for shard in range(3):
        forget()
        own, worker = State(), Worker(POLICY)
        for pack in PACKS[:6]:
            apart += worker.push(own, pack.to_bytes(), shard=shard) if pack.shard == shard else []
        apart += fired(worker, own, shard=shard)
    by_number = itemgetter("number")
    assert sorted(published(apart), key=by_number) == sorted(published(out), key=by_number)


def test_a_firing_for_nothing_stores_nothing_and_arms_again() -> None:
    state, worker = State(), Worker(POLICY)
    worker.push(state, PACKS[0].to_bytes())
    before, due = rolled_back(state), state.timer
    assert due is not None
    state.timers.clear()
    assert worker.fire(state, at=due - 10 * SECOND) == []
    assert (state.log.items, state.token.value, state.timer) == (before.log.items, before.token.value, due)


# --- In a pipeline ---


def keys_of(proto: Any) -> set[bool]:
    """Return the values of `_one_key` among the steps of an expanded pipeline."""
    found = set()
    for step in proto.components.transforms.values():
        if step.spec.urn == "beam:transform:pardo:v1":
            payload = api.ParDoPayload.FromString(step.spec.payload)
            fn = pickler.loads(payload.do_fn.payload)[0]
            if hasattr(fn, "_one_key"):
                found.add(fn._one_key)
    return found


def built(transform: Any, runner: str = "DirectRunner") -> set[bool]:
    pipeline = beam.Pipeline(runner=runner, options=PipelineOptions([]))
    # Inside another composite, as in a user's pipeline.
    _ = pipeline | beam.Create(GIVEN[:5]) | "Theirs" >> beam.ptransform_fn(lambda given: given | transform)()
    return keys_of(pipeline.to_runner_api())


def test_shards_share_a_key_where_keys_are_never_side_by_side() -> None:
    assert built(anonymize(shards=3)) == {True}
    assert built(anonymize(shards=3), "FnApiRunner") == {True}
    assert built(anonymize(shards=3), "FlinkRunner") == {False}
    assert built(anonymize(shards=3), "PrismRunner") == {False}
    assert built(AnonymizeBounded(POLICY)) == {False}


def test_a_pipeline_that_is_only_expanded_does_not_count_as_local() -> None:
    """Its options name Beam's default runner, but the calling Java pipeline decides where it runs."""
    assert keys_of(expanded(policy=policy(shards=3).to_dict())) == {False}


@pytest.mark.parametrize("runner", ["FnApiRunner", "BundleBasedDirectRunner"])
def test_what_leaves_is_the_same_under_one_key_and_many(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[Any] = []
    for start in range(0, len(GIVEN), 40):
        parts += [GIVEN[start : start + 40], GIVEN[min(start + 40, len(GIVEN) - 1)]["seen"] - 1]
    parts += [FIRST + 90_000]

    def left() -> Any:
        source = stream(parts) if runner == "BundleBasedDirectRunner" else Stamped(GIVEN)
        return run(source, anonymize(shards=3), runner=runner)

    one = left()
    monkeypatch.setattr(local_runners, "is_local", lambda _: False)
    assert built(anonymize(shards=3)) == {False}
    many = left()
    by_number = [{left.value["number"]: left.value for left in out.published} for out in (one, many)]
    assert by_number[0] == by_number[1]
    assert len(by_number[0]) == len(GIVEN)
