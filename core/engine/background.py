"""Compiles methods in a process of its own, while this one goes on interpreting kernels.

The result lands in the folder of compiled code, which all processes share. One process on a machine compiles a method:
others wait for it. It ends with the process that began it, however that ends, and leaves what it has compiled so far.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

__all__ = ["IN_BACKGROUND", "Background"]

#: The end of an announcement while nobody waits for the compiler.
IN_BACKGROUND = " in the background"


_PROGRAM = "import sys; from crenel.engine import precompile; precompile.compile_and_end(sys.argv[1:])"
#: Seconds between two looks at whether it is done.
_PATIENCE = 0.1


class Background:
    """The compiling process, if there is one.

    Args:
        say: Is told what is being compiled, and an empty text when that is done.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._methods: set[str] = set()
        #: Methods that were given to a process. If it failed, this one has to compile them itself.
        self._tried: set[str] = set()
        self._compiled_now: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._next_look = 0.0
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)
        atexit.register(self._kill)

    def use(self, method: str) -> None:
        """Take note that this process uses a method."""
        self._methods.add(method)

    def goes_on(self, folder: Path | None) -> bool:
        """Return whether methods are being compiled; begin with those that this process uses.

        Args:
            folder: Where compiled code is kept. If nowhere, another process cannot compile for this one.
        """
        with self._lock:
            if self._process is None:
                self._begin(folder)
            elif time.monotonic() >= self._next_look:
                self._next_look = time.monotonic() + _PATIENCE
                if self._process.poll() is not None:
                    self._end()
            return self._process is not None

    @property
    def unfinished(self) -> list[str]:
        """The methods that were being compiled at the last look."""
        return self._compiled_now

    def wait(self, folder: Path | None) -> None:
        """Wait until nothing is being compiled any more."""
        if self.goes_on(folder):
            self._say(", ".join(self._compiled_now))
        while self.goes_on(folder):
            process = self._process
            if process is not None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_PATIENCE)

    def _begin(self, folder: Path | None) -> None:
        methods = sorted(self._methods - self._tried)
        if not methods or folder is None or not sys.executable:
            return
        self._tried.update(methods)
        modules = os.pathsep.join(map(os.path.abspath, sys.path))
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder.parent), "PYTHONPATH": modules}
        with suppress(OSError):  # no memory, too many processes
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *methods],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd=folder.parent,  # Python looks for modules there first: a folder with data is not trusted
                start_new_session=True,  # Ctrl-C is for this process, which then ends the other
            )
            self._compiled_now = methods
            self._say(f"{', '.join(methods)}{IN_BACKGROUND}")

    def _end(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process, self._compiled_now = None, []
        self._say("")

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _forget(self) -> None:
        """After a fork, leave the compiling process to the parent: this child must not keep it alive."""
        self._lock = threading.RLock()
        process, self._process, self._compiled_now = self._process, None, []
        if process is not None:
            process.returncode = 0  # else the interpreter warns of a process that goes on
            if process.stdin is not None:
                process.stdin.close()
            self._tried.clear()
