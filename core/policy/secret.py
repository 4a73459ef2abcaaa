"""The secret that all random draws of a pipeline start from.

It is drawn, or read from where the policy says. A policy holds only the reference (`env:NAME`, `file:PATH`). The secret
itself is read when a pipeline is built or an engine is created, and never appears in an error message.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
import stat

from crenel.errors import PolicyError
from crenel.policy import Policy
from crenel.policy.reading.named_files import NotReadable, opened

__all__ = ["secret_of"]

#: Bytes in a drawn secret, and the least number of bytes in a given one.
_SIZE = 32

#: A secret of 32 random bytes has about 30 distinct bytes. A placeholder has few.
_FEWEST_DIFFERENT = 16

#: The most text to read: a wrong path must not fill the memory.
_LONGEST = 65_536

_HEX = re.compile(rb"(?:[0-9a-fA-F]{2})+")
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


def secret_of(policy: Policy) -> bytes:
    """Return the secret of a pipeline: from the policy's `seed`, from what its `secret` refers to, or 256 random bits.

    Without `seed` and `secret`, every call draws a new secret. So call this once per pipeline and send the result along
    with it: every worker and every retry must make the same draws.

    Raises:
        PolicyError: The secret that the policy refers to does not exist, or is too weak.
    """
    if policy.seed is not None:
        return f"seed {policy.seed}".encode()
    if policy.secret is None:
        return secrets.token_bytes(_SIZE)
    kind, _, name = policy.secret.partition(":")
    return _decoded(_variable(name) if kind == "env" else _file(name), policy.secret)


def _variable(name: str) -> bytes:
    text = os.environ.get(name)
    if text is None:
        message = f"names the environment variable {name}, which is not set where the pipeline is built."
        raise _wrong(message)
    return text.encode("utf-8", "surrogateescape")


def _file(path: str) -> bytes:
    try:
        with opened(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_LONGEST + 1)
    except (FileNotFoundError, NotReadable) as error:
        why = error if isinstance(error, NotReadable) else "cannot be read: no such file or directory"
        message = f"names the file {path}, which {why}."
        raise _wrong(message) from None
    if os.name == "posix" and mode & (stat.S_IROTH | stat.S_IWOTH):
        message = f"names the file {path}, which every user of the machine may read or write: run chmod o-rw on it."
        raise _wrong(message)
    return text


def _decoded(text: bytes, reference: str) -> bytes:
    """Decode a secret from hex or base64."""
    joined = b"".join(text.split())
    rule = f"of at least {_SIZE} bytes, as openssl rand -hex {_SIZE} writes it"
    try:
        if len(text) > _LONGEST or not joined:
            raise ValueError
        # Try hex first: most hex text is valid base64 too, but then seems to hold more random bits than it does.
        found = bytes.fromhex(joined.decode("ascii")) if _HEX.fullmatch(joined) else _base64(joined)
    except (ValueError, binascii.Error):
        message = f"must name a secret in hex or base64 {rule}; what {reference} holds is neither."
        raise _wrong(message) from None
    if len(found) < _SIZE:
        message = f"must name a secret {rule}; {reference} holds {len(found)} bytes."
        raise _wrong(message)
    if len(set(found)) < _FEWEST_DIFFERENT:
        message = f"must name a secret drawn at random, {rule}; what {reference} holds repeats itself."
        raise _wrong(message)
    return found


def _base64(text: bytes) -> bytes:
    plain = text.translate(_URL_SAFE).rstrip(b"=")
    return base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)


def _wrong(sentence: str) -> PolicyError:
    return PolicyError([("secret", sentence)])
