"""Bastion: rows are not clustered on arrival; a row that is due forms the group that costs the stream least.

`docs/bastion.md` explains each step.
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
from crenel.engine.kernels.arrays import NONE
from crenel.engine.kernels.closeness import Closeness
from crenel.engine.kernels.deadlines import EARLIEST, LATEST
from crenel.engine.kernels.output import Output
from crenel.engine.methods.bastion import BastionParameters, bastion_kernel, bastion_plan, bastion_rows, bastion_state
from crenel.engine.methods.bastion.bastion_cells import (
    BLOCK,
    MOST_NODES,
    STORED,
    Cells,
    empty_cells,
    fill_cells,
    most_nodes,
    restore_cuts,
    take_over,
)
from crenel.engine.methods.bastion.bastion_losses import in_lanes
from crenel.engine.methods.mondrian import mondrian_engine
from crenel.engine.output_buffer import empty_output, take_releases
from crenel.engine.reusable import count_stored, empty_boxes, grown_boxes, is_weaker, restore_boxes, stored_boxes
from crenel.engine.space import own, restore_domains
from crenel.policy import Policy, Reuse
from crenel.policy.geometry import Interval, Tree

#: Releases that one call of the kernel writes. It bounds the memory beside the held rows.
_RELEASES = 512
#: Persons in a part of a large set, at least: the search for a group covers at most twice as many rows.
_PART = 4096
#: Rows in the sample that the loneliness of a row is estimated with.
_SAMPLE = 192
#: If more rows are held than this times the candidates that cells give, they are kept in cells.
_CELLED = 4
#: The most candidates for each member of a group, if they come from cells.
_A_MEMBER = 128
_SCHEMAS = Schemas("crenel.engine.methods.bastion", ("bastion.1.avsc",))
#: Numbers that change from row to row, and that a snapshot has.
_COUNTS = ("draws", "arrivals", "released", "clock", "sampled", "until_sample")
_AVERAGES = ("average", "ratio", "guess", "caution", "waited")
_HELD = ("number", "person", "deadline", "lonely", "sensitive")


class Bastion(Compiled):
    """Bastion on one shard's rows.

    Args:
        policy: What is to be guaranteed. Its `parameters` are `BastionParameters`.
        key: 32 bytes for the generator. An attacker who knows them can undo its choices.
    """

    chunk = 512
    kernel = bastion_kernel.run
    _state: bastion_state.Kept

    def __init__(self, policy: Policy, key: bytes) -> None:
        super().__init__(policy)
        self._codes = Codes(policy)
        self._terrain = bastion_state.Terrain(
            self._space,
            growth=np.empty((2, _most_leaves(policy))),
            spans=np.empty((2, 3, _most_spans(policy))),
            part=np.empty((2, bastion_state.PART)),
        )
        self._state = self._empty_state(key, capacity=self.chunk, closeness=self._codes.closeness())

    def next_deadline(self) -> int | None:
        """Return the moment at which `advance` must be called next, or None."""
        if self._policy.delay is None or self.held == 0:
            return None
        return int(self._state.held.deadline[self._places()].min())

    @property
    def _parameters(self) -> BastionParameters:
        if not isinstance(self._policy.parameters, BastionParameters):
            message = f"Bastion: policy.parameters must be BastionParameters, not those of {self._policy.method!r}."
            raise TypeError(message)
        return self._policy.parameters

    # --- Rows in, releases out ---

    def _counted(self, rows: Rows) -> Rows:
        if not self._codes.counted:
            return rows
        sensitive = self._codes.dense(rows.sensitive)
        closeness, boxes = self._codes.widened(self._state.closeness, self._state.reusable)
        self._state = self._state._replace(closeness=closeness, reusable=boxes)
        return replace(rows, sensitive=sensitive)

    def _run(self, rows: Rows, *, now: int = EARLIEST, over: bool = False) -> Releases:
        """Run the kernel until everything is done. It stops whenever its output buffer is full."""
        columns = own(rows.qi), own(rows.person), own(rows.sensitive), own(rows.time)
        parts, start = [], 0
        while start != NONE:
            self._reserve_boxes(int(self._state.numbers["reusable"][0]) + 1)
            workspace = _WORKSPACE.of(self._dimensions, len(self._state.held.number), self._policy.k)
            s = bastion_state.State(*self._state, *workspace)
            start = bastion_kernel.run(s, *columns, start, now, over)
            parts.append(take_releases(s.out, s.numbers))
            if s.numbers["dividing"][0]:
                self._divide(s)
        return Releases.concat(parts)

    def _places(self) -> NDArray[np.int64]:
        """Return the places of the held rows, in order of arrival."""
        return np.flatnonzero(self._state.held.number[: self._state.numbers["places"][0]] != NONE)

    def _divide(self, s: bastion_state.State) -> None:
        """Plan groups for the held rows, all of which are due at one moment.

        They are cut into parts as Mondrian does, and groups form within each part. Several sizes of parts are tried,
        and the one with the least loss is kept: with small parts more is decided by a view of all rows.
        """
        s.numbers["indexed"] = 0  # rows will change their places
        bastion_rows.close_gaps(s.numbers, s.held, s.cells)
        bastion_rows.estimate_again(s)
        best: _Division | None = None
        for least in _least_parts(self._policy.k, self.held):
            made = self._divided(s, least)
            if best is None or made.loss < best.loss:
                best = made
            bastion_plan.hold_again(s)
        if best is not None:
            _rearrange(s.held, np.argsort(s.held.number[: self.held]))
            best.plan_again(s)
        bastion_plan.begin_writing(s)
        s.numbers["dividing"] = 0

    def _divided(self, s: bastion_state.State, least: int) -> _Division:
        """Plan groups in parts of at least `least` persons."""
        held, rows = s.held, slice(0, self.held)
        _rearrange(held, np.argsort(held.number[rows]))
        qi = np.ascontiguousarray(held.columns[:, rows].T)
        sensitive, time = held.sensitive[rows], np.zeros(self.held, dtype=np.int64)
        part = mondrian_engine.partition(s.terrain.space, Rows(qi, held.person[rows], sensitive, time), least)
        order = np.lexsort((held.number[rows], part))
        _rearrange(held, order)
        offsets = np.flatnonzero(np.diff(part[order], prepend=-2, append=-2))
        return _Division.of(s, bastion_plan.plan_parts(s, offsets))

    # --- Snapshots ---

    def dump(self) -> bytes:
        """Return the complete state of the engine, including its random generator."""
        s, n = self._state, self._state.numbers[0]
        there = self._places()
        held = {name: packed(getattr(s.held, name)[there]) for name in ("number", "person", "sensitive")}
        held["qi"] = packed(s.held.columns[:, there])
        held["lonely"] = packed(s.held.lonely[there].astype(np.float64))
        timed = self._policy.delay is not None
        held["deadline"] = packed(s.held.deadline[there] if timed else np.full(len(there), LATEST))
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
            "cells": self._stored_cells(),
            "sample": packed(s.sample[:, : min(int(n["sampled"]), _SAMPLE)]),
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
        number = unpacked(record["held"]["number"], "<i8")
        self._state = s = self._empty_state(
            record["key"],
            draws=record["draws"],
            capacity=len(number) + self.chunk,
            closeness=self._codes.closeness(record["histogram"]),
            nodes=len(unpacked(record["cells"]["cut"])),
        )
        restore_domains(s.terrain.space, record)
        self._restore_held(record["held"], number)
        self._restore_cells(record["cells"])
        self._resume(record, (*_COUNTS, *_AVERAGES))
        known = min(record["sampled"], _SAMPLE)
        s.sample[:, :known] = unpacked(record["sample"], shape=(self._dimensions, known))
        if not is_weaker(record, self._policy):
            self._reserve_boxes(count_stored(record["reusable"]))
            restore_boxes(self._state.reusable, s.numbers, record["reusable"])

    def _restore_held(self, held: dict[str, bytes], number: NDArray[np.int64]) -> None:
        s, count = self._state, len(number)
        s.held.number[:count] = number
        s.held.person[:count] = unpacked(held["person"], "<i8", (count,))
        s.held.lonely[:count] = unpacked(held["lonely"], shape=(count,))
        s.held.sensitive[:count] = unpacked(held["sensitive"], "<i8", (count, len(self._policy.sensitive)))
        s.held.columns[:, :count] = unpacked(held["qi"], shape=(self._dimensions, count))
        if self._policy.delay is not None:
            s.held.deadline[:count] = unpacked(held["deadline"], "<i8", (count,))
        s.numbers["held"] = s.numbers["places"] = count
        bastion_rows.close_gaps(s.numbers, s.held, s.cells)

    def _stored_cells(self) -> dict[str, Any]:
        n, cells = self._state.numbers[0], self._state.cells
        nodes = int(cells.counts[1]) if n["indexed"] else 0
        links = cells.links[:nodes, STORED].T.astype(np.int64)
        return {"links": packed(links), "cut": packed(cells.cut[:nodes]), "cut_at": int(n["cut_at"]) if nodes else 0}

    def _restore_cells(self, stored: dict[str, Any]) -> None:
        s, cut = self._state, unpacked(stored["cut"])
        if len(cut):
            restore_cuts(s.cells, unpacked(stored["links"], "<i8", (len(STORED), len(cut))), cut)
            fill_cells(s.cells, s.held, 0, self.held)
            s.numbers["indexed"], s.numbers["cut_at"] = 1, stored["cut_at"]

    # --- State ---

    def _reserve(self, arriving: int) -> None:
        """Reserve space for rows that arrive beside the held ones, which `delay_rows` limits."""
        s, held = self._state, self.held
        rows = held + arriving
        if self._policy.delay_rows is not None:
            rows = max(held, min(rows, self._policy.delay_rows + 1))
        # With space for gaps: rows are moved together when there is none left.
        if rows + rows // 16 <= len(s.held.number):
            return
        bastion_rows.close_gaps(s.numbers, s.held, s.cells)
        grown = _held(self._policy, rows + rows // 8)
        for name in _HELD:
            getattr(grown, name)[:held] = getattr(s.held, name)[:held]
        grown.earliest[: len(s.held.earliest)] = s.held.earliest
        grown.columns[:, :held] = s.held.columns[:, :held]
        self._state = s._replace(held=grown, cells=self._cells(grown, s.cells))

    def _cells(self, held: bastion_state.Held, before: Cells | None = None, nodes: int = 0) -> Cells:
        """Return cells with space for the held rows if they may be used.

        Args:
            held: The space for held rows.
            before: Cells whose rows they take over.
            nodes: Nodes of the cuts that they will be given. Such cells may have few rows, if most left since the cut.
        """
        rows = len(held.number)
        if before is not None and len(before.where) > 0:
            nodes = len(before.cut)
        if rows <= int(_index_from(self._policy, self._parameters)) and nodes == 0:
            rows = 0
        timed = self._policy.delay is not None
        nodes = max(nodes, most_nodes(rows, _most_in_cells(self._policy, self._parameters)))
        cells = empty_cells(self._dimensions, rows, timed, nodes)
        if before is not None:
            take_over(cells, before)
        return cells

    def _reserve_boxes(self, wanted: int) -> None:
        """Reserve space for reusable boxes."""
        boxes = self._state.reusable
        grown = grown_boxes(boxes, wanted, int(self._state.numbers["max_reusable"][0]))
        if grown is not boxes:
            self._state = self._state._replace(reusable=grown, index=_index(len(grown.table), self._dimensions))

    def _empty_state(
        self, key: bytes, *, capacity: int, closeness: Closeness, draws: int = 0, nodes: int = 0
    ) -> bastion_state.Kept:
        """Return a state without rows.

        Args:
            key: The generator's key.
            capacity: Rows that can be held.
            closeness: The histograms of the stream.
            draws: Words of the keystream that were used.
            nodes: Nodes of the cuts that a snapshot has.
        """
        held = _held(self._policy, capacity)
        return bastion_state.Kept(
            numbers=_numbers(self._policy, self._parameters),
            terrain=self._terrain._replace(space=self._space._replace(dimensions=self._space.dimensions.copy())),
            held=held,
            sample=np.empty((self._dimensions, _SAMPLE)),
            box=np.zeros((3, self._dimensions)),
            scratch=bastion_state.Scratch(
                row=np.empty(self._dimensions),
                box=np.empty((3, self._dimensions)),
                values=np.empty(max(self._policy.l or 0, 1), dtype=np.int64),
            ),
            reusable=empty_boxes(0, self._dimensions, closeness.stream.shape),
            index=_index(0, self._dimensions),
            closeness=closeness,
            random=generator(key, draws),
            cells=self._cells(held, nodes=nodes),
        )


@dataclass(frozen=True, eq=False)
class _Division:
    """A plan for all held rows, kept while another one is tried."""

    loss: float
    groups: int
    number: NDArray[np.int64]
    group: NDArray[np.int64]
    size: NDArray[np.int64]
    box: NDArray[np.float64]

    @classmethod
    def of(cls, s: bastion_state.State, loss: float) -> _Division:
        rows, groups = int(s.numbers["planned_rows"][0]), int(s.numbers["planned"][0])
        plan = s.plan
        return cls(
            loss,
            groups,
            plan.number[:rows].copy(),
            plan.group[:rows].copy(),
            plan.size[:groups].copy(),
            plan.box[:groups].copy(),
        )

    def plan_again(self, s: bastion_state.State) -> None:
        """Make this the plan of the state. Its rows are no longer held."""
        plan, numbers, rows = s.plan, s.numbers, len(self.number)
        plan.number[:rows], plan.group[:rows] = self.number, self.group
        plan.size[: self.groups], plan.box[: self.groups] = self.size, self.box
        held = s.held.number[: int(numbers["places"][0])]
        held[np.isin(held, self.number)] = NONE
        numbers["planned"], numbers["planned_rows"] = self.groups, rows
        numbers["held"] -= rows


def _rearrange(held: bastion_state.Held, order: NDArray[np.int64]) -> None:
    """Put all held rows, which have no gaps between them, into another order."""
    rows = slice(0, len(order))
    for name in _HELD:
        column = getattr(held, name)
        if len(column):
            column[rows] = column[rows][order]
    held.columns[:, rows] = held.columns[:, rows][:, order]


def _least_parts(k: int, rows: int) -> list[int]:
    """Return how many persons a part must have, for each of the divisions that are tried."""
    return sorted({k, min(3 * k, rows), min(max(_PART, k), rows)})


class _Workspace(threading.local):
    """Scratch space and output buffers that the engines of a thread share, so that a shard costs only its rows."""

    def __init__(self) -> None:
        self._shared: dict[int, tuple[bastion_state.Search, bastion_state.Plan, Output]] = {}

    def of(self, dimensions: int, places: int, k: int) -> tuple[bastion_state.Search, bastion_state.Plan, Output]:
        """Return scratch space for `places` held rows and groups of k, and an output buffer to release them all."""
        needed, groups = max(places, _SAMPLE), places // k + 1
        search, plan, out = self._shared.get(dimensions, (None, None, None))
        if search is None or out is None or len(search.cost) < needed:
            search = _search(dimensions, needed)
            out = empty_output(_RELEASES, dimensions)._replace(rows=np.empty(needed, dtype=np.int64))
            plan = None
        if plan is None or len(plan.size) < groups:
            plan = _plan(dimensions, len(search.cost), groups)
        self._shared[dimensions] = search, plan, out
        return search, plan, out


_WORKSPACE = _Workspace()


def _search(dimensions: int, places: int) -> bastion_state.Search:
    behind = places + BLOCK  # a block's scores may be written beyond its rows
    return bastion_state.Search(
        cost=np.empty(places),
        order=np.empty(behind),
        place=np.empty(places, dtype=np.int64),
        offset=np.empty((dimensions, behind), dtype=np.float32),
        score=np.empty(in_lanes(behind), dtype=np.float32),
        least=np.empty(bastion_state.LANES, dtype=np.float32),
        members=np.empty(places + 1, dtype=np.int64),
        company=np.empty(places, dtype=np.int64),
        node=np.empty(MOST_NODES, dtype=np.int64),
        key=np.empty(MOST_NODES),
    )


def _plan(dimensions: int, places: int, groups: int) -> bastion_state.Plan:
    rows = {name: np.empty(places, dtype=np.int64) for name in ("place", "number", "group", "order")}
    return bastion_state.Plan(
        **rows,
        size=np.empty(groups, dtype=np.int64),
        box=np.empty((groups, 3, dimensions)),
        end=np.empty(groups, dtype=np.int64),
    )


def _numbers(policy: Policy, parameters: BastionParameters) -> NDArray[Any]:
    numbers = numbers_of(policy, bastion_state.NUMBERS)
    numbers["max_reusable"] = _most_reusable(parameters)
    numbers["eta"] = parameters.eta if parameters.reuse is Reuse.WEIGHTED else 0.0
    numbers["lonely"] = parameters.lonely
    numbers["search"] = parameters.search
    numbers["search_cells"] = _most_in_cells(policy, parameters)
    # One of several shards has few groups at the end, and would suppress rows that one shard publishes.
    numbers["at_end"] = bastion_plan.SUPPRESSED_LOSS if policy.most_shards == 1 else np.inf
    numbers["thin"] = _thin_below(policy, parameters)
    numbers["index_from"] = _index_from(policy, parameters)
    numbers["soonest"] = EARLIEST
    numbers["average"] = -1.0
    numbers["ratio"] = numbers["guess"] = 1.0
    numbers["caution"] = bastion_kernel.LEAST_CAUTION
    return numbers


def _index_from(policy: Policy, parameters: BastionParameters) -> int:
    """Return how many rows are held at most without cells. With reuse, all rows are looked at anyway."""
    return LATEST if _most_reusable(parameters) > 0 else _CELLED * _most_in_cells(policy, parameters)


def _thin_below(policy: Policy, parameters: BastionParameters) -> int:
    """Return how many rows one of several shards holds at least if it is not thin; 0 if it never is.

    With fewer, groups of the nearest rows would often leave less than k behind, and old ones, which find no company.
    """
    alone = policy.most_shards == 1 or _most_reusable(parameters) > 0
    return 0 if alone else 2 * policy.k + policy.k // 2


def _most_reusable(parameters: BastionParameters) -> int:
    return parameters.max_reusable if parameters.reuse is not Reuse.OFF else 0


def _most_in_cells(policy: Policy, parameters: BastionParameters) -> int:
    """Return how many rows of cells are candidates. They are the nearest, so fewer do than of all rows."""
    return min(parameters.search // 2, _A_MEMBER * policy.k)


def _most_leaves(policy: Policy) -> int:
    geometries = [qi.geometry for qi in policy.quasi_identifiers.values()]
    return max((len(geometry.leaf) for geometry in geometries if isinstance(geometry, Tree)), default=0)


def _most_spans(policy: Policy) -> int:
    """Return how many spans a value of a category or a prefix has around it, itself among them, at most."""
    geometries = [qi.geometry for qi in policy.quasi_identifiers.values()]
    return max((geometry.levels() for geometry in geometries if not isinstance(geometry, Interval)), default=0)


def _held(policy: Policy, capacity: int) -> bastion_state.Held:
    return bastion_state.Held(
        number=np.empty(capacity, dtype=np.int64),
        person=np.empty(capacity, dtype=np.int64),
        deadline=np.empty(0 if policy.delay is None else capacity, dtype=np.int64),
        lonely=np.empty(capacity, dtype=np.float32),
        columns=np.empty((len(policy.quasi_identifiers), capacity)),
        sensitive=np.empty((capacity, len(policy.sensitive)), dtype=np.int64),
        earliest=np.empty(0 if policy.delay is None else -(-capacity // bastion_state.SPAN), dtype=np.int64),
    )


def _index(size: int, dimensions: int) -> bastion_state.BoxIndex:
    return bastion_state.BoxIndex(
        boxes=np.zeros((dimensions, bastion_state.BINS, -(-size // 64)), dtype=np.uint64),
        bounds=np.full((3, dimensions), np.nan),  # of no domain, so that the first search indexes all boxes
        bins=np.empty(dimensions, dtype=np.int64),
    )
