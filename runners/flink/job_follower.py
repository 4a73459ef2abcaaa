"""Follows a job on a Flink cluster, and tells its user what happens to it: calmly, and without values.

A line is said when something changes: the job fails and is restarted, it runs again, checkpoints stop, a record becomes
a dead letter, the JobManager is silent. Otherwise a line of progress is shown. The job is given up, with a sentence
that says how to go on, when it has ended, when it fails in a way that a restart does not cure, and when the JobManager
is lost with it.
"""

from __future__ import annotations

import json
import time
import urllib.error
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from crenel.runners.flink.cluster import Rest
from crenel.runners.flink.failure_causes import Cause, cause
from crenel.runners.flink.job_metrics import JobMetrics
from crenel.runners.job_figures import JobFigures
from crenel.runners.runner_errors import JobFailed

__all__ = ["Checkpoint", "JobFollower", "newest"]

#: Seconds between two looks at the job, and between two at its metrics.
_LOOK, _MEASURE = 2.0, 10.0
#: Seconds without an answer of the JobManager after which the user is told; and after which it is lost: without high
#: availability, and with it, when another one may take over. The last is for a JobManager that answers but does not
#: know the job: without high availability it never will.
_SILENT, _LOST, _LOST_FOR_GOOD, _FORGOTTEN = 10.0, 60.0, 600.0, 10.0
#: Seconds for which the JobManager keeps its answers about checkpoints.
_STALE = 4.0
#: A mistake that makes a job fail this many times, without a checkpoint in between, is not cured by a restart.
_TRIES = 10
#: A checkpoint is missed after this many of its intervals, and at least this many seconds.
_INTERVALS, _OVERDUE = 6, 60.0
_ENDED = ("FINISHED", "CANCELED", "FAILED", "SUSPENDED")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was completed."""

    number: int
    path: str
    #: When, in seconds since the epoch, by the clock of the JobManager; and how many bytes it has.
    completed: float
    size: int = 0


@dataclass
class _Outage:
    """The time from a failure until everything runs again."""

    since: float
    told: set[str] = field(default_factory=set)


class JobFollower:
    """Follows a job until it ends.

    Args:
        rest: The cluster's REST service.
        job: The id of the job.
        say: Says a line, without an end.
        show: Shows a line of progress in place of the last one.
        report: Takes the figures of the job, after each look at them.
        counters: The names of the counters among these.
        is_alive: Whether the JobManager is known to live, if it is a process of this machine.
        clock: Tells the time, in seconds.
        pause: Waits for some seconds.
    """

    def __init__(
        self,
        rest: Rest,
        job: str,
        *,
        say: Callable[[str], None],
        show: Callable[[str], None] | None = None,
        is_alive: Callable[[], bool] | None = None,
        report: Callable[[JobFigures], None] | None = None,
        counters: Iterable[str] = (),
        clock: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rest = rest
        self.job = job
        self._say = say
        self._show = show
        self._is_alive = is_alive
        self._clock = clock
        self._pause = pause
        self._began = clock()
        #: The last checkpoint, and the savepoint that the job was stopped with.
        self.checkpoint: Checkpoint | None = None
        self.savepoint: str | None = None
        self.restarts = 0
        #: The folder of the job's checkpoints; and whether the JobManager has said, in the end, that there are none.
        self._folder = ""
        self._has_no_checkpoint = False
        #: The state that Flink reported last.
        self.state = ""
        self._latest_failure = 0
        #: How often each mistake made the job fail since the last checkpoint.
        self._mistakes: Counter[str] = Counter()
        self._outage: _Outage | None = None
        self._silent_since: float | None = None
        self._is_silence_told = False
        self._runs_since = clock()
        self._is_overdue = False
        self._interval: float | None = None
        self._is_available: bool | None = None
        self._report = report
        self._metrics = JobMetrics(rest, job, counters)
        self._measured = 0.0
        self._dead_letters = 0

    def follow(self) -> None:
        """Follow the job to its end.

        Raises:
            JobFailed: it did not end by itself, or cannot go on; the message says what to do.
        """
        while not self._look():
            self._progress()
            self._pause(_LOOK)

    def cancel(self) -> None:
        """Cancel the job, unless it has ended or cannot be reached."""
        if self.state not in _ENDED:
            try:
                self._rest.cancel(self.job)
            except (OSError, ValueError):
                return

    def how_to_go_on(self) -> str:
        """Say from where the job can be started again."""
        if self.savepoint is not None:
            return f"Go on from its savepoint, once: run the same command with --savepoint_path {self.savepoint}"
        found = self._newest()
        if found is not None:
            return (
                "Nothing is lost if you go on from its last checkpoint, which has the rows that are held: run the same "
                f"command with --savepoint_path {found} (or a newer one beside it). Without it, rows that were "
                "published would be published again, under other generalizations."
            )
        if self._has_no_checkpoint:
            return "No checkpoint was completed, so nothing was published: start again as you did."
        return (
            f"If there is a checkpoint in {self._folder or 'execution.checkpointing.dir'} (chk-...), run the same "
            "command with --savepoint_path and the newest: without it, rows that were published would be published "
            "again, under other generalizations. If there is none, nothing was published: start again as you did."
        )

    def _newest(self) -> str | None:
        """The newest checkpoint that can be found."""
        known = None if self.checkpoint is None else self.checkpoint.path
        folder = known.rpartition("/")[0] if known else self._folder
        return newest(folder) or known

    def refresh(self) -> None:
        """Ask once more for the last checkpoint: an older one is removed when a new one is completed."""
        self._pause(_STALE)
        try:
            self._note_checkpoints(self._rest.get(f"/jobs/{self.job}/checkpoints"))
        except (OSError, json.JSONDecodeError):
            return
        self._has_no_checkpoint = self.checkpoint is None

    # -- One look -----------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Look at the job; return whether it has ended by itself."""
        try:
            found = self._rest.get(f"/jobs/{self.job}")
            if self._interval is None:
                self._configure()
            told = self._rest.get(f"/jobs/{self.job}/checkpoints")
            failures = self._rest.get(f"/jobs/{self.job}/exceptions?maxExceptions=5")
        except urllib.error.HTTPError as error:
            # The JobManager did answer. It says 404 of a job that it does not know, or does not know again yet, and of
            # the checkpoints of a job that has just begun.
            is_forgotten = error.code == 404 and str(error.url).endswith(f"/jobs/{self.job}")
            self._miss("does not know the job any more" if is_forgotten else "cannot tell about the job", is_forgotten)
            return False
        except (OSError, json.JSONDecodeError):
            self._miss("does not answer")
            return False
        self._hear()
        self.state = str(found["state"])
        self._note_checkpoints(told)
        self._note_failures(failures)
        self._note_recovery(found)
        self._check_overdue()
        self._measure(found)
        return self._has_ended(failures)

    def _configure(self) -> None:
        self._interval = float(self._rest.get(f"/jobs/{self.job}/checkpoints/config")["interval"]) / 1000
        settings = {one["key"]: one["value"] for one in self._rest.get("/jobmanager/config")}
        places = (settings.get(name) for name in ("execution.checkpointing.dir", "state.checkpoints.dir"))
        self._folder = next((f"{place.rstrip('/')}/{self.job}" for place in places if place), "")
        self._is_available = settings.get("high-availability.type", settings.get("high-availability")) not in (
            None,
            "NONE",
            "none",
        )

    def _miss(self, what: str, is_forgotten: bool = False) -> None:
        """Note that the JobManager, or the job, is not there."""
        now = self._clock()
        if self._silent_since is None:
            self._silent_since = now
        silence = now - self._silent_since
        patience = _LOST_FOR_GOOD if self._is_available else _LOST
        if is_forgotten and self._is_available is False:
            patience = _FORGOTTEN
        if self._is_alive is not None and not self._is_alive():
            what = "has ended"
            patience = patience if self._is_available else 0.0
        if silence >= patience:
            cure = "" if self._is_available else " With high availability it would have gone on by itself."
            lost = f"the JobManager at {self._rest.master} {what}, and the job is lost with it.{cure}"
            msg = f"{lost} {self.how_to_go_on()}"
            raise JobFailed(msg)
        if silence >= _SILENT and not self._is_silence_told:
            self._is_silence_told = True
            wait = " Another one may take over." if self._is_available else ""
            self._say(f"the JobManager at {self._rest.master} {what}.{wait}")

    def _hear(self) -> None:
        if self._is_silence_told and self._silent_since is not None:
            self._say("the JobManager answers again.")
            # Without it nothing is restarted, and no checkpoint is taken.
            self._outage = self._outage or _Outage(self._silent_since)
        self._silent_since, self._is_silence_told = None, False

    def _note_checkpoints(self, told: Mapping[str, Any]) -> None:
        latest = told["latest"]["completed"]
        if latest is not None:
            if self.checkpoint is None or latest["id"] > self.checkpoint.number:
                self._mistakes.clear()
            self.checkpoint = Checkpoint(
                latest["id"], latest["external_path"], latest["latest_ack_timestamp"] / 1000, latest["state_size"]
            )
        saved = told["latest"]["savepoint"]
        if saved is not None:
            self.savepoint = saved["external_path"]

    def _note_failures(self, told: Mapping[str, Any]) -> None:
        """Say why the job failed, each reason once until it runs again."""
        entries = told["exceptionHistory"]["entries"]
        fresh = [one for one in entries if one["timestamp"] > self._latest_failure]
        if not fresh:
            return
        self._latest_failure = max(one["timestamp"] for one in fresh)
        if self.state == "FAILED":
            return  # the end is told by itself
        if self._outage is None:
            self._outage = _Outage(self._clock())
            self.restarts += 1
        for entry in sorted(fresh, key=lambda one: int(one["timestamp"])):
            found = _cause_of(entry)
            self._mistakes[found.sentence] += found.is_a_mistake
            if found.is_permanent:
                self._give_up(found.sentence)
            if self._mistakes[found.sentence] >= _TRIES:
                self._give_up(f"{found.sentence} This came {_TRIES} times, and no checkpoint was completed in between.")
            if found.sentence not in self._outage.told:
                self._outage.told.add(found.sentence)
                self._say(f"the job failed: {_small(found.sentence)} Flink restarts it {self._from()}.")

    def _give_up(self, why: str) -> NoReturn:
        """Cancel a job that no restart cures."""
        self.cancel()
        self.refresh()
        msg = f"{why} The job was cancelled. {self._what_is_kept()}"
        raise JobFailed(msg.strip())

    def _from(self) -> str:
        if self.checkpoint is None:
            return "from the start; nothing was published yet"
        age = max(self._clock() - self.checkpoint.completed, 0)
        return f"from checkpoint {self.checkpoint.number}, which is {_span(age)} old"

    def _what_is_kept(self) -> str:
        found = self._newest()
        return "" if found is None else f"Its last checkpoint is {found}"

    def _note_recovery(self, found: Mapping[str, Any]) -> None:
        if self._outage is None or self.state != "RUNNING" or not _is_complete(found):
            return
        took = self._clock() - self._outage.since
        self._outage = None
        self._runs_since = self._clock()
        self._say(f"the job runs again, after {_span(took)}.")

    def _check_overdue(self) -> None:
        """Say it once if no checkpoint is completed any more, and once if they are again."""
        if not self._interval or self._interval < 0 or self._outage is not None or self.state != "RUNNING":
            return
        last = max(self._runs_since, self.checkpoint.completed if self.checkpoint else 0.0)
        age = self._clock() - last
        is_overdue = age >= max(_OVERDUE, _INTERVALS * self._interval)
        if is_overdue and not self._is_overdue:
            self._say(f"no checkpoint was completed for {_span(age)}. Rows are sent only when checkpoints have them.")
        elif self._is_overdue and not is_overdue:
            self._say("checkpoints are completed again.")
        self._is_overdue = is_overdue

    def _measure(self, found: Mapping[str, Any]) -> None:
        now = self._clock()
        if now - self._measured < _MEASURE or self.state != "RUNNING":
            return
        self._measured = now
        self._metrics.read([str(vertex["id"]) for vertex in found["vertices"]])
        # Counts begin anew with each restart.
        if self._metrics.dead_letters > self._dead_letters:
            more = self._metrics.dead_letters - self._dead_letters
            self._say(f"{more:,} records were refused by their topics, and are dead letters on the workers' machines.")
        self._dead_letters = self._metrics.dead_letters
        if self._report is not None:
            self._report(
                JobFigures(
                    counters=self._metrics.counters,
                    lags=self._metrics.lags,
                    restarts=self.restarts,
                    checkpoint_at=None if self.checkpoint is None else self.checkpoint.completed,
                    checkpoint_bytes=0 if self.checkpoint is None else self.checkpoint.size,
                )
            )

    def _has_ended(self, failures: Mapping[str, Any]) -> bool:
        if self.state not in _ENDED:
            return False
        self.refresh()
        if self.state == "FINISHED":
            if self.savepoint is not None:
                self._say(f"the job was stopped. {self.how_to_go_on()}")
            return True
        if self.state == "FAILED":
            entries = failures["exceptionHistory"]["entries"]
            why = _cause_of(entries[0]).sentence if entries else "Flink does not say why."
            msg = f"the job failed on Flink: {_small(why)} {self.how_to_go_on()}"
        else:
            msg = f"the job was cancelled on the cluster. {self.how_to_go_on()}"
        raise JobFailed(msg)

    def _progress(self) -> None:
        if self._show is None:
            return
        parts = [f"{self.state.lower() or 'waiting'} for {_span(self._clock() - self._began)}"]
        if self.checkpoint is not None:
            age = _span(max(self._clock() - self.checkpoint.completed, 0))
            parts.append(f"checkpoint {self.checkpoint.number} {age} ago ({self.checkpoint.size / 1e6:,.1f} MB)")
        if self._metrics.lag is not None:
            parts.append(f"{self._metrics.lag:,} rows behind")
        if self.restarts:
            parts.append(f"{self.restarts} restarts")
        self._show(", ".join(parts))


def newest(folder: str) -> str | None:
    """The newest checkpoint of a folder; None if there is none, or the folder cannot be seen from here."""
    if not folder.startswith("file:"):
        return None
    paths = Path(urlsplit(folder).path).glob("chk-*/_metadata")
    found = [path.parent for path in paths if path.parent.name[4:].isdecimal()]
    return f"file:{max(found, key=lambda one: int(one.name[4:]))}" if found else None


def _cause_of(entry: Mapping[str, Any]) -> Cause:
    """The cause of a failure; one that a restart does not cure goes before all others."""
    found = [cause(str(one["stacktrace"])) for one in (entry, *entry.get("concurrentExceptions", ()))]
    return next((one for one in found if one.is_permanent), found[0])


def _is_complete(found: Mapping[str, Any]) -> bool:
    """Whether all tasks of a job run."""
    return all(
        vertex["tasks"].get("RUNNING", 0) + vertex["tasks"].get("FINISHED", 0) >= vertex["parallelism"]
        for vertex in found["vertices"]
    )


def _small(sentence: str) -> str:
    """A sentence that continues another."""
    is_a_name = sentence[1:2].isupper() or sentence.startswith("Flink")
    return sentence if is_a_name else sentence[:1].lower() + sentence[1:]


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
