"""Inputs and outputs that are not files of this machine: all or nothing, in secret, and errors that say what to do."""

from __future__ import annotations

import gzip
import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from crenel.pipelines.cli import main
from crenel.pipelines.files.remote import object_files
from tests.pipelines.files.remote.memory_files import MemoryFiles

AT = "crenelmem://box"
POLICY = """\
person: who
quasi_identifiers: {age: {type: numeric, domain: [0, 100]}}
k: 3
delay_rows: 20
seed: 5
"""
ROWS = [f"p{n % 30},{n * 7 % 100},SECRET" for n in range(60)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(POLICY)
    MemoryFiles.reset()
    put("in/a.csv", ROWS[:30])
    put("in/b.csv", ROWS[30:])
    yield tmp_path
    MemoryFiles.reset()


def put(name: str, rows: list[str]) -> None:
    MemoryFiles.files[f"{AT}/{name}"] = "\n".join(["who,age,note", *rows, ""]).encode()


def run(*options: str) -> int:
    return main(["run", "policy.yaml", "--input", f"{AT}/in/*.csv", "--output", f"{AT}/out.csv", *options])


def test_files_elsewhere_are_read_and_written_as_files_here(folder: Path) -> None:
    owners = ["--suppressed", f"{AT}/suppressed.parquet", "--rejected", f"{AT}/rejected.jsonl"]
    assert run(*owners, "--releases", f"{AT}/releases.csv", "--trace", "trace.csv") == 0
    for name in ("a", "b"):
        Path(f"{name}.csv").write_bytes(MemoryFiles.files[f"{AT}/in/{name}.csv"])
    assert main(["run", "policy.yaml", "--input", "a.csv", "b.csv", "--output", "here.csv"]) == 0
    assert MemoryFiles.files[f"{AT}/out.csv"] == Path("here.csv").read_bytes()
    assert stat.S_IMODE(Path("trace.csv").stat().st_mode) == 0o600
    assert {name.removeprefix(f"{AT}/") for name in MemoryFiles.files} == {
        *("in/a.csv", "in/b.csv", "out.csv", "suppressed.parquet", "rejected.jsonl", "releases.csv")
    }
    temporary = [name for name in MemoryFiles.seen if not name.startswith(f"{AT}/in/")]
    assert all(re.search(r"\.crenel-[0-9a-f]{8}\.unfinished$", name) for name in temporary)
    assert MemoryFiles.files[f"{AT}/rejected.jsonl"] == b"\n", "no object store takes an upload of no parts"


def test_every_command_reads_files_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    MemoryFiles.files[f"{AT}/in/c.csv.gz"] = gzip.compress(MemoryFiles.files[f"{AT}/in/a.csv"])
    data = f"{AT}/in/c.csv.gz"
    assert main(["init", data, "--person", "who", "--output", "drafted.yaml"]) == 0
    assert f"crenel check drafted.yaml --data {data}" in capsys.readouterr().out
    assert main(["check", "policy.yaml", "--data", data, "--most-suppressed", "100%"]) in (0, 1)
    assert "30 rows of 3 columns" in capsys.readouterr().out
    assert run("--trace", f"{AT}/trace.csv") == 0
    capsys.readouterr()
    given = ["--published", f"{AT}/out.csv", "--input", f"{AT}/in/*.csv", "--trace", f"{AT}/trace.csv"]
    assert main(["audit", "policy.yaml", *given, "--queries", "5"]) == 0
    assert "no promise was found broken" in capsys.readouterr().out
    assert main(["check", "policy.yaml", "--data", f"{AT}/in/*.csv"]) == 2
    assert "*.csv: must be one file, not 2 that match a pattern." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("end", "what"),
    [("out.csv", "create"), ("suppressed.csv", "create"), ("out.csv", "rename"), ("releases.csv", "create")],
)
def test_what_fails_leaves_nothing_that_can_be_taken_for_a_result(
    end: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    MemoryFiles.failing[end] = what
    assert run("--suppressed", f"{AT}/suppressed.csv", "--releases", f"{AT}/releases.csv") == 2
    told = capsys.readouterr().err
    assert f"crenel: {AT}/{end} cannot be written: {what} is denied. Check the address" in told
    assert "SECRET" not in told
    assert "Traceback" not in told
    left = {name.removeprefix(f"{AT}/") for name in MemoryFiles.files} - {"in/a.csv", "in/b.csv"}
    assert "out.csv" not in left
    assert not any("unfinished" in name for name in left)
    if what == "create":
        assert left == set()


@pytest.mark.parametrize(
    ("pattern", "failing", "said"),
    [
        (f"{AT}/in/none.csv", {}, "none.csv: there is no such file."),
        (f"{AT}/in/none*.csv", {}, "none*.csv: no file matches."),
        (f"{AT}/in/a.csv", {"a.csv": "open"}, "a.csv cannot be read: open is denied. Check the address"),
        (f"{AT}/in/a*.csv", {"": "list"}, "a*.csv cannot be read: list is denied. Check the address"),
        (f"{AT}/in/a.xls", {}, "a.xls: the extension must be one of .csv"),
        ("swift://box/a.csv", {}, "swift://box/a.csv: no file system is known for swift://, only for "),
    ],
)
def test_what_cannot_be_read_is_one_sentence(
    pattern: str, failing: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    MemoryFiles.files[f"{AT}/in/a.xls"] = b"x"
    MemoryFiles.failing.update(failing)
    for command in (["run", "policy.yaml", "--input", pattern, "--output", "out.csv"], ["init", pattern]):
        assert main(command) == 2
        assert said in capsys.readouterr().err
    assert not Path("out.csv").exists()


def test_a_file_is_not_read_and_written_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--input", f"{AT}/in/a.csv", "--output", f"{AT}/in/a.csv"]
    assert main(["run", "policy.yaml", *given]) == 2
    assert "a.csv: must not be read and written at once" in capsys.readouterr().err


def test_the_owner_is_told_who_can_read_files_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--rejected", f"{AT}/rejected.jsonl", "--suppressed", "here.csv") == 0
    told = capsys.readouterr().err
    assert told.count("crenel: warning: --") == 1
    assert f"--rejected {AT}/rejected.jsonl is for the owner alone, but all who may read there" in told


@pytest.mark.parametrize(("scheme", "extra"), [("s3", "aws"), ("gs", "gcp"), ("azfs", "azure")])
def test_a_missing_extra_is_named(
    scheme: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(object_files, "_is_there", lambda module: False)
    where = f"{scheme}://bucket/a.csv"
    for command in (
        ["run", "policy.yaml", "--input", where, "--output", "out.csv"],
        ["run", "policy.yaml", "--input", f"{AT}/in/a.csv", "--output", where],
        ["init", where],
        ["check", "policy.yaml", "--data", where],
    ):
        assert main(command) == 2
        assert f"{where}: {scheme}:// needs an extra: pip install 'crenel[{extra}]'." in capsys.readouterr().err


def test_fetched_files_are_private() -> None:
    place = object_files.fetched(f"{AT}/in/a.csv")
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert place.read_bytes() == MemoryFiles.files[f"{AT}/in/a.csv"]


def test_the_summary_counts_files_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["files"], told["rows"]) == (2, 60)
