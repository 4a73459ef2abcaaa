"""The correction of Beam's runner: it changes four bytes of one class, or nothing."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from crenel.runners.flink import beam_patch, job_server
from crenel.runners.runner_errors import RunnerError
from tests.runners.harness import need_flink


def test_another_class_is_refused() -> None:
    with pytest.raises(RunnerError, match="is not the version that crenel corrects"):
        beam_patch.corrected(b"\xca\xfe\xba\xbe")


@pytest.mark.flink
def test_four_bytes_of_one_class_are_changed() -> None:
    need_flink()
    folder = job_server.jars()
    (corrected,) = (folder / "corrected").iterdir()
    with zipfile.ZipFile(folder / corrected.name) as before, zipfile.ZipFile(corrected) as after:
        assert before.namelist() == after.namelist()
        changed = [name for name in before.namelist() if before.read(name) != after.read(name)]
        (name,) = changed
        old, new = before.read(name), after.read(name)
    assert name.endswith("BundleCheckpointHandlers$StateAndTimerBundleCheckpointHandler.class")
    assert len(old) == len(new)
    different = [place for place, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    assert different[-1] - different[0] < 4
    assert {new[place] for place in different} == {0}


@pytest.mark.flink
def test_only_a_job_server_that_may_uses_it() -> None:
    need_flink()
    folder = job_server.jars()
    plain = job_server._class_path(folder, corrected=False).split(":")
    own = job_server._class_path(folder, corrected=True).split(":")
    assert [Path(path).name for path in plain] == [Path(path).name for path in own]
    assert [path for path in own if path not in plain] == [str(path) for path in (folder / "corrected").iterdir()]
