"""Compiled code is reused only for the same sources, and the engines also work without numba's private flag."""

from __future__ import annotations

import ast
import json
import os
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crenel.engine.kernels import compiler
from tests.core.engine import digests

CORE = Path(compiler.__file__).resolve().parents[2]
#: Runs a kernel that calls a function of another module. Compiling it takes about a second.
PROGRAM = """
import numpy as np
from crenel.engine.kernels import compiler
from crenel.engine.kernels.generator import WORDS
from crenel.engine.kernels.group_boxes import write_boxes
from crenel.engine.space import space_of
from crenel.policy import Policy

age = {"type": "numeric", "domain": [0, 100]}
policy = Policy.from_dict({"version": 1, "person": "who", "quasi_identifiers": {"age": age}, "k": 2, "delay_rows": 9})
loss, lo, hi = np.empty(1), np.empty((1, 1)), np.empty((1, 1))
write_boxes(space_of(policy), np.array([[10.0], [60.0]]), np.arange(2), np.array([0, 2]), lo, hi, loss)
print(compiler.FOLDER, compiler.is_cached(write_boxes), loss[0])
"""


def run(package: Path, *, program: str = PROGRAM, **environment: str) -> list[str]:
    """Run a program that imports the package from this folder, and return the words it prints."""
    known = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**known, "PYTHONPATH": str(package), **environment},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Make a folder with a copy of the package, without compiled code."""
    shutil.copytree(CORE, tmp_path / "crenel", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def make_losses_double(package: Path) -> None:
    """Change a function that kernels of other modules call, but neither the size nor the time of its file."""
    source = package / "crenel" / "engine" / "kernels" / "box_geometry.py"
    before, text = source.stat(), source.read_text("utf-8")
    loss = text.index("def loss_of")
    changed = text[:loss] + text[loss:].replace("total = 0.0", "total = 9.0", 1)
    assert changed != text
    source.write_text(changed, "utf-8")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_kernel_runs_the_new_code_of_a_shared_function(package: Path) -> None:
    first, second = run(package), run(package)
    assert [first[2], second[2]] == ["0.5", "0.5"]
    make_losses_double(package)
    changed = run(package)
    assert changed[2] == "9.5"
    assert changed[0] != first[0]


def test_code_that_was_compiled_once_is_found_again(package: Path) -> None:
    folder, cached, _ = run(package)
    assert cached == "True"
    indexes = {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*.nbi")}
    assert run(package)[0] == folder
    assert {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*.nbi")} == indexes


def test_two_processes_may_start_at_once(package: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run, [package, package]))
    assert found[0] == found[1]
    assert found[0][2] == "0.5"


def test_a_package_that_cannot_be_written_to_keeps_its_code_elsewhere(package: Path) -> None:
    folder = package / "crenel" / "engine"
    (folder / "__pycache__").write_text("not a folder")  # not even root can write below a file
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    cache = package / "cache"
    try:
        found, cached, loss = run(package, XDG_CACHE_HOME=str(cache))
    finally:
        folder.chmod(stat.S_IRWXU)
    assert Path(found).parent == cache / "crenel"
    assert (cached, loss) == ("True", "0.5")


def test_without_any_folder_nothing_is_kept(package: Path) -> None:
    (package / "crenel" / "engine" / "__pycache__").write_text("not a folder")
    (package / "cache").write_text("not a folder")
    assert run(package, XDG_CACHE_HOME=str(package / "cache")) == ["None", "False", "0.5"]


def test_the_folder_can_be_set(package: Path) -> None:
    found, cached, _ = run(package, NUMBA_CACHE_DIR=str(package / "set"))
    assert Path(found).parent == package / "set"
    assert cached == "True"


def test_only_the_last_folders_stay(package: Path) -> None:
    parent = package / "set"
    for i in range(9):
        (parent / f"crenel-kernels-{i}").mkdir(parents=True)
        os.utime(parent / f"crenel-kernels-{i}", (i, i))
    (parent / "another").mkdir()
    found = Path(run(package, NUMBA_CACHE_DIR=str(parent))[0]).name
    kept = {f"crenel-kernels-{i}" for i in range(9 - compiler._KEPT_FOLDERS, 9)}
    assert {path.name for path in parent.iterdir()} == kept | {found, "another"}


def test_the_digest_covers_everything_that_kernels_import() -> None:
    """Compiled code contains numbers and types of the modules it imports, and not only their functions."""
    sources = {path.relative_to(CORE).with_suffix("").as_posix() for path in compiler.sources()}
    assert "engine/methods/castle/castle_kernel" in sources
    for path in compiler.sources():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("crenel."):
                module = (node.module or "").removeprefix("crenel.").replace(".", "/")
                assert module in sources, f"{path.name} imports {node.module}"
            assert not (isinstance(node, ast.Import) and any(name.name.startswith("crenel") for name in node.names))


def test_only_two_modules_import_numba() -> None:
    importing = {
        path.name
        for path in CORE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if (isinstance(node, ast.Import) and any(name.name.split(".")[0] == "numba" for name in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "numba")
    }
    assert importing == {"compiler.py", "linking.py"}


@pytest.mark.slow
def test_without_the_late_linking_the_releases_are_the_same() -> None:
    """Simulates a numba that links in another way. The first run compiles everything again, and optimizes more."""
    program = """
from numba.core import codegen

del codegen.CodeLibrary._ensure_finalized

from crenel.engine.kernels import linking

print(linking.pipelines())
"""
    assert run(digests.FILE.parents[3], program=program) == ["({},", "{})"]


@pytest.mark.slow
def test_without_the_private_flag_the_releases_are_the_same() -> None:
    """Simulates a numba that no longer has the flag. The first run compiles everything again."""
    program = """
from numba.core import cpu
from numba.core.options import DefaultOptions

known = cpu.CPUTargetOptions.parse_as_flags.__func__

@classmethod
def parse_as_flags(cls, flags, options):
    if "_nrt" in options:
        raise KeyError("Unrecognized options: {'_nrt'}.")
    return known(cls, flags, options)

cpu.CPUTargetOptions.parse_as_flags = parse_as_flags

from crenel.engine.kernels import compiler
from tests.core.engine import digests

print(compiler._HAS_NRT_FLAG, digests.digest("castle"))
"""
    found = run(digests.FILE.parents[3], program=program)
    assert found == ["False", json.loads(digests.FILE.read_text("utf-8"))["castle"]]
    assert compiler._HAS_NRT_FLAG
