"""Memory and time over a long stream: 5 million generated rows compared with 500,000.

    python -m benchmarks.memory            about three minutes
    python -m benchmarks.memory --quick    small, as a smoke test

Each run has its own process, and so its own peak. Rows are generated as RecordBatches when they are needed.

    runner  Anonymize on Beam's local runner, in one process: this includes what the runner itself holds
    worker  the same steps without a runner, pack after pack: what one worker holds of one shard
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.datasets import ROOT
from benchmarks.tables import finish, rounded, table
from crenel.engine.kernels.compiler import compile_from_now_on
from crenel.policy import Policy
from crenel.policy.quasi_identifiers import Numeric

#: Rows per batch.
BATCH = 10_000
_VALUES = 1_000
_NAMES = ("v1", "v2", "v3", "v4", "v5", "v6")
_MB = 1 << 20


def policy(*, k: int = 100, delay_rows: int = 10_000, shards: int = 1, method: str = "castle") -> Policy:
    return Policy(
        person="person",
        quasi_identifiers={name: Numeric(domain=(0, _VALUES)) for name in _NAMES},
        publish=("label",),
        k=k,
        delay_rows=delay_rows,
        shards=shards,
        method=method,
        on_suppress="star",
        seed=0,
    )


def batch(number: int) -> pa.RecordBatch:
    """Generate a batch, always the same for the same number. Persons return in later batches."""
    draw = np.random.default_rng(number)
    columns: dict[str, Any] = {name: draw.integers(0, _VALUES, BATCH).astype(np.float64) for name in _NAMES}
    columns["person"] = draw.integers(0, 1_000_000, BATCH)
    columns["label"] = pa.array(["red", "green", "blue"]).take(pa.array(draw.integers(0, 3, BATCH)))
    return pa.RecordBatch.from_pydict(columns)


def batches(start: int, stop: int) -> Iterator[pa.RecordBatch]:
    return (batch(number) for number in range(start, stop))


def on_runner(rows: int, of: Policy) -> int:
    """Send all rows through a pipeline, and return how many were published."""
    import apache_beam as beam
    from apache_beam.metrics import MetricsFilter
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    from benchmarks.plain import Discard
    from crenel.transforms import Anonymize

    logging.getLogger().setLevel(logging.ERROR)
    count = rows // BATCH
    with beam.Pipeline(runner=FnApiRunner()) as p:
        starts = p | beam.Create(list(range(0, count, 10)))
        generated = starts | "Generate" >> beam.FlatMap(lambda i: batches(i, min(i + 10, count)))
        _ = generated | Anonymize(of) | beam.ParDo(Discard())
    counters = p.result.metrics().query(MetricsFilter().with_namespace("crenel"))["counters"]
    return sum(m.committed for m in counters if m.key.metric.name in ("published", "suppressed"))


def as_worker(rows: int, of: Policy) -> int:
    """Do the same without a runner: encode, pack, read back, hold, publish."""
    from crenel.transforms._hold.shard_set import Left, ShardSet
    from crenel.transforms._pack.row_pack import Packer, RowPack
    from crenel.transforms._publish.publisher import Publisher

    packer, publisher = Packer(of, b""), Publisher(of)
    shards = ShardSet(of, b"")
    times = np.zeros(BATCH, dtype=np.int64)

    def publish(left: Left) -> int:
        return sum(len(publisher.published_batch(departure)) for _, departures in left for departure in departures)

    published = 0
    for given in batches(0, rows // BATCH):
        for pack in packer.pack_arrow(given, times).packs:
            published += publish(shards.push(RowPack.from_bytes(pack.to_bytes())))
    return published + publish(shards.flush())


WAYS: dict[str, Callable[[int, Policy], int]] = {"runner": on_runner, "worker": as_worker}


class Watch:
    """Watches the memory of this process a few times per second, in MB."""

    def __init__(self) -> None:
        self.seen: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.1):
            self.seen.append(resident())

    def at(self, share: float) -> float:
        """Return the memory after a share of the time."""
        return self.seen[min(int(share * len(self.seen)), len(self.seen) - 1)] if self.seen else resident()


def resident() -> float:
    """Return the MB of memory in use, as the system counts them."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / _MB


def one(way: str, rows: int, of: Policy) -> dict[str, float]:
    """Measure one run in this process, after everything is compiled and imported."""
    compile_from_now_on()
    WAYS[way](BATCH, of)
    before, start = resident(), time.process_time()
    with Watch() as watch:
        done = WAYS[way](rows, of)
    used = time.process_time() - start
    if done != rows:
        raise AssertionError(f"benchmarks.memory: {rows} rows went in, and {done} came out.")
    figures = {"us": 1e6 * used / rows, "before": before, "peak": max([*watch.seen, resident()])}
    return figures | {f"at {share:.0%}": watch.at(share) for share in (0.25, 0.5, 0.75, 1.0)}


def _apart(way: str, rows: int, shards: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.memory", "--one", way, "--rows", str(rows), "--shards", str(shards)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {name: rounded(value) for name, value in figures.items()}


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--quick", action="store_true", help="small, as a smoke test")
    parser.add_argument("--one", choices=WAYS, help="a single run, in this process")
    parser.add_argument("--rows", type=int, default=5_000_000, help="the number of rows of the longer stream")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=3, help="how often the compared runs are repeated")
    said = parser.parse_args(sys.argv[1:] if given is None else given)
    if said.one:
        finish(one(said.one, said.rows, policy(shards=said.shards)))
        return 0
    long = 100_000 if said.quick else said.rows
    sizes = (long // 10 // BATCH * BATCH, long)
    figures: dict[str, Any] = {}
    for way in WAYS:
        # Alternate the runs. Take the least time of each, because other work only adds to it, and the largest peak.
        rounds = [
            [_apart(way, rows, said.shards) for rows in sizes] for _ in range(1 if said.quick else said.repetitions)
        ]
        runs = [
            min(column, key=lambda run: run["us"]) | {"peak": max(run["peak"] for run in column)}
            for column in zip(*rounds, strict=True)
        ]
        figures[way] = {str(rows): run for rows, run in zip(sizes, runs, strict=True)}
        figures[way]["time ratio"] = rounded(runs[1]["us"] / runs[0]["us"])
        figures[way]["peak ratio"] = rounded(runs[1]["peak"] / runs[0]["peak"])
    _show(figures, sizes)
    finish({"benchmark": "memory", "quick": said.quick, "shards": said.shards, **figures})
    return 0


def _show(figures: dict[str, Any], sizes: Sequence[int]) -> None:
    columns = ["us", "before", "at 25%", "at 50%", "at 75%", "at 100%", "peak"]
    rows = [[way, size, *(figures[way][str(size)][name] for name in columns)] for way in figures for size in sizes]
    header = ["", "rows", "us per row", "MB before", "at 25%", "50%", "75%", "100%", "peak"]
    print(table(header, rows))
    for way, found in figures.items():
        print(f"{way}: time per row x {found['time ratio']}, peak x {found['peak ratio']}")


if __name__ == "__main__":
    sys.exit(main())
