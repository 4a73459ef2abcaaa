"""Partitioning: rows that lack quasi-identifiers are grouped with rows that have the same ones.

Otgonbayar, Pervez, Dahal: *Toward Anonymizing IoT Data Streams via Partitioning*, IEEE MASS 2016. How each step is
done, and where it differs from the paper, is in `docs/partition.md`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crenel.avro import Schemas, packed
from crenel.encoding.rows import Rows
from crenel.engine.compiled import Compiled, numbers_of
from crenel.engine.contract import Releases
from crenel.engine.draws import generator
from crenel.engine.kernels.arrays import NONE
from crenel.engine.kernels.deadlines import EARLIEST
from crenel.engine.kernels.distinct_counts import ENTRY
from crenel.engine.kernels.held_rows import empty_slots, first_deadline, held_slots
from crenel.engine.methods.partition import PartitionParameters, partition_kernel, partition_state
from crenel.engine.output_buffer import empty_output, take_releases
from crenel.engine.reusable import empty_boxes, is_weaker, restore_boxes, stored_boxes
from crenel.engine.space import own, restore_domains
from crenel.policy import Policy
from crenel.policy.durations import parse_duration
from crenel.policy.parameters import Reuse

#: Rows that space is reserved for before the first one arrives, at most.
_MOST_EXPECTED = 1 << 16
_SCHEMAS = Schemas("crenel.engine.methods.partition", ("partition.1.avsc",))
_REUSE = {
    Reuse.OFF: partition_state.OFF,
    Reuse.BEST: partition_state.BEST,
    Reuse.UNIFORM: partition_state.UNIFORM,
    Reuse.WEIGHTED: partition_state.WEIGHTED,
}


class Partition(Compiled):
    """The method `partition` on one shard's rows, which may lack quasi-identifiers (NaN).

    Args:
        policy: What is to be guaranteed. Its `parameters` are `PartitionParameters`.
        key: 32 bytes for the generator. An attacker who knows them can undo its choices.
    """

    kernel = partition_kernel.run
    _state: partition_state.State

    def __init__(self, policy: Policy, key: bytes) -> None:
        super().__init__(policy)
        expected = min(policy.delay_rows or 0, _MOST_EXPECTED)
        self._state = self._empty_state(key, capacity=expected + self.chunk)

    def next_deadline(self) -> int | None:
        """Return the moment at which `advance` must be called next, or None."""
        return first_deadline(self._state.buffer, self._state.numbers)

    def _run(self, rows: Rows, *, now: int = EARLIEST, over: bool = False) -> Releases:
        """Run the kernel, and return the releases that it wrote."""
        columns = (own(rows.qi), own(rows.person), own(rows.sensitive), own(rows.time))
        partition_kernel.run(self._state, *columns, now, over)
        return take_releases(self._state.out, self._state.numbers)

    # --- Snapshots ---

    def dump(self) -> bytes:
        """Return the complete state of the engine, including its random generator."""
        s, n = self._state, self._state.numbers[0]
        record = {
            "space": self._fingerprint,
            "key": self.key,
            **{name: int(n[name]) for name in ("k", "l", "draws", "arrivals", "released", "clock")},
            "domain_lo": packed(s.space.dimensions["domain_lo"]),
            "domain_hi": packed(s.space.dimensions["domain_hi"]),
            "held": {name: packed(column) for name, column in self._held().items()},
            "reusable": stored_boxes(s.reusable, s.numbers),
        }
        return _SCHEMAS.encode(record)

    def load(self, data: bytes) -> None:
        """Take over the state of the engine that `dump` was called on.

        Reusable boxes are forgotten if the policy now asks for a stronger guarantee, or for no reuse.
        """
        record = _SCHEMAS.decode(data)
        self._check_space(record["space"])
        held = self._unpacked_rows(record["held"], ("number", "person", "deadline"))
        capacity = len(held["number"]) + self.chunk
        self._state = s = self._empty_state(record["key"], draws=record["draws"], capacity=capacity)
        restore_domains(s.space, record)
        partition_kernel.rebuild(s, **held)
        self._resume(record, ("draws", "arrivals", "released", "clock"))
        if not is_weaker(record, self._policy) and s.numbers["reuse"][0] != partition_state.OFF:
            restore_boxes(s.reusable, s.numbers, record["reusable"])
            bits = np.left_shift(1, np.arange(self._dimensions, dtype=np.int64))
            s.reusable.table["present"] = ~np.isnan(s.reusable.lo) @ bits

    def _held(self) -> dict[str, NDArray[Any]]:
        """Return the held rows in order of arrival."""
        buffer = self._state.buffer
        at = held_slots(buffer, self._state.numbers)
        slots = buffer.slots[at]
        return {
            "number": slots["number"].copy(),
            "qi": np.ascontiguousarray(buffer.qi[:, at].T),
            "person": slots["person"].copy(),
            "sensitive": buffer.sensitive[at],
            "deadline": slots["deadline"].copy(),
        }

    # --- State ---

    def _reserve(self, arriving: int) -> None:
        """Reserve space for rows that arrive. It at least doubles, so that this is rare."""
        capacity = len(self._state.buffer.slots)
        if self.held + arriving <= capacity:
            return
        old, held = self._state, self._held()
        new = self._empty_state(self.key, capacity=max(2 * capacity, self.held + arriving))
        self._state = new._replace(space=old.space, reusable=old.reusable, random=old.random)
        partition_kernel.rebuild(self._state, **held)
        for name in ("arrivals", "clock", "draws", "released", "reusable", "reusable_oldest"):
            self._state.numbers[name] = old.numbers[name]

    def _empty_state(self, key: bytes, *, capacity: int, draws: int = 0) -> partition_state.State:
        """Return a state without rows, with space for `capacity` rows."""
        policy, dimensions = self._policy, self._dimensions
        numbers = _numbers(policy)
        numbers["free"] = capacity
        tracked = 1 + (len(policy.sensitive) if policy.l else 0)
        # The table counts the values of each held row for its partition, and once more while a group is formed, and
        # it has one entry per partition. At most half of it is used.
        table = 1 << (2 * capacity * (2 * tracked + 1) - 1).bit_length()
        return partition_state.State(
            numbers=numbers,
            space=self._space._replace(dimensions=self._space.dimensions.copy()),
            counts=np.zeros(table, dtype=ENTRY),
            buffer=_buffer(capacity, dimensions, len(policy.sensitive)),
            partitions=partition_state.Partitions(
                table=np.empty(capacity, dtype=partition_state.PARTITION),
                distinct=np.zeros((capacity, tracked), dtype=np.int64),
                active=np.arange(capacity, dtype=np.int64),
                wanted=np.zeros(capacity, dtype=np.bool_),
            ),
            search=_search(capacity, dimensions, tracked),
            reusable=empty_boxes(_parameters(policy).max_reusable, dimensions),
            random=generator(key, draws),
            out=empty_output(capacity, dimensions),
        )


def _parameters(policy: Policy) -> PartitionParameters:
    if not isinstance(policy.parameters, PartitionParameters):
        message = f"Partition: policy.parameters must be PartitionParameters, not those of {policy.method!r}."
        raise TypeError(message)
    return policy.parameters


def _numbers(policy: Policy) -> NDArray[Any]:
    parameters = _parameters(policy)
    numbers = numbers_of(policy, partition_state.NUMBERS)
    numbers["reuse"] = _REUSE[parameters.reuse]
    numbers["reuse_rows"], numbers["reuse_time"] = _reuse_for(policy, parameters)
    numbers["eta"] = parameters.eta
    numbers["fill_missing"] = parameters.fill_missing
    numbers["oldest"] = numbers["newest"] = NONE
    return numbers


def _reuse_for(policy: Policy, parameters: PartitionParameters) -> tuple[int, int]:
    """Return how long a box can be reused, in rows and in microseconds; one of the two is 0."""
    given = parameters.reuse_for
    if isinstance(given, int):
        return given, 0
    if given is not None:
        return 0, parse_duration(given) or 0
    if policy.delay_rows is not None:
        return max(policy.delay_rows // 10, 1), 0
    return 0, max((policy.delay or 0) // 10, 1)


def _buffer(capacity: int, dimensions: int, columns: int) -> partition_state.Buffer:
    return partition_state.Buffer(
        slots=np.empty(capacity, dtype=partition_state.SLOT),
        sensitive=np.empty((capacity, columns), dtype=np.int64),
        qi=np.empty((dimensions, capacity)),
        partition=np.full(capacity, NONE, dtype=np.int64),
        **empty_slots(capacity),
    )


def _search(capacity: int, dimensions: int, tracked: int) -> partition_state.GroupSearch:
    return partition_state.GroupSearch(
        slots=np.empty(capacity, dtype=np.int64),
        distance=np.empty(capacity),
        shared=np.empty(capacity),
        heap=np.empty(capacity, dtype=np.int64),
        group=np.empty(capacity, dtype=np.int64),
        distinct=np.zeros(tracked, dtype=np.int64),
        lo=np.empty(dimensions),
        hi=np.empty(dimensions),
    )
