"""Seals: keyed digests of everything that is stored, checked before it is used.

Checkpoints, savepoints and what runners keep between two steps lie on disks and in networks. A number that was damaged
there would lead a compiled kernel astray, and one that was changed on purpose could undo a promise. So nothing is
stored without a digest under a key that is derived from the pipeline's secret, and nothing is read that fails it.

A pipeline that draws its secret has another one when it is built again, and must still be able to take up what it
stored before. Such a pipeline stores the key beside the digest. Damage is then found, but a forger is not: only a
secret that is named by the policy protects against one.
"""

from __future__ import annotations

import hashlib
import hmac

from crenel.errors import SnapshotError

__all__ = ["TAG", "Seal", "compare"]

#: Bytes of a digest.
TAG = 16
_KEY = 32
#: Bytes that tell keys apart, without telling anything else about them.
_NAME = 8
#: The first byte says whether the key's name follows, or the key itself.
_NAMED, _CARRIED = b"\x01", b"\x02"

_DAMAGED = (
    "Stored state does not match its digest, so it was damaged or changed and is not used. "
    "Go on from an earlier checkpoint or savepoint."
)
_ANOTHER_SECRET = (
    "Stored state was written under another secret, so it cannot be checked and is not used. "
    "Use the secret that it was written under, or drain the pipeline before you change the secret."
)


class Seal:
    """Closes what is stored, and opens it again if nobody else has touched it.

    Args:
        key: 32 bytes.
        carried: Whether to store the key, too. Such a seal opens whatever carries its own key.
    """

    def __init__(self, key: bytes, *, carried: bool) -> None:
        self._key = key
        self._carried = carried
        name = hashlib.blake2b(key=key, digest_size=_NAME, person=b"crenel.seal.name").digest()
        self._head = _CARRIED + key if carried else _NAMED + name

    def __repr__(self) -> str:
        """Tell nothing about the key."""
        return f"Seal(carried={self._carried})"

    @property
    def size(self) -> int:
        """Bytes that come before what was closed. The digest is the last of them."""
        return len(self._head) + TAG

    def close(self, kind: str, body: bytes, place: bytes = b"") -> bytes:
        """Put a digest before what is to be stored.

        Args:
            kind: What it is: nothing of one kind can be taken for something of another.
            body: What is to be stored.
            place: Where it will lie. It is not stored, and opening needs the same.
        """
        return b"".join((self._head, self.mark(kind, place, body), body))

    def open(self, kind: str, data: bytes, place: bytes = b"") -> bytes:
        """Return what was closed.

        Raises:
            SnapshotError: it was damaged or changed, or is of another kind, place or secret.
        """
        seal = self.of(data)
        body = data[seal.size :]
        seal.check(kind, data[seal.size - TAG : seal.size], place, body)
        return body

    def of(self, data: bytes) -> Seal:
        """Return the seal that closed this: this one, or another one whose key is carried.

        Raises:
            SnapshotError: it was closed under another secret, or is none of ours.
        """
        if data.startswith(self._head):
            return self
        if self._carried and data[:1] == _CARRIED:
            return Seal(data[1 : 1 + _KEY], carried=True)
        raise SnapshotError(_ANOTHER_SECRET if data[:1] in (_NAMED, _CARRIED) else _DAMAGED)

    def mark(self, kind: str, *parts: bytes) -> bytes:
        """Return the digest of some bytes, to be stored beside them."""
        digest = hashlib.blake2b(key=self._key, digest_size=TAG, person=kind.encode())
        for part in parts:
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.digest()

    def check(self, kind: str, mark: bytes, *parts: bytes) -> None:
        """Check the digest of some bytes.

        Raises:
            SnapshotError: it is not theirs.
        """
        compare(mark, self.mark(kind, *parts))


def compare(found: bytes, expected: bytes) -> None:
    """Compare a digest that was stored with the one that it should be; the time that it takes tells nothing.

    Raises:
        SnapshotError: they differ.
    """
    if not hmac.compare_digest(found, expected):
        raise SnapshotError(_DAMAGED)
