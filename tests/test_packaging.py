"""The built package: its content, its imports, and its examples, which must run."""

from __future__ import annotations

import doctest
import importlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PACKAGE_DIR: dict[str, str] = PYPROJECT["tool"]["setuptools"]["package-dir"]


def in_the_tree(pattern: str) -> dict[str, Path]:
    """Return the package's files in the tree, by their path inside the installed package."""
    found = {}
    for package, folder in PACKAGE_DIR.items():
        for path in (ROOT / folder).rglob(pattern):
            if path.is_dir() or "__pycache__" in path.parts:
                continue
            inside = path.relative_to(ROOT / folder).as_posix()
            found[f"{package.replace('.', '/')}/{inside}"] = path
    return found


def modules() -> list[str]:
    """Return the names of all modules, read from the folders: an editable install does not list its modules."""
    names = [path.removesuffix(".py").replace("/", ".") for path in in_the_tree("*.py")]
    return sorted(name.removesuffix(".__init__") for name in names)


def is_public(module: str) -> bool:
    return not any(part.startswith("_") for part in module.split("."))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Build the wheel, and return the names in it. It is built from a copy of the tree, without leftovers in build/."""
    tree = tmp_path_factory.mktemp("tree")
    for folder in PACKAGE_DIR.values():
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*build, "--wheel-dir", str(tree / "dist"), str(tree)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    (built,) = (tree / "dist").glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        return archive.namelist()


def test_packages_are_the_folders_on_disk() -> None:
    on_disk = {path.removesuffix("/__init__.py").replace("/", ".") for path in in_the_tree("__init__.py")}
    assert sorted(PYPROJECT["tool"]["setuptools"]["packages"]) == sorted(on_disk)


def test_every_folder_with_code_is_a_package() -> None:
    bare = {
        path.parent.relative_to(ROOT).as_posix()
        for path in in_the_tree("*.py").values()
        if not (path.parent / "__init__.py").exists()
    }
    assert not bare


def test_the_wheel_holds_the_whole_tree_and_nothing_else(wheel: list[str]) -> None:
    expected = set(in_the_tree("*"))
    assert {"crenel/__init__.py", "crenel/py.typed"} <= expected
    assert {name for name in wheel if ".dist-info/" not in name} == expected


def test_the_wheel_holds_the_licence(wheel: list[str]) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel)


def test_importing_the_package_is_light() -> None:
    """`import crenel` must be fast for authors of policies, so it loads no Beam, no compiler and no Arrow."""
    heavy = ["apache_beam", "numba", "pyarrow"]
    code = f"import sys, crenel; print(*sorted(set({heavy}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


def test_the_package_exports_what_a_user_needs() -> None:
    crenel = importlib.import_module("crenel")
    offered = {"Anonymize", "AnonymizeBounded", "Policy", "PolicyError", "audit", "check_engine", "create_engine"}
    offered |= {"anonymize", "Categorical", "Datetime", "Numeric", "Prefix", "Sensitive", "IpAddress", "Coordinates"}
    assert set(crenel.__all__) == offered | {"__version__"}
    assert set(crenel.__all__) <= set(dir(crenel))
    homes = {name: getattr(crenel, name) for name in offered}
    assert homes["audit"] is importlib.import_module("crenel.audit")
    assert homes["Anonymize"] is importlib.import_module("crenel.transforms").Anonymize
    assert homes["create_engine"] is importlib.import_module("crenel.engine").create_engine


def test_a_policy_and_a_declaration_are_light() -> None:
    """Reading a policy must be fast, so it loads no compiler."""
    code = (
        "import sys, crenel, crenel.engine, crenel.policy.methods as methods\n"
        "crenel.Policy, crenel.create_engine, [methods.find(name) for name in methods.names()]\n"
        "print(*sorted({'apache_beam', 'numba', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


@pytest.mark.parametrize("name", [name for name in modules() if is_public(name)])
def test_public_module_has_a_docstring_and_its_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    assert (module.__doc__ or "").strip(), f"{name} has no docstring"
    failed, _ = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0, f"{failed} examples of {name} failed; they are printed above"


def test_the_version_is_the_same_everywhere() -> None:
    version = PYPROJECT["project"]["version"]
    crenel = importlib.import_module("crenel")
    assert importlib.metadata.version("crenel") == version
    assert crenel.__version__ == version
    newest = re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is None or newest[1] == version, "CHANGELOG.md's newest release is another"


def test_the_version_is_written_once() -> None:
    version = re.compile(r"""["']""" + re.escape(PYPROJECT["project"]["version"]) + r"""["']""")
    copies = [name for name, path in in_the_tree("*.py").items() if version.search(path.read_text("utf-8"))]
    assert copies == []
