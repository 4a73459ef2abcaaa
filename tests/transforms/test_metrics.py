"""The metrics add up, and reveal nothing about any person."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms.window import FixedWindows, SlidingWindows

from crenel.transforms import Anonymize, AnonymizeBounded
from crenel.transforms._publish.counts import LONGER, ROW_LOSS, WAITED, WAITS, Counts, waited_up_to
from tests.transforms.streams import Stamped, anonymize, policy, rows, run, with_tree

ROOT = Path(__file__).resolve().parents[2]


def name(windows: Any) -> str:
    """Return a test id without a memory address, which would differ between processes."""
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
    assert out.counter("rejected: missing (missing: category takes it)") == 1
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
    # Sixty rows arrive within one delay; at the end no row is held.
    assert held.min == 0
    assert 30 < held.max < 90


def without_a_crowd(out: Any, k: int, *, star: bool) -> int:
    """Count the published rows of releases that are not a crowd, from the records of the releases."""
    records = [left.value for left in out.releases]
    return sum(
        record["rows"]
        for record in records
        if record["kind"] == "reuse"
        or (record["kind"] == "suppressed" and star)
        or (record["kind"] == "cluster" and not k <= record["persons"] == record["rows"])
    )


@pytest.mark.parametrize("star", [True, False], ids=["star", "drop"])
@pytest.mark.parametrize("method", [Anonymize, AnonymizeBounded], ids=lambda method: str(method.__name__))
def test_rows_that_leave_without_a_crowd_are_counted(method: Any, star: bool) -> None:
    # The first rows are alone within their delay. Then a delay has fewer persons than rows, so that castle's groups
    # contain some persons twice.
    crowded = [{**row, "seen": row["seen"] + 20_000.0} for row in rows(300, persons=30)]
    given = rows(3, seed=2, every=4_000.0) + crowded
    said = policy(on_suppress="star" if star else "drop", parameters={"reuse": "uniform"}, k=8)
    out = run(given, method(said))
    kinds = {left.value["kind"] for left in out.releases}
    assert {"cluster", "reuse", "suppressed"} <= kinds
    twice = [left.value for left in out.releases if left.value["kind"] == "cluster"]
    assert any(record["persons"] < record["rows"] for record in twice)
    assert out.counter("alone") == without_a_crowd(out, 8, star=star) > 0


def test_no_row_of_a_crowd_is_counted_as_alone() -> None:
    said = policy(method="bastion", parameters={"reuse": "off"}, on_suppress="drop")
    out = run(rows(300), Anonymize(said))
    assert out.counter("published") > 200
    assert out.counter("alone") == 0


def test_a_release_that_is_cut_into_several_is_no_crowd() -> None:
    """With `reorder`, rows are released one after another in the order of the input, whatever their group."""
    said = policy(parameters={"reuse": "off", "reorder": True}, on_suppress="drop")
    out = run(rows(300), Anonymize(said))
    cut = sum(left.value["rows"] for left in out.releases if left.value["rows"] < 4 and left.value["kind"] == "cluster")
    assert out.counter("alone") == cut > 100


def test_a_release_of_rows_of_two_kinds_is_one() -> None:
    """A release that contains both dicts and Beam rows has one record for each kind, but is one crowd."""
    said = policy(method="bastion", parameters={"reuse": "off"}, on_suppress="drop")
    given = [beam.Row(**row) if i % 2 else row for i, row in enumerate(rows(300))]
    out = run(given, Anonymize(said))
    parts = [left.value for left in out.releases if left.value["kind"] == "cluster"]
    assert any(part["rows"] < part["persons"] for part in parts)
    assert out.counter("alone") == 0


def test_the_leaves_of_a_tree_are_counted(given: list[dict[str, Any]]) -> None:
    of = with_tree(policy(), given[10:], 3)
    out = run(given, Anonymize(of))
    counts = [out.counter(f"rows of shard {shard}") for shard in range(3)]
    assert min(counts) > 60 and sum(counts) == out.counter("rows") - out.counter("rejected")


def test_waits_and_losses_are_those_of_the_counts(given: list[dict[str, Any]]) -> None:
    out = run(Stamped(given), anonymize())
    counts = Counts.of(record.value for record in out.counts)
    assert [out.counter(waited_up_to(bound)) for bound in WAITS] == counts.waits[:-1]
    assert sum(counts.waits) == out.counter("published") + out.counter("suppressed")
    assert counts.waits[WAITS.index(300)] > 0 == out.counter(LONGER) == counts.waits[-1]
    assert out.counter(WAITED) == pytest.approx(counts.delay.total / 1000, abs=100)
    assert out.counter(ROW_LOSS) == pytest.approx(counts.loss * 1_000_000, abs=100)


def test_there_are_no_other_metrics(given: list[dict[str, Any]]) -> None:
    out = run(given, anonymize())
    found = out.result.metrics().query(beam.metrics.MetricsFilter().with_namespace("crenel"))
    names = {metric.key.metric.name for kind in found.values() for metric in kind}
    assert {name for name in names if not name.startswith("waited up to ")} == {
        "rows",
        "published",
        "suppressed",
        "alone",
        "rejected",
        "rejected: missing (missing: category takes it)",
        "rejected: outside the domain",
        "rejected: wrong length",
        "releases",
        "group_size",
        "loss_millionths",
        "delay_ms",
        "held_rows",
        WAITED,
        ROW_LOSS,
    }


def test_bounded_rows_are_counted_by_the_same_names(given: list[dict[str, Any]]) -> None:
    stateful, bounded = run(given, anonymize()), run(given, AnonymizeBounded(policy()))
    names = [
        {
            metric.key.metric.name
            for kind in found.values()
            for metric in kind
            if not metric.key.metric.name.startswith("waited up to ")
        }
        for found in (
            out.result.metrics().query(beam.metrics.MetricsFilter().with_namespace("crenel"))
            for out in (stateful, bounded)
        )
    ]
    assert names[0] == names[1]
    # All rows are pushed at once, so held rows are counted only after that push and at the end.
    assert bounded.distribution("held_rows").min == 0


def test_the_page_lists_what_the_code_counts() -> None:
    """Every name in the code is on the page, and every name on the page is in the code."""
    named = {WAITED, LONGER, ROW_LOSS, re.sub(r"\d+", "<changes>", waited_up_to(1))}
    for folder in ("transforms", "pipelines"):
        for path in (ROOT / folder).rglob("*.py"):
            for call in re.findall(
                r"Metrics\.(?:counter|distribution|gauge)\(NAMESPACE, (.+)", path.read_text("utf-8")
            ):
                named |= {re.sub(r"\{.*\}", "<changes>", name) for name in re.findall(r'"([^"]+)"', call)}
    page = (ROOT / "docs" / "transform.md").read_text("utf-8")
    listed = re.findall(r"^\| `crenel/([^`]+)` \| ", page, re.MULTILINE)
    assert named == {re.sub("<.*>", "<changes>", name) for name in listed}
