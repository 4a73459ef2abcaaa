"""A Beam runner for endless input on this machine: one process, one thread, no checkpoints.

Beam's own local runner fires event-time timers only when all input is read, so it never releases
anything of an endless topic. This one fires them as the watermark passes them. It executes the
primitives that a pipeline from topic to topic has, and refuses all others by name before it reads
anything: Impulse, ParDo (also with tagged outputs, with state and event-time timers, or
splittable), Flatten and WindowInto. Create consists of these. Reshuffle is the identity here.

A bundle is the output of calls of a splittable step's `process`, one for each restriction that is
resumed, or of the timers of one step; each element is handed from step to step at once. The runner
resumes the restrictions that are behind the watermark of the one that was furthest ahead when all
others had caught up, which keeps partitions close in event time. The watermark is the minimum over
all restrictions. At the end of the input, or when the user asks to stop, it goes to
the end of time in one step: every timer that is set fires once more, with that time, so that a step
releases all rows it holds together, not deadline by deadline.

This module is the only one that uses internals of Beam (`DoFnRunner`, `Receiver`, the graph of a
pipeline). It was tried with Beam 2.70 and 2.77.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.pvalue import PCollection
from apache_beam.runners.common import DoFnRunner, DoFnSignature, Receiver
from apache_beam.runners.runner import PipelineResult, PipelineRunner, PipelineState
from apache_beam.transforms import userstate
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.window import GlobalWindow, GlobalWindows
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, WindowedValue

from crenel.runners import Job
from crenel.runners.runner_errors import JobFailed, RunnerError

__all__ = ["StreamingRunner", "launch"]

#: The environment variable that shows errors of steps, which may contain rows.
_DEBUG = "CRENEL_DEBUG"
_START, _END = MIN_TIMESTAMP.micros, MAX_TIMESTAMP.micros
_WINDOW = GlobalWindow()

#: Takes an element of a PCollection.
_Read = Callable[[WindowedValue], Any]


def launch(job: Job) -> int:
    """Run a job until its input ends, or until `job.stop` is set; return 1, the number of workers.

    Raises:
        RunnerError: the pipeline has a step that this runner does not execute.
        JobFailed: a step failed.
    """
    pipeline = beam.Pipeline(runner=StreamingRunner(job.stop), options=PipelineOptions(list(job.flags)))
    job.build(pipeline)
    pipeline.run().wait_until_finish()
    return 1


class StreamingRunner(PipelineRunner):
    """Runs a pipeline in the thread that calls it.

    Args:
        stop: Set it to stop reading: timers then fire, and the run ends.
    """

    def __init__(self, stop: threading.Event | None = None) -> None:
        super().__init__()
        self._stop = stop or threading.Event()

    def run_pipeline(self, pipeline: beam.Pipeline, options: PipelineOptions) -> PipelineResult:
        """Run the pipeline to its end.

        Raises:
            RunnerError: the pipeline has a step that this runner does not execute.
            JobFailed: a step failed.
        """
        graph = _Graph()
        pipeline.visit(graph)
        try:
            _Run(graph, self._stop).run()
        except _StepFailed as failed:
            shown = failed.error if os.environ.get(_DEBUG) else None  # its message may contain rows
            raise failed.told() from shown
        return PipelineResult(PipelineState.DONE)


class _StepFailed(Exception):
    """An error of a step, and the step's label."""

    def __init__(self, label: str, error: Exception) -> None:
        super().__init__(label)
        self.label = label
        self.error = error

    def told(self) -> JobFailed:
        """The error for the user, without values of rows."""
        if isinstance(self.error, JobFailed):
            return self.error
        name = type(self.error).__name__
        return JobFailed(
            f"the step {self.label} failed ({name}). Set {_DEBUG}=1 to see the error, which may contain rows."
        )


@contextmanager
def _blamed_on(label: str) -> Iterator[None]:
    """Name the step that an error comes from."""
    try:
        yield
    except _StepFailed:
        raise
    except Exception as error:
        raise _StepFailed(label, error) from error


# -- The graph of a pipeline ------------------------------------------------------------------------


class _Graph(PipelineVisitor):
    """The primitives of a pipeline, producers before consumers.

    Raises:
        RunnerError: there is one that this runner does not execute.
    """

    def __init__(self) -> None:
        self.nodes: list[AppliedPTransform] = []
        self._identity: AppliedPTransform | None = None

    def enter_composite_transform(self, transform_node: AppliedPTransform) -> None:
        """Take a Reshuffle as a whole: there are no workers to redistribute elements to."""
        if self._identity is None and isinstance(transform_node.transform, beam.Reshuffle):
            self._identity = transform_node
            self.nodes.append(transform_node)

    def leave_composite_transform(self, transform_node: AppliedPTransform) -> None:
        """Go on after a Reshuffle."""
        if transform_node is self._identity:
            self._identity = None

    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        """Take a primitive."""
        if self._identity is None:
            _check(transform_node)
            self.nodes.append(transform_node)


def _check(node: AppliedPTransform) -> None:
    transform = node.transform
    if isinstance(transform, beam.ParDo):
        problem = _problem(transform, node)
    elif isinstance(transform, (beam.Impulse, beam.Flatten)):
        problem = None
    else:
        problem = f"is a {type(transform).__name__}"
    if problem is not None:
        msg = f"the step {node.full_label} {problem}, which crenel's runner for endless input does not execute."
        raise RunnerError(msg)


def _problem(pardo: beam.ParDo, node: AppliedPTransform) -> str | None:
    """What this runner does not execute in a ParDo, if anything."""
    signature = DoFnSignature(pardo.fn)
    if pardo.side_inputs:
        return "has a side input"
    if signature.has_bundle_finalization():
        return "finalizes bundles"
    if not signature.is_stateful_dofn():
        return None
    states, timers = userstate.get_dofn_specs(pardo.fn)
    if not all(isinstance(spec, tuple(_CELLS)) for spec in states):
        return "has state other than bags and single values"
    if any(spec.time_domain != TimeDomain.WATERMARK for spec in timers):
        return "has timers of processing time"
    if not isinstance(node.inputs[0].windowing.windowfn, GlobalWindows):
        return "has state in windows other than the global one"
    return None


# -- Steps ------------------------------------------------------------------------------------------


class _Outlet(Receiver):
    """Hands the elements of a PCollection to the steps that read it."""

    def __init__(self, readers: Sequence[tuple[str, _Read]] = ()) -> None:
        self._readers = readers

    def receive(self, windowed_value: WindowedValue) -> None:
        """Take an element."""
        for label, read in self._readers:
            try:
                read(windowed_value)
            except _StepFailed:
                raise
            except Exception as error:
                raise _StepFailed(label, error) from error


class _Step:
    """A ParDo."""

    def __init__(self, node: AppliedPTransform, outlets: Mapping[str | None, Receiver]) -> None:
        pardo = node.transform
        self.label = str(node.full_label)
        signature = DoFnSignature(pardo.fn)
        self.memory = _Memory() if signature.is_stateful_dofn() else None
        self.provider: Any = signature.get_restriction_provider() if signature.is_splittable_dofn() else None
        self.estimators: Any = signature.get_watermark_estimator_provider() if self.provider is not None else None
        # Without a name for the step: with one, Beam logs errors, whose messages may contain rows.
        self.runner = DoFnRunner(
            pardo.fn,
            pardo.args,
            pardo.kwargs,
            (),
            node.outputs[None].windowing,
            outlets,
            user_state_context=self.memory,
        )

    def call(self, method: Callable[[], Any]) -> None:
        """Call a method of the runner's."""
        with _blamed_on(self.label):
            method()

    def fire(self, watermark: int) -> None:
        """Fire the timers that the watermark has passed, in the order of their times."""
        if self.memory is None:
            return
        while (timer := self.memory.due(watermark)) is not None:
            at = Timestamp(micros=timer.at) if watermark < _END else _WINDOW.max_timestamp()
            with _blamed_on(self.label):
                self.runner.process_user_timer(timer.spec, timer.key, _WINDOW, at, PANE_INFO_UNKNOWN, timer.tag)


# -- State and timers -------------------------------------------------------------------------------


class _Bag(userstate.BagRuntimeState):
    """A bag in memory. Values are kept encoded, so that nobody can change them."""

    def __init__(self, coder: Any) -> None:
        self._coder = coder
        self._values: list[bytes] = []

    def read(self) -> Iterable[Any]:
        return [self._coder.decode(value) for value in self._values]

    def add(self, value: Any) -> None:
        self._values.append(self._coder.encode(value))

    def clear(self) -> None:
        self._values = []


class _Value(userstate.ReadModifyWriteRuntimeState):
    """A single value in memory, encoded."""

    def __init__(self, coder: Any) -> None:
        self._coder = coder
        self._value: bytes | None = None

    def read(self) -> Any:
        return None if self._value is None else self._coder.decode(self._value)

    def write(self, value: Any) -> None:
        self._value = self._coder.encode(value)

    def clear(self) -> None:
        self._value = None


_CELLS: dict[type, Any] = {userstate.BagStateSpec: _Bag, userstate.ReadModifyWriteStateSpec: _Value}


@dataclass(frozen=True)
class _DueTimer:
    """A timer that fires."""

    spec: Any
    key: Any
    tag: str
    at: int


class _Timer(userstate.BaseTimer):
    """The timer of a key, as a step sees it."""

    def __init__(self, memory: _Memory, spec: Any, key: Any) -> None:
        self._memory = memory
        self._spec = spec
        self._key = key

    def set(self, timestamp: Any, dynamic_timer_tag: str = "") -> None:
        self._memory.set_timer((self._spec, self._key, dynamic_timer_tag), Timestamp.of(timestamp).micros)

    def clear(self, dynamic_timer_tag: str = "") -> None:
        self._memory.set_timer((self._spec, self._key, dynamic_timer_tag), None)


class _Memory(userstate.UserStateContext):
    """The state and the timers of a step, in the global window.

    Nothing is ever replayed here, so changes take effect at once.
    """

    def __init__(self) -> None:
        self._cells: dict[tuple[Any, Any], Any] = {}
        self._set: dict[tuple[Any, Any, str], int] = {}
        #: Times of timers, also of those that were set again or cleared since; equal times in the order of setting.
        self._heap: list[tuple[int, int, tuple[Any, Any, str]]] = []
        self._number = count()

    def get_state(self, state_spec: Any, key: Any, window: Any) -> Any:
        cell = self._cells.get((state_spec.name, key))
        if cell is None:
            make = next(make for kind, make in _CELLS.items() if isinstance(state_spec, kind))
            cell = self._cells[state_spec.name, key] = make(state_spec.coder)
        return cell

    def get_timer(self, timer_spec: Any, key: Any, window: Any, timestamp: Any, pane: Any) -> _Timer:
        return _Timer(self, timer_spec, key)

    def commit(self) -> None:
        """Nothing to do: changes take effect at once."""

    def set_timer(self, timer: tuple[Any, Any, str], at: int | None) -> None:
        """Set a timer, or clear it."""
        if at is None:
            self._set.pop(timer, None)
        elif self._set.get(timer) != at:
            self._set[timer] = at
            heapq.heappush(self._heap, (at, next(self._number), timer))

    def due(self, watermark: int) -> _DueTimer | None:
        """Take the next timer that is due, if there is one."""
        while self._heap and self._heap[0][0] <= watermark:
            at, _, timer = heapq.heappop(self._heap)
            if self._set.get(timer) == at:
                del self._set[timer]
                return _DueTimer(*timer, at)
        return None

    def is_due(self, watermark: int) -> bool:
        """Whether a timer may be due."""
        return bool(self._heap) and self._heap[0][0] <= watermark


# -- The run ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Restriction:
    """A part of the input that is not read yet."""

    step: _Step
    #: The element, the restriction, and the state of its watermark estimator, as Beam passes them.
    element: WindowedValue
    watermark: int = _START
    #: When to resume it, by the monotonic clock, and when that was decided.
    resume: float = 0.0
    since: int = 0


class _Run:
    """One run of a pipeline."""

    def __init__(self, graph: _Graph, stop: threading.Event) -> None:
        self._stop = stop
        self._steps: list[_Step] = []
        self._impulses: list[_Outlet] = []
        self._restrictions: list[_Restriction] = []
        #: The watermark that all restrictions must reach before one that has reached it is resumed.
        self._target = _START
        self._number = count()
        self._connect(graph.nodes)

    def _connect(self, nodes: list[AppliedPTransform]) -> None:
        """Make the steps, consumers first: a step is given the outlets that it writes to."""
        readers: dict[PCollection, list[tuple[str, _Read]]] = {}
        for node in reversed(nodes):
            reading = {tag: readers.get(output, []) for tag, output in node.outputs.items()}
            if isinstance(node.transform, beam.Impulse):
                self._impulses.append(_Outlet(reading[None]))
                continue
            if isinstance(node.transform, beam.ParDo):
                own = [self._reader(node, _Tags({tag: _Outlet(found) for tag, found in reading.items()}))]
            else:  # Flatten, Reshuffle: the steps that read the result read the inputs instead
                own = reading[None]
            for source in node.inputs:
                # In front: consumers are met in reverse.
                readers[source] = own + readers.get(source, [])
        self._steps.reverse()

    def _reader(self, node: AppliedPTransform, outlets: _Tags) -> tuple[str, _Read]:
        """The label of a ParDo, and the function that takes an element for it."""
        step = _Step(node, outlets)
        self._steps.append(step)
        take = step.runner.process if step.provider is None else partial(self._take, step)
        return step.label, take

    def _take(self, step: _Step, element: WindowedValue) -> None:
        """Note what a splittable step has to read for an element."""
        provider, value = step.provider, element.value
        for part, size in provider.split_and_size(value, provider.initial_restriction(value)):
            estimated = step.estimators.initial_estimator_state(value, part)
            self._restrictions.append(_Restriction(step, element.with_value(((value, (part, estimated)), size))))

    def run(self) -> None:
        """Run to the end."""
        begun: list[_Step] = []
        try:
            for step in self._steps:
                begun.append(step)
                step.call(step.runner.setup)
            self._process()
        except BaseException:
            for step in begun:
                with suppress(_StepFailed):  # the first error is the one to tell
                    step.call(step.runner.teardown)
            raise
        for step in begun:
            step.call(step.runner.teardown)

    def _process(self) -> None:
        self._bundle(self._start)
        while self._restrictions and not self._stop.is_set():
            self._resume_next()
            self._advance(min((one.watermark for one in self._restrictions), default=_END))
        self._advance(_END)

    def _start(self) -> None:
        for outlet in self._impulses:
            outlet.receive(WindowedValue(b"", MIN_TIMESTAMP, (_WINDOW,)))

    def _resume_next(self) -> None:
        """Read from the restrictions that are behind; wait if all are deferred."""
        now = time.monotonic()
        ready = [one for one in self._restrictions if one.resume <= now]
        if ready:
            self._bundle(lambda: self._read_all(self._behind(ready)))
        else:
            self._stop.wait(min(one.resume for one in self._restrictions) - now)

    def _behind(self, ready: list[_Restriction]) -> list[_Restriction]:
        """The restrictions to resume, those that are furthest behind first.

        All of them are read in one bundle: each further bundle would cost as much as some hundred rows.
        """
        behind = [one for one in ready if one.watermark < self._target]
        if not behind:
            behind, self._target = ready, max(one.watermark for one in ready)
        return sorted(behind, key=lambda one: (one.watermark, one.since))

    def _read_all(self, chosen: list[_Restriction]) -> None:
        for restriction in chosen:
            self._read(restriction)

    def _read(self, restriction: _Restriction) -> None:
        step = restriction.step
        with _blamed_on(step.label):
            rests = step.runner.process_with_sized_restriction(restriction.element)
        self._restrictions.remove(restriction)
        for rest in rests or ():
            told = _START if rest.current_watermark is None else rest.current_watermark.micros
            wait = 0.0 if rest.deferred_timestamp is None else rest.deferred_timestamp.micros / 1e6
            self._restrictions.append(
                _Restriction(
                    step,
                    rest.residual_value,
                    max(told, restriction.watermark),
                    time.monotonic() + wait,
                    next(self._number),
                )
            )

    def _advance(self, watermark: int) -> None:
        """Fire timers, those of earlier steps first: later steps may get elements from them."""
        for step in self._steps:
            while step.memory is not None and step.memory.is_due(watermark):
                self._bundle(lambda step=step: step.fire(watermark))  # type: ignore[misc]

    def _bundle(self, work: Callable[[], None]) -> None:
        for step in self._steps:
            step.call(step.runner.start)
        work()
        for step in self._steps:
            step.call(step.runner.finish)


class _Tags(dict[str | None, Receiver]):
    """Outlets by tag. The elements of a tag that nothing reads are dropped."""

    def __missing__(self, tag: str | None) -> Receiver:
        self[tag] = _Outlet()
        return self[tag]
