"""Judges what a soak has published: reads both topics whole, and shares no code with what it judges."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.pipelines.kafka.broker import Broker

#: The most persons, and the values that a row may have.
PERSONS, ILLNESSES = 2_000, ("flu", "cold", "gout", None)


def row(number: int, at: float) -> dict[str, Any]:
    """The row of a number: its values follow from the number, so that the judge can make it again."""
    draw = random.Random(number)
    return {
        "who": draw.randrange(PERSONS),
        "at": at,
        "age": draw.randrange(100),
        "zip": f"{draw.randrange(1000):05}",
        "ill": draw.choice(ILLNESSES),
        "note": number,
    }


def is_true(published: Mapping[str, Any]) -> bool:
    """Whether a published row is a generalization of the row of its number."""
    origin, age = row(published["note"], 0.0), published["age"]
    return (
        published["ill"] == origin["ill"]
        and age["lo"] <= origin["age"] <= age["hi"]
        and origin["zip"].startswith(published["zip"].rstrip("*"))
    )


class Reader:
    """Reads a topic to its end, and goes on from there when it is asked again."""

    def __init__(self, kafka: Broker, topic: str) -> None:
        from confluent_kafka import Consumer, TopicPartition

        settings = {"group.id": "judge", "isolation.level": "read_uncommitted", "enable.auto.commit": False}
        self._consumer = Consumer({"bootstrap.servers": kafka.address, **settings})
        partitions = self._consumer.list_topics(topic, 60).topics[topic].partitions
        self._places = [TopicPartition(topic, number, 0) for number in partitions]
        self._consumer.assign(self._places)
        #: The next offset of each partition.
        self._next = dict.fromkeys(partitions, 0)

    def read(self) -> list[Any]:
        """The messages since the last call, up to the ends that the topic has now."""
        ends = {place.partition: self._consumer.get_watermark_offsets(place, 60)[1] for place in self._places}
        found: list[Any] = []
        while any(self._next[number] < end for number, end in ends.items()):
            for message in self._consumer.consume(5000, 1.0):
                if message.error() is None:
                    found.append(message)
                    self._next[message.partition()] = message.offset() + 1
        return found

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()


class Judge:
    """What was published of each row."""

    def __init__(self, kafka: Broker, source: str, published: str) -> None:
        self._source = Reader(kafka, source)
        self._published = Reader(kafka, published)
        #: How often each row is in the input; and of what was published: its forms, names, moments.
        self.came: Counter[int] = Counter()
        self._forms: dict[int, set[bytes]] = {}
        self._names: dict[int, set[bytes]] = {}
        self._moments: list[int] = []
        self.records = 0
        self.untrue = 0

    def look(self) -> int:
        """Read on; return how many rows of the input are not published yet."""
        for message in self._source.read():
            self.came[json.loads(message.value())["note"]] += 1
        for message in self._published.read():
            told = json.loads(message.value())
            self.records += 1
            self.untrue += not is_true(told)
            self._moments.append(message.timestamp()[1])
            self._forms.setdefault(told["note"], set()).add(hashlib.sha256(message.value()).digest()[:12])
            self._names.setdefault(told["note"], set()).add(message.key())
        return len(self.came) - sum(number in self._forms for number in self.came)

    def verdict(self) -> dict[str, Any]:
        """The figures."""
        once = [number for number, times in self.came.items() if times == 1]
        moments = sorted(self._moments)
        silence = max((after - before for before, after in itertools.pairwise(moments)), default=0)
        return {
            "rows_in": len(self.came),
            "rows_out": len(self._forms),
            "lost": sum(number not in self._forms for number in self.came),
            "records_twice": self.records - sum(len(names) for names in self._names.values()),
            "two_generalizations": sum(
                len(self._forms.get(number, ())) > 1 or len(self._names.get(number, ())) > 1 for number in once
            ),
            "invented": sum(number not in self.came for number in self._forms),
            "untrue": self.untrue,
            "rows_in_twice": len(self.came) - len(once),
            "longest_silence_seconds": round(silence / 1000, 1),
        }

    def close(self) -> None:
        """Close the connections."""
        self._source.close()
        self._published.close()
