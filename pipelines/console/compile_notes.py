"""What to say while the engine is being compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["WAIT", "advice", "announcing", "noting"]

#: What is said once.
WAIT = "compiling the engine, once: up to half a minute"


@contextmanager
def noting() -> Iterator[Callable[[], str]]:
    """Provide a function that returns a note on what is being compiled, to be added to a line; often it is empty."""
    from crenel.engine import precompile  # here, since it imports numba
    from crenel.engine.kernels.compiler import listening

    names = [""]
    kept = precompile.folder()
    with listening(names.append):
        yield lambda: f" (compiling {names[-1]}, once; kept in {kept or 'memory'})" if names[-1] else ""


@contextmanager
def announcing(say: Callable[[str], object]) -> Iterator[None]:
    """Say it when the run waits for the engine to be compiled."""
    from crenel.engine.background import IN_BACKGROUND
    from crenel.engine.kernels.compiler import listening

    said: list[str] = []

    def heard(name: str) -> None:
        if not said and not name.endswith(IN_BACKGROUND):
            say(f"({WAIT})")
            said.append(name)

    with listening(heard):
        yield


def advice() -> str:
    """Return what to do if the run was over before the engine was compiled; often it is empty."""
    from crenel.engine.kernels.compiler import unfinished

    methods = " ".join(unfinished())
    if not methods:
        return ""
    return f"the engine was not compiled in this time. To make later runs faster, run once: crenel compile {methods}"
