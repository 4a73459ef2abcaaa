"""A run with `--runner flink`, from the check of its requirements to its end."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import FlinkRunnerOptions, PipelineOptions

from crenel.runners import Job, JobFailed
from crenel.runners.flink import distribution, job_server, options, requirements
from crenel.runners.flink.cluster import Cluster, Rest
from crenel.runners.flink.job_server import JobServer
from crenel.runners.runner_errors import RunnerError

__all__ = ["KNOWN", "check", "launch"]

#: The flags that this runner knows, besides Beam's own.
KNOWN = options.KNOWN

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
        job_server.jars()
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
    folder = Path(tempfile.mkdtemp(prefix="crenel-flink-"))
    failed = False

    def tidy() -> None:
        if not failed:  # otherwise the user needs the logs
            shutil.rmtree(folder, ignore_errors=True)

    with ExitStack() as ends:
        # The process may exit while this thread waits.
        atexit.register(ends.close)
        ends.callback(atexit.unregister, ends.close)
        ends.callback(tidy)
        workers = job.workers or max(min(_cores(), job.shards), 1)
        try:
            if said.flink_master in _OWN:
                master = ends.enter_context(Cluster(folder, task_managers=workers)).rest.master
                logs = folder / "log"
            else:
                master, logs = said.flink_master, None
            endpoint = ends.enter_context(JobServer(master, folder, said.flink_job_server_jar))
        except RunnerError:
            failed = True
            raise
        flags = options.flags(endpoint, parallelism=workers, logs=logs, given=_without_master(job.flags))
        pipeline = beam.Pipeline(options=PipelineOptions(flags))
        job.build(pipeline)
        result = pipeline.run()
        # Before the job server stops: the cluster may continue.
        ends.callback(_cancel, result)
        try:
            result.wait_until_finish()
        except RuntimeError:
            failed = True
            where = str(logs) if logs else "crenel-workers-* in the temporary folders of the TaskManagers"
            msg = f"the job failed on Flink. Its logs, which may contain rows, are in {where}."
            raise JobFailed(msg) from None
    return workers


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
