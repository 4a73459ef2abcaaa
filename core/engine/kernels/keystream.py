"""Random bits by their place: what a method draws for a row by its number, and needs no state to draw again."""

from __future__ import annotations

import numpy as np

from crenel.engine.kernels.common import WORDS, Array, Random, chacha20_block, kernel


@kernel
def keystream(key: Array, first: int, words: Array) -> None:
    """Fill `words`, whole blocks of them, with ChaCha20's keystream (nonce 0) from block number `first` on."""
    random = Random(key, np.empty(WORDS, dtype=np.uint32))
    for block in range(words.size // WORDS):
        chacha20_block(random, first + block)
        for i in range(WORDS):
            words[block * WORDS + i] = random.block[i]
