"""The dashboard of the documentation, as its panels ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

__all__ = ["FLINK_ONLY", "queries"]

_FILE = Path(__file__).resolve().parents[3] / "docs" / "grafana-dashboard.json"
#: Names of figures that only a run on Flink has.
FLINK_ONLY = ("crenel_checkpoint_",)


def queries() -> Iterator[tuple[str, str]]:
    """The title of each panel and each of its expressions, with Grafana's variables filled in."""
    for panel in json.loads(_FILE.read_text("utf-8"))["panels"]:
        for target in panel["targets"]:
            filled = target["expr"].replace("$__rate_interval", "20s").replace("$job", ".*").replace("$instance", ".*")
            assert "$" not in filled, "a variable that is not filled in"
            yield panel["title"], filled
