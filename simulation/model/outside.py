"""What a process takes from outside: random bytes, the time, Kafka's clients. Here all of it comes from a history.

Steps ask `secrets`, `time` and `confluent_kafka` as they always do. `replaced` puts the modelled ones in their place,
which answer for the history that is being played (`play`).
"""

from __future__ import annotations

import inspect
import logging
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import confluent_kafka
from confluent_kafka import admin

from crenel.pipelines.kafka import source, topic_watch
from crenel.pipelines.kafka.dead_letters import DeadLetters
from crenel.pipelines.kafka.partition_reader import PartitionReader
from crenel.pipelines.kafka.topic_watch import TopicWatch
from crenel.runners import JobFailed
from crenel.transforms.durable import Outbox
from simulation.model import broker


class Outside:
    """The outside of one history.

    Args:
        seed: Of all random bytes.
        clock: Tells the time of the process that asks, in seconds since the epoch.
        topics: The modelled broker.
    """

    def __init__(self, seed: str, clock: Callable[[], float], topics: broker.Broker | None = None) -> None:
        self.random = random.Random(seed)
        self.clock = clock
        self.topics = topics
        #: What was logged.
        self.logged: list[str] = []


_NOW: list[Outside] = []


@contextmanager
def play(outside: Outside) -> Iterator[None]:
    """Answer from this outside."""
    _NOW.append(outside)
    try:
        yield
    finally:
        _NOW.pop()


def clock() -> float:
    """The time of the process that asks."""
    return _NOW[-1].clock()


class _Log(logging.Handler):
    """Keeps what is logged while a history is played."""

    def emit(self, record: logging.LogRecord) -> None:
        if _NOW:
            _NOW[-1].logged.append(self.format(record))


@contextmanager
def replaced() -> Iterator[None]:
    """Let steps ask the modelled outside, whatever history is played."""
    with ExitStack() as stack:
        for owner, name, value in (
            (secrets, "token_bytes", lambda size=32: _NOW[-1].random.randbytes(size)),
            (secrets, "token_hex", lambda size=32: _NOW[-1].random.randbytes(size).hex()),
            (secrets, "randbelow", lambda below: int(_NOW[-1].random.random() * below)),
            (random, "SystemRandom", lambda: _NOW[-1].random),
            (confluent_kafka, "Consumer", lambda *_, **__: broker.Consumer(_topics())),
            (confluent_kafka, "Producer", lambda *_, **__: broker.Producer(_topics())),
            (admin, "AdminClient", lambda *_, **__: broker.Admin(_topics())),
            (DeadLetters, "write", _bury),
            (source, "time", _TIME),
            (topic_watch, "time", _TIME),
            # They take the clock as an argument, which nobody gives.
            *((owner, "__defaults__", _with_clock(owner)) for owner in _CLOCKED),
        ):
            stack.enter_context(patch.object(owner, name, value))
        log = _Log()
        logging.getLogger().addHandler(log)
        stack.callback(logging.getLogger().removeHandler, log)
        yield


def _bury(_: DeadLetters, lines: Sequence[bytes]) -> None:
    """Keep dead letters on the modelled disk."""
    if lines and _topics().has_fault("disk is full"):
        msg = "the disk is full."
        raise JobFailed(msg)
    _topics().bury(lines)


#: The clocks of the modelled processes, in place of the module `time`.
_TIME = SimpleNamespace(monotonic=clock, time=clock)
#: What takes the clock as an argument.
_CLOCKED = (PartitionReader.__init__, TopicWatch.__init__, Outbox.__init__)


def _topics() -> broker.Broker:
    topics = _NOW[-1].topics
    if topics is None:
        raise AssertionError
    return topics


def _with_clock(function: Any) -> tuple[Any, ...]:
    """The defaults of a function's positional arguments, with the modelled clock as `clock`."""
    known = inspect.signature(function).parameters.values()
    given = [one for one in known if one.default is not one.empty and one.kind is not one.KEYWORD_ONLY]
    return tuple(clock if one.name == "clock" else one.default for one in given)
