"""The step that reads partitions, on the runner for endless input. With librdkafka's own mock of a cluster."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest

from crenel.pipelines.kafka import source
from crenel.pipelines.kafka.partition_ranges import elements
from crenel.pipelines.kafka.source import ReadPartition
from crenel.pipelines.kafka.topics import Topic
from crenel.policy import Policy
from crenel.runners import Job, JobFailed, streaming
from crenel.transforms._pack.row_batch import RowBatch
from crenel.transforms.anonymize import with_outputs

confluent_kafka = pytest.importorskip("confluent_kafka", reason="needs confluent-kafka: pip install 'crenel[kafka]'")

POLICY = Policy.from_dict(
    {
        "version": 1,
        "person": "who",
        "quasi_identifiers": {"age": {"type": "numeric"}},
        "k": 2,
        "delay": "10s",
        "event_time": "at",
    }
)
#: What the running test has read: the name of the output, and the row or record.
READ: list[tuple[str, Any]] = []
STOP = threading.Event()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    READ.clear()
    STOP.clear()


@pytest.fixture(scope="module")
def mock() -> Iterator[Any]:
    """A producer that has a cluster, and its address."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": "x",
            "test.mock.num.brokers": 1,
            "test.mock.broker.rtt": 0,
            "log_level": 0,
        }
    )
    broker = next(iter(producer.list_topics(timeout=10).brokers.values()))
    yield producer, f"{broker.host}:{broker.port}"


class See(beam.DoFn):
    def __init__(self, output: str, stop_at: int) -> None:
        self._output = output
        self._stop_at = stop_at

    def process(self, element: Any) -> None:
        READ.extend((self._output, row) for row in (element.rows if isinstance(element, RowBatch) else [element]))
        if len(READ) >= self._stop_at:
            STOP.set()


def produce(mock: Any, name: str, partition: int, numbers: range) -> Topic:
    producer, address = mock
    for number in numbers:
        value = json.dumps({"who": partition, "age": number, "at": number}).encode()
        producer.produce(name, value, partition=partition)
    producer.flush()
    return Topic(servers=address, name=name, idle=0.5)


def read(topic: Topic, bounds: dict[int, tuple[int, int | None]], stop_at: int = 1 << 60) -> list[tuple[str, Any]]:
    def build(pipeline: beam.Pipeline) -> None:
        partitions = pipeline | "Partitions" >> beam.Create(elements(bounds))
        found = partitions | "Read" >> with_outputs(ReadPartition(topic, POLICY, 0.0), "rejected", main="rows")
        for name in ("rows", "rejected"):
            _ = found[name] | f"See {name}" >> beam.ParDo(See(name, stop_at))

    streaming.launch(Job(build=build, shards=1, stop=STOP))
    return READ


def test_each_partition_is_read_from_its_start_to_its_end(mock: Any) -> None:
    topic = produce(mock, "bounds", 0, range(5000))
    produce(mock, "bounds", 1, range(3000))
    produce(mock, "bounds", 2, range(10))
    found = read(topic, {0: (100, 4500), 1: (0, 2999), 2: (10, 10)})
    ages = {who: [row["age"] for _, row in found if row["who"] == who] for who in (0, 1, 2)}
    assert ages == {0: [*range(100, 4500)], 1: [*range(2999)], 2: []}
    assert not source._OPEN._readers, "connections are closed"


def test_an_endless_partition_is_read_as_rows_arrive_until_it_is_stopped(mock: Any) -> None:
    topic = produce(mock, "endless", 0, range(10))

    def feed() -> None:
        for number in range(10, 30):
            produce(mock, "endless", 0, range(number, number + 1))
            time.sleep(0.05)

    feeding = threading.Thread(target=feed)
    feeding.start()
    found = read(topic, {0: (0, None)}, stop_at=30)
    feeding.join()
    assert [row["age"] for _, row in found] == [*range(30)]
    assert not source._OPEN._readers, "connections are closed"


def test_partitions_stay_close_in_event_time(mock: Any) -> None:
    """The partition that is behind is read first, although the other has as many records left."""
    topic = produce(mock, "close", 0, range(0, 20_000))
    produce(mock, "close", 1, range(0, 200_000, 10))
    found = [row for _, row in read(topic, {0: (0, 20_000), 1: (0, 20_000)})]
    assert len(found) == 40_000
    until_slow_ends = found[: max(place for place, row in enumerate(found) if row["who"] == 0)]
    # One read of the fast partition is at most 2,000 records, which are 20,000 seconds.
    assert max(row["at"] for row in until_slow_ends) <= 20_000 + 2 * 20_000


def test_a_message_that_is_no_row_goes_to_its_output(mock: Any) -> None:
    producer, _ = mock
    topic = produce(mock, "broken", 0, range(2))
    producer.produce("broken", b"{", partition=0)
    producer.flush()
    found = read(topic, {0: (0, 3)})
    assert [output for output, _ in found] == ["rows", "rows", "rejected"]
    assert found[-1][1] == {"row": "{", "field": "", "reason": "not JSON"}


def test_records_that_were_deleted_fail_the_run_with_a_sentence(mock: Any) -> None:
    topic = produce(mock, "deleted", 0, range(2))
    with pytest.raises(JobFailed, match=r"/deleted: the broker deleted records before they were read\."):
        read(topic, {0: (100, 200)})
