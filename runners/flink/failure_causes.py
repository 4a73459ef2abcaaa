"""Why a job of Flink failed: one sentence, without a value of a row.

Flink tells a failure as a stack trace of Java, in which that of a Python worker may be quoted. Messages of errors may
contain rows. Only those of crenel's own errors never do, so only these are repeated. Of all others, the kind is told.
"""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass

from crenel.errors import INCURABLE

__all__ = ["Cause", "cause"]


@dataclass(frozen=True)
class Cause:
    """A failure."""

    #: What happened, as a sentence with a full stop.
    sentence: str
    #: Whether a restart cannot cure it.
    is_permanent: bool = False
    #: Whether it lies in the code, a row or an installation, rather than in what was lost or is full: if it comes again
    #: and again, no restart cures it either.
    is_a_mistake: bool = False


#: What a trace of Java says, and what it means; the first that is found counts.
_MARKS: tuple[tuple[str, str], ...] = (
    ("No space left on device", "A disk is full."),
    ("Disk quota exceeded", "A disk is full."),
    ("File too large", "A file has reached the largest size that its machine allows."),
    ("OutOfMemoryError", "A TaskManager has run out of memory."),
    ("NoResourceAvailableException", "There are too few task slots: a TaskManager is missing."),
    ("Could not acquire the minimum required resources", "There are too few task slots: a TaskManager is missing."),
    ("Exceeded checkpoint tolerable failure threshold", "Too many checkpoints failed."),
    ("is no longer reachable", "A TaskManager was lost."),
    ("Heartbeat of TaskManager", "A TaskManager was lost."),
    ("RemoteTransportException", "A TaskManager was lost."),
    ("RecipientUnreachableException", "A TaskManager was lost."),
    ("The TaskExecutor is shutting down", "A TaskManager was lost."),
    ("disconnect from JobManager responsible", "A TaskManager was lost."),
    ("connection to the JobManager", "The JobManager was lost."),
    ("loses leadership", "The JobManager was lost."),
    ("SDK Harness connection lost", "A worker process was lost."),
    ("StatusRuntimeException: CANCELLED", "A worker process was lost."),
    ("StatusRuntimeException: UNAVAILABLE", "A worker process was lost."),
    ("Could not restore keyed state backend", "The state of a task could not be restored from its checkpoint."),
    ("Could not restore operator state backend", "The state of a task could not be restored from its checkpoint."),
)

#: What a trace says if a worker cannot be started.
_NO_WORKER = (
    ("Cannot run program", "A TaskManager cannot start workers: install crenel on its machine, in the same folder."),
    (
        "Process died with exit code",
        "A worker process ended at once: its log, on the machine of its TaskManager, says why.",
    ),
)

#: Errors of Python that lie in the code or in a row. Others may lie in the machine or the network.
_MISTAKES = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, SyntaxError),
    *(TypeError, ValueError),
)

#: What keeps a job from being restored, however often it is tried.
_SAVEPOINT = (
    "Cannot map checkpoint/savepoint state",
    "Failed to rollback to checkpoint/savepoint",
    "The new state typeSerializer for operator state must not be incompatible",
    "Cannot find checkpoint or savepoint file/directory",
)
_NO_FIT = (
    "The savepoint or checkpoint cannot be taken up: it is not there, or belongs to another pipeline or another "
    f"--max_parallelism. Name another with --savepoint_path, or start without one. {INCURABLE}"
)

#: Packages whose errors may be named.
_NAMED = ("apache_beam", "confluent_kafka", "crenel", "fastavro", "grpc", "numba", "numpy", "pyarrow")
_TRACEBACK = "Traceback (most recent call last):\n"
#: The kind of an error of Java; only packages that are known, since the rest of the trace may quote a row.
_KIND = re.compile(r"^(?:Caused by: )?(?:javax?|org\.apache|org\.rocksdb|io\.grpc)\.[\w.$]*?(\w+)(?=:|$)", re.MULTILINE)
_ERROR = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?")
_STEP = re.compile(r" \[while running '.*?'\]")


def cause(trace: str) -> Cause:
    """The cause of a failure.

    Args:
        trace: The stack trace, as Flink tells it.
    """
    found = _python(trace)
    if found is not None and found.is_permanent:
        return found
    if any(mark in trace for mark in _SAVEPOINT):
        return Cause(_NO_FIT, is_permanent=True)
    if found is not None:
        return found
    for mark, meaning in _NO_WORKER:
        if mark in trace:
            return Cause(meaning, is_a_mistake=True)
    return next((Cause(meaning) for mark, meaning in _MARKS if mark in trace), _java(trace))


def _python(trace: str) -> Cause | None:
    """What a Python worker said last, if it said anything."""
    *_, last = trace.split(_TRACEBACK)
    if last == trace:
        return None
    line = next((line for line in last.splitlines() if line and not line[0].isspace()), "")
    # Beam wraps an error that it cannot make again.
    found = _ERROR.match(line.removeprefix("RuntimeError: ") if line.startswith("RuntimeError: crenel.") else line)
    if found is None:
        return Cause("A step failed.")
    name, message = found["name"], _STEP.sub("", found["message"] or "").strip()
    if name.startswith("crenel.") and message:
        sentence = message if message.endswith(".") else f"{message}."
        return Cause(sentence, is_permanent=INCURABLE in message)
    kind = getattr(builtins, name, None)
    known = kind is not None or name.split(".")[0] in _NAMED
    is_a_mistake = isinstance(kind, type) and issubclass(kind, _MISTAKES)
    return Cause(
        f"A step failed ({name.rsplit('.', 1)[-1]})." if known else "A step failed.", is_a_mistake=is_a_mistake
    )


def _java(trace: str) -> Cause:
    """The kind of the innermost error, for what is not known better."""
    found = _KIND.findall(trace)
    return Cause(f"Flink reports {found[-1]}." if found else "Flink does not say why.")
