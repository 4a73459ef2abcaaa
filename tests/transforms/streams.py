"""Streams for the tests of transforms: rows, a policy, ways to run them, and an audit of the output."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.test_stream import TestStream
from apache_beam.testing.util import TestWindowedValue, assert_that
from apache_beam.transforms.window import TimestampedValue

from crenel.audit import Published, Report, audit
from crenel.encoding import tree_learning
from crenel.encoding.encoder import Encoder
from crenel.policy import Policy
from crenel.transforms import Anonymize

EDUCATION = {"any": {"school": ["primary", "secondary"], "higher": ["bachelor", "master"]}}
DISEASES = ("flu", "gout", "mumps", "croup")

#: A column that the policy does not name.
UNNAMED = "nickname"

SECOND = 1_000_000


def policy(**changes: Any) -> Policy:
    """Return a policy with every kind of column. It publishes `number`, by which tests find rows again."""
    said: dict[str, Any] = {
        "version": 1,
        "person": "patient",
        "event_time": "seen",
        "quasi_identifiers": {
            "age": {"type": "numeric", "domain": [0, 100]},
            "zipcode": {"type": "prefix", "length": 5},
            "education": {"type": "categorical", "hierarchy": EDUCATION},
        },
        "sensitive": ["disease"],
        "publish": ["number"],
        "k": 4,
        "delay": "10m",
        "method": "castle",
        "on_suppress": "star",
        "seed": 7,
    }
    said |= changes
    return Policy.from_dict({name: value for name, value in said.items() if value is not None})


def with_tree(of: Policy, given: Sequence[Mapping[str, Any]], shards: int) -> Policy:
    """Return the policy with a tree of shards that is learned from these rows."""
    batch = {name: [row.get(name) for row in given] for name in given[0]}
    sample = Encoder(of).encode(batch).rows
    return tree_learning.with_tree(of, tree_learning.learn_tree(of, sample, shards))


def rows(count: int, *, seed: int = 1, every: float = 10.0, persons: int | None = None) -> list[dict[str, Any]]:
    """Return rows in the order of their event times, `every` seconds apart."""
    draw = random.Random(seed)
    leaves = [leaf for group in EDUCATION["any"].values() for leaf in group]
    return [
        {
            "patient": f"patient-{draw.randrange(persons or count)}",
            "seen": 1_000_000.0 + i * every,
            "age": float(draw.randrange(101)),
            "zipcode": f"{draw.randrange(53_000, 54_000)}",
            "education": draw.choice(leaves),
            "disease": draw.choice(DISEASES),
            "number": i,
            UNNAMED: f"nick-{draw.randrange(10**9)}",
        }
        for i in range(count)
    ]


# --- Output ---


class Left(NamedTuple):
    """One element of an output: its value, timestamp in microseconds, and window."""

    value: Any
    timestamp: int
    window: Any


class Outcome(NamedTuple):
    """All outputs of a run."""

    published: list[Left]
    suppressed: list[Left]
    rejected: list[Left]
    releases: list[Left]
    trace: list[Left]
    counts: list[Left]
    result: Any

    def counter(self, name: str) -> int:
        """Return the value of one of crenel's counters, summed over all steps."""
        found = self.result.metrics().query(beam.metrics.MetricsFilter().with_namespace("crenel"))
        return sum(metric.committed for metric in found["counters"] if metric.key.metric.name == name)

    def distribution(self, name: str) -> Any:
        """Return one of crenel's distributions."""
        found = self.result.metrics().query(beam.metrics.MetricsFilter().with_namespace("crenel"))
        (metric,) = [m for m in found["distributions"] if m.key.metric.name == name]
        return metric.committed


#: The Prism binary if all pipelines must run on Prism, else None.
ON_PRISM: str | None = None

NAMES = ("published", "suppressed", "rejected", "releases", "trace", "counts")
_KEPT: dict[str, list[Any]] = {}


class _Keep:
    """A matcher that keeps all elements. A second call, as when a bundle is replayed, keeps the same ones."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, actual: Iterable[TestWindowedValue]) -> None:
        _KEPT[self.name] = [Left(element.value, element.timestamp.micros, element.windows[0]) for element in actual]


class _Append(beam.DoFn):
    """A cheap sink without a GroupByKey, in which some runners lose what a timer emits at the end of time."""

    def __init__(self, name: str) -> None:
        self.name = name

    def process(
        self, element: Any, timestamp: Any = beam.DoFn.TimestampParam, window: Any = beam.DoFn.WindowParam
    ) -> None:
        _KEPT[self.name].append(Left(element, timestamp.micros, window))


def run(
    source: beam.PTransform | Sequence[Any],
    transform: beam.PTransform,
    *,
    window: Any = None,
    options: Mapping[str, Any] | None = None,
    runner: str = "FnApiRunner",
) -> Outcome:
    """Run rows through a transform in this process, and return all its outputs."""
    _KEPT.clear()
    _KEPT.update({name: [] for name in NAMES})
    if ON_PRISM is not None:
        runner, options = "PrismRunner", {**(options or {}), "prism_location": ON_PRISM}
    pipeline = TestPipeline(runner=runner, options=PipelineOptions([], **(options or {})), blocking=True)
    if not isinstance(source, beam.PTransform):
        source = beam.Create(source, reshuffle=False)
    given = pipeline | "Source" >> source
    if window is not None:
        given = given | "Window" >> beam.WindowInto(window)
    anonymized = given | "Anonymize" >> transform
    for name in NAMES:
        # A replayed bundle would append its elements twice.
        keep(getattr(anonymized, name), name, at_once="direct_runner_bundle_repeat" not in (options or {}))
    result = pipeline.run()
    result.wait_until_finish()
    return Outcome(*(list(_KEPT[name]) for name in NAMES), result)


def keep(pcoll: beam.PCollection, name: str, *, at_once: bool = False) -> None:
    """Keep the elements under a name."""
    if at_once:
        _ = pcoll | f"Keep {name}" >> beam.ParDo(_Append(name))
    else:
        assert_that(pcoll, _Keep(name), label=f"Keep {name}", reify_windows=True)


def kept(name: str) -> list[Any]:
    """Return the values kept under a name."""
    return [left.value for left in _KEPT[name]]


# --- Sources ---


def timestamped(given: Sequence[dict[str, Any]]) -> list[TimestampedValue]:
    """Return rows as elements whose Beam timestamp is their column `seen`."""
    return [TimestampedValue(row, row["seen"]) for row in given]


class Stamp(beam.DoFn):
    """Sets each row's Beam timestamp to its column `seen`."""

    def process(self, element: dict[str, Any]) -> Iterator[TimestampedValue]:
        yield TimestampedValue(element, element["seen"])


class Stamped(beam.PTransform):
    """A bounded source of rows with Beam timestamps."""

    def __init__(self, given: Sequence[dict[str, Any]]) -> None:
        super().__init__()
        self.given = given

    def expand(self, begin: Any) -> Any:
        return begin | beam.Create(self.given, reshuffle=False) | beam.ParDo(Stamp())


def stream(parts: Iterable[Sequence[dict[str, Any]] | float]) -> TestStream:
    """Return a stream: lists of rows are bundles, numbers are watermarks in seconds. It ends at the end of time."""
    made = TestStream()
    for part in parts:
        if isinstance(part, (int, float)):
            made = made.advance_watermark_to(part)
        else:
            made = made.add_elements(timestamped(part))
    return made.advance_watermark_to_infinity()


# --- Audit ---


def as_dict(value: Any) -> dict[str, Any]:
    """Convert a published row of any kind to a dict, and its ranges to dicts."""
    plain = value if isinstance(value, dict) else value._asdict()
    return {name: as_dict(inner) if hasattr(inner, "_asdict") else inner for name, inner in plain.items()}


def as_dicts(left: Iterable[Left]) -> list[dict[str, Any]]:
    """Convert elements of any kind, including batches, to dicts."""
    found = [one.value.to_pylist() if isinstance(one.value, pa.RecordBatch) else [as_dict(one.value)] for one in left]
    return [row for some in found for row in some]


def span(name: str, value: Any) -> tuple[float, float]:
    """Return the coordinates that a published value covers, computed without the library."""
    if value is None:
        return math.nan, math.nan
    if name == "age":
        return value["lo"], value["hi"]
    if name == "zipcode":
        return float(value.replace("*", "0")), float(value.replace("*", "9"))
    leaves = [leaf for group in EDUCATION["any"].values() for leaf in group]
    under = {"any": leaves, **EDUCATION["any"], **{leaf: [leaf] for leaf in leaves}}[value]
    places = [leaves.index(leaf) for leaf in under]
    return float(min(places)), float(max(places))


def judge(
    of: Policy, given: Sequence[dict[str, Any]], published: Sequence[Left], suppressed: Sequence[Any], **known: Any
) -> Report:
    """Audit the published rows of one shard and window."""
    encoded = Encoder(of).encode({name: [row.get(name) for row in given] for name in given[0]})
    assert not encoded.rejected
    place = {row["number"]: i for i, row in enumerate(given)}
    found = [as_dict(left.value) for left in published]
    hidden = {as_dict(left.value)["number"] for left in suppressed}
    boxes = np.array([[span(name, row[name]) for name in of.quasi_identifiers] for row in found])
    boxes = boxes.reshape(len(found), len(of.quasi_identifiers), 2)
    return audit(
        of,
        encoded.rows,
        Published(
            rows=np.array([place[row["number"]] for row in found], dtype=np.int64),
            lo=boxes[:, :, 0],
            hi=boxes[:, :, 1],
            kind=np.array([2 if row["number"] in hidden else 0 for row in found]),
            moment=np.array([left.timestamp for left in published]),
        ),
        **known,
    )


#: Parts of audit messages that the published rows alone cannot settle.
UNTOLD = (
    "before they arrived",
    "further than t",
    "delay_rows",
    "wrong loss",
    "wrong number of persons",
    "at one moment",
    "a person is more than once",
)


def check(
    of: Policy, given: Sequence[dict[str, Any]], published: Sequence[Left], suppressed: Sequence[Any], **known: Any
) -> Report:
    """Check that every row of one shard and window was published once, in a group, by its deadline."""
    report = judge(of, given, published, suppressed, **known)
    assert report.problems() == []
    assert [text for text in report.unchecked() if not any(known in text for known in UNTOLD)] == []
    assert report.published + report.suppressed == len(given)
    return report


def anonymize(*, overlapping_windows: bool = False, **changes: Any) -> Anonymize:
    """Return the transform for the policy with these changes."""
    return Anonymize(policy(**changes), overlapping_windows=overlapping_windows)
