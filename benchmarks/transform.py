"""The cost of the transform: processor time per row, compared with DoFns that only hold rows.

    python -m benchmarks.transform            about ten minutes
    python -m benchmarks.transform --quick    small, as a smoke test

Rows are drawn from Adult, and run on Beam's local runner in this process:

    a  a plain stateful DoFn: each row in a bag, with its own timer, as in Beam's guide
    b  the same with packs: 500 rows of a bundle are pickled, held, released by timer, and unpacked
    c  Anonymize with CASTLE, on dicts
    d  the same on Arrow, including reading and writing Parquet

The source is measured alone, with the start of the runner, and subtracted from a, b and c. The times of d include both.
Times are processor times of this process and its children, as medians of interleaved repetitions (a, b, c, d, a, b,
...): on a noisy machine only the ratios mean something.
"""

from __future__ import annotations

import argparse
import gc
import logging
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.io.parquetio import ReadFromParquetBatched, WriteToParquetBatched
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from benchmarks import plain
from benchmarks.datasets import CATEGORICAL, NUMERIC, adult_categories, data_folder
from benchmarks.tables import finish, rounded, table
from crenel.engine.kernels.compiler import compile_from_now_on
from crenel.policy import Policy
from crenel.policy.quasi_identifiers import Numeric, QuasiIdentifier
from crenel.transforms import Anonymize
from crenel.transforms._publish.publisher import Publisher

#: The columns that are published unchanged.
PUBLISHED = ("workclass", "sex", "income")
#: Two numbers and four categories.
MIXED = ("age", "hours_per_week", *CATEGORICAL)
#: Rows per pack of b; and rows per row group of d, by default.
PACK, GROUP = 500, 10_000


@dataclass(frozen=True)
class Scale:
    """How much to run."""

    rows: int = 300_000
    k: int = 100
    delta: int = 10_000
    repetitions: int = 5
    shards: tuple[int, ...] = (1, 8, 64)


class Bench:
    """All measurements. Each part prints a table and returns its figures."""

    def __init__(self, scale: Scale, folder: Path) -> None:
        self.scale = scale
        self.folder = folder
        self.adult = _drawn(scale.rows)
        self._policies: dict[Any, Policy] = {}

    def cost(self) -> dict[str, Any]:
        """Measure all cases with one shard."""
        cases: dict[str, tuple[str | None, Callable[[], Any]]] = {
            "source": (None, self.source()),
            "source, keyed": (None, self.source(keyed=True)),
            "a": ("source, keyed", self.a()),
            "b": ("source", self.b()),
            "b, rows leave with their own timestamps": ("source", self.b(timed=True)),
            "c": ("source", self.c()),
            "d": (None, self.d()),
            "c, event time a column": ("source", self.c(event_time="at")),
            "source, 4 of 6 QIs categories": (None, self.source(names=MIXED)),
            "c, 4 of 6 QIs categories": ("source, 4 of 6 QIs categories", self.c(names=MIXED)),
            "d, 4 of 6 QIs categories": (None, self.d(names=MIXED)),
            "Parquet in and out, no transform": (None, self.copy()),
        }
        return self._compare("Processor time per row, 1 shard", cases)

    def shards(self) -> dict[str, Any]:
        """Measure the same by the number of shards. The delay is that of a shard."""
        cases: dict[str, tuple[str | None, Callable[[], Any]]] = {
            "source": (None, self.source()),
            "source, keyed": (None, self.source(keyed=True)),
        }
        for n in self.scale.shards:
            cases |= {
                f"a, {n} shards": ("source, keyed", self.a(shards=n)),
                f"b, {n} shards": ("source", self.b(shards=n)),
                f"c, {n} shards": ("source", self.c(shards=n)),
                f"d, {n} shards": (None, self.d(shards=n)),
            }
        return self._compare("By shards, delta rows of each", cases, ("a, 1 shards", "b, 1 shards"), _of_one_shard)

    def delta_over_shards(self) -> dict[str, Any]:
        """Measure by the number of shards, with the delay divided by it: the number of held rows stays the same."""
        cases: dict[str, tuple[str | None, Callable[[], Any]]] = {"source": (None, self.source())}
        for n in self.scale.shards:
            delta = max(self.scale.delta // n, self.scale.k)
            cases |= {
                f"c, {n} shards": ("source", self.c(shards=n, delta=delta)),
                f"d, {n} shards": (None, self.d(shards=n, delta=delta)),
            }
        return self._compare("By shards, delta rows of all", cases, (), _of_one_shard)

    def delays(self) -> dict[str, Any]:
        """Measure dicts by the number of shards, with the delay in event time: each deadline is a timer."""
        cases: dict[str, tuple[str | None, Callable[[], Any]]] = {"source": (None, self.source())}
        for n in self.scale.shards:
            cases[f"c, {n} shards"] = ("source", self.c(shards=n, event_time="at", timed=True))
        return self._compare("By shards, delta seconds of a row a second", cases, (), _of_one_shard)

    def groups(self) -> dict[str, Any]:
        """Measure Arrow by the rows per row group, with 1 and 8 shards."""
        cases = {
            f"d, {shards} shards, {group:,} rows a row group": (None, self.d(shards=shards, group=group))
            for group in (1_000, GROUP, 100_000)
            for shards in (1, 8)
        }
        return self._compare("By row groups", cases, (f"d, 1 shards, {GROUP:,} rows a row group",))

    # --- The cases ---

    def source(self, *, keyed: bool = False, names: Sequence[str] = NUMERIC) -> Callable[[], Any]:
        return self._on_dicts(names=names, shards=1 if keyed else None)

    def a(self, *, shards: int = 1) -> Callable[[], Any]:
        buffer = plain.Buffer(self.scale.delta)
        return self._on_dicts(
            lambda source: source.with_output_types(plain.Keyed),
            lambda rows: rows | "Buffer" >> beam.ParDo(buffer),
            shards=shards,
        )

    def b(self, *, shards: int = 1, timed: bool = False) -> Callable[[], Any]:
        delta = self.scale.delta

        def packed(rows: Any) -> Any:
            pack = beam.ParDo(plain.PackRows(shards, PACK, timed=timed)).with_output_types(plain.KeyedBytes)
            held = rows | "Pack" >> pack | "Buffer" >> beam.ParDo(plain.BufferPacks(delta))
            return held | "Explode" >> beam.ParDo(plain.ExplodeTimed(delta) if timed else plain.Explode())

        return self._on_dicts(then=packed)

    def c(self, *, names: Sequence[str] = NUMERIC, **how: Any) -> Callable[[], Any]:
        policy = self.policy(names=names, **how)
        return self._on_dicts(
            lambda source: source.with_output_types(dict), lambda rows: rows | Anonymize(policy), names
        )

    def d(self, *, names: Sequence[str] = NUMERIC, group: int = GROUP, **how: Any) -> Callable[[], Any]:
        policy = self.policy(names=names, **how)
        kept = [self.adult.schema.field(name) for name in PUBLISHED]
        schema = pa.schema([*(pa.field(name, kind) for name, kind in Publisher(policy).fields()), *kept])

        def anonymize(tables: Any) -> Any:
            return tables | Anonymize(policy)

        return self._on_parquet(self._parquet(names, group), anonymize, schema)

    def copy(self) -> Callable[[], Any]:
        path = self._parquet(NUMERIC, GROUP)
        return self._on_parquet(path, lambda tables: tables, pq.read_schema(path))

    def policy(
        self,
        *,
        names: Sequence[str] = NUMERIC,
        shards: int = 1,
        event_time: str | None = None,
        delta: int | None = None,
        timed: bool = False,
    ) -> Policy:
        delta = delta or self.scale.delta
        return Policy(
            person="person",
            event_time=event_time,
            quasi_identifiers={name: self._quasi_identifier(name) for name in names},
            publish=PUBLISHED,
            k=self.scale.k,
            delay=f"{delta}s" if timed else None,
            delay_rows=None if timed else delta,
            shards=shards,
            method="castle",
            on_suppress="star",
            seed=0,
        )

    def _quasi_identifier(self, name: str) -> QuasiIdentifier:
        if name in CATEGORICAL:
            return adult_categories(name)
        values = self.adult[name].to_numpy()
        return Numeric(domain=(float(values.min()), float(values.max())))

    def _on_dicts(
        self,
        typed: Callable[[Any], Any] = lambda source: source,
        then: Callable[[Any], Any] = lambda rows: rows,
        names: Sequence[str] = NUMERIC,
        shards: int | None = None,
    ) -> Callable[[], Any]:
        path = self._parquet(names, GROUP)
        groups = list(range(pq.ParquetFile(path).num_row_groups))

        def build(p: beam.Pipeline) -> None:
            source = typed(beam.ParDo(plain.Rows(path, shards)))
            rows = p | beam.Create(groups) | "Rows" >> source
            _ = then(rows) | "Discard" >> beam.ParDo(plain.Discard())

        return lambda: _run(build)

    def _on_parquet(self, path: str, then: Callable[[Any], Any], schema: pa.Schema) -> Callable[[], Any]:
        out = str(self.folder / "out")

        def build(p: beam.Pipeline) -> None:
            tables = p | ReadFromParquetBatched(path)
            _ = then(tables) | WriteToParquetBatched(out, schema, file_name_suffix=".parquet")

        return lambda: _run(build)

    def parquet(self, group: int) -> str:
        """Write the rows to a file, with numeric quasi-identifiers."""
        return self._parquet(NUMERIC, group)

    def _parquet(self, names: Sequence[str], group: int) -> str:
        path = self.folder / f"adult-{names[-1]}-{group}.parquet"
        if not path.exists():
            chosen = self.adult.select(["person", "at", *names, *PUBLISHED])
            pq.write_table(chosen, path, row_group_size=group)
        return str(path)

    # --- Measuring ---

    def _compare(
        self,
        title: str,
        cases: Mapping[str, tuple[str | None, Callable[[], Any]]],
        bases: Sequence[str] = ("a", "b"),
        own: Callable[[str], str] | None = None,
    ) -> dict[str, Any]:
        """Measure the cases alternately, and print their medians, net of their sources, and the ratios.

        Ratios are relative to the bases, which are the same for all cases, and to the case that `own` gives for each.
        """
        rounds = []
        compile_from_now_on()
        for i in range(self.scale.repetitions + 1):
            rounds.append({name: _cpu(work) / self.scale.rows for name, (_, work) in cases.items()})
            print(f"  {title}: {'warm-up' if i == 0 else i}", file=sys.stderr)
        first, *rounds = rounds
        medians = {name: 1e6 * median(times[name] for times in rounds) for name in cases}
        net = {name: medians[name] - (medians[source] if source else 0.0) for name, (source, _) in cases.items()}
        ratios = {name: {f"to {base}": net[name] / net[base] for base in bases} for name in cases}
        if own is not None:
            for name in cases:
                ratios[name]["to 1 shard"] = net[name] / net[own(name)]
        rows = [[name, 1e6 * first[name], medians[name], net[name], *ratios[name].values()] for name in cases]
        header = ["", "first run, us", "us", "net, us", *(f"net {base}" for base in next(iter(ratios.values())))]
        print(f"\n{title}\n\n{table(header, rows)}", flush=True)
        return {
            name: {
                "us": rounded(medians[name]),
                "net_us": rounded(net[name]),
                **{base: rounded(ratio) for base, ratio in ratios[name].items()},
            }
            for name in cases
        }


def _of_one_shard(case: str) -> str:
    """Return the same case with one shard."""
    return case if case.startswith("source") else f"{case[0]}, 1 shards"


def _drawn(rows: int) -> pa.Table:
    """Draw rows from Adult with replacement, each of its own person: ten columns and a time."""
    whole = pq.read_table(data_folder() / "adult_30162.parquet", columns=[*NUMERIC, *CATEGORICAL, *PUBLISHED])
    chosen = np.random.default_rng(0).integers(whole.num_rows, size=rows)
    drawn = whole.take(pa.array(chosen)).combine_chunks()
    person = np.arange(rows)
    return drawn.append_column("person", pa.array(person)).append_column("at", pa.array(person.astype(np.float64)))


def _run(build: Callable[[beam.Pipeline], None]) -> Any:
    with beam.Pipeline(runner=FnApiRunner()) as p:
        build(p)
    return p.result


def _cpu(work: Callable[[], Any]) -> float:
    """Return the processor seconds, including children."""
    gc.collect()
    start = _used()
    work()
    return _used() - start


def _used() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.transform", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--quick", action="store_true", help="small, as a smoke test")
    parser.add_argument("--rows", type=int, help="the number of rows of the stream")
    parser.add_argument("--repetitions", type=int, help="repetitions besides the first run, which is shown separately")
    parser.add_argument("--only", help="some of: " + ", ".join(PARTS))
    said = parser.parse_args(sys.argv[1:] if given is None else given)
    chosen = said.only.split(",") if said.only else list(PARTS)
    if not set(chosen) <= set(PARTS):
        parser.error(f"--only must be some of {', '.join(PARTS)}, not {said.only}")
    logging.getLogger().setLevel(logging.ERROR)
    usual = Scale(rows=2_000, k=5, delta=100, repetitions=1, shards=(1, 4)) if said.quick else Scale()
    scale = replace(usual, rows=said.rows or usual.rows, repetitions=said.repetitions or usual.repetitions)
    print(f"{scale.rows:,} rows of Adult, 6 QIs, k={scale.k}, delta={scale.delta:,}, {scale.repetitions} repetitions")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(scale, Path(folder))
        figures = {part: getattr(bench, part)() for part in chosen}
    finish({"benchmark": "transform", "quick": said.quick, "beam": beam.__version__, **figures})
    return 0


PARTS = ("cost", "shards", "delta_over_shards", "delays", "groups")

if __name__ == "__main__":
    sys.exit(main())
