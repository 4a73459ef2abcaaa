"""How a pipeline is launched: in this process, on Prism, on Flink, on Dataflow.

A runner is chosen here and nowhere else: a pipeline is the same object wherever it runs. This is
the outermost layer, nothing in crenel imports it; the command line finds it by its name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

__all__ = ["RUNNERS", "Job", "JobFailed", "Runner", "WorkerDied", "find"]

#: The runners by their names, each the module that launches a pipeline there.
RUNNERS: dict[str, str] = {
    "local": "crenel.runners.local",
    "prism": "crenel.runners.prism",
    "flink": "crenel.runners.flink.runs",
    "dataflow": "crenel.runners.dataflow",
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """A pipeline to be launched, and what is known of it beforehand."""

    #: Adds the steps to a pipeline.
    build: Callable[[Any], None]

    #: About how many rows it has, and in how many shards they are worked on.
    rows: int
    shards: int

    #: How many workers were asked for; None: as many as are worth it.
    workers: int | None = None

    #: Beam's own flags.
    flags: Sequence[str] = ()


class JobFailed(RuntimeError):
    """A job failed where its errors cannot be told. The message is a sentence, which says where they are."""


class WorkerDied(RuntimeError):
    """A process of the job is gone. The message is a sentence; what it was doing cannot be waited for."""


class Runner(Protocol):
    """What the module of a runner has.

    It may have more: `KNOWN`, the names of flags that Beam in Python does not know but the runner does; and
    `check(flags)`, which raises a `CommandError` if something is missing, before anything is begun.
    """

    def launch(self, job: Job) -> int:
        """Run a job to its end; return the number of workers it had.

        Raises:
            JobFailed: it did not come to its end.
            WorkerDied: one of them did not live to see it.
        """


def find(name: str) -> Runner:
    """The runner of this name.

    Raises:
        KeyError: there is none; the message lists those that are known.
    """
    if name not in RUNNERS:
        message = f"--runner must be one of {', '.join(RUNNERS)}, not {name!r}."
        raise KeyError(message)
    return cast(Runner, importlib.import_module(RUNNERS[name]))
