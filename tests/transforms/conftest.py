"""Shared by the tests of the transforms: Beam inspects every method of every step once, not at every look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import pytest
from apache_beam.transforms import core


@pytest.fixture(scope="session", autouse=True)
def known_signatures() -> Iterator[None]:
    """Remember the signatures of methods. To inspect them takes Beam a quarter of the time of a small pipeline."""
    look, known = core.get_function_args_defaults, dict[Callable[..., Any], tuple[list[str], list[Any]]]()

    def arguments(function: Any) -> tuple[list[str], list[Any]]:
        if not isinstance(function, MethodType):
            return look(function)
        if function.__func__ not in known:
            known[function.__func__] = look(function)
        names, defaults = known[function.__func__]
        return list(names), list(defaults)

    core.get_function_args_defaults = arguments
    yield
    core.get_function_args_defaults = look
