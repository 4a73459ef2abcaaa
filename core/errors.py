"""The errors of a policy, and of a value that does not fit it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["PolicyError", "Rejected", "SnapshotError"]

#: Where it is wrong (a dotted path, or empty) and what is wrong with it.
Problem = tuple[str, str]


class PolicyError(ValueError):
    """What the user declared is wrong: all of it that could be found at once.

    Args:
        problems: One sentence, or several; each a sentence, or a pair of a field's path and the
            sentence that goes on from it.
        owner: What the paths start from.
    """

    #: The problems, each a whole sentence that names its field.
    problems: tuple[str, ...]

    #: The same, as pairs of a path under the owner and the rest of the sentence.
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
    """A record's value that cannot be encoded.

    The reason is a short constant ("missing", "not a number"): it never holds the value, which is
    somebody's.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SnapshotError(ValueError):
    """Stored state that cannot be taken over."""


def _sentence(owner: str, path: str, text: str) -> str:
    where = ".".join(part for part in (owner, path) if part)
    return f"{where}{text}" if text.startswith(":") else f"{where} {text}"


def _message(problems: tuple[str, ...]) -> str:
    if len(problems) == 1:
        return problems[0]
    lines = "\n".join(f"  - {problem}" for problem in problems)
    return f"{len(problems)} problems:\n{lines}"
