"""Base class for methods that collect rows and decide on all held rows at once, now and then.

Decisions are rare compared with rows, so all of this is ordinary numpy: a row that arrives costs its part of an array.
A method says when it wants to decide, and which rows leave then.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from crenel.avro import Schemas, packed, unpacked
from crenel.encoding.rows import Rows
from crenel.engine.contract import Engine, Kind, Releases, SnapshotError
from crenel.engine.draws import generator
from crenel.engine.groups import Floats, Groups, Ints, groups_of, learn
from crenel.engine.kernels import compiler
from crenel.engine.kernels.deadlines import EARLIEST, LATEST, write_clocks_and_deadlines
from crenel.engine.kernels.generator import draw
from crenel.engine.kernels.group_boxes import shuffle_groups
from crenel.engine.kernels.reusable_boxes import find_containing, keep_box
from crenel.engine.reusable import count_stored, empty_boxes, grown_boxes, is_weaker, restore_boxes, stored_boxes
from crenel.engine.space import check_rows, fingerprint, own, restore_domains, space_of
from crenel.policy import Policy
from crenel.policy.parameters import Reuse

_Parameters = TypeVar("_Parameters")
_SCHEMAS = Schemas("crenel.engine", ("buffered.1.avsc",))
#: Rows that are searched at once for the next one that makes something due.
_BLOCK = 2048
#: Chunks that held rows lie in before they are joined: a chunk costs more than a row.
_MOST_CHUNKS = 256
#: What the shared kernels read and write.
_NUMBERS = np.dtype([(name, "i8") for name in ("draws", "arrivals", "clock", "reusable", "reusable_oldest")])


class Held(NamedTuple):
    """The held rows, in order of arrival."""

    number: Ints
    qi: Floats
    person: Ints
    sensitive: Ints
    time: Ints
    deadline: Ints
    #: Whether the row does not wait for a later group: it leaves at its deadline.
    hopeless: NDArray[np.bool_]

    def take(self, which: NDArray[Any]) -> Held:
        """Return some of the rows."""
        return Held(*(np.ascontiguousarray(column[which]) for column in self))

    @property
    def rows(self) -> Rows:
        """The columns that the rows arrived with."""
        return Rows(self.qi, self.person, self.sensitive, self.time)


class ReusableBox(NamedTuple):
    """A box that a row may be published under."""

    place: int
    #: Under the domains that are known now.
    loss: float


class Buffered(Engine, Generic[_Parameters]):
    """Holds rows in order of arrival, and asks the method to decide whenever something may be due.

    Args:
        policy: What is to be guaranteed. Its `parameters` have the type `parameters_of`.
        key: 32 bytes for the generator. An attacker who knows them can undo its choices.
    """

    parameters_of: ClassVar[type]

    def __init__(self, policy: Policy, key: bytes) -> None:
        if not isinstance(policy.parameters, self.parameters_of):
            expected = self.parameters_of.__name__
            message = f"{type(self).__name__}: policy.parameters must be {expected}, not those of {policy.method!r}."
            raise TypeError(message)
        self._policy = policy
        self._parameters = cast(_Parameters, policy.parameters)
        space = space_of(policy)
        self._fingerprint = fingerprint(policy, space)
        self._space = space._replace(dimensions=space.dimensions.copy())
        self._random = generator(key)
        self._numbers = np.zeros(1, dtype=_NUMBERS)
        self._clock = EARLIEST
        self._arrivals = 0
        self._released = 0
        self._chunks = [self._none()]
        self._count = 0
        self._first_deadline: int = LATEST
        #: Whether all held rows are known to be enough for a group.
        self._known_enough = False
        self._max_reusable: int = policy.parameter("max_reusable", 0)
        self._boxes = empty_boxes(0, len(policy.quasi_identifiers))
        self._leaving: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        """Tell how many rows are held, but nothing about them."""
        return f"{type(self).__name__}(held={self.held})"

    # --- What a method implements ---

    @abstractmethod
    def _decide(self) -> None:
        """Release what leaves now: at least the rows that are due.

        Called when the clock reaches `_event`, when a row arrives that is due at once, and after `_until_full` rows.
        """

    @abstractmethod
    def _finish(self) -> None:
        """Release everything."""

    def _until_full(self) -> int:
        """Return after how many more rows the method wants to decide; below 1 if it does not."""
        return 0

    def _alone(self) -> bool:
        """Return whether the method wants to be told of the next row by itself."""
        return False

    def _arrived(self) -> None:
        """Take note of a row that arrived while `_alone` was true."""

    def _event(self) -> int:
        """Return the next moment at which something may be due."""
        return self._first_deadline

    def _own_numbers(self) -> list[int]:
        """Return the method's own numbers, for a snapshot."""
        return []

    def _restore_own_numbers(self, numbers: list[int]) -> None:
        """Take over what `_own_numbers` returned."""

    # --- The contract ---

    @property
    def held(self) -> int:
        """Rows that have arrived and not left."""
        return self._count

    @property
    def key(self) -> bytes:
        """The generator's key. Keep it secret."""
        return packed(self._random.key)

    def push(self, rows: Rows) -> Releases:
        """Take rows that arrive in this order, and return what became due."""
        check_rows(self._policy, self._space, rows)
        compiler.expect(len(rows))
        clocks, deadlines = self._clocks_and_deadlines(rows.time)
        start = 0
        while start < len(rows):
            start = self._take_some(rows, clocks, deadlines, start)
        return self._taken()

    def advance(self, now: int) -> Releases:
        """Move event time on to `now`, in microseconds, and return what became due."""
        self._move_to(now)
        return self._taken()

    def flush(self) -> Releases:
        """End the stream, and return everything that is still held."""
        if self.held:
            self._finish()
        return self._taken()

    def next_deadline(self) -> int | None:
        """Return the moment at which `advance` must be called next, or None."""
        return self._first_deadline if self.held and self._policy.delay is not None else None

    # --- Rows in ---

    def _take_some(self, rows: Rows, clocks: Ints, deadlines: Ints, start: int) -> int:
        """Take rows up to the first that makes something due, and return where the next one is."""
        self._move_to(int(clocks[start]))
        stop, full = self._first_to_matter(clocks, deadlines, start)
        self._clock = max(self._clock, int(clocks[stop - 1]))
        self._hold(rows.slice(start, stop), deadlines[start:stop])
        if self._alone():
            self._arrived()
        if full or self._any_due():
            self._decide()
        return stop

    def _first_to_matter(self, clocks: Ints, deadlines: Ints, start: int) -> tuple[int, bool]:
        """Return the end of the rows to take now, and whether the method wants to decide then because it is full.

        The end is before a row that moves the clock to a moment when something is due, or after a row that is due
        itself.
        """
        until_full = self._until_full()
        stop = min(start + _BLOCK, len(clocks))
        if self._alone():
            stop = start + 1
        if self._policy.delay_rows is not None:
            stop = min(stop, start + max(1, self._oldest() + self._policy.delay_rows + 1 - self._arrivals))
        some = slice(start, stop)
        # For each row: the first moment at which it, or a row before it, is due.
        due = np.minimum(np.minimum.accumulate(deadlines[some]), self._event())
        moved = np.flatnonzero(clocks[some][1:] >= due[:-1])
        late = np.flatnonzero(deadlines[some] <= np.maximum(clocks[some], self._clock))
        if len(moved):
            stop = min(stop, start + 1 + int(moved[0]))
        if len(late):
            stop = min(stop, start + 1 + int(late[0]))
        if 0 < until_full <= stop - start:
            return start + until_full, True
        return stop, False

    def _any_due(self) -> bool:
        timed = self._policy.delay is not None and self._first_deadline <= self._clock
        counted = self._policy.delay_rows is not None and self._oldest() < self._arrivals - self._policy.delay_rows
        return timed or counted

    def _hold(self, rows: Rows, deadlines: Ints) -> None:
        learn(self._space, rows.qi)
        count = len(rows)
        # Copies, since the caller may write to its arrays.
        self._chunks.append(
            Held(
                np.arange(self._arrivals, self._arrivals + count),
                rows.qi.copy(),
                rows.person.copy(),
                rows.sensitive.copy(),
                rows.time.copy(),
                deadlines.copy(),
                np.zeros(count, dtype=np.bool_),
            )
        )
        self._arrivals += count
        self._count += count
        if len(self._chunks) > _MOST_CHUNKS:
            self._chunks = [self._held]
        self._first_deadline = min(self._first_deadline, int(deadlines.min()))

    def _clocks_and_deadlines(self, times: Ints) -> tuple[Ints, Ints]:
        policy, clocks, deadlines = self._policy, np.empty_like(times), np.empty_like(times)
        delay = -1 if policy.delay is None else policy.delay
        write_clocks_and_deadlines(own(times), policy.disorder, delay, policy.tick, clocks, deadlines)
        return clocks, deadlines

    def _move_to(self, now: int) -> None:
        """Move the clock, and decide at each moment on the way at which something is due."""
        while (event := self._event()) <= now and self.held and self._policy.delay is not None:
            self._clock = max(self._clock, event)
            self._decide()
        self._clock = max(self._clock, now)

    # --- Held rows ---

    @property
    def _held(self) -> Held:
        if len(self._chunks) > 1:
            self._chunks = [Held(*(np.concatenate(parts) for parts in zip(*self._chunks, strict=True)))]
        return self._chunks[0]

    def _oldest(self) -> int:
        """Return the number of the oldest held row; the number of the next row if none is held."""
        return next((int(chunk.number[0]) for chunk in self._chunks if len(chunk.number)), self._arrivals)

    def _none(self) -> Held:
        none = np.zeros(0, dtype=np.int64)
        qi = np.zeros((0, len(self._policy.quasi_identifiers)))
        sensitive = np.zeros((0, len(self._policy.sensitive)), dtype=np.int64)
        return Held(none, qi, none, sensitive, none, none, np.zeros(0, dtype=np.bool_))

    def _due(self) -> Ints:
        """Return the held rows that must leave now."""
        held = self._held
        due = np.zeros(len(held.number), dtype=np.bool_)
        if self._policy.delay is not None:
            due |= held.deadline <= self._clock
        if self._policy.delay_rows is not None:
            due |= held.number < self._arrivals - self._policy.delay_rows
        return np.flatnonzero(due)

    def _all_enough(self) -> bool:
        """Return whether all held rows together could be a group. Once they could, more rows do not change that."""
        if not self._known_enough:
            self._known_enough = self._enough(np.arange(self.held))
        return self._known_enough

    def _enough(self, which: Ints) -> bool:
        """Return whether these held rows could be a group."""
        held, l = self._held, self._policy.l
        return len(np.unique(held.person[which])) >= self._policy.k and (
            l is None or all(len(np.unique(column[which])) >= l for column in held.sensitive.T)
        )

    def _forget(self, which: Ints) -> None:
        """Drop rows that have left."""
        if len(which) == 0:
            return
        held = self._held
        stays = np.ones(len(held.number), dtype=np.bool_)
        stays[which] = False
        self._hold_only(held.take(stays))

    def _hold_only(self, held: Held) -> None:
        self._chunks = [held]
        self._count = len(held.number)
        self._known_enough = False
        self._first_deadline = int(held.deadline.min(initial=LATEST))

    # --- Rows out ---

    def _release_groups(self, group: Ints, *, reusable: bool = False) -> None:
        """Release groups. `group` has the group number of each held row; rows with a number below 0 stay."""
        held = self._held
        found = groups_of(self._space, held.rows, group)
        if len(found.loss) == 0:
            return
        leaving = held.number[found.order]
        shuffle_groups(self._random, self._numbers, leaving, found.offsets)
        numbers = self._released + np.arange(len(found.loss))
        self._leave(
            Kind.CLUSTER, leaving, np.diff(found.offsets), found.lo, found.hi, found.loss, found.persons, numbers
        )
        if reusable:
            self._keep_reusable(found, numbers)
        self._forget(found.order)

    def _keep_reusable(self, found: Groups, releases: Ints) -> None:
        self._boxes = grown_boxes(self._boxes, int(self._numbers["reusable"][0]) + len(releases), self._max_reusable)
        self._numbers["arrivals"], self._numbers["clock"] = self._arrivals, self._clock
        for i, release in enumerate(releases.tolist()):
            persons, loss = int(found.persons[i]), float(found.loss[i])
            keep_box(self._boxes, self._numbers, found.lo[i], found.hi[i], loss, persons, release)

    def _reuse(self, which: Iterable[int]) -> None:
        """Release the held rows that a reusable box contains, one by one."""
        left = []
        if self._policy.reuse is Reuse.OFF:
            return
        for i in which:
            found = self._reusable_box(i)
            if found is not None:
                self._leave_under(i, found)
                left.append(i)
        self._forget(np.array(left, dtype=np.int64))

    def _reusable_box(self, i: int) -> ReusableBox | None:
        """Return a box that a held row may be published under, by the policy's rule, or None."""
        boxes = self._boxes
        found = find_containing(boxes, self._numbers, self._held.qi[i])
        if found == 0:
            return None
        places = boxes.candidates[:found]
        losses = self._losses(boxes.lo[places], boxes.hi[places])
        chosen = int(np.argmin(losses)) if self._policy.reuse is Reuse.BEST else self._below(found)
        return ReusableBox(int(places[chosen]), float(losses[chosen]))

    def _leave_under(self, i: int, found: ReusableBox) -> None:
        """Release a held row under a box. The caller forgets the row."""
        at, loss = found
        lo, hi, box = self._boxes.lo[at], self._boxes.hi[at], self._boxes.table[at]
        number = self._held.number[[i]]
        self._leave(Kind.REUSE, number, [1], [lo], [hi], [loss], [box["persons"]], [box["group"]])

    def _forget_oldest_box(self) -> None:
        numbers = self._numbers
        numbers["reusable_oldest"] = (numbers["reusable_oldest"] + 1) % len(self._boxes.table)
        numbers["reusable"] -= 1

    def _losses(self, lo: Floats, hi: Floats) -> Floats:
        """Return the losses of boxes under the domains that are known now."""
        total = np.zeros(len(lo))
        for d, (scale, cell) in enumerate(self._space.dimensions[["scale", "cell"]].tolist()):
            total += scale * (hi[:, d] - lo[:, d] + cell)
        return total

    def _suppress(self, which: Ints) -> None:
        """Release held rows without a group, in order of arrival."""
        dimensions = self._space.dimensions
        lo, hi = dimensions["widest_lo"], dimensions["widest_hi"]
        for number in self._held.number[which].tolist():
            self._leave(Kind.SUPPRESSED, [number], [1], [lo], [hi], [1.0], [1], [self._released])
        self._forget(which)

    def _below(self, n: int) -> int:
        return int(draw(self._random, self._numbers, n))

    def _leave(self, kind: Kind, rows: Any, sizes: Any, lo: Any, hi: Any, loss: Any, persons: Any, group: Any) -> None:
        count = len(sizes)
        self._leaving.append(
            {
                "rows": np.array(rows, dtype=np.int64),
                "sizes": np.array(sizes, dtype=np.int64),
                "kind": np.full(count, kind, dtype=np.int8),
                "lo": np.array(lo, dtype=np.float64),
                "hi": np.array(hi, dtype=np.float64),
                "loss": np.array(loss, dtype=np.float64),
                "persons": np.array(persons, dtype=np.int64),
                "moment": np.full(count, self._clock, dtype=np.int64),
                "arrivals": np.full(count, self._arrivals, dtype=np.int64),
                "group": np.array(group, dtype=np.int64),
            }
        )
        self._released += count

    def _taken(self) -> Releases:
        """Return what has left since the last call."""
        parts, self._leaving = self._leaving, []
        if not parts:
            return Releases.empty(len(self._policy.quasi_identifiers))
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        sizes = columns.pop("sizes")
        return Releases(offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), **columns)

    # --- Snapshots ---

    def dump(self) -> bytes:
        """Return the complete state of the engine, including its random generator."""
        record = {
            "method": self._policy.method,
            "space": self._fingerprint,
            "k": self._policy.k,
            "l": self._policy.l or 0,
            "key": self.key,
            "draws": int(self._numbers["draws"][0]),
            "arrivals": self._arrivals,
            "released": self._released,
            "clock": self._clock,
            "domain_lo": packed(self._space.dimensions["domain_lo"]),
            "domain_hi": packed(self._space.dimensions["domain_hi"]),
            "held": {name: packed(column) for name, column in self._held._asdict().items()},
            "reusable": stored_boxes(self._boxes, self._numbers),
            "own_numbers": self._own_numbers(),
        }
        return _SCHEMAS.encode(record)

    def load(self, data: bytes) -> None:
        """Take over the state of the engine that `dump` was called on.

        Reusable boxes are forgotten if the policy now asks for a stronger guarantee.
        """
        record = _SCHEMAS.decode(data)
        self._check_same(record)
        self._random = generator(record["key"], record["draws"])
        self._numbers["draws"] = record["draws"]
        self._arrivals, self._released, self._clock = record["arrivals"], record["released"], record["clock"]
        restore_domains(self._space, record)
        self._restore_held(record["held"])
        self._restore_boxes(record)
        self._leaving = []
        self._restore_own_numbers(record["own_numbers"])

    def _restore_boxes(self, record: dict[str, Any]) -> None:
        stored = record["reusable"]
        kept = 0 if is_weaker(record, self._policy) else count_stored(stored)
        self._boxes = grown_boxes(empty_boxes(0, len(self._policy.quasi_identifiers)), kept, self._max_reusable)
        self._numbers["reusable"] = self._numbers["reusable_oldest"] = 0
        if kept:
            restore_boxes(self._boxes, self._numbers, stored)

    def _check_same(self, record: dict[str, Any]) -> None:
        if record["method"] != self._policy.method:
            message = (
                f"{self._policy.method}: a snapshot can be restored only by the method it was taken from: "
                "policy.method has changed."
            )
            raise SnapshotError(message)
        if record["space"] != self._fingerprint:
            message = (
                f"{self._policy.method}: a snapshot can be restored only under the quasi-identifiers and sensitive "
                "columns it was taken under: policy.quasi_identifiers or policy.sensitive has changed."
            )
            raise SnapshotError(message)

    def _restore_held(self, held: dict[str, bytes]) -> None:
        rows = len(unpacked(held["number"], "<i8"))
        columns: dict[str, Any] = {
            name: unpacked(held[name], "<i8", (rows,)) for name in ("number", "person", "time", "deadline")
        }
        columns["sensitive"] = unpacked(held["sensitive"], "<i8", (rows, len(self._policy.sensitive)))
        columns["qi"] = unpacked(held["qi"], shape=(rows, len(self._policy.quasi_identifiers)))
        columns["hopeless"] = unpacked(held["hopeless"], "?", (rows,))
        self._hold_only(Held(**columns))
