"""Watches a published topic: reads it, judges it, and keeps the figures."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from crenel.errors import Rejected
from crenel.pipelines.kafka.messages.value_formats import reading
from crenel.pipelines.kafka.messages.values import JsonValues, Unreadable
from crenel.pipelines.kafka.topics import Topic
from crenel.pipelines.watching.published_rows import PublishedRows
from crenel.pipelines.watching.stream_judge import Alarm, StreamJudge
from crenel.pipelines.watching.topic_tail import TopicTail
from crenel.policy import Policy, columns

__all__ = ["LATE_BOUNDS", "Limits", "TopicWatchRun"]

#: Names of records that are remembered, to find those that come twice.
_MOST_NAMES = 200_000
#: Upper bounds of the histogram of seconds between a release and its record.
LATE_BOUNDS = (1, 2, 5, 10, 30, 60, 300, 900, 3_600)
#: Rows over which the mean loss is taken, for its limit.
_LOSS_ROWS = 1_000
_ENDLESS = 1 << 62


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is too much: microseconds from a release until its record is sent, and the mean loss. None for no limit."""

    late: int | None = None
    loss: float | None = None


class TopicWatchRun:
    """Watches a topic.

    Args:
        policy: The policy that its rows were published under.
        published: The topic.
        releases: The owner's topic of releases, if the owner gives it.
        settle: Microseconds after which a group is complete.
        limits: What is too much.
        heard: Called with each alarm.
    """

    def __init__(
        self,
        policy: Policy,
        published: Topic,
        releases: Topic | None,
        *,
        settle: int,
        limits: Limits,
        heard: Callable[[Alarm], None],
    ) -> None:
        self._policy = policy
        self._limits = limits
        self._heard = heard
        self._values = reading(published)
        self._rows = PublishedRows(policy, plain=published.format == "avro")
        self._tail = TopicTail(published)
        self._releases = None if releases is None else TopicTail(releases)
        self._json = JsonValues()
        is_whole = published.start == "earliest" and not any(self._tail.positions.values())
        self._is_whole = is_whole and (releases is None or releases.start == "earliest")
        self.judge = StreamJudge(policy, settle, is_whole=is_whole)
        self._names: OrderedDict[bytes, bytes] = OrderedDict()
        #: Held while figures change.
        self.lock = threading.Lock()
        #: How many records of each partition are not read yet.
        self.lags: dict[int, int] = {}
        #: What was seen: rows, stars, repeats; and alarms by promise.
        self.seen: Counter[str] = Counter()
        self.alarms: Counter[str] = Counter()
        self.loss_sum = 0.0
        self._recent_loss = [0.0, 0]
        self.last_row = 0
        #: What the run says of its releases: rows that it published; how long after the release a record was sent.
        self.reported = 0
        self.late = [0] * (len(LATE_BOUNDS) + 1)
        self.late_sum = 0.0
        self.latest = 0.0

    @property
    def has_releases(self) -> bool:
        """Whether the owner's topic of releases is read."""
        return self._releases is not None

    def run(self, stop: threading.Event, *, fail_fast: bool) -> None:
        """Watch until the topics end, if they end, or the user stops it; with `fail_fast` until a promise is broken.

        Raises:
            JobFailed: the broker refuses.
        """
        try:
            while not stop.is_set() and not self._is_over():
                self.step()
                if fail_fast and self.alarms:
                    return
            is_over = self._is_over()
            with self.lock:
                self._tell(self.judge.advance(_ENDLESS if is_over else self._tail.now()))
                if is_over:
                    self._compare()
        finally:
            self._tail.close()
            if self._releases is not None:
                self._releases.close()

    def _is_over(self) -> bool:
        return self._tail.is_over and (self._releases is None or self._releases.is_over)

    def step(self) -> None:
        """Read some records, and judge what is complete."""
        records = [] if self._tail.is_over else self._tail.read()
        with self.lock:
            self.lags = self._tail.lag()
            if self.judge.since is not None:
                self.judge.since = self._tail.began
            self._see(records)
            self._tell(self.judge.advance(self._tail.now()))
        if self._releases is not None and not self._releases.is_over:
            told = self._releases.read()
            with self.lock:
                self._hear(told)

    def _tell(self, alarms: Iterable[Alarm]) -> None:
        for alarm in alarms:
            self.alarms[alarm.promise] += 1
            self._heard(alarm)

    # -- published rows -----------------------------------------------------------------------------

    def _see(self, records: list[tuple[int, bytes | None, bytes | None]]) -> None:
        fresh = [record for record in records if self._is_new(record[1], record[2])]
        contents = self._values.read_many([value for _, _, value in fresh if value is not None])
        values = iter(contents)
        found: list[tuple[int, Mapping[str, Any]]] = []
        for at, _, value in fresh:
            content = self._values.of_nothing() if value is None else next(values)
            if isinstance(content, Unreadable):
                self._tell([Alarm("values", f"a record is no row: {content}")])
            else:
                found.append((at, content))
        if not found:
            return
        read = self._rows.read([row for _, row in found])
        for _ in range(read.leaks):
            self._tell([Alarm("columns", "a row has a column that the policy does not publish")])
        for place, (at, _) in enumerate(found):
            self.seen["rows"] += 1
            self.last_row = max(self.last_row, at)
            key = read.keys[place]
            if key is None:
                self._tell([Alarm("values", "a row has a value that the policy cannot have published")])
                continue
            self._lose(read.losses[place])
            if read.stars[place] and self.judge.has_stars:
                self.seen["stars"] += 1
                continue
            self.judge.see(key, at, read.codes[place])

    def _is_new(self, name: bytes | None, value: bytes | None) -> bool:
        """Whether a record comes for the first time. A failure may have it sent again, but only as it was."""
        if name is None:
            return True
        digest = blake2b(value or b"", digest_size=8).digest()
        before = self._names.get(name)
        if before is None:
            self._names[name] = digest
            if len(self._names) > _MOST_NAMES:
                self._names.popitem(last=False)
            return True
        self.seen["repeats"] += 1
        if before != digest:
            self._tell([Alarm("twice", "a row came a second time, and not as before")])
        return False

    def _lose(self, loss: float) -> None:
        self.loss_sum += loss
        self.seen["with loss"] += 1
        total, rows = self._recent_loss[0] + loss, self._recent_loss[1] + 1
        if rows >= _LOSS_ROWS:
            mean, most = total / rows, self._limits.loss
            if most is not None and mean > most:
                self._tell([Alarm("loss", f"the mean loss of {_LOSS_ROWS:,} rows is {mean:.3f}, more than {most:g}")])
            total, rows = 0.0, 0
        self._recent_loss = [total, rows]

    # -- what the run says --------------------------------------------------------------------------

    def _hear(self, records: list[tuple[int, bytes | None, bytes | None]]) -> None:
        for at, name, value in records:
            if not self._is_new(name, value):
                continue
            try:
                told = self._json.read(value or b"")
                kind, rows, persons = str(told["kind"]), int(told["rows"]), int(told["persons"])
            except (Unreadable, KeyError, TypeError, ValueError):
                self._tell([Alarm("releases", "a record in the topic of releases is none of crenel run")])
                continue
            self.seen["releases"] += 1
            if kind in ("cluster", "reuse"):
                self.reported += rows
                self._check_persons(kind, persons)
                self._delay(at, told.get("moment"))
            elif kind == "suppressed" and self.judge.has_stars:
                self.reported += rows

    def _check_persons(self, kind: str, persons: int) -> None:
        k = self._policy.k
        if persons < k:
            self._tell([Alarm("k", f"the run reports a release of {persons} persons, fewer than k = {k}")])
        elif kind == "reuse" and self._policy.crowd:
            self._tell([Alarm("k", "the run reports rows under a generalization of earlier ones: they have no crowd")])

    def _delay(self, at: int, moment: Any) -> None:
        """Note how long after the release, by its event time, the record of it was sent."""
        if self._policy.event_time is None or moment is None:
            return
        try:
            seconds = max((at - columns.moment(moment)) / 1e6, 0.0)
        except Rejected:
            return
        place = next((i for i, bound in enumerate(LATE_BOUNDS) if seconds <= bound), len(LATE_BOUNDS))
        self.late[place] += 1
        self.late_sum += seconds
        self.latest = max(self.latest, seconds)
        most = self._limits.late
        if most is not None and seconds * 1e6 > most:
            said = f"a release was sent {seconds:,.0f} s after its moment, more than {most / 1e6:g} s"
            self._tell([Alarm("late", said)])

    def _compare(self) -> None:
        """Compare the rows that were seen with those of all releases, if all of both were seen."""
        if self._releases is None or not self._is_whole or self.seen["rows"] == self.reported:
            return
        more = self.seen["rows"] - self.reported
        if more > 0:
            self._tell([Alarm("rows", f"{more:,} published rows are of no release")])
        else:
            self._tell([Alarm("rows", f"{-more:,} released rows are not in the topic")])
