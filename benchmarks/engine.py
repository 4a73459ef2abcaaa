"""The speed of the engine alone: time per row, and how it grows.

    python -m benchmarks.engine            a few minutes
    python -m benchmarks.engine --quick    small, as a smoke test

Times are processor times (`time.process_time`), as medians of several repetitions. Cases that are compared are measured
alternately within one run: on a noisy machine only the ratios mean something.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from statistics import median
from typing import Any

import numpy as np

from benchmarks import datasets
from benchmarks.datasets import ADULT, NUMERIC, Stream
from benchmarks.runs import PACK, push_all
from benchmarks.tables import finish, rounded, table
from crenel.encoding.rows import Rows
from crenel.engine import Engine, Releases, create_engine
from crenel.policy import Policy
from crenel.policy.parameters import Reuse

#: The case that all others are compared with: 6 numeric quasi-identifiers.
BASE = {"k": 100, "delay_rows": 10_000}
DIGITS = range(10)
#: A column of each kind.
KINDS: dict[str, dict[str, Any]] = {
    "numeric": {"type": "numeric", "domain": [0, 1_000]},
    "prefix, 5 digits": {"type": "prefix", "length": 5},
    "ip": {"type": "ip"},
    "coordinates": {"type": "coordinates", "columns": ["lat", "lon"]},
    "1,000 categories": {
        "type": "categorical",
        "hierarchy": {"any": {f"{i}": {f"{i}{j}": [f"{i}{j}{m}" for m in DIGITS] for j in DIGITS} for i in DIGITS}},
    },
}


@dataclass(frozen=True)
class Scale:
    """How much to run: all, or (quick) a part of each number of rows."""

    repetitions: int = 5
    part: int = 1

    def size(self, value: int) -> int:
        return max(2, value // self.part)

    def base(self) -> dict[str, int]:
        return {name: self.size(value) for name, value in BASE.items()}


class Bench:
    """All measurements. Each method prints a table and returns its figures."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.adult = datasets.adult(ADULT)
        self.six = datasets.adult(NUMERIC)
        if scale.part > 1:
            self.six = self.six.first(len(self.six.rows) // scale.part)
        # Compile, or load from the cache, before measuring.
        for stream in (self.adult.first(300), self.six.first(300)):
            push_all(stream.policy(k=5, delay_rows=50), stream.rows)

    def base(self) -> dict[str, Any]:
        """Measure the time per row in the base case, by the number of rows per push."""
        packs = [1, 10, 100, PACK, 5_000]
        cases = {f"{pack:,}": self._case(self.six, pack=pack, **self.scale.base()) for pack in packs}
        return self._compare("Base case, by rows in a push", "rows in a push", cases, f"{PACK:,}")

    def by_quasi_identifiers(self) -> dict[str, Any]:
        cases = {}
        for count in (1, 2, 4, 6, 8, 10):
            stream = datasets.adult(ADULT[:count]).first(len(self.six.rows))
            cases[f"{count}"] = self._case(stream, **self.scale.base())
        return self._compare("Quasi-identifiers (from the 7th on categories)", "QIs", cases, "6")

    def by_kind(self) -> dict[str, Any]:
        """Measure a number beside one column of each kind, with as many rows held as a stream of a busy minute has."""
        figures = {}
        for method in ("bastion", "castle"):
            cases = {name: self._of_kind(method, column) for name, column in KINDS.items()}
            title = f"Kinds of quasi-identifiers: a number, and one more ({method}, k = 10)"
            figures[method] = self._compare(title, "one more", cases, "numeric")
        return figures

    def _of_kind(self, method: str, column: dict[str, Any]) -> Callable[[], float]:
        """Return a function that measures the seconds per row with a column of one kind, beside a number."""
        columns = {"age": {"type": "numeric", "domain": [0, 100]}, "more": column}
        held, count = self.scale.size(3_000), self.scale.size(15_000)
        said = {"person": "id", "quasi_identifiers": columns, "k": 10, "delay_rows": held, "method": method, "seed": 0}
        policy, draw = Policy.from_dict(said), np.random.default_rng(0)
        last = 1_000 if column["type"] == "numeric" else int(policy.quasi_identifiers["more"].geometry.widest()[1]) + 1
        qi = np.stack([draw.integers(0, 100, count), draw.integers(0, last, count)], axis=1).astype(np.float64)
        times = np.zeros(count, np.int64)
        rows = Rows(qi, np.arange(count), np.zeros((count, 0), np.int64), times)
        push_all(policy, rows.slice(0, count // 5))  # so that no time is that of the compiler
        return lambda: timed(lambda: push_all(policy, rows)) / count

    def by_beta(self) -> dict[str, Any]:
        cases = {f"{beta}": self._case(self.six, beta=beta, **self.scale.base()) for beta in (10, 50, 200)}
        return self._compare("Clusters", "beta", cases, "50")

    def by_k(self) -> dict[str, Any]:
        cases = {
            f"{k:,}": self._case(self.six, **self.scale.base() | {"k": k})
            for k in map(self.scale.size, (10, 100, 1_000))
        }
        return self._compare("Persons in a group", "k", cases, f"{self.scale.base()['k']:,}")

    def by_delta(self) -> dict[str, Any]:
        """Measure by delta, with enough rows that even the longest deadline passes."""
        stream = self.six.drawn(self.scale.size(150_000))
        cases = {}
        for delta in map(self.scale.size, (1_000, 10_000, 50_000)):
            cases[f"{delta:,}"] = self._case(stream, **self.scale.base() | {"delay_rows": delta})
        title = f"Delay ({len(stream.rows):,} rows drawn from Adult)"
        return self._compare(title, "delta", cases, f"{self.scale.base()['delay_rows']:,}")

    def by_rows(self) -> dict[str, Any]:
        cases = {}
        for count in map(self.scale.size, (30_000, 300_000, 1_000_000)):
            cases[f"{count:,}"] = self._case(self.six.drawn(count), **self.scale.base())
        title = "Length of the stream (drawn from Adult)"
        return self._compare(title, "rows", cases, next(iter(cases)), repetitions=3)

    def oracle(self) -> dict[str, Any]:
        """Compare with the pure-Python CASTLE of the tests: same seed, same releases, but how much slower?"""
        stream = self.six.first(self.scale.size(15_000))
        policy = stream.policy(**self.scale.base())
        releases: list[Any] = []
        slow = timed(lambda: releases.extend(_oracle_run(policy, stream)))
        case = self._case(stream, **self.scale.base())
        times = [case() for _ in range(self.scale.repetitions)]
        if _as_oracle(push_all(policy, stream.rows)) != [astuple(release) for release in releases]:
            raise AssertionError("benchmarks.engine: engine and oracle publish different releases.")
        fast = median(times) * len(stream.rows)
        rows = [
            ["pure Python", 1e6 * slow / len(stream.rows), slow / fast],
            ["engine", 1e6 * fast / len(stream.rows), 1.0],
        ]
        title = f"Against the pure Python, {len(stream.rows):,} rows, {len(releases):,} equal releases"
        show(title, ["", "us per row", "ratio"], rows)
        return {"us": rounded(1e6 * slow / len(stream.rows)), "ratio": rounded(slow / fast)}

    def snapshot(self) -> dict[str, Any]:
        """Measure a snapshot of a full buffer, after the first `delta` rows, and one later in the stream."""
        figures, rows = {}, []
        for name, share in (("full", 1), ("later", 2)):
            engine, policy = self._filled(share * self.scale.base()["delay_rows"])
            data = engine.snapshot()
            times = [
                (timed(engine.snapshot), timed(lambda: create_engine(policy).restore(data)))  # noqa: B023
                for _ in range(4 * self.scale.repetitions)
            ]
            out, back = (1e3 * median(column) for column in zip(*times, strict=True))
            rows.append([name, engine.held, len(data), out, back, out + back])
            figures[name] = {
                "held": engine.held,
                "bytes": len(data),
                "snapshot_ms": rounded(out),
                "restore_ms": rounded(back),
            }
        header = ["buffer", "rows held", "bytes", "snapshot, ms", "restore, ms", "both, ms"]
        show("Snapshot and restore", header, rows)
        return figures

    def _filled(self, count: int) -> tuple[Engine, Policy]:
        policy = self.six.policy(**self.scale.base())
        engine = create_engine(policy)
        engine.push(self.six.rows.slice(0, count))
        return engine, policy

    def _case(self, stream: Stream, *, pack: int = PACK, **how: int) -> Callable[[], float]:
        """Return a function that measures the seconds per row over a whole stream."""
        policy, rows = stream.policy(**how), stream.rows
        return lambda: timed(lambda: push_all(policy, rows, pack)) / len(rows)

    def _compare(
        self,
        title: str,
        label: str,
        cases: Mapping[str, Callable[[], float]],
        base: str,
        repetitions: int | None = None,
    ) -> dict[str, Any]:
        """Measure the cases alternately, and compare their medians with the base case."""
        count = min(repetitions or self.scale.repetitions, self.scale.repetitions)
        rounds = [{name: case() for name, case in cases.items()} for _ in range(count)]
        medians = {name: median(times[name] for times in rounds) for name in cases}
        rows = [[name, 1e6 * time_, time_ / medians[base]] for name, time_ in medians.items()]
        show(title, [label, "us per row", f"ratio to {base}"], rows)
        return {
            "us": {name: rounded(1e6 * time_) for name, time_ in medians.items()},
            "ratio": {name: rounded(time_ / medians[base]) for name, time_ in medians.items()},
        }


def timed(work: Callable[[], Any]) -> float:
    """Return the processor seconds of the work."""
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    print(f"\n{title}\n\n{table(header, rows)}", flush=True)


def _oracle_run(policy: Policy, stream: Stream) -> list[Any]:
    # Imported here because only this comparison needs the tests.
    from tests.core.engine.methods.castle.castle_oracle import Oracle

    columns = policy.quasi_identifiers.values()
    parameters = policy.parameters
    judge = Oracle(
        geometries=[qi.geometry for qi in columns],
        weights=[qi.weight for qi in columns],
        k=policy.k,
        delay_rows=policy.delay_rows,
        beta=parameters.beta,
        mu=parameters.mu,
        reuse=parameters.reuse is Reuse.UNIFORM,
        max_reusable=parameters.max_reusable,
        key=create_engine(policy).key,  # type: ignore[attr-defined]
    )
    rows = stream.rows
    columns_ = (rows.qi.tolist(), rows.person.tolist(), rows.sensitive.tolist(), rows.time.tolist())
    return judge.push(zip(*columns_, strict=True)) + judge.flush()


def _as_oracle(releases: Releases) -> list[tuple[Any, ...]]:
    return [
        (
            release.rows.tolist(),
            int(release.kind),
            tuple(release.lo.tolist()),
            tuple(release.hi.tolist()),
            release.loss,
            release.persons,
            release.moment,
            release.arrivals,
            release.group,
        )
        for release in releases
    ]


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small, as a smoke test")
    parser.add_argument("--only", help="some of: " + ", ".join(PARTS))
    said = parser.parse_args(sys.argv[1:] if given is None else given)
    chosen = said.only.split(",") if said.only else list(PARTS)
    if not set(chosen) <= set(PARTS):
        parser.error(f"--only must be some of {', '.join(PARTS)}, not {said.only}")
    bench = Bench(Scale(repetitions=1, part=20) if said.quick else Scale())
    print(f"k={bench.scale.base()['k']}, delta={bench.scale.base()['delay_rows']:,}, 6 QIs of Adult")
    figures = {part: getattr(bench, part)() for part in chosen}
    finish({"benchmark": "engine", "quick": said.quick, "numpy": np.__version__, **figures})
    return 0


PARTS = (
    "base",
    "by_quasi_identifiers",
    "by_kind",
    "by_beta",
    "by_k",
    "by_delta",
    "by_rows",
    "oracle",
    "snapshot",
)

if __name__ == "__main__":
    sys.exit(main())
