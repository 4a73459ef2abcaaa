"""The time and memory of auditing a million rows, by the evidence that the audit gets.

    python -m benchmarks.audit            about two minutes
    python -m benchmarks.audit --quick    small, as a smoke test

Rows are generated, published by `crenel run`, and audited by `crenel audit`. Each audit runs in its own process, so
that its time, processor time and peak memory are its own. A person has two rows on average, so that the bounds from the
input alone take some work.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.datasets import ROOT
from benchmarks.tables import finish, rounded, table

POLICY = """\
person: person
quasi_identifiers:
  age: {type: numeric, domain: [0, 100]}
  income: {type: numeric, domain: [0, 100000]}
  zipcode: {type: prefix, length: 5}
  job: {type: categorical, hierarchy: {Office: [clerk, boss, editor], Field: [farmer, miner], Sea: [fisher, pilot]}}
sensitive: [ill]
publish: [label]
k: 20
l: 2
delay_rows: 5000
method: bastion
parameters: {reuse: weighted}
on_suppress: star
seed: 1
"""
_JOBS = ("clerk", "boss", "editor", "farmer", "miner", "fisher", "pilot")
_BATCH = 50_000

#: The extra evidence of each level.
LEVELS = {
    "published": [],
    "input": ["--input", "in.parquet"],
    "trace": ["--input", "in.parquet", "--trace", "trace.parquet", "--releases", "releases.parquet"],
}

#: Runs the command, and prints the time and memory it took.
_MEASURED = """\
import json, resource, sys, time
from crenel.pipelines.cli import main
began = time.monotonic()
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
figures = {"seconds": time.monotonic() - began, "processor": time.process_time(), "peak": used.ru_maxrss / 1024}
print(json.dumps({"code": code, **figures}), file=sys.stderr)
"""


def batch(number: int, rows: int, persons: int) -> pa.RecordBatch:
    draw = np.random.default_rng(number)
    columns = {
        "person": draw.integers(0, persons, rows),
        "age": np.clip(draw.normal(45, 18, rows), 0, 100).round(),
        "income": np.clip(draw.lognormal(10, 0.7, rows), 0, 100_000).round(2),
        "zipcode": pa.array([f"{code:05}" for code in np.minimum(draw.exponential(9_000, rows), 99_999).astype(int)]),
        "job": pa.array(_JOBS).take(pa.array(draw.integers(0, len(_JOBS), rows))),
        "ill": pa.array(["flu", "cold", "cough", "none", "gout"]).take(pa.array(draw.integers(0, 5, rows))),
        "label": pa.array(["red", "green", "blue"]).take(pa.array(draw.integers(0, 3, rows))),
    }
    return pa.RecordBatch.from_pydict(columns)


def write_input(path: Path, rows: int) -> None:
    size = min(_BATCH, rows)
    first = batch(0, size, rows // 2)
    with pq.ParquetWriter(path, first.schema) as writer:
        for number in range(rows // size):
            writer.write_batch(batch(number, size, rows // 2))


def command(folder: Path, *argv: str) -> tuple[dict[str, float], str]:
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *argv],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return json.loads(done.stderr.splitlines()[-1]), done.stdout


def _told(took: dict[str, float]) -> dict[str, float | str]:
    seconds = {name: rounded(took[name]) for name in ("seconds", "processor")}
    return {**seconds, "peak_mb": round(took["peak"])}


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rows")
    rows = 20_000 if parser.parse_args(arguments).quick else 1_000_000
    figures: dict[str, dict[str, float | str]] = {}
    with tempfile.TemporaryDirectory(prefix="crenel-audit-") as made:
        folder = Path(made)
        (folder / "policy.yaml").write_text(POLICY)
        write_input(folder / "in.parquet", rows)
        owners = ["--trace", "trace.parquet", "--releases", "releases.parquet"]
        files = ["--input", "in.parquet", "--output", "out.parquet", *owners]
        run, _ = command(folder, "run", "policy.yaml", *files, "--json")
        figures["run"] = _told(run)
        for level, given in LEVELS.items():
            took, said = command(folder, "audit", "policy.yaml", "--published", "out.parquet", *given, "--json")
            document = json.loads(said)
            assert document["knowledge"] == level
            assert took["code"] == 0, document["promises"]
            figures[level] = _told(took) | {"verdict": document["verdict"], "groups": document["rows"]["groups"]}
    print(f"{rows:,} rows, k = 20, 4 quasi-identifiers\n")
    heads = ("", "seconds", "processor", "peak MB", "verdict")
    columns = ("seconds", "processor", "peak_mb", "verdict")
    print(table(heads, [(name, *(f.get(column, "") for column in columns)) for name, f in figures.items()]))
    finish({"benchmark": "audit", "rows": rows, **figures})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
