"""A notebook shows every published row, though the interactive runner replaces parts of a pipeline by its cache."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.interactive import interactive_beam
from apache_beam.runners.interactive.interactive_runner import InteractiveRunner

from crenel import Anonymize, AnonymizeBounded

POLICY: dict[str, Any] = {
    "version": 1,
    "person": "id",
    "quasi_identifiers": {"age": {"type": "numeric", "domain": [0, 100]}},
    "k": 3,
    "delay_rows": 20,
}


@pytest.mark.parametrize("transform", [Anonymize, AnonymizeBounded])
def test_collecting_shows_all_rows(transform: Any) -> None:
    pipeline = beam.Pipeline(InteractiveRunner())
    rows = pipeline | beam.Create([{"id": number, "age": number} for number in range(60)])
    result = rows | transform(POLICY)
    shown, left_out = interactive_beam.collect(result.published, result.suppressed)
    assert len(shown) + len(left_out) == 60
    assert len(shown) > 50
    assert list(shown.columns) == ["age"]
