"""Continuous publishing: leaves of an R-tree that leave at random times, leaves with a high loss later.

Zhou, Han, Pei, Jiang, Tao, Jia: *Continuous privacy preserving publishing of data streams*, EDBT 2009: the methods
`min-delay`, `rtree`, `rtree-density` and `rtree-full`. How each step is done, and what was chosen where the paper is
silent, is in `docs/continuous.md`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crenel.avro import Schemas, expect, packed, unpacked
from crenel.encoding.rows import Rows
from crenel.engine.compiled import Compiled, numbers_of
from crenel.engine.contract import Releases, SnapshotError
from crenel.engine.draws import generator
from crenel.engine.kernels.arrays import NONE
from crenel.engine.kernels.deadlines import EARLIEST, LATEST
from crenel.engine.methods.rtree import (
    MinDelayParameters,
    RTreeDensityParameters,
    RTreeParameters,
    chain_sampling,
    rtree_kernel,
    rtree_state,
)
from crenel.engine.methods.rtree.rtree_index import empty_tree
from crenel.engine.output_buffer import empty_output, take_releases
from crenel.engine.space import own, restore_domains
from crenel.policy import Policy
from crenel.policy.durations import parse_duration

#: Rows to hold if the policy does not say, as a multiple of k.
ACTIVE_ROWS = 30
_SCHEMAS = Schemas("crenel.engine.methods.rtree", ("rtree.1.avsc",))
_NUMBERS = ("draws", "arrivals", "released", "clock", "rate_rows", "rate_since")


class Continuous(Compiled):
    """The methods of continuous publishing, on one shard's rows.

    Args:
        policy: What is to be guaranteed, and by which of the four methods.
        key: 32 bytes for the generator. An attacker who knows them can undo its choices.
    """

    kernel = rtree_kernel.run
    _state: rtree_state.State

    def __init__(self, policy: Policy, key: bytes) -> None:
        super().__init__(policy)
        sample, window = _sampling(policy)
        self._state = self._empty_state(
            key, capacity=2 * self.chunk, chains=empty_chains(sample, window, self._dimensions)
        )

    def __repr__(self) -> str:
        """Tell how many rows are held, but nothing about them."""
        return f"Continuous({self._policy.method}, held={self.held})"

    def next_deadline(self) -> int | None:
        """Return the moment at which `advance` must be called next, or None."""
        n = self._state.numbers[0]
        return int(n["next_time"]) if n["next_time_leaf"] != NONE else None

    def _run(self, rows: Rows, *, now: int = EARLIEST, over: bool = False) -> Releases:
        """Run the kernel, and return the releases that it wrote."""
        rtree_kernel.run(self._state, own(rows.qi), own(rows.person), own(rows.sensitive), own(rows.time), now, over)
        return take_releases(self._state.out, self._state.numbers)

    # --- Snapshots ---

    def dump(self) -> bytes:
        """Return the complete state of the engine, including its random generator."""
        s, n = self._state, self._state.numbers[0]
        record = {
            "method": self._policy.method,
            "space": self._fingerprint,
            "key": self.key,
            "instant": int(n["instant"]),
            **{name: n[name].item() for name in _NUMBERS},
            "domain_lo": packed(s.space.dimensions["domain_lo"]),
            "domain_hi": packed(s.space.dimensions["domain_hi"]),
            "rows": {name: packed(column) for name, column in self._held_rows().items()},
            "leaves": {name: packed(column) for name, column in self._leaves().items()},
            "window": len(s.chains.buckets),
            "chains": {name: packed(column) for name, column in self._stored_chains().items()},
        }
        return _SCHEMAS.encode(record)

    def load(self, data: bytes) -> None:
        """Take over the state of the engine that `dump` was called on.

        The sample keeps its size, even if the policy has another one now.
        """
        record = _SCHEMAS.decode(data)
        if record["method"] != self._policy.method:
            message = (
                f"Continuous: a snapshot of method {record['method']!r} cannot be restored under "
                f"policy.method {self._policy.method!r}."
            )
            raise SnapshotError(message)
        if record["space"] != self._fingerprint or record["instant"] != self._state.numbers["instant"][0]:
            message = (
                "Continuous: a snapshot can be restored only under the quasi-identifiers, sensitive columns and "
                "parameters.instant it was taken under; one of these has changed."
            )
            raise SnapshotError(message)
        rows, chains = record["rows"], record["chains"]
        held = self._unpacked_rows(rows, ("number", "person", "deadline", "patience"))
        count = len(held["number"])
        stored = {name: unpacked(chains[name], "<i8") for name in ("length", "successor", "number")}
        expect(len(stored["length"]) == len(stored["successor"]))
        expect(stored["length"].min(initial=0) >= 0 and stored["length"].sum() == len(stored["number"]))
        self._state = s = self._empty_state(
            record["key"],
            draws=record["draws"],
            capacity=count + 2 * self.chunk,
            chains=empty_chains(len(stored["length"]), record["window"], self._dimensions),
        )
        restore_domains(s.space, record)
        points = unpacked(chains["qi"], shape=(len(stored["number"]), self._dimensions))
        chain_sampling.restore_chains(s.chains, stored["length"], stored["successor"], stored["number"], points)
        leaves = {name: unpacked(column, "<i8") for name, column in record["leaves"].items()}
        expect(len({len(column) for column in leaves.values()}) == 1)
        expect(leaves["size"].min(initial=0) >= 0 and leaves["size"].sum() == count)
        self._rebuild(held, leaves)
        self._resume(record, _NUMBERS)

    def _rebuild(self, rows: dict[str, NDArray[Any]], leaves: dict[str, NDArray[np.int64]]) -> None:
        rtree_kernel.rebuild(
            self._state,
            rows["number"],
            rows["qi"],
            rows["person"],
            rows["sensitive"],
            rows["deadline"],
            rows["patience"],
            leaves["size"],
            leaves["split_at"],
            leaves["due"],
        )

    def _held_rows(self) -> dict[str, NDArray[Any]]:
        """Return the held rows, leaf after leaf."""
        s = self._state
        at = rtree_kernel.held_slots(s)
        return {
            "number": s.slots["number"][at],
            "qi": s.tree.points[at],
            "person": s.tree.labels[at, 0],
            "sensitive": np.ascontiguousarray(s.tree.labels[at, 1:]),
            "deadline": s.slots["deadline"][at],
            "patience": s.slots["patience"][at],
        }

    def _leaves(self) -> dict[str, NDArray[np.int64]]:
        """Return the leaves, the oldest first."""
        s = self._state
        at = s.tree.leaves[: s.tree.meta["leaves"][0]]
        nodes = s.tree.nodes
        return {"size": nodes["count"][at], "split_at": nodes["split_at"][at], "due": s.leaves["due"][at]}

    def _stored_chains(self) -> dict[str, NDArray[Any]]:
        chains = self._state.chains
        length = np.zeros(len(chains.table), dtype=np.int64)
        links = chain_sampling.stored_links(chains, length)
        successor = np.where(length > 0, chains.table["successor"], 0)
        number = chains.links["number"][links]
        return {"length": length, "successor": successor, "number": number, "qi": chains.points[links]}

    # --- State ---

    def _reserve(self, arriving: int) -> None:
        """Reserve space for rows that arrive. It at least doubles, so that this is rare."""
        capacity = len(self._state.slots)
        if self.held + arriving <= capacity:
            return
        old, rows, leaves = self._state, self._held_rows(), self._leaves()
        more = max(2 * capacity, self.held + arriving)
        self._state = self._empty_state(self.key, capacity=more, chains=old.chains)
        self._state = self._state._replace(space=old.space, random=old.random)
        self._rebuild(rows, leaves)
        for name in _NUMBERS:
            self._state.numbers[name] = old.numbers[name]

    def _empty_state(
        self, key: bytes, *, capacity: int, chains: chain_sampling.Chains, draws: int = 0
    ) -> rtree_state.State:
        """Return a state without rows, with space for `capacity` rows."""
        policy = self._policy
        numbers = _numbers(policy)
        numbers["free"] = capacity
        columns = len(policy.sensitive)
        least = np.array([policy.k] + [policy.l or 0] * (columns if policy.l else 0), dtype=np.int64)
        tree = empty_tree(capacity, self._dimensions, least, 1 + columns)
        return rtree_state.State(
            numbers=numbers,
            space=self._space._replace(dimensions=self._space.dimensions.copy()),
            tree=tree,
            slots=np.empty(capacity, dtype=rtree_state.SLOT),
            free=np.arange(capacity, dtype=np.int64)[::-1].copy(),
            leaves=np.zeros(len(tree.nodes), dtype=rtree_state.LEAF),
            held_distinct=np.zeros(len(least), dtype=np.int64),
            chains=chains,
            inside=np.zeros(len(chains.table), dtype=np.uint8),
            found=np.empty(len(tree.nodes), dtype=np.int64),
            random=generator(key, draws),
            out=empty_output(capacity, self._dimensions),
        )


def _sampling(policy: Policy) -> tuple[int, int]:
    """Return the number of chains and of the rows that they sample; (0, 0) if the method does not sample."""
    parameters = policy.parameters
    if isinstance(parameters, RTreeDensityParameters):
        return parameters.sample, parameters.window_rows
    return 0, 0


def _numbers(policy: Policy) -> NDArray[Any]:
    parameters = policy.parameters
    if not isinstance(parameters, (MinDelayParameters, RTreeParameters)):
        message = (
            f"Continuous: policy.method must be min-delay, rtree, rtree-density or rtree-full, not {policy.method!r}."
        )
        raise TypeError(message)
    numbers = numbers_of(policy, rtree_state.NUMBERS)
    numbers["first_fit"] = isinstance(parameters, MinDelayParameters)
    if isinstance(parameters, RTreeParameters):
        numbers["instant"] = parse_duration(parameters.instant or "") or 0
        numbers["active_rows"] = parameters.active_rows or ACTIVE_ROWS * policy.k
    if isinstance(parameters, RTreeDensityParameters):
        numbers["decay"] = math.log1p(parameters.alpha)
        numbers["dense"] = 1
        numbers["patience"] = numbers["active_rows"]
        numbers["holds"] = policy.method == "rtree-full"
    numbers["next_time"] = numbers["next_row"] = LATEST
    numbers["next_time_leaf"] = numbers["next_row_leaf"] = NONE
    return numbers


def empty_chains(count: int, window: int, dimensions: int) -> chain_sampling.Chains:
    """Return chains that have seen no row yet."""
    # A chain has three rows on average, and hardly ever more than ten.
    links = 4 * count + 64
    meta = np.zeros(1, dtype=chain_sampling.META)
    meta["free"] = links
    table = np.zeros(count, dtype=chain_sampling.CHAIN)
    for name in ("head", "tail", "previous", "next"):
        table[name] = NONE
    return chain_sampling.Chains(
        meta=meta,
        table=table,
        links=np.empty(links, dtype=chain_sampling.LINK),
        points=np.empty((links, dimensions)),
        free=np.arange(links, dtype=np.int64)[::-1].copy(),
        buckets=np.full(window, NONE, dtype=np.int64),
        heads=np.full((dimensions, count), np.nan),
        changed=np.empty(count, dtype=np.int64),
        gone=np.empty((count, dimensions)),
    )
