"""Every benchmark command that the papers' pages name runs, at --quick; the tests that they name exist."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "docs" / "papers.md", ROOT / "docs" / "fads.md", *sorted((ROOT / "docs" / "papers").glob("*.md"))]
TEXT = "\n".join(page.read_text("utf-8") for page in PAGES)

#: What comes after the command on a line: the end of a code span, or a comment.
_COMMAND = re.compile(r"python -m (benchmarks\.\w+)([^`\n#\[]*)")
_TEST = re.compile(r"`pytest (\S+?)(?: -k (\w+))?`")

#: Run by test_quick.
ELSEWHERE = {("benchmarks.engine", ""), ("benchmarks.attacks", ""), ("benchmarks.methods", "")}


def commands() -> list[tuple[str, str]]:
    found = {(module, given.strip()) for module, given in _COMMAND.findall(TEXT)}
    return sorted(found - ELSEWHERE)


def parts() -> list[tuple[str, str]]:
    """Return the commands without those that only run what other commands run together."""
    alone = {module for module, given in commands() if given}
    return [command for command in commands() if command[1] or command[0] not in alone]


def test_the_pages_name_commands() -> None:
    assert len(commands()) > 30
    assert {module for module, _ in commands()} == {module for module, _ in parts()}


@pytest.mark.parametrize(("module", "given"), parts(), ids=lambda value: value or "all")
def test_a_documented_command_runs(module: str, given: str, data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data_dir
    if "quality" in given:
        pytest.importorskip("sklearn", reason="classifiers need the extra `benchmarks`")
    assert importlib.import_module(module).main([*shlex.split(given), "--quick"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["quick"] is True


@pytest.mark.parametrize(("file", "word"), sorted(set(_TEST.findall(TEXT))), ids=lambda value: value or "all")
def test_a_documented_test_exists(file: str, word: str) -> None:
    text = (ROOT / file).read_text("utf-8")
    assert re.search(rf"def test\w*{word}", text)


def test_a_command_without_options_runs_the_parts_that_others_name() -> None:
    """Otherwise `python -m benchmarks.continuous_paper` could fail where each of its parts does not."""
    for module, wanted in (("continuous_paper", "PARTS"), ("adaptive_paper", "PARTS"), ("partition_paper", "PARTS")):
        named = ",".join(given for of, given in commands() if of == f"benchmarks.{module}")
        everything = set(getattr(importlib.import_module(f"benchmarks.{module}"), wanted))
        # What the papers have no figure for is tested in test_quick.
        assert everything - {"memory", "busy", "cost"} <= set(re.findall(r"\w+", named))
