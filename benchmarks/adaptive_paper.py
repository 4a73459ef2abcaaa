"""The experiment of the adaptive buffer paper (Sakpere and Kayem, section 4): how many rows expire.

    python -m benchmarks.adaptive_paper             all of it; half a minute of processor time
    python -m benchmarks.adaptive_paper --quick     small, as a smoke test

Crime reports are generated as the paper describes them. Every run is audited, and a broken promise ends it.
`docs/papers/adaptive-buffer.md` lists what the paper leaves open and what was chosen.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.runs import push_all, run
from benchmarks.tables import finish, rounded, table
from crenel.encoding.rows import Rows
from crenel.policy import Policy
from crenel.policy.hierarchy import Hierarchy
from crenel.policy.quasi_identifiers import Categorical, Numeric

ROWS, RUNS, KS = 1_000, 10, (2, 3, 4)
MS = 1_000

#: The taxonomy of the paper's figure 2, with more crimes of the same kinds.
CRIMES = Hierarchy.from_mapping(
    {
        "Violent Crime": ["Murder", "Rape", "Robbery", "Assault", "Kidnapping"],
        "Misdemeanors": ["Forgery", "Drunken Driving", "Trespassing", "Disorderly Conduct"],
        "Property Crime": ["Vandalism", "Theft", "Corruption", "Burglary", "Arson"],
    }
)
AGES = (15, 80)

#: The phases of each stream: the number of rows, and the minimum and maximum milliseconds between two rows.
STREAMS = {
    "gaps of 1 to 800 ms": [(ROWS, 1, 800)],
    "bursts and silences": [(30, 1, 100), (10, 600, 800), (20, 1, 800), (1, 10_000, 60_000)],
}

#: The number of rows in FAANST's buffer, as in the paper.
MU = 8
METHODS: dict[str, dict[str, Any]] = {
    "adaptive-window": {"method": "adaptive-window", "parameters": {"min_delay": "2s", "reuse": "best"}},
    "adaptive-window, uniform reuse": {"method": "adaptive-window", "parameters": {"min_delay": "2s"}},
    "faanst-passive": {"method": "faanst-passive", "parameters": {"mu": MU, "reuse": "best"}},
    "faanst-proactive": {"method": "faanst-proactive", "parameters": {"mu": MU, "reuse": "best"}},
    "mondrian": {"method": "mondrian", "parameters": {}},
    "castle": {"method": "castle", "parameters": {}},
}
#: The paper's results: percent of rows expired, as the mean over its values of k.
PAPER = {"adaptive-window": 1.95, "others": 12.7}


def reports(phases: Sequence[tuple[int, int, int]], rows: int, seed: int) -> Rows:
    """Generate crime reports, each by its own person. The phases repeat until there are enough rows."""
    draw = np.random.default_rng(seed)
    gaps: list[int] = []
    while len(gaps) < rows:
        for count, least, most in phases:
            gaps += draw.integers(least, most, count, endpoint=True).tolist()
    crimes = draw.integers(0, len(CRIMES.leaves), rows)
    ages = np.clip(np.round(draw.normal(35, 12, rows)), *AGES)
    return Rows(
        qi=np.stack([crimes.astype(np.float64), ages], axis=1),
        person=np.arange(rows),
        sensitive=np.zeros((rows, 0), dtype=np.int64),
        time=np.cumsum(gaps[:rows]) * MS,
    )


def policy(k: int, seed: int, method: dict[str, Any]) -> Policy:
    return Policy(
        person="reporter",
        quasi_identifiers={"crime": Categorical(hierarchy=CRIMES), "age": Numeric(domain=AGES)},
        k=k,
        delay="5s",
        seed=seed,
        **method,
    )


def measure(
    phases: Sequence[tuple[int, int, int]], method: dict[str, Any], k: int, rows: int, runs: int
) -> dict[str, float]:
    """Return means over the runs: percent of rows expired, percent reused, loss, and seconds waited."""
    done = []
    for seed in range(runs):
        given = reports(phases, rows, seed)
        result = run(policy(k, seed, method), given)
        left = result.releases
        waited = (left.per_row(left.moment) - given.time[left.rows]) / 1e6
        done.append((100 * result.suppressed, 100 * result.reused, result.loss, float(waited.mean())))
    return dict(zip(("expired", "reused", "loss", "waited"), map(fmean, zip(*done, strict=True)), strict=True))


def thresholds(rows: int, runs: int) -> list[list[float]]:
    """Vary the threshold from 0.4 to 0.6, as the paper does, with k = 3 on the first stream."""
    phases = next(iter(STREAMS.values()))
    lines = []
    for threshold in (0.1, 0.4, 0.5, 0.6, 0.9):
        method = {
            "method": "adaptive-window",
            "parameters": {"min_delay": "2s", "reuse": "best", "threshold": threshold},
        }
        found = measure(phases, method, 3, rows, runs)
        lines.append([threshold, *found.values()])
    return lines


def us_per_row(method: dict[str, Any], rows: int = 50_000) -> float:
    """Measure the processor time in a busy shard: 10,000 rows per second, 500 rows per push."""
    given = reports([(rows, 0, 0)], rows, 0)
    given.time[:] = np.arange(rows) * 100
    how = dict(method)
    if "mu" in how["parameters"]:
        how["parameters"] = {**how["parameters"], "mu": 1_000}
    chosen = policy(10, 0, how)
    times = []
    for _ in range(2):
        begun = time.process_time()
        push_all(chosen, given, 500)
        times.append(time.process_time() - begun)
    return min(times) / rows * 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.adaptive_paper", description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="two runs of 100 rows; figures mean nothing")
    asked = parser.parse_args(arguments)
    rows, runs = (100, 2) if asked.quick else (ROWS, RUNS)
    figures: dict[str, Any] = {"quick": asked.quick, "paper": PAPER}
    for name, phases in STREAMS.items():
        figures[name] = {}
        lines = []
        for label, method in METHODS.items():
            found = [measure(phases, method, k, rows, runs) for k in KS]
            figures[name][label] = {
                column: [rounded(one[column]) for one in found] for column in ("expired", "reused", "loss", "waited")
            }
            expired = [one["expired"] for one in found]
            lines.append(
                [
                    label,
                    *expired,
                    fmean(expired),
                    *(fmean(one[c] for one in found) for c in ("reused", "loss", "waited")),
                ]
            )
        header = [name, *(f"k = {k}" for k in KS), "mean", "reused %", "loss", "waited s"]
        print(f"Rows that expired, %\n\n{table(header, lines)}\n", flush=True)
    lines = thresholds(rows, runs)
    figures["threshold"] = [list(map(rounded, line)) for line in lines]
    print(table(["threshold", "expired %", "reused %", "loss", "waited s"], lines) + "\n", flush=True)
    busy = {label: us_per_row(method, 2_000 if asked.quick else 50_000) for label, method in METHODS.items()}
    print(table(["10,000 rows/s, k = 10", "us per row"], [list(item) for item in busy.items()]) + "\n")
    figures["us per row"] = {label: rounded(value) for label, value in busy.items()}
    finish(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
