"""Compiled code is reused only for the same sources, and the engines also work without numba's private flag."""

from __future__ import annotations

import ast
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
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
compiler.compile_from_now_on()
loss, lo, hi = np.empty(1), np.empty((1, 1)), np.empty((1, 1))
write_boxes(space_of(policy), np.array([[10.0], [60.0]]), np.arange(2), np.array([0, 2]), lo, hi, loss)
print(compiler.FOLDER, compiler.is_cached(write_boxes), loss[0])
"""


def run(package: Path, *, program: str = PROGRAM, before: Sequence[str] = (), **environment: str) -> list[str]:
    """Run a program that imports the package from this folder, and return the words it prints."""
    known = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    result = subprocess.run(
        [*before, sys.executable, "-c", program],
        # Without bytecode: Python tells old from new by the time and the size of a file, which a test keeps.
        env={**known, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1", **environment},
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


@pytest.mark.slow
def test_a_kernel_runs_the_new_code_of_a_shared_function(package: Path) -> None:
    first, second = run(package), run(package)
    assert [first[2], second[2]] == ["0.5", "0.5"]
    make_losses_double(package)
    changed = run(package)
    assert changed[2] == "9.5"
    assert changed[0] != first[0]


@pytest.mark.slow
def test_code_that_was_compiled_once_is_found_again(package: Path) -> None:
    folder, cached, _ = run(package)
    assert cached == "True"
    indexes = {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*.nbi")}
    assert run(package)[0] == folder
    assert {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*.nbi")} == indexes


@pytest.mark.slow
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


@pytest.fixture
def read_only(package: Path) -> dict[str, str]:
    """Make it impossible to write beside the package and to the home; return variables that name other places."""
    (package / "crenel" / "engine" / "__pycache__").write_text("not a folder")
    (package / "cache").write_text("not a folder")
    (package / "temporary").mkdir()
    return {"XDG_CACHE_HOME": str(package / "cache"), "TMPDIR": str(package / "temporary")}


def test_without_a_home_code_is_kept_among_temporary_files(package: Path, read_only: dict[str, str]) -> None:
    found, cached, loss = run(package, **read_only)
    private = package / "temporary" / f"crenel-{os.getuid()}"
    assert Path(found).parent == private
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert (cached, loss) == ("True", "0.5")


def test_a_temporary_folder_that_others_can_write_to_is_not_trusted(package: Path, read_only: dict[str, str]) -> None:
    """Compiled code is executed: whoever could write there could run code in the engine's process."""
    private = package / "temporary" / f"crenel-{os.getuid()}"
    private.mkdir()
    private.chmod(0o777)
    assert run(package, **read_only) == ["None", "False", "0.5"]


def test_a_temporary_folder_that_is_a_link_is_not_trusted(package: Path, read_only: dict[str, str]) -> None:
    (package / "elsewhere").mkdir(mode=0o700)
    (package / "temporary" / f"crenel-{os.getuid()}").symlink_to(package / "elsewhere")
    assert run(package, **read_only) == ["None", "False", "0.5"]


def test_without_any_folder_nothing_is_kept(package: Path, read_only: dict[str, str]) -> None:
    (package / "temporary" / f"crenel-{os.getuid()}").write_text("not a folder")
    assert run(package, **read_only) == ["None", "False", "0.5"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="only setpriv keeps the superuser from writing")
def test_a_filled_folder_that_is_read_only_is_used(package: Path) -> None:
    """As in an image: it was compiled when the image was built, and the container cannot write there."""
    baked = package / "baked"
    filled = Path(run(package, NUMBA_CACHE_DIR=str(baked))[0])
    made = {path.name: path.read_bytes() for path in filled.rglob("*.nbc")}
    assert made
    places = [baked, filled, *(path for path in filled.iterdir() if path.is_dir())]
    for folder in places:
        folder.chmod(0o555)
    try:
        found = run(
            package,
            before=("setpriv", "--inh-caps=-all", "--bounding-set=-all") if os.getuid() == 0 else (),
            program=PROGRAM.replace("compiler.compile_from_now_on()", ""),  # finds compiled code, or interprets
            NUMBA_CACHE_DIR=str(baked),
        )
    finally:
        for folder in places:
            folder.chmod(0o755)
    assert Path(found[0]).parent == package / "crenel" / "engine" / "__pycache__"
    assert found[1:] == ["True", "0.5"]
    assert {path.name: path.read_bytes() for path in Path(found[0]).rglob("*.nbc")} == made


@pytest.mark.slow
def test_a_copy_of_the_package_needs_no_compiler(package: Path) -> None:
    """As a checkout or the layer of an image that was copied: it lies elsewhere, and its files are of another time."""
    made = code_in(run(package)[0])
    assert made
    copy = package / "copy"
    shutil.copytree(package / "crenel", copy / "crenel", copy_function=shutil.copyfile)
    for path in copy.rglob("*.py"):
        os.utime(path, (0, 0))
    found = run(copy, program=PROGRAM.replace("compiler.compile_from_now_on()", ""))  # finds it, or interprets
    assert Path(found[0]).is_relative_to(copy)
    assert found[1:] == ["True", "0.5"]
    assert code_in(found[0]) == made


def code_in(folder: str) -> dict[Path, bytes]:
    """Return the compiled code in a folder."""
    return {path.relative_to(folder): path.read_bytes() for path in Path(folder).rglob("*.nbc")}


def test_functions_of_other_packages_are_left_to_numba() -> None:
    """The digest does not cover their sources: numba compiles them again when their files change."""
    assert compiler._Locator.from_function(run, __file__) is None


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


def test_a_numba_that_links_in_another_way_is_left_alone() -> None:
    program = """
from numba.core import codegen

del codegen.CodeLibrary._ensure_finalized

from crenel.engine.kernels import linking

print(linking.pipelines())
"""
    assert run(digests.FILE.parents[3], program=program) == ["({},", "{})"]


@pytest.mark.slow
def test_without_the_private_flag_the_releases_are_the_same() -> None:
    """Simulates a numba that no longer has the flag. The first run compiles again, so it is of a small method."""
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

compiler.compile_from_now_on()
print(compiler._HAS_NRT_FLAG, digests.digest("partition"))
"""
    found = run(digests.FILE.parents[3], program=program)
    assert found == ["False", json.loads(digests.FILE.read_text("utf-8"))["partition"]]
    assert compiler._HAS_NRT_FLAG
