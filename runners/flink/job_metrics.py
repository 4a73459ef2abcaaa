"""What the steps of a job count, as the cluster's REST service tells it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from urllib.parse import quote

from crenel.runners.flink.cluster import Rest

__all__ = ["JobMetrics"]

#: Flink's names of crenel's metrics: the operator's, and then these.
_LAG = re.compile(r"\.crenel_lag_\d+$")
_DEAD = re.compile(r"\.crenel_dead_letters$")


class JobMetrics:
    """Figures of a job, added up over its tasks.

    The JobManager collects metrics when it is asked for them, so the first answer is empty, and others are some seconds
    old.

    Args:
        rest: The cluster's REST service.
        job: The id of the job.
    """

    def __init__(self, rest: Rest, job: str) -> None:
        self._rest = rest
        self._job = job
        #: How many records of the input are not read yet; None if it is not known.
        self.lag: int | None = None
        #: Records that topics have refused since the last restart.
        self.dead_letters = 0

    def read(self, vertices: Sequence[str]) -> None:
        """Read the figures; without an answer they stay as they were."""
        try:
            found = {name: value for vertex in vertices for name, value in self._figures(vertex)}
        except (OSError, json.JSONDecodeError, KeyError, ValueError):
            return
        lags = [value for name, value in found.items() if _LAG.search(name)]
        self.lag = int(sum(lags)) if lags else None
        self.dead_letters = int(sum(value for name, value in found.items() if _DEAD.search(name)))

    def _figures(self, vertex: str) -> list[tuple[str, float]]:
        path = f"/jobs/{self._job}/vertices/{vertex}/subtasks/metrics"
        names = [one["id"] for one in self._rest.get(path) if _LAG.search(one["id"]) or _DEAD.search(one["id"])]
        if not names:
            return []
        asked = quote(",".join(names), safe="")
        return [(one["id"], float(one["sum"])) for one in self._rest.get(f"{path}?agg=sum&get={asked}")]
