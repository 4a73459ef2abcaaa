"""Dead letters: records that a topic does not take, in a file that only its owner may read.

One record must not stop a stream, and none may be lost. Each line is JSON: the output and the topic that the record was
meant for, its name (the record's key), the reason, and its value in base64.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from crenel.runners import JobFailed

__all__ = ["DEAD", "DeadLetters", "line"]

#: The output that dead letters are sent to, as if it were one of the topics.
DEAD = "dead letters"

#: Several steps of a process write one file.
_LOCK = threading.Lock()
_BEGAN = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def line(output: str, place: object, name: bytes, reason: str, value: bytes) -> bytes:
    """Make a line of a record."""
    said = {"output": output, "topic": repr(place), "key": name.hex(), "reason": reason}
    return json.dumps({**said, "value": base64.b64encode(value).decode("ascii")}).encode() + b"\n"


class DeadLetters:
    """The file of this process, which is created when it is needed.

    Args:
        folder: Its folder; None for the user's own, `~/.local/state/crenel/dead-letters`.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder

    @property
    def path(self) -> Path:
        """The file."""
        name = f"{_BEGAN}-{socket.gethostname()}-{os.getpid()}.jsonl"
        return (Path(self._folder) if self._folder else _folder_of_the_user()) / name

    def write(self, lines: Sequence[bytes]) -> None:
        """Append lines, and wait until the disk has them.

        Raises:
            JobFailed: the file cannot be written.
        """
        if not lines:
            return
        try:
            with _LOCK:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    file.writelines(lines)
                    file.flush()
                    os.fsync(descriptor)
        except OSError as error:
            msg = (
                f"{len(lines)} records that a topic does not take cannot be kept either: {self.path} cannot be written "
                f"({os.strerror(error.errno or 5).lower()}). Name another folder with --dead-letters, or make room."
            )
            raise JobFailed(msg) from None


def _folder_of_the_user() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "crenel" / "dead-letters"
