"""The pipeline of `crenel run` from topic to topic, cut into the stages that a runner would fuse.

A stage begins with a splittable or a stateful step, and ends where elements are sent to another key. Beam's own
`DoFnRunner` calls the steps, as it does on a worker.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property, partial
from typing import Any
from unittest.mock import patch

import apache_beam as beam
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.runners.common import DoFnRunner, DoFnSignature, Receiver
from apache_beam.runners.runner import PipelineRunner
from apache_beam.transforms import userstate
from apache_beam.transforms.window import GlobalWindow, IntervalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, WindowedValue

from crenel.encoding.tree_following import TreeFollower
from crenel.pipelines.kafka import topic_job
from crenel.pipelines.kafka.partition_ranges import Partition, elements
from crenel.pipelines.kafka.topics import Topic
from crenel.policy.sharding.tree_schedule import TreeSchedule
from crenel.transforms._hold.hold_step import HoldRows
from crenel.transforms._hold.shard_holder import ShardHolder
from crenel.transforms._hold.watermark_order import WatermarkOrder
from crenel.transforms._pack.row_batch import RowBatch
from crenel.transforms._pack.row_options import Clock
from simulation import policies
from simulation.model.broker import LARGEST, TOPIC_ID
from simulation.model.outside import Outside, play
from simulation.model.state import StateOfStage, Transaction, without_tag

READ, LEARN, HOLD, OUTBOX = "Read/ParDo", "Anonymize/Learn", "Anonymize/Hold/ParDo", "Durable/Outbox/ParDo"
#: The step that makes packs of records, for the outbox.
_GATHER = "Durable/Gather"
#: Seconds after which a partition counts as silent.
IDLE = 20.0
OUTPUTS = ("published", "suppressed", "rejected", "releases")


class _NoRunner(PipelineRunner):  # type: ignore[misc]
    """The runner of a pipeline that is only built."""


class Interrupted(BaseException):
    """A bundle fails here. No step may catch it."""


class _Nodes(PipelineVisitor):  # type: ignore[misc]
    """The steps of a pipeline, producers before consumers."""

    def __init__(self) -> None:
        self.nodes: list[AppliedPTransform] = []

    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        self.nodes.append(transform_node)


class Job:
    """A pipeline under one policy and one secret.

    Args:
        policy: The name of the policy.
        secret: The number of the secret: a pipeline that is built again may have another.
    """

    def __init__(self, policy: str, secret: int) -> None:
        self.name = f"{policy} {secret}"
        self.policy = policies.policy(policy)
        source = Topic(servers="broker:9092", name="rows", idle=IDLE)
        settings = (("message.max.bytes", str(LARGEST)),)
        outputs = {name: Topic(servers="broker:9092", name=name, settings=settings) for name in OUTPUTS}
        # Each family of policies is played under both clocks, and state goes from one to the other.
        self.clock = list(Clock)[(policies.place(policy) + secret) % 2]
        request = topic_job.Request(policy=self.policy, source=source, outputs=outputs, clock=self.clock)
        pipeline = beam.Pipeline(runner=_NoRunner())
        with play(Outside(f"secret {secret}", lambda: 0.0)):
            topic_job.build(pipeline, request, _partitions(1))
        visited = _Nodes()
        pipeline.visit(visited)
        self._nodes = visited.nodes
        self._readers = _readers(visited.nodes)
        self._roots = {str(node.full_label): node for node in visited.nodes if _is_root(node)}
        #: Which time a timer is about, by the stage and its name.
        self.domains = {
            (label, name): spec.time_domain
            for label, node in self._roots.items()
            for name, spec in _timers(node).items()
        }
        self._pooled: dict[int, dict[str, Stage]] = {}

    def stages(self, process: int) -> dict[str, Stage]:
        """The stages in a process, as after its start. To make them anew for each history would cost more than it."""
        if process not in self._pooled:
            self._pooled[process] = {label: self.stage(label) for label in self._roots}
        return self._pooled[process]

    def stage(self, label: str, *, alone: bool = False) -> Stage:
        """A stage of its own, or its first step alone."""
        return Stage(self._roots[label], self._nodes, {} if alone else self._readers, set(self._roots.values()))

    @cached_property
    def hold(self) -> Stage:
        """HOLD alone."""
        return self.stage(HOLD, alone=True)

    def restrictions(self, partitions: int) -> dict[int, WindowedValue]:
        """What is to be read, by partition, as Beam passes it to the step."""
        ranges, watermarks = self._providers
        found = {}
        for place in _partitions(partitions):
            ((part, size),) = ranges.split_and_size(place, ranges.initial_restriction(place))
            mark = watermarks.initial_estimator_state(place, part)
            found[place[0]] = WindowedValue(((place, (part, mark)), size), MIN_TIMESTAMP, (GlobalWindow(),))
        return found

    @cached_property
    def _providers(self) -> tuple[Any, Any]:
        signature = DoFnSignature(self._roots[READ].transform.fn)
        return signature.get_restriction_provider(), signature.get_watermark_estimator_provider()


@cache
def job(policy: str, secret: int) -> Job:
    """The job of this policy: to build one takes as long as many histories."""
    return Job(policy, secret)


def _partitions(count: int) -> Sequence[Partition]:
    return elements({number: (0, None) for number in range(count)}, TOPIC_ID)


def _is_root(node: AppliedPTransform) -> bool:
    if not isinstance(node.transform, beam.ParDo):
        return False
    signature = DoFnSignature(node.transform.fn)
    return bool(signature.is_stateful_dofn() or signature.is_splittable_dofn())


def _timers(node: AppliedPTransform) -> dict[str, Any]:
    """The timers of a step, by name."""
    return {spec.name: spec for spec in userstate.get_dofn_specs(node.transform.fn)[1]}


def _readers(nodes: Sequence[AppliedPTransform]) -> dict[Any, list[AppliedPTransform]]:
    """The steps that read each PCollection; those behind a Flatten read what goes into it."""
    readers: dict[Any, list[AppliedPTransform]] = {}
    for node in reversed(nodes):
        own = [node] if isinstance(node.transform, beam.ParDo) else readers.get(node.outputs[None], [])
        for given in node.inputs:
            readers[given] = own + readers.get(given, [])
    return readers


@contextmanager
def watched_packs() -> Iterator[None]:
    """Note the numbers of the rows that come to HOLD, in `CAME`, and of those that its engines take, in `TAKEN`.

    Those that begin to wait for the watermark are noted in `BEGAN_TO_WAIT`, and trees that LEARN adopts in `LEARNED`.
    """

    def push(self: Any, pack: Any) -> Any:
        CAME[:] = pack.payload.column("n")
        return pushed(self, pack)

    def take(self: Any, packs: list[Any]) -> Any:
        TAKEN.extend(number for pack in packs for number in pack.payload.column("n"))
        return taken(self, packs)

    def wait(self: Any, packs: list[Any]) -> None:
        BEGAN_TO_WAIT.extend(number for pack in packs for number in pack.payload.column("n"))
        waited(self, packs)

    def rebuild(self: Any, *given: Any) -> Any:
        # What is done again says nothing about the present call.
        found = rebuilt(self, *given)
        TAKEN.clear()
        BEGAN_TO_WAIT.clear()
        return found

    def adopt(self: Any, *given: Any) -> None:
        adopted(self, *given)
        LEARNED.append(self.schedule)

    pushed, taken, rebuilt = ShardHolder.push, ShardHolder._take, HoldRows._rebuilt
    adopted, waited = TreeFollower._adopt, WatermarkOrder.push
    with (
        patch.object(ShardHolder, "push", push),
        patch.object(ShardHolder, "_take", take),
        patch.object(HoldRows, "_rebuilt", rebuild),
        patch.object(TreeFollower, "_adopt", adopt),
        patch.object(WatermarkOrder, "push", wait),
    ):
        yield


#: The numbers of the rows of the last pack, and of those that engines took in the present call.
CAME: list[int] = []
TAKEN: list[int] = []
#: The numbers of the rows that began to wait for the watermark in the present call.
BEGAN_TO_WAIT: list[int] = []
#: The trees that were adopted in the present call, each time with those before.
LEARNED: list[TreeSchedule] = []


class Stage:
    """Fused steps in one process: the root, and all steps behind it up to the next root."""

    def __init__(
        self,
        root: AppliedPTransform,
        nodes: Sequence[AppliedPTransform],
        readers: dict[Any, Any],
        roots: set[AppliedPTransform],
    ) -> None:
        self.label = str(root.full_label)
        self._readers = readers
        self._roots = roots
        #: Seconds of the windows that rows are put into; 0 for the global window.
        self.window = 0
        self._state = StateOfStage(self.label)
        self._fuse = 0
        self._timers = _timers(root)
        inside = _behind(root, readers, roots)
        #: The functions of the steps, each with its attributes as it was made.
        self._functions: list[tuple[beam.DoFn, dict[str, Any]]] = []
        #: The steps, consumers first; they are started and finished in the other order.
        self._steps: list[DoFnRunner] = []
        self._step_of: dict[Any, DoFnRunner] = {}
        for node in reversed([node for node in nodes if node in inside]):
            self._steps.append(self._runner(node, is_root=node is root))
            self._step_of[node] = self._steps[-1]
        self._steps.reverse()
        self._root = self._steps[0]
        self.begin(Transaction({}, lambda: None), 0)

    def _runner(self, node: AppliedPTransform, *, is_root: bool) -> DoFnRunner:
        outlets = _Tags(self, {tag: self._outlet(tag, found, is_root) for tag, found in node.outputs.items()})
        pardo = node.transform
        # A copy, as a worker unpickles one; but the policy is shared, since caches know it by its identity.
        function = copy.copy(pardo.fn)
        self._functions.append((function, dict(vars(function))))
        return DoFnRunner(
            function,
            pardo.args,
            pardo.kwargs,
            (),
            node.outputs[None].windowing,
            outlets,
            user_state_context=self._state if is_root and userstate.is_stateful_dofn(function) else None,
        )

    def _outlet(self, tag: str | None, output: Any, is_root: bool) -> _Outlet:
        inside, outside = [], []
        for node in self._readers.get(output, ()):
            if node in self._roots:
                outside.append(str(node.full_label))
            elif is_root and self.label == READ and tag is None:
                inside.append(partial(self._into_window, self._step_of[node].process))
            elif node.full_label == _GATHER:
                inside.append(partial(self._note_name, self._step_of[node].process))
            else:
                inside.append(self._step_of[node].process)
        return _Outlet(self, tag if is_root else _INNER, inside, outside)

    def _into_window(self, process: Callable[[WindowedValue], Any], batch: WindowedValue) -> None:
        """Stand for a WindowInto behind the reader."""
        if not self.window:
            process(batch)
            return
        for row in _one_by_one(batch):
            start = row.timestamp.micros // 1_000_000 // self.window * self.window
            alone = RowBatch([row.value], [row.timestamp.micros])
            process(WindowedValue(alone, row.timestamp, (IntervalWindow(start, start + self.window),)))

    def _note_name(self, process: Callable[[WindowedValue], Any], records: WindowedValue) -> None:
        """Note the names of records that go to the outbox."""
        self.names += [name for _, name, _ in records.value]
        process(records)

    def set_up(self) -> None:
        """Begin as a new process does: with what travels, and nothing else."""
        for function, travels in self._functions:
            vars(function).clear()
            vars(function).update(travels)
        for step in self._steps:
            step.setup()

    def begin(self, transaction: Transaction, fuse: int) -> None:
        """Begin a bundle, which fails at its `fuse`-th move; 0 if it does not."""
        transaction.tick = self.tick
        self._state.transaction = self.transaction = transaction
        self._fuse = fuse
        #: The elements for other stages.
        self.sent: list[tuple[str, WindowedValue]] = []
        #: The names of the records in those for the outbox.
        self.names: list[bytes] = []
        #: Elements that the root has emitted in the bundle, and those of the current call.
        self.emitted = 0
        self._emitted: list[tuple[str | None, WindowedValue]] = []
        for step in self._steps:
            step.bundle_finalizer_param.reset()

    def tick(self) -> None:
        """Count a move of the bundle; it may be the one at which it fails."""
        if self._fuse:
            self._fuse -= 1
            if not self._fuse:
                raise Interrupted

    def start(self) -> None:
        """Call `start_bundle` of all steps."""
        for step in self._steps:
            step.start()

    def finish(self) -> None:
        """Call `finish_bundle` of all steps. A bundle that was to fail later fails now."""
        for step in self._steps:
            step.finish()
        if self._fuse:
            raise Interrupted

    def watched(self, call: Callable[[], Any]) -> list[tuple[str | None, WindowedValue]]:
        """Make a call; return what the root emitted in it."""
        emitted: list[tuple[str | None, WindowedValue]] = []
        self._emitted = emitted
        call()
        self._emitted = []
        return emitted

    def process(self, element: WindowedValue) -> None:
        """Process an element."""
        self._root.process(element)

    def read(self, restriction: WindowedValue) -> Any:
        """Read a restriction; return what is left of it."""
        return self._root.process_with_sized_restriction(restriction)

    def split(self) -> Any:
        """Ask the restriction that is being read to stop; return what is left of it."""
        return self._root.try_split(0.0)

    def fire(self, name: str, key: Any, window: Any, at: int) -> None:
        """Fire a timer."""
        own, tag = without_tag(name)
        self._root.process_user_timer(self._timers[own], key, window, Timestamp(micros=at), PANE_INFO_UNKNOWN, tag)

    @property
    def timer(self) -> str:
        """The name of the only timer."""
        (name,) = self._timers
        return str(name)

    def finalizers(self) -> list[Callable[[], None]]:
        """What the bundle's steps want to be called when the bundle is durable."""
        return [callback for step in self._steps for callback in step.bundle_finalizer_param._callbacks]


def _behind(root: AppliedPTransform, readers: dict[Any, Any], roots: set[AppliedPTransform]) -> set[AppliedPTransform]:
    """The steps that are fused with a root, and the root."""
    found, new = {root}, [root]
    while new:
        for output in new.pop().outputs.values():
            for node in readers.get(output, ()):
                if node not in roots and node not in found:
                    found.add(node)
                    new.append(node)
    return found


def _one_by_one(element: WindowedValue) -> list[WindowedValue]:
    """The rows of a batch, each with its own timestamp; any other element alone."""
    batch = element.value
    if not isinstance(batch, RowBatch):
        return [element]
    return [
        WindowedValue(row, Timestamp(micros=time), element.windows)
        for row, time in zip(batch.rows, batch.times, strict=True)
    ]


#: The tag of outputs that nobody watches.
_INNER = "-"


class _Outlet(Receiver):  # type: ignore[misc]
    """Hands the elements of a PCollection to steps of the stage, and to other stages."""

    def __init__(
        self, stage: Stage, tag: str | None, inside: Sequence[Callable[[WindowedValue], Any]], outside: Sequence[str]
    ) -> None:
        self._stage = stage
        self._tag = tag
        self._inside = inside
        self._outside = outside

    def receive(self, windowed_value: WindowedValue) -> None:
        stage = self._stage
        stage.tick()
        if self._tag is not _INNER:
            told = _one_by_one(windowed_value)
            stage.emitted += len(told)
            stage._emitted += [(self._tag, one) for one in told]
        for label in self._outside:
            stage.sent.append((label, windowed_value))
        for process in self._inside:
            process(windowed_value)


class _Tags(dict[Any, Receiver]):
    """Outlets by tag. The elements of a tag that nothing reads are dropped."""

    def __init__(self, stage: Stage, known: dict[Any, Receiver]) -> None:
        super().__init__(known)
        self._stage = stage

    def __missing__(self, tag: str | None) -> Receiver:
        self[tag] = _Outlet(self._stage, _INNER, (), ())
        return self[tag]
