"""`crenel compile`: its messages, where it stores compiled code, and that the next engine finds the code there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crenel.engine import precompile
from crenel.pipelines.cli import main
from crenel.policy import methods


def compiled(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process that stores compiled code in this folder."""
    return subprocess.run(
        [sys.executable, "-m", "crenel.pipelines.cli", "compile", *names],
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.slow
def test_a_method_is_compiled_once(tmp_path: Path) -> None:
    done = compiled(tmp_path, "sdgs", "mondrian")
    assert done.returncode == 0, done.stderr
    assert f"kept in {tmp_path}" in done.stdout
    first = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")}
    assert first
    again = compiled(tmp_path, "mondrian", "sdgs")
    assert again.returncode == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")} == first


def test_every_method_is_of_one_family() -> None:
    found = precompile.families(methods.names())
    assert sorted(name for family in found for name in family) == sorted(methods.names())


def test_an_unknown_method_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "castel"]) == 2
    assert "did you mean 'castle'" in capsys.readouterr().err.lower()


def test_without_a_folder_nothing_is_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(precompile, "folder", lambda: None)
    assert main(["compile"]) == 1
    assert "Set NUMBA_CACHE_DIR" in capsys.readouterr().err
