"""The errors of `crenel`: a wrong policy, a value that does not fit, a snapshot that cannot be restored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["PolicyError", "Rejected", "SnapshotError", "Unrecoverable"]

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


class Unrecoverable(Exception):
    """A failure that trying again cannot cure. Its message is made of sentences, and holds no value of a row.

    A runner that restarts failed jobs by itself must not restart one that fails with this: see
    `crenel.runners.flink.job_follower`.
    """


class SnapshotError(Unrecoverable, ValueError):
    """Stored state that cannot be restored."""


def _sentence(owner: str, path: str, text: str) -> str:
    where = ".".join(part for part in (owner, path) if part)
    return f"{where}{text}" if text.startswith(":") else f"{where} {text}"


def _message(problems: tuple[str, ...]) -> str:
    if len(problems) == 1:
        return problems[0]
    lines = "\n".join(f"  - {problem}" for problem in problems)
    return f"{len(problems)} problems:\n{lines}"
