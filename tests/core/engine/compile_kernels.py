"""Compiles the kernels of all methods, so that they are in numba's cache before the tests begin.

    python -m tests.core.engine.compile_kernels

Two workers of pytest that need the same kernels at the same time would both compile them, which takes up to a minute
and a half. Here each is compiled once, by a process of its own; if nothing has changed since, there is nothing to do.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np

from crenel.encoding.rows import Rows
from crenel.engine import create
from crenel.policy import Policy
from crenel.policy.parameters import METHODS

#: Methods that share kernels, those that take longest to compile first.
FAMILIES = (
    ("min-delay", "rtree", "rtree-density", "rtree-full"),
    ("castle", "castleguard"),
    ("bastion",),
    ("partition",),
    ("mondrian", "adaptive-window", "faanst-passive", "faanst-proactive"),
    ("sdgs",),
)
_ROWS = 60


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
    engine = create(policy)
    engine.push(rows)
    engine.advance(_ROWS * 1_000_000)
    again = create(policy)
    again.restore(engine.snapshot())
    again.flush()


def main() -> int:
    missing = set(METHODS) - {method for family in FAMILIES for method in family}
    if missing:
        print(f"tests.core.engine.compile_kernels: {', '.join(sorted(missing))} must be in a family.", file=sys.stderr)
        return 1
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_family, FAMILIES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
