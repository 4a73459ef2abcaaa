"""Submits a streaming job to Google Cloud Dataflow, which then runs it alone.

Everything that can be checked without the service is checked here. `docs/dataflow.md` describes the
flags, the flex template (`Dockerfile` and `metadata.json` in this folder, and
`crenel.pipelines.dataflow_template`) and how to update a job.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    StandardOptions,
    WorkerOptions,
)
from apache_beam.pipeline import PipelineVisitor

from crenel.runners import Job
from crenel.runners.runner_errors import RunnerError

__all__ = ["check", "launch", "options_of"]


def check(flags: Sequence[str]) -> None:
    """Check, before anything starts, that a job on Dataflow has all it needs.

    Raises:
        RunnerError: something is missing; all of it is listed.
    """
    problems = list(_lacking(PipelineOptions(list(flags))))
    if problems:
        raise RunnerError(*problems)


def _lacking(options: PipelineOptions) -> Iterator[str]:
    if importlib.util.find_spec("google") is None or importlib.util.find_spec("apitools") is None:
        yield "--runner dataflow needs Google's libraries: pip install 'crenel[dataflow]'."
    cloud, setup = options.view_as(GoogleCloudOptions), options.view_as(SetupOptions)
    for name, example in (("project", "my-project"), ("region", "europe-west1")):
        if not getattr(cloud, name):
            yield f"--runner dataflow needs --{name}, such as --{name}={example}."
    for name in ("temp_location", "staging_location"):
        place = getattr(cloud, name)
        if name == "temp_location" and not place:
            yield "--runner dataflow needs --temp_location, such as --temp_location=gs://my-bucket/temp."
        elif place and not place.startswith("gs://"):
            yield f"--{name} must be in Cloud Storage, such as gs://my-bucket/temp, not {place!r}."
    brought = (setup.setup_file, setup.requirements_file, setup.extra_packages)
    if not options.view_as(WorkerOptions).sdk_container_image and not any(brought):
        yield (
            "--runner dataflow needs workers that have crenel: name an image with --sdk_container_image "
            "(docs/dataflow.md), or a package of crenel with --extra_package."
        )


def options_of(flags: Sequence[str]) -> PipelineOptions:
    """Beam's options for a streaming job with state. The user's flags take precedence."""
    options = PipelineOptions(list(flags))
    options.view_as(StandardOptions).runner = "DataflowRunner"
    options.view_as(StandardOptions).streaming = True
    setup = options.view_as(SetupOptions)
    # The image contains Beam and crenel: nothing is staged, and workers need nothing of `__main__`.
    if options.view_as(WorkerOptions).sdk_container_image and setup.sdk_location == "default":
        setup.sdk_location = "container"
    setup.save_main_session = False
    return options


def launch(job: Job) -> int:
    """Submit a job without waiting for its end; return the number of workers to start with.

    Raises:
        RunnerError: something is missing, or the input is not a stream.
    """
    check(job.flags)
    options = options_of(job.flags)
    pipeline = beam.Pipeline(options=options)
    job.build(pipeline)
    looked = _Unbounded()
    pipeline.visit(looked)
    if not looked.found:
        msg = (
            "--runner dataflow is for streams (pubsub://...): Dataflow's workers cannot see the files of this machine. "
            "Use another runner for files."
        )
        raise RunnerError(msg)
    result = pipeline.run()
    if getattr(result, "has_job", False):
        print(f"crenel: job {result.job_id()} was submitted to Dataflow and runs there.", file=sys.stderr)
    return int(options.view_as(WorkerOptions).num_workers or 1)


class _Unbounded(PipelineVisitor):
    """Finds out whether a pipeline has unbounded input."""

    found = False

    def visit_value(self, value: beam.pvalue.PValue, producer_node: beam.pipeline.AppliedPTransform) -> None:
        """Look at the output of a step."""
        self.found = self.found or not getattr(value, "is_bounded", True)
