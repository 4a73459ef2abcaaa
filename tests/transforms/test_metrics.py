"""The metrics add up, and say nothing of anybody."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms.window import FixedWindows, SlidingWindows

from crenel.transforms import AnonymizeBounded
from tests.transforms.streams import Stamped, anonymize, policy, rows, run

ROOT = Path(__file__).resolve().parents[2]


def name(windows: Any) -> str:
    """What a test is called by: no address, which would be another in each process."""
    return type(windows).__name__


@pytest.fixture(scope="module")
def given() -> list[dict[str, Any]]:
    made = rows(400, persons=100)
    made[3]["age"] = 1_000.0
    made[4]["age"] = None
    made[5]["zipcode"] = "5"
    made[6]["age"] = 2_000.0
    return made


@pytest.mark.parametrize("window", [None, FixedWindows(600), SlidingWindows(1200, 600)], ids=name)
@pytest.mark.parametrize("changes", [{}, {"on_suppress": "drop"}, {"shards": 4}], ids=str)
def test_rows_add_up(given: list[dict[str, Any]], window: Any, changes: dict[str, Any]) -> None:
    out = run(Stamped(given), anonymize(overlapping_windows=True, **changes), window=window)
    count = {name: out.counter(name) for name in ("rows", "published", "suppressed", "rejected", "sampled_out")}
    assert count["rows"] == (len(given) if not isinstance(window, SlidingWindows) else 2 * len(given))
    assert count["rows"] == sum(count[name] for name in ("published", "suppressed", "rejected", "sampled_out"))
    assert count["suppressed"] == len(out.suppressed)
    starred = 0 if changes.get("on_suppress") == "drop" else count["suppressed"]
    assert count["published"] + starred == len(out.published)
    assert out.counter("releases") == len(out.releases)


def test_rejected_by_reason(given: list[dict[str, Any]]) -> None:
    out = run(given, anonymize())
    assert out.counter("rejected") == 4
    assert out.counter("rejected: outside the domain") == 2
    assert out.counter("rejected: missing (method partition takes rows with holes)") == 1
    assert out.counter("rejected: wrong length") == 1


def test_distributions(given: list[dict[str, Any]]) -> None:
    out = run(given, anonymize())
    groups = [left.value for left in out.releases if left.value["kind"] == "cluster"]
    size, loss = out.distribution("group_size"), out.distribution("loss_millionths")
    assert (size.count, size.sum, size.min) == (
        len(groups),
        sum(group["rows"] for group in groups),
        min(group["rows"] for group in groups),
    )
    assert loss.max == int(max(group["loss"] for group in groups) * 1_000_000)
    assert 0 < out.distribution("delay_ms").max <= 600_000
    held = out.distribution("held_rows")
    # Sixty rows arrive within a delay; at the end there are none.
    assert held.min == 0
    assert 30 < held.max < 90


def test_names_are_all_there_is(given: list[dict[str, Any]]) -> None:
    out = run(given, anonymize())
    found = out.result.metrics().query(beam.metrics.MetricsFilter().with_namespace("crenel"))
    names = {metric.key.metric.name for kind in found.values() for metric in kind}
    assert names == {
        "rows",
        "published",
        "suppressed",
        "rejected",
        "rejected: missing (method partition takes rows with holes)",
        "rejected: outside the domain",
        "rejected: wrong length",
        "releases",
        "group_size",
        "loss_millionths",
        "delay_ms",
        "held_rows",
    }


def test_bounded_rows_are_counted_by_the_same_names(given: list[dict[str, Any]]) -> None:
    stateful, bounded = run(given, anonymize()), run(given, AnonymizeBounded(policy()))
    names = [
        {metric.key.metric.name for kind in found.values() for metric in kind}
        for found in (
            out.result.metrics().query(beam.metrics.MetricsFilter().with_namespace("crenel"))
            for out in (stateful, bounded)
        )
    ]
    assert names[0] == names[1]
    # Pushed at once, so that only what is held behind the last row, and after all, is looked at.
    assert bounded.distribution("held_rows").min == 0


def test_the_page_lists_what_the_code_counts() -> None:
    """A name in the code is on the page, and the other way round."""
    named = set()
    for folder in ("transforms", "pipelines"):
        for path in (ROOT / folder).glob("*.py"):
            for call in re.findall(r"Metrics\.(?:counter|distribution)\(NAMESPACE, (.+)", path.read_text("utf-8")):
                named |= {re.sub(r"\{.*\}", "<reason>", name) for name in re.findall(r'"([^"]+)"', call)}
    page = (ROOT / "docs" / "transform.md").read_text("utf-8")
    assert {f"crenel/{name}" for name in named} == set(re.findall(r"^\| `(crenel/[^`]+)` \| ", page, re.MULTILINE))
