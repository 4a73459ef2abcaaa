"""An order of rows that only the secret knows.

Each row gets a keyed hash of its shard and of its arrival there. A writer that sorts rows by it gives away nothing of
event times, shards, arrivals or releases, and writes the same whatever the workers and files were.
"""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
from apache_beam.transforms.window import GlobalWindow
from numpy.typing import NDArray

from crenel.encoding.keyed_hash import siphash

__all__ = ["RowOrder", "order_of"]

#: Bits of the number of a row in its shard; the other bits hold the shard.
_NUMBER_BITS = 44


class RowOrder:
    """Hashes rows.

    Args:
        secret: The order is drawn from it.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._key = cache(self._drawn_key)

    def hashes(self, shard: int, number: NDArray[np.int64], window: Any) -> NDArray[np.uint64]:
        """Hash rows of a shard and window by their arrivals there; no two rows of a shard share an arrival."""
        words = np.asarray(number, dtype=np.int64)
        if shard >> (63 - _NUMBER_BITS):  # too large to share a word with the number: it gets a key of its own
            return siphash(words, self._key(_name(window) + b"#%d" % shard)).view(np.uint64)
        return siphash(words | np.int64(shard << _NUMBER_BITS), self._key(_name(window))).view(np.uint64)

    def _drawn_key(self, name: bytes) -> NDArray[np.uint64]:
        digest = blake2b(self._secret + name, digest_size=16, person=b"crenel.order").digest()
        return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def order_of(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Order rows by their hashes, and rows of one hash as they come."""
    # numpy sorts in a fifth of the time if it may exchange equals, which 64 bits hardly ever have.
    order = np.argsort(hashes)
    found = hashes[order]
    return np.argsort(hashes, kind="stable") if np.any(found[1:] == found[:-1]) else order


def _name(window: Any) -> bytes:
    if isinstance(window, GlobalWindow):
        return b""
    return f" {window.start.micros} {window.end.micros}".encode()
