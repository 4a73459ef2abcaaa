"""COMMIT: tells Kafka how far a topic is read, so that its own tools show the lag.

The offsets are for those who watch. A run never reads them back: it goes on from the offsets in the runner's
checkpoints. So a commit that fails stops nothing.
"""

from __future__ import annotations

import logging
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics

from crenel.pipelines.kafka.clients import shared_admin
from crenel.pipelines.kafka.topics import Topic
from crenel.transforms._publish.emitter import NAMESPACE

__all__ = ["OFFSETS", "CommitOffsets"]

#: The output of the source that has the offsets: the number of a partition, and the offset of its next record.
OFFSETS = "offsets"

#: Seconds that the broker has to answer a commit.
_PATIENCE = 5.0
_LOGGER = logging.getLogger(__name__)


class CommitOffsets(beam.DoFn):
    """Commits the highest offset of each partition at the end of a bundle.

    The answer is awaited before the next commit, so that a slow broker does not hold up the bundle.

    Args:
        topic: The topic that is read, and the group.
    """

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    def setup(self) -> None:
        """Create what cannot be pickled."""
        self._failed = Metrics.counter(NAMESPACE, "offset commits failed")
        self._asked: Any = None
        self._has_warned = False

    def start_bundle(self) -> None:
        """Begin without offsets."""
        self._offsets: dict[int, int] = {}

    def process(self, mark: tuple[int, int]) -> None:
        """Note how far a partition is read."""
        number, offset = mark
        self._offsets[number] = max(offset, self._offsets.get(number, 0))

    def finish_bundle(self) -> None:
        """Commit."""
        if not self._offsets:
            return
        self._settle()
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        places = [TopicPartition(self._topic.name, number, offset) for number, offset in self._offsets.items()]
        wanted = ConsumerGroupTopicPartitions(str(self._topic.group), places)
        asked = shared_admin(self._topic).alter_consumer_group_offsets([wanted], request_timeout=_PATIENCE)
        (self._asked,) = asked.values()

    def teardown(self) -> None:
        """Wait for the last answer."""
        self._settle()

    def _settle(self) -> None:
        """Wait for an answer; count what was refused."""
        asked, self._asked = self._asked, None
        if asked is None:
            return
        try:
            answer = asked.result(2 * _PATIENCE)
            wrong = next((place.error for place in answer.topic_partitions if place.error is not None), None)
        except Exception as error:  # whatever it is, nothing but a figure on a dashboard depends on it
            wrong = error
        if wrong is not None:
            self._failed.inc()
            if not self._has_warned:
                self._has_warned = True
                _LOGGER.warning("%r: offsets cannot be committed to %s: %s", self._topic, self._topic.group, wrong)
