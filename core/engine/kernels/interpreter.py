"""Runs kernels as plain Python: a few rows need not wait for a compiler.

Compiled and interpreted kernels give the same results bit by bit, provided that kernels follow five rules:

- A number of less than 64 bits is widened before it meets one of Python's own numbers: numba would widen the result,
  numpy does not.
- Functions such as the logarithm come from `math`: numpy has its own.
- Sums and sorts are loops: numpy adds and sorts in another order.
- No field of a record has the name of an attribute of `numpy.void`, such as `base` or `fill`.
- A kernel calls another by its own name, never as an attribute of a module: copies are found by names only.

A loop over thousands of numbers is slow as plain Python. `instead_of` names a function of numpy that does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

__all__ = ["instead_of", "interpret", "without_compiler"]

_uncompiled: dict[FunctionType, FunctionType] = {}
_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Record(np.void):  # type: ignore[misc, unused-ignore]
    """A record whose fields are attributes, as in kernels. `numpy.record` has them too, and is ten times as slow."""

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def instead_of(compiled: Any) -> Callable[[_Function], _Function]:
    """Let a function of numpy, which does the same bit by bit, run where a compiled function would be interpreted."""

    def register(function: _Function) -> _Function:
        _uncompiled[getattr(compiled, "py_func", compiled)] = function
        return function

    return register


def interpret(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function that is written for numba without compiling it, nor any function that it calls."""
    given = [_as_kernels_see(argument) for argument in arguments]
    with np.errstate(all="ignore"):  # compiled code says nothing of integers that wrap around either
        return without_compiler(function)(*given, **{name: _as_kernels_see(named[name]) for name in named})


def without_compiler(function: Any) -> FunctionType:
    """Return a copy of a function that calls copies, too, where the function calls compiled functions."""
    copy = _uncompiled.get(function)
    if copy is None:
        names = dict(function.__globals__)
        copy = _uncompiled[function] = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
        for name in function.__code__.co_names:
            original = getattr(names.get(name), "py_func", None)
            if original is not None:
                names[name] = without_compiler(original)
    return copy


def _as_kernels_see(value: Any) -> Any:
    """Return an argument with the fields of records as attributes, and with numbers that keep double precision."""
    if isinstance(value, tuple):
        items = [_as_kernels_see(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, np.ndarray) and value.dtype.names:
        return value.view(np.dtype((_Record, value.dtype)))
    return np.float64(value) if type(value) is float else value
