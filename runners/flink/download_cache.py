"""The cache of downloads. A download that was interrupted is never used."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["digest", "kept", "sha256"]


def root() -> Path:
    """The folder of crenel in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "crenel"


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of this name. If it does not exist, `make` fills it; it appears only when it is complete."""
    place = root() / name
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with _alone(place.with_name(f"{place.name}.lock")):
        if place.is_dir():  # another process was first
            return place
        unfinished = Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=place.parent))
        try:
            make(unfinished)
            unfinished.rename(place)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return place


def sha256(path: Path) -> str:
    """The checksum of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def digest(text: str) -> str:
    """The checksum of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let one process at a time in."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
