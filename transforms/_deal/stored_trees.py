"""What LEARN keeps in state: the trees so far, how far the sample has come, and the sample. All of it is sealed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from crenel import avro
from crenel.encoding.rows import Rows
from crenel.encoding.tree_following import TreeFollower, Watch, one_shard
from crenel.policy import Policy
from crenel.policy.sharding.shard_tree import Cut, ShardTree, fingerprint
from crenel.policy.sharding.tree_schedule import TreeSchedule
from crenel.seal import Seal

__all__ = [
    "Cells",
    "StoredTrees",
    "read_sample",
    "read_trees",
    "read_watch",
    "written_sample",
    "written_trees",
    "written_watch",
]

_TREES, _WATCH, _SAMPLE = (
    avro.Schemas("crenel.transforms._deal", (name,)) for name in ("trees.1.avsc", "watch.1.avsc", "sample.1.avsc")
)
#: What is sealed.
_OF_TREES, _OF_WATCH, _OF_SAMPLE = "crenel.trees", "crenel.watch", "crenel.sample"
#: The columns of cuts, and their types.
_COLUMNS = {"column": "<i8", "at": "<f8", "below": "<i8", "above": "<i8"}


@dataclass(frozen=True)
class Cells:
    """The state of one key and window."""

    trees: Any
    watch: Any
    sample: Any


class StoredTrees:
    """Reads and writes what a follower knows.

    Trees change seldom, so they have a cell of their own, and are decoded only when it has changed.

    Args:
        policy: The policy of the stream.
        seal: Closes what is stored.
    """

    def __init__(self, policy: Policy, seal: Seal) -> None:
        self._policy = policy
        self._seal = seal
        self._space = fingerprint(policy.quasi_identifiers)
        self._known: tuple[bytes | None, TreeSchedule] = (None, one_shard(policy))

    def follower(self, cells: Cells, place: bytes) -> TreeFollower:
        """Return a follower that goes on from what is stored.

        Raises:
            SnapshotError: something was damaged, changed or exchanged, or written under another secret.
        """
        stored = cells.watch.read()
        if stored is None:
            return TreeFollower(self._policy, one_shard(self._policy), Watch(), lambda: ())
        watch = read_watch(self._seal.open(_OF_WATCH, stored, place))
        schedule = self._schedule(cells.trees.read(), place)
        if schedule.trees[-1].space == self._space:
            return TreeFollower(self._policy, schedule, watch, lambda: self._sample(cells, watch, place))
        # The quasi-identifiers have changed. HOLD refuses that if it holds rows, so this is a beginning.
        anew = TreeFollower(self._policy, one_shard(self._policy), Watch(period=watch.period + 1), lambda: ())
        anew.is_over = True
        return anew

    def store(self, follower: TreeFollower, cells: Cells, place: bytes) -> None:
        """Store what a follower knows now."""
        if follower.is_over:
            cells.sample.clear()
        for part in follower.fresh:
            cells.sample.add(self._seal.close(_OF_SAMPLE, written_sample(part), _period(place, follower.watch)))
        if follower.schedule is not self._known[1] or self._known[0] is None:
            data = self._seal.close(_OF_TREES, written_trees(follower.schedule), place)
            cells.trees.write(data)
            self._known = data, follower.schedule
        cells.watch.write(self._seal.close(_OF_WATCH, written_watch(follower.watch), place))

    def _schedule(self, data: bytes | None, place: bytes) -> TreeSchedule:
        if data is None:
            return one_shard(self._policy)
        if data != self._known[0]:
            self._known = data, read_trees(self._seal.open(_OF_TREES, data, place))
        return self._known[1]

    def _sample(self, cells: Cells, watch: Watch, place: bytes) -> list[Rows]:
        period = _period(place, watch)
        # A bag has no order. Sorted, the same rows always lead to the same tree.
        stored = sorted(self._seal.open(_OF_SAMPLE, data, period) for data in cells.sample.read())
        parts = [read_sample(data) for data in stored]
        avro.expect(sum(map(len, parts)) == watch.sampled)
        return parts


def _period(place: bytes, watch: Watch) -> bytes:
    """Name the sample of a period, so that none is taken for another's."""
    return b"%d %s" % (watch.period, place)


def written_trees(schedule: TreeSchedule) -> bytes:
    """Write trees."""
    first = schedule.trees[0]
    return _TREES.encode(
        {
            "columns": list(first.columns),
            "space": first.space,
            "moments": avro.packed(np.array(schedule.moments, dtype=np.int64)),
            "trees": [
                {
                    name: avro.packed(np.array([getattr(cut, name) for cut in tree.cuts], dtype=kind))
                    for name, kind in _COLUMNS.items()
                }
                for tree in schedule.trees
            ],
        }
    )


def read_trees(data: bytes) -> TreeSchedule:
    """Read what `written_trees` wrote."""
    record = _TREES.decode(data)
    trees = [
        ShardTree(tuple(record["columns"]), tuple(map(Cut, *_columns(cuts))), record["space"])
        for cuts in record["trees"]
    ]
    return TreeSchedule(tuple(trees), tuple(avro.unpacked(record["moments"], "<i8").tolist()))


def _columns(cuts: dict[str, bytes]) -> list[list[Any]]:
    return [avro.unpacked(cuts[name], kind).tolist() for name, kind in _COLUMNS.items()]


def written_watch(watch: Watch) -> bytes:
    """Write how far a sample has come."""
    return _WATCH.encode(asdict(watch))


def read_watch(data: bytes) -> Watch:
    """Read what `written_watch` wrote."""
    return Watch(**_WATCH.decode(data))


def written_sample(rows: Rows) -> bytes:
    """Write a part of a sample."""
    return _SAMPLE.encode(
        {"qi": avro.packed(rows.qi), "person": avro.packed(rows.person), "time": avro.packed(rows.time)}
    )


def read_sample(data: bytes) -> Rows:
    """Read what `written_sample` wrote."""
    record = _SAMPLE.decode(data)
    person = avro.unpacked(record["person"], "<i8")
    qi = avro.unpacked(record["qi"])
    avro.expect(len(person) > 0 and len(qi) % len(person) == 0)
    time = avro.unpacked(record["time"], "<i8", (len(person),))
    return Rows(qi.reshape(len(person), -1), person, np.zeros((len(person), 0), dtype=np.int64), time)
