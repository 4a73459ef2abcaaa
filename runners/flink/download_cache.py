"""The cache of downloads, and how Maven fills it. A download that was interrupted is never used."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["copy_jars", "digest", "kept", "sha256"]

#: The goal of Maven that copies the jars that a project depends on.
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


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


def copy_jars(maven: str, names: Iterable[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Let Maven copy jars into a folder, without the jars that they depend on.

    Args:
        maven: The path of Maven.
        names: The jars, as `GROUP:ARTIFACT:VERSION`.
        folder: The folder.
    """
    with tempfile.TemporaryDirectory() as project:
        (Path(project) / "pom.xml").write_text(_pom(names), "utf-8")
        command = [maven, "-B", "-q", _COPY, f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
        return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)


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


def _pom(names: Iterable[str]) -> str:
    """A project that depends on these jars (`GROUP:ARTIFACT:VERSION`), without their own dependencies."""
    one = (
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version><exclusions><exclusion>"
        "<groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
    )
    listed = "\n".join(one.format(*name.split(":")) for name in names)
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>crenel</groupId>'
        f"<artifactId>job-server</artifactId><version>1</version><dependencies>\n{listed}\n</dependencies></project>\n"
    )
