"""The shape of a job, by which a runner finds the state of an updated job.

The shape is the names of the steps, their connections, the coders between them, and the state and timers of each step.
The pickled code may change. `python -m tests.runners.shape` writes the golden files that do not exist yet.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.portability.api import beam_runner_api_pb2 as api

from crenel.pipelines import pubsub
from crenel.runners import Job, dataflow
from tests.transforms.streams import anonymize, policy, rows

GOLDEN = Path(__file__).parent / "golden"

#: Nothing here exists; the names only have to be well-formed.
FLAGS = (
    "--project=no-such-project",
    "--region=europe-west1",
    "--temp_location=gs://no-such-bucket/temp",
    "--staging_location=gs://no-such-bucket/staging",
    "--sdk_container_image=example.com/crenel:1",
    "--job_name=crenel",
    "--dry_run=True",
    "--no_auth",
)
TOPICS = pubsub.Topics(
    source="pubsub://projects/no-such-project/subscriptions/visits",
    published="pubsub://projects/no-such-project/topics/published",
    suppressed="pubsub://projects/no-such-project/topics/suppressed",
    rejected="pubsub://projects/no-such-project/topics/rejected",
)


def transform() -> dict[str, Any]:
    """Return the shape of `Anonymize` alone."""
    pipeline = beam.Pipeline(runner="FnApiRunner")
    given = pipeline | "Given" >> beam.Create(rows(3), reshuffle=False)
    _ = given | "Anonymize" >> anonymize(shards=4)
    return shape(pipeline.to_runner_api(), own=("Anonymize",))


def dataflow_job() -> dict[str, Any]:
    """Return the shape of the job that would be submitted to Dataflow."""
    made = dry_run()
    return shape(
        made.proto_pipeline, own=("Parse", "Anonymize", "Encode ", "All rejected"), outer=("Read", "Commit ", "Write ")
    )


def dry_run(flags: tuple[str, ...] = FLAGS) -> Any:
    """Launch a dry run, and return Beam's runner after it."""
    from unittest import mock

    from apache_beam.options.pipeline_options import GoogleCloudOptions
    from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner

    left: list[Any] = []
    run_pipeline = DataflowRunner.run_pipeline

    def kept(self: Any, *arguments: Any, **named: Any) -> Any:
        left.append(self)
        return run_pipeline(self, *arguments, **named)

    job = Job(build=lambda p: pubsub.build(p, policy(shards=4), TOPICS), shards=4, flags=flags)
    # This is the only network request that a dry run would send.
    with (
        mock.patch.object(DataflowRunner, "run_pipeline", kept),
        mock.patch.object(GoogleCloudOptions, "_warn_if_soft_delete_policy_enabled", lambda *_: None),
    ):
        dataflow.launch(job)
    return left[0]


def shape(proto: api.Pipeline, own: tuple[str, ...], outer: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the steps whose names begin with `own`, and the outermost steps whose names begin with `outer`."""
    parts = proto.components
    steps = {}
    for step in parts.transforms.values():
        name = step.unique_name
        if name.startswith(own) or (name.startswith(outer) and "/" not in name):
            steps[name] = _step(parts, step)
    needed = [urn for urn in proto.requirements if "stateful" in urn or "timer" in urn]
    return {"requirements": sorted(needed), "steps": dict(sorted(steps.items()))}


def _step(parts: api.Components, step: api.PTransform) -> dict[str, Any]:
    # Beam keeps URNs stable only for primitives.
    urn = step.spec.urn if not step.subtransforms else "composite"
    found: dict[str, Any] = {"urn": urn, "inputs": _edges(parts, step.inputs), "outputs": _edges(parts, step.outputs)}
    if step.spec.urn == "beam:transform:pardo:v1":
        pardo = api.ParDoPayload.FromString(step.spec.payload)
        found["state"] = {name: _state(parts, spec) for name, spec in sorted(pardo.state_specs.items())}
        found["timers"] = {
            name: [api.TimeDomain.Enum.Name(spec.time_domain), _coder(parts, spec.timer_family_coder_id)]
            for name, spec in sorted(pardo.timer_family_specs.items())
        }
    return found


def _state(parts: api.Components, spec: api.StateSpec) -> list[str]:
    kind = spec.WhichOneof("spec")
    inner = getattr(spec, kind)
    coder = inner.element_coder_id if hasattr(inner, "element_coder_id") else inner.coder_id
    return [kind, spec.protocol.urn, _coder(parts, coder)]


def _edges(parts: api.Components, edges: Any) -> dict[str, str]:
    return {tag: _coder(parts, parts.pcollections[name].coder_id) for tag, name in sorted(edges.items())}


def _coder(parts: api.Components, name: str) -> str:
    coder = parts.coders[name]
    inside = [_coder(parts, component) for component in coder.component_coder_ids]
    short = coder.spec.urn.removeprefix("beam:coder:")
    return f"{short}({', '.join(inside)})" if inside else short


#: The golden files by name and version, with the functions that compute their content.
SHAPES: dict[str, Callable[[], dict[str, Any]]] = {"transform.1": transform, "dataflow.1": dataflow_job}


def main() -> int:
    for name, make in SHAPES.items():
        path = GOLDEN / f"{name}.json"
        if not path.exists():
            path.write_text(json.dumps(make(), indent=1) + "\n")
            print(f"wrote {path.relative_to(GOLDEN.parents[2])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
