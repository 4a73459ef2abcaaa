"""Plays the histories of many seeds, in several processes, and adds up what happened."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from crenel.engine.kernels.compiler import compile_from_now_on
from simulation.defects import planted
from simulation.drawing import draw
from simulation.history import History
from simulation.judging.promises import Broken
from simulation.model.job import watched_packs
from simulation.model.outside import replaced
from simulation.model.process import own_memories
from simulation.world import World

#: Seeds that a process plays before it reports.
_AT_ONCE = 25


@dataclass
class Tally:
    """What some histories were, and which of them broke a promise."""

    histories: int = 0
    steps: int = 0
    #: Messages that were sent to the input; that were published, suppressed or rejected; records that were sent again.
    messages: int = 0
    left: int = 0
    repeated: int = 0
    #: Faults that took effect, by kind.
    faults: Counter[str] = field(default_factory=Counter)
    #: The seeds that broke a promise, and what was seen.
    failures: dict[int, str] = field(default_factory=dict)
    #: Seconds of processor time.
    seconds: float = 0.0

    def add(self, other: Tally) -> None:
        """Add what other histories were."""
        self.histories += other.histories
        self.steps += other.steps
        self.messages += other.messages
        self.left += other.left
        self.repeated += other.repeated
        self.faults += other.faults
        self.failures |= other.failures
        self.seconds += other.seconds


@contextmanager
def simulated(defect: str | None = None) -> Iterator[None]:
    """Replace the outside of this process by a modelled one; plant a defect, if one is named."""
    compile_from_now_on()
    with ExitStack() as stack:
        stack.enter_context(replaced())
        stack.enter_context(own_memories())
        stack.enter_context(planted(defect))
        stack.enter_context(watched_packs())
        yield


def broken(history: History) -> Broken | None:
    """Play a history; return the promise that it breaks, if any."""
    try:
        World(history).run()
    except Broken as found:
        return found
    return None


def play(seeds: Iterable[int], defect: str | None = None) -> Tally:
    """Play the histories of some seeds in this process."""
    tally, began = Tally(), time.process_time()
    with simulated(defect):
        for seed in seeds:
            world = World(draw(seed))
            try:
                world.run()
            except Broken as found:
                tally.failures[seed] = str(found)
            tally.histories += 1
            tally.steps += world.actions
            tally.messages += sum(row.fault != "gap" for row in world.history.rows)
            tally.left += world.judge.topics.left
            tally.repeated += world.judge.topics.repeated
            tally.faults += world.faults
    tally.seconds = time.process_time() - began
    return tally


def play_all(first: int, count: int, processes: int, defect: str | None = None) -> Iterator[Tally]:
    """Play the histories of all seeds, in several processes; yield the tally so far."""
    parts = [range(start, min(start + _AT_ONCE, first + count)) for start in range(first, first + count, _AT_ONCE)]
    whole = Tally()
    with multiprocessing.get_context("spawn").Pool(processes, _begin) as pool:
        for tally in pool.imap(partial(play, defect=defect), parts):
            whole.add(tally)
            yield whole


def _begin() -> None:
    """Prepare a process that plays histories."""
    # Ctrl-C reaches all processes of a terminal; the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Not what Beam warns of when pipelines are built.
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    # Most objects belong to libraries, and stay: to look for garbage among them would take a fifth of the time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000)
