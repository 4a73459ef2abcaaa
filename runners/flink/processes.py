"""Processes that end with the process that started them, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["Process"]

#: A shell program that starts another, prints its process id, and kills it when the pipe from the parent closes: when
#: the parent closes it, or is gone. The program has a session of its own, so that only the parent receives Ctrl-C.
_GUARD = '"$@" </dev/null >>"$0" 2>&1 & child=$!; echo $child; cat >/dev/null; kill -9 $child 2>/dev/null; wait'


class Process:
    """A program in the background.

    Args:
        command: The program and its arguments.
        log: The file of its output.
        variables: Environment variables, besides those of this process.
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
        """Whether the program is still running."""
        try:
            with open(f"/proc/{self.pid}/stat", encoding="ascii", errors="replace") as file:
                return file.read().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    def kill(self) -> None:
        """Kill the program without a warning, as if its machine were lost."""
        os.kill(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Kill the program if it is running, and wait until it has ended."""
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            self._guard.stdin.close()
        self._guard.wait()
        if self._guard.stdout is not None:
            self._guard.stdout.close()
