"""The reader of the soak's judge: it reads each topic to its end, again and again. With a real broker."""

from __future__ import annotations

import pytest

from benchmarks.soak_judge import Reader
from tests.pipelines.kafka.broker import Broker

pytestmark = pytest.mark.kafka


def test_a_topic_is_read_on_though_only_some_partitions_have_more(kafka: Broker) -> None:
    """A partition without more must not be waited for."""
    kafka.create("judged", partitions=3)
    reader = Reader(kafka, "judged")
    try:
        assert reader.read() == []
        kafka.produce("judged", [b"1", b"2"], partition=0)
        kafka.produce("judged", [b"3"], partition=2)
        assert sorted(message.value() for message in reader.read()) == [b"1", b"2", b"3"]
        kafka.produce("judged", [b"4"], partition=1)
        assert [message.value() for message in reader.read()] == [b"4"]
        assert reader.read() == []
    finally:
        reader.close()
