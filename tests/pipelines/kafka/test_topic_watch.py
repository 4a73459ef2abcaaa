"""The watch over the input topic: deleted, created again, grown, or not to be asked."""

from __future__ import annotations

from typing import Any

import pytest

from crenel.errors import PermanentError
from crenel.pipelines.kafka import topic_watch
from crenel.pipelines.kafka.broker_errors import InputLost
from crenel.pipelines.kafka.clients import Described, Silent
from crenel.pipelines.kafka.topic_watch import TopicWatch
from crenel.pipelines.kafka.topics import Topic
from crenel.runners import JobFailed

TOPIC = Topic(servers="a:1", name="visits")


class Broker:
    """Answers what it is told to, and counts the questions."""

    def __init__(self) -> None:
        self.answer: Described | str | None = Described("one", 2)
        self.now = 100.0
        self.asked = 0

    def __call__(self, topic: Topic, seconds: float) -> Described | None:
        self.asked += 1
        self.now += 1
        if isinstance(self.answer, str):
            raise Silent(self.answer)
        return self.answer


@pytest.fixture
def broker() -> Broker:
    return Broker()


def watching(broker: Broker) -> TopicWatch:
    return TopicWatch(TOPIC, "one", broker, lambda: broker.now)


def test_the_same_topic_with_more_partitions(broker: Broker) -> None:
    watch = watching(broker)
    assert watch.look() == 2
    broker.answer = Described("one", 5)
    assert watch.look() == 5


def test_another_topic_of_the_same_name_ends_the_run(broker: Broker) -> None:
    broker.answer = Described("two", 2)
    with pytest.raises(InputLost, match=r"kafka://a:1/visits: the topic was deleted and created again"):
        watching(broker).look()


def test_a_topic_is_deleted_if_the_broker_says_so_for_a_while(broker: Broker) -> None:
    """A broker that has just started may not know all topics yet."""
    watch = watching(broker)
    broker.answer = None
    assert watch.look() is None
    broker.now += 5
    assert watch.look() is None
    broker.answer = Described("one", 2)
    assert watch.look() == 2
    broker.answer = None
    assert watch.look() is None
    broker.now += 20
    with pytest.raises(InputLost, match=r"kafka://a:1/visits: the topic was deleted while it was read"):
        watch.look()


def test_a_broker_that_does_not_answer_is_asked_less_often_and_nothing_is_concluded(broker: Broker) -> None:
    watch = watching(broker)
    broker.answer = "timed out"
    assert [watch.look() for _ in range(5)] == [None] * 5
    assert broker.asked == 1
    broker.now += 60
    broker.answer = Described("two", 2)
    with pytest.raises(InputLost):
        watch.look()


def test_the_end_of_a_run_waits_for_the_brokers_word(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_watch.time, "sleep", lambda _: None)
    watch = watching(broker)
    watch.confirm()
    broker.answer = "timed out"
    with pytest.raises(JobFailed, match="does not say") as raised:
        watch.confirm()
    assert not isinstance(raised.value, PermanentError)
    broker.answer = Described("two", 2)
    with pytest.raises(InputLost):
        watch.confirm()


def test_a_restart_cannot_cure_it() -> None:
    error: Any = InputLost("gone")
    assert isinstance(error, PermanentError)
    assert isinstance(error, JobFailed)
