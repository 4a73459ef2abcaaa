"""Failures to write, as sentences: what could not be written, where, why, and what to do."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from crenel.errors import PolicyError
from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.files.readers import STANDARD
from crenel.runners.runner_errors import JobFailed, RunnerError

__all__ = ["cannot_write", "explained"]

_SPACE = "Free some space, or write to another disk."
_RIGHTS = "Choose a place that you may write to."

#: What to do, by the number of an error.
_ADVICE = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f), or split the input.",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.ENOENT: "Its folder was removed while the run was writing: make it again, and repeat the run.",
    errno.EIO: "Check the disk, or write to another one.",
}

#: Errors whose message is for the user already.
_EXPLAINED = (CommandError, PolicyError, RunnerError, JobFailed, BrokenPipeError)

#: How Python writes the number of a system's error into the text of an exception.
_NUMBER = re.compile(r"\[errno (\d+)\]", re.IGNORECASE)


def cannot_write(place: str, number: int | None) -> CommandError:
    """The error of a place that cannot be written to, by the number of the system's error."""
    number = number or errno.EIO
    what = "standard output" if place == STANDARD else place
    advice = _ADVICE.get(number, "Write to another place.")
    return CommandError(f"{what} cannot be written: {os.strerror(number).lower()}. {advice}")


@contextmanager
def explained(folder: str) -> Iterator[None]:
    """Explain what fails because a run cannot write to its private folder, or because the folder is gone.

    Raises:
        CommandError: that is so.
    """
    try:
        yield
    except _EXPLAINED:
        raise
    except Exception as error:
        number = _number_of(error) if os.path.isdir(folder) else errno.ENOENT
        if number is None:
            raise
        # Not chained: the text of an error that comes through Beam may hold rows.
        failed = cannot_write(f"the folder {os.path.dirname(folder)}, for unfinished files,", number)
    else:
        return
    raise failed


def _number_of(error: BaseException) -> int | None:
    """Find the number of the system's error. One from a worker comes as text, through Beam."""
    if isinstance(error, OSError):
        return error.errno
    found = _NUMBER.search(str(error))
    return None if found is None else int(found[1])
