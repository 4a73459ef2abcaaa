"""`crenel run` from a topic to a topic on a cluster, as a process of its own, for tests."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from crenel.runners.flink.cluster import until
from tests.pipelines.kafka import rows as made
from tests.pipelines.kafka.broker import Broker
from tests.runners.harness import PATIENCE, Flink, Running

#: A client tells soon, and not after half a minute, that a topic is not there.
OUT = {"topic__metadata__propagation__max__ms": "1000"}


class FlinkRun:
    """A run in the background. As a context manager it is terminated at the end.

    Args:
        kafka: The broker.
        flink: The cluster.
        folder: The folder of its policy and log.
        name: The name of the job, and the start of the topics' names.
        policy: The policy.
        flags: Further flags.
        options: Further options of both topics.
    """

    def __init__(
        self,
        kafka: Broker,
        flink: Flink,
        folder: Path,
        name: str,
        policy: str = made.POLICY,
        flags: tuple[str, ...] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "policy.yaml").write_text(policy)
        self._log = folder / "log"
        self._rest = flink.cluster.rest
        self._name = name
        self._before = self._rest.jobs(name)
        command = [sys.executable, "-m", "crenel.pipelines.cli", "run", str(folder / "policy.yaml")]
        given, wanted = {"idle": "3s", **(options or {})}, {**OUT, **(options or {})}
        command += ["--input", kafka.url(f"{name}-in", **given), "--output", kafka.url(f"{name}-out", **wanted)]
        command += ["--runner", "flink", "--workers", "2", "--flink-master", self._rest.master]
        command += ["--checkpointing_interval=1500", f"--job_name={name}", *flags]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    @property
    def said(self) -> str:
        """What the run has said so far."""
        return self._log.read_text()

    def job(self) -> Running:
        """Wait until the cluster has begun the job."""

        def check() -> None:
            assert self.process.poll() is None, self.said

        until(lambda: len(self._rest.jobs(self._name)) > len(self._before), PATIENCE, check)
        job = Running(self._rest, self._rest.jobs(self._name)[0])
        # Until then Flink has no answer to most questions.
        until(lambda: job.state not in ("CREATED", "INITIALIZING"), PATIENCE, check)
        return job

    def end(self) -> int:
        """Wait until the run ends by itself; return its exit code."""
        return self.process.wait(PATIENCE)

    def __enter__(self) -> FlinkRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


def told(kafka: Broker, topic: str) -> dict[int, set[bytes]]:
    """Return the forms in which each row was published."""
    found: dict[int, set[bytes]] = defaultdict(set)
    for message in kafka.read(topic):
        found[json.loads(message.value())["note"]].add(message.value())
    return found


def feed(kafka: Broker, topic: str, rows: list[dict[str, Any]]) -> None:
    """Send rows a hundred at a time."""
    for start in range(0, len(rows), 100):
        kafka.produce(topic, made.as_json(rows[start : start + 100]))
        time.sleep(0.1)
