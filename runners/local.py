"""On this machine: in this process, or in several if the input is worth it.

Beam's local runner never runs stateful steps side by side, and with several workers it serves
stale state. What is launched here must therefore have none: bounded input goes through
`crenel.transforms.bounded`. `check_stateless` sees to it.
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

#: Rows from which further processes are worth their start: each takes about 3 seconds of a core to begin, and the rows
#: go there and back. With two cores, 600,000 rows of Adult took as long in two processes as in one.
WORTH_IT = 1_000_000

#: Seconds between two looks at the workers, and from the end of one to giving the others up.
_LOOK, _GRACE = 0.2, 3.0


def launch(job: Job) -> int:
    """Run a job to its end; return the number of processes that did the work."""
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
    """How many processes are worth it: no more than shards, which are what is worked on side by side."""
    if rows < WORTH_IT or os.name == "nt":
        return 1
    return max(min(cores(), shards), 1)


def cores() -> int:
    """The processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_stateless(pipeline: beam.Pipeline) -> None:
    """Refuse a pipeline that Beam's local runner would answer wrongly with several workers.

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
    """Run a pipeline whose workers are processes. Beam waits for ever for one that was killed; this does not."""
    failed: list[BaseException] = []
    died = threading.Event()

    def run() -> None:
        try:
            pipeline.run().wait_until_finish()
        except BaseException as error:
            failed.append(error)

    def fell(what: threading.ExceptHookArgs) -> None:
        # Beam's threads fall over when the process that they wait for, or speak to, is gone; and nobody asks them.
        if what.thread is not None and what.thread.name == "run_worker":
            died.set()

    before, threading.excepthook = threading.excepthook, fell
    thread = threading.Thread(target=run, name="crenel pipeline", daemon=True)
    thread.start()
    while thread.is_alive() and not died.wait(_LOOK):
        pass
    thread.join(_GRACE)
    if died.is_set():
        # The hook stays: the threads are still there.
        message = "a worker process was killed, perhaps for want of memory: use fewer --workers, or more shards."
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
    # What a worker has to say comes back as an error of the pipeline. Ctrl-C is the launching process's to answer: a
    # worker is told by its connection, and says nothing.
    python = shlex.quote(sys.executable)
    command = f"trap '' INT; exec {python} -m apache_beam.runners.worker.sdk_worker_main 2>/dev/null"
    environment = environments.SubprocessSDKEnvironment.from_command_string(command)
    return fn_runner.FnApiRunner(default_environment=environment)
