"""Rows that are too far ahead of a shard's clock: they wait beside the engine until it is clear what time it is.

One row with a wrong date would move the clock, and every row that comes after it would be late. So a row that is more
than `max_ahead` later than all before it moves nothing, and waits:

- If several rows of k persons come, one after the other, that are near it in time, or if the watermark comes near, time
  has moved on (a night, a weekend). It is taken then, with all others that are no longer ahead, in the order in which
  they came.
- If rows on time follow for `max_ahead` without that, or for `delay_rows` rows, or the stream ends, its date was wrong,
  and it is refused.

A shard that has just begun has no clock, and its first rows agree on one in the same way: a wrong date in the first row
does no harm. All of this follows from the order of the rows and of the watermarks that a shard is told, so a replay
decides the same. Independent of Beam.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crenel.policy import Policy
from crenel.transforms._pack.row_pack import RowPack

__all__ = ["AheadRows", "Refusal"]

Ints = NDArray[np.int64]

#: How many rows must speak for a time, of at least k persons. A date that many rows have for want of a better one, such
#: as the end of the year 9999, must not be believed because two of them follow each other.
_WITNESSES = 10
#: How many persons on time contradict them: a single device whose clock stands still does not.
_CONTRADICT = 2
#: The most rows that wait, apart from those that are near the newest in time.
_MOST = 4096


@dataclass(frozen=True, eq=False, repr=False)
class Refusal:
    """Rows that were too far ahead of the clock, and never reached the engine."""

    rows: RowPack
    #: The latest time that the shard knew when it refused them, in microseconds.
    moment: int
    #: The numbers of the rows among all that the shard refused, from 0.
    first: int


@dataclass(eq=False, repr=False)
class _Waiting:
    """A row that waits."""

    time: int
    person: int
    #: The latest known time when it came; None if there was none.
    since: int | None
    #: Its number among all rows that came, from 0.
    number: int
    #: Whether nobody has contradicted it yet: it speaks for its time.
    speaks: bool
    #: The pack that has it, and where.
    pack: RowPack
    place: int


class AheadRows:
    """Passes rows on, except for those that are too far ahead of the clock.

    Args:
        policy: Says how far ahead a row may be (`most_ahead`); without that, every row passes.
    """

    def __init__(self, policy: Policy) -> None:
        self._most_ahead = policy.most_ahead
        self._k = policy.k
        #: Later rows for which a row waits at most.
        self._delay_rows = policy.delay_rows
        #: Rows that have come.
        self._arrivals = 0
        #: The latest event time of a row that was taken, or the latest watermark; None before the first.
        self._front: int | None = None
        self._waiting: list[_Waiting] = []
        self._witnesses = _Witnesses()
        self._refused = 0
        self._taken = _Segments()
        self._dropped = _Segments()

    def __len__(self) -> int:
        """Count the rows that wait."""
        return len(self._waiting)

    def next_deadline(self) -> int | None:
        """The watermark at which a row that waits is no longer ahead."""
        if self._most_ahead is None or not self._waiting:
            return None
        return min(row.time for row in self._waiting) - self._most_ahead

    def push(self, pack: RowPack) -> tuple[list[RowPack], list[Refusal]]:
        """Take rows in the order of arrival; return those to go on, in this order, and those that are refused."""
        self._adapt()
        most = self._most_ahead
        if most is None:
            self._taken.add(pack, 0, len(pack.rows))
            return self._told()
        time, count = pack.rows.time, len(pack.rows)
        place = 0
        while place < count:
            if self._front is None or int(time[place]) > self._front + most:
                self._wait(pack, place)
                place += 1
                continue
            reach = np.maximum.accumulate(np.maximum(time[place:], self._front))
            before = np.concatenate([[self._front], reach[:-1]])
            length = self._on_time(time[place:], before, reach, most)
            self._taken.add(pack, place, place + length)
            self._arrivals += length
            # A row from long ago says nothing about today.
            is_recent = time[place : place + length] >= before[:length] - most
            self._witnesses.contradict(pack.rows.person[place : place + length][is_recent])
            self._front = int(reach[length - 1])
            self._settle()
            self._outlive(int(time[place : place + length].max()))
            place += length
        self._own(pack)
        return self._told()

    def advance(self, now: int) -> tuple[list[RowPack], list[Refusal]]:
        """Event time has moved on to `now`, in microseconds: the source says so."""
        self._adapt()
        if self._most_ahead is not None and (self._front is None or now > self._front):
            self._front = now
            self._settle()
        return self._told()

    def flush(self) -> tuple[list[RowPack], list[Refusal]]:
        """The stream is over: refuse the rows that wait, with two exceptions.

        If the shard never had a clock to compare with, all are taken. If k persons wait at about the same time, all
        rows that are not ahead of that time are taken: they may be published, and they make no later row late.
        """
        persons = _persons_near(self._waiting, self._most_ahead or 0)
        if self._front is None:
            crowds = [row.time for row in self._waiting]
        else:
            crowds = [row.time for row in self._waiting if persons[id(row)] >= self._k]
        if crowds:
            self._front = max(crowds)
            self._settle()
        while self._waiting:
            self._refuse(self._waiting.pop(0))
        return self._told()

    def _adapt(self) -> None:
        """Decide about rows that began to wait under a policy that let them wait for longer, or more of them."""
        if not self._waiting:
            return
        if self._most_ahead is None:
            for row in self._waiting:
                self._taken.add(row.pack, row.place, row.place + 1)
            self._waiting, self._witnesses = [], _Witnesses()
        elif self._front is None:
            self._decide()
        else:
            self._settle()

    def _on_time(self, time: Ints, before: Ints, reach: Ints, most: int) -> int:
        """Count the rows that are on time, up to the one after which something happens to those that wait.

        Args:
            time: The times of rows, of which the first is on time.
            before: For each row, the latest known time before it, if all rows before it are on time.
            reach: For each row, the latest known time after it, under the same condition.
            most: How far ahead a row may be.
        """
        stops = np.flatnonzero(time > before + most)
        length = int(stops[0]) if len(stops) else len(time)
        if self._waiting:
            nearest = min(row.time for row in self._waiting) - most
            oldest = self._waiting[0].since
            events = reach[:length] >= nearest
            if oldest is not None:
                events |= time[:length] > oldest + most
            happens = np.flatnonzero(events)
            length = int(happens[0]) + 1 if len(happens) else length
            if self._delay_rows is not None:
                length = min(length, self._waiting[0].number + self._delay_rows + 1 - self._arrivals)
        return length

    def _wait(self, pack: RowPack, place: int) -> None:
        """Let a row wait; if enough rows speak for its time by now, go on from there."""
        most = self._most_ahead or 0
        time, person = int(pack.rows.time[place]), int(pack.rows.person[place])
        row = _Waiting(time, person, self._front, self._arrivals, speaks=True, pack=pack, place=place)
        self._arrivals += 1
        self._waiting.append(row)
        self._witnesses.hear(row)
        rows, persons = self._witnesses.near(time, most)
        if rows >= _WITNESSES and persons >= self._k:
            self._front = time
            self._witnesses.dismiss()
            self._settle()
        else:
            if len(self._waiting) > _MOST and abs(self._waiting[0].time - time) > most:
                self._refuse(self._waiting.pop(0))
            self._decide()

    def _settle(self) -> None:
        """Take the rows that are no longer ahead."""
        most = self._most_ahead or 0
        while True:
            front: int = self._front  # type: ignore[assignment]
            near = [row for row in self._waiting if row.time <= front + most]
            if not near:
                break
            self._waiting = [row for row in self._waiting if row.time > front + most]
            for row in near:
                self._witnesses.forget(row)
                self._taken.add(row.pack, row.place, row.place + 1)
            self._front = max(front, *(row.time for row in near))
        for row in self._waiting:
            row.since = self._front if row.since is None else row.since
        self._decide()

    def _outlive(self, time: int) -> None:
        """Refuse waiting rows once a row on time is more than `max_ahead` later than the clock was when they came."""
        while self._waiting and time > (self._waiting[0].since or 0) + (self._most_ahead or 0):
            self._refuse(self._waiting.pop(0))

    def _decide(self) -> None:
        """Decide about a row that has waited for as many rows as `delay_rows` allows."""
        while self._waiting and self._delay_rows is not None:
            if self._arrivals <= self._waiting[0].number + self._delay_rows:
                return
            if self._front is None:
                # There is no clock yet. Believe the time for which most persons speak.
                persons = _persons_near(self._waiting, self._most_ahead or 0)
                self._front = max(self._waiting, key=lambda row: persons[id(row)]).time
                self._settle()
            else:
                self._refuse(self._waiting.pop(0))

    def _refuse(self, row: _Waiting) -> None:
        self._witnesses.forget(row)
        self._dropped.add(row.pack, row.place, row.place + 1)

    def _own(self, pack: RowPack) -> None:
        """Give the rows of a pack that wait packs of their own: they must not keep all others in memory."""
        for row in self._waiting:
            if row.pack is pack:
                row.pack, row.place = pack.take(np.array([row.place])), 0

    def _told(self) -> tuple[list[RowPack], list[Refusal]]:
        """Return what was decided since the last time."""
        taken, refusals = list(self._taken.packs()), []
        for rows in self._dropped.packs():
            moment = 0 if self._front is None else self._front
            refusals.append(Refusal(rows, moment, self._refused))
            self._refused += len(rows.rows)
        self._taken, self._dropped = _Segments(), _Segments()
        return taken, refusals

    def snapshot(self) -> dict[str, Any]:
        """Return everything, to be stored."""
        return {
            "front": self._front,
            "arrivals": self._arrivals,
            "refused": self._refused,
            "contradicted": sorted(self._witnesses.contradicted),
            "waiting": [
                {"pack": row.pack.to_bytes(), "since": row.since, "number": row.number, "speaks": row.speaks}
                for row in self._waiting
            ],
        }

    def restore(self, record: dict[str, Any]) -> None:
        """Take over what `snapshot` returned."""
        self._front, self._arrivals, self._refused = record["front"], record["arrivals"], record["refused"]
        self._waiting, self._witnesses = [], _Witnesses()
        for stored in record["waiting"]:
            pack = RowPack.from_bytes(stored["pack"])
            time, person = int(pack.rows.time[0]), int(pack.rows.person[0])
            row = _Waiting(time, person, stored["since"], stored["number"], speaks=stored["speaks"], pack=pack, place=0)
            self._waiting.append(row)
            if row.speaks:
                self._witnesses.hear(row)
        self._witnesses.contradicted = set(record["contradicted"])


class _Witnesses:
    """The rows that speak for a time which the shard does not know yet."""

    def __init__(self) -> None:
        self._rows: dict[int, _Waiting] = {}
        #: Their times in order; and those of each person's last row.
        self._times: list[int] = []
        self._last: dict[int, _Waiting] = {}
        self._last_times: list[int] = []
        #: Persons whose rows came on time since the first of them spoke.
        self.contradicted: set[int] = set()

    def hear(self, row: _Waiting) -> None:
        """Let a row speak."""
        self._rows[id(row)] = row
        insort(self._times, row.time)
        last = self._last.get(row.person)
        if last is not None:
            _remove(self._last_times, last.time)
        self._last[row.person] = row
        insort(self._last_times, row.time)

    def near(self, time: int, most: int) -> tuple[int, int]:
        """Count the rows, and the persons, that speak for about this time."""
        first, last = time - most, time + most
        rows = bisect_right(self._times, last) - bisect_left(self._times, first)
        return rows, bisect_right(self._last_times, last) - bisect_left(self._last_times, first)

    def contradict(self, persons: Ints) -> None:
        """Hear persons whose rows come on time; enough of them refute all witnesses."""
        if self._rows and len(persons):
            others = persons[persons != persons[0]]
            self.contradicted.update([int(persons[0]), *others[:1].tolist()])
            if len(self.contradicted) >= _CONTRADICT:
                self.dismiss()

    def forget(self, row: _Waiting) -> None:
        """Forget a row that no longer waits."""
        if self._rows.pop(id(row), None) is None:
            return
        _remove(self._times, row.time)
        if self._last.get(row.person) is row:
            del self._last[row.person]
            _remove(self._last_times, row.time)
        if not self._rows:
            self.contradicted = set()

    def dismiss(self) -> None:
        """Forget all."""
        for row in self._rows.values():
            row.speaks = False
        self._rows, self._times, self._last, self._last_times = {}, [], {}, []
        self.contradicted = set()


def _persons_near(waiting: list[_Waiting], most: int) -> dict[int, int]:
    """Count, for each row that waits, the persons that wait at about its time."""
    rows = sorted(waiting, key=lambda row: row.time)
    near: Counter[int] = Counter()
    found, first, last = {}, 0, 0
    for row in rows:
        while last < len(rows) and rows[last].time <= row.time + most:
            near[rows[last].person] += 1
            last += 1
        while rows[first].time < row.time - most:
            near[rows[first].person] -= 1
            if not near[rows[first].person]:
                del near[rows[first].person]
            first += 1
        found[id(row)] = len(near)
    return found


def _remove(times: list[int], time: int) -> None:
    del times[bisect_left(times, time)]


class _Segments:
    """Rows of packs, in an order; neighbours of one pack stay together."""

    def __init__(self) -> None:
        self._parts: list[tuple[RowPack, int, int]] = []

    def add(self, pack: RowPack, start: int, stop: int) -> None:
        """Add rows of a pack."""
        if self._parts and self._parts[-1][0] is pack and self._parts[-1][2] == start:
            start = self._parts.pop()[1]
        self._parts.append((pack, start, stop))

    def packs(self) -> Iterator[RowPack]:
        """Yield the rows as packs."""
        for pack, start, stop in self._parts:
            whole = start == 0 and stop == len(pack.rows)
            yield pack if whole else pack.take(np.arange(start, stop))
