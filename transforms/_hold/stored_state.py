"""The state of a key and window as it is stored: a log of operations, a snapshot, and a token, all of them sealed.

The digests form a chain: that of an operation covers the one before it, the first covers the snapshot's, and the token
holds the last. So nothing can be damaged, exchanged, left out, added or put in another order, within a state or between
two, without being noticed before it is used. Only a whole state can be replaced unnoticed: by an earlier state of the
same key and window, or by none.
"""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass
from typing import Any

from crenel.seal import TAG, Seal, compare

__all__ = ["PUSH", "Cells", "Chain", "Stored"]

#: The first byte of an operation that is a pack.
PUSH = b"p"

_TOKEN, _SNAPSHOT, _LOG, _NOTHING = "crenel.token", "crenel.snapshot", "crenel.log", "crenel.nothing"
#: The number of an operation in the log, so that sorting bytes sorts operations.
_NUMBER = struct.Struct(">Q")
#: Bytes before an operation in the log: its number and its digest.
_ENTRY = _NUMBER.size + TAG
#: Random bytes of a token.
_RANDOM = 8
#: The header that a seal puts before the data has fewer bytes than this.
_HEAD = 64


@dataclass(frozen=True)
class Cells:
    """The state of one key and window: all of it bytes, in few cells."""

    log: Any
    snapshot: Any
    token: Any


class Chain:
    """The digests of a state.

    Args:
        seal: Makes the digests.
        place: The key and window.
        last: The last digest; by default that of a state without anything in it.
    """

    def __init__(self, seal: Seal, place: bytes, last: bytes | None = None) -> None:
        self._seal = seal
        self._place = place
        self._last = seal.mark(_NOTHING, place) if last is None else last

    @property
    def last(self) -> bytes:
        """The last digest."""
        return self._last

    def entry(self, number: int, op: bytes) -> bytes:
        """Return an operation as it is appended to the log."""
        return self.head(number, op) + op

    def head(self, number: int, op: bytes) -> bytes:
        """Return what comes before an operation in the log, and go on to it."""
        self._last = self._seal.mark(_LOG, self._last, self._covered(op))
        return _NUMBER.pack(number) + self._last

    def snapshot(self, seal: Seal, data: bytes) -> bytes:
        """Return a snapshot as it is stored. The chain begins anew with it, under this seal."""
        closed = seal.close(_SNAPSHOT, data, self._place)
        self._seal, self._last = seal, closed[seal.size - TAG : seal.size]
        return closed

    def token(self) -> bytes:
        """Return a new token: whoever finds it in the state knows that the state is as the chain left it."""
        return self._seal.close(_TOKEN, secrets.token_bytes(_RANDOM) + self._last, self._place)

    def _covered(self, op: bytes) -> bytes:
        """What the digest of an operation covers: of a pack its own digest, which is checked when it is opened."""
        return op[: 1 + self._seal.of(op[1:_HEAD]).size] if op[:1] == PUSH else op


@dataclass(frozen=True, eq=False)
class Stored:
    """What was read from the cells, and found to be as it was written."""

    chain: Chain
    snapshot: bytes | None
    ops: list[bytes]
    #: Bytes that are stored of both.
    snapshot_size: int
    log_size: int

    @classmethod
    def read(cls, seal: Seal, place: bytes, token: bytes, cells: Cells) -> Stored:
        """Read the cells.

        Args:
            seal: The seal of this pipeline.
            place: The key and window.
            token: What the cell of the token holds.
            cells: All cells.

        Raises:
            SnapshotError: something was damaged, changed, left out or exchanged, or written under another secret.
        """
        seal = seal.of(token)
        last = seal.open(_TOKEN, token, place)[_RANDOM:]
        stored = cells.snapshot.read()
        chain, snapshot = Chain(seal, place), None
        if stored is not None:
            snapshot = seal.open(_SNAPSHOT, stored, place)
            chain = Chain(seal, place, stored[seal.size - TAG : seal.size])
        log = sorted(cells.log.read())  # a bag has no order; each operation begins with its number
        ops = [entry[_ENTRY:] for entry in log]
        for number, (entry, op) in enumerate(zip(log, ops, strict=True)):
            compare(entry[:_ENTRY], chain.head(number, op))
        compare(last, chain.last)
        return cls(chain, snapshot, ops, len(stored or b""), sum(map(len, log)))
