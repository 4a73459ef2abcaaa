"""Reading a partition: what holds event time back, and what does not. With librdkafka's own mock of a cluster."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from crenel.pipelines.kafka import partition_reader
from crenel.pipelines.kafka.messages.values import JsonValues, Unavailable
from crenel.pipelines.kafka.partition_ranges import FOREVER
from crenel.pipelines.kafka.partition_reader import PartitionReader, Read
from crenel.pipelines.kafka.topics import Topic
from crenel.policy import Policy
from crenel.runners import JobFailed
from crenel.transforms._pack.row_batch import RowBatch

confluent_kafka = pytest.importorskip("confluent_kafka", reason="needs confluent-kafka: pip install 'crenel[kafka]'")

IDLE = 10.0
NOW = 2_000_000_000.0


def policy(**changes: Any) -> Policy:
    said = {"version": 1, "person": "who", "quasi_identifiers": {"age": {"type": "numeric"}}, "k": 2, "delay_rows": 9}
    return Policy.from_dict({**said, "event_time": "at", "disorder": "5s", **changes})


@pytest.fixture(scope="module")
def mock() -> Iterator[Any]:
    """A producer that has a cluster, and its address."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": "x", "test.mock.num.brokers": 1, "test.mock.broker.rtt": 0, "log_level": 0}
    )
    broker = next(iter(producer.list_topics(timeout=10).brokers.values()))
    yield producer, f"{broker.host}:{broker.port}"


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


def reading(mock: Any, name: str, values: Sequence[bytes | None], clock: Clock, **changes: Any) -> PartitionReader:
    producer, address = mock
    for value in values:
        producer.produce(name, value, partition=0, timestamp=1_500_000_000_000)
    if not values:
        producer.produce(name, b"{}", partition=1)
    producer.flush()
    topic = Topic(servers=address, name=name, idle=IDLE)
    return PartitionReader(topic, policy(**changes), 0, 0, clock=clock)


def to_the_end(reading: PartitionReader, stop: int = FOREVER) -> Read:
    found = Read(RowBatch([], []), [])
    for _ in range(100):
        read = reading.read(stop, wait=0.2)
        found.rows = RowBatch([*found.rows.rows, *read.rows.rows], [*found.rows.times, *read.rows.times])
        found.refused += read.refused
        if reading.is_at_end:
            return found
    raise AssertionError("the end was not reached")


def rows(*times: float) -> list[bytes]:
    return [json.dumps({"who": 1, "age": 2, "at": at}).encode() for at in times]


def test_the_watermark_is_the_latest_row_less_the_disorder(mock: Any) -> None:
    at = reading(mock, "latest", rows(1000, 1020, 1010), Clock())
    found = to_the_end(at)
    assert found.rows.times == [1_000_000_000, 1_020_000_000, 1_010_000_000]
    assert at.watermark() == 1_015_000_000
    assert at.position == 3
    at.close()


def test_a_partition_beside_others_is_read_in_pieces_of_time(mock: Any) -> None:
    """Each record is read once, with what is no row at its place, and the watermark is never ahead of what was read."""
    given = rows(*range(1000, 1400))
    given[300] = b"{"
    producer, address = mock
    for value in given:
        producer.produce("pieces", value, partition=0)
    producer.flush()
    topic = Topic(servers=address, name="pieces", idle=IDLE)
    at = PartitionReader(topic, policy(), 0, 0, clock=Clock(), span=20_000_000)
    times: list[int] = []
    refused, most = 0, 0
    until = time.monotonic() + 60
    while not at.is_at_end and time.monotonic() < until:
        read = at.read(wait=1.0)
        times += read.rows.times
        refused += len(read.refused)
        assert at.position == len(times) + refused
        assert refused == (at.position > 300)
        if read.rows:
            most = max(most, read.rows.times[-1] - read.rows.times[0])
            assert at.watermark() == times[-1] - 5_000_000
    assert times == [(1000 + i) * 1_000_000 for i in range(400) if i != 300]
    assert 0 < most <= 23_000_000
    at.close()


def test_a_partition_into_which_rows_trickle_is_caught_up_without_an_end(mock: Any) -> None:
    """The broker says that this is the end only after half a second without a row."""
    at = reading(mock, "trickle", rows(1000), Clock())
    assert not at.is_caught_up, "nothing is known yet"
    producer, _ = mock
    sent, is_met = 1, False
    until = time.monotonic() + 30
    while not is_met and time.monotonic() < until:
        producer.produce("trickle", rows(1000 + sent)[0], partition=0)
        producer.flush()
        sent += 1
        at.read()
        is_met = at.is_caught_up and not at.is_at_end and at.position == sent
    assert is_met
    at.close()


def test_rows_that_cannot_be_read_for_now_wait(mock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is skipped, also when the end of the partition came with them, and they hold event time back."""
    clock = Clock()
    at = reading(mock, "waiting", rows(1000, 1020), clock)
    asked: list[int] = []

    def away(_: Any, values: list[bytes]) -> Any:
        asked.append(len(values))
        if values:
            raise Unavailable
        return []

    with monkeypatch.context() as changed:
        changed.setattr(JsonValues, "read_many", away)
        until = time.monotonic() + 30
        while sum(asked[-2:]) < 4 and time.monotonic() < until:
            assert (at.read(wait=0.5).rows.rows, at.position, at.is_at_end) == ([], 0, False)
    clock.now = NOW + 10 * IDLE
    assert at.watermark() is None
    assert to_the_end(at).rows.times == [1_000_000_000, 1_020_000_000]
    assert at.position == 2
    at.close()


def test_a_partition_without_rows_holds_time_back_until_it_is_idle(mock: Any) -> None:
    clock = Clock()
    at = reading(mock, "empty", [], clock)
    assert at.watermark() is None, "nothing is known before the end was reached"
    to_the_end(at)
    clock.now = NOW + IDLE - 1
    assert at.watermark() is None
    clock.now = NOW + IDLE
    assert at.watermark() == (NOW - 5) * 1e6
    at.close()


def test_an_idle_partition_follows_the_clock_and_never_goes_back(mock: Any) -> None:
    clock = Clock()
    at = reading(mock, "idle", rows(NOW - 100), clock)
    to_the_end(at)
    assert at.watermark() == (NOW - 105) * 1e6
    clock.now = NOW + 60
    assert at.watermark() == (NOW + 60 - IDLE - 5) * 1e6
    at.close()


def test_rows_of_the_future_are_ahead_of_the_clock(mock: Any) -> None:
    clock = Clock()
    at = reading(mock, "future", rows(NOW + 1000), clock)
    to_the_end(at)
    clock.now = NOW + 60
    assert at.watermark() == (NOW + 995) * 1e6
    at.close()


def test_without_an_event_time_column_the_time_of_the_message_counts(mock: Any) -> None:
    at = reading(mock, "stamps", rows(1), Clock(), event_time=None)
    assert to_the_end(at).rows.times == [1_500_000_000_000_000]
    at.close()


def test_a_message_that_is_no_row_is_kept_for_the_owner_and_moves_no_clock(mock: Any) -> None:
    at = reading(mock, "broken", [b"{", b"\xff", b"3"], Clock())
    found = to_the_end(at)
    assert not found.rows
    assert [what.record["row"] for what in found.refused] == ["{", "base64:/w==", "3"]
    assert at.watermark() is None
    assert "{" not in repr(found.refused[0])
    at.close()


def test_rows_are_told_from_what_lies_between_them(mock: Any) -> None:
    """A tombstone, a broken value and a row without a time are each judged by themselves, and the rows keep order."""
    one, other = rows(1000, 1020)
    values = [one, None, b"{", b'{"at": "soon"}', other, b"3"]
    at = reading(mock, "between", values, Clock())
    found = to_the_end(at)
    assert [row["at"] for row in found.rows.rows] == [1000, "soon", 1020]
    assert found.rows.times == [1_000_000_000, 1_500_000_000_000_000, 1_020_000_000]
    assert [what.record["reason"] for what in found.refused] == ["no value", "not JSON", "not a JSON object"]
    assert at.watermark() == 1_015_000_000, "a row without a time moves no clock"
    assert "soon" not in repr(found.rows)
    at.close()


def test_headers_are_read_only_if_the_policy_names_them(mock: Any) -> None:
    producer, _ = mock
    given = [("region", b"north"), ("region", b"south"), ("trace", b"secret"), ("raw", b"\xff")]
    producer.produce("headers", rows(1)[0], partition=0, headers=given)
    at = reading(mock, "headers", rows(2), Clock(), publish=["header:region", "header:raw", "header:none"])
    first, second = to_the_end(at).rows.rows
    named = {name: value for name, value in first.items() if name.startswith("header:")}
    assert named == {"header:region": "south", "header:raw": b"\xff", "header:none": None}
    assert second["header:region"] is None
    at.close()
    at = reading(mock, "headers", [], Clock())
    assert all(set(row) == {"who", "age", "at"} for row in to_the_end(at).rows.rows)
    at.close()


def test_nothing_is_read_beyond_the_stop(mock: Any) -> None:
    at = reading(mock, "stop", rows(*range(10)), Clock())
    assert to_the_end(at, stop=4).rows.times == [0, 1_000_000, 2_000_000, 3_000_000]
    at.close()


def test_a_row_whose_time_cannot_be_read_is_left_for_the_encoder_to_reject(mock: Any) -> None:
    at = reading(mock, "timeless", [b'{"at": "soon"}'], Clock())
    assert to_the_end(at).rows.rows == [{"at": "soon"}]
    assert at.watermark() is None
    at.close()


class Message:
    """A record, or the end of its partition."""

    def __init__(self, offset: int, value: bytes | None) -> None:
        self._offset = offset
        self._value = value

    def error(self) -> Any:
        errors = confluent_kafka.KafkaError
        return errors(errors._PARTITION_EOF) if self._value is None else None

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes | None:
        return self._value


class StubConsumer:
    """Gives the messages that are here, and notes how long it was to wait for some."""

    def __init__(self) -> None:
        self.here: list[Message] = []
        self.end = -1
        self.waits: list[float] = []

    def assign(self, places: Sequence[Any]) -> None:
        pass

    def consume(self, count: int, timeout: float) -> list[Message]:
        self.waits.append(timeout)
        found, self.here = self.here[:count], self.here[count:]
        return found

    def get_watermark_offsets(self, place: Any, cached: bool = False) -> tuple[int, int]:
        return 0, self.end


@pytest.mark.parametrize("held", [1, 5000])
def test_a_partition_whose_end_is_an_open_transaction_is_not_waited_for(
    held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end lies behind the records of the transaction, which no reader is given before it is committed."""
    stub = StubConsumer()
    monkeypatch.setattr(partition_reader, "consumer", lambda topic, partition: stub)
    at = PartitionReader(Topic(servers="a:1", name="open"), policy(), 0, 0, clock=Clock())
    stub.here, stub.end = [Message(0, rows(1000)[0]), Message(1, None)], 1 + held
    assert at.read().rows.times == [1_000_000_000]
    assert (at.is_at_end, at.lag) == (True, held)
    stub.waits.clear()
    assert not at.read().rows
    assert stub.waits == [0.0]
    # The transaction is committed: its records are read at once, and more of them are waited for as ever.
    stub.here = [Message(1, rows(1001)[0])]
    assert at.read().rows.times == [1_001_000_000]
    assert stub.waits == [0.0] * 2
    assert not at.is_at_end
    at.read()
    assert stub.waits[-1] == (0.2 if held > 1 else 0.0)


def test_records_that_were_deleted_before_they_were_read_are_an_error(mock: Any) -> None:
    at = reading(mock, "deleted", rows(1), Clock())
    to_the_end(at)
    late = PartitionReader(Topic(servers=mock[1], name="deleted"), policy(), 0, 100, clock=Clock())
    with pytest.raises(JobFailed, match="the broker deleted records before they were read"):
        to_the_end(late)
    at.close()
    late.close()


def test_a_broker_that_does_not_answer_is_not_silence() -> None:
    """Its partitions may hold rows of any time, so event time must not move on."""
    clock = Clock()
    producer = confluent_kafka.Producer({"bootstrap.servers": "x", "test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(producer.list_topics(timeout=10).brokers.values()))
    at = reading((producer, f"{broker.host}:{broker.port}"), "gone", rows(NOW - 100), clock)
    to_the_end(at)
    del producer
    gc.collect()
    clock.now = NOW + 60
    assert at.watermark() == (NOW - 105) * 1e6
    at.close()
