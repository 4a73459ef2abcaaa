"""Beam YAML: `type: Anonymize` from the provider file of the installed package, in pipelines that are run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from crenel.transforms.yaml import provider_file
from tests.transforms.streams import policy, rows

pytest.importorskip("jinja2", reason="needs apache-beam[yaml]")
pytest.importorskip("docstring_parser", reason="needs apache-beam[yaml]")

GIVEN = rows(60)
GIVEN[7]["age"] = 1_000.0


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(policy().to_dict(), sort_keys=False))
    return path


def run_yaml(tmp_path: Path, spec: dict[str, Any], *, expect: int = 0) -> Any:
    """Run a pipeline with Beam's own command."""
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    command = [sys.executable, "-m", "apache_beam.yaml.main", "--yaml_pipeline_file", str(tmp_path / "pipeline.yaml")]
    done = subprocess.run(
        [*command, "--runner=FnApiRunner"], capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path
    )
    assert done.returncode == expect, done.stderr
    return done


def written(tmp_path: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for path in tmp_path.glob(f"{name}*") for line in path.read_text().splitlines()]


def create() -> dict[str, Any]:
    return {"type": "Create", "config": {"elements": GIVEN}}


def write(tmp_path: Path, name: str, source: str | None = None) -> dict[str, Any]:
    step = {"type": "WriteToJson", "name": f"Write {name}", "config": {"path": str(tmp_path / name)}}
    return step if source is None else {**step, "input": source}


@pytest.mark.slow
def test_a_chain(tmp_path: Path, policy_file: Path) -> None:
    anonymize = {"type": "Anonymize", "config": {"policy": str(policy_file)}}
    spec = {
        "pipeline": {"type": "chain", "transforms": [create(), anonymize, write(tmp_path, "published")]},
        "providers": [{"include": str(provider_file())}],
    }
    run_yaml(tmp_path, spec)
    found = written(tmp_path, "published")
    assert sorted(row["number"] for row in found) == [i for i in range(60) if i != 7]
    assert all(set(row["age"]) == {"lo", "hi"} for row in found)
    assert not any("patient" in row or "nickname" in row for row in found)


@pytest.mark.slow
def test_results_by_name_and_a_policy_in_place(tmp_path: Path) -> None:
    names = ["published", "suppressed", "rejected", "releases"]
    config = {"policy": policy().to_dict(), "outputs": names}
    steps = [
        create(),
        {"type": "Anonymize", "input": "Create", "config": config},
        *(write(tmp_path, name, f"Anonymize.{name}") for name in names),
    ]
    run_yaml(tmp_path, {"pipeline": {"transforms": steps}, "providers": [{"include": str(provider_file())}]})
    found = {name: written(tmp_path, name) for name in names}
    assert len(found["published"]) == 59
    assert sum(record["rows"] for record in found["releases"]) == 59
    ((rejected),) = found["rejected"]
    assert (rejected["field"], rejected["reason"]) == ("age", "outside the domain")
    assert json.loads(rejected["row"])["number"] == 7


@pytest.mark.slow
def test_error_handling_as_for_other_transforms(tmp_path: Path, policy_file: Path) -> None:
    config = {"policy": str(policy_file), "error_handling": {"output": "broken"}}
    steps = [
        create(),
        {"type": "Anonymize", "input": "Create", "config": config},
        write(tmp_path, "published", "Anonymize"),
        write(tmp_path, "broken", "Anonymize.broken"),
    ]
    run_yaml(tmp_path, {"pipeline": {"transforms": steps}, "providers": [{"include": str(provider_file())}]})
    assert len(written(tmp_path, "published")) == 59
    assert len(written(tmp_path, "broken")) == 1


def test_mistakes_are_told(tmp_path: Path) -> None:
    config = {"policy": {**policy().to_dict(), "k": "two"}}
    spec = {
        "pipeline": {"type": "chain", "transforms": [create(), {"type": "Anonymize", "config": config}]},
        "providers": [{"include": str(provider_file())}],
    }
    done = run_yaml(tmp_path, spec, expect=1)
    assert "policy.k must be an integer of at least 2, not 'two'." in done.stderr


def test_the_command_prints_where_the_file_is() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "crenel.transforms.yaml"], capture_output=True, text=True, check=True, timeout=60
    )
    assert Path(done.stdout.strip()) == provider_file()
    assert provider_file().is_file()
