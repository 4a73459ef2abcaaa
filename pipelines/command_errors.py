"""What a command cannot go on from: the user's mistake, or the file's."""

from __future__ import annotations

__all__ = ["CommandError"]


class CommandError(ValueError):
    """A command cannot do its work. Each problem is one sentence, and none holds a row's value."""

    #: The problems, each a whole sentence.
    problems: tuple[str, ...]

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
