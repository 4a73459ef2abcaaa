"""Stored forms that were damaged, exchanged or forged: each is refused before anything in it is used.

The step is given a damaged state or pack. It has to raise a `SnapshotError`, and no engine may have run on it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from apache_beam.coders import BytesCoder, IterableCoder
from apache_beam.transforms.window import GlobalWindow, IntervalWindow

from crenel.engine.contract import Engine
from crenel.errors import INCURABLE, SnapshotError
from crenel.policy.secret import Secret, as_secret
from crenel.transforms._hold.hold_step import HoldGroupedRows
from crenel.transforms._hold.shard_set import ShardSet
from crenel.transforms._pack import payloads
from crenel.transforms.durable import LEDGERS, Gather, Open, Outbox
from tests.transforms.cells import END, Bag, Cell, State, Worker, forget, packs, rolled_back, short_logs
from tests.transforms.streams import policy, rows

NAMED, DRAWN = policy(), policy(seed=None)
GIVEN = rows(300)
PACKS = packs(NAMED, GIVEN, 25)
POLICIES = {"named secret": NAMED, "drawn secret": DRAWN}

each_secret = pytest.mark.parametrize("of", POLICIES.values(), ids=POLICIES)


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    forget()
    yield
    forget()


def stored(of: Any, count: int = 9, *, snapshot: bool = True, shard: int = 0, window: Any = None) -> State:
    """Return a state of some packs: with a log of the last four, and a snapshot before them; or a log alone."""
    state, worker = State(), Worker(of)
    for i, pack in enumerate(PACKS[:count]):
        with short_logs(0 if snapshot and i < count - 4 else 1 << 20):
            worker.push(state, pack, shard=shard, window=window)
    forget()
    assert (state.snapshot.value is not None) == snapshot and len(state.log.items) >= 4
    return state


def refused(of: Any, state: State, *, shard: int = 0, window: Any = None, secret: bytes = b"secret") -> str:
    """Try to go on from a state, by a pack and by a timer; return what is said."""
    said = set()
    worker = Worker(of, secret=secret, uid="new")
    for go_on in (
        lambda: worker.push(state, PACKS[10], shard=shard, window=window),
        lambda: worker.fire(state, at=END, shard=shard, window=window),
    ):
        forget()
        before = rolled_back(state)
        with pytest.raises(SnapshotError) as caught:
            go_on()
        said.add(str(caught.value))
        assert (state.log.items, state.snapshot.value, state.token.value) == (
            before.log.items,
            before.snapshot.value,
            before.token.value,
        )
    assert all(sentence.endswith(INCURABLE) for sentence in said)
    return said.pop()


def flipped(data: bytes, drawn: random.Random) -> bytes:
    damaged = bytearray(data)
    damaged[drawn.randrange(len(damaged))] ^= drawn.randrange(1, 256)
    return bytes(damaged)


# --- Damage ---


@each_secret
def test_any_damaged_byte_of_a_state_is_refused(of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state, drawn = stored(of), random.Random(1)

    def ran(*_: Any) -> None:
        raise AssertionError("an engine took up a state that was damaged")

    monkeypatch.setattr(ShardSet, "restore", ran)
    for _ in range(200):
        damaged = rolled_back(state)
        which = drawn.randrange(2 + len(state.log.items))
        if which == 0:
            damaged.token.value = flipped(state.token.value, drawn)
        elif which == 1:
            damaged.snapshot.value = flipped(state.snapshot.value, drawn)
        else:
            # The digests of all operations are checked before the first is used; only a pack's inside is later.
            entry = state.log.items[which - 2]
            damaged.log.items[which - 2] = flipped(entry[:50], drawn) + entry[50:]
        refused(of, damaged)


@each_secret
def test_any_damaged_byte_of_a_log_is_refused(of: Any) -> None:
    """A log without a snapshot: the digest of each pack is checked when its turn comes, and it is never used."""
    state, drawn = stored(of, 5, snapshot=False), random.Random(2)
    for _ in range(150):
        damaged = rolled_back(state)
        which = drawn.randrange(len(state.log.items))
        damaged.log.items[which] = flipped(state.log.items[which], drawn)
        refused(of, damaged)


@each_secret
def test_what_was_cut_off_is_refused(of: Any) -> None:
    state, drawn = stored(of), random.Random(3)
    for _ in range(30):
        cut = rolled_back(state)
        which = drawn.randrange(2 + len(state.log.items))
        if which == 0:
            cut.token.value = state.token.value[: drawn.randrange(len(state.token.value))]
        elif which == 1:
            cut.snapshot.value = state.snapshot.value[: drawn.randrange(len(state.snapshot.value))]
        else:
            entry = state.log.items[which - 2]
            cut.log.items[which - 2] = entry[: drawn.randrange(len(entry))]
        refused(of, cut)


# --- What was left out, added, exchanged or put in another order ---


def lost_entry(state: State) -> None:
    del state.log.items[1]


def lost_last_entry(state: State) -> None:
    del state.log.items[-1]


def lost_log(state: State) -> None:
    state.log.items.clear()


def lost_snapshot(state: State) -> None:
    state.snapshot.value = None


def doubled_entry(state: State) -> None:
    state.log.items.append(state.log.items[-1])


def renumbered(state: State) -> None:
    first, second, *rest = state.log.items
    state.log.items = [second[:8] + first[8:], first[:8] + second[8:], *rest]


CHANGES = (lost_entry, lost_last_entry, lost_log, lost_snapshot, doubled_entry, renumbered)


@each_secret
@pytest.mark.parametrize("change", CHANGES)
def test_a_state_that_is_not_whole_is_refused(of: Any, change: Callable[[State], None]) -> None:
    state = stored(of)
    change(state)
    refused(of, state)


@each_secret
def test_cells_of_two_moments_are_refused(of: Any) -> None:
    """Every cell by itself is as it was written, but not at the same time as the others."""
    early, late = stored(of, 7), stored(of, 11)
    for cell in ("log", "snapshot", "token"):
        mixed = rolled_back(late)
        setattr(mixed, cell, getattr(rolled_back(early), cell))
        refused(of, mixed)


@each_secret
def test_an_entry_of_another_attempt_is_refused(of: Any) -> None:
    """A bundle failed and was done again with other rows. Both attempts wrote an operation of the same number."""
    state, worker = stored(of, 6, snapshot=False), Worker(of)
    first = rolled_back(state)
    worker.push(first, PACKS[6])
    forget()
    worker.push(state, PACKS[7])
    state.log.items[-1] = first.log.items[-1]
    refused(of, state)


ONE, TWO = IntervalWindow(0, 10), IntervalWindow(10, 20)


@each_secret
@pytest.mark.parametrize(
    ("shard", "window"), [(1, GlobalWindow()), (0, ONE), (1, ONE), (0, TWO)], ids=["key", "window", "both", "later"]
)
def test_a_state_of_another_key_or_window_is_refused(of: Any, shard: int, window: Any) -> None:
    refused(of, stored(of), shard=shard, window=window)
    refused(of, stored(of, shard=shard, window=window))
    if window is TWO:
        refused(of, stored(of, window=ONE), window=TWO)


# --- Secrets ---


def test_a_state_of_another_secret_is_refused() -> None:
    assert "written under another secret" in refused(NAMED, stored(NAMED), secret=b"another secret")
    # Neither is a state that brings its own key, as anybody could write it, nor the other way round.
    assert "written under another secret" in refused(NAMED, stored(DRAWN))
    assert "written under another secret" in refused(DRAWN, stored(NAMED))


def test_a_forged_state_needs_the_secret() -> None:
    """Somebody who knows everything but the secret seals a state anew."""
    state = stored(replace(NAMED, k=3), snapshot=False)
    forged, forger = State(), Worker(replace(NAMED, k=2), secret=b"guessed")
    for pack in PACKS[:5]:
        forger.push(forged, pack)
    refused(replace(NAMED, k=3), forged)
    state.log.items = forged.log.items
    refused(replace(NAMED, k=3), state)


# --- Packs on their way ---


@each_secret
def test_any_damaged_byte_of_a_pack_is_refused(of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, drawn = Worker(of), random.Random(4)
    data = worker.sealed(PACKS[0])

    def read(*_: Any) -> None:
        raise AssertionError("a damaged pack was read")

    monkeypatch.setattr(payloads, "from_bytes", read)
    bounded = HoldGroupedRows(of, b"secret")
    bounded.setup()
    for _ in range(200):
        damaged = flipped(data, drawn) if drawn.random() < 0.9 else data[: drawn.randrange(len(data))]
        with pytest.raises(SnapshotError):
            worker.take(State(), damaged)
        with pytest.raises(SnapshotError):
            list(bounded.process((0, [damaged]), GlobalWindow()))


@each_secret
def test_a_pack_for_another_key_or_window_is_refused(of: Any) -> None:
    worker = Worker(of)
    for shard, window in ((1, GlobalWindow()), (0, ONE), (1, ONE)):
        with pytest.raises(SnapshotError):
            worker.take(State(), worker.sealed(PACKS[0]), shard=shard, window=window)
        with pytest.raises(SnapshotError):
            worker.take(State(), worker.sealed(PACKS[0], shard, window))


def test_a_pack_of_another_secret_is_refused() -> None:
    other = Worker(NAMED, secret=b"another secret")
    with pytest.raises(SnapshotError, match="written under another secret"):
        Worker(NAMED).take(State(), other.sealed(PACKS[0]))


# --- The outbox ---


class Timer:
    def set(self, at: Any) -> None:
        pass


class Waiting:
    """The state of a key of the outbox, with packs that wait."""

    def __init__(self, secret: Secret, key: int = 0) -> None:
        self.secret, self.key = secret, key
        self.waiting, self.token = Bag(), Cell()

    def step(self) -> Outbox:
        step = Outbox("uid", 3, 1.0, secret=self.secret)
        step.setup()
        LEDGERS.forget(("uid", self.key))
        return step

    def fill(self) -> Waiting:
        step, gather = self.step(), Gather(CODER, 1, self.secret)
        gather.setup()
        for i in range(6):
            gather.start_bundle()
            gather._elements = [b"message %d" % i] * 3
            ((_, pack),) = [element.value for element in gather.finish_bundle()]
            list(step.process((self.key, pack), self.waiting, self.token, Timer(), Timer()))
        return self

    def sent(self) -> list[bytes]:
        opener = Open(CODER, self.secret)
        opener.setup()
        packs = list(self.step().on_end(self.key, self.waiting, self.token))
        return [element for pack in packs for element in opener.process(pack)]


CODER = IterableCoder(BytesCoder())
SECRETS = {name: as_secret(b"secret", of) for name, of in POLICIES.items()}
each_outbox = pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)


@each_outbox
def test_what_waits_is_sent_as_it_was(secret: Secret) -> None:
    assert Waiting(secret).fill().sent() == [b"message %d" % i for i in range(6) for _ in range(3)]


@each_outbox
def test_any_damaged_byte_in_the_outbox_is_refused(secret: Secret) -> None:
    drawn = random.Random(5)
    for _ in range(300):
        outbox = Waiting(secret).fill()
        which = drawn.randrange(7)
        if which == 6:
            outbox.token.value = flipped(outbox.token.value, drawn)
        else:
            outbox.waiting.items[which] = flipped(outbox.waiting.items[which], drawn)
        with pytest.raises(SnapshotError):
            outbox.sent()


@each_outbox
def test_a_pack_that_is_missing_or_too_many_is_noticed(secret: Secret) -> None:
    changes: list[Callable[[list[bytes]], None]] = [
        lambda items: items.pop(),
        lambda items: items.pop(0),
        lambda items: items.clear(),
        lambda items: items.append(items[0]),
        lambda items: items.__setitem__(0, items[1][:8] + items[0][8:]),
    ]
    for change in changes:
        outbox = Waiting(secret).fill()
        change(outbox.waiting.items)
        with pytest.raises(SnapshotError):
            outbox.sent()
    outbox = Waiting(secret).fill()
    outbox.token.value = None
    with pytest.raises(SnapshotError):
        outbox.sent()


@each_outbox
def test_packs_of_another_key_are_refused(secret: Secret) -> None:
    one, two = Waiting(secret, 0).fill(), Waiting(secret, 1).fill()
    one.waiting.items[2] = two.waiting.items[2]
    with pytest.raises(SnapshotError):
        one.sent()
    two.key = 0
    with pytest.raises(SnapshotError):
        two.sent()


def test_an_engine_is_not_asked_before_the_state_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """This shows that the tests above watch the right place."""
    loaded: list[bytes] = []
    state = stored(NAMED)
    engine = type(Worker(NAMED).step._shards(("uid", 0, GlobalWindow()), NAMED)._holder(0)._engine)
    load: Callable[[Engine, bytes], None] = engine.load
    monkeypatch.setattr(engine, "load", lambda self, data: (loaded.append(data), load(self, data))[1])
    Worker(NAMED).push(state, PACKS[10])
    assert len(loaded) == 1
