"""Offsets are committed for those who watch: the highest of each partition, and whatever fails stops nothing."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from crenel.pipelines.kafka import committed_offsets as module
from crenel.pipelines.kafka.committed_offsets import CommitOffsets
from crenel.pipelines.kafka.topic_job import Request
from crenel.pipelines.kafka.topics import Topic
from crenel.policy import Policy

TOPIC = Topic(servers="a:1", name="visits", group="watchers")


class Admin:
    """Answers each commit as it is told."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.committed: list[dict[int, int]] = []

    def alter_consumer_group_offsets(self, asked: list[Any], request_timeout: float) -> dict[str, Future[Any]]:
        (group,) = asked
        assert group.group_id == "watchers"
        self.committed.append({place.partition: place.offset for place in group.topic_partitions})
        future: Future[Any] = Future()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(SimpleNamespace(topic_partitions=[SimpleNamespace(error=answer)]))
        return {"watchers": future}


def bundles(admin: Admin, monkeypatch: pytest.MonkeyPatch, *given: list[tuple[int, int]]) -> None:
    monkeypatch.setattr(module, "shared_admin", lambda topic: admin)
    step = CommitOffsets(TOPIC)
    step.setup()
    for marks in given:
        step.start_bundle()
        for mark in marks:
            step.process(mark)
        step.finish_bundle()
    step.teardown()


def test_the_highest_offset_of_each_partition_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin(None, None)
    bundles(admin, monkeypatch, [(0, 5), (1, 7), (0, 3)], [], [(0, 9)])
    assert admin.committed == [{0: 5, 1: 7}, {0: 9}]


def test_a_commit_that_fails_stops_nothing_and_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    admin = Admin(TimeoutError("too late"), "not authorized", None)
    with caplog.at_level(logging.WARNING):
        bundles(admin, monkeypatch, [(0, 1)], [(0, 2)], [(0, 3)])
    assert len(admin.committed) == 3
    assert len(caplog.records) == 1
    assert "kafka://a:1/visits: offsets cannot be committed to watchers: too late" in caplog.text


@pytest.mark.parametrize(
    ("url", "group"),
    [
        ("kafka://a:1/visits", "crenel-visits-to-out"),
        ("kafka://a:1/visits?group=mine", "mine"),
        ("kafka://a:1/visits?group=", ""),
    ],
)
def test_the_group_is_named_after_the_topics_unless_the_user_names_it(url: str, group: str) -> None:
    kinds = {"age": {"type": "numeric", "domain": [0, 100]}}
    policy = Policy.from_dict(
        {"version": 1, "person": "who", "quasi_identifiers": kinds, "k": 2, "delay": "1s", "event_time": "at"}
    )
    assert Request.of(policy, [url], {"published": "kafka://a:1/out"}, local=True).source.group == group
