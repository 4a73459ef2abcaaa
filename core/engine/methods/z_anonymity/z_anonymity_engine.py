"""z-anonymity: a row leaves when it arrives, each value at the finest level that k persons had within the window.

Jha, Favale, Vassio, Trevisan, Mellia: *z-anonymity: Zero-Delay Anonymization for Data Streams*, IEEE Big Data 2020. How
each step is done, and what it does not protect, is in `docs/z-anonymity.md`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from crenel.avro import Schemas, expect, packed, unpacked
from crenel.encoding.rows import Rows
from crenel.engine.contract import Engine, Kind, Releases, SnapshotError
from crenel.engine.kernels.deadlines import EARLIEST, saturating_add
from crenel.engine.methods.z_anonymity import ZAnonymityParameters
from crenel.engine.methods.z_anonymity.value_levels import Levels
from crenel.engine.space import check_rows, fingerprint, space_of
from crenel.policy import Policy
from crenel.policy.durations import parse_duration

_SCHEMAS = Schemas("crenel.engine.methods.z_anonymity", ("z_anonymity.1.avsc",))

Floats = NDArray[np.float64]
Span = tuple[float, float]
#: A span of a quasi-identifier, given by its number.
_Key = tuple[int, Span]


class ZAnonymity(Engine):
    """z-anonymity on one shard's rows. It holds no rows back; it remembers those of the window.

    Args:
        policy: What is to be guaranteed. Its `parameters` are `ZAnonymityParameters`.
        key: 32 bytes. Nothing is drawn from them.
    """

    def __init__(self, policy: Policy, key: bytes) -> None:
        if not isinstance(policy.parameters, ZAnonymityParameters):
            message = f"ZAnonymity: policy.parameters must be ZAnonymityParameters, not those of {policy.method!r}."
            raise TypeError(message)
        self._policy = policy
        self._key = key
        self._space = space_of(policy)
        self._fingerprint = fingerprint(policy, self._space)
        self._levels = [Levels(qi, policy.parameters.bins) for qi in policy.quasi_identifiers.values()]
        window = policy.parameters.window
        self._window: int = (policy.delay or 0) if window is None else (parse_duration(window) or 0)
        self._arrivals = self._released = 0
        self._clock = self._latest = EARLIEST
        #: The rows of the window, as a heap: time, number, person, coordinates, and their spans of all levels.
        self._rows: list[tuple[int, int, int, tuple[float, ...], list[set[_Key]]]] = []
        #: How many rows each person has in the window under each span.
        self._persons: dict[_Key, dict[int, int]] = {}

    def __repr__(self) -> str:
        """Tell how many rows are in the window, but nothing about them."""
        return f"ZAnonymity(window={len(self._rows)} rows)"

    @property
    def held(self) -> int:
        """Rows that have arrived and not left: none."""
        return 0

    @property
    def key(self) -> bytes:
        """The engine's key."""
        return self._key

    def push(self, rows: Rows) -> Releases:
        """Take rows that arrive in this order, and release each."""
        check_rows(self._policy, self._space, rows)
        kinds, boxes, moments = [], [], []
        spans = self._spans(rows.qi)
        points = zip(rows.time.tolist(), rows.person.tolist(), map(tuple, rows.qi.tolist()), strict=True)
        for i, (time, person, point) in enumerate(points):
            self._clock = max(self._clock, int(saturating_add(time, -self._policy.disorder)))
            chains = [[level[i] for level in levels] for levels in spans]
            self._remember(time, person, point, chains)
            box = self._box(chains) if time >= self._since() else None
            kinds.append(Kind.SUPPRESSED if box is None else Kind.CLUSTER)
            boxes.append([chain[-1] for chain in chains] if box is None else box)
            moments.append(self._clock)
        return self._releases(kinds, boxes, moments)

    def advance(self, now: int) -> Releases:
        """Move event time on to `now`, in microseconds. Nothing becomes due."""
        self._clock = max(self._clock, now)
        return Releases.empty(len(self._levels))

    def flush(self) -> Releases:
        """End the stream. Nothing is held."""
        return Releases.empty(len(self._levels))

    def next_deadline(self) -> int | None:
        """Return None: nothing waits."""
        return None

    # --- Counting ---

    def _spans(self, qi: Floats) -> list[list[list[Span]]]:
        """Return, for each quasi-identifier and level, the span of each row."""
        return [levels.spans(np.ascontiguousarray(qi[:, d])) for d, levels in enumerate(self._levels)]

    def _since(self) -> int:
        """Return the earliest time in the window."""
        return int(saturating_add(self._latest, -self._window))

    def _remember(self, time: int, person: int, point: tuple[float, ...], chains: Iterable[Iterable[Span]]) -> None:
        """Count a row, and forget those that the window has left behind."""
        self._latest = max(self._latest, time)
        # A span may be that of several levels: a leaf of a ragged hierarchy, the whole of a small domain.
        keys = [{(d, span) for span in chain} for d, chain in enumerate(chains)]
        heapq.heappush(self._rows, (time, self._arrivals, person, point, keys))
        self._arrivals += 1
        for key in (key for of in keys for key in of):
            counts = self._persons.setdefault(key, {})
            counts[person] = counts.get(person, 0) + 1
        since = self._since()
        while self._rows and self._rows[0][0] < since:
            _, _, gone, _, of_gone = heapq.heappop(self._rows)
            for key in (key for of in of_gone for key in of):
                self._uncount(key, gone)

    def _uncount(self, key: _Key, person: int) -> None:
        counts = self._persons[key]
        counts[person] -= 1
        if not counts[person]:
            del counts[person]
        if not counts:
            del self._persons[key]

    def _box(self, chains: list[list[Span]]) -> list[Span] | None:
        """Return the finest span of each quasi-identifier that k persons had, the row's own among them; or None."""
        k, box = self._policy.k, []
        for d, chain in enumerate(chains):
            found = next((span for span in chain if len(self._persons[d, span]) >= k), None)
            if found is None:
                return None
            box.append(found)
        return box

    def _releases(self, kinds: list[Kind], boxes: list[list[Span]], moments: list[int]) -> Releases:
        count = len(kinds)
        ends = np.array(boxes, np.float64).reshape(count, len(self._levels), 2)
        lo, hi = np.ascontiguousarray(ends[:, :, 0]), np.ascontiguousarray(ends[:, :, 1])
        kind = np.array(kinds, np.int8)
        loss = self._losses(lo, hi)
        loss[kind == Kind.SUPPRESSED] = 1.0
        numbers = np.arange(self._released, self._released + count, dtype=np.int64)
        self._released += count
        return Releases(
            rows=np.arange(self._arrivals - count, self._arrivals, dtype=np.int64),
            offsets=np.arange(count + 1, dtype=np.int64),
            kind=kind,
            lo=lo,
            hi=hi,
            loss=loss,
            persons=np.ones(count, np.int64),
            moment=np.array(moments, np.int64),
            arrivals=np.arange(self._arrivals - count + 1, self._arrivals + 1, dtype=np.int64),
            group=numbers,
        )

    def _losses(self, lo: Floats, hi: Floats) -> Floats:
        total = np.zeros(len(lo))
        for d, (scale, cell) in enumerate(self._space.dimensions[["scale", "cell"]].tolist()):
            total += scale * (hi[:, d] - lo[:, d] + cell)
        return total

    # --- Snapshots ---

    def dump(self) -> bytes:
        """Return the complete state of the engine."""
        rows = sorted(self._rows, key=lambda row: row[:2])
        return _SCHEMAS.encode(
            {
                "space": self._fingerprint,
                "key": self._key,
                "window": self._window,
                "arrivals": self._arrivals,
                "released": self._released,
                "clock": self._clock,
                "latest": self._latest,
                "number": packed(np.array([row[1] for row in rows], "<i8")),
                "time": packed(np.array([row[0] for row in rows], "<i8")),
                "person": packed(np.array([row[2] for row in rows], "<i8")),
                "qi": packed(np.array([row[3] for row in rows], "<f8")),
            }
        )

    def load(self, data: bytes) -> None:
        """Take over the state of the engine that `dump` was called on.

        A longer window than the one it was written under begins with what is remembered: fewer persons are counted.
        """
        record = _SCHEMAS.decode(data)
        if record["space"] != self._fingerprint:
            message = (
                "ZAnonymity: a snapshot can be restored only under the quasi-identifiers and sensitive columns it was "
                "taken under: policy.quasi_identifiers or policy.sensitive has changed."
            )
            raise SnapshotError(message)
        numbers = unpacked(record["number"], "<i8").tolist()
        times, persons = (unpacked(record[name], "<i8", (len(numbers),)).tolist() for name in ("time", "person"))
        qi = unpacked(record["qi"], shape=(len(numbers), len(self._levels)))
        expect(len(record["key"]) == len(self._key))
        check_rows(self._policy, self._space, _points(qi, len(self._policy.sensitive)))
        self._key = record["key"]
        self._clock, self._latest = record["clock"], record["latest"]
        self._rows, self._persons = [], {}
        spans = self._spans(qi)
        for i, (number, time, person, point) in enumerate(
            zip(numbers, times, persons, map(tuple, qi.tolist()), strict=True)
        ):
            self._arrivals = number
            self._remember(time, person, point, [[level[i] for level in levels] for levels in spans])
        self._arrivals, self._released = record["arrivals"], record["released"]


def _points(qi: Floats, sensitive: int) -> Rows:
    """Return rows of which only the quasi-identifiers matter."""
    none = np.zeros(len(qi), np.int64)
    return Rows(qi, none, np.zeros((len(qi), sensitive), np.int64), none)
