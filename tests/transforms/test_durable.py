"""The outbox against a model of Flink: bundles, barriers, late notifications, crashes."""

from __future__ import annotations

import copy
import datetime as dt
import random
import uuid
from collections.abc import Iterable
from decimal import Decimal
from itertools import pairwise
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam import typehints
from apache_beam.coders import BytesCoder, IterableCoder, StrUtf8Coder, TupleCoder
from apache_beam.pipeline import PipelineVisitor
from apache_beam.pvalue import TaggedOutput
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils import windowed_value
from apache_beam.utils.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from crenel import Policy
from crenel.policy.secret import Secret
from crenel.transforms import Durable
from crenel.transforms import durable as outbox
from crenel.transforms._hold.shard_holder import ShardHolder
from crenel.transforms._pack.row_pack import Packer
from crenel.transforms._publish.publisher import Publisher
from crenel.transforms.durable import CONFIRMATIONS, Gather, Open, Outbox, Probe
from tests.transforms.cells import Bag, Cell

KEY = 0
#: A step that draws its secret opens what carries its own key, whoever sealed it.
SEAL = Secret.given(b"secret", is_drawn=True).seal


class Timer:
    def __init__(self) -> None:
        self.at: float | None = None

    def set(self, at: Timestamp) -> None:
        self.at = at.micros / 1e6


class Finalizer:
    """Stands for Beam's bundle finalizer, which calls a step back when its bundle is durable."""

    def __init__(self) -> None:
        self.callbacks: list[Any] = []

    def register(self, callback: Any) -> None:
        self.callbacks.append(callback)


class Flink:
    """A model of one Flink task, as far as the outbox can observe it.

    At a barrier, the task finishes the open bundle and saves the state. When the coordinator has completed a
    checkpoint, it notifies the task, possibly late. The task then finalizes all finished bundles, including those that
    began after the barrier.
    """

    def __init__(self, confirmations: int = CONFIRMATIONS, *, whole: bool = False) -> None:
        self.now = 1000.0
        self.step = Outbox(uuid.uuid4().hex, confirmations, 1.0, clock=lambda: self.now, whole=whole)
        self.step.setup()
        self.state = (Bag(), Cell(), Timer(), Timer())
        #: All packs written so far, according to the current state. A crash rolls it back too.
        self.written: set[bytes] = set()
        self.bundle = Finalizer()
        self.over: list[Any] = []
        #: The pending checkpoint, the last completed one, and the number of undelivered notifications.
        self.pending: Any = None
        self.complete: Any = copy.deepcopy((self.state, self.written))
        self.notifications = 0
        self.sent: list[bytes] = []
        #: Of whole packs, those of each call that has sent some: their numbers, histories and contents.
        self.calls: list[list[tuple[int, bytes, bytes]]] = []

    def write(self, pack: bytes) -> None:
        waiting, token, look, end = self.state
        self.written.add(pack)
        self._take(self.step.process((KEY, SEAL.close("crenel.durable", pack)), waiting, token, look, end))

    def look(self) -> None:
        waiting, token, look, _ = self.state
        if look.at is not None:
            self.now, look.at = max(self.now, look.at), None
            self._take(self.step.on_look(KEY, waiting, token, look))

    def end(self) -> None:
        waiting, token, _, _ = self.state
        self._take(self.step.on_end(KEY, waiting, token))

    def _take(self, elements: Iterable[Any]) -> None:
        call = []
        for element in elements:
            if isinstance(element, TaggedOutput):
                Probe().process(element.value, self.bundle)
            elif isinstance(element, tuple):
                self.sent.append(SEAL.open("crenel.durable", element[3]))
                call.append((element[1], element[2], self.sent[-1]))
            else:
                self.sent.append(SEAL.open("crenel.durable", element))

        self.calls += [call] if call else []

    def finish(self) -> None:
        self.over += self.bundle.callbacks
        self.bundle = Finalizer()

    def barrier(self) -> None:
        # One checkpoint at a time. The next barrier may overtake a notification, but the one after it may not.
        if self.pending is None and self.notifications < 2:
            self.finish()
            self.pending = copy.deepcopy((self.state, self.written))

    def completed(self) -> None:
        if self.pending is not None:
            self.complete, self.pending = self.pending, None
            self.notifications += 1

    def notified(self) -> None:
        if self.notifications:
            self.notifications -= 1
            over, self.over = self.over, []
            for callback in over:
                callback()

    def checkpoint(self) -> None:
        self.barrier()
        self.completed()
        self.notified()

    def crash(self, process_survives: bool) -> None:
        self.state, self.written = copy.deepcopy(self.complete)
        self.bundle, self.over, self.pending, self.notifications = Finalizer(), [], None, 0
        if not process_survives:
            outbox.LEDGERS.forget((self.step._uid, KEY))

    def durable(self) -> set[bytes]:
        return self.complete[1]


EVENTS = ("write", "look", "finish", "barrier", "completed", "notified", "crash", "crash, process lives")


def play(flink: Flink, events: Iterable[str]) -> list[bytes]:
    """Play the events; return the packs that were sent before a completed checkpoint contained them."""
    hasty = []
    for i, event in enumerate(events):
        before = len(flink.sent)
        if event == "write":
            flink.write(b"%d" % i)
        elif event.startswith("crash"):
            flink.crash("lives" in event)
        else:
            getattr(flink, event)()
        hasty += [pack for pack in flink.sent[before:] if pack not in flink.durable()]
    return hasty


@given(st.lists(st.sampled_from(EVENTS), max_size=80))
def test_nothing_is_sent_before_a_completed_checkpoint_has_it(events: list[str]) -> None:
    flink = Flink()
    assert play(flink, events) == []


@given(st.lists(st.sampled_from(EVENTS), max_size=80))
def test_everything_is_sent_in_the_end(events: list[str]) -> None:
    flink = Flink()
    play(flink, events)
    for _ in range(2 * CONFIRMATIONS + 2):
        flink.checkpoint()
        flink.now += 61  # time to resend a probe that a crash has lost
        flink.look()
    assert set(flink.sent) == flink.written | set(flink.sent)
    assert not flink.state[0].items
    assert flink.state[2].at is None, "an empty outbox has no timer"


@given(st.lists(st.sampled_from(EVENTS), max_size=80))
def test_a_sink_that_remembers_a_number_and_a_history_takes_each_whole_pack_once(events: list[str]) -> None:
    flink = Flink(whole=True)
    assert play(flink, events) == []
    following, known, taken = 0, b"", []
    for call in flink.calls:
        if call[0][0] < following:
            assert known in [history for number, history, _ in call if number == following - 1], (
                "it comes with the last"
            )
        new = [pack for number, _, pack in call if number >= following]
        assert [number for number, _, _ in call] == list(range(call[0][0], call[-1][0] + 1))
        assert call[0][0] <= following, "none is missing"
        if new:
            following, known = call[-1][0] + 1, call[-1][1]
        taken += new
    assert taken == list(dict.fromkeys(flink.sent)), "all of them, each once"


def test_at_the_end_of_time_whole_packs_have_no_number() -> None:
    """They are in no checkpoint, so the number may become another pack's."""
    flink = Flink(whole=True)
    flink.write(b"a")
    flink.end()
    assert flink.calls == [[(outbox.UNNUMBERED, b"", b"a")]]


def test_one_confirmation_is_not_enough() -> None:
    """A bundle that begins after the barrier is finalized together with the bundles before it."""
    events = ["barrier", "write", "finish", "completed", "notified", "look"]
    assert play(Flink(confirmations=1), events)
    assert not play(Flink(), events)


def test_two_confirmations_are_not_enough_if_a_notification_is_overtaken() -> None:
    events = ["barrier", "completed", "barrier", "write", "finish", "notified", "look", "finish", "completed"]
    events += ["notified", "look"]
    assert play(Flink(confirmations=2), events)
    assert not play(Flink(), events)


def test_at_the_end_of_time_everything_is_sent_once() -> None:
    """After the end of time no runner fires processing-time timers, so a pack that stayed behind would be lost."""
    flink = Flink()
    flink.write(b"a")
    flink.end()
    flink.look()
    flink.end()
    assert flink.sent == [b"a"]
    assert not flink.state[0].items
    flink.write(b"b")
    assert flink.state[3].at is not None, "what comes later sets the timer again"


def test_a_key_that_comes_from_another_process_waits_once_more() -> None:
    flink = Flink()
    flink.write(b"a")
    flink.checkpoint()
    flink.look()
    flink.finish()
    outbox.LEDGERS.forget((flink.step._uid, KEY))
    for _ in range(CONFIRMATIONS - 1):
        flink.checkpoint()
        flink.look()
    assert flink.sent == []


def test_on_the_local_runner_elements_pass() -> None:
    with beam.Pipeline(runner=fn_runner.FnApiRunner()) as pipeline:
        given = [("a", b"x", b"y"), ("b", b"", b"\xff")] * 700
        elements = pipeline | beam.Create(given) | beam.Map(lambda e: e).with_output_types(tuple[str, bytes, bytes])
        assert_that(elements | Durable(keys=3), equal_to(given))


def test_packs_hold_all_elements_of_a_bundle() -> None:
    coder = IterableCoder(BytesCoder())
    gather, opener = Gather(coder, keys=3), Open(coder)
    gather.setup()
    opener.setup()
    gather.start_bundle()
    given = [b"%d" % i for i in range(1_200)]
    packs = []
    for i, element in enumerate(given):
        packs += gather.process(element, windowed_value.create(element, i, (GlobalWindow(),))) or ()
    packs += gather.finish_bundle()
    held = [list(opener.process(pack.value[1])) for pack in packs]
    assert [sorted(map(int, elements)) for elements in held] == [
        [*range(500)],
        [*range(500, 1_000)],
        [*range(1_000, 1_200)],
    ]
    # The order inside a pack is random: it must not reveal which rows one shard released together.
    assert sum(int(a) < int(b) for a, b in pairwise(held[0])) < 320
    assert {pack.value[0] for pack in packs} <= {0, 1, 2}
    assert [pack.timestamp.micros for pack in packs] == [499, 999, 1_199]
    assert list(gather.finish_bundle()) == []


def test_items_of_lists_are_mixed_and_packed() -> None:
    """Those of one list, or of one release, must not lie together in what waits."""
    coder = IterableCoder(BytesCoder())
    gather, opener = Gather(coder, keys=3, lists=True), Open(coder, lists=True)
    gather.setup()
    opener.setup()
    gather.start_bundle()
    packs = []
    for start in (0, 600):
        given = [b"%d" % i for i in range(start, start + 600)]
        packs += gather.process(given, windowed_value.create(given, start, (GlobalWindow(),))) or ()
    packs += gather.finish_bundle()
    held = [elements for pack in packs for elements in opener.process(pack.value[1])]
    assert list(map(len, held)) == [500, 100, 500, 100]
    assert sorted(int(one) for one in held[0] + held[1]) == [*range(600)]
    assert sum(int(a) < int(b) for a, b in pairwise(held[0])) < 320
    assert sum(int(one) >= 500 for one in held[0]) > 20, "mixed before they are cut into packs"


def gather_of(element_type: Any) -> Gather:
    """Return the step that gathers elements of a type, in a pipeline that is built for a cluster."""
    pipeline = beam.Pipeline()
    elements = pipeline | beam.Create([1])
    elements.element_type = element_type
    found: list[Any] = []

    class Visitor(PipelineVisitor):
        def visit_transform(self, node: Any) -> None:
            found.extend([node.transform.fn] if node.full_label == "Durable/Gather" else [])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outbox, "is_local", lambda _: False)
        _ = elements | Durable()
    pipeline.visit(Visitor())
    (gather,) = found
    return gather  # type: ignore[no-any-return]


@pytest.mark.parametrize("element_type", [Any, dict, typehints.Dict[str, Any], typehints.Tuple[str, Any], None])
def test_elements_of_any_type_wait_without_a_pickle(element_type: Any) -> None:
    gather = gather_of(element_type)
    elements = [{"a": [1, None, 10**30], "b": (b"x", Decimal("1.5"))}, ("text", dt.date(2026, 1, 1))]
    assert list(gather._coder.decode(gather._coder.encode(elements))) == elements
    gather.setup()
    gather.start_bundle()
    gather.process(object(), windowed_value.create(None, 0, (GlobalWindow(),)))
    with pytest.raises(TypeError, match="Durable: an element holds a type that cannot be stored"):
        list(gather.finish_bundle())


def test_elements_of_a_type_wait_by_its_own_coder() -> None:
    expected = IterableCoder(TupleCoder([StrUtf8Coder(), BytesCoder()]))
    assert gather_of(typehints.Tuple[str, bytes])._coder == expected


# -- An attacker intersects the releases before and after a crash ----------------------------------

POLICY = Policy.from_dict(
    {
        "version": 1,
        "person": "who",
        "event_time": "at",
        "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 100]}},
        "publish": ["number"],
        "k": 4,
        "delay_rows": 30,
        "seed": 1,
    }
)


def release(seed: int) -> list[bytes]:
    """Publish 300 rows in an order drawn with the seed; return (number, lo, hi) of each."""
    draw = random.Random(0)
    rows = [{"who": i % 60, "at": 1e9 + i, "age": draw.randrange(100), "number": i} for i in range(300)]
    random.Random(seed).shuffle(rows)
    holder = ShardHolder(POLICY, b"secret", b"0")
    departures = []
    for pack in Packer(POLICY, b"secret").pack_dicts(rows, np.zeros(len(rows), dtype=np.int64)).packs:
        departures += holder.push(pack)
    departures += holder.flush()
    published = [row for departure in departures for row in Publisher(POLICY).published(departure)]
    return [b"%d %g %g" % (row["number"], row["age"]["lo"], row["age"]["hi"]) for row in published]


def intersected(sent: Iterable[bytes]) -> int:
    """Count the rows of which an attacker who reads all output knows two generalizations."""
    seen: dict[bytes, set[bytes]] = {}
    for record in sent:
        number, _, box = record.partition(b" ")
        seen.setdefault(number, set()).add(box)
    return sum(len(boxes) > 1 for boxes in seen.values())


def test_without_an_outbox_a_replay_in_another_order_reveals_more() -> None:
    before_the_crash, replayed = release(1), release(2)
    assert len(before_the_crash) == len(replayed) == 300
    assert intersected(before_the_crash + replayed) > 100


@pytest.mark.parametrize("checkpoints", range(CONFIRMATIONS + 2))
@pytest.mark.parametrize("process_survives", [True, False])
def test_with_an_outbox_a_replay_in_another_order_reveals_no_more(checkpoints: int, process_survives: bool) -> None:
    """After half of the rows come the checkpoints, then the rest, then a crash.

    What no checkpoint contained is then replayed in another order.
    """
    flink = Flink()
    first, second = release(1), release(2)
    for record in first[:150]:
        flink.write(record)
    for _ in range(checkpoints):
        flink.look()
        flink.finish()
        flink.checkpoint()
    for record in first[150:]:
        flink.write(record)
    flink.look()
    flink.crash(process_survives)
    # The holder is restored from the same checkpoint, so it does not release again what it had released by then.
    known = {record.partition(b" ")[0] for record in flink.written}
    for record in second:
        if record.partition(b" ")[0] not in known:
            flink.write(record)
    for _ in range(2 * CONFIRMATIONS + 2):
        flink.checkpoint()
        flink.now += 61
        flink.look()
    assert {record.partition(b" ")[0] for record in flink.sent} == {b"%d" % i for i in range(300)}
    assert intersected(flink.sent) == 0
