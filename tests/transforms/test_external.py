"""Expansion for other languages: requests of Java or Go to Beam's Python expansion service, and its answers."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.portability.api import beam_expansion_api_pb2, beam_runner_api_pb2, schema_pb2
from apache_beam.runners.pipeline_context import PipelineContext
from apache_beam.runners.portability.expansion_service import ExpansionServiceServicer
from apache_beam.transforms.fully_qualified_named_transform import FullyQualifiedNamedTransform
from apache_beam.transforms.window import SlidingWindows

from crenel.transforms.external import Anonymize
from tests.transforms._pack.test_rows import as_rows, as_tuples
from tests.transforms.streams import as_dict, keep, kept, policy, rows

NAME = "crenel.transforms.external.Anonymize"
ALL = ["published", "suppressed", "rejected", "releases"]


def text() -> str:
    import yaml

    return str(yaml.safe_dump(policy().to_dict(), sort_keys=False))


def expanded(**arguments: Any) -> beam_expansion_api_pb2.ExpansionResponse:
    """Return the expansion service's answer for the transform with these arguments, requested by its full name."""
    pipeline = beam.Pipeline(runner="FnApiRunner")
    given = pipeline | "Rows" >> beam.Create(as_rows(rows(5)))
    context = PipelineContext()
    proto = pipeline.to_runner_api(context=context)
    (source,) = [
        pcoll_id
        for pcoll_id, pcoll in proto.components.pcollections.items()
        if pcoll.unique_name == given._unique_name()
    ]
    urn, payload = FullyQualifiedNamedTransform(NAME, (), arguments).to_runner_api_parameter(context)
    request = beam_expansion_api_pb2.ExpansionRequest(
        components=proto.components,
        namespace="external",
        transform=beam_runner_api_pb2.PTransform(
            unique_name="Anonymized",
            spec=beam_runner_api_pb2.FunctionSpec(urn=urn, payload=payload.SerializeToString()),
            inputs={"input": source},
        ),
    )
    with FullyQualifiedNamedTransform.with_filter("crenel.transforms.*"):
        return ExpansionServiceServicer().Expand(request)


def schema_of(response: Any, output: str) -> schema_pb2.Schema:
    """Return the schema with which another language reads an output."""
    coder_id = response.components.pcollections[response.transform.outputs[output]].coder_id
    coder = response.components.coders[coder_id]
    assert coder.spec.urn == "beam:coder:row:v1"
    return schema_pb2.Schema.FromString(coder.spec.payload)


def test_all_results_have_names_and_schemas() -> None:
    response = expanded(policy=text(), outputs=ALL)
    assert not response.error
    assert sorted(response.transform.outputs) == sorted(ALL)
    fields = {field.name: field.type for field in schema_of(response, "published").fields}
    assert list(fields) == ["age", "zipcode", "education", "disease", "number"]
    assert [field.name for field in fields["age"].row_type.schema.fields] == ["lo", "hi"]
    assert fields["zipcode"].atomic_type == schema_pb2.STRING
    assert fields["number"].atomic_type == schema_pb2.INT64
    assert [field.name for field in schema_of(response, "rejected").fields] == ["row", "field", "reason"]
    assert [field.name for field in schema_of(response, "releases").fields] == [
        *("shard", "kind", "rows", "persons", "loss", "moment", "arrivals", "group")
    ]


def test_names_of_outputs_may_be_one_text() -> None:
    """In Java, passing a list needs a class of its own; a comma-separated text does not."""
    assert sorted(expanded(policy=text(), outputs="published, rejected").transform.outputs) == ["published", "rejected"]


def test_the_published_rows_alone_by_default() -> None:
    response = expanded(policy=text())
    assert not response.error
    assert len(response.transform.outputs) == 1
    names = {step.unique_name.rsplit("/", 1)[-1] for step in response.components.transforms.values()}
    assert {"Pack", "Hold"} <= names


def test_state_and_timers_are_asked_for() -> None:
    response = expanded(policy=text())
    assert common_requirements() <= set(response.requirements)


def common_requirements() -> set[str]:
    from apache_beam.portability import common_urns

    return {common_urns.requirements.REQUIRES_STATEFUL_PROCESSING.urn}


def test_a_mistake_comes_back_as_a_sentence() -> None:
    response = expanded(policy=text().replace("k: 4", "k: four"))
    assert "policy.k must be an integer of at least 2, not 'four'." in response.error
    response = expanded(policy=text(), outputs=["publishd"])
    assert "outputs must be some of published, suppressed, rejected, releases, trace, not 'publishd'" in response.error
    assert "did you mean 'published'?" in response.error


def test_it_runs() -> None:
    from apache_beam.testing.test_pipeline import TestPipeline as Pipeline

    pipeline = Pipeline(runner="FnApiRunner")
    out = pipeline | beam.Create(as_tuples(rows(40))) | Anonymize(text(), outputs=ALL)
    for name in ALL:
        keep(out[name] | f"{name} goes on" >> beam.Reshuffle(), name)
    pipeline.run().wait_until_finish()
    assert sorted(as_dict(row)["number"] for row in kept("published")) == list(range(40))
    assert sum(row.rows for row in kept("releases")) == 40


@pytest.mark.parametrize("wrong", [{}, {"output": 1}, {"output": "broken", "threshold": 1}])
def test_error_handling_of_another_form_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="error_handling must have the name of an output"):
        Anonymize(text(), error_handling=wrong)


def test_windows_that_overlap_are_asked_for_by_name() -> None:
    pipeline = beam.Pipeline(runner="FnApiRunner")
    given = pipeline | beam.Create(as_tuples(rows(5))) | beam.WindowInto(SlidingWindows(20, 10))
    with pytest.raises(ValueError, match="windows must not overlap"):
        _ = given | Anonymize(text())
    _ = given | "Asked for" >> Anonymize(text(), overlapping_windows=True)
    assert not expanded(policy=text(), overlapping_windows=True).error


def test_ranges_may_be_columns() -> None:
    response = expanded(policy=text(), ranges="columns")
    (output,) = response.transform.outputs
    names = [field.name for field in schema_of(response, output).fields]
    assert {"age_lo", "age_hi"} <= set(names)
    assert "age" not in names
    with pytest.raises(ValueError, match=r"ranges must be 'columns', 'text' or 'struct', not 'column'"):
        beam.Pipeline() | beam.Create(as_rows(rows(5))) | Anonymize(policy=text(), ranges="column")
    with pytest.raises(ValueError, match=r"trace needs row_number"):
        beam.Pipeline() | beam.Create(as_rows(rows(5))) | Anonymize(policy=text(), outputs="trace")
