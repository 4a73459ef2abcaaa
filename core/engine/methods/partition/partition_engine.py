"""Partitioning: rows that lack quasi-identifiers find company among those that have the same.

Otgonbayar, Pervez, Dahal: *Toward Anonymizing IoT Data Streams via Partitioning*, IEEE MASS 2016. How each step is
done, and where it departs from the paper, is in `docs/partition.md`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crenel.avro import Schemas, packed, unpacked
from crenel.encoding.rows import Rows
from crenel.engine.compiled import Compiled, numbers_of
from crenel.engine.contract import Releases
from crenel.engine.draws import generator
from crenel.engine.kernels import common
from crenel.engine.methods.partition import PartitionParameters
from crenel.engine.methods.partition import partition_kernel as kernels
from crenel.engine.output_buffer import room, taken
from crenel.engine.space import own, set_domains
from crenel.policy import Policy
from crenel.policy.durations import parse_duration
from crenel.policy.parameters import Reuse

#: Rows that room is made for before they come.
_MOST_EXPECTED = 1 << 16
_SCHEMAS = Schemas("crenel.engine.methods.partition", ("partition.1.avsc",))
_REUSE = {
    Reuse.OFF: kernels.OFF,
    Reuse.BEST: kernels.BEST,
    Reuse.UNIFORM: kernels.UNIFORM,
    Reuse.WEIGHTED: kernels.WEIGHTED,
}
#: What is kept of a reusable generalization beside its box.
_KEPT = ("group", "persons", "arrivals", "moment")


class Partition(Compiled):
    """The method `partition` on one shard's rows, which may lack quasi-identifiers (NaN).

    Parameters
    ----------
    policy
        What is to be guaranteed; its `parameters` are `PartitionParameters`.
    key
        32 bytes for the generator. Whoever knows them can undo its choices.
    """

    _state: kernels.State

    def __init__(self, policy: Policy, key: bytes) -> None:
        super().__init__(policy)
        expected = min(policy.delay_rows or 0, _MOST_EXPECTED)
        self._state = self._empty_state(key, capacity=expected + self.chunk)

    def next_deadline(self) -> int | None:
        """Return the moment at which `advance` is next needed, if there is one."""
        if self._state.numbers["timed"][0] == 0:
            return None
        buffer = self._state.buffer
        return int(buffer.slots["deadline"][buffer.heap[0]])

    def _run(self, rows: Rows, *, now: int = common.EARLIEST, over: bool = False) -> Releases:
        """Run the kernel, and take what it wrote."""
        kernels.run(self._state, own(rows.qi), own(rows.person), own(rows.sensitive), own(rows.time), now, over)
        return taken(self._state.out, self._state.numbers)

    # --- Snapshots ---

    def snapshot(self) -> bytes:
        """Return all of the engine, its random generator included."""
        s, n = self._state, self._state.numbers[0]
        record = {
            "space": self._fingerprint,
            "key": self.key,
            **{name: int(n[name]) for name in ("k", "l", "draws", "arrivals", "released", "clock")},
            "domain_lo": packed(s.space.dimensions["domain_lo"]),
            "domain_hi": packed(s.space.dimensions["domain_hi"]),
            "held": {name: packed(column) for name, column in self._held().items()},
            "reusable": {name: packed(column) for name, column in self._reusable().items()},
        }
        return _SCHEMAS.encode(record)

    def restore(self, data: bytes) -> None:
        """Become the engine that `snapshot` was called on.

        Published generalizations that were kept for reuse are forgotten if the policy now asks for a stronger
        guarantee.
        """
        record = _SCHEMAS.decode(data)
        self._check_space(record["space"])
        held = self._unpacked_held(record["held"])
        self._state = s = self._empty_state(record["key"], capacity=len(held["number"]) + self.chunk)
        set_domains(s.space, unpacked(record["domain_lo"]), unpacked(record["domain_hi"]))
        kernels.rebuild(s, **held)
        self._resume(record, ("draws", "arrivals", "released", "clock"))
        weaker = record["k"] < s.numbers["k"][0] or record["l"] < s.numbers["l"][0]
        if not weaker and s.numbers["reuse"][0] != kernels.OFF:
            self._restore_reusable(record["reusable"])

    def _held(self) -> dict[str, NDArray[Any]]:
        """The held rows in order of arrival."""
        buffer = self._state.buffer
        at = kernels.held_slots(self._state)
        slots = buffer.slots[at]
        return {
            "number": slots["number"].copy(),
            "qi": np.ascontiguousarray(buffer.qi[:, at].T),
            "person": slots["person"].copy(),
            "sensitive": buffer.sensitive[at],
            "deadline": slots["deadline"].copy(),
        }

    def _unpacked_held(self, held: dict[str, bytes]) -> dict[str, NDArray[Any]]:
        columns: dict[str, NDArray[Any]] = {
            name: unpacked(held[name], "<i8") for name in ("number", "person", "sensitive", "deadline")
        }
        rows = len(columns["number"])
        columns["sensitive"] = columns["sensitive"].reshape(rows, len(self._policy.sensitive))
        columns["qi"] = unpacked(held["qi"]).reshape(rows, self._dimensions)
        return columns

    def _reusable(self) -> dict[str, NDArray[Any]]:
        """The reusable generalizations, oldest first."""
        reusable, n = self._state.reusable, self._state.numbers[0]
        at = (int(n["reusable_oldest"]) + np.arange(int(n["reusable"]))) % max(len(reusable.table), 1)
        kept = {name: reusable.table[name][at] for name in _KEPT}
        return {"lo": reusable.lo[at], "hi": reusable.hi[at], **kept}

    def _restore_reusable(self, kept: dict[str, bytes]) -> None:
        reusable = self._state.reusable
        group = unpacked(kept["group"], "<i8")
        count = min(len(group), len(reusable.table))  # the policy may keep fewer now
        newest = slice(len(group) - count, None)
        boxes = (len(group), self._dimensions)
        reusable.lo[:count] = unpacked(kept["lo"]).reshape(boxes)[newest]
        reusable.hi[:count] = unpacked(kept["hi"]).reshape(boxes)[newest]
        for name in _KEPT:
            reusable.table[name][:count] = unpacked(kept[name], "<i8")[newest]
        bits = np.left_shift(1, np.arange(self._dimensions, dtype=np.int64))
        reusable.table["set"][:count] = ~np.isnan(reusable.lo[:count]) @ bits
        self._state.numbers["reusable"] = count

    # --- State ---

    def _reserve(self, arriving: int) -> None:
        """Make room for rows that arrive; doubling keeps this rare."""
        capacity = len(self._state.buffer.slots)
        if self.held + arriving <= capacity:
            return
        old, held = self._state, self._held()
        new = self._empty_state(self.key, capacity=max(2 * capacity, self.held + arriving))
        self._state = new._replace(space=old.space, reusable=old.reusable, random=old.random)
        kernels.rebuild(self._state, **held)
        for name in ("arrivals", "clock", "draws", "released", "reusable", "reusable_oldest"):
            self._state.numbers[name] = old.numbers[name]

    def _empty_state(self, key: bytes, *, capacity: int) -> kernels.State:
        """Make a state without rows, and with room for so many."""
        policy, dimensions = self._policy, self._dimensions
        numbers = _numbers(policy)
        numbers["free"] = capacity
        tracked = 1 + (len(policy.sensitive) if policy.l else 0)
        # Each held row has its values in the table for its partition, and once more while a group is formed; each
        # partition its place. At most half of the table is used.
        table = 1 << (2 * capacity * (2 * tracked + 1) - 1).bit_length()
        return kernels.State(
            numbers=numbers,
            space=self._space._replace(dimensions=self._space.dimensions.copy()),
            counts=np.zeros(table, dtype=common.ENTRY),
            buffer=_buffer(capacity, dimensions, len(policy.sensitive)),
            partitions=kernels.Partitions(
                table=np.empty(capacity, dtype=kernels.PARTITION),
                distinct=np.zeros((capacity, tracked), dtype=np.int64),
                active=np.arange(capacity, dtype=np.int64),
                wanted=np.zeros(capacity, dtype=np.bool_),
            ),
            pool=_pool(capacity, dimensions, tracked),
            reusable=_ring(_parameters(policy).max_reusable, dimensions),
            random=generator(key),
            out=room(capacity, dimensions),
        )


def _parameters(policy: Policy) -> PartitionParameters:
    if not isinstance(policy.parameters, PartitionParameters):
        message = f"Partition: policy.method must be 'partition', not {policy.method!r}."
        raise TypeError(message)
    return policy.parameters


def _numbers(policy: Policy) -> NDArray[Any]:
    parameters = _parameters(policy)
    numbers = numbers_of(policy, kernels.NUMBERS)
    numbers["reuse"] = _REUSE[parameters.reuse]
    numbers["reuse_rows"], numbers["reuse_time"] = _reuse_for(policy, parameters)
    numbers["eta"] = parameters.eta
    numbers["fill"] = parameters.fill_missing
    numbers["oldest"] = numbers["newest"] = common.NONE
    return numbers


def _reuse_for(policy: Policy, parameters: PartitionParameters) -> tuple[int, int]:
    """How long a generalization may be used again, in rows or in time; 0 is the other one."""
    given = parameters.reuse_for
    if isinstance(given, int):
        return given, 0
    if given is not None:
        return 0, parse_duration(given) or 0
    if policy.delay_rows is not None:
        return max(policy.delay_rows // 10, 1), 0
    return 0, max((policy.delay or 0) // 10, 1)


def _buffer(capacity: int, dimensions: int, columns: int) -> kernels.Buffer:
    return kernels.Buffer(
        slots=np.empty(capacity, dtype=kernels.SLOT),
        qi=np.empty((dimensions, capacity)),
        partition=np.full(capacity, common.NONE, dtype=np.int64),
        sensitive=np.empty((capacity, columns), dtype=np.int64),
        heap=np.empty(capacity, dtype=np.int64),
        free=np.arange(capacity, dtype=np.int64)[::-1].copy(),
    )


def _pool(capacity: int, dimensions: int, tracked: int) -> kernels.Pool:
    return kernels.Pool(
        slots=np.empty(capacity, dtype=np.int64),
        distance=np.empty(capacity),
        shared=np.empty(capacity),
        heap=np.empty(capacity, dtype=np.int64),
        group=np.empty(capacity, dtype=np.int64),
        distinct=np.zeros(tracked, dtype=np.int64),
        lo=np.empty(dimensions),
        hi=np.empty(dimensions),
    )


def _ring(size: int, dimensions: int) -> kernels.Reusable:
    return kernels.Reusable(
        table=np.empty(size, dtype=kernels.REUSABLE),
        lo=np.empty((size, dimensions)),
        hi=np.empty((size, dimensions)),
        covering=np.empty(size, dtype=np.int64),
        weight=np.empty(size),
    )
