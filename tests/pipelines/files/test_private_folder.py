"""Unfinished files: nobody but their owner reads them, and those of a run that was killed do not stay."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from crenel.pipelines.files import private_folder
from crenel.pipelines.files.private_folder import PrivateFolder

#: Begins a folder beside the file that is named, says where, and lives until it is killed.
RUN = """
import sys, time
from pathlib import Path
from crenel.pipelines.files.private_folder import PrivateFolder
folder = PrivateFolder.begin(Path(sys.argv[1]))
(Path(folder.path) / "rows").write_text("exact")
print(folder.path, flush=True)
time.sleep(600)
"""


@contextmanager
def other_run(beside: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    process = subprocess.Popen([sys.executable, "-c", RUN, str(beside)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


def leave(beside: Path, *, unchanged: float = 0.0, **lock: str) -> Path:
    """Make the folder of a run that is dead; its lock file names this machine, but for what is given."""
    folder = PrivateFolder.begin(beside)
    path = Path(folder.path)
    (path / "rows").write_text("exact")
    (path / "crenel.lock").write_text(json.dumps({**private_folder._machine(), **lock}))
    private_folder._open.remove(folder)
    os.close(folder._lock or 0)
    then = time.time() - unchanged
    for one in (*path.iterdir(), path):
        os.utime(one, (then, then))
    return path


def test_nobody_else_may_enter_the_folder(tmp_path: Path) -> None:
    with PrivateFolder.begin(tmp_path / "out.csv") as folder:
        assert os.stat(folder.path).st_mode & 0o777 == 0o700
        assert Path(folder.path).parent == tmp_path
    assert not os.path.exists(folder.path)


def test_the_next_run_removes_what_a_killed_run_left(tmp_path: Path) -> None:
    with other_run(tmp_path / "out.csv") as (process, left):
        assert (left / "rows").exists()
        process.kill()
        process.wait()
    assert (left / "rows").exists()
    with PrivateFolder.begin(tmp_path / "another.csv") as folder:
        assert [str(path) for path in tmp_path.iterdir()] == [folder.path]


def test_a_living_run_keeps_its_folder(tmp_path: Path) -> None:
    with other_run(tmp_path / "out.csv") as (_, alive), PrivateFolder.begin(tmp_path / "out.csv"):
        assert (alive / "rows").exists()


def test_a_living_run_of_this_process_keeps_its_folder(tmp_path: Path) -> None:
    with PrivateFolder.begin(tmp_path / "a.csv") as one, PrivateFolder.begin(tmp_path / "b.csv"):
        assert os.path.isdir(one.path)


def test_a_folder_that_was_being_removed_is_removed(tmp_path: Path) -> None:
    left = leave(tmp_path / "out.csv")
    left.rename(f"{left}.gone")
    (Path(f"{left}.gone") / "crenel.lock").unlink()
    with PrivateFolder.begin(tmp_path / "out.csv") as folder:
        assert [str(path) for path in tmp_path.iterdir()] == [folder.path]


@pytest.mark.parametrize(
    ("lock", "unchanged", "goes"),
    [
        pytest.param({}, 0, True, id="this machine"),
        pytest.param({"boot": "before"}, 0, True, id="this machine, before it was started again"),
        pytest.param({"host": "container"}, 0, True, id="another container of this machine"),
        pytest.param({"host": "other", "boot": "other"}, 0, False, id="another machine"),
        pytest.param({"host": "other", "boot": "other"}, 6 * 86400, False, id="another machine, some days ago"),
        pytest.param({"host": "other", "boot": "other"}, 8 * 86400, True, id="another machine, long ago"),
    ],
)
def test_a_lock_of_another_machine_is_not_trusted(
    tmp_path: Path, lock: dict[str, str], unchanged: float, goes: bool
) -> None:
    left = leave(tmp_path / "out.csv", unchanged=unchanged, **lock)
    with PrivateFolder.begin(tmp_path / "out.csv"):
        assert left.exists() is not goes


def test_folders_that_are_not_ours_stay(tmp_path: Path) -> None:
    (tmp_path / ".out.csv.crenel-notours1").mkdir(mode=0o700)
    open_to_others = leave(tmp_path / "out.csv")
    open_to_others.chmod(0o755)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(open_to_others, elsewhere)
    (tmp_path / ".out.csv.crenel-linklink").symlink_to(elsewhere)
    (tmp_path / ".out.csv.crenel-filefile").write_text("a file")
    before = sorted(tmp_path.iterdir())
    with PrivateFolder.begin(tmp_path / "out.csv") as folder:
        assert sorted(path for path in tmp_path.iterdir() if str(path) != folder.path) == before
    assert (elsewhere / "rows").exists()


def test_a_folder_that_is_taken_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = private_folder.tempfile.mkdtemp

    def taken(*args: str, **options: str) -> str:
        path = made(*args, **options)
        monkeypatch.setattr(private_folder.tempfile, "mkdtemp", made)
        shutil.rmtree(path)  # another run took it for one that is left over
        return path

    monkeypatch.setattr(private_folder.tempfile, "mkdtemp", taken)
    with PrivateFolder.begin(tmp_path / "out.csv") as folder:
        assert os.path.isdir(folder.path)


@contextmanager
def interrupted_at(number: int) -> Iterator[list[int]]:
    """Raise KeyboardInterrupt, once, before the line of the module that is run as the `number`-th."""
    lines = [0]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != private_folder.__file__:
            return None
        if event == "line":
            lines[0] += 1
            if lines[0] == number:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)


def test_an_interruption_at_any_line_leaves_nothing(tmp_path: Path) -> None:
    for number in itertools.count(1):
        try:
            with interrupted_at(number) as lines, PrivateFolder.begin(tmp_path / "out.csv") as folder:
                (Path(folder.path) / "rows").write_text("exact")
        except KeyboardInterrupt:
            private_folder.remove_open()  # as the interpreter does at its exit
        assert list(tmp_path.iterdir()) == []
        if lines[0] < number:  # it ran to its end
            break
    assert number > 20


def test_a_fork_leaves_the_folder_to_its_run(tmp_path: Path) -> None:
    with PrivateFolder.begin(tmp_path / "out.csv") as folder:
        child = os.fork()
        if not child:
            private_folder.remove_open()
            os._exit(0)
        os.waitpid(child, 0)
        assert os.path.isdir(folder.path)
