"""A sink for pipelines that run in this process: what came, by the name of the result."""

from __future__ import annotations

from typing import Any

import apache_beam as beam

#: In a module of its own: a step of `__main__` would be pickled with a copy of it.
KEPT: dict[str, list[Any]] = {}


class Keep(beam.DoFn):
    """Keeps elements."""

    def __init__(self, name: str) -> None:
        self.name = name

    def process(self, element: Any) -> None:
        KEPT[self.name].append(element)
