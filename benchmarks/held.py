"""The cost of holding rows in an engine: by rows held, by k, and by deadlines in event time or in rows.

    python -m benchmarks.held                          about five minutes, at most 100,000 rows held
    python -m benchmarks.held --most-held 1_000_000    a million rows held as well: many minutes more
    python -m benchmarks.held --against SITE           alternately with another installed copy
    python -m benchmarks.held --quick                  small, as a smoke test

Engines run without Beam on generated rows: 6 numeric quasi-identifiers distributed like Adult's, one person per row,
500 rows per push. Each case runs in its own process, which first loads the kernels with a few rows. Times are processor
times. After `--limit` seconds a case begins no further push. Its figures then cover the rows so far and are marked with
`+`, because later pushes may cost more.

    by_held     by rows held, k = 10
    by_k        by k, 10,000 rows held
    event_time  `delay` compared with the same deadline in rows, one row per second
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.children import Copy, add_against, copies, run
from benchmarks.tables import finish, rounded, table

METHODS = ("castle", "bastion")
#: Rows per push.
PUSH = 500
#: The quasi-identifiers and their domains, as in Adult.
DOMAINS = {
    "age": (17, 90),
    "weight": (10_000, 1_500_000),
    "education": (1, 16),
    "gain": (0, 100_000),
    "loss": (0, 4_400),
    "hours": (1, 99),
}
_SECOND = 1_000_000


@dataclass(frozen=True)
class Case:
    """One engine, and the rows it gets."""

    method: str
    k: int
    #: The deadline: a row waits for this many further rows, or seconds.
    delta: int
    rows: int
    event_time: bool = False
    #: Processor seconds after which no further push begins.
    limit: float = 60.0

    def policy(self) -> dict[str, Any]:
        """Return the policy as a mapping, which every copy of crenel can read."""
        deadline = {"event_time": "at", "delay": f"{self.delta}s"} if self.event_time else {"delay_rows": self.delta}
        return {
            "version": 1,
            "person": "person",
            "quasi_identifiers": {name: {"type": "numeric", "domain": list(ends)} for name, ends in DOMAINS.items()},
            "k": self.k,
            "method": self.method,
            "seed": 0,
            **deadline,
        }


# --- In the child ---


def measure(case: Case) -> dict[str, Any]:
    """Push all rows of a case through an engine, in this process."""
    small = replace(case, k=2, delta=50, rows=300)
    engine, rows = _engine(small.policy()), _rows(small)
    engine.push(rows)
    engine.flush()
    engine, rows = _engine(case.policy()), _rows(case)
    gc.collect()
    pushes: list[float] = []
    used, most_held = 0.0, 0
    for start in range(0, case.rows, PUSH):
        part = rows.slice(start, min(start + PUSH, case.rows))
        before = time.process_time()
        engine.push(part)
        pushes.append(time.process_time() - before)
        used += pushes[-1]
        most_held = max(most_held, engine.held)
        if used > case.limit:
            break
    whole = len(pushes) * PUSH >= case.rows
    before = time.process_time()
    if whole:
        engine.flush()
    return {
        "us": 1e6 * used / min(len(pushes) * PUSH, case.rows),
        "worst_ms": 1e3 * max(pushes),
        "flush_ms": 1e3 * (time.process_time() - before) if whole else None,
        "held": most_held,
        "whole": whole,
    }


def _engine(policy: Mapping[str, Any]) -> Any:
    """Create an engine for a policy, with whichever copy of crenel is imported."""
    from crenel.policy import Policy

    try:
        from crenel import create_engine
    except ImportError:  # an older copy
        from crenel.engine import create as create_engine
    try:
        from crenel.engine.kernels.compiler import compile_from_now_on
    except ImportError:  # an older copy, which always compiles
        pass
    else:
        compile_from_now_on()
    return create_engine(Policy.from_dict(dict(policy)))


def _rows(case: Case) -> Any:
    from crenel.engine import Rows

    numbers = np.arange(case.rows, dtype=np.int64)
    none = np.zeros((case.rows, 0), dtype=np.int64)
    return Rows(quasi_identifiers(case.rows), numbers, none, numbers * _SECOND)


def quasi_identifiers(rows: int) -> NDArray[np.float64]:
    """Draw values distributed like Adult's: one column continuous, one of 16 values, two mostly 0, one often 40."""
    draw = np.random.default_rng(0)

    def often(share: float, usual: float, others: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(draw.random(rows) < share, usual, others)

    columns = {
        "age": draw.normal(38, 13, rows),
        "weight": draw.lognormal(12, 0.5, rows),
        "education": draw.binomial(16, 0.63, rows).astype(np.float64),
        "gain": often(0.92, 0.0, draw.lognormal(8.5, 1, rows)),
        "loss": often(0.95, 0.0, draw.normal(1_870, 350, rows)),
        "hours": often(0.47, 40.0, draw.normal(40, 15, rows)),
    }
    return np.stack([np.rint(column).clip(*DOMAINS[name]) for name, column in columns.items()], axis=1)


# --- In the benchmark ---


@dataclass(frozen=True)
class Scale:
    """How much to run."""

    rows: int = 300_000
    #: Rows held, in the parts that vary k or the deadline.
    delta: int = 10_000
    held: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    ks: tuple[int, ...] = (2, 10, 100, 1_000)
    repetitions: int = 3
    limit: float = 60.0

    def case(self, method: str, k: int, delta: int, *, event_time: bool = False) -> Case:
        """Return a case of at least `2 * delta` rows, so that at least half of them arrive at a full buffer."""
        return Case(method, k, delta, max(self.rows, 2 * delta), event_time, self.limit)


class Bench:
    """All measurements. Each part prints a table and returns its figures."""

    def __init__(self, scale: Scale, of: Sequence[Copy]) -> None:
        self.scale = scale
        self.copies = of

    def by_held(self) -> dict[str, Any]:
        """Measure by rows held. Ratios compare the time per row with `castle` at the same number of held rows."""
        cases = {
            f"{held:,} held, {method}": self.scale.case(method, min(10, held // 2), held)
            for held in self.scale.held
            for method in METHODS
        }
        return self._compare("By rows held, k = 10", cases, "castle", _beside_castle(cases))

    def by_k(self) -> dict[str, Any]:
        """Measure by k. Ratios compare with k = 100, and show what a small k costs."""
        cases = {
            f"k = {k:,}, {method}": self.scale.case(method, k, self.scale.delta)
            for method in METHODS
            for k in self.scale.ks
        }
        usual = f"k = {100 if 100 in self.scale.ks else max(self.scale.ks):,}"
        bases = {name: f"{usual}, {case.method}" for name, case in cases.items()}
        beside = {name: base for name, base in _beside_castle(cases).items() if name.startswith(f"{usual},")}
        return self._compare(f"By k, {self.scale.delta:,} rows held", cases, usual, bases, {"castle": beside})

    def event_time(self) -> dict[str, Any]:
        """Measure deadlines in event time. Ratios compare with the same deadline in rows."""
        ks = [k for k in self.scale.ks if k in (10, 100)]
        cases, bases = {}, {}
        for held in [held for held in self.scale.held if self.scale.delta <= held <= 10 * self.scale.delta]:
            for method in METHODS:
                for k in ks:
                    name = f"{held:,} held, k = {k}, {method}"
                    cases[f"{name}, rows"] = self.scale.case(method, k, held)
                    cases[f"{name}, delay"] = self.scale.case(method, k, held, event_time=True)
                    bases |= {f"{name}, {how}": f"{name}, rows" for how in ("rows", "delay")}
        return self._compare("A deadline in event time", cases, "rows", bases)

    def _compare(
        self,
        title: str,
        cases: Mapping[str, Case],
        base: str,
        bases: Mapping[str, str],
        further: Mapping[str, Mapping[str, str]] | None = None,
    ) -> dict[str, Any]:
        """Measure all cases with all copies alternately; print medians, and ratios to the case that `bases` names."""
        rounds: dict[tuple[str, str], list[dict[str, Any]]] = {(n, c.name): [] for n in cases for c in self.copies}
        for i in range(self.scale.repetitions):
            for name, case in cases.items():
                for copy in self.copies:
                    rounds[name, copy.name].append(_apart(case, copy))
            print(f"  {title}: {i + 1} of {self.scale.repetitions}", file=sys.stderr)
        found = {key: _middle(measured) for key, measured in rounds.items()}
        ratios = {base: bases, **(further or {})}
        figures: dict[str, Any] = {}
        rows = []
        for name in cases:
            for copy in self.copies:
                one = found[name, copy.name]
                told = {
                    f"to {against}": rounded(one["us"] / found[of[name], copy.name]["us"])
                    for against, of in ratios.items()
                    if name in of
                }
                told |= {
                    f"to {other.name}": rounded(one["us"] / found[name, other.name]["us"])
                    for other in self._others(copy)
                }
                figures.setdefault(name, {})[copy.name] = {**one, **told}
        heads = [f"to {against}" for against in ratios] + [f"to {copy.name}" for copy in self.copies[1:]]
        for name, by_copy in figures.items():
            for copy_name, one in by_copy.items():
                mark = "" if one["whole"] else " +"
                label = name if len(self.copies) == 1 else f"{name} ({copy_name})"
                times = [one["us"], one["worst_ms"], "" if one["flush_ms"] is None else one["flush_ms"], one["peak_mb"]]
                rows.append([label + mark, *times, *(one.get(head, "") for head in heads)])
        header = ["", "us a row", "worst push, ms", "end, ms", "peak MB", *heads]
        print(f"\n{title}\n\n{table(header, rows)}", flush=True)
        return figures

    def _others(self, copy: Copy) -> Sequence[Copy]:
        return self.copies[1:] if copy is self.copies[0] else ()


def _beside_castle(cases: Mapping[str, Case]) -> dict[str, str]:
    """Map the name of each case to the name of the same case with `castle`."""
    return {name: name.replace(case.method, "castle") for name, case in cases.items()}


def _apart(case: Case, copy: Copy) -> dict[str, Any]:
    """Measure a case in a separate process."""
    spent = run([sys.executable, "-m", "benchmarks.held", "--one", json.dumps(asdict(case))], copy.environment())
    figures: dict[str, Any] = json.loads(spent.out.splitlines()[-1])
    return {**figures, "peak_mb": spent.peak}


def _middle(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the median of each figure. A figure that is missing in any repetition counts as not measured."""
    columns = {name: [one[name] for one in measured] for name in measured[0]}
    middle: dict[str, Any] = {
        name: None if None in values else rounded(median(values)) for name, values in columns.items() if name != "whole"
    }
    return {**middle, "whole": all(columns["whole"])}


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.held", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    parser.add_argument("--most-held", type=int, default=100_000, help="the most rows held, at most 1_000_000")
    parser.add_argument("--repetitions", type=int, help="of each case")
    parser.add_argument("--limit", type=float, help="seconds after which a case begins no further push")
    parser.add_argument("--only", help="some of: " + ", ".join(PARTS))
    parser.add_argument("--one", metavar="CASE", help=argparse.SUPPRESS)
    add_against(parser)
    said = parser.parse_args(sys.argv[1:] if given is None else given)
    if said.one:
        finish(measure(Case(**json.loads(said.one))))
        return 0
    chosen = said.only.split(",") if said.only else list(PARTS)
    if not set(chosen) <= set(PARTS):
        parser.error(f"--only must be some of {', '.join(PARTS)}, not {said.only}")
    scale = Scale(2_000, 100, (100, 1_000), (2, 10), 1) if said.quick else Scale()
    scale = replace(
        scale,
        held=tuple(held for held in scale.held if held <= said.most_held),
        repetitions=said.repetitions or scale.repetitions,
        limit=said.limit or scale.limit,
    )
    print(f"6 QIs, {scale.rows:,} rows or twice the rows held, {PUSH} rows a push, {scale.repetitions} repetitions")
    bench = Bench(scale, copies(said.against))
    figures = {part: getattr(bench, part)() for part in chosen}
    finish({"benchmark": "held", "quick": said.quick, "numpy": np.__version__, **figures})
    return 0


PARTS = ("by_held", "by_k", "event_time")

if __name__ == "__main__":
    sys.exit(main())
