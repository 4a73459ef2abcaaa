"""A history: the rows of a stream, and what happens to it, as plain data. Any part of it may be left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

#: Seconds since the epoch at which every history begins.
START = 1_700_000_000


class Row(NamedTuple):
    """A message of the input topic. Its number is its place among the rows of the history."""

    #: If the topic does not have so many, it gets them when the message is sent.
    partition: int
    #: When the message is sent, and the event time in it: milliseconds since the start.
    sent: int
    at: int
    person: int
    age: int
    area: int
    illness: int
    #: Empty for a row. Else what is wrong: one of `REFUSED`, or "gap" for an offset without a message.
    fault: str = ""


#: Messages that must be rejected: no JSON, no value at all, a row without a person, one that no topic would take.
REFUSED = ("torn", "tombstone", "nobody", "large")


class Step(NamedTuple):
    """One thing that happens. What the numbers mean depends on the name: see `World`."""

    name: str
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0


@dataclass(frozen=True)
class History:
    """A history. It says nothing about code, so it can be kept as a test."""

    seed: int
    #: The name of the policy, in `policies`.
    policy: str
    rows: Sequence[Row]
    steps: Sequence[Step]
    #: Partitions of the topic when the job begins, and processes.
    partitions: int = 1
    workers: int = 1
    #: Bytes that a log may have before a snapshot may replace it.
    log: int = 1 << 20
    #: Seconds of the windows that rows are held in; 0 for the global window.
    window: int = 0
    #: Whether the stream ends at the end of time, as it does without a delay; else it falls silent, and its partitions
    #: become idle.
    ends: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(Row(*row) for row in self.rows))
        object.__setattr__(self, "steps", tuple(Step(*step) for step in self.steps))

    def source(self) -> str:
        """The history as Python code, for a test."""
        names = ("seed", "policy", "partitions", "workers", "log", "window", "ends")
        lines = [f"    {name}={getattr(self, name)!r}," for name in names]
        lines += ["    rows=[", *(f"        {_short(row)}," for row in self.rows), "    ],"]
        lines += ["    steps=[", *(f"        {_short(step)}," for step in self.steps), "    ],"]
        return "\n".join(["History(", *lines, ")"])


def _short(values: Sequence[object]) -> str:
    """Write a tuple without the defaults at its end."""
    kept = list(values)
    while len(kept) > 1 and kept[-1] in (0, "") and not (len(kept) <= 7 and isinstance(kept[0], int)):
        kept.pop()
    return repr(tuple(kept))
