"""The keyed hash of 64-bit words."""

from __future__ import annotations

import numpy as np

from crenel.encoding.keyed_hash import siphash


def test_siphash_gives_the_hash_of_the_reference_implementation():
    # Its test vector: key 00..0f, message 00..07.
    key = np.frombuffer(bytes(range(16)), dtype="<u8").astype(np.uint64)
    word = np.frombuffer(bytes(range(8)), dtype="<i8").astype(np.int64)
    assert siphash(word, key).view(np.uint64)[0] == 0x93F5F5799A932462
