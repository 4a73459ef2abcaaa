"""The records of `benchmarks.kafka`, and the plain loop that it compares with."""

from __future__ import annotations

import io
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

POLICY = """\
person: who
event_time: at
quasi_identifiers:
  age: {type: numeric, domain: [0, 100]}
  zip: {type: prefix, length: 5}
sensitive: [ill]
publish: [note]
k: 10
delay: 10s
disorder: 1s
max_ahead: 30d
on_suppress: star
"""
SCHEMA = {
    "type": "record",
    "name": "Visit",
    "fields": [
        {"name": "who", "type": "long"},
        {"name": "at", "type": "double"},
        {"name": "age", "type": "int"},
        {"name": "zip", "type": "string"},
        {"name": "ill", "type": "string"},
        {"name": "note", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "street", "type": "string"},
        {"name": "phone", "type": "string"},
    ],
}
#: Records that the plain loop takes at once, as many as crenel's reader.
_MOST = 2_000


def row(number: int, at: float) -> dict[str, Any]:
    """Make a row of nine columns, of which the policy names six. `note` is its number, which is published."""
    draw = random.Random(number)
    return {
        "who": draw.randrange(100_000),
        "at": at,
        "age": draw.randrange(100),
        "zip": f"{draw.randrange(1_000):05}",
        "ill": draw.choice(("flu", "gout", "mumps", "croup")),
        "note": number,
        "name": f"Person {number}",
        "street": f"{draw.randrange(200)} Some Street",
        "phone": f"+49 {draw.randrange(10**9)}",
    }


def rows(count: int, first: float, per_second: float, number: int = 0) -> Iterator[dict[str, Any]]:
    """Make rows with event times from `first` on, numbered from `number` on."""
    return (row(number + i, first + i / per_second) for i in range(count))


def encoder(form: str) -> Callable[[dict[str, Any]], bytes]:
    """Return the function that writes a row."""
    if form == "json":
        return lambda one: json.dumps(one).encode()
    import fastavro

    schema = fastavro.parse_schema(SCHEMA)

    def write(one: dict[str, Any]) -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, one)
        return stream.getvalue()

    return write


def fill(address: str, topic: str, values: Iterator[bytes], *, partitions: int) -> None:
    """Send values to the partitions of a topic in turn."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "queue.buffering.max.messages": 1_000_000, "linger.ms": 50})
    place = 0
    while some := list(islice(values, 50_000)):
        for value in some:
            producer.produce(topic, value, partition=place % partitions)
            place += 1
        if producer.flush(300):
            raise TimeoutError(topic)


def copy(address: str, source: str, target: str, how: str = "batches") -> int:
    """Copy the records that a topic has now to another; return how many there were.

    It learns of records that do not arrive, as it must, and costs nothing for those that do.

    Args:
        address: The broker.
        source: The topic to read.
        target: The topic to write.
        how: `batches` takes many records at once, and waits for them; `each` takes one after the other, as the examples
            of confluent-kafka do.
    """
    from confluent_kafka import Consumer, Producer, TopicPartition

    shared = {"bootstrap.servers": address, "group.id": "plain", "enable.auto.commit": False}
    consumer = Consumer({**shared, "enable.partition.eof": True, "queued.max.messages.kbytes": 8192})
    settings = {"enable.idempotence": True, "linger.ms": 20, "delivery.report.only.error": True}
    producer = Producer({"bootstrap.servers": address, **settings})
    left = set(consumer.list_topics(source, 30).topics[source].partitions)
    consumer.assign([TopicPartition(source, partition, 0) for partition in left])
    lost: list[Any] = []
    copied = 0
    while left:
        for message in _taken(consumer, how):
            if message.error() is not None:
                left.discard(message.partition())
                continue
            producer.produce(target, message.value(), message.key(), on_delivery=lambda error, _: lost.append(error))
            copied += 1
            if how == "each":
                producer.poll(0)
        if (how == "batches" and producer.flush(120)) or lost:
            raise RuntimeError(target)
    if producer.flush(120) or lost:
        raise RuntimeError(target)
    consumer.close()
    return copied


def _taken(consumer: Any, how: str) -> list[Any]:
    """Take the next messages, or the next one."""
    if how == "batches":
        return list(consumer.consume(_MOST, 0.2))
    message = consumer.poll(0.2)
    return [] if message is None else [message]


def engine_alone(count: int, per_second: float) -> float:
    """Microseconds of processor time a row that the engine alone takes, without all else of a run."""
    import yaml

    from crenel.encoding.encoder import Encoder
    from crenel.engine import create_engine
    from crenel.policy import Policy

    policy, given = Policy.from_dict(yaml.safe_load(POLICY)), list(rows(count, 0.0, per_second))
    encoded = Encoder(policy).encode({name: [one[name] for one in given] for name in given[0]}).rows
    engine = create_engine(policy, secret=bytes(32), shard=b"0")
    half = count // 2
    engine.push(encoded.slice(0, half))  # loads the kernels, and fills the engine
    began = time.process_time()
    for start in range(half, count, _MOST):
        engine.push(encoded.slice(start, start + _MOST))
    return (time.process_time() - began) / (count - half) * 1e6


if __name__ == "__main__":
    began = time.monotonic()
    print(json.dumps({"rows": copy(*sys.argv[1:5]), "seconds": time.monotonic() - began}))
