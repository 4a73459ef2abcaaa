"""A folder that only its owner may enter, and that the next run removes if this one is killed.

Unfinished files hold exact rows, so they are written in a folder of mode 0700. A run that is killed cannot remove its
folder, so the next run that writes to the same place does it. A lock tells it which folders are left over: a run holds
one on a file in its folder (`flock`), and the kernel releases it however the process ends. A process id would not do:
ids are given out again, and mean nothing on another machine.

On a network file system a lock may be unknown to other machines. So the file also names the machine, and the folder of
another machine is left alone until nothing in it was changed for a week.

Ctrl-C, SIGTERM or SIGHUP can interrupt a run between any two steps, also while a folder is made or removed. So a folder
is noted before it is made, and forgotten after it is gone; what is still noted when the process exits is removed then.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import fcntl

__all__ = ["PrivateFolder", "remove_open"]

#: The file in a folder that a living run holds a lock on.
_LOCK = "crenel.lock"
#: A folder's name, with what makes it unique; then, perhaps, what tells that its run has ended.
_NAME = re.compile(r"\.(?:.+\.)?crenel-\w{8}(\.gone)?", re.ASCII | re.DOTALL)
_GONE = ".gone"
#: Seconds without a change after which a folder of another machine is left over.
_WEEK = 7 * 24 * 3600.0
#: Tells one start of a machine from another; containers of one machine share it.
_BOOT = Path("/proc/sys/kernel/random/boot_id")


#: The folders of this process that are not removed yet.
_open: list[PrivateFolder] = []


class PrivateFolder:
    """A folder of mode 0700. Make one by `begin`.

    Args:
        path: The folder.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._process = os.getpid()
        #: The descriptor whose lock shows that the run lives.
        self._lock: int | None = None

    def __enter__(self) -> PrivateFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @classmethod
    def begin(cls, beside: Path | None) -> PrivateFolder:
        """Make a folder beside a file, or among temporary files; remove those that dead runs left there.

        Raises:
            OSError: the folder cannot be made.
        """
        parent = Path(tempfile.gettempdir()) if beside is None else beside.parent
        _remove_left_over(parent)
        prefix = ".crenel-" if beside is None else f".{beside.name}.crenel-"
        while True:
            folder = cls(os.path.join(parent, prefix + secrets.token_hex(4)))
            _open.append(folder)
            try:
                if folder._make():
                    return folder
            except OSError:
                folder.end()
                raise
            # The name was taken, or another run removed the folder before it was locked.
            _open.remove(folder)

    def _make(self) -> bool:
        """Make and lock the folder; return whether it is this run's."""
        try:
            os.mkdir(self.path, 0o700)
        except FileExistsError:
            return False
        self._lock = _locked(self.path)
        if self._lock is None:
            shutil.rmtree(self.path, ignore_errors=True)
        return self._lock is not None

    def end(self) -> None:
        """Remove the folder and everything in it."""
        if self._process != os.getpid():  # a fork of the run
            return
        # Rename it first: workers look for it by its name.
        away = self.path + _GONE
        with contextlib.suppress(OSError):
            os.rename(self.path, away)
        for path in (away, self.path):
            shutil.rmtree(path, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)
        with contextlib.suppress(ValueError):
            _open.remove(self)


@atexit.register
def remove_open() -> None:
    """Remove the folders of this process that are still there: an interruption came before their end."""
    for folder in list(_open):
        folder.end()


def _locked(path: str) -> int | None:
    """Lock a new folder; return the lock's descriptor, or None if the folder is gone."""
    try:
        lock = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileNotFoundError:
        return None
    try:
        _lock(lock)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:  # a file system without locks: nobody will take the folder for one that is left over
        pass
    os.write(lock, json.dumps(_machine()).encode())
    return lock


def _lock(file: int) -> None:
    """Lock a file for as long as it is open.

    Raises:
        OSError: another process has locked it, or there are no locks here.
    """
    if sys.platform == "win32":
        raise OSError
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _machine() -> dict[str, str]:
    """Tell this machine from others, and this start of it from earlier ones."""
    try:
        boot = _BOOT.read_text("ascii").strip()
    except OSError:
        boot = ""
    return {"host": socket.gethostname(), "boot": boot}


def _remove_left_over(parent: Path) -> None:
    """Remove the folders that dead runs of this user left."""
    if sys.platform == "win32":
        return
    with contextlib.suppress(OSError):
        for path in list(_found(parent)):
            if path.name.endswith(_GONE) or _is_left_over(path):
                shutil.rmtree(path, ignore_errors=True)


def _found(parent: Path) -> Iterator[Path]:
    """The folders of this user's runs, dead or alive."""
    for entry in os.scandir(parent):
        if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            known = entry.stat(follow_symlinks=False)
            if known.st_uid == os.geteuid() and stat.S_IMODE(known.st_mode) == 0o700:
                yield Path(entry.path)


def _is_left_over(path: Path) -> bool:
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:  # killed before it wrote anything, or not locked yet
        return _unchanged_since(path) > _WEEK
    except OSError:
        return False
    try:
        _lock(lock)
        wrote, here = json.loads(os.read(lock, 4096) or b"{}"), _machine()
        is_ours = wrote.get("host") == here["host"] or (wrote.get("boot") or None) == here["boot"]
        return is_ours or _unchanged_since(path) > _WEEK
    except (OSError, ValueError):  # somebody holds the lock, or the file is not ours
        return False
    finally:
        os.close(lock)


def _unchanged_since(path: Path) -> float:
    """Seconds since something in the folder was last changed."""
    with contextlib.suppress(OSError):
        times = [path.stat().st_mtime, *(entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(path))]
        return time.time() - max(times)
    return 0.0
