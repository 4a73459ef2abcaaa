"""The experiment of the partitioning paper (MASS 2016, section V), its cost, and data with real missing values.

    python -m benchmarks.partition_paper                         all of it, into docs/papers/
    python -m benchmarks.partition_paper --only paper,cost,real  some of it
    python -m benchmarks.partition_paper --quick                 small, as a smoke test; writes nothing

Every run is audited, and a broken promise ends it. `docs/papers/iot-partitioning.md` lists what the paper leaves open
and what was chosen. This program writes the tables in it, between their markers.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow.parquet as pq
from apache_beam.options.pipeline_options import PipelineOptions

from benchmarks import datasets
from benchmarks.castle_paper import write
from benchmarks.datasets import NUMERIC, Stream
from benchmarks.kept import KEPT, Keep
from benchmarks.runs import BrokenPromiseError, push_all, run
from benchmarks.tables import finish, rounded, table
from crenel.audit import Published, audit
from crenel.encoding.encoder import Encoder
from crenel.engine import Kind
from crenel.pipelines.auditing.published_values import box
from crenel.policy import Policy
from crenel.transforms import Anonymize

PAGE = "iot-partitioning.md"
SEEDS = 3
#: The paper's parameters: k, delta, reuse, and the largest number of missing attributes in a row.
K, DELTA, REUSE_FOR = 100, 2_000, 200
MOST_MISSING = (0, 1, 2, 3)
#: The aim: this method may take at most this many times castle's time per row.
LIMIT = 3.0

VARIANTS: dict[str, dict[str, Any]] = {
    "as in the paper": {"reuse": "best", "reuse_for": REUSE_FOR, "fill_missing": True},
    "best, not filled": {"reuse": "best", "reuse_for": REUSE_FOR},
    "by default": {"reuse_for": REUSE_FOR},
}
FAANST = "faanst-passive"


@dataclass(frozen=True)
class Scale:
    """How much to run: all, or (quick) a part of each number."""

    seeds: int = SEEDS
    part: int = 1
    repetitions: int = 5

    def size(self, value: int) -> int:
        return max(2, value // self.part)


# --- The paper's experiment ---


def with_holes(stream: Stream, most: int, seed: int) -> Stream:
    """Add a tenth of the rows again, of the same persons, shuffle, and remove up to `most` attributes of each row."""
    random = np.random.default_rng(seed)
    count = len(stream.rows)
    again = random.choice(count, size=count // 10, replace=False)
    rows = stream.rows.take(random.permutation(np.concatenate([np.arange(count), again])))
    qi = rows.qi.copy()
    removed = random.integers(0, most + 1, len(qi))
    for row, number in enumerate(removed.tolist()):
        qi[row, random.choice(qi.shape[1], size=number, replace=False)] = np.nan
    return replace(stream, rows=replace(rows, qi=qi))


def policy_of(
    stream: Stream,
    scale: Scale,
    seed: int,
    method: str,
    parameters: Mapping[str, Any],
    *,
    timed: bool = False,
    delta: int | None = None,
) -> Policy:
    delta = delta or scale.size(DELTA)
    return Policy(
        person="person",
        quasi_identifiers=stream.quasi_identifiers,
        k=scale.size(K),
        delay_rows=None if timed else delta,
        delay=delta if timed else None,
        method=method,
        parameters=dict(parameters),
        seed=seed,
    )


def by_partition(stream: Stream) -> list[Stream]:
    """Split the rows by their set of attributes. The event time is the arrival in the whole stream."""
    has = ~np.isnan(stream.rows.qi)
    sets, of = np.unique(has, axis=0, return_inverse=True)
    names = list(stream.quasi_identifiers)
    found = []
    for number, present in enumerate(sets):
        at = np.flatnonzero(of.reshape(-1) == number)
        rows = replace(stream.rows.take(at), time=at)
        chosen = {name: stream.quasi_identifiers[name] for name, there in zip(names, present, strict=True) if there}
        found.append(Stream(replace(rows, qi=np.ascontiguousarray(rows.qi[:, present])), chosen))
    return found


@dataclass
class Result:
    """The result of one run: the paper's two measures, and the suppressed rows."""

    loss: float
    #: Every new generalization counts, and every suppressed row.
    clusters: int
    suppressed: float
    #: The share of the groups that have rows with different sets of attributes.
    merged: float = 0.0


def partition(stream: Stream, scale: Scale, seed: int, parameters: Mapping[str, Any]) -> Result:
    done = run(policy_of(stream, scale, seed, "partition", parameters), stream.rows)
    bits = ~np.isnan(stream.rows.qi) @ (1 << np.arange(stream.rows.qi.shape[1]))
    groups = [release.rows for release in done.releases if release.kind is Kind.CLUSTER]
    merged = fmean(len(np.unique(bits[rows])) > 1 for rows in groups) if groups else 0.0
    return Result(done.loss, int(np.sum(done.releases.kind != Kind.REUSE)), done.suppressed, merged)


def faanst(
    stream: Stream, scale: Scale, seed: int, *, timed: bool = False, expire: bool = True, mu: int = DELTA
) -> Result:
    """Run FAANST on the rows of each partition alone, as the paper does.

    A buffer then holds `mu` rows of one partition, so rows wait for `mu` rows of the stream times the number of
    partitions. With `timed`, they are released within delta rows of the stream, as with the other method. Without
    `expire`, they may wait for ever, as in FAANST's first paper.
    """
    loss, clusters, suppressed = 0.0, 0, 0.0
    said = {"mu": scale.size(mu), "max_loss": 0.5}
    delta = None if expire else 2 * len(stream.rows)
    for part in by_partition(stream):
        done = run(policy_of(part, scale, seed, FAANST, said, timed=timed, delta=delta), part.rows)
        loss += done.loss * len(part.rows)
        clusters += int(np.sum(done.releases.kind != Kind.REUSE))
        suppressed += done.suppressed * len(part.rows)
    return Result(loss / len(stream.rows), clusters, suppressed / len(stream.rows))


def paper(scale: Scale) -> tuple[str, dict[str, Any]]:
    """Measure the average loss, clusters and suppressed rows by the largest number of missing attributes."""
    six = datasets.adult(NUMERIC)
    six = six.first(len(six.rows) // scale.part)
    methods: dict[str, Callable[[Stream, int], Result]] = {
        f"partition, {name}": lambda stream, seed, said=said: partition(stream, scale, seed, said)
        for name, said in VARIANTS.items()
    }
    half = DELTA // 2
    methods[f"{FAANST}, no expiry"] = lambda stream, seed: faanst(stream, scale, seed, expire=False)
    methods[f"{FAANST}, delta a partition"] = lambda stream, seed: faanst(stream, scale, seed, mu=half)
    methods[f"{FAANST}, same deadline"] = lambda stream, seed: faanst(stream, scale, seed, timed=True, mu=half)
    methods[f"{FAANST}, same deadline, buffer k"] = lambda stream, seed: faanst(stream, scale, seed, timed=True, mu=K)
    found = {
        name: {
            most: [method(with_holes(six, most, seed), seed) for seed in range(scale.seeds)] for most in MOST_MISSING
        }
        for name, method in methods.items()
    }
    text, figures = [], {}
    for measure, title in (
        ("loss", "Average loss"),
        ("clusters", "Clusters, suppressed rows among them"),
        ("suppressed", "Suppressed rows, as a share"),
        ("merged", "Groups of several partitions, as a share"),
    ):
        means = {
            name: [fmean(getattr(one, measure) for one in results) for results in by_most.values()]
            for name, by_most in found.items()
        }
        rows = [[f"up to {most}", *(values[i] for values in means.values())] for i, most in enumerate(MOST_MISSING)]
        text.append(f"{title}\n\n{table(['attributes removed', *means], rows)}")
        figures[measure] = {name: [rounded(value) for value in values] for name, values in means.items()}
    text.append(f"Means over {scale.seeds} seeds.")
    return "\n\n".join(text), figures


# --- Cost ---


def cost(scale: Scale) -> tuple[str, dict[str, Any]]:
    """Measure the processor time per row, without missing values, relative to castle, as medians of alternate runs."""
    six = datasets.adult(NUMERIC)
    six = six.drawn(scale.size(60_000))
    rows, figures = [], {}
    for delta in (10_000, 2_000):
        cases = {
            "castle": (six, {"method": "castle"}),
            "partition": (six, {"method": "partition"}),
            "partition, up to 3 removed": (with_holes(six, 3, 0), {"method": "partition"}),
        }
        times: dict[str, list[float]] = {name: [] for name in cases}
        for repetition in range(scale.repetitions + 1):
            for name, (stream, said) in cases.items():
                policy = Policy(
                    person="person",
                    quasi_identifiers=six.quasi_identifiers,
                    k=scale.size(K),
                    delay_rows=scale.size(delta),
                    seed=repetition,
                    **said,
                )
                spent = _timed(lambda policy=policy, stream=stream: push_all(policy, stream.rows))
                if repetition:  # the first run compiles
                    times[name].append(spent / len(stream.rows) * 1e6)
        base = median(times["castle"])
        for name, spent in times.items():
            rows.append([f"{name}, delta {delta:,}", median(spent), median(spent) / base])
            figures[f"{name}, delta {delta}"] = {
                "us": rounded(median(spent)),
                "to castle": rounded(median(spent) / base),
            }
    limit = f"Without holes, at most {LIMIT:g} times castle is the aim."
    return f"{table(['', 'us per row', 'to castle'], rows)}\n\n{limit}", figures


def _timed(work: Callable[[], Any]) -> float:
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


# --- Real missing values ---


def real(scale: Scale) -> tuple[str, dict[str, Any]]:
    """Send whole data sets through the Beam transform, and count rejections, breaches, and what an attacker finds."""
    rows, figures = [], {}
    for name, load in (("adult_48842_missing", _adult), ("ev_charging", _charging), ("air_quality_beijing", _air)):
        loaded, said = load(datasets.data_folder())
        count = loaded.num_rows if scale.part == 1 else min(loaded.num_rows, 60_000 // scale.part)
        given = loaded.slice(0, count).append_column("number", [np.arange(count)])
        policy = Policy.from_dict(
            {"publish": ["number"], "seed": 1, "method": "partition", "on_suppress": "star", **said},
            allow_outside_files=True,
        )
        result = _published(policy, given)
        holes = sum(given[column].null_count for column in policy.quasi_identifiers)
        rows.append([name, count, holes, policy.k, *result.values()])
        figures[name] = {"rows": count, "holes": holes, "k": policy.k, **result}
    header = ["", "rows", "holes", "k", "rejected", "suppressed", "looks", "looks of fewer than k persons", "breaches"]
    return table(header, rows), figures


def _published(policy: Policy, given: Any) -> dict[str, int]:
    """Run the pipeline, and count what an attacker sees: rows that look the same, and their persons."""
    KEPT.update({name: [] for name in ("published", "suppressed", "rejected")})
    columns = (policy.person, policy.event_time, *policy.quasi_identifiers, *policy.sensitive, "number")
    needed = given.select(list(dict.fromkeys(name for name in columns if name is not None)))
    parts = [needed.take(np.arange(at, min(at + 10_000, len(needed)))) for at in range(0, len(needed), 10_000)]
    with beam.Pipeline("FnApiRunner", options=PipelineOptions([])) as pipeline:
        out = pipeline | beam.Create(parts, reshuffle=False) | Anonymize(policy)
        for name in KEPT:
            _ = getattr(out, name) | f"Keep {name}" >> beam.ParDo(Keep(name))
    rows = [row for batch in KEPT["published"] for row in batch.to_pylist()]
    hidden = {row["number"] for batch in KEPT["suppressed"] for row in batch.to_pylist()}
    encoded = Encoder(policy).encode({name: given[name] for name in given.column_names})
    boxes = np.empty((len(rows), len(policy.quasi_identifiers), 2))
    looks: dict[str, set[int]] = {}
    spans: dict[tuple[str, str], tuple[float, float]] = {}
    for place, row in enumerate(rows):
        look = []
        for at, (name, qi) in enumerate(policy.quasi_identifiers.items()):
            key = (name, repr(row[name]))
            if key not in spans:
                spans[key] = box(qi, row[name])
            boxes[place, at] = spans[key]
            look.append(key[1])
        if row["number"] not in hidden:
            looks.setdefault("|".join(look), set()).add(int(encoded.rows.person[row["number"]]))
    numbers = np.array([row["number"] for row in rows], np.int64)
    kind = np.array([2 if number in hidden else 0 for number in numbers.tolist()])
    report = audit(policy, encoded.rows, Published(rows=numbers, lo=boxes[:, :, 0], hi=boxes[:, :, 1], kind=kind))
    if report.problems():
        raise BrokenPromiseError("\n".join(report.problems()))
    return {
        "rejected": len(KEPT["rejected"]),
        "suppressed": len(hidden),
        "looks": len(looks),
        "looks of fewer than k persons": sum(len(persons) < policy.k for persons in looks.values()),
        "breaches": len(report.problems()),
    }


def _numbers(**domains: Sequence[float]) -> dict[str, Any]:
    return {name: {"type": "numeric", "domain": list(domain)} for name, domain in domains.items()}


def _adult(folder: Path) -> tuple[Any, dict[str, Any]]:
    loaded = pq.read_table(folder / "adult_48842_missing.parquet")
    hierarchies = folder / "hierarchies" / "adult_arx"
    columns = _numbers(age=[17, 90], hours_per_week=[1, 99])
    for name in ("workclass", "occupation", "native_country"):
        columns[name] = {"type": "categorical", "hierarchy": str(hierarchies / f"{name}.csv")}
    said = {"person": "person", "quasi_identifiers": columns, "sensitive": ["income"]}
    persons = np.arange(loaded.num_rows)
    return loaded.append_column("person", [persons]), {**said, "k": 50, "l": 2, "delay_rows": 5_000}


def _charging(folder: Path) -> tuple[Any, dict[str, Any]]:
    loaded = pq.read_table(folder / "ev_charging.parquet").sort_by("created")
    week = {"week": ["Mon", "Tue", "Wed", "Thu", "Fri"], "weekend": ["Sat", "Sun"]}
    columns = _numbers(charge_time_hrs=[0, 60], distance=[0, 100])
    columns["weekday"] = {"type": "categorical", "hierarchy": week}
    said = {"person": "user_id", "event_time": "created", "quasi_identifiers": columns}
    return loaded, {**said, "k": 5, "delay": "7d"}


def _air(folder: Path) -> tuple[Any, dict[str, Any]]:
    loaded = pq.read_table(folder / "air_quality_beijing.parquet").sort_by("event_time")
    columns = _numbers(pm2_5=[0, 1000], no2=[0, 400], temp=[-30, 50], wspm=[0, 20])
    columns |= {"so2": {"type": "numeric"}, "o3": {"type": "numeric"}}
    said = {"person": "station", "event_time": "event_time", "quasi_identifiers": columns}
    return loaded, {**said, "k": 4, "delay": "12h"}


PARTS: dict[str, Callable[[Scale], tuple[str, dict[str, Any]]]] = {"paper": paper, "cost": cost, "real": real}


def arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.partition_paper", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs for each point of the paper's experiment")
    parser.add_argument("--quick", action="store_true", help="small; writes nothing")
    parser.add_argument("--out", type=Path, help="the folder to write to, instead of docs/papers")
    said = parser.parse_args(given)
    said.parts = said.only.split(",")
    if not set(said.parts) <= set(PARTS):
        parser.error(f"--only must be some of {', '.join(PARTS)}, not {said.only}")
    return said


def main(given: Sequence[str] | None = None) -> int:
    said = arguments(sys.argv[1:] if given is None else given)
    scale = Scale(seeds=1, part=20, repetitions=1) if said.quick else Scale(seeds=said.seeds)
    out = said.out or (None if said.quick else datasets.ROOT / "docs" / "papers")
    figures: dict[str, Any] = {"benchmark": "partition_paper", "quick": said.quick}
    for name in said.parts:
        start = time.process_time()
        text, figures[name] = PARTS[name](scale)
        if out is not None:
            write(out / PAGE, name, text)
        print(f"\n{name} ({time.process_time() - start:.0f} s of processor time)\n\n{text}", flush=True)
    finish(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
