"""Processes that a run starts end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crenel.runners.flink.cluster import until
from crenel.runners.flink.processes import Process

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")

_BEGIN = """
import time
from pathlib import Path
from crenel.runners.flink.processes import Process
print(Process(["sleep", "600"], Path({log!r})).pid, flush=True)
time.sleep(600)
"""


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_stopped(tmp_path: Path) -> None:
    process = Process(["sleep", "600"], tmp_path / "log")
    assert process.alive and runs(process.pid)
    process.stop()
    assert not process.alive and not runs(process.pid)


def test_killed_and_stopped(tmp_path: Path) -> None:
    process = Process(["sleep", "600"], tmp_path / "log")
    process.kill()
    until(lambda: not process.alive, 60)
    process.stop()  # nothing is left to stop, and this is no error
    assert not runs(process.pid)


def test_its_output_is_in_the_log(tmp_path: Path) -> None:
    process = Process(["sh", "-c", "echo out; echo err >&2"], tmp_path / "log")
    until(lambda: not process.alive, 60)
    process.stop()
    assert (tmp_path / "log").read_text() == "out\nerr\n"


def test_its_parent_is_killed(tmp_path: Path) -> None:
    begin = _BEGIN.format(log=str(tmp_path / "log"))
    parent = subprocess.Popen([sys.executable, "-c", begin], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert runs(child)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    until(lambda: not runs(child), 60)
