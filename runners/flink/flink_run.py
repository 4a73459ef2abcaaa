"""A run with `--runner flink`, from the check of its requirements to its end."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import FlinkRunnerOptions, PipelineOptions

from crenel.runners import Job, JobFailed
from crenel.runners.flink import distribution, job_server, options, requirements
from crenel.runners.flink.cluster import Cluster, Rest, advice
from crenel.runners.flink.failure_causes import cause
from crenel.runners.flink.job_follower import JobFollower
from crenel.runners.flink.job_server import JobServer
from crenel.runners.runner_errors import RunnerError

__all__ = ["KNOWN", "check", "launch"]

#: The flags that this runner knows, besides Beam's own.
KNOWN = options.KNOWN

#: Seconds that a cluster has to take a job: the job server's jars are sent to it.
_PATIENCE = 300.0

#: Values of --flink_master that mean a cluster for this run.
_OWN = ("[auto]", "[local]", "", None)


def check(flags: Sequence[str]) -> None:
    """Check that everything a run needs is there, and download what can be downloaded.

    Raises:
        RunnerError: something is missing; the message says what to do.
    """
    said = PipelineOptions(list(flags)).view_as(FlinkRunnerOptions)
    requirements.java()
    if said.flink_job_server_jar is None:
        job_server.fetch()
    if said.flink_master in _OWN:
        distribution.libraries()
        _check_boot(flags)
    elif Rest(said.flink_master).task_managers() == 0:
        msg = (
            f"no Flink cluster with a TaskManager answers at {said.flink_master}: --flink-master must be its HOST:PORT."
        )
        raise RunnerError(msg)


def _check_boot(flags: Sequence[str]) -> None:
    """Check that workers can be started on this machine, unless the user says how."""
    if shutil.which(options.boot()) is None and not any(flag.startswith("--environment_") for flag in flags):
        msg = "--runner flink starts workers with crenel-boot, and there is none: install crenel with pip."
        raise RunnerError(msg)


def launch(job: Job) -> int:
    """Run a job to its end; return its parallelism.

    Raises:
        RunnerError: the cluster or the job server does not start.
        JobFailed: the job failed.
    """
    said = PipelineOptions(list(job.flags)).view_as(FlinkRunnerOptions)
    run = _Run(Path(tempfile.mkdtemp(prefix="crenel-flink-")))
    with ExitStack() as ends:
        # The process may exit while this thread waits.
        atexit.register(ends.close)
        ends.callback(atexit.unregister, ends.close)
        ends.callback(run.tidy)
        workers = job.workers or max(min(_cores(), job.shards), 1)
        try:
            if said.flink_master in _OWN:
                run.cluster = ends.enter_context(Cluster(run.folder, task_managers=workers))
                rest = run.cluster.rest
            else:
                rest = Rest(said.flink_master)
            server = JobServer(rest.master, run.folder, said.flink_job_server_jar, distinct=True)
            endpoint = ends.enter_context(server)
        except RunnerError:
            run.is_kept = True
            raise
        job.say(server.said)
        told = advice(rest) if "--streaming" in job.flags else None
        if told is not None:
            job.say(told)
        name, given = _named(_without_master(job.flags))
        flags = options.flags(endpoint, parallelism=workers, logs=run.logs, given=given, method=job.method)
        pipeline = beam.Pipeline(options=PipelineOptions(flags))
        job.build(pipeline)
        before = rest.jobs(name)
        result = pipeline.run()
        # Before the job server stops: the cluster may continue.
        if "--streaming" in given:
            ends.callback(run.leave, job)
            run.follow(job, rest, _submitted(rest, name, before, result, run))
        else:
            ends.callback(_cancel, result)
            run.wait(result, rest, name)
    return workers


class _Run:
    """The files of a run, and what becomes of them.

    Args:
        folder: The folder of the cluster, if the run has its own, and of all logs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster: Cluster | None = None
        #: Whether the user still needs the folder.
        self.is_kept = False
        self._follower: JobFollower | None = None

    @property
    def logs(self) -> Path | None:
        """The folder of the workers' logs; None if it is on other machines."""
        return None if self.cluster is None else self.cluster.logs

    def tidy(self) -> None:
        """Remove the folder."""
        if not self.is_kept:
            shutil.rmtree(self.folder, ignore_errors=True)

    def follow(self, job: Job, rest: Rest, id_: str) -> None:
        """Follow a stream to its end."""
        manager = self.cluster.job_manager if self.cluster is not None else None
        alive = None if manager is None else lambda: manager.alive
        self._follower = JobFollower(
            rest, id_, say=job.say, show=job.show, is_alive=alive, report=job.report, counters=job.counters
        )
        job.say(f"running on Flink as job {id_}: http://{rest.master}/#/job/{id_}/overview")
        try:
            self._follower.follow()
        except JobFailed as failed:
            self.is_kept = True
            msg = f"{failed} {self._where()}"
            raise JobFailed(msg) from None

    def leave(self, job: Job) -> None:
        """Cancel a stream that goes on although the run ends, and say how to take it up again."""
        follower = self._follower
        if follower is None or self.is_kept or follower.state == "FINISHED":
            return
        follower.cancel()
        follower.refresh()
        self.is_kept = follower.checkpoint is not None
        job.say(f"the job was cancelled. {follower.how_to_go_on()}")

    def wait(self, result: Any, rest: Rest, name: str) -> None:
        """Wait for a batch to its end."""
        try:
            result.wait_until_finish()
        except RuntimeError:
            self.is_kept = True
            msg = f"the job failed on Flink: {_reason(rest, name)} {self._where()}"
            raise JobFailed(msg) from None

    def _where(self) -> str:
        where = self.logs or "crenel-workers-* in the temporary folders of the TaskManagers"
        return f"Logs, which may contain rows, are in {where}."


def _submitted(rest: Rest, name: str, before: Collection[str], result: Any, run: _Run) -> str:
    """Wait until the cluster has the job; return its id.

    Raises:
        JobFailed: the job server or the cluster does not accept the job.
    """
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            found = [job for job in rest.jobs(name) if job not in before]
        except OSError:
            found = []
        if found:
            return found[0]
        if result.state == "FAILED" or time.monotonic() > end:
            run.is_kept = True
            msg = f"Flink does not accept the job; {run.folder / 'job-server.log'} says why, and may contain rows."
            raise JobFailed(msg)
        time.sleep(0.5)


def _reason(rest: Rest, name: str) -> str:
    """Why the newest job of a name failed."""
    try:
        entries = rest.get(f"/jobs/{rest.job(name)}/exceptions")["exceptionHistory"]["entries"]
        return cause(str(entries[0]["stacktrace"])).sentence
    except (OSError, LookupError):
        return "the cluster does not say why."


def _named(flags: Sequence[str]) -> tuple[str, list[str]]:
    """The name of the job, by which the cluster knows it, and all flags."""
    for flag in flags:
        if flag.startswith("--job_name="):
            return flag.split("=", 1)[1], list(flags)
    name = f"crenel-{secrets.token_hex(4)}"
    return name, [*flags, f"--job_name={name}"]


def _cores() -> int:
    """The number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _without_master(flags: Sequence[str]) -> list[str]:
    """The flags of the job. The job server knows the cluster."""
    return [flag for flag in flags if not flag.startswith(("--flink_master", "--flink_job_server_jar"))]


def _cancel(result: Any) -> None:
    """Cancel a job that has not ended."""
    if not beam.runners.runner.PipelineState.is_terminal(result.state):
        result.cancel()
