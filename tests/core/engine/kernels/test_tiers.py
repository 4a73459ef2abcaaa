"""When kernels are interpreted, when they are compiled, and who hears of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from crenel.engine.kernels import compiler
from crenel.engine.kernels.arrays import Array
from crenel.engine.kernels.compiler import Kernel, bare, kernel


@bare
def _times(x: int, factor: int) -> int:
    return x * factor


def total(values: Array, power: int) -> int:
    """Add up some products of values that wrap around, as no Python number does."""
    found = np.int64(0)
    for i in range(values.size):
        found += _times(values[i], power) + _times(values[i], 2) + _times(values[i], 3)
    return found


@pytest.fixture
def young(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kernel:
    """Return a kernel of a process that has just begun, whose code is not on disk, also not from an earlier run."""
    monkeypatch.setattr(compiler, "FOLDER", tmp_path)
    monkeypatch.setattr(compiler, "_COMPILATION", compiler._Compilation())
    monkeypatch.setattr(compiler, "is_cached", lambda function: False)
    made = kernel(total)
    assert isinstance(made, Kernel)
    return made


def names_of(young: Kernel, *arguments: object) -> list[str]:
    """Call a kernel, and return what a listener heard."""
    heard: list[str] = []
    with compiler.listening(heard.append):
        assert young(*arguments) == -4_611_686_018_427_387_904
    return heard


VALUES = (np.array([2**60, 2**60]), 1)


def test_few_rows_are_interpreted(young: Kernel) -> None:
    compiler.expect(compiler.INTERPRETED_ROWS)
    assert names_of(young, *VALUES) == []
    assert not young.is_compiled()


def test_more_rows_are_compiled_and_it_is_announced_once(young: Kernel) -> None:
    assert names_of(young, *VALUES) == []
    compiler.expect(compiler.INTERPRETED_ROWS + 1)
    assert names_of(young, *VALUES) == ["test_tiers.total", ""]
    assert names_of(young, *VALUES) == []
    assert young.is_compiled()


def test_a_slow_kernel_is_compiled_after_a_while(young: Kernel) -> None:
    assert names_of(young, *VALUES) == []
    assert 0.0 < compiler._COMPILATION.seconds < compiler.INTERPRETED_SECONDS
    compiler._COMPILATION.seconds = compiler.INTERPRETED_SECONDS + 1.0
    assert names_of(young, *VALUES) == ["test_tiers.total", ""]


def test_a_function_is_compiled_once_for_all_constants(young: Kernel) -> None:
    compiler.compile_from_now_on()
    assert names_of(young, *VALUES) == ["test_tiers.total", ""]
    assert len(_times.overloads) == 1  # type: ignore[attr-defined]


def test_engines_work_without_a_compiler() -> None:
    """NUMBA_DISABLE_JIT, which people set to debug or to measure coverage, means that everything is interpreted."""
    program = """
from crenel.engine import precompile
precompile.compile_family(["bastion", "castle"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
