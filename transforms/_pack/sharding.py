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
from crenel.policy import Policy, ShardBy
from crenel.policy.sensitive import Sensitive

#: How often locality halves the domain of each quasi-identifier.
_LEVELS = 8
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
        secret: Keys the hashes of columns. The hash of a person has a key of its own. `locality` needs none: it cuts
            the declared domains into equal parts.
    """

    def __init__(self, policy: Policy, secret: bytes) -> None:
        self._shards = policy.shards
        digest = blake2b(secret, digest_size=16, person=b"crenel.shard").digest()
        self._key = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
        self._by = policy.shard_by
        #: The columns that decide, if the rule is by columns.
        self._fields = policy.shard_by if isinstance(policy.shard_by, tuple) else ()
        widest = [qi.geometry.widest() for qi in policy.quasi_identifiers.values()]
        self._lo = np.array([lo for lo, _ in widest])
        self._hi = np.array([hi for _, hi in widest])

    def shards(self, rows: Rows, columns: Mapping[str, Any], kept: NDArray[np.int64]) -> NDArray[np.int64]:
        """Find the shard of each row; `columns` are those of the input, of which the places `kept` became rows."""
        if self._shards == 1:
            return np.zeros(len(rows), dtype=np.int64)
        if self._by is ShardBy.PERSON:
            return self._spread(rows.person)
        if self._by is ShardBy.LOCALITY:
            return self._near(rows.qi)
        mixed = np.zeros(len(rows), dtype=np.int64)
        for name in self._fields:
            if name in columns:
                mixed = siphash(mixed ^ _UNDECLARED.codes(columns[name])[0][kept], self._key)
        return self._spread(mixed)

    def _spread(self, hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        # The high bits of a product are mixed best.
        mixed = hashes.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return ((mixed >> np.uint64(33)) % np.uint64(self._shards)).astype(np.int64)

    def _near(self, qi: NDArray[np.float64]) -> NDArray[np.int64]:
        """Cut a Z-order curve through the space into equal parts; the first quasi-identifier has the first bit.

        A missing coordinate counts as the start of its domain: rows that lack the same ones stay near each other.
        """
        width = np.where(self._hi > self._lo, self._hi - self._lo, 1.0)
        cell = np.nan_to_num(np.clip((qi - self._lo) / width, 0.0, 1.0), nan=0.0)
        place = np.zeros(len(qi))
        weight = 1.0
        levels = max(1, min(_LEVELS, 52 // qi.shape[1]))
        for _ in range(levels):
            cell = cell * 2.0
            upper = np.minimum(np.floor(cell), 1.0)
            cell = cell - upper
            for d in range(qi.shape[1]):
                weight /= 2.0
                place += upper[:, d] * weight
        return np.minimum(place * self._shards, self._shards - 1).astype(np.int64)
