"""A correction of Beam's runner for Flink: a source that pauses must not leave a new name in the state each time.

Before 2.76 (https://github.com/apache/beam/issues/27648), the runner keeps what a splittable step has left to do in
state of a new name at every pause, `sdf_checkpoint:<number>:<index>`, and never forgets a name. For RocksDB each is a
column family of its own, so checkpoints, memory and the time of a restore grow without bound. The state is that of the
step's element. If all elements are different, each has at most one rest at a time, and a name without the number
serves as well. Equal elements would overwrite each other's rest: so the correction is for pipelines that have none.

The correction takes four bytes of one method: the instructions that append the number. It is applied to the jar of a
known checksum, so it either fits or is refused.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from crenel.runners.runner_errors import RunnerError

__all__ = ["JAR", "VERSION", "correct"]

#: The jar, and the version of this correction, which is part of the name of the cached folder.
JAR, VERSION = "beam-runners-java-fn-execution", "2"

_CLASS = (
    "org/apache/beam/runners/fnexecution/control/BundleCheckpointHandlers$StateAndTimerBundleCheckpointHandler.class"
)
#: aload_0; invokevirtual append(String), followed by: ldc ":"; invokevirtual append(String); iload_1.
_BEFORE = bytes.fromhex("2a b6000e 120f b6000e 1b")
#: The first two as four times `nop`.
_AFTER = bytes.fromhex("00 000000 120f b6000e 1b")
_ANOTHER = f"{JAR} is not the version that crenel corrects: remove crenel's folder from the cache, and try again."


def correct(jar: Path, copy: Path) -> None:
    """Write a copy of the jar, with the class corrected.

    Raises:
        RunnerError: the jar is another.
    """
    with zipfile.ZipFile(jar) as before, zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED) as after:
        if _CLASS not in before.namelist():
            raise RunnerError(_ANOTHER)
        for entry in before.infolist():
            content = before.read(entry)
            after.writestr(entry, corrected(content) if entry.filename == _CLASS else content)


def corrected(code: bytes) -> bytes:
    """The class without the number in the name.

    Raises:
        RunnerError: it is another class.
    """
    if code.count(_BEFORE) != 1:
        raise RunnerError(_ANOTHER)
    return code.replace(_BEFORE, _AFTER)
