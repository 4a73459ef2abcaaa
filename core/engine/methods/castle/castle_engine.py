"""CASTLE: continuously anonymizing streaming data via adaptive clustering.

Cao, Carminati, Ferrari, Tan: *CASTLE: Continuously Anonymizing Data Streams*, IEEE TDSC 8(3), 2011. How each step is
done, and what was chosen where the paper is silent, is in `docs/castle.md`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crenel.avro import Schemas, packed, unpacked
from crenel.encoding.rows import Rows
from crenel.engine.compiled import Compiled, numbers_of
from crenel.engine.contract import Releases
from crenel.engine.draws import generator
from crenel.engine.kernels import common
from crenel.engine.methods.castle import CastleParameters
from crenel.engine.methods.castle import castle_kernel as kernels
from crenel.engine.output_buffer import room, taken
from crenel.engine.space import own, set_domains
from crenel.policy import Policy
from crenel.policy.parameters import Reuse

#: Rows that there is room for before any came. Many engines hold few rows each: shards times windows.
_ROOM = 256
_SCHEMAS = Schemas("crenel.engine.methods.castle", ("castle.1.avsc",))


class Castle(Compiled):
    """CASTLE with l-diversity, on one shard's rows.

    Parameters
    ----------
    policy
        What is to be guaranteed; its `parameters` are `CastleParameters`.
    key
        32 bytes for the generator. Whoever knows them can undo its choices.
    """

    _state: kernels.State

    def __init__(self, policy: Policy, key: bytes) -> None:
        super().__init__(policy)
        #: With t, per sensitive column whose values are not declared: value -> code, in order of appearance.
        self._codes: list[dict[int, int] | None] = [
            {} if policy.t is not None and column.size is None else None for column in policy.sensitive.values()
        ]
        self._state = self._empty_state(key, capacity=_ROOM)

    def next_deadline(self) -> int | None:
        """Return the moment at which `advance` is next needed, if there is one."""
        if self._state.numbers["timed"][0] == 0:
            return None
        buffer = self._state.buffer
        return int(buffer.slots["deadline"][buffer.heap[0]])

    # --- Rows in, releases out ---

    def _counted(self, rows: Rows) -> Rows:
        """With t, number the values of columns that were not declared, in order of appearance."""
        sensitive = rows.sensitive
        if all(known is None for known in self._codes) or len(sensitive) == 0:
            return rows
        dense = sensitive.copy()
        for j, known in enumerate(self._codes):
            if known is None:
                continue
            values, first, inverse = np.unique(sensitive[:, j], return_index=True, return_inverse=True)
            codes = np.empty(len(values), dtype=np.int64)
            for i in np.argsort(first):
                codes[i] = known.setdefault(int(values[i]), len(known))
            dense[:, j] = codes[inverse]
            self._state.closeness.values[j] = len(known)
        self._widen_histograms()
        return replace(rows, sensitive=dense)

    def _widen_histograms(self) -> None:
        """Make room for the values seen so far; doubling keeps this rare."""
        s = self._state
        needed, width = int(s.closeness.values.max()), s.closeness.stream.shape[1]
        if needed <= width:
            return
        more = max(needed, 2 * width) - width
        self._state = s._replace(
            closeness=s.closeness._replace(stream=np.pad(s.closeness.stream, ((0, 0), (0, more)))),
            reusable=s.reusable._replace(histogram=np.pad(s.reusable.histogram, ((0, 0), (0, 0), (0, more)))),
        )

    def _run(
        self,
        rows: Rows,
        *,
        left_out: NDArray[np.bool_] | None = None,
        now: int = common.EARLIEST,
        over: bool = False,
    ) -> Releases:
        """Run the kernel, and take what it wrote."""
        out = np.zeros(len(rows), dtype=np.bool_) if left_out is None else left_out
        columns = (own(rows.qi), own(rows.person), own(rows.sensitive), own(rows.time), own(out))
        kernels.run(self._state, *columns, now, over)
        return taken(self._state.out, self._state.numbers)

    # --- Snapshots ---

    def snapshot(self) -> bytes:
        """Return all of the engine, its random generator included."""
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
            "reusable": {name: packed(column) for name, column in self._reusable().items()},
            "histogram": packed(s.closeness.stream),
            "values": [packed(np.array(list(known))) for known in self._codes if known is not None],
        }
        return _SCHEMAS.encode(record)

    def restore(self, data: bytes) -> None:
        """Become the engine that `snapshot` was called on.

        Published generalizations that were kept for reuse are forgotten if the policy now asks for a stronger
        guarantee.
        """
        record = _SCHEMAS.decode(data)
        self._check_space(record["space"])
        self._restore_codes(record["values"])
        held = self._unpacked_held(record["held"])
        width = len(record["histogram"]) // (8 * max(len(self._codes), 1))
        self._state = s = self._empty_state(
            record["key"],
            capacity=len(held["number"]) + _ROOM,
            clusters=int(held["cluster"].max(initial=-1)) + 1,
            values=width,
        )
        set_domains(s.space, unpacked(record["domain_lo"]), unpacked(record["domain_hi"]))
        s.closeness.stream[:] = unpacked(record["histogram"], "<i8").reshape(s.closeness.stream.shape)
        kernels.rebuild(s, **held)
        self._resume(record, ("draws", "arrivals", "released", "clock"))
        self._restore_recent(unpacked(record["recent"]))
        self._restore_reusable(record)

    def _held(self) -> dict[str, NDArray[Any]]:
        """The held rows in order of arrival, with their clusters numbered by age."""
        buffer, clusters = self._state.buffer, self._state.clusters
        at = kernels.held_slots(self._state)
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
        columns: dict[str, NDArray[Any]] = {
            name: unpacked(held[name], "<i8") for name in ("number", "person", "sensitive", "deadline", "cluster")
        }
        rows = len(columns["number"])
        columns["sensitive"] = columns["sensitive"].reshape(rows, len(self._codes))
        columns["qi"] = unpacked(held["qi"]).reshape(rows, self._dimensions)
        return columns

    def _reusable(self) -> dict[str, NDArray[Any]]:
        """The reusable generalizations, oldest first."""
        reusable, n = self._state.reusable, self._state.numbers[0]
        size = max(len(reusable.table), 1)
        at = (int(n["reusable_oldest"]) + np.arange(int(n["reusable"]))) % size
        return {
            "lo": reusable.lo[at],
            "hi": reusable.hi[at],
            "group": reusable.table["group"][at],
            "persons": reusable.table["persons"][at],
            "histogram": reusable.histogram[at],
        }

    def _restore_codes(self, values: list[bytes]) -> None:
        learned = iter(values)
        for j, known in enumerate(self._codes):
            if known is not None:
                seen = unpacked(next(learned), "<i8").tolist()
                self._codes[j] = {value: code for code, value in enumerate(seen)}

    def _restore_recent(self, losses: NDArray[np.float64]) -> None:
        s = self._state
        kept = losses[-len(s.recent) :]  # the policy may have a smaller mu now
        s.recent[: len(kept)] = kept
        s.numbers["recent"] = len(kept)
        total = 0.0
        for loss in kept.tolist():
            total += loss
        s.numbers["tau"] = total / len(kept) if len(kept) else 0.0

    def _restore_reusable(self, record: dict[str, Any]) -> None:
        s, n = self._state, self._state.numbers[0]
        weaker = record["k"] < n["k"] or record["l"] < n["l"] or record["t"] > n["t"] >= 0.0
        if weaker:
            return
        group = unpacked(record["reusable"]["group"], "<i8")
        count = min(len(group), len(s.reusable.table))
        newest = slice(len(group) - count, None)
        boxes = (len(group), self._dimensions)
        s.reusable.lo[:count] = unpacked(record["reusable"]["lo"]).reshape(boxes)[newest]
        s.reusable.hi[:count] = unpacked(record["reusable"]["hi"]).reshape(boxes)[newest]
        s.reusable.table["group"][:count] = group[newest]
        s.reusable.table["persons"][:count] = unpacked(record["reusable"]["persons"], "<i8")[newest]
        histogram = unpacked(record["reusable"]["histogram"], "<i8")
        s.reusable.histogram[:count] = histogram.reshape(len(group), *s.closeness.stream.shape)[newest]
        s.numbers["reusable"] = count

    # --- State ---

    def _reserve(self, arriving: int) -> None:
        """Make room for rows that arrive, and for some after them; doubling keeps this rare."""
        capacity, needed = len(self._state.buffer.slots), self.held + arriving
        if needed <= capacity:
            return
        larger = max(2 * capacity, min(4 * needed, needed + self.chunk))
        s = self._state
        counts, scratch = _tables(larger, len(s.counts))
        for old, new in zip(s.counts, counts, strict=True):
            common.move_counts(old, new)
        self._state = s._replace(
            counts=counts,
            scratch=scratch,
            buffer=_grown(s.buffer, int(s.numbers["free"][0]), larger),
            out=room(larger, self._dimensions),
        )
        s.numbers["free"] += larger - capacity

    def _empty_state(self, key: bytes, *, capacity: int, clusters: int = 0, values: int = 0) -> kernels.State:
        """Make a state without rows.

        Parameters
        ----------
        key
            The generator's.
        capacity
            Rows that can be held.
        clusters
            Clusters that there are, if more than the policy has now.
        values
            Values of a sensitive column there is room for, at least.
        """
        numbers = _numbers(self._policy)
        numbers["free"] = capacity
        tracked = int(numbers["tracked"][0])
        space = self._space._replace(dimensions=self._space.dimensions.copy())
        closeness = self._closeness(values)
        counts, scratch = _tables(capacity, tracked)
        return kernels.State(
            numbers=numbers,
            space=space,
            counts=counts,
            scratch=scratch,
            buffer=_buffer(capacity, self._dimensions, len(self._codes)),
            clusters=_clusters(max(clusters, int(numbers["beta"][0])), self._dimensions, tracked),
            reusable=_reusable(self._parameters.max_reusable, self._dimensions, closeness.stream.shape),
            recent=np.zeros(int(numbers["mu"][0])),
            closeness=closeness,
            random=generator(key),
            out=room(capacity, self._dimensions),
        )

    @property
    def _parameters(self) -> CastleParameters:
        return _castle_parameters(self._policy)

    def _closeness(self, width: int) -> common.Closeness:
        columns = list(self._policy.sensitive.values()) if self._policy.t is not None else []
        sizes = [
            column.size or 0 if known is None else len(known)
            for known, column in zip(self._codes, columns, strict=False)
        ]
        return common.Closeness(
            values=np.array(sizes, dtype=np.int64),
            ordered=np.array([column.ordered for column in columns], dtype=np.bool_),
            stream=np.zeros((len(columns), max([width, *sizes]) if sizes else 0), dtype=np.int64),
        )


def _castle_parameters(policy: Policy) -> CastleParameters:
    if not isinstance(policy.parameters, CastleParameters):
        message = f"Castle: policy.parameters must be CastleParameters, not those of {policy.method!r}."
        raise TypeError(message)
    return policy.parameters


def _numbers(policy: Policy) -> NDArray[Any]:
    parameters = _castle_parameters(policy)
    numbers = numbers_of(policy, kernels.NUMBERS)
    numbers["beta"] = parameters.beta
    numbers["mu"] = parameters.mu
    numbers["reuse"] = parameters.reuse is Reuse.UNIFORM
    numbers["tracked"] = 1 + (len(policy.sensitive) if policy.l else 0)
    numbers["oldest"] = numbers["newest"] = common.NONE
    return numbers


def _buffer(capacity: int, dimensions: int, columns: int) -> kernels.Buffer:
    return kernels.Buffer(
        slots=np.empty(capacity, dtype=kernels.SLOT),
        qi=np.empty((capacity, dimensions)),
        sensitive=np.empty((capacity, columns), dtype=np.int64),
        heap=np.empty(capacity, dtype=np.int64),
        free=np.arange(capacity, dtype=np.int64)[::-1].copy(),
    )


def _grown(buffer: kernels.Buffer, free: int, capacity: int) -> kernels.Buffer:
    """The same buffer, of which so many slots are free, with room for more."""
    rows, columns = len(buffer.slots), buffer.sensitive.shape[1]
    grown = _buffer(capacity, buffer.qi.shape[1], columns)
    for name in ("slots", "qi", "sensitive", "heap"):
        getattr(grown, name)[:rows] = getattr(buffer, name)
    added = capacity - rows
    grown.free[added : added + free] = buffer.free[:free]
    return grown


def _tables(capacity: int, tracked: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Tables to count so many rows with: each has its values in one once, and at most half of it is used."""
    size = 1 << (2 * capacity - 1).bit_length()
    return np.zeros((tracked, size), dtype=common.GROUPED), np.zeros(size, dtype=common.ENTRY)


def _clusters(beta: int, dimensions: int, tracked: int) -> kernels.Clusters:
    shape = (dimensions, beta)
    return kernels.Clusters(
        table=np.empty(beta, dtype=kernels.CLUSTERS),
        boxes=common.Boxes(np.empty(shape), np.empty(shape), np.zeros(shape, dtype=np.int64)),
        distinct=np.zeros((beta, tracked), dtype=np.int64),
        held_distinct=np.zeros(tracked, dtype=np.int64),
        active=np.arange(beta, dtype=np.int64),
        enlargement=np.empty(beta),
    )


def _reusable(size: int, dimensions: int, histogram: tuple[int, ...]) -> kernels.Reusable:
    return kernels.Reusable(
        table=np.empty(size, dtype=kernels.REUSABLE),
        lo=np.empty((size, dimensions)),
        hi=np.empty((size, dimensions)),
        histogram=np.zeros((size, *histogram), dtype=np.int64),
        candidates=np.empty(size, dtype=np.int64),
    )
