"""What a broker's client says, in sentences that tell what to do."""

from __future__ import annotations

import pytest

from crenel.pipelines.kafka.broker_errors import is_unknown_topic, refusal
from crenel.pipelines.kafka.topics import Topic

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")


@pytest.mark.parametrize("name", ["UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION", "_DESTROY"])
def test_a_deleted_output_topic_is_named_whatever_the_client_says(name: str) -> None:
    """Which of these a record comes back with depends on when the client hears of it."""
    error = confluent_kafka.KafkaError(getattr(confluent_kafka.KafkaError, name))
    said = refusal(Topic(servers="broker:9092", name="visits"), error)
    assert said.startswith("kafka://broker:9092/visits: ")
    assert "The topic does not exist, or was deleted: create it." in said


def test_a_client_that_ends_says_nothing_about_the_input() -> None:
    assert not is_unknown_topic(confluent_kafka.KafkaError(confluent_kafka.KafkaError._DESTROY))
