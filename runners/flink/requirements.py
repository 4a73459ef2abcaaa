"""The programs that a machine must have: Java and Maven."""

from __future__ import annotations

import re
import shutil
import subprocess

from crenel.runners.runner_errors import RunnerError

__all__ = ["java", "maven"]

#: The versions of Java that Flink 1.20 supports.
_OLDEST, _NEWEST = 11, 21


def java() -> str:
    """The path of Java.

    Raises:
        RunnerError: it is not installed, or has an unsupported version.
    """
    path = shutil.which("java")
    if path is None:
        msg = "--runner flink needs Java, and there is no java: install Java 17 (for example openjdk-17-jre-headless)."
        raise RunnerError(msg)
    version = _java_version(path)
    if version is None or not _OLDEST <= version <= _NEWEST:
        found = "of an unknown version" if version is None else f"Java {version}"
        msg = f"--runner flink needs Java {_OLDEST} to {_NEWEST}, and java is {found}: put Java 17 first in PATH."
        raise RunnerError(msg)
    return path


def maven() -> str:
    """The path of Maven.

    Raises:
        RunnerError: there is none.
    """
    path = shutil.which("mvn")
    if path is None:
        msg = "--runner flink downloads Beam's job server with Maven, and there is no mvn: install the package maven."
        raise RunnerError(msg)
    return path


def _java_version(path: str) -> int | None:
    said = subprocess.run([path, "-version"], capture_output=True, text=True, check=False).stderr
    # Java 8 calls itself 1.8.
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found.group(1)) if found else None
