"""Engines that a worker keeps in memory between bundles.

State is the truth: an append-only log of operations, replaced by a snapshot now and then. To read all of it back for
every bundle would cost as much as all held rows. So a process keeps the shards of a key in memory, and uses them again
if the token stored beside the state is the one that they left there. They are taken out of the cache before they are
changed: a bundle that fails leaves nothing behind, and a key that moved to another worker is rebuilt from its state.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from crenel.transforms._hold.shard_set import ShardSet
from crenel.transforms._hold.stored_state import Chain

#: The most keys that a process caches, since each keeps room for as many rows as it ever held. The least recently used
#: are dropped first, and rebuilt when they are needed.
_MOST = 512

#: The id of the transform, Beam's key, and the window.
Key = tuple[str, int, Any]


@dataclass
class CachedShards:
    """The shards of a key in memory, and what is known of their state."""

    key: Key
    shards: ShardSet
    #: The token that is stored beside the state of these very shards.
    token: bytes = field(repr=False)
    #: The digests of the state.
    chain: Chain = field(repr=False)
    #: Operations and bytes in the log since the snapshot; bytes in the snapshot, 0 if there is none yet.
    ops: int = 0
    bytes: int = 0
    snapshot: int = 0
    #: Whether the state was written under another policy: then the next thing to be stored is a snapshot.
    outdated: bool = False
    #: The times that timers were last set to, in microseconds.
    armed: tuple[int, ...] = ()


class EngineCache:
    """The cached shards of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, CachedShards] = OrderedDict()

    def take(self, key: Key) -> CachedShards | None:
        """Take the shards of a key out; nobody else gets them until they are put back."""
        with self._lock:
            return self._kept.pop(key, None)

    def put(self, key: Key, cached: CachedShards) -> None:
        """Keep shards for the next bundle."""
        with self._lock:
            self._kept[key] = cached
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)

    def __len__(self) -> int:
        """Count the keys."""
        return len(self._kept)


CACHE = EngineCache()
