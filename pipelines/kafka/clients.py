"""Clients of a broker, and what they are told about a topic."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass
from typing import Any

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.kafka.broker_errors import is_unknown_topic, refusal
from crenel.pipelines.kafka.topics import Topic

__all__ = [
    "ANSWER",
    "Described",
    "Silent",
    "bounds",
    "consumer",
    "described",
    "exists",
    "producer",
    "shared_admin",
    "shared_producer",
    "transactional_clients",
]

#: Seconds that a broker has to answer the first requests.
ANSWER = 15.0
#: Kilobytes that a reader of a partition fetches ahead: there may be many.
_FETCHED = "8192"
#: The id that brokers before Kafka 2.8 give every topic.
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_LOGGER = logging.getLogger(__name__)


class Silent(Exception):
    """The broker did not answer. The message repeats the client's words."""


@dataclass(frozen=True)
class Described:
    """A topic as the broker describes it."""

    #: The topic's own id: a topic that is deleted and created again has another. Empty before Kafka 2.8.
    identity: str
    #: How many partitions it has.
    partitions: int


def _library() -> Any:
    try:
        import confluent_kafka
    except ImportError:
        msg = "kafka:// needs the package confluent-kafka: pip install 'crenel[kafka]'."
        raise CommandError(msg) from None
    return confluent_kafka


def consumer(topic: Topic, partition: int | None = None) -> Any:
    """A client that reads. The reader keeps its position; offsets committed to Kafka are not used.

    Args:
        topic: The topic.
        partition: The partition that is read, which is part of the name by which the broker knows the client.
    """
    name = f"crenel-read-{topic.name}"
    return _library().Consumer(
        {
            "client.id": name if partition is None else f"{name}-{partition}",
            "isolation.level": "read_committed",
            "queued.max.messages.kbytes": _FETCHED,
            **topic.client_options(),
            "bootstrap.servers": topic.servers,
            "group.id": topic.group or "crenel",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # Fail if records were deleted before they were read.
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        },
        logger=_LOGGER,
    )


def producer(topic: Topic, heard: list[str] | None = None) -> Any:
    """A client that writes each record once, as long as the process lives.

    Args:
        topic: Names the cluster, and librdkafka's options.
        heard: Collects what the client says about its connections, when it is polled.
    """
    own: dict[str, Any] = {"bootstrap.servers": topic.servers, "enable.idempotence": True}
    # To be told of each record that arrived would cost as much as to send it.
    own["delivery.report.only.error"] = True
    if heard is not None:
        own["error_cb"] = lambda error: heard.append(error.str())
    usual = {"client.id": f"crenel-write-{topic.name}", "linger.ms": "20"}
    return _library().Producer({**usual, **topic.client_options(), **own}, logger=_LOGGER)


def transactional_clients(topic: Topic, name: str) -> tuple[Any, Any]:
    """A producer for transactions, and a consumer of the group that they commit to; both have this name.

    The consumer waits for offsets of transactions that are being committed (`read_committed`).
    """
    kafka = _library()
    usual = {"client.id": name, **topic.client_options(), "bootstrap.servers": topic.servers}
    reader = {"group.id": name, "enable.auto.commit": False, "isolation.level": "read_committed"}
    return (
        kafka.Producer({"linger.ms": "20", **usual, "transactional.id": name}, logger=_LOGGER),
        kafka.Consumer({**usual, **reader}, logger=_LOGGER),
    )


class _Shared:
    """Clients that this process has once for each cluster: each has threads and connections of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[Any, Any] = {}

    def get(self, kind: str, topic: Topic, make: Any) -> Any:
        """Return the client of a kind. A process that was forked has its own."""
        key = (os.getpid(), kind, topic.servers, topic.settings)
        with self._lock:
            if key not in self._clients:
                self._clients[key] = make()
            return self._clients[key]


_SHARED = _Shared()


def shared_producer(topic: Topic) -> Any:
    """The process's producer for a topic's cluster."""
    return _SHARED.get("producer", topic, lambda: producer(topic))


def shared_admin(topic: Topic) -> Any:
    """The process's client that asks about the topics and groups of a topic's cluster."""
    from confluent_kafka.admin import AdminClient

    own = {"bootstrap.servers": topic.servers}
    settings: dict[str, Any] = {"client.id": f"crenel-admin-{topic.name}", **topic.client_options(), **own}
    return _SHARED.get("admin", topic, lambda: AdminClient(settings, logger=_LOGGER))


def described(topic: Topic, seconds: float) -> Described | None:
    """Ask the broker about a topic; None if it has no such topic.

    Raises:
        Silent: it does not answer in time, or answers something else.
    """
    kafka = _library()
    asked = shared_admin(topic).describe_topics(kafka.TopicCollection([topic.name]), request_timeout=seconds)
    try:
        found = asked[topic.name].result(2 * seconds)
    except NotInTime:
        msg = "no answer in time"
        raise Silent(msg) from None
    except kafka.KafkaException as error:
        if is_unknown_topic(error.args[0]):
            return None
        raise Silent(error.args[0].str()) from None
    identity = str(found.topic_id)
    return Described("" if identity == _NO_ID else identity, len(found.partitions))


def exists(topic: Topic) -> None:
    """Check that a broker answers, and has the topic.

    Raises:
        CommandError: it does not; the message says what to do.
    """
    _partitions(topic)


def _partitions(topic: Topic) -> list[int]:
    kafka = _library()
    heard: list[str] = []
    try:
        client = producer(topic, heard)
    except kafka.KafkaException as error:  # a wrong option
        raise CommandError(refusal(topic, error.args[0])) from None
    try:
        found = client.list_topics(topic.name, timeout=ANSWER).topics[topic.name]
    except kafka.KafkaException as error:
        client.poll(0)  # hear what the client has to say
        raise CommandError(refusal(topic, error.args[0], heard)) from None
    if found.error is not None or not found.partitions:
        msg = f"{topic!r}: there is no topic {topic.name}; create it first."
        raise CommandError(msg)
    return sorted(found.partitions)


def bounds(topic: Topic) -> dict[int, tuple[int, int | None]]:
    """Where reading begins and ends, by partition; None if it does not end.

    Raises:
        CommandError: the broker does not answer, or has no such topic.
    """
    kafka = _library()
    numbers = _partitions(topic)
    client = consumer(topic)
    try:
        marks: Mapping[int, tuple[int, int]] = {
            p: client.get_watermark_offsets(kafka.TopicPartition(topic.name, p), ANSWER) for p in numbers
        }
    except kafka.KafkaException as error:
        raise CommandError(refusal(topic, error.args[0])) from None
    finally:
        client.close()
    return {
        p: (low if topic.start == "earliest" else high, high if topic.until == "end" else None)
        for p, (low, high) in marks.items()
    }
