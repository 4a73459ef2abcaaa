"""The errors of runners. Each message is made of sentences for the user, and none contains a value of a row."""

from __future__ import annotations

__all__ = ["JobFailed", "RunnerError"]


class RunnerError(ValueError):
    """A runner cannot start a job: something is missing, or a flag is wrong."""

    #: The problems, each a whole sentence.
    problems: tuple[str, ...]

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class JobFailed(RuntimeError):
    """A job started and did not reach its end. The message is a sentence.

    A step raises it to tell the user why, where the reason contains no value of a row.
    """
