"""What methods share that let rows wait together and decide on all of them now and then.

Rows are few decisions apart, so that all of this is ordinary numpy: a row that arrives costs its part of an array that
is kept. A method says when the rows are to be looked at, and what leaves then.
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
from crenel.engine.kernels import common
from crenel.engine.kernels import group_boxes as kernels
from crenel.engine.reusable import Pool
from crenel.engine.space import check_rows, fingerprint, set_domains, space_of
from crenel.policy import Policy
from crenel.policy.parameters import Reuse

_Parameters = TypeVar("_Parameters")
_SCHEMAS = Schemas("crenel.engine", ("buffered.1.avsc",))
#: Rows that are looked through at once for the next one that makes something due.
_BLOCK = 2048
#: Pieces that held rows lie in before they are put together: each costs more than a row.
_MOST_CHUNKS = 256


class Held(NamedTuple):
    """The held rows, in order of arrival."""

    number: Ints
    qi: Floats
    person: Ints
    sensitive: Ints
    time: Ints
    #: Rounded down to the policy's tick.
    deadline: Ints
    #: Whether no later group is waited for.
    hopeless: NDArray[np.bool_]

    def take(self, which: NDArray[Any]) -> Held:
        """These rows alone."""
        return Held(*(np.ascontiguousarray(column[which]) for column in self))

    @property
    def rows(self) -> Rows:
        """What they are as rows."""
        return Rows(self.qi, self.person, self.sensitive, self.time)


class Buffered(Engine, Generic[_Parameters]):
    """Holds rows in the order of their arrival, and asks the method at each moment when something may be due.

    Parameters
    ----------
    policy
        What is to be guaranteed; its `parameters` are of the type `parameters_of`.
    key
        32 bytes for the generator. Whoever knows them can undo its choices.
    """

    parameters_of: ClassVar[type]

    def __init__(self, policy: Policy, key: bytes) -> None:
        if not isinstance(policy.parameters, self.parameters_of):
            message = f"{type(self).__name__}: policy.method must be of {self.parameters_of.__name__}."
            raise TypeError(message)
        self._policy = policy
        self._parameters = cast(_Parameters, policy.parameters)
        space = space_of(policy)
        self._fingerprint = fingerprint(policy, space)
        self._space = space._replace(dimensions=space.dimensions.copy())
        self._random = generator(key)
        self._draws = np.zeros(1, dtype=[("draws", "i8")])
        self._clock = common.EARLIEST
        self._arrivals = 0
        self._released = 0
        self._chunks = [self._none()]
        self._count = 0
        self._first_deadline: int = common.LATEST
        #: Whether all held rows are known to be enough for a group.
        self._known_enough = False
        self._pool = Pool(len(policy.quasi_identifiers), policy.parameter("max_reusable", 0))
        self._leaving: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        """Say how much, never what."""
        return f"{type(self).__name__}(held={self.held})"

    # --- What a method says ---

    @abstractmethod
    def _decide(self) -> None:
        """Let go of what is to leave now: at least the rows that are due.

        Called when the clock has reached `_event`, when a row has come that is due, and when `_until_full` is over.
        """

    @abstractmethod
    def _finish(self) -> None:
        """Let go of everything."""

    def _until_full(self) -> int:
        """How many rows may come before the method wants to be asked; below 1 if it does not."""
        return 0

    def _arrived(self) -> None:
        """Take note that a row has come while `_alone` was true."""

    def _alone(self) -> bool:
        """Whether the method wants to know of the next row by itself."""
        return False

    def _event(self) -> int:
        """The next moment at which something may be due."""
        return self._first_deadline

    def _marks(self) -> list[int]:
        """The method's own numbers, for a snapshot."""
        return []

    def _restore_marks(self, marks: list[int]) -> None:
        """Take back what `_marks` said."""

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
        """Take rows that arrive in this order; return what became due."""
        check_rows(self._policy, self._space, rows)
        clocks = np.maximum.accumulate(_plus(rows.time, -self._policy.disorder))
        deadlines = self._deadlines(rows.time)
        start = 0
        while start < len(rows):
            start = self._take_some(rows, clocks, deadlines, start)
        return self._taken()

    def advance(self, now: int) -> Releases:
        """Take note that event time has moved on to `now`, in microseconds; return what became due."""
        self._move_to(now)
        return self._taken()

    def flush(self) -> Releases:
        """Take note that the stream is over; return everything that is still held."""
        if self.held:
            self._finish()
        return self._taken()

    def next_deadline(self) -> int | None:
        """Return the moment at which `advance` is next needed, if there is one."""
        return self._first_deadline if self.held and self._policy.delay is not None else None

    # --- Rows in ---

    def _take_some(self, rows: Rows, clocks: Ints, deadlines: Ints, start: int) -> int:
        """Take rows up to the first that makes something due; where that was."""
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
        """Where to stop: before a row that moves the clock to where something is due, or behind one that is so itself.

        And whether that is because the method thinks itself full.
        """
        until_full = self._until_full()
        stop = min(start + _BLOCK, len(clocks))
        if self._alone():
            stop = start + 1
        if self._policy.delay_rows is not None:
            stop = min(stop, start + max(1, self._oldest() + self._policy.delay_rows + 1 - self._arrivals))
        some = slice(start, stop)
        # Of each row: what is due first among those before it, and it.
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
        # Copies: who pushed them may write to them.
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

    def _deadlines(self, times: Ints) -> Ints:
        if self._policy.delay is None:
            return np.full(len(times), common.LATEST)
        # Rounded down: who sees a row leave alone, at its deadline, must not learn its event time.
        exact = _plus(times, self._policy.delay)
        return exact - exact % self._policy.tick

    def _move_to(self, now: int) -> None:
        """Move the clock, and stop at each moment on the way when something is due."""
        while (event := self._event()) <= now and self.held and self._policy.delay is not None:
            self._clock = max(self._clock, event)
            self._decide()
        self._clock = max(self._clock, now)

    # --- Rows that are held ---

    @property
    def _held(self) -> Held:
        if len(self._chunks) > 1:
            self._chunks = [Held(*(np.concatenate(parts) for parts in zip(*self._chunks, strict=True)))]
        return self._chunks[0]

    def _oldest(self) -> int:
        """The number of the oldest row that is held, or of the next one."""
        return next((int(chunk.number[0]) for chunk in self._chunks if len(chunk.number)), self._arrivals)

    def _none(self) -> Held:
        none = np.zeros(0, dtype=np.int64)
        qi = np.zeros((0, len(self._policy.quasi_identifiers)))
        sensitive = np.zeros((0, len(self._policy.sensitive)), dtype=np.int64)
        return Held(none, qi, none, sensitive, none, none, np.zeros(0, dtype=np.bool_))

    def _due(self) -> Ints:
        """The held rows that must leave now."""
        held = self._held
        due = np.zeros(len(held.number), dtype=np.bool_)
        if self._policy.delay is not None:
            due |= held.deadline <= self._clock
        if self._policy.delay_rows is not None:
            due |= held.number < self._arrivals - self._policy.delay_rows
        return np.flatnonzero(due)

    def _all_enough(self) -> bool:
        """Whether all held rows could be a group. More that come do not change that."""
        if not self._known_enough:
            self._known_enough = self._enough(np.arange(self.held))
        return self._known_enough

    def _enough(self, which: Ints) -> bool:
        """Whether held rows could be a group."""
        held, l = self._held, self._policy.l
        return len(np.unique(held.person[which])) >= self._policy.k and (
            l is None or all(len(np.unique(column[which])) >= l for column in held.sensitive.T)
        )

    def _forget(self, which: Ints) -> None:
        """No longer hold rows, which have left."""
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
        self._first_deadline = int(held.deadline.min(initial=common.LATEST))

    # --- Rows out ---

    def _release_groups(self, group: Ints, *, reusable: bool = False) -> None:
        """Let go of groups, whose rows have their numbers in `group`; those of a number below 0 stay."""
        held = self._held
        found = groups_of(self._space, held.rows, group)
        if len(found.loss) == 0:
            return
        leaving = held.number[found.order]
        kernels.shuffle_groups(self._random, self._draws, leaving, found.offsets)
        numbers = self._released + np.arange(len(found.loss))
        self._leave(
            Kind.CLUSTER, leaving, np.diff(found.offsets), found.lo, found.hi, found.loss, found.persons, numbers
        )
        if reusable:
            self._keep_reusable(found, numbers)
        self._forget(found.order)

    def _keep_reusable(self, found: Groups, numbers: Ints) -> None:
        for i, number in enumerate(numbers.tolist()):
            self._pool.add(found.lo[i], found.hi[i], number, int(found.persons[i]))

    def _reuse(self, which: Iterable[int]) -> None:
        """Let go of those held rows that a reusable generalization contains, one by one."""
        held, left = self._held, []
        rule = self._policy.reuse
        if rule is Reuse.OFF:
            return
        for i in which:
            at = self._pool.containing(held.qi[i])
            if len(at) == 0:
                continue
            losses = self._pool.losses(self._space, at)
            chosen = int(np.argmin(losses)) if rule is Reuse.BEST else self._below(len(at))
            box = self._pool[int(at[chosen])]
            self._leave(
                Kind.REUSE, held.number[[i]], [1], [box.lo], [box.hi], [losses[chosen]], [box.persons], [box.group]
            )
            left.append(i)
        self._forget(np.array(left, dtype=np.int64))

    def _suppress(self, which: Ints) -> None:
        """Let go of held rows without a group, in order of arrival."""
        dimensions = self._space.dimensions
        lo, hi = dimensions["widest_lo"], dimensions["widest_hi"]
        for number in self._held.number[which].tolist():
            self._leave(Kind.SUPPRESSED, [number], [1], [lo], [hi], [1.0], [1], [self._released])
        self._forget(which)

    def _below(self, n: int) -> int:
        return int(kernels.draw(self._random, self._draws, n))

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
        """What has left since this was last asked."""
        parts, self._leaving = self._leaving, []
        if not parts:
            return Releases.empty(len(self._policy.quasi_identifiers))
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        sizes = columns.pop("sizes")
        return Releases(offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), **columns)

    # --- Snapshots ---

    def snapshot(self) -> bytes:
        """Return all of the engine, its random generator included."""
        record = {
            "method": self._policy.method,
            "space": self._fingerprint,
            "k": self._policy.k,
            "l": self._policy.l or 0,
            "key": self.key,
            "draws": int(self._draws["draws"][0]),
            "arrivals": self._arrivals,
            "released": self._released,
            "clock": self._clock,
            "domain_lo": packed(self._space.dimensions["domain_lo"]),
            "domain_hi": packed(self._space.dimensions["domain_hi"]),
            "held": {name: packed(column) for name, column in self._held._asdict().items()},
            "reusable": self._pool.packed(),
            "marks": self._marks(),
        }
        return _SCHEMAS.encode(record)

    def restore(self, data: bytes) -> None:
        """Become the engine that `snapshot` was called on.

        Published generalizations that were kept for reuse are forgotten if the policy now asks for a stronger
        guarantee.
        """
        record = _SCHEMAS.decode(data)
        self._check_same(record)
        self._random = self._random._replace(key=unpacked(record["key"], "<u4"))
        self._draws["draws"] = record["draws"]
        if record["draws"] % common.WORDS:
            common.chacha20_block(self._random, record["draws"] // common.WORDS)
        self._arrivals, self._released, self._clock = record["arrivals"], record["released"], record["clock"]
        set_domains(self._space, unpacked(record["domain_lo"]), unpacked(record["domain_hi"]))
        self._restore_held(record["held"])
        weaker = record["k"] < self._policy.k or record["l"] < (self._policy.l or 0)
        self._pool.restore(record["reusable"], forget=weaker)
        self._leaving = []
        self._restore_marks(record["marks"])

    def _check_same(self, record: dict[str, Any]) -> None:
        if record["method"] != self._policy.method:
            message = (
                f"{self._policy.method}: a snapshot can be restored only by the method it was taken of: "
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
        columns: dict[str, Any] = {name: unpacked(held[name], "<i8") for name in held if name not in ("qi", "hopeless")}
        rows = len(columns["number"])
        columns["sensitive"] = columns["sensitive"].reshape(rows, len(self._policy.sensitive))
        columns["qi"] = unpacked(held["qi"]).reshape(rows, len(self._policy.quasi_identifiers))
        columns["hopeless"] = unpacked(held["hopeless"], "?")
        self._hold_only(Held(**columns))


def _plus(moments: Ints, span: int) -> Ints:
    """The sums, or the limit that they are beyond."""
    return np.asarray(np.clip(moments, common.EARLIEST - min(span, 0), common.LATEST - max(span, 0)) + span)
