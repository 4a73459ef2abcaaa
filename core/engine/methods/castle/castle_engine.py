"""CASTLE: continuously anonymizing streaming data via adaptive clustering.

Cao, Carminati, Ferrari, Tan: *CASTLE: Continuously Anonymizing Data Streams*, IEEE TDSC 8(3), 2011. How each step is
done, and what was chosen where the paper is silent, is in `docs/castle.md`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crenel.avro import Schemas, expect, packed, unpacked
from crenel.encoding.rows import Rows
from crenel.engine.codes import Codes
from crenel.engine.compiled import Compiled, numbers_of
from crenel.engine.contract import Releases
from crenel.engine.draws import generator
from crenel.engine.kernels.arrays import NONE
from crenel.engine.kernels.box_geometry import Boxes
from crenel.engine.kernels.closeness import Closeness
from crenel.engine.kernels.deadlines import EARLIEST
from crenel.engine.kernels.distinct_counts import ENTRY, GROUPED, move_counts
from crenel.engine.kernels.held_rows import empty_slots, first_deadline, held_slots
from crenel.engine.methods.castle import CastleParameters, castle_kernel
from crenel.engine.methods.castle.castle_state import CLUSTERS, NUMBERS, SLOT, Buffer, Clusters, State
from crenel.engine.output_buffer import empty_output, take_releases
from crenel.engine.reusable import empty_boxes, is_weaker, restore_boxes, stored_boxes
from crenel.engine.space import own, restore_domains
from crenel.policy import Policy
from crenel.policy.parameters import Reuse

#: Rows that there is space for at first. There may be many engines that hold few rows: shards times windows.
_FIRST_ROWS = 256
_SCHEMAS = Schemas("crenel.engine.methods.castle", ("castle.1.avsc",))


class Castle(Compiled):
    """CASTLE with l-diversity, on one shard's rows.

    Args:
        policy: What is to be guaranteed. Its `parameters` are `CastleParameters`.
        key: 32 bytes for the generator. An attacker who knows them can undo its choices.
    """

    kernel = castle_kernel.run
    _state: State

    def __init__(self, policy: Policy, key: bytes) -> None:
        super().__init__(policy)
        self._codes = Codes(policy)
        self._state = self._empty_state(key, capacity=_FIRST_ROWS, closeness=self._codes.closeness())

    def next_deadline(self) -> int | None:
        """Return the moment at which `advance` must be called next, or None."""
        return first_deadline(self._state.buffer, self._state.numbers)

    # --- Rows in, releases out ---

    def _counted(self, rows: Rows) -> Rows:
        if not self._codes.counted:
            return rows
        sensitive = self._codes.dense(rows.sensitive)
        closeness, boxes = self._codes.widened(self._state.closeness, self._state.reusable)
        self._state = self._state._replace(closeness=closeness, reusable=boxes)
        return replace(rows, sensitive=sensitive)

    def _run(
        self,
        rows: Rows,
        *,
        left_out: NDArray[np.bool_] | None = None,
        now: int = EARLIEST,
        over: bool = False,
    ) -> Releases:
        """Run the kernel, and return the releases that it wrote."""
        out = np.zeros(len(rows), dtype=np.bool_) if left_out is None else left_out
        columns = (own(rows.qi), own(rows.person), own(rows.sensitive), own(rows.time), own(out))
        castle_kernel.run(self._state, *columns, now, over)
        return take_releases(self._state.out, self._state.numbers)

    # --- Snapshots ---

    def dump(self) -> bytes:
        """Return the complete state of the engine, including its random generator."""
        s, n = self._state, self._state.numbers[0]
        count = min(int(n["recent"]), int(n["mu"]))
        newest = np.arange(int(n["recent"]) - count, int(n["recent"])) % n["mu"]
        record = {
            "space": self._fingerprint,
            "k": int(n["k"]),
            "l": int(n["l"]),
            "t": float(n["t"]),
            "key": self.key,
            "draws": int(n["draws"]),
            "arrivals": int(n["arrivals"]),
            "released": int(n["released"]),
            "clock": int(n["clock"]),
            "domain_lo": packed(s.space.dimensions["domain_lo"]),
            "domain_hi": packed(s.space.dimensions["domain_hi"]),
            "recent": packed(s.recent[newest]),
            "held": {name: packed(column) for name, column in self._held().items()},
            "reusable": stored_boxes(s.reusable, s.numbers),
            "histogram": packed(s.closeness.stream),
            "values": self._codes.packed(),
        }
        return _SCHEMAS.encode(record)

    def load(self, data: bytes) -> None:
        """Take over the state of the engine that `dump` was called on.

        Reusable boxes are forgotten if the policy now asks for a stronger guarantee.
        """
        record = _SCHEMAS.decode(data)
        self._check_space(record["space"])
        self._codes.restore(record["values"])
        held = self._unpacked_held(record["held"])
        self._state = s = self._empty_state(
            record["key"],
            draws=record["draws"],
            capacity=len(held["number"]) + _FIRST_ROWS,
            clusters=int(held["cluster"].max(initial=-1)) + 1,
            closeness=self._codes.closeness(record["histogram"]),
        )
        restore_domains(s.space, record)
        castle_kernel.rebuild(s, **held)
        self._resume(record, ("draws", "arrivals", "released", "clock"))
        self._restore_recent(unpacked(record["recent"]))
        if not is_weaker(record, self._policy):
            restore_boxes(s.reusable, s.numbers, record["reusable"])

    def _held(self) -> dict[str, NDArray[Any]]:
        """Return the held rows in order of arrival, with their clusters numbered by age."""
        buffer, clusters = self._state.buffer, self._state.clusters
        at = held_slots(buffer, self._state.numbers)
        slots = buffer.slots[at]
        active = clusters.active[: self._state.numbers["clusters"][0]]
        by_age = active[np.argsort(clusters.table["born"][active])]
        age = np.zeros(len(clusters.active), dtype=np.int64)
        age[by_age] = np.arange(len(by_age))
        return {
            "number": slots["number"].copy(),
            "qi": buffer.qi[at],
            "person": slots["person"].copy(),
            "sensitive": buffer.sensitive[at],
            "deadline": slots["deadline"].copy(),
            "cluster": age[slots["cluster"]],
        }

    def _unpacked_held(self, held: dict[str, bytes]) -> dict[str, NDArray[Any]]:
        columns = self._unpacked_rows(held, ("number", "person", "deadline", "cluster"))
        # Clusters are numbered from 0, and none is empty.
        expect(columns["cluster"].min(initial=0) >= 0 and columns["cluster"].max(initial=0) <= len(columns["number"]))
        return columns

    def _restore_recent(self, losses: NDArray[np.float64]) -> None:
        s = self._state
        kept = losses[-len(s.recent) :]  # the policy may have a smaller mu now
        s.recent[: len(kept)] = kept
        s.numbers["recent"] = len(kept)
        total = 0.0
        for loss in kept.tolist():
            total += loss
        s.numbers["tau"] = total / len(kept) if len(kept) else 0.0

    # --- State ---

    def _reserve(self, arriving: int) -> None:
        """Reserve space for rows that arrive, and for some after them. It at least doubles, so that this is rare."""
        capacity, needed = len(self._state.buffer.slots), self.held + arriving
        if needed <= capacity:
            return
        larger = max(2 * capacity, min(4 * needed, needed + self.chunk))
        s = self._state
        counts, scratch = _tables(larger, len(s.counts))
        for old, new in zip(s.counts, counts, strict=True):
            move_counts(old, new)
        self._state = s._replace(
            counts=counts,
            scratch=scratch,
            buffer=_grown(s.buffer, int(s.numbers["free"][0]), larger),
            out=empty_output(larger, self._dimensions),
        )
        s.numbers["free"] += larger - capacity

    def _empty_state(
        self, key: bytes, *, capacity: int, closeness: Closeness, draws: int = 0, clusters: int = 0
    ) -> State:
        """Return a state without rows.

        Args:
            key: The generator's key.
            capacity: Rows that can be held.
            closeness: The histograms of the stream.
            draws: Words of the keystream that were used.
            clusters: Clusters that there are, if these are more than the policy allows now.
        """
        numbers = _numbers(self._policy)
        numbers["free"] = capacity
        tracked = int(numbers["tracked"][0])
        counts, scratch = _tables(capacity, tracked)
        max_reusable = _castle_parameters(self._policy).max_reusable
        return State(
            numbers=numbers,
            space=self._space._replace(dimensions=self._space.dimensions.copy()),
            counts=counts,
            scratch=scratch,
            buffer=_buffer(capacity, self._dimensions, len(self._policy.sensitive)),
            clusters=_clusters(max(clusters, int(numbers["beta"][0])), self._dimensions, tracked),
            reusable=empty_boxes(max_reusable, self._dimensions, closeness.stream.shape),
            recent=np.zeros(int(numbers["mu"][0])),
            closeness=closeness,
            random=generator(key, draws),
            out=empty_output(capacity, self._dimensions),
        )


def _castle_parameters(policy: Policy) -> CastleParameters:
    if not isinstance(policy.parameters, CastleParameters):
        message = f"Castle: policy.parameters must be CastleParameters, not those of {policy.method!r}."
        raise TypeError(message)
    return policy.parameters


def _numbers(policy: Policy) -> NDArray[Any]:
    parameters = _castle_parameters(policy)
    numbers = numbers_of(policy, NUMBERS)
    numbers["beta"] = parameters.beta
    numbers["mu"] = parameters.mu
    numbers["reuse"] = parameters.reuse is Reuse.UNIFORM
    numbers["tracked"] = 1 + (len(policy.sensitive) if policy.l else 0)
    numbers["oldest"] = numbers["newest"] = NONE
    return numbers


def _buffer(capacity: int, dimensions: int, columns: int) -> Buffer:
    return Buffer(
        slots=np.empty(capacity, dtype=SLOT),
        sensitive=np.empty((capacity, columns), dtype=np.int64),
        qi=np.empty((capacity, dimensions)),
        **empty_slots(capacity),
    )


def _grown(buffer: Buffer, free: int, capacity: int) -> Buffer:
    """Return the same buffer, which has `free` free slots, with space for more rows."""
    rows, columns = len(buffer.slots), buffer.sensitive.shape[1]
    grown = _buffer(capacity, buffer.qi.shape[1], columns)
    for name in ("slots", "qi", "sensitive", "heap"):
        getattr(grown, name)[:rows] = getattr(buffer, name)
    added = capacity - rows
    grown.free[added : added + free] = buffer.free[:free]
    return grown


def _tables(capacity: int, tracked: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return hash tables for `capacity` rows, load factor at most 0.5: those of the clusters, and one for scratch."""
    size = 1 << (2 * capacity - 1).bit_length()
    return np.zeros((tracked, size), dtype=GROUPED), np.zeros(size, dtype=ENTRY)


def _clusters(beta: int, dimensions: int, tracked: int) -> Clusters:
    shape = (dimensions, beta)
    return Clusters(
        table=np.empty(beta, dtype=CLUSTERS),
        boxes=Boxes(np.empty(shape), np.empty(shape), np.zeros(shape, dtype=np.int64)),
        distinct=np.zeros((beta, tracked), dtype=np.int64),
        held_distinct=np.zeros(tracked, dtype=np.int64),
        active=np.arange(beta, dtype=np.int64),
        enlargement=np.empty(beta),
    )
