"""The order, row groups and dictionaries of a published file reveal nothing about times and shards."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crenel.pipelines.cli import main
from crenel.pipelines.files import secret_order, writers

POLICY = """\
person: who
event_time: at
quasi_identifiers:
  age: {type: numeric, domain: [0, 100]}
  income: {type: numeric, domain: [0, 1000]}
sensitive: [ill]
publish: [note]
k: 5
delay: 10m
method: bastion
on_suppress: star
seed: 11
"""

#: A policy that shards by a column that is never published.
SHARDED = POLICY + "shards: 8\nshard_by: [city]\n"
#: Rows leave in groups, alone under a reused generalization, or not at all.
WAYS = {
    "reuse": "parameters: {reuse: weighted}\n",
    "drop": "parameters: {reuse: off}\n",
}
CITIES = ("Aachen", "Bonn", "Celle", "Dessau", "Emden", "Fulda", "Gotha", "Halle")
FORMS = (".csv", ".csv.gz", ".jsonl", ".parquet", ".avro")

Row = dict[str, Any]


def make_rows(count: int = 3000) -> list[Row]:
    draw = random.Random(5)
    return [
        {
            "who": draw.randrange(500),
            "at": 1_600_000_000 + 2 * i,
            "age": draw.randrange(100),
            "income": draw.randrange(1000),
            "ill": draw.choice(["flu", "cold", "gout"]),
            "note": i,
            "city": draw.choice(CITIES),
        }
        for i in range(count)
    ]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def crenel(policy: str, rows: Sequence[Row], *argv: str) -> None:
    Path("policy.yaml").write_text(policy)
    pq.write_table(pa.Table.from_pylist(list(rows)), "in.parquet")
    assert main(["run", "policy.yaml", "--input", "in.parquet", *argv]) == 0


def notes(path: Path) -> list[int]:
    """Return the place in the input of each published row, in the order of the file."""
    if path.suffix == ".parquet":
        return list(pq.read_table(path)["note"].to_pylist())
    if path.suffix == ".avro":
        with open(path, "rb") as file:
            return [row["note"] for row in fastavro.reader(file)]
    if path.suffix == ".jsonl":
        return [json.loads(line)["note"] for line in path.read_text().splitlines()]
    with pa.input_stream(str(path)) as stream:
        return [int(row["note"]) for row in csv.DictReader(stream.read().decode().splitlines())]


def correlation(place: Sequence[int], value: Sequence[float]) -> float:
    """Return Spearman's correlation times the root of the count. Without correlation, it is within a few units of 0."""
    ranks = [np.argsort(np.argsort(np.asarray(column), kind="stable")) for column in (place, value)]
    return float(np.corrcoef(*ranks)[0, 1] * np.sqrt(len(place)))


def changes(labels: Sequence[Any]) -> float:
    """Return how many neighbours differ, as standard deviations from the mean of a random order."""
    _, codes = np.unique(np.asarray(labels), return_inverse=True)
    differ = int(np.count_nonzero(codes[1:] != codes[:-1]))
    share = 1 - float(np.sum((np.bincount(codes) / len(codes)) ** 2))
    return (differ - share * (len(codes) - 1)) / np.sqrt(len(codes) * share * (1 - share))


#: Standard deviations that do not occur by chance. The seed is fixed, so a test that passes once always passes.
NEVER = 4.5


# -- place and time --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", WAYS)
def test_the_place_in_the_file_does_not_tell_the_event_time(here: Path, way: str, form: str) -> None:
    policy = POLICY.replace("star", "drop" if way == "drop" else "star") + WAYS[way]
    crenel(policy, make_rows(), "--output", f"out{form}")
    found = notes(here / f"out{form}")
    assert len(found) > 1000
    assert abs(correlation(range(len(found)), found)) < NEVER
    # Neighbours do not reveal it, either: rows of about one time are as far apart as any others.
    apart = np.abs(np.diff(found))
    assert apart.mean() == pytest.approx(len(make_rows()) / 3, rel=0.1)


def test_the_place_does_not_tell_the_release(here: Path) -> None:
    crenel(POLICY + WAYS["reuse"], make_rows(), "--output", "out.csv", "--trace", "trace.csv")
    with open(here / "trace.csv", newline="") as file:
        trace = list(csv.DictReader(file))
    assert abs(correlation(range(len(trace)), [int(row["arrival"]) for row in trace])) < NEVER
    assert abs(correlation(range(len(trace)), [int(row["release"]) for row in trace])) < NEVER
    assert abs(changes([row["release"] for row in trace])) < NEVER


def test_without_an_event_time_the_place_does_not_tell_the_arrival(here: Path) -> None:
    policy = POLICY.replace("event_time: at\n", "").replace("delay: 10m", "delay_rows: 300") + WAYS["reuse"]
    crenel(policy, make_rows(), "--output", "out.csv")
    found = notes(here / "out.csv")
    assert abs(correlation(range(len(found)), found)) < NEVER


# -- shards ----------------------------------------------------------------------------------------


def test_neither_row_groups_nor_runs_tell_the_shard(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "ROWS", 100)
    given = make_rows()
    crenel(SHARDED + WAYS["reuse"], given, "--output", "out.parquet")
    found = notes(here / "out.parquet")
    cities = [given[note]["city"] for note in found]
    assert abs(changes(cities)) < NEVER
    file = pq.ParquetFile(here / "out.parquet")
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert sizes == [100] * (len(found) // 100) + ([len(found) % 100] if len(found) % 100 else [])
    # No row group has more rows of a city than chance explains.
    shares = np.bincount([CITIES.index(city) for city in cities]) / len(cities)
    starts = np.cumsum([0, *sizes])
    for start, stop in pairwise(starts.tolist()):
        counts = np.bincount([CITIES.index(city) for city in cities[start:stop]], minlength=len(CITIES))
        expected = shares * (stop - start)
        assert np.all(np.abs(counts - expected) < NEVER * np.sqrt(expected) + 1)


@pytest.mark.parametrize("form", [".parquet", ".avro"])
def test_blocks_do_not_depend_on_the_shards(here: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "ROWS", 64)
    sizes = []
    for policy in (SHARDED, SHARDED.replace("shards: 8", "shards: 3"), POLICY):
        crenel(policy + WAYS["reuse"], make_rows(), "--output", f"out{form}")
        if form == ".parquet":
            meta = pq.ParquetFile(here / "out.parquet").metadata
            sizes.append([meta.row_group(i).num_rows for i in range(meta.num_row_groups)])
        else:
            with open(here / "out.avro", "rb") as file:
                sizes.append([block.num_records for block in fastavro.block_reader(file)])
    assert all(found == sizes[0] for found in sizes)
    assert sizes[0] == [64] * (3000 // 64) + [3000 % 64]


def test_the_dictionary_of_a_row_group_is_of_its_own_rows(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "ROWS", 50)
    given = [{**row, "ill": f"illness-{row['note'] // 10}"} for row in make_rows(1000)]
    table = pa.Table.from_pylist(given)
    table = table.set_column(table.schema.get_field_index("ill"), "ill", table["ill"].dictionary_encode())
    pq.write_table(table, "dictionary.parquet")
    Path("policy.yaml").write_text(POLICY + WAYS["reuse"])
    assert main(["run", "policy.yaml", "--input", "dictionary.parquet", "--output", "out.parquet"]) == 0
    file = pq.ParquetFile(here / "out.parquet", read_dictionary=["ill"])
    for i in range(file.num_row_groups):
        (chunk,) = file.read_row_group(i, columns=["ill"])["ill"].chunks
        assert sorted(chunk.dictionary.to_pylist()) == sorted(set(chunk.to_pylist()))


def test_nested_dictionaries_are_written_out(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "ROWS", 50)
    given = make_rows(600)
    words = pa.dictionary(pa.int32(), pa.string())
    kind = pa.struct([("all", pa.list_(words)), ("one", words)])
    values = [{"all": [f"a-{row['note']}", "b"], "one": f"c-{row['note']}"} for row in given]
    table = pa.Table.from_pylist(given).append_column("more", pa.array(values, kind))
    pq.write_table(table, "nested.parquet")
    assert pq.read_schema("nested.parquet").field("more").type == kind
    Path("policy.yaml").write_text(POLICY.replace("[note]", "[note, more.all, more.one]") + WAYS["reuse"])
    assert main(["run", "policy.yaml", "--input", "nested.parquet", "--output", "out.parquet"]) == 0
    out = pq.read_table("out.parquet")
    assert [out.schema.field(f"more.{name}").type for name in ("all", "one")] == [pa.list_(pa.string()), pa.string()]
    found = {row["note"]: {"all": row["more.all"], "one": row["more.one"]} for row in out.to_pylist()}
    assert found == dict(enumerate(values))


# -- the shuffle -----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [POLICY, SHARDED], ids=["one shard", "shards"])
def test_a_shuffle_through_files_is_the_same(here: Path, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order depends on the secret alone, no matter how little fits into memory."""
    argv = ["--trace", "trace.csv", "--suppressed", "suppressed.csv", "--output", "out.csv"]
    files = ("out.csv", "trace.csv", "suppressed.csv")
    crenel(policy + WAYS["reuse"], make_rows(), *argv)
    whole = [(here / name).read_bytes() for name in files]
    monkeypatch.setattr(secret_order, "_COPIES", 100)
    monkeypatch.setattr(secret_order, "_FILES", 4)
    crenel(policy + WAYS["reuse"], make_rows(), *argv, "--memory-limit", "1MB")
    assert [(here / name).read_bytes() for name in files] == whole


def test_the_order_is_secret(here: Path) -> None:
    """Another secret leads to another order, and without a seed each run has its own secret."""
    orders = []
    for seed in ("seed: 11", "seed: 12", "", ""):
        crenel(POLICY.replace("seed: 11", seed) + WAYS["reuse"], make_rows(500), "--output", "out.csv")
        orders.append(tuple(notes(here / "out.csv")))
    assert len(set(orders)) == 4
    assert all(sorted(order) == list(range(500)) for order in orders)


# -- the trace -------------------------------------------------------------------------------------


@pytest.mark.parametrize("suppress", ["star", "drop"])
def test_the_trace_has_the_order_of_the_output(here: Path, suppress: str) -> None:
    policy = SHARDED.replace("on_suppress: star", f"on_suppress: {suppress}").replace("k: 5", "k: 30")
    argv = ["--trace", "trace.csv", "--suppressed", "suppressed.csv"]
    crenel(policy + WAYS["drop"], make_rows(1500), "--output", "out.csv", *argv)
    with open(here / "trace.csv", newline="") as file:
        trace = list(csv.DictReader(file))
    hidden = [int(row["row"]) for row in trace if row["kind"] == "suppressed"]
    assert 0 < len(hidden) < len(trace) == 1500
    left = [int(row["row"]) for row in trace if suppress == "star" or row["kind"] != "suppressed"]
    assert notes(here / "out.csv") == left
    assert notes(here / "suppressed.csv") == hidden


@pytest.mark.parametrize("suppress", ["star", "drop"])
def test_the_audit_pairs_rows_by_the_trace(here: Path, suppress: str, capsys: pytest.CaptureFixture[str]) -> None:
    policy = SHARDED.replace("on_suppress: star", f"on_suppress: {suppress}").replace("k: 5", "k: 30")
    argv = ["--trace", "trace.csv", "--suppressed", "suppressed.csv", "--releases", "releases.csv"]
    crenel(policy + WAYS["drop"], make_rows(1500), "--output", "out.csv", *argv)
    capsys.readouterr()
    audit = ["audit", "policy.yaml", "--published", "out.csv", "--input", "in.parquet", *argv, "--json"]
    main([*audit, "--queries", "0"])
    document = json.loads(capsys.readouterr().out)
    assert document["knowledge"] == "trace"
    states = {promise["name"]: promise["state"] for promise in document["promises"]}
    for name in ("k", "deadline", "nothing lost", "contained", "columns", "boxes", "reported figures"):
        assert states[name] == "kept"
