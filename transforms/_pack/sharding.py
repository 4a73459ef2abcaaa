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
from crenel.errors import SnapshotError
from crenel.policy import Policy, ShardBy, ShardTree, columns
from crenel.policy.sensitive import Sensitive
from crenel.policy.sharding.tree_schedule import TreeSchedule
from crenel.transforms._pack.payloads import Payload

_UNDECLARED = Sensitive()
_OTHER_WITHIN = (
    "Rows of one shard differ in the columns of policy.within. Either they were held or packed under another policy: "
    "drain the pipeline before you change within. Or two values share a number under this secret: name another secret."
)


def shard_name(shard: int, window: Any) -> bytes:
    """Return the name of an engine, and of its place in state: unique, and the same in every process."""
    if isinstance(window, GlobalWindow):
        return f"{shard}".encode()
    return f"{shard} {window.start.micros} {window.end.micros}".encode()


def kept_apart(policy: Policy, payload: Payload) -> set[tuple[str, ...]]:
    """Return the distinct tuples of `within` values among the rows, as text. A shard may have only one such tuple.

    Raises:
        SnapshotError: the rows came under a policy that did not keep them apart by these columns.
    """
    if not policy.within or not len(payload):
        return set()
    try:
        found = [columns.factorize(payload.column(name)) for name in policy.within]
    except (KeyError, ValueError):
        raise SnapshotError(_OTHER_WITHIN) from None
    codes = np.unique(np.stack([code for code, _ in found], axis=1), axis=0)
    return {tuple(columns.text_of(found[d][1][at]) for d, at in enumerate(row)) for row in codes.tolist()}


def check_apart(policy: Policy, *payloads: Payload) -> None:
    """Refuse rows in one shard that must be kept apart.

    Raises:
        SnapshotError: two values have one number, or the rows came under another policy.
    """
    if len(set().union(*(kept_apart(policy, payload) for payload in payloads))) > 1:
        raise SnapshotError(_OTHER_WITHIN)


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
        self._within = policy.within

    def shards(self, rows: Rows, given: Mapping[str, Any], kept: NDArray[np.int64]) -> NDArray[np.int64]:
        """Find the shard of each row.

        `given` has the columns of the input, and `kept` the places there of the rows that were encoded.

        Rows that must be kept apart (`within`) go to shards of their own, whose numbers have 62 bits. HOLD compares the
        values themselves (`kept_apart`), since two of them may get the same number.
        """
        shard = self._shard(rows, given, kept)
        if not self._within:
            return shard
        several = np.uint64(self._shards)
        mixed = self._mixed(self._within, len(rows), given, kept).view(np.uint64) >> np.uint64(2)
        return (mixed - mixed % several).astype(np.int64) + shard

    def _shard(self, rows: Rows, given: Mapping[str, Any], kept: NDArray[np.int64]) -> NDArray[np.int64]:
        # The tree of LOCALITY is learned from these rows, and DEAL assigns them.
        if self._shards == 1 or self._by is ShardBy.LOCALITY:
            return np.zeros(len(rows), dtype=np.int64)
        if self._by is ShardBy.PERSON:
            return self._spread(rows.person)
        if isinstance(self._by, ShardTree):
            return self._by.find(rows.qi)
        if isinstance(self._by, TreeSchedule):
            return self._by.find(rows.qi, rows.time)
        return self._spread(self._mixed(self._fields, len(rows), given, kept))

    def _mixed(
        self, names: tuple[str, ...], count: int, given: Mapping[str, Any], kept: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Hash the values of columns."""
        mixed = np.zeros(count, dtype=np.int64)
        for name in names:
            if name in given:
                mixed = siphash(mixed ^ _UNDECLARED.codes(given[name])[0][kept], self._key)
        return mixed

    def _spread(self, hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        # The high bits of a product are mixed best.
        mixed = hashes.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return ((mixed >> np.uint64(33)) % np.uint64(self._shards)).astype(np.int64)
