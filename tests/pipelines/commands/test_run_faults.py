"""`crenel run` when something is wrong outside of it: killed runs, other users, full disks, hostile files."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crenel.pipelines.cli import main
from crenel.pipelines.files import finished_outputs, readers, writers
from tests.pipelines.commands.test_run import (
    POLICY,
    SECRET,
    Row,
    crenel,
    make_rows,
    nothing_but,
    read,
    write_csv,
    write_json,
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CRENEL_TEST_SECRET", SECRET)
    (tmp_path / "policy.yaml").write_text(POLICY)
    return tmp_path


def rows_with_problems() -> list[Row]:
    rows = make_rows()
    return [{**row, "age": 1000} if i % 50 == 0 else row for i, row in enumerate(rows)]


OWNERS = ("suppressed", "rejected", "releases", "trace")


def owners(folder: str = "") -> list[str]:
    return [text for name in OWNERS for text in (f"--{name}", f"{folder}{name}.csv")]


def run_argv(*argv: str) -> list[str]:
    return [sys.executable, "-m", "crenel.pipelines.cli", "run", "policy.yaml", *argv]


# -- other users -------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["", "elsewhere/"])
def test_nobody_else_reads_an_unfinished_file(here: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "elsewhere").mkdir()
    write_csv(here / "in.csv", rows_with_problems())
    seen: dict[str, tuple[int, int]] = {}

    def look(path: str, *rest: Any, **options: Any) -> None:
        made = Path(path)
        modes = (stat.S_IMODE(made.parent.stat().st_mode), stat.S_IMODE(made.stat().st_mode))
        seen[made.name] = modes
        writers_write(path, *rest, **options)
        assert stat.S_IMODE(made.stat().st_mode) == modes[1]

    writers_write = writers.write
    monkeypatch.setattr(finished_outputs.writers, "write", look)
    before = os.umask(0o022)
    try:
        assert crenel("--input", "in.csv", "--output", "out.csv", *owners(folder)) == 0
    finally:
        os.umask(before)
    assert seen == {"published.unfinished": (0o700, 0o644)} | {f"{n}.unfinished": (0o700, 0o600) for n in OWNERS}
    assert stat.S_IMODE((here / "out.csv").stat().st_mode) == 0o644
    assert {stat.S_IMODE((here / f"{folder}{name}.csv").stat().st_mode) for name in OWNERS} == {0o600}


@pytest.mark.slow
def test_a_killed_run_leaves_nothing_for_others_and_nothing_after_the_next(here: Path) -> None:
    write_json(here / "in.jsonl", make_rows(2000))
    (here / "few.jsonl").write_text((here / "in.jsonl").read_text())
    (here / "in.jsonl").write_text((here / "in.jsonl").read_text() * 200)
    argv = run_argv("--input", "in.jsonl", "--output", "o.csv", "--rejected", "r.csv")
    done = subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        until = time.monotonic() + 120
        while not list(here.glob(".o.csv.crenel-*/*")) and time.monotonic() < until:
            time.sleep(0.05)
        os.killpg(done.pid, signal.SIGKILL)
        done.wait(60)
    finally:
        done.kill()
    left = list(here.glob(".*crenel-*"))
    assert [stat.S_IMODE(path.stat().st_mode) for path in left] == [0o700]
    assert crenel("--input", "few.jsonl", "--output", "o.csv") == 0
    assert nothing_but(here, "in.jsonl", "few.jsonl", "o.csv")


# -- places that cannot be written -----------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full, a device that is always full")
@pytest.mark.parametrize("json_summary", [False, True])
def test_standard_output_on_a_full_device(here: Path, json_summary: bool) -> None:
    write_csv(here / "in.csv", make_rows())
    argv = run_argv("--input", "in.csv", "--output", "out.csv" if json_summary else "-")
    argv += ["--json"] if json_summary else []
    with open("/dev/full", "wb") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    said = done.stderr.splitlines()
    assert done.returncode == 2
    assert said[-1].startswith("crenel: standard output cannot be ")
    assert "no space left on device" in said[-1]
    assert "Exception ignored" not in done.stderr
    assert nothing_but(here, "in.csv", *(["out.csv"] if json_summary else []))


@pytest.mark.slow
def test_a_disk_that_is_full(here: Path) -> None:
    """The limit on the size of files stands for the disk: writing fails in the midst of a part file."""
    (here / "policy.yaml").write_text(POLICY + "shards: 2\n")
    write_csv(here / "in.csv", make_rows(3000))

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    argv = run_argv("--input", "in.csv", "--output", "out.csv")
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=limited,
    )
    said = f"crenel: the folder {here}, for unfinished files, cannot be written: file too large. Raise the limit"
    assert done.stderr.startswith(said)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert nothing_but(here, "in.csv")


def test_a_folder_that_is_removed_while_the_run_writes(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_csv(here / "in.csv", make_rows())
    (here / "out").mkdir()
    contents = finished_outputs._contents

    def removed(*args: Any) -> Any:
        shutil.rmtree(here / "out")
        return contents(*args)

    monkeypatch.setattr(finished_outputs, "_contents", removed)
    assert crenel("--input", "in.csv", "--output", "out/o.csv") == 2
    said = f"crenel: {here}/out/o.csv cannot be written: no such file or directory. Its folder was removed"
    assert capsys.readouterr().err.startswith(said)


def test_a_folder_that_is_removed_before_anything_is_written(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_csv(here / "in.csv", make_rows())
    (here / "out").mkdir()
    find = finished_outputs.readers.find

    def removed(*args: Any) -> Any:
        shutil.rmtree(here / "out")
        return find(*args)

    monkeypatch.setattr(finished_outputs.readers, "find", removed)
    assert crenel("--input", "in.csv", "--output", "out/o.csv") == 2
    said = f"crenel: the folder {here}/out, for unfinished files, cannot be written: no such file or directory."
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(here / "in.csv", make_rows())
    (here / "out").mkdir(mode=0o500)
    assert crenel("--input", "in.csv", "--output", "out/o.csv") == 2
    assert "must not be read-only" in capsys.readouterr().err


def test_a_folder_that_takes_no_other_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_csv(here / "in.csv", make_rows())

    def refused(*_: Any, **__: Any) -> str:
        raise PermissionError(13, "Permission denied", str(here))

    monkeypatch.setattr("crenel.pipelines.files.private_folder.os.mkdir", refused)
    assert crenel("--input", "in.csv", "--output", "o.csv") == 2
    said = f"crenel: the folder {here} cannot be written: permission denied. Choose a place that you may write to.\n"
    assert capsys.readouterr().err == said


def test_a_device_is_not_replaced_by_a_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(here / "in.csv", make_rows())
    os.mkfifo(here / "pipe.csv")
    assert crenel("--input", "in.csv", "--output", "pipe.csv") == 2
    assert "pipe.csv: must be a file to write, not a device or a pipe" in capsys.readouterr().err
    assert stat.S_ISFIFO((here / "pipe.csv").stat().st_mode)


# -- formulas ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz"])
def test_formulas_are_escaped_if_asked_for(here: Path, suffix: str) -> None:
    notes = ["=1+1", "@x", "+a", "-5", "-b", "\t=1", "'=2", "plain", None]
    rows = [{**row, "note": notes[i % len(notes)]} for i, row in enumerate(make_rows())]
    write_csv(here / "in.csv", rows)
    shown: list[set[str]] = []
    for flags in ([], ["--csv-escape-formulas"]):
        argv = ["--input", "in.csv", "--output", f"out{suffix}", "--trace", f"trace{suffix}"]
        assert crenel(*argv, "--suppressed", f"s{suffix}", *flags) == 0
        source = readers.open_file(here / f"out{suffix}")
        shown.append({text for batch in source.batches() for text in batch.column("note").to_pylist()})
        audit = [
            "audit",
            "policy.yaml",
            "--input",
            "in.csv",
            "--published",
            f"out{suffix}",
            "--trace",
            f"trace{suffix}",
        ]
        assert main([*audit, "--suppressed", f"s{suffix}", "--json", *flags]) == 0
    assert shown == [set(notes), {"'=1+1", "'@x", "'+a", "-5", "'-b", "'\t=1", "''=2", "plain", None}]


def test_other_formats_have_no_formulas(here: Path) -> None:
    write_csv(here / "in.csv", [{**row, "note": "=1+1"} for row in make_rows()])
    assert crenel("--input", "in.csv", "--output", "out.jsonl", "--csv-escape-formulas") == 0
    assert {row["note"] for row in read(here / "out.jsonl")} == {"=1+1"}


def test_topics_have_no_formulas(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--input", "kafka://localhost:1/in", "--output", "kafka://localhost:1/out", "--csv-escape-formulas"]
    assert crenel(*argv) == 2
    assert "--csv-escape-formulas is for CSV files" in capsys.readouterr().err


# -- rows that cannot be read ------------------------------------------------------------------------


def test_a_row_that_cannot_be_read_is_rejected_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.dumps({name: value for name, value in row.items() if value is not None}) for row in make_rows()]
    deep = '{"who": 1, "note": ' + "[" * 20_000 + "]" * 20_000 + "}"
    large = lines[7].replace("{", '{"note": 1e400, ', 1).replace('"note": "', '"other": "')
    (here / "a.jsonl").write_text("\n".join([*lines[:100], deep, *lines[100:200]]))
    (here / "b.jsonl").write_text("\n".join([*lines[200:], large]))
    argv = ["--input", "a.jsonl", "b.jsonl", "--output", "out.csv", "--trace", "trace.csv", "--json"]
    assert crenel(*argv, "--rejected", "rejected.jsonl") == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["rows"], summary["rejected"]) == (302, 2)
    assert summary["rejected_by"] == [
        {"field": "", "reason": "nested too deep", "rows": 1},
        {"field": "note", "reason": "number too large", "rows": 1},
    ]
    rejected = read(here / "rejected.jsonl")
    assert [record["row"] for record in rejected] == [deep, large]
    audit = ["audit", "policy.yaml", "--input", "a.jsonl", "b.jsonl", "--published", "out.csv", "--trace", "trace.csv"]
    assert main([*audit, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"]["rejected"] == 2


@pytest.mark.parametrize("suffix", [".avro", ".jsonl", ".csv", ".parquet"])
def test_a_value_that_does_not_fit_is_rejected_before_it_joins_a_crowd(
    here: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, Any]] = make_rows()
    rows[150]["age"] = 1000  # this does not fit either
    table = pa.Table.from_pylist([{**row, "note": i} for i, row in enumerate(rows)])
    seen = np.arange(300)
    seen[[137, 150]] = 2**62
    table = table.append_column("seen", pa.array(seen).view(pa.timestamp("us")))
    counts = pa.array([2**64 - 1 if i == 40 else i for i in range(300)], pa.uint64())
    pq.write_table(table.append_column("count", counts), here / "in.parquet")
    (here / "policy.yaml").write_text(POLICY.replace("publish: [note]", "publish: [note, seen, count]"))
    argv = ["--input", "in.parquet", "--output", f"out{suffix}", "--rejected", "r.jsonl", "--trace", "trace.csv"]
    assert crenel(*argv, "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    rejected = read(here / "r.jsonl")
    assert [(row["field"], row["reason"]) for row in rejected] == [("seen", "date too far")] * 2
    assert [json.loads(row["row"])["note"] for row in rejected] == [137, 150]
    assert summary["rejected"] == 2
    audit = ["audit", "policy.yaml", "--input", "in.parquet", "--published", f"out{suffix}", "--trace", "trace.csv"]
    assert main([*audit, "--json"]) == 0


def test_a_rejected_row_may_hold_what_python_cannot(here: Path) -> None:
    rows: list[dict[str, Any]] = make_rows()
    rows[150]["age"] = 1000
    table = pa.Table.from_pylist(rows)
    unnamed = pa.array([2**62 if i == 150 else i for i in range(300)]).view(pa.timestamp("us"))
    pq.write_table(table.append_column("unnamed", unnamed), here / "in.parquet")
    assert crenel("--input", "in.parquet", "--output", "out.csv", "--rejected", "r.jsonl") == 0
    (row,) = read(here / "r.jsonl")
    assert (row["field"], row["reason"]) == ("age", "outside the domain")
    assert json.loads(row["row"])["unnamed"] == "a timestamp[us] that cannot be written"
