"""Anonymeter, an outside judge, alarms on rows without names, and not on what crenel publishes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import second_witness


def test_the_second_witness_alarms_on_the_weak_stream_alone(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data_dir
    try:
        second_witness.python_of_anonymeter()
    except second_witness.NoAnonymeterError as error:
        pytest.skip(str(error))
    assert second_witness.main(["--quick"]) == 0
    weak, ours = json.loads(capsys.readouterr().out.splitlines()[-1])["found"].values()
    assert set(weak) == {"singling out, one column", "singling out, several columns", "linkability", "inference"}
    several = "singling out, several columns"
    assert weak[several]["risk"] > 0.5 > ours[several]["risk"]
    assert weak[several]["success"] > 2 * ours[several]["success"]
