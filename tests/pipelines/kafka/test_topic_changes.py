"""The input topic is deleted, created again or given more partitions while `crenel run` reads it. A real broker."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tests.pipelines.kafka import rows as made
from tests.pipelines.kafka.broker import Broker

pytestmark = pytest.mark.kafka

#: A generous bound, in seconds, for a busy machine.
PATIENCE = 180.0


class Run:
    """`crenel run` from a topic to a topic, in the background."""

    def __init__(self, kafka: Broker, folder: Path, **options: str) -> None:
        self.kafka = kafka
        self.source, self.published = (f"t-{uuid4().hex[:8]}" for _ in range(2))
        kafka.create(self.source, self.published)
        (folder / "policy.yaml").write_text(made.POLICY)
        self._command = [sys.executable, "-m", "crenel.pipelines.cli", "run", str(folder / "policy.yaml"), "--json"]
        self._command += ["--most-suppressed", "100%", "--input", kafka.url(self.source, idle="1s", **options)]
        self._command += ["--output", kafka.url(self.published)]

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process: subprocess.Popen[str] = subprocess.Popen(self._command, **pipes)  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()

    def notes(self) -> set[int]:
        """The numbers of the rows that were published."""
        return {json.loads(message.value())["note"] for message in self.kafka.read(self.published)}


def wait(met: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + PATIENCE
    while not met():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "too slow"
        time.sleep(0.5)


def test_a_topic_that_is_created_again_fails_the_run_by_name(kafka: Broker, tmp_path: Path) -> None:
    """Its offsets begin anew, so rows would be skipped."""
    run = Run(kafka, tmp_path)
    rows = made.make(800)
    kafka.produce(run.source, made.as_json(rows[:300]), partition=0)
    with run.running() as process:
        wait(lambda: len(run.notes()) > 0, process)
        kafka.delete(run.source)
        kafka.create(run.source)
        kafka.produce(run.source, made.as_json(rows[300:]), partition=0)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 70
    assert f"/{run.source}: the topic was deleted and created again" in said
    assert "Start a new run to read the new topic" in said
    assert max(run.notes()) < 300, "nothing of the new topic is published as if it were of the old one"


def test_a_topic_that_is_deleted_fails_the_run_by_name(kafka: Broker, tmp_path: Path) -> None:
    run = Run(kafka, tmp_path)
    kafka.produce(run.source, made.as_json(made.make(300)))
    with run.running() as process:
        wait(lambda: len(run.notes()) > 0, process)
        kafka.delete(run.source)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 70
    assert f"/{run.source}: the topic was deleted while it was read" in said


def test_partitions_that_are_added_are_read_and_the_lag_falls_to_zero(kafka: Broker, tmp_path: Path) -> None:
    run = Run(kafka, tmp_path)
    rows = made.make(600)
    kafka.produce(run.source, made.as_json(rows[:200]))
    with run.running() as process:
        wait(lambda: len(run.notes()) > 0, process)
        kafka.grow(run.source, 5)
        for number, partition in enumerate((2, 3, 4)):
            kafka.produce(run.source, made.as_json(rows[200 + number : 600 : 3]), partition=partition)
        wait(lambda: run.notes() == set(range(600)), process)
        group = f"crenel-{run.source}-to-{run.published}"
        wait(lambda: kafka.lag(group) == dict.fromkeys(range(5), 0), process)
