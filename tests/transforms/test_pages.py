"""The examples of docs/transform.md, docs/kafka.md and docs/beam-yaml.md run as they are printed."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from crenel.transforms.yaml import provider_file
from tests.transforms.streams import policy, rows

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_examples_in_python(tmp_path: Path) -> None:
    code = "\n".join(blocks("transform.md", "python"))
    # Name the runner, so that Beam does not first try to download another one.
    printed = run([sys.executable, "-c", code.replace("beam.Pipeline()", 'beam.Pipeline("FnApiRunner")')], tmp_path)
    assert len(re.findall(r"^\{'age': \{'lo': .*'zipcode': '5.*'disease': ", printed, re.MULTILINE)) >= 190
    assert "age: struct<lo: double, hi: double>" in printed


def test_the_example_of_the_outbox(tmp_path: Path) -> None:
    (code,) = blocks("kafka.md", "python")
    assert sorted(run([sys.executable, "-c", code], tmp_path).split()) == ["a", "b", "c"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 2])
def test_the_examples_in_yaml(tmp_path: Path, number: int) -> None:
    pytest.importorskip("jinja2", reason="needs apache-beam[yaml]")
    _, written_out, _ = found = blocks("beam-yaml.md", "yaml")
    assert yaml.safe_load(written_out)["providers"] == yaml.safe_load(provider_file().read_text())
    (tmp_path / "pipeline.yaml").write_text(found[number].replace("PROVIDERS", str(provider_file())))
    said = policy().to_dict()
    # A CSV reader parses zipcodes as numbers, as the page says.
    said["quasi_identifiers"]["zipcode"] = {"type": "numeric", "domain": [0, 99_999]}
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(said, sort_keys=False))
    given = rows(50)
    with (tmp_path / "visits.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, given[0])
        writer.writeheader()
        writer.writerows(given)
    command = [sys.executable, "-m", "apache_beam.yaml.main", "--yaml_pipeline_file=pipeline.yaml"]
    run([*command, "--runner=FnApiRunner"], tmp_path)
    lines = [line for path in tmp_path.glob("published*") for line in path.read_text().splitlines()]
    assert len(lines) == 50
