"""`crenel run` writes the same files on a cluster and on this machine."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest

from crenel.pipelines.cli import main
from tests.runners.harness import Flink

pytestmark = pytest.mark.flink

POLICY = """\
version: 1
person: patient
event_time: seen
quasi_identifiers:
  age: {type: numeric, domain: [0, 100]}
  zipcode: {type: prefix, length: 5}
sensitive: [disease]
publish: [number]
k: 5
delay: 20m
shards: 4
shard_by: locality
seed: 7
"""


def test_files_are_anonymized_as_on_the_local_runner(flink: Flink, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY, "utf-8")
    _write_rows(tmp_path, 3)
    outputs = {}
    for runner in (["local"], ["flink", "--flink-master", flink.cluster.rest.master, "--workers", "2"]):
        folder = tmp_path / runner[0]
        folder.mkdir()
        files = {name: folder / f"{name}.csv" for name in ("output", "releases", "suppressed")}
        named = [text for name, path in files.items() for text in (f"--{name}", str(path))]
        arguments = ["run", str(tmp_path / "policy.yaml"), "--input", str(tmp_path / "in-*.csv"), *named]
        assert main([*arguments, "--runner", *runner]) == 0
        outputs[runner[0]] = {name: path.read_bytes() for name, path in files.items()}
    shards = {line.split(b",")[0] for line in outputs["local"]["releases"].splitlines()[1:]}
    assert len(shards) == 4  # the leaves of one tree
    # The file of releases has the shard, kind, size and moment of each release, so these are equal too.
    assert outputs["flink"] == outputs["local"]
    assert outputs["flink"]["releases"].count(b"\n") > 100


def _write_rows(folder: Path, files: int) -> None:
    draw = random.Random(1)
    for number in range(files):
        with (folder / f"in-{number}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["patient", "seen", "age", "zipcode", "disease", "number"])
            for i in range(number, 4_000, files):
                seen = f"2024-01-01T{i // 3600:02}:{i // 60 % 60:02}:{i % 60:02}Z"
                where, what = 53_000 + draw.randrange(1000), draw.choice(["flu", "gout", "mumps"])
                writer.writerow([f"p{draw.randrange(1500)}", seen, draw.randrange(100), where, what, i])
