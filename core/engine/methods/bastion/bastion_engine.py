"""Bastion: nothing is clustered on arrival; a row at its deadline gathers the company that costs the stream least.

`docs/bastion.md` has each step, and why.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crenel.avro import Schemas, packed, unpacked
from crenel.encoding.rows import Rows
from crenel.engine.codes import Codes
from crenel.engine.compiled import Compiled, numbers_of
from crenel.engine.contract import Releases
from crenel.engine.draws import generator
from crenel.engine.kernels import common
from crenel.engine.methods.bastion import BastionParameters
from crenel.engine.methods.bastion import bastion_kernel as kernels
from crenel.engine.methods.mondrian import mondrian_engine as mondrian
from crenel.engine.output_buffer import room, taken
from crenel.engine.space import own, set_domains
from crenel.policy import Policy, Reuse
from crenel.policy.geometry import Tree

#: Releases that one call of the kernel writes: what bounds memory beside the rows held.
_RELEASES = 128
#: Boxes that there is room for at first.
_FEW_BOXES = 16
#: Persons that a part of a large set has at least: a group is not looked for among more than twice as many rows.
_PART = 4096
#: Rows in the sample that a row's loneliness is estimated by.
_SAMPLE = 192
_SCHEMAS = Schemas("crenel.engine.methods.bastion", ("bastion.1.avsc",))
#: Numbers that change from row to row, and are kept.
_COUNTS = ("draws", "arrivals", "released", "clock", "sampled", "until_sample")
_AVERAGES = ("average", "ratio", "guess", "caution", "waited")
_HELD = ("number", "person", "deadline", "lonely", "sensitive")


class Bastion(Compiled):
    """Bastion on one shard's rows.

    Parameters
    ----------
    policy
        What is to be guaranteed; its `parameters` are `BastionParameters`.
    key
        32 bytes for the generator. Whoever knows them can undo its choices.
    """

    chunk = 512
    _state: kernels.Kept

    def __init__(self, policy: Policy, key: bytes) -> None:
        super().__init__(policy)
        self._codes = Codes(policy)
        self._terrain = kernels.Terrain(self._space, growth=np.empty((2, _most_leaves(policy))))
        self._state = self._empty_state(key, capacity=self.chunk)

    def next_deadline(self) -> int | None:
        """Return the moment at which `advance` is next needed, if there is one."""
        if self._policy.delay is None or self.held == 0:
            return None
        return int(self._state.held.deadline[self._places()].min())

    @property
    def _parameters(self) -> BastionParameters:
        if not isinstance(self._policy.parameters, BastionParameters):
            message = f"Bastion: policy.method must be 'bastion', not {self._policy.method!r}."
            raise TypeError(message)
        return self._policy.parameters

    # --- Rows in, releases out ---

    def _counted(self, rows: Rows) -> Rows:
        sensitive = self._codes.dense(rows.sensitive)
        self._widen_histograms()
        return replace(rows, sensitive=sensitive)

    def _run(self, rows: Rows, *, now: int = common.EARLIEST, over: bool = False) -> Releases:
        """Run the kernel until all is done, taking what it wrote whenever it has no room left."""
        columns = own(rows.qi), own(rows.person), own(rows.sensitive), own(rows.time)
        parts, start = [], 0
        while start != common.NONE:
            self._reserve_reusable()
            workspace = _WORKSPACE.of(self._dimensions, len(self._state.held.number), self._policy.k)
            state = kernels.State(*self._state, *workspace)
            start = kernels.run(state, *columns, start, now, over)
            parts.append(taken(state.out, state.numbers))
            if state.numbers["dividing"][0]:
                self._divide(state)
        return Releases.concat(parts)

    def _places(self) -> NDArray[np.int64]:
        """Where held rows lie, in order of arrival."""
        return np.flatnonzero(self._state.held.number[: self._state.numbers["places"][0]] != common.NONE)

    def _divide(self, state: kernels.State) -> None:
        """Plan groups for the held rows, all of which are due at one moment.

        They are cut into parts as Mondrian does, and anchors gather groups in each part. Of several sizes of parts the
        one of the least loss is taken: the smaller they are, the more is decided by a view of all rows.
        """
        kernels.close_gaps(state.numbers, state.held)
        kernels.estimate_again(state)
        best: _Division | None = None
        for least in _least_parts(self._policy.k, self.held):
            made = self._divided(state, least)
            if best is None or made.loss < best.loss:
                best = made
            kernels.hold_again(state)
        if best is not None:
            _rearrange(state.held, np.argsort(state.held.number[: self.held]))
            best.plan_again(state)
        kernels.begin_writing(state)
        state.numbers["dividing"] = 0

    def _divided(self, state: kernels.State, least: int) -> _Division:
        """Plan groups in parts of at least so many persons."""
        held, rows = state.held, slice(0, self.held)
        _rearrange(held, np.argsort(held.number[rows]))
        qi = np.ascontiguousarray(held.columns[:, rows].T)
        sensitive, time = held.sensitive[rows], np.zeros(self.held, dtype=np.int64)
        part = mondrian.partition(state.terrain.space, Rows(qi, held.person[rows], sensitive, time), least)
        order = np.lexsort((held.number[rows], part))
        _rearrange(held, order)
        offsets = np.flatnonzero(np.diff(part[order], prepend=-2, append=-2))
        return _Division.of(state, kernels.plan_parts(state, offsets))

    # --- Snapshots ---

    def snapshot(self) -> bytes:
        """Return all of the engine, its random generator included."""
        s, n = self._state, self._state.numbers[0]
        there = self._places()
        held = {name: packed(getattr(s.held, name)[there]) for name in ("number", "person", "sensitive")}
        held["qi"] = packed(s.held.columns[:, there])
        held["lonely"] = packed(s.held.lonely[there].astype(np.float64))
        timed = self._policy.delay is not None
        held["deadline"] = packed(s.held.deadline[there] if timed else np.full(len(there), common.LATEST))
        record = {
            "space": self._fingerprint,
            "k": int(n["k"]),
            "l": int(n["l"]),
            "t": float(n["t"]),
            "key": self.key,
            **{name: int(n[name]) for name in _COUNTS},
            **{name: float(n[name]) for name in _AVERAGES},
            "domain_lo": packed(s.terrain.space.dimensions["domain_lo"]),
            "domain_hi": packed(s.terrain.space.dimensions["domain_hi"]),
            "held": held,
            "sample": packed(s.sample[:, : min(int(n["sampled"]), _SAMPLE)]),
            "reusable": {name: packed(column) for name, column in self._reusable().items()},
            "histogram": packed(s.closeness.stream),
            "values": self._codes.packed(),
        }
        return _SCHEMAS.encode(record)

    def restore(self, data: bytes) -> None:
        """Become the engine that `snapshot` was called on.

        Published generalizations that were kept for reuse are forgotten if the policy now asks for a stronger
        guarantee.
        """
        record = _SCHEMAS.decode(data)
        self._check_space(record["space"])
        self._codes.restore(record["values"])
        number = unpacked(record["held"]["number"], "<i8")
        width = len(record["histogram"]) // (8 * max(len(self._codes.sizes), 1))
        self._state = s = self._empty_state(record["key"], capacity=len(number) + self.chunk, values=width)
        set_domains(s.terrain.space, unpacked(record["domain_lo"]), unpacked(record["domain_hi"]))
        s.closeness.stream[:] = unpacked(record["histogram"], "<i8").reshape(s.closeness.stream.shape)
        self._restore_held(record["held"], number)
        self._resume(record, (*_COUNTS, *_AVERAGES))
        known = min(record["sampled"], _SAMPLE)
        s.sample[:, :known] = unpacked(record["sample"]).reshape(self._dimensions, known)
        self._restore_reusable(record)

    def _restore_held(self, held: dict[str, bytes], number: NDArray[np.int64]) -> None:
        s, count = self._state, len(number)
        s.held.number[:count] = number
        s.held.person[:count] = unpacked(held["person"], "<i8")
        s.held.lonely[:count] = unpacked(held["lonely"])
        s.held.sensitive[:count] = unpacked(held["sensitive"], "<i8").reshape(count, len(self._policy.sensitive))
        s.held.columns[:, :count] = unpacked(held["qi"]).reshape(self._dimensions, count)
        if self._policy.delay is not None:
            s.held.deadline[:count] = unpacked(held["deadline"], "<i8")
        s.numbers["held"] = s.numbers["places"] = count

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
            "loss": reusable.table["loss"][at],
            "histogram": reusable.histogram[at],
        }

    def _restore_reusable(self, record: dict[str, Any]) -> None:
        s, n = self._state, self._state.numbers[0]
        weaker = record["k"] < n["k"] or record["l"] < n["l"] or record["t"] > n["t"] >= 0.0
        if weaker:
            return
        stored = record["reusable"]
        group = unpacked(stored["group"], "<i8")
        count = min(len(group), int(n["max_reusable"]))
        self._make_room_for_boxes(count)
        s = self._state
        newest = slice(len(group) - count, None)
        boxes = (len(group), self._dimensions)
        s.reusable.lo[:count] = unpacked(stored["lo"]).reshape(boxes)[newest]
        s.reusable.hi[:count] = unpacked(stored["hi"]).reshape(boxes)[newest]
        s.reusable.table["group"][:count] = group[newest]
        s.reusable.table["persons"][:count] = unpacked(stored["persons"], "<i8")[newest]
        s.reusable.table["loss"][:count] = unpacked(stored["loss"])[newest]
        histogram = unpacked(stored["histogram"], "<i8")
        s.reusable.histogram[:count] = histogram.reshape(len(group), *s.closeness.stream.shape)[newest]
        s.numbers["reusable"] = count

    # --- State ---

    def _reserve(self, arriving: int) -> None:
        """Make room for rows that arrive beside those held, of which there are never more than `delay_rows` lets be."""
        s, held = self._state, self.held
        rows = held + arriving
        if self._policy.delay_rows is not None:
            rows = max(held, min(rows, self._policy.delay_rows + 1))
        capacity = len(s.held.number)
        # Room for gaps, too: rows are moved together when there is none left.
        needed = rows + rows // 16
        if needed <= capacity:
            return
        kernels.close_gaps(s.numbers, s.held)
        grown = _held(self._policy, needed)
        for name in _HELD:
            getattr(grown, name)[:held] = getattr(s.held, name)[:held]
        grown.columns[:, :held] = s.held.columns[:, :held]
        self._state = s._replace(held=grown)

    def _reserve_reusable(self) -> None:
        """Make room for another box, if there may be one."""
        boxes = int(self._state.numbers["reusable"][0])
        if boxes == len(self._state.reusable.table):
            self._make_room_for_boxes(max(2 * boxes, _FEW_BOXES))

    def _make_room_for_boxes(self, boxes: int) -> None:
        """Make room for boxes. While there are fewer than may be kept, none has made way, and the oldest is first."""
        s = self._state
        size, wanted = len(s.reusable.table), min(boxes, int(s.numbers["max_reusable"][0]))
        if size >= wanted:
            return
        grown = _reusable(wanted, self._dimensions, s.closeness.stream.shape)
        for name in ("table", "lo", "hi", "histogram"):
            getattr(grown, name)[:size] = getattr(s.reusable, name)
        self._state = s._replace(reusable=grown)

    def _widen_histograms(self) -> None:
        """Make room for the values seen so far; doubling keeps this rare."""
        s, sizes = self._state, self._codes.sizes
        s.closeness.values[:] = sizes
        needed, width = int(sizes.max(initial=0)), s.closeness.stream.shape[1]
        if needed <= width:
            return
        more = max(needed, 2 * width) - width
        self._state = s._replace(
            closeness=s.closeness._replace(stream=np.pad(s.closeness.stream, ((0, 0), (0, more)))),
            scratch=s.scratch._replace(histogram=np.pad(s.scratch.histogram, ((0, 0), (0, more)))),
            reusable=s.reusable._replace(histogram=np.pad(s.reusable.histogram, ((0, 0), (0, 0), (0, more)))),
        )

    def _empty_state(self, key: bytes, *, capacity: int, values: int = 0) -> kernels.Kept:
        """Make a state without rows, and room for so many; and for so many values of a sensitive column, at least."""
        sizes = self._codes.sizes
        closeness = common.Closeness(
            values=sizes,
            ordered=self._codes.ordered,
            stream=np.zeros((len(sizes), int(sizes.max(initial=values))), dtype=np.int64),
        )
        return kernels.Kept(
            numbers=_numbers(self._policy, self._parameters),
            terrain=self._terrain._replace(space=self._space._replace(dimensions=self._space.dimensions.copy())),
            held=_held(self._policy, capacity),
            sample=np.empty((self._dimensions, _SAMPLE)),
            box=np.zeros((3, self._dimensions)),
            scratch=kernels.Scratch(
                row=np.empty(self._dimensions),
                box=np.empty((3, self._dimensions)),
                values=np.empty(max(self._policy.l or 0, 1), dtype=np.int64),
                histogram=np.zeros_like(closeness.stream),
            ),
            reusable=_reusable(0, self._dimensions, closeness.stream.shape),
            closeness=closeness,
            random=generator(key),
        )


@dataclass(frozen=True, eq=False)
class _Division:
    """A plan for all held rows, kept while another is tried."""

    loss: float
    groups: int
    number: NDArray[np.int64]
    group: NDArray[np.int64]
    size: NDArray[np.int64]
    box: NDArray[np.float64]

    @classmethod
    def of(cls, state: kernels.State, loss: float) -> _Division:
        rows, groups = int(state.numbers["planned_rows"][0]), int(state.numbers["planned"][0])
        plan = state.plan
        return cls(
            loss,
            groups,
            plan.number[:rows].copy(),
            plan.group[:rows].copy(),
            plan.size[:groups].copy(),
            plan.box[:groups].copy(),
        )

    def plan_again(self, state: kernels.State) -> None:
        """Let the plan be the state's, and its rows be held no more."""
        plan, numbers, rows = state.plan, state.numbers, len(self.number)
        plan.number[:rows], plan.group[:rows] = self.number, self.group
        plan.size[: self.groups], plan.box[: self.groups] = self.size, self.box
        held = state.held.number[: int(numbers["places"][0])]
        held[np.isin(held, self.number)] = common.NONE
        numbers["planned"], numbers["planned_rows"] = self.groups, rows
        numbers["held"] -= rows


def _rearrange(held: kernels.Held, order: NDArray[np.int64]) -> None:
    """Let all held rows, which have no gaps between them, lie in another order."""
    rows = slice(0, len(order))
    for name in _HELD:
        column = getattr(held, name)
        if len(column):
            column[rows] = column[rows][order]
    held.columns[:, rows] = held.columns[:, rows][:, order]


def _least_parts(k: int, rows: int) -> list[int]:
    """How many persons a part has at least, in the divisions that are tried."""
    return sorted({k, min(3 * k, rows), min(max(_PART, k), rows)})


class _Workspace(threading.local):
    """Scratch space and output buffers, shared by all engines of a thread: a shard costs little but its rows."""

    def __init__(self) -> None:
        self._shared: dict[int, tuple[kernels.Search, kernels.Plan, common.Out]] = {}

    def of(self, dimensions: int, places: int, k: int) -> tuple[kernels.Search, kernels.Plan, common.Out]:
        """Scratch space for `places` held rows and groups of k, with output room to release them all."""
        needed, groups = max(places, _SAMPLE), places // k + 1
        search, plan, out = self._shared.get(dimensions, (None, None, None))
        if search is None or out is None or len(search.cost) < needed:
            search = _search(dimensions, needed)
            out = room(_RELEASES, dimensions)._replace(rows=np.empty(needed, dtype=np.int64))
            plan = None
        if plan is None or len(plan.size) < groups:
            plan = _plan(dimensions, len(search.cost), groups)
        self._shared[dimensions] = search, plan, out
        return search, plan, out


_WORKSPACE = _Workspace()


def _search(dimensions: int, places: int) -> kernels.Search:
    return kernels.Search(
        cost=np.empty(places),
        order=np.empty(places),
        place=np.empty(places, dtype=np.int64),
        offset=np.empty((dimensions, places), dtype=np.float32),
        score=np.empty(kernels.in_lanes(places), dtype=np.float32),
        least=np.empty(kernels.LANES, dtype=np.float32),
        members=np.empty(places + 1, dtype=np.int64),
        company=np.empty(places, dtype=np.int64),
    )


def _plan(dimensions: int, places: int, groups: int) -> kernels.Plan:
    rows = {name: np.empty(places, dtype=np.int64) for name in ("place", "number", "group", "order")}
    return kernels.Plan(
        **rows,
        size=np.empty(groups, dtype=np.int64),
        box=np.empty((groups, 3, dimensions)),
        end=np.empty(groups, dtype=np.int64),
    )


def _numbers(policy: Policy, parameters: BastionParameters) -> NDArray[Any]:
    numbers = numbers_of(policy, kernels.NUMBERS)
    numbers["max_reusable"] = parameters.max_reusable if parameters.reuse is not Reuse.OFF else 0
    numbers["eta"] = parameters.eta if parameters.reuse is Reuse.WEIGHTED else 0.0
    numbers["lonely"] = parameters.lonely
    numbers["search"] = parameters.search
    numbers["soonest"] = common.EARLIEST
    numbers["average"] = -1.0
    numbers["ratio"] = numbers["guess"] = 1.0
    numbers["caution"] = kernels.LEAST_CAUTION
    return numbers


def _most_leaves(policy: Policy) -> int:
    geometries = [qi.geometry for qi in policy.quasi_identifiers.values()]
    return max((len(geometry.leaf) for geometry in geometries if isinstance(geometry, Tree)), default=0)


def _held(policy: Policy, capacity: int) -> kernels.Held:
    return kernels.Held(
        number=np.empty(capacity, dtype=np.int64),
        person=np.empty(capacity, dtype=np.int64),
        deadline=np.empty(0 if policy.delay is None else capacity, dtype=np.int64),
        lonely=np.empty(capacity, dtype=np.float32),
        columns=np.empty((len(policy.quasi_identifiers), capacity)),
        sensitive=np.empty((capacity, len(policy.sensitive)), dtype=np.int64),
    )


def _reusable(size: int, dimensions: int, histogram: tuple[int, ...]) -> kernels.Reusable:
    return kernels.Reusable(
        table=np.empty(size, dtype=kernels.REUSABLE),
        lo=np.empty((size, dimensions)),
        hi=np.empty((size, dimensions)),
        histogram=np.zeros((size, *histogram), dtype=np.int64),
        marks=np.zeros((dimensions, kernels.BINS, -(-size // 64)), dtype=np.uint64),
        frame=np.full((3, dimensions), np.nan),  # of nothing yet: boxes are marked when they are first looked for
        bins=np.empty(dimensions, dtype=np.int64),
        candidates=np.empty(size, dtype=np.int64),
        weight=np.empty(size),
    )
