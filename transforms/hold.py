"""HOLD: the stateful step, one engine per key and window."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.metrics import Metrics
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
from crenel.transforms.emit import NAMESPACE, Emitter
from crenel.transforms.holder import Departure, Holder
from crenel.transforms.live import MEMORY, Live
from crenel.transforms.marks import policy_of, policy_text
from crenel.transforms.packs import Pack, handed
from crenel.transforms.stamps import rounded

#: Operations: the first is a snapshot of a holder without rows.
_BEGIN, _PUSH, _ADVANCE, _FLUSH = b"b", b"p", b"a", b"f"
#: An operation's number in the log, so that sorting bytes sorts operations.
_NUMBER = struct.Struct(">Q")

#: The log is replaced by a snapshot when it has more bytes than this, and than twice the last snapshot.
_SHORTEST_LOG = 1 << 20


@dataclass(frozen=True)
class _Cells:
    """The state of one key and window: all of it bytes, in few cells."""

    log: Any
    snapshot: Any
    token: Any


class Hold(beam.DoFn):
    """Holds the packs of a shard, and emits what leaves.

    Args:
        policy: What is to be guaranteed.
        secret: What the engines' generators are seeded from; it travels with the pipeline.
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
        self._emitter = Emitter(self._policy, self._record)
        self._held = Metrics.distribution(NAMESPACE, "held_rows")

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
        shard, pack = element
        cells = _Cells(log, snapshot, token)
        # It is a row's event time: what leaves is not stamped with it.
        earliest = rounded(timestamp.micros, self._emitter.tick)
        return self._step(shard, window, earliest, _PUSH + pack, cells, deadline, handed(pack))

    @on_timer(DEADLINE)
    def on_deadline(
        self,
        shard: Any = beam.DoFn.KeyParam,
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
        cells = _Cells(log, snapshot, token)
        # Timers are told in milliseconds, and a window ends a microsecond before one.
        over = timestamp.micros // 1000 >= window.max_timestamp().micros // 1000
        op = _FLUSH if over else _ADVANCE + str(timestamp.micros).encode()
        return self._step(shard, window, timestamp.micros, op, cells, deadline)

    def _step(
        self, shard: int, window: Any, earliest: int, op: bytes, cells: _Cells, deadline: Any, pack: Pack | None = None
    ) -> Iterator[Any]:
        """Apply one operation, store it, and emit what leaves; `pack` is what it pushes, if that need not be read."""
        key = (self._uid, shard, window)
        live = self._live(key, cells)
        if op[:1] != _PUSH and live.holder.held == 0:
            return self._idle(key, live, op, cells)
        # The log begins with the generator's key and the policy, without which the rest of it means nothing.
        begun = b"" if live.token else _BEGIN + live.holder.snapshot()
        departures = _apply(live.holder, op) if pack is None else live.holder.push(pack)
        if begun:
            _log(live, begun, cells)
        self._store(live, op, window, cells)
        self._arm(live, window, op, deadline)
        if op != _FLUSH:
            MEMORY.put(key, live)
        self._held.update(live.holder.held)
        return self._emitter.emit(departures, shard, window, earliest)

    def _idle(self, key: Any, live: Live, op: bytes, cells: _Cells) -> Iterator[Any]:
        """A timer that nothing waits for any more: nothing happened, so nothing is stored."""
        if op == _FLUSH:
            _forget(live, cells, key[-1])
        elif live.token:
            live.armed = None  # it has fired: a late row of the same deadline must set it again
            MEMORY.put(key, live)
        return iter(())

    def _live(self, key: Any, cells: _Cells) -> Live:
        live = MEMORY.take(key)
        stored = cells.token.read()
        if live is not None and stored is not None and live.token == stored:
            return live
        return self._rebuilt(key, stored or b"", cells)

    def _rebuilt(self, key: Any, token: bytes, cells: _Cells) -> Live:
        """The holder as its state says: the snapshot, then the log once more."""
        _, shard, window = key
        name = shard_name(shard, window)
        # Beam weighs a cell whenever it is read, written or cleared, which costs as much as some hundred rows do.
        if not token:
            return Live(Holder(self._policy, self._secret, name), token)
        snapshot = cells.snapshot.read()
        log = sorted(cells.log.read())  # a bag promises no order; each operation begins with its number
        ops = [op[_NUMBER.size :] for op in log]
        begin = ops.pop(0)[len(_BEGIN) :] if snapshot is None else snapshot
        written = Holder.written_under(begin)
        changed = written != policy_text(self._policy)
        holder = Holder(policy_of(written) if changed else self._policy, self._secret, name)
        holder.restore(begin)
        for op in ops:
            _apply(holder, op)  # what left then has left
        live = Live(holder, token, len(log), sum(map(len, log)), len(snapshot or b""))
        if changed:
            # What happened, happened under the policy of then; from here on it is today's.
            live.holder = Holder(self._policy, self._secret, name)
            live.holder.restore(holder.snapshot())
            live.outdated = True
        return live

    def _store(self, live: Live, op: bytes, window: Any, cells: _Cells) -> None:
        if op == _FLUSH and _forget(live, cells, window):
            return
        if op == _FLUSH or live.outdated or live.bytes + len(op) > max(_SHORTEST_LOG, 2 * live.snapshot):
            data = live.holder.snapshot()
            cells.snapshot.write(data)
            if live.ops:
                cells.log.clear()
            live.snapshot, live.ops, live.bytes, live.outdated = len(data), 0, 0, False
        else:
            _log(live, op, cells)
        live.token = secrets.token_bytes(8)
        cells.token.write(live.token)

    def _arm(self, live: Live, window: Any, op: bytes, deadline: Any) -> None:
        """Set the timer to the next deadline, or to the window's end; not at all if nothing is held."""
        if live.holder.held == 0:
            return
        end = window.max_timestamp().micros
        due = live.holder.next_deadline()
        at = end if due is None else min(-(-due // 1000) * 1000, end)
        fired = op[:1] != _PUSH
        if fired or at != live.armed:
            deadline.set(Timestamp(micros=at))
            live.armed = at


def _apply(holder: Holder, op: bytes) -> list[Departure]:
    kind, rest = op[:1], op[1:]
    if kind == _PUSH:
        return holder.push(Pack.from_bytes(rest))
    if kind == _ADVANCE:
        return holder.advance(int(rest))
    return holder.flush()


def _log(live: Live, op: bytes, cells: _Cells) -> None:
    cells.log.add(_NUMBER.pack(live.ops) + op)
    live.ops += 1
    live.bytes += len(op)


def _forget(live: Live, cells: _Cells, window: Any) -> bool:
    """Clear the state of the global window at its end, which no runner does; say whether it was that."""
    if not isinstance(window, GlobalWindow):
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
