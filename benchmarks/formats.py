"""The time and memory of `crenel run` by the format of its files, the type of the person column, and the rows.

    python -m benchmarks.formats                      about an hour
    python -m benchmarks.formats --rows 300_000       ten minutes
    python -m benchmarks.formats --against SITE       alternately with another installed copy
    python -m benchmarks.formats --quick              small, as a smoke test

Rows are generated, with six quasi-identifiers and one person per row. The method is `castle` with k = 100 and a delay
of 10,000 rows. Each run has its own process. `net` leaves out the start of the program, which is measured with few rows
of the same format.

    inputs   Parquet, CSV, JSON lines and Avro in, Parquet out, with persons as integers, as digits in text, and as text
    outputs  Parquet in; Parquet, CSV, JSON lines and Avro out; and CSV in and out
    memory   Parquet in and out: the peak with a tenth of the rows, with all, and with all under a low --memory-limit
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.children import Copy, Spent, add_against, copies, crenel, run
from benchmarks.tables import finish, rounded, table

#: The types of a person column. Texts are too long for the inline storage of short strings.
PERSONS: dict[str, Callable[[int], Any]] = {
    "int": lambda number: number,
    "digits": lambda number: f"{number:012d}",
    "text": lambda number: f"customer-{number:x}-{'abcdefgh'[number % 8]}",
}
#: The names of the measures in tables.
TIME, NET, PEAK = "us a row", "net, us a row", "peak MB"
_SHORT = {TIME: "time", NET: "net", PEAK: "peak"}
_NAMES = ("v1", "v2", "v3", "v4", "v5", "v6")
_VALUES = 1_000
#: A limit of memory that all rows exceed.
_LOW = "64MB"
#: Rows generated and written at a time. The benchmark must use less memory than what it measures.
_CHUNK = 50_000


@dataclass(frozen=True)
class Scale:
    """How much to run."""

    rows: int = 3_000_000
    #: Rows of the short run that measures the start of the program.
    few: int = 1_000
    k: int = 100
    delta: int = 10_000
    repetitions: int = 3
    persons: tuple[str, ...] = tuple(PERSONS)


# --- The files ---


def chunks(rows: int, persons: str) -> Iterator[pa.Table]:
    """Generate the rows in parts. The same number of rows always gives the same rows."""
    for start in range(0, rows, _CHUNK):
        count = min(_CHUNK, rows - start)
        draw = np.random.default_rng(start)
        # Scatter the identifiers, because consecutive ones are the easy case.
        numbers = (np.arange(start, start + count) * 2_654_435_761) % (1 << 40)
        columns: dict[str, Any] = {"person": [PERSONS[persons](number) for number in numbers.tolist()]}
        columns |= {name: draw.integers(0, _VALUES, count) for name in _NAMES}
        columns["label"] = pa.array(["red", "green", "blue"]).take(pa.array(draw.integers(0, 3, count)))
        yield pa.table(columns)


def write_parquet(path: Path, tables: Iterator[pa.Table]) -> None:
    first = next(tables)
    with pq.ParquetWriter(path, first.schema) as writer:
        writer.write_table(first)
        for part in tables:
            writer.write_table(part)


def write_csv(path: Path, tables: Iterator[pa.Table]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["person", *_NAMES, "label"])
        for part in tables:
            writer.writerows(zip(*(column.to_pylist() for column in part.columns), strict=True))


def write_jsonl(path: Path, tables: Iterator[pa.Table]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for part in tables:
            file.writelines(json.dumps(row) + "\n" for row in part.to_pylist())


def write_avro(path: Path, tables: Iterator[pa.Table]) -> None:
    first = next(tables)
    kinds = {pa.int64(): "long", pa.string(): "string"}
    fields = [{"name": field.name, "type": kinds[field.type]} for field in first.schema]

    def records() -> Iterator[dict[str, Any]]:
        yield from first.to_pylist()
        for part in tables:
            yield from part.to_pylist()

    with path.open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "Row", "fields": fields}, records())


FORMATS: dict[str, Callable[[Path, Iterator[pa.Table]], None]] = {
    "parquet": write_parquet,
    "csv": write_csv,
    "jsonl": write_jsonl,
    "avro": write_avro,
}


# --- The runs ---


@dataclass(frozen=True)
class Case:
    """One run of `crenel run`."""

    source: str = "parquet"
    persons: str = "int"
    target: str = "parquet"
    #: The share of all rows that it reads.
    part: float = 1.0
    #: The value of --memory-limit, if any.
    limit: str | None = None


class Bench:
    """All measurements. Each part prints a table and returns its figures."""

    def __init__(self, scale: Scale, folder: Path, of: Sequence[Copy]) -> None:
        self.scale = scale
        self.folder = folder
        self.copies = of

    def warm(self) -> None:
        """Compile the kernels of every copy, or load them from the cache, before measuring."""
        for copy in self.copies:
            self._run(Case(), copy, self.scale.few)

    def inputs(self) -> dict[str, Any]:
        cases = {f"{source}, {persons}": Case(source, persons) for persons in self.scale.persons for source in FORMATS}
        bases = {name: f"parquet, {case.persons}" for name, case in cases.items()}
        return self._compare("By format of the input and type of person", cases, "Parquet", bases, (NET, PEAK))

    def outputs(self) -> dict[str, Any]:
        ways = [*(("parquet", target) for target in FORMATS), ("csv", "csv")]
        cases = {f"{source} to {target}, text": Case(source, "text", target) for source, target in ways}
        bases = dict.fromkeys(cases, next(iter(cases)))
        return self._compare("By format of the output", cases, "Parquet", bases, (NET, PEAK))

    def memory(self) -> dict[str, Any]:
        low = f"--memory-limit {_LOW}"
        cases = {"a tenth of the rows": Case(part=0.1), "all rows": Case(), f"all rows, {low}": Case(limit=_LOW)}
        bases = dict.fromkeys(cases, "a tenth of the rows")
        return self._compare("By length of the input, Parquet to Parquet", cases, "a tenth", bases, (PEAK,))

    def _compare(
        self, title: str, cases: Mapping[str, Case], base: str, bases: Mapping[str, str], compared: Sequence[str]
    ) -> dict[str, Any]:
        """Measure all cases with all copies alternately; print medians, and ratios to the case that `bases` names."""
        spent: dict[tuple[str, str], list[Spent]] = {(name, copy.name): [] for name in cases for copy in self.copies}
        starts: dict[tuple[Case, str], list[Spent]] = {}
        for i in range(self.scale.repetitions):
            for name, case in cases.items():
                for copy in self.copies:
                    spent[name, copy.name].append(self._run(case, copy, self._rows(case)))
                    begun = starts.setdefault((_start(case), copy.name), [])
                    if len(begun) <= i:
                        begun.append(self._run(_start(case), copy, self.scale.few))
            print(f"  {title}: {i + 1} of {self.scale.repetitions}", file=sys.stderr)
        found = {
            (name, copy): self._figures(cases[name], runs, starts[_start(cases[name]), copy])
            for (name, copy), runs in spent.items()
        }
        last = self.copies[-1].name
        figures: dict[str, Any] = {}
        for (name, copy), one in found.items():
            told = {**one, **_ratios(one, found[bases[name], copy], base, compared)}
            if copy != last:
                told |= _ratios(one, found[name, last], last, compared)
            figures.setdefault(name, {})[copy] = {what: rounded(value) for what, value in told.items()}
        self._show(title, figures)
        return figures

    def _show(self, title: str, figures: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
        lines = {
            name if len(self.copies) == 1 else f"{name} ({copy})": one
            for name, by_copy in figures.items()
            for copy, one in by_copy.items()
        }
        header = list(dict.fromkeys(what for one in lines.values() for what in one))
        rows = [[name, *(one.get(what, "") for what in header)] for name, one in lines.items()]
        print(f"\n{title}\n\n{table(['', *header], rows)}", flush=True)

    def _figures(self, case: Case, spent: Sequence[Spent], starts: Sequence[Spent]) -> dict[str, float]:
        rows = self._rows(case)
        cpu, start = (median(one.cpu for one in runs) for runs in (spent, starts))
        return {
            TIME: 1e6 * cpu / rows,
            NET: 1e6 * (cpu - start) / max(rows - self.scale.few, 1),
            PEAK: median(one.peak for one in spent),
        }

    def _rows(self, case: Case) -> int:
        return int(self.scale.rows * case.part)

    def _run(self, case: Case, copy: Copy, rows: int) -> Spent:
        out = self.folder / f"published.{case.target}"
        out.unlink(missing_ok=True)
        source = self._file(case, rows)
        arguments = ["--input", source, "--output", out]
        limit = [] if case.limit is None else ["--memory-limit", case.limit]
        return run(crenel("run", self._policy(), *arguments, *limit), copy.environment(), folder=self.folder)

    def _file(self, case: Case, rows: int) -> Path:
        path = self.folder / f"{case.persons}-{rows}.{case.source}"
        if not path.exists():
            FORMATS[case.source](path, chunks(rows, case.persons))
        return path

    def _policy(self) -> Path:
        """Write a policy file as JSON, which is also YAML; return its path."""
        path = self.folder / "policy.yaml"
        told = {
            "version": 1,
            "person": "person",
            "quasi_identifiers": {name: {"type": "numeric", "domain": [0, _VALUES]} for name in _NAMES},
            "publish": ["label"],
            "k": self.scale.k,
            "delay_rows": self.scale.delta,
            "method": "castle",
            "on_suppress": "star",
            "seed": 0,
        }
        path.write_text(json.dumps(told), encoding="utf-8")
        return path


def _start(case: Case) -> Case:
    """Return the case that is run with few rows to measure the start of this case."""
    return replace(case, persons="text", target="parquet", part=1.0, limit=None)


def _ratios(
    one: Mapping[str, float], base: Mapping[str, float], name: str, compared: Sequence[str]
) -> dict[str, float]:
    return {f"{_SHORT[what]} to {name}": one[what] / base[what] for what in compared}


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.formats", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    parser.add_argument("--rows", type=int, help="rows of the files")
    parser.add_argument("--repetitions", type=int, help="of each case")
    parser.add_argument("--only", help="some of: " + ", ".join(PARTS))
    add_against(parser)
    said = parser.parse_args(sys.argv[1:] if given is None else given)
    chosen = said.only.split(",") if said.only else list(PARTS)
    if not set(chosen) <= set(PARTS):
        parser.error(f"--only must be some of {', '.join(PARTS)}, not {said.only}")
    usual = Scale(rows=2_000, few=200, k=5, delta=100, repetitions=1, persons=("int",)) if said.quick else Scale()
    scale = replace(usual, rows=said.rows or usual.rows, repetitions=said.repetitions or usual.repetitions)
    if scale.rows < 10 * scale.few:
        parser.error(f"--rows must be at least {10 * scale.few:,}, not {scale.rows:,}")
    print(f"{scale.rows:,} rows, 6 QIs, k={scale.k}, delta={scale.delta:,}, {scale.repetitions} repetitions")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(scale, Path(folder), copies(said.against))
        bench.warm()
        figures = {part: getattr(bench, part)() for part in chosen}
    finish({"benchmark": "formats", "quick": said.quick, "rows": scale.rows, "pyarrow": pa.__version__, **figures})
    return 0


PARTS = ("inputs", "outputs", "memory")

if __name__ == "__main__":
    sys.exit(main())
