"""The error of a command: a mistake of the user, or a broken file."""

from __future__ import annotations

__all__ = ["CommandError"]


class CommandError(ValueError):
    """A command cannot do its work. Each problem is one sentence, and none contains a value of a row."""

    #: The problems, each a whole sentence.
    problems: tuple[str, ...]

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
