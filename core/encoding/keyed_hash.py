"""SipHash-2-4: a fast hash of 64-bit words under a secret key.

Whoever does not have the key can neither compute the hashes nor learn anything about a word from its hash.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["siphash"]

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

#: Words hashed at a time. A part of this size stays in the processor's cache: a column of 500,000 words took a third
#: of the time it took in one piece. Parts of 1,024 words were slower than one piece.
_PART = 16_384

#: Up to so many words are hashed one by one, with Python's integers: an array function takes longer to call.
_FEW = 8
_MASK = (1 << 64) - 1


def siphash(words: Ints, key: Words) -> Ints:
    """Hash each word (8 bytes, little-endian) under a key of two words."""
    hashes = np.empty(len(words), dtype=np.int64)
    if len(words) <= _FEW:
        k0, k1 = int(key[0]), int(key[1])
        hashes.view(np.uint64)[:] = [_siphash_of_one(word, k0, k1) for word in words.tolist()]
        return hashes
    work = np.empty((5, min(len(words), _PART)), dtype=np.uint64)
    for start in range(0, len(words), _PART):
        word = words[start : start + _PART].astype(np.int64, copy=False).view(np.uint64)
        _siphash(word, key, work[:, : len(word)], hashes[start : start + _PART].view(np.uint64))
    return hashes


def _siphash(word: Words, key: Words, work: Words, hashes: Words) -> None:
    """Hash words, in memory that is used again for the next ones."""
    k0, k1 = key
    *v, scratch = work
    v[0][:] = k0 ^ np.uint64(0x736F6D6570736575)
    v[1][:] = k1 ^ np.uint64(0x646F72616E646F6D)
    v[2][:] = k0 ^ np.uint64(0x6C7967656E657261)
    v[3][:] = k1 ^ np.uint64(0x7465646279746573)
    for block in (word, np.uint64(8 << 56)):
        v[3] ^= block
        _sip_round(v, scratch)
        _sip_round(v, scratch)
        v[0] ^= block
    v[2] ^= np.uint64(0xFF)
    for _ in range(4):
        _sip_round(v, scratch)
    np.bitwise_xor(v[0] ^ v[1], v[2] ^ v[3], out=hashes)


def _sip_round(v: list[Words], scratch: Words) -> None:
    v[0] += v[1]
    _rotate(v[1], 13, scratch)
    v[1] ^= v[0]
    _rotate(v[0], 32, scratch)
    v[2] += v[3]
    _rotate(v[3], 16, scratch)
    v[3] ^= v[2]
    v[0] += v[3]
    _rotate(v[3], 21, scratch)
    v[3] ^= v[0]
    v[2] += v[1]
    _rotate(v[1], 17, scratch)
    v[1] ^= v[2]
    _rotate(v[2], 32, scratch)


def _rotate(word: Words, bits: int, scratch: Words) -> None:
    np.right_shift(word, np.uint64(64 - bits), out=scratch)
    np.left_shift(word, np.uint64(bits), out=word)
    np.bitwise_or(word, scratch, out=word)


def _siphash_of_one(word: int, k0: int, k1: int) -> int:
    a, b = k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D
    c, d = k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573
    for block, rounds, final in ((word & _MASK, 2, 0), (8 << 56, 2, 0), (0, 4, 0xFF)):
        c ^= final
        d ^= block
        for _ in range(rounds):
            a = (a + b) & _MASK
            b = ((b << 13) & _MASK | b >> 51) ^ a
            a = (a << 32) & _MASK | a >> 32
            c = (c + d) & _MASK
            d = ((d << 16) & _MASK | d >> 48) ^ c
            a = (a + d) & _MASK
            d = ((d << 21) & _MASK | d >> 43) ^ a
            c = (c + b) & _MASK
            b = ((b << 17) & _MASK | b >> 47) ^ c
            c = (c << 32) & _MASK | c >> 32
        a ^= block
    return a ^ b ^ c ^ d
