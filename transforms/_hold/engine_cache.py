"""Engines that a worker keeps alive between bundles.

State is the truth: an append-only log of what happened, and now and then a snapshot that replaces it. Reading all of it
back for every bundle would cost the buffer, not the bundle; so the live holders of a key stay in memory, process-wide,
to serve again if the token stored beside the state is the one they left there. They are taken out before they are
touched: a bundle that fails leaves nothing behind, and a key that was elsewhere in the meantime is rebuilt.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from crenel.transforms._hold.shard_set import Shards

#: Keys of which a process keeps the holders: one that held many rows keeps room for as many. Those used least recently
#: go first, and are rebuilt when they are needed.
_MOST = 512

#: What tells the transform from others, Beam's key, and the window.
Key = tuple[str, int, Any]


@dataclass
class Live:
    """The shards of a key in memory, and what is known of their state."""

    key: Key
    shards: Shards
    #: What is stored beside the state if these are its shards.
    token: bytes
    #: Operations and bytes in the log since the snapshot; bytes in the snapshot, 0 if there is none yet.
    ops: int = 0
    bytes: int = 0
    snapshot: int = 0
    #: Whether the state is of another policy: the next thing to be stored is a snapshot.
    outdated: bool = False
    #: What the timer was last set to, in microseconds.
    armed: int | None = None


class Memory:
    """What a process keeps alive."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, Live] = OrderedDict()

    def take(self, key: Key) -> Live | None:
        """Take the holders of a key out; until they are put back they are nobody else's."""
        with self._lock:
            return self._kept.pop(key, None)

    def put(self, key: Key, live: Live) -> None:
        """Keep holders for the next bundle."""
        with self._lock:
            self._kept[key] = live
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)

    def __len__(self) -> int:
        """Count the keys."""
        return len(self._kept)


MEMORY = Memory()
