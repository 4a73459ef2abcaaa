"""Results by name and as the plain PCollection of published rows; and the labels of steps, which are an interface."""

from __future__ import annotations

import pickle
from itertools import groupby, pairwise
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.pipeline import PipelineVisitor
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.testing.test_pipeline import TestPipeline as Pipeline

from crenel import Policy, PolicyError
from crenel.policy.quasi_identifiers import Datetime, Numeric
from crenel.policy.secret import secret_of
from crenel.transforms import Anonymize, AnonymizeBounded, Counts
from crenel.transforms._hold.shard_holder import ShardHolder
from crenel.transforms._pack.row_pack import Packer
from crenel.transforms._publish.publisher import _Column
from tests.transforms.streams import anonymize, keep, kept, policy, rows, run

GIVEN = rows(60)
GIVEN[7]["age"] = -1.0


def labels(pipeline: beam.Pipeline) -> list[str]:
    """Return the full labels of all steps."""
    found = []

    class Visitor(PipelineVisitor):
        def enter_composite_transform(self, node: Any) -> None:
            self.visit_transform(node)

        def visit_transform(self, node: Any) -> None:
            found.append(node.full_label)

    pipeline.visit(Visitor())
    return [label for label in found if label]


def test_labels_are_an_interface() -> None:
    pipeline = beam.Pipeline(runner="FnApiRunner")
    _ = pipeline | "Rows" >> beam.Create([{}]) | anonymize()
    # Savepoints and --update find their state by these labels: never change one.
    assert [label for label in labels(pipeline) if label.startswith("Anonymize")] == [
        "Anonymize",
        "Anonymize/Pack",
        "Anonymize/Pack/ParDo",
        "Anonymize/Hold",
        "Anonymize/Hold/ParDo",
        "Anonymize/Rejected",
        "Anonymize/Counts",
    ]


def test_names_of_state_timers_and_outputs_are_an_interface() -> None:
    pipeline = beam.Pipeline(runner="FnApiRunner")
    _ = pipeline | "Rows" >> beam.Create([{}]) | anonymize()
    proto = pipeline.to_runner_api()
    steps = {step.unique_name: step for step in proto.components.transforms.values()}
    assert sorted(steps["Anonymize/Pack/ParDo"].outputs) == ["None", "counts", "rejected"]
    outputs = ["None", "counts", "rejected", "releases", "suppressed", "trace"]
    assert sorted(steps["Anonymize/Hold/ParDo"].outputs) == outputs
    payload = beam_runner_api_pb2.ParDoPayload.FromString(steps["Anonymize/Hold/ParDo"].spec.payload)
    assert sorted(payload.state_specs) == ["log", "snapshot", "token"]
    assert [spec.WhichOneof("spec") for _, spec in sorted(payload.state_specs.items())] == [
        "bag_spec",
        "read_modify_write_spec",
        "read_modify_write_spec",
    ]
    assert list(payload.timer_family_specs) == ["ts-crenel_deadline"]


class Clinic(beam.PTransform):
    """A user's own composite."""

    def expand(self, given: Any) -> Any:
        return given | anonymize()


def lengths(row: Any, others: list[Any]) -> int:
    return len(others)


@pytest.mark.slow
@pytest.mark.parametrize("transform", [anonymize(), Clinic(), AnonymizeBounded(policy())])
def test_outputs_by_name_and_the_published_rows_by_default(transform: Any) -> None:
    pipeline = Pipeline(runner="FnApiRunner")
    out = pipeline | beam.Create(GIVEN) | transform
    assert out._fields == ("published", "suppressed", "rejected", "releases", "trace", "counts")
    keep(out | "P" >> beam.Map(lambda row: row), "published")
    keep(out.suppressed | "S" >> beam.Map(lambda row: row["number"]), "suppressed")
    keep(out.rejected, "rejected")
    keep(out.releases, "releases")
    keep(out.trace, "trace")
    keep(out.counts, "counts")
    keep((out.published, out.suppressed) | beam.Flatten(), "both")
    # Beam's local runner repeats the elements of a side input from a step with timers. A shuffle prevents that.
    apart = beam.pvalue.AsList(out | beam.Reshuffle())
    keep(pipeline | "One" >> beam.Create([0]) | beam.Map(lengths, apart), "as side input")
    pipeline.run().wait_until_finish()
    assert sorted(row["number"] for row in kept("published")) == [i for i in range(60) if i != 7]
    assert len(kept("both")) == 59 + len(kept("suppressed"))
    assert [row["field"] for row in kept("rejected")] == ["age"]
    assert sum(row["rows"] for row in kept("releases")) == 59
    assert kept("as side input") == [59]
    assert kept("trace") == []
    counts = Counts.of(kept("counts"))
    assert (counts.rows, counts.rejected.total(), sum(counts.kinds)) == (60, 1, 59)
    assert counts.releases == len(kept("releases"))


@pytest.mark.parametrize("transform", [anonymize(), Clinic()])
def test_all_results_survive_the_pipeline_as_a_proto(transform: Any) -> None:
    pipeline = Pipeline(runner="FnApiRunner")
    out = pipeline | beam.Create(GIVEN) | transform
    for name in ("published", "suppressed", "rejected", "releases"):
        keep(getattr(out, name) | name >> beam.Map(lambda row: 1), name)
    again = beam.Pipeline.from_runner_api(pipeline.to_runner_api(), pipeline.runner, pipeline.options)
    again.run().wait_until_finish()
    assert [len(kept(name)) for name in ("published", "rejected")] == [59, 1]
    assert kept("releases")


def test_all_results_are_declared_as_outputs() -> None:
    pipeline = beam.Pipeline(runner="FnApiRunner")
    _ = pipeline | beam.Create(GIVEN) | anonymize()
    (step,) = [s for s in pipeline.to_runner_api().components.transforms.values() if s.unique_name == "Anonymize"]
    assert sorted(step.outputs) == ["counts", "published", "rejected", "releases", "suppressed", "trace"]


def secrets_of(pipeline: beam.Pipeline) -> set[bytes]:
    found = set()

    class Visitor(PipelineVisitor):
        def visit_transform(self, node: Any) -> None:
            if node.full_label.endswith("/Hold/ParDo"):
                found.add(node.transform.fn._secret.root)

    pipeline.visit(Visitor())
    return found


def test_no_two_uses_share_a_secret() -> None:
    once = Anonymize(policy(seed=None))
    pipeline = beam.Pipeline(runner="FnApiRunner")
    given = pipeline | beam.Create(GIVEN)
    for label in ("One", "Two"):
        _ = given | label >> once
    assert len(secrets_of(pipeline)) == 2
    pipeline = beam.Pipeline(runner="FnApiRunner")
    given = pipeline | beam.Create(GIVEN)
    for label in ("One", "Two"):
        _ = given | label >> anonymize()
    assert len(secrets_of(pipeline)) == 1  # both derive it from the seed


def test_a_policy_in_any_form(tmp_path: Any) -> None:
    import yaml

    said = policy().to_dict()
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(said, sort_keys=False))
    for given in (policy(), said, tmp_path / "policy.yaml", str(tmp_path / "policy.yaml")):
        assert Anonymize(given)._policy == policy()
    with pytest.raises(PolicyError, match=r"policy\.k must be an integer of at least 2, not 1"):
        Anonymize({**said, "k": 1})


def test_a_transform_can_be_pickled_and_says_nothing_of_the_seed() -> None:
    transform = anonymize(seed=123_456_789)
    assert isinstance(pickle.loads(pickle.dumps(transform._policy)), Policy)
    assert "123456789" not in repr(transform) + str(transform) + repr(transform.display_data())


@pytest.mark.parametrize(
    "qi",
    [Numeric(), Numeric(step=0.1), Numeric(domain=(-3, 4), step=5), Datetime(step="1h")],
    ids=["as it is", "step", "domain and step", "moments"],
)
def test_a_batch_has_the_ranges_that_rows_have(qi: Any) -> None:
    least, most = qi.geometry.widest()
    lo, hi = np.array([-1.0, -1.0, 0.0, least, np.nan]), np.array([-1.0, 0.0, 0.0, most, np.nan])
    column = _Column(qi)
    found = column.array(lo, hi)
    assert found.type == column.type
    assert found.to_pylist() == column.values(lo, hi)


# --- The order of rows released at one moment ---


def moments(batch: pa.RecordBatch, order: dict[int, int]) -> list[int]:
    """Return the releases of a batch in its order, each as its place in the engine's order of decisions."""
    places = [order[number] for number in batch["number"].to_pylist()]
    return [place for place, _ in groupby(places)]


ROWS: dict[str, Any] = {"delay": None, "delay_rows": 60}


@pytest.mark.parametrize(
    ("step", "changes"), [(Anonymize, ROWS), (AnonymizeBounded, ROWS), (AnonymizeBounded, {"delay": "1d"})]
)
def test_releases_of_one_moment_are_in_random_order(step: Any, changes: dict[str, Any]) -> None:
    """A batch has one timestamp. The order of its rows must not reveal more about their times."""
    of = policy(k=3, **changes)
    given = rows(600)
    holder = ShardHolder(of, secret_of(of), b"0")
    decided: dict[int, int] = {}
    (pack,) = Packer(of, secret_of(of)).pack_dicts(given, None).packs
    for departure in [*holder.push(pack), *holder.flush()]:
        for release in departure.releases:
            numbers = [departure.payload.column("number")[row] for row in release.rows]
            decided |= dict.fromkeys(numbers, len(set(decided.values())))
    out = run([pa.RecordBatch.from_pylist(given)], step(of))
    batches = [moments(left.value, decided) for left in out.published]
    longest = max(batches, key=len)
    assert len(longest) > 30
    # The rows of a release are adjacent, but the order of the releases is random.
    assert len(set(longest)) == len(longest)
    rising = sum(a < b for a, b in pairwise(longest))
    assert abs(rising - len(longest) / 2) < 4.5 * (len(longest) / 12) ** 0.5


def test_the_order_of_releases_depends_on_the_secret() -> None:
    given, orders = [pa.RecordBatch.from_pylist(rows(300))], []
    for seed in (7, 7, 8):
        out = run(given, anonymize(k=3, delay="1d", seed=seed))
        orders.append([left.value["number"].to_pylist() for left in out.published])
    assert orders[0] == orders[1] != orders[2]


def test_rows_that_are_to_leave_in_order_do() -> None:
    of = policy(k=3, delay=None, delay_rows=60, parameters={"reorder": True})
    out = run([pa.RecordBatch.from_pylist(rows(300))], Anonymize(of))
    found = [number for left in out.published for number in left.value["number"].to_pylist()]
    assert found == list(range(300))
