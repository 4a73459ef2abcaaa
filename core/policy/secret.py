"""The secret that all random draws and all keys of a pipeline start from.

It is drawn, or read from where the policy says. A policy holds only the reference (`env:NAME`, `file:PATH`,
`gcp:VERSION`), and so does a pipeline on its way to the workers: each of them reads the secret itself. It never appears
in an error message.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
import stat
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from crenel.errors import PolicyError, SecretError
from crenel.policy import Policy
from crenel.policy.reading.named_files import NotReadable, opened
from crenel.policy.treatments.treatment import Pseudonymize
from crenel.seal import Seal

__all__ = ["Secret", "as_secret", "pseudonym_keys", "read_reference", "secret_of", "without_secret"]

#: Bytes in a drawn secret, and the least number of bytes in a given one.
_SIZE = 32

#: A secret of 32 random bytes has about 30 distinct bytes. A placeholder has few.
_FEWEST_DIFFERENT = 16

#: The most text to read: a wrong path must not fill the memory.
_LONGEST = 65_536

_HEX = re.compile(rb"(?:[0-9a-fA-F]{2})+")
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_BUILT, _WORKER = "where the pipeline is built", "on a worker"


@dataclass(frozen=True, eq=False, repr=False)
class Secret:
    """The secret of a pipeline, as it travels to the workers.

    A secret that the policy names travels as its reference. Every worker reads it for itself, and compares it with a
    keyed digest of the one that was found when the pipeline was built. A secret that was drawn has to travel itself,
    and so does what a `seed` stands for.
    """

    #: 256 bits; None if they are not taken along.
    _root: bytes | None
    #: Where workers find the secret, and a digest of what they have to find, if that is known.
    _reference: str | None = None
    _digest: bytes | None = None
    #: Whether the secret was drawn: a pipeline that is built again has another one.
    is_drawn: bool = False

    def __repr__(self) -> str:
        """Tell where the secret comes from, never what it is."""
        return f"Secret({self._reference or ('drawn' if self.is_drawn else 'given')})"

    @classmethod
    def of(cls, policy: Policy, *, is_here: bool = True) -> Secret:
        """Return the secret of a pipeline with this policy.

        Without `seed` and `secret` in the policy, every call draws a new secret. So call this once per pipeline.

        Args:
            policy: Says where the secret is.
            is_here: Whether the work is done where this is called, so that the secret must be here, too.

        Raises:
            PolicyError: The secret that the policy refers to does not exist, or is too weak.
        """
        if policy.secret is None:
            return cls.given(secret_of(policy), is_drawn=policy.seed is None)
        try:
            digest = _digest(_root(secret_of(policy)))
        except PolicyError:
            if is_here:
                raise
            digest = None  # workers still notice if they differ: one cannot open what another has closed
        return cls(None, policy.secret, digest)

    @classmethod
    def given(cls, secret: bytes, *, is_drawn: bool = False) -> Secret:
        """Return a secret that travels itself."""
        return cls(_root(secret), is_drawn=is_drawn)

    @property
    def root(self) -> bytes:
        """The 256 bits from which every key is derived.

        Raises:
            SecretError: They are not where they should be, or are not those of the pipeline.
        """
        if self._root is not None:
            return self._root
        reference = str(self._reference)
        try:
            root = _root(_read(reference, _WORKER))
        except PolicyError as error:
            message = f"{error} Every worker needs the secret: docs/runners.md says how it gets there."
            raise SecretError(message) from None
        if self._digest is not None and not hmac.compare_digest(self._digest, _digest(root)):
            message = (
                f"policy.secret: a worker finds another secret under {reference} than there was where the pipeline was "
                "built. Give all of them the same one."
            )
            raise SecretError(message)
        return root

    @property
    def seal(self) -> Seal:
        """The seal of everything that a pipeline with this secret stores."""
        return Seal(self.key(b"crenel.seal"), carried=self.is_drawn)

    def key(self, purpose: bytes) -> bytes:
        """Return a key of 32 bytes for one purpose. Neither the secret nor another key can be recovered from it."""
        return hashlib.blake2b(key=self.root, digest_size=_SIZE, person=purpose).digest()


def as_secret(given: bytes | Secret, policy: Policy) -> Secret:
    """Return a given secret. Bytes count as drawn, unless the policy names a secret or a seed."""
    if isinstance(given, Secret):
        return given
    return Secret.given(given, is_drawn=policy.seed is None and policy.secret is None)


def without_secret(policy: Policy) -> Policy:
    """Return the policy as workers need it: without its seed, and without the reference to its secret."""
    return policy if policy.seed is None and policy.secret is None else replace(policy, seed=None, secret=None)


def secret_of(policy: Policy) -> bytes:
    """Return the secret of a policy: from its `seed`, from what its `secret` refers to, or 256 random bits.

    Raises:
        PolicyError: The secret that the policy refers to does not exist, or is too weak.
    """
    if policy.seed is not None:
        return f"seed {policy.seed}".encode()
    if policy.secret is None:
        return secrets.token_bytes(_SIZE)
    return _read(policy.secret, _BUILT)


def _root(secret: bytes) -> bytes:
    return hashlib.blake2b(secret, digest_size=_SIZE).digest()


def _digest(root: bytes) -> bytes:
    return hashlib.blake2b(key=root, digest_size=16, person=b"crenel.same").digest()


def _read(reference: str, where: str) -> bytes:
    try:
        text = read_reference(reference, where)
    except LookupError as error:
        raise _wrong(str(error)) from None
    return _decoded(text, reference)


def pseudonym_keys(policy: Policy) -> dict[str, bytes]:
    """Return the keys of the columns that are published as pseudonyms.

    Raises:
        SecretError: One is not there, or too weak. The message never holds it.
    """
    treated = {name: one for name, one in policy.treat.items() if isinstance(one, Pseudonymize)}
    return {name: _key_at(one.key, f"treat.{name}.pseudonymize") for name, one in treated.items()}


def _key_at(reference: str, field: str) -> bytes:
    try:
        return _decoded(read_reference(reference, _WORKER), reference)
    except LookupError as error:
        message = f"policy.{field} {error}"
    except PolicyError as error:
        message = " ".join(f"policy.{field} {sentence}" for _, sentence in error.details)
    raise SecretError(message)


def read_reference(reference: str, where: str) -> bytes:
    """Read what a reference names: `env:NAME`, `file:PATH` or `gcp:VERSION`.

    Args:
        reference: The reference.
        where: Where it is read, for the error's sentence.

    Raises:
        LookupError: it is not there, or not safe there. The message is the rest of a sentence, without what was read.
    """
    kind, _, name = reference.partition(":")
    if kind == "env":
        return _variable(name, where)
    return _file(name, where) if kind == "file" else _secret_manager(name, where)


def _variable(name: str, where: str) -> bytes:
    text = os.environ.get(name)
    if text is None:
        message = f"names the environment variable {name}, which is not set {where}."
        raise LookupError(message)
    return text.encode("utf-8", "surrogateescape")


def _file(path: str, where: str) -> bytes:
    try:
        with opened(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_LONGEST + 1)
    except (FileNotFoundError, NotReadable) as error:
        why = (
            f"{error} ({where})"
            if isinstance(error, NotReadable)
            else f"cannot be read {where}: no such file or directory"
        )
        message = f"names the file {path}, which {why}."
        raise LookupError(message) from None
    if os.name == "posix" and mode & (stat.S_IROTH | stat.S_IWOTH):
        message = f"names the file {path}, which every user of the machine may read or write: run chmod o-rw on it."
        raise LookupError(message)
    return text


@lru_cache(maxsize=16)
def _secret_manager(version: str, where: str) -> bytes:
    """Ask Google's Secret Manager, once per process. A version never changes."""
    try:
        from google.cloud import secretmanager
    except ImportError:
        message = f"names a secret of Google's Secret Manager, whose library is missing {where}: pip install "
        raise LookupError(message + "'crenel[dataflow]'.") from None
    client: Any = secretmanager.SecretManagerServiceClient()
    try:
        return bytes(client.access_secret_version(name=version).payload.data)
    except Exception as error:  # of many libraries, and each may quote what was asked for
        message = f"names {version} in Google's Secret Manager, which cannot be read {where} ({type(error).__name__})."
        raise LookupError(message) from None


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
