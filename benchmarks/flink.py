"""Rows per second on Flink: `Anonymize` compared with DoFns that only hold rows, with one slot and with two.

    python -m benchmarks.flink            about fifteen minutes
    python -m benchmarks.flink --quick    small, as a smoke test

A standalone cluster on this machine runs streaming jobs of one shape: the row groups of a Parquet file of Adult are
distributed, read as dicts with timestamps, held by shard, and discarded.

    plain    each row in a bag, with its own timer, as in Beam's guide
    packed   the same with packs: 500 rows of a bundle are pickled, held, released by timer, and unpacked
    castle   Anonymize with CASTLE

The time of a job runs from the first row group read to the last row discarded. The time of the same job with a single
row group is subtracted, so that the start of the workers does not count.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import apache_beam as beam
import pyarrow.parquet as pq
from apache_beam.options.pipeline_options import PipelineOptions

from benchmarks import plain
from benchmarks.tables import finish, rounded, table
from benchmarks.transform import GROUP, PACK, Bench, Scale
from crenel.pipelines.command_errors import CommandError
from crenel.runners.flink import flink_run, options
from crenel.runners.flink.cluster import Cluster, until
from crenel.runners.flink.job_server import JobServer
from crenel.transforms import Anonymize

SHARDS = 8
CASES = ("plain", "packed", "castle")
#: The longest time of a job, in seconds.
_PATIENCE = 1800.0
#: Shorter times, in seconds, cannot be told from the difference between two runs of a job.
_LEAST = 1.0


class Begin(beam.DoFn):
    """Records when a row group is about to be read."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def process(self, group: int) -> Iterator[int]:
        _note(self._path)
        yield group


class End(plain.Discard):
    """Records when a bundle of output is finished."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def finish_bundle(self) -> None:
        _note(self._path)


def _note(path: str) -> None:
    """Append the time to a file that all workers share."""
    with open(path, "a", encoding="ascii") as file:
        file.write(f"{time.time()}\n")


class OnFlink:
    """A cluster of TaskManagers with one slot each, and the file that jobs read."""

    def __init__(self, bench: Bench, folder: Path, slots: int) -> None:
        self._bench = bench
        self._path = bench.parquet(GROUP)
        self._cluster = Cluster(folder, task_managers=slots)
        self._server = JobServer("", folder)
        self._slots = slots
        self._folder = folder
        self._jobs = 0

    def __enter__(self) -> OnFlink:
        self._server = JobServer(self._cluster.start(), self._folder)
        self._endpoint = self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        self._cluster.stop()

    def seconds(self, case: str, groups: Sequence[int]) -> float:
        """Measure the time that the rows of a job take."""
        self._jobs += 1
        name = f"{case}-{self._jobs}"
        began, ended = self._folder / f"{name}.began", self._folder / f"{name}.ended"
        root = str(Path(__file__).resolve().parent.parent)
        flags = options.flags(
            self._endpoint,
            parallelism=self._slots,
            logs=self._cluster.logs,
            given=[f"--job_name={name}", "--shutdown_sources_after_idle_ms=1"],
            streaming=True,
            variables={"PYTHONPATH": root},
        )
        pipeline = beam.Pipeline(options=PipelineOptions(flags))
        shards = SHARDS if case == "plain" else None
        typed = {"plain": plain.Keyed, "castle": dict}.get(case)
        read = beam.ParDo(plain.Rows(self._path, shards))
        parts = pipeline | beam.Create(groups) | "Begin" >> beam.ParDo(Begin(began))
        rows = parts | "Rows" >> (read.with_output_types(typed) if typed else read)
        _ = self._steps(case)(rows) | "Discard" >> beam.ParDo(End(ended))
        pipeline.run()
        until(lambda: self._state(name) in ("FINISHED", "FAILED"), _PATIENCE)
        if self._state(name) == "FAILED":
            msg = f"the job {name} failed; see {self._cluster.logs}."
            raise RuntimeError(msg)
        return max(map(float, ended.read_text().split())) - min(map(float, began.read_text().split()))

    def _state(self, name: str) -> str:
        job = self._cluster.rest.job(name)
        return "" if job is None else str(self._cluster.rest.get(f"/jobs/{job}")["state"])

    def _steps(self, case: str) -> Callable[[Any], Any]:
        delta = self._bench.scale.delta
        policy = self._bench.policy(shards=SHARDS, delta=max(delta // SHARDS, self._bench.scale.k))

        def packed(rows: Any) -> Any:
            pack = beam.ParDo(plain.PackRows(SHARDS, PACK)).with_output_types(plain.KeyedBytes)
            held = rows | "Pack" >> pack | "Buffer" >> beam.ParDo(plain.BufferPacks(delta))
            return held | "Explode" >> beam.ParDo(plain.Explode())

        return {
            "plain": lambda rows: rows | "Buffer" >> beam.ParDo(plain.Buffer(delta)),
            "packed": packed,
            "castle": lambda rows: rows | Anonymize(policy),
        }[case]


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.flink", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--quick", action="store_true", help="small, as a smoke test")
    parser.add_argument("--rows", type=int, help="the number of rows of the stream")
    parser.add_argument("--repetitions", type=int, help="how often each job runs with all rows")
    said = parser.parse_args(sys.argv[1:] if given is None else given)
    logging.disable(logging.WARNING)
    try:
        flink_run.check([])
    except CommandError as error:
        print(f"skipped: {error}")
        finish({"benchmark": "flink", "skipped": str(error)})
        return 0
    small = Scale(rows=20_000, k=5, delta=800, repetitions=1) if said.quick else Scale(repetitions=3)
    scale = Scale(said.rows or small.rows, small.k, small.delta, said.repetitions or small.repetitions)
    print(f"{scale.rows:,} rows of Adult, 6 QIs, k={scale.k}, delta={scale.delta:,}, {SHARDS} shards", flush=True)
    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(scale, Path(folder))
        for slots in (1, 2):
            figures[f"{slots} slots"] = _measured(bench, Path(folder) / f"flink-{slots}", slots)
    rows = [
        [f"{case}, {slots}", *("unknown" if value is None else value for value in figures[slots][case].values())]
        for slots in figures
        for case in CASES
    ]
    print("\n" + table(["", "rows/s", "to plain", "one row group, s"], rows), flush=True)
    finish({"benchmark": "flink", "quick": said.quick, "beam": beam.__version__, "rows": scale.rows, **figures})
    return 0


def _measured(bench: Bench, folder: Path, slots: int) -> dict[str, Any]:
    groups = list(range(pq.ParquetFile(bench.parquet(GROUP)).num_row_groups))
    folder.mkdir()
    times: dict[str, list[float]] = {case: [] for case in CASES}
    with OnFlink(bench, folder, slots) as cluster:
        starts = {case: cluster.seconds(case, groups[:1]) for case in CASES}
        for _ in range(bench.scale.repetitions):
            for case in CASES:
                times[case].append(cluster.seconds(case, groups))
                print(f"  {case}, {slots} slots: {times[case][-1]:.1f} s", file=sys.stderr)
    counted = bench.scale.rows - min(GROUP, bench.scale.rows // 2)
    rate = {case: _rate(counted, median(times[case]) - starts[case]) for case in CASES}
    plainly = rate["plain"]
    return {
        case: {
            "rows_per_s": rate[case],
            "to_plain": rounded(rate[case] / plainly) if rate[case] and plainly else None,
            "one_row_group_s": rounded(starts[case]),
        }
        for case in CASES
    }


def _rate(rows: int, seconds: float) -> float | None:
    """Return rows per second; None if there were too few rows to measure."""
    return rounded(rows / seconds) if seconds > _LEAST else None


if __name__ == "__main__":
    sys.exit(main())
