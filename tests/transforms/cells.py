"""Runs a stateful step without a runner: state that can be rolled back, a timer, and replaceable workers."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp

from crenel.policy import Policy
from crenel.policy.secret import as_secret
from crenel.transforms._hold import hold_step
from crenel.transforms._hold.engine_cache import CACHE
from crenel.transforms._hold.hold_step import HoldRows
from crenel.transforms._pack.row_options import Clock, RowOptions
from crenel.transforms._pack.row_pack import KIND, Packer
from crenel.transforms._pack.sharding import shard_name

#: The end of time.
END = GlobalWindow().max_timestamp().micros


class Bag:
    """A bag that promises no more than Beam's: items are not read in the order in which they were added."""

    def __init__(self) -> None:
        self.items: list[bytes] = []

    def add(self, item: bytes) -> None:
        assert type(item) is bytes
        self.items.append(item)

    def read(self) -> Iterable[bytes]:
        return iter(self.items[::-1])

    def clear(self) -> None:
        self.items.clear()


class Cell:
    """A read-modify-write cell."""

    def __init__(self) -> None:
        self.value: bytes | None = None

    def write(self, value: bytes) -> None:
        assert type(value) is bytes
        self.value = value

    def read(self) -> bytes | None:
        return self.value

    def clear(self) -> None:
        self.value = None


class State:
    """The state of one key and window."""

    def __init__(self) -> None:
        self.log, self.snapshot, self.token = Bag(), Cell(), Cell()
        #: When timers fire, by their tags; and how often one without a tag was set.
        self.timers: dict[str, int] = {}
        self.sets = 0

    def set(self, at: Timestamp, dynamic_timer_tag: str = "") -> None:
        self.timers[dynamic_timer_tag] = at.micros
        self.sets += not dynamic_timer_tag

    @property
    def timer(self) -> int | None:
        """When the timer of the next deadline fires."""
        return self.timers.get("")

    @property
    def empty(self) -> bool:
        return not self.log.items and self.snapshot.value is None and self.token.value is None


class Worker:
    """One instance of the step. Instances share the process's engine cache until `forget` empties it."""

    def __init__(self, of: Policy, *, secret: bytes = b"secret", uid: str = "uid", clock: Clock = Clock.ROWS) -> None:
        self.step = HoldRows(of, secret, uid, options=RowOptions(clock=clock))
        self.step.setup()
        self.seal = as_secret(secret, of).seal

    def push(self, state: State, pack: bytes, *, at: int = 0, shard: int = 0, window: Any = None) -> list[Any]:
        """Seal a pack as PACK does, process it, and return what is emitted."""
        window = window or GlobalWindow()
        return self.take(state, self.sealed(pack, shard, window), at=at, shard=shard, window=window)

    def sealed(self, pack: bytes, shard: int = 0, window: Any = None) -> bytes:
        return self.seal.close(KIND, pack, shard_name(shard, window or GlobalWindow()))

    def take(self, state: State, data: bytes, *, at: int = 0, shard: int = 0, window: Any = None) -> list[Any]:
        """Process a sealed pack, and return what is emitted."""
        window = window or GlobalWindow()
        elements = self.step.process(
            (shard, data), Timestamp(micros=at), window, state.log, state.snapshot, state.token, state
        )
        return list(elements)

    def fire(self, state: State, *, at: int | None = None, shard: int = 0, window: Any = None) -> list[Any]:
        """Fire the timer, at its own time or at another one, rounded down to milliseconds as Beam does."""
        window = window or GlobalWindow()
        at = state.timer if at is None else at
        assert at is not None
        return list(
            self.step.on_deadline(
                shard, Timestamp(micros=at // 1000 * 1000), window, state.log, state.snapshot, state.token, state
            )
        )


def packs(of: Policy, given: list[dict[str, Any]], size: int, *, secret: bytes = b"secret") -> list[bytes]:
    """Return the rows as packs of `size` rows, all of one shard."""
    packer = Packer(of, secret)
    made = [packer.pack_dicts(given[start : start + size], None) for start in range(0, len(given), size)]
    return [pack.to_bytes() for packed in made for pack in packed.packs]


def published(elements: Iterable[Any]) -> list[Any]:
    """Return the published rows among the elements that a worker emitted."""
    return [element.value for element in elements if not isinstance(element, TaggedOutput)]


def tagged(elements: Iterable[Any], tag: str) -> list[Any]:
    """Return the elements that a worker emitted to one named output."""
    return [e.value.value for e in elements if isinstance(e, TaggedOutput) and e.tag == tag]


def worked(of: Policy, given: list[dict[str, Any]], *, crashes: bool) -> list[Any]:
    """Push packs to a worker, which may lose its memory, or fail and be given a pack again; return what it emits."""
    forget()
    state, worker = State(), Worker(of)
    out: list[Any] = []
    with short_logs(20_000 if crashes else 1 << 30):
        for number, pack in enumerate(packs(of, given, 60)):
            if crashes and number % 3 == 1:
                forget()
                before = rolled_back(state)
                worker.push(state, pack)  # the bundle fails: what it emitted is lost
                state = before
            out += worker.push(state, pack)
            if number % 4 == 2:
                out += worker.fire(state)
    return out + list(worker.fire(state, at=END))


def forget() -> None:
    """Empty the engine cache, as if the process had restarted."""
    CACHE._kept.clear()


def rolled_back(state: State) -> State:
    """Return a copy of the state to roll back to."""
    return copy.deepcopy(state)


@contextmanager
def short_logs(size: int) -> Iterator[None]:
    """Set how many bytes a log may have before a snapshot may replace it."""
    before, hold_step._SHORTEST_LOG = hold_step._SHORTEST_LOG, size
    try:
        yield
    finally:
        hold_step._SHORTEST_LOG = before
