"""The experiments of the adaptive buffer paper (Sakpere and Kayem, section 4): how many rows expire, and why.

    python -m benchmarks.adaptive_paper                      all of it; two minutes of processor time
    python -m benchmarks.adaptive_paper --only ablation      some of it
    python -m benchmarks.adaptive_paper --quick              small, as a smoke test

Crime reports are generated as the paper describes them. Every run is audited, and a broken promise ends it.
`docs/papers/adaptive-buffer.md` lists what the paper leaves open and what was chosen.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.runs import push_all, run
from benchmarks.tables import finish, rounded, table
from crenel.encoding.rows import Rows
from crenel.engine.methods.mondrian.mondrian_engine import groups_of, partition
from crenel.engine.space import space_of
from crenel.policy import Policy
from crenel.policy.hierarchy import Hierarchy
from crenel.policy.quasi_identifiers import Categorical, Numeric

ROWS, RUNS, KS = 1_000, 10, (2, 3, 4)
MS = 1_000

#: The taxonomy of the paper's figure 2, with more crimes of the same kinds.
KINDS = {
    "Violent Crime": ["Murder", "Rape", "Robbery", "Assault", "Kidnapping"],
    "Misdemeanors": ["Forgery", "Drunken Driving", "Trespassing", "Disorderly Conduct"],
    "Property Crime": ["Vandalism", "Theft", "Corruption", "Burglary", "Arson"],
}
CRIMES = Hierarchy.from_mapping(KINDS)
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


def adaptive(**parameters: Any) -> dict[str, Any]:
    """Return the paper's method with its own rule of reuse, and some parameters changed."""
    return {"method": "adaptive-window", "parameters": {"min_delay": "2s", "reuse": "best", **parameters}}


#: The method without one of its mechanisms after the other.
ABLATION: dict[str, dict[str, Any]] = {
    "as it is": adaptive(),
    "no reuse": adaptive(reuse="off"),
    "nobody left over": adaptive(spare=0),
    "always wait": adaptive(threshold=1e-9),
    "never wait": adaptive(threshold=0.999999),
    "neither reuse nor waiting": adaptive(reuse="off", threshold=0.999999),
}


def by_method(rows: int, runs: int) -> tuple[str, dict[str, Any]]:
    """Figures 4 and 6: rows that expired, rows published by reuse, and loss, for each k."""
    texts, figures = [], {}
    for name, phases in STREAMS.items():
        lines, figures[name] = [], {}
        for label, method in METHODS.items():
            found = [measure(phases, method, k, rows, runs) for k in KS]
            figures[name][label] = {
                column: [rounded(one[column]) for one in found] for column in ("expired", "reused", "loss", "waited")
            }
            expired = [one["expired"] for one in found]
            means = [fmean(one[column] for one in found) for column in ("reused", "loss", "waited")]
            lines.append([label, *expired, fmean(expired), *means])
        header = [name, *(f"k = {k}" for k in KS), "mean", "reused %", "loss", "waited s"]
        texts.append(f"Rows that expired, %\n\n{table(header, lines)}")
    return "\n\n".join(texts), figures


def ablation(rows: int, runs: int) -> tuple[str, dict[str, Any]]:
    """Take one mechanism away after the other: what keeps rows from expiring?"""
    lines, figures = [], {}
    for label, method in ABLATION.items():
        found = {name: [measure(phases, method, k, rows, runs) for k in KS] for name, phases in STREAMS.items()}
        values = [fmean(one[column] for one in found[name]) for column in ("expired", "loss") for name in STREAMS]
        lines.append([label, *values])
        figures[label] = [rounded(value) for value in values]
    header = ["adaptive-window", "expired %, steady", "expired %, bursts", "loss, steady", "loss, bursts"]
    return table(header, lines), figures


def by_window(rows: int, runs: int) -> tuple[str, dict[str, Any]]:
    """Figure 5: the loss over the life of a window and k. A row may wait for 5 s all the same."""
    phases = next(iter(STREAMS.values()))
    lines, figures = [], {}
    for life in (2, 3, 4, 5):
        method = adaptive(min_delay=f"{life}s", max_delay=f"{life}s")
        losses = [measure(phases, method, k, rows, runs)["loss"] for k in KS]
        lines.append([f"{life} s", *losses])
        figures[str(life)] = [rounded(loss) for loss in losses]
    return table(["windows of", *(f"k = {k}" for k in KS)], lines), figures


def by_threshold(rows: int, runs: int) -> tuple[str, list[list[float]]]:
    """Vary the threshold from 0.4 to 0.6, as the paper does, and beyond, with k = 3."""
    lines = []
    for name, phases in STREAMS.items():
        for threshold in (1e-9, 0.1, 0.4, 0.5, 0.6, 0.9, 0.999999):
            found = measure(phases, adaptive(threshold=threshold), 3, rows, runs)
            lines.append([f"{name}, {threshold:g}", *found.values()])
    figures = [[line[0], *map(rounded, line[1:])] for line in lines]
    return table(["threshold", "expired %", "reused %", "loss", "waited s"], lines), figures


#: The widths of ages on the levels of Samarati's hierarchy; the last holds them all.
AGE_LEVELS = (1, 5, 10, 20, 100)


def samarati(rows: Rows, k: int, most: int) -> tuple[float, int]:
    """Anonymize a window as the paper does, and return the loss and the number of rows that it suppresses.

    Every column is generalized to one level for all rows (full-domain generalization). Of the levels that suppress at
    most `most` rows, those of least loss are taken; a suppressed row loses everything.
    """
    leaves = len(CRIMES.leaves)
    kinds = np.repeat(np.arange(len(KINDS)), [len(crimes) for crimes in KINDS.values()])
    crime = rows.qi[:, 0].astype(np.int64)
    domain = AGES[1] - AGES[0]
    best = (1.0, len(rows))
    # On each level of crimes: what the rows say, and how many crimes that may be, on average.
    for code, crimes in ((crime, 1.0), (kinds[crime], leaves / len(KINDS)), (np.zeros_like(crime), float(leaves))):
        width = (crimes - 1) / (leaves - 1)
        for step in AGE_LEVELS:
            both = np.stack([code, rows.qi[:, 1] // step], axis=1)
            _, inverse, counts = np.unique(both, axis=0, return_inverse=True, return_counts=True)
            alone = int((counts[inverse.reshape(-1)] < k).sum())
            loss = (width + min((step - 1) / domain, 1.0)) / 2
            mean = (alone + (len(rows) - alone) * loss) / max(len(rows), 1)
            if alone <= most and mean < best[0]:
                best = (mean, alone)
    return best


def anonymizers(rows: int, runs: int) -> tuple[str, dict[str, Any]]:
    """Count what one window of 5 s leaves over if Samarati's method anonymizes it, as in the paper, and Mondrian."""
    phases = next(iter(STREAMS.values()))
    lines, figures = [], {}
    for k in KS:
        found: dict[str, list[tuple[float, int, int]]] = {"Samarati": [], "Mondrian": []}
        for seed in range(runs):
            given = reports(phases, rows, seed)
            space = space_of(policy(k, seed, adaptive()))
            window = given.time // (5_000 * MS)
            for number in np.unique(window):
                part = given.take(np.flatnonzero(window == number))
                loss, alone = samarati(part, k, 5)
                found["Samarati"].append((loss * len(part), alone, len(part)))
                group = partition(space, part, k, spare=len(part) // 4)
                boxes = groups_of(space, part, group)
                alone = int((group < 0).sum())
                loss = float(boxes.loss @ np.diff(boxes.offsets)) + alone
                found["Mondrian"].append((loss, alone, len(part)))
        line: list[float] = []
        for each in found.values():
            loss, alone, count = np.sum(each, axis=0)
            line += [100 * alone / count, loss / count]
        lines.append([f"{k}", *line])
        figures[str(k)] = [rounded(value) for value in line]
    return table(["k", "Samarati: left over %", "loss", "Mondrian: left over %", "loss"], lines), figures


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


def busy(rows: int, runs: int) -> tuple[str, dict[str, Any]]:
    """Measure the time of a row in a busy shard."""
    found = {label: us_per_row(method, 50 * rows) for label, method in METHODS.items()}
    lines = [list(item) for item in found.items()]
    return table(["10,000 rows/s, k = 10", "us per row"], lines), {name: rounded(us) for name, us in found.items()}


PARTS: dict[str, Callable[[int, int], tuple[str, Any]]] = {
    "expired": by_method,
    "ablation": ablation,
    "window": by_window,
    "threshold": by_threshold,
    "anonymizers": anonymizers,
    "busy": busy,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.adaptive_paper", description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="two runs of 100 rows; figures mean nothing")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    asked = parser.parse_args(arguments)
    wanted = asked.only.split(",")
    if unknown := [name for name in wanted if name not in PARTS]:
        parser.error(f"--only must be some of {', '.join(PARTS)}, not {', '.join(unknown)}")
    rows, runs = (100, 2) if asked.quick else (ROWS, RUNS)
    figures: dict[str, Any] = {"quick": asked.quick, "paper": PAPER}
    for name in wanted:
        text, figures[name] = PARTS[name](rows, runs)
        print(f"{name}\n\n{text}\n", flush=True)
    finish(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
