"""HOLD: the stateful step, one engine per shard and window."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from apache_beam.utils.timestamp import Timestamp

from crenel.policy import Policy
from crenel.transforms._hold.engine_cache import MEMORY, Key, Live
from crenel.transforms._hold.shard_set import Left, Shards
from crenel.transforms._pack.fingerprints import policy_of, policy_text
from crenel.transforms._pack.row_pack import Pack, handed
from crenel.transforms._publish.emitter import Emitter
from crenel.transforms._publish.timestamps import rounded

#: Operations. A shard begins with the generator's key and the policy, without which the rest of the log means nothing.
_BEGIN, _PUSH, _WAKE, _FLUSH = b"b", b"p", b"w", b"f"
#: What earlier releases wrote for a timer: the time, told to a shard whether one of its rows was due or not.
_ADVANCE = b"a"
#: An operation's number in the log, so that sorting bytes sorts operations.
_NUMBER = struct.Struct(">Q")

#: The log is replaced by a snapshot when it has more bytes than this for each shard, and than twice the last snapshot.
_SHORTEST_LOG = 1 << 20


@dataclass(frozen=True)
class _Cells:
    """The state of one key and window: all of it bytes, in few cells."""

    log: Any
    snapshot: Any
    token: Any


class Hold(beam.DoFn):
    """Holds the packs of the shards of a key, and emits what leaves.

    Args:
        policy: What is to be guaranteed.
        secret: What the engines' generators are seeded from, and the order of what leaves at once; it travels with the
            pipeline.
        uid: What tells this transform from others in the same process.
        record: What makes records of releases: `dict`, or `beam.Row`.
    """

    LOG = BagStateSpec("log", BytesCoder())
    SNAPSHOT = ReadModifyWriteStateSpec("snapshot", BytesCoder())
    TOKEN = ReadModifyWriteStateSpec("token", BytesCoder())
    DEADLINE = TimerSpec("deadline", TimeDomain.WATERMARK)

    def __init__(self, policy: Policy, secret: bytes, uid: str, record: Callable[..., Any] = dict) -> None:
        self._policy = policy
        self._record = record
        self._secret = secret
        self._uid = uid

    def setup(self) -> None:
        """Prepare what does not travel."""
        self._emitter = Emitter(self._policy, self._secret, self._record)

    def start_bundle(self) -> None:
        """Forget the counts of a bundle that failed."""
        self._emitter.start_bundle()

    def finish_bundle(self) -> Iterator[Any]:
        """Emit the counts of the bundle."""
        return self._emitter.finish_bundle()

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
        """Take a pack of rows."""
        key, data = element
        # It is a row's event time: what leaves is not stamped with it.
        earliest = rounded(timestamp.micros, self._emitter.tick)
        return self._take((self._uid, key, window), data, earliest, _Cells(log, snapshot, token), deadline)

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
        """Let go of what is due; of everything at the window's end.

        What is due is what the engine's own state says, so that firing twice, late or out of order does no harm.
        """
        return self._wake((self._uid, key, window), timestamp.micros, _Cells(log, snapshot, token), deadline)

    def _take(self, key: Key, data: bytes, earliest: int, cells: _Cells, deadline: Any) -> Iterator[Any]:
        live = self._live(key, cells)
        pack = handed(data) or Pack.from_bytes(data)
        begun = live.shards.begin(pack)
        left = live.shards.push(pack)
        if begun:
            _log(live, _BEGIN + begun, cells)
        return self._done(live, _PUSH + data, left, earliest, cells, deadline)

    def _wake(self, key: Key, now: int, cells: _Cells, deadline: Any) -> Iterator[Any]:
        live = self._live(key, cells)
        # Timers are told in milliseconds, and a window ends a microsecond before one.
        over = now // 1000 >= key[-1].max_timestamp().micros // 1000
        is_due = live.shards.held if over else live.shards.is_due(now)
        if not is_due:
            return self._idle(live, over, cells, deadline)
        op = _FLUSH if over else _WAKE + str(now).encode()
        return self._done(live, op, _apply(live.shards, op), now, cells, deadline)

    def _done(self, live: Live, op: bytes, left: Left, earliest: int, cells: _Cells, deadline: Any) -> Iterator[Any]:
        """Store what was done, and emit what leaves."""
        self._store(live, op, cells)
        if op[:1] != _PUSH:
            live.armed = None  # it has fired
        self._arm(live, deadline)
        if op != _FLUSH:
            MEMORY.put(live.key, live)
        window = live.key[-1]
        for shard, _ in left:
            self._emitter.hold(live.shards.held_by(shard), window)
        emit = self._emitter.emit
        return chain.from_iterable(emit(departures, shard, window, earliest) for shard, departures in left)

    def _idle(self, live: Live, over: bool, cells: _Cells, deadline: Any) -> Iterator[Any]:
        """A timer that nothing waited for: nothing happened, so nothing is stored."""
        if over:
            _forget(live, cells)
        elif live.token:
            live.armed = None  # it has fired: a row of the same deadline must set it again
            self._arm(live, deadline)
            MEMORY.put(live.key, live)
        return iter(())

    def _live(self, key: Key, cells: _Cells) -> Live:
        live = MEMORY.take(key)
        stored = cells.token.read()
        if live is not None and stored is not None and live.token == stored:
            return live
        return self._rebuilt(key, stored or b"", cells)

    def _rebuilt(self, key: Key, token: bytes, cells: _Cells) -> Live:
        """The shards as their state says: the snapshot, then the log once more."""
        # Beam weighs a cell whenever it is read, written or cleared, which costs as much as some hundred rows do.
        if not token:
            return Live(key, self._shards(key, self._policy), token)
        snapshot = cells.snapshot.read()
        log = sorted(cells.log.read())  # a bag promises no order; each operation begins with its number
        ops = [op[_NUMBER.size :] for op in log]
        written = Shards.written_under(ops[0][1:] if snapshot is None else snapshot)
        changed = written != policy_text(self._policy)
        shards = self._shards(key, policy_of(written) if changed else self._policy)
        if snapshot is not None:
            shards.restore(snapshot)
        for op in ops:
            _apply(shards, op)  # what left then has left
        live = Live(key, shards, token, len(log), sum(map(len, log)), len(snapshot or b""))
        if changed:
            # What happened, happened under the policy of then; from here on it is today's.
            live.shards = self._shards(key, self._policy)
            live.shards.restore(shards.snapshot())
            live.outdated = True
        return live

    def _shards(self, key: Key, policy: Policy) -> Shards:
        _, own, window = key
        return Shards(policy, self._secret, lambda shard: shard_name(shard, window), own)

    def _store(self, live: Live, op: bytes, cells: _Cells) -> None:
        if op == _FLUSH and _forget(live, cells):
            return
        enough = max(_SHORTEST_LOG * len(live.shards), 2 * live.snapshot)
        if op == _FLUSH or live.outdated or live.bytes + len(op) > enough:
            data = live.shards.snapshot()
            cells.snapshot.write(data)
            if live.ops:
                cells.log.clear()
            live.snapshot, live.ops, live.bytes, live.outdated = len(data), 0, 0, False
        else:
            _log(live, op, cells)
        live.token = secrets.token_bytes(8)
        cells.token.write(live.token)

    def _arm(self, live: Live, deadline: Any) -> None:
        """Set the timer to the next deadline, or to the window's end; not at all if nothing is held."""
        if live.shards.held == 0:
            return
        end = live.key[-1].max_timestamp().micros
        due = live.shards.next_deadline()
        at = end if due is None else min(-(-due // 1000) * 1000, end)
        if at != live.armed:
            deadline.set(Timestamp(micros=at))
            live.armed = at


def _apply(shards: Shards, op: bytes) -> Left:
    kind, rest = op[:1], op[1:]
    if kind == _BEGIN:
        shards.restore(rest)
        return []
    if kind == _PUSH:
        return shards.push(Pack.from_bytes(rest))
    if kind == _WAKE:
        return shards.wake(int(rest))
    if kind == _ADVANCE:
        return shards.advance(int(rest))
    return shards.flush()


def _log(live: Live, op: bytes, cells: _Cells) -> None:
    cells.log.add(_NUMBER.pack(live.ops) + op)
    live.ops += 1
    live.bytes += len(op)


def _forget(live: Live, cells: _Cells) -> bool:
    """Clear the state of the global window at its end, which no runner does; say whether it was that."""
    if not isinstance(live.key[-1], GlobalWindow):
        return False  # rows may still come, late; the runner clears it in time
    if live.ops:
        cells.log.clear()
    if live.snapshot:
        cells.snapshot.clear()
    if live.token:
        cells.token.clear()
    return True


def shard_name(shard: int, window: Any) -> bytes:
    """What tells an engine from the others of the pipeline, in every process the same."""
    if isinstance(window, GlobalWindow):
        return f"{shard}".encode()
    return f"{shard} {window.start.micros} {window.end.micros}".encode()
