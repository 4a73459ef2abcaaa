"""What is promised, and the error that says which promise was broken."""

from __future__ import annotations

from enum import IntEnum

from simulation.policies import PERSON, PRIVATE


class Promise(IntEnum):
    """What is promised. CONTRIBUTING.md has the seven promises under these numbers."""

    #: A step fails only if something is wrong, and then it does.
    WORKS = -1
    #: Never two generalizations of a row: no promise of an engine, but of the whole.
    ONE_GENERALIZATION = 0
    NOTHING_LOST = 1
    CROWD = 2
    TRUE = 3
    ON_TIME = 4
    SILENT = 5
    REPEATABLE = 6
    BOUNDED = 7


class Broken(Exception):
    """A promise is broken.

    Args:
        promise: Which one.
        what: What was seen.
    """

    def __init__(self, promise: Promise, what: str) -> None:
        super().__init__(f"{promise.name.lower().replace('_', ' ')}: {what}")
        self.promise = promise


def expect(promise: Promise, kept: object, what: str) -> None:
    """Fail unless the promise is kept."""
    if not kept:
        raise Broken(promise, what)


def expect_silent(text: str, where: str) -> None:
    """Expect that a text says nothing of a person, and has no value that must stay hidden."""
    expect(Promise.SILENT, PERSON not in text and PRIVATE not in text, f"{where} has a value that must stay hidden")
