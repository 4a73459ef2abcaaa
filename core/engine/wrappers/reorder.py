"""Output in the order of the input (theorem 3 of the CASTLE paper), for any method.

**A warning.** An attacker who knows the order in which persons entered the stream finds each person's row by counting.
And a group's rows leave one after another: until the last has left, fewer than k persons are published under its
generalization. Use this only if the reader of the stream needs the order and cannot know the order of the input.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from crenel.avro import Schemas, expect, packed, unpacked
from crenel.encoding.rows import Rows
from crenel.engine.contract import Engine, Release, Releases
from crenel.engine.wrappers.wrapper import Wrapper
from crenel.policy import Policy

_SCHEMAS = Schemas("crenel.engine.wrappers", ("reordered.1.avsc",))
_UNDECIDED = -1


@dataclass
class _Output:
    """Columns of `Releases` under construction."""

    dimensions: int
    rows: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    #: For each release: the method's release that has the generalization, the moment and the arrivals.
    of: list[tuple[Release, int, int]] = field(default_factory=list)

    def add(self, number: int, decided: Release, now: Release) -> None:
        """Add a row. It joins the last release if that has the same generalization and moment."""
        self.rows.append(number)
        last = self.of[-1] if self.of else None
        if last is not None and last[0] is decided and last[1:] == (now.moment, now.arrivals):
            self.sizes[-1] += 1
            return
        self.sizes.append(1)
        self.of.append((decided, now.moment, now.arrivals))

    def releases(self) -> Releases:
        if not self.of:
            return Releases.empty(self.dimensions)
        decided = [release for release, _, _ in self.of]
        return Releases(
            rows=np.array(self.rows, dtype=np.int64),
            offsets=np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64),
            kind=np.array([release.kind for release in decided], dtype=np.int8),
            lo=np.array([release.lo for release in decided]),
            hi=np.array([release.hi for release in decided]),
            loss=np.array([release.loss for release in decided]),
            persons=np.array([release.persons for release in decided], dtype=np.int64),
            moment=np.array([moment for _, moment, _ in self.of], dtype=np.int64),
            arrivals=np.array([arrivals for _, _, arrivals in self.of], dtype=np.int64),
            group=np.array([release.group for release in decided], dtype=np.int64),
        )


class Reordered(Wrapper):
    """A method whose rows leave in the order of their arrival, or of their event time where `delay` is set.

    A row that the method has released waits until all rows before it are released too. No row waits beyond its own
    deadline, since the rows before it have earlier deadlines.
    """

    def __init__(self, method: Engine, policy: Policy) -> None:
        super().__init__(method)
        self._dimensions = len(policy.quasi_identifiers)
        self._by_time = policy.delay is not None
        self._arrivals = 0
        #: (time, number) of all rows that have not left, as a heap.
        self._order: list[tuple[int, int]] = []
        self._decided: dict[int, Release] = {}

    def __repr__(self) -> str:
        """Tell how many rows are held, but nothing about them."""
        return f"Reordered({self._method!r}, held={self.held})"

    @property
    def held(self) -> int:  # noqa: D102 - as in the contract
        return len(self._order)

    def push(self, rows: Rows) -> Releases:  # noqa: D102 - as in the contract
        before = self._arrivals
        times = rows.time.tolist() if self._by_time else [0] * len(rows)
        output = _Output(self._dimensions)
        for release in self._method.push(rows):
            self._arrive(times[self._arrivals - before : release.arrivals - before])
            self._decide(release, output)
        self._arrive(times[self._arrivals - before :])
        return output.releases()

    def advance(self, now: int) -> Releases:  # noqa: D102 - as in the contract
        return self._reorder(self._method.advance(now))

    def flush(self) -> Releases:  # noqa: D102 - as in the contract
        return self._reorder(self._method.flush())

    def _reorder(self, releases: Releases) -> Releases:
        output = _Output(self._dimensions)
        for release in releases:
            self._decide(release, output)
        return output.releases()

    def _arrive(self, times: list[int]) -> None:
        for time in times:
            heapq.heappush(self._order, (time, self._arrivals))
            self._arrivals += 1

    def _decide(self, release: Release, output: _Output) -> None:
        for number in release.rows.tolist():
            self._decided[number] = release
        while self._order and self._order[0][1] in self._decided:
            _, number = heapq.heappop(self._order)
            output.add(number, self._decided.pop(number), release)

    def dump(self) -> bytes:  # noqa: D102 - as in the contract
        order = sorted(self._order)
        # A release is one object that its rows share. Number them in the order of the rows that wait.
        releases = list({id(r): r for _, n in order if (r := self._decided.get(n)) is not None}.values())
        place = {id(release): i for i, release in enumerate(releases)}
        decided = [place[id(self._decided[n])] if n in self._decided else _UNDECIDED for _, n in order]
        record = {
            "method": self._method.dump(),
            "arrivals": self._arrivals,
            "number": packed(np.array([number for _, number in order], "<i8")),
            "time": packed(np.array([time for time, _ in order], "<i8")),
            "decided": packed(np.array(decided, "<i8")),
            "kind": packed(np.array([release.kind for release in releases], "<i1")),
            "lo": packed(np.array([release.lo for release in releases], "<f8")),
            "hi": packed(np.array([release.hi for release in releases], "<f8")),
            "loss": packed(np.array([release.loss for release in releases], "<f8")),
            "persons": packed(np.array([release.persons for release in releases], "<i8")),
            "group": packed(np.array([release.group for release in releases], "<i8")),
        }
        return _SCHEMAS.encode(record)

    def load(self, data: bytes) -> None:  # noqa: D102 - as in the contract
        record = _SCHEMAS.decode(data)
        self._method.load(record["method"])
        self._arrivals = record["arrivals"]
        numbers = unpacked(record["number"], "<i8").tolist()
        times = unpacked(record["time"], "<i8", (len(numbers),)).tolist()
        self._order = list(zip(times, numbers, strict=True))  # sorted, and so a heap
        waiting = list(self._waiting(record))
        places = unpacked(record["decided"], "<i8", (len(numbers),))
        expect(places.min(initial=0) >= _UNDECIDED and places.max(initial=_UNDECIDED) < len(waiting))
        decided = places.tolist()
        self._decided = {number: waiting[at] for number, at in zip(numbers, decided, strict=True) if at != _UNDECIDED}

    def _waiting(self, record: dict[str, Any]) -> Releases:
        """Return the releases that have rows waiting. Their own rows and moments no longer matter."""
        kind = unpacked(record["kind"], "<i1")
        n = len(kind)
        none = np.zeros(n, dtype=np.int64)
        return Releases(
            rows=np.zeros(0, dtype=np.int64),
            offsets=np.zeros(n + 1, dtype=np.int64),
            kind=kind,
            lo=unpacked(record["lo"], "<f8", (n, self._dimensions)),
            hi=unpacked(record["hi"], "<f8", (n, self._dimensions)),
            loss=unpacked(record["loss"], "<f8", (n,)),
            persons=unpacked(record["persons"], "<i8", (n,)),
            moment=none,
            arrivals=none,
            group=unpacked(record["group"], "<i8", (n,)),
        )
