"""WRITE in transactions: a reader that takes only committed records sees each row once, even after failures.

`Durable` emits a pack only when checkpoints have it, but after a failure it may emit it again. Here each transaction
also commits how far the history of its key has come: as an offset of a consumer group, whose metadata is the digest of
that history. Both are committed, or neither. A pack that comes again is recognized by it, and is not sent.

There is one transactional id for each key of the outbox, which is the group's name, too. A process that takes over a
key begins by taking over this id: the broker then aborts what another has left open, and refuses it from then on. So
what is read of the group cannot change until this process itself commits.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from crenel.errors import PermanentError
from crenel.pipelines.kafka import dead_letters
from crenel.pipelines.kafka.broker_errors import is_of_the_record, refusal
from crenel.pipelines.kafka.clients import transactional_clients
from crenel.pipelines.kafka.dead_letters import DEAD
from crenel.pipelines.kafka.sender import ANY_PARTITION, Record
from crenel.pipelines.kafka.sink import WriteRecords
from crenel.pipelines.kafka.topics import Topic
from crenel.runners import JobFailed
from crenel.transforms._publish.emitter import PUBLISHED
from crenel.transforms._publish.random_order import shuffled
from crenel.transforms.durable import UNNUMBERED, WholePack

__all__ = ["Transactions", "WentBack", "WriteInTransactions"]

#: Seconds that the broker has for each step of a transaction.
_PATIENCE = 60.0
#: Errors of a broker that does not know its groups yet.
_NOT_YET = ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "_WAIT_COORD")


class WentBack(PermanentError, JobFailed):
    """The job was started from a state that is older than what it has committed."""


class Transactions:
    """The transactions of one key.

    Args:
        topics: The topics, by output, all of one cluster.
        name: The transactional id, and the group that remembers the history.
    """

    def __init__(self, topics: Mapping[str, Topic], name: str) -> None:
        import confluent_kafka

        self._kafka = confluent_kafka
        self._topics = dict(topics)
        self._name = name
        self._main = topics[PUBLISHED]
        self._producer: Any = None
        #: The number of the next pack, and the digest of those before it, as the group remembers them.
        self._next = 0
        self._history = b""
        self.lock = threading.Lock()

    def commit(self, packs: Sequence[WholePack], bury: Callable[[list[bytes]], None]) -> int:
        """Send the packs that were not committed yet, in one transaction; return how many records.

        Args:
            packs: Packs of this key that were emitted together, in order.
            bury: Keeps dead letters.

        Raises:
            WentBack: the packs are of an older history than what was committed.
            JobFailed: the broker does not take them.
        """
        was_open = self._producer is not None
        try:
            return self._commit(packs, bury)
        except self._kafka.KafkaException as error:
            self._close()
            if was_open:  # another process may have had the key meanwhile, so the group is asked again
                return self.commit(packs, bury)
            msg = f"a transaction failed. {refusal(self._main, error.args[0])}"
            raise JobFailed(msg) from None

    def _commit(self, packs: Sequence[WholePack], bury: Callable[[list[bytes]], None]) -> int:
        if self._producer is None:
            self._open()
        new = self._unsent(packs)
        if not new:
            return 0
        records = [record for *_, elements in new for record in elements]
        dead = [value for output, _, value in records if output == DEAD]
        alive = shuffled([record for record in records if record[0] != DEAD])
        numbered = [(number, history) for _, number, history, _ in new if number != UNNUMBERED]
        mark = numbered[-1] if numbered else None
        refused = self._transact(alive, mark)
        if refused:
            guilty = self._guilty(refused)
            names = {name for (_, name, _), _ in guilty}
            alive = [record for record in alive if record[1] not in names]
            dead += [
                dead_letters.line(output, self._topics[output], name, error.str(), value)
                for (output, name, value), error in guilty
            ]
        if dead:
            bury(dead)
        if refused and self._transact(alive, mark):
            msg = f"{self._main!r}: records that were taken before are refused."
            raise JobFailed(msg)
        return len(alive)

    def _open(self) -> None:
        """Take over the transactional id, and ask the group how far its history is."""
        producer, reader = transactional_clients(self._main, self._name)
        try:
            producer.init_transactions(_PATIENCE)
            place = self._remembered(reader)
            self._group = reader.consumer_group_metadata()
        finally:
            reader.close()
        self._next, self._history = 0, b""
        if place.offset >= 0:
            self._next, self._history = place.offset, bytes.fromhex(place.metadata)
        self._producer = producer

    def _remembered(self, reader: Any) -> Any:
        """Ask the group, and try again while the broker moves or loads it: the client does not do that by itself."""
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                return reader.committed([self._kafka.TopicPartition(self._main.name, 0)], _PATIENCE)[0]
            except self._kafka.KafkaException as error:
                if error.args[0].name() not in _NOT_YET or time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def _close(self) -> None:
        """Drop a client that may be in a transaction. The broker aborts that when the next client takes over the id."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(self._kafka.KafkaException):
                producer.purge()

    def _abort(self) -> None:
        """Abort a transaction. The client has lost count of the records it sent, so another takes its place."""
        self._producer.abort_transaction(_PATIENCE)
        self._close()
        self._open()

    def _unsent(self, packs: Sequence[WholePack]) -> list[WholePack]:
        """Leave out what was committed.

        All packs that were committed and are still in the state are emitted together, so the last of them is here.

        Raises:
            WentBack: it is not.
        """
        ends = [history for _, number, history, _ in packs if number == self._next - 1]
        again = any(UNNUMBERED < number < self._next for _, number, _, _ in packs)
        if again and ends != [self._history]:
            msg = (
                f"{self._main!r}: the job was not started from its last checkpoint or savepoint, so rows that are "
                "committed would be published again, under other generalizations. Start it from the last one; or, to "
                "begin anew, give transactions another name, and write to another topic."
            )
            raise WentBack(msg)
        return [pack for pack in packs if pack[1] == UNNUMBERED or pack[1] >= self._next]

    def _transact(self, records: Sequence[Record], mark: tuple[int, bytes] | None) -> list[tuple[Record, Any]]:
        """Send records in a transaction, and commit it; or abort it, and return what was refused for its content.

        Args:
            records: The records.
            mark: The number and the history of the last pack, for the group to remember.
        """
        self._producer.begin_transaction()
        refused = self._send(records)
        if refused:
            self._abort()
            return refused
        after, history = (self._next, self._history) if mark is None else (mark[0] + 1, mark[1])
        if mark is not None:
            place = self._kafka.TopicPartition(self._main.name, 0, after, metadata=history.hex())
            self._producer.send_offsets_to_transaction([place], self._group, _PATIENCE)
        self._producer.commit_transaction(_PATIENCE)
        self._next, self._history = after, history
        return []

    def _send(self, records: Sequence[Record]) -> list[tuple[Record, Any]]:
        """Send records, and wait for them; return those that were refused for their content.

        Raises:
            KafkaException: others were not taken.
        """
        failed: list[tuple[Record, Any]] = []
        for record in records:
            output, name, value = record
            told = partial(_delivered, failed, record)
            while True:
                try:
                    self._producer.produce(self._topics[output].name, value, name, ANY_PARTITION, told)
                    break
                except BufferError:  # too many records are on their way
                    self._producer.poll(0.1)
                except self._kafka.KafkaException as error:
                    failed.append((record, error.args[0]))
                    break
        self._flush()
        refused = [(record, error) for record, error in failed if is_of_the_record(error)]
        if failed and not refused:
            raise self._kafka.KafkaException(failed[0][1])
        return refused  # the others failed because these did

    def _flush(self) -> None:
        codes = self._kafka.KafkaError
        try:
            left = self._producer.flush(_PATIENCE)
        except SystemError:  # the client raises a fatal error while it calls back
            raise self._kafka.KafkaException(codes(codes._FATAL)) from None
        if left:
            raise self._kafka.KafkaException(codes(codes._TIMED_OUT))

    def _guilty(self, suspects: Sequence[tuple[Record, Any]]) -> list[tuple[Record, Any]]:
        """Find the records that are refused even without their neighbours. All transactions for this are aborted."""
        if len(suspects) == 1:
            return list(suspects)
        found = []
        middle = len(suspects) // 2
        for half in (suspects[:middle], suspects[middle:]):
            self._producer.begin_transaction()
            refused = self._send([record for record, _ in half])
            self._abort()
            if refused:
                found += self._guilty(refused)
        return found


def _delivered(failed: list[tuple[Record, Any]], record: Record, error: Any, _: Any) -> None:
    if error is not None:
        failed.append((record, error))


class _Open:
    """The transactions of this process, by name: each has a client of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[tuple[int, str, str], Transactions] = {}

    def get(self, topics: Mapping[str, Topic], name: str) -> Transactions:
        """The transactions of a name. A process that was forked has its own."""
        key = (os.getpid(), topics[PUBLISHED].servers, name)
        with self._lock:
            if key not in self._all:
                self._all[key] = Transactions(topics, name)
            return self._all[key]


_OPEN = _Open()


class WriteInTransactions(WriteRecords):
    """Writes whole packs, those of a key and a bundle in one transaction, in random order.

    Args:
        outputs: The topics, by output.
        dead: The folder for records that a topic does not take; None for the user's own.
    """

    def __init__(self, outputs: Mapping[str, Topic | Path], dead: str | None = None) -> None:
        super().__init__(outputs, dead)
        self._topics = {name: place for name, place in outputs.items() if isinstance(place, Topic)}

    def start_bundle(self) -> None:
        """Begin without packs."""
        self._packs: dict[int, list[WholePack]] = {}

    def process(self, pack: Any) -> None:
        """Keep a pack until the bundle ends."""
        self._packs.setdefault(pack[0], []).append(pack)

    def finish_bundle(self) -> None:
        """Commit the packs of each key."""
        for key, packs in self._packs.items():
            transactions = _OPEN.get(self._topics, f"{self._topics[PUBLISHED].transactions}-{key}")
            with transactions.lock:
                self._sent.inc(transactions.commit(packs, self._bury))
