"""HOLD: one engine per shard and window, behind state and timers, or, for bounded rows, behind a GroupByKey."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import (
    BagStateSpec,
    ReadModifyWriteStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp

from crenel.errors import SnapshotError
from crenel.policy import Policy
from crenel.policy.durations import LONGEST
from crenel.policy.secret import Secret, as_secret
from crenel.transforms._hold.ahead import Refusal
from crenel.transforms._hold.engine_cache import CACHE, CachedShards, Key
from crenel.transforms._hold.refused_rows import RefusedRows
from crenel.transforms._hold.shard_holder import Departure, ShardHolder
from crenel.transforms._hold.shard_set import Left, ShardSet
from crenel.transforms._hold.sorted_runs import Sealed, SortSpace, rows_in_order
from crenel.transforms._hold.stored_state import PUSH, Cells, Chain, Stored
from crenel.transforms._pack.fingerprints import policy_of, policy_text
from crenel.transforms._pack.row_options import Clock, RowOptions
from crenel.transforms._pack.row_pack import opened
from crenel.transforms._pack.sharding import shard_name
from crenel.transforms._publish.emitter import Emitter
from crenel.transforms._publish.timestamps import clamped, rounded

#: Operations, beside that of a pack. A shard begins with the generator's key and the policy, without which the rest of
#: the log means nothing.
_BEGIN, _WAKE, _FLUSH = b"b", b"w", b"f"

#: A snapshot replaces the log when the log has more bytes than this for each shard, and than twice the last snapshot.
_SHORTEST_LOG = 1 << 16


class _Hold(beam.DoFn):
    """What both HOLD steps share: the emitter, and the counts of a bundle.

    Args:
        policy: The policy to enforce.
        secret: Seeds the engines' generators, and the order of rows that are released at once; and keys the seals of
            packs and of state.
        record: Makes records of releases: `dict`, or `beam.Row`.
        options: How rows are identified and ordered.
    """

    def __init__(
        self,
        policy: Policy,
        secret: bytes | Secret,
        record: Callable[..., Any] = dict,
        options: RowOptions = RowOptions(),
    ) -> None:
        self._policy = policy
        self._secret = as_secret(secret, policy)
        self._record = record
        self._options = options

    def setup(self) -> None:
        """Prepare what does not travel."""
        self._seal = self._secret.seal
        self._emitter = Emitter(self._policy, self._secret.root, self._record, self._options)
        self._refused = RefusedRows(self._policy, self._emitter, self._record, self._options)

    def start_bundle(self) -> None:
        """Forget the counts of a bundle that failed."""
        self._emitter.start_bundle()

    def finish_bundle(self) -> Iterator[Any]:
        """Emit the counts of the bundle."""
        return self._emitter.finish_bundle()

    def _emit(self, left: list[Departure | Refusal], shard: int, window: Any, earliest: int) -> Iterator[Any]:
        """Emit what left a shard: released rows, and rows that were too far ahead."""
        released = self._emitter.emit([one for one in left if isinstance(one, Departure)], shard, window, earliest)
        refused = [one for one in left if isinstance(one, Refusal)]
        if not refused:
            return released
        return chain(released, *(self._refused.emit(one, shard, window, earliest) for one in refused))


class HoldRows(_Hold):
    """Holds the shards of a key in state, and releases rows by timers.

    Args:
        policy: The policy to enforce.
        secret: As for every HOLD step.
        uid: Tells this transform from others in the same process.
        record: Makes records of releases: `dict`, or `beam.Row`.
        options: How rows are identified and ordered.
    """

    LOG = BagStateSpec("log", BytesCoder())
    SNAPSHOT = ReadModifyWriteStateSpec("snapshot", BytesCoder())
    TOKEN = ReadModifyWriteStateSpec("token", BytesCoder())
    #: Beam's local runner mixes up timers of one name in a stage, so that it must not be a name that others choose.
    DEADLINE = TimerSpec("crenel_deadline", TimeDomain.WATERMARK)

    def __init__(
        self,
        policy: Policy,
        secret: bytes | Secret,
        uid: str,
        record: Callable[..., Any] = dict,
        options: RowOptions = RowOptions(),
    ) -> None:
        if options.clock is Clock.WATERMARK and policy.delay is not None:
            # In the policy, and so in the state: a log is replayed by the clock under which it was written.
            policy = replace(policy, disorder=LONGEST)
        super().__init__(policy, secret, record, options)
        self._uid = uid

    def process(
        self,
        element: tuple[int, bytes],
        timestamp: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        log: Any = beam.DoFn.StateParam(LOG),
        snapshot: Any = beam.DoFn.StateParam(SNAPSHOT),
        token: Any = beam.DoFn.StateParam(TOKEN),
        deadline: Any = beam.DoFn.TimerParam(DEADLINE),
    ) -> Iterator[Any]:
        """Push a pack of rows."""
        key, data = element
        # Rounded, because it is a row's event time, which no released row may carry.
        earliest = rounded(timestamp.micros, self._emitter.tick)
        return self._take((self._uid, key, window), data, earliest, Cells(log, snapshot, token), deadline)

    @on_timer(DEADLINE)
    def on_deadline(
        self,
        key: Any = beam.DoFn.KeyParam,
        timestamp: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        log: Any = beam.DoFn.StateParam(LOG),
        snapshot: Any = beam.DoFn.StateParam(SNAPSHOT),
        token: Any = beam.DoFn.StateParam(TOKEN),
        deadline: Any = beam.DoFn.TimerParam(DEADLINE),
    ) -> Iterator[Any]:
        """Release the rows that are due; at the end of the window all rows.

        The engine's own state decides what is due, so a timer that fires twice, late or out of order does no harm.
        """
        return self._wake((self._uid, key, window), timestamp.micros, Cells(log, snapshot, token), deadline)

    def _take(self, key: Key, data: bytes, earliest: int, cells: Cells, deadline: Any) -> Iterator[Any]:
        cached = self._cached(key, cells)
        pack = opened(data, self._seal, _place(key))
        begun = cached.shards.begin(pack)
        left = cached.shards.push(pack)
        if begun:
            _log(cached, _BEGIN + begun, cells)
        return self._done(cached, PUSH + data, left, earliest, cells, deadline)

    def _wake(self, key: Key, now: int, cells: Cells, deadline: Any) -> Iterator[Any]:
        cached = self._cached(key, cells)
        # Timers are told in milliseconds, and a window ends a microsecond before one.
        over = now // 1000 >= key[-1].max_timestamp().micros // 1000
        is_due = cached.shards.held if over else cached.shards.is_due(now)
        if not is_due:
            return self._idle(cached, over, cells, deadline)
        op = _FLUSH if over else _WAKE + str(now).encode()
        earliest = now if over else self._held_at(cached.shards, now)
        return self._done(cached, op, self._apply(cached.shards, key, op), earliest, cells, deadline)

    def _done(
        self, cached: CachedShards, op: bytes, left: Left, earliest: int, cells: Cells, deadline: Any
    ) -> Iterator[Any]:
        """Store an operation, and emit what it released."""
        self._store(cached, op, cells)
        if op[:1] != PUSH:
            cached.armed = ()  # the timer has fired
        self._arm(cached, deadline)
        if op != _FLUSH:
            CACHE.put(cached.key, cached)
        window = cached.key[-1]
        for shard, _ in left:
            self._emitter.hold(cached.shards.held_by(shard), window)
        return chain.from_iterable(self._emit(gone, shard, window, earliest) for shard, gone in left)

    def _idle(self, cached: CachedShards, over: bool, cells: Cells, deadline: Any) -> Iterator[Any]:
        """Answer a timer that no row waited for: nothing happened, so nothing is stored."""
        if over:
            _forget(cached, cells)
        elif cached.token:
            cached.armed = ()  # the timer has fired: a row of the same deadline must set it again
            self._arm(cached, deadline)
            CACHE.put(cached.key, cached)
        return iter(())

    def _held_at(self, shards: ShardSet, now: int) -> int:
        """The time at which the watermark is held, rounded: a row that is ahead waits until a time of its own.

        It is the next deadline, even if a timer beyond it is the first to fire.
        """
        due = shards.next_deadline()
        return _in_millis(rounded(now if due is None else min(now, due), self._emitter.tick))

    def _cached(self, key: Key, cells: Cells) -> CachedShards:
        cached = CACHE.take(key)
        stored = cells.token.read()
        if cached is not None and stored is not None and cached.token == stored:
            return cached
        return self._rebuilt(key, stored, cells)

    def _rebuilt(self, key: Key, token: bytes | None, cells: Cells) -> CachedShards:
        """Rebuild the shards from their state: restore the snapshot, then replay the log."""
        # Beam weighs a cell whenever it is read, written or cleared, which costs as much as some hundred rows do.
        if token is None:
            return CachedShards(key, self._shards(key, self._policy), b"", Chain(self._seal, _place(key)))
        stored = Stored.read(self._seal, _place(key), token, cells)
        written = ShardSet.written_under(stored.ops[0][1:] if stored.snapshot is None else stored.snapshot)
        changed = written != policy_text(self._policy)
        shards = self._shards(key, self._policy_of(written) if changed else self._policy)
        if stored.snapshot is not None:
            shards.restore(stored.snapshot)
        for op in stored.ops:
            self._apply(shards, key, op)  # the rows that it released were emitted then
        cached = CachedShards(key, shards, token, stored.chain, len(stored.ops), stored.log_size, stored.snapshot_size)
        if changed:
            # The log was replayed under the policy of then; from here on today's holds.
            cached.shards = self._shards(key, self._policy)
            cached.shards.restore(shards.snapshot())
            cached.outdated = True
        return cached

    def _policy_of(self, written: str) -> Policy:
        """Read the policy that the state was written under; today's may differ from it, but not in everything."""
        policy = policy_of(written)
        if policy.method != self._policy.method:
            message = (
                f"The state was written by the method {policy.method!r}, and the policy now names "
                f"{self._policy.method!r}, which cannot go on from it. Drain the pipeline before you change the method."
            )
            raise SnapshotError(message)
        for name in ("once_per", "together"):
            if getattr(policy, name) != getattr(self._policy, name):
                message = (
                    f"The state was written under another {name}, so it does not say enough of whose rows were "
                    f"published. Drain the pipeline before you change {name}."
                )
                raise SnapshotError(message)
        return policy

    def _apply(self, shards: ShardSet, key: Key, op: bytes) -> Left:
        kind, rest = op[:1], op[1:]
        if kind == _BEGIN:
            shards.restore(rest)
            return []
        if kind == PUSH:
            return shards.push(opened(rest, self._seal, _place(key)))
        if kind == _WAKE:
            return shards.wake(int(rest))
        return shards.flush()

    def _shards(self, key: Key, policy: Policy) -> ShardSet:
        window = key[-1]
        return ShardSet(policy, self._secret, lambda shard: shard_name(shard, window))

    def _store(self, cached: CachedShards, op: bytes, cells: Cells) -> None:
        if op == _FLUSH and _forget(cached, cells):
            return
        enough = max(_SHORTEST_LOG * len(cached.shards), 2 * cached.snapshot)
        if op == _FLUSH or cached.outdated or cached.bytes + len(op) > enough:
            data = cached.chain.snapshot(self._seal, cached.shards.snapshot())
            cells.snapshot.write(data)
            if cached.ops:
                cells.log.clear()
            cached.snapshot, cached.ops, cached.bytes, cached.outdated = len(data), 0, 0, False
        else:
            _log(cached, op, cells)
        cached.token = cached.chain.token()
        cells.token.write(cached.token)

    def _arm(self, cached: CachedShards, deadline: Any) -> None:
        """Set timers to the next deadline and beyond, or to the end of the window; not at all if no row is held.

        A timer tells its own time, not how far the watermark has come, and Flink fires what is set while timers fire
        only in its next bundle. A watermark that has jumped past many deadlines, as when a backlog is read, would then
        wake the key once a bundle for each of them. So further timers are set, each twice as far ahead: in one bundle,
        they get the key through at least half of what is due.
        """
        if cached.shards.held == 0:
            # The timer may fire in vain where the key is next, and be gone when it comes back: that changes no token.
            cached.armed = ()
            return
        end = cached.key[-1].max_timestamp().micros
        due = cached.shards.next_deadline()
        times = (end,) if due is None else tuple(min(at, end) for at in self._steps(due, cached.shards.last_deadline()))
        for place, at in enumerate(times):
            if cached.armed[place : place + 1] != (at,):
                deadline.set(Timestamp(micros=at), dynamic_timer_tag=str(place) if place else "")
        cached.armed = times

    def _steps(self, due: int, last: int | None) -> Iterator[int]:
        """The next deadline, times beyond it, and the last deadline."""
        at, step = due, self._policy.tick
        while last is not None and at < last:
            yield _in_millis(at)
            at = due + step
            step *= 2
        yield _in_millis(max(due, last or due))


class HoldGroupedRows(_Hold):
    """Pushes all packs of a shard and window through one engine, in the order of event times.

    Args:
        policy: The policy to enforce.
        secret: As for every HOLD step.
        record: Makes records of releases: `dict`, or `beam.Row`.
        options: How rows are identified and ordered.
        space: Where to sort rows that do not fit into memory, if anywhere.
    """

    def __init__(
        self,
        policy: Policy,
        secret: bytes | Secret,
        record: Callable[..., Any] = dict,
        options: RowOptions = RowOptions(),
        space: SortSpace | None = None,
    ) -> None:
        super().__init__(policy, secret, record, options)
        self._space = space

    def process(self, element: tuple[int, Iterable[bytes]], window: Any = beam.DoFn.WindowParam) -> Iterator[Any]:
        """Anonymize the rows of a shard."""
        shard, packs = element
        place = shard_name(shard, window)
        holder = ShardHolder(self._policy, self._secret, place)
        for pack in rows_in_order(packs, Sealed(self._seal, place), self._options.tie_breaker, self._space):
            left = holder.push(pack)
            self._emitter.hold(holder.held, window)
            # All input is there, so nothing is late: a row is emitted with the moment of its release.
            yield from self._emit(left, shard, window, MIN_TIMESTAMP.micros)
        left = holder.flush()
        self._emitter.hold(holder.held, window)
        yield from self._emit(left, shard, window, MIN_TIMESTAMP.micros)


def _in_millis(moment: int) -> int:
    """Round a moment up to milliseconds, in which timers are told."""
    return -(-clamped(moment) // 1000) * 1000


def _place(key: Key) -> bytes:
    _, shard, window = key
    return shard_name(shard, window)


def _log(cached: CachedShards, op: bytes, cells: Cells) -> None:
    cells.log.add(cached.chain.entry(cached.ops, op))
    cached.ops += 1
    cached.bytes += len(op)


def _forget(cached: CachedShards, cells: Cells) -> bool:
    """Clear the state of the global window at its end, which no runner does; return whether it was that."""
    if not isinstance(cached.key[-1], GlobalWindow):
        return False  # late rows may still come; the runner clears the state in time
    if cached.ops:
        cells.log.clear()
    if cached.snapshot:
        cells.snapshot.clear()
    if cached.token:
        cells.token.clear()
    return True
