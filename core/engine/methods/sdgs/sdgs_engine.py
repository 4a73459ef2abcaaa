"""(k, beta)-SDGS: sampling, data-independent generalization, suppression.

Li, Qardaji, Su: *On Sampling, Anonymization, and Differential Privacy: Or, k-Anonymization Meets Differential Privacy*,
ASIACCS 2012, on the windows of a stream. How each step is done, and what is proven, is in `docs/sdgs.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crenel.avro import Schemas, expect, packed, unpacked
from crenel.encoding import noise
from crenel.encoding.keyed_hash import siphash
from crenel.encoding.rows import Rows
from crenel.engine.contract import Engine, Kind, Releases, SnapshotError
from crenel.engine.draws import derived
from crenel.engine.kernels.deadlines import EARLIEST, LATEST, clock_after, rounded_down
from crenel.engine.methods.sdgs import Cover, SdgsParameters
from crenel.engine.methods.sdgs.sdgs_grid import Grid
from crenel.engine.space import check_rows, fingerprint, space_of
from crenel.policy import Policy

_SCHEMAS = Schemas("crenel.engine.methods.sdgs", ("sdgs.1.avsc",))
Ints = NDArray[np.int64]


@dataclass
class _Window:
    """The rows of one window in order of arrival, one per person."""

    numbers: list[int] = field(default_factory=list)
    qi: list[NDArray[np.float64]] = field(default_factory=list)
    sensitive: list[Ints] = field(default_factory=list)
    #: The persons, in the same order.
    persons: dict[int, None] = field(default_factory=dict)

    def add(self, number: int, qi: NDArray[np.float64], person: int, sensitive: Ints) -> bool:
        """Take a row if it is the first of its person, and return whether it is."""
        if person in self.persons:
            return False
        self.persons[person] = None
        self.numbers.append(number)
        self.qi.append(qi)
        self.sensitive.append(sensitive)
        return True


class Sdgs(Engine):
    """(k, beta)-SDGS on one shard's rows, window by window.

    Args:
        policy: What is to be guaranteed. Its `parameters` are `SdgsParameters`.
        key: 32 bytes that all draws follow from. An attacker who knows them knows who was sampled.
    """

    def __init__(self, policy: Policy, key: bytes) -> None:
        if not isinstance(policy.parameters, SdgsParameters):
            message = f"Sdgs: policy.parameters must be SdgsParameters, not those of {policy.method!r}."
            raise TypeError(message)
        self._policy = policy
        self._parameters = policy.parameters
        self._space = space_of(policy)
        self._fingerprint = fingerprint(policy, self._space)
        self._grid = Grid(policy, self._parameters, self._space.dimensions["scale"])
        #: The length of a window of event time: a whole number of ticks, at most the delay.
        self._length = None if policy.delay is None else rounded_down(policy.delay, policy.tick)
        self._set_key(key)
        self._arrivals = self._released = self._flushes = 0
        self._clock = EARLIEST
        #: The open windows, by the moments at which they end.
        self._windows: dict[int, _Window] = {}

    @property
    def key(self) -> bytes:
        """The key that all draws follow from. Keep it secret."""
        return self._key

    def _set_key(self, key: bytes) -> None:
        self._key = key
        self._sampling = np.frombuffer(derived(key, b"crenel.sampling"), dtype="<u8").astype(np.uint64)[:2]
        self._order = np.frombuffer(derived(key, b"crenel.order"), dtype="<u8").astype(np.uint64)[:2]

    def __repr__(self) -> str:
        """Tell how many rows are held, but nothing about them."""
        return f"Sdgs(held={self.held})"

    @property
    def held(self) -> int:
        """Rows that have arrived and not left."""
        return sum(len(window.numbers) for window in self._windows.values())

    def push(self, rows: Rows) -> Releases:
        """Take rows that arrive in this order, and return what became due."""
        check_rows(self._policy, self._space, rows)
        out = _Out(self)
        ends = self._ends(rows.time)
        kept = self._kept(rows.person, ends).tolist()
        # Copies, since rows are kept after this call and the caller may write to its arrays.
        qi, sensitive = rows.qi.copy(), rows.sensitive.copy()
        columns = zip(rows.time.tolist(), ends.tolist(), rows.person.tolist(), kept, qi, sensitive, strict=True)
        for time, end, person, stays, point, codes in columns:
            self._move(clock_after(self._clock, time, self._policy.disorder), out)
            number = self._arrivals
            self._arrivals += 1
            if not stays:
                out.add_alone(number, Kind.SAMPLED_OUT)
            elif self._is_over(end) or not self._window(end).add(number, point, person, codes):
                out.add_alone(number, Kind.SUPPRESSED)
            if self._policy.delay_rows is not None and self._arrivals % self._policy.delay_rows == 0:
                self._close_all(out)
        return out.releases()

    def advance(self, now: int) -> Releases:
        """Move event time on to `now`, in microseconds, and return what became due."""
        out = _Out(self)
        self._move(now, out)
        return out.releases()

    def flush(self) -> Releases:
        """End the stream, and return everything that is still held."""
        out = _Out(self)
        self._close_all(out)
        self._flushes += 1
        return out.releases()

    def next_deadline(self) -> int | None:
        """Return the moment at which `advance` must be called next, or None."""
        return min(self._windows, default=None) if self._length is not None else None

    # --- Windows ---

    def _ends(self, time: Ints) -> Ints:
        """Return the moment at which each row's window ends; LATEST if only arrivals count."""
        if self._length is None:
            return np.full(len(time), LATEST, dtype=np.int64)
        left = self._length - time % self._length
        return np.where(time > LATEST - left, LATEST, np.minimum(time, LATEST - left) + left)

    def _kept(self, person: Ints, ends: Ints) -> NDArray[np.bool_]:
        """Return whether each row's person is sampled in its window: the same for all rows of a person there."""
        number = np.arange(self._arrivals, self._arrivals + len(person), dtype=np.int64)
        counted = number // self._policy.delay_rows if self._policy.delay_rows is not None else np.zeros_like(number)
        bits = siphash(person, self._sampling)
        for part in (ends, counted, np.full_like(number, self._flushes)):
            bits = siphash(bits ^ part, self._sampling)
        return noise.sampled(bits.view(np.uint64), self._parameters.beta_sample)

    def _is_over(self, end: int) -> bool:
        return self._length is not None and end <= self._clock

    def _window(self, end: int) -> _Window:
        return self._windows.setdefault(end, _Window())

    def _move(self, now: int, out: _Out) -> None:
        """Move the clock to `now`, and close the windows that end on the way."""
        while self._length is not None and self._windows and (end := min(self._windows)) <= now:
            self._clock = max(self._clock, end)
            self._close(end, out)
        self._clock = max(self._clock, now)

    def _close_all(self, out: _Out) -> None:
        for end in sorted(self._windows):
            self._close(end, out)

    def _close(self, end: int, out: _Out) -> None:
        window = self._windows.pop(end)
        numbers, sensitive = np.array(window.numbers, dtype=np.int64), np.array(window.sensitive, dtype=np.int64)
        cells = self._grid.cells(np.array(window.qi))
        places, cell = np.unique(cells, axis=0, return_inverse=True)
        cell = cell.reshape(-1)
        published = self._published(cell, sensitive)
        shown = np.flatnonzero(published)
        shown = shown[np.argsort(cell[shown], kind="stable")]
        for part in np.split(shown, np.flatnonzero(np.diff(cell[shown])) + 1):
            if len(part):
                out.add_cell(places[cell[part[0]]], self._shuffled(numbers[part]))
        for number in numbers[~published].tolist():
            out.add_alone(number, Kind.SUPPRESSED)

    def _published(self, cell: Ints, sensitive: Ints) -> NDArray[np.bool_]:
        """Return which rows share their cell with enough persons and values to be published."""
        common = [cell[:, None], sensitive] if self._parameters.cover is Cover.ALL else [cell[:, None]]
        _, group, persons = np.unique(np.hstack(common), axis=0, return_inverse=True, return_counts=True)
        published = np.asarray(persons[group.reshape(-1)] >= self._policy.k)
        if self._policy.l is None:
            return published
        # Only the rows that are left count: the count must be visible in what is published.
        diverse = published.copy()
        for codes in sensitive.T:
            pairs = np.unique(np.stack([cell[published], codes[published]], axis=1), axis=0)
            values = np.bincount(pairs[:, 0], minlength=len(cell))
            diverse &= values[cell] >= self._policy.l
        return diverse

    def _shuffled(self, numbers: Ints) -> Ints:
        """Return the rows in an order that depends on the key."""
        return numbers[np.argsort(siphash(numbers, self._order), kind="stable")]

    # --- Snapshots ---

    def dump(self) -> bytes:
        """Return the complete state of the engine."""
        ends = sorted(self._windows)
        windows = [self._windows[end] for end in ends]
        sizes = [len(window.numbers) for window in windows]
        record = {
            "space": self._fingerprint,
            "key": self.key,
            "arrivals": self._arrivals,
            "released": self._released,
            "flushes": self._flushes,
            "clock": self._clock,
            "end": packed(np.repeat(np.array(ends, dtype=np.int64), sizes)),
            "number": _joined((window.numbers for window in windows), "<i8"),
            "person": _joined((list(window.persons) for window in windows), "<i8"),
            "qi": _joined((window.qi for window in windows), "<f8"),
            "sensitive": _joined((window.sensitive for window in windows), "<i8"),
        }
        return _SCHEMAS.encode(record)

    def load(self, data: bytes) -> None:
        """Take over the state of the engine that `dump` was called on."""
        record = _SCHEMAS.decode(data)
        if record["space"] != self._fingerprint:
            message = (
                "Sdgs: a snapshot can be restored only under the quasi-identifiers and sensitive columns "
                "it was taken under: policy.quasi_identifiers or policy.sensitive has changed."
            )
            raise SnapshotError(message)
        expect(len(record["key"]) == len(self.key))
        self._set_key(record["key"])
        self._arrivals, self._released = record["arrivals"], record["released"]
        self._flushes, self._clock = record["flushes"], record["clock"]
        numbers = unpacked(record["number"], "<i8").tolist()
        rows = len(numbers)
        qi = unpacked(record["qi"], shape=(rows, len(self._policy.quasi_identifiers)))
        sensitive = unpacked(record["sensitive"], "<i8", (rows, len(self._policy.sensitive)))
        columns = (unpacked(record[name], "<i8", (rows,)).tolist() for name in ("end", "person"))
        self._windows = {}
        for end, person, number, point, codes in zip(*columns, numbers, qi, sensitive, strict=True):
            self._window(end).add(number, point, person, codes)


def _joined(parts: Iterable[list[Any]], dtype: str) -> bytes:
    return packed(np.array([value for part in parts for value in part], dtype=dtype))


class _Out:
    """Columns of `Releases` under construction."""

    def __init__(self, engine: Sdgs) -> None:
        self._engine = engine
        self._rows: list[Ints] = []
        self._columns: list[tuple[Any, ...]] = []

    def add_alone(self, number: int, kind: Kind) -> None:
        """Release one row under the widest box, which tells only that the row exists."""
        self._add(np.array([number], dtype=np.int64), kind, *self._engine._grid.widest, 1.0)

    def add_cell(self, cell: Ints, numbers: Ints) -> None:
        """Release rows under the box of their cell."""
        lo, hi = self._engine._grid.box(cell)
        self._add(numbers, Kind.CLUSTER, lo, hi, self._engine._grid.loss(lo, hi))

    def _add(self, rows: Ints, kind: Kind, lo: NDArray[np.float64], hi: NDArray[np.float64], loss: float) -> None:
        engine = self._engine
        self._rows.append(rows)
        self._columns.append((kind, lo, hi, loss, len(rows), engine._clock, engine._arrivals, engine._released))
        engine._released += 1

    def releases(self) -> Releases:
        if not self._columns:
            return Releases.empty(len(self._engine._policy.quasi_identifiers))
        kind, lo, hi, loss, persons, moment, arrivals, group = self._transposed()
        return Releases(
            rows=np.concatenate(self._rows),
            offsets=np.concatenate([[0], np.cumsum(persons)]).astype(np.int64),
            kind=np.array(kind, dtype=np.int8),
            lo=np.array(lo),
            hi=np.array(hi),
            loss=np.array(loss, dtype=np.float64),
            persons=np.array(persons, dtype=np.int64),
            moment=np.array(moment, dtype=np.int64),
            arrivals=np.array(arrivals, dtype=np.int64),
            group=np.array(group, dtype=np.int64),
        )

    def _transposed(self) -> Iterator[tuple[Any, ...]]:
        return iter(zip(*self._columns, strict=True))
