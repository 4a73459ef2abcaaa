"""The loss of methods on streams that arrive in bursts of one timestamp, with and without l.

    python -m benchmarks.bursts                      the table of docs/bastion.md
    python -m benchmarks.bursts --only taxi          some of the streams
    python -m benchmarks.bursts --quick              a tenth of the rows, as a smoke test

A burst has 50 to 5,000 rows, all due at one moment. Either each burst is alone within its delay, or five bursts are
held at a time. Mondrian and castle have the same deadlines. Every run is audited.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks import datasets
from benchmarks.castle_paper import FOUR
from benchmarks.datasets import ADULT, NUMERIC, Stream
from benchmarks.methods import measured
from benchmarks.tables import finish, rounded, table
from crenel.policy import Policy, Sensitive

MINUTE = 60_000_000
DELAY = 60 * MINUTE
#: Minutes between bursts: each burst alone, or five within a delay.
GAPS = {"alone": 180, "five": 12}
METHODS = ("castle", "mondrian", "bastion")


@dataclass(frozen=True)
class Case:
    """A stream and its guarantees."""

    stream: Callable[[], Stream]
    k: int
    l: int | None = None


def _sensitive(names: Sequence[str], column: str) -> Stream:
    """Load Adult with a sensitive column besides the quasi-identifiers."""
    stream = datasets.adult(names, extra=(column,))
    return replace(stream, rows=replace(stream.rows, sensitive=stream.extra[column].reshape(-1, 1)))


CASES = {
    "6 numeric": Case(lambda: datasets.adult(NUMERIC), 10),
    "6 numeric, k = 50": Case(lambda: datasets.adult(NUMERIC), 50),
    "10 QIs": Case(lambda: datasets.adult(ADULT), 10),
    "age, 3 categories": Case(lambda: datasets.adult(FOUR), 50),
    "census": Case(lambda: datasets.census().first(30_000), 50),
    "taxi": Case(lambda: datasets.taxi(rows=30_000), 50),
    "l = 2": Case(lambda: _sensitive(NUMERIC, "income"), 10, 2),
    "l = 3": Case(lambda: _sensitive(NUMERIC, "occupation"), 10, 3),
    "l = 2, k = 50": Case(lambda: _sensitive(NUMERIC, "income"), 50, 2),
    "l = 3, categories": Case(lambda: _sensitive(FOUR, "occupation"), 50, 3),
}


def in_bursts(stream: Stream, minutes: int, seed: int) -> Stream:
    """Assign the rows, in their order, to bursts of 50 to 5,000 rows (log-uniform) with one time each."""
    random = np.random.default_rng(seed)
    sizes: list[int] = []
    while sum(sizes) < len(stream.rows):
        sizes.append(round(np.exp(random.uniform(np.log(50), np.log(5_000)))))
    moments = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)[: len(stream.rows)]
    return replace(stream, rows=replace(stream.rows, time=moments * minutes * MINUTE))


def policy_of(case: Case, stream: Stream, method: str, seed: int) -> Policy:
    return Policy(
        person="person",
        quasi_identifiers=stream.quasi_identifiers,
        sensitive={"sensitive": Sensitive()} if case.l else None,
        k=case.k,
        l=case.l,
        delay=DELAY,
        method=method,
        on_suppress="drop",
        seed=seed,
    )


def figures_of(case: Case, gap: str, seeds: int, part: int) -> dict[str, float]:
    whole = case.stream()
    whole = whole.first(len(whole.rows) // part)
    figures: dict[str, float] = {}
    for method in METHODS:
        runs = []
        for seed in range(seeds):
            stream = in_bursts(whole, GAPS[gap], seed)
            if seed == 0:  # compile first
                measured(stream.first(1_000), policy_of(case, stream, method, seed))
            runs.append(measured(stream, policy_of(case, stream, method, seed)))
        figures |= {f"{method} {name}": fmean(run[name] for run in runs) for name in ("loss", "suppressed")}
        figures[f"{method} us"] = min(run["us"] for run in runs)
    return {name: rounded(value) for name, value in figures.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.bursts", description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows; figures mean nothing")
    parser.add_argument("--only", default=None, help="only streams whose name contains this")
    parser.add_argument("--seeds", type=int, default=3, help="runs of which the mean is reported")
    options = parser.parse_args(arguments)
    seeds, part = (1, 10) if options.quick else (options.seeds, 1)
    chosen = [name for name in CASES if options.only is None or options.only in name]
    found = {f"{name}, {gap}": figures_of(CASES[name], gap, seeds, part) for name in chosen for gap in GAPS}
    lines = []
    for name, f in found.items():
        to = [f["bastion loss"] / f[f"{other} loss"] for other in ("castle", "mondrian")]
        ours = [f"{f['bastion suppressed']:.2%}", f["bastion us"] / f["castle us"]]
        lines.append([name, f["castle loss"], f["mondrian loss"], f["bastion loss"], *to, *ours])
    header = ["loss", "castle", "Mondrian", "bastion", "to castle", "to Mondrian", "suppressed", "time to castle"]
    print(table(header, lines) + "\n", flush=True)
    everything: dict[str, Any] = {"benchmark": "bursts", "quick": options.quick, "seeds": seeds, **found}
    finish(everything)
    return 0


if __name__ == "__main__":
    sys.exit(main())
