"""Watches the input topic: is it still the one that the run began with, and has it got more partitions?"""

from __future__ import annotations

import time
from collections.abc import Callable

from crenel.pipelines.kafka import clients
from crenel.pipelines.kafka.broker_errors import InputLost
from crenel.pipelines.kafka.clients import Described, Silent
from crenel.pipelines.kafka.topics import Topic
from crenel.runners import JobFailed

__all__ = ["TopicWatch"]

#: Seconds that the broker has to answer, and seconds to wait before asking again if it did not.
_ANSWER, _PAUSE = 3.0, 10.0
#: Seconds for which a topic must be unknown before it counts as deleted: a broker that has just started may not have
#: heard of it yet.
_PATIENCE = 10.0
#: Seconds that the last answer of a run is waited for.
_LAST = 30.0


class TopicWatch:
    """Compares a topic with the one that a run began with.

    What was read before `look` returned a number came from that topic. If the broker does not answer, that is known
    only after the next answer.

    Args:
        topic: The topic.
        identity: Its id when the run began.
        ask: Asks the broker.
        clock: Tells the time, in seconds.
    """

    def __init__(
        self,
        topic: Topic,
        identity: str,
        ask: Callable[[Topic, float], Described | None] = clients.described,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topic = topic
        self._identity = identity
        self._ask = ask
        self._clock = clock
        self._silent_until: float | None = None
        self._unknown_since: float | None = None

    def look(self) -> int | None:
        """Return how many partitions the topic has; None if the broker does not say.

        Raises:
            InputLost: the topic was deleted, or it is another of the same name.
        """
        now = self._clock()
        if self._silent_until is not None and now < self._silent_until:
            return None
        try:
            found = self._ask(self._topic, _ANSWER)
        except Silent:
            self._silent_until = self._clock() + _PAUSE
            return None
        self._silent_until = None
        if found is None:
            self._miss()
            return None
        self._unknown_since = None
        if found.identity != self._identity:
            msg = (
                f"{self._topic!r}: the topic was deleted and created again after this run, or its savepoint, began. "
                "Offsets of the old topic mean nothing in the new one. Start a new run to read the new topic; rows "
                "of the old one that are still held are not published."
            )
            raise InputLost(msg)
        return found.partitions

    def _miss(self) -> None:
        """Note that the broker does not know the topic."""
        now = self._clock()
        if self._unknown_since is None:
            self._unknown_since = now
        if now - self._unknown_since >= _PATIENCE:
            msg = (
                f"{self._topic!r}: the topic was deleted while it was read. Rows that are still held are not "
                "published. Create the topic again and start a new run, or name another topic."
            )
            raise InputLost(msg)

    def confirm(self) -> None:
        """Make sure that everything that was read came from the topic.

        Raises:
            InputLost: it did not.
            JobFailed: the broker does not say.
        """
        until = self._clock() + _LAST
        while self._clock() < until:
            self._silent_until = None
            if self.look() is not None:
                return
            time.sleep(0.5)
        msg = f"{self._topic!r}: the broker does not say whether this is still the topic that the run began with."
        raise JobFailed(msg)
