"""The dashboard, the page of names and the code agree. Another test evaluates the queries in a real Prometheus."""

from __future__ import annotations

import json
import re
from pathlib import Path

from crenel.pipelines.metrics.live_figures import LiveFigures
from crenel.runners.job_figures import JobFigures
from tests.pipelines.metrics.dashboard import queries
from tests.pipelines.metrics.test_live_figures import POLICY, counts

DOCS = Path(__file__).resolve().parents[3] / "docs"


def families() -> dict[str, str]:
    """All names that a run may serve, and their kinds."""
    figures = LiveFigures(POLICY, "local", timed=True)
    figures.add(counts())
    found = {family.name: family.kind for family in figures.families()}
    figures.set_job(JobFigures(checkpoint_at=1.0))
    return found | {family.name: family.kind for family in figures.families()}


def test_panels_ask_for_what_is_served() -> None:
    known = families()
    asked = {name for _, query in queries() for name in re.findall(r"crenel_\w+", query)}
    plain = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    assert plain <= set(known)
    # Everything but what says which run it is, and two that are for alarms, has a panel.
    assert set(known) - plain == {
        "crenel_run_info",
        "crenel_run_start_time_seconds",
        "crenel_messages_ignored_total",
        "crenel_checkpoint_bytes",
    }


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    panels = json.loads((DOCS / "grafana-dashboard.json").read_text("utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_page_lists_all_names() -> None:
    page = (DOCS / "metrics.md").read_text("utf-8")
    listed = dict(re.findall(r"^\| `(crenel_(?!watch)\w+)`[^|]*\| (\w+) \|", page, re.MULTILINE))
    assert listed == families()
