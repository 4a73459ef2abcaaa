"""Transactions: a pack is committed once, whatever fails. With a real broker, and with a modelled one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import yaml
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from crenel.errors import INCURABLE
from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.kafka import transactions as module
from crenel.pipelines.kafka.topic_job import Request
from crenel.pipelines.kafka.topics import Topic
from crenel.pipelines.kafka.transactions import Transactions, WentBack
from crenel.policy import Policy
from crenel.runners import JobFailed
from crenel.transforms.durable import UNNUMBERED, WholePack
from tests.pipelines.kafka import rows as made
from tests.pipelines.kafka.broker import Broker

TOPICS = {"published": Topic(servers="a:1", name="out", transactions="name")}


def pack(number: int, *sizes: int, history: str = "x") -> WholePack:
    """A pack of a number, with records of these sizes."""
    digest = f"{history}{number}".encode().ljust(16)
    records = [("published", b"%d-%d" % (number, i), b"v" * size) for i, size in enumerate(sizes or (5, 5))]
    return 0, number, digest, records


def names(*packs: WholePack) -> list[bytes]:
    return sorted(name for *_, records in packs for _, name, _ in records)


# -- A real broker ---------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(kafka: Broker) -> Iterator[Callable[[], Transactions]]:
    """Opens the transactions of one key, each time as another process would."""
    topic, name = f"t-{uuid4().hex[:8]}", uuid4().hex
    kafka.create(topic, max__message__bytes="5000")
    topics = {"published": Topic(servers=kafka.address, name=topic, transactions=name)}
    yield lambda: Transactions(topics, name)


def committed(kafka: Broker, one: Transactions) -> list[bytes]:
    return sorted(message.key() for message in kafka.read(one._main.name, "read_committed"))


@pytest.mark.kafka
def test_a_pack_is_committed_once_whoever_writes_it(kafka: Broker, opened: Callable[[], Transactions]) -> None:
    first, second = opened(), opened()
    packs = [pack(number) for number in range(6)]
    assert first.commit(packs[:2], pytest.fail) == 4
    assert second.commit(packs[1:3], pytest.fail) == 2, "it goes on where the first was"
    # The first was refused the id meanwhile; it takes it back, and finds what the second has done.
    assert first.commit(packs[1:4], pytest.fail) == 2
    # A process dies in the middle of a transaction: the next one aborts it.
    first._producer.begin_transaction()
    first._send(packs[4][3])
    assert second.commit([*packs[4:], pack(UNNUMBERED)], pytest.fail) == 6
    assert committed(kafka, first) == names(*packs, pack(UNNUMBERED))
    assert len(kafka.read(first._main.name)) > len(committed(kafka, first))


@pytest.mark.kafka
def test_what_a_topic_does_not_take_is_a_dead_letter(kafka: Broker, opened: Callable[[], Transactions]) -> None:
    one, dead = opened(), []
    assert one.commit([pack(0, *[9 if i not in (3, 17) else 9_000 for i in range(20)])], dead.extend) == 18
    assert len(dead) == 2
    assert one.commit([pack(1)], pytest.fail) == 2
    assert len(committed(kafka, one)) == 20


@pytest.mark.kafka
def test_an_older_history_is_refused(opened: Callable[[], Transactions]) -> None:
    opened().commit([pack(0), pack(1), pack(2)], pytest.fail)
    for older in ([pack(0)], [pack(0, history="y"), pack(1, history="y"), pack(2, history="y")]):
        with pytest.raises(WentBack, match=INCURABLE):
            opened().commit(older, pytest.fail)
    assert opened().commit([pack(2), pack(3)], pytest.fail) == 2


# -- A modelled broker, of which every request may fail, before or after it was done -----------------------------------


class Modelled:
    """What a broker knows of one transactional id."""

    def __init__(self, faults: Iterator[int]) -> None:
        self._faults = faults
        self.epoch = 0
        self.open: list[bytes] = []
        self.pending: tuple[int, str] | None = None
        self.committed: list[bytes] = []
        self.mark: tuple[int, str] | None = None

    def request(self, epoch: int, do: Callable[[], Any]) -> Any:
        """Do what a client of an epoch asks for; it may fail first, or its answer may be lost."""
        fault = next(self._faults, 0)
        if fault == 1 or epoch != self.epoch:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT if fault == 1 else KafkaError._FENCED))
        done = do()
        if fault == 2:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return done

    def begin(self) -> int:
        self.epoch += 1
        self.open, self.pending = [], None
        return self.epoch

    def commit(self) -> None:
        self.committed += self.open
        self.mark = self.pending or self.mark
        self.open, self.pending = [], None


class Client:
    """Both clients of a process."""

    def __init__(self, broker: Modelled) -> None:
        self._broker = broker
        self._epoch = 0

    def init_transactions(self, _: float) -> None:
        self._epoch = self._broker.epoch
        self._epoch = self._broker.request(self._epoch, self._broker.begin)

    def committed(self, _: Any, __: float) -> list[Any]:
        offset, metadata = self._broker.request(self._broker.epoch, lambda: self._broker.mark) or (-1, "")
        return [SimpleNamespace(offset=offset, metadata=metadata)]

    def consumer_group_metadata(self) -> None:
        pass

    close = purge = begin_transaction = consumer_group_metadata

    def produce(self, _: str, __: bytes, name: bytes, ___: int, on_delivery: Any) -> None:
        try:
            self._broker.request(self._epoch, lambda: self._broker.open.append(name))
        except KafkaException as error:
            on_delivery(error.args[0], None)

    def flush(self, _: float) -> int:
        return 0

    def send_offsets_to_transaction(self, places: list[Any], _: None, __: float) -> None:
        place = (places[0].offset, places[0].metadata)
        self._broker.request(self._epoch, lambda: setattr(self._broker, "pending", place))

    def commit_transaction(self, _: float) -> None:
        self._broker.request(self._epoch, self._broker.commit)


@given(
    faults=st.lists(st.sampled_from([0, 0, 0, 1, 2]), max_size=60),
    turns=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3), st.integers(0, 3)), max_size=12),
)
def test_each_record_is_committed_once_whatever_fails(faults: list[int], turns: list[tuple[int, int, int]]) -> None:
    """Two processes take turns; after a failure, packs since some checkpoint come again, in other bundles."""
    broker = Modelled(iter(faults))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "transactional_clients", lambda *_: (Client(broker), Client(broker)))
        processes = [Transactions(TOPICS, "name") for _ in range(2)]
        sent, kept = 0, 0  # packs that were emitted, and those that no checkpoint has left behind yet
        for process, count, checkpoint in [*turns, *[(0, 1, 0)] * 3]:
            again = [pack(number) for number in range(kept, sent + count)]
            try:
                processes[process].commit(again, lambda lines: None)
            except JobFailed:
                continue  # the job is restored, and emits the same again
            sent += count
            kept = sent if checkpoint == 0 else kept
        assert len(broker.committed) == len(set(broker.committed))
        assert set(names(*[pack(number) for number in range(sent)])) <= set(broker.committed)


# -- The command line --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outputs", "local", "said"),
    [
        ({"published": "kafka://a:1/out?transactions=x"}, True, "for a runner with checkpoints"),
        ({"published": "kafka://a:1/out", "rejected": "kafka://a:1/no?transactions=x"}, False, "with --output"),
        ({"published": "kafka://a:1/out?transactions=x", "rejected": "kafka://b:1/no"}, False, "of one cluster"),
    ],
)
def test_transactions_that_cannot_be_are_refused(outputs: dict[str, str], local: bool, said: str) -> None:
    policy = Policy.from_dict(yaml.safe_load(made.POLICY))
    with pytest.raises(CommandError, match=said):
        Request.of(policy, ["kafka://a:1/in"], outputs, local=local)
