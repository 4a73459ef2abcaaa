"""How a pipeline is launched: in this process, on Prism, on Flink, on Dataflow.

A pipeline is the same object wherever it runs; only this package knows where that is. It imports
nothing of `crenel.pipelines`, and its errors are its own (`runner_errors`).
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from crenel.runners.job_figures import JobFigures
from crenel.runners.runner_errors import JobFailed, RunnerError

__all__ = ["RUNNERS", "Job", "JobFailed", "JobFigures", "Runner", "RunnerError", "find"]

#: The module that launches a pipeline, by the runner's name.
RUNNERS: dict[str, str] = {
    "local": "crenel.runners.local",
    "prism": "crenel.runners.prism",
    "flink": "crenel.runners.flink.flink_run",
    "dataflow": "crenel.runners.dataflow",
}

#: The same for input without an end, where it is another module.
_ENDLESS = {"local": "crenel.runners.streaming"}


def _silent(_: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A pipeline to launch, and what is known of it beforehand."""

    #: Adds the steps to a pipeline.
    build: Callable[[Any], None]

    #: How many shards can be worked on in parallel.
    shards: int

    #: How many workers the user asked for; None lets the runner choose.
    workers: int | None = None

    #: Beam's own flags.
    flags: Sequence[str] = ()

    #: The method of the policy: workers of a stream compile its kernels before they take work.
    method: str | None = None

    #: Says a line about the job, and shows a line of progress: on a cluster, what becomes of it.
    say: Callable[[str], None] = _silent
    show: Callable[[str], None] | None = None

    #: Takes the figures of a job on a cluster, every few seconds, and the names of the counters that it shows.
    report: Callable[[JobFigures], None] | None = None
    counters: Sequence[str] = ()

    #: Set by the user's first Ctrl-C: a runner of endless input then stops reading and releases the held rows.
    stop: threading.Event | None = None


class Runner(Protocol):
    """The interface of a runner's module.

    A module may also have `KNOWN`, the names of flags that the runner knows and Beam in Python does not; and
    `check(flags)`, which raises a `RunnerError` before anything starts if something is missing.
    """

    def launch(self, job: Job) -> int:
        """Run a job to its end; return the number of workers it had.

        Raises:
            RunnerError: it cannot be started.
            JobFailed: it did not reach its end.
        """


def find(name: str, *, endless: bool = False) -> Runner:
    """The runner of this name.

    Args:
        name: As the user gives it.
        endless: Whether the input has no end.

    Raises:
        RunnerError: there is none; the message lists those there are.
    """
    if name not in RUNNERS:
        msg = f"--runner must be one of {', '.join(RUNNERS)}, not {name!r}."
        raise RunnerError(msg)
    module = _ENDLESS.get(name, RUNNERS[name]) if endless else RUNNERS[name]
    return cast(Runner, importlib.import_module(module))
