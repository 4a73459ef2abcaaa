"""The figures of a run while it goes on: counts only, no value and no person.

Steps of a run on this machine report through a `Tap`, which can be pickled with them. On Flink the job's own counters
are read from the cluster.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import crenel
from crenel.engine import Kind
from crenel.pipelines.metrics.exposition import Family, Sample, counter, gauge, histogram
from crenel.policy import Policy
from crenel.runners.job_figures import JobFigures
from crenel.transforms import Counts
from crenel.transforms._pack.text_columns import named_columns
from crenel.transforms._publish.counts import LONGER, ROW_LOSS, WAITED, WAITS, waited_up_to

__all__ = ["COUNTERS", "LiveFigures", "Tap"]

#: The counters of a job on a cluster that are shown.
COUNTERS = (
    "alone",
    "dead letters",
    "ignored",
    "left_out",
    "published",
    "rejected",
    "releases",
    "rows",
    "sampled_out",
    "sent",
    "suppressed",
    ROW_LOSS,
    WAITED,
    *map(waited_up_to, WAITS),
    LONGER,
)
_MICROS, _MILLIS, _MILLIONTH = 1e6, 1e3, 1_000_000


class LiveFigures:
    """The figures of one run.

    Args:
        policy: The policy.
        runner: The name of the runner.
        timed: Whether rows have event times of their own.
    """

    def __init__(self, policy: Policy, runner: str, *, timed: bool) -> None:
        self._columns = frozenset(named_columns(policy))
        self._about = {"version": crenel.__version__, "runner": runner, "method": policy.method}
        self._timed = timed
        self._lock = threading.Lock()
        self._counts = Counts()
        self._lags: dict[int, int] = {}
        self._noted: Counter[str] = Counter()
        self._job: JobFigures | None = None
        self._began = time.time()

    @contextmanager
    def tapped(self) -> Iterator[Tap]:
        """Take what steps of this process report."""
        key = uuid4().hex
        _LIVE[key] = self
        try:
            yield Tap(key)
        finally:
            del _LIVE[key]

    def add(self, counts: Counts) -> None:
        """Add what a step has counted."""
        with self._lock:
            self._counts.join(counts)

    def note(self, what: str, number: int) -> None:
        """Add to a figure that is no count of the engine's: records sent, misfits, dead letters."""
        with self._lock:
            self._noted[what] += number

    def set_lag(self, partition: int, records: int) -> None:
        """Note how many records of a partition are not read yet."""
        with self._lock:
            self._lags[partition] = records

    def set_job(self, figures: JobFigures) -> None:
        """Take over the figures of a job on a cluster."""
        with self._lock:
            self._job = figures

    def families(self) -> list[Family]:
        """Make the page."""
        with self._lock:
            rest = self._of_run() if self._job is None else self._of_job(self._job)
        return [
            gauge("crenel_run_info", "The run: crenel's version, the runner and the method.", (1, self._about)),
            gauge("crenel_run_start_time_seconds", "When the run began, since the epoch.", (self._began, {})),
            *rest,
        ]

    def _of_run(self) -> list[Family]:
        counts, noted = self._counts, self._noted
        outcomes = {
            "published": counts.published,
            "suppressed": counts.suppressed,
            "rejected": counts.rejected.total(),
            "sampled_out": counts.sampled_out,
            "left_out": counts.left_out,
        }
        reasons: Counter[tuple[str, str]] = Counter()
        for (column, reason), rows in counts.rejected.items():
            reasons[column if column in self._columns else "", reason] += rows
        boxed = counts.published + counts.kinds[Kind.SUPPRESSED]
        families = [
            *_rows(counts.rows, outcomes, counts.alone, counts.ignored, counts.releases),
            counter(
                "crenel_rows_rejected_total",
                "Rejected rows, by the policy's column and the reason.",
                *((rows, {"column": column, "reason": reason}) for (column, reason), rows in sorted(reasons.items())),
            ),
            gauge(
                "crenel_held_rows",
                "Rows that have been read and not been released yet, in all shards.",
                (max(counts.rows - sum(outcomes.values()), 0), {}),
            ),
            _loss(counts.loss, boxed),
        ]
        if self._timed:
            families.append(_delay(counts.waits, counts.delay.total / _MICROS))
        said = "Released rows that do not fit their topic's schema."
        misfits = counter("crenel_misfits_total", said, (noted["misfits"], {}))
        return [*families, *_sent(noted), misfits, *_source(self._lags, 0)]

    def _of_job(self, job: JobFigures) -> list[Family]:
        said = Counter(job.counters)
        outcomes = {name: said[name] for name in ("published", "suppressed", "rejected", "sampled_out", "left_out")}
        families = [
            *_rows(said["rows"], outcomes, said["alone"], said["ignored"], said["releases"]),
            _loss(said[ROW_LOSS] / _MILLIONTH, said["published"] + said["suppressed"]),
            _delay([*(said[waited_up_to(bound)] for bound in WAITS), said[LONGER]], said[WAITED] / _MILLIS),
            *_sent(said),
            *_source(job.lags, job.restarts),
        ]
        if job.checkpoint_at is not None:
            age = max(time.time() - job.checkpoint_at, 0.0)
            families += [
                gauge("crenel_checkpoint_age_seconds", "Time since the last completed checkpoint.", (age, {})),
                gauge("crenel_checkpoint_bytes", "Size of the last completed checkpoint.", (job.checkpoint_bytes, {})),
            ]
        return families


def _rows(read: int, outcomes: dict[str, int], alone: int, ignored: int, releases: int) -> list[Family]:
    return [
        counter("crenel_rows_read_total", "Rows that were read, rejected ones among them.", (read, {})),
        counter(
            "crenel_rows_total",
            "Rows that are done with, by what became of them.",
            *((rows, {"outcome": outcome}) for outcome, rows in outcomes.items()),
        ),
        counter(
            "crenel_rows_alone_total",
            "Rows released without a crowd: not with rows of k persons, each once, at one moment.",
            (alone, {}),
        ),
        counter("crenel_messages_ignored_total", "Messages without a row, such as deletes.", (ignored, {})),
        counter("crenel_releases_total", "Releases.", (releases, {})),
    ]


def _loss(total: float, rows: int) -> Family:
    return Family(
        "crenel_row_loss",
        "summary",
        "Loss of each published or suppressed row: 0 if every value is exact, 1 if it is as coarse as can be.",
        [Sample(total, {}, "_sum"), Sample(rows, {}, "_count")],
    )


def _delay(waits: list[int], seconds: float) -> Family:
    said = "How long published and suppressed rows waited, in event time."
    return histogram("crenel_delay_seconds", said, WAITS, waits, seconds)


def _sent(noted: Counter[str]) -> list[Family]:
    return [
        counter("crenel_records_sent_total", "Records that topics have taken, over all outputs.", (noted["sent"], {})),
        counter("crenel_dead_letters_total", "Records that topics do not take.", (noted["dead letters"], {})),
    ]


def _source(lags: Mapping[int, int], restarts: int) -> list[Family]:
    found = ((records, {"partition": str(number)}) for number, records in sorted(lags.items()))
    return [
        gauge("crenel_source_lag_records", "Records of each partition of the input that are not read yet.", *found),
        counter("crenel_restarts_total", "How often the job failed, and was restarted.", (restarts, {})),
    ]


_LIVE: dict[str, LiveFigures] = {}


@dataclass(frozen=True)
class Tap:
    """Where steps report to, if they run in the process of the run; elsewhere it does nothing."""

    key: str

    def add(self, counts: Counts) -> None:
        """Report what was counted."""
        if self.key in _LIVE:
            _LIVE[self.key].add(counts)

    def note(self, what: str, number: int) -> None:
        """Report records sent, misfits or dead letters."""
        if self.key in _LIVE:
            _LIVE[self.key].note(what, number)

    def set_lag(self, partition: int, records: int) -> None:
        """Report how many records of a partition are not read yet."""
        if self.key in _LIVE:
            _LIVE[self.key].set_lag(partition, records)
