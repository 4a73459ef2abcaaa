"""Tells, when a row is read, whether it can be written to the output topic later.

A row that turns out not to fit after its release would be missing from its crowd. So what is published as it is, the
sensitive and the other columns, is checked before the row enters the engine. Generalizations are not: all rows of a
release share one, so either all of them fit or none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crenel.pipelines.kafka.messages.values import UNFIT, JsonValues, values
from crenel.pipelines.kafka.topics import Topic
from crenel.policy import Policy

__all__ = ["OutputFit"]

#: The size of the largest record that a client sends by default (`message.max.bytes`).
_LARGEST = 1_000_000
#: A value may be written with more bytes than it was read with, but not with so many times as many.
_GROWS = 8
_TOO_LARGE = "too large for the output topic"


class OutputFit:
    """Checks rows for the topic that they are published to.

    Args:
        policy: Names the columns that are published as they are.
        topic: The topic.
    """

    def __init__(self, policy: Policy, topic: Topic) -> None:
        self._names = (*policy.sensitive, *policy.publish)
        self._values = values(topic)
        self._json = JsonValues()
        largest = int(dict(topic.settings).get("message.max.bytes", _LARGEST))
        #: The rest is for the generalized columns, the key and the header.
        self._most = largest - largest // 10

    def problem(self, row: Mapping[str, Any], size: int) -> tuple[str, str] | None:
        """The column that does not fit, and why; None if all do.

        Args:
            row: The row.
            size: The bytes that it was read from.
        """
        if size * _GROWS > self._most:
            lengths = {name: len(self._json.write({name: row.get(name)})) for name in self._names}
            if sum(lengths.values()) > self._most:
                return max(lengths, key=lambda name: lengths[name]), _TOO_LARGE
        found = self._values.misfit(row, self._names)
        return None if found is None else (found, UNFIT)
