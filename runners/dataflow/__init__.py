"""On Google Cloud Dataflow: a streaming job is submitted, and goes on by itself.

What is checked here is what can be without the service. `docs/dataflow.md` has the flags, the
template (`Dockerfile`, `metadata.json`, `main.py` in this folder) and how a job is updated.
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
    """Say what a job on Dataflow lacks, before anything starts.

    Raises:
        RunnerError: something does; all of it is listed.
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
            "--runner dataflow needs workers that have crenel: name an image that does with --sdk_container_image "
            "(docs/dataflow.md), or a package of it with --extra_package."
        )


def options_of(flags: Sequence[str]) -> PipelineOptions:
    """Beam's options for a streaming job with state; what the flags say stays."""
    options = PipelineOptions(list(flags))
    options.view_as(StandardOptions).runner = "DataflowRunner"
    options.view_as(StandardOptions).streaming = True
    setup = options.view_as(SetupOptions)
    # The image has Beam and crenel: nothing is staged, and `__main__` has nothing that workers need.
    if options.view_as(WorkerOptions).sdk_container_image and setup.sdk_location == "default":
        setup.sdk_location = "container"
    setup.save_main_session = False
    return options


def launch(job: Job) -> int:
    """Submit a job, and leave it to Dataflow; return the workers that were asked for at the start.

    Raises:
        RunnerError: the job is not a stream.
    """
    check(job.flags)
    options = options_of(job.flags)
    pipeline = beam.Pipeline(options=options)
    job.build(pipeline)
    looked = _Unbounded()
    pipeline.visit(looked)
    if not looked.found:
        msg = (
            "--runner dataflow is for streams (pubsub://...): Dataflow's workers do not see the files of this machine, "
            "so use another runner for them."
        )
        raise RunnerError(msg)
    result = pipeline.run()
    if getattr(result, "has_job", False):
        print(f"crenel: job {result.job_id()} was submitted to Dataflow, and goes on there.", file=sys.stderr)
    return int(options.view_as(WorkerOptions).num_workers or 1)


class _Unbounded(PipelineVisitor):
    """Whether anything in a pipeline has no end."""

    found = False

    def visit_value(self, value: beam.pvalue.PValue, producer_node: beam.pipeline.AppliedPTransform) -> None:
        """Look at a result of a step."""
        self.found = self.found or not getattr(value, "is_bounded", True)
