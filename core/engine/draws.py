"""Random draws: the generator that kernels use, and draws that belong to a row and follow from its number."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from crenel.avro import unpacked
from crenel.engine.kernels.generator import WORDS, Random, chacha20_block, keystream

#: Draws of 64 bits in a block of the keystream.
_DRAWS = WORDS // 2


class Draws:
    """The draws of an engine's rows: the same for the same row number, without any state.

    Args:
        key: The engine's key. The draws use a key of their own, which is derived from it.
        count: Draws per row.
    """

    def __init__(self, key: bytes, count: int) -> None:
        self._key = unpacked(derived(key, b"crenel.draws"), "<u4")
        self._count = count
        self._blocks = -(-count // _DRAWS)

    def of(self, first: int, rows: int) -> NDArray[np.uint64]:
        """Return the draws of `rows` rows, one row per line, from row number `first` on."""
        words = np.empty(rows * self._blocks * WORDS, dtype=np.uint32)
        keystream(self._key, first * self._blocks, words)
        halves = words.astype(np.uint64).reshape(rows, self._blocks * _DRAWS, 2)
        return np.ascontiguousarray((halves[:, :, 0] | (halves[:, :, 1] << np.uint64(32)))[:, : self._count])


def generator(key: bytes, draws: int = 0) -> Random:
    """Return the generator with this key, after `draws` words of its keystream were used."""
    random = Random(key=unpacked(key, "<u4", (8,)), block=np.zeros(WORDS, dtype=np.uint32))
    if draws % WORDS:  # at the beginning of a block, the next draw computes it
        chacha20_block(random, draws // WORDS)
    return random


def derived(key: bytes, purpose: bytes) -> bytes:
    """Return a key for one purpose. Neither the engine key nor another derived key can be recovered from it."""
    return hashlib.blake2b(key=key, digest_size=32, person=purpose).digest()
