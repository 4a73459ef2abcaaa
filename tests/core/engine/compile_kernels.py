"""Compiles the kernels of all methods, so that they are in numba's cache before the tests begin.

    python -m tests.core.engine.compile_kernels

Two workers of pytest that need the same kernels at the same time would both compile them, which takes up to a minute
and a half. Here each is compiled once, in a process of its own; if nothing has changed since, there is nothing to do.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np

from crenel.encoding.rows import Rows
from crenel.engine import Engine, create_engine
from crenel.engine.compiled import Compiled
from crenel.policy import Policy
from crenel.policy.methods import find, names

_ROWS = 60


def families() -> list[tuple[str, ...]]:
    """Methods whose engines have a base in common, and so kernels, in one tuple each; the largest family first."""
    found: dict[type, list[str]] = {}
    for name in names():
        engine: Any = find(name).load_engine()
        bases = [base for base in engine.__mro__ if issubclass(base, Engine) and base not in (Engine, Compiled)]
        found.setdefault(bases[-1], []).append(name)
    return sorted(map(tuple, found.values()), key=len, reverse=True)


def compile_family(methods: tuple[str, ...]) -> None:
    """Let each method do everything once."""
    for method in methods:
        for sensitive in ({}, {"sensitive": ["illness"], "l": 2}):
            policy = _policy(method, sensitive)
            if policy is not None:
                _use(policy)


def _policy(method: str, sensitive: dict[str, Any]) -> Policy | None:
    age = {"type": "numeric", "domain": [0, 100]}
    said = {"version": 1, "person": "who", "quasi_identifiers": {"age": age}, "k": 2, "method": method, **sensitive}
    for delay in ({"delay_rows": 10}, {"delay": "1m", "event_time": "at"}):
        try:
            return Policy.from_dict({**said, **delay})
        except ValueError:
            continue  # not every method takes every policy
    return None


def _use(policy: Policy) -> None:
    rng = np.random.default_rng(0)
    age, illness = rng.integers(100, size=(_ROWS, 1)), rng.integers(5, size=(_ROWS, len(policy.sensitive)))
    rows = Rows(age.astype(np.float64), np.arange(_ROWS), illness, np.arange(_ROWS) * 1_000_000)
    engine = create_engine(policy)
    engine.push(rows)
    engine.advance(_ROWS * 1_000_000)
    again = create_engine(policy)
    again.restore(engine.snapshot())
    again.flush()


def main() -> None:
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_family, families()))


if __name__ == "__main__":
    main()
