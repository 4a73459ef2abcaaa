"""Sharding: which shard a row goes to."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
from apache_beam.transforms.window import GlobalWindow
from numpy.typing import NDArray

from crenel.encoding.keyed_hash import siphash
from crenel.encoding.rows import Rows
from crenel.policy import Policy, ShardBy, ShardTree
from crenel.policy.sensitive import Sensitive
from crenel.policy.sharding.tree_schedule import TreeSchedule

_UNDECLARED = Sensitive()


def shard_name(shard: int, window: Any) -> bytes:
    """Name an engine and its place in state: differently from all others, and in every process the same."""
    if isinstance(window, GlobalWindow):
        return f"{shard}".encode()
    return f"{shard} {window.start.micros} {window.end.micros}".encode()


class ShardRouter:
    """Routes rows to the shards of a policy; under one secret the same row always goes to the same shard.

    Args:
        policy: The number of shards, and the rule.
        secret: Keys the hashes of columns. The hash of a person has a key of its own. A tree needs none.
    """

    def __init__(self, policy: Policy, secret: bytes) -> None:
        self._shards = policy.most_shards
        digest = blake2b(secret, digest_size=16, person=b"crenel.shard").digest()
        self._key = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
        self._by = policy.shard_by
        #: The columns that decide, if the rule is by columns.
        self._fields = policy.shard_by if isinstance(policy.shard_by, tuple) else ()

    def shards(self, rows: Rows, columns: Mapping[str, Any], kept: NDArray[np.int64]) -> NDArray[np.int64]:
        """Find the shard of each row; `columns` are those of the input, of which the places `kept` became rows."""
        # The tree of LOCALITY is learned from these rows, and DEAL assigns them.
        if self._shards == 1 or self._by is ShardBy.LOCALITY:
            return np.zeros(len(rows), dtype=np.int64)
        if self._by is ShardBy.PERSON:
            return self._spread(rows.person)
        if isinstance(self._by, ShardTree):
            return self._by.find(rows.qi)
        if isinstance(self._by, TreeSchedule):
            return self._by.find(rows.qi, rows.time)
        mixed = np.zeros(len(rows), dtype=np.int64)
        for name in self._fields:
            if name in columns:
                mixed = siphash(mixed ^ _UNDECLARED.codes(columns[name])[0][kept], self._key)
        return self._spread(mixed)

    def _spread(self, hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        # The high bits of a product are mixed best.
        mixed = hashes.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return ((mixed >> np.uint64(33)) % np.uint64(self._shards)).astype(np.int64)
