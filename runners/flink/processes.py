"""Processes that do not outlive the one that began them, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["Process"]

#: Begins a program, tells its number, and kills it when the pipe from the parent closes: when the parent says so, or
#: when the parent is no more. The program has a session of its own, so that Ctrl-C is the parent's to answer.
_GUARD = '"$@" </dev/null >>"$0" 2>&1 & child=$!; echo $child; cat >/dev/null; kill -9 $child 2>/dev/null; wait'


class Process:
    """A program in the background.

    Args:
        command: The program and its arguments.
        log: Where its words go.
        variables: What its environment has beside this process's.
    """

    def __init__(self, command: Sequence[str], log: Path, variables: Mapping[str, str] | None = None) -> None:
        self.log = log
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, str(log), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **(variables or {})},
            start_new_session=True,
        )
        assert self._guard.stdout is not None
        self.pid = int(self._guard.stdout.readline())

    @property
    def alive(self) -> bool:
        """Whether the program still runs."""
        try:
            with open(f"/proc/{self.pid}/stat", encoding="ascii", errors="replace") as file:
                return file.read().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    def kill(self) -> None:
        """End the program without a warning, as when a machine is lost."""
        os.kill(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """End the program, if it has not ended, and wait until it has."""
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            self._guard.stdin.close()
        self._guard.wait()
        if self._guard.stdout is not None:
            self._guard.stdout.close()
