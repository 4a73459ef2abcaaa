"""A modelled broker, behind the interface of confluent_kafka's clients."""

from __future__ import annotations

import base64
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, KafkaException

from simulation.history import START, Row
from simulation.policies import PERSON, PRIVATE

#: Seconds that pass while a client waits for the broker.
_WAIT = 0.3
#: The id of the topic that is read, and of another of the same name.
TOPIC_ID, OTHER_ID = "the topic", "another topic of this name"
#: Bytes of the largest record that clients send.
LARGEST = 2_000

#: What may go wrong. After the first of these, and only after them, no bundle may go on: its input is not there.
LOST = ("records are deleted", "topic is replaced")
FAULTS = (
    *LOST,
    "topic is unknown",
    "read fails",
    "question fails",
    "description fails",
    "write fails",
    "answer is lost",
    "queue is full",
    "broker is silent",
    "record is refused",
    "client refuses",
    "disk is full",
)

#: The topic, the name and the value.
Record = tuple[str, bytes, bytes]


class Broker:
    """One topic to read, with partitions, and any topics to write.

    A message for a partition that the topic does not have yet adds it.

    Args:
        rows: The messages, in the order in which they are sent.
        partitions: How many partitions the topic has at first.
        sent: Is told each record that reaches a topic: the topic, the key, the value.
        waits: Is told the seconds that a client waited.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        partitions: int,
        sent: Callable[[str, bytes, bytes], None],
        waits: Callable[[float], None],
    ) -> None:
        self._rows = rows
        self._sent = sent
        self._waits = waits
        #: By partition: the numbers of the rows that have been sent, by offset.
        self._partitions: list[list[int]] = [[] for _ in range(partitions)]
        #: The number of the row that is sent next.
        self.next = 0
        #: The most messages of one read.
        self.most = 1_000
        #: Faults that the next requests meet, by kind.
        self.faults: Counter[str] = Counter()
        #: The faults that were met.
        self.met: Counter[str] = Counter()
        #: The names of records that are refused for their content, now and whenever they are sent again.
        self.refused: set[bytes] = set()
        #: The names of records that became dead letters.
        self.buried: set[bytes] = set()
        #: Called while a client waits for messages.
        self.while_waiting: Callable[[], None] = lambda: None

    def arrive(self) -> Row:
        """Let the next message arrive."""
        row = self._rows[self.next]
        while row.partition >= len(self._partitions):
            self._partitions.append([])
            self.met["partition is added"] += 1
        self._partitions[row.partition].append(self.next)
        self.next += 1
        return row

    def has_fault(self, kind: str) -> bool:
        """Whether the request that is being made meets a fault of this kind."""
        if not self.faults[kind]:
            return False
        self.faults[kind] -= 1
        self.met[kind] += 1
        return True

    def end(self, partition: int) -> int:
        """The offset behind the last message of a partition."""
        return len(self._partitions[partition])

    def describe(self) -> SimpleNamespace:
        """Describe the topic: its id, and its partitions.

        Raises:
            KafkaException: it does not.
        """
        if self.has_fault("description fails"):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        if self.has_fault("topic is unknown"):
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        identity = OTHER_ID if self.has_fault("topic is replaced") else TOPIC_ID
        return SimpleNamespace(topic_id=identity, partitions=range(len(self._partitions)))

    def messages(self, partition: int, start: int) -> list[_Message]:
        """Some messages of a partition, from an offset on; the last may say that there are no more."""
        self.while_waiting()
        self._waits(_WAIT)
        if self.has_fault("read fails"):
            return [_Message(start, error=KafkaError(KafkaError._TRANSPORT))]
        if self.has_fault("records are deleted"):
            return [_Message(start, error=KafkaError(KafkaError._AUTO_OFFSET_RESET))]
        numbers = self._partitions[partition][start : start + self.most]
        found = [
            _Message(start + place, _value(number, self._rows[number]), self._rows[number].sent)
            for place, number in enumerate(numbers)
            if self._rows[number].fault != "gap"
        ]
        if start + len(numbers) == self.end(partition):
            found.append(_Message(self.end(partition), error=KafkaError(KafkaError._PARTITION_EOF)))
        return found

    def refuses(self, name: bytes) -> bool:
        """Whether a record is refused for its content. That never changes."""
        if name not in self.refused and self.has_fault("record is refused"):
            self.refused.add(name)
        return name in self.refused

    def write(self, record: Record) -> KafkaError | None:
        """Write a record; return the error that the writer is told, if any."""
        if self.has_fault("write fails"):
            return KafkaError(KafkaError._MSG_TIMED_OUT)
        self._sent(*record)
        return KafkaError(KafkaError._MSG_TIMED_OUT) if self.has_fault("answer is lost") else None

    def bury(self, lines: Sequence[bytes]) -> None:
        """Take dead letters: for the judge they have reached their topics."""
        for line in lines:
            said = json.loads(line)
            name = bytes.fromhex(said["key"])
            self.buried.add(name)
            self._sent(said["output"], name, base64.b64decode(said["value"]))


def _value(number: int, row: Row) -> bytes | None:
    """The message of a row."""
    if row.fault == "tombstone":
        return None
    if row.fault == "torn":
        return b'{"n": %d, "who": ' % number
    said = {
        "who": None if row.fault == "nobody" else f"{PERSON}{row.person}",
        "at": START + row.at / 1000,
        "age": row.age,
        "area": f"{row.area:03d}",
        "illness": f"illness {row.illness}" + "!" * (LARGEST if row.fault == "large" else 0),
        "n": number,
        "note": f"{PRIVATE}{number}",
    }
    return json.dumps(said).encode()


class _Message:
    """A message, or what the client has to say instead of one."""

    def __init__(self, offset: int, value: bytes | None = None, sent: int = 0, error: KafkaError | None = None) -> None:
        self._offset = offset
        self._value = value
        self._sent = sent
        self._error = error

    @property
    def is_end(self) -> bool:
        """Whether it says that there are no more messages."""
        return self._error is not None and self._error.code() == KafkaError._PARTITION_EOF

    def error(self) -> KafkaError | None:
        return self._error

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes | None:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_CREATE_TIME, START * 1000 + self._sent


class Consumer:
    """Reads one partition."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._partition = 0
        self._position = 0
        self._told_end = -1

    def assign(self, places: Sequence[Any]) -> None:
        """Begin to read at a place."""
        (place,) = places
        self._partition, self._position = place.partition, place.offset

    def consume(self, _: int, __: float) -> list[_Message]:
        """Read some messages. That an offset is the end is said once."""
        found = self._broker.messages(self._partition, self._position)
        for message in found:
            if message.is_end:
                self._position = message.offset()
            elif message.error() is None:
                self._position = message.offset() + 1
        if found and found[-1].is_end:
            if self._told_end == self._position:
                found.pop()
            self._told_end = self._position
        return found

    def get_watermark_offsets(self, place: Any, _: float = 0.0, cached: bool = False) -> tuple[int, int]:
        """The first and the last offset of a partition."""
        if not cached and self._broker.has_fault("question fails"):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return 0, self._broker.end(place.partition)

    def close(self) -> None:
        """Close the connection."""


class Producer:
    """Writes records, one after the other, when somebody waits for them.

    What a bundle that failed has left on its way arrives with the records of the next one.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._queue: list[tuple[Record, Callable[[Any, Any], None]]] = []

    def produce(self, topic: str, value: bytes, key: bytes, _: int, on_delivery: Any) -> None:
        """Send a record.

        Raises:
            BufferError: too many are on their way.
            KafkaException: the client does not take this one.
        """
        if self._broker.has_fault("queue is full"):
            raise BufferError
        if self._broker.has_fault("client refuses"):
            self._broker.refused.add(key)
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        self._queue.append(((topic, key, value), on_delivery))

    def poll(self, _: float) -> int:
        """Wait for answers."""
        return self.flush(0)

    def flush(self, _: float) -> int:
        """Wait until all records have arrived; return how many have not."""
        if self._broker.has_fault("broker is silent"):
            return len(self._queue)
        # The records for a topic are one batch. If one is refused, all are.
        refused = {record[0]: record[1] for record, _ in self._queue if self._broker.refuses(record[1])}
        while self._queue:
            record, on_delivery = self._queue.pop(0)
            on_delivery(self._write(record, refused), _Sent(record))
        return 0

    def _write(self, record: Record, refused: Mapping[str, bytes]) -> KafkaError | None:
        if self._broker.refuses(record[1]):
            return KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
        if record[0] in refused:
            return KafkaError(KafkaError._INVALID_DIFFERENT_RECORD)
        return self._broker.write(record)


class _Sent:
    """A message as a writer is told of it."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def key(self) -> bytes:
        return self._record[1]

    def value(self) -> bytes:
        return self._record[2]


class Admin:
    """Asks about topics. It is the future, too, in which the answer will come."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def describe_topics(self, asked: Any, request_timeout: float) -> Mapping[str, Admin]:
        """Ask about topics."""
        return defaultdict(lambda: self)

    def result(self, _: float) -> SimpleNamespace:
        """Wait for the answer."""
        return self._broker.describe()
