"""`crenel demo`: its text, the files it keeps, and that its stream is as the text says."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pytest

from crenel.engine.kernels import compiler
from crenel.pipelines.cli import main
from crenel.pipelines.commands import _demo_data
from crenel.pipelines.console import compile_notes
from crenel.policy import Policy


def test_the_demo_keeps_its_promises(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--rows", "3000"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "A crowd at one moment is" in said.out
    assert "BROKEN" not in said.out
    words = [line.split() for line in said.out.splitlines()]
    # The run's first figure says that no payment left without a crowd.
    first = next(i for i, line in enumerate(words) if line[:2] == ["without", "crowd"])
    assert words[first][2] == "0"
    assert words[first + 1] == ["rows", "3,000", "in", "1", "file"]
    assert "And after, they are:" in said.out


def test_its_files_can_be_kept_and_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The demo draws a secret. A secret that the policy refers to makes a second run publish the same rows.
    monkeypatch.setattr(_demo_data, "POLICY", _demo_data.POLICY + "secret: env:CRENEL_TEST_SECRET\n")
    monkeypatch.setenv("CRENEL_TEST_SECRET", bytes(range(100, 132)).hex())
    folder = tmp_path / "new" / "demo"
    assert main(["demo", "--rows", "500", "--keep", str(folder)]) == 0
    names = {path.name for path in folder.iterdir()}
    assert names == {"transactions.csv", "occupations.csv", "policy.yaml", "published.csv"} | {
        "suppressed.csv",
        "rejected.jsonl",
        "releases.csv",
        "trace.csv",
    }
    capsys.readouterr()
    again = folder / "again.csv"
    argv = ["run", folder / "policy.yaml", "--input", folder / "transactions.csv", "--output", again, "--json"]
    # 500 payments are a thin stream, in which many rows are suppressed.
    assert main([*map(str, argv), "--most-suppressed", "100%"]) == 0
    assert again.read_bytes() == (folder / "published.csv").read_bytes()
    assert json.loads(capsys.readouterr().out)["rejected"] == _demo_data.BROKEN


def test_an_existing_folder_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--keep", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("must be a new folder, but it exists already.\n")
    assert list(tmp_path.iterdir()) == []
    assert main(["demo", "--rows", "3"]) == 2


def test_the_stream_is_as_it_says(tmp_path: Path) -> None:
    _demo_data.write(tmp_path, rows=4000)
    with open(tmp_path / "transactions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    times = [row["paid_at"] for row in rows if row["paid_at"] != "yesterday"]
    assert len(rows) == 4000
    assert len(set(times)) == len(times)
    assert times != sorted(times)
    assert max(Counter(row["customer"] for row in rows).values()) > 10
    of = Policy.from_yaml(tmp_path / "policy.yaml")
    assert of.crowd and of.seed is None
    copy = tmp_path / "copy"
    copy.mkdir()
    _demo_data.write(copy, rows=4000)
    assert (copy / "transactions.csv").read_bytes() == (tmp_path / "transactions.csv").read_bytes()


def test_a_wait_for_the_compiler_is_announced_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiler, "is_cached", lambda function: False)
    monkeypatch.setattr(compiler.Kernel, "is_compiled", compiler.Kernel._prepare)
    compiler.compile_from_now_on()
    assert main(["demo", "--rows", "300"]) == 0
    assert capsys.readouterr().out.count(f"({compile_notes.WAIT})") == 1


def test_a_broken_promise_exits_with_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # The audit judges by a stronger policy than the engine had.
    monkeypatch.setattr(_demo_data, "POLICY", _demo_data.POLICY.replace("k: 10 ", "k: 3  "))
    from crenel.audit import exact, guarantees

    judge = guarantees.audit

    def strict(policy: Policy, *args: object, **known: object) -> guarantees.Report:
        return judge(Policy.from_dict({**policy.to_dict(), "k": 40}), *args, **known)  # type: ignore[arg-type]

    monkeypatch.setattr(exact, "audit", strict)
    assert main(["demo", "--rows", "500"]) == 1
    said = capsys.readouterr().out
    assert "BROKEN: at least one promise does not hold." in said
