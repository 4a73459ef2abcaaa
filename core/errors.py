"""The errors of `crenel`: a wrong policy, a value that does not fit, and failures that no restart cures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["INCURABLE", "PermanentError", "PolicyError", "Rejected", "SecretError", "SnapshotError"]

#: The end of every message of a `PermanentError`. Programs that see only the text of a failure recognize it by this
#: sentence, so it never changes.
INCURABLE = "A restart does not cure this."

#: The dotted path of a field, possibly empty, and the rest of the sentence on what is wrong with it.
Problem = tuple[str, str]


class PolicyError(ValueError):
    """A wrong declaration. It lists all problems that were found at once.

    Args:
        problems: One or more problems. Each is a whole sentence, or a pair of a field's path and the rest of the
            sentence.
        owner: The object that the paths start from.
    """

    #: The problems, each a whole sentence that names its field.
    problems: tuple[str, ...]

    #: The same problems as pairs of a path under the owner and the rest of the sentence.
    details: tuple[Problem, ...]

    def __init__(self, problems: str | Iterable[str | Problem], owner: str = "policy") -> None:
        given = [problems] if isinstance(problems, str) else list(problems)
        self.details = tuple(("", p) if isinstance(p, str) else p for p in given)
        self.owner = owner
        self.problems = tuple(p if isinstance(p, str) else _sentence(owner, *p) for p in given)
        self._given = tuple(given)
        super().__init__(_message(self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._given, self.owner)


class Rejected(ValueError):
    """A value of a record that cannot be encoded.

    The reason is a short constant ("missing", "not a number"). It never holds the value, which is personal data.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class PermanentError(ValueError):
    """A failure that comes again however often the work is retried: somebody has to change something first.

    A runner that restarts a failed job can stop doing so. The message says what to do, and ends with `INCURABLE`.
    """

    def __init__(self, message: str) -> None:
        # Pickling and unpickling an error makes it from its message, which must not grow.
        super().__init__(message if INCURABLE in message else f"{message} {INCURABLE}")


class SnapshotError(PermanentError):
    """Stored state that cannot be restored: it is damaged, or of another policy, method or secret."""


class SecretError(PermanentError):
    """A worker does not find the secret of its pipeline, or finds another one."""


def _sentence(owner: str, path: str, text: str) -> str:
    where = ".".join(part for part in (owner, path) if part)
    return f"{where}{text}" if text.startswith(":") else f"{where} {text}"


def _message(problems: tuple[str, ...]) -> str:
    if len(problems) == 1:
        return problems[0]
    lines = "\n".join(f"  - {problem}" for problem in problems)
    return f"{len(problems)} problems:\n{lines}"
