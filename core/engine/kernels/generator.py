"""The random generator: the keystream of ChaCha20.

Functions take `numbers`, an array of one element that has the field `draws`: how many words of the keystream were used.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from crenel.engine.kernels.arrays import Array, copy_into
from crenel.engine.kernels.compiler import bare, kernel

#: Words of 32 bits in a block of the keystream.
WORDS = 16


class Random(NamedTuple):
    """The generator's key, and the block of the keystream that is in use."""

    key: Any
    block: Any


@bare
def _quarter_round(x: Array, a: int, b: int, c: int, d: int) -> None:
    x[a] = x[a] + x[b]
    v = x[d] ^ x[a]
    x[d] = (v << 16) | (v >> 16)
    x[c] = x[c] + x[d]
    v = x[b] ^ x[c]
    x[b] = (v << 12) | (v >> 20)
    x[a] = x[a] + x[b]
    v = x[d] ^ x[a]
    x[d] = (v << 8) | (v >> 24)
    x[c] = x[c] + x[d]
    v = x[b] ^ x[c]
    x[b] = (v << 7) | (v >> 25)


@kernel
def chacha20_block(random: Random, counter: int) -> None:
    """Write block number `counter` of the keystream (nonce 0) into the generator's block."""
    start = np.empty(WORDS, dtype=np.uint32)
    start[0], start[1], start[2], start[3] = 0x61707865, 0x3320646E, 0x79622D32, 0x6B206574
    copy_into(random.key, start[4:12])
    start[12] = counter & 0xFFFFFFFF
    start[13] = counter >> 32
    start[14] = start[15] = 0
    block = random.block
    copy_into(start, block)
    for _ in range(10):
        _quarter_round(block, 0, 4, 8, 12)
        _quarter_round(block, 1, 5, 9, 13)
        _quarter_round(block, 2, 6, 10, 14)
        _quarter_round(block, 3, 7, 11, 15)
        _quarter_round(block, 0, 5, 10, 15)
        _quarter_round(block, 1, 6, 11, 12)
        _quarter_round(block, 2, 7, 8, 13)
        _quarter_round(block, 3, 4, 9, 14)
    for i in range(WORDS):
        block[i] = block[i] + start[i]


@kernel
def keystream(key: Array, first: int, words: Array) -> None:
    """Fill `words`, a whole number of blocks, with the keystream from block number `first` on."""
    random = Random(key, np.empty(WORDS, dtype=np.uint32))
    for block in range(words.size // WORDS):
        chacha20_block(random, first + block)
        for i in range(WORDS):
            words[block * WORDS + i] = random.block[i]


@bare
def below(random: Random, numbers: Array, n: int) -> int:
    """Draw a number from 0 to n - 1. Every number is exactly as likely."""
    counters = numbers[0]
    while True:
        word = counters.draws % WORDS
        if word == 0:
            chacha20_block(random, counters.draws // WORDS)
        counters.draws += 1
        product = np.int64(random.block[word]) * n
        rest = product & 0xFFFFFFFF
        # The limit is below n: most of the time the expensive division is not needed.
        if rest >= n or rest >= (2**32 - n) % n:
            return product >> 32


@bare
def unit(random: Random, numbers: Array) -> float:
    """Draw a number from 0 to 1, without 1, with 53 random bits."""
    n = numbers[0]
    bits = np.int64(0)
    for _ in range(2):
        word = n.draws % WORDS
        if word == 0:
            chacha20_block(random, n.draws // WORDS)
        n.draws += 1
        bits = (bits << 32) | np.int64(random.block[word])
    return np.float64((bits >> 11) & 0x1FFFFFFFFFFFFF) / 9007199254740992.0


@bare
def shuffle(random: Random, numbers: Array, items: Array) -> None:
    """Shuffle `items`. Every order is exactly as likely."""
    for i in range(items.size - 1, 0, -1):
        j = below(random, numbers, i + 1)
        items[i], items[j] = items[j], items[i]


@kernel
def draw(random: Random, numbers: Array, n: int) -> int:
    """Draw a number from 0 to n - 1, for callers in Python."""
    return below(random, numbers, n)
