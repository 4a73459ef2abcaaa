"""A Flink cluster for tests: two TaskManagers, a job server, and jobs that tests can observe and damage."""

from __future__ import annotations

import os
import signal
import urllib.error
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from crenel.runners.flink import distribution, job_server, options, requirements
from crenel.runners.flink.cluster import Cluster, Rest, until
from crenel.runners.flink.job_server import JobServer
from crenel.runners.runner_errors import RunnerError

ROOT = Path(__file__).resolve().parent.parent.parent

#: A generous timeout in seconds, for busy machines.
PATIENCE = 400.0

SETTINGS: Mapping[str, Any] = {
    # Flink notices a dead process at once, because connections are refused. A slow process must not count as dead.
    "heartbeat.interval": 500,
    "heartbeat.timeout": 120_000,
    "restart-strategy.exponential-delay.initial-backoff": "200 ms",
    "restart-strategy.exponential-delay.max-backoff": "1 s",
    # The processes are too short-lived to gain from optimized JIT compilation.
    "env.java.opts.all": "-XX:TieredStopAtLevel=1",
}


def need_flink() -> None:
    """Skip the test if this machine cannot run a cluster; fail if CRENEL_REQUIRE_FLINK is set."""
    try:
        requirements.java()
        requirements.maven()
        distribution.libraries()
        job_server.jars()
    except RunnerError as error:
        if os.environ.get("CRENEL_REQUIRE_FLINK"):
            pytest.fail(str(error))
        pytest.skip(str(error))


class Flink:
    """A cluster and its job server.

    Args:
        folder: The folder for all files of the cluster.
        task_managers: The number of TaskManagers; each has one slot.
        settings: Settings of Flink.
        available: Whether jobs survive the loss of the JobManager.
    """

    def __init__(
        self,
        folder: Path,
        task_managers: int = 2,
        settings: Mapping[str, Any] | None = None,
        *,
        available: bool = False,
    ) -> None:
        self.folder = folder
        self.cluster = Cluster(
            folder, task_managers=task_managers, settings={**SETTINGS, **(settings or {})}, available=available
        )

    def __enter__(self) -> Flink:
        self.cluster.start()
        self._server = JobServer(self.cluster.rest.master, self.folder)
        self.endpoint = self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()
        self.cluster.stop()

    def submit(
        self, name: str, build: Callable[[beam.Pipeline], Any], *, parallelism: int = 2, flags: Sequence[str] = ()
    ) -> Running:
        """Start a streaming job, with a checkpoint every second."""
        told = options.flags(
            self.endpoint,
            parallelism=parallelism,
            logs=self.cluster.logs,
            given=["--checkpointing_interval=1000", f"--job_name={name}", *flags],
            streaming=True,
            variables={"PYTHONPATH": str(ROOT)},
        )
        pipeline = beam.Pipeline(options=PipelineOptions(told))
        build(pipeline)
        result = pipeline.run()

        def check() -> None:
            assert result.state != "FAILED", f"the job was not accepted; see {self.folder / 'job-server.log'}"

        until(lambda: self.cluster.rest.job(name) is not None, PATIENCE, check)
        job = Running(self.cluster.rest, str(self.cluster.rest.job(name)))
        until(lambda: job.state not in ("CREATED", "INITIALIZING"), PATIENCE, check)
        assert job.state != "FAILED", job.cause()
        return job

    def workers(self) -> dict[int, int]:
        """Return the process ids of the Python workers, each with that of its TaskManager."""
        managers = {process.pid for process in self.cluster.task_managers}
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    after = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                except OSError:  # it has just ended
                    continue
                if int(after[1]) in managers and after[0] != "Z":
                    found[int(entry.name)] = int(after[1])
        return found

    def kill_worker(self) -> None:
        """Kill one Python worker."""
        os.kill(next(iter(self.workers())), signal.SIGKILL)

    def stand_by(self) -> None:
        """Start a spare TaskManager, so that no test waits for Java when one is lost."""
        self.cluster.add_task_manager()
        until(lambda: self.cluster.rest.task_managers() >= len(self.cluster.task_managers), PATIENCE)

    def kill_task_manager(self) -> None:
        """Kill a busy TaskManager, and start another."""
        working = set(self.workers().values())
        self.cluster.replace(next(process for process in self.cluster.task_managers if process.pid in working))


class Running:
    """A job of Flink, seen through the REST service. As a context manager it cancels the job at the end."""

    def __init__(self, rest: Rest, job: str) -> None:
        self._rest = rest
        self.id = job

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    @property
    def state(self) -> str:
        """Return the state of the job: RUNNING, RESTARTING, FINISHED, ..."""
        return str(self._rest.get(f"/jobs/{self.id}")["state"])

    def checkpoints(self) -> dict[str, Any]:
        """Return the statistics of the job's checkpoints, as soon as Flink has them: just after a start it has not."""
        found: dict[str, Any] = {}

        def answered() -> bool:
            try:
                found.update(self._rest.get(f"/jobs/{self.id}/checkpoints"))
            except urllib.error.HTTPError:
                return False
            return True

        until(answered, PATIENCE)
        return found

    def completed(self) -> int:
        """Return the number of completed checkpoints."""
        return int(self.checkpoints()["counts"]["completed"])

    def restored(self) -> int:
        """Return how often the job was restored from a checkpoint or savepoint."""
        return int(self.checkpoints()["counts"]["restored"])

    def size(self, step: str) -> int:
        """Return the bytes of state of a step, given by a part of its name, in the latest checkpoint."""
        latest = self.checkpoints()["latest"]["completed"]["id"]
        tasks = self._rest.get(f"/jobs/{self.id}/checkpoints/details/{latest}")["tasks"]
        named = {one["id"]: one["name"] for one in self._rest.get(f"/jobs/{self.id}")["vertices"]}
        found = [int(task["state_size"]) for vertex, task in tasks.items() if step in named[vertex]]
        assert found, f"no step {step} among {sorted(named.values())}"
        return sum(found)

    def wait(self, met: Callable[[], bool], what: str) -> None:
        """Wait until a condition is met while the job runs."""

        def check() -> None:
            state = self.state
            assert state not in ("FAILED", "CANCELED"), f"the job is {state} before {what}: {self.cause()}"

        try:
            until(met, PATIENCE, check)
        except TimeoutError:
            pytest.fail(f"not in {PATIENCE:.0f} seconds: {what}; the job is {self.state}: {self.cause()}")

    def wait_checkpoints(self, more: int = 1) -> None:
        """Wait for further checkpoints."""
        before = self.completed()
        self.wait(lambda: self.completed() >= before + more, f"{more} further checkpoints")

    def cause(self) -> str:
        """Return a short description of the last failure."""
        told = self._rest.get(f"/jobs/{self.id}/exceptions")["exceptionHistory"]["entries"]
        return "; ".join(str(one["stacktrace"])[:400] for one in told[:2])

    def stop(self, *, drain: bool = False) -> str:
        """Stop with a savepoint, and return its path. A drain ends the stream first, which releases all held rows."""
        asked = self._rest.post(f"/jobs/{self.id}/stop", {"drain": drain})["request-id"]
        answer: dict[str, Any] = {}

        def done() -> bool:
            answer.update(self._rest.get(f"/jobs/{self.id}/savepoints/{asked}"))
            return bool(answer["status"]["id"] == "COMPLETED")

        until(done, PATIENCE)
        assert "location" in answer["operation"], str(answer["operation"])[:600]
        until(lambda: self.state == "FINISHED", PATIENCE)
        return str(answer["operation"]["location"])

    def cancel(self) -> None:
        """Cancel the job, unless it has ended."""
        if self.state not in ("CANCELED", "FINISHED", "FAILED"):
            self._rest.cancel(self.id)
        until(lambda: self.state in ("CANCELED", "FINISHED", "FAILED"), PATIENCE)
