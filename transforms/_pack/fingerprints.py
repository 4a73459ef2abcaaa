"""Fingerprints of the policy and the key under which state and packs were written.

A pipeline can be updated while it holds rows and while packs are on their way. State and packs say under which policy
they were written, and under which key persons were hashed: so a row is never released by the rules of another policy,
nor counted by a hash of another key.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Any

from crenel.errors import PolicyError, SnapshotError
from crenel.policy import Policy

_SIZE = 8


def persons_mark(policy: Policy, secret: bytes) -> bytes:
    """Mark hashes of persons: only those with one mark can be compared."""
    return _digest(secret + b"\0" + policy.person.encode())


def space_mark(policy: Policy) -> bytes:
    """Mark encoded rows: one mark means the same quasi-identifiers, sensitive columns, and noise."""
    return _space(_ById(policy))


def check_space(mark: bytes, policy: Policy) -> None:
    """Refuse rows that were encoded under a policy with another mark.

    Raises:
        SnapshotError: they were.
    """
    if mark and mark != space_mark(policy):
        message = (
            "Rows were encoded under other quasi-identifiers or sensitive columns than the policy has now. "
            "Drain the pipeline before you change these."
        )
        raise SnapshotError(message)


def policy_text(policy: Policy) -> str:
    """Write the policy, to be stored with what is written under it."""
    return _text(_ById(policy))


def policy_of(text: str) -> Policy:
    """Read the policy that state was written under.

    Raises:
        SnapshotError: it has a type of quasi-identifier that is not registered, and so could not be stored.
    """
    try:
        return Policy.from_dict(json.loads(text))
    except (PolicyError, ValueError):
        message = "The state was written under another policy, which cannot be read back. Drain the pipeline first."
        raise SnapshotError(message) from None


class _ById:
    """A policy as the key of a cache, by identity: comparing hierarchies would cost more than the cache saves."""

    __slots__ = ("policy",)

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.policy is self.policy

    def __hash__(self) -> int:
        return id(self.policy)


@lru_cache(maxsize=32)
def _text(key: _ById) -> str:
    try:
        return json.dumps(key.policy.to_dict(), default=str)
    except PolicyError:
        return repr(key.policy)


@lru_cache(maxsize=32)
def _space(key: _ById) -> bytes:
    noise = dict(key.policy.parameter("perturb_sensitive", {}))
    try:
        said: dict[str, Any] = key.policy.to_dict()
    except PolicyError:
        whole = (key.policy.quasi_identifiers, key.policy.sensitive, *([noise] if noise else []))
        return _digest(repr(whole).encode())
    # As a list, since the order of columns counts.
    named = [list(said["quasi_identifiers"].items()), said.get("sensitive")]
    if noise:
        named.append(noise)
    if key.policy.within:
        named.append(list(key.policy.within))
    return _digest(json.dumps(named, default=str).encode())


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_SIZE, person=b"crenel.mark").digest()
