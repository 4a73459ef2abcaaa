"""The benchmarks of the transform run, and end with one line of JSON. The measured values are not checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import memory, transform


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return figures


def test_cost(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data_dir
    assert transform.main(["--quick", "--rows", "600", "--only", "cost"]) == 0
    figures = last_line(capsys)
    assert {"a", "b", "c", "d"} <= set(figures["cost"])
    assert figures["cost"]["a"]["to a"] == 1.0


@pytest.mark.slow
def test_cost_by_shards_and_row_groups(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data_dir
    parts = [part for part in transform.PARTS if part != "cost"]
    assert transform.main(["--quick", "--rows", "600", "--only", ",".join(parts)]) == 0
    assert set(parts) <= set(last_line(capsys))


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        transform.main(["--only", "everything"])
    assert "must be some of" in capsys.readouterr().err


@pytest.mark.parametrize("way", memory.WAYS)
def test_memory_of_one_run(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert memory.main(["--one", way, "--rows", str(2 * memory.BATCH), "--shards", "2"]) == 0
    figures = last_line(capsys)
    assert figures["peak"] >= figures["before"] > 0
