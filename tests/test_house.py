"""The tree keeps its shape: small modules, small folders, unique module names, and tests that mirror the code."""

from __future__ import annotations

import re
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE = ("core", "transforms", "pipelines", "runners")

#: The most lines of a module, and the most modules of a folder ("about a dozen").
MOST_LINES, MOST_MODULES = 700, 14

#: Folders of tests that mirror no folder of the package.
OTHER_TESTS = {"tests/benchmarks", "tests/examples"}


def modules() -> list[Path]:
    """Return the paths of all modules of the package."""
    found = [path for folder in CODE for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts]
    return sorted(path.relative_to(ROOT) for path in found)


def test_no_module_is_long() -> None:
    lines = {str(path): len((ROOT / path).read_text("utf-8").splitlines()) for path in modules()}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


def test_no_folder_is_crowded() -> None:
    folders = Counter(str(path.parent) for path in modules() if path.name != "__init__.py")
    assert {folder: count for folder, count in folders.items() if count > MOST_MODULES} == {}


def test_no_two_modules_share_a_name() -> None:
    places = defaultdict(list)
    for path in modules():
        if path.name not in ("__init__.py", "__main__.py"):
            places[path.stem.lstrip("_")].append(str(path))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_every_folder_says_what_it_is_for() -> None:
    folders = {path.parent for path in modules()}
    silent = [
        str(folder) for folder in folders if not (ROOT / folder / "__init__.py").read_text("utf-8").startswith('"""')
    ]
    assert silent == []


def test_tests_mirror_the_code() -> None:
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")}
    stray = {str(f) for f in folders if f != Path("tests") and not (ROOT / Path(*f.parts[1:])).is_dir()}
    assert stray - OTHER_TESTS == set()


def test_nobody_imports_a_module_under_an_old_name() -> None:
    renamed = re.compile(r"^\s*from crenel[\w.]* import (\w+) as (\w+)$", re.MULTILINE)
    # Every engine may import its own kernel module as `kernel`.
    allowed = {"kernel", "qi_types"}
    known = {path.stem for path in modules()} | {path.parent.name for path in modules()}
    found = [
        f"{path}: {match[0].strip()}"
        for path in modules()
        for match in renamed.finditer((ROOT / path).read_text("utf-8"))
        if match[1] in known and match[2] not in allowed
    ]
    assert found == []


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        (r"\._current_transform\(|\._root_transform\(|__class__ = ", "Beam's and Python's insides are not ours"),
        (r"importlib\.import_module\(.crenel", "layers import each other in the open"),
        (r"^\s*(Parameters|Returns|Raises)\n\s*-{4,}", "docstrings follow Google's convention"),
    ],
)
def test_what_must_not_come_back(word: str, reason: str) -> None:
    pattern = re.compile(word, re.MULTILINE)
    # The top-level package imports lazily, so that `import crenel` is fast.
    others = [path for path in modules() if path != Path("core/__init__.py")]
    found = [str(path) for path in others if pattern.search((ROOT / path).read_text("utf-8"))]
    assert found == [], reason


def test_one_module_knows_the_insides_of_numba() -> None:
    knows = [str(path) for path in modules() if re.search(r"\b_nrt\b", (ROOT / path).read_text("utf-8"))]
    assert len(knows) <= 1


def test_the_tree_names_no_machine() -> None:
    named = subprocess.run(
        ["git", "grep", "-nIE", r"/(work|root|home)/[a-z]", "--", ".", ":!tests/test_house.py", ":!*.png"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if named.returncode == 128:
        pytest.skip("not a checkout of git")
    assert named.stdout == ""
