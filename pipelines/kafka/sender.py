"""Sends records to topics, and knows what has become of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from crenel.pipelines.kafka import dead_letters
from crenel.pipelines.kafka.broker_errors import is_of_the_record, refusal
from crenel.pipelines.kafka.clients import shared_producer
from crenel.pipelines.kafka.topics import Topic
from crenel.runners import JobFailed

__all__ = ["ANY_PARTITION", "Record", "Sender"]

#: The output that a record is for, its name, and its value.
Record = tuple[str, bytes, bytes]

#: A partition that the name of a record chooses.
ANY_PARTITION = -1
#: Seconds that the broker has to take the records of a bundle.
_PATIENCE = 120.0


class Sender:
    """Sends records to topics.

    A broker refuses records in batches: if one is too large, its neighbours come back, too. So what is refused because
    of its content is sent again in halves, until the broker takes it; a single record that it refuses is a dead letter.

    Args:
        topics: The topics, by output.
    """

    def __init__(self, topics: Mapping[str, Topic]) -> None:
        import confluent_kafka

        self._error = confluent_kafka.KafkaException
        self._topics = dict(topics)
        self._clients = {output: shared_producer(topic) for output, topic in topics.items()}
        self.begin()

    def begin(self) -> None:
        """Begin a bundle. Answers that still come for one that failed are not this one's."""
        self._refused: list[tuple[Record, Any]] = []
        self._told = {output: partial(_delivered, self._refused, output) for output in self._topics}

    def send(self, records: Sequence[Record]) -> None:
        """Send records of one output; they may take a while to arrive."""
        if not records:
            return
        output = records[0][0]
        client, topic, told = self._clients[output], self._topics[output].name, self._told[output]
        produce = client.produce
        for record in records:
            _, name, value = record
            while True:
                try:
                    produce(topic, value, name, ANY_PARTITION, told)  # naming the callback costs 0.2 us a record
                except BufferError:  # too many records are on their way
                    client.poll(0.1)
                    continue
                except self._error as error:  # the client refuses by itself
                    self._refused.append((record, error.args[0]))
                break

    def flush(self) -> list[bytes]:
        """Wait until all records that were sent have arrived.

        Returns:
            The dead letters: a line for each record that a topic does not take.

        Raises:
            JobFailed: some have not arrived, for other reasons.
        """
        return self._settled(self._arrived())

    def _settled(self, refused: list[tuple[Record, Any]]) -> list[bytes]:
        """Send again what was refused, in halves; return the dead letters."""
        if not refused:
            return []
        if len(refused) == 1:
            (output, name, value), error = refused[0]
            return [dead_letters.line(output, self._topics[output], name, error.str(), value)]
        dead = []
        middle = len(refused) // 2
        for half in (refused[:middle], refused[middle:]):
            for record, _ in half:
                self.send([record])
            dead += self._settled(self._arrived())
        return dead

    def _arrived(self) -> list[tuple[Record, Any]]:
        """Wait, and return what was refused because of its content."""
        left = sum(client.flush(_PATIENCE) for client in set(self._clients.values()))
        refused = self._refused.copy()
        self._refused.clear()
        others = [(record[0], error) for record, error in refused if not is_of_the_record(error)]
        if others:
            output, error = others[0]
            msg = f"{len(others)} records could not be written. {refusal(self._topics[output], error)}"
            raise JobFailed(msg)
        if left:
            where = ", ".join(sorted({topic.servers for topic in self._topics.values()}))
            msg = f"{left} records could not be written: {where} has not taken them in {_PATIENCE:.0f} seconds."
            raise JobFailed(msg)
        return refused


def _delivered(refused: list[tuple[Record, Any]], output: str, error: Any, message: Any) -> None:
    if error is not None:
        refused.append(((output, message.key(), message.value()), error))
