"""What to say while the engine is being compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["WAIT", "announcing", "noting"]

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
    """Say it when the engine begins to be compiled."""
    from crenel.engine.kernels.compiler import listening

    said: list[str] = []

    def heard(name: str) -> None:
        if not said:
            say(f"({WAIT})")
        said.append(name)

    with listening(heard):
        yield
