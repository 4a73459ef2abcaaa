"""Every program in `examples/` runs as a user would run it, and publishes what it promises."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.pipelines.kafka.broker import Broker

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def run(*command: str | Path, at: Path, path: Path | None = None) -> str:
    """Run a program and return what it prints; `path` is a further folder of packages."""
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=at,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_every_example_is_listed_and_tried() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__"}
    page = (EXAMPLES / "README.md").read_text("utf-8")
    tried = Path(__file__).read_text("utf-8")
    for folder in folders:
        assert f"({folder})" in page, folder
        assert f'"{folder}"' in tried, folder


@pytest.mark.slow
def test_a_pipeline_of_ones_own(tmp_path: Path) -> None:
    run(EXAMPLES / "parquet_pipeline" / "pipeline.py", tmp_path, at=tmp_path)
    published = pq.read_table(sorted(tmp_path.glob("published*.parquet")))
    assert published.column_names == ["age", "zipcode", "diagnosis"]
    assert 4_500 < published.num_rows <= 5_000


@pytest.mark.slow
def test_the_notebook() -> None:
    nbclient = pytest.importorskip("nbclient", reason="notebooks are run by the extra `dev`")
    nbformat = pytest.importorskip("nbformat", reason="notebooks are run by the extra `dev`")
    notebook = nbformat.read(EXAMPLES / "notebook" / "first_look.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not kept in the tree"
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    assert "KEPT: every promise was checked, and holds." in printed
    assert "In regulators' words" in printed
    assert "the report has" in printed


@pytest.mark.slow
def test_beam_yaml(tmp_path: Path) -> None:
    folder = tmp_path / "beam_yaml"
    shutil.copytree(EXAMPLES / "beam_yaml", folder)
    run("-m", "apache_beam.yaml.main", "--yaml_pipeline_file=pipeline.yaml", "--runner=FnApiRunner", at=folder)
    rows = [json.loads(line) for path in folder.glob("published*") for line in path.read_text("utf-8").splitlines()]
    assert 180 < len(rows) <= 199
    assert all(set(row) == {"age", "city", "purchase"} for row in rows)
    rejected = [line for path in folder.glob("rejected*") for line in path.read_text("utf-8").splitlines()]
    assert len(rejected) == 1, "one customer is too young for the domain"


@pytest.mark.slow
def test_a_method_of_ones_own(tmp_path: Path) -> None:
    package = EXAMPLES / "own_method"
    lines = (package / "sorted_runs.py").read_text("utf-8").splitlines()
    assert len(lines) < 100
    copy = tmp_path / "source"
    shutil.copytree(package, copy)
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(tmp_path / "site")]
    run(*pip, copy, at=tmp_path)
    said = run(package / "try_it.py", tmp_path, at=tmp_path, path=tmp_path / "site")
    assert "sorted-runs keeps the seven promises." in said
    published = (tmp_path / "published.csv").read_text("utf-8").splitlines()
    assert published[0] == "age,zipcode,purchase"
    assert len(published) > 900


@pytest.mark.kafka
def test_from_topic_to_topic(kafka: Broker, tmp_path: Path) -> None:
    program = EXAMPLES / "kafka_to_kafka" / "kafka_to_kafka.py"
    said = run(program, "--broker", kafka.address, "--prefix", "example-", at=tmp_path)
    assert said.count("'paid_by'") == 5
    assert "'rider'" not in said
