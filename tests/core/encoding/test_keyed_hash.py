"""The keyed hash of 64-bit words."""

from __future__ import annotations

import numpy as np

from crenel.encoding.keyed_hash import siphash


def test_siphash_gives_the_hash_of_the_reference_implementation():
    # Its test vector: key 00..0f, message 00..07.
    key = np.frombuffer(bytes(range(16)), dtype="<u8").astype(np.uint64)
    word = np.frombuffer(bytes(range(8)), dtype="<i8").astype(np.int64)
    assert siphash(word, key).view(np.uint64)[0] == 0x93F5F5799A932462


def test_few_words_hash_like_many():
    """Few are hashed by other code."""
    key = np.array([0xFEDCBA9876543210, 3], dtype=np.uint64)
    words = np.array([0, 1, -1, 2**63 - 1, -(2**63), *np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 95)])
    many = siphash(words, key)
    assert [siphash(words[i : i + 1], key)[0] for i in range(100)] == many.tolist()
    assert siphash(words[:8], key).tolist() == many[:8].tolist()
