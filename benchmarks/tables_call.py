"""The cost of `crenel.anonymize(table)`: a table in one call, against the engine alone on the same rows.

    python -m benchmarks.tables_call                     about three minutes
    python -m benchmarks.tables_call --methods castle    another method
    python -m benchmarks.tables_call --quick             small, as a smoke test

A million rows of a person and six numbers, in memory. The engine alone gets the same rows as numpy arrays: what the
call adds is to encode the columns, to make the published table, and to shuffle it. Times are processor times, as
medians of repetitions that alternate within one run.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

import crenel
from benchmarks.runs import push_all
from benchmarks.tables import finish, rounded, table
from crenel.encoding.rows import Rows
from crenel.policy import Policy

_NAMES = ("v1", "v2", "v3", "v4", "v5", "v6")
_VALUES = 1_000
#: Rows that the engine alone gets at a time: as many as the call gives it.
_PUSH = 8_192

#: The kinds of tables, each made of an Arrow table.
KINDS: dict[str, Callable[[pa.Table], Any]] = {
    "pyarrow": lambda rows: rows,
    "pandas": pa.Table.to_pandas,
    "polars": pl.from_arrow,
}


@dataclass(frozen=True)
class Scale:
    """How much to run."""

    rows: int = 1_000_000
    k: int = 100
    delta: int = 10_000
    repetitions: int = 3
    methods: tuple[str, ...] = ("bastion", "castle")


def policy_of(scale: Scale, method: str) -> Policy:
    columns = {name: {"type": "numeric", "domain": [0, _VALUES]} for name in _NAMES}
    said = {"person": "person", "quasi_identifiers": columns, "k": scale.k, "delay_rows": scale.delta, "seed": 0}
    return Policy.from_dict({**said, "method": method})


def make_rows(count: int) -> pa.Table:
    draw = np.random.default_rng(0)
    # Scatter the identifiers, because consecutive ones are the easy case.
    columns: dict[str, Any] = {"person": (np.arange(count) * 2_654_435_761) % (1 << 40)}
    return pa.table(columns | {name: draw.integers(0, _VALUES, count) for name in _NAMES})


def measure(scale: Scale, method: str, given: pa.Table) -> dict[str, float]:
    """Measure one method; return times per row in microseconds, and ratios to the engine alone."""
    policy = policy_of(scale, method)
    qi = np.stack([np.asarray(given.column(name), dtype=np.float64) for name in _NAMES], axis=1)
    none = np.zeros((len(qi), 0), dtype=np.int64)
    rows = Rows(qi, np.asarray(given.column("person")), none, np.zeros(len(qi), dtype=np.int64))
    work: dict[str, Callable[[], object]] = {"engine": lambda: push_all(policy, rows, _PUSH)}
    for kind, make in KINDS.items():
        work[kind] = _call(make(given), policy)
    spent: dict[str, list[float]] = {name: [] for name in work}
    push_all(policy, rows.slice(0, 3 * scale.delta))  # compiles, or loads compiled code
    for make in KINDS.values():
        _call(make(given.slice(0, 3 * scale.delta)), policy)()
    for _ in range(scale.repetitions):
        for name, run in work.items():
            gc.collect()
            began = time.process_time()
            run()
            spent[name].append(1e6 * (time.process_time() - began) / len(qi))
        print(f"  {method}: {', '.join(f'{n} {s[-1]:.2f}' for n, s in spent.items())}", file=sys.stderr, flush=True)
    found = {name: median(times) for name, times in spent.items()}
    return found | {f"{kind} to engine": found[kind] / found["engine"] for kind in KINDS}


def _call(given: Any, policy: Policy) -> Callable[[], object]:
    return lambda: crenel.anonymize(given, policy)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tables_call", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    parser.add_argument("--rows", type=int, help="rows of the table")
    parser.add_argument("--repetitions", type=int, help="of each case")
    parser.add_argument("--methods", help="methods, with commas between them")
    said = parser.parse_args(sys.argv[1:] if given is None else given)
    usual = Scale(rows=3_000, k=5, delta=100, repetitions=1, methods=("bastion",)) if said.quick else Scale()
    methods = tuple(said.methods.split(",")) if said.methods else usual.methods
    scale = replace(
        usual, rows=said.rows or usual.rows, repetitions=said.repetitions or usual.repetitions, methods=methods
    )
    rows = make_rows(scale.rows)
    figures = {}
    for method in scale.methods:
        found = measure(scale, method, rows)
        figures[method] = {name: rounded(value) for name, value in found.items()}
    print(
        f"{scale.rows:,} rows, 6 QIs, k={scale.k}, delta={scale.delta:,}, {scale.repetitions} repetitions; us a row\n"
    )
    header = list(next(iter(figures.values())))
    print(table(["", *header], [[method, *one.values()] for method, one in figures.items()]))
    versions = {"pyarrow": pa.__version__, "pandas": pd.__version__, "polars": pl.__version__}
    finish({"benchmark": "tables_call", "quick": said.quick, "rows": scale.rows, **versions, **figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
