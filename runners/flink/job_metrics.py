"""What the steps of a job count, as the cluster's REST service tells it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from crenel.runners.flink.cluster import Rest

__all__ = ["JobMetrics"]

#: Flink's names of crenel's metrics: the operator's, and then these, with _ for all that is no letter or digit.
_LAG = re.compile(r"\.crenel_lag_(\d+)$")
_COUNTER = re.compile(r"\.crenel_(\w+)$")
_DEAD = "dead letters"


class JobMetrics:
    """Figures of a job, added up over its tasks.

    The JobManager collects metrics when it is asked for them, so the first answer is empty, and others are some seconds
    old.

    Args:
        rest: The cluster's REST service.
        job: The id of the job.
        counters: Names of counters of the namespace `crenel` that somebody wants to know.
    """

    def __init__(self, rest: Rest, job: str, counters: Iterable[str] = ()) -> None:
        self._rest = rest
        self._job = job
        self._wanted = {re.sub(r"\W", "_", name): name for name in (_DEAD, *counters)}
        #: What was counted since the last restart.
        self.counters: Counter[str] = Counter()
        #: How many records of each partition are not read yet, as far as it is known.
        self.lags: dict[int, int] = {}

    @property
    def lag(self) -> int | None:
        """How many records of the input are not read yet; None if it is not known."""
        return sum(self.lags.values()) if self.lags else None

    @property
    def dead_letters(self) -> int:
        """Records that topics have refused since the last restart."""
        return self.counters[_DEAD]

    def read(self, vertices: Sequence[str]) -> None:
        """Read the figures; without an answer they stay as they were."""
        try:
            found = {name: value for vertex in vertices for name, value in self._figures(vertex)}
        except (OSError, json.JSONDecodeError, KeyError, ValueError):
            return
        counters, lags = Counter[str](), Counter[int]()
        for name, value in found.items():
            if lag := _LAG.search(name):
                lags[int(lag[1])] += int(value)
            elif counter := _COUNTER.search(name):
                counters[self._wanted[counter[1]]] += int(value)
        self.counters, self.lags = counters, dict(lags)

    def _figures(self, vertex: str) -> list[tuple[str, float]]:
        path = f"/jobs/{self._job}/vertices/{vertex}/subtasks/metrics"
        names = [one["id"] for one in self._rest.get(path) if self._is_wanted(one["id"])]
        if not names:
            return []
        asked = quote(",".join(names), safe="")
        return [(one["id"], float(one["sum"])) for one in self._rest.get(f"{path}?agg=sum&get={asked}")]

    def _is_wanted(self, name: str) -> bool:
        counter = _COUNTER.search(name)
        return bool(_LAG.search(name)) or (counter is not None and counter[1] in self._wanted)
