"""Interpreted kernels release the same rows as compiled ones, bit by bit."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crenel.encoding.rows import Rows
from crenel.engine import Releases, create_engine
from crenel.engine.kernels import compiler
from crenel.engine.kernels.interpreter import interpret
from crenel.policy import Policy
from tests.core.engine import digests

#: Few, since an interpreted row takes milliseconds.
ROWS = 120


def stream(name: str) -> tuple[Policy, Rows]:
    """Return the policy of a stream, with deadlines that a few rows reach, and its rows."""
    said: dict[str, Any] = {**digests._BASE, **digests.STREAMS[name]}
    rows = digests.rows(holes=bool(said.pop("holes", False))).slice(0, ROWS)
    shorter = {"delay_rows": 40, "delay": "60s"}
    said |= {field: value for field, value in shorter.items() if said.get(field) is not None}
    smaller = {"faanst-proactive": {"mu": 20}, "rtree-full": {"sample": 20}, "rtree-density": {"sample": 20}}
    said["parameters"] = {**said.get("parameters", {}), **smaller.get(said["method"], {})}
    return Policy.from_dict({field: value for field, value in said.items() if value is not None}), rows


def released(policy: Policy, rows: Rows) -> Releases:
    """Push rows in several parts, with a snapshot and a pause between, and end the stream."""
    engine = create_engine(policy)
    parts = [engine.push(rows.slice(0, 50)), engine.push(rows.slice(50, 51))]
    again = create_engine(policy)
    again.restore(engine.snapshot())
    parts.append(again.push(rows.slice(51, len(rows))))
    parts.append(again.advance(int(rows.time[-1]) + 20_000_000))
    return Releases.concat([*parts, again.flush()])


@pytest.mark.parametrize("name", digests.STREAMS)
def test_interpreted_kernels_release_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, rows = stream(name)
    compiler.compile_from_now_on()
    expected = released(policy, rows)
    calls = []

    def interpreted(kernel: compiler.Kernel, *arguments: Any, **named: Any) -> Any:
        calls.append(kernel)
        return interpret(kernel.py_func, *arguments, **named)

    monkeypatch.setattr(compiler.Kernel, "__call__", interpreted)
    found = released(policy, rows)
    assert calls
    for field, column in vars(expected).items():
        np.testing.assert_array_equal(getattr(found, field), column, err_msg=field)


def test_kernels_call_each_other_by_name() -> None:
    """A copy of a kernel that called `module.function` would run compiled code on interpreted arguments."""
    found = []
    for path in sorted(Path(compiler.__file__).parents[1].rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        modules = {
            (name.asname or name.name).split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in node.names
            if isinstance(node, ast.Import) or str(node.module).startswith("crenel")
        } - {"np", "math"}
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and is_compiled(node)):
            for call in (node.func for node in ast.walk(function) if isinstance(node, ast.Call)):
                if isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name) and call.value.id in modules:
                    found.append(f"{path.name}: {function.name} calls {call.value.id}.{call.attr}")
    assert found == []


def is_compiled(function: ast.FunctionDef) -> bool:
    names = {"kernel", "inner", "bare", "vectorized", "inlined"}
    return any(isinstance(decorator, ast.Name) and decorator.id in names for decorator in function.decorator_list)
