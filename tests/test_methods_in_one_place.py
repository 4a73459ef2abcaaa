"""A method is written in one place: outside its own folder, no code names a method, except in the files listed here.

So to add a method, you touch only its folder, its entry point, its page and its tests. A file that must name a method
is listed with the reason. Delete an entry that is no longer needed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from crenel.policy.methods import GROUP, find, names
from tests.test_packaging import PYPROJECT, ROOT

FOLDERS = ("core", "pipelines", "transforms", "runners")

#: Files that must name methods: which methods, and why.
ALLOWED: dict[str, tuple[set[str], str]] = {
    "core/audit/attacks/observer.py": ({"bastion", "castle", "castleguard"}, "the attacker uses how they choose"),
    "core/audit/attacks/reuse.py": ({"bastion", "castle"}, "the attacker computes what they remember"),
    "core/audit/differential_privacy.py": ({"sdgs"}, "the proof is about this method"),
    "core/audit/promises.py": ({"bastion"}, "advice to use the default method"),
    "core/policy/policy.py": ({"bastion"}, "the default method"),
    "pipelines/checking/advice.py": ({"bastion"}, "advice to use the default method"),
    "pipelines/commands/guarantee.py": ({"castleguard", "sdgs"}, "the numbers are those of these two papers"),
    "pipelines/console/run_summary.py": ({"bastion"}, "advice to use the default method"),
    "pipelines/metrics/live_figures.py": ({"partition"}, "the label of a partition of a topic"),
    "pipelines/watching/verdicts.py": ({"partition"}, "the label of a partition of a topic"),
    "pipelines/drafting/draft.py": ({"bastion"}, "a draft chooses a method"),
}


def folder_of(name: str) -> str:
    """Return the folder of a method, relative to the root, as its entry point names it."""
    module = PYPROJECT["project"]["entry-points"][GROUP][name].partition(":")[0]
    return module.replace("crenel.", "core/", 1).replace(".", "/")


def texts(tree: ast.Module) -> Iterator[str]:
    """Yield the string constants in the code, except docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def named(path: Path) -> set[str]:
    """Return the methods that a module names, except those of its own folder."""
    inside = path.relative_to(ROOT).as_posix()
    words = list(texts(ast.parse(path.read_text("utf-8"))))
    return {
        name
        for name in names()
        if not inside.startswith(f"{folder_of(name)}/")
        and any(re.search(rf"(?<![\w.-]){name}(?![\w-])", word) for word in words)
    }


def test_every_method_has_a_folder_and_an_entry_point() -> None:
    assert set(PYPROJECT["project"]["entry-points"][GROUP]) == set(names())
    folders = {path.parent for path in (ROOT / "core/engine/methods").glob("*/__init__.py")}
    assert folders == {ROOT / folder_of(name) for name in names()}


def test_no_other_code_names_a_method() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): named(path) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")
    }
    # A method may name another one that it builds on or recommends.
    outside = {path: which for path, which in found.items() if which and not path.startswith("core/engine/methods/")}
    assert outside == {path: which for path, (which, _) in ALLOWED.items()}


def test_only_its_own_folder_imports_a_method() -> None:
    """Methods may build on one another. All other code needs only a method's declaration."""
    imports = re.compile(r"^\s*(?:from|import) crenel\.engine\.methods\b", re.MULTILINE)
    importing = {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if imports.search(path.read_text("utf-8"))
    }
    assert {path for path in importing if not path.startswith("core/engine/methods/")} == set()


@pytest.mark.parametrize("name", names())
def test_every_method_is_on_the_pages(name: str) -> None:
    """The list of methods has a row for it, and the policy page lists all its parameters."""
    assert f"`{name}`" in (ROOT / "docs/methods.md").read_text("utf-8")
    policy = (ROOT / "docs/policy.md").read_text("utf-8")
    for parameter in find(name).fields:
        assert f"`{parameter}`" in policy, parameter
