"""A partition into which rows trickle: a real broker then never says that this is the end."""

from __future__ import annotations

import threading
from typing import Any

import apache_beam as beam
import pytest
import yaml

from crenel.pipelines.kafka.partition_ranges import elements
from crenel.pipelines.kafka.source import ReadPartition
from crenel.pipelines.kafka.topics import Topic
from crenel.policy import Policy
from crenel.runners import Job, streaming
from crenel.transforms.anonymize import with_outputs
from tests.pipelines.kafka import rows as made
from tests.pipelines.kafka.broker import Broker

pytestmark = pytest.mark.kafka


def test_a_call_ends_although_rows_trickle_in(kafka: Broker) -> None:
    """Checkpoints wait for calls. One that waits for an end reads for as long as it may, which is an hour here."""
    kafka.create("trickle", partitions=1)
    topic = Topic.of(kafka.url("trickle", idle="1h"), read=True)
    policy = Policy.from_dict(yaml.safe_load(made.POLICY))
    stop, over = threading.Event(), threading.Event()

    def feed() -> None:
        for number, row in enumerate(made.as_json(made.make(400))):
            kafka.produce("trickle", [row])
            if number == 60:
                stop.set()
            if over.wait(0.05):
                return

    def build(pipeline: beam.Pipeline) -> Any:
        parts = pipeline | "Partitions" >> beam.Create(elements({0: (0, None)}))
        return parts | "Read" >> with_outputs(ReadPartition(topic, policy, 3_600.0), "rejected", main="rows")

    feeding = threading.Thread(target=feed)
    feeding.start()
    streaming.launch(Job(build=build, shards=1, stop=stop))
    is_trickling = feeding.is_alive()
    over.set()
    feeding.join()
    assert is_trickling, "the call went on until there were no more rows"
