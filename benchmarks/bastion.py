"""The loss, delay and cost of `bastion`, compared with `castle` and Mondrian.

    python -m benchmarks.bastion                  the tables of docs/bastion.md
    python -m benchmarks.bastion --only taxi,l    some of the cases
    python -m benchmarks.bastion --only others    streams that its constants were not chosen on
    python -m benchmarks.bastion --skip 503       without the first rows: how much depends on where a stream begins
    python -m benchmarks.bastion --quick          a tenth of everything, as a smoke test

`castle` reuses boxes as in its paper; `bastion` does not, which is its default. Every run is audited, and a broken
promise ends it. Losses are means over several seeds. Times are the least of several interleaved runs.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks import datasets
from benchmarks.castle_paper import FOUR
from benchmarks.datasets import ADULT, NUMERIC, SFU, UCI, Stream
from benchmarks.methods import measured
from benchmarks.runs import PACK, push_all
from benchmarks.tables import finish, rounded, table
from crenel.encoding.rows import Rows
from crenel.engine import create_engine
from crenel.policy import Policy, Sensitive


@dataclass(frozen=True)
class Case:
    """A stream, its guarantees, and the aims for it."""

    name: str
    stream: Callable[[], Stream]
    k: int
    delta: int
    #: The largest loss to aim for, if there is one.
    loss: float | None = None
    l: int | None = None


def _repeated() -> Stream:
    return datasets.repeated(datasets.adult(NUMERIC), 3)


def _diverse() -> Stream:
    """Load Adult with income as a sensitive column: two values, one of them in a quarter of the rows."""
    stream = datasets.adult(NUMERIC, extra=("income",))
    return replace(stream, rows=replace(stream.rows, sensitive=stream.extra["income"].reshape(-1, 1)))


def _from(stream: Stream, first: int, rows: int) -> Stream:
    """Return some of the rows."""
    return replace(stream, rows=stream.rows.slice(first, min(first + rows, len(stream.rows))))


CASES = {
    "6-100": Case("6 numeric", lambda: datasets.adult(NUMERIC), 100, 10_000, loss=0.165),
    "6-10": Case("6 numeric", lambda: datasets.adult(NUMERIC), 10, 1_000, loss=0.088),
    "10-100": Case("10 QIs", lambda: datasets.adult(ADULT), 100, 10_000, loss=0.322),
    "10-10": Case("10 QIs", lambda: datasets.adult(ADULT), 10, 1_000, loss=0.185),
    "4-50": Case("age and 3 categories", lambda: datasets.adult(FOUR), 50, 5_000, loss=0.158),
    "census": Case("census", lambda: datasets.census().first(60_000), 50, 5_000, loss=0.36),
    "taxi": Case("taxi", lambda: datasets.taxi(rows=60_000), 50, 5_000, loss=0.205),
    "persons": Case("6 numeric, 3 rows a person", _repeated, 10, 3_000),
    "l": Case("6 numeric, l = 2", _diverse, 10, 1_000, l=2),
}
#: Streams that no constant was chosen on.
OTHERS = {
    "later-6": Case(
        "Adult's test rows, 6 numeric", lambda: _from(datasets.adult(NUMERIC, rows=SFU), UCI, SFU), 10, 1_000
    ),
    "later-10": Case("Adult's test rows, 10 QIs", lambda: _from(datasets.adult(ADULT, rows=SFU), UCI, SFU), 25, 2_000),
    "later-census": Case("census, later rows", lambda: _from(datasets.census(), 100_000, 40_000), 20, 3_000),
    "later-taxi": Case("taxi, later rows", lambda: _from(datasets.taxi(rows=120_000), 60_000, 40_000), 20, 2_000),
    "sal": Case("census as 7 numbers", lambda: datasets.sal(7, rows=30_000, seed=3), 25, 2_500),
    "power-law": Case("power law", lambda: datasets.power_law(alpha=1.0, rows=30_000, dimensions=4), 30, 3_000),
    "normal": Case("3 normal", lambda: datasets.spread("normal", rows=30_000), 20, 1_000),
    "uniform": Case("3 uniform", lambda: datasets.spread("uniform", rows=30_000), 50, 2_000),
}
#: The aims: the largest delay and time relative to castle, and the largest memory relative to the rows.
LOSS, DELAY, TIME, MEMORY = 0.82, 1.2, 2.0, 1.5


def case_of(name: str) -> Case:
    return {**CASES, **OTHERS}[name]


def policy_of(
    case: Case, stream: Stream, method: str, delta: int, seed: int = 0, parameters: dict[str, Any] | None = None
) -> Policy:
    return Policy(
        person="person",
        quasi_identifiers=stream.quasi_identifiers,
        sensitive={"sensitive": Sensitive()} if case.l else None,
        k=case.k,
        l=case.l,
        delay_rows=delta,
        method=method,
        parameters=parameters,
        seed=seed,
    )


def memory(policy: Policy, stream: Stream) -> dict[str, float]:
    """Measure what engines allocate to hold the first `delta` rows, relative to the rows' bytes.

    Two engines run in their own thread, where no scratch space exists yet: the first allocates it, and the second
    shares it. Reusable boxes are not counted, because there are none yet.
    """
    rows = stream.rows.slice(0, policy.delay_rows or 0)
    own = sum(column.nbytes for column in (rows.qi, rows.person, rows.sensitive, rows.time))
    with ThreadPoolExecutor(max_workers=1) as thread:
        first, both = thread.submit(_allocated, policy, rows).result()
    return {"memory": (both - first) / own, "first memory": first / own}


def _allocated(policy: Policy, rows: Rows) -> tuple[int, int]:
    """Return the bytes that one engine allocates to hold the rows, and the bytes that two allocate."""
    engines, used = [], []
    gc.collect()
    tracemalloc.start()
    for _ in range(2):
        engines.append(create_engine(policy))
        for start in range(0, len(rows), PACK):
            engines[-1].push(rows.slice(start, min(start + PACK, len(rows))))
        gc.collect()
        used.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    return used[0], used[1]


def figures_of(case: Case, seeds: int, part: int, skip: int = 0) -> dict[str, float]:
    stream, delta = case.stream(), case.delta // part
    stream = replace(stream, rows=stream.rows.slice(skip, len(stream.rows)))
    if part > 1:
        case = replace(case, k=max(case.k // part, 2))
        stream = stream.first(len(stream.rows) // part)
    for method in ("castle", "bastion"):  # compile first
        push_all(policy_of(case, stream, method, delta), stream.first(delta + 500).rows)
    runs: dict[str, list[dict[str, float]]] = {"castle": [], "bastion": []}
    for seed in range(seeds):
        for method, found in runs.items():
            found.append(measured(stream, policy_of(case, stream, method, delta, seed)))
    figures = {
        f"{method} {name}": (min if name == "us" else fmean)(run[name] for run in found)
        for method, found in runs.items()
        for name in found[0]
    }
    reusing = policy_of(case, stream, "bastion", delta, parameters={"reuse": "weighted"})
    figures["reusing loss"] = measured(stream, reusing)["loss"]
    for name, window in (("windows", delta), ("all", len(stream.rows))):
        figures[f"mondrian {name}"] = measured(stream, policy_of(case, stream, "mondrian", window))["loss"]
    for method in runs:
        found_memory = memory(policy_of(case, stream, method, delta), stream)
        figures |= {f"{method} {name}": value for name, value in found_memory.items()}
    return {name: rounded(value) for name, value in figures.items()}


def losses(found: dict[str, dict[str, float]]) -> str:
    lines = []
    for name, f in found.items():
        case, loss = case_of(name), f["bastion loss"]
        to_castle, to_windows = loss / f["castle loss"], loss / f["mondrian windows"]
        kept = to_castle <= LOSS and to_windows <= 1.0 and loss <= (case.loss or 1.0)
        shown = [
            f["castle loss"],
            f["mondrian windows"],
            f["mondrian all"],
            f["reusing loss"],
            loss,
            case.loss or np.nan,
        ]
        lines.append([case.name, case.k, case.delta, *shown, to_castle, to_windows, "ok" if kept else "missed"])
    header = ["loss", "k", "delta", "castle", "Mondrian, windows", "all at once", "bastion, reuse", "bastion", "aim"]
    return table([*header, "to castle", "to windows", "aims"], lines)


def costs(found: dict[str, dict[str, float]]) -> str:
    lines = []
    for name, f in found.items():
        delay, spent = f["bastion delay"] / f["castle delay"], f["bastion us"] / f["castle us"]
        kept = delay <= DELAY and spent <= TIME and f["bastion memory"] <= MEMORY
        shown = [delay, f["castle us"], f["bastion us"], spent]
        shown += [f["castle memory"], f["bastion memory"], f["bastion first memory"]]
        shown.append(f"{f['bastion suppressed']:.2%}")
        lines.append([case_of(name).name, case_of(name).k, *shown, "ok" if kept else "missed"])
    header = ["cost", "k", "delay to castle", "castle, us", "bastion, us", "time to castle", "castle's memory to rows"]
    return table([*header, "bastion's", "of the first in a thread", "suppressed", "aims"], lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.bastion", description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything; figures mean nothing")
    parser.add_argument("--only", default=",".join(CASES), help="'others', or some of: " + ", ".join([*CASES, *OTHERS]))
    parser.add_argument("--seeds", type=int, default=5, help="runs of which the mean is reported")
    parser.add_argument("--skip", type=int, default=0, help="rows to leave out at the beginning")
    options = parser.parse_args(arguments)
    chosen = list(OTHERS) if options.only == "others" else options.only.split(",")
    if not set(chosen) <= {*CASES, *OTHERS}:
        parser.error(f"--only must be 'others', or some of {', '.join([*CASES, *OTHERS])}, not {options.only}")
    seeds, part = (1, 10) if options.quick else (options.seeds, 1)
    found: dict[str, dict[str, float]] = {name: figures_of(case_of(name), seeds, part, options.skip) for name in chosen}
    print(losses(found) + "\n\n" + costs(found) + "\n", flush=True)
    everything: dict[str, Any] = {"benchmark": "bastion", "quick": options.quick, "seeds": seeds, **found}
    finish(everything)
    return 0


if __name__ == "__main__":
    sys.exit(main())
