"""Programs run as children of a benchmark: what each cost, with this copy of crenel or with another one.

A benchmark that compares two copies runs every case with both, one after the other, and repeats that: other work on the
machine then disturbs both alike.
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
        name: What tables call it.
        site: The folder that holds the package `crenel`; None for the copy that this interpreter finds by itself.
    """

    name: str
    site: Path | None = None

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a child that is to import this copy."""
        variables = {**os.environ, **more}
        if self.site is not None:
            path = os.environ.get("PYTHONPATH")
            variables["PYTHONPATH"] = os.pathsep.join([str(self.site), *([path] if path else [])])
        return variables


@dataclass(frozen=True)
class Spent:
    """What a child cost, its own children included, and what it said."""

    code: int
    #: Seconds by the clock on the wall, and seconds of the processor in user and system mode.
    wall: float
    cpu: float
    #: The largest resident memory of any one of its processes, in MB.
    peak: float
    out: str = field(repr=False)
    err: str = field(repr=False)


class ChildFailedError(RuntimeError):
    """A child that must succeed did not."""


def run(
    command: Sequence[str], environment: Mapping[str, str], *, folder: Path = ROOT, may_fail: bool = False
) -> Spent:
    """Run a program to its end, and measure it.

    A child starts with its parent's peak of memory as its own (Linux counts it so), so a benchmark that asks for peaks
    must itself stay small.

    Args:
        command: The program and its arguments.
        environment: All its variables.
        folder: Where it runs.
        may_fail: Whether an exit code other than 0 is a result like another.

    Raises:
        ChildFailedError: It failed, and may not.
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
    peak = usage.ru_maxrss * 1024 / _MB  # Linux tells kilobytes
    return Spent(child.returncode, wall, usage.ru_utime + usage.ru_stime, peak, said[0], said[1])


def crenel(*arguments: str | Path) -> list[str]:
    """The command line of crenel, by the name of its module."""
    return [sys.executable, "-m", "crenel.pipelines.cli", *map(str, arguments)]


def add_against(parser: argparse.ArgumentParser) -> None:
    """Declare the option that names another copy."""
    parser.add_argument(
        "--against", metavar="SITE", type=Path, help="a folder with another installed copy, measured in turns with this"
    )


def copies(against: Path | None) -> list[Copy]:
    """This copy, and the other one if there is one.

    Raises:
        FileNotFoundError: The folder holds no copy.
    """
    if against is None:
        return [Copy("this")]
    if not (against / "crenel" / "__init__.py").is_file():
        raise FileNotFoundError(f"--against must name a folder that holds the package crenel, not {against}.")
    return [Copy("this"), Copy("other", against.resolve())]
