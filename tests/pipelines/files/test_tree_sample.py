"""`crenel run` with `shard_by: locality`: a first pass over the files learns the tree of shards."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from crenel.pipelines.cli import main

HEADER = ["who", "age", "seen", "word"]
POLICY = {
    "person": "who",
    "event_time": "seen",
    "quasi_identifiers": {"age": {"type": "numeric"}},
    "publish": ["word"],
    "k": 4,
    "delay": "100s",
    "shards": 4,
    "shard_by": "locality",
    "seed": 1,
}


def rows(count: int) -> list[list[str]]:
    draw = np.random.default_rng(0)
    ages = draw.integers(0, 100, count)
    return [[f"p{i}", str(ages[i]), str(1_700_000_000 + i), f"w{i}"] for i in range(count)]


def write(path: Path, given: list[list[str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([HEADER, *given])


def published(folder: Path, *inputs: str) -> tuple[str, list[dict[str, int]]]:
    out, releases = folder / "out.csv", folder / "releases.jsonl"
    code = main(
        ["run", str(folder / "policy.json"), "--input", *inputs, "--output", str(out), "--releases", str(releases)]
    )
    assert code == 0
    return out.read_text(), [json.loads(line) for line in releases.read_text().splitlines()]


def test_the_tree_does_not_depend_on_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "policy.json").write_text(json.dumps(POLICY))
    given = rows(800)
    write(tmp_path / "whole.csv", given)
    write(tmp_path / "a.csv", given[500:])
    write(tmp_path / "b.csv", [*given[:500], ["p", "not a number", "1700000000", "w"]])
    text, releases = published(tmp_path, str(tmp_path / "whole.csv"))
    # A hundred rows come inside the deadline, of which a shard needs eight times k.
    assert len({record["shard"] for record in releases}) in (2, 3)
    again, _ = published(tmp_path, str(tmp_path / "a.csv"), str(tmp_path / "b.csv"))
    assert sorted(again.splitlines()) == sorted(text.splitlines())
