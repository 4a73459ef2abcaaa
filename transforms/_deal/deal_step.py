"""DEAL: for bounded rows with `shard_by: locality`, learns the tree of shards, and deals packs out to its leaves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam

from crenel.encoding.row_sample import RowSample
from crenel.policy import Policy, ShardTree
from crenel.policy.secret import Secret, as_secret
from crenel.transforms._pack.row_pack import RowPack, by_shard, hand_over, opened
from crenel.transforms._pack.sharding import shard_name

__all__ = ["DealRows", "SampleRows", "merged"]


class _OfPacks(beam.DoFn):
    """Opens packs that are not assigned yet.

    Args:
        policy: The policy of the packs.
        secret: Keys the seal of packs.
    """

    def __init__(self, policy: Policy, secret: bytes | Secret) -> None:
        self._secret = as_secret(secret, policy)

    def _opened(self, element: tuple[int, bytes], window: Any) -> RowPack:
        key, data = element
        return opened(data, self._secret.seal, shard_name(key, window))


class SampleRows(_OfPacks):
    """Samples the rows of each pack."""

    def process(self, element: tuple[int, bytes], window: Any = beam.DoFn.WindowParam) -> Iterator[RowSample]:
        """Sample a pack."""
        sample = RowSample()
        sample.add(self._opened(element, window).rows)
        yield sample


def merged(samples: Iterable[RowSample]) -> RowSample:
    """Merge samples; their order does not matter."""
    whole = RowSample()
    for sample in samples:
        whole.merge(sample)
    return whole


class DealRows(_OfPacks):
    """Deals packs out to the leaves of a tree."""

    def process(
        self, element: tuple[int, bytes], tree: ShardTree, window: Any = beam.DoFn.WindowParam
    ) -> Iterator[tuple[int, bytes]]:
        """Deal the rows of a pack."""
        whole = self._opened(element, window)
        for pack in by_shard(whole, tree.find(whole.rows.qi)):
            with hand_over(pack, self._secret.seal, shard_name(pack.shard, window)) as data:
                yield pack.shard, data
