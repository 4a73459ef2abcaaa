"""One row of a person in a period of event time (`once_per`), for any method.

A row is left out if the method has taken a row of the same person whose event time is less than the period away, before
or after. So any two published rows of a person are at least a period apart, wherever periods are thought to begin.

A row uses up its person's period when the method takes it, since it may be published from then on. If the method
suppresses the row, the period is free again, but only from the row's deadline on: then it is known for certain what
became of the row, however rows are cut into pushes.

Rows that are left out leave at once. The method does not see them, but they move its clock. It is told the time when
something can depend on it: when a tick is over (`Policy.tick`; deadlines are whole ticks), and before a late row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from crenel.avro import Schemas, expect, packed, unpacked
from crenel.encoding.rows import Rows
from crenel.engine.contract import Engine, Kind, Releases, SnapshotError
from crenel.engine.kernels.deadlines import EARLIEST
from crenel.engine.space import check_rows, space_of
from crenel.engine.wrappers.wrapper import Wrapper
from crenel.policy import OnSuppress, Policy

__all__ = ["OncePer"]

_SCHEMAS = Schemas("crenel.engine.wrappers", ("once_per.1.avsc",))

#: Rows that are forgotten stay in memory until they outnumber the others by this many.
_MOST_FORGOTTEN = 4096


#: What releases of one number of arrivals follow: the arrival of the last row; that it was left out; the time of the
#: next row, which has not arrived yet.
_AFTER, _LEFT_OUT, _BEFORE_NEXT = range(3)


class _Fate(IntEnum):
    """What became of a row that the method took."""

    HELD = 0
    #: It was published, or sampled out: a second try would double its chance.
    USED = 1
    SUPPRESSED = 2


@dataclass(slots=True, eq=False, repr=False)
class _Taken:
    """A row that the method took."""

    time: int
    #: Its number among the rows that the method took, and among all rows.
    number: int
    arrival: int
    fate: _Fate = _Fate.HELD


class _Unseen:
    """Rows that the method takes, and has not seen yet."""

    def __init__(self, pushed: Rows) -> None:
        self._pushed = pushed
        self.clear()

    def __len__(self) -> int:
        return len(self._places)

    def clear(self) -> None:
        """Forget the rows: the method has seen them."""
        self._places: list[int] = []
        #: For each row: how many rows had arrived with it, and the clock.
        self._when: list[tuple[int, int]] = []

    def add(self, place: int, arrivals: int, clock: int) -> None:
        """Add a row."""
        self._places.append(place)
        self._when.append((arrivals, clock))

    def rows(self) -> Rows:
        """Return the rows."""
        whole = len(self) == len(self._pushed)
        return self._pushed if whole else self._pushed.take(np.array(self._places))

    def at(self, seen: int, moment: int) -> tuple[int, int]:
        """Return how many rows had arrived when the method says that it had seen so many of these, and the phase.

        A row moves the method's clock before it counts.
        """
        if seen and (seen == len(self) or moment <= self._when[seen - 1][1]):
            return self._when[seen - 1][0], _AFTER
        return self._when[seen][0] - 1, _BEFORE_NEXT


class _Output:
    """Releases, which are put in the order in which they would have come if rows had been pushed one by one."""

    def __init__(self, widest: NDArray[np.float64]) -> None:
        self._widest = widest
        self._found = [Releases.empty(len(widest))]
        self._phases: list[int] = []
        #: For each row that was left out, how many rows had arrived with it, and the clock.
        self._left_out: list[tuple[int, int]] = []

    def add(self, releases: Releases, phases: int | list[int]) -> None:
        """Add releases, and what each followed among those of one number of arrivals."""
        if len(releases):
            self._found.append(releases)
            self._phases += [phases] * len(releases) if isinstance(phases, int) else phases

    def leave_out(self, arrivals: int, clock: int) -> None:
        """Add a row that has just arrived, and is left out."""
        self._left_out.append((arrivals, clock))

    def releases(self) -> Releases:
        """Return all in order."""
        if self._left_out:
            self.add(self._of_left_out(), _LEFT_OUT)
        whole = Releases.concat(self._found)
        return whole.take(np.lexsort([np.array(self._phases, np.int64), whole.arrivals]))

    def _of_left_out(self) -> Releases:
        """Make a release of each row that was left out."""
        arrivals, clocks = np.array(self._left_out, np.int64).T.copy()
        count = len(arrivals)
        return Releases(
            rows=arrivals - 1,
            offsets=np.arange(count + 1, dtype=np.int64),
            kind=np.full(count, Kind.LEFT_OUT, np.int8),
            lo=np.tile(self._widest[:, 0], (count, 1)),
            hi=np.tile(self._widest[:, 1], (count, 1)),
            loss=np.ones(count),
            persons=np.ones(count, np.int64),
            moment=clocks,
            arrivals=arrivals,
            group=np.full(count, -1, np.int64),
        )


class OncePer(Wrapper):
    """A method that sees one row of each person in a period."""

    def __init__(self, method: Engine, policy: Policy) -> None:
        super().__init__(method)
        self._policy = policy
        self._space = space_of(policy)
        self._period: int = policy.once_per or 0
        #: How far behind the latest event time a row may be. What was taken about that time is known in full.
        self._lateness = max(self._period, policy.delay or 0) + policy.disorder
        self._widest = np.array([qi.geometry.widest() for qi in policy.quasi_identifiers.values()], np.float64)
        self._fates = {
            Kind.CLUSTER: _Fate.USED,
            Kind.REUSE: _Fate.USED,
            Kind.SUPPRESSED: _Fate.USED if policy.on_suppress is OnSuppress.STAR else _Fate.SUPPRESSED,
            Kind.SAMPLED_OUT: _Fate.USED,
        }
        #: All rows, and those that the method takes.
        # Read for every row.
        self._delay, self._delay_rows, self._disorder = policy.delay, policy.delay_rows, policy.disorder
        #: The microseconds of a tick; 0 if no deadline depends on the time.
        self._tick = 0 if policy.delay is None else policy.tick
        self._arrivals = self._count = 0
        self._clock = self._told = self._front = EARLIEST
        #: The rows that each person's other rows are compared with, and those among them that are held, by number.
        self._taken: dict[int, list[_Taken]] = {}
        self._held: dict[int, _Taken] = {}
        self._remembered = 0
        self._most = _MOST_FORGOTTEN

    # --- The contract ---

    def push(self, rows: Rows) -> Releases:  # noqa: D102 - as in the contract
        check_rows(self._policy, self._space, rows)
        output, unseen = _Output(self._widest), _Unseen(rows)
        for place, (time, person) in enumerate(zip(rows.time.tolist(), rows.person.tolist(), strict=True)):
            clock = max(time - self._disorder, EARLIEST)
            is_free = time >= self._front - self._lateness  # else, what was taken about this time may be forgotten
            if is_free and person in self._taken:
                is_free = self._is_free(time, person, clock, unseen, output)
            self._front = max(self._front, time)
            if is_free:
                self._take(place, time, person, clock, unseen, output)
            else:
                self._leave_out(clock, unseen, output)
        self._see(unseen, output)
        self._forget()
        return output.releases()

    def advance(self, now: int) -> Releases:  # noqa: D102 - as in the contract
        if now <= self._clock:
            return Releases.empty(len(self._widest))
        self._clock = now
        return self._tell()

    def flush(self) -> Releases:  # noqa: D102 - as in the contract
        told = self._tell()
        return Releases.concat([told, self._renumbered(self._method.flush(), self._arrivals)])

    # --- Which rows the method sees ---

    def _is_free(self, time: int, person: int, clock: int, unseen: _Unseen, output: _Output) -> bool:
        """Return whether a row may be published, as far as other rows of its person go."""
        near = [one for one in self._taken[person] if abs(one.time - time) < self._period]
        now = max(self._clock, clock)
        if any(one.fate is _Fate.HELD and self._is_due(one, now) for one in near):
            # By now the method knows what became of it.
            self._see(unseen, output)
            self._clock = now
            output.add(self._tell(), _BEFORE_NEXT)
        return all(self._gave_back(one, now) for one in near)

    def _gave_back(self, one: _Taken, now: int) -> bool:
        return one.fate is _Fate.SUPPRESSED and self._is_due(one, now)

    def _is_due(self, one: _Taken, now: int) -> bool:
        """Return whether a row has reached its deadline by this time, and by the rows that came."""
        timed = self._delay is not None and now >= one.time + self._delay
        return timed or (self._delay_rows is not None and self._count > one.number + self._delay_rows)

    # --- What the method does ---

    def _take(self, place: int, time: int, person: int, clock: int, unseen: _Unseen, output: _Output) -> None:
        """Let the method have a row."""
        if clock < self._clock and self._told < self._clock:
            # The row does not bring the method up to the time that left-out rows have brought.
            self._see(unseen, output)
            output.add(self._tell(), _AFTER)
        one = _Taken(time, self._count, self._arrivals)
        known = self._taken.get(person)
        if known is None:
            self._taken[person] = [one]
            self._remembered += 1
        else:
            others = [other for other in known if not self._is_over(other)]
            self._remembered += 1 + len(others) - len(known)
            self._taken[person] = [*others, one]
        self._held[self._count] = one
        self._told = self._clock = max(self._clock, clock)
        self._count += 1
        self._arrivals += 1
        unseen.add(place, self._arrivals, self._clock)

    def _leave_out(self, clock: int, unseen: _Unseen, output: _Output) -> None:
        """Leave a row out. It moves the clock all the same."""
        self._clock = max(self._clock, clock)
        if self._tick and self._clock // self._tick > self._told // self._tick:
            self._see(unseen, output)
            output.add(self._tell(), _BEFORE_NEXT)
        self._arrivals += 1
        output.leave_out(self._arrivals, self._clock)

    def _see(self, unseen: _Unseen, output: _Output) -> None:
        """Show the method the rows that it takes."""
        if not len(unseen):
            return
        first = self._count - len(unseen)
        releases = self._method.push(unseen.rows())
        said = zip(releases.arrivals.tolist(), releases.moment.tolist(), strict=True)
        when = np.array([unseen.at(seen - first, moment) for seen, moment in said], np.int64).reshape(-1, 2)
        unseen.clear()
        output.add(self._renumbered(releases, when[:, 0]), when[:, 1].tolist())

    def _tell(self) -> Releases:
        """Tell the method the time."""
        self._told = self._clock
        return self._renumbered(self._method.advance(self._clock), self._arrivals)

    def _renumbered(self, releases: Releases, arrivals: int | NDArray[np.int64]) -> Releases:
        """Number rows as the caller does, and note what became of them."""
        kinds = releases.per_row(releases.kind).tolist()
        rows = [self._left(number, kind) for number, kind in zip(releases.rows.tolist(), kinds, strict=True)]
        counted = np.zeros(len(releases), np.int64) + arrivals
        return replace(releases, rows=np.array(rows, dtype=np.int64), arrivals=counted)

    def _left(self, number: int, kind: int) -> int:
        one = self._held.pop(number)
        one.fate = self._fates[Kind(kind)]
        return one.arrival

    # --- Memory ---

    def _is_over(self, one: _Taken) -> bool:
        """Return whether no later row can be near this one."""
        if one.fate is _Fate.HELD:
            return False
        return one.time <= self._front - self._lateness - self._period or self._gave_back(one, self._clock)

    def _forget(self) -> None:
        """Forget, now and then, the rows that no later row can be near."""
        if self._remembered <= self._most:
            return
        left = {}
        for person, known in self._taken.items():
            others = [one for one in known if not self._is_over(one)]
            if others:
                left[person] = others
        self._taken = left
        self._remembered = sum(map(len, left.values()))
        self._most = 2 * self._remembered + _MOST_FORGOTTEN

    # --- Snapshots ---

    def dump(self) -> bytes:  # noqa: D102 - as in the contract
        self._most = 0
        self._forget()
        known = [(person, one) for person, ones in self._taken.items() for one in ones]
        columns = {name: [getattr(one, name) for _, one in known] for name in ("time", "number", "arrival", "fate")}
        return _SCHEMAS.encode(
            {
                "method": self._method.dump(),
                "period": self._period,
                "lateness": self._lateness,
                "arrivals": self._arrivals,
                "taken": self._count,
                "clock": self._clock,
                "told": self._told,
                "front": self._front,
                "person": packed(np.array([person for person, _ in known], "<i8")),
                **{name: packed(np.array(column, "<i8")) for name, column in columns.items() if name != "fate"},
                "fate": packed(np.array(columns["fate"], "<i1")),
            }
        )

    def load(self, data: bytes) -> None:  # noqa: D102 - as in the contract
        record = _SCHEMAS.decode(data)
        if record["period"] != self._period or record["lateness"] < self._lateness:
            # Rows that have left are remembered for no longer than the earlier policy needed.
            message = (
                "The state was written under another once_per, or with a shorter delay or disorder: what it remembers "
                "of each person is not enough. Drain the pipeline before you change them."
            )
            raise SnapshotError(message)
        self._method.load(record["method"])
        self._arrivals, self._count = record["arrivals"], record["taken"]
        self._clock, self._told, self._front = record["clock"], record["told"], record["front"]
        persons = unpacked(record["person"], "<i8").tolist()
        times, numbers, arrivals = (
            unpacked(record[name], "<i8", (len(persons),)).tolist() for name in ("time", "number", "arrival")
        )
        fates = unpacked(record["fate"], "<i1", (len(persons),)).tolist()
        expect(all(_Fate.HELD <= fate <= _Fate.SUPPRESSED for fate in fates))
        self._taken, self._held = {}, {}
        for person, time, number, arrival, fate in zip(persons, times, numbers, arrivals, fates, strict=True):
            one = _Taken(time, number, arrival, _Fate(fate))
            self._taken.setdefault(person, []).append(one)
            if one.fate is _Fate.HELD:
                self._held[one.number] = one
        expect(len(self._held) == self._method.held)
        self._remembered = len(persons)
        self._most = 2 * self._remembered + _MOST_FORGOTTEN
