"""The files that a policy names: regular ones of bounded size, below the policy's folder unless asked for.

Whoever writes a policy may not be whoever runs it. So a policy must not lead to a file elsewhere on the machine, to a
device that never ends, or to a pipe that nobody writes to; and no message quotes a file's content.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import IO

from crenel.errors import PolicyError

__all__ = ["MOST_BYTES", "NotReadable", "PolicyFiles", "opened", "read_bounded"]

#: The size of the largest file.
MOST_BYTES = 64 << 20


class NotReadable(Exception):
    """A file cannot be read: the rest of a sentence that begins with its name."""


class PolicyFiles:
    """Where the files that a policy names may be.

    Args:
        folder: The policy's folder. Names are relative to it.
        allow_outside: Whether files may lie outside of the folder.
    """

    def __init__(self, folder: str | PathLike[str] = ".", *, allow_outside: bool = False) -> None:
        self._folder = Path(folder)
        self._allow_outside = allow_outside

    def path(self, name: str | PathLike[str]) -> Path:
        """Find a file by the name that the policy gives it.

        Raises:
            PolicyError: it lies outside of the policy's folder, perhaps by a symbolic link.
        """
        path = self._folder / name
        if not self._allow_outside and not path.resolve().is_relative_to(self._folder.resolve()):
            msg = (
                f": {str(name)!r} must be a file below the policy's folder. If you trust the policy, allow others by "
                "--allow-outside-files, or allow_outside_files=True."
            )
            raise PolicyError([("", msg)], "")
        return path


def read_bounded(path: str | PathLike[str], *, pipes: bool = False) -> bytes:
    """Read a whole file.

    Args:
        path: The file.
        pipes: Whether it may also be a pipe, which a shell makes of `<(command)`.

    Raises:
        FileNotFoundError: there is no such file.
        NotReadable: it is too large, or neither a regular file nor a pipe that is allowed.
    """
    with opened(path, pipes=pipes) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        msg = f"must be smaller than {MOST_BYTES >> 20} MB"
        raise NotReadable(msg)
    return data


@contextmanager
def opened(path: str | PathLike[str], *, pipes: bool = False) -> Iterator[IO[bytes]]:
    """Open a file. What is wrong with it, and with reading it, is told in a sentence.

    Args:
        path: The file.
        pipes: Whether it may also be a pipe.

    Raises:
        FileNotFoundError: there is no such file.
        NotReadable: it is neither a regular file nor a pipe that is allowed.
    """
    try:
        with open(path, "rb", opener=None if pipes else _without_waiting) as file:
            # Check the file that was opened: the path may name another one by now.
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode) and not pipes:
                msg = "must be a regular file"
                raise NotReadable(msg)
            yield file
    except FileNotFoundError:
        raise
    except OSError as error:
        msg = f"cannot be read: {(error.strerror or 'unknown reason').lower()}"
        raise NotReadable(msg) from None


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe to which nobody writes is opened at once. For regular files the flag changes nothing."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
