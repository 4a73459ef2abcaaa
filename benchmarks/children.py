"""Runs programs as child processes of a benchmark, and measures them, with this copy of crenel or another one.

A benchmark that compares two copies alternates between them in every case, so that other work on the machine disturbs
both alike.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_MB = 1 << 20


@dataclass(frozen=True)
class Copy:
    """An installed copy of crenel.

    Args:
        name: The name of the copy in tables.
        site: The folder that contains the package `crenel`; None for the copy that this interpreter imports anyway.
    """

    name: str
    site: Path | None = None

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment with which a child imports this copy."""
        variables = {**os.environ, **more}
        if self.site is not None:
            path = os.environ.get("PYTHONPATH")
            variables["PYTHONPATH"] = os.pathsep.join([str(self.site), *([path] if path else [])])
        return variables


@dataclass(frozen=True)
class Spent:
    """The cost of a child process, including its own children, and its output."""

    code: int
    #: Wall-clock seconds, and processor seconds in user and system mode.
    wall: float
    cpu: float
    #: The largest resident memory of any one of its processes, in MB.
    peak: float
    out: str = field(repr=False)
    err: str = field(repr=False)


class ChildFailedError(RuntimeError):
    """A child process failed that must succeed."""


def run(
    command: Sequence[str], environment: Mapping[str, str], *, folder: Path = ROOT, may_fail: bool = False
) -> Spent:
    """Run a program to its end, and measure it.

    On Linux, the peak memory of a child starts at the peak of its parent, so a benchmark that measures peaks must
    itself stay small.

    Args:
        command: The program and its arguments.
        environment: All its environment variables.
        folder: Its working directory.
        may_fail: Whether to return normally if the exit code is not 0.

    Raises:
        ChildFailedError: The program failed, and `may_fail` is false.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        child = subprocess.Popen(command, env=dict(environment), cwd=folder, stdout=out, stderr=err)
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        said = []
        for stream in (out, err):
            stream.seek(0)
            said.append(stream.read().decode(errors="backslashreplace"))
    if child.returncode != 0 and not may_fail:
        message = f"{' '.join(command[:6])} ... ended with code {child.returncode}:\n{said[1][-2000:]}"
        raise ChildFailedError(message)
    peak = usage.ru_maxrss * 1024 / _MB  # Linux reports kilobytes
    return Spent(child.returncode, wall, usage.ru_utime + usage.ru_stime, peak, said[0], said[1])


def crenel(*arguments: str | Path) -> list[str]:
    """Return the command line that runs crenel with these arguments."""
    return [sys.executable, "-m", "crenel.pipelines.cli", *map(str, arguments)]


def add_against(parser: argparse.ArgumentParser) -> None:
    """Declare the option that names another copy."""
    parser.add_argument(
        "--against", metavar="SITE", type=Path, help="a folder with another installed copy, measured in turns with this"
    )


def copies(against: Path | None) -> list[Copy]:
    """Return this copy, and the other one if there is one.

    Raises:
        FileNotFoundError: The folder contains no copy.
    """
    if against is None:
        return [Copy("this")]
    if not (against / "crenel" / "__init__.py").is_file():
        raise FileNotFoundError(f"--against must name a folder that holds the package crenel, not {against}.")
    return [Copy("this"), Copy("other", against.resolve())]
