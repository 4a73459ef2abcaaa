"""Runs bounded input on this machine, in this process.

More processes would not pay off: each takes seconds to start, and while shards can be worked on side by side, reading,
sorting and writing cannot. `benchmarks/README.md` has the figures. For more than this machine can do, there is Flink.
"""

from __future__ import annotations

from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.runners.portability.fn_api_runner import fn_runner

from crenel.runners import Job
from crenel.runners.runner_errors import RunnerError

__all__ = ["check", "launch"]


def check(flags: Sequence[str]) -> None:
    """Refuse several workers.

    Raises:
        RunnerError: a flag asks for them.
    """
    if PipelineOptions(list(flags)).view_as(DirectOptions).direct_num_workers != 1:
        msg = "--direct_num_workers must be 1: the local runner is one process. Use --runner flink for more."
        raise RunnerError(msg)


def launch(job: Job) -> int:
    """Run a job to its end; return 1: there are no other processes."""
    pipeline = beam.Pipeline(runner=fn_runner.FnApiRunner(), options=PipelineOptions(list(job.flags)))
    job.build(pipeline)
    pipeline.run().wait_until_finish()
    return 1
