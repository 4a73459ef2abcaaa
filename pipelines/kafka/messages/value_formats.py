"""Chooses how the values of a topic are read and written."""

from __future__ import annotations

import os
import threading
from typing import Any

from crenel.pipelines.kafka.messages.envelope_values import EnvelopeValues
from crenel.pipelines.kafka.messages.values import AvroValues, JsonValues, Values
from crenel.pipelines.kafka.topics import Topic

__all__ = ["reading", "writing"]

_LOCK = threading.Lock()
_READERS: dict[Any, Values] = {}


def reading(topic: Topic) -> Values:
    """The format of an input topic's values.

    Raises:
        CommandError: its schema is broken.
    """
    if topic.registry is None:
        return _plain(topic) if topic.envelopes is None else EnvelopeValues(_plain(topic), topic.envelopes)
    from crenel.pipelines.kafka.registry.framed_values import FramedReader

    # All partitions share the schemas that this process has fetched.
    with _LOCK:
        framed = _READERS.setdefault((os.getpid(), topic), FramedReader(topic))
    return framed if topic.envelopes is None else EnvelopeValues(framed, topic.envelopes, opens=False)


def writing(topic: Topic) -> Values:
    """The format of an output topic's values.

    Raises:
        CommandError: its schema is broken.
    """
    if topic.registry is None:
        return _plain(topic)
    from crenel.pipelines.kafka.registry.framed_values import FramedWriter

    return FramedWriter(topic)


def _plain(topic: Topic) -> Values:
    return JsonValues() if topic.format == "json" else AvroValues(topic)
