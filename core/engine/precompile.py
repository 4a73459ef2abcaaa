"""Compiles the kernels of methods before their first use: each method does everything once, on a few made-up rows."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from crenel.encoding.rows import Rows
from crenel.engine import Engine, create_engine
from crenel.engine.compiled import Compiled
from crenel.engine.kernels import compiler
from crenel.policy import Policy
from crenel.policy.methods import find

__all__ = ["compile_and_end", "compile_family", "families", "folder"]

_ROWS = 60


def folder() -> Path | None:
    """Return the folder that keeps compiled code; None if no place can be written to."""
    return compiler.FOLDER


def families(methods: Iterable[str]) -> list[tuple[str, ...]]:
    """Group methods whose engines share a base, and therefore kernels; the largest family first.

    Methods of one family are best compiled by one process, and families side by side.
    """
    found: dict[Any, list[str]] = {}
    for name in methods:
        engine: Any = find(name).load_engine()
        bases = getattr(engine, "__mro__", (engine,))
        shared = [base for base in bases if isinstance(base, type) and issubclass(base, Engine)]
        own = [base for base in shared if base not in (Engine, Compiled)]
        found.setdefault(own[-1] if own else engine, []).append(name)
    return sorted(map(tuple, found.values()), key=len, reverse=True)


def compile_family(methods: Iterable[str]) -> None:
    """Let each method do everything once. Compiled code is kept in `folder()`, if there is one."""
    compiler.compile_from_now_on()
    for method in methods:
        declared = find(method)
        promises: list[dict[str, Any]] = [{}]
        if declared.keeps_l:
            promises.append({"sensitive": ["illness"], "l": 2})
        if declared.keeps_t:
            promises.append({"sensitive": ["illness"], "t": 0.9})
        if declared.crowd(declared.parameters()):
            promises.append({"together": True})
        for promise in promises:
            policy = _policy(method, promise)
            if policy is not None:
                _use(policy)


def _policy(method: str, promise: dict[str, Any]) -> Policy | None:
    columns = {
        "age": {"type": "numeric", "domain": [0, 100]},
        "kind": {"type": "categorical", "hierarchy": {"any": {"ab": ["a", "b"], "cd": ["c", "d"]}}},
        "zip": {"type": "prefix", "length": 2},
    }
    said = {"version": 1, "person": "who", "quasi_identifiers": columns, "k": 2, "method": method, **promise}
    for delay in ({"delay_rows": 10}, {"delay": "1m", "event_time": "at"}):
        try:
            return Policy.from_dict({**said, **delay})
        except ValueError:
            continue  # not every method takes every policy
    return None


def _use(policy: Policy) -> None:
    draw = np.random.default_rng(0)
    columns = [draw.integers(100, size=_ROWS), draw.integers(4, size=_ROWS), draw.integers(100, size=_ROWS)]
    illness = draw.integers(5, size=(_ROWS, len(policy.sensitive)))
    rows = Rows(np.stack(columns, axis=1).astype(np.float64), np.arange(_ROWS), illness, np.arange(_ROWS) * 1_000_000)
    engine = create_engine(policy)
    engine.push(rows)
    engine.advance(_ROWS * 1_000_000)
    again = create_engine(policy)
    again.restore(engine.snapshot())
    again.flush()


# --- In a process of its own: see background.py ---


def compile_and_end(methods: Sequence[str]) -> None:
    """Compile methods, unless the process that began this one ends before."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    kept = folder()
    if kept is None:
        sys.exit(1)
    for method in methods:
        with _alone(kept / f"{method}.lock"):
            compile_family([method])


def _end_with_parent() -> None:
    """Nothing is ever written to standard input: it ends when the other process does."""
    sys.stdin.buffer.read()
    os._exit(1)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process is within the context. A process that dies leaves it."""
    with path.open("w") as file:
        with suppress(ImportError):  # without such locks, two processes may compile the same
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
