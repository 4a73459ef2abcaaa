"""Engines that a worker keeps alive between bundles.

State is the truth: an append-only log of what happened, and now and then a snapshot that replaces it. Reading all of it
back for every bundle would cost the buffer, not the bundle; so the live holder stays in memory, process-wide, to serve
again if the token stored beside the state is the one it left there. It is taken out before it is touched: a bundle that
fails leaves nothing behind, and a key that was elsewhere in the meantime is rebuilt.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from crenel.transforms.holder import Holder

#: Holders that a process keeps: one that held many rows keeps room for as many. Those used least recently go first,
#: and are rebuilt when they are needed.
_MOST = 512


@dataclass
class Live:
    """A holder in memory, and what is known of its state."""

    holder: Holder
    #: What is stored beside the state if this is its holder.
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
    """The live holders of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: OrderedDict[Any, Live] = OrderedDict()

    def take(self, key: Any) -> Live | None:
        """Take a holder out; until it is put back it is nobody else's."""
        with self._lock:
            return self._holders.pop(key, None)

    def put(self, key: Any, live: Live) -> None:
        """Keep a holder for the next bundle."""
        with self._lock:
            self._holders[key] = live
            while len(self._holders) > _MOST:
                self._holders.popitem(last=False)

    def __len__(self) -> int:
        """Count the holders."""
        return len(self._holders)


MEMORY = Memory()
