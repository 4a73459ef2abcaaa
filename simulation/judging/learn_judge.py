"""Judges LEARN: every row is passed on once, to the shard that the trees in the state say; replays are dealt alike."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from crenel.policy.sharding.tree_schedule import TreeSchedule
from crenel.seal import Seal
from crenel.transforms._deal.stored_trees import read_trees
from crenel.transforms._pack.row_pack import RowPack
from simulation.judging.hold_judge import Call
from simulation.judging.promises import Promise, expect

#: Bytes of the seal before a pack. A secret that was drawn leaves its key there.
_HEAD = Seal(bytes(32), carried=True).size


class LearnJudge:
    """Judges the calls of LEARN in one history."""

    def __init__(self) -> None:
        #: A digest of the calls so far, by key and window.
        self.chains: dict[Any, bytes] = {}
        #: What each sequence of calls emitted, whoever made it, as digests.
        self._answers: dict[bytes, bytes] = {}

    def failed(self, job: Any, calls: Sequence[Call]) -> None:
        """Remember what the calls of a bundle that failed emitted: when they are made again, it must be the same."""
        chains = dict(self.chains)
        for call in calls:
            self._compare(chains, job, call)

    def called(self, job: Any, calls: Sequence[Call], stored: Callable[[Any, Any], bytes | None]) -> None:
        """Judge the calls of a bundle that was committed.

        Args:
            job: Under which policy and secret.
            calls: The calls.
            stored: The sealed trees in the state of a key and window before the bundle.
        """
        trees: dict[Any, TreeSchedule | None] = {}
        for call in calls:
            self._compare(self.chains, job, call)
            address = (call.key, call.window)
            if address not in trees:
                data = stored(*address)
                trees[address] = None if data is None else read_trees(data[_HEAD:])
            _check(call, [trees[address], *call.learned])
            trees[address] = call.learned[-1] if call.learned else trees[address]

    def _compare(self, chains: dict[Any, bytes], job: Any, call: Call) -> None:
        address = (call.key, call.window)
        chain = chains[address] = _digest(f"{chains.get(address, b'')!r} {job.name} {address} {call.given!r}")
        emitted = _digest(repr([element.value for _, element in call.emitted]))
        is_same = self._answers.setdefault(chain, emitted) == emitted
        expect(Promise.REPEATABLE, is_same, "the same packs were dealt out otherwise than before")


def _check(call: Call, known: Sequence[TreeSchedule | None]) -> None:
    """Check that every row is passed on once, by one of the trees that were known meanwhile."""
    packs = [(element.value[0], _opened(element.value[1])) for _, element in call.emitted]
    given, dealt = _numbers(_opened(call.given)), [number for _, pack in packs for number in _numbers(pack)]
    is_whole = sorted(dealt) == sorted(given)
    expect(Promise.NOTHING_LOST, is_whole, f"{len(given)} rows are dealt out as {len(dealt)}, or as others")
    for shard, pack in packs:
        for values, time in zip(pack.rows.qi.tolist(), pack.rows.time.tolist(), strict=True):
            is_right = shard in {_shard(schedule, values, time) for schedule in known}
            expect(Promise.REPEATABLE, is_right, f"rows are sent to shard {shard} by no tree in the state")


def _opened(data: bytes) -> RowPack:
    return RowPack.from_bytes(data[_HEAD:])


def _numbers(pack: RowPack) -> list[int]:
    return list(pack.payload.column("n"))


def _shard(schedule: TreeSchedule | None, values: Sequence[float], time: int) -> int:
    """Walk down the tree that holds at a moment. Before there is one, one shard holds all rows."""
    if schedule is None:
        return 0
    tree = schedule.trees[sum(moment <= time for moment in schedule.moments)]
    side = 0 if tree.cuts else ~0
    while side >= 0:
        cut = tree.cuts[side]
        side = cut.above if values[cut.column] >= cut.at else cut.below
    return ~side


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
