"""Defects to plant, each by one change to the steps: the simulator must find every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from crenel.engine.compiled import Compiled
from crenel.pipelines.kafka import source
from crenel.pipelines.kafka.clients import Silent
from crenel.pipelines.kafka.sender import Sender
from crenel.pipelines.kafka.topic_watch import TopicWatch
from crenel.transforms import durable
from crenel.transforms._deal.stored_trees import StoredTrees
from crenel.transforms._hold import hold_step
from crenel.transforms._hold.hold_step import HoldRows
from crenel.transforms._pack.pack_step import PackRows
from crenel.transforms.durable import Ledger, Ledgers
from simulation.model.job import job


def _lost_log_entry() -> Any:
    """The third operation since the last snapshot is counted, but not written."""

    def log(cached: Any, op: bytes, cells: Any) -> None:
        if cached.ops != 2:
            return before(cached, op, cells)
        cached.chain.entry(cached.ops, op)
        cached.ops += 1
        cached.bytes += len(op)

    before = hold_step._log
    return patch.object(hold_step, "_log", log)


def _token_not_checked() -> Any:
    """Engines in memory are used, whatever the token in the state says."""

    def cached(self: Any, key: Any, cells: Any) -> Any:
        found = vars(hold_step)["CACHE"].take(key)  # of the modelled process
        return self._rebuilt(key, cells.token.read(), cells) if found is None else found

    return patch.object(HoldRows, "_cached", cached)


def _confirmed_early() -> Any:
    """The outbox waits for one checkpoint less than it must."""

    def durable_below(self: Any, confirmations: int) -> int:
        return before(self, confirmations - 1)

    before = Ledger.durable
    return patch.object(Ledger, "durable", durable_below)


def _timer_lost() -> Any:
    """A timer that is set while one fires is not set."""

    class Deaf:
        def set(self, *_: Any, **__: Any) -> None:
            """Do nothing."""

    def wake(self: Any, key: Any, now: int, cells: Any, _: Any) -> Iterator[Any]:
        return before(self, key, now, cells, Deaf())

    before = HoldRows._wake
    return patch.object(HoldRows, "_wake", wake)


def _draw_not_restored() -> Any:
    """An engine that is restored draws its random numbers from the start again."""

    def resume(self: Any, record: Mapping[str, Any], names: Iterable[str]) -> None:
        before(self, record, [name for name in names if name != "draws"])

    before = Compiled._resume
    return patch.object(Compiled, "_resume", resume)


def _ledger_not_checked() -> Any:
    """A ledger of the outbox is used, whatever the token in the state says."""

    def opened(self: Any, key: Any, token: Any, new: Callable[[], Ledger]) -> Any:
        found = self._ledgers.get(key)
        return before(self, key, token if found is None else found.token, new)

    before = Ledgers.open
    return patch.object(Ledgers, "open", opened)


def _rows_of_failed_bundle() -> Any:
    """PACK keeps the rows of a bundle that failed."""

    def start_bundle(self: Any) -> None:
        if not hasattr(self, "_buffers"):
            before(self)

    before = PackRows.start_bundle
    return patch.object(PackRows, "start_bundle", start_bundle)


def _packs_forgotten() -> Any:
    """The outbox forgets the packs that it does not emit yet."""

    def emit(self: Any, key: Any, ledger: Any, waiting: Any, below: int) -> Iterator[bytes]:
        yield from before(self, key, ledger, waiting, below)
        waiting.clear()

    before = durable.Outbox._emit
    return patch.object(durable.Outbox, "_emit", emit)


def _topic_not_watched() -> Any:
    """The source takes another topic of the same name for its own."""

    def look(self: Any) -> int | None:
        try:
            found = self._ask(self._topic, 0)
        except Silent:
            return None
        return None if found is None else int(found.partitions)

    return patch.object(TopicWatch, "look", look)


def _partitions_ignored() -> Any:
    """Partitions that are added to the topic are not read."""
    return patch.object(source, "_added", lambda *_: [])


def _refused_dropped() -> Any:
    """Records that a topic refuses for their content are dropped."""
    return patch.object(Sender, "_settled", lambda *_: [])


def _trees_not_compared() -> Any:
    """LEARN goes by the trees that it remembers, whatever the state says."""

    def schedule(self: Any, data: bytes | None, place: bytes) -> Any:
        known = self._known
        return before(self, data, place) if known[0] is None else known[1]

    before = StoredTrees._schedule
    return patch.object(StoredTrees, "_schedule", schedule)


#: By name. The first five are the ones that the simulator was built to find.
DEFECTS: dict[str, Callable[[], Any]] = {
    "lost-log-entry": _lost_log_entry,
    "token-not-checked": _token_not_checked,
    "confirmed-early": _confirmed_early,
    "timer-lost": _timer_lost,
    "draw-not-restored": _draw_not_restored,
    "ledger-not-checked": _ledger_not_checked,
    "rows-of-failed-bundle": _rows_of_failed_bundle,
    "packs-forgotten": _packs_forgotten,
    "topic-not-watched": _topic_not_watched,
    "partitions-ignored": _partitions_ignored,
    "refused-dropped": _refused_dropped,
    "trees-not-compared": _trees_not_compared,
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Plant a defect; none if there is no name."""
    if name is None:
        yield
        return
    with DEFECTS[name]():
        job.cache_clear()  # Beam remembers the methods of a step
        yield
    job.cache_clear()
