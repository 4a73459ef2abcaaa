"""A sink for pipelines that run in this process. It collects elements by the name of the output."""

from __future__ import annotations

from typing import Any

import apache_beam as beam

#: It has its own module because a DoFn in `__main__` would be pickled with a copy of this dictionary.
KEPT: dict[str, list[Any]] = {}


class Keep(beam.DoFn):
    """Keeps elements."""

    def __init__(self, name: str) -> None:
        self.name = name

    def process(self, element: Any) -> None:
        KEPT[self.name].append(element)
