"""`crenel run` always writes the same bytes for the same rows, policy and seed, with any runner and any memory.

`golden/run.json` has a digest of every output. To change the output on purpose, delete the file's lines and run
`python -m tests.pipelines.files.test_same_bytes`.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest

from crenel.pipelines.cli import main
from crenel.pipelines.files import secret_order
from crenel.pipelines.files.scratch import Scratch
from crenel.transforms import bounded
from crenel.transforms._pack import pack_step

GOLDEN = Path(__file__).parent / "golden" / "run.json"

POLICY = """\
version: 1
person: who
quasi_identifiers:
  age: {type: numeric, domain: [0, 101]}
  zip: {type: prefix, length: 3}
sensitive: [ill]
publish: [note]
k: 5
seed: 11
"""
BY_TIME = "event_time: at\ndelay: 10m\n"

#: The lines that each run adds to the policy.
RUNS: dict[str, str] = {
    "by rows": "delay_rows: 200\n",
    "by time": BY_TIME,
    "shards": BY_TIME + "shards: 3\nshard_by: [city]\n",
    "castle, star": BY_TIME + "method: castle\non_suppress: star\n",
    "castleguard": "delay_rows: 200\nmethod: castleguard\n",
}
OUTPUTS = ("output.csv", "suppressed.jsonl", "rejected.jsonl", "releases.csv", "trace.csv")


def rows(start: int, stop: int) -> list[dict[str, Any]]:
    """Make rows by arithmetic alone. Every two-hundredth row does not fit the policy."""
    return [
        {
            "who": i * 11 % 1_009,
            "at": 1_600_000_000 + 3 * i - i * 17 % 5,
            "age": "old" if i % 200 == 150 else i * 37 % 101,
            "zip": f"{(i * 113 + i // 7 * 31) % 1000:03}",
            "ill": ("flu", "cold", "gout")[i * i % 3],
            "note": f"note {i % 7}",
            "city": "abcde"[i % 5],
        }
        for i in range(start, stop)
    ]


def digests(run: str, folder: Path, *options: str) -> dict[str, str]:
    """Run, and return the digests of all files that the run writes."""
    (folder / "policy.yaml").write_text(POLICY + RUNS[run], encoding="utf-8")
    for number, (start, stop) in enumerate([(0, 1_200), (1_200, 2_500)]):
        with open(folder / f"in{number}.csv", "w", newline="", encoding="utf-8") as file:
            given = rows(start, stop)
            writer = csv.DictWriter(file, list(given[0]))
            writer.writeheader()
            writer.writerows(given)
    asked = [f"--{Path(name).stem}={folder / name}" for name in OUTPUTS]
    inputs = [str(folder / f"in{number}.csv") for number in range(2)]
    argv = ["run", str(folder / "policy.yaml"), *options, *asked, "--input", *inputs]
    assert main(argv) == 0
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in OUTPUTS}


@pytest.mark.parametrize("run", RUNS)
def test_a_run_writes_the_same_bytes(run: str, tmp_path: Path) -> None:
    assert digests(run, tmp_path) == json.loads(GOLDEN.read_text("utf-8"))[run]


@pytest.mark.parametrize("run", RUNS)
def test_a_run_that_sorts_on_disk_writes_the_same_bytes(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_step, "_ROWS", 100)
    monkeypatch.setattr(pack_step, "_MOST_ROWS", 200)
    monkeypatch.setattr(bounded, "_COPIES", 100)
    monkeypatch.setattr(secret_order, "_COPIES", 100)
    found: dict[Path, int] = {}
    clear = Scratch.clear_sorted

    def clearing(scratch: Scratch) -> None:
        folder = Path(scratch.folder)
        found.update({path: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("sorted/**/*"))})
        clear(scratch)

    monkeypatch.setattr(Scratch, "clear_sorted", clearing)
    assert digests(run, tmp_path, "--memory-limit", "1MB") == json.loads(GOLDEN.read_text("utf-8"))[run]
    folder, *files = found
    assert found[folder] == 0o700
    assert len(files) > 3
    assert {found[file] for file in files} == {0o600}
    assert not folder.exists()


def _write() -> None:
    known: dict[str, dict[str, str]] = json.loads(GOLDEN.read_text("utf-8")) if GOLDEN.exists() else {}
    for run in RUNS:
        if run not in known:
            with tempfile.TemporaryDirectory() as folder:
                known[run] = digests(run, Path(folder))
    GOLDEN.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    os.umask(0o077)
    _write()
