"""All methods on the same rows: their loss, their delay and their time.

python -m benchmarks.methods             the tables of docs/methods.md
python -m benchmarks.methods --quick     a tenth of the rows, as a smoke test
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import datasets
from benchmarks.castle_paper import REFERENCES
from benchmarks.datasets import Stream
from benchmarks.runs import BrokenPromiseError, push_all
from benchmarks.tables import finish, rounded, table
from crenel.audit import audit
from crenel.engine import Kind
from crenel.policy import Policy

SECOND = 1_000_000
#: The parameters that a method needs besides k and delta.
SETTINGS: dict[str, dict[str, Any]] = {
    "castle": {},
    "bastion": {},
    "rtree": {},
    "rtree-density": {},
    "rtree-full": {},
    "min-delay": {},
    "adaptive-window": {"timed": True},
    "partition": {},
    "mondrian": {},
    "faanst-passive": {},
    "faanst-proactive": {},
    "castleguard": {"parameters": {"beta_sample": 1.0, "phi": 1000.0}},
    "sdgs": {"parameters": {"beta_sample": 0.999}, "on_suppress": "drop"},
}
#: The cases of the table: 6 and 10 quasi-identifiers, k = 10, delta 1,000.
CASES = (REFERENCES[1], REFERENCES[3])


def policy_of(stream: Stream, method: str, k: int, delta: int, seed: int) -> Policy:
    """Build a policy with the same deadline for all methods: `delta` rows, one second apart."""
    said = dict(SETTINGS[method])
    timed = said.pop("timed", False)
    deadline = {"delay": delta * SECOND} if timed else {"delay_rows": delta}
    return Policy(
        person="person",
        quasi_identifiers=stream.quasi_identifiers,
        k=k,
        method=method,
        seed=seed,
        **deadline,
        **said,
    )


def measured(stream: Stream, policy: Policy) -> dict[str, float]:
    begun = time.process_time()
    releases = push_all(policy, stream.rows)
    took = time.process_time() - begun
    report = audit(policy, stream.rows, releases)
    if not report.ok:
        raise BrokenPromiseError("\n".join(report.problems() + report.unchecked()))
    kind = releases.per_row(releases.kind)
    there = kind != Kind.SAMPLED_OUT
    delay = releases.per_row(releases.arrivals) - 1 - releases.rows
    return {
        "loss": float(releases.per_row(releases.loss)[there].mean()),
        "suppressed": float(np.mean(kind[there] == Kind.SUPPRESSED)),
        "delay": float(delay[there].mean()),
        "us": 1e6 * took / len(stream.rows),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.methods", description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows; figures mean nothing")
    parser.add_argument("--seeds", type=int, default=3, help="runs of which the mean is reported")
    parser.add_argument("--methods", default=",".join(SETTINGS), help="only these methods")
    options = parser.parse_args(arguments)
    figures: dict[str, Any] = {"quick": options.quick}
    for case in CASES:
        stream = datasets.adult(case.quasi_identifiers)
        rows = replace(stream.rows, time=np.arange(len(stream.rows), dtype=np.int64) * SECOND)
        stream = replace(stream, rows=rows).first(len(rows) // 10 if options.quick else len(rows))
        name = f"{len(case.quasi_identifiers)} quasi-identifiers"
        figures[name] = {}
        for method in options.methods.split(","):
            small = stream.first(case.delay_rows + 500)
            push_all(policy_of(small, method, case.k, case.delay_rows, 0), small.rows)  # compile first
            runs = [
                measured(stream, policy_of(stream, method, case.k, case.delay_rows, seed))
                for seed in range(1 if options.quick else options.seeds)
            ]
            figures[name][method] = {key: rounded(float(np.mean([r[key] for r in runs]))) for key in runs[0]}
        first = figures[name][next(iter(figures[name]))]["us"]
        lines = [
            [f"`{method}`", of["loss"], f"{of['suppressed']:.1%}", round(of["delay"]), of["us"] / first]
            for method, of in figures[name].items()
        ]
        header = [name, "loss", "suppressed", "mean delay, rows", "time to castle's"]
        print(table(header, lines) + "\n", flush=True)
    finish(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
