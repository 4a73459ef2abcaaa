"""Where draws come from: a generator for kernels, and 64 bits that belong to a row, found by its number."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from crenel.avro import unpacked
from crenel.engine.kernels.common import WORDS, Random
from crenel.engine.kernels.keystream import keystream

#: Draws of 64 bits in a block.
_DRAWS = WORDS // 2


class Draws:
    """The draws of an engine's rows.

    Args:
        key: The engine's. The draws have a key of their own that follows from it.
        count: How many a row has.
    """

    def __init__(self, key: bytes, count: int) -> None:
        self._key = unpacked(derived(key, b"crenel.draws"), "<u4")
        self._count = count
        self._blocks = -(-count // _DRAWS)

    def of(self, first: int, rows: int) -> NDArray[np.uint64]:
        """The draws of so many rows from number `first` on, a row each."""
        words = np.empty(rows * self._blocks * WORDS, dtype=np.uint32)
        keystream(self._key, first * self._blocks, words)
        halves = words.astype(np.uint64).reshape(rows, self._blocks * _DRAWS, 2)
        return np.ascontiguousarray((halves[:, :, 0] | (halves[:, :, 1] << np.uint64(32)))[:, : self._count])


def generator(key: bytes) -> Random:
    """The generator that kernels draw from, at its beginning."""
    return Random(key=unpacked(key, "<u4"), block=np.zeros(WORDS, dtype=np.uint32))


def derived(key: bytes, purpose: bytes) -> bytes:
    """A key for one purpose; who has it has not the engine's, nor that of another purpose."""
    return hashlib.blake2b(key=key, digest_size=32, person=purpose).digest()
