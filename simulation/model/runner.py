"""The modelled runner: bundles, channels, timers, checkpoints, and processes that keys are assigned to.

It behaves as Flink does, and as other runners may. State is exactly-once: a bundle that fails is taken back whole, and
its elements are given again. A restore goes back to a checkpoint, the positions of the source included. What reached a
topic stays there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from crenel.runners import JobFailed
from simulation.history import START, History
from simulation.judging.hold_judge import Call
from simulation.judging.judge import Judge, Saved
from simulation.judging.promises import Broken, Promise, expect, expect_silent
from simulation.model.broker import LOST, Broker
from simulation.model.job import (
    BEGAN_TO_WAIT,
    CAME,
    HOLD,
    LEARN,
    LEARNED,
    OUTBOX,
    READ,
    TAKEN,
    Interrupted,
    Job,
    Stage,
    job,
)
from simulation.model.process import Process
from simulation.model.state import Address, KeyState, Store, Transaction, without_tag

#: The first and the last moment of event time.
FIRST: int = MIN_TIMESTAMP.micros
LAST: int = MAX_TIMESTAMP.micros
#: Seconds that a bundle takes.
_BUNDLE = 0.3

#: The stage, the key, and the process that sent.
Channel = tuple[str, int, int]


@dataclass(frozen=True)
class Checkpoint:
    """A consistent cut through the job, with the elements that are on their way."""

    store: Store
    restrictions: dict[int, WindowedValue]
    marks: dict[int, int]
    channels: dict[Channel, tuple[tuple[WindowedValue, int], ...]]
    messages: int
    saved: Saved


class Runner:
    """Runs a job, and lets the judge see everything.

    Args:
        history: Says what the job is. What happens to it is not decided here.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self.judge = Judge(history)
        self.now = float(START)
        self.broker = Broker(history.rows, history.partitions, self._send, self.wait)
        #: Faults that took effect, by kind, and the number of things done.
        self.faults: Counter[str] = Counter()
        self.actions = 0
        self.job: Job = job(history.policy, 0)
        self.processes: list[Process] = []
        #: The process that runs a bundle, and the stage.
        self._running: Process | None = None
        self._stage: Stage | None = None
        self.store: Store = {}
        self.restrictions = self.job.restrictions(history.partitions)
        #: The watermark of each partition.
        self.marks: dict[int, int] = dict.fromkeys(self.restrictions, FIRST)
        #: Whether the end of time has come.
        self.is_over = False
        #: Elements on their way, each with the watermark that they followed.
        self.channels: dict[Channel, list[tuple[WindowedValue, int]]] = {}
        #: Timers of HOLD that fired, or that were set to another time: a runner may fire them (again).
        self.stale: list[tuple[Address, str, int]] = []
        #: Where keys are that are not where their number says; and by how much all others are shifted.
        self.moved: dict[tuple[str, int], int] = {}
        self.shift = 0
        #: The names of the records in each pack for the outbox.
        self._names: dict[bytes, list[bytes]] = {}
        #: The watermark that the elements of the present bundle followed.
        self._followed = FIRST
        #: Messages that were read.
        self.messages = 0
        #: The keys of HOLD that something has happened to.
        self.disturbed: set[int] = set()

    def start(self, count: int) -> None:
        """Start the processes of the job."""
        self.processes = [Process(number, self.job, self.history.window) for number in range(count)]
        #: Completed checkpoints that each process has not been told of.
        self.untold = [0] * count

    def clock(self) -> float:
        """The time of the process that asks."""
        return self.now + (self._running.skew if self._running else 0.0)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    # -- Places ------------------------------------------------------------------------------------------

    def place(self, label: str, key: int) -> int:
        """The number of the process that has a key."""
        return self.moved.get((label, key), key + self.shift) % len(self.processes)

    def move_on(self, label: str, keys: list[int], by: int) -> None:
        """Move keys to other processes, if there are any."""
        others = len(self.processes) - 1
        if others:
            for key in keys:
                self.moved[label, key] = self.place(label, key) + 1 + by % others
                self.faults["bundle is retried elsewhere"] += 1

    # -- Bundles -----------------------------------------------------------------------------------------

    def read_bundle(self, process: Process, fail: int, split: Callable[[Stage], Any]) -> bool:
        """Read all partitions of a process; tell whether that worked. `split` is called while messages are fetched."""
        left: dict[int, tuple[WindowedValue, int]] = {}

        def work(stage: Stage) -> None:
            for number, restriction in self.restrictions.items():
                if self.place(READ, number) == process.number:
                    left[number] = self._read(stage, restriction, split)

        if not self.bundle(READ, process, work, fail):
            return False
        for number, (restriction, mark) in left.items():
            self.restrictions[number] = restriction
            self.marks[number] = max(self.marks[number], mark)
        return True

    def _read(
        self, stage: Stage, restriction: WindowedValue, split: Callable[[Stage], Any]
    ) -> tuple[WindowedValue, int]:
        """Read a partition; return what is left of it, and its watermark."""
        splits: list[Any] = []

        def while_waiting() -> None:
            result = split(stage)
            if result is not None:
                self.faults["partition is split"] += 1
                splits.extend(result[1])

        self.broker.while_waiting = while_waiting
        ((rest, mark),) = [(one.residual_value, one.current_watermark) for one in [*stage.read(restriction), *splits]]
        return rest, FIRST if mark is None else mark.micros

    def busy(self, label: str) -> list[Process]:
        """The processes that have something to do in a keyed stage."""
        return [process for process in self.processes if self._options(label, {}, process, Counter())]

    def keyed_bundle(self, label: str, process: Process, count: int, mix: int, fail: int) -> None:
        """Run a bundle of a keyed stage.

        Args:
            label: The stage.
            process: Where to run it.
            count: The most elements and timers.
            mix: The seed of their order.
            fail: The move at which the bundle fails; 0 if it does not. If it is negative, its keys move on then.
        """
        draw = random.Random(mix)
        taken: Counter[Channel] = Counter()
        calls: list[Call] = []
        keys: set[int] = set()

        def work(stage: Stage) -> None:
            for _ in range(count):
                options = self._options(label, stage.transaction.changed, process, taken)
                if not options:
                    return
                chosen = draw.choice(options)
                keys.add(chosen[1] if _is_channel(chosen) else chosen[0][1])
                self._count_disorder(options, chosen)
                self._call(stage, chosen, taken, calls)

        def commit() -> None:
            followed = [before for channel, number in taken.items() for _, before in self.channels[channel][:number]]
            self._followed = min(followed, default=FIRST)
            for channel, number in taken.items():
                del self.channels[channel][:number]
            self._judge(label, calls)

        if not self.bundle(label, process, work, abs(fail), commit):
            if label == HOLD:
                self.judge.hold.failed(self.job, calls)
                self.disturbed.update(keys)
            elif label == LEARN:
                self.judge.learn.failed(self.job, calls)
            if fail < 0:
                self.move_on(label, sorted(keys), -fail)

    def fire_again(self, address: Address, name: str, at: int) -> None:
        """Fire a timer of HOLD that is not set."""
        calls: list[Call] = []
        label, key, window = address

        def work(stage: Stage) -> None:
            calls.append(Call(key, window, None, at))
            _watch(calls[-1], stage, partial(stage.fire, name, key, window, at))

        process = self.processes[self.place(label, key)]
        self.bundle(label, process, work, 0, lambda: self._judge(label, calls))

    def bundle(
        self,
        label: str,
        process: Process,
        work: Callable[[Stage], None],
        fail: int,
        commit: Callable[[], None] = lambda: None,
    ) -> bool:
        """Run a bundle: all of it takes effect, or nothing; tell which.

        Raises:
            Broken: a step failed though nothing was wrong, or the judge found something.
        """
        self.actions += 1
        self.now += _BUNDLE
        self._running = process
        process.enter()
        self._stage = stage = process.stage(label)
        stage.begin(Transaction(self.store, stage.tick), fail)
        met, lost = self.broker.met.total(), self._lost()
        try:
            stage.start()
            work(stage)
            stage.finish()
        except Interrupted:
            self.faults[f"bundle fails: {_SHORT[label]}"] += 1
            return False
        except Broken:
            raise
        except Exception as error:
            expect_silent(str(error), "an error")
            if isinstance(error, JobFailed) and self.broker.met.total() > met:
                return False
            raise Broken(Promise.WORKS, f"{label} failed by itself ({type(error).__name__}: {error})") from error
        expect(Promise.NOTHING_LOST, self._lost() == lost, "reading goes on though its input is lost")
        commit()
        self._commit(stage, process)
        return True

    def _lost(self) -> int:
        """How often the input was lost."""
        return sum(self.broker.met[kind] for kind in LOST)

    def _commit(self, stage: Stage, process: Process) -> None:
        for address, state in stage.transaction.changed.items():
            before = self.store.get(address, KeyState())
            self.store[address] = state
            known = before.cells.get("trees")
            self.faults["tree of shards changes"] += known is not None and known != state.cells["trees"]
            if stage.label == HOLD:
                replaced = [(address, name, at) for name, at in before.timers.items() if state.timers.get(name) != at]
                self.stale += replaced
                self.judge.hold.committed(address[1:], before, state, self.history.log)
        # A step between two others passes the watermark on behind its elements.
        mark = self._followed if stage.label == LEARN else min(self.marks.values())
        for label, element in stage.sent:
            key, data = element.value
            # As a coder would: nobody shares an object with another process.
            copied = element.with_value((key, bytes(bytearray(data))))
            if label == OUTBOX:
                self._names[data] = stage.names
            self.channels.setdefault((label, key, process.number), []).append((copied, mark))
        process.finalizers += stage.finalizers()
        self.messages += stage.emitted if stage.label == READ else 0

    def _send(self, topic: str, name: bytes, value: bytes) -> None:
        """Take a record for a topic. The bundle that sends it may fail between two of them."""
        self.judge.topics.send(topic, name, value)
        if self._stage is not None:
            self._stage.tick()

    def _judge(self, label: str, calls: list[Call]) -> None:
        if label == HOLD:
            self.judge.hold.called(self.job, calls)
        elif label == LEARN:
            self.judge.learn.called(self.job, calls, self._trees)
        else:
            packs = [call.given for call in calls if call.rows is not None]
            self.judge.topics.keep(name for pack in packs for name in self._names[pack])

    def _trees(self, key: Any, window: Any) -> bytes | None:
        """The sealed trees of LEARN before the present bundle."""
        return self.store.get((LEARN, key, window), KeyState()).cells.get("trees")

    # -- Elements and timers -----------------------------------------------------------------------------

    def _options(self, label: str, changed: Store, process: Process, taken: Counter[Channel]) -> list[Any]:
        """What a bundle may take next: the first element of each channel, and each timer that is due."""
        found: list[Any] = []
        for channel, elements in self.channels.items():
            is_mine = channel[0] == label and self.place(*channel[:2]) == process.number
            if is_mine and taken[channel] < len(elements):
                found.append(channel)
        for address, state in {**self.store, **changed}.items():
            if address[0] == label and state.timers and self.place(*address[:2]) == process.number:
                for name, at in state.timers.items():
                    if at <= self._limit(label, name, address[1], taken):
                        found.append((address, name, at))
        return found

    def _limit(self, label: str, name: str, key: int, taken: Counter[Channel]) -> int:
        """The time up to which a timer of a key is due."""
        is_real = self._domain(label, name) == TimeDomain.REAL_TIME
        return int(self.now * 1e6) if is_real else self.watermark(label, key, taken)

    def _domain(self, label: str, name: str) -> str:
        return str(self.job.domains[label, without_tag(name)[0]])

    def watermark(self, label: str, key: int, taken: Counter[Channel] | None = None) -> int:
        """The watermark of a key. It does not overtake elements."""
        on_their_way: list[int] = [
            before
            for channel, elements in self.channels.items()
            if channel[:2] == (label, key) or (label == HOLD and channel[0] == LEARN)
            for _, before in elements[taken[channel] if taken else 0 :]
        ]
        if label == OUTBOX:
            # All of it comes from HOLD, whose timers hold its watermark.
            return LAST if self.is_over and not self.judge.hold.has_held and not on_their_way else FIRST
        return min([*self.marks.values(), *on_their_way])

    def _call(self, stage: Stage, option: Any, taken: Counter[Channel], calls: list[Call]) -> None:
        """Process an element, or fire a timer."""
        if _is_channel(option):
            element, _ = self.channels[option][taken[option]]
            taken[option] += 1
            key, data = element.value
            call = Call(key, element.windows[0], [], data, element.timestamp)
            _watch(call, stage, partial(stage.process, element))
            call.rows = CAME.copy()
        else:
            (_, key, window), name, at = option
            stage.transaction.at(option[0]).timers.pop(name)
            told = self._told(stage, name, at, window)
            call = Call(key, window, None, told)
            _watch(call, stage, partial(stage.fire, name, key, window, told))
        calls.append(call)

    def _told(self, stage: Stage, name: str, at: int, window: Any) -> int:
        """The time that a timer is told: its own, or at the end of time, on some runners, that of its window's end."""
        is_last = self.is_over and self.history.seed % 2 and self._domain(stage.label, name) == TimeDomain.WATERMARK
        return int(window.max_timestamp().micros) if is_last else at

    def _count_disorder(self, options: list[Any], chosen: Any) -> None:
        timers = [option for option in options if not _is_channel(option)]
        channels = len(options) - len(timers)
        if _is_channel(chosen):
            self.faults["timer fires late"] += bool(timers)
            self.faults["partitions race"] += channels > 1
        else:
            self.faults["timers fire out of order"] += any(other[2] < chosen[2] for other in timers)

    # -- Checkpoints -------------------------------------------------------------------------------------

    def cut(self) -> Checkpoint:
        """Take a checkpoint."""
        channels = {channel: tuple(elements) for channel, elements in self.channels.items() if elements}
        return Checkpoint(
            store=dict(self.store),
            restrictions=dict(self.restrictions),
            marks=dict(self.marks),
            channels=channels,
            messages=self.messages,
            saved=self.judge.save(),
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint."""
        self.store = dict(checkpoint.store)
        self.restrictions = dict(checkpoint.restrictions)
        self.marks = dict(checkpoint.marks)
        self.channels = {channel: list(elements) for channel, elements in checkpoint.channels.items()}
        self.messages = checkpoint.messages
        self.moved, self.stale = {}, []
        self.untold = [0] * len(self.processes)
        self.judge.restore(checkpoint.saved)
        self.disturb()

    def disturb(self) -> None:
        """Note that something happened to all keys."""
        self.disturbed.update(key for label, key, _ in self.store if label == HOLD)


def _watch(call: Call, stage: Stage, do: Callable[[], None]) -> None:
    """Make a call, and note what comes of it."""
    CAME.clear()
    TAKEN.clear()
    BEGAN_TO_WAIT.clear()
    LEARNED.clear()
    call.emitted = stage.watched(do)
    call.taken = TAKEN.copy()
    call.began_to_wait = BEGAN_TO_WAIT.copy()
    call.learned = LEARNED.copy()


def _is_channel(option: Any) -> bool:
    """Whether a bundle may take an element of a channel; else it is a timer: its address, its name and its time."""
    return isinstance(option[0], str)


_SHORT = {READ: "read", LEARN: "learn", HOLD: "hold", OUTBOX: "send"}
