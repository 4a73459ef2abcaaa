"""A modelled worker process: what it remembers between bundles, its clock, and its instances of the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from crenel.pipelines.kafka import clients, source
from crenel.transforms import durable
from crenel.transforms._hold import hold_step
from crenel.transforms._hold.engine_cache import EngineCache
from simulation.model.job import Job, Stage

#: What a process remembers in variables of modules, and how each begins.
_MEMORIES: tuple[tuple[Any, str, Callable[[], Any]], ...] = (
    (hold_step, "CACHE", EngineCache),
    (durable, "LEDGERS", durable.Ledgers),
    (source, "_OPEN", source._OpenReaders),
    (clients, "_SHARED", clients._Shared),
)


@contextmanager
def own_memories() -> Iterator[None]:
    """Give back, in the end, what this process itself remembers."""
    with ExitStack() as stack:
        for owner, name, _ in _MEMORIES:
            stack.enter_context(patch.object(owner, name, getattr(owner, name)))
        yield


def forget_all() -> None:
    """Begin as a process that remembers nothing."""
    for owner, name, begin in _MEMORIES:
        setattr(owner, name, begin())


class Process:
    """A worker process.

    Args:
        number: Its number in the job.
        job: What it runs.
        window: Seconds of the windows that it puts rows into; 0 for the global window.
    """

    def __init__(self, number: int, job: Job, window: int = 0) -> None:
        self.number = number
        #: Seconds by which its clock is wrong.
        self.skew = 0.0
        self._job = job
        self._window = window
        self.restart()

    def restart(self) -> None:
        """Begin anew, with nothing remembered."""
        self._memory = [begin() for _, _, begin in _MEMORIES]
        #: What is to be called when a checkpoint is complete.
        self.finalizers: list[Callable[[], None]] = []
        self._stages: dict[str, Stage] = {}

    def stage(self, label: str) -> Stage:
        """A stage, which is set up when it is needed first."""
        if label not in self._stages:
            self.enter()
            stage = self._stages[label] = self._job.stages(self.number)[label]
            stage.window = self._window
            stage.set_up()
        return self._stages[label]

    def enter(self) -> None:
        """Let steps find the memory of this process."""
        for (owner, name, _), value in zip(_MEMORIES, self._memory, strict=True):
            setattr(owner, name, value)

    def finalize(self) -> None:
        """Tell all bundles that are over that they are durable, as Flink does."""
        finalizers, self.finalizers = self.finalizers, []
        self.enter()
        for call in finalizers:
            call()
