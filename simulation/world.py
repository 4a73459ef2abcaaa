"""Plays a history: each of its steps is a method of `World`. Then everything comes to rest, and the whole is judged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from crenel.encoding import tree_following, tree_learning
from crenel.errors import SnapshotError
from crenel.transforms._hold import hold_step
from simulation import policies, twin
from simulation.history import START, History
from simulation.judging.promises import Broken, Promise, expect, expect_silent
from simulation.model.broker import FAULTS
from simulation.model.job import HOLD, IDLE, LEARN, OUTBOX, READ, Stage, job
from simulation.model.outside import Outside, play
from simulation.model.process import Process
from simulation.model.runner import LAST, Checkpoint, Runner

#: How trees of shards are learned: from few rows, and again and again.
_RESTLESS: tuple[tuple[Any, str, float], ...] = (
    (tree_following, "_SAMPLE", 8),
    (tree_following, "_SAMPLE_OF_SHARD", 2),
    (tree_following, "_PARTS", 2),
    (tree_following, "_FULL", -100.0),
    (tree_following, "CROWD", 0.1),
    (tree_learning, "CROWD", 0.1),
)
#: Elements and timers of one bundle when nothing is to go wrong.
_ALL = 1_000
#: Rounds after which a stream in which nothing goes wrong any more must be done.
_ROUNDS = 40


@contextmanager
def restless_trees() -> Iterator[None]:
    """Let trees of shards be learned from a dozen rows, and change whenever that makes shards more even."""
    with ExitStack() as stack:
        for owner, name, value in _RESTLESS:
            stack.enter_context(patch.object(owner, name, value))
        yield


class World(Runner):
    """One history being played.

    Args:
        history: What happens.
    """

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._outside = Outside(f"history {history.seed}", self.clock, self.broker)
        self._policy, self._secret = history.policy, 0
        self._split_at = 0
        # Without a delay, nothing but the end releases the last rows.
        self._ends = history.ends or policies.policy(history.policy).delay is None
        #: The checkpoint that is being written, and the last complete one.
        self._pending: Checkpoint | None = None
        self._complete = self.cut()

    def run(self) -> None:
        """Play the history to its end.

        Raises:
            Broken: a promise is broken.
        """
        with play(self._outside), patch.object(hold_step, "_SHORTEST_LOG", self.history.log), restless_trees():
            self.start(self.history.workers)
            for step in self.history.steps:
                self.actions += 1
                getattr(self, f"do_{step.name}")(*step[1:])
            self._settle()
            self.judge.finish()
            left = [address for address, state in self.store.items() if address[0] == OUTBOX and state.cells]
            expect(Promise.BOUNDED, not left, f"{len(left)} keys of an empty outbox leave state behind")
            wrong = len(self.broker.buried - self.broker.refused)
            expect(Promise.NOTHING_LOST, not wrong, f"{wrong} dead letters are of records that their topics take")
            twin.repeat(self.judge.hold, self.disturbed)
        for message in self._outside.logged:
            expect_silent(message, "a log")
        self.faults += self.broker.met

    # -- The stream, and time ----------------------------------------------------------------------------

    def do_arrive(self, count: int, *_: int) -> None:
        """Let messages arrive in the topic."""
        for _message in range(count):
            if self.broker.next == len(self.history.rows):
                return
            row = self.broker.arrive()
            self.now = max(self.now, START + row.sent / 1000)
            self.faults["row is ahead of its time"] += row.at > row.sent

    def do_clock(self, seconds: int, *_: int) -> None:
        """Let time pass."""
        self.wait(seconds)

    def do_skew(self, worker: int, seconds: int, *_: int) -> None:
        """Let the clock of a process jump, forwards or back."""
        self._process(worker).skew = float(seconds)
        self.faults["clock jumps"] += 1

    # -- Bundles -----------------------------------------------------------------------------------------

    def do_read(self, worker: int, most: int, fail: int, elsewhere: int) -> None:
        """Read a bundle, with so many messages at a time; if it fails, perhaps its partitions move on."""
        places = sorted({self.place(READ, number) for number in self.restrictions})
        process = self.processes[places[worker % len(places)]]
        self.broker.most = 1 + most
        if not self.read_bundle(process, fail, self._split) and elsewhere:
            mine = [number for number in self.restrictions if self.place(READ, number) == process.number]
            self.move_on(READ, mine, elsewhere)

    def do_split(self, at: int, *_: int) -> None:
        """Let the runner ask a partition to stop, at one of the next reads."""
        self._split_at = at

    def _split(self, stage: Stage) -> Any:
        self._split_at = max(self._split_at - 1, -1)
        return stage.split() if self._split_at == 0 else None

    def do_hold(self, worker: int, count: int, mix: int, fail: int) -> None:
        """Run a bundle of HOLD, or of LEARN before it, in a process that has something to do."""
        self._run(LEARN if mix % 2 and self.busy(LEARN) else HOLD, worker, count, mix, fail)

    def do_send(self, worker: int, count: int, mix: int, fail: int) -> None:
        """Run a bundle of the outbox and the sink."""
        self._run(OUTBOX, worker, count, mix, fail)

    def _run(self, label: str, worker: int, count: int, mix: int, fail: int) -> None:
        busy = self.busy(label)
        if not busy:
            # Nothing is to do, so time passes.
            self.wait(1.0)
            busy = self.busy(label)
        if busy:
            self.keyed_bundle(label, busy[worker % len(busy)], count, mix, fail)

    def do_again(self, which: int, *_: int) -> None:
        """Fire a timer that has fired, or that was set to another time since."""
        stale = [one for one in self.stale if one[2] <= self.watermark(*one[0][:2])]
        if stale:
            self.fire_again(*stale[which % len(stale)])
            self.faults["timer fires again"] += 1

    # -- Processes ---------------------------------------------------------------------------------------

    def _process(self, number: int) -> Process:
        return self.processes[number % len(self.processes)]

    def do_move(self, stage: int, key: int, worker: int, *_: int) -> None:
        """Move a key, or a partition, to another process."""
        label = (READ, HOLD, OUTBOX)[stage % 3]
        if label == HOLD and key % 2 and any(where == LEARN for where, *_ in self.store):
            label = LEARN
        keys = sorted({own for where, own, *_ in (*self.store, *self.channels) if where == label} or self.restrictions)
        chosen = keys[key % len(keys)]
        if self.place(label, chosen) != worker % len(self.processes):
            self.moved[label, chosen] = worker
            self.disturbed.update([chosen] if label == HOLD else [])
            self.faults["key moves"] += 1

    def do_visit(self, key: int, by: int, count: int, mix: int) -> None:
        """Move a key to another process for one bundle, and back to where it is still remembered."""
        keys = sorted({address[:2] for address in self.store})
        if not keys or len(self.processes) == 1:
            return
        label, chosen = keys[key % len(keys)]
        home = self.place(label, chosen)
        away = (home + 1 + by % (len(self.processes) - 1)) % len(self.processes)
        self.moved[label, chosen] = away
        if self.processes[away] in self.busy(label):
            self.keyed_bundle(label, self.processes[away], count, mix, 0)
        self.moved[label, chosen] = home
        self.disturbed.update([chosen] if label == HOLD else [])
        self.faults["key moves"] += 2

    def do_restart(self, worker: int, *_: int) -> None:
        """Let a process die between two bundles, and another begin in its place."""
        self._process(worker).restart()
        self.disturb()
        self.faults["process dies"] += 1

    # -- Checkpoints -------------------------------------------------------------------------------------

    def do_barrier(self, *_: int) -> None:
        """Begin a checkpoint. It may overtake the word of the one before, but not of the one before that."""
        if self._pending is None and max(self.untold) < 2:
            self._pending = self.cut()
            self.faults["checkpoints overlap"] += max(self.untold) > 0

    def do_complete(self, *_: int) -> None:
        """Complete the checkpoint."""
        if self._pending is not None:
            self._complete, self._pending = self._pending, None
            self.untold = [count + 1 for count in self.untold]
            self.judge.completed(self._complete.saved)

    def do_abort(self, *_: int) -> None:
        """Let the checkpoint fail: the disk is full, or it took too long."""
        self.faults["checkpoint fails"] += self._pending is not None
        self._pending = None

    def do_notify(self, worker: int, *_: int) -> None:
        """Tell a process that a checkpoint is complete."""
        process = self._process(worker)
        if self.untold[process.number]:
            self.untold[process.number] -= 1
            process.finalize()

    def do_forget(self, worker: int, *_: int) -> None:
        """Never tell a process of a completed checkpoint."""
        number = worker % len(self.processes)
        if self.untold[number]:
            self.untold[number] -= 1
            self.faults["word of a checkpoint is lost"] += 1

    def do_checkpoint(self, *_: int) -> None:
        """Do a whole checkpoint at once."""
        self.do_barrier()
        self.do_complete()
        for process in self.processes:
            while self.untold[process.number]:
                self.do_notify(process.number)

    def do_crash(self, survivors: int, shift: int, *_: int) -> None:
        """Go back to the last completed checkpoint. Some processes survive, and keys move."""
        for process in self.processes:
            process.finalizers = []
            if not survivors >> process.number & 1:
                process.restart()
        self.shift = shift
        self._pending = None
        self.restore(self._complete)
        self.faults["job is restored"] += 1

    def do_savepoint(self, workers: int, successor: int, secret: int, shift: int) -> None:
        """Stop with a savepoint; take it up with other processes, and under another policy or secret."""
        saved = self.cut()
        compatible = policies.family(self._policy)
        self._policy, self._secret = compatible[successor % len(compatible)], secret % 2
        self.job = job(self._policy, self._secret)
        self.start(1 + workers % 3)
        self.shift = shift
        self._pending = None
        self.restore(saved)
        self.judge.hold.taken_up(self.job.policy)
        self._complete = self.cut()
        self.judge.completed(self._complete.saved)
        self.faults["savepoint is taken up"] += 1

    def do_mistake(self, which: int, *_: int) -> None:
        """Take up a savepoint under a policy that it does not fit: it is refused, and taken up again under its own."""
        saved, own, count = self.cut(), self.job, len(self.processes)
        strangers = policies.strangers(self._policy)
        self.job = job(strangers[which % len(strangers)], self._secret)
        self.start(1)
        for address in [one for one, state in self.store.items() if one[0] == HOLD and "token" in state.cells]:
            refused = False
            try:
                self.fire_again(address, self.job.hold.timer, int(address[2].max_timestamp().micros))
            except Broken as broken:
                refused = isinstance(broken.__cause__, SnapshotError)
            expect(Promise.WORKS, refused, "state was taken up under a policy that it does not fit")
            self.faults["savepoint is refused"] += 1
        self.job = own
        self.start(count)
        self._pending = None
        self.restore(saved)
        self._complete = saved
        self.judge.completed(saved.saved)

    # -- The broker --------------------------------------------------------------------------------------

    def do_refuse(self, kind: int, count: int, *_: int) -> None:
        """Let requests to the broker fail, or records that are sent."""
        self.broker.faults[FAULTS[kind % len(FAULTS)]] += count

    # -- The end -----------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Let nothing go wrong any more, until every row has left."""
        self.broker.faults.clear()
        self._split_at = 0
        for process in self.processes:
            process.skew = 0.0
        self.do_arrive(len(self.history.rows))
        latest = max((row.at for row in self.history.rows), default=0)
        patience = IDLE + self._longest_delay()
        self.now = max(self.now, START + latest / 1000) + patience
        for _ in range(_ROUNDS):
            if self._is_done():
                return
            self._round()
            if self._ends and self._is_read():
                self.is_over = self.judge.topics.is_over = True
                self.marks = dict.fromkeys(self.marks, LAST)
            self.wait(patience)

    def _longest_delay(self) -> float:
        names = policies.family(self._policy)
        return max((policies.policy(name).delay or 0) + policies.policy(name).disorder for name in names) / 1e6

    def _round(self) -> None:
        for process in self.processes:
            if not self.is_over:
                self.do_read(process.number, _ALL, 0, 0)
        for label in (LEARN, HOLD, OUTBOX):
            for process in self.busy(label):
                self.keyed_bundle(label, process, _ALL, 0, 0)
        self.do_checkpoint()

    def _is_read(self) -> bool:
        return self.messages == sum(row.fault != "gap" for row in self.history.rows)

    def _is_done(self) -> bool:
        if not self._is_read() or any(self.channels.values()) or self.judge.hold.has_held:
            return False
        if self._ends and not self.is_over:
            return False
        return not any(state.cells for address, state in self.store.items() if address[0] == OUTBOX)
