"""The same rows on every available runner: all promises hold, and the releases are the same."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from tests.transforms.streams import anonymize, check, policy, rows, run, stream

GIVEN = rows(500)
FIRST = GIVEN[0]["seen"]


@pytest.fixture(scope="module")
def expected() -> Any:
    return run(GIVEN, anonymize(delay_rows=200))


def in_process(tmp_path: Path) -> Any:
    return run(GIVEN, anonymize(delay_rows=200))


def every_bundle_twice(tmp_path: Path) -> Any:
    """Roll back the state after every bundle, and process the bundle again."""
    return run(GIVEN, anonymize(delay_rows=200), options={"direct_runner_bundle_repeat": 1})


def as_a_stream(tmp_path: Path) -> Any:
    parts: list[Any] = []
    for start in range(0, len(GIVEN), 60):
        parts += [GIVEN[start : start + 60], GIVEN[min(start + 60, len(GIVEN) - 1)]["seen"] - 1]
    return run(stream([*parts, FIRST + 90_000]), anonymize(delay_rows=200), runner="BundleBasedDirectRunner")


@pytest.fixture(params=[in_process, every_bundle_twice, as_a_stream], ids=lambda way: way.__name__)
def runner(request: pytest.FixtureRequest) -> Any:
    """A way to run the rows. Running in several processes is slow, and has its own test below."""
    return request.param


@pytest.mark.slow
def test_every_promise_on_every_runner(runner: Any, expected: Any, tmp_path: Path) -> None:
    out = runner(tmp_path)
    check(policy(delay_rows=200), GIVEN, out.published, out.suppressed)
    # The order of bundles may differ between runners, but what each row is published as may not.
    numbered = {left.value["number"]: left.value for left in expected.published}
    assert {left.value["number"]: left.value for left in out.published} == numbered
    assert sorted(map(str, (left.value for left in out.releases))) == sorted(
        map(str, (left.value for left in expected.releases))
    )


@pytest.mark.slow
def test_a_key_moves_between_processes(tmp_path: Path) -> None:
    """Bundles alternate between two processes without a state cache, and each must read what the other wrote."""
    options = PipelineOptions([], direct_num_workers=2, direct_running_mode="multi_processing")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        pipeline = beam.Pipeline(runner="DirectRunner", options=options)
        # Both processes read some of these groups of rows, so that a shard gets packs from both.
        given = pipeline | beam.Create([GIVEN[i : i + 50] for i in range(0, 500, 50)]) | beam.FlatMap(list)
        out = given | anonymize(shards=3, disorder="2h")
    for name in ("published", "suppressed"):
        text = getattr(out, name) | f"{name} as text" >> beam.Map(json.dumps)
        _ = text | f"Write {name}" >> beam.io.WriteToText(str(tmp_path / name), shard_name_template="")
    pipeline.run().wait_until_finish()
    published, suppressed = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("published", "suppressed")
    )
    assert sorted(row["number"] for row in published) == list(range(500))
    hidden = {row["number"] for row in suppressed}
    groups: dict[str, set[str]] = {}
    for row in published:
        box = str([row[name] for name in policy().quasi_identifiers])
        groups.setdefault(box, set()).add(GIVEN[row["number"]]["patient"])
        if row["number"] in hidden:
            groups.pop(box)
    assert groups and min(map(len, groups.values())) >= policy().k


# --- The warning ---


def built(**options: Any) -> list[str]:
    """Build a pipeline with these options; return the warnings about stale state."""
    runner = options.pop("runner", "DirectRunner")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pipeline = beam.Pipeline(runner=runner, options=PipelineOptions([], **options))
        _ = pipeline | beam.Create(GIVEN) | anonymize()
    return [str(warning.message) for warning in caught if "stale state" in str(warning.message)]


@pytest.mark.parametrize(
    "options",
    [
        {"direct_num_workers": 2},
        {"direct_num_workers": 0},
        {"direct_num_workers": 2, "direct_running_mode": "multi_threading"},
        {"direct_num_workers": 2, "direct_running_mode": "multi_processing", "max_cache_memory_usage_mb": 100},
        {"direct_num_workers": 2, "direct_running_mode": "multi_processing", "experiments": ["state_cache_size=10"]},
        {"direct_num_workers": 2, "runner": "FnApiRunner"},
    ],
    ids=str,
)
def test_options_that_lead_to_stale_state_give_a_warning(options: dict[str, Any]) -> None:
    (message,) = built(**options)
    assert "Use one worker, or direct_running_mode=multi_processing without max_cache_memory_usage_mb" in message


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"direct_num_workers": 1, "max_cache_memory_usage_mb": 100},
        {"direct_num_workers": 2, "direct_running_mode": "multi_processing"},
        {"direct_num_workers": 2, "runner": "FlinkRunner"},
    ],
    ids=str,
)
def test_other_options_give_no_warning(options: dict[str, Any]) -> None:
    assert built(**options) == []
