"""Runs bounded input on this machine: in this process, or in several if the input is large.

Beam's local runner never runs keys of a stateful step in parallel, and with several workers it
serves stale state. A pipeline of several workers must therefore have no state: bounded input goes
through `AnonymizeBounded`. `check_stateless` checks that.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.pipeline import PipelineVisitor
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.transforms import environments
from apache_beam.transforms.userstate import is_stateful_dofn

from crenel.runners import Job, WorkerDied

__all__ = ["cores", "launch", "workers_for"]

#: The number of rows from which several processes are faster than one. Each takes about 3 seconds of a core to start,
#: and rows travel there and back: with two cores, 600,000 rows of Adult took as long in two processes as in one.
WORTH_IT = 1_000_000

#: Seconds between two checks of the workers, and from the death of one until the others are abandoned.
_LOOK, _GRACE = 0.2, 3.0


def launch(job: Job) -> int:
    """Run a job to its end; return the number of worker processes.

    Raises:
        WorkerDied: a worker process is gone.
    """
    options = PipelineOptions(list(job.flags))
    asked = job.workers or _asked(job.flags, options)
    workers = workers_for(job.rows, job.shards) if asked is None else asked
    options.view_as(DirectOptions).direct_num_workers = workers
    pipeline = beam.Pipeline(runner=_runner(workers), options=options)
    job.build(pipeline)
    if workers > 1:
        check_stateless(pipeline)
        _run_watched(pipeline)
    else:
        pipeline.run().wait_until_finish()
    return workers


def workers_for(rows: int, shards: int) -> int:
    """How many processes to use: at most one per shard, since a shard is worked on by one process."""
    if rows < WORTH_IT or os.name == "nt":
        return 1
    return max(min(cores(), shards), 1)


def cores() -> int:
    """The number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_stateless(pipeline: beam.Pipeline) -> None:
    """Refuse a pipeline that gives wrong results on Beam's local runner with several workers.

    Raises:
        ValueError: a step has state.
    """
    pipeline.visit(_Stateless())


class _Stateless(PipelineVisitor):
    def visit_transform(self, transform_node: beam.pipeline.AppliedPTransform) -> None:
        transform = transform_node.transform
        if isinstance(transform, beam.ParDo) and is_stateful_dofn(transform.fn):
            message = (
                f"local: the step {transform_node.full_label} has state, which Beam's local runner keeps right with "
                "one worker only. Use AnonymizeBounded, or one worker."
            )
            raise ValueError(message)


def _run_watched(pipeline: beam.Pipeline) -> None:
    """Run a pipeline whose workers are processes. Beam waits forever for one that was killed; this does not."""
    failed: list[BaseException] = []
    died = threading.Event()

    def run() -> None:
        try:
            pipeline.run().wait_until_finish()
        except BaseException as error:
            failed.append(error)

    def failed_thread(what: threading.ExceptHookArgs) -> None:
        # Beam's threads fail when their worker process is gone, and Beam does not notice.
        if what.thread is not None and what.thread.name == "run_worker":
            died.set()

    before, threading.excepthook = threading.excepthook, failed_thread
    thread = threading.Thread(target=run, name="crenel pipeline", daemon=True)
    thread.start()
    while thread.is_alive() and not died.wait(_LOOK):
        pass
    thread.join(_GRACE)
    if died.is_set():
        # The hook stays, because the threads do.
        message = "a worker process was killed, perhaps because memory ran out: use fewer --workers, or more shards."
        raise WorkerDied(message)
    threading.excepthook = before
    if failed:
        raise failed[0]


def _asked(flags: Sequence[str], options: PipelineOptions) -> int | None:
    if not any(flag.startswith("--direct_num_workers") for flag in flags):
        return None
    # Beam's 0 means all cores.
    return int(options.view_as(DirectOptions).direct_num_workers) or cores()


def _runner(workers: int) -> fn_runner.FnApiRunner:
    if workers == 1:
        return fn_runner.FnApiRunner()
    # Errors of a worker come back as errors of the pipeline. Only the launching process handles Ctrl-C: a worker ends
    # when its connection closes.
    python = shlex.quote(sys.executable)
    command = f"trap '' INT; exec {python} -m apache_beam.runners.worker.sdk_worker_main 2>/dev/null"
    environment = environments.SubprocessSDKEnvironment.from_command_string(command)
    return fn_runner.FnApiRunner(default_environment=environment)
