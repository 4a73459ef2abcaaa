"""A random order, drawn from the system's cryptographic generator."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

__all__ = ["shuffled"]

_Item = TypeVar("_Item")


def shuffled(items: Sequence[_Item]) -> list[_Item]:
    """Put items in a random order.

    All random bytes are drawn at once: `SystemRandom.shuffle` asks the system for each item, which costs as much as to
    write it.
    """
    drawn = np.frombuffer(secrets.token_bytes(8 * len(items)), dtype=np.uint64)
    return list(map(items.__getitem__, np.argsort(drawn, kind="stable").tolist()))
