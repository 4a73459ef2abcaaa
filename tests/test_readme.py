"""Users copy the README's tables, policy and examples first, so each is run as it is printed."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

from crenel import Policy

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    """Return the fenced blocks of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def tables(text: str) -> list[list[list[str]]]:
    """Return the cells of each Markdown table, without the line under its header."""
    found = []
    for table in re.findall(r"^(?:\|.*\|\n)+", text, re.MULTILINE):
        lines = [line.strip("|").split("|") for line in table.splitlines()]
        found.append([[cell.strip() for cell in line] for number, line in enumerate(lines) if number != 1])
    return found


def run(command: list[str], folder: Path) -> str:
    """Run a command, and return what it prints."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_policy_publishes_the_table_that_is_shown(tmp_path: Path) -> None:
    given, shown = tables(README)[:2]
    with (tmp_path / "visits.csv").open("w", newline="") as file:
        csv.writer(file).writerows(given)
    (text,) = blocks("yaml")
    (tmp_path / "policy.yaml").write_text(text)
    command = re.findall(r"^    crenel (run [^#\n]+)", README, re.MULTILINE)[0]
    run([sys.executable, "-m", "crenel.pipelines.cli", *command.split()], tmp_path)
    with (tmp_path / "published.csv").open(newline="") as file:
        published = list(csv.reader(file))
    assert published[0] == shown[0]
    # The order of the rows is random, and differs between runs.
    assert sorted(published[1:]) == sorted(shown[1:])


def test_the_policy_promises_a_crowd(tmp_path: Path) -> None:
    (text,) = blocks("yaml")
    (tmp_path / "policy.yaml").write_text(text)
    policy = Policy.from_yaml(tmp_path / "policy.yaml")
    assert policy.crowd
    assert policy.k == 3


def test_the_pipeline_publishes_every_row(tmp_path: Path) -> None:
    (pipeline,) = blocks("python")
    # Name the runner, so that Beam does not first try to download another one.
    run([sys.executable, "-c", pipeline.replace("beam.Pipeline()", 'beam.Pipeline("FnApiRunner")')], tmp_path)
    lines = [line for path in tmp_path.glob("published*") for line in path.read_text().splitlines()]
    assert len(lines) == 100
    assert all("lo" in line and "customer_id" not in line for line in lines)
    assert [line for path in tmp_path.glob("rejected*") for line in path.read_text().splitlines()] == []


def test_the_table_in_one_call_is_published(tmp_path: Path) -> None:
    (call,) = blocks("python", (ROOT / "docs" / "first-steps.md").read_text("utf-8"))
    printed = run([sys.executable, "-c", call], tmp_path)
    assert printed.startswith("[{'age': {'lo': ")
    assert re.search(r"^100 rows published, loss 0\.\d+$", printed, re.MULTILINE)
    (tmp_path / "policy.yaml").write_text(printed[printed.index("version:") :], "utf-8")
    assert Policy.from_yaml(tmp_path / "policy.yaml").k == 3


def test_the_commands_are_targets() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    named = re.findall(r"^    make (\w+)", README, re.MULTILINE)
    assert {"demo", "test"} <= set(named) <= set(targets)


def test_the_links_lead_to_files() -> None:
    links = re.findall(r"\]\(((?!https?:)[^)#]+)", README)
    assert links
    assert [link for link in links if not (ROOT / link).is_file()] == []
