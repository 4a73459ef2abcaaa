"""The README's policy and example are the first thing a user copies."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from crenel import Policy

ROOT = Path(__file__).resolve().parent.parent


def blocks(language: str) -> list[str]:
    """The fenced blocks of that info string."""
    text = (ROOT / "README.md").read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run(code: str, folder: Path) -> str:
    """What an example prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_policy_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "education.csv").write_text("Bachelors;Higher;*\nMasters;Higher;*\n11th;School;*\n")
    (text,) = blocks("yaml")
    (tmp_path / "policy.yaml").write_text(text)
    policy = Policy.from_yaml(tmp_path / "policy.yaml")
    assert list(policy.quasi_identifiers) == ["age", "zipcode", "education", "joined", "income"]
    assert (policy.person, policy.k, policy.l, policy.delay_rows) == ("customer_id", 50, 2, 10_000)


def test_the_pipeline_publishes_every_row(tmp_path: Path) -> None:
    pipeline, _ = blocks("python")
    # By name, so that Beam does not first try to fetch another runner.
    run(pipeline.replace("beam.Pipeline()", 'beam.Pipeline("FnApiRunner")'), tmp_path)
    lines = [line for path in tmp_path.glob("published*") for line in path.read_text().splitlines()]
    assert len(lines) == 100
    assert all("lo" in line and "customer_id" not in line for line in lines)
    assert [line for path in tmp_path.glob("rejected*") for line in path.read_text().splitlines()] == []


def test_the_engine_publishes_every_row(tmp_path: Path) -> None:
    _, engine = blocks("python")
    printed = run(engine, tmp_path)
    counts = re.findall(r"^(?:CLUSTER|REUSE|SUPPRESSED) .* for (\d+) rows$", printed, re.MULTILINE)
    assert len(counts) == len(printed.splitlines())
    assert sum(map(int, counts)) == 100


def test_the_commands_are_targets() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    named = re.findall(r"^    make (\w+)", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert {"demo", "test"} <= set(named) <= set(targets)
