"""LEARN: for a stream with `shard_by: locality`, follows the stream with a tree of shards, and deals packs out to it.

All packs pass through one key, whose state has the trees. So there is one place that decides, in one order; what it
decided is in the same checkpoint as the packs that went by it, and no row waits for a tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.metrics import Metrics
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec

from crenel.policy import Policy
from crenel.policy.secret import Secret, as_secret
from crenel.transforms._deal.stored_trees import Cells, StoredTrees
from crenel.transforms._pack.fingerprints import check_space
from crenel.transforms._pack.pack_step import ONE_KEY, Fullness
from crenel.transforms._pack.row_pack import by_shard, hand_over, opened
from crenel.transforms._pack.sharding import shard_name
from crenel.transforms._publish.emitter import NAMESPACE

__all__ = ["LearnRows"]


class LearnRows(beam.DoFn):
    """Deals packs out to the leaves of the tree that holds at the rows' event times.

    Args:
        policy: The policy of the packs.
        secret: Keys the seal of packs and of state.
        one_key: Whether all shards share a key afterwards; otherwise each has its own.
    """

    TREES = ReadModifyWriteStateSpec("trees", BytesCoder())
    WATCH = ReadModifyWriteStateSpec("watch", BytesCoder())
    SAMPLE = BagStateSpec("sample", BytesCoder())

    def __init__(self, policy: Policy, secret: bytes | Secret, *, one_key: bool = False) -> None:
        self._policy = policy
        self._secret = as_secret(secret, policy)
        self._one_key = one_key

    def setup(self) -> None:
        """Prepare what does not travel."""
        self._seal = self._secret.seal
        self._stored = StoredTrees(self._policy, self._seal)
        self._fullness = Fullness()
        self._trees = Metrics.counter(NAMESPACE, "trees of shards learned")

    def process(
        self,
        element: tuple[int, bytes],
        window: Any = beam.DoFn.WindowParam,
        trees: Any = beam.DoFn.StateParam(TREES),
        watch: Any = beam.DoFn.StateParam(WATCH),
        sample: Any = beam.DoFn.StateParam(SAMPLE),
    ) -> Iterator[tuple[int, bytes]]:
        """Deal the rows of a pack."""
        key, data = element
        place = shard_name(key, window)
        whole = opened(data, self._seal, place)
        check_space(whole.space, self._policy)
        cells = Cells(trees, watch, sample)
        follower = self._stored.follower(cells, place)
        shard = follower.deal(whole.rows)
        self._stored.store(follower, cells, place)
        self._trees.inc(follower.learned)
        for pack in by_shard(whole, shard):
            self._fullness.count(pack.shard, len(pack.rows))
            to = ONE_KEY if self._one_key else pack.shard
            with hand_over(pack, self._seal, shard_name(to, window)) as dealt:
                yield to, dealt
